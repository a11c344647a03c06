"""Finds the jobs that selectors name, and writes jobs as JSON."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ciel.cli.outcome import UsageError
from ciel.cli.parsing.selectors import ALL, JobTerm, describe, read_jobs
from ciel.client.client import Client
from ciel.client.errors import QueryError
from ciel.core.jobs import ENDED, JobSummary
from ciel.wire.descriptors import read_summary

_PAGE = 1000  # summaries in one answer, which the master builds in one step
_LAST_NUMBER = 2**53
_ENDED = frozenset(str(state) for state in ENDED)


def list_jobs(
    client: Client,
    limit: int | None = None,
    first: int = 0,
    last: int = _LAST_NUMBER,
    state: str | None = None,
) -> list[JobSummary]:
    """Return the newest jobs with numbers from `first` to `last`, the oldest of them first.

    With `state`: only jobs in this state.
    """
    pages: list[list[JobSummary]] = []
    left = _LAST_NUMBER if limit is None else limit
    while left > 0:
        count = min(_PAGE, left)
        query = {"limit": count, "first": first, "last": last, "state": state}
        answer = client.ask("jobs", query)
        pages.append([read_summary(fields) for fields in answer])
        left -= len(answer)
        if len(answer) < count:
            break
        last = pages[-1][0].number - 1
    return [job for page in reversed(pages) for job in page]


def chosen_jobs(
    client: Client, words: Sequence[str], among_all: Callable[[JobSummary], bool] = lambda job: True
) -> list[JobSummary]:
    """Return the jobs that selectors name, each once.

    The selector `all` means the jobs for which `among_all` is true. Any other selector that names
    no job raises UsageError.
    """
    chosen: dict[str, JobSummary] = {}
    for term in read_jobs(words):
        found = _jobs_of(client, term)
        if term == ALL:
            found = [job for job in found if among_all(job)]
        elif not found:
            raise UsageError(f"no job {describe(term)}; `ciel job list --all` lists all jobs")
        chosen.update((job.id, job) for job in found)
    return list(chosen.values())


def _jobs_of(client: Client, term: JobTerm) -> list[JobSummary]:
    if isinstance(term, range):
        found = list_jobs(client, None, term[0], term[-1])
        return [job for job in found if job.number in term]
    if term == ALL:
        return list_jobs(client)
    try:
        return [read_summary(fields) for fields in client.ask("jobs", {"job": term})]
    except QueryError:
        return []


def has_ended(job: JobSummary) -> bool:
    """Whether a job has ended."""
    return job.state in _ENDED


class MasterClock(NamedTuple):
    """The master's monotonic clock, by which it reports the times of jobs.

    Such a time plus `epoch_s` is the time since the epoch.
    """

    now_s: float
    epoch_s: float


def master_clock(client: Client) -> MasterClock:
    """Query the master for its time."""
    status = client.ask("status")
    return MasterClock(status["now_s"], status["epoch_s"])


def elapsed_s(job: JobSummary, now_s: float) -> float:
    """Return how long a job took, or has taken so far."""
    return (now_s if job.ended_at_s is None else job.ended_at_s) - job.created_at_s


def job_json(job: JobSummary, clock: MasterClock) -> dict[str, Any]:
    """Return a job as an object, its times as seconds since the epoch."""
    ended_at_s = None if job.ended_at_s is None else round(job.ended_at_s + clock.epoch_s, 3)
    return {
        **job._asdict(),
        "created_at_s": round(job.created_at_s + clock.epoch_s, 3),
        "ended_at_s": ended_at_s,
        "elapsed_s": round(elapsed_s(job, clock.now_s), 3),
        "age_s": round(clock.now_s - job.created_at_s, 3),
    }
