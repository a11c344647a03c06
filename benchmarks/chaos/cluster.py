"""Runs a cluster of real daemons, each of which can be killed, stopped and started again."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

from benchmarks.chaos.faults import Every
from benchmarks.chaos.rows import Figure, Setting
from benchmarks.chaos.workload import Runs, Sums, WrongResultError
from ciel.client.client import Client
from ciel.client.jobs import Job
from ciel.core.refs import Reference
from ciel.testing.homes import Home, wait_for

ACCESS: Final = "access.json"
JOINED: Final = "joined the master"
SHORT_TIMEOUTS: Final = ("--suspect-after", "3s", "--worker-timeout", "6s")
"""Options of a master that soon declares a silent worker dead."""
PATIENCE_S: Final = 300.0
"""How long a row waits for an event that has no target, on a slow machine."""
SETTLED_WITHIN_S: Final = 1200.0


def await_that(condition: Callable[[], object], what: str) -> float:
    """Wait until a condition holds; return the time. Raises AssertionError with `what`."""
    started_s = time.monotonic()
    wait_for(condition, what, PATIENCE_S)
    return time.monotonic() - started_s


def settled(job: Job, refs: Sequence[Reference]) -> list[Reference]:
    """Return the results or failures of tasks, once all are there."""
    return [*job.results(refs, timeout_s=SETTLED_WITHIN_S)]


@dataclass
class Cluster:
    """A master in the first home, and workers in the homes in turn, each with a slot.

    Homes are directories of this host, or hosts of namespaces. The daemons keep their address,
    journal and work directories when they are started again. `wraps`: for a daemon's name, the
    start of its command line.
    """

    homes: Sequence[Home]
    of_master: Sequence[str] = ()
    of_workers: Sequence[str] = ()
    wraps: dict[str, list[str]] = field(default_factory=dict)
    daemons: dict[str, subprocess.Popen[str]] = field(default_factory=dict)
    joined: dict[str, int] = field(default_factory=dict)
    """How often a worker had joined when it was last started."""
    _listen: str = ""

    @classmethod
    @contextmanager
    def running(
        cls,
        setting: Setting,
        workers: int = 2,
        *,
        of_master: Sequence[str] = (),
        of_workers: Sequence[str] = (),
        wraps: dict[str, list[str]] | None = None,
    ) -> Iterator[Self]:
        """Run a cluster on this host for a block."""
        count = len([*setting.directory.glob("cluster*")])
        place = setting.directory / f"cluster{count}"
        place.mkdir()
        cluster = cls([Home(place)], of_master, of_workers, wraps or {})
        try:
            cluster.start(workers)
            yield cluster
        finally:
            cluster.stop()

    # --- daemons ----------------------------------------------------------------------------------

    @property
    def home(self) -> Home:
        return self.homes[0]

    def home_of(self, name: str) -> Home:
        number = int(name.removeprefix("worker")) if name.startswith("worker") else 0
        return self.homes[number % len(self.homes)]

    def start(self, workers: int) -> None:
        """Start the master, and then the workers, which have joined when this returns."""
        self.start_master()
        for number in range(workers):
            self.start_worker(f"worker{number}", waits=False)
        for number in range(workers):
            self.await_joined(f"worker{number}")

    def start_master(self) -> None:
        """Start the master; return when it listens."""
        ready = self.log("master").count("access file:")
        address = getattr(self.home, "address", "127.0.0.1")
        first = () if self._listen else ("--new-key",)
        self._start(
            "master", "ciel-master", "--listen", self._listen or f"{address}:0",
            "--access", ACCESS, "--journal", "journal", *first, *self.of_master,
        )  # fmt: skip
        self.await_in_log("master", "access file:", ready + 1)
        self._listen = self.access()["url"].removeprefix("http://")

    def start_standby(self, name: str) -> None:
        """Start a standby of the master that the access file names; return when it may take over.

        Its address and its journal are those that the name had before.
        """
        ready = self.log(name).count("the copy is complete")
        own = re.findall(r"standby at http://(\S+)", self.log(name))
        if name == "master":
            own = [self._listen]
        self._start(
            name, "ciel-master", "--listen", own[-1] if own else "127.0.0.1:0", "--standby",
            self.access()["url"], "--access", ACCESS, "--journal",
            "journal" if name == "master" else f"journal-{name}", *self.of_master,
        )  # fmt: skip
        self.await_in_log(name, "the copy is complete", ready + 1)
        await_that(lambda: self.access().get("standbys"), "a succession with the standby")

    def start_worker(self, name: str, *, waits: bool = True) -> None:
        """Start a worker; wait until it has joined."""
        self.joined[name] = self.log(name).count(JOINED)
        home = self.home_of(name)
        if home is not self.home:
            shutil.copy2(self.home.path / ACCESS, home.path / ACCESS)
        address = getattr(home, "address", "127.0.0.1")
        self._start(
            name, "ciel-worker", "--listen", f"{address}:0", "--access", ACCESS, "--slots", "1",
            "--spool", f"{name}-spool", "--store", "disk", *self.of_workers,
        )  # fmt: skip
        if waits:
            self.await_joined(name)

    def _start(self, name: str, *argv: str) -> None:
        home = self.home_of(name)
        wrap = self.wraps.get(name, [])
        with open(home.path / f"{name}.err", "a") as errors:
            self.daemons[name] = home.start(*wrap, *argv, "--log", f"{name}.log", stderr=errors)

    def log(self, name: str) -> str:
        path = self.home_of(name).path / f"{name}.log"
        return path.read_text() if path.exists() else ""

    def await_in_log(self, name: str, text: str, count: int = 1) -> None:
        """Wait until a daemon has logged a text so many times; it must not end meanwhile."""

        def is_there() -> bool:
            status = self.daemons[name].poll()
            if status is not None and self.log(name).count(text) < count:
                errors = (self.home_of(name).path / f"{name}.err").read_text()
                raise RuntimeError(f"{name} ended with {status}: {errors[-500:]}")
            return self.log(name).count(text) >= count

        await_that(is_there, f"{text!r} in the log of {name}")

    def access(self) -> dict[str, str]:
        """Return the content of the access file."""
        found: dict[str, str] = json.loads((self.home.path / ACCESS).read_text())
        return found

    def kill(self, name: str) -> None:
        """Kill a daemon, if it is not dead, and wait until it is."""
        if self.daemons[name].returncode is None:
            self.daemons[name].kill()
            self.daemons[name].communicate()

    def signal(self, name: str, number: signal.Signals) -> None:
        self.daemons[name].send_signal(number)

    def restart(self, name: str, *, wiped: bool = False, waits: bool = True) -> None:
        """Kill a daemon, and start it again at once. `wiped`: with an empty work directory."""
        self.kill(name)
        if wiped:
            shutil.rmtree(self.home_of(name).path / f"{name}-spool")
        if name == "master":
            self.start_master()
        else:
            self.start_worker(name, waits=waits)

    def await_joined(self, name: str) -> None:
        """Wait until a worker has joined since it was last started."""
        self.await_in_log(name, JOINED, self.joined[name] + 1)

    def stop(self) -> None:
        """End all daemons."""
        for daemon in self.daemons.values():
            with suppress(ProcessLookupError):
                os.kill(daemon.pid, signal.SIGCONT)
                daemon.terminate()
        for daemon in self.daemons.values():
            try:
                daemon.communicate(timeout=60)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.communicate()

    # --- jobs -------------------------------------------------------------------------------------

    def client(self) -> Client:
        """Return a client in this process, for clusters on this host."""
        return Client(access=str(self.home.path / ACCESS))

    def stored(self, name: str) -> list[Path]:
        """Return the files of the objects that a worker stores on disk."""
        return [*self.home_of(name).path.glob(f"{name}-spool/store/objects/*")]

    def runs(self, notes: str) -> Runs:
        """Count the runs of a job by its notes on all hosts."""
        paths = [home.path / notes for home in self.homes]
        return Runs.of(path.read_text() for path in paths if path.exists())

    def inside(self, name: str) -> str:
        """Return the path of a file in the homes, as their processes know it."""
        return str(getattr(self.home, "inside", self.home.path) / name)

    def scratch(self) -> list[Path]:
        """Return the private files of programs that the workers have not removed."""
        found = []
        for pattern in ("worker*-spool/scratch/*", "worker*-spool/*/incoming/*"):
            found += [path for home in self.homes for path in home.path.glob(pattern)]
        return [path for path in found if not path.name.startswith(".")]

    def redialled(self, name: str) -> int:
        """Return how often a worker has joined the master."""
        return len(re.findall(JOINED, self.log(name)))


@dataclass
class Trial:
    """A job that ran while something failed, and undisturbed before and after."""

    clean_s: float
    took_s: float
    failures: int
    runs: Runs
    never_ran: int
    wrong: int

    @property
    def ratio(self) -> float:
        return self.took_s / self.clean_s

    def figures(self, ratio: float | None) -> list[Figure]:
        """Return the figures that all such rows have; `ratio`: the target of the time, if any."""
        return [
            Figure("time to undisturbed", self.ratio, "x", ratio, digits=2),
            Figure("wrong results", self.wrong, "", 0),
            Figure("tasks lost", self.never_ran, "", 0),
            Figure("failures caused", self.failures),
            Figure("undisturbed time", self.clean_s, "s", digits=1),
        ]


def disturb(
    cluster: Cluster, client: Client, sums: Sums, every_s: float, act: Callable[[], object]
) -> Trial:
    """Run the job while `act` is called periodically, and undisturbed before and after."""
    Sums(max(10, sums.leaves // 20)).run(client, cluster.inside("warm-up"))
    first_s = sums.run(client, cluster.inside("before"))
    wrong = 0
    started_s = time.perf_counter()
    with Every(every_s, act) as every:
        try:
            sums.run(client, cluster.inside("disturbed"))
        except WrongResultError:
            wrong = 1
        took_s = time.perf_counter() - started_s
    last_s = sums.run(client, cluster.inside("after"))
    runs = cluster.runs("disturbed")
    missing = len(set(sums.names()) - runs.tasks)
    return Trial((first_s + last_s) / 2, took_s, every.count, runs, missing, wrong)
