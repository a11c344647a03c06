"""Simulates a whole cluster in one thread, from one seed.

    python -m ciel.testing.simulator --seeds 1-1000 [--scenario any] [--keep-going]

runs the simulation of one seed after another. At the first failure it leaves out faults as long as
the seed fails, prints the history of the task concerned, these faults, and the command that replays
the run, and stops. With --keep-going it lists all failures. --without names faults that do not
happen, by number.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Set
from functools import partial
from time import perf_counter

from ciel.testing.simulator.options import DRAWN, SCENARIOS
from ciel.testing.simulator.shrinking import shrink
from ciel.testing.simulator.simulation import SimulationError, simulate


def _failure(seed: int, scenario: str, without: Set[int]) -> SimulationError | None:
    try:
        simulate(seed, scenario, without=without)
    except SimulationError as error:
        return error
    return None


def main(arguments: list[str]) -> int:
    """Run a range of seeds; return an exit status."""
    parser = argparse.ArgumentParser(prog="python -m ciel.testing.simulator", description=__doc__)
    parser.add_argument("--seeds", default="1-100", help="a range, both ends included")
    parser.add_argument("--scenario", default="any", choices=[*DRAWN, *SCENARIOS])
    parser.add_argument("--without", default="", help="faults that do not happen: 0,3,5")
    parser.add_argument("--keep-going", action="store_true", help="list all seeds that fail")
    chosen = parser.parse_args(arguments)
    first, _, last = chosen.seeds.partition("-")
    seeds = range(int(first), int(last or first) + 1)
    without = frozenset(int(number) for number in chosen.without.split(",") if number)
    started_s, results, failures = perf_counter(), [], 0
    for seed in seeds:
        try:
            results.append(simulate(seed, chosen.scenario, without=without))
        except SimulationError as error:
            failures += 1
            if not chosen.keep_going:
                sys.exit(str(shrink(error, partial(_failure, seed, chosen.scenario))))
            print(f"{type(error.error).__name__} in seed {seed}: {error.error}"[:200], flush=True)
    took_s = perf_counter() - started_s
    tasks, runs = sum(r.tasks for r in results), sum(r.runs for r in results)
    print(
        f"{len(seeds)} seeds in {took_s:.1f} s ({len(seeds) / took_s * 60:.0f} a minute), "
        f"{failures} failed; {tasks} tasks, {runs} runs, "
        f"{sum(r.handed_over for r in results)} results handed over, "
        f"{sum(r.retried for r in results)} jobs retried, "
        f"{sum(r.removed for r in results)} removed, "
        f"{sum(r.restarts for r in results)} restarts of the master, "
        f"{sum(r.simulated_s for r in results):.0f} s simulated, "
        f"{sum(r.excused for r in results)} jobs hit by a fault that no engine survives"
    )
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
