"""Rows about programs that hang, misuse their pipes, use too much, or leave processes behind."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import sys
import time
from pathlib import Path
from typing import Final

from benchmarks.chaos.cluster import Cluster, await_that, settled
from benchmarks.chaos.faults import pause
from benchmarks.chaos.rows import CannotRunError, Figure, Findings, Setting, row
from ciel.client.client import Client
from ciel.core.refs import Failure
from ciel.core.tasks import Needs
from ciel.testing.homes import fields_of, private_bytes

DEAF: Final = (
    "trap '' TERM; sh -c 'trap \"\" TERM; sleep {0}' & setsid sleep {0} & "
    "while :; do sleep {0}; done"
)
GRACE_S: Final = 0.3
LIMIT_S: Final = 1.0
DAEMON: Final = "(setsid sh -c 'sleep {0} & wait' &) >/dev/null 2>&1; exit 0"
GREEDY: Final = """
held = []
for _ in range(4096):
    held.append(bytearray(b"x") * (1 << 20))
"""
MEMORY_BYTES: Final = 256 << 20
NOBODY: Final = "54321"
BOMB: Final = (
    "$SIG{TERM} = 'IGNORE'; while (1) { my $p = fork; setpgrp(0, 0) if defined $p && !$p; }"
)
PROCESSES_MAX: Final = 200
PIPES: Final = {
    "closes only its write end": "exec 3>{w} 4<{r}; exec 3>&-; cat <&4 >/dev/null",
    "closes only its read end": "exec 3>{w} 4<{r}; exec 4<&-; sleep 0.5; exit 0",
    "opens them 2 s late": "sleep 2; exec 3>{w} 4<{r}; exit 0",
    "never opens them": "sleep 0.5; exit 0",
}
"""Scripts that misuse the two pipes to their worker."""
PAUSE: Final = re.compile(r"the event loop was blocked for ([\d.]+) s")


def living(marker: str) -> int:
    """Count the living processes whose command contains a text."""
    found = 0
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            found += marker.encode() in (entry / "cmdline").read_bytes()
        except OSError:
            continue  # it has ended meanwhile
    return found


def unique_time() -> str:
    """Return a time for `sleep` by which its process is found."""
    return f"600.{secrets.randbelow(10**9):09}"


@row(
    "W4",
    "a task ignores SIGTERM and sleeps for ever, as do two processes that it started",
    "it fails with TIMED_OUT; all its processes are killed and its slot is free",
    "killed ≤ 1.5 s with a limit of 1 s and 0.3 s between SIGTERM and SIGKILL; 0 processes left",
)
def _hanging_task(setting: Setting) -> Findings:
    needs = Needs(timeout_s=LIMIT_S, kill_grace_s=GRACE_S)
    worst_s, named, left = 0.0, 0, 0
    count = setting.count(20, 2)
    with Cluster.running(setting, 1) as cluster, cluster.client() as client:
        client.submit(abs, -1).result(timeout=300)
        for _ in range(count):
            marker = unique_time()
            with client.job("deaf") as job:
                task = job.run(["sh", "-c", DEAF.format(marker)], needs=needs)
                job.want([task])
                await_that(lambda m=marker: living(m) >= 3, "its processes")  # type: ignore[misc]  # the default binds now
                started_s = time.monotonic()
                (failure,) = settled(job, [task])
                worst_s = max(worst_s, time.monotonic() - started_s)
                left += living(marker)
                named += isinstance(failure, Failure) and failure.reason == "TIMED_OUT"
            with client.job("next") as job:
                job.read(job.run(["true"]), timeout_s=300)
    yield Figure("killed after at most", worst_s, "s", 1.5, digits=2)
    yield Figure("named TIMED_OUT", named, "", count, at_most=False)
    yield Figure("processes left", left, "", 0)


@row(
    "W6",
    "a program closes one of its two pipes, opens them 2 s late, or never",
    "the task fails with the reason; the worker serves others meanwhile",
    "each settles ≤ 2 s after its program's last act; longest pause of the worker ≤ 0.05 s",
)
def _half_closed_pipes(setting: Setting) -> Findings:
    with Cluster.running(setting, 1) as cluster, cluster.client() as client:
        failed = 0
        for name, script in PIPES.items():
            # The last four words are --write-fifo, its path, --read-fifo, and its path.
            shell = 'eval "$(echo "$0" | sed "s|{w}|$2|; s|{r}|$4|")"'
            with client.job(name) as job:
                arguments = {"command": ["sh", "-c", shell, script]}
                task = job.add("proc", arguments)[0]
                started_s = time.monotonic()
                (found,) = settled(job, [task])
                took_s = time.monotonic() - started_s
            failed += isinstance(found, Failure)
            own_s = 2.0 if "late" in name else 0.5 if "sleep" in script else 0.0
            yield Figure(name, took_s - own_s, "s", 2.0, digits=1)
        yield Figure("reported as failures", failed, "", len(PIPES), at_most=False)
        pauses = [float(found) for found in PAUSE.findall(cluster.log("worker0"))]
        yield Figure("longest pause", max(pauses, default=0.0), "s", 0.05, digits=2)


@row(
    "W7",
    "a task is a fork bomb with a limit of 200 processes, beside tasks of 20 ms",
    "it is ended by its time limit with all its processes; others go on",
    "others' rate ≥ 0.9 x; cleaned up ≤ 2 s; 0 processes left",
)
def _fork_bomb(setting: Setting) -> Findings:
    for program in ("setpriv", "prlimit", "perl"):
        if os.geteuid() != 0 or shutil.which(program) is None:
            raise CannotRunError(f"needs root and {program}")
    limit_s = setting.seconds(10.0, 3.0)
    limited = ["setpriv", "--reuid", NOBODY, "--clear-groups", "prlimit"]
    bomb = [*limited, f"--nproc={PROCESSES_MAX}", "perl", "-e", BOMB]
    slots = ("--slots", "2")
    with Cluster.running(setting, 1, of_workers=slots) as cluster, cluster.client() as client:
        idle, _ = rate_beside(client, ["sleep", "600"], limit_s)
        beside, failure = rate_beside(client, bomb, limit_s)
        cleaned_s = await_that(lambda: not owned_by(int(NOBODY)), "the end of the bomb")
    yield Figure("others' rate", beside / idle, "x", 0.9, at_most=False, digits=2)
    yield Figure("named TIMED_OUT", failure.reason == "TIMED_OUT", "", 1, at_most=False)
    yield Figure("last process gone after the report", cleaned_s, "s", 2.0, digits=2)
    yield Figure("processes left", owned_by(int(NOBODY)), "", 0)


def rate_beside(client: Client, command: list[str], limit_s: float) -> tuple[float, Failure]:
    """Return the rate of other tasks while a command runs, and how the command ended."""
    with client.job("first") as job:
        first = job.run(command, needs=Needs(timeout_s=limit_s, kill_grace_s=0.1))
        job.want([first])
        pause(0.5)
        rate = rate_of_others(client, limit_s - 1.0)
        (failure,) = settled(job, [first])
    assert isinstance(failure, Failure), failure
    return rate, failure


def rate_of_others(client: Client, seconds: float) -> float:
    """Return how many tasks of 20 ms a second run beside another one."""
    until_s, count = time.monotonic() + seconds, 0
    with client.job("others") as job:
        while time.monotonic() < until_s:
            for ref in settled(job, [job.run(["sleep", "0.02"]) for _ in range(10)]):
                count += not isinstance(ref, Failure)
    return count / seconds


def owned_by(uid: int) -> int:
    """Count the living processes of a user."""
    found = 0
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            state = fields_of(entry)[0]
            found += entry.stat().st_uid == uid and state != "Z"
        except OSError:
            continue
    return found


@row(
    "W8",
    "100 tasks touch 4 GB each, with a limit of 256 MB",
    "each is killed and fails with MEMORY_LIMIT; its worker and other tasks are untouched",
    "100 of 100 named; worker not restarted, its memory flat",
)
def _runaway_memory(setting: Setting) -> Findings:
    count = setting.count(100, 3)
    with Cluster.running(setting, 1, of_workers=("--memory", "1GiB")) as cluster:
        pid = cluster.daemons["worker0"].pid
        with cluster.client() as client, client.job("greedy") as job:
            job.read(job.run(["true"]), timeout_s=300)
            before = private_bytes(pid)
            needs = Needs(memory_bytes=MEMORY_BYTES)
            greedy = [
                job.run([sys.executable, "-c", GREEDY], needs=needs, name=f"greedy{n}")
                for n in range(count)
            ]
            modest = [job.run(["echo", n]) for n in range(count)]
            results = settled(job, [*greedy, *modest])
            grown = private_bytes(pid) - before
        named = sum(isinstance(r, Failure) and r.reason == "MEMORY_LIMIT" for r in results[:count])
        harmed = sum(isinstance(ref, Failure) for ref in results[count:])
        same = cluster.daemons["worker0"].poll() is None
    yield Figure("named MEMORY_LIMIT", named, "", count, at_most=False)
    yield Figure("other tasks harmed", harmed, "", 0)
    yield Figure("worker lives", same, "", 1, at_most=False)
    yield Figure("growth of the worker", grown / 2**20, "MiB", 4, digits=1)


@row(
    "W9",
    "each of 500 tasks leaves a daemon in a session of its own, with a child",
    "they are killed when their task ends",
    "0 processes left",
)
def _daemons_left(setting: Setting) -> Findings:
    count, marker = setting.count(500, 20), unique_time()
    with Cluster.running(setting) as cluster, cluster.client() as client:
        with client.job("daemons") as job:
            tasks = [job.run(["sh", "-c", DAEMON.format(marker), n]) for n in range(count)]
            results = settled(job, tasks)
        left = living(marker)
    yield Figure("tasks done", sum(not isinstance(r, Failure) for r in results), "", count,
                 at_most=False)  # fmt: skip
    yield Figure("processes left", left, "", 0)
