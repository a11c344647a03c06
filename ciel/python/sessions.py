"""Who makes tasks of calls: a client, or the task in which we are."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, Protocol, TypeVar, overload

from ciel.core.errors import CielError
from ciel.python.futures import Future, futures_in
from ciel.python.options import Options

K = TypeVar("K")

ALL_COMPLETED: Final = "ALL_COMPLETED"
FIRST_COMPLETED: Final = "FIRST_COMPLETED"
FIRST_EXCEPTION: Final = "FIRST_EXCEPTION"

RAISE, RETURN, SKIP = "raise", "return", "skip"
"""What `gather` does with errors."""


class NoClientError(CielError, RuntimeError):
    """A task was spawned, or waited for, where there is neither a client nor a task."""

    def __init__(self) -> None:
        super().__init__(
            "there is no client here: open one first, 'with ciel.Client() as client:' "
            "(it starts a cluster of its own if none is up)"
        )


class Session(Protocol):
    """What a client and a task have in common."""

    is_of_task: bool

    def call(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: Options,
    ) -> Any:
        """Make a task of a call; return a future, or with `returns` a tuple of them."""

    def put(self, value: Any) -> Future[Any]: ...

    def wait(
        self, futures: Iterable[Any], timeout: float | None, return_when: str
    ) -> tuple[set[Any], set[Any]]: ...

    def as_completed(self, futures: Iterable[Any], timeout: float | None) -> Iterator[Any]: ...


_lock = threading.Lock()
_open: list[Session] = []


def enter(session: Session) -> None:
    """Make a session the innermost one."""
    with _lock:
        _open.append(session)


def leave(session: Session) -> None:
    """Take a session away, wherever it stands."""
    with _lock:
        if session in _open:
            _open.remove(session)


def current_or_none() -> Session | None:
    """Return the innermost session, if there is any."""
    return _open[-1] if _open else None


def current() -> Session:
    """Return the innermost session; raises NoClientError."""
    try:
        return _open[-1]
    except IndexError:
        raise NoClientError from None


def of_task() -> Session | None:
    """Return the session of the task in which we are, if we are in one."""
    return next((session for session in reversed(everyone()) if session.is_of_task), None)


def everyone() -> list[Session]:
    """Return all sessions that are open, the innermost last."""
    with _lock:
        return list(_open)


def wait(
    futures: Iterable[Any], timeout: float | None = None, return_when: str = ALL_COMPLETED
) -> tuple[set[Any], set[Any]]:
    """Wait as `concurrent.futures.wait` does; return those that are done, and the others."""
    return current().wait(futures, timeout, return_when)


@overload
def gather(futures: dict[K, Any], /, *, errors: str = RAISE) -> dict[K, Any]: ...


@overload
def gather(*futures: Any, errors: str = RAISE) -> list[Any]: ...


def gather(*futures: Any, errors: str = RAISE) -> Any:
    """Wait for all futures (or for those in one list or dictionary) and return their values, in
    order; of a dictionary, a dictionary. `errors`: "raise" raises what the first one that failed,
    in order, raises; "return" puts exceptions in the place of values; "skip" leaves them out.
    """
    return gathered(wait, futures, errors)


def gathered(
    wait_for: Callable[[list[Any]], object], given: tuple[Any, ...], errors: str
) -> list[Any] | dict[Any, Any]:
    """Return the values of the futures that `gather` was given, waiting by `wait_for`."""
    if errors not in (RAISE, RETURN, SKIP):
        raise ValueError(f"errors must be {RAISE!r}, {RETURN!r} or {SKIP!r}, not {errors!r:.80}")
    is_one = len(given) == 1 and not hasattr(given[0], "__ciel_future__")
    group: Any = given[0] if is_one else given
    named = isinstance(group, Mapping)
    keys = list(group) if named else []
    futures = futures_in(group.values() if named else group)
    wait_for(futures)
    found: list[tuple[Any, Any]] = []
    for key, future in zip(keys or futures, futures, strict=True):
        try:
            found.append((key, future.result()))
        except Exception as error:
            if errors == RAISE:
                raise
            if errors == RETURN:
                found.append((key, error))
    return dict(found) if named else [value for _, value in found]


def fire_and_forget(futures: Any) -> None:
    """Have the call of a future, or of several in a list or the like, run to its end, although the
    program does not hold the future any more; as long as the client is open.
    """
    is_one = hasattr(futures, "__ciel_future__")
    for future in [futures] if is_one else futures_in(futures):
        future.keep()


def as_completed(futures: Iterable[Any], timeout: float | None = None) -> Iterator[Any]:
    """Yield futures as they are done, each once; raises TimeoutError when that takes longer."""
    return current().as_completed(futures, timeout)


def put(value: Any) -> Future[Any]:
    """Store a value once, to be given to many tasks: they get what is stored, not copies."""
    return current().put(value)
