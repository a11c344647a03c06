"""Tests of the states of tasks, in one process: POOL-6."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")

from ciel.arrow import SharedTaskError, StateError, States, StateTimeoutError
from ciel.core.states import FAILED, JOINED
from ciel.execution.state_board import StateBoard
from ciel.python import sessions
from ciel.python.task_session import NotInTaskError, TaskSession


class Worker:
    """Plays the worker to tasks that join."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self.told: list[tuple[str, int]] = []
        self.board = StateBoard(self.path, 2)

    def join(self, name: str, size: int, number: int) -> tuple[str, Any]:
        self.board.put(number, JOINED)
        return self.path, lambda *said: self.told.append(said)

    @contextmanager
    def task(self, join: Any) -> Iterator[None]:
        host: Any = None
        session = TaskSession(host, lambda function: function)
        session.join_states = join
        sessions.enter(session)
        try:
            yield
        finally:
            sessions.leave(session)

    def member(self, number: int) -> States:
        with self.task(self.join):
            return States("phase", number=number, size=2)


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    worker = Worker(tmp_path / "board")
    yield worker
    worker.board.close()


def test_a_member_sets_its_flags_and_others_see_them(worker: Worker) -> None:
    first, second = worker.member(0), worker.member(1)
    first.set(0b101)
    first.set(0b010)
    assert (first.flags(), second.flags(0), second.flags()) == (0b111, 0b111, 0)
    first.set(0, mask=0b100)
    first.set(0b1010, mask=0b1001)
    assert second.flags(0) == 0b1010
    assert worker.told == [("phase", 0)] * 4


@pytest.mark.requirement("POOL-6")
def test_a_wait_ends_when_the_flags_in_the_mask_are_as_wanted(worker: Worker) -> None:
    first, second = worker.member(0), worker.member(1)
    first.set(0b01)
    second.set(0b11)
    first.wait(0b01)
    first.wait(0b00, mask=0b100)
    first.wait(0b10, mask=0b10, members=[1])
    with pytest.raises(StateTimeoutError, match=r"members \[0\] have not reached") as caught:
        second.wait(0b10, timeout=0.01)
    assert (caught.value.absent, caught.value.late) == ([], [0])
    threading.Timer(0.05, first.set, (0b10,)).start()
    second.wait(0b10, timeout=30)


def test_a_member_that_has_not_joined_has_reached_no_state(worker: Worker) -> None:
    with pytest.raises(StateTimeoutError, match=r"members \[1\] have not joined") as caught:
        worker.member(0).wait(0, mask=1, timeout=0.01)
    assert caught.value.absent == [1]
    assert isinstance(caught.value, TimeoutError)


def test_waiting_for_a_member_that_has_failed_ends(worker: Worker) -> None:
    first = worker.member(0)
    worker.member(1)
    worker.board.put(1, JOINED | FAILED | 1)
    first.wait(1, members=[1])  # it had reached this state
    with pytest.raises(StateError, match="these members failed: 1"):
        first.wait(2)
    with pytest.raises(StateError):
        first.barrier()


def test_barriers_let_members_pass_together(worker: Worker) -> None:
    passed: list[int] = []

    def play(number: int) -> None:
        member = worker.member(number)
        for _ in range(100):
            member.barrier(timeout=30)
            passed.append(number)

    threads = [threading.Thread(target=play, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(passed) == 200
    for place in range(1, 200):  # none is more than one barrier ahead
        assert abs(passed[:place].count(0) - passed[:place].count(1)) <= 2


def test_flags_stay_as_they_are_at_a_barrier(worker: Worker) -> None:
    first, second = worker.member(0), worker.member(1)
    second.set(0b1)
    thread = threading.Thread(target=second.barrier)
    thread.start()
    first.barrier(timeout=30)
    thread.join()
    assert (first.flags(), first.flags(1)) == (0, 1)


def test_only_a_task_with_one_call_has_states(worker: Worker) -> None:
    with pytest.raises(NotInTaskError, match="only tasks have states"):
        States("phase", number=0, size=2)
    with worker.task(None), pytest.raises(SharedTaskError, match=r"ciel.task\(function, slots=1\)"):
        States("phase", number=0, size=2)


@pytest.mark.parametrize("flags", [-1, 1 << 30])
def test_a_member_has_thirty_flags(worker: Worker, flags: int) -> None:
    member = worker.member(0)
    with pytest.raises(ValueError, match="the 30 that a member has"):
        member.set(flags)
    with pytest.raises(ValueError, match="the 30"):
        member.wait(0, mask=flags)
    with pytest.raises(ValueError, match="no member 2"):
        member.wait(1, members=[2])
