"""Tracks the open sessions: clients, and the session of the current task.

A session submits calls as tasks.
"""

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
"""The ways in which `gather` handles errors."""


class NoClientError(CielError, RuntimeError):
    """The program spawned a call, or waited for one, without an open client and outside a task."""

    def __init__(self) -> None:
        super().__init__(
            "no client is open: open one first, 'with ciel.Client() as client:' "
            "(it starts its own cluster if none is running)"
        )


class Session(Protocol):
    """The interface that a client and a task share."""

    is_of_task: bool

    def call(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: Options,
    ) -> Any:
        """Submit a call as a task; return a future, or a tuple of futures with `returns`."""

    def put(self, value: Any) -> Future[Any]: ...

    def wait(
        self, futures: Iterable[Any], timeout: float | None, return_when: str
    ) -> tuple[set[Any], set[Any]]: ...

    def as_completed(self, futures: Iterable[Any], timeout: float | None) -> Iterator[Any]: ...


_lock = threading.Lock()
_open: list[Session] = []


def enter(session: Session) -> None:
    """Register an open session: it becomes the innermost one."""
    with _lock:
        _open.append(session)


def leave(session: Session) -> None:
    """Unregister a session; it need not be the innermost one."""
    with _lock:
        if session in _open:
            _open.remove(session)


def current_or_none() -> Session | None:
    """Return the innermost session; None if there is none."""
    return _open[-1] if _open else None


def current() -> Session:
    """Return the innermost session; raises NoClientError."""
    try:
        return _open[-1]
    except IndexError:
        raise NoClientError from None


def of_task() -> Session | None:
    """Return the session of the current task; None outside of a task."""
    return next((session for session in reversed(everyone()) if session.is_of_task), None)


def everyone() -> list[Session]:
    """Return all open sessions, the innermost last."""
    with _lock:
        return list(_open)


def wait(
    futures: Iterable[Any], timeout: float | None = None, return_when: str = ALL_COMPLETED
) -> tuple[set[Any], set[Any]]:
    """Wait as `concurrent.futures.wait` does; return the futures that are done, and the rest."""
    return current().wait(futures, timeout, return_when)


@overload
def gather(futures: dict[K, Any], /, *, errors: str = RAISE) -> dict[K, Any]: ...


@overload
def gather(*futures: Any, errors: str = RAISE) -> list[Any]: ...


def gather(*futures: Any, errors: str = RAISE) -> Any:
    """Wait for futures, and return their values in order, in a list.

    The arguments are futures, or one list of them, or one dictionary, for which a dictionary of
    values is returned. `errors`: "raise" raises the first exception, in the order of the futures;
    "return" returns exceptions as values; "skip" leaves them out.
    """
    return gathered(wait, futures, errors)


def gathered(
    wait_for: Callable[[list[Any]], object], given: tuple[Any, ...], errors: str
) -> list[Any] | dict[Any, Any]:
    """Return the values of the arguments of `gather`; `wait_for` waits for them."""
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
    """Run the calls of one or several futures even if the program drops the futures.

    They run to their end as long as the client is open.
    """
    is_one = hasattr(futures, "__ciel_future__")
    for future in [futures] if is_one else futures_in(futures):
        future.keep()


def as_completed(futures: Iterable[Any], timeout: float | None = None) -> Iterator[Any]:
    """Yield each future as soon as it is done; raises TimeoutError after `timeout` seconds."""
    return current().as_completed(futures, timeout)


def put(value: Any) -> Future[Any]:
    """Store a value once, to be an argument of many tasks, which then share the stored object."""
    return current().put(value)
