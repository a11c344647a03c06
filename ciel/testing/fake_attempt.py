"""An attempt for tests of an executor's conversation, with a real store and no process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ciel.core.ids import ObjectId
from ciel.core.refs import Concrete, Future, Reference, Stream, Value
from ciel.execution.attempt import Attempt, Growth, OpenInput
from ciel.execution.executor import Child, Task
from ciel.execution.outputs import BadCallError, Outputs
from ciel.storage.errors import ObjectConflictError
from ciel.storage.interface import ObjectStore


class FakeAttempt(Attempt):
    """Reads inputs from the store, or from references that contain them; inputs in `growths` grow.
    Answers every call at once, or, if `is_slow`, when the test calls `go_on`.
    """

    def __init__(self, task: Task, store: ObjectStore, path: Path, netloc: str = "here:1") -> None:
        self.conflicts: list[ObjectConflictError] = []
        here = frozenset((netloc,))
        expected = task.spec.outputs
        outputs = Outputs(task.spec.id, expected, store, here, self.conflicts.append)
        super().__init__(task, outputs, netloc)
        self.is_slow = False
        self.path_of_all = ""  # if set, the path that is returned for every input
        self.children: list[Child] = []
        self.lost: list[str] = []
        self.states: list[tuple[Any, ...]] = []  # what the program has joined, and set
        self.wanted: list[Child] = []  # children that the program wanted while it ran
        self.within: list[FakeAttempt] = []  # attempts of children that run in this process
        self.ended: list[
            tuple[str, str] | None
        ] = []  # how it ended, if it runs in the process of another
        self.logged: list[str] = []
        self.slots_free: int | None = 1
        self.sent: list[
            tuple[str, str, bool]
        ] = []  # descriptors: socket, path, and whether to write
        self.socket_error: OSError | None = None
        self.streamed: list[int] = []
        self.hints: list[tuple[int, int]] = []
        self.growths: dict[str, Growth] = {}
        self.parts: list[tuple[str, list[tuple[int, int]]]] = []  # that were opened
        self.opened: list[str] = []  # growing inputs that are open
        self.waits: list[tuple[str, float]] = []
        self.preferred: list[Reference] = []
        self._store = store
        self._path = path
        self._postponed: list[Callable[[], None]] = []

    def go_on(self) -> None:
        """Answer the postponed calls."""
        postponed, self._postponed = self._postponed, []
        for call in postponed:
            call()

    def _come(self, call: Callable[[], None]) -> None:
        if self.is_slow:
            self._postponed.append(call)
        else:
            call()

    # --- inputs -----------------------------------------------------------------------------------

    def resolve(self, ref: Reference) -> Reference:
        known = self.task.inputs.get(ref.id) or self.outputs.reference(ref.id) or ref
        if isinstance(known, Future) and self._store.stat(known.id) is not None:
            return Concrete(known.id, None, frozenset((self.netloc,)))
        return known

    def open_whole(
        self, ref: Reference, then: Callable[[str], None], *, in_file: bool = False
    ) -> None:
        self._come(lambda: then(self._path_of(ref)))

    def open_parts(
        self, ref: Reference, parts: Sequence[tuple[int, int]], then: Callable[[str], None]
    ) -> None:
        self.parts.append((ref.id, list(parts)))
        self.open_whole(ref, then)

    def _path_of(self, ref: Reference) -> str:
        if self.path_of_all:
            return self.path_of_all
        path = self._path / ref.id.replace(":", ".")
        content = ref.content if isinstance(ref, Value) else self._store.get(ref.id)
        path.write_bytes(content)
        return str(path)

    def open_growing(
        self, ref: Reference, blocking: bool, then: Callable[[OpenInput], None]
    ) -> None:
        if isinstance(ref, Stream):
            self.opened.append(ref.id)
            found = OpenInput(f"growing/{ref.id}", self.growths[ref.id], blocking)
        else:
            path = self._path_of(ref)
            found = OpenInput(path, Growth(Path(path).stat().st_size, True), True)
        self._come(lambda: then(found))

    def lose_input(self, object_id: str, details: str) -> None:
        self.lost.append(object_id)

    def prefer(self, ref: Reference) -> None:
        self.preferred.append(ref)

    def read(self, ref: Reference, then: Callable[[bytes], None]) -> None:
        self.open_whole(ref, lambda path: then(Path(path).read_bytes()))

    def await_growth(
        self, object_id: str, at_least_bytes: float, then: Callable[[Growth], None]
    ) -> None:
        if object_id not in self.opened:
            raise BadCallError(f"{object_id!r} is not open as a stream")
        self.waits.append((object_id, at_least_bytes))
        self._come(lambda: then(self.growths[object_id]))

    def close_growing(self, object_id: str) -> None:
        if object_id in self.opened:
            self.opened.remove(object_id)

    # --- states -----------------------------------------------------------------------------------

    def join_states(self, name: str, size: int, number: int) -> str:
        self.states.append((name, size, number))
        return f"/dev/shm/{name}"

    def has_set_state(self, name: str, number: int) -> None:
        self.states.append((name, number))

    # --- outputs and the rest ---------------------------------------------------------------------

    def open_output(
        self, index: int, streams: bool, size_bytes: int | None = None, *, in_file: bool = False
    ) -> str:
        path = self.outputs.open(index, size_bytes).path
        assert path is not None
        if streams:
            self.streamed.append(index)
        return path

    def lend_output(self, index: int, netloc: str) -> tuple[ObjectId, str]:
        return self.outputs.lend(index, netloc), "test"

    def close_output(self, index: int, size_bytes: int | None) -> Reference:
        return self.outputs.close(index, size_bytes)

    def roll_back_output(self, index: int) -> None:
        self.outputs.roll_back(index)

    def note_growth(self, index: int, size_bytes: int) -> None:
        self.hints.append((index, size_bytes))

    def send_descriptor(self, socket_path: str, path: str, *, writes: bool) -> None:
        if self.socket_error is not None:
            raise self.socket_error
        self.sent.append((socket_path, path, writes))

    def log(self, text: str, *, is_stderr: bool = False) -> None:
        self.logged.append(text)

    def room(self) -> int | None:
        return self.slots_free

    def add_child(self, child: Child, *, wanted: bool | None = None) -> None:
        self.children.append(child)
        if wanted:
            self.wanted.append(child)

    def begin_child(self, child: Child, arguments: dict[str, Any]) -> Attempt:
        self.children.append(child)
        task = self.task._replace(spec=child.spec, arguments=arguments)
        within = FakeAttempt(task, self._store, self._path, self.netloc)
        self.within.append(within)
        return within

    def end_within(self, fault: tuple[str, str] | None) -> None:
        self.ended.append(fault)
