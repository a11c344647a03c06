"""What the commands that look and act have in common: which jobs are meant, and how a job looks as
JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ciel.cli.outcome import UsageError
from ciel.cli.selectors import ALL, JobTerm, describe, read_jobs
from ciel.client.client import Client
from ciel.client.errors import QueryError
from ciel.core.jobs import ENDED, JobSummary
from ciel.wire.descriptors import read_summary

_PAGE = 1000  # summaries in one answer, which the master composes in one go
_LAST_NUMBER = 2**53
_ENDED = frozenset(str(state) for state in ENDED)


def list_jobs(
    client: Client, limit: int | None = None, first: int = 0, last: int = _LAST_NUMBER
) -> list[JobSummary]:
    """Return the newest jobs among those numbered `first` to `last`, oldest first."""
    pages: list[list[JobSummary]] = []
    left = _LAST_NUMBER if limit is None else limit
    while left > 0:
        asked = min(_PAGE, left)
        answer = client.ask("jobs", {"limit": asked, "first": first, "last": last})
        pages.append([read_summary(fields) for fields in answer])
        left -= len(answer)
        if len(answer) < asked:
            break
        last = pages[-1][0].number - 1
    return [job for page in reversed(pages) for job in page]


def chosen_jobs(
    client: Client, words: Sequence[str], among_all: Callable[[JobSummary], bool] = lambda job: True
) -> list[JobSummary]:
    """Return the jobs that selectors name, each once; `all` means those that `among_all` says.

    Raises UsageError for a selector that names nothing, unless it is `all`.
    """
    chosen: dict[str, JobSummary] = {}
    for term in read_jobs(words):
        found = _jobs_of(client, term)
        if term == ALL:
            found = [job for job in found if among_all(job)]
        elif not found:
            raise UsageError(
                f"no job {describe(term)}; `ciel job list --all` lists those there are"
            )
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
    """Whether a job is over."""
    return job.state in _ENDED


def master_now_s(client: Client) -> float:
    """Return the time on the master's monotonic clock, in which jobs tell theirs."""
    now_s: float = client.ask("status")["now_s"]
    return now_s


def elapsed_s(job: JobSummary, now_s: float) -> float:
    """Return how long a job took, or has taken so far."""
    return (now_s if job.ended_at_s is None else job.ended_at_s) - job.created_at_s


def job_json(job: JobSummary, now_s: float) -> dict[str, Any]:
    """Return a job as an object; times are spans, since the master's clock means nothing here."""
    fields = job._asdict()
    del fields["created_at_s"], fields["ended_at_s"]
    age_s = round(now_s - job.created_at_s, 3)
    return fields | {"elapsed_s": round(elapsed_s(job, now_s), 3), "age_s": age_s}
