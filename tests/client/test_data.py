import contextlib
import io
import itertools
import os
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from ciel.access.errors import AccessDeniedError
from ciel.access.keys import Key, Role
from ciel.access.tickets import TicketCheck
from ciel.client.calls.parts import PartReader
from ciel.client.data.logs import LogReader
from ciel.client.data.objects import read_object
from ciel.client.data.uploads import upload_file, upload_order
from ciel.client.data.worker_http import Connections
from ciel.client.errors import (
    LogUnreadableError,
    ObjectUnreadableError,
    TaskFailedError,
    UploadError,
)
from ciel.core.ids import ObjectId
from ciel.core.refs import Concrete, Failure, Future, Reference, Sweetheart, Value
from ciel.python.elsewhere import fetch_parts
from ciel.wire import codec
from ciel.wire.references import to_json

OBJECT = ObjectId("object")


class Holder:
    """The HTTP server of a worker, as far as a client uses it: objects, tickets, ranges, faults."""

    def __init__(self, key: Key) -> None:
        self.objects: dict[str, bytes] = {}
        self.breaks_after: int | None = None
        self.answer: tuple[int, bytes] | None = None
        self.reads_bodies = True
        self.asked: list[tuple[str, str, str | None]] = []
        holder = self

        class Answering(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                holder.get(self)

            def do_POST(self) -> None:
                holder.post(self)

            def log_message(self, format: str, *args: object) -> None: ...

        self.server = HTTPServer(("127.0.0.1", 0), Answering)
        self.netloc = f"127.0.0.1:{self.server.server_port}"
        self._gate = TicketCheck(key.derive, self.netloc)
        self._thread = threading.Thread(target=self.server.serve_forever, args=(0.02,))
        self._thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self._thread.join()

    def get(self, request: BaseHTTPRequestHandler) -> None:
        if not self._admits(request):
            return
        first, _, last = (request.headers.get("Range") or "bytes=0-")[6:].partition("-")
        content = self.objects.get(request.path.removeprefix("/data/"))
        if content is None:
            request.send_error(404)
            return
        body = content[int(first) : int(last) + 1 if last else None]
        request.send_response(206 if "Range" in request.headers else 200)
        if "Range" in request.headers:
            request.send_header("Content-Range", f"bytes {first}-{last}/{len(content)}")
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body[: self.breaks_after])

    def post(self, request: BaseHTTPRequestHandler) -> None:
        body_bytes = int(request.headers["Content-Length"])
        body = request.rfile.read(body_bytes if self.reads_bodies else 1)
        if not self._admits(request):
            return
        name = ObjectId(request.path.removeprefix("/control/data/"))
        self.objects[name] = body
        ref = Concrete(name, len(body), frozenset({self.netloc}))
        status, answer = self.answer or (201, codec.encode(to_json(ref)))
        request.send_response(status)
        request.send_header("Content-Length", str(len(answer)))
        request.end_headers()
        request.wfile.write(answer)

    def _admits(self, request: BaseHTTPRequestHandler) -> bool:
        self.asked.append((request.command, request.path, request.headers.get("Range")))
        try:
            role = self._gate.admit(
                request.headers["Authorization"], request.command, request.path, time.time()
            )
        except AccessDeniedError:
            request.send_error(401)
            return False
        return role is Role.SUBMIT


@pytest.fixture
def holders(key: Key) -> Iterator[list[Holder]]:
    holders = [Holder(key) for _ in range(3)]
    yield holders
    for holder in holders:
        holder.close()


def held(holders: list[Holder], content: bytes) -> Concrete:
    for holder in holders:
        holder.objects[OBJECT] = content
    return Concrete(OBJECT, len(content), frozenset(h.netloc for h in holders))


def read(ref: Reference, key: Key) -> bytes:
    with contextlib.closing(Connections()) as connections:
        return b"".join(read_object(ref, key, connections))


def test_an_inline_object_is_read_from_its_reference(key: Key) -> None:
    assert read(Value.of(OBJECT, b"inline"), key) == b"inline"


def test_a_failure_is_raised_with_the_history_of_its_task(key: Key) -> None:
    with pytest.raises(TaskFailedError, match="its story"):
        read(Failure(OBJECT, "WORD", "its story"), key)


def test_a_part_of_an_object_is_read(holders: list[Holder], key: Key) -> None:
    content = bytes(range(256)) * 20
    ref = held(holders[:1], content)
    with contextlib.closing(Connections()) as connections:
        assert b"".join(read_object(ref, key, connections, 100, 300)) == content[100:300]
        assert b"".join(read_object(ref, key, connections, 0, 1)) == content[:1]
        other = ref._replace(size_bytes=100)
        with pytest.raises(ObjectUnreadableError, match="it has 5120 bytes, not 100"):
            b"".join(read_object(other, key, connections, 1, 2))
    inline = Value.of(OBJECT, b"inline")
    assert b"".join(read_object(inline, key, Connections(), 2, 4)) == b"li"


def test_parts_of_several_objects_are_copied_until_all_are_there(key: Key) -> None:
    class Broken:
        """Reads at most three bytes at a time, and fails the second time."""

        reads = itertools.count()

        def read(self, ref: Concrete | Sweetheart, start: int, end: int) -> Iterator[bytes]:
            if next(self.reads) == 1:
                raise ObjectUnreadableError(ref.id, [])
            yield contents[ref.id][start : min(end, start + 3)]

    contents = {"a": b"0123456789", "b": b"abcdefghij"}
    recovered: list[str] = []
    broken = Broken()

    def recover(error: ObjectUnreadableError, ref: Concrete | Sweetheart) -> Any:
        recovered.append(ref.id)
        return ref

    reader = PartReader(broken.read, recover)
    sources = [
        reader.source(Concrete(ObjectId(name), 10, frozenset()), 10, lambda: None)
        for name in contents
    ]
    first = fetch_parts([(sources[0], [(1, 5), (8, 2)]), (sources[1], [(0, 10)])])
    assert [bytes(each) for each in first] == [b"\x0012345\0\x0089", b"abcdefghij"]
    assert len(recovered) == 1
    (more,) = fetch_parts([(sources[0], [(0, 1)])])
    assert bytes(more) == b"012345\0\x0089"
    assert fetch_parts([]) == []


def test_an_object_is_read_from_its_holder(holders: list[Holder], key: Key) -> None:
    content = bytes(range(256)) * 20_000
    assert read(held(holders[:1], content), key) == content


def test_the_preferred_worker_is_asked_first(holders: list[Holder], key: Key) -> None:
    content = held(holders, b"x" * 2000)
    last = max(holders, key=lambda holder: holder.netloc)
    read(Sweetheart(OBJECT, last.netloc, 2000, content.locations), key)
    assert [len(holder.asked) for holder in holders] == [int(h is last) for h in holders]


def test_the_next_worker_continues_where_one_failed(holders: list[Holder], key: Key) -> None:
    content = bytes(range(256)) * 1000
    ref = held(holders, content)
    first, second, third = sorted(holders, key=lambda holder: holder.netloc)
    first.breaks_after = 1000
    second.objects.clear()
    assert read(ref, key) == content
    assert [holder.asked[0][2] for holder in (first, second, third)] == [
        None,
        "bytes=1000-",
        "bytes=1000-",
    ]


def test_a_worker_with_an_object_of_another_size_is_skipped(
    holders: list[Holder], key: Key
) -> None:
    content = bytes(range(256)) * 1000
    ref = held(holders, content)
    first, second, third = sorted(holders, key=lambda holder: holder.netloc)
    first.objects[OBJECT], second.objects[OBJECT] = b"", content + b"more"
    assert read(ref, key) == content
    third.objects[OBJECT] = content[1:]
    with pytest.raises(ObjectUnreadableError, match="it has 255999 bytes, not 256000"):
        read(ref, key)


def test_an_unreadable_object_has_all_reasons(holders: list[Holder], key: Key) -> None:
    gone, empty, stranger = holders
    ref = held(holders, b"x" * 5000)
    gone.server.server_close()
    gone.server.shutdown()
    empty.objects.clear()
    stranger._gate = TicketCheck(Key.new().derive, stranger.netloc)
    with pytest.raises(ObjectUnreadableError) as caught:
        read(ref, key)
    assert dict(caught.value.reasons) == {
        gone.netloc: "Connection refused",
        empty.netloc: "it answered 404 Not Found",
        stranger.netloc: "it answered 401 Unauthorized",
    }


def test_the_client_holds_no_future(key: Key) -> None:
    with pytest.raises(ObjectUnreadableError, match="object object: no worker holds it"):
        read(Future(OBJECT), key)


def test_a_small_upload_is_inline(key: Key) -> None:
    ref = upload_file(io.BytesIO(b"x" * 1023), "f", [], key, Connections())
    assert isinstance(ref, Value)
    assert ref.content == b"x" * 1023


def test_an_upload_goes_to_two_workers(holders: list[Holder], key: Key, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"y" * 3_000_000)
    netlocs = [holder.netloc for holder in holders]
    with path.open("rb") as file:
        ref = upload_file(file, "file", netlocs, key, Connections())
    assert isinstance(ref, Concrete)
    assert (ref.size_bytes, ref.locations) == (3_000_000, frozenset(netlocs[:2]))
    assert holders[0].objects[ref.id] == path.read_bytes() == holders[1].objects[ref.id]


def test_copies_go_to_workers_on_different_hosts_first() -> None:
    workers = [
        {"netloc": "a:1", "host": "a", "queued": 0, "draining": None},
        {"netloc": "a:2", "host": "a", "queued": 1, "draining": None},
        {"netloc": "b:1", "host": "b", "queued": 7, "draining": None},
        {"netloc": "c:1", "host": "c", "queued": 0, "draining": {"tasks": 1}},
    ]
    assert upload_order(workers) == ["a:1", "b:1", "a:2", "c:1"]


def test_an_upload_passes_over_a_worker_that_fails(holders: list[Holder], key: Key) -> None:
    holders[0].answer = (507, b"")
    holders[1].answer = (201, b"nonsense")
    ref = upload_file(io.BytesIO(b"z" * 2000), "f", [h.netloc for h in holders], key, Connections())
    assert isinstance(ref, Concrete)
    assert ref.locations == {holders[2].netloc}


@pytest.mark.parametrize("is_growing", [True, False])
def test_a_file_that_changes_as_it_is_sent_is_sent_as_it_was_or_not_at_all(
    holders: list[Holder], key: Key, tmp_path: Path, is_growing: bool
) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"x" * 3_000_000)

    class Changing(io.FileIO):
        def seek(self, offset: int, whence: int = 0) -> int:
            place = super().seek(offset, whence)
            if whence == os.SEEK_END:  # the client has read its size: now it changes
                os.truncate(path, 4_000_000 if is_growing else 2_000_000)
            return place

    with Changing(path) as file, contextlib.closing(Connections()) as connections:
        if is_growing:
            ref = upload_file(file, "log", [holders[0].netloc], key, connections)
            assert holders[0].objects[ref.id] == b"x" * 3_000_000
        else:
            with pytest.raises(UploadError, match="log: the file became shorter while it was sent"):
                upload_file(file, "log", [holders[0].netloc], key, connections)


def test_an_error_says_why_no_worker_took_an_upload(holders: list[Holder], key: Key) -> None:
    holders[0].answer = (507, b"")
    with pytest.raises(UploadError, match=r"cannot upload f: 127\.0\.0\.1:.*: it answered 507"):
        upload_file(io.BytesIO(b"z" * 2000), "f", [holders[0].netloc], key, Connections())
    with pytest.raises(UploadError, match="the cluster has no worker"):
        upload_file(io.BytesIO(b"z" * 2000), "f", [], key, Connections())


def test_the_reason_of_a_worker_that_ends_an_upload_is_read(
    holders: list[Holder], key: Key
) -> None:
    holders[0].reads_bodies = False
    holders[0].answer = (507, codec.encode({"error": "no space: wanted 64"}))
    content, netlocs = io.BytesIO(bytes(64_000_000)), [holders[0].netloc]
    with pytest.raises(UploadError, match=r"answered 507 .*: no space: wanted 64$"):
        upload_file(content, "f", netlocs, key, Connections())


# --- logs -----------------------------------------------------------------------------------------


def test_a_log_reader_continues_where_it_stopped(holders: list[Holder], key: Key) -> None:
    holders[0].objects = {
        "/log/job?offset=0": b"one\ntw",
        "/log/job?offset=6&wait=1": b"o\n",
        "/log/job?offset=8": b"",
    }
    reader = LogReader(holders[0].netloc, "w1", "job", key)
    assert [reader.read(), reader.read(wait=True), reader.read()] == [b"one\ntw", b"o\n", b""]


def test_an_unreadable_log_is_an_error(holders: list[Holder], key: Key) -> None:
    reader = LogReader(holders[0].netloc, "w1", "job", key)
    with pytest.raises(LogUnreadableError, match="it answered 404"):
        reader.read()
    holders[0].objects["/log/job?offset=0"] = b"one\n"
    holders[0].breaks_after = 2
    with pytest.raises(LogUnreadableError):
        reader.read()
    holders[0].breaks_after = None
    assert reader.read() == b"one\n"
    with socket.create_server(("127.0.0.1", 0)) as closed:
        netloc = f"127.0.0.1:{closed.getsockname()[1]}"
    with pytest.raises(LogUnreadableError, match=f"on worker {netloc}: Connection refused"):
        LogReader(netloc, "w1", "job", key).read()


def test_waiting_for_a_log_can_be_interrupted(key: Key) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        reader = LogReader(f"127.0.0.1:{silent.getsockname()[1]}", "w1", "job", key)
        heard: list[bytes] = []
        waiting = threading.Thread(target=lambda: heard.append(reader.read(wait=True)))
        waiting.start()
        connection, _ = silent.accept()
        assert connection.recv(4096).startswith(b"GET /log/job?offset=0&wait=1 ")
        reader.interrupt()
        waiting.join(10)
        assert heard == [b""]
        connection.close()
        assert reader.read(wait=True) == b""  # nor does a later call


def test_a_connection_is_kept_and_one_that_was_closed_meanwhile_is_replaced() -> None:
    served: list[int] = []

    class Served(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            served.append(self.client_address[1])
            self.send_response(200)
            self.send_header("Content-Length", "5")
            self.end_headers()
            self.wfile.write(b"hello")
            self.close_connection = len(served) == 2  # without a header that says so

        def log_message(self, *arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Served) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        ref = Concrete(ObjectId("x"), 5, frozenset((f"127.0.0.1:{server.server_port}",)))
        with contextlib.closing(Connections()) as connections:
            for _ in range(4):
                assert b"".join(read_object(ref, Key.new(), connections)) == b"hello"
        server.shutdown()
        thread.join()
    assert len(served) == 4
    assert served[0] == served[1] != served[2] == served[3]
