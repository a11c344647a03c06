"""Tests objects that grow on one worker and are read on another, over real connections."""

from __future__ import annotations

import hashlib
import os
import socket
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from ciel.access.tickets import make_ticket
from ciel.core.ids import ObjectId
from ciel.core.plans import HttpPlan, StreamPlan
from ciel.core.refs import INLINE_MAX_BYTES, Stream
from ciel.storage.digests import ATTRIBUTE
from ciel.storage.errors import NoSpaceError
from ciel.storage.files import FileStore, open_disk
from ciel.testing.data_worker import KEY, DataWorker
from ciel.testing.homes import wait_for

CONTENT = bytes(range(256)) * 4096
PRODUCER = """
import sys
with open(sys.argv[1], "wb") as file:
    for number in range(int(sys.argv[2]) >> 16):
        file.write(number.to_bytes(4, "big") * (1 << 14))
"""

Make = Callable[..., DataWorker]


@pytest.fixture
def make(in_reactor: Any, tmp_path: Path) -> Iterator[Make]:
    """Create workers, each with its own store."""
    made: list[tuple[DataWorker, FileStore]] = []

    def make(**options: str) -> DataWorker:
        store = open_disk(options, tmp_path / str(len(made)))
        made.append((DataWorker(in_reactor, store), store))
        return made[-1][0]

    yield make
    for worker, store in reversed(made):
        worker.leave()
        store.close()
    assert [path for path in tmp_path.glob("*/incoming/*/*") if path.name != "lock"] == []


def append(path: str | None, content: bytes) -> None:
    with open(str(path), "ab") as file:
        file.write(content)


# --- complete streams -----------------------------------------------------------------------------


def test_an_object_is_read_at_another_worker_while_it_is_made(make: Make) -> None:
    maker, reader = make(), make()
    writer, growing = maker.open_stream("x")
    append(writer.path, b"first")
    reader.begin_fetch(maker.makes("x"), StreamPlan(maker.netloc))
    reader.await_opened()
    copy = reader.run(reader.streams.get, "x")
    assert reader.when(copy, 5).wait(10)
    assert Path(copy.name()).read_bytes() == b"first"
    assert reader.store.stat("x") is None
    append(writer.path, b"second")
    assert reader.when(copy, 11).wait(10)
    writer.commit()
    maker.run(maker.streams.finish, growing)
    assert reader.end_of_fetch() == ("x", 11)
    assert reader.store.get("x") == b"firstsecond"
    assert copy.is_whole


def test_it_is_known_to_be_readable_before_its_first_byte(make: Make) -> None:
    maker, reader = make(), make()
    writer, growing = maker.open_stream("x")
    reader.begin_fetch(maker.makes("x"), StreamPlan(maker.netloc))
    reader.await_opened()
    assert (reader.opened, reader.received) == (["x"], [])
    writer.take(0)
    maker.run(maker.streams.finish, growing)
    assert reader.end_of_fetch() == ("x", 0)
    assert reader.store.get("x") == b""


@pytest.mark.slow
def test_64_mib_pass_two_sites_whole(make: Make) -> None:
    maker, middle, reader = make(), make(), make()
    writer, growing = maker.open_stream("x")
    middle.begin_fetch(maker.makes("x"), StreamPlan(maker.netloc))
    middle.await_opened()
    reader.begin_fetch(middle.makes("x"), StreamPlan(middle.netloc))
    reader.await_opened()
    command = [sys.executable, "-c", PRODUCER, str(writer.path), str(64 << 20)]
    subprocess.run(command, check=True)
    writer.commit()
    maker.run(maker.streams.finish, growing)
    assert middle.end_of_fetch() == reader.end_of_fetch() == ("x", 64 << 20)
    contents = [worker.store.open("x").view() for worker in (maker, middle, reader)]
    assert len({hashlib.sha256(content).hexdigest() for content in contents}) == 1
    info = reader.store.stat("x")
    assert info is not None
    assert info.checksum == maker.store.checksum("x")


@pytest.mark.parametrize("size_bytes", [0, 5, INLINE_MAX_BYTES, INLINE_MAX_BYTES + 1, len(CONTENT)])
def test_one_that_has_become_whole_meanwhile_is_an_ordinary_copy(
    make: Make, size_bytes: int
) -> None:
    maker, reader = make(), make()
    writer, growing = maker.open_stream("x")
    append(writer.path, CONTENT[:size_bytes])
    if writer.take(INLINE_MAX_BYTES) is None:
        writer.commit()
    maker.run(maker.streams.finish, growing)
    assert reader.fetch(maker.makes("x"), StreamPlan(maker.netloc)) == ("x", size_bytes)
    assert reader.store.get("x") == CONTENT[:size_bytes]
    assert reader.opened == []


def test_one_that_still_grows_can_be_had_by_an_ordinary_plan(make: Make) -> None:
    maker, reader = make(), make()
    writer, growing = maker.open_stream("x")
    append(writer.path, CONTENT)
    reader.begin_fetch(maker.has("x"), HttpPlan(maker.netloc))
    reader.await_opened()
    writer.commit()
    maker.run(maker.streams.finish, growing)
    assert reader.end_of_fetch() == ("x", len(CONTENT))


def test_more_streams_than_transfers_leave_room_for_other_objects(make: Make) -> None:
    maker, reader = make(), make()
    maker.store.put("y", CONTENT)
    made = [maker.open_stream(f"o{number}") for number in range(20)]
    for _, growing in made:
        reader.begin_fetch(maker.makes(growing.object_id), StreamPlan(maker.netloc))
        reader.await_opened()
    assert reader.fetch(maker.has("y"), HttpPlan(maker.netloc)) == ("y", len(CONTENT))
    reader.received.clear()
    for writer, growing in made:
        writer.commit()
        maker.run(maker.streams.finish, growing)
    wait_for(lambda: len(reader.received) == len(made), "all streams")
    assert {size_bytes for _, size_bytes in reader.received} == {0}


def test_one_that_still_grows_here_too_is_not_read_before_it_is_whole(make: Make) -> None:
    maker, reader = make(), make()
    writer, growing = maker.open_stream("x")
    stale, old = reader.open_stream("x")
    append(writer.path, CONTENT)
    reader.begin_fetch(maker.makes("x"), StreamPlan(maker.netloc))
    wait_for(lambda: reader.transfers.running == 1, "the transfer")
    writer.commit()
    maker.run(maker.streams.finish, growing)
    assert reader.end_of_fetch() == ("x", len(CONTENT))
    assert reader.opened == []
    reader.run(reader.streams.break_off, old, "called off")
    stale.abort()


# --- broken streams -------------------------------------------------------------------------------


def test_a_producer_cut_anywhere_never_makes_a_whole_object(make: Make) -> None:
    maker, reader = make(), make()
    random = Random(4)
    for number in range(20):
        object_id, cut = f"o{number}", random.randrange(len(CONTENT))
        writer, growing = maker.open_stream(object_id)
        append(writer.path, CONTENT[: cut // 2])
        reader.begin_fetch(maker.makes(object_id), StreamPlan(maker.netloc))
        reader.await_opened()
        copy = reader.run(reader.streams.get, object_id)
        ended = reader.when(copy, float("inf"))
        append(writer.path, CONTENT[cut // 2 : cut])
        maker.run(maker.streams.break_off, growing, "its program was killed")
        writer.abort()
        told_id, losses, details = reader.end_of_fetch()
        assert (told_id, losses) == (object_id, (maker.netloc,))
        assert "as it grows" in details
        assert ended.wait(10)
        assert copy.broken
        assert not copy.is_whole
        assert reader.store.stat(object_id) is None
        assert reader.run(reader.streams.get, object_id) is None


def test_what_was_read_is_not_asked_for_elsewhere(make: Make) -> None:
    maker, other, reader = make(), make(), make()
    other.store.put("x", CONTENT)
    writer, growing = maker.open_stream("x")
    plans = StreamPlan(maker.netloc), StreamPlan(other.netloc)
    reader.begin_fetch(maker.makes("x"), *plans)
    reader.await_opened()
    maker.run(maker.streams.break_off, growing, "gone")
    writer.abort()
    _, losses, _ = reader.end_of_fetch()
    assert losses == (maker.netloc,)


def test_where_nothing_grows_it_is_lost_and_the_next_is_asked(make: Make) -> None:
    maker, other, reader = make(), make(), make()
    writer, growing = maker.open_stream("x")
    maker.run(maker.streams.break_off, growing, "gone")
    writer.abort()
    other.store.put("x", CONTENT)
    plans = StreamPlan(maker.netloc), StreamPlan(other.netloc)
    ref = Stream(ObjectId("x"), frozenset((maker.netloc, other.netloc)))
    assert reader.fetch(ref, *plans) == ("x", len(CONTENT))


def test_no_room_here_breaks_the_copy_and_is_no_loss_there(make: Make) -> None:
    maker, reader = make(), make(capacity="64KiB")
    writer, growing = maker.open_stream("x")
    reader.begin_fetch(maker.makes("x"), StreamPlan(maker.netloc))
    reader.await_opened()
    copy = reader.run(reader.streams.get, "x")
    append(writer.path, CONTENT)
    _, losses, details = reader.end_of_fetch()
    assert losses == ()
    assert "space" in details
    assert copy.broken
    wait_for(lambda: not growing._holds, "the maker to notice")
    writer.commit()
    maker.run(maker.streams.finish, growing)
    with pytest.raises(NoSpaceError):
        reader.store.put("y", CONTENT)


class Deaf:
    """A holder that starts to answer a request, then sends nothing more and accepts no other."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.netloc = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._serve).start()

    def _serve(self) -> None:
        connection, _ = self._listener.accept()
        self._listener.close()
        with connection:
            connection.recv(65536)
            connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n")
            connection.recv(1)  # until the client hangs up


def test_a_holder_that_is_silent_and_does_not_answer_is_given_up(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ciel.worker.transfer.fetching.STALL_TIMEOUT_S", 0.05)
    reader, deaf = make(), Deaf()
    ref = Stream(ObjectId("x"), frozenset((deaf.netloc,)))
    _, losses, details = reader.fetch(ref, StreamPlan(deaf.netloc))
    assert reader.opened == ["x"]
    assert (losses, reader.unreached) == ((deaf.netloc,), (deaf.netloc,))
    assert "silent" in details


def test_a_copy_that_is_abandoned_ends_at_once_and_is_no_object(make: Make) -> None:
    """The holder is alive but silent, so without this the fetch would wait for it."""
    maker, reader = make(), make()
    writer, _ = maker.open_stream("x")
    append(writer.path, CONTENT)
    reader.begin_fetch(maker.makes("x"), StreamPlan(maker.netloc))
    reader.await_opened()
    reader.run(reader.fetcher.abandon, "x")
    _, places, details = reader.end_of_fetch()
    assert (places, reader.unreached) == ((maker.netloc,), ())
    assert "its producer has failed" in details
    assert reader.store.stat("x") is None
    reader.run(reader.fetcher.abandon, "x")  # after the end, it has no effect


def test_a_producer_may_be_silent_for_as_long_as_its_worker_answers(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ciel.worker.transfer.fetching.STALL_TIMEOUT_S", 0.02)
    maker, reader = make(), make()
    writer, growing = maker.open_stream("x")
    reader.begin_fetch(maker.makes("x"), StreamPlan(maker.netloc))
    reader.await_opened()
    time.sleep(0.2)
    append(writer.path, CONTENT)
    writer.commit()
    maker.run(maker.streams.finish, growing)
    assert reader.end_of_fetch() == ("x", len(CONTENT))


# --- readers other than workers -------------------------------------------------------------------


def ask(worker: DataWorker, object_id: str, method: str = "GET", fields: str = "") -> socket.socket:
    """Send a request; return the connection."""
    target = f"/data/{object_id}"
    ticket = make_ticket(KEY, method, worker.netloc, target, time.time())
    version = "1.0" if fields == "old" else "1.1"
    fields = "" if fields == "old" else fields
    head = f"{method} {target} HTTP/{version}\r\nHost: {worker.netloc}\r\n{fields}"
    host, _, port = worker.netloc.rpartition(":")
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
    connection.settimeout(20)
    connection.connect((host, int(port)))
    connection.sendall(f"{head}Authorization: {ticket}\r\n\r\n".encode())
    return connection


@pytest.mark.parametrize(
    "method, fields, status",
    [
        ("GET", "Range: bytes=0-0\r\n", b"HTTP/1.1 409"),
        ("GET", "old", b"HTTP/1.0 505"),
        ("HEAD", "", b"HTTP/1.1 200"),
    ],
)
def test_of_what_grows_there_is_all_or_nothing(
    make: Make, method: str, fields: str, status: bytes
) -> None:
    maker = make()
    writer, growing = maker.open_stream("x")
    append(writer.path, CONTENT)
    with ask(maker, "x", method, fields) as connection:
        answer = connection.recv(65536)
        assert answer.startswith(status)
        assert CONTENT[:100] not in answer
        assert method == "GET" or b"Content-Length" not in answer
    maker.run(maker.streams.break_off, growing, "enough")
    writer.abort()


def test_a_reader_that_leaves_costs_the_producer_nothing(make: Make) -> None:
    maker = make()
    writer, growing = maker.open_stream("x")
    for _ in range(5):
        with ask(maker, "x") as connection:
            assert connection.recv(1) == b"H"
            wait_for(lambda: growing._holds == 1, "the reader")
        wait_for(lambda: growing._holds == 0, "its end to be noticed")
        append(writer.path, CONTENT)
    writer.commit()
    maker.run(maker.streams.finish, growing)
    assert maker.store.get("x") == CONTENT * 5


def test_a_slow_reader_keeps_memory_flat(make: Make) -> None:
    maker = make()
    writer, growing = maker.open_stream("x")
    with ask(maker, "x") as connection:
        connection.recv(1)
        tracemalloc.start()
        for _ in range(64):
            append(writer.path, CONTENT)
            connection.recv(1000)
        time.sleep(0.1)
        _, peak_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert writer.size_bytes == 64 * len(CONTENT)
    assert peak_bytes < 8 << 20
    maker.run(maker.streams.break_off, growing, "enough")
    writer.abort()


# --- flipped bits ---------------------------------------------------------------------------------


def flip(path: str, random: Random) -> None:
    os.chmod(path, 0o600)
    with open(path, "r+b") as file:
        content = bytearray(file.read())
        content[random.randrange(len(content))] ^= 1 << random.randrange(8)
        file.seek(0)
        file.write(content)
    os.chmod(path, 0o400)


def test_of_a_hundred_flipped_bits_none_is_delivered(make: Make) -> None:
    maker, reader = make(), make()
    random = Random(6)
    for number in range(100):
        object_id = f"o{number}"
        maker.store.put(object_id, random.randbytes(random.choice((1, 4096, 65_537))))
        with maker.store.open(object_id) as stored:
            flip(str(stored.path), random)
        told_id, losses, details = reader.fetch(maker.has(object_id), HttpPlan(maker.netloc))
        assert (told_id, losses) == (object_id, (maker.netloc,))
        assert "no such object here" in details  # its store has found and deleted it
    assert list(reader.store) == []


def test_a_copy_has_its_checksum_beside_it(make: Make) -> None:
    maker, reader = make(), make()
    maker.store.put("x", CONTENT)
    reader.fetch(maker.has("x"), HttpPlan(maker.netloc))
    with reader.store.open("x") as copy:
        recorded = os.getxattr(copy.fileno(), ATTRIBUTE).decode()
    assert recorded == maker.store.checksum("x")
