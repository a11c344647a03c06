import socket
import struct
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from random import Random
from typing import Any

import pytest
from twisted.internet.defer import CancelledError, Deferred, DeferredList, gatherResults

from ciel.net.errors import TransferError
from ciel.net.transfers import CHECKSUM_HEADER, Begun, TransferResult, Transfers

CONTENT = bytes(range(256)) * 1024


class Holder(ThreadingHTTPServer):
    """A fake worker that serves objects; the path of a request selects a fault."""

    daemon_threads = True
    block_on_close = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Shelf)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.connections = 0
        self.busy = self.most_busy = 0
        self.seen: list[dict[str, str]] = []
        self.lock = threading.Lock()
        self.release = threading.Event()
        self.arrived = threading.Semaphore(0)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore errors of clients that disconnect."""


class Shelf(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Holder

    def setup(self) -> None:
        super().setup()
        self.server.connections += 1

    def log_message(self, format: str, *args: Any) -> None: ...

    def head(
        self, status: int = 200, size_bytes: int = len(CONTENT), content_range: str = ""
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(size_bytes))
        if content_range:
            self.send_header("Content-Range", content_range)
        self.send_header(CHECKSUM_HEADER, "00ff00ff00ff00ff")
        self.end_headers()

    def do_GET(self) -> None:
        with self.server.lock:
            self.server.seen.append(dict(self.headers))
            self.server.busy += 1
            self.server.most_busy = max(self.server.busy, self.server.most_busy)
        self.server.arrived.release()
        try:
            answer: Callable[[], None] = getattr(self, "get_" + self.path.strip("/").split("/")[0])
            answer()
        finally:
            with self.server.lock:
                self.server.busy -= 1

    def get_whole(self) -> None:
        wanted = self.headers["Range"]
        first, _, last = (wanted or "bytes=0-").removeprefix("bytes=").partition("-")
        part = CONTENT[int(first) : int(last) + 1 if last else None]
        whole = f"bytes {first}-{last}/{len(CONTENT)}"
        self.head(206 if wanted else 200, len(part), content_range=whole if last else "")
        self.wfile.write(part)

    def get_large(self) -> None:
        piece = b"x" * 1024 * 1024
        self.head(200, 64 * len(piece))
        for _ in range(64):
            self.wfile.write(piece)

    def get_wait(self) -> None:
        self.server.release.wait(10)
        self.get_whole()

    def get_stall(self) -> None:
        self.head()
        self.wfile.write(CONTENT[:1000])
        self.wfile.flush()
        self.server.release.wait(10)

    def get_silence(self) -> None:
        self.server.release.wait(10)

    def get_short(self) -> None:
        self.head()
        self.wfile.write(CONTENT[:1000])
        self.close_connection = True

    def get_die(self) -> None:
        self.head()
        self.wfile.write(CONTENT[:1000])
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.rfile.close()  # this file also keeps the socket open
        self.connection.close()
        raise ConnectionAbortedError

    def get_refuse(self) -> None:
        body = b'{"error": "the ticket was used before"}'
        self.head(401, len(body))
        self.wfile.write(body)

    def get_talk(self) -> None:
        self.head(500, 1_000_000)
        self.wfile.write(b"x" * 1_000_000)

    def get_ignore(self) -> None:  # ignores the range
        self.head()
        self.wfile.write(CONTENT)

    def get_grown(self) -> None:
        """Send a chunked body, and close the connection after as many of its bytes as the path
        says.
        """
        body = chunked(CONTENT)
        cut = int(self.path.rpartition("/")[2])
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.write(body[:cut])
        self.close_connection = cut < len(body)

    def get_pause(self) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.write(b"3\r\nabc\r\n")
        self.server.release.wait(10)
        self.wfile.write(b"0\r\n\r\n")

    def get_endless(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(CONTENT)
        self.close_connection = True

    def get_redirect(self) -> None:
        self.send_response(302)
        self.send_header("Location", self.server.url + "/whole")
        self.send_header("Content-Length", "0")
        self.end_headers()


def chunked(content: bytes) -> bytes:
    pieces = [content[start : start + 50_000] for start in range(0, len(content), 50_000)]
    return b"".join([b"%x\r\n%b\r\n" % (len(piece), piece) for piece in [*pieces, b""]])


class Bin:
    """A sink that keeps all bytes."""

    def __init__(self, act: Callable[[], object] = lambda: None) -> None:
        self.content = b""
        self._act = act

    def write(self, chunk: bytes) -> None:
        self.content += chunk
        self._act()


@pytest.fixture
def holder() -> Iterator[Holder]:
    with Holder() as holder:
        thread = threading.Thread(target=holder.serve_forever, args=(0.01,))
        thread.start()
        yield holder
        holder.release.set()
        holder.shutdown()
        thread.join()


@pytest.fixture
def run(in_reactor: Any) -> Any:
    return in_reactor


@pytest.fixture
def transfers(run: Any) -> Iterator[Transfers]:
    transfers = run(Transfers, run.reactor, concurrent_max=4)
    yield transfers
    run(transfers.close)


def test_an_object_arrives_whole(run: Any, transfers: Transfers, holder: Holder) -> None:
    sink = Bin()
    result = run(transfers.fetch, f"{holder.url}/whole", sink, expected_size_bytes=len(CONTENT))
    assert result == TransferResult(200, len(CONTENT), "00ff00ff00ff00ff")
    assert sink.content == CONTENT


def test_the_rest_of_an_object_arrives(run: Any, transfers: Transfers, holder: Holder) -> None:
    sink = Bin()
    result = run(
        transfers.fetch, f"{holder.url}/whole", sink,
        offset_bytes=1000, expected_size_bytes=len(CONTENT),
    )  # fmt: skip
    assert (result.status, sink.content) == (206, CONTENT[1000:])


def test_a_part_of_an_object_arrives(run: Any, transfers: Transfers, holder: Holder) -> None:
    sink = Bin()
    part = {"offset_bytes": 1000, "length_bytes": 500}
    url = f"{holder.url}/whole"
    result = run(transfers.fetch, url, sink, expected_size_bytes=len(CONTENT), **part)
    assert (result.status, sink.content) == (206, CONTENT[1000:1500])
    first = Bin()
    run(transfers.fetch, url, first, length_bytes=1)
    assert first.content == CONTENT[:1]
    text = f"the object has {len(CONTENT)} bytes, not 2000"
    with pytest.raises(TransferError, match=text):
        run(transfers.fetch, url, Bin(), expected_size_bytes=2000, **part)


def test_a_body_without_a_length_arrives_whole(
    run: Any, transfers: Transfers, holder: Holder
) -> None:
    sink = Bin()
    begun: list[Begun] = []
    url = f"{holder.url}/grown/{len(chunked(CONTENT))}"
    result = run(transfers.fetch, url, sink, begun=begun.append)
    assert result == TransferResult(200, len(CONTENT), None)
    assert sink.content == CONTENT
    assert begun == [Begun(None, None)]
    begun.clear()
    run(transfers.fetch, f"{holder.url}/whole", Bin(), begun=begun.append)
    assert begun == [Begun(len(CONTENT), "00ff00ff00ff00ff")]


def test_a_body_without_a_length_that_is_cut_anywhere_is_not_whole(
    run: Any, transfers: Transfers, holder: Holder
) -> None:
    length, random = len(chunked(CONTENT)), Random(7)
    cuts = [0, 1, 50_000, *(length - back for back in (1, 2, 3, 4, 5, 6))]
    cuts += [random.randrange(length) for _ in range(20 - len(cuts))]
    for cut in cuts:
        with pytest.raises(TransferError):
            run(transfers.fetch, f"{holder.url}/grown/{cut}", Bin())


def test_a_body_that_only_ends_with_its_connection_is_refused(
    run: Any, transfers: Transfers, holder: Holder
) -> None:
    sink, begun = Bin(), Bin()
    with pytest.raises(TransferError, match="a truncated body cannot be detected"):
        run(transfers.fetch, f"{holder.url}/endless", sink, begun=lambda _: begun.write(b"x"))
    assert sink.content == begun.content == b""


def test_an_exception_in_begun_ends_the_transfer(
    run: Any, transfers: Transfers, holder: Holder
) -> None:
    def refuse(begun: Begun) -> None:
        raise RuntimeError("not that")

    with pytest.raises(RuntimeError, match="not that"):
        run(transfers.fetch, f"{holder.url}/whole", Bin(), begun=refuse)


@pytest.mark.slow
def test_a_body_without_a_length_neither_blocks_others_nor_stalls(
    run: Any, transfers: Transfers, holder: Holder
) -> None:
    begun = threading.Semaphore(0)
    paused: list[Deferred[TransferResult]] = []

    def pause() -> None:
        url = f"{holder.url}/pause"
        done = transfers.fetch(url, Bin(), begun=lambda _: begun.release(), stall_timeout_s=1)
        paused.append(done)

    for _ in range(6):  # more than may run at a time
        run(pause)
        assert begun.acquire(timeout=10)
    run(transfers.fetch, f"{holder.url}/whole", Bin())
    time.sleep(1.5)  # a transfer with a length would have stalled
    holder.release.set()
    results = run(gatherResults, paused)
    assert {result.size_bytes for result in results} == {3}


def test_headers_are_computed_when_the_request_starts(
    run: Any, transfers: Transfers, holder: Holder
) -> None:
    run(transfers.fetch, f"{holder.url}/whole", Bin(), headers=lambda: {"Authorization": "T 1"})
    run(transfers.fetch, f"{holder.url}/whole", Bin(), headers={"Authorization": "T 2"})
    assert [headers["Authorization"] for headers in holder.seen] == ["T 1", "T 2"]


def test_an_exception_while_computing_headers_fails_the_transfer(
    run: Any, transfers: Transfers
) -> None:
    def fail() -> dict[str, str]:
        raise RuntimeError("no key")

    with pytest.raises(RuntimeError, match="no key"):
        run(transfers.fetch, "http://127.0.0.1:1/", Bin(), headers=fail)


def test_connections_are_reused(run: Any, transfers: Transfers, holder: Holder) -> None:
    for _ in range(5):
        run(transfers.fetch, f"{holder.url}/whole", Bin())
    assert holder.connections == 1


def test_the_number_of_concurrent_transfers_is_limited_and_the_rest_follow(
    run: Any, transfers: Transfers, holder: Holder
) -> None:
    sinks = [Bin() for _ in range(10)]

    def fetch_all() -> Any:
        return DeferredList([transfers.fetch(f"{holder.url}/wait", sink) for sink in sinks])

    def release() -> None:
        for _ in range(4):
            holder.arrived.acquire(timeout=10)
        threading.Event().wait(0.1)  # a fifth request would arrive by now
        holder.release.set()

    waiting = threading.Thread(target=release)
    waiting.start()
    run(fetch_all)
    waiting.join()
    assert holder.most_busy == 4
    assert [sink.content for sink in sinks] == [CONTENT] * 10


def test_a_large_object_is_written_to_its_file_in_pieces(
    run: Any, transfers: Transfers, holder: Holder, tmp_path: Path
) -> None:
    path = tmp_path / "object"
    tracemalloc.start()
    try:
        with path.open("wb", buffering=0) as file:
            result = run(transfers.fetch, f"{holder.url}/large", file)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert path.stat().st_size == result.size_bytes == 64 * 1024 * 1024
    assert peak_bytes < 8 * 1024 * 1024


@pytest.mark.parametrize(
    "path, options, status, reason",
    [
        ("short", {}, 200, "the body ended after 1000 bytes: "),
        ("die", {}, 200, "Recv failure: Connection reset by peer"),
        ("refuse", {}, 401, "the ticket was used before"),
        ("talk", {}, 500, "expected 200"),
        ("redirect", {}, 302, "expected 200"),
        ("ignore", {"offset_bytes": 10}, 200, "expected 206"),
        (
            "whole",
            {"expected_size_bytes": 1000},
            200,
            "more than the 1000 expected bytes were received",
        ),
        ("whole", {"expected_size_bytes": 10**9}, 200, "received 262144 bytes instead of"),
        ("stall", {"stall_timeout_s": 1}, 200, "no data came for 1 s, after 1000 bytes"),
        ("silence", {"stall_timeout_s": 1}, 0, "Operation too slow"),
    ],
)
def test_every_fault_of_the_server_is_one_error(
    run: Any,
    transfers: Transfers,
    holder: Holder,
    path: str,
    options: dict[str, int],
    status: int,
    reason: str,
) -> None:
    sink = Bin()
    with pytest.raises(TransferError) as caught:
        run(transfers.fetch, f"{holder.url}/{path}", sink, **options)
    assert (caught.value.status, caught.value.url) == (status, f"{holder.url}/{path}")
    assert caught.value.reason.startswith(reason)
    is_wanted = status == 200 and "offset_bytes" not in options
    assert sink.content == (CONTENT[: len(sink.content)] if is_wanted else b"")
    assert run(transfers.fetch, f"{holder.url}/whole", Bin()).status == 200


@pytest.mark.parametrize(
    "url, reason",
    [
        ("http://127.0.0.1:1/x", "Failed to connect"),
        ("ftp://127.0.0.1/x", "Protocol"),
        ("file:///etc/passwd", "Protocol"),
        ("nonsense", "Could not resolve host"),
        ("http://", "URL"),
    ],
)
def test_a_url_that_cannot_be_fetched_is_an_error(
    run: Any, transfers: Transfers, url: str, reason: str
) -> None:
    sink = Bin()
    with pytest.raises(TransferError, match=reason):
        run(transfers.fetch, url, sink)
    assert sink.content == b""


def test_an_exception_in_the_sink_ends_the_transfer(
    run: Any, transfers: Transfers, holder: Holder
) -> None:
    def fail() -> None:
        raise OSError(28, "no space")

    with pytest.raises(OSError, match="no space"):
        run(transfers.fetch, f"{holder.url}/whole", Bin(fail))


@pytest.mark.parametrize("path", ["wait", "stall"])
def test_a_cancelled_transfer_ends_at_once(
    run: Any, transfers: Transfers, holder: Holder, path: str
) -> None:
    def begin() -> list[Deferred[Any]]:
        return [transfers.fetch(f"{holder.url}/{path}", Bin())]

    (done,) = run(begin)
    assert holder.arrived.acquire(timeout=10)
    run(done.cancel)
    assert run(lambda: transfers.running) == 0
    with pytest.raises(CancelledError):
        run(lambda: done)


def test_a_queued_transfer_can_be_cancelled(run: Any, transfers: Transfers, holder: Holder) -> None:
    def begin() -> list[Deferred[Any]]:
        return [transfers.fetch(f"{holder.url}/wait", Bin()) for _ in range(5)]

    started = run(begin)
    run(started[4].cancel)
    holder.release.set()
    assert len(run(lambda: DeferredList(started, consumeErrors=True))) == 5
    assert len(holder.seen) == 4


def test_a_sink_may_cancel_and_start_transfers(
    run: Any, transfers: Transfers, holder: Holder
) -> None:
    begun: list[Deferred[Any]] = []

    def act() -> None:
        if len(begun) == 2:
            begun[0].cancel()
            begun[1].cancel()
            begun.append(transfers.fetch(f"{holder.url}/whole", Bin()))

    def begin() -> Deferred[Any]:
        begun.append(transfers.fetch(f"{holder.url}/wait", Bin()))
        begun.append(transfers.fetch(f"{holder.url}/whole", Bin(act)))
        return DeferredList(begun, consumeErrors=True)

    outcomes = run(begin)
    assert [success for success, _ in outcomes] == [False, False]
    assert run(lambda: begun[2]).status == 200


def test_a_callback_may_start_the_next_transfer(
    run: Any, transfers: Transfers, holder: Holder
) -> None:
    def again(result: TransferResult) -> Deferred[Any]:
        return transfers.fetch(f"{holder.url}/whole", Bin())

    result = run(lambda: transfers.fetch(f"{holder.url}/whole", Bin()).addCallback(again))
    assert result.status == 200


def test_close_fails_all_and_leaves_nothing(run: Any, holder: Holder) -> None:
    def begin() -> tuple[Transfers, list[Deferred[Any]]]:
        transfers = Transfers(run.reactor, concurrent_max=2)
        return transfers, [transfers.fetch(f"{holder.url}/stall", Bin()) for _ in range(3)]

    transfers, started = run(begin)
    for _ in range(2):
        assert holder.arrived.acquire(timeout=10)
    run(transfers.close)
    for done in started:
        with pytest.raises(TransferError, match="have ended"):
            run(lambda done=done: done)
    with pytest.raises(TransferError, match="no more transfers"):
        run(transfers.fetch, f"{holder.url}/whole", Bin())
    run(transfers.close)
