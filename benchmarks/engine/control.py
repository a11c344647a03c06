"""Measures the control plane alone: no-op tasks from a client through master and workers and back.

Real processes communicate over real sockets. A no-op is a `sync` without inputs: the worker runs it
in its own process, and its result is two bytes within a reference. So the benchmark measures
encoding, frames, ids, graph, placement, credit and reports. Expected CPU time of a task: about
20 us to send its frames through processes that do nothing else, 10 us for the graph, and 10 us for
ids, checks and the states of client, master and worker.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from ciel.client.client import Client
from ciel.client.cluster import LocalCluster
from ciel.core.tasks import Mentions
from ciel.testing.homes import fields_of

TASKS = 60_000
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def cpu_s(pid: int) -> float:
    """Return the CPU time that a process has used, in seconds."""
    fields = fields_of(Path(f"/proc/{pid}"))
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def daemons_of(owner_pid: int) -> dict[str, list[int]]:
    """Find the daemons that the launcher of this process started, by kind."""
    found: dict[str, list[int]] = {"master": [], "worker": []}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            command = (entry / "cmdline").read_bytes().split(b"\0")
            tree = fields_of(entry)
        except OSError:
            continue
        grandparent = _parent(int(tree[1]))
        for kind, pids in found.items():
            if f"ciel.cli.daemons.{kind}".encode() in command and grandparent == owner_pid:
                pids.append(int(entry.name))
    return found


def _parent(pid: int) -> int:
    try:
        return int(fields_of(Path(f"/proc/{pid}"))[1])
    except OSError:
        return 0


def measure(count: int = TASKS) -> dict[str, float]:
    """Run `count` no-ops on two workers; return rates and CPU times."""
    with LocalCluster(workers=2, slots=1) as cluster, Client(cluster) as client:
        pids = daemons_of(os.getpid())
        no_ops(client, 5_000)  # warm-up: prefetch adapts, buffers grow
        before = {kind: sum(cpu_s(pid) for pid in pids[kind]) for kind in pids}
        own = time.process_time()
        started = time.monotonic()
        no_ops(client, count)
        elapsed = time.monotonic() - started
        own = time.process_time() - own
        after = {kind: sum(cpu_s(pid) for pid in pids[kind]) for kind in pids}
    micros = {kind: (after[kind] - before[kind]) / count * 1e6 for kind in pids}
    micros["client"] = own / count * 1e6
    return {
        "tasks_per_s": count / elapsed,
        "cpu_us_client": micros["client"],
        "cpu_us_master": micros["master"],
        "cpu_us_workers": micros["worker"],
        "cpu_us_total": sum(micros.values()),
    }


def no_ops(client: Client, count: int) -> None:
    """Run this many no-ops in one job."""
    with client.job("no-ops") as job:
        arguments: dict[str, Any] = {"args": {"inputs": []}}
        refs = []
        for _ in range(count):
            refs += job.add("sync", arguments, mentions=Mentions.INPUTS)
            if len(refs) % 1000 == 0:
                job.want(refs[-1000:])
        job.want(refs)
        job.close()
        job.wait(120)


if __name__ == "__main__":
    for name, value in measure().items():
        print(f"{name:20} {value:12.1f}")
