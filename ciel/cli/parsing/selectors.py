"""Parses selectors, by which users name jobs and tasks.

The forms:

    3   1-10   1-10:2   last   all   1,4,last   a job's full id   a job's name
    3:17   last:1-20   last:NAME   last (all its tasks)

Pure: `jobs.queries` finds the jobs and tasks that exist.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

from ciel.cli.outcome import UsageError
from ciel.core.jobs import JOB_NAME_MAX_LENGTH

ALL: Final = "all"
LAST: Final = "last"

_NUMBERS = re.compile(r"(\d{1,9})(?:-(\d{1,9})(?::(\d{1,9}))?)?", re.ASCII)
_LIKE_NUMBERS = re.compile(r"[\d:]*-[\d:-]*", re.ASCII)
_NAME = re.compile(rf"[^,:]{{1,{JOB_NAME_MAX_LENGTH}}}")
_SHOWN_MAX_LENGTH = 80


class SelectorError(UsageError):
    """A selector is not valid."""

    def __init__(self, text: str, reason: str) -> None:
        self.text = text
        super().__init__(f"{text[:_SHOWN_MAX_LENGTH]!r} {reason}")


JobTerm = range | str
"""Numbers of jobs; or ALL, LAST, an id or a name."""


class TaskSelector(NamedTuple):
    """Tasks of one job: `tasks` are numbers, the name, number or id of one, or None for all."""

    job: str
    tasks: range | str | None


def read_jobs(words: Iterable[str]) -> list[JobTerm]:
    """Read selectors of jobs; raises SelectorError."""
    return [_read_job(term) for word in words for term in word.split(",")]


def _read_job(text: str) -> JobTerm:
    if text in (ALL, LAST):
        return text
    numbers = _read_numbers(text)
    if numbers is not None:
        return numbers
    if ":" in text:
        raise SelectorError(text, "names a task, but this command expects a job")
    if not _NAME.fullmatch(text) or not text.isprintable():
        reason = "is not a job: write a number, A-B, last, all, an id or a name"
        raise SelectorError(text, reason)
    return text


def read_task(text: str) -> TaskSelector:
    """Read a selector of tasks, `JOB:TASK` or `JOB`; raises SelectorError."""
    job, colon, tasks = text.partition(":")
    term = _read_job(job)
    if term == ALL or (isinstance(term, range) and len(term) > 1):
        raise SelectorError(text, "selects more than one job; name tasks of one job as JOB:TASK")
    job = str(term[0]) if isinstance(term, range) else term
    if not colon:
        return TaskSelector(job, None)
    if not tasks:
        raise SelectorError(text, "has no task after the colon")
    if tasks.isascii() and tasks.isdecimal():
        return TaskSelector(job, tasks)  # in an array, a name may be a number
    return TaskSelector(job, _read_numbers(tasks) or tasks)


def _read_numbers(text: str) -> range | None:
    match = _NUMBERS.fullmatch(text)
    if match is None:
        if _LIKE_NUMBERS.fullmatch(text):
            raise SelectorError(text, "is not a range; write A-B or A-B:STEP")
        return None
    first, last, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
    if last < first:
        raise SelectorError(text, "runs backwards; write the lower number first")
    if step < 1:
        raise SelectorError(text, "has a step of 0; write a step of at least 1")
    return range(first, last + 1, step)


def describe(term: JobTerm) -> str:
    """Return a term as its user wrote it."""
    if not isinstance(term, range):
        return term
    last = term[-1] if term.step == 1 else f"{term.stop - 1}:{term.step}"
    return str(term[0]) if len(term) == 1 and term.step == 1 else f"{term[0]}-{last}"
