"""Rows about hosts that cannot reach each other. Each host is a namespace with its own network."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final

from benchmarks.chaos.cluster import ACCESS, SETTLED_WITHIN_S, SHORT_TIMEOUTS, Cluster, await_that
from benchmarks.chaos.faults import pause, require
from benchmarks.chaos.rows import CannotRunError, Figure, Findings, Note, Setting, row
from benchmarks.chaos.twice import TASKS
from benchmarks.chaos.workload import LEAVES, Sums, WrongResultError
from ciel.testing.homes import Home, wait_for
from ciel.testing.hosts import Host, Hosts, HostsUnavailableError

OUTAGES_S: Final = (1.0, 5.0, 30.0, 120.0)
NEVER_S: Final = 300.0
"""A job that takes longer than this, and than ten times the undisturbed time, will never end."""
HEALED_WITHIN_S: Final = 3.0
REPORTED_WITHIN_S: Final = 10.0
DECLARED_DEAD: Final = re.compile(r"worker \S+ is lost")


@contextmanager
def cluster_of_hosts(
    setting: Setting, count: int, *of_master: str
) -> Iterator[tuple[Cluster, list[Host]]]:
    """Run a master on the first host, and a worker on each further host."""
    require("unshare", "nsenter", "ip", "mount")
    try:
        with Hosts(setting.directory / "hosts", count) as hosts:
            cluster = Cluster([hosts[0], *hosts[1:]], of_master=of_master)
            try:
                cluster.start_master()
                for number in range(1, count):
                    cluster.start_worker(f"worker{number}")
                yield cluster, hosts
            finally:
                cluster.stop()
    except HostsUnavailableError as error:
        raise CannotRunError(f"no hosts of namespaces here: {error}") from None


class RemoteJob:
    """The job of sums, whose client runs on the first host."""

    def __init__(self, cluster: Cluster, sums: Sums, notes: str) -> None:
        self._cluster, self._sums, self._notes = cluster, sums, notes
        self._process: subprocess.Popen[str] = cluster.home.start(
            "python", "-m", "benchmarks.chaos.workload", ACCESS, str(sums.leaves), notes
        )

    def started(self) -> int:
        """Return how many of its programs have started."""
        return self._cluster.runs(self._notes).started

    def await_part(self, part: float) -> None:
        await_that(lambda: self.started() >= part * self._sums.leaves, "a part of the job")

    def seconds(self, limit_s: float = SETTLED_WITHIN_S) -> float:
        """Return its duration once it has ended with the right result.

        Raises WrongResultError, and TimeoutExpired if it does not end in time.
        """
        try:
            printed, complaints = self._process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            raise
        if self._process.returncode:
            raise WrongResultError(complaints.encode()[-300:], self._sums.expected())
        return float(json.loads(printed))


def resumes_s(job: RemoteJob) -> float:
    """Return the time until another program of the job has started."""
    before = job.started()
    return await_that(lambda: job.started() > before, "another program")


@row(
    "M6",
    "the network of both workers' hosts is down for 1, 5, 30 and 120 s; then one loses all that it "
    "sends to the master",
    "workers keep their programs and results; both sides go on when the network is back",
    "0 wrong results; goes on ≤ 3 s after healing, without a restart",
    limit_s=1800,
)
def _partitions(setting: Setting) -> Findings:
    sums = Sums(setting.count(LEAVES, 200))
    wrong = again = 0
    with cluster_of_hosts(setting, 3) as (cluster, hosts):
        RemoteJob(cluster, Sums(20), "warm-up").seconds()
        pids = {name: daemon.pid for name, daemon in cluster.daemons.items()}
        outages = [max(1.0, outage_s * setting.scale) for outage_s in OUTAGES_S]
        for number, outage_s in enumerate([*outages, outages[1]]):
            job = RemoteJob(cluster, sums, f"notes{number}")
            job.await_part(0.3)
            one_way = number == len(outages)
            set_network(hosts, up=False, one_way=one_way)
            pause(outage_s)
            set_network(hosts, up=True, one_way=one_way)
            resumed_s = resumes_s(job)
            what = "one way" if one_way else "link down"
            yield Figure(f"{what} {outage_s:g} s: goes on after", resumed_s, "s",
                         HEALED_WITHIN_S, digits=1)  # fmt: skip
            try:
                job.seconds()
            except WrongResultError:
                wrong += 1
            again += cluster.runs(f"notes{number}").again
        ended = [name for name, daemon in cluster.daemons.items() if daemon.poll() is not None]
        restarted = {name: daemon.pid for name, daemon in cluster.daemons.items()} != pids
    yield Figure("wrong results", wrong, "", 0)
    yield Figure("daemons that ended or were restarted", len(ended) + restarted, "", 0)
    yield Figure("runs again", again)


def set_network(hosts: list[Host], *, up: bool, one_way: bool) -> None:
    """Cut the workers' hosts off, or connect them again; one way: only one, which still hears."""
    if one_way:
        hosts[1].lose_frames_to(hosts[0], loses=not up)
        return
    for host in hosts[1:]:
        host.set_link(up=up)


@row(
    "M7",
    "two workers cannot reach each other, but both reach the master (J5k)",
    "objects that cannot be fetched are recomputed or read elsewhere; no worker is declared dead",
    "the job ends with the right result; 0 healthy workers declared dead",
    limit_s=1800,
)
def _partition_between_workers(setting: Setting) -> Findings:
    sums = Sums(setting.count(LEAVES, 200))
    with cluster_of_hosts(setting, 3) as (cluster, hosts):
        clean_s = RemoteJob(cluster, sums, "clean").seconds()
        before = len(DECLARED_DEAD.findall(cluster.log("master")))
        job = RemoteJob(cluster, sums, "notes")
        job.await_part(0.3)
        hosts[1].lose_frames_to(hosts[2])
        hosts[2].lose_frames_to(hosts[1])
        wrong, unfinished, took_s = 0, 0, max(NEVER_S, 10 * clean_s)
        try:
            took_s = job.seconds(took_s)
        except WrongResultError:
            wrong = 1
        except subprocess.TimeoutExpired:
            unfinished = 1
        dead = len(DECLARED_DEAD.findall(cluster.log("master"))) - before
        runs = cluster.runs("notes")
    yield Figure("jobs that did not end", unfinished, "", 0)
    yield Figure("wrong results", wrong, "", 0)
    yield Figure("workers declared dead", dead, "", 0)
    yield Figure("tasks lost", len(set(sums.names()) - runs.tasks), "", 0)
    yield Figure("time to undisturbed", took_s / clean_s, "x", digits=2)
    yield Figure("runs again", runs.again)
    yield Note("the workers cannot exchange objects from 30 % of the job on")


@row(
    "W12",
    "each of 20 tasks, whose output is random, ends on a host that is cut off, and then on another",
    "the first published result counts for every reader, and the other one is never read",
    "1 value for each task; a different second result is reported",
    limit_s=1800,
)
def _finished_twice(setting: Setting) -> Findings:
    rounds = setting.count(20, 2)
    twice = split = reported = 0
    with cluster_of_hosts(setting, 3, *SHORT_TIMEOUTS) as (cluster, hosts):
        for number in range(rounds):
            notes = f"twice{number}"
            first = 1 + number % 2
            same = finish_twice(cluster, hosts[first], notes)
            split += TASKS - same
            twice += len(notes_on(hosts, notes)) == TASKS + 1
            reported += differences_told(cluster) > reported
    yield Figure("tasks that ran twice", twice, "", rounds, at_most=False)
    yield Figure("tasks with two values", split, "", 0)
    yield Figure("different second results reported", reported, "", twice, at_most=False)


def finish_twice(cluster: Cluster, host: Host, notes: str) -> int:
    """Run a task on a host that is cut off, and on another; return how many tasks had one value."""
    told = differences_told(cluster)
    process = cluster.home.start(
        "python", "-m", "benchmarks.chaos.twice", ACCESS, notes, stdin=subprocess.PIPE
    )
    assert process.stdin is not None
    try:
        await_that(lambda: len(notes_on(cluster.homes, notes)) == TASKS, "the programs")
        host.set_link(up=False)
        require_line(process)
        host.set_link(up=True)
        with suppress(AssertionError):
            wait_for(lambda: differences_told(cluster) > told, "a report", REPORTED_WITHIN_S)
        process.stdin.write("\n")
        process.stdin.flush()
        return int(require_line(process))
    finally:
        process.kill()
        process.communicate()


def require_line(process: subprocess.Popen[str]) -> str:
    """Return the next line that a process prints; raises RuntimeError if it ends instead."""
    assert process.stdout is not None
    if not (line := process.stdout.readline()):
        raise RuntimeError(f"it ended: {process.communicate()[1][-500:]}")
    return line


def notes_on(homes: Sequence[Home], notes: str) -> list[str]:
    """Return the lines that programs on all hosts have written."""
    paths = [home.path / notes for home in homes]
    return [line for path in paths if path.exists() for line in path.read_text().splitlines()]


def differences_told(cluster: Cluster) -> int:
    """Return how often workers have reported that a second result differs."""
    return len(re.findall("not deterministic", "".join(map(cluster.log, cluster.daemons))))
