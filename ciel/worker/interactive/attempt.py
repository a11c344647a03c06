"""An interactive attempt as its program sees it: what its calls open, publish and create.

`close` closes everything that the calls have opened. Calls that take time end in a callback, by way
of the owner, which then checks for errors and for the end of the conversation.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from twisted.internet.defer import CancelledError, Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from ciel.core.events import TaskFault
from ciel.core.ids import ObjectId
from ciel.core.refs import Concrete, Fixed, Future, Reference, Stream, Sweetheart, Value
from ciel.core.states import Group, Member
from ciel.execution.attempt import Attempt, Growth, OpenInput
from ciel.execution.executor import Child, Executor, Task
from ciel.execution.outputs import BadCallError, Outputs
from ciel.storage.errors import ObjectConflictError, ObjectNotFoundError
from ciel.storage.interface import ObjectReader
from ciel.worker.attempts.lifecycle import Lifecycle
from ciel.worker.attempts.scratch import Scratch
from ciel.worker.attempts.strategy import Strategy
from ciel.worker.attempts.workplace import Losses
from ciel.worker.interactive.channel import send_descriptor
from ciel.worker.limits.growth import GrowingFiles
from ciel.worker.state.orders import Key, StartAttempt
from ciel.worker.streams.growing import Growing, Hold, lasting_path
from ciel.worker.streams.stdin_feeder import Piping, pipe
from ciel.worker.transfer.parts import Part

log = Logger(__name__)  # compiled code cannot determine its own module

T = TypeVar("T")
FETCHES_MAX = 3
"""How often an attempt fetches an input that should be stored here, before it gives up."""


def _cancelled(failure: Failure) -> None:
    """The attempt has ended before its parts were copied."""
    if not isinstance(failure.value, CancelledError):
        log.failure("parts of an input could not be copied", failure)


class _OpenStream:
    """A growing input that the program has opened, perhaps several times.

    Its pipes stay open until the program has closed it as often: a reader would take the end of a
    pipe for the end of the input.
    """

    def __init__(self) -> None:
        self.growing: Growing
        self.holds: list[Hold | Piping] = []
        self.count = 0

    def close(self) -> None:
        for hold in self.holds:
            hold.close()


class _PartialCopy:
    """A file with parts of an object of another host. It lies with the inputs of the attempt."""

    def __init__(self, scratch: Scratch, size_bytes: int) -> None:
        self.path = scratch.write_input(b"")
        self.fd = os.open(self.path, os.O_WRONLY | os.O_CLOEXEC)
        os.truncate(self.fd, size_bytes)


class AttemptOwner(Protocol):
    """The process that serves an attempt."""

    @property
    def exit_status(self) -> int | None: ...

    @property
    def is_cancelled(self) -> bool: ...

    @property
    def interrupted(self) -> Sequence[Key]: ...

    def go_on(self, attempt: InteractiveAttempt, step: Callable[[], None]) -> None:
        """Take a step in the conversation of an attempt, if the program still serves that."""

    def entered(self, outer: InteractiveAttempt, inner: InteractiveAttempt) -> None:
        """The program starts to run a child inline."""

    def left(self, inner: InteractiveAttempt, fault: tuple[str, str] | None) -> None:
        """The program has finished a child, and continues with its task."""

    def kill(self, *, force: bool) -> None: ...

    def stop(self, fault: TaskFault) -> None: ...

    def settle(self, attempt: InteractiveAttempt) -> None: ...

    def clean_up(self, *, files_kept: bool) -> None: ...


class InteractiveAttempt(Attempt):
    """One attempt of an interactive program, as its conversation and the life cycle see it.

    A process owns it from `serve` on.
    """

    owner: AttemptOwner

    def __init__(
        self,
        order: StartAttempt,
        task: Task,
        executor: Executor,
        strategy: Strategy,
        lifecycle: Lifecycle,
        *,
        outer: InteractiveAttempt | None = None,
        level: str = "",
    ) -> None:
        """`outer`: the attempt whose program runs this one, too.

        `level`: of the store, for its outputs, if not the level that its task requests.
        """
        place = lifecycle.place
        self._conflicts: list[ObjectConflictError] = []
        outputs = Outputs(
            task.spec.id, task.spec.outputs, place.store, place.here, self._conflicts.append
        )
        outputs.level = level or task.arguments.get("store") or ""  # its executor has checked it
        super().__init__(task, outputs, place.netloc)
        self.scratch: Scratch
        self.order = order
        self.key: Key = (order.spec.id, order.attempt)
        self.executor = executor
        self.strategy = strategy
        self.started_s = place.reactor.seconds()
        self.lost: tuple[Losses, str] | None = None  # inputs that are not where they should be
        self._place = place
        self._lifecycle = lifecycle
        self._outer = outer
        self._is_closed = False
        self._readers: dict[str, ObjectReader] = {}
        self._partial: dict[str, _PartialCopy] = {}
        self._copying: set[Deferred[Any]] = set()
        self._grown: dict[str, Growth] = {}  # inputs that were whole when they were opened
        self._opened: dict[str, _OpenStream] = {}
        self._pipings: list[Piping] = []
        self._holds: dict[str, Hold] = {}  # of inputs that the program reads once they are whole
        self._streams: dict[int, Growing] = {}
        self._waiters: list[Any] = []
        self._has_written = self._has_streamed = False

    # --- as the life cycle sees it ----------------------------------------------------------------

    @property
    def argv(self) -> Sequence[str]:
        return ()  # a fault names the process by other means

    @property
    def partial_output(self) -> str | None:
        return None  # outputs are rolled back when a task fails

    @property
    def level(self) -> str:
        return self.outputs.level

    @property
    def exit_status(self) -> int | None:
        return self.owner.exit_status

    @property
    def interrupted(self) -> Sequence[Key]:
        return self.owner.interrupted

    @property
    def is_repeatable(self) -> bool:
        """As `RunningAttempt` says; False if the attempt continues a suspended process."""
        is_known = self.children_count or self._has_streamed or self._outer is not None
        continues = any(isinstance(ref, Fixed) for ref in self.task.inputs.values())
        may_repeat = self._has_written and not is_known and not continues
        return may_repeat and not self.owner.is_cancelled and self.attached is None

    def kill(self, *, force: bool) -> None:
        self.owner.kill(force=force)

    def recall(self) -> None:
        """Do nothing, since its program runs already."""

    def stop(self, fault: TaskFault) -> None:
        self.owner.stop(fault)

    def settle(self, event: Any) -> None:
        self.owner.settle(self)

    def clean_up(self, *, files_kept: bool = False) -> None:
        self.owner.clean_up(files_kept=files_kept)

    def abandon(self) -> None:
        self.roll_back_outputs()
        self.close()

    # --- as its conversation sees it --------------------------------------------------------------

    @property
    def where(self) -> str:
        return f"{super().where} on worker {self._place.worker}"

    @property
    def life(self) -> str:
        return self._place.worker

    def close(self) -> None:
        """Close all inputs; outputs were published or rolled back before."""
        self._is_closed = True
        for error in self._conflicts:  # the object that was committed first stays
            log.warn("a task is not deterministic: {error}", error=error)
        for waiter in self._waiters:
            waiter.cancel()
        for copied in tuple(self._copying):
            copied.cancel()
        for partial in self._partial.values():
            os.close(partial.fd)
        for reader in self._readers.values():
            reader.close()
        for opened in self._opened.values():
            opened.close()
        for hold in self._holds.values():
            hold.close()
        if self._has_written:
            self._lifecycle.growth.remove(self.key)

    def _late(self, then: Callable[[T], None]) -> Callable[[T], None]:
        """Return a callback that does nothing once the attempt is closed."""

        def come(value: T) -> None:
            if not self._is_closed:
                self.owner.go_on(self, lambda: then(value))

        return come

    # --- inputs -----------------------------------------------------------------------------------

    def resolve(self, ref: Reference) -> Reference:
        known = self.task.inputs.get(ref.id) or self.outputs.reference(ref.id)
        if isinstance(known, Future) and self.task.spec.any_count:
            return known  # other inputs were enough, and this one may never be complete
        if known is None:
            known = ref if self._outer is None else self._outer.resolve(ref)
        if isinstance(known, Future):
            known = self._place.owner.recent(known.id) or known
        if isinstance(known, Future | Stream):
            growing = self._place.streams.get(known.id)
            if growing is None and self._place.store.stat(known.id) is not None:
                return Concrete(known.id, None, self._place.here)
            if growing is not None:
                return Stream(known.id, self._place.here)
        return known

    def open_whole(
        self, ref: Reference, then: Callable[[str], None], *, in_file: bool = False
    ) -> None:
        self._open(ref, then, FETCHES_MAX, in_file=in_file)

    def _open(
        self,
        ref: Reference,
        then: Callable[[str], None],
        fetches_left: int,
        *,
        in_file: bool = False,
    ) -> None:
        if isinstance(ref, Value):
            then(self.scratch.write_input(_content(ref)))
            return
        growing = self._place.streams.get(ref.id) if isinstance(ref, Stream) else None
        if growing is None:
            self._open_stored(ref, then, fetches_left, in_file)
            return
        if ref.id not in self._holds:
            self._holds[ref.id] = self._place.streams.hold(growing)

        def ended(growing: Growing) -> None:
            if growing.broken:
                self._lose(((ref.id, self.netloc),), growing.broken)
            else:
                then(growing.name())

        self._wait(growing, float("inf"), ended)

    def _open_stored(
        self, ref: Reference, then: Callable[[str], None], fetches_left: int, in_file: bool
    ) -> None:
        is_verified = self._outer is None and ref.id in self.task.inputs  # see `Attempts.start`
        is_verified = is_verified and not self._place.store.is_remote(ref.id)
        is_verified = is_verified or ref.id in self._readers
        waiting = None if is_verified else self._place.checksums.verify((ref,))
        if waiting is None or waiting.called:
            self._open_verified(ref, then, fetches_left, in_file)
        else:
            go_on = self._late(lambda _: self._open_verified(ref, then, fetches_left, in_file))
            waiting.addCallback(go_on)

    def _open_verified(
        self, ref: Reference, then: Callable[[str], None], fetches_left: int, in_file: bool
    ) -> None:
        reader = self._readers.get(ref.id)
        if reader is None:
            try:
                reader = self._place.open(ref.id, ref)
            except ObjectNotFoundError as error:
                is_here = ref.id in self.task.inputs and ref.id not in self.task.spec.apart
                if not fetches_left or is_here:
                    self._lose(((ref.id, self.netloc),), str(error))
                    return
                again = functools.partial(self._open, then=then, fetches_left=fetches_left - 1)
                self._fetch(ref, lambda: again(self.resolve(ref), in_file=in_file))
                return
            if self._place.store.is_remote(ref.id):
                reader.close()
                self._open_stored(ref, then, fetches_left, in_file)
                return
            self._readers[ref.id] = reader
        path = lasting_path(reader, maps_files=self.maps_files and not in_file)
        then(path or self.scratch.write_input(reader.read(0, reader.size_bytes)))

    def open_parts(
        self, ref: Reference, parts: Sequence[tuple[int, int]], then: Callable[[str], None]
    ) -> None:
        if not isinstance(ref, Concrete | Sweetheart) or self._place.store.stat(ref.id) is not None:
            self.open_whole(ref, then)
            return
        known = self._partial.get(ref.id)
        if known is None:
            known = self._partial[ref.id] = _PartialCopy(self.scratch, ref.size_bytes or 0)
        path = known.path
        self._place.owner.waits(self.key)
        copied = self._place.owner.copy_parts(ref, [Part(*part) for part in parts], known.fd)
        self._copying.add(copied)

        def come(is_there: bool) -> None:
            self._copying.discard(copied)
            if is_there:
                then(path)
            else:
                self.open_whole(ref, then)

        copied.addCallbacks(self._late(come), _cancelled)

    def _fetch(self, ref: Reference, again: Callable[[], None]) -> None:
        def fetched(losses: Losses | None, details: str) -> None:
            late(None if losses is None else (losses, details))

        def come(lost: tuple[Losses, str] | None) -> None:
            if lost is None:
                again()
            else:  # no worker holds this stream
                self._lose(lost[0] or ((ref.id, self.netloc),), lost[1])

        late = self._late(come)
        self._place.owner.waits(self.key)
        self._place.owner.fetch(ref, fetched)

    def lose_input(self, object_id: str, details: str) -> None:
        self._lose(((ObjectId(object_id), self.netloc),), details)

    def _lose(self, losses: Losses, details: str) -> None:
        self.lost = (losses, f"on worker {self._place.worker}: {details}")

    def open_growing(
        self, ref: Reference, blocking: bool, then: Callable[[OpenInput], None]
    ) -> None:
        def whole(path: str) -> None:
            growth = self._grown[ref.id] = Growth(os.stat(path).st_size, True)
            then(OpenInput(path, growth, True))

        growing = self._place.streams.get(ref.id)
        if growing is None and isinstance(ref, Stream):
            self._fetch(ref, lambda: self.open_growing(self.resolve(ref), blocking, then))
        elif growing is None or isinstance(ref, Value):
            self.open_whole(ref, whole)
        else:
            opened = self._opened.setdefault(ref.id, _OpenStream())
            opened.growing = growing
            opened.count += 1
            self._place.streams.measure(growing)
            growth = Growth(growing.size_bytes, growing.is_whole)
            if blocking:
                piping = pipe(self._place.reactor, growing, self._place.streams)
                self._pipings.append(piping)
                opened.holds.append(piping)
                then(OpenInput(piping.name, growth, True))
            else:
                opened.holds.append(self._place.streams.hold(growing))
                then(OpenInput(growing.name(), growth, False))

    @property
    def input_error(self) -> OSError | None:
        """Why the program may have read only a part of an input; None if it has not."""
        return next((piping.error for piping in self._pipings if piping.error is not None), None)

    def prefer(self, ref: Reference) -> None:
        if isinstance(ref, Concrete | Sweetheart):
            self._place.prefer(ref)

    def read(self, ref: Reference, then: Callable[[bytes], None]) -> None:
        if isinstance(ref, Value):
            then(_content(ref))
            return

        def opened(path: str) -> None:
            with open(path, "rb") as file:
                then(file.read())

        self.open_whole(ref, opened, in_file=True)

    def await_growth(
        self, object_id: str, at_least_bytes: float, then: Callable[[Growth], None]
    ) -> None:
        growth = self._grown.get(object_id)
        if growth is not None:
            then(growth)
            return
        opened = self._opened.get(object_id)
        if opened is None:
            raise BadCallError(f"{object_id!r:.140} is not open as a stream")

        def grown(growing: Growing) -> None:
            if growing.broken:
                self._lose(((ObjectId(object_id), self.netloc),), growing.broken)
            then(Growth(growing.size_bytes, growing.is_whole, bool(growing.broken)))

        self._wait(opened.growing, at_least_bytes, grown)

    def _wait(self, growing: Growing, at_least: float, then: Callable[[Growing], None]) -> None:
        def reached(growing: Growing) -> None:
            self._waiters.remove(waiter)
            then(growing)

        waiter = self._place.streams.when(growing, at_least, self._late(reached))
        self._waiters.append(waiter)

    def close_growing(self, object_id: str) -> None:
        opened = self._opened.get(object_id)
        if opened is not None:
            opened.count -= 1
            if not opened.count:
                del self._opened[object_id]
                opened.close()

    # --- states -----------------------------------------------------------------------------------

    def join_states(self, name: str, size: int, number: int) -> str:
        group = Group(self.task.spec.job, name)
        return self._place.boards.join(Member(group, size, number, *self.key))

    def has_set_state(self, name: str, number: int) -> None:
        self._place.boards.has_set(Group(self.task.spec.job, name), number)

    # --- outputs and the rest ---------------------------------------------------------------------

    def open_output(
        self, index: int, streams: bool, size_bytes: int | None = None, *, in_file: bool = False
    ) -> str:
        writer = self.outputs.open(index, size_bytes)
        is_mapped = self.maps_files and not streams and not in_file
        path = writer.mapped_path if is_mapped else writer.path
        if path is None:
            raise OSError("programs cannot write to this worker's store by path; use another store")
        if not self._has_written and self._place.store.capabilities.bounded:
            self._has_written = True
            watched = GrowingFiles((), self.outputs.writers)  # not its standard output
            self._lifecycle.growth.add(self.key, watched)
        if streams:
            self._has_streamed = True
            object_id = self.outputs.ids[index]
            former = self._place.streams.get(object_id)
            if former is not None and not former.is_over:  # of a cancelled attempt
                self._place.streams.break_off(former, f"{object_id}: another attempt produces it")
            self._streams[index] = self._place.streams.open(object_id, writer.fileno())
            self._place.owner.streams_opened(self.key, (object_id,))
        return path

    def lend_output(self, index: int, netloc: str) -> tuple[ObjectId, str]:
        return self.outputs.lend(index, netloc), self._place.cluster_id

    def close_output(self, index: int, size_bytes: int | None) -> Reference:
        growing = self._streams.get(index)
        if growing is None:
            return self.outputs.close(index, size_bytes)
        ref, why = self._place.streams.seal(
            growing,
            self.outputs.writers[index].path or "",
            lambda: self.outputs.close(index, size_bytes),
            self._conflicts,
        )
        del self._streams[index]
        if why:
            self._report_broken(growing, why)
        return ref

    def roll_back_output(self, index: int) -> None:
        growing = self._streams.pop(index, None)
        if growing is not None:
            self._break_off(growing, "its producer rolled it back")
        self.outputs.roll_back(index)

    def _break_off(self, growing: Growing, why: str) -> None:
        details = f"{growing.object_id}: {why}"
        self._place.streams.break_off(growing, details)
        self._report_broken(growing, details)

    def _report_broken(self, growing: Growing, details: str) -> None:
        """Report a broken output, unless its readers read the output of another attempt by now."""
        if self._place.streams.get(growing.object_id) in (None, growing):
            self._place.owner.stream_broken(ObjectId(growing.object_id), details)

    def close_outputs(self) -> None:
        """Publish the outputs that are still open: a program that succeeds may leave them open."""
        for index in list(self.outputs.writers):
            self.close_output(index, None)

    def roll_back_outputs(self) -> None:
        """Roll back the outputs that are still open."""
        for growing in self._streams.values():
            self._place.streams.break_off(growing, f"{growing.object_id}: its producer has failed")
        self._streams.clear()
        self.outputs.roll_back_all()
        if not self.children_count:  # a child may refer to them
            published = self.outputs.published.values()
            made = [ref.id for ref in published if isinstance(ref, Concrete | Sweetheart)]
            if made:
                self._place.owner.outputs_discarded(tuple(made))

    def note_growth(self, index: int, size_bytes: int) -> None:
        growing = self._streams.get(index)
        if growing is not None:
            self._place.streams.grew(growing, size_bytes)

    def send_descriptor(self, socket_path: str, path: str, *, writes: bool) -> None:
        fd = os.open(path, (os.O_WRONLY if writes else os.O_RDONLY) | os.O_CLOEXEC)
        try:
            send_descriptor(socket_path, fd)
        finally:
            os.close(fd)

    def log(self, text: str, *, is_stderr: bool = False) -> None:
        self._place.log(self.task.spec, self.key[1], text, is_stderr=is_stderr)

    def room(self) -> int | None:
        return self._place.owner.room()

    def add_child(self, child: Child, *, wanted: bool | None = None) -> None:
        self._place.owner.attempt_spawned(self.key, child, wanted=wanted)

    def begin_child(self, child: Child, arguments: dict[str, Any]) -> InteractiveAttempt:
        self._place.owner.child_started_inline(self.key, child)
        order = StartAttempt(child.spec, 0, child.known, 0, True)
        known, executors = self.task.inputs, self.task.executors
        task = Task(child.spec, arguments, known, executors, may_run_children=True)
        inner = InteractiveAttempt(
            order, task, self.executor, self.strategy, self._lifecycle, outer=self
        )
        inner.scratch, inner.owner = self.scratch, self.owner
        self.owner.entered(self, inner)
        return inner

    def end_within(self, fault: tuple[str, str] | None) -> None:
        if fault is None:
            self.close_outputs()
        else:
            self.roll_back_outputs()
        self.owner.left(self, fault)


def _content(ref: Value) -> bytes:
    """Return the content of a reference, which a program may have written."""
    try:
        return ref.content
    except ValueError:
        raise BadCallError(f"the content in the reference of {ref.id} is not base64") from None
