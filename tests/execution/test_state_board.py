"""Tests the board of a group's states, with real processes that wait for each other."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ciel.core.states import FAILED, JOINED
from ciel.execution.state_board import StateBoard, has_failed, joined
from ciel.testing.store_rules import exit_code, start_child


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "board")


@pytest.fixture
def board(path: str) -> Iterator[StateBoard]:
    board = StateBoard(path, 3)
    yield board
    board.close()


def test_a_new_board_has_no_members(board: StateBoard) -> None:
    assert board.words() == [0, 0, 0]


def test_all_boards_of_a_file_show_the_same_words(board: StateBoard, path: str) -> None:
    other = StateBoard(path, 3)
    board.put(1, joined(5))
    other.put(2, FAILED)
    assert board.words() == other.words() == [0, JOINED | 5, FAILED]
    assert [has_failed(word) for word in board.words()] == [False, False, True]
    other.close()


def test_a_group_has_one_size(board: StateBoard, path: str) -> None:
    with pytest.raises(ValueError, match="the group has 3 members, not 4"):
        StateBoard(path, 4)


def test_a_link_is_refused(board: StateBoard, path: str, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(path)
    with pytest.raises(OSError, match="link"):
        StateBoard(str(tmp_path / "link"), 3)


def shows(board: StateBoard, member: int, word: int) -> Callable[[], bool]:
    return lambda: board.word(member) == word


def test_a_waiting_process_is_woken(board: StateBoard, path: str) -> None:
    def answer() -> None:
        other = StateBoard(path, 3)
        for step in range(1, 101):
            assert other.wait(shows(other, 0, step), 30)
            other.put(1, step)

    child = start_child(answer)
    begun_s = time.monotonic()
    for step in range(1, 101):
        board.put(0, step)
        assert board.wait(shows(board, 1, step), 30)
    assert exit_code(child) == 0
    assert time.monotonic() - begun_s < 100 * 0.2  # it was woken, and did not look by itself


def test_a_wait_ends_after_its_time(board: StateBoard) -> None:
    assert not board.wait(lambda: False, 0.05)
    assert board.wait(lambda: True, 0)


def test_a_board_takes_one_page_at_first(board: StateBoard, path: str) -> None:
    assert os.stat(path).st_blocks * 512 <= 2 * 4096
    board.close()
    board.close()
