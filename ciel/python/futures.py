"""What stands for a result that is not here yet, in a client and in a task."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any, Generic, TypeVar

from ciel.python.packing import UnpackedError, embed, pack_with_futures

T = TypeVar("T")


class Future(Generic[T]):
    """A result to come, of type `T`. Give it to tasks as an argument, alone or at any depth in
    lists and the like: the task gets the value, and runs when that is there. Return it from a task:
    its value becomes that task's. A client's is a `concurrent.futures.Future`, too.
    """

    __slots__ = ()
    __ciel_future__ = True

    def result(self, timeout: float | None = None) -> T:
        """Wait for the value, at most `timeout` seconds (then TimeoutError), and return it; raises
        what the function raised, or a `TaskError`.

        In a task, whoever waits holds no slot meanwhile.
        """
        raise NotImplementedError

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait, and return what `result` would raise, or None."""
        raise NotImplementedError

    def done(self) -> bool:
        """Tell whether `result` returns or raises at once; never waits."""
        raise NotImplementedError

    def cancel(self) -> bool:
        """Call it off; return whether it was not done yet. What runs for it alone is stopped."""
        raise NotImplementedError

    def cancelled(self) -> bool:
        """Tell whether it was called off."""
        raise NotImplementedError

    def running(self) -> bool:
        """Tell whether it is known to run."""
        raise NotImplementedError

    def add_done_callback(self, fn: Callable[[Any], object]) -> None:
        """Call `fn` with this future once it is done, in whatever thread learns of it; now, if it
        is.
        """
        raise NotImplementedError

    def keep(self) -> None:
        """Have the call run though nobody holds this future any more; see `fire_and_forget`."""
        raise NotImplementedError(
            "in a task what is spawned runs if its result is waited for or returned"
        )

    def __await__(self) -> Generator[Any, Any, T]:
        raise NotImplementedError

    def __iter__(self) -> Iterator[Any]:
        """Yield the items of a task that yields, as they come; or those of the value."""
        raise NotImplementedError

    def __reduce__(self) -> Any:
        return embed(self)


def futures_in(given: Any) -> list[Any]:
    """Return several futures as a list; raises TypeError, which names what is none."""
    if isinstance(given, Future) or not isinstance(given, Iterable):
        raise TypeError(f"several futures are expected, in a list or the like, not {given!r:.80}")
    listed = list(given)
    for item in listed:
        require_future(item)
    return listed


def require_future(item: Any) -> None:
    """Raise TypeError for what is no future, and name it."""
    if not isinstance(item, Future):
        raise TypeError(
            f"a future of ciel's is expected, as 'submit' and 'spawn' return it, not {item!r:.80}"
        )


def futures_of(function: Any) -> list[Any]:
    """Return the futures to which a function refers, in its globals, closure or defaults. With any,
    it travels as a value does that has futures in it: the task gets them as futures. They are
    arguments, too: so they are there when it runs, and stay as long.
    """
    try:
        return pack_with_futures(function)[1]
    except UnpackedError:
        return []


def call_holding(function: Callable[..., Any], args: Any, kwargs: Any, _: Any) -> Any:
    """Call a function that came as a value."""
    return function(*args, **kwargs)
