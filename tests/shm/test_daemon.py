"""Real daemons with real client programs; a faulty connection disturbs no other one."""

from __future__ import annotations

import os
import signal
import socket
import stat
import struct
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ciel.shm.client import ShmdClient
from ciel.shm.daemon import CONNECTIONS_MAX, Daemon
from ciel.shm.errors import AlreadyServedError, DaemonGoneError, RequestFailedError
from ciel.shm.layout import path_through
from ciel.shm.messages import Code, Decoder, Load, Message, Ok, Write, encode
from ciel.storage.files import open_disk
from ciel.testing.homes import descriptors_of, wait_for
from ciel.testing.store_rules import exit_code, start_child
from ciel_tests.clusters.block_stores import BlockStores

CONTENT = bytes(range(256)) * 300


def connected(stores: BlockStores, name: str) -> socket.socket:
    """A connection without a client."""
    directory_fd = os.open(stores.path / name / "shmd", os.O_RDONLY)
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(path_through(directory_fd, "socket"))
    sock.settimeout(20)
    os.close(directory_fd)
    return sock


def received(sock: socket.socket, count: int) -> list[Message]:
    decoder, messages = Decoder(), list[Message]()
    while len(messages) < count:
        chunk = sock.recv(4096)
        assert chunk, f"it ended after {messages}"
        messages += decoder.feed(chunk)
    return messages


# --- loads, writes, commits -----------------------------------------------------------------------


@pytest.mark.requirement("CIB-10", "CIB-20")
def test_what_is_on_the_disk_is_loaded_into_memory_once(pair: BlockStores) -> None:
    pair.put("a", "on-disk", CONTENT)
    client = pair.client("a")
    path = client.load("on-disk")
    assert path.startswith("/dev/shm/")
    assert Path(path).read_bytes() == CONTENT
    assert client.load("on-disk") == path


@pytest.mark.requirement("CIB-10", "CIB-11")
def test_what_a_program_writes_and_commits_can_be_loaded_and_not_changed(
    pair: BlockStores,
) -> None:
    client = pair.client("a")
    path = client.write("made")
    with pytest.raises(RequestFailedError, match="neither in this store nor in another"):
        client.load("made")
    Path(path).write_bytes(CONTENT)
    committed = client.commit(path, "made")
    assert client.load("made") == committed
    assert Path(committed).read_bytes() == CONTENT
    assert not Path(committed).stat().st_mode & 0o222
    assert not Path(path).exists()


@pytest.mark.requirement("CIB-11")
def test_one_attempt_has_one_file_over_several_connections(pair: BlockStores) -> None:
    first, second = (pair.client("a", attempt="task.1") for _ in range(2))
    path = first.write("shared")
    assert first.write("shared") == second.write("shared") == path
    assert pair.client("a", attempt="task.2").write("shared") != path
    first.close()
    Path(path).write_bytes(CONTENT)
    assert Path(second.commit(path, "shared")).read_bytes() == CONTENT


def test_a_commit_may_give_another_name(pair: BlockStores) -> None:
    client = pair.client("a")
    path = client.write("temporary-name")
    Path(path).write_bytes(CONTENT)
    assert Path(client.commit(path, "final:out:0")).read_bytes() == CONTENT
    with pytest.raises(RequestFailedError):
        client.load("temporary-name", recursive=False)


def test_the_first_commit_wins_and_another_content_is_refused(pair: BlockStores) -> None:
    client, other = pair.client("a"), pair.client("a")
    paths = client.write("twice"), other.write("twice")
    for path, content in zip(paths, (b"one" * 2000, b"two" * 2000), strict=True):
        Path(path).write_bytes(content)
    client.commit(paths[0], "twice")
    with pytest.raises(RequestFailedError) as failed:
        other.commit(paths[1], "twice")
    assert failed.value.code is Code.CONFLICT
    assert not Path(paths[1]).exists()


def test_what_is_not_committed_goes_with_its_program(pair: BlockStores, tmp_path: Path) -> None:
    def write_and_die() -> None:
        with ShmdClient(pair.path / "a") as client:
            path = client.write("dead")
            Path(path).write_bytes(CONTENT)
            (tmp_path / "path").write_text(path)
            os.kill(os.getpid(), signal.SIGKILL)

    assert exit_code(start_child(write_and_die)) == -signal.SIGKILL
    path = Path((tmp_path / "path").read_text())
    wait_for(lambda: not path.exists(), "the end of what it wrote")
    with pytest.raises(RequestFailedError):
        pair.client("a").load("dead")


def test_a_full_store_refuses_with_its_reason(pair: BlockStores) -> None:
    with pytest.raises(RequestFailedError) as failed:
        pair.client("a").write("large", size_hint_bytes=2**40)
    assert failed.value.code is Code.NO_SPACE
    assert "wanted 1099511627776 bytes" in failed.value.reason


@pytest.mark.parametrize("name", ["../escape", "/etc/passwd", "a/b", "", "x" * 200])
def test_a_name_that_is_no_id_touches_nothing(pair: BlockStores, name: str) -> None:
    client = pair.client("a")
    for call in (client.load, client.write):
        with pytest.raises(RequestFailedError) as failed:
            call(name)
        assert failed.value.code is Code.BAD_NAME


def test_a_path_that_was_not_lent_is_not_committed(pair: BlockStores, tmp_path: Path) -> None:
    (tmp_path / "mine").write_bytes(CONTENT)
    with pytest.raises(RequestFailedError) as failed:
        pair.client("a").commit(str(tmp_path / "mine"), "stolen")
    assert failed.value.code is Code.UNKNOWN_PATH


# --- siblings -------------------------------------------------------------------------------------


def test_what_another_store_has_in_memory_becomes_ours_by_a_link(pair: BlockStores) -> None:
    made = pair.make(pair.client("b"), "at-b", CONTENT)
    loaded = pair.client("a").load("at-b")
    assert loaded != made
    assert os.path.samefile(loaded, made)


@pytest.mark.requirement("CIB-12")
def test_what_another_store_has_on_its_disk_comes_in_one_hop(pair: BlockStores) -> None:
    pair.put("b", "on-disk-at-b", CONTENT)
    assert Path(pair.client("a").load("on-disk-at-b")).read_bytes() == CONTENT


@pytest.mark.requirement("CIB-12")
def test_who_asks_for_no_hop_gets_none(pair: BlockStores) -> None:
    pair.make(pair.client("b"), "only-at-b", CONTENT)
    with pytest.raises(RequestFailedError, match="not in this store"):
        pair.client("a").load("only-at-b", recursive=False)


def test_both_may_miss_the_same_at_the_same_time(pair: BlockStores) -> None:
    failed = []

    def load(name: str) -> None:
        client = pair.client(name)
        for number in range(20):
            with pytest.raises(RequestFailedError):
                client.load(f"nowhere{number}")
        failed.append(name)

    threads = [threading.Thread(target=load, args=(name,)) for name in ("a", "b", "a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(failed) == 4


# --- bad connections ------------------------------------------------------------------------------


def test_the_socket_is_for_its_user_alone(pair: BlockStores) -> None:
    directory = pair.path / "a" / "shmd"
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\xff\xff\xff\xff",
        struct.pack(">I", 4) + b"\0\0\0\0",
        encode(Load(1, "x"))[:-1] + b"\0",
        encode(Ok(1, "/an/answer")),
    ],
)
def test_garbage_ends_its_connection_and_no_other(pair: BlockStores, garbage: bytes) -> None:
    client = pair.client("a")
    client.write("beside-garbage")
    with closing(connected(pair, "a")) as sock:
        sock.sendall(garbage)
        try:
            assert sock.recv(100) == b""
        except ConnectionResetError:
            pass
    assert client.write("beside-garbage")


def test_many_requests_at_once_are_all_answered(pair: BlockStores) -> None:
    with closing(connected(pair, "a")) as sock:
        sock.sendall(b"".join(encode(Write(number, "same", "att")) for number in range(60)))
        answers = received(sock, 60)
    assert {answer.number for answer in answers} == set(range(60))
    assert len({answer.path for answer in answers if isinstance(answer, Ok)}) == 1


def test_half_a_message_is_waited_for_and_disturbs_nobody(pair: BlockStores) -> None:
    raw = encode(Load(1, "nowhere", recursive=False))
    with closing(connected(pair, "a")) as sock:
        sock.sendall(raw[:9])
        assert pair.client("a").write("beside-half")
        sock.sendall(raw[9:])
        assert received(sock, 1)[0].number == 1


def test_too_many_connections_are_refused_and_room_comes_back(pair: BlockStores) -> None:
    pid = pair.daemons["a"].pid
    socks = [connected(pair, "a") for _ in range(CONNECTIONS_MAX)]
    client = pair.client("a")
    with pytest.raises(DaemonGoneError, match="ended the connection"):
        client.write("one-too-many")
    for sock in socks:
        sock.close()
    wait_for(lambda: descriptors_of(pid) < CONNECTIONS_MAX // 2, "room")
    assert client.write("one-too-many")


# --- ends -----------------------------------------------------------------------------------------


def test_a_spool_may_lie_deeper_than_a_socket_path_is_long(stores: BlockStores) -> None:
    deep = "/".join(["d" * 50] * 4)
    (stores.path / deep).mkdir(parents=True)
    stores.start(deep)
    assert stores.client(deep).write("x")


@pytest.mark.requirement("CIB-10")
def test_a_store_has_one_daemon_and_another_leaves_nothing(in_reactor: Any, tmp_path: Path) -> None:
    with open_disk({}, tmp_path) as store:
        options = {"group": f"vain-{os.getpid()}", "member": "store-1"}
        daemon = in_reactor(Daemon, in_reactor.reactor, store, tmp_path, **options)
        before = descriptors_of(os.getpid())
        with pytest.raises(AlreadyServedError):
            in_reactor(Daemon, in_reactor.reactor, store, tmp_path, **options)
        assert descriptors_of(os.getpid()) == before
        in_reactor(daemon.close)
        assert not (tmp_path / "shmd").exists()
