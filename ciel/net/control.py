"""Control connections: messages in, messages out, between two that proved their key to each other.

A `ControlPeer` is one end of a connection. It drives a `wire.session.Session`, says that it is
alive, notices when the other end is not, and bounds what waits to be sent. What the messages mean
is its owner's affair, who is called back as the `Owner` protocol says.

    peer opens                 peer_opened, once
    a piece of data is here    peer_said, with all messages of it in one list
    what waited has gone       peer_drained, after `is_congested` was true
    the connection is over     peer_closed, once; also for a connection of ours that never opened

Messages sent during a turn leave at its end as one batch. Whatever is wrong ends the connection:
the other side is sent the reason in one line, and both log it.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Mapping
from typing import Any, Final, Protocol

from twisted.internet.error import ConnectionDone
from twisted.internet.interfaces import IFileDescriptorReceiver, ITCPTransport
from twisted.internet.main import CONNECTION_DONE, CONNECTION_LOST
from twisted.internet.protocol import connectionDone
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import classImplements

from ciel.access.keys import Role, Side
from ciel.core.events import HEARTBEAT_INTERVAL_S, LOST_AFTER_S, Ask, Heartbeat, Message
from ciel.net.channels import Channels, ChannelTransport, Crossing
from ciel.net.turns import TELL, Clock, DelayedCall, Turns
from ciel.wire.errors import DecodeError, RefusedError, RemoteProtocolError, WireError
from ciel.wire.limits import HELLO_TIMEOUT_S, RECORD_MAX_BYTES, RECORDS_PER_FRAME_MAX
from ciel.wire.messages import (
    FROM_CLIENT,
    FROM_WORKER,
    TO_CLIENT,
    TO_WORKER,
    decode_all,
    encode_all,
)
from ciel.wire.session import Hello, Session

CONGESTED_BYTES: Final = 1024 * 1024
"""From here on the owner should send less; some 10 ms of a fast link, and thousands of messages."""

QUEUED_MAX_BYTES: Final = 64 * 1024 * 1024
"""A peer that lets so much pile up is dropped: two of the largest records, or a million reports."""

CLOSE_TIMEOUT_S: Final = 5.0
"""How long the last words to a peer may take to leave."""

DISCARDED_MAX_BYTES: Final = RECORD_MAX_BYTES
"""What of a peer's is still taken meanwhile; an honest one was in the midst of a record at most."""

READ_BYTES: Final = 64 * 1024
"""Taken from a socket at once."""

_PULSE_S: Final = HEARTBEAT_INTERVAL_S / 2
"""Silence is counted in pulses of our own, never read from a clock: when this process itself was
held up (stopped, swapped out), its peers are not blamed for the time."""

ACCEPTED: Final[Mapping[Role, frozenset[type]]] = {
    Role.ADMIN: FROM_CLIENT,
    Role.SUBMIT: FROM_CLIENT,
    Role.WORKER: FROM_WORKER,
    Role.READ: frozenset((Ask, Heartbeat)),
}
"""What an accepting side takes from a peer of each role."""

EXPECTED: Final[Mapping[Role, frozenset[type]]] = {
    Role.ADMIN: TO_CLIENT,
    Role.SUBMIT: TO_CLIENT,
    Role.WORKER: TO_WORKER,
    Role.READ: TO_CLIENT,
}
"""What a connecting side takes from whom it connected to in each role."""

_log = Logger(__name__)  # compiled, it cannot be found out


class Owner(Protocol):
    """Who a peer talks to. Called on reactor turns only; what it raises ends the connection."""

    def peer_opened(self, peer: ControlPeer) -> None: ...
    def peer_said(self, peer: ControlPeer, messages: list[Message]) -> None: ...
    def peer_drained(self, peer: ControlPeer) -> None: ...
    def peer_closed(self, peer: ControlPeer, reason: str) -> None: ...


class Peer(Protocol):
    """What an owner does with a `ControlPeer`, which see."""

    hello: Hello | None
    address: str
    failure: WireError | None

    @property
    def is_congested(self) -> bool: ...
    @property
    def silent_s(self) -> float: ...
    def send(self, message: Message) -> None: ...
    def flush(self) -> None: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def close(self) -> None: ...
    def refuse(self, reason: str) -> None: ...
    def turn_away(self) -> None: ...


class ControlPeer:
    """One end of a control connection: a protocol of Twisted's, though no subclass (`setup.py` says
    why not).

    `hello` is what the other side says of itself: None until it has proved its key, and kept after
    the end. `failure` is the error that ended the connection, if one did. `lost_after_s` may be
    changed at any time, as when the peer's role is known. With `channels`, it may go on by another
    way than its socket.
    """

    def __init__(
        self,
        reactor: Clock,
        turns: Turns,
        session: Session,
        owner: Owner,
        *,
        lost_after_s: float = LOST_AFTER_S,
        hello_timeout_s: float = HELLO_TIMEOUT_S,
        queued_max_bytes: int = QUEUED_MAX_BYTES,
        channels: Channels | None = None,
    ) -> None:
        self.transport: Any = None
        self.hello: Hello | None = None
        self.failure: WireError | None = None
        self.address = "nowhere"
        self.is_paused = False
        self.is_over = False
        self.lost_after_s = lost_after_s
        self.hello_timeout_s = hello_timeout_s
        self._reactor = reactor
        self._turns = turns
        self._session = session
        self._owner = owner
        self._queued_max_bytes = queued_max_bytes
        self._channels = channels
        self._crossing: Crossing | None = None
        self._allowed: frozenset[type] = frozenset()
        self._outbox: list[Message] = []  # of this turn
        self._backlog: deque[bytes] = deque()  # waits until the transport has sent what it holds
        self._backlog_bytes = 0
        self._handed_bytes = 0  # to the transport since it last had nothing to send
        self._was_congested = False
        self._silent_pulses = 0
        self._idle_pulses = 0
        self._timer: DelayedCall | None = None
        self._socket: Any = None  # of the transport, where we use it ourselves
        self._end: str | None = None  # why, once it is decided
        self._discarded_bytes = 0  # since then

    def __repr__(self) -> str:
        role = self.hello.role if self.hello else "unproven"
        return f"<ControlPeer {role} {self.address}>"

    # --- for the owner ----------------------------------------------------------------------------

    @property
    def is_unproven(self) -> bool:
        """Whether this is still a stranger on our doorstep."""
        return self.hello is None and not self.is_over

    @property
    def is_open(self) -> bool:
        """Whether messages may be sent; they are ignored once the connection is ending."""
        return self.hello is not None and self._end is None

    @property
    def queued_bytes(self) -> int:
        """What waits to be sent, this turn's messages apart; at most one handful of it too high."""
        return self._backlog_bytes + self._handed_bytes

    @property
    def is_congested(self) -> bool:
        return self.queued_bytes > CONGESTED_BYTES

    @property
    def silent_s(self) -> float:
        """For how long nothing came from the peer, to half a second."""
        return self._silent_pulses * _PULSE_S

    def send(self, message: Message) -> None:
        """Queue a message for the end of this turn; silently nothing unless the peer is open.

        A connection may end at any time, and then `peer_closed` says what was lost with it.
        """
        if self._end is not None or self.hello is None:
            return
        if not self._outbox:
            self._turns.at_end(self._flush, TELL)
        self._outbox.append(message)
        if len(self._outbox) == RECORDS_PER_FRAME_MAX:
            self._flush()

    def flush(self) -> None:
        """Send what is queued now, so that `queued_bytes` includes it."""
        self._flush()

    def pause(self) -> None:
        """Read nothing more until `resume`; meanwhile the peer cannot be silent too long."""
        if not self.is_paused and self._end is None:
            self.is_paused = True
            self.transport.pauseProducing()

    def resume(self) -> None:
        if self.is_paused and self._end is None:
            self.is_paused = False
            self._silent_pulses = 0
            self.transport.resumeProducing()

    def close(self) -> None:
        """End the connection in order, once all that was sent has left."""
        self._flush()
        self._finish("closed by us")

    def turn_away(self) -> None:
        """End the connection at once: others wait, and this one has proved nothing yet."""
        self.transport.abortConnection()

    def refuse(self, reason: str) -> None:
        """End the connection for a reason which the peer is told; what is queued goes first."""
        self._flush()
        if self._end is None:
            self._fail(self._session.refuse(reason))

    # --- Twisted's side ---------------------------------------------------------------------------

    def makeConnection(self, transport: Any) -> None:
        self.transport = transport
        self.connectionMade()

    def connectionMade(self) -> None:
        if ITCPTransport.providedBy(self.transport):
            self.transport.setTcpNoDelay(True)
        self.address = describe(self.transport.getPeer())
        # As a pull producer we are told when the transport has sent everything, by its public face.
        self.transport.registerProducer(self, False)
        self._timer = self._reactor.callLater(self.hello_timeout_s, self._hello_timed_out)
        self._write(self._session.data_to_send())

    def dataReceived(self, data: bytes) -> None:
        if self._end is not None:
            self._discarded_bytes += len(data)
            if self._discarded_bytes > DISCARDED_MAX_BYTES:
                self.transport.abortConnection()
            return
        self._silent_pulses = 0
        try:
            records = self._session.receive(data)
            if self.hello is None:
                self._write(self._session.data_to_send())
                if not self._session.is_open:
                    return
                self._open()
            if self._crossing is not None:
                records = self._crossing.sift(records)
                if self._crossing.is_over:
                    self._crossing = None
            messages = decode_all(records, self._allowed)
        except RemoteProtocolError as error:
            self._fail(error)
            return
        except DecodeError as error:
            self._fail_telling(RemoteProtocolError(error.reason), error.reason)
            return
        if messages and self._end is None:
            self._tell("peer_said", messages)

    def fileDescriptorReceived(self, descriptor: int) -> None:
        """Take what comes along with data; nobody but us says what it is for."""
        if self._crossing is not None:
            self._crossing.take_descriptor(descriptor)
        else:
            os.close(descriptor)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self.is_over = True
        self._socket = None
        if self._crossing is not None:
            self._crossing.close()
            self._crossing = None
        if self._end is None:
            clean = isinstance(reason.value, ConnectionDone)
            self._end = "it closed the connection" if clean else reason.getErrorMessage()
            try:
                self._session.receive_eof()
            except WireError as error:
                self.failure = error
                self._end = error.reason
        self._stop_timer()
        self._outbox.clear()
        self._backlog.clear()
        self._backlog_bytes = self._handed_bytes = 0
        if self.hello is not None or self._session.side is Side.INITIATOR:
            self._tell("peer_closed", self._end)

    def resumeProducing(self) -> None:
        """Be told by the transport that it has sent all it had."""
        self._handed_bytes = 0
        if self._backlog:
            handful = []
            while self._backlog and self._handed_bytes < CONGESTED_BYTES:
                data = self._backlog.popleft()
                self._handed_bytes += len(data)
                handful.append(data)
            self._backlog_bytes -= self._handed_bytes
            self.transport.write(b"".join(handful))
        if self._was_congested and not self.is_congested:
            self._was_congested = False
            if self.is_open:
                self._tell("peer_drained")

    def stopProducing(self) -> None:
        """Be told by the transport that it is gone; `connectionLost` follows."""

    # --- the socket -------------------------------------------------------------------------------

    def _receive(self) -> object:
        """Read for the transport, by fewer calls than it takes itself."""
        if self._socket is None:
            return CONNECTION_LOST
        try:
            data = self._socket.recv(READ_BYTES)
        except BlockingIOError:
            return None
        except OSError:
            return CONNECTION_LOST
        if not data:
            return CONNECTION_DONE
        self.dataReceived(data)
        return None

    def _send_now(self, data: bytes) -> int:
        """Return how much went. Twisted's `write` would leave all of it for the next turn: one
        wake-up more per hop.
        """
        if self._socket is not None:
            try:
                sent = self._socket.send(data)
            except OSError:
                return 0  # no room, or lost, as the transport will find
        else:
            write_some = getattr(self.transport, "writeSomeData", None)
            sent = write_some(data) if write_some is not None else 0
        return sent if isinstance(sent, int) else 0  # no number says that it is lost

    # --- inside -----------------------------------------------------------------------------------

    def _open(self) -> None:
        hello = self._session.peer
        assert hello is not None  # the session is open
        self.hello = hello
        accepts = self._session.side is Side.ACCEPTOR
        self._allowed = (ACCEPTED if accepts else EXPECTED)[hello.role]
        self._stop_timer()
        self._timer = self._reactor.callLater(_PULSE_S, self._pulse)
        self._crossing = Crossing.begin(
            self._channels, self, self._session, self._write, self._cross
        )
        if self._crossing is None:  # else descriptors go along
            self._socket = getattr(self.transport, "socket", None)
            if self._socket is not None:
                self.transport.doRead = self._receive
        self._tell("peer_opened")

    def _cross(self, transport: ChannelTransport) -> None:
        """Have what follows go to another transport; this one still sends what it was given."""
        if self._backlog:
            self.transport.write(b"".join(self._backlog))
            self._backlog.clear()
        self._backlog_bytes = self._handed_bytes = 0
        self.transport.unregisterProducer()
        self.transport = transport
        transport.registerProducer(self, False)

    def _flush(self) -> None:
        if not self._outbox:
            return
        messages, self._outbox = self._outbox, []
        if not self.is_open:
            return
        try:
            data = self._session.send(encode_all(messages))
        except WireError as error:  # a message of ours that has no form, or is too large
            self._fail_telling(error, error.reason)
            return
        self._write(data)
        if self.queued_bytes > self._queued_max_bytes:
            self._drop(f"{self.queued_bytes} bytes wait to be sent, the peer does not read them")

    def _write(self, data: bytes) -> None:
        """Send at once what the socket takes; the rest waits, in the transport or behind it."""
        if not data:
            return
        self._idle_pulses = 0
        if self._handed_bytes:
            self._backlog.append(data)
            self._backlog_bytes += len(data)
        else:
            sent = self._send_now(data)
            if sent < len(data):
                self._handed_bytes = len(data) - sent
                self.transport.write(data[sent:] if sent else data)
        if self.queued_bytes > CONGESTED_BYTES:
            self._was_congested = True

    def _pulse(self) -> None:
        self._timer = self._reactor.callLater(_PULSE_S, self._pulse)
        if not self.is_paused:
            self._silent_pulses += 1
        self._idle_pulses += 1
        if self.silent_s >= self.lost_after_s:
            self._drop(f"nothing was heard from the peer for {self.silent_s:.1f} s")
        elif self._idle_pulses * _PULSE_S >= HEARTBEAT_INTERVAL_S:
            self.send(Heartbeat())

    def _hello_timed_out(self) -> None:
        """End without a refusal: either side may have stood still, and another try may go well."""
        self._fail(RemoteProtocolError(f"no proof of a key within {HELLO_TIMEOUT_S:g} s"))

    def _fail_telling(self, error: WireError, reason: str) -> None:
        """End for a fault that is no refusal (another try may go well), and tell the peer."""
        self._session.refuse(reason)
        self._fail(error)

    def _fail(self, error: WireError) -> None:
        """End for an error; the session has its last words ready if the peer is to hear of it."""
        self.failure = error
        self._write(self._session.data_to_send())
        by_peer = isinstance(error, RefusedError) and error.by_peer
        who = "the peer ended it" if by_peer else "ended"
        if self.hello is not None or self._session.side is Side.ACCEPTOR:  # else the owner tells
            _log.warn("connection with {peer!r} {who}: {why}", peer=self, who=who, why=error.reason)
        self._finish(error.reason)

    def _finish(self, reason: str) -> None:
        """End in order: what is queued leaves, then the peer closes, or its time is up.

        Only our half is closed here. Closing all while something of the peer's is unread would make
        the kernel send a reset, which takes our last words from the peer's hands.
        """
        if self._end is not None:
            return
        self._end = reason
        self._stop_timer()
        self._timer = self._reactor.callLater(CLOSE_TIMEOUT_S, self.transport.abortConnection)
        self._let_go()
        if self._backlog:
            self.transport.write(b"".join(self._backlog))
        self.transport.loseWriteConnection()
        if self.is_paused:
            self.transport.resumeProducing()

    def _drop(self, reason: str) -> None:
        """End at once: the peer does not listen, so there is no use in telling it."""
        _log.warn("connection with {peer!r} dropped: {why}", peer=self, why=reason)
        self._end = reason
        self._stop_timer()
        self._let_go()
        self.transport.abortConnection()

    def _let_go(self) -> None:
        self._backlog_bytes = 0
        self.transport.unregisterProducer()  # a transport with a producer never closes

    def _stop_timer(self) -> None:
        if self._timer is not None and self._timer.active():
            self._timer.cancel()
        self._timer = None

    def _tell(self, event: str, *details: Any) -> None:
        try:
            getattr(self._owner, event)(self, *details)
        except Exception:
            _log.failure("{event} of {peer!r} failed", event=event, peer=self)
            if self._end is None:
                fault = WireError("internal error; see the log")
                self._fail_telling(fault, "internal error; see the log of the other side")


classImplements(ControlPeer, IFileDescriptorReceiver)


def describe(address: Any) -> str:
    """Return a transport's address as people write it."""
    host, port = getattr(address, "host", None), getattr(address, "port", None)
    if host is not None:
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    name = getattr(address, "name", None)
    return f"unix:{name.decode(errors='replace').replace(chr(0), '@')}" if name else "unix:"
