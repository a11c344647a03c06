"""Measures how long other clients wait while the master processes bulk operations.

The master cancels and removes a job of a million tasks, and 300,000 tasks fail together because
their common input failed.

One process repeatedly sends requests to the master. Its longest wait, minus its longest wait on an
idle master, is the delay that an operation causes to other clients.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.engine.looking import QUIET_S, probe
from benchmarks.engine.programs import scene
from ciel.client.client import Client
from ciel.core.refs import Reference
from ciel.core.tasks import Mentions

TASKS = 1_000_000
FAILING = 300_000
TIMEOUT_S = 600.0


def waiting_job(client: Client, count: int, gate_file: Path) -> str:
    """Start a job of tasks that wait for one program, which fails once a file exists."""
    job = client.job("bulk", detached=True)
    gate = job.run(["sh", "-c", f"while [ ! -e '{gate_file}' ]; do sleep 0.1; done; exit 1"])
    waits: dict[str, Any] = {"args": {"inputs": [gate]}}
    refs: list[Reference] = [gate]
    for _ in range(count - 1):
        refs += job.add("sync", waits, mentions=Mentions.INPUTS)
    job.want(refs)
    job.close()
    client.ask("workers")  # the master has received all tasks
    return job.id


def longest_wait_s(client: Client, do: Callable[[], object]) -> tuple[float, float]:
    """Return the longest wait of other clients, and the duration of the operation."""
    with ThreadPoolExecutor(1) as pool:
        begun_s = time.monotonic()
        doing = pool.submit(do)
        asked = probe(client.location, doing.done)
        doing.result()
        return max(end - begin for begin, end in asked), time.monotonic() - begun_s


def measure(tasks: int = TASKS, failing: int = FAILING) -> dict[str, float]:
    """Measure each operation on one cluster."""
    found: dict[str, float] = {}
    with scene() as made, Client(access=str(made.access_file), environ=made.environ) as client:
        gate_file = made.directory / "gate"

        def note(name: str, do: Callable[[], object]) -> None:
            found[f"{name}_wait_s"], found[f"{name}_s"] = longest_wait_s(client, do)

        def cancel(job_id: str) -> None:
            client.cancel_job(job_id)
            client.wait_for_job(job_id, TIMEOUT_S)

        def fail(job_id: str) -> None:
            gate_file.touch()
            client.wait_for_job(job_id, TIMEOUT_S)

        large = waiting_job(client, tasks, gate_file)
        note("idle", lambda: threading.Event().wait(5 * QUIET_S))
        note("cancel", lambda: cancel(large))
        note("remove", lambda: client.remove_job(large))
        some = waiting_job(client, failing, gate_file)
        note("fail", lambda: fail(some))
        made.down()
    for name in ("cancel", "remove", "fail"):
        found[f"own_{name}_wait_s"] = max(0.0, found[f"{name}_wait_s"] - found["idle_wait_s"])
    return found


if __name__ == "__main__":
    for key, value in measure(*map(int, sys.argv[1:])).items():
        print(f"{key:18} {value:10.4f}")
