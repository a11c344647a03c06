"""What a task's own code meets: futures of what it spawns, `put`, `wait` and the like.

A call that is spawned is a `Work`, whoever runs it: the program itself, when its value is needed,
or another program, if that came to be asked first. The program's evaluator does either.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar

from ciel.core.errors import CielError
from ciel.core.tasks import DEFAULT_NEEDS
from ciel.python.contents import ERROR, MOVED, VALUE, Outcome
from ciel.python.futures import Future, call_holding, futures_in, futures_of
from ciel.python.packing import Buffer, Packed, UnpackedError, pack_with_futures, unpack
from ciel.python.sessions import (
    ALL_COMPLETED,
    FIRST_COMPLETED,
    FIRST_EXCEPTION,
    current_or_none,
    everyone,
)
from ciel.python.tasks import Options, Task, name_of

if TYPE_CHECKING:
    import numpy

T = TypeVar("T")

HELD, RUNNING, AWAY, DONE = "held", "running", "away", "done"
"""States of a work: nobody has begun it and we may; it runs here; others do it; its outcomes are
known."""

PLAIN: Final = -1
"""The kind of an outcome whose value is at hand and cannot change."""
_PLAIN_TYPES = frozenset((int, float, bool, str, bytes, type(None), complex))
_STEADY_TYPES = _PLAIN_TYPES | {
    types.FunctionType, types.BuiltinFunctionType, types.ModuleType, type, Task,
}  # fmt: skip


class Result(NamedTuple):
    """What became of one call: see `contents.Outcome`. `payload`: the value itself (PLAIN), Packed
    (VALUE), a packed error (ERROR), or a future that has it (MOVED). `futures`: those in the value.
    """

    kind: int
    payload: Any
    futures: Sequence[Any] = ()


class Work:
    """A call of a function that a task has spawned, or (`function` is None) what another made.

    `args` and `kwargs` hold plain values and futures, unless they are `packed`; `taken` are the
    futures in them. `child`: its number among what the task has made; `array`: its object's
    reference in JSON form. One of both is known of what is AWAY. `home`: where it waits to be run.
    """

    __slots__ = (
        "__weakref__", "args", "array", "child", "forward", "function", "home", "is_raw",
        "is_stream", "kwargs", "options", "packed", "results", "state", "step", "taken",
    )  # fmt: skip

    def __init__(
        self,
        function: Callable[..., Any] | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: Options,
    ) -> None:
        self.function = function
        self.args = args
        self.kwargs = kwargs
        self.options = options
        self.packed: Packed | None = None
        self.taken: Sequence[TaskFuture[Any]] = ()
        self.state = HELD
        self.results: list[Result] = []
        self.home: Any = None
        self.child = -1
        self.array: list[Any] | None = None
        self.is_raw = self.is_stream = False
        self.forward: TaskFuture[Any] | None = None  # to whom it has handed its result
        self.step: Any = None  # where its function stands, if that can be left

    def copy(self, host: Host) -> Work:
        """Return a work that does the same; what becomes of it becomes of this one, too."""
        other = Work(self.function, self.args, self.kwargs, self.options)
        other.packed, other.taken = self.packed, self.taken
        self.forward, self.step = TaskFuture(host, other), None
        return other

    @property
    def is_usual(self) -> bool:
        """Whether it may run within another task's program: nothing else was asked for."""
        options = self.options
        return options.needs is DEFAULT_NEEDS or (
            options.needs == DEFAULT_NEEDS and not options.python
        )

    @property
    def name(self) -> str:
        return name_of(self.function, self.options)


class Host(Protocol):
    """Who runs works: the evaluator of the program."""

    def spawn(self, work: Work) -> None: ...

    def settle(
        self, works: Sequence[Work], *, any_one: bool = False, timeout_s: float | None = None
    ) -> None:
        """Wait until all these works (or one of them) are done; with a time-out, until that is over
        or more of them are done.
        """

    def look(self, work: Work) -> bool:
        """Say whether a work is done, or can be known to be, without waiting."""

    def awaited(self, future: TaskFuture[Any]) -> Generator[Any, Any, Any]:
        """Wait in a coroutine."""

    def call_off(self, work: Work) -> bool: ...

    def writable(self, buffer: Buffer) -> Buffer:
        """Return the bytes of a buffer in memory of their own."""

    def whole(self, value: Any, name: str) -> Any:
        """Return what a value stands for that a function of this name has returned: a future, a
        generator, a coroutine; any other is its own.
        """


class TaskFuture(Future[T]):
    """A future within a task: the `place`-th outcome of a work."""

    __slots__ = ("_value", "host", "place", "work")

    def __init__(self, host: Host, work: Work, place: int = 0) -> None:
        self.host = host
        self.work = work
        self.place = place
        self._value: Any = _UNREAD

    def found(self) -> TaskFuture[Any]:
        """Return the future that has the outcome, as far as it was handed on till now."""
        future: TaskFuture[Any] = self
        while future.work.state is DONE:
            result = future.work.results[future.place]
            if result.kind != MOVED:
                break
            future = result.payload
        return future

    def outcome(self) -> Result | None:
        """Return what became of it; None if that is not known."""
        future = self.found()
        return future.work.results[future.place] if future.work.state is DONE else None

    def wait(self, timeout: float | None = None) -> Result:
        """Wait for what becomes of it; raises TimeoutError."""
        end_s = _end_of(timeout)
        while (outcome := self.outcome()) is None:
            left_s = _left_until(end_s)
            if left_s == 0 and not self.done():
                raise TimeoutError("it is not done")
            self.host.settle((self.found().work,), timeout_s=left_s)
        return outcome

    def result(self, timeout: float | None = None) -> T:
        """Wait for the value and return it, as it says above. In a task, who waits holds no slot,
        and what is waited for with a `timeout` does not run within the waiting task.
        """
        value: T = self.value_of(self.wait(timeout))
        return value

    def value_of(self, outcome: Result) -> Any:
        """Return the value of an outcome of this future, or raise it."""
        if outcome.kind == PLAIN:
            return outcome.payload
        if outcome.kind == ERROR:
            from ciel.python.failures import unpack_error

            raise unpack_error(outcome.payload)
        if self._value is _UNREAD:
            self._value = opened(outcome, self.host.writable)
        return self._value

    def exception(self, timeout: float | None = None) -> BaseException | None:
        outcome = self.wait(timeout)
        if outcome.kind != ERROR:
            return None
        from ciel.python.failures import unpack_error

        return unpack_error(outcome.payload)

    def done(self) -> bool:
        return self.outcome() is not None or self.host.look(self.found().work)

    def running(self) -> bool:
        return self.found().work.state in (RUNNING, AWAY)

    def cancel(self) -> bool:
        return self.host.call_off(self.found().work)

    def cancelled(self) -> bool:
        outcome = self.outcome()
        if outcome is None or outcome.kind != ERROR:
            return False
        from ciel.python.failures import TaskCancelledError, unpack_error

        return isinstance(unpack_error(outcome.payload), TaskCancelledError)

    def add_done_callback(self, fn: Callable[[Any], object]) -> None:
        raise NotImplementedError(
            "in a task nothing runs while nobody waits: wait for the future, and then call it"
        )

    def __await__(self) -> Generator[Any, Any, T]:
        return self.host.awaited(self)

    def __iter__(self) -> Iterator[Any]:
        value: Any = self.result()
        return iter(value)

    def __repr__(self) -> str:
        work = self.work
        name = "of another task" if work.function is None else work.name
        return f"<ciel.Future {name} {work.state}>"


_UNREAD: Final = object()


class Items(list[Any]):
    """What a task has yielded; whoever takes it as an argument gets an iterator."""


def is_plain(value: Any, depth: int = 4) -> bool:
    """Whether a value is of a kind that cannot change, so that it needs no copy."""
    kind = type(value)
    if kind in _PLAIN_TYPES:
        return True
    return kind is tuple and depth > 0 and all(is_plain(item, depth - 1) for item in value)


def opened(outcome: Result, writable: Callable[[Buffer], Buffer]) -> Any:
    """Return the value of an outcome that is one, as a reader elsewhere gets it, in memory of its
    own: `writable` returns the same bytes as a buffer has in memory that may be written to.
    """
    if outcome.kind == PLAIN:
        return outcome.payload
    packed: Packed = outcome.payload
    return unpack(packed.head, map(writable, packed.buffers), outcome.futures)


def result_of(value: Any) -> Result:
    """Keep a value as others will see it; raises UnpackedError."""
    if is_plain(value):
        return Result(PLAIN, value)
    packed, futures = pack_with_futures(value)
    return Result(VALUE, packed, futures)


def packed_of(result: Result) -> Packed:
    """Return the value of an outcome that is one, packed."""
    if result.kind == PLAIN:
        return pack_with_futures(result.payload)[0]
    packed: Packed = result.payload
    return packed


def copied(packed: Packed) -> Packed:
    """Return what was packed with copies of those buffers that may still change."""
    if not packed.buffers:
        return packed
    return Packed(packed.head, tuple([_frozen(buffer) for buffer in packed.buffers]))


def _frozen(buffer: Any) -> Buffer:
    view = buffer.raw() if hasattr(buffer, "raw") else memoryview(buffer)
    return view if view.readonly else bytes(view)


def steady(function: Callable[..., Any]) -> Callable[..., Any] | None:
    """Return a function as it is now, whatever becomes of the variables that it refers to; None if
    only its bytes can be that.
    """
    inner = function.function if type(function) is Task else function
    if type(inner) is not types.FunctionType:
        is_free = type(inner) in _STEADY_TYPES and getattr(inner, "__self__", None) is None
        is_builtin = isinstance(getattr(inner, "__self__", None), types.ModuleType)
        return function if is_free or is_builtin else None
    if inner.__closure__ is None:
        return function
    cells = []
    for cell in inner.__closure__:
        try:
            value = cell.cell_contents
        except ValueError:  # it is empty
            return None
        if type(value) not in _STEADY_TYPES:
            return None
        cells.append(types.CellType(value))
    found = types.FunctionType(
        inner.__code__, inner.__globals__, inner.__name__, inner.__defaults__, tuple(cells)
    )
    found.__kwdefaults__, found.__qualname__ = inner.__kwdefaults__, inner.__qualname__
    found.__module__ = inner.__module__
    return found


def empty(shape: int | Sequence[int], dtype: Any = float) -> numpy.ndarray[Any, Any]:
    """Return a new array of numpy's, of arbitrary content, which a task is to fill and return: it
    lies in the store already, and is not copied. Elsewhere it is an ordinary array.
    """
    import numpy

    session = current_or_none()
    array = session.array(shape, dtype) if isinstance(session, TaskSession) else None
    return numpy.empty(shape, dtype) if array is None else array


def task_directory() -> str:
    """Return the private directory of the task that calls this; it is removed when the task ends.

    Raises NotInTaskError elsewhere.
    """
    for session in reversed(everyone()):
        if isinstance(session, TaskSession) and session.directory is not None:
            return session.directory()
    raise NotInTaskError


class TaskInfo(NamedTuple):
    """What a task knows of itself. `attempt`: counted from 1; `job`: the id of its job."""

    id: str
    attempt: int
    name: str
    job: str


def current_task() -> TaskInfo:
    """Return which task runs the call that asks. Small calls that are sent together, and small
    children that their parent runs itself, are in one task.

    Raises NotInTaskError elsewhere.
    """
    for session in reversed(everyone()):
        if isinstance(session, TaskSession) and session.describe is not None:
            return TaskInfo(**session.describe())
    raise NotInTaskError("ciel.current_task() tells a task which one it is, and this is no task")


class NotInTaskError(CielError, RuntimeError):
    """What only a task has was asked for elsewhere."""

    def __init__(
        self,
        text: str = "ciel.task_directory() returns the private directory of a task, and this is no "
        "task; tempfile.TemporaryDirectory() makes one anywhere",
    ) -> None:
        super().__init__(text)


class TaskSession:
    """What `ciel.spawn`, `ciel.wait` and the like do within a task. `as_now` returns what does as a
    function would do now, whenever it is called. `drafts` says where arrays of `empty` lie; None:
    nowhere. `directory` returns the task's private directory, `describe` the fields of `TaskInfo`.
    """

    is_of_task = True

    def __init__(
        self,
        host: Host,
        as_now: Callable[[Any], Any],
        directory: Callable[[], str] | None = None,
        describe: Callable[[], dict[str, Any]] | None = None,
    ) -> None:
        self._host = host
        self._as_now = as_now
        self.directory = directory
        self.describe = describe
        self.drafts: Callable[[Any, Any], Any] | None = None

    def array(self, shape: Any, dtype: Any) -> Any:
        """Return an array that lies in the store; None if that cannot be."""
        return None if self.drafts is None else self.drafts(shape, dtype)

    def whole(self, value: Any, name: str) -> Any:
        """Return the result of a call that has returned this, as `Host.whole`."""
        return self._host.whole(value, name)

    def call(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: Options,
    ) -> Any:
        """See `sessions.Session.call`; raises PackingError."""
        work = Work(function, args, kwargs, options)
        try:
            work.function = self._as_now(function)
        except Exception as error:  # of anybody's __reduce__
            if held := futures_of(function):
                given = (self.put(function), args, kwargs, held)
                return self.call(call_holding, given, {}, options._replace(name=work.name))
            raise _packing_error(f"the function {work.name}", error) from None
        taken = []
        for value in args:
            if type(value) is TaskFuture:
                taken.append(value)
            elif type(value) not in _PLAIN_TYPES:
                self._pack(work)
                break
        else:
            if kwargs:
                self._pack(work)
            else:
                work.taken = taken
        self._host.spawn(work)
        if options.returns == 1:
            return TaskFuture(self._host, work)
        return tuple([TaskFuture(self._host, work, place) for place in range(options.returns)])

    def _pack(self, work: Work) -> None:
        try:
            packed, work.taken = pack_with_futures((work.args, work.kwargs))
        except UnpackedError as error:
            raise _packing_error(f"the arguments of {work.name}", error) from None
        work.packed = copied(packed)
        work.args, work.kwargs = (), {}

    def put(self, value: Any) -> TaskFuture[Any]:
        """Keep a value, to be stored once if others need it; raises PackingError."""
        work = Work(None, (), {}, Options())
        try:
            result = result_of(value)
        except UnpackedError as error:
            raise _packing_error("the value", error) from None
        if result.kind == VALUE:
            result = result._replace(payload=copied(result.payload))
        work.results, work.state = [result], DONE
        return TaskFuture(self._host, work)

    def wait(
        self, futures: Iterable[Any], timeout: float | None, return_when: str
    ) -> tuple[set[Any], set[Any]]:
        """See `sessions.wait`."""
        if return_when not in (ALL_COMPLETED, FIRST_COMPLETED, FIRST_EXCEPTION):
            raise ValueError(f"return_when must not be {return_when!r}")
        listed, end_s = futures_in(futures), _end_of(timeout)
        while True:
            done = {future for future in listed if future.done()}
            waiting = [future.found().work for future in listed if future not in done]
            is_enough = bool(done) and return_when == FIRST_COMPLETED
            if return_when == FIRST_EXCEPTION:
                is_enough = any(future.wait().kind == ERROR for future in done)
            left_s = _left_until(end_s)
            if not waiting or is_enough or left_s == 0:
                return done, set(listed) - done
            is_any = return_when != ALL_COMPLETED
            self._host.settle(waiting, any_one=is_any, timeout_s=left_s)

    def as_completed(self, futures: Iterable[Any], timeout: float | None) -> Iterator[Any]:
        """See `sessions.as_completed`."""
        waiting, end_s = set(futures_in(futures)), _end_of(timeout)
        while waiting:
            done, waiting = self.wait(waiting, _left_until(end_s), FIRST_COMPLETED)
            if not done:
                raise TimeoutError(f"{len(waiting)} futures are not done")
            yield from done


def _end_of(timeout: float | None) -> float | None:
    return None if timeout is None else monotonic() + timeout


def _left_until(end_s: float | None) -> float | None:
    return None if end_s is None else max(0.0, end_s - monotonic())


def _packing_error(what: str, error: Exception) -> Exception:
    from ciel.python.failures import packing_error

    return packing_error(what, error)


def result_from(outcome: Outcome, host: Host) -> Result:
    """Return an outcome that was read, with futures for what it refers to."""
    if outcome.kind == ERROR:
        return Result(ERROR, outcome.packed.head)
    if outcome.kind == MOVED:
        return Result(MOVED, _referred(unpack(outcome.packed.head), host))
    return Result(VALUE, outcome.packed, [_referred(ref, host) for ref in outcome.refs])


def _referred(ref: Any, host: Host) -> TaskFuture[Any]:
    """Return a future of what a reference names: (its JSON form, place, whether it is raw)."""
    array, place, is_raw = ref
    work = Work(None, (), {}, Options())
    work.state, work.array, work.is_raw = AWAY, list(array), is_raw
    return TaskFuture(host, work, place)
