"""Tests HTTP requests that no ciel client sends, to a real master and a real worker: each is
answered or disconnected, and leaks neither memory nor descriptors.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Final, NamedTuple

import pytest

from ciel.testing.homes import HandCluster, Home, descriptors_of, private_bytes, wait_for

MIB: Final = 1 << 20
GROWTH_MAX_BYTES: Final = 8 * MIB
CAPACITY_BYTES: Final = 4 * MIB  # of the worker's store


class Answer(NamedTuple):
    """The answer, and how many bytes of the body were accepted before it."""

    status: int
    headers: dict[str, str]
    body: bytes
    sent_bytes: int

    @property
    def error(self) -> str:
        return str(json.loads(self.body)["error"])


class Site:
    """The HTTP side of one daemon."""

    def __init__(self, netloc: str, key: str) -> None:
        self.netloc = netloc
        self._key = key

    def begin(self, method: str, target: str, *headers: str) -> socket.socket:
        """Send the header of a request, without its end."""
        host, _, port = self.netloc.partition(":")
        connection = socket.create_connection((host, int(port)), 10)
        lines = (f"Host: {self.netloc}", f"Authorization: Bearer {self._key}", *headers)
        head = "".join(f"{line}\r\n" for line in (f"{method} {target} HTTP/1.1", *lines))
        connection.sendall(head.encode())
        return connection

    def ask(
        self, method: str, target: str, *headers: str, body: bytes = b"", times: int = 1
    ) -> Answer:
        """Send a request whose body repeats `body` a number of times, as far as it is accepted."""
        with self.begin(method, target, "Connection: close", *headers) as connection:
            connection.sendall(b"\r\n")
            sent_bytes = send(connection, body, times)
            return read_answer(connection, sent_bytes)


def send(connection: socket.socket, data: bytes, times: int) -> int:
    """Send data repeatedly until the peer stops accepting it; return the number of bytes."""
    for number in range(times):
        try:
            connection.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            return number * len(data)
    return times * len(data)


def read_answer(connection: socket.socket, sent_bytes: int = 0) -> Answer:
    data = b""
    try:
        while piece := connection.recv(65536):
            data += piece
    except ConnectionResetError:
        pass  # the peer did not read all; its earlier answer has arrived
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    return Answer(int(first.split()[1]) if first else 0, headers, body, sent_bytes)


class Sites(NamedTuple):
    master: Site
    worker: Site


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sites]:
    """Return both sites of a cluster, and check afterwards that it is as it was before."""
    home = Home(tmp_path_factory.mktemp("requests"))
    cluster = HandCluster.start(home, workers=0)
    try:
        cluster.start_worker("--store", f"disk:capacity={CAPACITY_BYTES}")
        daemons = (cluster.master.pid, cluster.workers[0].pid)
        netlocs = (cluster.url.removeprefix("http://"), cluster.netlocs()[0])
        sites = Sites(*(Site(netloc, cluster.key) for netloc in netlocs))
        warm = ("submit", "--array", "1-9", "--", "true")
        assert home.run("ciel", *warm).returncode == 0
        assert sites.master.ask("GET", "/healthz").status == 200
        assert sites.worker.ask("GET", "/healthz").status == 200
        open_files = [descriptors_of(pid) for pid in daemons]
        memory = [private_bytes(pid) for pid in daemons]
        yield sites
        done = home.run("ciel", "submit", "--", "echo", "all is well")
        assert (done.returncode, done.stdout, done.stderr) == (0, "all is well\n", "")
        for pid, count in zip(daemons, open_files, strict=True):
            wait_for(lambda p=pid, c=count: descriptors_of(p) <= c, "few descriptors")  # type: ignore[misc]  # the defaults bind now
        for pid, size_bytes in zip(daemons, memory, strict=True):
            assert private_bytes(pid) < size_bytes + GROWTH_MAX_BYTES
        for name in ("master", "worker1"):
            assert "Traceback" not in cluster.log(name)
    finally:
        cluster.stop()


BOTH: Final = pytest.mark.parametrize("name", ["master", "worker"])


@BOTH
@pytest.mark.parametrize("piece", [b"X-A: b\r\n" * 1000, b"x" * 10_000], ids=["lines", "a line"])
def test_an_endless_header_is_cut_off(sites: Sites, name: str, piece: bytes) -> None:
    site: Site = getattr(sites, name)
    with site.begin("GET", "/healthz") as connection:
        assert send(connection, piece, 10_000) < 10 * MIB
        assert read_answer(connection).status in (0, 400)


BODIES: Final = {
    "a gigabyte": ("Content-Length: 1073741824", bytes(MIB), 1024),
    "chunks without end": ("Transfer-Encoding: chunked", b"100000\r\n%b\r\n" % bytes(MIB), 1024),
}
PLACES: Final = {
    "where nothing is taken": ("master", "GET", "/healthz", 413),
    "where nothing is changed": ("master", "POST", "/api/v1/status", 405),
    "where nothing is": ("master", "POST", "/control/nothing", 404),
    "where it goes elsewhere": ("master", "POST", "/control/data/x", 307),
    "where an object is": ("worker", "GET", "/data/x", 413),
    "where there is no room": ("worker", "POST", "/control/data/x", 507),
}


@pytest.mark.parametrize("header, piece, times", BODIES.values(), ids=BODIES)
@pytest.mark.parametrize("name, method, path, status", PLACES.values(), ids=PLACES)
def test_a_body_that_is_too_large_is_refused_and_not_kept(
    sites: Sites, name: str, method: str, path: str, status: int, header: str, piece: bytes,
    times: int,
) -> None:  # fmt: skip
    answer = getattr(sites, name).ask(method, path, header, body=piece, times=times)
    assert answer.status == status
    assert answer.sent_bytes < 100 * MIB
    assert "internal error" not in answer.error


def test_an_upload_into_a_full_store_reports_wanted_and_available_bytes(sites: Sites) -> None:
    known = sites.worker.ask("POST", "/control/data/x", "Content-Length: 5000000")
    assert known.error == "no space: wanted 5001216 bytes, 4194304 available"
    chunk = b"10000\r\n%b\r\n" % bytes(65536)
    grown = sites.worker.ask(
        "POST", "/control/data/x", "Transfer-Encoding: chunked", body=chunk, times=1000
    )
    assert grown.status == 507
    assert grown.error.startswith("no space: wanted ")
    assert grown.error.endswith(" bytes, 4194304 available")


LENGTHS: Final = {
    "negative": ["Content-Length: -5"],
    "in words": ["Content-Length: five"],
    "said twice": ["Content-Length: 5", "Content-Length: 6"],
    "and in chunks": ["Content-Length: 5", "Transfer-Encoding: chunked"],
    "in an unknown coding": ["Transfer-Encoding: gzip, chunked"],
}


@BOTH
@pytest.mark.parametrize("headers", LENGTHS.values(), ids=LENGTHS)
def test_a_request_with_an_invalid_length_is_refused(
    sites: Sites, name: str, headers: list[str]
) -> None:
    answer = getattr(sites, name).ask("POST", "/control/data/x", *headers, body=b"abcdef")
    assert (answer.status, answer.error) == (400, "this is not a well-formed HTTP request")


@BOTH
def test_bytes_after_a_body_are_not_part_of_it(sites: Sites, name: str) -> None:
    site: Site = getattr(sites, name)
    answer = site.ask("GET", "/healthz", "Content-Length: 3", body=b"x" * 100_000)
    assert (answer.status, json.loads(answer.body)["status"]) == (200, "ok")


ONLY: Final = "only letters, digits and _ : . - are allowed"
IDS: Final = {
    "%2e%2e": (400, "'..' is not an id: it begins with '.'"),
    "..%2fx": (400, "'../x' is not an id: it begins with '.'"),
    "a%2fb": (400, f"'a/b' is not an id: {ONLY}"),
    "%00": (400, f"'\\x00' is not an id: {ONLY}"),
    "a%0d%0aX-Y:%20z": (400, f"'a\\r\\nX-Y: z' is not an id: {ONLY}"),
    "%": (400, f"'%' is not an id: {ONLY}"),
    "%E2%98%83": (400, f"'\u2603' is not an id: {ONLY}"),
    "x" * 300: (400, f"'{'x' * 80}' is not an id: it has 300 characters, 128 are allowed"),
    "%ff": (404, "no resource has this path"),
    "": (404, "no resource has this path"),
    "../../etc/passwd": (404, "no resource has this path"),
    "absent": (404, "no such object here"),
}


@pytest.mark.parametrize("name", IDS)
def test_an_invalid_object_id_is_reported(sites: Sites, name: str) -> None:
    answer = sites.worker.ask("GET", f"/data/{name}")
    assert (answer.status, answer.error) == IDS[name]
    answer = sites.worker.ask("POST", f"/control/data/{name}", "Content-Length: 1", body=b"x")
    assert answer.status == (201 if name in ("absent", "") else IDS[name][0])


@pytest.mark.parametrize("name", ["x", "%00", "..%2f", "-1", "1e9", "9" * 300, "9" * 5000])
def test_an_unknown_job_is_reported(sites: Sites, name: str) -> None:
    answer = sites.master.ask("GET", f"/api/v1/jobs/{name}")
    assert answer.status == 404
    assert answer.error.startswith("there is no job ")


RANGES: Final = {
    "bytes=0-9": (206, "bytes 0-9/5000"),
    "bytes=4999-": (206, "bytes 4999-4999/5000"),
    "bytes=-5": (206, "bytes 4995-4999/5000"),
    "bytes=0-99999": (206, "bytes 0-4999/5000"),
    "bytes=5000-": (416, "bytes */5000"),
    "bytes=-0": (416, "bytes */5000"),
    "bytes=5-2": (200, None),  # an invalid range is ignored
    "bytes=9000-2": (200, None),
    "bytes=a-b": (200, None),
    "bytes=0-1,5-6": (200, None),
    "lines=0-1": (200, None),
}


@pytest.fixture(scope="module")
def upload(sites: Sites) -> bytes:
    content = bytes(range(250)) * 20
    answer = sites.worker.ask(
        "POST", "/control/data/whole", f"Content-Length: {len(content)}", body=content
    )
    assert answer.status == 201
    return content


@pytest.mark.parametrize("header", RANGES)
def test_a_range_selects_a_part_of_an_object(sites: Sites, upload: bytes, header: str) -> None:
    answer = sites.worker.ask("GET", "/data/whole", f"Range: {header}")
    status, said = RANGES[header]
    assert (answer.status, answer.headers.get("Content-Range")) == (status, said)
    if status == 200:
        assert answer.body == upload
    elif said is not None and status == 206:
        first, last = said.removeprefix("bytes ").removesuffix("/5000").split("-")
        assert answer.body == upload[int(first) : int(last) + 1]
