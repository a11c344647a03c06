"""The part of the API that works within a task: `spawn`, `put`, `wait`, `empty` and so on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ciel.core.errors import CielError
from ciel.python.contents import ERROR, VALUE
from ciel.python.futures import call_holding, futures_in, futures_of
from ciel.python.options import USUAL, Options
from ciel.python.packing import PLAIN_TYPES, UnpackedError, copy_buffers, pack_with_futures
from ciel.python.sessions import (
    ALL_COMPLETED,
    FIRST_COMPLETED,
    FIRST_EXCEPTION,
    current_or_none,
    everyone,
)
from ciel.python.task_futures import (
    DONE,
    Host,
    TaskFuture,
    WorkItem,
    end_of,
    rest_until,
    result_of,
)

if TYPE_CHECKING:
    import numpy

    from ciel.python.arrow_tables import Locator


def empty(shape: int | Sequence[int], dtype: Any = float) -> numpy.ndarray[Any, Any]:
    """Return a new numpy array with arbitrary content, for a task to fill and return.

    Its memory is in the store already, so that returning it copies nothing. Outside a task it is an
    ordinary array.
    """
    import numpy

    session = current_or_none()
    array = session.array(shape, dtype) if isinstance(session, TaskSession) else None
    return numpy.empty(shape, dtype) if array is None else array


class OutputRegion(Protocol):
    """A part of the file of a task's output in which another allocator works.

    It extends the file from the offset on at which it was made.
    """

    def skip(self, size_bytes: int) -> int:
        """Set whole pages of the file aside; return their offset. Raises MemoryError."""

    def place(self, address: int, size_bytes: int) -> int | None:
        """Return the offset in the file of bytes in memory; None if they are elsewhere."""

    @property
    def locator(self) -> Locator:
        """What `place` does, as a function in C."""

    def close(self, *, is_final: bool) -> int:
        """Allocate nothing more; return the offset where the used part of the file ends.

        `is_final`: the content becomes an object. Otherwise its memory stays as ordinary memory.
        """


HasSet = Callable[[str, int], None]
"""Tells the worker that a member of a group, by name and number, has changed its state."""
JoinStates = Callable[[str, int, int], tuple[str, HasSet]]
"""Joins a group by its name, its size and the number of the member; returns its board's path."""


class Growth(Protocol):
    """How code in C extends a file of an image: see `ciel.scc.shmfs.Growth`."""

    reserve: int
    place: int
    fs: int
    handle: int
    handle_bytes: int
    first_bytes: int


MakeRegion = Callable[[int, int, Growth | None], OutputRegion]
"""Makes a region from a descriptor, which it then owns, and an offset in the file.

With a growth, the descriptor belongs to an image. The region keeps the growth while its memory is
in use."""


def output_region(make: MakeRegion, at: str | None = None) -> OutputRegion | None:
    """Return the region in the output of the calling task; `make` makes it at the first call.

    Return None outside of a task, and in a task that cannot have any. `at`: the address of another
    worker of this host, in whose memory the output shall be; raises ValueError if it cannot be
    there.
    """
    session = current_or_none()
    return session.region(make, at) if isinstance(session, TaskSession) else None


def current_states() -> JoinStates | None:
    """Return the function by which the calling task joins a group; None if it cannot join any.

    Raises NotInTaskError outside of a task.
    """
    session = current_or_none()
    if not isinstance(session, TaskSession):
        raise NotInTaskError("only tasks have states, and this is not a task")
    return session.join_states


def task_directory() -> str:
    """Return the private directory of the calling task; it is removed when the task ends.

    Raises NotInTaskError outside of a task.
    """
    for session in reversed(everyone()):
        if isinstance(session, TaskSession) and session.directory is not None:
            return session.directory()
    raise NotInTaskError


class TaskInfo(NamedTuple):
    """The identity of a task. `attempt`: counted from 1; `job`: the id of its job."""

    id: str
    attempt: int
    name: str
    job: str


def current_task() -> TaskInfo:
    """Return the identity of the task that this code runs in.

    One task may run several small calls that the client sent together, and also small children of
    these calls. Raises NotInTaskError outside of a task.
    """
    for session in reversed(everyone()):
        if isinstance(session, TaskSession) and session.describe is not None:
            return TaskInfo(**session.describe())
    raise NotInTaskError("ciel.current_task() works only within a task, and this is not a task")


class NotInTaskError(CielError, RuntimeError):
    """A function that works only within a task was called outside of one."""

    def __init__(
        self,
        text: str = "ciel.task_directory() works only within a task, and this is not a task; "
        "elsewhere use tempfile.TemporaryDirectory()",
    ) -> None:
        super().__init__(text)


class TaskSession:
    """The session of a task.

    `snapshot` returns a function that behaves as its argument does now, whatever variables change
    later. `directory` returns the task's private directory, `describe` the fields of `TaskInfo`.
    `new_array` allocates an array in the store, and `new_region` a region of its output for other
    allocators; None: this task cannot have any. `join_states` joins a group (`JoinStates`); None:
    the call shares its task with others, which could wait for each other.
    """

    is_of_task = True

    def __init__(
        self,
        host: Host,
        snapshot: Callable[[Any], Any],
        directory: Callable[[], str] | None = None,
        describe: Callable[[], dict[str, Any]] | None = None,
    ) -> None:
        self._host = host
        self._snapshot = snapshot
        self.directory = directory
        self.describe = describe
        self.new_array: Callable[[Any, Any], Any] | None = None
        self.new_region: Callable[[MakeRegion, str | None], OutputRegion] | None = None
        self.join_states: JoinStates | None = None

    def forget(self) -> None:
        """Forget the functions of the task, which has ended."""
        self.new_array = self.new_region = self.join_states = None

    def array(self, shape: Any, dtype: Any) -> Any:
        """Return an array in the store; None if this task cannot have any."""
        return None if self.new_array is None else self.new_array(shape, dtype)

    def region(self, make: MakeRegion, at: str | None) -> OutputRegion | None:
        """Return the region in this task's output; None if it cannot have any."""
        return None if self.new_region is None else self.new_region(make, at)

    def resolve(self, value: Any, name: str) -> Any:
        """Return the final value of what a function has returned: see `Host.resolve`."""
        return self._host.resolve(value, name)

    def call(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: Options,
    ) -> Any:
        """See `sessions.Session.call`; raises PackingError."""
        work = WorkItem(function, args, kwargs, options)
        try:
            work.function = self._snapshot(function)
        except Exception as error:  # a __reduce__ of the user may raise anything
            if held := futures_of(function):
                given = (self.put(function), args, kwargs, held)
                return self.call(call_holding, given, {}, options._replace(name=work.name))
            raise _packing_error(f"the function {work.name}", error) from None
        futures = []
        for value in args:
            if type(value) is TaskFuture:
                futures.append(value)
            elif type(value) not in PLAIN_TYPES:
                self._pack(work)
                break
        else:
            if kwargs:
                self._pack(work)
            else:
                work.dependencies = futures
        self._host.spawn(work)
        if options.returns == 1:
            return TaskFuture(self._host, work)
        return tuple([TaskFuture(self._host, work, place) for place in range(options.returns)])

    def _pack(self, work: WorkItem) -> None:
        try:
            packed, work.dependencies = pack_with_futures((work.args, work.kwargs))
        except UnpackedError as error:
            raise _packing_error(f"the arguments of {work.name}", error) from None
        work.packed = copy_buffers(packed)
        work.args, work.kwargs = (), {}

    def put(self, value: Any) -> TaskFuture[Any]:
        """Keep a value, and store it once when another task needs it; raises PackingError."""
        work = WorkItem(None, (), {}, USUAL)
        try:
            result = result_of(value)
        except UnpackedError as error:
            raise _packing_error("the value", error) from None
        if result.kind == VALUE:
            result = result._replace(payload=copy_buffers(result.payload))
        work.results, work.state = [result], DONE
        return TaskFuture(self._host, work)

    def wait(
        self, futures: Iterable[Any], timeout: float | None, return_when: str
    ) -> tuple[set[Any], set[Any]]:
        """See `sessions.wait`."""
        if return_when not in (ALL_COMPLETED, FIRST_COMPLETED, FIRST_EXCEPTION):
            raise ValueError(
                f"return_when must be {ALL_COMPLETED}, {FIRST_COMPLETED} or {FIRST_EXCEPTION}, "
                f"not {return_when!r}"
            )
        listed, end_s = futures_in(futures), end_of(timeout)
        while True:
            done = {future for future in listed if future.done()}
            waiting = [future.target().work for future in listed if future not in done]
            is_enough = bool(done) and return_when == FIRST_COMPLETED
            if return_when == FIRST_EXCEPTION:
                is_enough = any(future.wait().kind == ERROR for future in done)
            rest_s = rest_until(end_s)
            if not waiting or is_enough or rest_s == 0:
                return done, set(listed) - done
            is_any = return_when != ALL_COMPLETED
            self._host.complete(waiting, any_one=is_any, timeout_s=rest_s)

    def as_completed(self, futures: Iterable[Any], timeout: float | None) -> Iterator[Any]:
        """See `sessions.as_completed`."""
        waiting, end_s = set(futures_in(futures)), end_of(timeout)
        while waiting:
            done, waiting = self.wait(waiting, rest_until(end_s), FIRST_COMPLETED)
            if not done:
                raise TimeoutError(f"{len(waiting)} futures were not done in time")
            yield from done


def _packing_error(what: str, error: Exception) -> Exception:
    from ciel.python.failures import packing_error

    return packing_error(what, error)
