"""Sessions: reliable exchanges of messages that survive the loss of a connection.

A connection may be lost at any moment, and then the sender does not know which of the last messages
arrived. So each side counts the messages that it received, keeps sent messages until the peer
confirms them (`Received`), and resends unconfirmed ones over the next connection. To the owner, a
peer that was disconnected for a while looks like a slow peer. The master has one session with each
client and with each worker; a worker has one with its master.

A session gives a connection no more messages than it can send soon. Further messages wait here as
values, which the graph has in memory anyway. So a slow reader gets all messages of a large job,
only later.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from ciel.core.events import JobPrinted, Message, Received, TaskPrinted
from ciel.net.control import QUEUED_MAX_BYTES, Peer
from ciel.wire.session_counter import SessionCounter

CONFIRM_EVERY: Final = 256
"""After so many received messages the session confirms at once; fewer are confirmed by a timer of
the owner."""
KEPT_MAX: int = 4_000_000
"""How many unconfirmed messages are kept for a peer: all messages of the largest jobs, about 100
bytes each. With more, the session cannot be resumed after a disconnect, and keeps none."""
PRINTS_KEPT_MAX_BYTES: int = QUEUED_MAX_BYTES
"""How many bytes of task output may wait for a peer, since no other object refers to this memory.
With more, the peer loses its session."""
HANDED_AT_ONCE: Final = 512
"""How many messages are given to the connection before its queue is checked again: some 700 KB of
results."""


class PeerSession:
    """One end of a session; `name` is the owner's name for the other end."""

    def __init__(
        self, name: str, peer: Peer, token: str = "", *, confirms_late: bool = False
    ) -> None:
        """`confirms_late`: received messages are confirmed only up to `may_confirm`."""
        self.name = name
        self.replaces_earlier = False
        """Whether the session began with `StartOver`, in place of one with the same token."""
        self._confirms_late = confirms_late
        self._confirmable = 0  # how many received messages may be confirmed
        self.token = token
        """The connecting side's identifier of the session."""
        self.peer: Peer | None = peer
        self.gone_at_s = 0.0
        """When the connection was lost; meaningless while the session has one."""
        self.back_at_s = 0.0
        """When the session was last resumed over another connection."""
        self._sent: deque[Message] = deque()  # sent over any connection, but unconfirmed
        self._waiting: deque[Message] = deque()  # until the connection accepts more
        self._prints_bytes = 0  # task output in `_waiting`
        self._counter = SessionCounter()
        self._owes_confirmation = False  # until all messages were sent again
        self.can_resume = True
        """Whether all unconfirmed messages are still kept."""

    @property
    def is_congested(self) -> bool:
        """Whether messages wait for the peer to read earlier ones, or to reconnect."""
        return bool(self._waiting) or self.peer is None or self.peer.is_congested

    def send(self, message: Message) -> None:
        """Send a message now, or after the peer reconnects or reads earlier messages."""
        peer = self.peer
        if peer is not None and not self._waiting and not peer.is_congested:
            if self.can_resume and len(self._sent) < KEPT_MAX:  # the usual case
                self._sent.append(message)
                peer.send(message)
                return
        if not self.can_resume and peer is None:
            return
        self._waiting.append(message)
        if isinstance(message, JobPrinted | TaskPrinted):
            self._prints_bytes += len(message.text)
        if self.peer is not None:
            self.hand_on()
        if len(self._waiting) > KEPT_MAX or self._prints_bytes > PRINTS_KEPT_MAX_BYTES:
            self._give_up()
        elif len(self._sent) + len(self._waiting) > KEPT_MAX:  # can continue, but not resume later
            self.can_resume = False
            self._sent.clear()

    def hand_on(self) -> None:
        """Give waiting messages to the connection until it is congested."""
        peer, waiting = self.peer, self._waiting
        while waiting and peer is not None and not peer.is_congested:
            count = min(len(waiting), HANDED_AT_ONCE)
            for _ in range(count):
                message = waiting.popleft()
                if isinstance(message, JobPrinted | TaskPrinted):
                    self._prints_bytes -= len(message.text)
                if self.can_resume:
                    self._sent.append(message)
                peer.send(message)
            if count == HANDED_AT_ONCE:
                peer.flush()
        if self._owes_confirmation and not waiting and peer is not None:
            self._owes_confirmation = False
            peer.send(Received(self._counter.report()))

    def _give_up(self) -> None:
        self.can_resume = False
        self._sent.clear()
        self._waiting.clear()
        if self.peer is not None:
            self.peer.refuse("it read too slowly: too many messages waited for it")

    def unconfirmed(self) -> list[Message]:
        """Return the messages that the peer has not confirmed, in order."""
        return [*self._sent, *self._waiting]

    def end(self) -> None:
        """Drop all messages, since the peer will not reconnect.

        The connection may refer to the session until the next garbage collection, which is rare in
        an idle daemon.
        """
        self._sent.clear()
        self._waiting.clear()

    @property
    def may_be_unknown(self) -> bool:
        """Whether the peer may not know that this session has replaced an earlier one: it has sent
        and confirmed nothing in it. Then it may report numbers of messages of the earlier session.
        """
        return self.replaces_earlier and not (self.received or self._counter.confirmed)

    @property
    def received(self) -> int:
        """How many messages were received over all connections."""
        return self._counter.received

    def count(self, messages: int) -> None:
        """Count received messages, and confirm them if there are many."""
        self._counter.received += messages
        if not self._confirms_late:
            self.may_confirm(self._counter.received)

    def may_confirm(self, total: int) -> None:
        """Allow to confirm received messages, as their consequences are durable; confirm them if
        there are many.
        """
        self._confirmable = total
        if total - self._counter.reported >= CONFIRM_EVERY:
            self.confirm()

    def confirm(self) -> None:
        """Send the number of messages that may be confirmed, if it has changed.

        A confirmation never overtakes what the confirmed messages have caused: the peer keeps them
        until it knows that, and can tell it to another master.
        """
        if self._confirmable > self._counter.reported and self.peer is not None:
            if not self._waiting:
                self.peer.send(Received(self._counter.report(self._confirmable)))

    def take_confirmation(self, count: int) -> bool:
        """Drop the messages that the peer has confirmed; False if `count` is impossible."""
        return not self.can_resume or self._counter.take_confirmation(count, self._sent)

    def begin_again(self, peer: Peer) -> None:
        """Repeat the session from its first message over a new connection (`may_be_unknown`)."""
        self.peer = peer
        self._waiting.extendleft(reversed(self._sent))
        self._sent.clear()
        self.hand_on()

    def resume(self, peer: Peer, *, confirms_last: bool = False) -> None:
        """Resume over a new connection: confirm received messages, resend unconfirmed ones.

        `confirms_last`: resend first, then confirm. A worker needs that: it must not forget its
        messages before it has their consequences, and it sends nothing before the confirmation.
        """
        self.peer = peer
        self._owes_confirmation = confirms_last
        if not confirms_last:
            peer.send(Received(self._counter.report()))
        self._waiting.extendleft(reversed(self._sent))
        for message in self._sent:
            if isinstance(message, JobPrinted | TaskPrinted):
                self._prints_bytes += len(message.text)
        self._sent.clear()
        self.hand_on()
