"""The job that most rows run, and the counts of how often each of its programs ran.

At full size it is called J5k: 5,000 leaves of 10 ms, 500 sums of ten leaves each, and one total.
Every second leaf has a result of 64 KiB, which is therefore in a store; it contains the name of the
file of notes. Each program notes its start and its end in that file; these notes, and not the
engine, say how often a task ran.

`python -m benchmarks.chaos.workload` runs the job on the host where it is started.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from ciel.client.client import Client
from ciel.client.jobs import Job
from ciel.core.refs import Future

LEAVES: Final = 5000
IN_A_SUM: Final = 10
LEAF_S: Final = 0.01
LARGE_BYTES: Final = 65536
JOB_MAX_S: Final = 600.0
PROGRAM: Final = """
import os
from time import monotonic_ns, sleep
from ciel.executors.sdk import ciel_task

def note(what, kwargs):
    line = b"%d %s %s\\n" % (monotonic_ns(), what, kwargs["is"].encode())
    notes = os.open(kwargs["notes"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(notes, line)
    os.close(notes)

def run(task):
    kwargs = task.kwargs
    note(b"starts", kwargs)
    if "leaf" in kwargs:
        sleep(kwargs["takes_s"])
        result = kwargs["leaf"] ** 2
    else:
        result = sum(int(task.read(ref).split()[0]) for ref in task.args)
    note(b"ends", kwargs)
    name = os.path.basename(kwargs["notes"]).encode()
    task.publish(0, b"%d\\n" % result + name.ljust(kwargs["padding"])[:kwargs["padding"]])

ciel_task.serve(run)
"""


class WrongResultError(Exception):
    """A job returned other bytes than it returns without failures."""

    def __init__(self, found: bytes, expected: bytes) -> None:
        super().__init__(f"the result is {found[:80]!r}, not {expected!r}")


class Runs(NamedTuple):
    """How often the programs of a job ran.

    `started`: all starts. `again`: starts beyond one for each task. `finished_again`: starts of a
    task after its program had ended once. `cut`: starts without an end.
    """

    started: int
    again: int
    finished_again: int
    cut: int
    tasks: frozenset[str]

    @classmethod
    def of(cls, texts: Iterable[str]) -> Runs:
        """Count the notes of one job, of which each host has written a part."""
        lines = [line.split() for text in texts for line in text.splitlines()]
        starts: Counter[str] = Counter()
        ended: set[str] = set()
        ends = finished_again = 0
        for _, what, task in sorted(lines, key=lambda line: int(line[0])):
            if what == "ends":
                ended.add(task)
                ends += 1
                continue
            starts[task] += 1
            finished_again += task in ended
        started = starts.total()
        return cls(
            started, started - len(starts), finished_again, started - ends, frozenset(starts)
        )


@dataclass(frozen=True)
class Sums:
    """The job, with a number of leaves."""

    leaves: int = LEAVES
    leaf_s: float = LEAF_S

    def names(self) -> list[str]:
        """Return the names of all tasks, as they stand in the notes."""
        sums = range(0, self.leaves, IN_A_SUM)
        return [*(f"leaf{n}" for n in range(self.leaves)), *(f"sum{n}" for n in sums), "total"]

    def expected(self) -> bytes:
        """Return the result without failures."""
        return b"%d\n" % sum(number**2 for number in range(self.leaves))

    def add(self, job: Job, notes: str) -> Future:
        """Add all tasks; return the total."""

        def one(name: str, *inputs: Future, padding: int = 0, **kwargs: float) -> Future:
            own = {"is": name, "notes": notes, "padding": padding, **kwargs}
            command = [sys.executable, "-c", PROGRAM]
            arguments = {"command": command, "proc_pargs": [*inputs], "proc_kwargs": own}
            return job.add("proc", arguments)[0]

        parts = [
            one(f"leaf{n}", leaf=n, takes_s=self.leaf_s, padding=LARGE_BYTES if n % 2 else 0)
            for n in range(self.leaves)
        ]
        sums = [one(f"sum{n}", *parts[n : n + IN_A_SUM]) for n in range(0, self.leaves, IN_A_SUM)]
        return one("total", *sums)

    def run(self, client: Client, notes: str) -> float:
        """Run the job; return its duration in seconds. Raises WrongResultError."""
        started_s = time.perf_counter()
        with client.job("J5k") as job:
            found = job.read(self.add(job, notes), timeout_s=JOB_MAX_S)
        if found != self.expected():
            raise WrongResultError(found, self.expected())
        return time.perf_counter() - started_s


def main(access: str, leaves: str, notes: str) -> None:
    """Run the job with the cluster of an access file; print its duration."""
    with Client(access=access) as client:
        print(json.dumps(Sums(int(leaves)).run(client, str(Path(notes).resolve()))))


if __name__ == "__main__":
    main(*sys.argv[1:])
