"""Finds the unfinished jobs that `ciel down` would end, and asks the user for confirmation."""

from __future__ import annotations

import json
import sys
import time
from contextlib import closing
from typing import Any, Final

from ciel.access.access_file import AccessFile
from ciel.access.tickets import make_ticket
from ciel.cli.outcome import say
from ciel.core.tasks import ACTIVE
from ciel.execution.report import visible

ANSWER_S: Final = 3.0
SHOWN_MAX: Final = 5
_JOBS: Final = "/api/v1/jobs?state=active&limit=1000"
_UNFINISHED: Final = frozenset(map(str, ACTIVE))


def may_end(cluster: AccessFile) -> bool:
    """Return whether `ciel down` may end a cluster; if not, print which jobs are unfinished.

    It may if no job is unfinished, or if the user at the terminal agrees.
    """
    names = _unfinished(cluster)
    if not names:
        return True
    shown = ", ".join(names[:SHOWN_MAX])
    more = f" and {len(names) - SHOWN_MAX} more" if len(names) > SHOWN_MAX else ""
    are = f"{len(names)} jobs are" if len(names) > 1 else "1 job is"
    unfinished = f"{are} unfinished: {shown}{more}"
    if sys.stdin.isatty() and sys.stderr.isatty():
        return _confirmed(f"ciel: {unfinished}; end the cluster anyway, and delete their results?")
    say(
        f"the cluster at {cluster.url} keeps running, since {unfinished}; wait for it "
        "(ciel job wait all), or end it anyway: ciel down --force"
    )
    return False


def _unfinished(cluster: AccessFile) -> list[str]:
    """Return the names of the jobs with tasks that run or wait to run, the newest first.

    Return none if the master does not answer: then the cluster cannot be used anyway.
    """
    from http.client import HTTPConnection, HTTPException

    netloc = cluster.url.partition("://")[2].rstrip("/")
    ticket = make_ticket(cluster.key, "GET", netloc, _JOBS, time.time())
    try:
        with closing(HTTPConnection(netloc, timeout=ANSWER_S)) as connection:
            connection.request("GET", _JOBS, headers={"Authorization": ticket})
            answer: dict[str, Any] = json.loads(connection.getresponse().read())
    except (OSError, HTTPException, ValueError) as error:
        say(f"cannot query the master for unfinished jobs: {error}")
        return []
    return [
        f"{job['number']} ({visible(job['name'])})" if job["name"] else str(job["number"])
        for job in answer.get("jobs", ())
        if not _UNFINISHED.isdisjoint(job["counts"])
    ]


def _confirmed(question: str) -> bool:
    """Ask the user at the terminal; any answer but yes means no."""
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")
