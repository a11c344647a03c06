"""Tests clusters whose stores have a larger capacity than their device: a private `/dev/shm` of 16
MiB, or a disk of that size.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from ciel.testing.homes import Home
from ciel_tests.clusters.mounts import on_mount

MIB = 1 << 20
SMALL = ["-t", "tmpfs", "-o", "size=16m,mode=1777", "none"]
UP = "ciel up --listen 127.0.0.1:0 --workers 1 --slots 2 --store {store} >&2 || exit; "
PROGRAMS = Path(__file__).parents[1] / "programs"
SDK = Path(__file__).parents[3] / "executors" / "sdk"
DOWN = "; status=$?; ciel down --force >&2; exit $status"
STORES = {"shm": "shm:capacity=1GiB", "scc": "scc:capacity=4MiB,cores=1"}


def run_small(home: Home, store: str, script: str) -> subprocess.CompletedProcess[str]:
    """Run a script beside a cluster whose `/dev/shm` is small."""
    words = ["sh", "-c", UP.format(store=store) + script + DOWN]
    return home.run(*on_mount(SMALL, Path("/dev/shm"), words))


def letters(size_bytes: int, ending: str = "") -> str:
    """Return a program that prints so many letters, and reports no error if it could not."""
    return f"sh -c 'head -c {size_bytes} /dev/zero 2>/dev/null | tr \"\\0\" a 2>/dev/null{ending}'"


def digest(size_bytes: int) -> str:
    return hashlib.sha256(b"a" * size_bytes).hexdigest()


ENDINGS = {"that does not say so": "; exit 0", "that fails of it": ""}


@pytest.mark.slow
@pytest.mark.parametrize("store", STORES.values(), ids=STORES)
@pytest.mark.parametrize("ending", ENDINGS.values(), ids=ENDINGS)
def test_a_program_that_was_refused_memory_runs_again_on_disk(
    home: Home, store: str, ending: str
) -> None:
    script = f"ciel submit -- {letters(40 * MIB, ending)} | sha256sum"
    done = run_small(home, store, script)
    assert done.stdout.split()[:1] == [digest(40 * MIB)], done.stderr
    assert not home.processes()


@pytest.mark.slow
def test_a_program_that_exceeds_the_capacity_runs_again_on_disk(home: Home) -> None:
    """The worker stops it while it writes, because the device itself would have room."""
    steadily = "sh -c 'for i in 1 2 3 4 5 6 7 8; do head -c 1048576 /dev/zero; sleep 0.2; done'"
    done = run_small(home, "shm:capacity=4MiB", f"ciel submit -- {steadily} | sha256sum")
    assert done.stdout.split()[:1] == [hashlib.sha256(bytes(8 * MIB)).hexdigest()], done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("store", STORES.values(), ids=STORES)
@pytest.mark.parametrize("ending", ENDINGS.values(), ids=ENDINGS)
def test_memory_freed_by_one_worker_does_not_hide_a_refusal_on_another(
    home: Home, store: str, ending: str
) -> None:
    store, out = store.replace("cores=1", "cores=2"), home.path / "out"
    submit = f"ciel submit --out {out} --array 1-40 -- {letters(3 * MIB, ending)}"
    words = ["sh", "-c", UP.format(store=store).replace("workers 1", "workers 2") + submit + DOWN]
    done = home.run(*on_mount(SMALL, Path("/dev/shm"), words))
    assert done.returncode == 0, done.stderr
    assert {file.stat().st_size for file in out.iterdir()} == {3 * MIB}


@pytest.mark.slow
def test_objects_beyond_the_available_memory_are_moved_to_disk(home: Home) -> None:
    one = f"ciel submit --keep -- {letters(3 * MIB, '; exit 0')} | sha256sum; "
    # The reported numbers are a second old.
    moved = "until ciel store stats --json | grep -q '\"evicted\": [1-9]'; do sleep 0.1; done; "
    done = run_small(home, STORES["shm"], 8 * one + moved + "ciel store stats --json")
    digests, told = done.stdout.splitlines()[:8], "".join(done.stdout.splitlines()[8:])
    assert [line.split()[0] for line in digests] == 8 * [digest(3 * MIB)], done.stderr
    memory, disk = json.loads(told)
    assert 0 < memory["used_bytes"] <= memory["capacity_bytes"] <= 16 * MIB
    assert disk["objects"] > 0


@pytest.mark.slow
def test_stores_are_reported_as_soon_as_a_cluster_is_up(home: Home) -> None:
    """The reported capacity is the size of the device."""
    done = run_small(home, STORES["shm"], "ciel store stats --json")
    memory, disk = json.loads(done.stdout)
    assert 15 * MIB < memory["capacity_bytes"] <= 16 * MIB
    assert disk["capacity_bytes"] is None


@pytest.mark.slow
@pytest.mark.parametrize("says_so", ["yes", "no"])
@pytest.mark.parametrize(
    "spawns, retries, is_well", [("no", 0, True), ("yes", 0, False), ("yes", 1, True)]
)
def test_an_interactive_program_that_was_refused_memory_runs_again(
    home: Home, says_so: str, spawns: str, retries: int, is_well: bool
) -> None:
    """This holds whatever the program does with the error, unless it has children by then, which
    know its output. The worker frees memory before the next attempt.
    """
    home.environ["PYTHONPATH"] = str(SDK)
    script, program = str(PROGRAMS / "fills.py"), str(PROGRAMS / "refused.py")
    words = [sys.executable, script, STORES["shm"], program, says_so, spawns, str(retries)]
    done = home.run(*on_mount(SMALL, Path("/dev/shm"), words))
    expected = f"{8 * MIB} True\n" if is_well else "NO_SPACE "
    assert done.stdout.startswith(expected), done.stdout + done.stderr


@pytest.mark.slow
def test_a_program_that_was_refused_disk_space_has_failed_whatever_its_exit_status(
    home: Home,
) -> None:
    place = home.path / "small"
    place.mkdir()
    home.environ |= {"TMPDIR": str(place), "CIEL_STORE": "disk"}
    words = ["ciel", "submit", "--", "sh", "-c", "head -c 40M /dev/zero 2>/dev/null; exit 0"]
    done = home.run(*on_mount(SMALL, place, words))
    assert (done.returncode, len(done.stdout)) == (1, 0)
    assert " was full while sh -c " in done.stderr
    assert "which may be incomplete" in done.stderr


@pytest.mark.slow
def test_a_reader_of_a_stream_that_was_refused_memory_does_not_wait_forever(home: Home) -> None:
    words = [sys.executable, str(PROGRAMS / "streams_out.py"), STORES["shm"]]
    done = home.run(*on_mount(SMALL, Path("/dev/shm"), words))
    assert done.stdout == "NO_SPACE\nDEPENDENCY_FAILED\n", done.stdout + done.stderr
