"""Switches connections from their socket to a channel, such as a ring in shared memory.

A plugin (`ciel.channels`) implements channels. This module connects them with the reactor and with
control connections. The socket stays open: it carries wake-ups, and its end shows that the peer has
closed or died. Once both sides have proved their key, they agree on the switch by records on the
socket, each in a separate frame. After its last record on the socket each side sends through the
channel:

    acceptor                                       initiator (its hello names its channels)
    channel offer NAME, and a descriptor  ──▶
                                          ◀──  channel take      or: channel leave REASON
    channel go                            ──▶

An acceptor that cannot create a channel makes no offer; an initiator that cannot open it replies
`channel leave`. Both then stay on the socket.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from twisted.internet.interfaces import IUNIXTransport
from twisted.internet.protocol import connectionDone
from twisted.logger import Logger
from twisted.python.failure import Failure

from ciel.access.keys import Side
from ciel.core.errors import CielError
from ciel.plugins import PluginError
from ciel.wire.errors import DecodeError
from ciel.wire.frames import Record
from ciel.wire.session import Session

CHANNEL: Final = "channel"
"""The kind of the records by which both sides agree on a channel."""

BYTES: Final = 1
ROOM: Final = 2
"""Events of a channel: bytes to read, and space to write."""

READS_PER_TICK: Final = 4
"""How many pieces are read from one channel before other channels and sockets are served."""

READS_AT_END: Final = 64
"""How many pieces are read after the peer's end: more than a channel holds, but not endlessly."""

PIECE_BYTES: Final = 1 << 20
"""The most that is passed to `Channel.write` at once; most channels take less."""

_log = Logger(__name__)  # explicit, since Twisted cannot find the name of a compiled module


class ChannelError(CielError):
    """A channel cannot be opened; the text says why."""


class Channel(Protocol):
    """One end of a channel: a stream of bytes in both directions.

    Methods raise `CielError` if they fail.
    """

    def write(self, data: bytes, /) -> int:
        """Write as many bytes as there is space for; return their number."""

    def read(self) -> bytes:
        """Return available bytes, not necessarily all; empty if there are none."""

    @property
    def unread_bytes(self) -> int:
        """How many of the written bytes the peer has not read yet."""

    def close(self) -> None: ...


class Lookout(Protocol):
    """Polls the channels of one event loop, for up to `spin_us` before the loop sleeps."""

    spin_us: float

    def __len__(self) -> int: ...
    def glance_at(self, poller_fd: int, /) -> None:
        """Stop polling channels as soon as a descriptor of the loop's poller is ready."""

    def add(self, channel: Any, found: Callable[[int], object], /) -> None: ...
    def remove(self, channel: Any, /) -> None: ...
    def want(self, channel: Any, wants: int, /) -> None:
        """Set the events to wait for: BYTES, ROOM, both or 0."""

    def before_wait(self) -> bool:
        """Poll the channels; True if one is ready. Otherwise peers send wake-ups from now on."""

    def after_wait(self) -> None:
        """Call `found` for the channels that are ready."""


class Kind(Protocol):
    """A kind of channel, provided by a plugin. Callers own and close descriptors."""

    name: str

    @property
    def lookout(self) -> Lookout: ...

    def make(self) -> int:
        """Create a channel; return its descriptor, which both sides pass to `open`."""

    def open(self, descriptor: int, side: int, bell_fd: int) -> Channel:
        """Open a channel as side 0, its creator, or as side 1.

        A byte sent on `bell_fd`, the socket of the connection, wakes the peer.
        """


class Channels:
    """The channels of a process, served by its reactor. Call `close` after the last connection.

    `kind`: what this side prefers, and programs get; None: they get none. `load`: loads another
    kind when a peer has chosen it; None: this side accepts no other kind. `choose`: names the kind
    to offer to a peer, from its hello, or "socket"; by default, `kind` if the peer has it.
    """

    def __init__(
        self,
        reactor: Any,
        kind: Kind | None,
        *,
        load: Callable[[str], Kind] | None = None,
        choose: Callable[[Mapping[str, Any]], str] | None = None,
    ) -> None:
        self.kind = kind
        self._reactor = reactor
        self._load = load
        self._choose = choose or self._common
        self._kinds: dict[str, Kind] = {} if kind is None else {kind.name: kind}
        self._lookouts: dict[Channel, Lookout] = {}  # of the open channels
        self._in_use: tuple[Lookout, ...] = ()
        self._wait: Callable[[Any], object] | None = None
        self._poll_for_s = 0.0  # of the reactor, while no channel is open

    @property
    def spin_us(self) -> float:
        return 0.0 if self.kind is None else self.kind.lookout.spin_us

    def kind_for(self, about: Mapping[str, Any]) -> Kind | None:
        """Return the kind to offer to a peer, whose hello says this; None for its socket."""
        return self.kind_named(self._choose(about))

    def kind_named(self, name: str) -> Kind | None:
        """Return a kind; None if this side has none of this name, or does not accept it."""
        if name not in self._kinds and self._load is not None and name:
            try:
                self._kinds[name] = self._load(name)
            except PluginError as error:
                _log.warn("{error}", error=error)
        return self._kinds.get(name)

    def _common(self, about: Mapping[str, Any]) -> str:
        names = about.get(f"{CHANNEL}s")
        known = self.kind is not None and isinstance(names, list) and self.kind.name in names
        return self.kind.name if self.kind is not None and known else ""

    def add(
        self, channel: Channel, found: Callable[[int], object], kind: Kind | None = None
    ) -> None:
        """Call `found` with the wanted events of a channel; with a negative number if it fails.

        `kind`: by default the preferred one.
        """
        chosen = kind or self.kind
        assert chosen is not None  # it has opened the channel
        lookout = chosen.lookout
        if not self._lookouts:
            # While a channel is open, its lookout polls; otherwise both would poll, in turn.
            self._poll_for_s = getattr(self._reactor, "poll_for_s", 0.0)
            self._reactor.poll_for_s = 0.0
        if self._wait is None:
            # Channels must be polled just before the loop sleeps, for which Twisted has no hook.
            # While the loop runs, peers send no wake-ups: a wake-up costs more than a message.
            self._wait = self._reactor.doIteration
            self._reactor.doIteration = self._iterate
        if lookout not in self._in_use:
            lookout.glance_at(self._reactor._poller.fileno())
            self._in_use += (lookout,)
        self._lookouts[channel] = lookout
        lookout.add(channel, found)

    def remove(self, channel: Channel) -> None:
        self._lookouts.pop(channel).remove(channel)
        if not self._lookouts:
            self._reactor.poll_for_s = self._poll_for_s

    def want(self, channel: Channel, wants: int) -> None:
        self._lookouts[channel].want(channel, wants)

    def close(self) -> None:
        """Restore the reactor's own `doIteration`."""
        if self._wait is not None and self._reactor.doIteration == self._iterate:
            self._reactor.doIteration = self._wait
            self._wait = None

    def _iterate(self, delay_s: float | None) -> None:
        wait, lookouts = self._wait, self._in_use
        assert wait is not None  # `add` sets it before it installs this method
        if not self._lookouts:
            wait(delay_s)
            return
        if delay_s is None or delay_s > 0:
            for lookout in lookouts:  # each one: peers send wake-ups only after it
                if lookout.before_wait():
                    delay_s = 0
        wait(delay_s)
        for lookout in lookouts:
            lookout.after_wait()


class ChannelTransport:
    """Twisted's transport of a `ControlPeer` that writes to, and later reads from, a channel."""

    def __init__(
        self, channels: Channels, kind: Kind, channel: Channel, socket: Any, peer: Any
    ) -> None:
        self.kind = kind
        self._channels = channels
        self._channel = channel
        self._socket = socket
        self._peer = peer
        self._held = bytearray()
        self._producer: Any = None
        self._is_reading = self._is_paused = self._is_ending = self._is_over = False
        channels.add(channel, self._found, kind)

    def begin_reading(self) -> None:
        """Read from the channel from now on: the peer's last record on the socket has arrived."""
        _log.info("{peer!r} continues over {kind}", peer=self._peer, kind=self.kind.name)
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
            return self._channel.write(data)
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
        """Ignore wake-ups: the loop polls the channels in this iteration anyway."""

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """Read all that the peer has written before its end, then close the connection.

        This also reads while the connection is paused: a channel holds little, and its content
        would be lost.
        """
        try:
            for _ in range(READS_AT_END):
                data = self._channel.read()
                if not data or self._peer.is_over:
                    break
                self._peer.dataReceived(data)
        except CielError as error:
            _log.warn("{peer!r}: cannot read its last data: {error}", peer=self._peer, error=error)
        self.close()
        self._peer.connectionLost(reason)

    def close(self) -> None:
        """Close the channel."""
        if not self._is_over:
            self._is_over = True
            self._held.clear()
            self._channels.remove(self._channel)
            self._channel.close()

    # --- the channel ------------------------------------------------------------------------------

    def _want(self) -> None:
        if not self._is_over:
            wants = (BYTES if not self._is_paused else 0) | (ROOM if self._held else 0)
            # Until reading starts, the socket still carries records of the peer, so that the peer
            # must not send wake-ups.
            self._channels.want(self._channel, wants if self._is_reading else 0)

    def _found(self, what: int) -> None:
        try:
            if what & BYTES or what < 0:
                self._read()
            if what & ROOM and self._held and not self._is_over:
                self._write_held()
        except Exception as error:  # a bug must not affect other channels
            if not isinstance(error, CielError):
                _log.failure("the channel of {peer!r} failed", peer=self._peer)
            self._fail(error)

    def _read(self) -> None:
        for _ in range(READS_PER_TICK):
            if self._is_paused or self._is_over:
                return
            data = self._channel.read()
            if not data:
                return
            self._peer.dataReceived(data)

    def _write_held(self) -> None:
        del self._held[: self._channel.write(bytes(self._held[:PIECE_BYTES]))]
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
    """Negotiates the switch of one connection to a channel.

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
            if (kind := channels.kind_for(peer.hello.about)) is None:
                return None
            negotiation._offer(kind)
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

    def _offer(self, kind: Kind) -> None:
        try:
            self._descriptor = kind.make()
            channel = kind.open(self._descriptor, 0, self._socket.fileno())
        except CielError as error:
            _log.warn(
                "cannot offer {kind} to {peer!r}: {error}",
                kind=kind.name, peer=self._peer, error=error,
            )  # fmt: skip
            self._done()
            return
        self._transport = ChannelTransport(self._channels, kind, channel, self._socket, self._peer)
        self._socket.sendFileDescriptor(self._descriptor)
        self._send("offer", kind.name)

    def _take_offer(self, name: str) -> None:
        kind = self._channels.kind_named(name)
        try:
            if kind is None:
                raise ChannelError(f"there is no channel {name[:40]!a}")
            if self._descriptor < 0:
                raise ChannelError("the offer had no descriptor")
            channel = kind.open(self._descriptor, 1, self._socket.fileno())
        except CielError as error:
            self._send("leave", str(error))
            self._done()
            return
        self._transport = ChannelTransport(self._channels, kind, channel, self._socket, self._peer)
        self._send("take")
        self._switch(self._transport)

    def _send(self, *fields: str) -> None:
        self._write(self._session.send([([CHANNEL, *fields], b"")]))

    def _done(self) -> None:
        self.is_over = True
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
