"""Connections between cores: processes that share memory, perhaps nothing else (CIB-14, CIB-31).

A process is one core of a segment of message-passing buffers (`mpb.h`). `Cores` carries any number
of connections over its messages, for ordinary protocols and factories of Twisted, and tells the
cores each other's names. No call waits: a core that reads slowly, or not at all, delays only its
own connections.

Each message is a kind, the number of a connection, and the rest:

    HELLO    whether it wants an answer, a number, and the sender's name: the first message
    OPEN     the name of the service to connect to
    DATA     bytes, at most as many as the reader has room for
    READ     how many bytes the reader has taken since
    END      the connection has ended
    ABORT    the connection has ended before all bytes arrived

A HELLO with another number than before ends the connections that the two cores had. The side that
opens a connection chooses the connection's number, and sets the highest bit of this number in all
later messages.

A thread sleeps on the core's bell, and wakes the reactor. Cores of several kernels cannot wake each
other; then the thread looks at the bell at short intervals.
"""

from __future__ import annotations

import os
import secrets
import struct
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from twisted.internet.error import ConnectionDone, ConnectionLost, ConnectionRefusedError
from twisted.internet.interfaces import IPushProducer, IReadDescriptor, ITransport
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from ciel.core.errors import CielError
from ciel.storage.interface import CoreMessage, MessageCore

log = Logger()

HELLO, OPEN, DATA, READ, END, ABORT = range(1, 7)
_HEAD: Final = struct.Struct("<BI")
_GREETING: Final = struct.Struct("<?I")
_COUNT: Final = struct.Struct("<I")
_THEIRS: Final = 1 << 31

MESSAGE_MAX_BYTES: Final = 4096
DATA_MAX_BYTES: Final = MESSAGE_MAX_BYTES - _HEAD.size
ROOM_BYTES: Final = 64 * 1024
"""How many bytes of a connection may be on their way, or wait for a reader."""

SENDS_MAX: Final = 4
"""How many messages to a core may be on their way: the core takes one, and more follow at once."""

LOOK_S: Final = 0.1
"""How often to find out which cores have died: a dead core rings no bell."""

AWAKE_S: Final = 0.2
"""How long the thread sleeps at most, to notice the end of this process's use."""


class CoreAddress(NamedTuple):
    """The number of a core."""

    core: int


class Cores:
    """The connections of one core, from its construction until `close`. It owns `core`.

    `renamed` is called after the names of other cores have changed.
    """

    def __init__(
        self,
        reactor: Any,
        core: MessageCore,
        renamed: Callable[[], object] = lambda: None,
    ) -> None:
        self.reactor = reactor
        self.number = core.number
        self._core = core
        self.name = b""
        self._tell_owner = renamed
        self._services: dict[str, Any] = {}
        self._peers = {n: _Peer(self, n) for n in range(core.count) if n != core.number}
        self._receives = [core.irecv(MESSAGE_MAX_BYTES) for _ in self._peers]
        self._is_advancing = False
        self.is_closed = False
        self._bell = _Bell(reactor, core, self.advance)
        self._due = reactor.callLater(0, self._tick)

    def introduce(self, name: str) -> None:
        """Tell other cores this core's name, of at most 200 bytes."""
        self.name = name.encode()
        for number, peer in self._peers.items():
            if self._core.lives(number):
                peer.greet(wants_answer=True)
        self.advance()

    def names(self) -> dict[str, int]:
        """Return the names and numbers of all other live cores."""
        if self.is_closed:
            return {}
        peers = self._peers.items()
        return {p.name: n for n, p in peers if p.incarnation and self._core.lives(n)}

    def listen(self, service: str, factory: Any) -> None:
        """Give each new connection to this service a protocol of the factory."""
        self._services[service] = factory

    def connect(self, number: int, service: str, factory: Any) -> None:
        """Open a connection to a service of another core, with a protocol of a client's factory."""
        peer = self._peers.get(number)
        if peer is None or not peer.incarnation or self.is_closed:
            reason = Failure(ConnectionRefusedError(f"core {number} is not there"))
            self.reactor.callLater(0, factory.clientConnectionFailed, self, reason)
            return
        transport = peer.new_connection(service, factory)
        self.advance()
        transport.begin(factory)

    def close(self) -> None:
        """End all connections, and leave the segment."""
        if self.is_closed:
            return
        for peer in self._peers.values():
            peer.drop("this process is leaving")
        self.is_closed = True
        if self._due.active():
            self._due.cancel()
        self._bell.close()
        self._core.close()

    # --- for connections --------------------------------------------------------------------------

    def service(self, name: str) -> Any | None:
        """Return the factory of a service; None if there is none."""
        return self._services.get(name)

    def incarnation_of(self, number: int) -> int:
        """Return the number of the last process that was this core; 0 if there was none."""
        return self._core.incarnation_of(number)

    def advance(self) -> None:
        """Take all arrived messages, and send as many messages as possible now."""
        if self._is_advancing or self.is_closed:
            return  # the running call looks again before it ends
        self._is_advancing = True
        try:
            self._core.push()
            while not self.is_closed and (self._take() or self._pump()):
                pass
        finally:
            self._is_advancing = False

    def _take(self) -> bool:
        """Handle a message that has arrived; return whether there was one.

        Messages of one core take the receives in the order in which these were posted.
        """
        receive = next((receive for receive in self._receives if receive.is_over), None)
        if receive is None:
            return False
        self._receives.remove(receive)
        number, content = -1, b""
        try:
            self._core.test(receive)
            number, content = receive.core, receive.content
        except CielError as error:  # the sender has died, or all other cores have
            log.debug("a message was lost: {error}", error=error)
        self._receives.append(self._core.irecv(MESSAGE_MAX_BYTES))
        if number >= 0:
            self._peers[number].said(content)
        return number >= 0

    def _pump(self) -> bool:
        """Send messages of all connections; return whether any was sent."""
        return sum(peer.pump(self._core) for peer in self._peers.values()) > 0

    def _tick(self) -> None:
        """Find out which cores have died or were replaced, and which are not known yet."""
        for number, peer in self._peers.items():
            lives = self._core.lives(number)
            if peer.incarnation and not (lives and peer.is_same()):
                peer.drop("its process has ended")
            elif self.name and lives and not peer.incarnation and peer.is_idle:
                peer.greet(wants_answer=True)
        self.advance()
        if not self.is_closed:
            self._due = self.reactor.callLater(LOOK_S, self._tick)

    def renamed(self) -> None:
        """Tell the owner that the names have changed."""
        if not self.is_closed:
            self._tell_owner()


class _Peer:
    """Another core: the name, the connections with this core, and the messages to send."""

    def __init__(self, cores: Cores, number: int) -> None:
        self.cores = cores
        self.number = number
        self.name = ""
        self.incarnation = 0  # the process that has said HELLO; 0: none
        self._session = secrets.randbits(32)  # what this core says in a HELLO
        self._their_session = 0
        self._first: deque[bytes] = deque()  # to send before the bytes of connections
        self._sent: deque[tuple[CoreMessage, int]] = deque()  # with the incarnation
        self._ready: deque[CoreTransport] = deque()  # connections that have something to send
        self._connections: dict[int, CoreTransport] = {}
        self._last_number = 0

    def greet(self, *, wants_answer: bool) -> None:
        """Tell the peer this core's name."""
        greeting = _GREETING.pack(wants_answer, self._session) + self.cores.name
        self._first.append(_HEAD.pack(HELLO, 0) + greeting)

    def is_same(self) -> bool:
        """Return whether no other process has taken the peer's place since its HELLO."""
        return self.cores.incarnation_of(self.number) == self.incarnation

    @property
    def is_idle(self) -> bool:
        return not self._first and not self._sent

    def new_connection(self, service: str, factory: Any) -> CoreTransport:
        self._last_number = self._last_number % (_THEIRS - 1) + 1
        number = self._last_number
        self._first.append(_HEAD.pack(OPEN, number) + service.encode())
        return self._add(number, number | _THEIRS, factory)

    def _add(self, own: int, theirs: int, factory: Any) -> CoreTransport:
        transport = CoreTransport(self, own, theirs, factory)
        self._connections[own] = transport
        return transport

    def forget(self, transport: CoreTransport) -> None:
        self._connections.pop(transport.own_number, None)

    def tell(self, kind: int, number: int, rest: bytes = b"") -> None:
        """Send a message ahead of the bytes of connections."""
        self._first.append(_HEAD.pack(kind, number) + rest)

    def wants_to_send(self, transport: CoreTransport) -> None:
        self._ready.append(transport)

    def pump(self, core: MessageCore) -> bool:
        """Send as much as may be on its way; return whether anything was sent."""
        while self._sent and self._sent[0][0].is_over:
            message, incarnation = self._sent.popleft()
            try:
                core.test(message)
            except CielError as error:
                if incarnation == self.incarnation:
                    self.drop(str(error))
        has_sent = False
        while len(self._sent) < SENDS_MAX and (content := self._next()):
            self._sent.append((core.isend(self.number, content), self.incarnation))
            has_sent = True
        return has_sent

    def _next(self) -> bytes:
        if self._first:
            return self._first.popleft()
        while self._ready:
            transport = self._ready.popleft()
            if message := transport.next_message():
                return message
        return b""

    # --- what the peer says -----------------------------------------------------------------------

    def said(self, content: bytes) -> None:
        """Handle a message. An invalid message changes nothing, and the log reports it."""
        try:
            kind, number = _HEAD.unpack_from(content)
            rest = content[_HEAD.size :]
            if kind == HELLO:
                self._greeted(rest)
            elif kind == OPEN:
                self._opened(number, rest.decode())
            elif (transport := self._connections.get(number)) is not None:
                if kind == READ:
                    transport.reader_took(*_COUNT.unpack(rest))
                else:
                    transport.arrived(kind, rest)
        except (struct.error, UnicodeDecodeError) as error:
            log.error("core {core} sent an invalid message: {error}", core=self.number, error=error)

    def _greeted(self, rest: bytes) -> None:
        wants_answer, session = _GREETING.unpack_from(rest)
        name = rest[_GREETING.size :].decode()
        if self._their_session != session:
            self._end_connections("it has begun again")
        self._their_session = session
        if wants_answer and self.cores.name:
            self.greet(wants_answer=False)
        before = self.incarnation, self.name
        self.incarnation, self.name = self.cores.incarnation_of(self.number), name
        if before != (self.incarnation, name):
            self.cores.renamed()

    def _opened(self, number: int, service: str) -> None:
        factory = self.cores.service(service)
        if factory is None:
            self.tell(ABORT, number, b"it does not serve this")
            return
        transport = self._add(number | _THEIRS, number, factory)
        transport.begin(factory)

    def drop(self, reason: str) -> None:
        """Forget a process that has died, that was replaced, or that has lost a message."""
        was_there, self.incarnation, self.name = self.incarnation, 0, ""
        self._session = (self._session + 1) % 2**32
        self._end_connections(reason)
        if was_there:
            self.cores.renamed()

    def _end_connections(self, reason: str) -> None:
        self._first.clear()
        self._ready.clear()
        connections, self._connections = self._connections, {}
        for transport in connections.values():
            transport.lost(ConnectionLost(f"core {self.number}: {reason}"))


@implementer(ITransport, IPushProducer)
class CoreTransport:
    """One side of a connection between two cores."""

    def __init__(self, peer: _Peer, own_number: int, their_number: int, factory: Any) -> None:
        self.own_number = own_number
        self.disconnecting = False
        self._peer = peer
        self._theirs = their_number
        self._factory = factory
        self._protocol: Any = None
        self._unsent = bytearray()
        self._room_bytes = ROOM_BYTES  # that the reader has
        self._arrived: deque[tuple[int, bytes]] = deque()
        self._taken_bytes = 0  # that the writer does not know of
        self._is_ready = False
        self._is_paused = False
        self._is_over = False
        self._producer: Any = None
        self._is_streaming = False

    def begin(self, factory: Any) -> None:
        """Connect a protocol of the factory."""
        protocol = factory.buildProtocol(CoreAddress(self._peer.number))
        if protocol is None:
            self.abortConnection()
            return
        self._protocol = protocol
        protocol.makeConnection(self)
        self._deliver()

    # --- ITransport -------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        if self._is_over or self.disconnecting or not data:
            return
        self._unsent += data
        self._says_ready()
        if self._producer is not None and self._is_streaming and len(self._unsent) > ROOM_BYTES:
            self._producer.pauseProducing()

    def writeSequence(self, data: Any) -> None:
        self.write(b"".join(data))

    def loseConnection(self) -> None:
        """End the connection after everything is sent."""
        if not self._is_over:
            self.disconnecting = True
            self._says_ready()

    def abortConnection(self) -> None:
        """End the connection at once."""
        if not self._is_over:
            self._peer.tell(ABORT, self._theirs)
            self._advance_soon()
            self._over(ConnectionLost("this side has aborted it"))

    def getPeer(self) -> CoreAddress:
        return CoreAddress(self._peer.number)

    def getHost(self) -> CoreAddress:
        return CoreAddress(self._peer.cores.number)

    def registerProducer(self, producer: Any, streaming: bool) -> None:
        if self._is_over:
            producer.stopProducing()
            return
        self._producer, self._is_streaming = producer, streaming
        if not streaming:
            producer.resumeProducing()

    def unregisterProducer(self) -> None:
        self._producer = None

    # --- IPushProducer ----------------------------------------------------------------------------

    def pauseProducing(self) -> None:
        self._is_paused = True

    def resumeProducing(self) -> None:
        self._is_paused = False
        if self._arrived:
            self._peer.cores.reactor.callLater(0, self._deliver)

    def stopProducing(self) -> None:
        self.loseConnection()

    # --- sending ----------------------------------------------------------------------------------

    def _says_ready(self) -> None:
        if not self._is_ready:
            self._is_ready = True
            self._peer.wants_to_send(self)
            self._advance_soon()

    def _advance_soon(self) -> None:
        self._peer.cores.advance()

    def next_message(self) -> bytes:
        """Return the next message of this connection; nothing if there is none now."""
        self._is_ready = False
        if self._is_over:
            return b""
        size_bytes = min(len(self._unsent), DATA_MAX_BYTES, self._room_bytes)
        if size_bytes:
            message = _HEAD.pack(DATA, self._theirs) + self._unsent[:size_bytes]
            del self._unsent[:size_bytes]
            self._room_bytes -= size_bytes
            if self._unsent or self.disconnecting:
                self._is_ready = True
                self._peer.wants_to_send(self)
            elif self._producer is not None:
                self._peer.cores.reactor.callLater(0, self._wants_more)
            return message
        if self.disconnecting and not self._unsent:
            self._peer.cores.reactor.callLater(0, self._over, ConnectionDone())
            return _HEAD.pack(END, self._theirs)
        return b""

    def _wants_more(self) -> None:
        if self._producer is not None and not self._unsent and not self._is_over:
            self._producer.resumeProducing()

    def reader_took(self, size_bytes: int) -> None:
        """Handle the report that the reader has taken bytes, and so has room for as many more."""
        self._room_bytes += size_bytes
        if self._unsent:
            self._says_ready()

    # --- receiving --------------------------------------------------------------------------------

    def arrived(self, kind: int, rest: bytes) -> None:
        """Handle bytes, or the end."""
        self._arrived.append((kind, rest))
        self._deliver()

    def _deliver(self) -> None:
        while self._arrived and not self._is_paused and not self._is_over and self._protocol:
            kind, rest = self._arrived.popleft()
            if kind == DATA:
                self._taken_bytes += len(rest)
                if self._taken_bytes >= ROOM_BYTES // 4:
                    self._peer.tell(READ, self._theirs, _COUNT.pack(self._taken_bytes))
                    self._taken_bytes = 0
                    self._advance_soon()
                self._protocol.dataReceived(rest)
            elif kind == END:
                self._over(ConnectionDone())
            else:
                self._over(ConnectionLost(rest.decode(errors="replace") or "it was aborted"))

    def lost(self, error: Exception) -> None:
        """Deliver the bytes that a dead core had sent, unless the reader has paused, and end the
        connection.
        """
        self._deliver()
        self._over(error)

    def _over(self, error: Exception) -> None:
        if self._is_over:
            return
        self._is_over = True
        self._peer.forget(self)
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.stopProducing()
        if self._protocol is not None:
            reason = Failure(error)
            self._protocol.connectionLost(reason)
            lost = getattr(self._factory, "clientConnectionLost", None)
            if lost is not None and not self.own_number & _THEIRS:
                lost(self, reason)


@implementer(IReadDescriptor)
class _Bell:
    """Wakes the reactor when the bell of a core rings. Its thread ends with `close`."""

    def __init__(self, reactor: Any, core: MessageCore, rung: Callable[[], object]) -> None:
        self._reactor = reactor
        self._core = core
        self._rung = rung
        self._is_closed = False
        self._wakes_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._listen, name="ciel-bell", daemon=True)
        reactor.addReader(self)
        self._thread.start()

    def _listen(self) -> None:
        seen = self._core.bell()
        while not self._is_closed:
            if self._core.sleep(seen, AWAKE_S):
                seen = self._core.bell()  # before the reactor looks: a later ring wakes it again
                os.eventfd_write(self._wakes_fd, 1)

    def fileno(self) -> int:
        return self._wakes_fd

    def logPrefix(self) -> str:
        return "cores"

    def doRead(self) -> None:
        os.eventfd_read(self._wakes_fd)
        self._rung()

    def connectionLost(self, reason: Any) -> None:
        """Handle a read error that the reactor reports."""

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._core.ring(self._core.number)
        self._thread.join()
        self._reactor.removeReader(self)
        os.close(self._wakes_fd)
