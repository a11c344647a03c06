"""Rows about hostile input: names, planted files, bodies, JSON, references, reports and floods."""

from __future__ import annotations

import random
import socket
import string
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from benchmarks.chaos.clients import Api
from benchmarks.chaos.cluster import Cluster
from benchmarks.chaos.existing import run_tests
from benchmarks.chaos.rows import Figure, Findings, Setting, row
from benchmarks.engine.control import cpu_s
from ciel.access.keys import Role
from ciel.testing.homes import private_bytes

NAMES: Final = 10_000
BODY_BYTES: Final = 1 << 30
CASES: Final = 500
FLOOD_BYTES: Final = 64 << 20
PIECES: Final = (
    "..", ".", "%2e%2e", "%2f", "/", "%5c", "%00", "%0a", "%ff", "%c0%ae", ".producer:", ".fetch:",
    "etc", "passwd", "a", "x" * 300, "%E2%98%83", "%25", ":", "~", "-", " ",
)  # fmt: skip
BAD_JSON: Final = (
    b"", b"\x80\x02}q\x00.", b'{"a": [1, ', b"{} {}", b'{"a": "\xff\xfe"}', b'{"a": "\xc0\xae"}',
    b"[" * 100_000, b'{"a":' * 50_000, b"1" * 5000, b'{"a": NaN}', b'{"a": 1e999}',
    b'{"a": 1, "a": 2}', b'{"a": "\\ud800"}', b"true", b'{"no such key": 1}', b"[]",
    b'"' + b"x" * 70_000,
)  # fmt: skip


def files_of(places: list[Path]) -> set[str]:
    """Return the names of all files and directories at some places."""
    return {str(path) for place in places for path in place.rglob("*")}


@row(
    "H1",
    "10,000 hostile names of objects, jobs and tasks (.., NUL, 300 bytes, overlong UTF-8)",
    "each request is refused; only files of the store are touched",
    "0 escapes; 0 server errors",
)
def _hostile_names(setting: Setting) -> Findings:
    count, chance = setting.count(NAMES, 100), random.Random(20261128)
    with Cluster.running(setting, 1) as cluster:
        api = Api(cluster)
        worker = address_of(cluster, "worker0")
        place = cluster.home.path
        before = files_of([place, place.parent])
        statuses: dict[int, int] = {}
        for number in range(count):
            name = "".join(chance.choices(PIECES, k=chance.randint(1, 4))).replace(" ", "%20")
            paths = [
                ("POST", f"/control/data/{name}", worker), ("GET", f"/data/{name}", worker),
                ("GET", f"/api/v1/jobs/{name}", api.address), ("DELETE", f"/data/{name}", worker),
                ("GET", f"/control/ref/{name}/{name}", api.address),
            ]  # fmt: skip
            method, path, address = paths[number % len(paths)]
            status, _ = api.call(method, path, b"hostile" if method == "POST" else None,
                                 role=Role.ADMIN, address=address)  # fmt: skip
            statuses[status // 100] = statuses.get(status // 100, 0) + 1
        touched = [
            p for p in files_of([place, place.parent]) - before if "/worker0-spool/" not in p
        ]
        escapes = [path for path in touched if not path.endswith((".log", ".journal", ".err"))]
        log = cluster.log("master") + cluster.log("worker0")
    yield Figure("names", count)
    yield Figure("files outside of the store", len(escapes), "", 0)
    yield Figure("server errors", statuses.get(5, 0), "", 0)
    yield Figure("tracebacks in the logs", log.count("Traceback"), "", 0)


def address_of(cluster: Cluster, name: str) -> tuple[str, int]:
    """Return the address of a worker's HTTP interface."""
    with cluster.client() as client:
        number = int(name.removeprefix("worker"))
        host, _, port = client.ask("workers")[number]["netloc"].partition(":")
    return host, int(port)


@row(
    "H2",
    "a link, a FIFO, a device, a directory or a foreign file lies in the store",
    "it counts as missing; nothing behind it is read or written",
    "each kind for each operation (the suites of the stores)",
)
def _planted_files(setting: Setting) -> Findings:
    yield from run_tests(
        setting, "-k", "planted or link or file_of_ours or directory_is", "tests/storage",
        "tests/shm/test_store.py", "tests/access", "tests/wire/test_files.py",
    )  # fmt: skip


@row(
    "H3",
    "bodies of 1 GB, longer than their Content-Length, or chunked without end",
    "refused before they are in memory",
    "memory of the master flat (≤ 8 MiB); a status of 400 to 499, or the connection ends",
)
def _oversized_bodies(setting: Setting) -> Findings:
    size = setting.count(BODY_BYTES, 32 << 20)
    heads = {
        "with its length": (f"Content-Length: {size}\r\n", b"x" * 65536),
        "longer than its length": ("Content-Length: 10\r\n", b"x" * 65536),
        "chunked": ("Transfer-Encoding: chunked\r\n", b"10000\r\n" + b"x" * 65536 + b"\r\n"),
    }
    with Cluster.running(setting, 0) as cluster:
        api, pid = Api(cluster), cluster.daemons["master"].pid
        api.call("GET", "/api/v1/jobs", role=Role.READ)
        before, most, accepted = private_bytes(pid), 0, 0
        for head, piece in heads.values():
            sent, answer = 0, b""
            with socket.create_connection(api.address, 60) as connection:
                lines = f"POST /api/v1/jobs HTTP/1.1\r\nHost: x\r\n{head}"
                key = f"Authorization: {api.bearer(Role.SUBMIT)}\r\n\r\n"
                connection.sendall((lines + key).encode())
                with suppress(OSError):
                    while sent < size:
                        connection.sendall(piece)
                        sent += len(piece)
                        most = max(most, private_bytes(pid) - before)
                with suppress(OSError):
                    answer = connection.recv(65536)
            accepted += answer.startswith(b"HTTP/1.1 2")
        status, _ = api.call("GET", "/api/v1/jobs", role=Role.READ)
    yield Figure("growth of the master", most / 2**20, "MiB", 8, digits=1)
    yield Figure("bodies accepted", accepted, "", 0)
    yield Figure("status of the next request", status, "", 200)


@row(
    "H4",
    "500 bodies that are no JSON, too deep, too long, ambiguous or of another shape",
    "each is refused with a reason",
    "500 of 500 with a status of 400 to 499; 0 tracebacks in the log",
)
def _hostile_json(setting: Setting) -> Findings:
    count, chance = setting.count(CASES, len(BAD_JSON)), random.Random(20261128)
    good = b'{"tasks": [{"name": "a", "executor": "stdinout", "arguments": {"args": {}}}]}'
    wrong = 0
    with Cluster.running(setting, 0) as cluster:
        api = Api(cluster)
        for number in range(count):
            body = BAD_JSON[number] if number < len(BAD_JSON) else spoilt(good, chance)
            status, _ = api.call("POST", "/api/v1/jobs", body, Content_Type="application/json")
            wrong += not 400 <= status < 500
        tracebacks = cluster.log("master").count("Traceback")
    yield Figure("bodies", count)
    yield Figure("answers other than 400 to 499", wrong, "", 0)
    yield Figure("tracebacks in the log", tracebacks, "", 0)


def spoilt(text: bytes, chance: random.Random) -> bytes:
    """Return JSON in which a name or an executor has another kind, or broken JSON.

    The arguments of a task may be anything: only its executor reads them, on a worker.
    """
    if chance.random() < 0.5:
        word = chance.choice([b'"a"', b'"stdinout"', b'[{"name"'])
        other = chance.choice([b"NaN", b"[[[]]]", b'{"__ref__": 1}', b"-1", b"}", b'"\\ud800"'])
        return text.replace(word, other, 1)
    place = chance.randrange(len(text) - 1)
    return text[:place] + bytes([chance.choice(b"\x00\x1f\xff")]) + text[place + 1 + place % 3 :]


@row(
    "H5",
    "references with private addresses, redirects to them, and names of other objects",
    "a worker fetches no URL unless it is told to, and then none that is not public",
    "0 requests leave (test_url_policy, test_references, test_bad_peers)",
)
def _forged_references(setting: Setting) -> Findings:
    yield from run_tests(
        setting, "tests/net/test_url_policy.py", "tests/wire/test_references.py",
        "tests/worker/transfer/test_url_fetching.py",
    )  # fmt: skip


@row(
    "H6",
    "a worker reports tasks that it does not run, or repeats a report; a client repeats a ticket",
    "such messages do not count",
    "0 accepted (test_machine_losses, test_tickets, test_session)",
)
def _forged_reports(setting: Setting) -> Findings:
    yield from run_tests(
        setting, "tests/master/machine/test_losses.py", "tests/master/journal/test_restoring.py",
        "tests/access/test_tickets.py", "tests/net/test_control.py",
    )  # fmt: skip


@row(
    "H7",
    "length fields of frames, journals, images and rings that promise more than there is",
    "they are checked against what is there",
    "0 crashes (test_frames, test_groups, test_tools_bad_input)",
)
def _wrong_lengths(setting: Setting) -> Findings:
    yield from run_tests(
        setting, "tests/wire/test_frames.py", "tests/journal/test_groups.py",
        "tests/scc/tools/test_bad_input.py",
    )  # fmt: skip


@row(
    "H8",
    "64 MB of tiny pieces without a key, and a journal group that decompresses without end",
    "a connection without a key may send little; a group has at most 128 MiB",
    "CPU of the master ≤ 0.2 s a hostile MB; its memory flat (≤ 8 MiB)",
)
def _flood(setting: Setting) -> Findings:
    size = setting.count(FLOOD_BYTES, 1 << 20)
    letters = string.ascii_letters.encode()
    with Cluster.running(setting, 0) as cluster:
        api, pid = Api(cluster), cluster.daemons["master"].pid
        api.call("GET", "/api/v1/jobs", role=Role.READ)
        before, cpu, sent, refused = private_bytes(pid), cpu_s(pid), 0, 0
        until_s = time.monotonic() + 120
        while sent < size and time.monotonic() < until_s:
            with suppress(OSError), socket.create_connection(api.address, 60) as connection:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                for number in range(2048):
                    sent += connection.send(letters[number % 50 : number % 50 + 2] * 16)
            refused += 1
        used = cpu_s(pid) - cpu
        grown = private_bytes(pid) - before
    yield Figure("hostile bytes", sent / 2**20, "MiB", digits=1)
    yield Figure("CPU of the master a MB", used / (sent / 1e6), "s", 0.2, digits=3)
    yield Figure("growth of the master", grown / 2**20, "MiB", 8, digits=1)
    yield Figure("connections", refused)
