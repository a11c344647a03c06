"""Owns the sockets of a base that is a daemon, and its clock.

All commands that have arrived are carried out, then the log is synced if it has to be, and then the
replies leave. So one wait for the disk is for all clients that wrote meanwhile.

A connection is *busy* while it has commands that are not carried out yet: many, or one that takes
several slices, or its client does not read the replies. It is not read meanwhile. Each tick goes on
with one busy connection, so that the others do not wait for it.
"""

from __future__ import annotations

import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from types import GeneratorType
from typing import Any, Final

from twisted.internet.task import LoopingCall
from twisted.logger import Logger

from ciel.access.addresses import is_loopback, netloc
from ciel.state.server.buffered import BufferedRows
from ciel.state.server.command import Slices
from ciel.state.server.errors import FramingError
from ciel.state.server.resp import Failure, encode
from ciel.state.server.sessions import Server, Session

ALWAYS, INTERVAL, OFF = "always", "interval", "off"
SYNC_MODES: Final = (ALWAYS, INTERVAL, OFF)
"""When writes are made durable: before they are acknowledged; every second; when the operating
system does it. In each mode an acknowledged write survives the end of this process."""
SYNC_S: Final = 1.0
SWEEP_S: Final = 0.1
RECEIVE_BYTES: Final = 256 << 10
COMMANDS_MAX: Final = 500
"""How many commands of a connection are carried out in a tick; they take some 10 ms."""
KEEPALIVE: Final = {
    socket.TCP_KEEPIDLE: 60, socket.TCP_KEEPINTVL: 10, socket.TCP_KEEPCNT: 3,
    socket.TCP_USER_TIMEOUT: 300_000,
}  # fmt: skip
"""After how many seconds without a message the kernel asks the client's host for the connection,
how often and how many times; and after how many milliseconds it closes the connection of a client
that takes no replies.
"""
AUTHENTICATE_S: Final = 10.0
"""A client that has not authenticated itself after this time is disconnected."""
STRANGERS_MAX: Final = 256
"""With more clients that have not authenticated themselves, the oldest of them is disconnected."""
_log = Logger()


class Connection:
    """A socket and its session, as the reactor sees it."""

    def __init__(self, service: KvService, own: socket.socket, session: Session, peer: str) -> None:
        self.session = session
        self.peer = peer
        self.replies: list[bytes] = []
        self.waiting_bytes = 0
        """The size of all replies that the socket has not taken yet."""
        self.commands: Iterator[list[bytes]] = iter(())
        self.slices: Slices | None = None
        self.is_busy = False
        self.opened_s = time.monotonic()
        self._service = service
        self._socket = own
        self._metrics = service.server.metrics
        self._output: deque[bytes | memoryview] = deque()
        self._is_reading = self._is_writing = False
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

    def add(self, reply: bytes) -> None:
        """Add a reply of this tick, or a report."""
        self.replies.append(reply)
        self.waiting_bytes += len(reply)

    def take_replies(self) -> list[bytes]:
        """Return the replies of this tick, and forget them."""
        replies, self.replies = self.replies, []
        return replies

    def send(self, replies: list[bytes]) -> None:
        """Send replies, as far as the socket takes them."""
        if not self.is_open:
            return
        if replies:
            self._output.append(b"".join(replies))
            if not self._is_writing:
                self._write()
        self.settle()

    def doWrite(self) -> None:
        self._write()
        self.settle()

    def _write(self) -> None:
        """Send what waits, until the socket takes no more. No byte is copied for that."""
        output = self._output
        try:
            while output:
                data = output[0]
                sent = self._socket.send(data)
                self.waiting_bytes -= sent
                self._metrics.sent_bytes += sent
                if sent < len(data):
                    output[0] = memoryview(data)[sent:]
                    break
                output.popleft()
        except (BlockingIOError, InterruptedError):
            pass
        except OSError:
            self.close()

    def settle(self) -> None:
        """Ask the reactor for what this connection waits for."""
        if self.session.is_ending and not self.waiting_bytes:
            self.close()
        if not self.is_open:
            return
        if bool(self._output) is not self._is_writing:
            self._is_writing = not self._is_writing
            reactor = self._service.reactor
            (reactor.addWriter if self._is_writing else reactor.removeWriter)(self)
        is_paused = self.waiting_bytes > self._service.pause_bytes
        if (self.is_busy or is_paused) is self._is_reading:
            self._is_reading = not self._is_reading
            reactor = self._service.reactor
            (reactor.addReader if self._is_reading else reactor.removeReader)(self)
        if self.is_busy and not is_paused:
            self._service.go_on(self)

    def close(self) -> None:
        if self.is_open:
            self.is_open = False
            self.is_busy = False
            if self.slices is not None:
                self.slices.close()
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
        self, reactor: Any, rows: BufferedRows, server: Server, sync: str, *,
        allows_passwords: bool, wall_clock: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        self.reactor = reactor
        self.server = server
        self.pause_bytes = server.limits.pause_bytes
        self._reply_bytes = server.limits.reply_bytes
        self.on_failed: Callable[[str], object] = lambda reason: None
        self._rows = rows
        self._sync = sync
        self._allows_passwords = allows_passwords
        self._wall_clock = wall_clock
        self._connections: dict[Session, Connection] = {}
        self._strangers: dict[Connection, None] = {}
        self._active: dict[Connection, None] = {}  # with replies of this tick
        self._busy: dict[Connection, None] = {}  # that may go on
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

    def accepted(self, own: socket.socket, address: tuple[Any, ...] = ()) -> None:
        """Serve a client that has connected; `address`: its own, empty for a UNIX socket."""
        own.setblocking(False)
        if own.family != socket.AF_UNIX:
            own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            own.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in KEEPALIVE.items():
                own.setsockopt(socket.IPPROTO_TCP, option, value)
        is_local = not address or is_loopback(address[0])
        session = self.server.open(may_use_password=is_local or self._allows_passwords)
        connection = Connection(self, own, session, netloc(*address[:2]) if address else "a client")
        self._connections[connection.session] = connection
        metrics, clients_max = self.server.metrics, self.server.limits.clients
        metrics.connections += 1
        if len(self._connections) > clients_max:
            metrics.refused_connections += 1
            failure = Failure("ERR", f"max number of clients reached: {clients_max:,}")
            connection.session.is_ending = True
            connection.add(encode(failure, 2))
            connection.send(connection.take_replies())
            return
        self._strangers[connection] = None
        if len(self._strangers) > STRANGERS_MAX:
            self._drop_strangers()
        connection.settle()

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
        self.server.metrics.received_bytes += len(data)
        connection.commands = connection.session.reader.feed(data)
        self._carry_out(connection)
        if connection.is_busy:
            connection.settle()

    def _carry_out(self, connection: Connection) -> None:
        """Carry out commands until none is left, or the connection is busy."""
        server, session, replies = self.server, connection.session, connection.replies
        server.now_us = int(self._wall_clock() * 1e6)
        left_bytes = self.pause_bytes - connection.waiting_bytes
        connection.is_busy = False
        try:
            for command in connection.commands:
                reply = server.execute(session, command)
                if type(reply) is GeneratorType:
                    connection.slices, connection.is_busy = reply, True
                    break
                data = self._encoded(reply, session.protocol)
                replies.append(data)
                left_bytes -= len(data)
                if left_bytes < 0 or len(replies) >= COMMANDS_MAX or session.is_ending:
                    connection.is_busy = not session.is_ending
                    break
        except FramingError as error:
            data = encode(Failure("ERR", f"Protocol error: {error}"), 2)
            replies.append(data)
            left_bytes -= len(data)
            session.is_ending = True
        except OSError as error:
            self.on_failed(f"{self._rows.name} cannot be written: {error.strerror}")
            return
        connection.waiting_bytes = self.pause_bytes - left_bytes
        self._active[connection] = None
        self._schedule_end()

    def _continue(self, connection: Connection) -> None:
        """Carry out the next slice or further commands of a busy connection."""
        slices = connection.slices
        try:
            if slices is not None:
                next(slices)
        except StopIteration as end:
            connection.slices = slices = None
            connection.add(self._encoded(end.value, connection.session.protocol))
        if slices is None:
            self._carry_out(connection)
        connection.settle()

    def _encoded(self, reply: Any, protocol: int) -> bytes:
        """Return a reply as bytes; an error in place of one that is too large."""
        data = encode(reply, protocol)
        if len(data) <= self._reply_bytes:
            return data
        text = f"the reply has {len(data):,} bytes, and the limit is {self._reply_bytes:,}"
        return encode(Failure("LIMIT", f"{text}: read less at a time"), protocol)

    def go_on(self, connection: Connection) -> None:
        """Carry out further commands of a busy connection, in a later tick."""
        self._busy[connection] = None
        self._schedule_end()

    def _schedule_end(self) -> None:
        if not self._is_ending_tick:
            self._is_ending_tick = True
            self.reactor.soon(self._end_tick)

    def forget(self, connection: Connection) -> None:
        self._connections.pop(connection.session, None)
        self._active.pop(connection, None)
        self._busy.pop(connection, None)
        self._strangers.pop(connection, None)
        self.server.close(connection.session)

    def _end_tick(self) -> None:
        """Send the replies of this tick, when its writes are as durable as they have to be."""
        self._is_ending_tick = False
        if self._busy:
            connection = next(iter(self._busy))
            del self._busy[connection]
            self._continue(connection)
        if self.server.pushes:
            self._push()
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
        if active:
            replies = [(connection, connection.take_replies()) for connection in active]
            self._held.append((self._rows.number, replies))
        self._syncing.request(self._rows.number)

    def _push(self) -> None:
        """Report changes to the clients that watch them."""
        for session, push in self.server.take_pushes():
            connection = self._connections.get(session)
            if connection is None:
                continue
            connection.add(encode(push, session.protocol))
            self._active[connection] = None
            if connection.waiting_bytes > self.server.limits.output_bytes:
                _log.warn(
                    "{peer} is disconnected: it has not read {waiting:,} bytes of replies",
                    peer=connection.peer, waiting=connection.waiting_bytes,
                )  # fmt: skip
                connection.close()

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


class Syncing:
    """Makes the log durable in a thread, once for all requests that wait meanwhile."""

    def __init__(
        self, rows: BufferedRows, call: Callable[..., object],
        done: Callable[[int, str], object],
    ) -> None:  # fmt: skip
        self._rows = rows
        self._call = call
        self._done = done
        self._wanted = self._reached = rows.number
        self._changed = threading.Condition()
        self._is_closing = False
        self._syncer = threading.Thread(target=self._run, name="ciel-kv-sync", daemon=True)
        self._syncer.start()

    def request(self, number: int) -> None:
        """Ask for everything up to a record to become durable."""
        with self._changed:
            self._wanted = max(self._wanted, number)
            self._changed.notify()

    def close(self) -> None:
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        self._syncer.join()

    def _run(self) -> None:
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
                connected, address = self._socket.accept()
            except OSError:  # none waits, or this process has no descriptor left
                return
            self._service.accepted(connected, address)

    def connectionLost(self, reason: Any) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def logPrefix(self) -> str:
        return "kv"
