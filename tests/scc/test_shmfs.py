"""The C core of shmfs: random walks against a model, death at every store, real kills, sanitizers
(CIB-21 to CIB-24, POOL-3; failures S1 to S5, S11, P3).

The same programs run longer by `make check-deep`; scc/README.md has the figures.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from ciel.testing.c_programs import compiled

CORE = tuple(
    f"src/{name}.c"
    for name in (
        "port", "superblock", "lock", "log", "fat", "inode", "directory", "file", "client", "copy",
        "check", "shmfs", "flushing", "strict",
    )
)  # fmt: skip
BUILDS = {"coherent": (), "flushing": ("PORT_FLUSHING",), "strict": ("PORT_STRICT",)}
MEMORY = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")


def run(program: Path, *arguments: object) -> str:
    done = subprocess.run(
        [str(program), *map(str, arguments)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("build", BUILDS)
def test_any_sequence_of_calls_does_what_a_model_says_and_dying_does_all_or_nothing(
    build: str, shards: int
) -> None:
    defines = ("SCC_TEST", *BUILDS[build])
    sanitizers = MEMORY if build == "coherent" else ()
    program = compiled("shmfs_walk", ("tests/shmfs_walk.c", *CORE), defines, sanitizers)
    said = run(program, 11 + shards, 1500, 40, 0, shards)
    assert "crash states" in said


def test_whoever_sweeps_up_may_die_too() -> None:
    defines = ("SCC_TEST", *BUILDS["strict"])
    program = compiled("shmfs_walk", ("tests/shmfs_walk.c", *CORE), defines, ())
    run(program, 5, 400, 100, 1, 1)


@pytest.mark.parametrize("shards", [1, 64])
@pytest.mark.parametrize("build", ["coherent", "strict"])
def test_processes_killed_in_the_middle_leave_a_clean_image(build: str, shards: int) -> None:
    program = compiled("shmfs_kills", ("tests/shmfs_kills.c", *CORE), BUILDS[build])
    assert "150 kills" in run(program, 150, 4, shards)


@pytest.mark.parametrize("shards", [1, 64])
def test_clients_in_threads_have_no_data_race(shards: int) -> None:
    sources = ("tests/shmfs_kills.c", *CORE)
    program = compiled("shmfs_threads", sources, (), ("-fsanitize=thread", "-Wno-tsan"))
    run(program, 0, 3, shards)
