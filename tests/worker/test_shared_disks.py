"""Disk jobs on a device that several kernels share: the image of a store has their limit."""

from __future__ import annotations

import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from ciel.cli.daemons.worker import Worker, parser
from ciel.core.admission import Policy
from ciel.core.events import DiskLimit
from ciel.scc.instances import remove_instance
from ciel.scc.store import SccStore, open_cores
from ciel.storage.errors import StoreSpecError
from ciel.storage.files import FileStore
from ciel.testing.homes import wait_for
from ciel.worker.disk_jobs import DiskJobs, Permit

pytestmark = pytest.mark.requirement("CIB-40")

SIZE_BYTES = 1 << 20
HOLDER = """
import sys
from ciel.scc.store import open_cores
limit = open_cores({"instance": sys.argv[1], "capacity": "16MiB"}).disk_limit()
print(limit.begin(1, 5.0), flush=True)
sys.stdin.read()
"""


class Kernel:
    """The disk jobs of one core, and the permits that they have."""

    def __init__(self, in_reactor: Any, instance: str, path: Path) -> None:
        self.store: SccStore = open_cores({"instance": instance, "capacity": "16MiB"})
        self.path, self.run = path, in_reactor
        self.jobs = DiskJobs(in_reactor.reactor, Policy())
        in_reactor(self.jobs.share, path, 1, self.store.disk_limit())
        self.permits: list[Permit] = []

    def enter(self) -> Deferred[Any]:
        def enter() -> list[Deferred[Any]]:
            entered: Deferred[Any] = self.jobs.enter(self.path, SIZE_BYTES)
            entered.addCallbacks(self.permits.append, lambda failure: None)
            return [entered]  # in a list, since `run` would wait for a Deferred

        entered: Deferred[Any] = self.run(enter)[0]
        return entered

    def leave(self) -> None:
        self.run(self.permits.pop().release)

    def close(self) -> None:
        self.run(self.jobs.close)
        self.store.close()


@pytest.fixture
def instance() -> Iterator[str]:
    name = secrets.token_hex(8)
    yield name
    remove_instance(name)


@pytest.fixture
def kernels(in_reactor: Any, instance: str, tmp_path: Path) -> Iterator[list[Kernel]]:
    kernels = [Kernel(in_reactor, instance, tmp_path) for _ in range(2)]
    yield kernels
    for kernel in kernels:
        kernel.close()


def test_cores_of_one_image_have_one_limit(kernels: list[Kernel]) -> None:
    one, other = kernels
    one.enter()
    wait_for(lambda: one.permits, "a permit")
    other.enter()
    wait_for(lambda: other.jobs.waiting_count, "a job that waits")
    assert other.store.disk_limit().begin(1, 0.0) is False
    one.leave()
    wait_for(lambda: other.permits, "the permit that the other core has given back")
    other.leave()


def test_a_job_that_is_given_up_takes_no_permit(kernels: list[Kernel]) -> None:
    one, other = kernels
    one.enter()
    wait_for(lambda: one.permits, "a permit")
    waiting = other.enter()
    other.run(waiting.cancel)
    one.leave()
    one.enter()
    wait_for(lambda: one.permits, "the next permit")
    assert not other.permits
    one.leave()


def test_the_permit_of_a_killed_process_is_free(kernels: list[Kernel], instance: str) -> None:
    command = [sys.executable, "-c", HOLDER, instance]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "True\n"
        kernels[0].enter()
        wait_for(lambda: kernels[0].jobs.waiting_count, "a job that waits")
        assert not kernels[0].permits
        holder.send_signal(signal.SIGKILL)
    wait_for(lambda: kernels[0].permits, "the permit of the process that died")
    kernels[0].leave()


def test_a_job_that_waits_ends_with_its_worker(kernels: list[Kernel]) -> None:
    one, other = kernels
    one.enter()
    wait_for(lambda: one.permits, "a permit")
    other.enter()
    wait_for(lambda: other.jobs.waiting_count, "a job that waits")
    other.run(other.jobs.close)
    one.leave()
    assert one.store.disk_limit().begin(1, 1.0)
    one.store.disk_limit().end()


def test_tasks_and_people_see_the_limit(kernels: list[Kernel]) -> None:
    device, at_a_time = kernels[0].jobs.limit_at(kernels[0].path)
    assert DiskLimit("x", device, at_a_time).at_a_time == 1
    assert [row["at_a_time"] for row in kernels[0].jobs.rows()] == [1]


def test_a_store_of_one_kernel_shares_no_limit(
    in_reactor: Any, store: FileStore, tmp_path: Path
) -> None:
    words = ["--io-shared", "/tmp=2", "--spool", str(tmp_path / "spool")]
    options = parser().parse_args(words)
    assert options.io_shared == ("/tmp", 2)
    with pytest.raises(StoreSpecError, match="--io-shared needs a store that kernels can share"):
        Worker(in_reactor.reactor, options)._disk_jobs(store)


@pytest.mark.parametrize("text", ["/tmp", "/tmp=0", "/no/such=2", "=2"])
def test_what_is_no_limit_of_a_directory_is_refused(text: str) -> None:
    with pytest.raises(SystemExit):
        parser().parse_args(["--io-shared", text])
