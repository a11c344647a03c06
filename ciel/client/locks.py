"""Signal-safe locks: they replace `threading.Condition` and `threading.Event`, and stay valid after
Ctrl-C and after a fork.

An interrupt may come between any two bytecodes of the main thread. Entering `with` on a lock that
is written in C is one step: the lock is acquired and the block is entered, or neither.
`Condition.__enter__` and `Condition.wait` are Python: an interrupt there leaves the lock acquired
for ever, or has it released twice. So these classes extend a lock in C, and a waiting thread holds
no lock.
"""

from __future__ import annotations

import os
import time
from _thread import LockType, RLock, allocate_lock
from collections.abc import Callable, Sequence

from ciel.client.errors import ForkedError
from ciel.client.forks import register_fork


class Condition(RLock):  # type: ignore[misc]  # it is final in its stub alone
    """A signal-safe lock with those methods of `threading.Condition` that `concurrent.futures`
    uses.
    """

    _waiting: Sequence[LockType] = ()

    def news(self) -> LockType:
        """Return a lock that can be acquired after the next change; the caller holds this lock."""
        news = allocate_lock()
        news.acquire()
        self._waiting = [*self._waiting, news]
        return news

    def notify_all(self) -> None:
        """Wake all waiting threads; the caller holds the lock."""
        for news in self._waiting:
            if news.locked():  # otherwise an interrupt came here the last time
                news.release()
        self._waiting = ()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for the next change; return False after the timeout. The caller holds the lock,
        once; it holds the lock again afterwards, also if this raises.
        """
        news = self.news()
        try:
            self.release()
            return news.acquire(timeout=-1.0 if timeout_s is None else max(0.0, timeout_s))
        finally:
            interrupt: BaseException | None = None
            while True:  # here, since an interrupt may also come at the start of a function
                try:
                    if not self._is_owned():  # type: ignore[attr-defined]  # as above
                        self.acquire()
                    break
                except BaseException as error:
                    interrupt = error
            self._waiting = [other for other in self._waiting if other is not news]
            if interrupt is not None:
                raise interrupt

    def wait_for(self, condition: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Wait until `condition`, called with the lock held after each change, is true; return
        False after the timeout. The caller must not hold the lock.
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


class Changes(Condition):  # type: ignore[misc]  # as above
    """A lock for state that changes. Acquiring it in a forked child raises ForkedError: the thread
    that holds it may not exist in the child.
    """

    def __init__(self) -> None:
        self.owner_pid = os.getpid()
        register_fork(self)

    def forked(self) -> None:
        """Refuse all use: this is a copy in a forked child."""
        self.__class__ = _Forked


class _Forked(Changes):  # type: ignore[misc]  # as above
    """Such a lock in a forked child."""

    def __enter__(self, blocking: bool = True, timeout: float = -1) -> bool:
        raise ForkedError(self.owner_pid, os.getpid())

    def __exit__(self, *error: object) -> None:
        """Leave a block that was entered before the fork."""


class Flag:
    """A signal-safe `threading.Event`."""

    def __init__(self) -> None:
        self._changed = Changes()
        self._is_set = False

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        with self._changed:
            self._is_set = True
            self._changed.notify_all()

    def clear(self) -> None:
        with self._changed:
            self._is_set = False

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until it is set; return False after the timeout."""
        return self._changed.wait_for(self.is_set, timeout_s)
