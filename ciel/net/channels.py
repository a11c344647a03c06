"""Connections that go on by another way than the socket they began on, such as rings in memory.

What a way is made of is a plugin's affair (`ciel.channels`); here it is put behind the reactor and
behind a connection. The socket stays: it carries the bells of a way, and shows the other side's
end. Once both sides have proved their key, they agree by records on the socket, each alone in its
frame, and each side's last word there says that what follows comes by the way:

    acceptor                                       initiator (its hello names what it knows)
    channel offer NAME, and a descriptor  ──▶
                                          ◀──  channel take      or: channel leave REASON
    channel go                            ──▶

Who cannot, or does not want to, stays on the socket.
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
"""The kind of record by which sides agree on a way."""

BYTES: Final = 1
ROOM: Final = 2
"""What is wanted of a way, or found there."""

READS_PER_TURN: Final = 4
"""So many pieces are taken from one way before others have their turn."""

PIECE_BYTES: Final = 1 << 20
"""More than most ways take at once."""

_log = Logger(__name__)  # compiled, it cannot be found out


class WayError(CielError):
    """A way that cannot be had; the text says why."""


class Way(Protocol):
    """One end of bytes in both directions. What fails raises a `CielError`."""

    def write(self, data: bytes, /) -> int:
        """Write what there is room for; returns how many bytes."""

    def read(self) -> bytes:
        """Return what is there now, or a good part of it; empty if nothing is."""

    @property
    def unread_bytes(self) -> int:
        """How much of what was written the other side has not read yet."""

    def close(self) -> None: ...


class Lookout(Protocol):
    """Looks after the ways of one event loop, for so long before it sleeps."""

    spin_us: float

    def __len__(self) -> int: ...
    def glance_at(self, poller_fd: int, /) -> None:
        """Have what is ready at the loop's poller end all looking."""

    def add(self, way: Any, found: Callable[[int], object], /) -> None: ...
    def remove(self, way: Any, /) -> None: ...
    def want(self, way: Any, wants: int, /) -> None: ...
    def before_wait(self) -> bool:
        """Say whether the loop need not wait; else every other side now rings."""

    def after_wait(self) -> None:
        """Call those whose ways have what they want."""


class Kind(Protocol):
    """What a plugin gives: a kind of way. `descriptor`s are the caller's."""

    name: str

    @property
    def lookout(self) -> Lookout: ...

    def make(self) -> int:
        """Return the descriptor of a new way, for both sides."""

    def open(self, descriptor: int, side: int, bell_fd: int) -> Way:
        """Open a way as side 0, which has made it, or 1."""


class Channels:
    """The ways of one process, behind its reactor. `close` when no connection is left."""

    def __init__(self, reactor: Any, kind: Kind) -> None:
        self.kind = kind
        self._reactor = reactor
        self._lookout = kind.lookout
        self._wait: Callable[[Any], object] | None = None

    @property
    def names(self) -> list[str]:
        """What a hello says of this side."""
        return [self.kind.name]

    @property
    def spin_us(self) -> float:
        return self._lookout.spin_us

    def add(self, way: Way, found: Callable[[int], object]) -> None:
        """Have `found` called when a way has what is wanted of it, or with a negative number when
        it is spoilt.
        """
        if self._wait is None:
            # The last look before a loop sleeps is nowhere else to be had, and to be rung for while
            # it works would cost more than what is said.
            self._wait = self._reactor.doIteration
            self._reactor.doIteration = self._iterate
            self._lookout.glance_at(self._reactor._poller.fileno())
        self._lookout.add(way, found)

    def remove(self, way: Way) -> None:
        self._lookout.remove(way)

    def want(self, way: Way, wants: int) -> None:
        self._lookout.want(way, wants)

    def close(self) -> None:
        """Leave the reactor as it was."""
        if self._wait is not None and self._reactor.doIteration == self._iterate:
            self._reactor.doIteration = self._wait
            self._wait = None

    def _iterate(self, delay_s: float | None) -> None:
        wait, lookout = self._wait, self._lookout
        assert wait is not None  # it is what called us
        if not len(lookout):
            wait(delay_s)
            return
        if (delay_s is None or delay_s > 0) and lookout.before_wait():
            delay_s = 0
        wait(delay_s)
        lookout.after_wait()


class ChannelTransport:
    """What a `ControlPeer` writes to, and later reads from, in place of its socket's transport."""

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
        """The other side's last word on the socket has come."""
        _log.info("{peer!r} goes on by {kind}", peer=self._peer, kind=self._channels.kind.name)
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
        """Bells: we are awake, and about to look."""

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """The other side is gone. What it has said before is there; what it says now, if it is not
        gone after all, is not waited for.
        """
        try:
            while not self._is_paused and (data := self._way.read()):
                self._peer.dataReceived(data)
                self._is_paused |= self._peer.is_over
        except CielError as error:
            _log.warn("the last words of {peer!r}: {error}", peer=self._peer, error=error)
        self.close()
        self._peer.connectionLost(reason)

    def close(self) -> None:
        """Let go of the way."""
        if not self._is_over:
            self._is_over = True
            self._held.clear()
            self._channels.remove(self._way)
            self._way.close()

    # --- the way ----------------------------------------------------------------------------------

    def _want(self) -> None:
        if not self._is_over:
            wants = (BYTES if not self._is_paused else 0) | (ROOM if self._held else 0)
            # A bell for us would come amid what the other side still has to say on the socket.
            self._channels.want(self._way, wants if self._is_reading else 0)

    def _found(self, what: int) -> None:
        try:
            if what & BYTES or what < 0:
                self._read()
            if what & ROOM and self._held and not self._is_over:
                self._write_held()
        except Exception as error:  # a bug of ours must not take this turn's other ways along
            if not isinstance(error, CielError):
                _log.failure("reading from {peer!r} failed", peer=self._peer)
            self._fail(error)

    def _read(self) -> None:
        for _ in range(READS_PER_TURN):
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


class Crossing:
    """How one connection comes to a way. `write` takes the bytes of a frame, `cross` the transport
    to which what follows goes.
    """

    def __init__(
        self,
        channels: Channels,
        peer: Any,
        session: Session,
        write: Callable[[bytes], None],
        cross: Callable[[ChannelTransport], None],
    ) -> None:
        self.is_over = False
        self._channels = channels
        self._peer = peer
        self._socket = peer.transport
        self._session = session
        self._write = write
        self._cross = cross
        self._descriptor = -1
        self._transport: ChannelTransport | None = None

    @classmethod
    def begin(
        cls,
        channels: Channels | None,
        peer: Any,
        session: Session,
        write: Callable[[bytes], None],
        cross: Callable[[ChannelTransport], None],
    ) -> Crossing | None:
        """Begin with a connection that has just opened; None if there is nothing to agree on."""
        if channels is None or not IUNIXTransport.providedBy(peer.transport):
            return None
        crossing = cls(channels, peer, session, write, cross)
        if session.side is Side.ACCEPTOR:
            known = peer.hello.about.get(f"{CHANNEL}s")
            if not isinstance(known, list) or channels.kind.name not in known:
                return None
            crossing._offer()
        return None if crossing.is_over else crossing

    def take_descriptor(self, descriptor: int) -> None:
        """Take what came with an offer; what else comes is closed."""
        if self._descriptor >= 0 or self._session.side is Side.ACCEPTOR:
            os.close(descriptor)
        else:
            self._descriptor = descriptor

    def sift(self, records: list[Record]) -> list[Record]:
        """Return those of these records that are no concern of ours, and take the others. Raises
        DecodeError.
        """
        ours = [record for record in records if record[0][0] == CHANNEL]
        for fields, payload in ours:
            if self.is_over or payload:
                raise DecodeError(f"malformed {CHANNEL}")
            self._take(fields[1:])
        return [record for record in records if record[0][0] != CHANNEL] if ours else records

    def close(self) -> None:
        """The connection is over before the crossing is."""
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
                self._say("go")
                self._done()
                self._cross(transport)
                transport.begin_reading()
            case ["leave", str(reason)] if accepts and self._transport is not None:
                _log.info("{peer!r} stays on its socket: {why}", peer=self._peer, why=reason[:200])
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
                "no {kind} for {peer!r}: {error}", kind=kind.name, peer=self._peer, error=error
            )
            self._done()
            return
        self._transport = ChannelTransport(self._channels, way, self._socket, self._peer)
        self._socket.sendFileDescriptor(self._descriptor)
        self._say("offer", kind.name)

    def _take_offer(self, name: str) -> None:
        kind = self._channels.kind
        try:
            if name != kind.name:
                raise WayError(f"there is no channel {name[:40]!a}")
            if self._descriptor < 0:
                raise WayError("no descriptor came with the offer")
            way = kind.open(self._descriptor, 1, self._socket.fileno())
        except CielError as error:
            self._say("leave", str(error))
            self._done()
            return
        self._transport = ChannelTransport(self._channels, way, self._socket, self._peer)
        self._say("take")
        self._cross(self._transport)

    def _say(self, *fields: str) -> None:
        self._write(self._session.send([([CHANNEL, *fields], b"")]))

    def _done(self) -> None:
        self.is_over = True
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
