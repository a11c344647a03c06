"""Ends workers, callers and replicas while services run, and restarts the master."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

import ciel
from ciel.testing.homes import wait_for

pytestmark = pytest.mark.slow
WITHIN_S = 60.0


@ciel.service(slots=1)
class Slow:
    """Counts the calls that it has run."""

    def __init__(self, path: str = "") -> None:
        self.count = 0
        self.path = path

    def work(self, number: int) -> int:
        self.count += 1
        return number

    def ran(self) -> int:
        return self.count

    def me(self) -> tuple[int, str, int]:
        return os.getpid(), os.environ["CIEL_WORKER"], ciel.current_service().restarts


class Broken:
    """A service whose replicas cannot start."""

    def __init__(self) -> None:
        raise ValueError("no model here")

    def work(self) -> None:
        """Never runs."""


@pytest.fixture
def cluster() -> Iterator[ciel.LocalCluster]:
    with ciel.LocalCluster(workers=2, slots=2) as cluster:
        yield cluster


def test_a_replica_moves_to_another_worker_when_its_worker_is_killed(
    cluster: ciel.LocalCluster,
) -> None:
    with ciel.Client(cluster) as client:
        service = client.start(Slow)
        _, worker, _ = service.me().result(WITHIN_S)
        [netloc] = [w["netloc"] for w in client.ask("workers") if w["worker"] == worker]
        os.kill(_pid_of(netloc), signal.SIGKILL)

        def place() -> tuple[str, int]:
            """Return the worker of the replica, which may answer until its launcher ends it."""
            _, where, restarts = service.options(retry=True).me().result(WITHIN_S)
            return where, restarts

        wait_for(lambda: place() != (worker, 0), "the replica on the other worker", WITHIN_S)
        another, restarts = place()
        assert (another != worker, restarts) == (True, 1)


def _pid_of(netloc: str) -> int:
    """Return the process that listens at an address of this host."""
    port = netloc.rpartition(":")[2]
    listing = subprocess.run(["ss", "-ltnpH"], capture_output=True, text=True, check=True).stdout
    [line] = [line for line in listing.splitlines() if f":{port} " in line]
    return int(line.split("pid=")[1].split(",")[0])


def test_a_replica_goes_on_when_one_of_its_callers_is_killed(cluster: ciel.LocalCluster) -> None:
    def call_and_die(service: Any) -> None:
        calls = [service.work(number) for number in range(1000)]
        assert calls[3].result() == 3
        for call in calls:
            call.done()  # sends them all
        os.kill(os.getpid(), signal.SIGKILL)

    with ciel.Client(cluster, prints=False) as client:
        service = client.start(Slow)
        with pytest.raises(ciel.TaskKilledError):
            client.submit(call_and_die, service).result(WITHIN_S)
        wait_for(lambda: service.ran().result(WITHIN_S) == 1000, "the calls of the dead caller")


def test_a_service_that_cannot_start_fails_its_calls_with_the_reason(
    cluster: ciel.LocalCluster,
) -> None:
    with ciel.Client(cluster) as client:
        broken = client.start(ciel.service(restarts=1)(Broken))
        with pytest.raises(ciel.ServiceError, match="no model here") as raised:
            broken.work().result(WITHIN_S)
        assert raised.value.is_over


def test_services_go_on_when_the_master_is_killed(cluster: ciel.LocalCluster) -> None:
    with ciel.Client(cluster) as client:
        service = client.start(Slow)
        pid, _, _ = service.me().result(WITHIN_S)
        os.kill(_pid_of(client.location.url), signal.SIGKILL)
        assert service.me().result(WITHIN_S)[0] == pid

        def is_known() -> Any:
            rows = client.ask("service", {"job": "service Slow"})["replicas"]
            return rows[0]["address"]

        wait_for(is_known, "the replica's address at the new master", WITHIN_S)


def test_many_large_calls_wait_for_room_and_all_arrive(cluster: ciel.LocalCluster) -> None:
    with ciel.Client(cluster) as client:
        service = client.start(Slow)
        calls = [service.work(b"x" * (8 << 20)) for _ in range(20)]
        assert all(len(call.result(WITHIN_S)) == 8 << 20 for call in calls)


def test_services_end_with_their_client(cluster: ciel.LocalCluster) -> None:
    with ciel.Client(cluster) as client:
        pid, _, _ = client.start(Slow).me().result(WITHIN_S)
    wait_for(lambda: not os.path.exists(f"/proc/{pid}"), "the end of the replica", WITHIN_S)
