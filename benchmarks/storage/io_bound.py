"""Measures tasks that are bound by the I/O of one disk, beside tasks that compute (CIB-42).

A real cluster of one worker runs both, first without `io`, then with it. The tasks at the disk load
files from the model of `disk_jobs`, and are submitted first, so that without `io` they fill the
slots.

A second part compares two large disk jobs that run one after another with jobs that alternate in
chunks (section 5.3 of the dissertation). It needs no cluster: the loaders of `disk_jobs` start one
chunk each.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

from benchmarks.plots import table, write_down, write_figures
from benchmarks.storage.disk_jobs import Loaders, modelling_program
from ciel.client.client import Client
from ciel.client.jobs import Job
from ciel.core.tasks import WORK_DISK, Needs
from ciel.testing.homes import HandCluster, Home

SLOTS = 2
AT_DISK, COMPUTING = 8, 8
REQUESTS = 32  # of each load; 0.3 s of the modelled disk
LOOPS = 60_000  # of each task that computes: about 0.2 s
ROUNDS = 5
LARGE, CHUNKS = 64, (4, 16, 32)  # requests of a large job, and of a chunk

Times = dict[str, tuple[float, float, float]]


def total_s(job: Job, directory: str, io: str, number: int) -> float:
    """Return the time that all tasks take. `number`: the disk of this run."""
    started_s = time.monotonic()
    program = modelling_program()
    needs = Needs(io=io)
    loads = [
        job.run(
            ["sh", "-c", f"echo | {program} model {directory}/{number} {load} {REQUESTS} 1 0 0-0"],
            needs=needs,
        )
        for load in range(AT_DISK)
    ]
    loop = f"i=0; while [ $i -lt {LOOPS} ]; do i=$((i+1)); done; echo $i-$1-{number}"
    computing = [job.run(["sh", "-c", loop, "sh", str(each)]) for each in range(COMPUTING)]
    wanted = [*loads, *computing]
    job.want(wanted)
    for ref in wanted:
        job.read(ref)
    return time.monotonic() - started_s


def mixed() -> dict[str, float]:
    """Return the medians of the total time without `io` and with it, in seconds."""
    found: dict[str, list[float]] = {"": [], WORK_DISK: []}
    with (
        tempfile.TemporaryDirectory(prefix="ciel-io-bound-", dir="/var/tmp") as place,
        tempfile.TemporaryDirectory(prefix="modelled-disk-", dir="/dev/shm") as models,
    ):
        home = Home(Path(place))
        options = ("--slots", str(SLOTS), "--store", "disk", "--spool", f"{place}/spool")
        cluster = HandCluster.start(home, 1, *options, "--io", "1")
        try:
            with Client(access=str(cluster.access)) as client:
                for number in range(2 * ROUNDS):
                    io = (WORK_DISK, "")[number % 2]
                    with client.job("io_bound") as job:
                        found[io].append(total_s(job, models, io, number))
        finally:
            cluster.stop()
    return {io: statistics.median(times) for io, times in found.items()}


def alternating(chunk: int) -> tuple[float, float, float]:
    """Load two large files in chunks of some requests, alternately.

    Return the times at which the first and the second load end, and the longest time of a chunk, in
    seconds. A small load that arrives meanwhile waits for one chunk.
    """
    program = modelling_program()
    with tempfile.TemporaryDirectory(prefix="modelled-disk-", dir="/dev/shm") as directory:
        order = [file for _ in range(LARGE // chunk) for file in (1, 2)]
        commands = [
            [
                program,
                "model",
                f"{directory}/disk",
                str(file),
                str(chunk),
                "1",
                "0",
                "0-0",
            ]
            for file in order
        ]
        ends: dict[int, float] = {}
        longest_s = 0.0
        with Loaders(commands) as loaders:
            started_s = before_s = time.monotonic()
            loaders.start_load(0)
            for number in loaders.done():
                now_s = time.monotonic()
                longest_s, before_s = max(longest_s, now_s - before_s), now_s
                ends[order[number]] = now_s - started_s
                if number + 1 < len(order):
                    loaders.start_load(number + 1)
    first_s, second_s = sorted(ends.values())
    return first_s, second_s, longest_s


def measure() -> dict[str, float]:
    """Measure, write the page, and return the times and ratios."""
    times = mixed()
    rows = [["without `io`", f"{times['']:.2f}"], ["with `io`", f"{times[WORK_DISK]:.2f}"]]
    write_down("io-bound", "io-bound", table(["tasks", "total time in s"], rows), {})
    found = {chunk: alternating(chunk) for chunk in (LARGE, *CHUNKS)}
    lines = [
        ["whole jobs" if chunk == LARGE else f"{chunk} MiB", *(f"{value:.2f}" for value in values)]
        for chunk, values in found.items()
    ]
    head = ["chunk", "first job ends after s", "second job ends after s", "longest turn in s"]
    write_down("io-bound", "interleaving", table(head, lines), {})
    best = min(sum(found[chunk][:2]) for chunk in CHUNKS)
    result = {
        "plain_s": times[""],
        "with_io_s": times[WORK_DISK],
        "plain_to_io": times[""] / times[WORK_DISK],
        "alternating_to_whole": best / sum(found[LARGE][:2]),
    }
    shown = {name: f"{value:.2f}" for name, value in result.items()}
    write_figures("io-bound", shown)
    return result


if __name__ == "__main__":
    for name, value in measure().items():
        print(f"{name:22} {value:8.3f}")
