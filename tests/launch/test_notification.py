"""Tests the reports to the service manager with a real socket of datagrams."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from ciel.launch.notification import STATUS_MAX_LENGTH, ServiceReports


@pytest.fixture
def received(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as found:
        found.bind(str(tmp_path / "notify"))
        found.setblocking(False)
        yield found


def services(tmp_path: Path, **variables: str) -> ServiceReports:
    return ServiceReports({"NOTIFY_SOCKET": str(tmp_path / "notify"), **variables})


def test_it_reports_the_start_the_state_and_the_end(
    received: socket.socket, tmp_path: Path
) -> None:
    manager = services(tmp_path)
    manager.ready("2 workers")
    manager.describe("2 workers")
    manager.describe("3 workers\nREADY=0")
    manager.alive()
    manager.stopping()
    manager.stopping()
    found = [received.recv(2000) for _ in range(4)]
    assert found == [
        b"READY=1\nSTATUS=2 workers", b"STATUS=3 workers READY=0", b"WATCHDOG=1", b"STOPPING=1",
    ]  # fmt: skip
    with pytest.raises(BlockingIOError):
        received.recv(1)


def test_a_status_has_a_bounded_length(received: socket.socket, tmp_path: Path) -> None:
    services(tmp_path).describe("x" * 100_000)
    assert len(received.recv(200_000)) == len("STATUS=") + STATUS_MAX_LENGTH


def test_it_finds_an_abstract_socket(tmp_path: Path) -> None:
    name = f"ciel-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as found:
        found.bind(f"\0{name}")
        found.setblocking(False)
        ServiceReports({"NOTIFY_SOCKET": f"@{name}"}).stopping()
        assert found.recv(100) == b"STOPPING=1"


def test_without_a_service_manager_or_after_its_end_nothing_is_sent(tmp_path: Path) -> None:
    for manager in (ServiceReports({}), services(tmp_path)):
        manager.ready("")
        manager.alive()
    assert not ServiceReports({})


def test_programs_do_not_get_the_variables_and_a_successor_does() -> None:
    environ = {"NOTIFY_SOCKET": "/run/s", "WATCHDOG_USEC": "5", "WATCHDOG_PID": "1", "PATH": "/bin"}
    manager = ServiceReports(environ)
    assert environ == {"PATH": "/bin"}
    assert manager.variables.keys() == {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"}


@pytest.mark.parametrize(
    "limit_us, process, every_s",
    [
        ("10000000", "own", 4.0),
        ("10000000", None, 4.0),
        ("10000000", "1", None),  # the variables describe the parent process
        ("0", None, None),
        ("soon", None, None),
    ],
)
def test_it_reports_well_before_the_watchdog_acts(
    limit_us: str, process: str | None, every_s: float | None
) -> None:
    environ = {"WATCHDOG_USEC": limit_us}
    if process is not None:
        environ["WATCHDOG_PID"] = str(os.getpid()) if process == "own" else process
    assert ServiceReports(environ).alive_every_s == every_s
