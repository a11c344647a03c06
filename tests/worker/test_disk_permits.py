"""Tasks that are bound by I/O on a worker with real programs; they share their disk's queue."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ciel.core.admission import Policy
from ciel.core.events import DiskLimit, StoresReported
from ciel.core.tasks import WORK_DISK, Needs
from ciel.executors.stdinout import StdinoutExecutor
from ciel.storage.device_semaphores import QueueEntry
from ciel.storage.devices import Device, Kind
from ciel.storage.files import FileStore
from ciel.testing.homes import wait_for
from ciel.worker.disk_jobs import DiskJobs
from ciel_tests.scenes.one_worker import OneWorker

pytestmark = pytest.mark.requirement("CIB-42")

LOOP = "i=0; while [ $i -lt 3000 ]; do i=$((i+1)); done"


class Scene:
    """A worker with a slot for each of two programs, and a disk that admits one job at a time."""

    def __init__(self, in_reactor: Any, store: FileStore, path: Path) -> None:
        self.device = Device(0, secrets.randbits(60), Kind.ROTATING)
        self.jobs = DiskJobs(in_reactor.reactor, Policy.from_text("1"), find=lambda _: self.device)
        self.run = in_reactor
        executors = {"stdinout": StdinoutExecutor()}
        self.worker = OneWorker(in_reactor, store, path, executors, disk_jobs=self.jobs)

    def assign(self, script: str, io: str = WORK_DISK) -> Any:
        arguments = {"args": {"command_line": ["sh", "-c", script], "inputs": []}}
        return self.worker.assign(self.worker.task("stdinout", arguments, needs=Needs(io=io)))

    def is_free(self) -> bool:
        """Whether another process would get the permit at once."""
        with QueueEntry(self.device.name, 1) as entry:
            return entry.check()


@pytest.fixture
def scene(in_reactor: Any, store: FileStore, tmp_path: Path) -> Iterator[Scene]:
    scene = Scene(in_reactor, store, tmp_path)
    yield scene
    scene.worker.stop()
    in_reactor(scene.jobs.close)
    line = f"/dev/shm/ciel-io-{os.geteuid()}/{scene.device.name}"
    wait_for(lambda: not os.path.exists(line), "an empty queue")


def test_programs_at_one_disk_run_one_after_another(scene: Scene, tmp_path: Path) -> None:
    alone = f"mkdir {tmp_path}/alone && {LOOP}; rmdir {tmp_path}/alone && echo done"
    keys = [scene.assign(alone) for _ in range(6)]
    assert [scene.worker.content(key) for key in keys] == [b"done\n"] * 6


def test_a_program_waits_while_another_process_has_the_disk(scene: Scene) -> None:
    with QueueEntry(scene.device.name, 1) as other:
        assert other.check()
        bound = [scene.assign("echo bound") for _ in range(3)]
        wait_for(lambda: scene.jobs.waiting_count == 3, "programs that wait")
        assert scene.worker.content(scene.assign("echo free", io="")) == b"free\n"
        assert scene.worker.content(scene.assign("echo too", io="")) == b"too\n"
        ended = {getattr(report, "task", "") for report in scene.worker.reports}
        assert not ended & {task for task, _ in bound}
        other.release()
    assert [scene.worker.content(key) for key in bound] == [b"bound\n"] * 3


def test_a_killed_program_gives_its_permit_back(scene: Scene) -> None:
    assert scene.worker.fault(scene.assign("kill -9 $$")).reason == "RUNTIME_EXCEPTION"
    wait_for(scene.is_free, "a free disk")


def test_a_cancelled_program_gives_its_permit_back(scene: Scene) -> None:
    running = scene.assign("exec tail -f /dev/null")
    wait_for(lambda: not scene.is_free(), "a program at the disk")
    waiting = scene.assign("echo never")
    scene.worker.cancel(waiting)
    assert scene.worker.fault(waiting).reason == "CANCELLED"
    scene.worker.cancel(running)
    assert scene.worker.fault(running).reason == "CANCELLED"
    wait_for(scene.is_free, "a free disk")


def test_the_master_learns_the_limit_of_a_disk_with_its_first_task(scene: Scene) -> None:
    scene.worker.good(scene.assign("true"))
    disks = (DiskLimit(WORK_DISK, scene.device.name, 1),)
    scene.worker.expect(lambda report: isinstance(report, StoresReported) and report.disks == disks)


def test_a_path_that_does_not_exist_admits_all(scene: Scene) -> None:
    keys = [scene.assign("true", io="/no/such/path") for _ in range(2)]
    for key in keys:
        scene.worker.good(key)
    disks = (DiskLimit("/no/such/path", "", 0),)
    scene.worker.expect(lambda report: isinstance(report, StoresReported) and report.disks == disks)
