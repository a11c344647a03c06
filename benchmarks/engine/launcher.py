"""Compares the rates at which `Launcher` and `xargs -P2 -n1` start programs, two at a time.

As in a busy worker, some launches wait in the launcher until one of the two programs ends.
"""

import statistics
import subprocess
import time
from dataclasses import dataclass

from ciel.launch import DEV_NULL, Launcher, LaunchSpec, ProgramExited

PROGRAM = "/bin/true"
AT_A_TIME = 2
AHEAD = 16
PAIRS = 5
LAUNCHES = 2000


@dataclass(frozen=True, slots=True)
class Measurement:
    """Programs per second, as medians; `ratio` is the median of the ratios of pairs."""

    launcher_per_s: float
    xargs_per_s: float
    ratio: float


def measure(pairs: int = PAIRS, launches: int = LAUNCHES) -> Measurement:
    """Measure both in alternation, so that changes of the machine's speed affect both."""
    with Launcher.start_process() as launcher:
        launcher_rate(launcher, launches // 10)  # warm-up: page cache, frequency
        rates = [(launcher_rate(launcher, launches), xargs_rate(launches)) for _ in range(pairs)]
    ours, theirs = zip(*rates, strict=True)
    return Measurement(
        launcher_per_s=statistics.median(ours),
        xargs_per_s=statistics.median(theirs),
        ratio=statistics.median(our / their for our, their in rates),
    )


def launcher_rate(launcher: Launcher, launches: int) -> float:
    """Return launches per second, with AT_A_TIME programs running at any moment."""
    spec = LaunchSpec([PROGRAM], stdout=DEV_NULL, at_most=AT_A_TIME)
    begun_s = time.perf_counter()
    started = ended = 0
    while ended < launches:
        while started < min(launches, ended + AT_A_TIME + AHEAD):
            launcher.start(started, spec)
            started += 1
        ended += sum(type(event) is ProgramExited for event in launcher.wait_events(10.0))
    return launches / (time.perf_counter() - begun_s)


def xargs_rate(launches: int) -> float:
    """Return launches per second of the same program; xargs appends a number to each."""
    numbers = "\n".join(map(str, range(launches)))
    begun_s = time.perf_counter()
    command = ["xargs", f"-P{AT_A_TIME}", "-n1", PROGRAM]
    subprocess.run(command, input=numbers, text=True, check=True)
    return launches / (time.perf_counter() - begun_s)


if __name__ == "__main__":
    result = measure()
    print(
        f"{PROGRAM}, {AT_A_TIME} at a time: Launcher {result.launcher_per_s:,.0f}/s, "
        f"xargs {result.xargs_per_s:,.0f}/s, ratio {result.ratio:.2f}"
    )
