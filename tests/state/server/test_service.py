from __future__ import annotations

import queue
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from twisted.logger import globalLogPublisher

from ciel.access.keys import Key, Role
from ciel.state.bases.replies import Replies, pack_command
from ciel.state.server import service as service_module
from ciel.state.server.buffered import BufferedRows
from ciel.state.server.command import SLICE_STEPS
from ciel.state.server.limits import DEFAULT, KvLimits
from ciel.state.server.resp import KNOWN
from ciel.state.server.service import ALWAYS, COMMANDS_MAX, OFF, Connection, KvService, Listener
from ciel.state.server.sessions import Server


class Reactor:
    """Runs nothing by itself: the test ends ticks, and takes the calls of threads."""

    def __init__(self) -> None:
        self.due: list[Callable[[], object]] = []
        self.of_threads: queue.Queue[Callable[[], object]] = queue.Queue()
        self.readers: set[object] = set()
        self.writers: set[object] = set()

    def soon(self, call: Callable[[], object]) -> None:
        self.due.append(call)

    def callFromThread(self, call: Callable[..., object], *args: Any) -> None:  # noqa: N802
        self.of_threads.put(lambda: call(*args))

    def addReader(self, reader: object) -> None:  # noqa: N802
        self.readers.add(reader)

    def removeReader(self, reader: object) -> None:  # noqa: N802
        self.readers.discard(reader)

    def addWriter(self, writer: object) -> None:  # noqa: N802
        self.writers.add(writer)

    def removeWriter(self, writer: object) -> None:  # noqa: N802
        self.writers.discard(writer)

    def end_tick(self) -> None:
        due, self.due = self.due, []
        for call in due:
            call()

    def take_call(self) -> None:
        self.of_threads.get(timeout=10)()


class Served:
    """A base that is served, with one client. The clients' sockets wait for a short time."""

    def __init__(self, where: Path, sync: str, limits: KvLimits = DEFAULT) -> None:
        self.reactor = Reactor()
        self.rows = BufferedRows(where, lambda: 0, self.reactor.callFromThread)
        self.server = Server(self.rows, Key(b"k" * 32).derive, limits)
        self.service = KvService(self.reactor, self.rows, self.server, sync, allows_passwords=False)
        self._sockets: list[socket.socket] = []
        self.connection, self.client = self.connect()

    def connect(self, role: Role | None = Role.KV) -> tuple[Connection, socket.socket]:
        theirs, ours = socket.socketpair()
        self._sockets.append(theirs)
        theirs.settimeout(0.05)
        before = set(self.service._connections.values())
        self.service.accepted(ours)
        (connection,) = set(self.service._connections.values()) - before
        connection.session.role = role
        connection.session.reader.limits = KNOWN
        return connection, theirs

    def send(self, connection: Connection, *commands: list[bytes]) -> None:
        """Let commands of a client arrive, as far as the service reads."""
        if connection in self.reactor.readers:
            self.service.received(connection, b"".join(map(pack_command, commands)))

    def close(self) -> None:
        self.service.stop()
        for own in self._sockets:
            own.close()
        self.rows.close()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    served = Served(tmp_path / "base", ALWAYS)
    yield served
    served.close()


@pytest.fixture
def fast(tmp_path: Path) -> Iterator[Served]:
    """A base that does not sync, and lets a megabyte of replies wait."""
    served = Served(tmp_path / "base", OFF, KvLimits(3, 100_000, 1 << 20))
    yield served
    served.close()


@pytest.fixture
def logged() -> Iterator[list[str]]:
    lines: list[str] = []

    def note(event: Any) -> None:
        lines.append(event["log_format"].format(**event))

    observe: Any = note
    globalLogPublisher.addObserver(observe)
    yield lines
    globalLogPublisher.removeObserver(observe)


def test_reply_waits_until_its_write_is_durable(
    served: Served,
) -> None:
    reactor, service = served.reactor, served.service
    connection, client = served.connection, served.client
    service.received(connection, pack_command([b"SET", b"a", b"1"]))
    reactor.end_tick()
    with pytest.raises(TimeoutError):
        client.recv(100)
    service.received(connection, pack_command([b"INCR", b"a"]))  # in the next tick
    reactor.take_call()  # the first write is durable, and the second is not
    assert client.recv(100) == b"+OK\r\n"
    reactor.end_tick()
    with pytest.raises(TimeoutError):
        client.recv(100)
    reactor.take_call()
    assert client.recv(100) == b":2\r\n"


def test_reads_wait_behind_writes_that_are_not_durable(
    served: Served,
) -> None:
    reactor, service = served.reactor, served.service
    connection, client = served.connection, served.client
    service.received(connection, pack_command([b"GET", b"a"]))
    reactor.end_tick()
    assert client.recv(100) == b"$-1\r\n"
    service.received(connection, pack_command([b"SET", b"a", b"1"]))
    reactor.end_tick()
    service.received(connection, pack_command([b"GET", b"a"]))
    reactor.end_tick()
    with pytest.raises(TimeoutError):
        client.recv(100)
    while reactor.of_threads.qsize() or service._held:
        reactor.take_call()
    assert client.recv(100) == b"+OK\r\n$1\r\n1\r\n"


# --- commands that take longer --------------------------------------------------------------------


def fill(served: Served, rows: int) -> None:
    served.rows.write({b"%05d" % number: b"\0v" for number in range(rows)})


def test_other_clients_are_served_between_slices(fast: Served) -> None:
    fill(fast, 5 * SLICE_STEPS)
    other, other_client = fast.connect()
    fast.send(fast.connection, [b"KEYS", b"*"], [b"GET", b"00001"])
    for ticks in range(1, 20):
        fast.reactor.end_tick()
        if not fast.connection.is_busy:
            break
        assert fast.connection not in fast.reactor.readers
        fast.send(other, [b"INCR", b"n"])
        fast.reactor.end_tick()
        assert other_client.recv(100) == b":%d\r\n" % ticks
    replies = Replies(fast.client)
    fast.client.settimeout(5)
    assert replies.next() == [b"%05d" % number for number in range(5 * SLICE_STEPS)]
    assert replies.next() == b"v"  # after the reply to the command before
    assert ticks >= 2
    assert fast.connection in fast.reactor.readers


def test_many_commands_of_a_client_do_not_hold_up_others(fast: Served) -> None:
    count = 5 * COMMANDS_MAX
    other, other_client = fast.connect()
    fast.send(fast.connection, *[[b"INCR", b"n"]] * count)
    for _ in range(3):
        fast.send(other, [b"GET", b"n"])
        fast.reactor.end_tick()
        assert int(Replies(other_client).next()) <= 4 * COMMANDS_MAX
    while fast.connection.is_busy:
        fast.reactor.end_tick()
    fast.reactor.end_tick()
    replies = Replies(fast.client)
    assert [replies.next() for _ in range(count)] == list(range(1, count + 1))


def test_slices_of_a_client_that_leaves_end(fast: Served) -> None:
    fill(fast, 5 * SLICE_STEPS)
    fast.send(fast.connection, [b"KEYS", b"*"])
    assert fast.rows.snapshots == 1
    fast.connection.close()
    assert fast.rows.snapshots == 0
    fast.reactor.end_tick()


# --- output ---------------------------------------------------------------------------------------


def drain(served: Served, connection: Connection, client: socket.socket) -> bytes:
    """Read all replies, while the service goes on."""
    data = bytearray()
    while True:
        served.reactor.end_tick()
        try:
            data += client.recv(1 << 20)
        except TimeoutError:
            if not connection.is_busy:
                return bytes(data)
        if connection in served.reactor.writers:
            connection.doWrite()


def test_commands_wait_while_a_client_does_not_read(fast: Served) -> None:
    fast.rows.write({b"a": b"\0" + bytes(50_000)})
    fast.send(fast.connection, *[[b"GET", b"a"]] * 100)  # five megabytes
    for _ in range(50):
        fast.reactor.end_tick()
    assert fast.connection.waiting_bytes < 400_000
    assert fast.connection not in fast.reactor.readers
    assert fast.connection.is_open
    assert len(drain(fast, fast.connection, fast.client)) == 100 * (50_000 + len("$50000\r\n\r\n"))
    assert fast.connection.waiting_bytes == 0
    assert fast.connection in fast.reactor.readers


def test_client_that_does_not_read_reports_is_disconnected(fast: Served, logged: list[str]) -> None:
    other, other_client = fast.connect()
    prefixes = [b"%03d" % number + bytes(400) for number in range(100)]
    fast.send(fast.connection, *[[b"CIEL.WATCH", prefix] for prefix in prefixes])
    for _ in range(100):
        fast.send(other, [b"MSET", *[part for key in prefixes for part in (key, b"1")]])
        fast.reactor.end_tick()
        assert other_client.recv(100) == b"+OK\r\n"
        assert fast.connection.waiting_bytes < 1_200_000
    assert not fast.connection.is_open
    assert fast.connection not in fast.service._connections.values()
    assert [line for line in logged if "it has not read 1,0" in line]


def test_too_large_reply_is_an_error(fast: Served) -> None:
    fast.rows.write({b"%d" % number + bytes(400): b"\0" for number in range(2 * SLICE_STEPS)})
    fast.send(fast.connection, [b"KEYS", b"*"], [b"ECHO", bytes(600_000)], [b"PING"])
    of_keys, of_echo, of_ping, _ = drain(fast, fast.connection, fast.client).split(b"\r\n")
    assert of_keys.startswith(b"-LIMIT the reply has 8")
    assert of_echo.startswith(b"-LIMIT the reply has 600,0")
    assert of_ping == b"+PONG"


def test_output_is_not_copied_when_a_socket_takes_a_part(fast: Served) -> None:
    reply = bytes(10 << 20)
    fast.connection.add(reply)
    fast.connection.send(fast.connection.take_replies())
    (left,) = fast.connection._output
    assert isinstance(left, memoryview)
    assert left.obj is reply
    assert len(left) == fast.connection.waiting_bytes < len(reply)
    assert drain(fast, fast.connection, fast.client) == reply


def test_replies_before_a_malformed_command_are_sent(fast: Served) -> None:
    fast.service.received(fast.connection, pack_command([b"PING"]) + b"*x\r\n")
    fast.reactor.end_tick()
    assert fast.client.recv(1000).startswith(b"+PONG\r\n-ERR Protocol error")
    assert not fast.connection.is_open


# --- connections ----------------------------------------------------------------------------------


def test_too_many_clients_are_refused(fast: Served) -> None:
    for _ in range(2):
        fast.connect()
    theirs, ours = socket.socketpair()
    theirs.settimeout(5)
    with theirs:
        fast.service.accepted(ours)
        assert theirs.recv(100) == b"-ERR max number of clients reached: 3\r\n"
        assert theirs.recv(100) == b""
    assert fast.server.metrics.refused_connections == 1
    fast.connection.close()
    connection, _ = fast.connect()
    assert connection.is_open


def test_strangers_are_few_and_have_little_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_module, "STRANGERS_MAX", 3)
    served = Served(tmp_path / "base", OFF)
    strangers = [served.connect(role=None)[0] for _ in range(4)]
    assert [stranger.is_open for stranger in strangers] == [False, True, True, True]
    strangers[1].opened_s -= service_module.AUTHENTICATE_S
    served.connection.opened_s -= service_module.AUTHENTICATE_S
    served.service._sweep()
    assert [stranger.is_open for stranger in strangers] == [False, False, True, True]
    assert served.connection.is_open
    served.close()


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening


def test_kernel_looks_for_clients_that_are_gone(fast: Served, listening: socket.socket) -> None:
    with socket.create_connection(listening.getsockname()):
        Listener(fast.service, listening).doRead()
        (*_, connection) = fast.service._connections.values()
        own = connection._socket
        assert own.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert own.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 60
        assert own.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 300_000


def test_client_that_resets_its_connection_at_once_harms_nobody(
    fast: Served, listening: socket.socket
) -> None:
    own = socket.create_connection(listening.getsockname())
    own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    own.close()
    listener = Listener(fast.service, listening)
    listener.doRead()
    for connection in list(fast.service._connections.values()):
        if connection is not fast.connection:
            connection.doRead()
    assert list(fast.service._connections.values()) == [fast.connection]
    with socket.create_connection(listening.getsockname()):
        listener.doRead()
        assert len(fast.service._connections) == 2


def test_bytes_are_counted(fast: Served) -> None:
    fast.send(fast.connection, [b"PING"])
    fast.reactor.end_tick()
    metrics = fast.server.metrics
    assert (metrics.received_bytes, metrics.sent_bytes) == (len(b"*1\r\n$4\r\nPING\r\n"), 7)
    assert metrics.connections == 1
