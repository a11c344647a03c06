"""Futures within a task, and the work items that they stand for.

A call that a task spawns is a `WorkItem`. The program of the task runs it when the task needs its
value, unless the task has handed it over to another program before.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from time import monotonic
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from ciel.core.tasks import DEFAULT_NEEDS
from ciel.python.contents import ERROR, MOVED, VALUE, Outcome
from ciel.python.futures import Future
from ciel.python.options import USUAL, Options
from ciel.python.packing import (
    PLAIN_TYPES,
    Buffer,
    Packed,
    pack_with_futures,
    unpack,
    unpack_apart,
)
from ciel.python.tasks import name_of

T = TypeVar("T")

PENDING, RUNNING, REMOTE, DONE = "pending", "running", "remote", "done"
"""States of a work item. PENDING: it has not started, and this program may run it. RUNNING: this
program runs it. REMOTE: it is a separate task, which another program runs. DONE: its results are
known.
"""

PLAIN: Final = -1
"""The kind of a result that is an unpacked value of an immutable type."""


class Result(NamedTuple):
    """The result of one call (see `contents.Outcome`).

    `payload`: the value itself (PLAIN), Packed (VALUE), a packed error (ERROR), or a future that
    has the result (MOVED). `futures`: the futures in the value.
    """

    kind: int
    payload: Any
    futures: Sequence[Any] = ()


class WorkItem:
    """A call that a task has spawned; or, if `function` is None, an object of another task.

    `args` and `kwargs` hold plain values and futures, unless they are `packed`; `dependencies` are
    the futures in them. A REMOTE item has either `child`, its number among the objects that the
    task has created, or `ref`, the reference to its object in JSON form.
    """

    __slots__ = (
        "__weakref__", "args", "child", "dependencies", "forward", "function", "is_raw",
        "is_stream", "kwargs", "options", "packed", "ref", "results", "scope", "state", "suspended",
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
        self.dependencies: Sequence[TaskFuture[Any]] = ()
        self.state = PENDING
        self.results: list[Result] = []
        self.scope: Any = None
        """While it is PENDING: the items that the same function has spawned."""
        self.child = -1
        self.ref: list[Any] | None = None
        self.is_raw = self.is_stream = False
        self.forward: TaskFuture[Any] | None = None
        """The future that its function has returned; the item has the result of that future."""
        self.suspended: Any = None
        """Its generator or coroutine, until that has ended."""

    def copy(self, host: Host) -> WorkItem:
        """Return an item that calls the same function; this one forwards its result."""
        other = WorkItem(self.function, self.args, self.kwargs, self.options)
        other.packed, other.dependencies = self.packed, self.dependencies
        self.forward, self.suspended = TaskFuture(host, other), None
        return other

    @property
    def may_run_inline(self) -> bool:
        """Whether another task's program may run it: its options need no separate task."""
        options = self.options
        return options.needs is DEFAULT_NEEDS or (
            options.needs == DEFAULT_NEEDS and not options.python
        )

    @property
    def name(self) -> str:
        return name_of(self.function, self.options)


class Host(Protocol):
    """Runs work items: the part of the program's evaluator that futures and sessions use."""

    def spawn(self, work: WorkItem) -> None: ...

    def complete(
        self, works: Sequence[WorkItem], *, any_one: bool = False, timeout_s: float | None = None
    ) -> None:
        """Run items, or wait for them, until all (with `any_one`, one) are done.

        With a timeout, return after it, or as soon as one more of them is done.
        """

    def poll(self, work: WorkItem) -> bool:
        """Return whether an item is done, as far as the worker knows; never wait for it."""

    def wait_in_coroutine(self, future: TaskFuture[Any]) -> Generator[Any, Any, Any]: ...

    def cancel(self, work: WorkItem) -> bool: ...

    def writable(self, buffer: Buffer) -> Buffer:
        """Return the bytes of a buffer in private memory, which may be written to."""

    def resolve(self, value: Any, name: str) -> Any:
        """Return the final value of what a function has returned; `name` is the function's name.

        A future, a generator or a coroutine is run to its end; any other value is final.
        """


class TaskFuture(Future[T]):
    """A future within a task: the `place`-th result of a work item."""

    __slots__ = ("_value", "host", "place", "work")

    def __init__(self, host: Host, work: WorkItem, place: int = 0) -> None:
        self.host = host
        self.work = work
        self.place = place
        self._value: Any = _UNREAD

    def target(self) -> TaskFuture[Any]:
        """Follow the futures that results were forwarded to, as far as they are known now."""
        future: TaskFuture[Any] = self
        while future.work.state is DONE:
            result = future.work.results[future.place]
            if result.kind != MOVED:
                break
            future = result.payload
        return future

    def outcome(self) -> Result | None:
        """Return the result; None if it is not known."""
        future = self.target()
        return future.work.results[future.place] if future.work.state is DONE else None

    def wait(self, timeout: float | None = None) -> Result:
        """Wait for the result; raises TimeoutError."""
        end_s = end_of(timeout)
        while (outcome := self.outcome()) is None:
            rest_s = rest_until(end_s)
            if rest_s == 0 and not self.done():
                raise TimeoutError("the future is not done")
            self.host.complete((self.target().work,), timeout_s=rest_s)
        return outcome

    def result(self, timeout: float | None = None) -> T:
        """Wait for the value and return it. A task that waits holds no slot.

        With a `timeout`, the call runs in another program, since this one cannot interrupt it.
        """
        value: T = self.value_of(self.wait(timeout))
        return value

    def value_of(self, outcome: Result) -> Any:
        """Return the value of a result of this future, or raise its exception."""
        if outcome.kind == PLAIN:
            return outcome.payload
        if outcome.kind == ERROR:
            from ciel.python.failures import unpack_error

            raise unpack_error(outcome.payload)
        if self._value is _UNREAD:
            self._value = unpack_result(outcome, self.host.writable)
        return self._value

    def exception(self, timeout: float | None = None) -> BaseException | None:
        outcome = self.wait(timeout)
        if outcome.kind != ERROR:
            return None
        from ciel.python.failures import unpack_error

        return unpack_error(outcome.payload)

    def done(self) -> bool:
        return self.outcome() is not None or self.host.poll(self.target().work)

    def running(self) -> bool:
        return self.target().work.state in (RUNNING, REMOTE)

    def cancel(self) -> bool:
        return self.host.cancel(self.target().work)

    def cancelled(self) -> bool:
        outcome = self.outcome()
        if outcome is None or outcome.kind != ERROR:
            return False
        from ciel.python.failures import TaskCancelledError, unpack_error

        return isinstance(unpack_error(outcome.payload), TaskCancelledError)

    def add_done_callback(self, fn: Callable[[Any], object]) -> None:
        raise NotImplementedError(
            "add_done_callback does not work within a task, which runs no callbacks in the "
            "background: wait for the future, then call the function"
        )

    def __await__(self) -> Generator[Any, Any, T]:
        return self.host.wait_in_coroutine(self)

    def __iter__(self) -> Iterator[Any]:
        value: Any = self.result()
        return iter(value)

    def __repr__(self) -> str:
        work = self.work
        name = "of another task" if work.function is None else work.name
        return f"<ciel.Future {name} {work.state}>"


_UNREAD: Final = object()


class Items(list[Any]):
    """The items that a task has yielded. A function receives them as an iterator."""


def is_plain(value: Any, depth: int = 4) -> bool:
    """Return whether a value cannot change, so that it needs no copy."""
    kind = type(value)
    if kind in PLAIN_TYPES:
        return True
    return kind is tuple and depth > 0 and all(is_plain(item, depth - 1) for item in value)


def result_of(value: Any) -> Result:
    """Return a value as a result, which later changes of the value do not affect.

    Raises UnpackedError.
    """
    if is_plain(value):
        return Result(PLAIN, value)
    packed, futures = pack_with_futures(value)
    return Result(VALUE, packed, futures)


def packed_value(result: Result) -> Packed:
    """Return the value of a result, packed."""
    if result.kind == PLAIN:
        return pack_with_futures(result.payload)[0]
    packed: Packed = result.payload
    return packed


def unpack_result(result: Result, writable: Callable[[Buffer], Buffer]) -> Any:
    """Return a fresh copy of the value of a result.

    `writable` returns the bytes of a buffer in private memory.
    """
    if result.kind == PLAIN:
        return result.payload
    packed: Packed = result.payload
    return unpack_apart(packed, writable, result.futures)


def read_outcome(outcome: Outcome, host: Host) -> Result:
    """Return an outcome that was read from an object, with futures for its references."""
    if outcome.kind == ERROR:
        return Result(ERROR, outcome.packed.head)
    if outcome.kind == MOVED:
        return Result(MOVED, _remote_future(unpack(outcome.packed.head), host))
    return Result(
        VALUE, outcome.packed, [_remote_future(address, host) for address in outcome.refs]
    )


def _remote_future(address: Any, host: Host) -> TaskFuture[Any]:
    """Return a future of another task's object.

    `address`: the reference in JSON form, the place in the object, and whether it is raw.
    """
    ref, place, is_raw = address
    work = WorkItem(None, (), {}, USUAL)
    work.state, work.ref, work.is_raw = REMOTE, list(ref), is_raw
    return TaskFuture(host, work, place)


def end_of(timeout: float | None) -> float | None:
    """Return the deadline, on the monotonic clock, of a timeout that starts now."""
    return None if timeout is None else monotonic() + timeout


def rest_until(end_s: float | None) -> float | None:
    """Return how many seconds are left until a deadline."""
    return None if end_s is None else max(0.0, end_s - monotonic())
