"""Measures the cost of a single-threaded master, and the gain of finer structures (CIB-55).

The figures are the master's CPU time per task by kind of event (`finer.py`), the fraction of a
slot's time that tasks get in a real cluster, the load of the master in that cluster, and the gain
of a second process or of finer locks. The benchmark rewrites the plot and the tables of
docs/measured/master.md.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import threading
import time
from pathlib import Path

from benchmarks.engine import finer
from benchmarks.engine.control import cpu_s, daemons_of, no_ops
from benchmarks.engine.talkers import add
from benchmarks.plots import line_chart, table, write_down, write_figures
from ciel.client.client import Client
from ciel.client.cluster import LocalCluster

BATCHES = (1, 10, 100)  # tasks per tick
TASK_MS = (1, 10, 100)
SLOTS = (2, 4, 8)  # of a real cluster; programs that sleep need no core each
MORE_SLOTS = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
NO_OPS = 15_000
RUN_S = 1.5  # for each length, at best
TASKS_MAX = 2_000
WAYS = {
    "two": "two processes, half of the jobs each",
    "one_with_locks": "one thread, a lock for every task",
    "two_without_locks": "two threads, half of the jobs each, no locks",
    "two_with_locks": "two threads, half of the jobs each, a lock for every task",
}
PROGRAM = """
import select
from ciel.executors.sdk import ciel_task

def run(task):
    select.select([], [], [], task.kwargs["seconds"])
    task.publish(0, b"x")

ciel_task.serve(run)
"""


def idle_busy(seconds: float = 3.0) -> float:
    """Return the load of a master whose only worker is idle."""
    with LocalCluster(workers=1, slots=1):
        (master,) = daemons_of(os.getpid())["master"]
        nothing = threading.Event()
        nothing.wait(0.5)  # until it has started
        had_s = cpu_s(master)
        nothing.wait(seconds)
        return (cpu_s(master) - had_s) / seconds


class Cell:
    """Tasks of one duration on this many slots of a real cluster."""

    def __init__(self, client: Client, command: list[str], slots: int, task_ms: int) -> None:
        seconds = task_ms / 1e3
        count = min(int(slots * RUN_S / seconds), TASKS_MAX)
        (master,) = daemons_of(os.getpid())["master"]
        had_s, started_s = cpu_s(master), time.monotonic()
        with client.job("sleepers") as job:
            refs = [add(job, command, number, seconds=seconds) for number in range(count)]
            job.want(refs)
            job.close()
            job.wait(120)
        elapsed_s = time.monotonic() - started_s
        used_s = cpu_s(master) - had_s
        self.slots, self.task_ms = slots, task_ms
        self.tasks_per_s = count / elapsed_s
        self.own_share = count * seconds / (slots * elapsed_s)
        self.master_us = used_s / count * 1e6
        self.master_busy = used_s / elapsed_s


def no_op_us() -> dict[str, float]:
    """Return the CPU time of each process per task, when a further task is always available."""
    with LocalCluster(workers=2, slots=1) as cluster, Client(cluster) as client:
        no_ops(client, 2_000)
        pids = daemons_of(os.getpid())
        before = {kind: sum(map(cpu_s, found)) for kind, found in pids.items()}
        own_s = time.process_time()
        no_ops(client, NO_OPS)
        used_s = {kind: sum(map(cpu_s, found)) - before[kind] for kind, found in pids.items()}
        used_s["client"] = time.process_time() - own_s
    return {f"{kind}_us": used / NO_OPS * 1e6 for kind, used in used_s.items()}


def cells() -> list[Cell]:
    """Measure real clusters."""
    found = []
    with tempfile.TemporaryDirectory(prefix="ciel-bench-") as directory:
        path = Path(directory) / "sleeper.py"
        path.write_text(PROGRAM)
        command = [sys.executable, str(path)]
        for slots in SLOTS:
            with LocalCluster(workers=1, slots=slots) as cluster, Client(cluster) as client:
                Cell(client, command, slots, 10)  # warm-up: programs start
                found += [Cell(client, command, slots, task_ms) for task_ms in TASK_MS]
    return found


def _show(
    events: dict[int, dict[str, float]],
    found: list[Cell],
    no_op: dict[str, float],
    ratios: dict[str, float],
    load: float,
) -> None:
    rows = [[name, *(f"{events[b][name]:.1f}" for b in BATCHES)] for name in finer.EVENTS]
    rows.append(["all", *(f"{sum(events[b].values()):.1f}" for b in BATCHES)])
    about = f"{len(os.sched_getaffinity(0))} cores; load average before: {load:.1f}.\n\n"
    head = ["us of CPU per task", *(f"{batch} per tick" for batch in BATCHES)]
    busy = {f"{ms} ms": [(s, _busy(s, ms, no_op["master_us"])) for s in MORE_SLOTS]
            for ms in TASK_MS}  # fmt: skip
    for ms in TASK_MS:
        busy[f"{ms} ms, measured"] = [
            (c.slots, c.master_busy * 100) for c in found if c.task_ms == ms
        ]
    chart = line_chart("How busy one master is", "slots", "% of a core", busy, by_doubling=True)
    write_down("master", "events", about + table(head, rows), {"master": chart})
    names = ["master", "worker", "client"]
    cost = [*(f"{no_op[f'{name}_us']:.0f}" for name in names), f"{no_op['idle_busy']:.1%}"]
    write_down("master", "no-ops", table([*names, "idle master"], [cost]), {})
    rows = [
        [f"{c.task_ms} ms", str(c.slots), f"{c.tasks_per_s:,.0f}", f"{c.own_share:.0%}",
         f"{c.master_us:.0f}", f"{c.master_busy:.1%}"]
        for c in found
    ]  # fmt: skip
    head = ["task", "slots", "tasks/s", "share of a slot's time", "us of the master per task",
            "master busy"]  # fmt: skip
    write_down("master", "engine", table(head, rows), {})
    master_us = no_op["master_us"]
    rows = [
        [f"{slots}", *(_load(slots, ms, master_us) for ms in TASK_MS),
         f"{slots * master_us / 1e3:.2g} ms"]
        for slots in MORE_SLOTS
    ]  # fmt: skip
    head = ["slots", *(f"tasks of {ms} ms" for ms in TASK_MS), "saturated below"]
    write_down("master", "break-even", table(head, rows), {})
    rows = [
        [text, f"{ratios[f'{name}_by_cpu']:.2f}", f"{ratios[f'{name}_by_clock']:.2f}"]
        for name, text in WAYS.items()
    ]
    head = ["speed relative to one thread of one process", "by CPU time", "by wall-clock time"]
    write_down("master", "finer", table(head, rows), {})
    write_figures("master", in_prose(events, no_op, ratios))


def in_prose(
    events: dict[int, dict[str, float]], no_op: dict[str, float], ratios: dict[str, float]
) -> dict[str, str]:
    """Return the figures in the text of the page."""
    master_us, others_us = no_op["master_us"], no_op["worker_us"] + no_op["client_us"]
    alone, many = events[BATCHES[0]], events[BATCHES[-1]]
    frames_us = sum(us for name, us in many.items() if name.startswith("frames"))
    return {
        "master_us": f"{master_us:.0f}",
        "tasks_per_s": f"{round(1e6 / master_us, -3):,.0f}",
        "saturated_ms": f"{256 * master_us / 1e3:.2g}",
        "frames": f"{frames_us / sum(many.values()):.0%}",
        "alone_us": f"{sum(alone.values()):.1f}",
        "many_us": f"{sum(many.values()):.1f}",
        "others_us": f"{others_us:.0f}",
        "others_to_master": f"{others_us / master_us:.1f}",
        "two_processes": f"{ratios['two_by_cpu']:.2f}",
        "one_with_locks": f"{ratios['one_with_locks_by_cpu']:.2f}",
    }


def _load(slots: int, task_ms: float, master_us: float) -> str:
    """Describe the load of a master, or the fraction of the slots' time that it leaves idle."""
    needed = slots * master_us / (task_ms * 1e3)
    return f"{needed:.1%}" if needed <= 1 else f"**slots idle {1 - 1 / needed:.1%}**"


def _busy(slots: int, task_ms: float, master_us: float) -> float:
    return min(100.0, slots * master_us / (task_ms * 1e3) * 100)


def measure() -> dict[str, float]:
    """Measure, write the page, and return the costs and the gains of finer structures."""
    load = os.getloadavg()[0]
    found, no_op = cells(), {**no_op_us(), "idle_busy": idle_busy()}
    finer.as_the_master()
    events = {batch: finer.event_us(batch) for batch in BATCHES}
    ratios = {**finer.two_processes(), **finer.threads_and_locks()}
    _show(events, found, no_op, ratios, load)
    return {
        **no_op,
        **{f"machine_us_{batch}": sum(each.values()) for batch, each in events.items()},
        "saturates_at_tasks_per_s": 1e6 / no_op["master_us"],
        "others_to_master": (no_op["worker_us"] + no_op["client_us"]) / no_op["master_us"],
        **ratios,
    }


if __name__ == "__main__":
    print(json.dumps(measure(), indent=2))
