"""Finds the unfinished jobs that `ciel down` would end, and asks the user for confirmation.

It asks the master, or reads the journal of a cluster that was interrupted.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from ciel.access.access_file import AccessFile, wait_for_end
from ciel.access.tickets import make_ticket
from ciel.cli.outcome import say
from ciel.core.events import JobChanged, SubmitJob
from ciel.core.jobs import ENDED, JobState
from ciel.core.tasks import ACTIVE
from ciel.execution.report import visible
from ciel.journal.directory import read_groups
from ciel.journal.errors import JournalError

ANSWER_S: Final = 3.0
RESTART_S: Final = 10.0
"""How long a query waits for a master that is being restarted."""
_PAUSE_S: Final = 0.05
SHOWN_MAX: Final = 5
_JOBS: Final = "/api/v1/jobs?state=active&limit=1000"
_UNFINISHED: Final = frozenset(map(str, ACTIVE))


def may_end(url: str, names: Sequence[str], *, is_alive: bool) -> bool:
    """Return whether `ciel down` may end a cluster; if not, print which jobs are unfinished.

    It may if no job is unfinished, or if the user at the terminal agrees. `is_alive`: the cluster
    runs; otherwise it was interrupted.
    """
    if not names:
        return True
    shown = ", ".join(names[:SHOWN_MAX])
    more = f" and {len(names) - SHOWN_MAX} more" if len(names) > SHOWN_MAX else ""
    are = f"{len(names)} jobs are" if len(names) > 1 else "1 job is"
    what = f"{are} unfinished: {shown}{more}"
    if sys.stdin.isatty() and sys.stderr.isatty():
        return _confirmed(f"ciel: {what}; end the cluster anyway, and delete their results?")
    if is_alive:
        kept = f"keeps running, since {what}; wait for it (ciel job wait all), or end it anyway"
    else:
        kept = f"is kept, since {what}; continue it (ciel up), or remove it anyway"
    say(f"the cluster at {url} {kept}: ciel down --force")
    return False


def unfinished(cluster: AccessFile) -> list[str]:
    """Return the names of the jobs with tasks that run or wait to run, the newest first.

    Return none if the master does not answer: then the cluster cannot be used anyway.
    """
    until_s = time.monotonic() + RESTART_S
    while True:
        try:
            answer = _ask(cluster)
            break
        except ConnectionError as error:  # the master may be about to be restarted
            reason = str(error)
            if cluster.is_alive() and time.monotonic() < until_s:
                wait_for_end(cluster.pid, _PAUSE_S)
                continue
        except (OSError, ValueError) as error:
            reason = str(error)
        say(f"cannot query the master for unfinished jobs: {reason}")
        return []
    return [
        f"{job['number']} ({visible(job['name'])})" if job["name"] else str(job["number"])
        for job in answer.get("jobs", ())
        if not _UNFINISHED.isdisjoint(job["counts"])
    ]


def _ask(cluster: AccessFile) -> dict[str, Any]:
    """Query the active jobs by HTTP; raises OSError, and ValueError for a wrong answer."""
    from http.client import HTTPConnection, HTTPException

    netloc = cluster.url.partition("://")[2].rstrip("/")
    ticket = make_ticket(cluster.key, "GET", netloc, _JOBS, time.time())
    try:
        with closing(HTTPConnection(netloc, timeout=ANSWER_S)) as connection:
            connection.request("GET", _JOBS, headers={"Authorization": ticket})
            answer: dict[str, Any] = json.loads(connection.getresponse().read())
            return answer
    except HTTPException as error:
        raise ValueError(str(error)) from None


def unfinished_in(journal: Path) -> list[str]:
    """Return the names of the jobs without an end in the journal of an interrupted cluster.

    If the journal cannot be read, any job may be unfinished.
    """
    if not journal.exists():
        return []
    names: dict[str, str] = {}
    try:
        for group in read_groups(journal):
            for record in group.records:
                if isinstance(record, SubmitJob):
                    names[record.spec.id] = visible(record.spec.name) or record.spec.id
                elif isinstance(record, JobChanged) and JobState(record.summary.state) in ENDED:
                    names.pop(record.summary.id, None)
    except JournalError as error:
        return [f"unknown ({error})"]
    return list(names.values())


def _confirmed(question: str) -> bool:
    """Ask the user at the terminal; any answer but yes means no."""
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")
