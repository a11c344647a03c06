"""Locks stay valid after interrupts at any moment."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from ciel.client.locks import Condition, Flag, ForkSafeCondition

Interrupted = Callable[[Callable[[], object], float], int]


class Other:
    """A thread that notifies of changes all the time."""

    def __init__(self, lock: Condition) -> None:
        self.changes = 0
        self._lock = lock
        self._done = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._done:
            with self._lock:
                self.changes += 1
                self._lock.notify_all()

    def end(self) -> bool:
        """Whether the thread has ended, and does not wait for a lock that is never released."""
        self._done = True
        self._thread.join(10)
        return not self._thread.is_alive()


def test_a_condition_is_valid_after_interrupts(interrupted: Interrupted) -> None:
    condition = Condition()
    other = Other(condition)

    def step() -> None:
        with condition:
            condition.wait(0.001)

    assert interrupted(step, 0.0007) > 10
    assert other.end()
    with condition:
        condition.notify_all()
        assert not condition.wait(0)


def test_changes_are_valid_after_interrupts(interrupted: Interrupted) -> None:
    changes = ForkSafeCondition()
    other = Other(changes)

    def step() -> None:
        seen = other.changes
        assert changes.wait_for(lambda: other.changes > seen, 10)

    assert interrupted(step, 0.0007) > 10
    assert other.end()
    with changes:
        pass


def test_a_wait_ends_with_its_time() -> None:
    changes = ForkSafeCondition()
    assert not changes.wait_for(lambda: False, 0.01)
    assert changes.wait_for(lambda: True, 0)
    assert not changes._waiting


def test_a_condition_raises_what_is_raised_in_a_check() -> None:
    changes = ForkSafeCondition()
    with pytest.raises(ZeroDivisionError):
        changes.wait_for(lambda: bool(1 / 0), 1)
    with changes:
        pass


def test_a_flag_wakes_all_waiting_threads() -> None:
    flag = Flag()
    assert not flag.wait(0)
    waiting = [threading.Thread(target=flag.wait) for _ in range(3)]
    for thread in waiting:
        thread.start()
    flag.set()
    for thread in waiting:
        thread.join(10)
        assert not thread.is_alive()
    assert flag.is_set()
    assert flag.wait()
