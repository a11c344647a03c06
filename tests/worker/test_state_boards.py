"""Tests the boards of a worker, on which its members see each other."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from ciel.core.events import Message, StateChanged, StateSet
from ciel.core.ids import JobId, TaskId
from ciel.core.states import FAILED, JOINED, Group, Member, boards_directory
from ciel.execution.outputs import BadCallError
from ciel.execution.state_board import StateBoard
from ciel.worker.state_boards import StateBoards

JOB = JobId("job")
GROUP = Group(JOB, "phase")


class Scene:
    def __init__(self) -> None:
        self.cluster = secrets.token_hex(8)
        self.sent: list[Message] = []
        self.boards = self.of_another_worker()

    def of_another_worker(self) -> StateBoards:
        return StateBoards(self.cluster, self.sent.append)

    @property
    def files(self) -> list[Path]:
        return list(Path(boards_directory(self.cluster)).glob("*"))


@pytest.fixture
def scene() -> Iterator[Scene]:
    scene = Scene()
    yield scene
    scene.boards.close()
    assert not os.path.exists(boards_directory(scene.cluster))


def member(number: int, *, size: int = 2, name: str = "phase", attempt: int = 1) -> Member:
    return Member(Group(JOB, name), size, number, TaskId(f"task{number}"), attempt)


def said(number: int, word: int) -> StateSet:
    return StateSet(JOB, "phase", 2, number, TaskId(f"task{number}"), 1, word)


def test_a_member_that_joins_is_seen_and_reported(scene: Scene) -> None:
    path = scene.boards.join(member(1))
    board = StateBoard(path, 2)
    assert board.words() == [0, JOINED]
    assert scene.sent == [said(1, JOINED)]
    board.put(1, JOINED | 6)
    scene.boards.has_set(GROUP, 1)
    assert scene.sent[1:] == [said(1, JOINED | 6)]
    board.close()


def test_workers_of_one_host_share_a_board(scene: Scene) -> None:
    other = scene.of_another_worker()
    assert scene.boards.join(member(0)) == other.join(member(1))
    scene.boards.close()
    assert len(scene.files) == 1  # another worker still uses the board
    other.close()
    assert scene.files == []


def test_what_happens_elsewhere_is_written_to_the_board(scene: Scene) -> None:
    board = StateBoard(scene.boards.join(member(0)), 2)
    scene.boards.changed(StateChanged(JOB, "phase", 1, JOINED | 3))
    scene.boards.changed(StateChanged(JOB, "phase", 7, JOINED))
    scene.boards.changed(StateChanged(JOB, "unknown", 0, JOINED))
    assert board.words() == [JOINED, JOINED | 3]
    scene.boards.changed(StateChanged(JOB, "phase", 0, FAILED))
    assert board.words() == [FAILED, JOINED | 3]
    scene.sent.clear()
    scene.boards.has_set(GROUP, 0)  # it does not play that member any more
    assert scene.sent == []
    board.close()


def test_a_master_that_has_restarted_hears_of_all_members(scene: Scene) -> None:
    board = StateBoard(scene.boards.join(member(0)), 2)
    scene.boards.join(member(1))
    board.put(1, JOINED | 2)
    scene.sent.clear()
    scene.boards.report_all()
    assert scene.sent == [said(0, JOINED), said(1, JOINED | 2)]
    board.close()


def test_boards_end_with_their_job(scene: Scene) -> None:
    scene.boards.join(member(0))
    scene.boards.job_ended(JobId("another"))
    assert len(scene.files) == 1
    scene.boards.job_ended(JOB)
    assert scene.files == []
    scene.sent.clear()
    scene.boards.report_all()
    assert scene.sent == []
    scene.boards.join(member(0))
    scene.boards.clear()
    assert scene.files == []


@pytest.mark.parametrize(
    "wrong, why",
    [
        (member(2), "2 and 2 are no number of a member"),
        (member(-1), "numbered from 0"),
        (member(0, size=1025), "1 to 1024 members"),
        (member(0, name=""), "1 to 100 characters"),
        (member(0, name="n" * 101), "1 to 100 characters"),
    ],
)
def test_a_wrong_member_is_refused(scene: Scene, wrong: Member, why: str) -> None:
    with pytest.raises(BadCallError, match=why):
        scene.boards.join(wrong)
    assert scene.sent == []


def test_a_group_of_another_size_is_refused(scene: Scene) -> None:
    scene.boards.join(member(0))
    with pytest.raises(BadCallError, match="'phase': the group has 2 members, not 3"):
        scene.boards.join(member(1, size=3))
    other = scene.of_another_worker()
    with pytest.raises(BadCallError, match="the group has 2 members, not 3"):
        other.join(member(1, size=3))
    other.close()
