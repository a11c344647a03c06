"""Measures a workflow of 1,000 small rules with Snakemake's local executor and with ciel's.

`.venv-tools/bin/python benchmarks/reach/snakemake.py`, after `make tools`. Both run in turns, with
as many jobs at a time as the machine has cores, and start from nothing: the time includes the start
of Snakemake and of a cluster.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

WORKFLOW = """
rule all:
    input: expand("out/{{i}}", i=range({jobs}))
rule one:
    output: "out/{{i}}"
    shell: "echo {{wildcards.i}} > {{output}}"
"""
GOAL = 0.9


def measure(executor: str, jobs: int) -> float:
    """Return how many seconds a run takes with an executor."""
    cores = str(len(os.sched_getaffinity(0)))
    limit = ["--cores", cores] if executor == "local" else ["--jobs", cores]
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "Snakefile").write_text(WORKFLOW.format(jobs=jobs))
        command = [
            sys.executable, "-m", "snakemake", "--executor", executor, *limit, "--quiet", "all",
            "--scheduler", "greedy",
        ]  # fmt: skip
        started_s = time.perf_counter()
        subprocess.run(command, cwd=directory, check=True)
        took_s = time.perf_counter() - started_s
        assert len(list(Path(directory, "out").iterdir())) == jobs
    return took_s


def main() -> None:
    """Print the median time of each executor, and their ratio."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--jobs", type=int, default=1000)
    options.add_argument("--repeats", type=int, default=3)
    args = options.parse_args()
    times: dict[str, list[float]] = {"local": [], "ciel": []}
    for _ in range(args.repeats):
        for executor, taken in times.items():
            taken.append(measure(executor, args.jobs))
            print(f"{executor}: {taken[-1]:.1f} s", flush=True)
    local, ours = (statistics.median(taken) for taken in times.values())
    print(f"local {local:.1f} s, ciel {ours:.1f} s: {local / ours:.2f} x (goal {GOAL} x)")


if __name__ == "__main__":
    main()
