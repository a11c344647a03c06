"""Simulates with one mutant of `mutants.toml` until a seed fails: `mutant.py NUMBER SEEDS`.

The exit status is 1 if a seed has failed, as with a failed test, and 0 if none has.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

from ciel_tests.planted_fault import Planter


def main(number: int, seeds: int) -> int:
    """Plant a mutant, and run seeds; return an exit status."""
    mutants = tomllib.loads(Path(__file__).with_name("mutants.toml").read_text())["mutant"]
    mutant = mutants[number]
    sys.meta_path.insert(0, Planter(mutant["file"], mutant["text"], mutant["fault"]))
    from ciel.testing.simulator.options import CRASHES
    from ciel.testing.simulator.simulation import simulate
    from ciel_tests import memory

    scenario = mutant.get("scenario", CRASHES)
    for seed in range(1, seeds + 1):
        try:
            if scenario == memory.SCENARIO:
                memory.simulate(seed)
            else:
                simulate(seed, scenario)
        except Exception as error:  # a mutant may break anything
            print(f"seed {seed}: {str(error).splitlines()[-2:][0]}"[:160])
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
