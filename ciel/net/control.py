"""Control connections: exchange messages between two processes that proved a key to each other.

A `ControlPeer` is one end of a connection. It drives a `wire.session.Session`, sends heartbeats,
detects a silent peer, and limits the bytes that wait to be sent. It does not interpret messages,
but calls its owner through the `Owner` protocol:

    the peer has proved its key    peer_opened, once
    data has arrived               peer_said, with all its messages in one list
    the queue was sent             peer_drained, after `is_congested` was true
    the connection has ended       peer_closed, once; also if our connection never opened

Messages that are sent during a tick of the event loop leave at its end as one batch. Any error ends
the connection: the peer is sent the reason in one line, and both sides log it.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Mapping
from typing import Any, Final, Protocol

from twisted.internet.error import ConnectionDone
from twisted.internet.interfaces import (
    IFileDescriptorReceiver,
    ITCPTransport,
    IUNIXTransport,
)
from twisted.internet.main import CONNECTION_DONE, CONNECTION_LOST
from twisted.internet.protocol import connectionDone
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import classImplements

from ciel.access.keys import Role, Side
from ciel.core.events import HEARTBEAT_INTERVAL_S, LOST_AFTER_S, Ask, Heartbeat, Message
from ciel.core.transports import SOCKET, TCP
from ciel.net.channels import ChannelNegotiation, Channels, ChannelTransport
from ciel.net.flight_recorder import ENDED, RECEIVED, SENT, FlightRecorder
from ciel.net.ticks import SEND, Clock, DelayedCall, Ticks
from ciel.wire.errors import DecodeError, RefusedError, RemoteProtocolError, WireError
from ciel.wire.limits import HELLO_TIMEOUT_S, RECORD_MAX_BYTES, RECORDS_PER_FRAME_MAX
from ciel.wire.messages import (
    FROM_CLIENT,
    FROM_MEMORY,
    FROM_SERVICE,
    FROM_STANDBY,
    FROM_WORKER,
    TO_CLIENT,
    TO_MEMORY,
    TO_STANDBY,
    TO_WORKER,
    decode_all,
    encode_all,
)
from ciel.wire.session import Hello, Session

CONGESTED_BYTES: Final = 1024 * 1024
"""With more bytes queued the owner should send less. This is some 10 ms of a fast link, and
thousands of messages."""

QUEUED_MAX_BYTES: Final = 64 * 1024 * 1024
"""With more bytes queued the peer is dropped: two of the largest records, or a million reports."""

CLOSE_TIMEOUT_S: Final = 5.0
"""How long sending the last data to a peer may take."""

DISCARDED_MAX_BYTES: Final = RECORD_MAX_BYTES
"""How many bytes are read and discarded meanwhile. A correct peer finishes one record at most."""

READ_BYTES: Final = 64 * 1024
"""How many bytes are read from a socket at once."""

_PULSE_S: Final = HEARTBEAT_INTERVAL_S / 2
"""The unit of silence. Silence is counted by timer calls, not measured by a clock. So the time for
which this process itself was stopped or swapped out does not count against its peers."""

ACCEPTED: Final[Mapping[Role, frozenset[type]]] = {
    Role.ADMIN: FROM_CLIENT,
    Role.SUBMIT: FROM_CLIENT,
    Role.WORKER: FROM_WORKER,
    Role.STANDBY: FROM_STANDBY,
    Role.MEMORY: FROM_MEMORY,
    Role.KV: frozenset((Heartbeat,)),
    Role.SERVICE: FROM_SERVICE,
    Role.READ: frozenset((Ask, Heartbeat)),
}
"""The messages that an accepting side accepts from a peer of each role."""

EXPECTED: Final[Mapping[Role, frozenset[type]]] = {
    Role.ADMIN: TO_CLIENT,
    Role.SUBMIT: TO_CLIENT,
    Role.WORKER: TO_WORKER,
    Role.STANDBY: TO_STANDBY,
    Role.MEMORY: TO_MEMORY,
    Role.KV: TO_CLIENT,
    Role.SERVICE: TO_CLIENT,
    Role.READ: TO_CLIENT,
}
"""The messages that a connecting side accepts when it connected in each role."""

_log = Logger(__name__)  # explicit, since Twisted cannot find the name of a compiled module


class Owner(Protocol):
    """The callbacks of a peer, called in the reactor's thread. An exception ends the connection."""

    def peer_opened(self, peer: ControlPeer) -> None: ...
    def peer_said(self, peer: ControlPeer, messages: list[Message]) -> None: ...
    def peer_drained(self, peer: ControlPeer) -> None: ...
    def peer_closed(self, peer: ControlPeer, reason: str) -> None: ...


class Peer(Protocol):
    """The part of `ControlPeer` that owners use."""

    hello: Hello | None
    address: str
    failure: WireError | None

    @property
    def carrier(self) -> str: ...
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
    """One end of a control connection.

    It implements Twisted's protocol interface, but not as a subclass, for a reason that `setup.py`
    states.

    `hello` is the peer's description of itself: None until it has proved its key, and kept after
    the end. `failure` is the error that ended the connection, if any. `lost_after_s` may be
    changed at any time, for instance when the peer's role is known. With `channels`, the connection
    may switch from its socket to a channel.
    """

    def __init__(
        self,
        reactor: Clock,
        ticks: Ticks,
        session: Session,
        owner: Owner,
        *,
        lost_after_s: float = LOST_AFTER_S,
        hello_timeout_s: float = HELLO_TIMEOUT_S,
        queued_max_bytes: int = QUEUED_MAX_BYTES,
        channels: Channels | None = None,
        recorder: FlightRecorder | None = None,
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
        self._ticks = ticks
        self._session = session
        self._owner = owner
        self._queued_max_bytes = queued_max_bytes
        self._channels = channels
        self._recorder = recorder
        self._recorded_as = ""  # the name of this connection in the record
        self._handshake = b""  # the bytes received before the peer had proved its key
        self._negotiation: ChannelNegotiation | None = None
        self._allowed: frozenset[type] = frozenset()
        self._outbox: list[Message] = []  # messages of this tick
        self._backlog: deque[bytes] = deque()  # sent when the transport has sent its buffer
        self._backlog_bytes = 0
        self._handed_bytes = 0  # given to the transport since its buffer was last empty
        self._was_congested = False
        self._silent_s = 0.0  # until `_counted_at_s`
        self._counted_at_s = reactor.seconds()
        self._idle_pulses = 0
        self._timer: DelayedCall | None = None
        self._socket: Any = None  # the transport's, if this class uses it directly
        self._end: str | None = None  # the reason, once the connection is ending
        self._discarded_bytes = 0  # received since the connection began to end

    def __repr__(self) -> str:
        role = self.hello.role if self.hello else "unproven"
        return f"<ControlPeer {role} {self.address}>"

    # --- for the owner ----------------------------------------------------------------------------

    @property
    def is_unproven(self) -> bool:
        """Whether the peer has not proved a key yet, and the connection has not ended."""
        return self.hello is None and not self.is_over

    @property
    def is_open(self) -> bool:
        """Whether messages can be sent; once the connection is ending, they are ignored."""
        return self.hello is not None and self._end is None

    @property
    def carrier(self) -> str:
        """The carrier of messages now: TCP, SOCKET, or the name of a kind of channel."""
        if isinstance(self.transport, ChannelTransport):
            return self.transport.kind.name
        return SOCKET if IUNIXTransport.providedBy(self.transport) else TCP

    @property
    def queued_bytes(self) -> int:
        """How many bytes wait to be sent, without the messages of this tick.

        It may be too high by the last batch given to the transport.
        """
        return self._backlog_bytes + self._handed_bytes

    @property
    def is_congested(self) -> bool:
        return self.queued_bytes > CONGESTED_BYTES

    @property
    def silent_s(self) -> float:
        """How long the peer has sent nothing; a stop of this process does not count."""
        since_s = 0.0 if self.is_paused else self._reactor.seconds() - self._counted_at_s
        return self._silent_s + min(since_s, _PULSE_S)

    def send(self, message: Message) -> None:
        """Queue a message for the end of this tick; do nothing unless the peer is open.

        A connection may end at any time, and then the owner is notified by `peer_closed`.
        """
        if self._end is not None or self.hello is None:
            return
        if not self._outbox:
            self._ticks.at_end(self._flush, SEND)
        self._outbox.append(message)
        if len(self._outbox) == RECORDS_PER_FRAME_MAX:
            self._flush()

    def flush(self) -> None:
        """Send the queued messages now, so that `queued_bytes` includes them."""
        self._flush()

    def pause(self) -> None:
        """Stop reading until `resume`; meanwhile the peer's silence is not counted."""
        if not self.is_paused and self._end is None:
            self.is_paused = True
            self.transport.pauseProducing()

    def resume(self) -> None:
        if self.is_paused and self._end is None:
            self.is_paused = False
            self._heard()
            self.transport.resumeProducing()

    def close(self) -> None:
        """Close the connection after all messages were sent."""
        self._flush()
        self._finish("closed by us")

    def turn_away(self) -> None:
        """Abort this unauthenticated connection to make place for a new one."""
        self.transport.abortConnection()

    def refuse(self, reason: str) -> None:
        """Send the queued messages and the reason to the peer, then end the connection."""
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
        if self._recorder is not None:
            self._recorded_as = self._recorder.connect(self.address)
        # A pull producer is notified when the transport has sent its buffer. This is public API.
        self.transport.registerProducer(self, False)
        self._timer = self._reactor.callLater(self.hello_timeout_s, self._hello_timed_out)
        self._write(self._session.data_to_send())

    def dataReceived(self, data: bytes) -> None:
        if self._end is not None:
            self._discarded_bytes += len(data)
            if self._discarded_bytes > DISCARDED_MAX_BYTES:
                self.transport.abortConnection()
            return
        self._heard()
        try:
            records = self._session.receive(data)
            if self.hello is None:
                self._write(self._session.data_to_send())
                self._handshake += data
                if not self._session.is_open:
                    return
                data, self._handshake = self._handshake, b""
                self._record(RECEIVED, data)
                self._open()
            else:
                self._record(RECEIVED, data)
            if self._negotiation is not None:
                records = self._negotiation.take_records(records)
                if self._negotiation.is_over:
                    self._negotiation = None
            messages = decode_all(records, self._allowed)
        except RemoteProtocolError as error:
            self._fail(error)
            return
        except DecodeError as error:
            self._fail_and_notify(RemoteProtocolError(error.reason), error.reason)
            return
        if messages and self._end is None:
            self._notify_owner("peer_said", messages)

    def fileDescriptorReceived(self, descriptor: int) -> None:
        """Receive a descriptor, which belongs to a channel offer; close any other."""
        if self._negotiation is not None:
            self._negotiation.take_descriptor(descriptor)
        else:
            os.close(descriptor)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self.is_over = True
        self._socket = None
        if self._negotiation is not None:
            self._negotiation.close()
            self._negotiation = None
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
        if self.hello is not None:
            self._record(ENDED, self._end.encode())
        if self.hello is not None or self._session.side is Side.INITIATOR:
            self._notify_owner("peer_closed", self._end)

    def resumeProducing(self) -> None:
        """Called by the transport when it has sent its buffer."""
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
                self._notify_owner("peer_drained")

    def stopProducing(self) -> None:
        """Called by the transport when it is lost; `connectionLost` follows."""

    # --- the socket -------------------------------------------------------------------------------

    def _receive(self) -> object:
        """Read from the socket in place of the transport, with fewer calls."""
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
        """Send at once what the socket accepts, and return the number of bytes.

        Twisted's `write` would send in the next iteration, which costs one more wake-up per hop.
        """
        if self._socket is not None:
            try:
                sent = self._socket.send(data)
            except OSError:
                return 0  # the buffer is full, or the connection lost, which the transport detects
        else:
            write_some = getattr(self.transport, "writeSomeData", None)
            sent = write_some(data) if write_some is not None else 0
        return sent if isinstance(sent, int) else 0  # not a number: the connection is lost

    # --- inside -----------------------------------------------------------------------------------

    def _heard(self) -> None:
        self._silent_s, self._counted_at_s = 0.0, self._reactor.seconds()

    def _open(self) -> None:
        hello = self._session.peer
        assert hello is not None  # the session is open
        self.hello = hello
        accepts = self._session.side is Side.ACCEPTOR
        self._allowed = (ACCEPTED if accepts else EXPECTED)[hello.role]
        self._stop_timer()
        self._timer = self._reactor.callLater(_PULSE_S, self._pulse)
        self._negotiation = ChannelNegotiation.begin(
            self._channels, self, self._session, self._write, self._switch_transport
        )
        if self._negotiation is None:  # otherwise Twisted must read, to receive descriptors
            self._socket = getattr(self.transport, "socket", None)
            if self._socket is not None:
                self.transport.doRead = self._receive
        self._notify_owner("peer_opened")

    def _switch_transport(self, transport: ChannelTransport) -> None:
        """Send later data through another transport; the old one still sends its buffer."""
        if self._backlog:
            self.transport.write(b"".join(self._backlog))
            self._backlog.clear()
        self._backlog_bytes = self._handed_bytes = 0
        self.transport.unregisterProducer()
        self.transport = transport
        transport.registerProducer(self, False)

    def _record(self, sign: str, data: bytes) -> None:
        if self._recorder is not None:
            self._recorder.add(sign, self._recorded_as, data)

    def _flush(self) -> None:
        if not self._outbox:
            return
        messages, self._outbox = self._outbox, []
        if not self.is_open:
            return
        try:
            data = self._session.send(encode_all(messages))
        except WireError as error:  # a message of ours that cannot be encoded, or is too large
            self._fail_and_notify(error, error.reason)
            return
        self._record(SENT, data)
        self._write(data)
        if self.queued_bytes > self._queued_max_bytes:
            self._drop(f"{self.queued_bytes} bytes wait to be sent, the peer does not read them")

    def _write(self, data: bytes) -> None:
        """Send at once what the socket accepts; the rest waits in the transport or the backlog."""
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
        self._silent_s, self._counted_at_s = self.silent_s, self._reactor.seconds()
        self._idle_pulses += 1
        if self.silent_s >= self.lost_after_s:
            self._drop(f"the peer has sent nothing for {self.silent_s:.1f} s")
        elif self._idle_pulses * _PULSE_S >= HEARTBEAT_INTERVAL_S:
            self.send(Heartbeat())

    def _hello_timed_out(self) -> None:
        """End without a refusal: either side may have been suspended, so a retry may succeed."""
        self._fail(RemoteProtocolError(f"no proof of a key within {self.hello_timeout_s:g} s"))

    def _fail_and_notify(self, error: WireError, reason: str) -> None:
        """End after an error and send the reason. This is not a refusal, so a retry may succeed."""
        self._session.refuse(reason)
        self._fail(error)

    def _fail(self, error: WireError) -> None:
        """End after an error; first send the session's final frame, if it has one."""
        self.failure = error
        self._write(self._session.data_to_send())
        by_peer = isinstance(error, RefusedError) and error.by_peer
        who = "the peer ended it" if by_peer else "ended"
        # If this side connected and the session never opened, the owner logs the error.
        if self.hello is not None or self._session.side is Side.ACCEPTOR:
            _log.warn("connection with {peer!r} {who}: {why}", peer=self, who=who, why=error.reason)
        self._finish(error.reason)

    def _finish(self, reason: str) -> None:
        """End in order: send the queue, then wait until the peer closes, or for a timeout.

        This closes only our half of the connection. If we closed it while data of the peer is
        unread, the kernel would send a reset, and the peer might lose our last data.
        """
        if self._end is not None:
            return
        self._end = reason
        self._stop_timer()
        self._timer = self._reactor.callLater(CLOSE_TIMEOUT_S, self.transport.abortConnection)
        self._detach_producer()
        if self._backlog:
            self.transport.write(b"".join(self._backlog))
        self.transport.loseWriteConnection()
        if self.is_paused:
            self.transport.resumeProducing()

    def _drop(self, reason: str) -> None:
        """Abort the connection: the peer does not read, so it cannot be sent a reason."""
        _log.warn("connection with {peer!r} dropped: {why}", peer=self, why=reason)
        self._end = reason
        self._stop_timer()
        self._detach_producer()
        self.transport.abortConnection()

    def _detach_producer(self) -> None:
        self._backlog_bytes = 0
        self.transport.unregisterProducer()  # a transport with a producer never closes

    def _stop_timer(self) -> None:
        if self._timer is not None and self._timer.active():
            self._timer.cancel()
        self._timer = None

    def _notify_owner(self, event: str, *details: Any) -> None:
        try:
            getattr(self._owner, event)(self, *details)
        except Exception:
            _log.failure("{event} of {peer!r} failed", event=event, peer=self)
            if self._end is None:
                fault = WireError("internal error; see the log")
                self._fail_and_notify(fault, "internal error; see the log of the other side")


classImplements(ControlPeer, IFileDescriptorReceiver)


def describe(address: Any) -> str:
    """Format a transport's address as `HOST:PORT` or `unix:@NAME`."""
    host, port = getattr(address, "host", None), getattr(address, "port", None)
    if host is not None:
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    name = getattr(address, "name", None)
    return f"unix:{name.decode(errors='replace').replace(chr(0), '@')}" if name else "unix:"
