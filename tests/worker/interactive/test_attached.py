"""Tests attached processes: which may be attached, and how the worker notices their end."""

# MemoryReactor has no annotations.
# mypy: allow-untyped-calls

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from twisted.internet.testing import MemoryReactor

from ciel.core.ids import JobId
from ciel.testing.homes import descriptors_of
from ciel.worker.interactive.attached import (
    CUT_OFF,
    ENDED,
    AttachedProcess,
    AttachRefusedError,
    Left,
)
from ciel.worker.resources.processes import _is_from_here

JOB = JobId("job")
PID_MAX = 1 << 22


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"\n")
    process.stdout.read(1)  # by now the process executes `cat`
    yield process
    process.kill()
    process.communicate()


class Watched:
    """An attached process, and the reports of its end."""

    def __init__(self, in_reactor: Any, pid: int) -> None:
        self.told: list[Left] = []
        self.heard = threading.Event()
        self.guest = in_reactor(AttachedProcess, in_reactor.reactor, pid, JOB)
        in_reactor(self.guest.watch, self._left)

    def _left(self, how: Left) -> None:
        self.told.append(how)
        self.heard.set()


def test_the_end_of_a_process_is_told_once(
    in_reactor: Any, process: subprocess.Popen[bytes]
) -> None:
    before = descriptors_of(os.getpid())
    watched = Watched(in_reactor, process.pid)
    assert watched.guest.name == f"process {process.pid} (cat)"
    assert watched.guest.id == "process:job"
    process.kill()
    assert watched.heard.wait(20)
    in_reactor(watched.guest.cut_off)
    in_reactor(lambda: None)
    assert watched.told == [ENDED]
    assert descriptors_of(os.getpid()) == before


def test_one_that_is_cut_off_lives_on(in_reactor: Any, process: subprocess.Popen[bytes]) -> None:
    watched = Watched(in_reactor, process.pid)
    for _ in range(2):
        in_reactor(watched.guest.cut_off)
    assert watched.heard.wait(20)
    assert watched.told == [CUT_OFF]
    assert process.poll() is None


def test_of_one_that_is_closed_nothing_is_told(
    in_reactor: Any, process: subprocess.Popen[bytes]
) -> None:
    watched = Watched(in_reactor, process.pid)

    def close() -> None:
        watched.guest.cut_off()
        watched.guest.close()

    in_reactor(close)
    in_reactor(lambda: None)
    assert watched.told == []


def refusal(pid: int) -> tuple[int, str]:
    with pytest.raises(AttachRefusedError) as caught:
        AttachedProcess(MemoryReactor(), pid, JOB)
    return caught.value.status, str(caught.value)


def test_who_is_not_there_or_not_ours_is_refused(process: subprocess.Popen[bytes]) -> None:
    before = descriptors_of(os.getpid())
    assert refusal(PID_MAX + 1)[0] == 404
    assert refusal(os.getpid()) == (
        400,
        f"process {os.getpid()} is this worker; attach another process",
    )
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # the zombie keeps its process id
    assert refusal(process.pid) == (404, f"process {process.pid} has ended")
    assert descriptors_of(os.getpid()) == before


def test_one_of_another_user_is_refused() -> None:
    """A process of this user that acts as another user is refused as well."""
    if os.geteuid() != 0:
        assert refusal(1)[0] == 403
        return
    for change in (lambda: os.setuid(65534), lambda: os.setresuid(0, 65534, 0)):
        other = subprocess.Popen(["sleep", "1000"], preexec_fn=change)
        try:
            status, why = refusal(other.pid)
        finally:
            other.kill()
            other.wait()
        assert (status, "belongs to another user" in why) == (403, True)


def test_one_that_sees_other_files_is_refused(
    process: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ciel.worker.interactive.attached.os.readlink", lambda path: path)
    status, why = refusal(process.pid)
    assert (status, "is in another mount namespace" in why) == (400, True)


class Asked:
    """A request that has only the addresses of both ends."""

    def __init__(self, peer: str, own: str) -> None:
        self.peer, self.own = peer, own

    def getClientAddress(self) -> Any:  # noqa: N802  # Twisted's name
        return type("Address", (), {"host": self.peer})

    def getHost(self) -> Any:  # noqa: N802  # Twisted's name
        return type("Address", (), {"host": self.own})


@pytest.mark.parametrize(
    "peer,own,expected",
    [
        ("127.0.0.1", "127.0.0.1", True),
        ("::1", "::1", True),
        ("::ffff:127.0.0.1", "::", True),
        ("10.0.0.7", "10.0.0.7", True),
        ("::ffff:10.0.0.7", "10.0.0.7", True),
        ("10.0.0.8", "10.0.0.7", False),
        ("", "", False),
    ],
)
def test_a_request_is_from_here_by_loopback_or_if_both_ends_have_our_address(
    peer: str, own: str, expected: bool
) -> None:
    asked: Any = Asked(peer, own)
    assert _is_from_here(asked) is expected
