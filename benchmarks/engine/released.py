"""Measures the memory that daemons keep for finished work: bytes per task, after its release.

There are three cases of finished tasks, and one of jobs. Each case has two rounds, of which the
second one counts: the memory that the first round allocates can be reused by the second one. The
figure is the daemons' memory as the system sees it, so it includes freed memory that was not
returned.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from benchmarks.engine.control import daemons_of
from benchmarks.engine.many import resident_bytes
from ciel.client.client import Client
from ciel.client.cluster import LocalCluster
from ciel.client.jobs import Job
from ciel.core.refs import Reference
from ciel.core.tasks import Mentions

TASKS = 100_000
AT_ONCE = 5_000
JOBS = 10_000


def no_ops(job: Job, count: int) -> list[Reference]:
    """Add tasks that do nothing, and want their outputs."""
    nothing: dict[str, Any] = {"args": {"inputs": []}}
    refs: list[Reference] = []
    for _ in range(count):
        refs += job.add("sync", nothing, mentions=Mentions.INPUTS)
    job.want(refs)
    return refs


def release(client: Client, tasks: int) -> None:
    """Run this many tasks in one job, and release each task when it is done."""
    with client.job("released") as job:
        for _ in range(tasks // AT_ONCE):
            refs = no_ops(job, AT_ONCE)
            for ref in refs:
                job.result(ref, 120)
            job.release(refs, for_good=True)


def end(client: Client, tasks: int) -> list[str]:
    """Run this many tasks in jobs that keep their results; return the jobs."""
    jobs: list[str] = []
    for _ in range(tasks // AT_ONCE):
        with client.job("ended", detached=True) as job:
            no_ops(job, AT_ONCE)
            jobs.append(job.id)
    return jobs


def remove(client: Client, tasks: int) -> None:
    """Run this many tasks in jobs, and remove the jobs."""
    for job_id in end(client, tasks):
        client.remove_job(job_id)


def begin_and_remove(client: Client, jobs: int) -> None:
    """Start this many jobs of one task, and remove them when all have ended."""
    begun = []
    for _ in range(jobs):
        with client.job("brief", detached=True) as job:
            no_ops(job, 1)
            begun.append(job.id)
    for job_id in begun:
        client.remove_job(job_id)


def grown(do: Callable[[], object], pids: list[int]) -> int:
    """Return how many bytes processes grow when an action runs for the second time."""
    do()
    before = resident_bytes(pids)
    do()
    return resident_bytes(pids) - before


def measure(tasks: int = TASKS, jobs: int = JOBS) -> dict[str, float]:
    """Measure everything on one cluster; the case that retains the least memory comes first."""
    with LocalCluster(workers=1, slots=2) as cluster, Client(cluster) as client:
        daemons = daemons_of(os.getpid())
        pids = daemons["master"] + daemons["worker"]
        begun_bytes = resident_bytes(pids)
        released = grown(lambda: release(client, tasks), pids)
        removed = grown(lambda: remove(client, tasks), pids)
        brief = grown(lambda: begin_and_remove(client, jobs), pids)
        left_bytes = resident_bytes(pids) - begun_bytes
        ended = grown(lambda: end(client, tasks), pids)
    return {
        "released_bytes": released / tasks,
        "removed_bytes": removed / tasks,
        "removed_job_bytes": brief / jobs,
        "left_mib": left_bytes / 2**20,
        "ended_bytes": ended / tasks,
    }


if __name__ == "__main__":
    for name, value in measure(*map(int, sys.argv[1:])).items():
        print(f"{name:18} {value:10.1f}")
