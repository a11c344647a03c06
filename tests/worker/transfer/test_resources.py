"""Tests a worker's site on a real port, with requests over real connections."""

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
from ciel.core.refs import Concrete, Reference, Value
from ciel.net.errors import HttpError
from ciel.net.transfers import CHECKSUM_HEADER
from ciel.net.transports import FrontDoorFactory, listen
from ciel.storage.files import FileStore, open_disk
from ciel.storage.interface import Verify
from ciel.testing.homes import wait_for
from ciel.wire.references import from_json
from ciel.worker.checksums import Checksums
from ciel.worker.logs import JobLogs
from ciel.worker.resources import uploads
from ciel.worker.resources.data import byte_range
from ciel.worker.resources.root import Counters, WorkerSite
from ciel.worker.resources.uploads import IncomingUploads
from ciel.worker.streams.growing import Streams
from ciel.worker.transfer import sending

KEY = Key(bytes(range(32)))
HOST = "one-host"
CONTENT = bytes(range(256)) * 10_000


class Served:
    """A worker's site, and requests to it, each with its own ticket."""

    def __init__(self, in_reactor: Any, store: FileStore) -> None:
        self.run = in_reactor
        self.store = store
        self.uploaded: list[str] = []
        reactor = in_reactor.reactor
        self.streams = in_reactor(Streams, reactor)
        self.site = WorkerSite(reactor, KEY)
        self.site.routes.add("/api/v1/counters", Counters(lambda: {"fetches": {"linked": 7}}))
        house = FrontDoorFactory(reactor, lambda: None, self.site.site)  # type: ignore[arg-type, return-value]  # no frames come
        self.listener = in_reactor(listen, reactor, "127.0.0.1:0", house)
        self.netloc = str(self.listener.address)
        self.site.serve_as(self.netloc)
        self.uploads = IncomingUploads(reactor, store, self.netloc, self.uploaded.append)
        checksums = Checksums(reactor, store, Verify.FIRST)
        self.site.serve_objects(store, self.streams, self.uploads, checksums)
        self.site.serve_logs(JobLogs(reactor, Path("no-logs")), Path("no-kept"))

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
        """Start an upload that announces more bytes than it sends."""
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
        self.run(self.uploads.close)
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


# --- downloads ------------------------------------------------------------------------------------


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
    assert from_json(json.loads(body)) == Value.of(ObjectId("x"), bytes(size_bytes))
    assert (list(served.store), served.uploaded, being_written(tmp_path)) == ([], [], [])


@pytest.mark.parametrize("content", [CONTENT[:1024], CONTENT], ids=len)
def test_a_larger_upload_is_stored(served: Served, tmp_path: Path, content: bytes) -> None:
    status, _, body = served.ask("POST", "/control/data/x", content)
    assert status == 201
    expected = Concrete(ObjectId("x"), len(content), frozenset((served.netloc,)))
    assert from_json(json.loads(body)) == expected
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


# --- uploads in chunks ----------------------------------------------------------------------------


def begin(served: Served, chunk: bytes = b"") -> None:
    """Start an upload of `x`, with `chunk` as its first chunk unless it is empty."""
    assert served.ask("POST", "/control/upload/x")[0] == 201
    if chunk:
        assert served.ask("POST", "/control/upload/x/0", chunk)[0] == 200


def come(served: Served) -> int:
    """Return how many bytes of `x` have arrived."""
    status, _, body = served.ask("GET", "/control/upload/x", role=Role.READ)
    assert status == 200
    return int(json.loads(body)["offset"])


def finish(served: Served, rest: bytes, size_bytes: int) -> Reference:
    assert served.ask("POST", f"/control/upload/x/{size_bytes - len(rest)}", rest)[0] == 200
    status, _, body = served.ask("POST", "/control/upload/x/commit", b"%d" % size_bytes)
    assert status == 201
    ref: Reference = from_json(json.loads(body))
    return ref


@pytest.mark.parametrize("content", [CONTENT, CONTENT[:1000]], ids=["large", "small"])
def test_an_upload_in_chunks_becomes_an_object(
    served: Served, tmp_path: Path, content: bytes
) -> None:
    begin(served, content[:10])
    assert json.loads(served.get("/control/upload")[2]) == [{"id": "x", "offset": 10}]
    ref = finish(served, content[10:], len(content))
    if len(content) < 1024:
        assert ref == Value.of(ObjectId("x"), content)
    else:
        assert ref == Concrete(ObjectId("x"), len(content), frozenset((served.netloc,)))
        assert (served.store.get("x"), served.uploaded) == (content, ["x"])
    assert served.get("/control/upload/x")[0] == 404
    assert being_written(tmp_path) == []


STEPS = {
    "a gap": ("/control/upload/x/4000", b"y", 409),
    "an overlap": ("/control/upload/x/0", b"y", 409),
    "no number": ("/control/upload/x/-1", b"y", 400),
    "a number with an exponent": ("/control/upload/x/3e3", b"y", 400),
    "too many digits": (f"/control/upload/x/{'9' * 19}", b"y", 400),
    "a begin of what has begun": ("/control/upload/x", b"", 409),
    "too small an end": ("/control/upload/x/commit", b"2999", 409),
    "too large an end": ("/control/upload/x/commit", b"3001", 409),
    "an end in words": ("/control/upload/x/commit", b'"3000"', 400),
    "a fractional end": ("/control/upload/x/commit", b"3000.0", 400),
    "an end below nothing": ("/control/upload/x/commit", b"-1", 400),
    "what has not begun": ("/control/upload/z/0", b"y", 404),
    "the end of what has not begun": ("/control/upload/z/commit", b"0", 404),
    "no id": ("/control/upload/..%2fx/0", b"y", 400),
}


@pytest.mark.parametrize("target, body, expected", STEPS.values(), ids=STEPS)
def test_a_wrong_step_leaves_an_upload_as_it_was(
    served: Served, target: str, body: bytes, expected: int
) -> None:
    begin(served, CONTENT[:3000])
    status, _, answer = served.ask("POST", target, body)
    assert (status, len(json.loads(answer)["error"].splitlines())) == (expected, 1)
    finish(served, CONTENT[3000:], len(CONTENT))
    assert served.store.get("x") == CONTENT


@pytest.mark.parametrize("body", [b"[]", b'{"size": 1}', b'{"size_bytes": true}', b"{"])
def test_an_upload_begins_with_nothing_but_its_size(served: Served, body: bytes) -> None:
    assert served.ask("POST", "/control/upload/x", body)[0] == 400
    assert served.get("/control/upload")[2] == b"[]\n"


def test_a_chunk_that_stops_half_way_is_gone_on_with_from_there(served: Served) -> None:
    begin(served)
    half = CONTENT[:1_000_000]
    with served.open_halfway("/control/upload/x/0", half):
        wait_for(lambda: come(served) == len(half), "the first half")
        status, _, body = served.ask("POST", f"/control/upload/x/{len(half)}", b"y")
        assert (status, json.loads(body)["error"]) == (
            409,
            "another chunk of x is being received; wait for its end",
        )
        assert served.ask("DELETE", "/control/upload/x")[0] == 409
        assert served.ask("POST", "/control/upload/x/commit", b"%d" % len(half))[0] == 409
    wait_for(
        lambda: served.ask("POST", f"/control/upload/x/{come(served)}", b"")[0] == 200, "its end"
    )
    finish(served, CONTENT[len(half) :], len(CONTENT))
    assert served.store.get("x") == CONTENT


def test_an_upload_in_chunks_that_finds_no_room_is_given_up(
    in_reactor: Any, tmp_path: Path
) -> None:
    with open_disk({"capacity": "64KiB"}, tmp_path / "store") as store:
        served = Served(in_reactor, store)
        assert served.ask("POST", "/control/upload/x", b'{"size_bytes": 100000}')[0] == 507
        begin(served, CONTENT[:30_000])
        assert served.ask("POST", "/control/upload/x/30000", CONTENT)[0] == 507
        assert served.get("/control/upload/x")[0] == 404
        assert (store.usage().reserved_bytes, being_written(tmp_path)) == (0, [])
        served.leave()


def test_an_upload_can_be_given_up(served: Served, tmp_path: Path) -> None:
    begin(served, CONTENT)
    assert served.ask("DELETE", "/control/upload/x")[0] == 200
    assert served.get("/control/upload/x")[0] == 404
    assert being_written(tmp_path) == []


def test_an_upload_that_nobody_goes_on_with_is_given_up(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "IDLE_MAX_S", 0.05)
    assert served.ask("POST", "/control/upload/x")[0] == 201
    wait_for(lambda: served.get("/control/upload/x")[0] == 404, "its end")
    assert being_written(tmp_path) == []


def test_uploads_under_way_are_limited(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "PENDING_MAX", 1)
    begin(served)
    assert served.ask("POST", "/control/upload/y")[0] == 503


def test_an_upload_in_chunks_with_other_content_conflicts(served: Served, tmp_path: Path) -> None:
    served.store.put("x", CONTENT)
    begin(served, CONTENT[::-1])
    assert served.ask("POST", "/control/upload/x/commit", b"%d" % len(CONTENT))[0] == 409
    assert (served.store.get("x"), being_written(tmp_path)) == (CONTENT, [])


# --- routes of the original -----------------------------------------------------------------------


def test_an_upload_without_a_name_is_given_one(served: Served) -> None:
    refs = []
    for _ in range(2):
        status, _, body = served.ask("POST", "/control/data/", CONTENT)
        assert status == 201
        refs.append(from_json(json.loads(body)))
    assert refs[0].id != refs[1].id
    assert served.get(f"/control/data/{refs[0].id}")[2] == CONTENT
    status, headers, _ = served.ask("HEAD", f"/control/data/{refs[0].id}", role=Role.READ)
    assert (status, headers["Content-Length"]) == (200, str(len(CONTENT)))


def test_what_there_is_of_an_object_by_now(served: Served) -> None:
    target = "/data/.producer:x"
    assert served.get(target)[0] == 404
    writer = served.store.begin("x")
    growing = served.run(served.streams.open, "x", writer.fileno())
    writer.write(CONTENT[:1000])
    assert served.get(target)[2] == CONTENT[:1000]
    status, headers, body = served.get(target, Range="bytes=600-")
    assert (status, headers["Content-Range"], body) == (
        206,
        "bytes 600-999/1000",
        CONTENT[600:1000],
    )
    assert served.get(target, Range="bytes=1000-")[0] == 416
    writer.write(CONTENT[1000:])
    assert served.get(target, Range="bytes=1000-")[2] == CONTENT[1000:]
    writer.commit()
    served.run(served.streams.finish, growing)
    assert served.get(target)[2] == CONTENT
    assert served.get("/data/.producer:..")[0] == 400


def test_the_list_of_blocks_has_a_record_for_each(served: Served) -> None:
    longest, too_long = "n" * 119, "n" * 120
    for name, size_bytes in (("x", 5), (longest, 2**20), (too_long, 7)):
        served.store.put(name, bytes(size_bytes))
    status, headers, body = served.get("/control/data/")
    assert (status, len(body), headers["Ciel-Left-Out"]) == (200, 2 * 128, "1")
    records = {body[at : at + 128] for at in (0, 128)}
    assert records == {
        b"\x01x" + bytes(118) + (5).to_bytes(8, "big"),
        b"\x77" + longest.encode() + (2**20).to_bytes(8, "big"),
    }
    status, headers, body = served.ask("HEAD", "/control/data/", role=Role.READ)
    assert (status, headers["Content-Length"], body) == (200, "256", b"")


def test_a_reader_that_takes_nothing_is_cut_off(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "STALLED_S", 0.2)
    served.store.put("x", bytes(30_000_000))
    connection = http.client.HTTPConnection(served.netloc, timeout=20)
    key = KEY.derive(Role.READ)
    assert key is not None
    ticket = make_ticket(key, "GET", served.netloc, "/data/x", time.time())
    connection.request("GET", "/data/x", headers={"Authorization": ticket})
    wait_for(lambda: bool(served.site.site.channels), "the request")
    wait_for(lambda: not served.site.site.channels, "its end")
    connection.close()


@pytest.mark.parametrize("size_bytes", [2**62, 2**63 - 1, 2**63, 10**400])
def test_a_size_that_no_file_can_have_is_refused_with_the_promised_json(
    served: Served, tmp_path: Path, size_bytes: int
) -> None:
    said = b'{"size_bytes": %d}' % size_bytes
    status, _, body = served.ask("POST", "/control/upload/x", said)
    assert status in (400, 507), body  # by the limit of the file system, or by its free space
    assert list(json.loads(body)) == ["error"]
    assert (being_written(tmp_path), served.store.usage().reserved_bytes) == ([], 0)


@pytest.mark.parametrize("length", ["9223372036854775807", "1" + "0" * 30, "1" + "0" * 5000])
def test_a_length_that_no_file_can_have_is_refused_with_the_promised_json(
    served: Served, tmp_path: Path, length: str
) -> None:
    said = {"Content-Length": length}
    status, _, body = served.ask("POST", "/control/data/x", b"", headers=said)
    assert status in (400, 413, 507), body
    assert list(json.loads(body)) == ["error"]
    assert (being_written(tmp_path), served.store.usage().reserved_bytes) == ([], 0)
