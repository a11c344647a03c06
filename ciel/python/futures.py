"""The base class of the futures of clients and of tasks."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any, Generic, TypeVar

from ciel.python.calls import AS_PARTS
from ciel.python.packing import UnpackedError, embed, pack_with_futures

T = TypeVar("T")


class Future(Generic[T]):
    """A result of type `T` that may not exist yet.

    A future may be an argument of a task, alone or at any depth in lists and other containers. The
    task then starts when the value exists, and receives the value. A task that returns a future has
    the future's value as its result. A client's future is also a `concurrent.futures.Future`.
    """

    __slots__ = ()
    __ciel_future__ = True

    def result(self, timeout: float | None = None) -> T:
        """Wait for the value and return it.

        Raises TimeoutError after `timeout` seconds, the exception of the function, or a
        `TaskError`. A task that waits holds no slot.
        """
        raise NotImplementedError

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait, and return the exception that `result` would raise, or None."""
        raise NotImplementedError

    def done(self) -> bool:
        """Return whether `result` would return or raise at once; never waits."""
        raise NotImplementedError

    def cancel(self) -> bool:
        """Cancel the call, and return True, unless it is done already.

        Tasks that run only for this call are stopped.
        """
        raise NotImplementedError

    def cancelled(self) -> bool:
        """Return whether the call was cancelled."""
        raise NotImplementedError

    def running(self) -> bool:
        """Return whether the call is running, as far as this process knows."""
        raise NotImplementedError

    def add_done_callback(self, fn: Callable[[Any], object]) -> None:
        """Call `fn` with this future when it is done, in the thread that receives the result.

        If the future is done already, call `fn` at once.
        """
        raise NotImplementedError

    def keep(self) -> None:
        """Run the call even if the program drops this future; see `fire_and_forget`."""
        raise NotImplementedError(
            "fire_and_forget does not work within a task: a child runs only if its parent waits "
            "for its future or returns it"
        )

    def __await__(self) -> Generator[Any, Any, T]:
        raise NotImplementedError

    def __iter__(self) -> Iterator[Any]:
        """Yield the items of a generator task as they arrive, or the items of any other value."""
        raise NotImplementedError

    def __reduce__(self) -> Any:
        return embed(self)


class InParts:
    """A future whose result a task reads in parts if it is on another host.

    It is an argument like the future, but the task gets an `ObjectElsewhere` in that case.
    """

    how = AS_PARTS

    def __init__(self, future: Any) -> None:
        self.future = future

    def __getattr__(self, name: str) -> Any:
        return getattr(self.future, name)

    def __reduce__(self) -> Any:
        return embed(self)


def futures_in(given: Any) -> list[Any]:
    """Return several futures as a list; raises TypeError if one is not a future."""
    if isinstance(given, Future) or not isinstance(given, Iterable):
        raise TypeError(f"expected futures in a list or another iterable, not {given!r:.80}")
    listed = list(given)
    for item in listed:
        require_future(item)
    return listed


def require_future(item: Any) -> None:
    """Raise TypeError if a value is not a future."""
    if not isinstance(item, Future):
        raise TypeError(
            f"expected a future of ciel, as 'submit' and 'spawn' return, not {item!r:.80}"
        )


def futures_of(function: Any) -> list[Any]:
    """Return the futures to which a function refers, in its globals, closure or defaults.

    Such a function is sent as an argument, in which futures may be embedded. Its futures are
    further arguments, so that their values exist while the function runs.
    """
    try:
        return pack_with_futures(function)[1]
    except UnpackedError:
        return []


def call_holding(function: Callable[..., Any], args: Any, kwargs: Any, _: Any) -> Any:
    """Call a function that was sent as an argument."""
    return function(*args, **kwargs)
