"""A worker's site on a real port, asked over real connections."""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ciel.access.keys import Key, Role
from ciel.access.tickets import make_ticket
from ciel.core.ids import ObjectId
from ciel.core.refs import Concrete, Value
from ciel.net.errors import HttpError
from ciel.net.transfers import CHECKSUM_HEADER
from ciel.net.transports import FrontDoorFactory, listen
from ciel.storage.files import FileStore, open_disk
from ciel.testing.homes import wait_for
from ciel.wire.references import from_array
from ciel.worker.logs import JobLogs
from ciel.worker.resources import WorkerSite, byte_range
from ciel.worker.streaming import Streams

KEY = Key(bytes(range(32)))
HOST = "one-host"
CONTENT = bytes(range(256)) * 10_000


class Served:
    """A worker's site, and requests to it with tickets of their own."""

    def __init__(self, in_reactor: Any, store: FileStore) -> None:
        self.run = in_reactor
        self.store = store
        self.uploaded: list[str] = []
        reactor = in_reactor.reactor
        logs = JobLogs(reactor, Path("no-logs"))
        self.streams = in_reactor(Streams, reactor)
        self.site = WorkerSite(
            reactor,
            KEY,
            store,
            self.uploaded.append,
            logs,
            self.streams,
            figures=lambda: {"fetches": {"linked": 7}},
        )
        house = FrontDoorFactory(reactor, lambda: None, self.site.site)  # type: ignore[arg-type, return-value]  # no frames come
        self.listener = in_reactor(listen, reactor, "127.0.0.1:0", house)
        self.netloc = str(self.listener.address)
        self.site.serve_as(self.netloc)

    def ask(
        self,
        method: str,
        target: str,
        body: bytes | None = None,
        *,
        role: Role = Role.SUBMIT,
        headers: dict[str, str] | None = None,
    ) -> tuple[int, http.client.HTTPMessage, bytes]:
        connection = http.client.HTTPConnection(self.netloc, timeout=20)
        key = KEY.derive(role)
        assert key is not None
        ticket = make_ticket(key, method, self.netloc, target, time.time())
        fields = {"Authorization": ticket, "Connection": "close", **(headers or {})}
        connection.request(method, target, body, fields)
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        return answer.status, answer.headers, content

    def get(self, target: str, **headers: str) -> tuple[int, http.client.HTTPMessage, bytes]:
        return self.ask("GET", target, headers=headers)

    def open_halfway(self, target: str, sent: bytes) -> socket.socket:
        """Begin an upload that promises more than it sends."""
        key = KEY.derive(Role.SUBMIT)
        assert key is not None
        ticket = make_ticket(key, "POST", self.netloc, target, time.time())
        head = (
            f"POST {target} HTTP/1.1\r\nHost: {self.netloc}\r\nAuthorization: {ticket}\r\n"
            f"Content-Length: {10 * len(sent)}\r\n\r\n"
        )
        address = self.listener.address
        connection = socket.create_connection((address.host, address.port), 10)
        connection.sendall(head.encode() + sent)
        return connection

    def leave(self) -> None:
        self.run(self.listener.close)
        self.run(self.streams.close)
        wait_for(lambda: not self.site.site.channels, "the end of connections")


@pytest.fixture
def served(in_reactor: Any, store: FileStore) -> Iterator[Served]:
    served = Served(in_reactor, store)
    yield served
    served.leave()


def being_written(path: Path) -> list[str]:
    return [p.name for p in path.glob("store/incoming/*/*") if p.name != "lock"]


# --- ranges ---------------------------------------------------------------------------------------

RANGES: list[tuple[str, int, tuple[int, int] | None]] = [
    ("bytes=0-0", 10, (0, 1)),
    ("bytes=0-9", 10, (0, 10)),
    ("bytes=3-5", 10, (3, 6)),
    ("bytes=3-", 10, (3, 10)),
    ("bytes=9-99", 10, (9, 10)),
    ("bytes=-1", 10, (9, 10)),
    ("bytes=-99", 10, (0, 10)),
    (" bytes=1-2 ", 10, (1, 3)),
    ("", 10, None),
    ("bytes=-", 10, None),
    ("bytes=0-1,3-4", 10, None),
    ("bytes=a-b", 10, None),
    ("bytes=1.5-2", 10, None),
    ("bytes=5-3", 10, None),
    ("bytes=20-3", 10, None),
    ("items=0-1", 10, None),
    (f"bytes={'9' * 5000}-", 10, None),
]
OUTSIDE = [
    ("bytes=10-", 10),
    ("bytes=10-20", 10),
    ("bytes=-0", 10),
    ("bytes=0-", 0),
    ("bytes=-1", 0),
]


@pytest.mark.parametrize("header, size_bytes, expected", RANGES, ids=lambda value: str(value)[:20])
def test_what_a_range_means(header: str, size_bytes: int, expected: tuple[int, int] | None) -> None:
    assert byte_range(header, size_bytes) == expected


@pytest.mark.parametrize("header, size_bytes", OUTSIDE)
def test_a_range_outside_is_refused_with_the_size(header: str, size_bytes: int) -> None:
    with pytest.raises(HttpError) as caught:
        byte_range(header, size_bytes)
    assert caught.value.status == 416


# --- objects out ----------------------------------------------------------------------------------


@pytest.mark.parametrize("content", [b"", b"x", CONTENT], ids=["empty", "tiny", "large"])
def test_an_object_is_read_whole(served: Served, content: bytes) -> None:
    served.store.put("x", content)
    status, headers, body = served.get("/data/x")
    assert (status, body == content) == (200, True)
    assert headers["Content-Length"] == str(len(content))
    assert headers["Accept-Ranges"] == "bytes"
    assert headers[CHECKSUM_HEADER] == served.store.checksum("x")


def test_a_part_of_an_object(served: Served) -> None:
    served.store.put("x", CONTENT)
    status, headers, body = served.get("/data/x", Range="bytes=1000000-2000000")
    assert status == 206
    assert body == CONTENT[1_000_000:2_000_001]
    assert headers["Content-Range"] == f"bytes 1000000-2000000/{len(CONTENT)}"


def test_a_part_that_is_not_there(served: Served) -> None:
    served.store.put("x", b"ten bytes.")
    status, headers, _ = served.get("/data/x", Range="bytes=10-")
    assert status == 416
    assert headers["Content-Range"] == "bytes */10"


def test_a_head_has_no_body(served: Served) -> None:
    served.store.put("x", CONTENT)
    status, headers, body = served.ask("HEAD", "/data/x")
    assert (status, headers["Content-Length"], body) == (200, str(len(CONTENT)), b"")


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("target, expected", [("/data/absent", 404), ("/data/..%2Fx", 400)])
def test_what_is_no_object_here(served: Served, method: str, target: str, expected: int) -> None:
    assert served.ask(method, target)[0] in (expected, 404)


def test_an_object_that_is_deleted_while_it_is_read_comes_whole(served: Served) -> None:
    large = bytes(30_000_000)
    served.store.put("x", large)
    connection = http.client.HTTPConnection(served.netloc, timeout=20)
    key = KEY.derive(Role.READ)
    assert key is not None
    ticket = make_ticket(key, "GET", served.netloc, "/data/x", time.time())
    connection.request("GET", "/data/x", headers={"Authorization": ticket})
    answer = connection.getresponse()
    served.store.delete("x")
    assert len(answer.read()) == len(large)
    connection.close()


def test_a_reader_that_leaves_is_no_trouble(served: Served) -> None:
    served.store.put("x", bytes(30_000_000))
    connection = http.client.HTTPConnection(served.netloc, timeout=20)
    key = KEY.derive(Role.READ)
    assert key is not None
    ticket = make_ticket(key, "GET", served.netloc, "/data/x", time.time())
    connection.request("GET", "/data/x", headers={"Authorization": ticket})
    connection.getresponse().read(10)
    connection.close()
    assert served.get("/healthz")[0] == 200


# --- uploads --------------------------------------------------------------------------------------


@pytest.mark.parametrize("size_bytes", [0, 1, 1023])
def test_a_small_upload_travels_in_its_reference(
    served: Served, tmp_path: Path, size_bytes: int
) -> None:
    status, _, body = served.ask("POST", "/control/data/x", bytes(size_bytes))
    assert status == 201
    assert from_array(json.loads(body)) == Value.of(ObjectId("x"), bytes(size_bytes))
    assert (list(served.store), served.uploaded, being_written(tmp_path)) == ([], [], [])


@pytest.mark.parametrize("content", [CONTENT[:1024], CONTENT], ids=len)
def test_a_larger_upload_is_stored(served: Served, tmp_path: Path, content: bytes) -> None:
    status, _, body = served.ask("POST", "/control/data/x", content)
    assert status == 201
    expected = Concrete(ObjectId("x"), len(content), frozenset((served.netloc,)))
    assert from_array(json.loads(body)) == expected
    assert served.store.get("x") == content
    assert (served.uploaded, being_written(tmp_path)) == (["x"], [])


def test_the_same_upload_again_is_welcome_another_one_conflicts(
    served: Served, tmp_path: Path
) -> None:
    assert served.ask("POST", "/control/data/x", CONTENT)[0] == 201
    assert served.ask("POST", "/control/data/x", CONTENT)[0] == 201
    status, _, body = served.ask("POST", "/control/data/x", CONTENT[::-1])
    assert status == 409
    assert "x" in json.loads(body)["error"]
    assert served.store.get("x") == CONTENT
    assert being_written(tmp_path) == []


def test_an_upload_that_stops_half_way_leaves_nothing(served: Served, tmp_path: Path) -> None:
    with served.open_halfway("/control/data/x", CONTENT):
        wait_for(lambda: being_written(tmp_path), "the beginning")
    wait_for(lambda: served.store.usage().reserved_bytes == 0, "the end")
    assert being_written(tmp_path) == []
    assert (list(served.store), served.uploaded) == ([], [])


def test_an_upload_to_a_full_store(in_reactor: Any, tmp_path: Path) -> None:
    with open_disk({"capacity": "64KiB"}, tmp_path / "store") as store:
        served = Served(in_reactor, store)
        assert served.ask("POST", "/control/data/x", CONTENT)[0] == 507
        in_pieces = {"Transfer-Encoding": "chunked"}
        body = b"%x\r\n%s\r\n0\r\n\r\n" % (len(CONTENT), CONTENT)
        status, _, answer = served.ask("POST", "/control/data/x", body, headers=in_pieces)
        assert (status, json.loads(answer)["error"][:9]) == (507, "no space:")
        assert served.ask("POST", "/control/data/x", CONTENT[:2000])[0] == 201
        assert being_written(tmp_path) == []
        served.leave()


@pytest.mark.parametrize("role, expected", [(Role.READ, 403), (Role.WORKER, 403)])
def test_only_clients_upload(served: Served, role: Role, expected: int) -> None:
    assert served.ask("POST", "/control/data/x", CONTENT, role=role)[0] == expected
    assert list(served.store) == []


# --- counters -------------------------------------------------------------------------------------


def test_what_was_counted_is_told_to_who_may_read(served: Served) -> None:
    status, _, body = served.ask("GET", "/api/v1/counters", role=Role.READ)
    assert (status, json.loads(body)) == (200, {"fetches": {"linked": 7}})
