"""Measures workers that Slurm gives, on a real Slurm on this computer.

- `first_task_s`: from the start of an allocation, as Slurm reports it, to the end of the first task
  on its worker. Slurm reports whole seconds, so the job itself writes its start.
- `ratio`: tasks of 0.1 s with `ciel up --on slurm --workers 0..2`, to the same tasks on two workers
  that were started by hand, in turns.

It needs root, slurm-wlm and munge. An argument is the number of tasks (10,000).
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests/lib"))

from ciel.testing.homes import HandCluster, Home, wait_for
from ciel_tests.slurm import Slurm, why_no_slurm

TASKS = 10_000
FIRST_TASKS = 5
ROUNDS = 1
_TIMEOUT_S = 3600.0


def _submit(home: Home, tasks: int) -> float:
    started_s = time.monotonic()
    done = home.run(
        "ciel", "submit", "--array", f"1-{tasks}", "--", "sleep", "0.1", timeout_s=_TIMEOUT_S
    )
    assert done.returncode == 0, done.stderr
    return time.monotonic() - started_s


def _home(path: Path, slurm: Slurm) -> Home:
    path.mkdir()
    home = Home(path)
    home.environ |= {name: value for name, value in slurm.environ.items() if name != "PATH"}
    home.environ["PATH"] += f":{slurm.environ['PATH']}"
    return home


def _up(home: Home, workers: str, *options: str) -> None:
    words = ("--workers", workers, "--listen", "127.0.0.1:0", "--poll", "1", *options)
    done = home.run("ciel", "up", "--on", "slurm", *words, "--", "--mem=500M", timeout_s=60)
    assert done.returncode == 0, done.stderr


def first_tasks_s(home: Home, slurm: Slurm) -> list[float]:
    """Return how long first tasks took, from the starts of their allocations."""
    starts = home.path / "starts"
    starts.mkdir()
    worker = home.path / "worker"
    worker.write_text(f'#!/bin/sh\ndate +%s.%N >{starts}/"$SLURM_JOB_ID"\nexec ciel-worker "$@"\n')
    worker.chmod(0o755)
    _up(home, "0..1", "--idle", "0.5s", "--worker-command", str(worker))
    times_s = []
    for _ in range(FIRST_TASKS):
        for path in starts.iterdir():
            path.unlink()
        done = home.run("ciel", "submit", "--", "date", "+%s.%N", timeout_s=120)
        (start,) = starts.iterdir()
        times_s.append(float(done.stdout) - float(start.read_text()))
        wait_for(lambda: not slurm.jobs(), "the worker to leave", 60)
    home.run("ciel", "down", "--force", timeout_s=90)
    return times_s


def measure(tasks: int) -> dict[str, float]:
    """Return all figures."""
    with tempfile.TemporaryDirectory(prefix="ciel-bench-") as directory:
        slurm = Slurm(Path(directory))
        try:
            first_s = first_tasks_s(_home(Path(directory, "first"), slurm), slurm)
            by_hand_s, on_slurm_s = [], []
            for number in range(ROUNDS):
                home = _home(Path(directory, f"slurm-{number}"), slurm)
                _up(home, "0..2")
                on_slurm_s.append(_submit(home, tasks))
                home.run("ciel", "down", "--force", timeout_s=90)
                home = _home(Path(directory, f"hand-{number}"), slurm)
                cluster = HandCluster.start(home, 2, "--slots", "1")
                by_hand_s.append(_submit(home, tasks))
                for process in (*cluster.workers, cluster.master):
                    process.terminate()
                    process.communicate(timeout=30)
        finally:
            slurm.close()
    by_hand, on_slurm = statistics.median(by_hand_s), statistics.median(on_slurm_s)
    return {
        "tasks": tasks, "first_task_s": round(statistics.median(first_s), 3),
        "first_task_max_s": round(max(first_s), 3), "by_hand_s": round(by_hand, 2),
        "on_slurm_s": round(on_slurm, 2), "ratio": round(on_slurm / by_hand, 3),
    }  # fmt: skip


if __name__ == "__main__":
    if reason := why_no_slurm():
        sys.exit(reason)
    print(json.dumps(measure(int(sys.argv[1]) if sys.argv[1:] else TASKS), indent=1))
