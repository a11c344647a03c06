"""Tests malformed peers of a running cluster: invalid frames, and thousands of silent connections.
Each peer is sent the reason, and no other peer is affected.
"""

from __future__ import annotations

import json
import re
import resource
import socket
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from ciel.access.access_file import read as read_access
from ciel.access.keys import Role
from ciel.core.ids import ID_MAX_LENGTH
from ciel.testing.homes import HandCluster, Home, descriptors_of, private_bytes, wait_for
from ciel.wire.session import Session
from ciel_tests.clusters.peers import frame, shake_hands

GROWTH_MAX_BYTES: Final = 8 << 20  # of a daemon, whatever it receives

# --- frames to a master ---------------------------------------------------------------------------


BEFORE_PROOF: Final = {
    "too long": (
        struct.pack(">II", 99_992, 10),
        "a frame of 100000 bytes exceeds the limit of 4096",
    ),
    "too deep": (frame(b"[" * 2000 + b"]" * 2000), "frame header: JSON is nested too deeply"),
    "not JSON": (
        frame(b"nonsense"),
        "frame header: not JSON: Expecting value at character 0",
    ),
    "not text": (frame(b'[["\xff"]]'), "frame header: not UTF-8 at byte 3"),
    "no records": (frame([]), "a frame holds 1 to 4096 records"),
    "no record": (frame([[1, 0]]), "a record is a list of its kind, fields and payload length"),
    "a longer payload": (
        frame([["hello", 5]]),
        "the payload lengths do not add up to the frame's",
    ),
    "no hello": (frame([["job", "j", 0]]), "expected the peer's hello, got something else"),
    "a malformed hello": (frame([["hello", [], {}, 0]]), "malformed hello"),
    "cut off": (frame(b"nonsense")[:10], ""),
}
AFTER_PROOF: Final = {
    "too long": (
        struct.pack(">II", 0x01FFFFF0, 5),
        "a frame of 33554424 bytes exceeds the limit of 16777216",
    ),
    "a long header": (
        struct.pack(">II", 0x00FFFFF0, 0x00FFFF00),
        "a frame header of 16776960 bytes exceeds the limit of 8388608",
    ),
    "too deep": (frame(b"[" * 100_000 + b"]" * 100_000), "frame header: JSON is nested too deeply"),
    "not JSON": (frame(b"nonsense"), "frame header: not JSON: Expecting value at character 0"),
    "a huge number": (
        frame(b'[["ask",' + b"9" * 5000 + b',"status",4]]', b"null"),
        "frame header: not JSON in the accepted form: a number has too many digits",
    ),
    "another hello": (
        frame([["hello", 1, "x", "submit", "", "0" * 64, {}, 0]]),
        "a record of the kind 'hello' is not expected here",
    ),
    "a worker's words": (
        frame([["report", "t", 1, [], 0, 0.1, 0]]),
        "a record of the kind 'report' is not expected here",
    ),
    "an unknown kind": (frame([["xyz", 0]]), "a record of the kind 'xyz' is not expected here"),
    "a negative payload": (
        frame([["watch", "j", -5]]),
        "a payload length is not a whole number of bytes",
    ),
    "a path for an id": (
        frame([["job", "../x", "n", True, False, False, 0, 0]]),
        "a record of the kind 'job' is malformed: '../x' is not an id: it begins with '.'",
    ),
    "an empty id": (
        frame([["watch", "", 0]]),
        "a record of the kind 'watch' is malformed: '' is not an id: it is empty",
    ),
    "a long id": (
        frame([["watch", "x" * 300, 0]]),
        f"a record of the kind 'watch' is malformed: '{'x' * 80}' is not an id: "
        "it has 300 characters, 128 are allowed",
    ),
    "an id of two lines": (
        frame([["watch", "a\nb", 0]]),
        "a record of the kind 'watch' is malformed: 'a\\nb' is not an id: "
        "only letters, digits and _ : . - are allowed",
    ),
    "a zero byte in an id": (
        frame([["watch", "a\0b", 0]]),
        "a record of the kind 'watch' is malformed: 'a\\x00b' is not an id: "
        "only letters, digits and _ : . - are allowed",
    ),
    "an escaped id": (
        frame([["watch", "a%2fb", 0]]),
        "a record of the kind 'watch' is malformed: 'a%2fb' is not an id: "
        "only letters, digits and _ : . - are allowed",
    ),
    "cut off": (frame([["watch", "j", 0]])[:-3], ""),
}
NOBODY: Final = "the description of this worker is invalid:"
WORKERS: Final[dict[str, tuple[dict[str, object], str]]] = {
    "nothing": ({}, f"{NOBODY} 'None' is not an id: it is not text"),
    "a path for a name": ({"worker": "../x"}, f"{NOBODY} '../x' is not an id: it begins with '.'"),
    "no address": ({"netloc": "../../x:1\n"}, f"{NOBODY} its address must be HOST:PORT"),
    "no host": (
        {"host": "x" * 200},
        f"{NOBODY} its host must be a string of at most {ID_MAX_LENGTH} printable characters",
    ),
    "truth for slots": ({"slots": True}, f"{NOBODY} its slots must be 1 to 1024"),
    "too many slots": ({"slots": 10**9}, f"{NOBODY} its slots must be 1 to 1024"),
    "numbers for executors": (
        {"executors": [1]},
        f"{NOBODY} its executors must be a list of names",
    ),
    "a list of what it lacks": (
        {"lacking": ["java"]},
        f"{NOBODY} lacking must map the names of the executors that it cannot offer to the reasons",
    ),
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HandCluster]:
    """Start a cluster, and check afterwards that only its logs have changed."""
    home = Home(tmp_path_factory.mktemp("peers"))
    cluster = HandCluster.start(home, workers=1)
    try:
        daemons = (cluster.master.pid, cluster.workers[0].pid)
        assert home.run("ciel", "submit", "--array", "1-9", "--", "true").returncode == 0
        open_files = [descriptors_of(pid) for pid in daemons]
        memory = [private_bytes(pid) for pid in daemons]
        yield cluster
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
    assert not home.processes()


def call(
    cluster: HandCluster, role: Role | None = None, about: dict[str, object] | None = None
) -> socket.socket:
    """Connect to the master; with a role, prove the key of that role."""
    access = read_access(cluster.access)
    host, _, port = cluster.url.removeprefix("http://").partition(":")
    connection = socket.create_connection((host, int(port)), 10)
    if role is not None:
        key = access.key.derive(role)
        assert key is not None
        session = Session.initiator(
            key, role, software="0.1", cluster_id=access.cluster_id, about=about
        )
        shake_hands(connection, session)
    return connection


def last_words(connection: socket.socket) -> str:
    """Return the reason of the master's refusal; an empty text if it gives none."""
    data = b""
    while piece := connection.recv(65536):
        data += piece
    found = re.findall(rb'\[\["refused",(".*"),0\]\]$', data)
    return str(json.loads(found[0])) if found else ""


@pytest.mark.parametrize("data, reason", BEFORE_PROOF.values(), ids=BEFORE_PROOF)
def test_an_unauthenticated_peer_that_sends_malformed_frames_gets_the_reason(
    cluster: HandCluster, data: bytes, reason: str
) -> None:
    with call(cluster) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        assert last_words(connection) == reason


@pytest.mark.parametrize("data, reason", AFTER_PROOF.values(), ids=AFTER_PROOF)
def test_a_client_that_sends_malformed_frames_gets_the_reason(
    cluster: HandCluster, data: bytes, reason: str
) -> None:
    with call(cluster, Role.SUBMIT) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        assert last_words(connection) == reason
    wait_for(lambda: not reason or reason in cluster.log("master"), "the master's line")


@pytest.mark.parametrize("about, reason", WORKERS.values(), ids=WORKERS)
def test_a_worker_with_invalid_facts_gets_the_reason(
    cluster: HandCluster, about: dict[str, object], reason: str
) -> None:
    facts = {"worker": "w", "netloc": "h:1", "host": "h", "slots": 1, "executors": []}
    with call(cluster, Role.WORKER, facts | about if about else {}) as connection:
        assert last_words(connection) == reason
    assert [line.split()[3] for line in joined(cluster)] == [own_name(cluster)]


def joined(cluster: HandCluster) -> list[str]:
    return [line for line in cluster.log("master").splitlines() if " joined, " in line]


def own_name(cluster: HandCluster) -> str:
    return str(re.findall(r"worker (\S+) at", cluster.log("worker1"))[0])


def test_invalid_queries_are_answered(cluster: HandCluster) -> None:
    for topic, argument in (
        ("nothing", {}), ("job", None), ("job", {"job": []}), ("job", {"job": -1}),
        ("job", {"job": "9" * 5000}), ("job", {"job": "../x"}), ("task", {"job": 1, "task": 1}),
    ):  # fmt: skip
        with call(cluster, Role.SUBMIT) as connection:
            text = json.dumps(argument).encode()
            connection.sendall(frame([["ask", 1, topic, len(text)]], text))
            answer = connection.recv(65536)
            assert b'[["answer",1,"' in answer, (topic, argument, answer)
            assert b'[["answer",1,"",' not in answer, (topic, argument, answer)


# --- thousands of silent connections --------------------------------------------------------------


class FewFiles(Home):
    """A home whose programs may open 256 files, or 2,048 if they raise their limit."""

    def start(self, *argv: str, **options: Any) -> subprocess.Popen[str]:
        limited = ("sh", "-c", 'ulimit -Sn 256 && ulimit -Hn 2048 && exec "$@"', "sh")
        return super().start(*limited, *argv, **options)


@pytest.fixture
def open_files_max() -> Iterator[int]:
    """Raise the limit of open files of this process as far as possible."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    yield before[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.slow
def test_two_thousand_silent_connections_do_not_block_clients(
    tmp_path: Path, open_files_max: int
) -> None:
    home = FewFiles(tmp_path)
    cluster = HandCluster.start(home, workers=1)
    daemons = {
        cluster.url.removeprefix("http://"): cluster.master.pid,
        cluster.netlocs()[0]: cluster.workers[0].pid,
    }
    before = {netloc: descriptors_of(pid) for netloc, pid in daemons.items()}
    silent: list[socket.socket] = []
    try:
        for netloc in daemons:
            host, _, port = netloc.partition(":")
            for _ in range(min(2000, open_files_max // 3)):
                silent.append(socket.socket())
                silent[-1].setblocking(False)
                silent[-1].connect_ex((host, int(port)))
        # through its socket, and through TCP
        for words in (["submit"], ["submit", "-m", cluster.url]):
            script = "ulimit -n; head -c 5000 /dev/zero | tr '\\0' x"
            done = home.run("ciel", *words, "--", "sh", "-c", script)
            assert (done.returncode, done.stderr) == (0, "")
            # the daemons' higher limit does not apply to their programs
            assert done.stdout == "256\n" + "x" * 5000
        for netloc, pid in daemons.items():
            assert resource.prlimit(pid, resource.RLIMIT_NOFILE) == (2048, 2048)
            assert descriptors_of(pid) < before[netloc] + 200
        for connection in silent:
            connection.close()
        for netloc, pid in daemons.items():
            wait_for(lambda p=pid, n=netloc: descriptors_of(p) <= before[n], "their end")  # type: ignore[misc]  # the defaults bind now
        for name in ("master", "worker1"):
            assert 0 < cluster.log(name).count("each new one now replaces the oldest") < 10
            assert "Traceback" not in cluster.log(name)
    finally:
        for connection in silent:
            connection.close()
        cluster.stop()
    assert not home.processes()
