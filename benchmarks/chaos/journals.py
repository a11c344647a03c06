"""Rows about the journal of a master: cut, damaged, on a disk that fails, and very long."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import time
from http.client import HTTPException
from pathlib import Path
from typing import Any, Final

from benchmarks.chaos.clients import Api
from benchmarks.chaos.cluster import Cluster, await_that
from benchmarks.chaos.faults import failing_call
from benchmarks.chaos.rows import Figure, Findings, Note, Setting, row
from benchmarks.chaos.workload import LEAVES, Sums
from ciel.cli.daemons.process import without_collection
from ciel.client.client import Client
from ciel.core.tasks import Mentions
from ciel.journal.directory import find_files, read_groups
from ciel.journal.groups import HEADER, Group, JournalReader

TAIL_BYTES: Final = 65536
FLIPPED_RECORDS: Final = 100
TASKS: Final = 1_000_000


class Tail:
    """The last groups of a journal, as a file of their own, which is read quickly.

    A reader decides about a group without the groups before it, so damage in the tail has the same
    effect in the whole file.
    """

    def __init__(self, data: bytes, least_bytes: int) -> None:
        reader = JournalReader(data)
        groups = [*reader.groups()]
        self.is_whole = reader.damage is None
        start = max((g.offset for g in groups if g.offset <= len(data) - least_bytes), default=16)
        self.data = HEADER + data[start:]
        self.groups = [
            group._replace(offset=group.offset - start + len(HEADER))
            for group in groups
            if group.offset >= start
        ]

    def expect_prefix(self, data: bytes, size_bytes: int) -> bool:
        """Return whether reading gives exactly the groups that are whole up to a place."""
        whole = [g for g in self.groups if g.offset + g.size_bytes <= size_bytes]
        reader = JournalReader(data)
        found: list[Group] = [*reader.groups()]
        return [g.records for g in found] == [g.records for g in whole]

    def cut(self, size_bytes: int) -> bool:
        """Cut the file; return whether reading gives exactly the groups before the cut."""
        return self.expect_prefix(self.data[:size_bytes], size_bytes)

    def flip(self, bit: int) -> bool:
        """Flip a bit; return whether reading gives exactly the groups before it."""
        flipped = bytearray(self.data)
        flipped[bit // 8] ^= 1 << bit % 8
        hit = [g.offset for g in self.groups if g.offset <= bit // 8]
        return self.expect_prefix(bytes(flipped), hit[-1])


def journal_of_job(setting: Setting, leaves: int) -> bytes:
    """Run the job, kill its master, and return the content of its journal."""
    with Cluster.running(setting) as cluster, cluster.client() as client:
        Sums(leaves).run(client, cluster.inside("notes"))
        cluster.kill("master")
        paths = find_files(cluster.home.path / "journal").paths
        return paths[-1].read_bytes()


@row(
    "M2",
    "the journal of J5k is cut at every byte of its last 64 KiB and after each record group; "
    "each bit of 100 groups is flipped",
    "a restarted master uses the good part, and cuts off the rest",
    "0 exceptions; 0 records invented or lost before the damage",
    limit_s=3600,
)
def _damaged_journal(setting: Setting) -> Findings:
    data = journal_of_job(setting, setting.count(LEAVES, 200))
    tail = Tail(data, TAIL_BYTES)
    wrong, cuts = 0, 0
    least = max(len(HEADER), len(tail.data) - TAIL_BYTES)
    step = max(1, round(1 / setting.scale))
    for place in [*range(least, len(tail.data) + 1, step), *[g.offset for g in tail.groups]]:
        wrong += not tail.cut(place)
        cuts += 1
    flips = 0
    chance = random.Random(20261128)
    whole = Tail(data, len(data))
    for group in chance.sample(whole.groups, min(FLIPPED_RECORDS, len(whole.groups))):
        own = Tail(data[: group.offset + group.size_bytes], group.size_bytes)
        last = own.groups[-1]
        for bit in range(last.offset * 8, (last.offset + last.size_bytes) * 8, step):
            wrong += not own.flip(bit)
            flips += 1
    yield Figure("cuts", cuts, "", TAIL_BYTES * setting.scale * 0.9 if least > 16 else cuts,
                 at_most=False)  # fmt: skip
    yield Figure("bits flipped", flips)
    yield Figure("wrong prefixes", wrong, "", 0)
    yield Figure("journal whole before", tail.is_whole, "", 1, at_most=False)
    yield Figure("size of the journal", len(data) / 1024, "KiB")


@row(
    "M3",
    "each fdatasync of the journal from the n-th on fails with EIO, for each n of a run",
    "the master acknowledges nothing more; after a restart all that was acknowledged is there",
    "0 acknowledged jobs lost, at any n; 0 masters that go on",
    limit_s=3600,
)
def _failing_sync(setting: Setting) -> Findings:
    count = setting.count(40, 3)
    lost = acknowledged = survivors = unstarted = 0
    for number in range(1, count + 1):
        log = setting.directory / f"strace{number}"
        wraps = {"master": failing_call("fdatasync", number, log)}
        try:
            with Cluster.running(setting, 0, wraps=wraps) as cluster:
                jobs = submit_until_refused(cluster)
                survivors += not log_says_failed(cluster)
                end_traced(cluster)
                known = jobs_after_restart(cluster)
        except RuntimeError:  # the master refused to start
            unstarted += 1
            continue
        acknowledged += len(jobs)
        lost += len(set(jobs) - known)
    yield Figure("places of the failure", count)
    yield Figure("starts refused", unstarted)
    yield Figure("jobs acknowledged", acknowledged)
    yield Figure("acknowledged jobs lost", lost, "", 0)
    yield Figure("masters that did not report the failure", survivors, "", 0)


def submit_until_refused(cluster: Cluster, most: int = 100) -> list[str]:
    """Submit jobs one by one; return the ids of acknowledged jobs."""
    api, acknowledged = Api(cluster), []
    args = {"args": {"command_line": ["true"], "inputs": []}}
    task = {"name": "a", "executor": "stdinout", "arguments": args}
    body = json.dumps({"tasks": [task]}).encode()
    for _ in range(most):
        try:
            status, answer = api.call(
                "POST", "/api/v1/jobs", body, timeout_s=10, Content_Type="application/json"
            )
        except (OSError, HTTPException):
            break  # the master has ended, or answers nothing more
        if status != 201:
            break
        acknowledged.append(json.loads(answer)["job"]["id"])
    return acknowledged


def log_says_failed(cluster: Cluster) -> bool:
    """Whether the master has logged that its journal failed."""
    return (
        re.search(r"journal.*(Input/output error|cannot be written)", cluster.log("master"))
        is not None
    )


def jobs_after_restart(cluster: Cluster) -> set[str]:
    """Start the master again, with a disk that works; return the ids of its jobs."""
    cluster.wraps.clear()
    cluster.start_master()
    with cluster.client() as client:
        return {line[0] for line in client.ask("jobs", {})}


def end_traced(cluster: Cluster) -> None:
    """Kill the master that strace has started, which outlives a killed strace."""
    for pid, command in cluster.home.processes().items():
        if "ciel-master" in command:
            os.kill(pid, signal.SIGKILL)
    cluster.daemons["master"].communicate()
    await_that(lambda: not cluster.home.processes(), "the end of the master")


@row(
    "M4",
    "a job of 1,000,000 tasks; its master is killed and restarted",
    "the master replays its journal, which is compacted while it serves",
    "≤ 200 B a task; ≥ 300,000 records/s; ≤ 6 s from start to serving",
    limit_s=1800,
)
def _long_journal(setting: Setting) -> Findings:
    tasks = setting.count(TASKS, 10_000)
    with Cluster.running(setting, 0) as cluster, cluster.client() as client:
        job = client.job("long", detached=True)
        arguments: dict[str, Any] = {"args": {"inputs": []}}
        for start in range(0, tasks, 1000):
            count = min(1000, tasks - start)
            refs = [job.add("sync", arguments, mentions=Mentions.INPUTS)[0] for _ in range(count)]
            job.want(refs)
        await_that(lambda: known_tasks(client) >= tasks, "all tasks")
        place = cluster.home.path / "journal"
        size_bytes = sum(path.stat().st_size for path in place.iterdir())
        cluster.kill("master")
        shutil.copytree(place, setting.directory / "copy")
        started_s = time.perf_counter()
        cluster.start_master()
        serving_s = time.perf_counter() - started_s
        found = known_tasks(client)
        records, read_s = read_all(setting.directory / "copy")
        client.cancel_job(job.id)
    yield Figure("bytes a task", size_bytes / tasks, "B", 200, digits=1)
    yield Figure("records read", records / read_s, "/s", 300_000, at_most=False)
    yield Figure("start to serving", serving_s, "s", max(6.0 * setting.scale, 2.0), digits=1)
    yield Figure("tasks lost", tasks - found, "", 0)
    yield Note(f"{records:,} records of {tasks:,} tasks in {size_bytes / 2**20:.1f} MiB")


def known_tasks(client: Client) -> int:
    """Count the tasks that the master has."""
    found: dict[str, int] = client.ask("status")["tasks"]
    return sum(found.values())


def read_all(directory: Path) -> tuple[int, float]:
    """Read a journal as a master does; return its number of records, and the time."""
    with without_collection():
        started_s = time.perf_counter()
        count = sum(len(group.records) for group in read_groups(directory))
        return count, time.perf_counter() - started_s
