from __future__ import annotations

import queue
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ciel.access.keys import Key, Role
from ciel.state.bases.replies import pack_command
from ciel.state.server.buffered import BufferedRows
from ciel.state.server.service import ALWAYS, Connection, KvService
from ciel.state.server.sessions import Server


class Reactor:
    """Runs nothing by itself: the test ends ticks, and takes the calls of threads."""

    def __init__(self) -> None:
        self.due: list[Callable[[], object]] = []
        self.of_threads: queue.Queue[Callable[[], object]] = queue.Queue()

    def soon(self, call: Callable[[], object]) -> None:
        self.due.append(call)

    def callFromThread(self, call: Callable[..., object], *args: Any) -> None:  # noqa: N802
        self.of_threads.put(lambda: call(*args))

    def addReader(self, _: object) -> None: ...  # noqa: N802
    def removeReader(self, _: object) -> None: ...  # noqa: N802
    def addWriter(self, _: object) -> None: ...  # noqa: N802
    def removeWriter(self, _: object) -> None: ...  # noqa: N802

    def end_tick(self) -> None:
        while self.due:
            self.due.pop(0)()

    def take_call(self) -> None:
        self.of_threads.get(timeout=10)()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Reactor, KvService, Connection, socket.socket]]:
    reactor = Reactor()
    rows = BufferedRows(tmp_path / "base", lambda: 0, reactor.callFromThread)
    server = Server(rows, Key(b"k" * 32).derive)
    service = KvService(reactor, rows, server, ALWAYS, 10, allows_passwords=False)
    theirs, ours = socket.socketpair()
    service.accepted(ours)
    (connection,) = service._connections.values()
    connection.session.role = Role.KV
    theirs.settimeout(0.05)
    yield reactor, service, connection, theirs
    service.stop()
    theirs.close()
    rows.close()


def test_reply_waits_until_its_write_is_durable(
    served: tuple[Reactor, KvService, Connection, socket.socket],
) -> None:
    reactor, service, connection, client = served
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
    served: tuple[Reactor, KvService, Connection, socket.socket],
) -> None:
    reactor, service, connection, client = served
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
