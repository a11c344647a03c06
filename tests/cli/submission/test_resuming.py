from pathlib import Path

import pytest

from ciel.cli.outcome import UsageError
from ciel.cli.submission.elements import Known, Template
from ciel.cli.submission.joblog import COLUMNS
from ciel.cli.submission.numbers import number_ranges
from ciel.cli.submission.resuming import remaining

TEMPLATE = Template(["echo", "{}"])


def log(path: Path, *rows: tuple[int, int, str]) -> str:
    """Write a job log of elements with exit status and command, as GNU parallel writes it."""
    lines = ["\t".join(COLUMNS)]
    lines += [f"{n}\thost\t1.0\t0.1\t0\t0\t{status}\t0\t{text}" for n, status, text in rows]
    path.write_text("".join(f"{line}\n" for line in lines))
    return str(path)


def left(path: str, *, repeats_failed: bool = False, last: int = 5) -> list[int]:
    elements = Known.numbers(number_ranges(f"1-{last}"))
    source = remaining(path, elements, TEMPLATE, repeats_failed=repeats_failed)
    found = []
    while batch := source.take(2):
        found += [element.number for element in batch]
    assert source.ended
    return found


def test_elements_of_the_log_are_omitted(tmp_path: Path) -> None:
    path = log(tmp_path / "log", (2, 0, "echo 2"), (4, 1, "echo 4"))
    assert left(path) == [1, 3, 5]
    assert left(path, repeats_failed=True) == [1, 3, 4, 5]


def test_the_last_line_of_an_element_counts(tmp_path: Path) -> None:
    path = log(tmp_path / "log", (1, 1, "echo 1"), (1, 0, "echo 1"), (2, 0, "echo 2"), (2, 1, "x"))
    assert left(path, repeats_failed=True) == [2, 3, 4, 5]


def test_a_missing_log_omits_nothing_and_a_whole_one_everything(tmp_path: Path) -> None:
    assert left(str(tmp_path / "none"), last=2) == [1, 2]
    assert left(log(tmp_path / "log", (1, 0, "echo 1"), (2, 0, "echo 2")), last=2) == []


def test_another_command_with_the_same_number_is_an_error(tmp_path: Path) -> None:
    path = log(tmp_path / "log", (2, 0, "echo two"))
    with pytest.raises(UsageError, match="ran as 'echo two' before, and is 'echo 2' now"):
        left(path)


def test_a_file_that_is_no_log_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("something else\n")
    with pytest.raises(UsageError, match="line 1 is not a line of a job log"):
        left(str(tmp_path / "log"))
