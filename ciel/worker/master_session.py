"""A worker's session with its master, which outlives its connections; requests to the master."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from ciel.core.errors import CielError
from ciel.core.events import LEAVE, Answer, Change, Message, Received, StartOver
from ciel.core.masters import NO_BALLOT, Ballot
from ciel.net.control import Peer
from ciel.net.sessions import PeerSession
from ciel.wire.errors import ConnectionCutError
from ciel.wire.messages import kind_of
from ciel.worker.events import Events

log = Logger(__name__)  # compiled code cannot determine its own module


class NoMasterError(CielError):
    """A request cannot be sent without a master."""

    def __init__(self) -> None:
        super().__init__(
            "this worker is not connected to a master; it tries to reach one, so try again later"
        )


class MasterSession:
    """The session with the master, if there is one.

    It counts and confirms messages, and resumes over a new connection after one was lost.
    """

    def __init__(self, events: Events) -> None:
        self._events = events
        self._session: PeerSession | None = None
        self._token = ""  # of the session, also before it is open
        self._returning: Peer | None = None  # the session resumes over it once the master agrees
        self._sent_counts: dict[type, int] = {}
        self.on_start_over: Callable[[list[Message]], object] = lambda unconfirmed: None
        """Called when a master that has restarted begins a new session, with the messages that the
        earlier one has not confirmed."""
        self._requests: dict[int, Deferred[Any]] = {}
        self._request_count = 0

    @property
    def is_open(self) -> bool:
        return self._session is not None

    @property
    def is_connected(self) -> bool:
        """Whether the master receives messages now; otherwise they wait until it is back."""
        return self._session is not None and self._session.peer is not None

    @property
    def connected_at_s(self) -> float:
        """When the session was resumed last."""
        return 0.0 if self._session is None else self._session.back_at_s

    def sent_counts(self) -> dict[str, int]:
        """Return how many messages were sent, by kind."""
        return {kind_of(message): count for message, count in self._sent_counts.items()}

    def hears(self, silent_max_s: float) -> str:
        """Return the URL of the master if it has sent something within this time, else ""."""
        peer = None if self._session is None else self._session.peer
        if peer is None or peer.hello is None or peer.silent_s >= silent_max_s:
            return ""
        return str(peer.hello.about.get("url", "")) or peer.address

    def master(self) -> Ballot:
        """Return the epoch and the URL of the master that is connected, as it says; NO_BALLOT if
        none is.
        """
        peer = None if self._session is None else self._session.peer
        about = {} if peer is None or peer.hello is None else peer.hello.about
        epoch, url = about.get("epoch"), about.get("url")
        if type(epoch) is not int or not isinstance(url, str):
            return NO_BALLOT
        return Ballot(epoch, url)

    def cut_off(self) -> None:
        """Abort the connection; the session may continue with another master."""
        for peer in (self._returning, None if self._session is None else self._session.peer):
            if peer is not None:
                peer.turn_away()

    # --- connections ------------------------------------------------------------------------------

    def greeting(self) -> dict[str, Any]:
        """Return the fields about the session for the hello of the next connection."""
        if self._session is not None:
            return {"session": self._token, "received": self._session.received}
        self._token = secrets.token_hex(16)
        return {"session": self._token}

    def opened(self, peer: Peer) -> bool:
        """Take a new connection; return whether it opens a new session."""
        if self._session is not None:
            self._returning = peer  # the master first says how much it has received, or refuses
            return False
        self._session = PeerSession("master", peer, self._token)
        log.info("joined the master at {address}", address=peer.address)
        self._events.note("joined", peer.address)
        return True

    def received(self, peer: Peer, messages: list[Message], now_s: float) -> list[Message]:
        """Take messages; process confirmations and answers, and return the rest."""
        session = self._session
        if session is None or (peer is not session.peer and peer is not self._returning):
            return []
        left: list[Message] = []
        confirmation_count = 0
        for message in messages:
            if isinstance(message, Received):
                confirmation_count += 1
                if not session.take_confirmation(message.total):
                    peer.refuse("it confirms messages that were not sent")
                    return left
                if peer is self._returning:
                    self._resume(session, peer, now_s)
            elif isinstance(message, StartOver):
                session = self._start_over(session, peer)
            elif isinstance(message, Answer):
                self._answered(message)
            else:
                left.append(message)
        session.count(len(messages) - confirmation_count)
        return left

    def _resume(self, session: PeerSession, peer: Peer, now_s: float) -> None:
        self._returning = None
        session.resume(peer)
        session.back_at_s = now_s
        log.info("reconnected to the master at {address}", address=peer.address)
        self._events.note("joined", peer.address)

    def _start_over(self, before: PeerSession, peer: Peer) -> PeerSession:
        """Begin a new session with a master that has restarted."""
        self._returning = None
        session = self._session = PeerSession("master", peer, self._token)
        log.info(
            "the master at {address} has restarted, or had declared this worker dead",
            address=peer.address,
        )
        self._events.note("joined", peer.address)
        self.on_start_over(before.unconfirmed())
        before.end()
        return session

    def drained(self, peer: Peer) -> None:
        """Send messages that waited until the master had read earlier ones."""
        if self._session is not None and peer is self._session.peer:
            self._session.hand_on()

    def closed(self, peer: Peer, reason: str) -> bool:
        """Take the loss of a connection; return whether the session cannot be resumed."""
        session = self._session
        if session is None or (peer is not session.peer and peer is not self._returning):
            return False
        if peer is self._returning:
            self._returning = None
        else:
            session.peer = None
            log.warn("lost the master: {reason}; running tasks continue", reason=reason)
            self._events.note("lost_master", reason)
        was_cut = peer.failure is None or isinstance(peer.failure, ConnectionCutError)
        is_over = not was_cut or not session.can_resume  # another connection would end likewise
        if is_over:
            log.warn(
                "the session with the master is over; the worker ends its tasks: {reason}",
                reason=reason,
            )
        return is_over

    def end(self) -> None:
        """End the session; requests fail."""
        self._session = None
        requests, self._requests = self._requests, {}
        for request in requests.values():
            if not request.called:
                request.errback(NoMasterError())

    def say_farewell(self) -> None:
        """Notify the master that this worker leaves for good, and close the connection."""
        if self._session is not None:
            peer = self._session.peer
            self._session.send(Change(0, LEAVE, None))
            if peer is not None:
                peer.close()

    # --- messages ---------------------------------------------------------------------------------

    def send(self, message: Message) -> None:
        """Send a message: now, or when the master is back."""
        if self._session is not None:
            kind = type(message)
            self._sent_counts[kind] = self._sent_counts.get(kind, 0) + 1
            self._session.send(message)

    def flush(self) -> None:
        """Send the messages of this tick now."""
        if self._session is not None and self._session.peer is not None:
            self._session.peer.flush()

    def confirm(self) -> None:
        """Send the master the number of received messages, if it has changed."""
        if self._session is not None:
            self._session.confirm()

    def request(self, topic: str, argument: Any) -> Deferred[Any]:
        """Request a change; fires with the master's answer, or fails with a CielError."""
        answered: Deferred[Any] = Deferred()
        if self._session is None:
            answered.errback(NoMasterError())
            return answered
        self._request_count += 1
        self._requests[self._request_count] = answered
        self.send(Change(self._request_count, topic, argument))
        return answered

    def _answered(self, answer: Answer) -> None:
        request = self._requests.pop(answer.number, None)
        if request is not None and not request.called:
            if answer.error:
                request.errback(CielError(answer.error))
            else:
                request.callback(answer.value)
