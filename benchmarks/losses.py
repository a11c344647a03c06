"""Measures a job whose workers or whose master are killed, or stopped for a while.

The job has 5,000 leaves of 10 ms, 500 sums of ten leaves each, and one total. Two workers have a
slot each. In the first run, one of them is killed every 8 s, and restarted at once with the same
work directory; in the second run, with an empty work directory. In the third run, a worker is
stopped for 6 s every 15 s. At best, that run takes 1.25 times as long, since a fifth of the slots
is missing. In the last run, the master is killed every 5 s, and restarted at once from its journal;
each leaf notes that it has run, so leaves that ran again can be counted. Each run is compared with
the undisturbed runs before and after it. Every second leaf has a result of 64 KiB, which is
therefore in a store. Dask 2026.8.0 took 2.9 times as long on such a machine.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from ciel.client.client import Client
from ciel.client.jobs import Job
from ciel.core.refs import Future
from ciel.testing.homes import wait_for

LEAVES = 5000
IN_A_SUM = 10
LEAF_S = 0.01
KILL_EVERY_S = 8.0
KILL_MASTER_EVERY_S = 5.0
STOP_EVERY_S = 15.0
STOPPED_S = 6.0
BIN = Path(sys.executable).parent
PROGRAM = """
from time import sleep
from ciel.executors.sdk import ciel_task

def run(task):
    number = task.kwargs.get("leaf")
    if number is None:
        result = sum(int(task.read(ref).split()[0]) for ref in task.args)
        task.publish(0, b"%d\\n" % result)
        return
    sleep(task.kwargs["takes_s"])
    with open(task.kwargs["notes"], "a") as notes:
        notes.write("%d\\n" % number)
    task.publish(0, b"%d\\n" % number**2 + b" " * (65536 if number % 2 else 0))

ciel_task.serve(run)
"""


class Scene:
    """A master, two workers and the program, in a directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.access = directory / "access.json"
        program = directory / "sums.py"
        program.write_text(PROGRAM)
        self.command = [sys.executable, str(program)]
        self._environ = os.environ | {"XDG_STATE_HOME": str(directory / "state")}
        self._address = "127.0.0.1:0"
        self._master = self._start_master()
        wait_for(self.access.exists, "the master")
        self._address = json.loads(self.access.read_text())["url"].removeprefix("http://")
        self._workers = [self._start_worker(number) for number in range(2)]
        self.kills = 0
        self.runs = 0

    def _start(self, program: str, name: str, *options: str) -> subprocess.Popen[bytes]:
        log = str(self.directory / f"{name}.log")
        command = [str(BIN / program), "--access", str(self.access), "--log", log, *options]
        return subprocess.Popen(command, env=self._environ, stderr=subprocess.DEVNULL)

    def _start_master(self) -> subprocess.Popen[bytes]:
        journal = str(self.directory / "journal")
        options = ("--listen", self._address, "--journal", journal)
        return self._start("ciel-master", "master", *options)

    def _start_worker(self, number: int) -> subprocess.Popen[bytes]:
        spool = str(self.directory / f"spool{number}")
        return self._start("ciel-worker", f"worker{number}", "--slots", "1", "--spool", spool)

    def kill(self, *, wiped: bool) -> None:
        """Kill the workers alternately, and restart each at once."""
        number = self.kills % 2
        self.kills += 1
        self._workers[number].kill()
        self._workers[number].wait()
        if wiped:
            spool = self.directory / f"spool{number}"
            shutil.rmtree(spool.rename(self.directory / f"wiped{self.kills}"))
        self._workers[number] = self._start_worker(number)

    def kill_master(self) -> None:
        """Kill the master, and restart it at once."""
        self.kills += 1
        self._master.kill()
        self._master.wait()
        self._master = self._start_master()

    def pause(self) -> None:
        """Stop the workers alternately, each for a while."""
        worker = self._workers[self.kills % 2]
        self.kills += 1
        worker.send_signal(signal.SIGSTOP)
        threading.Event().wait(STOPPED_S)
        worker.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        for daemon in [*self._workers, self._master]:
            daemon.terminate()
        for daemon in [*self._workers, self._master]:
            daemon.wait()


@contextmanager
def scene() -> Iterator[tuple[Scene, Client]]:
    """Start a cluster, and connect to it once both workers have joined."""
    with tempfile.TemporaryDirectory(prefix="ciel-bench-") as directory:
        made = Scene(Path(directory))
        try:
            with Client(access=str(made.access)) as client:
                wait_for(lambda: len(client.ask("workers")) == 2, "the workers")
                yield made, client
        finally:
            made.stop()


def add(made: Scene, job: Job, *inputs: Future, **kwargs: float | str) -> Future:
    """Add one task of the program."""
    arguments = {"command": made.command, "proc_pargs": [*inputs], "proc_kwargs": kwargs}
    return job.add("proc", arguments)[0]


def run(made: Scene, client: Client, leaves: int) -> float:
    """Run the job; return its duration. Raises RuntimeError if its result is wrong."""
    expected = sum(number**2 for number in range(leaves))
    begun_s = time.perf_counter()
    made.runs += 1
    with client.job("losses") as job:
        notes = str(made.directory / f"notes{made.runs}")
        parts = [
            add(made, job, leaf=number, takes_s=LEAF_S, notes=notes) for number in range(leaves)
        ]
        sums = [
            add(made, job, *parts[first : first + IN_A_SUM]) for first in range(0, leaves, IN_A_SUM)
        ]
        found = int(job.read(add(made, job, *sums), timeout_s=600))
    if found != expected:
        raise RuntimeError(f"the result is {found}, not {expected}")
    return time.perf_counter() - begun_s


def run_disturbed(
    made: Scene, client: Client, leaves: int, every_s: float, disturb: Callable[[], None]
) -> float:
    """Run the job while workers are disturbed periodically; return its duration."""
    over = threading.Event()

    def act() -> None:
        while not over.wait(every_s):
            disturb()

    culprit = threading.Thread(target=act)
    culprit.start()
    try:
        return run(made, client, leaves)
    finally:
        over.set()
        culprit.join()


def attempts(client: Client, first: int | None) -> Counter[str]:
    """Count the attempts of each task that ended since a position in the master's timeline."""
    counts: Counter[str] = Counter()
    while first is not None:
        page = client.ask("trace", {"jobs": client.job_ids, "first": first})
        task = page["fields"].index("task")
        counts.update(span[task] for span in page["spans"])
        first = page["next"]
    return counts


def measure(leaves: int = LEAVES) -> dict[str, float]:
    """Measure each of the four, with undisturbed runs before, between and after."""
    results = {}
    clean_s = []
    with scene() as (made, client):
        run(made, client, leaves // 20)
        clean_s.append(run(made, client, leaves))
        for name, wiped in (("killed", False), ("wiped", True)):
            kills = made.kills
            kill = partial(made.kill, wiped=wiped)
            results[f"{name}_s"] = run_disturbed(made, client, leaves, KILL_EVERY_S, kill)
            results[f"{name}_kills"] = made.kills - kills
            clean_s.append(run(made, client, leaves))
        first = client.ask("trace", {"first": None})["next"]
        results["stopped_s"] = run_disturbed(made, client, leaves, STOP_EVERY_S, made.pause)
        results["stopped_ran_twice"] = sum(n > 1 for n in attempts(client, first).values())
        clean_s.append(run(made, client, leaves))
        kills = made.kills
        results["master_s"] = run_disturbed(
            made, client, leaves, KILL_MASTER_EVERY_S, made.kill_master
        )
        results["master_kills"] = made.kills - kills
        noted = (made.directory / f"notes{made.runs}").read_text().split()
        results["master_ran_twice"] = len(noted) - len(set(noted))
        clean_s.append(run(made, client, leaves))
    results["clean_s"] = statistics.median(clean_s)
    for name in ("killed", "wiped", "stopped", "master"):
        results[f"{name}_to_clean"] = results[f"{name}_s"] / results["clean_s"]
    return results


if __name__ == "__main__":
    print(json.dumps(measure(int(sys.argv[1]) if len(sys.argv) > 1 else LEAVES), indent=1))
