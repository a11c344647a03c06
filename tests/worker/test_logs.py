"""Tests logs of jobs: files on a disk, and HTTP requests that wait until a log grows."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ciel.access.keys import Key
from ciel.core.ids import JobId
from ciel.net.transports import FrontDoorFactory, listen
from ciel.storage.files import FileStore
from ciel.testing.homes import wait_for
from ciel.worker import logs as module
from ciel.worker.logs import JobLogs
from ciel.worker.resources.root import WorkerSite

KEY = Key(bytes(range(32)))
JOB = JobId("a" * 32)
OTHER = JobId("b" * 32)


class Served:
    """A worker's logs, and clients that read them over HTTP."""

    def __init__(self, in_reactor: Any, store: FileStore, directory: Path) -> None:
        self.run = in_reactor
        reactor = in_reactor.reactor
        self.logs = JobLogs(reactor, directory)
        site = WorkerSite(reactor, KEY)
        site.serve_logs(self.logs, Path("no-kept"))
        self.channels = site.site.channels
        house = FrontDoorFactory(reactor, lambda: None, site.site)  # type: ignore[arg-type, return-value]  # no frames come
        self.listener = in_reactor(listen, reactor, "127.0.0.1:0", house)
        self.netloc = str(self.listener.address)
        site.serve_as(self.netloc)

    def append(self, job: JobId, task: str, text: str) -> None:
        self.run(self.logs.append, job, task, text)

    def connect(self, target: str) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection(self.netloc, timeout=20)
        connection.request("GET", target, headers={"Authorization": f"Bearer {KEY.text()}"})
        return connection

    def get(self, target: str) -> tuple[int, bytes]:
        connection = self.connect(target)
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        return answer.status, content

    def waiting(self) -> int:
        return int(self.run(lambda: sum(map(len, self.logs._waiting.values()))))


@pytest.fixture
def served(in_reactor: Any, store: FileStore, tmp_path: Path) -> Iterator[Served]:
    served = Served(in_reactor, store, tmp_path / "logs")
    yield served
    in_reactor(served.listener.close)
    wait_for(lambda: not served.channels, "the end of connections")


def test_each_line_has_its_task_in_front(served: Served) -> None:
    served.append(JOB, "17", "one\ntwo")
    served.append(JOB, "18", "three")
    served.append(OTHER, "1", "else")
    assert served.get(f"/log/{JOB}") == (200, b"[17] one\n[17] two\n[18] three\n")


def test_a_name_cannot_break_a_line(served: Served) -> None:
    served.append(JOB, "a\nb\x1b[31m", "text")
    assert served.get(f"/log/{JOB}") == (200, b"[a\\nb\\x1b[31m] text\n")


def test_a_reader_goes_on_from_an_offset(served: Served) -> None:
    served.append(JOB, "1", "one\ntwo")
    assert served.get(f"/log/{JOB}?offset=8") == (200, b"[1] two\n")
    assert served.get(f"/log/{JOB}?offset=16") == (200, b"")
    assert served.get(f"/log/{JOB}?offset=99999") == (200, b"")


def test_at_an_offset_that_no_file_can_have_a_log_has_nothing(served: Served) -> None:
    served.append(JOB, "1", "one")
    assert served.get(f"/log/{JOB}?offset={10**18 - 1}") == (200, b"")


def test_a_job_that_complained_nothing_has_an_empty_log(served: Served) -> None:
    assert served.get(f"/log/{JOB}") == (200, b"")


@pytest.mark.parametrize("target", ["/log/..%2Fx", "/log/.x", f"/log/{JOB}?offset=-1"])
def test_what_names_no_log(served: Served, target: str) -> None:
    assert served.get(target)[0] == 400


def test_who_waits_is_answered_when_the_log_grows(served: Served) -> None:
    served.append(JOB, "1", "one")
    connection = served.connect(f"/log/{JOB}?offset=8&wait=1")
    wait_for(lambda: served.waiting() == 1, "the reader")
    served.append(OTHER, "1", "not this one")
    assert served.waiting() == 1
    served.append(JOB, "2", "more")
    assert connection.getresponse().read() == b"[2] more\n"
    connection.close()
    assert served.waiting() == 0


def test_who_waits_in_vain_is_told_so(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GROWTH_WAIT_S", 0.05)
    assert served.get(f"/log/{JOB}?wait=1") == (200, b"")
    assert served.waiting() == 0


def test_a_reader_that_leaves_is_forgotten(served: Served) -> None:
    connection = served.connect(f"/log/{JOB}?wait=1")
    wait_for(lambda: served.waiting() == 1, "the reader")
    connection.close()
    wait_for(lambda: served.waiting() == 0, "its end")


def test_several_readers_wait_for_one_log(served: Served) -> None:
    heard: list[bytes] = []
    target = f"/log/{JOB}?wait=1"
    readers = [
        threading.Thread(target=lambda: heard.append(served.get(target)[1])) for _ in range(3)
    ]
    for reader in readers:
        reader.start()
    wait_for(lambda: served.waiting() == 3, "the readers")
    served.append(JOB, "1", "one")
    for reader in readers:
        reader.join(10)
    assert heard == [b"[1] one\n"] * 3


def test_the_logs_of_the_jobs_written_to_last_are_kept(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "JOBS_KEPT", 2)
    for job in ("first", "second", "first", "third"):
        served.append(JobId(job), "1", "text")
    assert {path.name for path in (tmp_path / "logs").iterdir()} == {
        "job-first.log", "job-third.log",
    }  # fmt: skip


def test_logs_of_a_worker_before_are_there_and_count(
    in_reactor: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "JOBS_KEPT", 2)
    before = JobLogs(in_reactor.reactor, tmp_path / "logs")
    before.append(JobId("first"), "1", "text")
    before.append(JobId("second"), "1", "text")
    after = JobLogs(in_reactor.reactor, tmp_path / "logs")
    assert after.read(JobId("second"), 0) == b"[1] text\n"
    after.append(JobId("third"), "1", "text")
    assert len(list((tmp_path / "logs").iterdir())) == 2


def test_a_log_is_bounded_and_says_so(
    in_reactor: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOG_MAX_BYTES", 100)
    logs = JobLogs(in_reactor.reactor, tmp_path)
    for number in range(10):
        logs.append(JOB, str(number), "x" * 30)
    lines = logs.read(JOB, 0).decode().splitlines()
    assert len(lines) == 4
    assert "later output is missing" in lines[-1]


def test_who_writes_learns_where_it_stands(
    in_reactor: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOG_MAX_BYTES", 20)
    logs = JobLogs(in_reactor.reactor, tmp_path)
    start, size_bytes = logs.append(JOB, "a", "one\ntwo")
    assert logs.read(JOB, start)[:size_bytes] == b"[a] one\n[a] two\n"
    start, size_bytes = logs.append(JOB, "b", "three")
    assert logs.read(JOB, start)[:size_bytes].startswith(b"[b] three\n(this log is full")
    assert logs.append(JOB, "c", "four")[1] == 0
