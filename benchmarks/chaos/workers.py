"""Rows about workers that are killed, wiped, stopped or poisoned, and about cancelled jobs."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from benchmarks.chaos import peers
from benchmarks.chaos.cluster import SHORT_TIMEOUTS, Cluster, await_that, disturb, settled
from benchmarks.chaos.faults import Every, pause
from benchmarks.chaos.rows import Figure, Findings, Note, Setting, row
from benchmarks.chaos.workload import LEAVES, Sums
from ciel.client.client import Client
from ciel.core.refs import Failure
from ciel.testing.homes import processes_below, wait_for

GONE_ON: Final = 20
GOES_ON_WITHIN_S: Final = 10.0
KILL_EVERY_S: Final = 2.0
SUSPECTED_S: Final = 3.0
"""A worker sends a message at least once a second; after three silent seconds it is suspected."""
POISON: Final = 'printf x >>{runs}; kill -9 "$(cut -d" " -f4 /proc/$PPID/stat)"; sleep 60'
TRIES: Final = 3


class InTurn:
    """Kills the workers in turn, and restarts each at once.

    A worker is killed only when it has joined and the job has gone on since the last kill, which is
    always so on a machine that starts workers within the interval.
    """

    def __init__(self, cluster: Cluster, *, wiped: bool = False) -> None:
        self._cluster = cluster
        self._wiped = wiped
        self._count = self._started = 0
        self.before_wipe: Callable[[str], object] | None = None

    def _has_gone_on(self) -> bool:
        return self._cluster.runs("disturbed").started >= self._started + GONE_ON

    def __call__(self) -> None:
        name = f"worker{self._count % 2}"
        self._count += 1
        self._cluster.await_joined(name)
        with suppress(AssertionError):  # the job is at its end
            wait_for(self._has_gone_on, "the job", GOES_ON_WITHIN_S)
        self._started = self._cluster.runs("disturbed").started
        if self.before_wipe is not None:
            self._cluster.kill(name)
            self.before_wipe(name)
        self._cluster.restart(name, wiped=self._wiped, waits=False)


@row(
    "W1",
    "one of two workers is killed every 2 s, and restarted (J5k)",
    "its running task runs again; its finished results are found in its work directory",
    "≤ 1.2 x the undisturbed time; runs again ≤ kills x slots; nothing lost, no wrong result",
)
def _killed_workers(setting: Setting) -> Findings:
    sums = Sums(setting.count(LEAVES, 100))
    with Cluster.running(setting) as cluster, cluster.client() as client:
        trial = disturb(cluster, client, sums, KILL_EVERY_S, InTurn(cluster))
    yield from trial.figures(1.2)
    yield Figure("runs again", trial.runs.again, "", trial.failures)
    yield Figure("of these had ended once", trial.runs.finished_again)
    yield from peers.killed_workers(sums, KILL_EVERY_S)


@row(
    "W2",
    "one of two workers is killed every 15 s, and its work directory is deleted (J5k)",
    "the objects that are still needed are recomputed",
    "runs again ≤ 1.1 x the least possible number; nothing lost, no wrong result",
)
def _wiped_workers(setting: Setting) -> Findings:
    sums = Sums(setting.count(LEAVES, 300))
    with Cluster.running(setting) as cluster, cluster.client() as client:
        wipe = InTurn(cluster, wiped=True)
        needed = []

        def count_lost(name: str) -> None:
            needed.append(least_again(cluster, name))

        wipe.before_wipe = count_lost
        trial = disturb(cluster, client, sums, setting.seconds(15.0, 2.0), wipe)
    yield from trial.figures(None)
    least = sum(needed)
    yield Figure("least possible runs again", least)
    yield Figure("runs again to the least", trial.runs.again / max(least, 1), "x", 1.1, digits=2)


def least_again(cluster: Cluster, name: str) -> int:
    """Count the tasks that must run again when the store of a dead worker is deleted: those whose
    results only it has and an unfinished sum needs, and the task that it ran.
    """
    notes = cluster.home.path / "disturbed"
    lines = [line.split()[1:] for line in notes.read_text().splitlines()] if notes.exists() else []
    ended = {task for what, task in lines if what == "ends"}
    open_runs = {task for what, task in lines if what == "starts"} - ended
    other = {path.name for path in cluster.stored("worker1" if name == "worker0" else "worker0")}
    lost = 0
    for path in cluster.stored(name):
        words = path.read_bytes()[:64].split()
        if path.name in other or words[1:] != [b"disturbed"]:
            continue  # it is not lost, or of another run of the job
        leaf = math.isqrt(int(words[0]))
        lost += f"sum{leaf // 10 * 10}" not in ended
    return lost + min(len(open_runs), 1)


@row(
    "W3",
    "a worker is stopped (SIGSTOP) at 30 % of J5k, continued in mid-job, and stopped again",
    "the master gives its tasks to the other worker; late results do not count; it comes back",
    "detected ≤ 3.5 s; no late result counts; it works again without a restart",
)
def _stopped_workers(setting: Setting) -> Findings:
    sums = Sums(setting.count(LEAVES, 600))
    with Cluster.running(setting, of_master=SHORT_TIMEOUTS) as cluster, cluster.client() as client:
        pid = cluster.daemons["worker0"].pid
        detected = []
        with client.job("J5k") as job:
            total = sums.add(job, cluster.inside("notes"))
            job.want([total])
            for part in (0.3, 0.6):
                await_ends(cluster, "notes", int(part * sums.leaves))
                cluster.signal("worker0", signal.SIGSTOP)
                detected.append(await_that(lambda: suspicions(client) > 0, "a suspicion"))
                if part == 0.3:
                    pause(setting.seconds(7.0, 7.0))
                    cluster.signal("worker0", signal.SIGCONT)
                    await_that(lambda: suspicions(client) == 0 and busy(client) == 2, "its return")
            result = job.read(total, timeout_s=600)
            cluster.signal("worker0", signal.SIGCONT)
            back_s = await_that(lambda: suspicions(client) == 0, "its return")
        Sums(max(20, sums.leaves // 20)).run(client, cluster.inside("later"))
        runs = cluster.runs("notes")
        yield Figure("detected after at most", max(detected), "s", SUSPECTED_S + 0.5, digits=1)
        yield Figure("wrong results", result != sums.expected(), "", 0)
        yield Figure("tasks lost", len(set(sums.names()) - runs.tasks), "", 0)
        yield Figure("runs again", runs.again)
        yield Figure("back after", back_s, "s", 3, digits=1)
        yield Figure("restarts of the worker", cluster.daemons["worker0"].pid != pid, "", 0)
        yield Figure("workers at the end", len(client.ask("workers")), "", 2, at_most=False)


def suspicions(client: Client) -> int:
    """Count the workers that are suspected or declared dead."""
    found = client.ask("workers")
    return 2 - sum(not worker["suspicion"] for worker in found)


def busy(client: Client) -> int:
    """Count the slots in use."""
    return sum(worker["running"] for worker in client.ask("workers"))


def await_ends(cluster: Cluster, notes: str, count: int) -> None:
    """Wait until so many programs of a job have started."""
    await_that(lambda: cluster.runs(notes).started >= count, f"{count} programs")


@row(
    "W10",
    "J5k is cancelled at 40 %",
    "its programs end at once, and nothing of it is left",
    "all slots idle ≤ 1 s; 0 programs and 0 temporary files left",
)
def _cancelled_job(setting: Setting) -> Findings:
    sums = Sums(setting.count(LEAVES, 100))
    with Cluster.running(setting) as cluster, cluster.client() as client:
        job = client.job("J5k")
        job.want([sums.add(job, cluster.inside("notes"))])
        await_ends(cluster, "notes", int(0.4 * sums.leaves))
        started_s = time.monotonic()
        job.cancel("a trial")
        await_that(lambda: busy(client) == 0, "idle slots")
        idle_s = time.monotonic() - started_s
        before = cluster.runs("notes").started
        pause(1.0)
        after = cluster.runs("notes").started
        workers = [cluster.daemons[name].pid for name in ("worker0", "worker1")]
        programs = [
            command
            for pid in workers
            for command in processes_below(pid).values()
            if "launcher" not in command and not is_warm(command)
        ]
        client.remove_job(job.id)
        pause(1.0)
        objects = len(cluster.stored("worker0")) + len(cluster.stored("worker1"))
        Sums(20).run(client, cluster.inside("later"))
    yield Figure("slots idle after", idle_s, "s", 1.0, digits=2)
    yield Figure("programs started later", after - before, "", 0)
    yield Figure("processes left", len(programs), "", 0)
    yield Figure("scratch files left", len(cluster.scratch()), "", 0)
    yield Figure("objects left after its removal", objects, "", 0)


def is_warm(command: str) -> bool:
    """Whether a process is a warm program, which its worker keeps for the next task."""
    return "ciel_task.serve" in command


@row(
    "W11",
    "one of 1,000 tasks kills each worker that runs it",
    "the task fails after three tries and is named; all others end",
    "999 done, 1 failed after exactly 3 tries",
)
def _poison(setting: Setting) -> Findings:
    count = setting.count(1000, 50)
    with Cluster.running(setting) as cluster, cluster.client() as client:
        runs = cluster.home.path / "poison"
        workers = ("worker0", "worker1")

        def supervise() -> None:
            for name in workers:
                if cluster.daemons[name].poll() is not None:
                    cluster.restart(name, waits=False)

        with Every(0.02, supervise), client.job("poison") as job:
            added = [job.run(["echo", number]) for number in range(count - 1)]
            added.insert(count // 2, job.run(["sh", "-c", POISON.format(runs=runs)], name="poison"))
            results = settled(job, added)
        failed = [ref for ref in results if isinstance(ref, Failure)]
        told = [str(ref.details) for ref in failed]
        tries = runs.stat().st_size
    yield Figure("done", count - len(failed), "", count - 1, at_most=False)
    yield Figure("failed", len(failed), "", 1)
    yield Figure("failed by WORKER_FAILED", sum(f.reason == "WORKER_FAILED" for f in failed), "", 1,
                 at_most=False)  # fmt: skip
    yield Figure("tries beyond 3", tries - TRIES, "", 0)
    yield from [Note(text[:200]) for text in told[:1]]
