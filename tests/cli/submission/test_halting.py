import argparse

import pytest

from ciel.cli.submission.halting import Halt, read_halt


@pytest.mark.parametrize(
    "text, halt",
    [
        ("now,fail=1", (True, "fail", 1, False)),
        ("soon,success=3", (False, "success", 3, False)),
        ("soon,done=30%", (False, "done", 30, True)),
    ],
)
def test_conditions_are_read(text: str, halt: tuple[bool, str, int, bool]) -> None:
    assert read_halt(text) == Halt(*halt, f"--halt {text}")


def test_never_is_no_condition() -> None:
    assert read_halt("never") is None


@pytest.mark.parametrize(
    "text", ["", "now", "now,fail", "later,fail=1", "now,fail=0", "now,fail=101%", "now,fail=-1"]
)
def test_what_is_no_condition_is_said(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=r"write never|at least 1"):
        read_halt(text)


@pytest.mark.parametrize(
    "text, failed, done, total, stops",
    [
        ("now,fail=2", 1, 9, 10, False),
        ("now,fail=2", 2, 0, None, True),
        ("now,success=2", 9, 1, 10, False),
        ("now,success=2", 0, 2, 10, True),
        ("now,done=2", 1, 1, 10, True),
        ("now,fail=30%", 2, 0, 10, False),
        ("now,fail=30%", 3, 0, 10, True),
        ("now,fail=30%", 3, 0, None, False),
        ("now,fail=1%", 0, 5, 10, False),
        ("now,fail=1%", 1, 5, 10, True),
    ],
)
def test_a_condition_counts_what_it_names(
    text: str, failed: int, done: int, total: int | None, stops: bool
) -> None:
    halt = read_halt(text)
    assert halt is not None
    assert halt.is_reached(failed, done, total) is stops
