"""Measures `ciel submit -- true` without a running cluster, from its start to its exit."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RUNS = 7


def measure() -> dict[str, float]:
    """Return the median and the extremes of several runs, in seconds."""
    ciel = str(Path(sys.executable).with_name("ciel"))
    times = []
    with tempfile.TemporaryDirectory() as state:
        environ = {"PATH": os.environ["PATH"], "HOME": state, "XDG_STATE_HOME": state}
        for _ in range(RUNS):
            started_s = time.perf_counter()
            command = [ciel, "submit", "--quiet", "--", "true"]
            subprocess.run(command, env=environ, check=True, capture_output=True)
            times.append(time.perf_counter() - started_s)
    return {"median_s": statistics.median(times), "min_s": min(times), "max_s": max(times)}


if __name__ == "__main__":
    for name, value in measure().items():
        print(f"{name:10} {value:6.2f}")
