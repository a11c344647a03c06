"""Compares an array of 100,000 programs with an array of 2,000 programs.

The time per program should be the same, and the long array should need no more memory. The
benchmark also measures the time of `ciel job list` with 10,000 jobs, and the longest pause of the
daemons' reactors. The start of a command is measured with a command that does not contact a
cluster.
"""

from __future__ import annotations

import re
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

from benchmarks.engine.programs import RUNS, Scene, scene
from ciel.client.client import Client
from ciel.net.ticks import PAUSE_NOTED_S

WATCH_INTERVAL_S = 0.025
MANY_RUNS = 100_000
JOBS = 10_000
STARTS = 15
_PAUSE = re.compile(r"the event loop was blocked for ([0-9.]+) s")


def resident_bytes(pids: list[int]) -> int:
    """Return the total memory of these processes, without pages shared with files."""
    pages = 0
    for pid in pids:
        try:
            resident, shared = Path(f"/proc/{pid}/statm").read_text().split()[1:3]
        except OSError:
            continue
        pages += int(resident) - int(shared)
    return pages * 4096


class Watch(threading.Thread):
    """Samples the daemons' memory, and how late the kernel wakes this idle thread.

    The machine itself causes pauses of a reactor of this length.
    """

    def __init__(self, pids: list[int]) -> None:
        super().__init__(daemon=True)
        self.longest_s = 0.0
        self.bytes: list[int] = []
        self._pids = pids
        self._over = threading.Event()

    def run(self) -> None:
        looks = 0
        while True:
            begun_s = time.monotonic()
            if self._over.wait(WATCH_INTERVAL_S):
                return
            late_s = time.monotonic() - begun_s - WATCH_INTERVAL_S
            self.longest_s = max(self.longest_s, late_s)
            looks += 1
            if looks % 40 == 0:
                self.bytes.append(resident_bytes(self._pids))

    def grown_bytes(self) -> int:
        """Return the growth of memory in the second half of the time so far."""
        return self.bytes[-1] - self.bytes[len(self.bytes) // 2]

    def end(self) -> float:
        """Stop sampling; return the longest delay of a wake-up."""
        self._over.set()
        self.join()
        return self.longest_s


def many(made: Scene, runs: int, watch: Watch) -> dict[str, float]:
    """Compare a long array with short ones before and after it; `watch` starts with it."""
    made.submit(RUNS)
    before_s = made.submit(RUNS)
    watch.start()
    long_s = made.submit(runs)
    grown_bytes = watch.grown_bytes()
    after_s = made.submit(RUNS)
    short_per_s = RUNS / statistics.mean((before_s, after_s))
    return {
        "many_per_s": runs / long_s,
        "many_to_few": runs / long_s / short_per_s,
        "grown_mib": grown_bytes / 2**20,
    }


def listing(made: Scene, jobs: int) -> dict[str, float]:
    """Return the times of some commands.

    They are a command that loads all modules and does nothing, an interpreter that loads nothing,
    and a command that lists many jobs.
    """
    with Client(access=str(made.access_file), environ=made.environ) as client:
        for _ in range(jobs):
            client.job("empty", detached=True).close()
        client.ask("status")
    return {
        "start_s": median_s(made, "submit", "--help"),
        "bare_s": bare_s(),
        "list_s": median_s(made, "job", "list"),
        "list_all_s": median_s(made, "job", "list", "--all"),
    }


def median_s(made: Scene, *words: str) -> float:
    """Return the median of the times of a command."""
    times_s = []
    for _ in range(STARTS):
        begun_s = time.perf_counter()
        made.ciel(*words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        times_s.append(time.perf_counter() - begun_s)
    return statistics.median(times_s)


def bare_s() -> float:
    """Return the median of the start times of an interpreter of this environment."""
    times_s = []
    for _ in range(STARTS):
        begun_s = time.perf_counter()
        subprocess.run([sys.executable, "-c", "pass"], check=True)
        times_s.append(time.perf_counter() - begun_s)
    return statistics.median(times_s)


def longest_pause_s(directory: Path) -> float:
    """Return the longest pause in any daemon's log, or the shortest pause that daemons log."""
    logs = [path.read_text(errors="replace") for path in directory.rglob("*.log")]
    pauses = [float(found) for log in logs for found in _PAUSE.findall(log)]
    return max(pauses, default=PAUSE_NOTED_S)


def measure(runs: int = MANY_RUNS, jobs: int = JOBS) -> dict[str, float]:
    """Measure everything on one cluster, and read its logs when it has ended."""
    with scene() as made:
        watch = Watch(made.daemons())
        results = many(made, runs, watch) | listing(made, jobs)
        idle_s = watch.end()
        made.down()
        pause_s = longest_pause_s(made.directory)
        own_s = max(0.0, pause_s - idle_s)
        return results | {"pause_s": pause_s, "idle_pause_s": idle_s, "own_pause_s": own_s}


if __name__ == "__main__":
    for name, value in measure().items():
        print(f"{name:14} {value:12.3f}")
