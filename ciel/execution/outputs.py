"""The outputs of one attempt at a task with an interactive program (docs/programs.md).

The first outputs are those that the task declares; the program may allocate more. Each output is
published once: as content, as a file that the program writes between `open` and `close`, or as a
reference. Small content is stored inline in the reference, other content is committed to the store.
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
"""Called if an output exists with different content, so its task is not deterministic."""


class BadCallError(Exception):
    """A program made an invalid call; the message is for the author of the program."""


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
        self.writers: dict[int, ObjectWriter] = {}
        self.lent: dict[int, str] = {}
        """The outputs that the program writes into the stores of other workers: their addresses."""
        self.may_have_lacked_space = False
        """Whether the store may have been too full for an output that was rolled back."""
        self.level = ""  # the store level of the outputs that `levels` does not list
        self.levels: dict[int, str] = {}  # store levels by output number
        self._task_id = task_id
        self._store = store
        self._here = here
        self._conflict = conflict
        self._indices: dict[str, int] = {}  # the numbers of published outputs, by id
        self._named: dict[
            str, int
        ] = {}  # the numbers of outputs that are named by content, by digest

    def index(self, value: object) -> int:
        """Check and return the number of an output; raises BadCallError.

        None means 0 if the task declares exactly one output.
        """
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
        """Return the number of an output whose id contains the digest of its content.

        The first call with a digest adds the output.
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
            raise BadCallError(f"'prefix' does not give a valid object id: {error}") from None
        if object_id in self._expected:
            raise BadCallError(
                f"'prefix' {prefix!r} gives {object_id}, which is the id of another output"
            )
        self.ids.append(object_id)
        return len(self.ids) - 1

    def reference(self, object_id: str) -> Reference | None:
        """Return the reference that was published for an object id, None if there is none."""
        index = self._indices.get(object_id)
        return None if index is None else self.published[index]

    def publish(self, index: int, content: bytes) -> Reference:
        """Publish the whole content of an output."""
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
        """Publish an output as a reference that has no content, such as `Fixed`."""
        self._require_unpublished(index)
        self._note(index, ref)

    def open(self, index: int, size_bytes: int | None = None) -> ObjectWriter:
        """Return a writer for an output. `size_bytes`: space to reserve, if the size is known."""
        self._require_unpublished(index)
        level = self.levels.get(index, self.level)
        writer = self._store.begin_in(level, self.ids[index], size_hint_bytes=size_bytes)
        self.writers[index] = writer
        return writer

    def lend(self, index: int, netloc: str) -> ObjectId:
        """Note that the program writes an output into the store of the worker at an address.

        Return the object's id.
        """
        self._require_unpublished(index)
        self.lent[index] = netloc
        return self.ids[index]

    def is_begun(self, index: int) -> bool:
        """Whether an output is published or being written."""
        return index in self.published or index in self.writers or index in self.lent

    def close(self, index: int, size_bytes: int | None = None) -> Reference:
        """Publish an output that was written; `size_bytes` is the size that the program reports.

        The program has committed an output that was lent.
        """
        if index in self.lent:
            places = frozenset((self.lent.pop(index),))
            ref: Reference = Concrete(self.ids[index], size_bytes, places)
            self._note(index, ref)
            return ref
        writer = self._writer(index)
        written_bytes = writer.size_bytes
        if size_bytes is not None and size_bytes > written_bytes:
            raise BadCallError(
                f"output {index} has {written_bytes} bytes, but the program reported {size_bytes}"
            )
        ref = commit_output(
            self._store, writer, self._here, self._conflict, size_bytes=written_bytes
        )
        del self.writers[index]
        self._note(index, ref)
        return ref

    def roll_back(self, index: int) -> None:
        """Discard the data written to an output; it may be opened again."""
        if self.lent.pop(index, None) is not None:
            return  # the program has discarded it
        writer = self._writer(index)
        self.may_have_lacked_space = self.may_have_lacked_space or writer.may_be_short
        writer.abort()
        del self.writers[index]

    def roll_back_all(self) -> None:
        """Discard all outputs that are open."""
        for writer in self.writers.values():
            self.may_have_lacked_space = self.may_have_lacked_space or writer.may_be_short
            writer.abort()
        self.writers.clear()
        self.lent.clear()

    def _note(self, index: int, ref: Reference) -> None:
        self.published[index] = ref
        self._indices[ref.id] = index

    def _writer(self, index: int) -> ObjectWriter:
        writer = self.writers.get(index)
        if writer is None:
            raise BadCallError(f"output {index} is not open")
        return writer

    def _require_unpublished(self, index: int) -> None:
        if index in self.published:
            raise BadCallError(f"output {index} was published already")
        if self.is_begun(index):
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

    `is_alone`: every program that knew the file's name has ended. `size_bytes`: the size as the
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
        conflict(error)  # the object that was committed first stays
        info = store.stat(object_id)
        size_bytes = info.size_bytes if info is not None else size_bytes
    return Concrete(object_id, size_bytes, here)
