"""Measures how much longer isolation makes the start of a program: `none`, `limits` and `strict`.

Each round starts the same number of programs at each level, two at a time. The ratio of a round is
the time at `none` to the time at `limits`; the result is the median of the ratios.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace

from ciel.launch import DEV_NULL, Launcher, LaunchSpec, ProgramExited, ProgramFailed
from ciel.launch.isolation import Sandbox, Surroundings

PROGRAMS = 1000
STRICT_PROGRAMS = 50
ROUNDS = 15
AT_ONCE = 2
PLAIN = LaunchSpec(["/bin/true"], stdout=DEV_NULL)


def run_s(launcher: Launcher, spec: LaunchSpec, count: int) -> float:
    """Run a program `count` times; return the seconds that each took."""
    start_s = time.perf_counter()
    started = ended = 0
    while ended < count:
        while started < count and started - ended < AT_ONCE:
            started += 1
            launcher.start(started, spec)
        for event in launcher.wait_events(10):
            if isinstance(event, ProgramFailed | ProgramExited):
                ended += 1
                assert isinstance(event, ProgramExited), event
                assert event.exit_status == 0, event
    return (time.perf_counter() - start_s) / count


def measure(launcher: Launcher, levels: Sequence[LaunchSpec]) -> list[list[float]]:
    """Return the seconds of a start, for each round and level; the order changes every round."""
    rounds = []
    for number in range(ROUNDS):
        order = range(len(levels)) if number % 2 else reversed(range(len(levels)))
        found = {i: run_s(launcher, levels[i], PROGRAMS) for i in order}
        rounds.append([found[i] for i in range(len(levels))])
    return rounds


def main() -> None:
    """Print the results as JSON, in one line."""
    limits = replace(PLAIN, no_new_privileges=True)
    with Launcher.start_process() as launcher, tempfile.TemporaryDirectory() as directory:
        rounds = measure(launcher, [PLAIN, limits])
        result = {
            "none_us": statistics.median(plain for plain, _ in rounds) * 1e6,
            "limits_us": statistics.median(limited for _, limited in rounds) * 1e6,
            "none_to_limits": statistics.median(plain / limited for plain, limited in rounds),
        }
        box = Sandbox(Surroundings(), is_strict=True, scratch=f"{directory}/")
        strict = box.wrap(replace(PLAIN, cwd=directory))
        result["strict_us"] = run_s(launcher, strict, STRICT_PROGRAMS) * 1e6
    result["load"] = os.getloadavg()[0]
    print(json.dumps({name: round(value, 3) for name, value in result.items()}))


if __name__ == "__main__":
    main()
