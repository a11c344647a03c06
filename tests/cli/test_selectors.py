from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ciel.cli.parsing.selectors import (
    ALL,
    LAST,
    SelectorError,
    TaskSelector,
    describe,
    read_jobs,
    read_task,
)

ID = "0123456789abcdef0123456789abcdef"


@pytest.mark.parametrize(
    "text, terms",
    [
        ("3", [range(3, 4)]),
        ("1-10", [range(1, 11)]),
        ("1-10:2", [range(1, 11, 2)]),
        ("7-7", [range(7, 8)]),
        ("last", [LAST]),
        ("all", [ALL]),
        ("1,4,last", [range(1, 2), range(4, 5), LAST]),
        ("1-3,9", [range(1, 4), range(9, 10)]),
        (ID, [ID]),
        ("1" * 32, ["1" * 32]),
        (f"last,{ID}", [LAST, ID]),
        ("my sim", ["my sim"]),
        ("run-7/²,3", ["run-7/²", range(3, 4)]),
    ],
)
def test_what_names_jobs(text: str, terms: list[range | str]) -> None:
    assert read_jobs([text]) == terms


def test_words_count_as_one_list() -> None:
    assert read_jobs(["1", "4-5,last"]) == [range(1, 2), range(4, 6), LAST]


@pytest.mark.parametrize(
    "text, reason",
    [
        ("", "is not a job"),
        ("1,,2", "is not a job"),
        ("5-1", "runs backwards"),
        ("1-10:0", "step of 0"),
        ("1-", "is not a range"),
        ("-1", "is not a range"),
        ("1-2-3", "is not a range"),
        ("1-2:", "is not a range"),
        ("3:17", "names a task"),
        ("last:17", "names a task"),
        ("a\nb", "is not a job"),
        ("x" * 201, "is not a job"),
    ],
)
def test_what_names_no_job_is_said(text: str, reason: str) -> None:
    with pytest.raises(SelectorError, match=reason):
        read_jobs([text])


@pytest.mark.parametrize(
    "text, selector",
    [
        ("3", TaskSelector("3", None)),
        ("last", TaskSelector(LAST, None)),
        ("3:17", TaskSelector("3", "17")),
        ("last:0", TaskSelector(LAST, "0")),
        ("last:1-20", TaskSelector(LAST, range(1, 21))),
        ("last:1-20:3", TaskSelector(LAST, range(1, 21, 3))),
        ("last:total", TaskSelector(LAST, "total")),
        ("last:a:b, c", TaskSelector(LAST, "a:b, c")),
        (f"{ID}:{ID}", TaskSelector(ID, ID)),
        ("7-7:x", TaskSelector("7", "x")),
    ],
)
def test_what_names_tasks(text: str, selector: TaskSelector) -> None:
    assert read_task(text) == selector


@pytest.mark.parametrize(
    "text, reason",
    [
        ("1-10:2", "more than one job"),
        ("all:3", "more than one job"),
        ("all", "more than one job"),
        ("3:", "no task after the colon"),
        (":3", "is not a job"),
        ("3:20-1", "runs backwards"),
        ("3:1-", "is not a range"),
    ],
)
def test_what_names_no_task_is_said(text: str, reason: str) -> None:
    with pytest.raises(SelectorError, match=reason):
        read_task(text)


@given(st.text())
def test_whatever_is_typed_means_something_or_is_refused(text: str) -> None:
    for read in (lambda word: read_jobs([word]), read_task):
        with suppress(SelectorError):
            read(text)


@pytest.mark.parametrize("text", ["3", "1-10", "1-10:2", "1-1:5", "last", "all", ID])
def test_a_term_is_known_again(text: str) -> None:
    (term,) = read_jobs([text])
    assert read_jobs([describe(term)]) == [term]
