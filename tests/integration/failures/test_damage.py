"""Flips single bits in the files of stored objects: every reader gets the right content, since the
objects are recomputed.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

import ciel
from ciel.storage.digests import ATTRIBUTE
from ciel.testing.homes import HandCluster, Home, wait_for

pytestmark = pytest.mark.slow

ARRAYS: Final = 20
LENGTH: Final = 1 << 17  # numbers in an array of 1 MiB
RUNS: Final = "runs"


@pytest.fixture
def cluster(home: Home) -> Iterator[HandCluster]:
    """Start a master; the test starts the workers."""
    cluster = HandCluster.start(home, 0)
    yield cluster
    cluster.stop()


class Lab:
    """A worker with a store in a known place, and a client."""

    def __init__(self, cluster: HandCluster, kind: str, *options: str) -> None:
        self.cluster = cluster
        instance = secrets.token_hex(6)
        shm = Path(f"/dev/shm/ciel-{instance}")
        self.store = cluster.home.path / "spool/store" if kind == "disk" else shm
        spec = kind if kind == "disk" else f"shm:instance={instance},capacity=256MiB,spill=no"
        self.verifies = "never" not in options
        cluster.start_worker("--spool", "spool", "--store", spec, *options)
        self.client = ciel.Client(access=str(cluster.access))
        self.runs = cluster.home.path / RUNS
        self.runs.mkdir()

    def objects(self) -> list[Path]:
        """List the files of objects, once the checksums of all are known."""
        found = sorted((self.store / "objects").iterdir())

        def are_known() -> bool:
            return all(ATTRIBUTE in os.listxattr(path) for path in found)

        if self.verifies:
            wait_for(are_known, "checksums")
        return found

    def run_count(self) -> int:
        """Return how often `made` has run."""
        return sum(path.stat().st_size for path in self.runs.iterdir())

    def log(self) -> str:
        return self.cluster.log("worker1")


def flip(path: Path, place: int) -> None:
    """Flip one bit of a file, which becomes writable for a moment."""
    mode, times = path.stat().st_mode, (path.stat().st_atime_ns, path.stat().st_mtime_ns)
    path.chmod(0o600)
    with open(path, "r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 1 << (place % 8)]))
    path.chmod(mode & 0o7777)
    os.utime(path, ns=times)


def made(number: int, runs: str) -> Any:
    """Return an array whose sum depends on every bit, and count this run."""
    with open(f"{runs}/{number}", "a") as file:
        file.write("x")
    return np.arange(number, number + LENGTH, dtype=np.int64)


def total(array: Any) -> int:
    return int(array.sum())


def expected(number: int) -> int:
    return sum(range(number, number + LENGTH))


@pytest.mark.parametrize("kind", ["disk", "shm"])
def test_twenty_flipped_bits_give_twenty_right_sums(cluster: HandCluster, kind: str) -> None:
    lab = Lab(cluster, kind)
    with lab.client as client:
        arrays = [client.submit(made, number, str(lab.runs)) for number in range(ARRAYS)]
        client.wait(arrays)
        files = lab.objects()
        assert len(files) == ARRAYS
        for number, path in enumerate(files):
            flip(path, 4096 + number * 50_001)  # beyond the header of the content
        sums = client.gather([client.submit(total, array) for array in arrays])
        assert sums == [expected(number) for number in range(ARRAYS)]
    assert lab.run_count() == 2 * ARRAYS
    named = set(re.findall(r"(/\S+) is damaged: \S+ checksum: it was committed as", lab.log()))
    assert named == {str(path) for path in files}


def test_without_verification_a_damaged_object_is_read(cluster: HandCluster) -> None:
    lab = Lab(cluster, "disk", "--verify", "never")
    with lab.client as client:
        array = client.submit(made, 1, str(lab.runs))
        client.wait([array])
        flip(lab.objects()[0], 500_001)
        assert client.submit(total, array).result() != expected(1)
        assert not os.listxattr(lab.objects()[0])


@pytest.mark.parametrize("mode, is_found", [("first", False), ("always", True)])
def test_objects_are_verified_once_or_each_time(
    cluster: HandCluster, mode: str, is_found: bool
) -> None:
    """A bit that flips after the first reading is found only by `always`."""
    lab = Lab(cluster, "disk", "--verify", mode)
    with lab.client as client:
        array = client.submit(made, 1, str(lab.runs))
        client.wait([array])
        (path,) = lab.objects()
        assert client.submit(total, array).result() == expected(1)
        flip(path, 500_001)
        assert client.submit(len, array).result() == LENGTH
    assert (lab.run_count() == 2) is is_found


def test_a_client_on_the_same_host_gets_a_damaged_result_recomputed(cluster: HandCluster) -> None:
    lab = Lab(cluster, "disk")
    with lab.client as client:
        array = client.submit(made, 3, str(lab.runs))
        client.wait([array])
        flip(lab.objects()[0], 700_001)
        assert total(array.result()) == expected(3)
    assert lab.run_count() == 2


def test_a_program_gets_a_damaged_input_recomputed(cluster: HandCluster) -> None:
    lab = Lab(cluster, "disk")
    with lab.client as client:
        job = client.job("bytes")
        zeros = job.run(["sh", "-c", f"echo x >>{lab.runs}/0; head -c 1M /dev/zero"])
        job.want([zeros])
        job.result(zeros)
        flip(lab.objects()[0], 5)
        counted = job.run(["sh", "-c", "tr -d '\\0' | wc -c"], inputs=[zeros])
        assert job.read(counted) == b"0\n"
        job.close()
    assert (lab.runs / "0").read_text() == "x\nx\n"


def test_a_damaged_upload_is_reported_as_lost(cluster: HandCluster) -> None:
    """No task can recompute it."""
    lab = Lab(cluster, "disk")
    lab.client.close()
    lab.cluster.home.path.joinpath("words").write_bytes(b"word " * 100_000)
    put = lab.cluster.home.run("ciel", "object", "put", "words")
    object_id = put.stdout.strip()
    flip(lab.objects()[0], 1001)
    got = lab.cluster.home.run("ciel", "object", "get", object_id)
    assert got.returncode == 1
    assert f"{object_id}" in got.stderr
    assert "is damaged" in lab.log()
