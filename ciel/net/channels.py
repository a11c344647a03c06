"""Channels: connections that switch from their socket to another transport, such as shared memory.

A plugin (`ciel.channels`) implements the transport, which is called a way. This module connects
ways with the reactor and with control connections. The socket stays open: it carries wake-ups, and
its end shows that the peer has closed or died. Once both sides have proved their key, they agree on
the switch by records on the socket, each in a separate frame. After its last record on the socket
each side sends through the way:

    acceptor                                       initiator (its hello names its channels)
    channel offer NAME, and a descriptor  ──▶
                                          ◀──  channel take      or: channel leave REASON
    channel go                            ──▶

A side that cannot open the way replies `channel leave`, and both stay on the socket.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from twisted.internet.interfaces import IUNIXTransport
from twisted.internet.protocol import connectionDone
from twisted.logger import Logger
from twisted.python.failure import Failure

from ciel.access.keys import Side
from ciel.core.errors import CielError
from ciel.wire.errors import DecodeError
from ciel.wire.frames import Record
from ciel.wire.session import Session

CHANNEL: Final = "channel"
"""The kind of record by which both sides agree on a way."""

BYTES: Final = 1
ROOM: Final = 2
"""Events of a way: bytes to read, and space to write."""

READS_PER_TICK: Final = 4
"""How many pieces are read from one way before other ways and sockets are served."""

PIECE_BYTES: Final = 1 << 20
"""The most that is passed to `Way.write` at once; most ways take less."""

_log = Logger(__name__)  # explicit, since Twisted cannot find the name of a compiled module


class WayError(CielError):
    """A way cannot be opened; the text says why."""


class Way(Protocol):
    """One end of a bidirectional byte stream. Methods raise `CielError` if they fail."""

    def write(self, data: bytes, /) -> int:
        """Write as many bytes as there is space for; return their number."""

    def read(self) -> bytes:
        """Return available bytes, not necessarily all; empty if there are none."""

    @property
    def unread_bytes(self) -> int:
        """How many of the written bytes the peer has not read yet."""

    def close(self) -> None: ...


class Lookout(Protocol):
    """Polls the ways of one event loop, for up to `spin_us` before the loop sleeps."""

    spin_us: float

    def __len__(self) -> int: ...
    def glance_at(self, poller_fd: int, /) -> None:
        """Stop polling ways as soon as a descriptor of the loop's poller is ready."""

    def add(self, way: Any, found: Callable[[int], object], /) -> None: ...
    def remove(self, way: Any, /) -> None: ...
    def want(self, way: Any, wants: int, /) -> None: ...
    def before_wait(self) -> bool:
        """Poll the ways; True if one is ready. Otherwise peers send wake-ups from now on."""

    def after_wait(self) -> None:
        """Call `found` for the ways that are ready."""


class Kind(Protocol):
    """A kind of way, provided by a plugin. Callers own and close descriptors."""

    name: str

    @property
    def lookout(self) -> Lookout: ...

    def make(self) -> int:
        """Create a way; return its descriptor, which both sides pass to `open`."""

    def open(self, descriptor: int, side: int, bell_fd: int) -> Way:
        """Open a way as side 0, its creator, or as side 1."""


class Channels:
    """The ways of one process, served by its reactor. Call `close` after the last connection."""

    def __init__(self, reactor: Any, kind: Kind) -> None:
        self.kind = kind
        self._reactor = reactor
        self._lookout = kind.lookout
        self._wait: Callable[[Any], object] | None = None

    @property
    def names(self) -> list[str]:
        """The names of channels that this side's hello announces."""
        return [self.kind.name]

    @property
    def spin_us(self) -> float:
        return self._lookout.spin_us

    def add(self, way: Way, found: Callable[[int], object]) -> None:
        """Call `found` with the wanted events of a way, or with a negative number if it fails."""
        if self._wait is None:
            # Ways must be polled just before the loop sleeps, for which Twisted has no hook.
            # Wake-ups while the loop runs would cost more than the messages.
            self._wait = self._reactor.doIteration
            self._reactor.doIteration = self._iterate
            self._lookout.glance_at(self._reactor._poller.fileno())
        self._lookout.add(way, found)

    def remove(self, way: Way) -> None:
        self._lookout.remove(way)

    def want(self, way: Way, wants: int) -> None:
        self._lookout.want(way, wants)

    def close(self) -> None:
        """Restore the reactor's own `doIteration`."""
        if self._wait is not None and self._reactor.doIteration == self._iterate:
            self._reactor.doIteration = self._wait
            self._wait = None

    def _iterate(self, delay_s: float | None) -> None:
        wait, lookout = self._wait, self._lookout
        assert wait is not None  # `add` sets it before it installs this method
        if not len(lookout):
            wait(delay_s)
            return
        if (delay_s is None or delay_s > 0) and lookout.before_wait():
            delay_s = 0
        wait(delay_s)
        lookout.after_wait()


class ChannelTransport:
    """The transport of a `ControlPeer` that writes to, and later reads from, a way."""

    def __init__(self, channels: Channels, way: Way, socket: Any, peer: Any) -> None:
        self._channels = channels
        self._way = way
        self._socket = socket
        self._peer = peer
        self._held = bytearray()
        self._producer: Any = None
        self._is_reading = self._is_paused = self._is_ending = self._is_over = False
        channels.add(way, self._found)

    def begin_reading(self) -> None:
        """Read from the way from now on: the peer's last record on the socket has arrived."""
        _log.info("{peer!r} continues over {kind}", peer=self._peer, kind=self._channels.kind.name)
        self._is_reading = True
        self._socket.protocol = self
        self._want()

    # --- as a transport ---------------------------------------------------------------------------

    def getPeer(self) -> Any:
        return self._socket.getPeer()

    def registerProducer(self, producer: Any, streaming: bool) -> None:
        self._producer = producer

    def unregisterProducer(self) -> None:
        self._producer = None

    def pauseProducing(self) -> None:
        self._is_paused = True
        if not self._is_reading:
            self._socket.pauseProducing()
        self._want()

    def resumeProducing(self) -> None:
        self._is_paused = False
        if not self._is_reading:
            self._socket.resumeProducing()
        self._want()

    def writeSomeData(self, data: bytes) -> int:
        if self._held or self._is_over:
            return 0
        try:
            return self._way.write(data)
        except CielError as error:
            self._fail(error)
            return 0

    def write(self, data: bytes) -> None:
        if not self._is_over:
            self._held += data
            self._want()

    def loseWriteConnection(self) -> None:
        self._is_ending = True
        if not self._held:
            self._socket.loseWriteConnection()

    def abortConnection(self) -> None:
        self._held.clear()
        self._socket.abortConnection()

    # --- as the protocol of the socket ------------------------------------------------------------

    def dataReceived(self, data: bytes) -> None:
        """Ignore wake-ups: the loop polls the ways in this iteration anyway."""

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """Read what the peer has written before its end, then close the connection.

        Data that it writes from now on is ignored.
        """
        try:
            while not self._is_paused and (data := self._way.read()):
                self._peer.dataReceived(data)
                self._is_paused |= self._peer.is_over
        except CielError as error:
            _log.warn("{peer!r}: cannot read its last data: {error}", peer=self._peer, error=error)
        self.close()
        self._peer.connectionLost(reason)

    def close(self) -> None:
        """Close the way."""
        if not self._is_over:
            self._is_over = True
            self._held.clear()
            self._channels.remove(self._way)
            self._way.close()

    # --- the way ----------------------------------------------------------------------------------

    def _want(self) -> None:
        if not self._is_over:
            wants = (BYTES if not self._is_paused else 0) | (ROOM if self._held else 0)
            # Before reading starts, a wake-up would arrive amid the peer's last records on the
            # socket.
            self._channels.want(self._way, wants if self._is_reading else 0)

    def _found(self, what: int) -> None:
        try:
            if what & BYTES or what < 0:
                self._read()
            if what & ROOM and self._held and not self._is_over:
                self._write_held()
        except Exception as error:  # a bug must not affect the other ways of this iteration
            if not isinstance(error, CielError):
                _log.failure("reading from {peer!r} failed", peer=self._peer)
            self._fail(error)

    def _read(self) -> None:
        for _ in range(READS_PER_TICK):
            if self._is_paused or self._is_over:
                return
            data = self._way.read()
            if not data:
                return
            self._peer.dataReceived(data)

    def _write_held(self) -> None:
        del self._held[: self._way.write(bytes(self._held[:PIECE_BYTES]))]
        if self._held:
            return
        self._want()
        if self._is_ending:
            self._socket.loseWriteConnection()
        elif self._producer is not None:
            self._producer.resumeProducing()

    def _fail(self, error: Exception) -> None:
        _log.error("connection with {peer!r}: {error}", peer=self._peer, error=error)
        self.abortConnection()


class ChannelNegotiation:
    """Negotiates the switch of one connection to a way.

    `write` sends a frame on the socket; `switch` sets the transport for all later frames.
    """

    def __init__(
        self,
        channels: Channels,
        peer: Any,
        session: Session,
        write: Callable[[bytes], None],
        switch: Callable[[ChannelTransport], None],
    ) -> None:
        self.is_over = False
        self._channels = channels
        self._peer = peer
        self._socket = peer.transport
        self._session = session
        self._write = write
        self._switch = switch
        self._descriptor = -1
        self._transport: ChannelTransport | None = None

    @classmethod
    def begin(
        cls,
        channels: Channels | None,
        peer: Any,
        session: Session,
        write: Callable[[bytes], None],
        switch: Callable[[ChannelTransport], None],
    ) -> ChannelNegotiation | None:
        """Start for a connection that has just opened; None if there is nothing to negotiate."""
        if channels is None or not IUNIXTransport.providedBy(peer.transport):
            return None
        negotiation = cls(channels, peer, session, write, switch)
        if session.side is Side.ACCEPTOR:
            known = peer.hello.about.get(f"{CHANNEL}s")
            if not isinstance(known, list) or channels.kind.name not in known:
                return None
            negotiation._offer()
        return None if negotiation.is_over else negotiation

    def take_descriptor(self, descriptor: int) -> None:
        """Keep the descriptor of an offer; close any other descriptor."""
        if self._descriptor >= 0 or self._session.side is Side.ACCEPTOR:
            os.close(descriptor)
        else:
            self._descriptor = descriptor

    def take_records(self, records: list[Record]) -> list[Record]:
        """Process the channel records and return all others. Raises `DecodeError`."""
        ours = [record for record in records if record[0][0] == CHANNEL]
        for fields, payload in ours:
            if self.is_over or payload:
                raise DecodeError(f"malformed {CHANNEL}")
            self._take(fields[1:])
        return [record for record in records if record[0][0] != CHANNEL] if ours else records

    def close(self) -> None:
        """Stop, because the connection has ended during the negotiation."""
        self._done()
        if self._transport is not None:
            self._transport.close()

    def _take(self, fields: Sequence[Any]) -> None:
        accepts = self._session.side is Side.ACCEPTOR
        match list(fields):
            case ["offer", str(name)] if not accepts and self._transport is None:
                self._take_offer(name)
            case ["take"] if accepts and self._transport is not None:
                transport = self._transport
                self._send("go")
                self._done()
                self._switch(transport)
                transport.begin_reading()
            case ["leave", str(reason)] if accepts and self._transport is not None:
                _log.info("{peer!r} rejected the channel: {why}", peer=self._peer, why=reason[:200])
                self.close()
            case ["go"] if not accepts and self._transport is not None:
                self._done()
                self._transport.begin_reading()
            case _:
                raise DecodeError(f"malformed {CHANNEL}")

    def _offer(self) -> None:
        kind = self._channels.kind
        try:
            self._descriptor = kind.make()
            way = kind.open(self._descriptor, 0, self._socket.fileno())
        except CielError as error:
            _log.warn(
                "cannot offer {kind} to {peer!r}: {error}",
                kind=kind.name, peer=self._peer, error=error,
            )  # fmt: skip
            self._done()
            return
        self._transport = ChannelTransport(self._channels, way, self._socket, self._peer)
        self._socket.sendFileDescriptor(self._descriptor)
        self._send("offer", kind.name)

    def _take_offer(self, name: str) -> None:
        kind = self._channels.kind
        try:
            if name != kind.name:
                raise WayError(f"there is no channel {name[:40]!a}")
            if self._descriptor < 0:
                raise WayError("the offer had no descriptor")
            way = kind.open(self._descriptor, 1, self._socket.fileno())
        except CielError as error:
            self._send("leave", str(error))
            self._done()
            return
        self._transport = ChannelTransport(self._channels, way, self._socket, self._peer)
        self._send("take")
        self._switch(self._transport)

    def _send(self, *fields: str) -> None:
        self._write(self._session.send([([CHANNEL, *fields], b"")]))

    def _done(self) -> None:
        self.is_over = True
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
