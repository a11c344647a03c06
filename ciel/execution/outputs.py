"""The outputs of one attempt of an interactive program: the outputs that its task promised, then
outputs that it allocates (ciel-interfaces, 1.5 and 1.6).

Each output is published once: as content, or as a file that the program writes between `open` and
`close`. Small content is stored inline in the reference, other content is committed to the store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ciel.core.errors import InvalidIdError
from ciel.core.ids import ObjectId, check_id
from ciel.core.refs import INLINE_MAX_BYTES, Concrete, Reference, Value
from ciel.storage.errors import ObjectConflictError
from ciel.storage.interface import ObjectStore, ObjectWriter

ALLOCATED_MAX = 1_000_000
"""How many outputs an attempt may allocate; this stops endless loops."""

Conflict = Callable[[ObjectConflictError], None]
"""Called if an output exists with other content, so its task is not deterministic."""


class BadCallError(Exception):
    """A program made an invalid call; the text is for its author."""


class Outputs:
    """The published outputs of one attempt, and the files that it is writing."""

    def __init__(
        self,
        task_id: str,
        expected: Iterable[ObjectId],
        store: ObjectStore,
        here: frozenset[str],
        conflict: Conflict,
    ) -> None:
        self.ids = list(expected)
        self.expected_count = len(self.ids)
        self._expected = frozenset(self.ids)
        self.published: dict[int, Reference] = {}
        self.open_ones: dict[int, ObjectWriter] = {}
        self.lacked_room = False
        """Whether an output that was rolled back may have lacked space in the store."""
        self.level = ""  # the store level of outputs, ...
        self.levels: dict[int, str] = {}  # ...except of these
        self._task_id = task_id
        self._store = store
        self._here = here
        self._conflict = conflict
        self._numbers: dict[str, int] = {}  # of published outputs, by id
        self._named: dict[str, int] = {}  # of outputs named by content, by digest

    def index(self, value: object) -> int:
        """Check the number of an output; None stands for the only one. Raises BadCallError."""
        if value is None and self.expected_count == 1:
            return 0
        if type(value) is not int:
            raise BadCallError(f"'index' must be the number of an output, not {value!r:.40}")
        if not 0 <= value < len(self.ids):
            known = {0: "the task has none", 1: "the only output of the task is 0"}
            several = f"the outputs of the task are 0 to {len(self.ids) - 1}"
            raise BadCallError(f"there is no output {value}; {known.get(len(self.ids), several)}")
        return value

    def allocate(self, prefix: str) -> int:
        """Add an output; return its number."""
        return self._allocate(prefix, len(self.ids) - self.expected_count)

    def allocate_named(self, prefix: str, digest: str) -> int:
        """Add an output that is named by the digest of its content instead of its number; return
        its number. An earlier output with the same digest is used again.
        """
        number = self._named.get(digest)
        if number is None:
            number = self._named[digest] = self._allocate(f"{prefix}.{digest}", 0)
        return number

    def _allocate(self, prefix: str, number: int) -> int:
        if len(self.ids) - self.expected_count >= ALLOCATED_MAX:
            raise BadCallError(f"a task may allocate at most {ALLOCATED_MAX} outputs")
        try:
            object_id = ObjectId(check_id(f"{self._task_id}:{prefix or 'pub'}:{number}"))
        except InvalidIdError as error:
            raise BadCallError(f"'prefix' makes no name of an object: {error}") from None
        if object_id in self._expected:
            raise BadCallError(f"'prefix' {prefix!r} gives {object_id}, an existing output")
        self.ids.append(object_id)
        return len(self.ids) - 1

    def reference(self, object_id: str) -> Reference | None:
        """Return the reference that was published for an id, if any."""
        index = self._numbers.get(object_id)
        return None if index is None else self.published[index]

    def publish(self, index: int, content: bytes) -> Reference:
        """Publish a whole output at once."""
        self._require_unpublished(index)
        object_id = self.ids[index]
        if len(content) <= INLINE_MAX_BYTES:
            ref: Reference = Value.of(object_id, content)
        else:
            level, size_bytes = self.levels.get(index, self.level), len(content)
            with self._store.begin_in(level, object_id, size_hint_bytes=size_bytes) as writer:
                writer.write(content)
                ref = commit_output(self._store, writer, self._here, self._conflict)
        self._note(index, ref)
        return ref

    def add(self, index: int, ref: Reference) -> None:
        """Publish a reference that has no content."""
        self._require_unpublished(index)
        self._note(index, ref)

    def open(self, index: int, size_bytes: int | None = None) -> ObjectWriter:
        """Start to write an output; reserve `size_bytes`, if the size is known."""
        self._require_unpublished(index)
        level = self.levels.get(index, self.level)
        writer = self._store.begin_in(level, self.ids[index], size_hint_bytes=size_bytes)
        self.open_ones[index] = writer
        return writer

    def close(self, index: int, size_bytes: int | None = None) -> Reference:
        """Publish an output that was written; `size_bytes` is the size that the program reports."""
        writer = self._writer(index)
        written_bytes = writer.size_bytes
        if size_bytes is not None and size_bytes > written_bytes:
            raise BadCallError(
                f"output {index} is said to have {size_bytes} bytes, {written_bytes} were written"
            )
        ref = commit_output(
            self._store, writer, self._here, self._conflict, size_bytes=written_bytes
        )
        del self.open_ones[index]
        self._note(index, ref)
        return ref

    def roll_back(self, index: int) -> None:
        """Discard the data written to an output; it may be opened again."""
        writer = self._writer(index)
        self.lacked_room = self.lacked_room or writer.may_be_short
        writer.abort()
        del self.open_ones[index]

    def roll_back_all(self) -> None:
        """Discard all outputs that are open."""
        for writer in self.open_ones.values():
            self.lacked_room = self.lacked_room or writer.may_be_short
            writer.abort()
        self.open_ones.clear()

    def _note(self, index: int, ref: Reference) -> None:
        self.published[index] = ref
        self._numbers[ref.id] = index

    def _writer(self, index: int) -> ObjectWriter:
        writer = self.open_ones.get(index)
        if writer is None:
            raise BadCallError(f"output {index} is not open")
        return writer

    def _require_unpublished(self, index: int) -> None:
        if index in self.published:
            raise BadCallError(f"output {index} was published already")
        if index in self.open_ones:
            raise BadCallError(f"output {index} is open already")


def commit_output(
    store: ObjectStore,
    writer: ObjectWriter,
    here: frozenset[str],
    conflict: Conflict,
    *,
    is_alone: bool = False,
    size_bytes: int | None = None,
) -> Reference:
    """Commit an output; return small content inline in the reference.

    `is_alone`: no program that knew the file's name is running. `size_bytes`: the size as the
    caller has just read it, which avoids an expensive query.
    """
    object_id = ObjectId(writer.object_id)
    content = writer.take(INLINE_MAX_BYTES, is_alone=is_alone)
    if content is not None:
        return Value.of(object_id, content)
    if size_bytes is None:
        size_bytes = writer.size_bytes
    try:
        size_bytes = writer.commit().size_bytes
    except ObjectConflictError as error:
        conflict(error)  # the first one wins (failures.md, W12)
        info = store.stat(object_id)
        size_bytes = info.size_bytes if info is not None else size_bytes
    return Concrete(object_id, size_bytes, here)
