"""Measures a job whose workers or whose master are killed, or stopped for a while.

The chaos driver (`benchmarks/chaos/workload.py`) has the same job: 5,000 leaves of 10 ms, 500 sums
of ten leaves each, and one total, on two workers of one slot. In the first run, one of the workers
is killed every 8 s, and restarted at once with the same work directory; in the second run, with an
empty work directory. In the third run, a worker is stopped for 6 s every 15 s. At best, that run
takes 1.25 times as long, since a fifth of the slots is missing. In the last run, the master is
killed every 5 s, and restarted at once from its journal. Each program notes its runs, so the
benchmark can count repeated runs. Each run is compared with the undisturbed runs before and after
it. Dask 2026.8.0 took 2.9 times as long on such a machine.
"""

from __future__ import annotations

import itertools
import json
import signal
import statistics
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from benchmarks.chaos.cluster import Cluster
from benchmarks.chaos.faults import Every
from benchmarks.chaos.rows import Setting
from benchmarks.chaos.workload import LEAVES, Sums
from ciel.client.client import Client

KILL_EVERY_S = 8.0
KILL_MASTER_EVERY_S = 5.0
STOP_EVERY_S = 15.0
STOPPED_S = 6.0


class Trials:
    """Runs the job on one cluster, undisturbed between runs with failures."""

    def __init__(self, cluster: Cluster, client: Client, sums: Sums) -> None:
        self.cluster, self.client, self.sums = cluster, client, sums
        self.clean_s: list[float] = []
        self._numbers = itertools.count()

    def run_undisturbed(self) -> None:
        """Run the job, and note its duration."""
        notes = self.cluster.inside(f"notes{next(self._numbers)}")
        self.clean_s.append(self.sums.run(self.client, notes))

    def run(self, every_s: float, act: Callable[[str], object]) -> tuple[float, int, int]:
        """Run the job while `act` is called for the workers in turn; return its duration, the
        number of calls, and the number of programs that had ended once and ran again.
        """
        names = itertools.cycle(("worker0", "worker1"))
        notes = f"notes{next(self._numbers)}"
        with Every(every_s, lambda: act(next(names))) as every:
            took_s = self.sums.run(self.client, self.cluster.inside(notes))
        again = self.cluster.runs(notes).finished_again
        self.run_undisturbed()
        return took_s, every.count, again

    def restart(self, name: str) -> None:
        """Kill a worker, and start it again at once."""
        self.cluster.restart(name, waits=False)

    def wipe(self, name: str) -> None:
        """Kill a worker, and start it again at once with an empty work directory."""
        self.cluster.restart(name, wiped=True, waits=False)

    def restart_master(self, name: str) -> None:
        """Kill the master, and start it again at once."""
        self.cluster.restart("master")

    def stop(self, name: str) -> None:
        """Stop a worker for a while."""
        self.cluster.signal(name, signal.SIGSTOP)
        threading.Event().wait(STOPPED_S)
        self.cluster.signal(name, signal.SIGCONT)


def attempts(client: Client, first: int | None) -> Counter[str]:
    """Count the attempts of each task that ended since a position in the master's timeline."""
    counts: Counter[str] = Counter()
    while first is not None:
        page = client.ask("trace", {"jobs": client.job_ids, "first": first})
        task = page["fields"].index("task")
        counts.update(span[task] for span in page["spans"])
        first = page["next"]
    return counts


def measure(leaves: int = LEAVES) -> dict[str, float]:
    """Measure each of the four, with undisturbed runs before, between and after."""
    results: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="ciel-bench-") as directory:
        setting = Setting(leaves / LEAVES, Path(directory))
        with Cluster.running(setting) as cluster, cluster.client() as client:
            Sums(leaves // 20).run(client, cluster.inside("warm-up"))
            trials = Trials(cluster, client, Sums(leaves))
            trials.run_undisturbed()
            for name, act in (("killed", trials.restart), ("wiped", trials.wipe)):
                results[f"{name}_s"], results[f"{name}_kills"], _ = trials.run(KILL_EVERY_S, act)
            first = client.ask("trace", {"first": None})["next"]
            results["stopped_s"], _, _ = trials.run(STOP_EVERY_S, trials.stop)
            results["stopped_ran_twice"] = sum(n > 1 for n in attempts(client, first).values())
            results["master_s"], results["master_kills"], results["master_ran_twice"] = trials.run(
                KILL_MASTER_EVERY_S, trials.restart_master
            )
    results["clean_s"] = statistics.median(trials.clean_s)
    for name in ("killed", "wiped", "stopped", "master"):
        results[f"{name}_to_clean"] = results[f"{name}_s"] / results["clean_s"]
    return results


if __name__ == "__main__":
    print(json.dumps(measure(int(sys.argv[1]) if len(sys.argv) > 1 else LEAVES), indent=1))
