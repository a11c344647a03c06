"""Measures interactive programs: no-op tasks in warm processes, chains, and streams.

The figure of a stream is the time until its reader has the first byte.
The program is the Python SDK's `serve` with one `publish`. Expected cost of a task in addition to
the 70 us of the control plane: 15 us in the program, and in the worker 10 to read its arguments, 15
for two calls of the program, 10 for two frames to it, and 15 for the states of an attempt.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.engine.control import cpu_s, daemons_of
from ciel.client.client import Client
from ciel.client.cluster import LocalCluster
from ciel.client.jobs import Job

TASKS = 10_000
HOPS = 1000
ROUNDS = 3
STREAM_S = 2.0
PROGRAM = """
import select, time
from ciel.executors.sdk import ciel_task

def run(task):
    if task.kwargs.get("stream"):
        with task.open_output(0, may_stream=True) as output:
            for _ in range(20):
                output.write(b"x" * 65536)
                output.flush()
                select.select([], [], [], task.kwargs["stream"] / 20)
    elif task.kwargs.get("follow"):
        begun_s = time.monotonic()
        with task.open_stream(task.args[0]) as text:
            text.read(1)
            first_s = time.monotonic() - begun_s
            while text.read1(65536):
                pass
        task.publish(0, b"%f %f" % (first_s, time.monotonic() - begun_s))
    else:
        task.publish(0, b"x")

ciel_task.serve(run)
"""


@contextmanager
def program() -> Iterator[list[str]]:
    """Write the program; yield its command."""
    with tempfile.TemporaryDirectory(prefix="ciel-bench-") as directory:
        path = Path(directory) / "talker.py"
        path.write_text(PROGRAM)
        yield [sys.executable, str(path)]


def add(job: Job, command: list[str], *args: Any, **kwargs: Any) -> Any:
    """Add one task of the program."""
    arguments = {"command": command, "proc_pargs": list(args), "proc_kwargs": kwargs}
    return job.add("proc", arguments)[0]


def no_ops(client: Client, command: list[str], count: int) -> float:
    """Run independent tasks; return the total time."""
    with client.job("no-ops") as job:
        started_s = time.monotonic()
        refs = []
        for number in range(count):
            refs.append(add(job, command, number))
            if len(refs) % 500 == 0:
                job.want(refs[-500:])
        job.want(refs)
        job.close()
        job.wait(120)
        return time.monotonic() - started_s


def chain(client: Client, command: list[str], hops: int) -> float:
    """Run tasks that each need the previous one; return the time per hop."""
    with client.job("chain") as job:
        ref = add(job, command)
        for _ in range(hops - 1):
            ref = add(job, command, ref)
        started_s = time.monotonic()
        job.result(ref, 120)
        return (time.monotonic() - started_s) / hops


def first_byte(client: Client, command: list[str]) -> float:
    """Return the time until a reader has the first byte of a stream, relative to its duration."""
    with client.job("stream") as job:
        stream = add(job, command, stream=STREAM_S)
        first_s, last_s = map(float, job.read(add(job, command, stream, follow=True)).split())
        return first_s / last_s


def program_pids(command: list[str]) -> list[int]:
    """Find the processes of the program."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and command[1].encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def measure(count: int = TASKS) -> dict[str, float]:
    """Measure everything."""
    results: dict[str, float] = {}
    with program() as command:
        with LocalCluster(workers=1, slots=2) as cluster, Client(cluster) as client:
            no_ops(client, command, 1000)
            pids = daemons_of(os.getpid()) | {"programs": program_pids(command)}
            before = {kind: sum(map(cpu_s, found)) for kind, found in pids.items()}
            own_s = time.process_time()
            elapsed_s = no_ops(client, command, count)
            own_s = time.process_time() - own_s
            for kind, found in pids.items():
                used_s = sum(map(cpu_s, found)) - before[kind]
                results[f"cpu_us_{kind}"] = used_s / count * 1e6
            results["cpu_us_client"] = own_s / count * 1e6
            results["cpu_us_total"] = sum(results.values())
            results["tasks_per_s"] = count / elapsed_s
            chain(client, command, 100)
            hops_s = [chain(client, command, HOPS) for _ in range(ROUNDS)]
            results["hop_us_on"] = statistics.median(hops_s) * 1e6
            results["first_byte"] = first_byte(client, command)
        with (
            LocalCluster(workers=1, slots=2, delegates=False) as cluster,
            Client(cluster) as client,
        ):
            chain(client, command, 100)
            hops_s = [chain(client, command, HOPS) for _ in range(ROUNDS)]
            results["hop_us_off"] = statistics.median(hops_s) * 1e6
    return results


if __name__ == "__main__":
    for name, value in measure().items():
        print(f"{name:20} {value:12.3f}")
