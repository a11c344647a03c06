"""Measures shmfs from C: small files against tmpfs, and 1 GiB against memcpy.

It also compares coarse and fine locks.
Pairs are interleaved; each program creates its own image and removes it. Expected cost: create and
commit are two transactions of about fifteen log records, six locks without contention, and two
lines each of an inode, an entry and a bucket: about 0.8 us. A lookup is a hash, a bucket, an entry:
0.3 us.
"""

from __future__ import annotations

import json
import statistics
import subprocess
from pathlib import Path

from ciel.testing.c_programs import compiled

PAIRS = 9
CORE = tuple(
    f"src/{name}.c"
    for name in (
        "port", "superblock", "lock", "log", "fat", "inode", "directory", "file", "client", "copy",
        "check", "shmfs",
    )
)  # fmt: skip


def program() -> Path:
    """Return the program that measures, compiled with the same optimisation as the tools."""
    return compiled("shmfs_speed", ("../benchmarks/storage/shmfs_speed.c", *CORE), (), ("-O2",))


def rates(*arguments: object) -> list[float]:
    """Run the program once; return the numbers that it prints."""
    done = subprocess.run(
        [str(program()), *map(str, arguments)], capture_output=True, text=True, check=True
    )
    return [float(word) for word in done.stdout.split()]


def measure(pairs: int = PAIRS) -> dict[str, float]:
    """Return medians of rates, and ratios.

    `…_to_tmpfs_…` and `…_to_memcpy` are medians of the ratios of adjacent runs; other ratios are
    ratios of medians.
    """
    runs: dict[str, list[list[float]]] = {}
    for _ in range(pairs):
        for processes in (1, 2):
            for shards in (1, 64):
                key = f"shmfs_{processes}_{shards}"
                runs.setdefault(key, []).append(rates("small", "shmfs", processes, shards))
            runs.setdefault(f"tmpfs_{processes}", []).append(rates("small", "tmpfs", processes, 1))
    large = [rates("large") for _ in range(3)]
    found = {}
    for column, name in enumerate(("create", "lookup", "unlink")):
        for key, values in runs.items():
            found[f"{key}_{name}_per_s"] = statistics.median(row[column] for row in values)
        for processes in (1, 2):
            pairs_of = zip(runs[f"shmfs_{processes}_1"], runs[f"tmpfs_{processes}"], strict=True)
            found[f"{name}_to_tmpfs_{processes}"] = statistics.median(
                ours[column] / theirs[column] for ours, theirs in pairs_of
            )
    found["lookup_2_to_1"] = found["shmfs_2_1_lookup_per_s"] / found["shmfs_1_1_lookup_per_s"]
    found["create_fine_to_coarse_2"] = (
        found["shmfs_2_64_create_per_s"] / found["shmfs_2_1_create_per_s"]
    )
    found["store_to_memcpy"] = statistics.median(row[0] / row[2] for row in large)
    found["load_to_memcpy"] = statistics.median(row[1] / row[2] for row in large)
    found["memcpy_gb_per_s"] = statistics.median(row[2] for row in large)
    return found


if __name__ == "__main__":
    print(json.dumps(measure(), indent=2))
