"""Tests disk jobs of real daemons: a task that waits for a disk does not block others."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ciel import Client
from ciel.core.tasks import Needs
from ciel.storage.device_semaphores import QueueEntry
from ciel.storage.devices import Device, device_of
from ciel.testing.homes import HandCluster, Home, wait_for

pytestmark = pytest.mark.slow

SIZE_BYTES = 20 << 20
WITHIN_S = 30.0


@pytest.fixture
def disk() -> Iterator[Path]:
    """Return a directory that is not in memory, which is the default of the system."""
    with tempfile.TemporaryDirectory(prefix="ciel-disk-", dir="/var/tmp") as directory:
        yield Path(directory)


def places(device: Device) -> int:
    return len(os.listdir(f"/dev/shm/ciel-io-{os.geteuid()}/{device.name}"))


@pytest.mark.requirement("CIB-40", "CIB-42")
def test_a_task_that_waits_for_the_disk_leaves_its_slots_to_others(home: Home, disk: Path) -> None:
    device = device_of(disk)
    assert device.is_limited, f"{disk} lies in memory"
    cluster = HandCluster.start(home, 1, "--store", "shm:capacity=64MiB")
    try:
        with Client(access=str(cluster.access)) as client, client.job("limited") as job:
            large = client.upload_content(bytes(SIZE_BYTES), "large")
            spool = str(disk / "spool")
            cluster.start_worker("--slots", "2", "--store", "disk", "--spool", spool, "--io", "1")
            whole = Needs(slots=2)  # so both run on the second worker, in sequence
            with QueueEntry(device.name, 1) as other:  # as another process that reads from the disk
                assert other.wait(WITHIN_S)
                reader = job.run(["wc", "-c"], inputs=[large], needs=whole)
                job.want([reader])
                wait_for(lambda: places(device) > 1, "a job that waits for the disk")
                loop = "i=0; while [ $i -lt 50000 ]; do i=$((i+1)); done; echo $i"
                busy = job.run(["sh", "-c", loop], needs=whole)
                assert job.read(busy, timeout_s=WITHIN_S) == b"50000\n"
                assert job.settled(reader) is None
            assert job.read(reader, timeout_s=WITHIN_S) == f"{SIZE_BYTES}\n".encode()
    finally:
        cluster.stop()
    home.expect_nothing_left()
