"""Signal-safe locks, which replace `threading.Condition` and `threading.Event`.

They stay valid after Ctrl-C. In a forked child, `ForkSafeCondition` and `Flag` raise ForkedError
instead of blocking for ever.

Ctrl-C may interrupt the main thread between any two bytecodes. Entering `with` on a lock that is
written in C is one step: the thread acquires the lock and enters the block, or neither. The
`threading` classes are written in Python: an interrupt in `Condition.__enter__` or `Condition.wait`
leaves the lock acquired for ever, or releases it twice. So these classes extend a lock in C, and a
waiting thread holds no lock.
"""

from __future__ import annotations

import os
import time
from _thread import LockType, RLock, allocate_lock
from collections.abc import Callable, Sequence

from ciel.client.errors import ForkedError
from ciel.client.forks import register_fork


class Condition(RLock):  # type: ignore[misc]  # the stub declares it final
    """A signal-safe `threading.Condition`, as far as `concurrent.futures` uses it."""

    _waiting: Sequence[LockType] = ()

    def change_lock(self) -> LockType:
        """Return a lock that `notify_all` releases. The caller must hold this condition."""
        change_lock = allocate_lock()
        change_lock.acquire()
        self._waiting = [*self._waiting, change_lock]
        return change_lock

    def notify_all(self) -> None:
        """Wake all waiting threads; the caller holds the lock."""
        for change_lock in self._waiting:
            if change_lock.locked():  # unlocked: an interrupt ended an earlier call in this loop
                change_lock.release()
        self._waiting = ()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for `notify_all`; return False after the timeout.

        The caller must have acquired this lock exactly once. It holds the lock again afterwards,
        even if this method raises.
        """
        change_lock = self.change_lock()
        try:
            self.release()
            return change_lock.acquire(timeout=-1.0 if timeout_s is None else max(0.0, timeout_s))
        finally:
            interrupt: BaseException | None = None
            while True:  # inline: an interrupt may also come at the start of a function
                try:
                    if not self._is_owned():  # type: ignore[attr-defined]  # the stub lacks it
                        self.acquire()
                    break
                except BaseException as error:
                    interrupt = error
            self._waiting = [other for other in self._waiting if other is not change_lock]
            if interrupt is not None:
                raise interrupt

    def wait_for(self, predicate: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Wait until `predicate` returns true; return False after the timeout.

        This method calls it with the lock held, at first and after each `notify_all`. The caller
        must not hold the lock.
        """
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            with self:
                if predicate():
                    return True
                change_lock = self.change_lock()
            left_s = -1.0 if deadline_s is None else max(0.0, deadline_s - time.monotonic())
            if not change_lock.acquire(timeout=left_s):
                with self:
                    self._waiting = [other for other in self._waiting if other is not change_lock]
                    return predicate()


class ForkSafeCondition(Condition):  # type: ignore[misc]  # as above
    """A `Condition` that does not block a forked child for ever.

    Entering it with `with` in a forked child raises ForkedError: the child does not have the thread
    that may hold the lock.
    """

    def __init__(self) -> None:
        self.owner_pid = os.getpid()
        register_fork(self)

    def forked(self) -> None:
        """Make every `with` raise ForkedError; called in a forked child."""
        self.__class__ = _Forked


class _Forked(ForkSafeCondition):  # type: ignore[misc]  # as above
    """A `ForkSafeCondition` in a forked child."""

    def __enter__(self, blocking: bool = True, timeout: float = -1) -> bool:
        raise ForkedError(self.owner_pid, os.getpid())

    def __exit__(self, *error: object) -> None:
        """Do nothing: a block that was entered before the fork may end in the child."""


class Flag:
    """A signal-safe `threading.Event`."""

    def __init__(self) -> None:
        self._changed = ForkSafeCondition()
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
        """Wait until the flag is set; return False after the timeout."""
        return self._changed.wait_for(self.is_set, timeout_s)
