"""Runs the C tests of shmfs under sanitizers (CIB-21 to CIB-24, POOL-3).

They run random operations against a model, kill clients at every store and at random moments,
damage the image, and reach every error and limit. A killed client must leave each of its operations
complete or without effect, even if it held locks or had not committed, and no client may starve or
read stale memory. The comment at the head of each program says what it tests. `make check-deep`
runs them longer; scc/README.md has the figures.
"""

from __future__ import annotations

import subprocess

import pytest

from ciel.testing.c_programs import compiled

pytestmark = pytest.mark.slow

CORE = tuple(
    f"src/{name}.c"
    for name in (
        "port", "superblock", "lock", "log", "fat", "inode", "directory", "file", "client", "copy",
        "check", "shmfs", "flushing", "strict",
    )
)  # fmt: skip
QUICK = ("-O0", "-g1")  # most of the time goes into compiling
MEMORY = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")
THREADS = ("-fsanitize=thread", "-Wno-tsan")
WALKS = (  # SEED STEPS CRASH_EVERY PAIRS SHARDS
    "shmfs_walk 12 1000 20 0 1", "shmfs_walk 13 1000 20 0 2", "shmfs_walk 14 1000 20 0 64",
)  # fmt: skip
DEATHS = ("shmfs_walk 5 200 50 1 1", "shmfs_kills 6 4 1", "shmfs_kills 10 4 64")
CALLS = (
    "shmfs_units", "shmfs_third_client", "shmfs_limits", "shmfs_races", "shmfs_verdicts",
    "shmfs_reuse",
)  # fmt: skip
DAMAGE = ("shmfs_damage words 1", "shmfs_damage random 1 1500")
# One test for each build, so that its objects are compiled once.
BUILDS = {
    "coherent": ((), MEMORY, (*WALKS, *DEATHS, *CALLS, *DAMAGE)),
    "flushing": (("PORT_FLUSHING",), (), (*WALKS[1:], "shmfs_units", "shmfs_reuse")),
    "strict": (("PORT_STRICT",), (), (*WALKS, *DEATHS, *CALLS)),
    "coherent, threads": ((), THREADS, ("shmfs_kills 0 3 1", "shmfs_kills 0 3 64")),
}


@pytest.mark.requirement("CIB-21", "CIB-22", "CIB-24")
@pytest.mark.parametrize("build", BUILDS)
def test_the_core_keeps_its_promises_whoever_dies_and_whatever_is_damaged(build: str) -> None:
    defines, flags, runs = BUILDS[build]
    for run in runs:
        name, *arguments = run.split()
        sources = (f"tests/{name}.c", *CORE)
        program = compiled(name, sources, ("SCC_TEST", *defines), (*QUICK, *flags))
        done = subprocess.run(
            [program, *arguments], capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, f"{run}: {done.stdout[-2000:]}{done.stderr[-4000:]}"
