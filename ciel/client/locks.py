"""A lock with news: what `threading.Condition` is for, whole after Ctrl-C and after a fork.

An interrupt may come between any two steps of the main thread. `with` on a lock that is written in
C has no such steps: it is taken and the block is entered, or neither. `Condition.__enter__` and
`Condition.wait` are Python, and have them: an interrupt there leaves the lock taken for ever, or
has it released twice. So this is a lock of C, and who waits holds nothing.
"""

from __future__ import annotations

import os
import time
from _thread import LockType, RLock, allocate_lock
from collections.abc import Callable, Sequence

from ciel.client.errors import ForkedError
from ciel.client.forks import tell_of_forks


class Condition(RLock):  # type: ignore[misc]  # it is final in its stub alone
    """Such a lock, with what `concurrent.futures` asks of a `threading.Condition`."""

    _waiting: Sequence[LockType] = ()

    def news(self) -> LockType:
        """Return what can be acquired after the next change; the caller holds the lock."""
        news = allocate_lock()
        news.acquire()
        self._waiting = [*self._waiting, news]
        return news

    def notify_all(self) -> None:
        """Tell all who wait; the caller holds the lock."""
        for news in self._waiting:
            if news.locked():  # else we were interrupted here the last time
                news.release()
        self._waiting = ()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for the next change; False if the time is over before. The caller holds the lock,
        once, and does again afterwards, whatever is raised.
        """
        news = self.news()
        try:
            self.release()
            return news.acquire(timeout=-1.0 if timeout_s is None else max(0.0, timeout_s))
        finally:
            self._take_back()
            self._waiting = [other for other in self._waiting if other is not news]

    def _take_back(self) -> None:
        try:
            if not self._is_owned():  # type: ignore[attr-defined]  # as above
                self.acquire()
        except BaseException:
            self._take_back()
            raise


class Changes(Condition):  # type: ignore[misc]  # as above
    """Guards what changes, and tells those who wait for it. In a forked child, taking it raises
    ForkedError: whoever held it there may be a thread that the child does not have.
    """

    def __init__(self) -> None:
        self.owner_pid = os.getpid()
        tell_of_forks(self)

    def wait_for(self, condition: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Wait until `condition`, called with the lock held after each change, is true; False if
        the time is over before. The caller must not hold the lock.
        """
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            with self:
                if condition():
                    return True
                news = self.news()
            left_s = -1.0 if deadline_s is None else max(0.0, deadline_s - time.monotonic())
            if not news.acquire(timeout=left_s):
                with self:
                    self._waiting = [other for other in self._waiting if other is not news]
                    return condition()

    def forked(self) -> None:
        """Be a copy in a forked child."""
        self.__class__ = _Forked


class _Forked(Changes):  # type: ignore[misc]  # as above
    """What becomes of it in a forked child."""

    def __enter__(self, blocking: bool = True, timeout: float = -1) -> bool:
        raise ForkedError(self.owner_pid, os.getpid())

    def __exit__(self, *error: object) -> None:
        """Leave a block that was entered before the fork."""


class Flag:
    """What `threading.Event` is for, whole after Ctrl-C."""

    def __init__(self) -> None:
        self._changed = Changes()
        self._is_set = False

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        with self._changed:
            self._is_set = True
            self._changed.notify_all()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until it is set; False if the time is over before."""
        return self._changed.wait_for(self.is_set, timeout_s)
