"""Waits for several futures as `concurrent.futures` does, but signal-safe.

In `concurrent.futures`, Ctrl-C may leave the locks of futures acquired. Then the thread that
delivers results would wait for ever.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Any, Final, Self

from ciel.client.calls.futures import ClientFuture
from ciel.client.locks import Condition
from ciel.python.sessions import FIRST_COMPLETED, FIRST_EXCEPTION

_DONE: Final = ("CANCELLED_AND_NOTIFIED", "FINISHED")


class _Waiter:
    """Collects the futures that are done. Each future calls it with its own lock held."""

    def __init__(self, futures: Iterable[ClientFuture[Any]], return_when: str) -> None:
        self.pending = set(futures)
        self.done: list[ClientFuture[Any]] = []
        self._return_when = return_when
        self._changed = Condition()
        self._is_enough = not self.pending

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Remove this object from the futures."""
        self._leave(list(self.pending))

    def _leave(self, futures: Iterable[ClientFuture[Any]]) -> None:
        for future in futures:
            with future._condition:
                if self in future._waiters:
                    future._waiters.remove(self)

    def start(self) -> None:
        """Note the futures that are done, and register with the other futures."""
        for future in list(self.pending):
            with future._condition:
                if future._state in _DONE:
                    self._add(future)
                else:
                    future._waiters.append(self)

    def wait(self, timeout: float | None) -> bool:
        """Wait until enough futures are done; return False after the timeout."""
        return self._changed.wait_for(lambda: self._is_enough, timeout)

    def take(self) -> list[ClientFuture[Any]]:
        """Return the futures that became done since the last call."""
        with self._changed:
            done, self.done = self.done, []
            self._is_enough = False
        self._leave(done)
        return done

    def _add(self, future: ClientFuture[Any]) -> None:
        with self._changed:
            self.pending.discard(future)
            self.done.append(future)
            if (
                not self.pending
                or self._return_when == FIRST_COMPLETED
                or (self._return_when == FIRST_EXCEPTION and future.has_failed)
            ):
                self._is_enough = True
                self._changed.notify_all()

    add_result = add_exception = add_cancelled = _add


def wait(
    futures: Iterable[ClientFuture[Any]], timeout: float | None, return_when: str
) -> set[ClientFuture[Any]]:
    """Wait as `concurrent.futures.wait` does; return the futures that are done."""
    with _Waiter(futures, return_when) as waiter:
        waiter.start()
        waiter.wait(timeout)
        return set(waiter.take())


def as_completed(
    futures: Iterable[ClientFuture[Any]], timeout: float | None
) -> Iterator[ClientFuture[Any]]:
    """Yield each future when it is done, and drop the reference to it; raises TimeoutError."""
    until_s = None if timeout is None else time.monotonic() + timeout
    with _Waiter(futures, FIRST_COMPLETED) as waiter:
        del futures
        waiter.start()
        total = len(waiter.pending) + len(waiter.done)
        while waiter.pending or waiter.done:
            left_s = None if until_s is None else until_s - time.monotonic()
            if not waiter.wait(left_s):
                raise TimeoutError(f"{len(waiter.pending)} (of {total}) futures unfinished")
            done = waiter.take()
            done.reverse()
            while done:
                yield done.pop()
