"""Runs the same job on dask and ray, where they are installed, while their processes are killed.

Each gets its best setting: dask up to 50 deaths of a worker for a task, and both only the final
future in the client's hands. Their workers are restarted by dask's nannies, and by us for ray.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from benchmarks.chaos.faults import pause
from benchmarks.chaos.rows import Note
from benchmarks.chaos.workload import IN_A_SUM, Sums
from ciel.testing.homes import fields_of

LIMIT_S: Final = 180.0
"""A run that takes longer than this counts as unfinished."""
FAILURES: Final = 50

DASK: Final = """
import sys, time, dask
from time import sleep
from distributed import Client, LocalCluster

def leaf(number, takes_s):
    sleep(takes_s)
    return number ** 2

def total(*parts):
    return sum(parts)

if __name__ == "__main__":
    leaves, takes_s, in_a_sum = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
    dask.config.set({"distributed.scheduler.allowed-failures": int(sys.argv[4])})
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        with Client(cluster) as client:
            client.wait_for_workers(2)
            print("ready", *[nanny.pid for nanny in cluster.workers.values()], flush=True)
            started_s = time.perf_counter()
            parts = [dask.delayed(leaf)(n, takes_s) for n in range(leaves)]
            sums = [
                dask.delayed(total)(*parts[n : n + in_a_sum]) for n in range(0, leaves, in_a_sum)
            ]
            future = client.compute(dask.delayed(total)(*sums))
            del parts, sums
            print("result", future.result(), time.perf_counter() - started_s, flush=True)
"""
RAY: Final = """
import sys, time, ray
from time import sleep

@ray.remote(max_retries=-1)
def leaf(number, takes_s):
    sleep(takes_s)
    return number ** 2

@ray.remote(max_retries=-1)
def total(*parts):
    return sum(parts)

if __name__ == "__main__":
    leaves, takes_s, in_a_sum = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    print("ready", flush=True)
    started_s = time.perf_counter()
    parts = [leaf.remote(n, takes_s) for n in range(leaves)]
    sums = [total.remote(*parts[n : n + in_a_sum]) for n in range(0, leaves, in_a_sum)]
    future = total.remote(*sums)
    del parts, sums
    print("result", ray.get(future), time.perf_counter() - started_s, flush=True)
"""


def killed_workers(sums: Sums, every_s: float) -> Iterator[Note]:
    """Run the job on each peer, undisturbed and with a worker killed periodically."""
    for name, module, script in (("dask", "distributed", DASK), ("ray", "ray", RAY)):
        if importlib.util.find_spec(module) is None:
            yield Note(f"{name} is not installed here")
            continue
        clean = _run(script, sums, every_s=None)
        killed = _run(script, sums, every_s=every_s)
        yield Note(f"{name}: undisturbed {clean}; a worker killed every {every_s:g} s: {killed}")


def killed_master() -> Iterator[Note]:
    """Say what the peers do when their scheduler dies: neither can be measured."""
    yield Note(
        "dask and ray keep a job only in the memory of its scheduler: its death ends the job"
    )


def _run(script: str, sums: Sums, every_s: float | None) -> str:
    """Run a script of a peer; describe its result."""
    words = [sys.executable, "-c", script, str(sums.leaves), str(sums.leaf_s), str(IN_A_SUM)]
    process = subprocess.Popen(
        [*words, str(FAILURES)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    kills = 0
    try:
        process.stdout.readline()
        started_s = time.monotonic()
        due_s = started_s
        while process.poll() is None and time.monotonic() - started_s < LIMIT_S:
            pause(0.02)
            if every_s is not None and time.monotonic() >= due_s + every_s:
                due_s += every_s
                kills += _kill_a_worker(process.pid, kills)
        if process.poll() is None:
            return f"unfinished after {LIMIT_S:.0f} s and {kills} kills"
        words = process.stdout.read().split()
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
    if words[:1] != ["result"]:
        return f"failed after {kills} kills"
    right = words[1] == sums.expected().decode().strip()
    return f"{float(words[2]):.1f} s, {kills} kills, {'right' if right else 'wrong'} result"


def _kill_a_worker(session: int, number: int) -> bool:
    """Kill one of the peer's worker processes, in turn."""
    workers = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ")
            in_session = fields_of(entry)[3] == str(session)
            if in_session and (b"ray::" in command or b"spawn_main" in command):
                workers.append(int(entry.name))
    if not workers:
        return False
    with suppress(ProcessLookupError):
        os.kill(sorted(workers)[number % len(workers)], signal.SIGKILL)
    return True
