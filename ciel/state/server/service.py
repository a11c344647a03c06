"""Owns the sockets of a base that is a daemon, and its clock.

All commands that have arrived are carried out, then the log is synced if it has to be, and then the
replies leave. So one wait for the disk is for all clients that wrote meanwhile.
"""

from __future__ import annotations

import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from twisted.internet.task import LoopingCall

from ciel.access.addresses import is_loopback
from ciel.state.server.buffered import BufferedRows
from ciel.state.server.resp import Failure, FramingError, encode
from ciel.state.server.sessions import Server, Session

ALWAYS, INTERVAL, OFF = "always", "interval", "off"
SYNC_MODES: Final = (ALWAYS, INTERVAL, OFF)
"""When writes are made durable: before they are acknowledged; every second; when the operating
system does it. In each mode an acknowledged write survives the end of this process."""
SYNC_S: Final = 1.0
SWEEP_S: Final = 0.1
RECEIVE_BYTES: Final = 256 << 10
OUTPUT_PAUSE_BYTES: Final = 16 << 20
"""With more replies waiting, a connection is not read."""
AUTHENTICATE_S: Final = 10.0
"""A client that has not authenticated itself after this time is disconnected."""
STRANGERS_MAX: Final = 256
"""With more clients that have not authenticated themselves, the oldest of them is disconnected."""


class Connection:
    """A socket and its session, as the reactor sees it."""

    def __init__(self, service: KvService, own: socket.socket, session: Session) -> None:
        self.session = session
        self.replies: list[bytes] = []
        self.opened_s = time.monotonic()
        self._service = service
        self._socket = own
        self._output = b""
        self._is_writing = False
        self._is_paused = False
        self.is_open = True

    def fileno(self) -> int:
        return self._socket.fileno()

    def doRead(self) -> None:
        try:
            data = self._socket.recv(RECEIVE_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        if data:
            self._service.received(self, data)
        else:
            self.close()

    def take_replies(self) -> list[bytes]:
        """Return the replies of this tick, and forget them."""
        replies, self.replies = self.replies, []
        return replies

    def send(self, replies: list[bytes]) -> None:
        """Send replies, as far as the socket takes them."""
        data = b"".join(replies)
        if not self.is_open:
            return
        if self._output:
            self._output += data
        elif data:
            self._output = data
            self.doWrite()
        self._settle()

    def doWrite(self) -> None:
        try:
            sent = self._socket.send(self._output)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError:
            self.close()
            return
        self._output = self._output[sent:]
        if self._is_writing:
            self._settle()

    def _settle(self) -> None:
        """Ask the reactor for what this connection waits for."""
        if not self.is_open:
            return
        if self.session.is_ending and not self._output:
            self.close()
            return
        reactor = self._service.reactor
        if bool(self._output) != self._is_writing:
            self._is_writing = not self._is_writing
            (reactor.addWriter if self._is_writing else reactor.removeWriter)(self)
        if (len(self._output) > OUTPUT_PAUSE_BYTES) != self._is_paused:
            self._is_paused = not self._is_paused
            (reactor.removeReader if self._is_paused else reactor.addReader)(self)

    def close(self) -> None:
        if self.is_open:
            self.is_open = False
            self._service.reactor.removeReader(self)
            self._service.reactor.removeWriter(self)
            self._service.forget(self)
            self._socket.close()

    def connectionLost(self, reason: Any) -> None:
        self.close()

    def logPrefix(self) -> str:
        return "kv"


class KvService:
    """Serves a base. `on_failed` is called with a reason when the log cannot be written; then this
    process must end.
    """

    def __init__(
        self, reactor: Any, rows: BufferedRows, server: Server, sync: str, clients_max: int, *,
        allows_passwords: bool, wall_clock: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        self.reactor = reactor
        self.server = server
        self.on_failed: Callable[[str], object] = lambda reason: None
        self._rows = rows
        self._sync = sync
        self._clients_max = clients_max
        self._allows_passwords = allows_passwords
        self._wall_clock = wall_clock
        self._connections: dict[Session, Connection] = {}
        self._strangers: dict[Connection, None] = {}
        self._active: dict[Connection, None] = {}  # with replies of this tick
        self._held: deque[tuple[int, list[tuple[Connection, list[bytes]]]]] = deque()
        self._durable = rows.number
        self._syncing = Syncing(rows, reactor.callFromThread, self._synced)
        self._is_ending_tick = False
        self._listening: list[Listener] = []
        self._repeated: list[LoopingCall] = []

    def start(self, listening: list[socket.socket]) -> None:
        """Serve clients that connect to sockets, which this service closes."""
        self._listening = [Listener(self, own) for own in listening]
        for listener in self._listening:
            self.reactor.addReader(listener)
        self._repeat(self._sweep, SWEEP_S)
        if self._sync == INTERVAL:
            self._repeat(lambda: self._syncing.request(self._rows.number), SYNC_S)

    def stop(self) -> None:
        """Close all connections. Writes that were not acknowledged may have been carried out."""
        for repeated in self._repeated:
            repeated.stop()
        for listener in self._listening:
            self.reactor.removeReader(listener)
            listener.close()
        for connection in list(self._connections.values()):
            connection.close()
        self._syncing.close()

    def accepted(self, own: socket.socket) -> None:
        """Serve a client that has connected."""
        own.setblocking(False)
        if own.family != socket.AF_UNIX:
            own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        is_local = own.family == socket.AF_UNIX or is_loopback(own.getpeername()[0])
        session = self.server.open(may_use_password=is_local or self._allows_passwords)
        connection = Connection(self, own, session)
        self._connections[connection.session] = connection
        if len(self._connections) > self._clients_max:
            failure = Failure("ERR", f"max number of clients reached: {self._clients_max:,}")
            connection.session.is_ending = True
            connection.send([encode(failure, 2)])
            return
        self._strangers[connection] = None
        if len(self._strangers) > STRANGERS_MAX:
            self._drop_strangers()
        self.reactor.addReader(connection)

    def _drop_strangers(self) -> None:
        """Disconnect clients that have not authenticated themselves: old ones, or too many."""
        before_s = time.monotonic() - AUTHENTICATE_S
        for connection in list(self._strangers):
            if connection.session.role is not None:
                del self._strangers[connection]
        for connection in list(self._strangers):
            if connection.opened_s < before_s or len(self._strangers) > STRANGERS_MAX:
                connection.close()

    def received(self, connection: Connection, data: bytes) -> None:
        """Carry out the commands that have arrived."""
        server, session, replies = self.server, connection.session, connection.replies
        server.now_us = int(self._wall_clock() * 1e6)
        try:
            for command in session.reader.feed(data):
                replies.append(encode(server.execute(session, command), session.protocol))
                if session.is_ending:
                    break
        except FramingError as error:
            replies.append(encode(Failure("ERR", f"Protocol error: {error}"), 2))
            session.is_ending = True
        except OSError as error:
            self.on_failed(f"{self._rows.name} cannot be written: {error.strerror}")
            return
        self._active[connection] = None
        self._schedule_end()

    def _schedule_end(self) -> None:
        if not self._is_ending_tick:
            self._is_ending_tick = True
            self.reactor.soon(self._end_tick)

    def forget(self, connection: Connection) -> None:
        self._connections.pop(connection.session, None)
        self._active.pop(connection, None)
        self._strangers.pop(connection, None)
        self.server.close(connection.session)

    def _end_tick(self) -> None:
        """Send the replies of this tick, when its writes are as durable as they have to be."""
        self._is_ending_tick = False
        for session, push in self.server.take_pushes():
            connection = self._connections.get(session)
            if connection is not None:
                connection.replies.append(encode(push, session.protocol))
                self._active[connection] = None
        active, self._active = self._active, {}
        try:
            self._rows.flush()
        except OSError as error:
            self.on_failed(f"{self._rows.name} cannot be written: {error.strerror}")
            return
        if self._sync != ALWAYS or (not self._held and self._rows.number == self._durable):
            for connection in active:
                connection.send(connection.take_replies())
            return
        replies = [(connection, connection.take_replies()) for connection in active]
        self._held.append((self._rows.number, replies))
        self._syncing.request(self._rows.number)

    def _synced(self, number: int, reason: str) -> None:
        if reason:
            self.on_failed(reason)
            return
        self._durable = max(self._durable, number)
        while self._held and self._held[0][0] <= self._durable:
            for connection, replies in self._held.popleft()[1]:
                connection.send(replies)  # and no replies of the present tick

    def _sweep(self) -> None:
        server = self.server
        server.now_us = int(self._wall_clock() * 1e6)
        try:
            server.sweep()
        except OSError as error:
            self.on_failed(f"{self._rows.name} cannot be written: {error.strerror}")
        self._drop_strangers()
        self._schedule_end()

    def _repeat(self, call: Callable[[], object], every_s: float) -> None:
        repeated = LoopingCall(call)
        repeated.clock = self.reactor
        repeated.start(every_s, now=False)
        self._repeated.append(repeated)


class Syncing(threading.Thread):
    """Makes the log durable in a thread, once for all requests that wait meanwhile."""

    def __init__(
        self, rows: BufferedRows, call: Callable[..., object],
        done: Callable[[int, str], object],
    ) -> None:  # fmt: skip
        super().__init__(name="ciel-kv-sync", daemon=True)
        self._rows = rows
        self._call = call
        self._done = done
        self._wanted = self._reached = rows.number
        self._changed = threading.Condition()
        self._is_closing = False
        self.start()

    def request(self, number: int) -> None:
        """Ask for everything up to a record to become durable."""
        with self._changed:
            self._wanted = max(self._wanted, number)
            self._changed.notify()

    def close(self) -> None:
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        self.join()

    def run(self) -> None:
        while True:
            with self._changed:
                while self._wanted == self._reached and not self._is_closing:
                    self._changed.wait()
                if self._is_closing:
                    return
                number = self._wanted
            reason = ""
            try:
                self._rows.sync()
            except OSError as error:
                reason = f"{self._rows.name} cannot be made durable: {error.strerror}"
            self._reached = number
            self._call(self._done, number, reason)


class Listener:
    """A listening socket, as the reactor sees it."""

    def __init__(self, service: KvService, own: socket.socket) -> None:
        self._service = service
        self._socket = own
        own.setblocking(False)

    def fileno(self) -> int:
        return self._socket.fileno()

    def doRead(self) -> None:
        for _ in range(64):
            try:
                connected, _address = self._socket.accept()
            except OSError:  # none waits, or this process has no descriptor left
                return
            self._service.accepted(connected)

    def connectionLost(self, reason: Any) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def logPrefix(self) -> str:
        return "kv"
