"""The base class of the futures of clients and of tasks."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any, Generic, TypeVar

from ciel.python.packing import UnpackedError, embed, pack_with_futures

T = TypeVar("T")


class Future(Generic[T]):
    """A result of type `T` that may not exist yet. A task that gets a future as an argument, alone
    or at any depth in lists and the like, gets the value, and starts when that exists. A task that
    returns a future has the same value. A client's future is a `concurrent.futures.Future`, too.
    """

    __slots__ = ()
    __ciel_future__ = True

    def result(self, timeout: float | None = None) -> T:
        """Wait for the value, at most `timeout` seconds (then TimeoutError), and return it; raises
        the exception of the function, or a `TaskError`. A task that waits holds no slot.
        """
        raise NotImplementedError

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait, and return the exception that `result` would raise, or None."""
        raise NotImplementedError

    def done(self) -> bool:
        """Tell whether `result` returns or raises at once; never waits."""
        raise NotImplementedError

    def cancel(self) -> bool:
        """Cancel the call; return whether it was not done yet. Tasks that run only for it are
        stopped.
        """
        raise NotImplementedError

    def cancelled(self) -> bool:
        """Tell whether the call was cancelled."""
        raise NotImplementedError

    def running(self) -> bool:
        """Tell whether the call runs, as far as is known here."""
        raise NotImplementedError

    def add_done_callback(self, fn: Callable[[Any], object]) -> None:
        """Call `fn` with this future once it is done, in the thread that notices; if it is done,
        call `fn` at once.
        """
        raise NotImplementedError

    def keep(self) -> None:
        """Run the call even if the program drops this future; see `fire_and_forget`."""
        raise NotImplementedError(
            "the spawned task runs only if its parent waits for the result or returns it"
        )

    def __await__(self) -> Generator[Any, Any, T]:
        raise NotImplementedError

    def __iter__(self) -> Iterator[Any]:
        """Yield the items of a task that yields, as they arrive; or the items of the value."""
        raise NotImplementedError

    def __reduce__(self) -> Any:
        return embed(self)


def futures_in(given: Any) -> list[Any]:
    """Return several futures as a list; raises TypeError if one is not a future."""
    if isinstance(given, Future) or not isinstance(given, Iterable):
        raise TypeError(f"several futures are expected, in a list or the like, not {given!r:.80}")
    listed = list(given)
    for item in listed:
        require_future(item)
    return listed


def require_future(item: Any) -> None:
    """Raise TypeError if a value is not a future."""
    if not isinstance(item, Future):
        raise TypeError(
            f"a future of ciel's is expected, as 'submit' and 'spawn' return it, not {item!r:.80}"
        )


def futures_of(function: Any) -> list[Any]:
    """Return the futures to which a function refers, in its globals, closure or defaults. A
    function with futures is sent as an argument, so that the task gets it with futures; and these
    are arguments, too, so that their values exist while the function runs.
    """
    try:
        return pack_with_futures(function)[1]
    except UnpackedError:
        return []


def call_holding(function: Callable[..., Any], args: Any, kwargs: Any, _: Any) -> Any:
    """Call a function that was sent as an argument."""
    return function(*args, **kwargs)
