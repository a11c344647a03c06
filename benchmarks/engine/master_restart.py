"""Measures how long a client waits for an answer after the master of its cluster was killed."""

from __future__ import annotations

import os
import signal
import statistics
import tempfile
import time

from ciel.client import Client, LocalCluster
from ciel.client.cluster.supervisor import MASTER_RESTARTS_MAX


def measure() -> dict[str, float]:
    """Return the median and the extremes of several kills, in seconds."""
    times = []
    with tempfile.TemporaryDirectory() as state:
        environ = {"HOME": state, "XDG_STATE_HOME": state}
        with LocalCluster(workers=2, environ=environ) as cluster, Client(cluster) as client:
            for _ in range(MASTER_RESTARTS_MAX):
                started_s = time.perf_counter()
                os.kill(cluster.master.pid, signal.SIGKILL)
                client.ask("status")
                times.append(time.perf_counter() - started_s)
    return {"median_s": statistics.median(times), "min_s": min(times), "max_s": max(times)}


if __name__ == "__main__":
    for name, value in measure().items():
        print(f"{name:10} {value:6.2f}")
