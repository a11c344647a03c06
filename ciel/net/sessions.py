"""Sessions: exchanges of messages that outlive the connections which carry them.

A connection may be lost at any moment, and then nobody knows which of the last messages arrived.
So each side counts the messages that it received, keeps those that it sent until the other side
confirms them (`Received`), and sends the rest again over the next connection. To the code above, a
peer that was away for a while is a peer that was slow to answer. The master has one session with
each client and with each worker; a worker has one with its master.

A connection is handed no more than it can send soon. The rest waits here as the values that the
graph has anyway, so that a slow reader gets all news of a large job, only later.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from ciel.core.events import JobPrinted, Message, Received, TaskPrinted
from ciel.net.control import QUEUED_MAX_BYTES, Peer

CONFIRM_EVERY: Final = 256
"""Messages that came; fewer are confirmed by the next tick."""
KEPT_MAX: int = 4_000_000
"""Messages that a peer has not confirmed: all news of the largest jobs, about 100 bytes each. One
that is so far behind cannot come back, and nothing more is kept for it."""
PRINTS_KEPT_MAX_BYTES: int = QUEUED_MAX_BYTES
"""What tasks print is kept for nobody else. A peer that is so far behind loses its session."""
HANDED_AT_ONCE: Final = 512
"""Messages between two looks at how much waits in the connection: some 700 KB of results."""


class PeerSession:
    """One end of a session; `name` is what the owner calls the other end."""

    def __init__(self, name: str, peer: Peer, token: str = "") -> None:
        self.name = name
        self.token = token
        """What the connecting side names the session by."""
        self.peer: Peer | None = peer
        self.gone_at_s = 0.0
        """When its connection was lost; of no meaning while there is one."""
        self.back_at_s = 0.0
        """When it last went on over another connection."""
        self._sent: deque[Message] = deque()  # over this connection or an earlier one, unconfirmed
        self._waiting: deque[Message] = deque()  # until the connection takes more
        self._prints_bytes = 0  # of what waits
        self._confirmed = 0
        self._received = 0
        self._told = 0
        self.can_resume = True
        """Whether all that it was not heard to have is still there."""

    @property
    def is_congested(self) -> bool:
        """Whether it has still to read what it was sent."""
        return bool(self._waiting) or self.peer is None or self.peer.is_congested

    def send(self, message: Message) -> None:
        """Send a message, now or when the peer is back, or has read what was sent before."""
        peer = self.peer
        if peer is not None and not self._waiting and not peer.is_congested:
            if self.can_resume and len(self._sent) < KEPT_MAX:  # as is usual
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
        elif len(self._sent) + len(self._waiting) > KEPT_MAX:  # it can go on, but not come back
            self.can_resume = False
            self._sent.clear()

    def hand_on(self) -> None:
        """Give the connection what waits, as far as it takes more."""
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

    def _give_up(self) -> None:
        self.can_resume = False
        self._sent.clear()
        self._waiting.clear()
        if self.peer is not None:
            self.peer.refuse("it was too far behind")

    def end(self) -> None:
        """Forget the messages that are kept for a peer that will not be back. The connection may
        refer to the session until the next search for cycles, which an idle daemon seldom makes.
        """
        self._sent.clear()
        self._waiting.clear()

    @property
    def received(self) -> int:
        """How many messages came, over all connections."""
        return self._received

    def count(self, messages: int) -> None:
        """Take note that so many messages came."""
        self._received += messages
        if self._received - self._told >= CONFIRM_EVERY:
            self.confirm()

    def confirm(self) -> None:
        """Tell the peer how many messages came, if that is news."""
        if self._told < self._received and self.peer is not None:
            self._told = self._received
            self.peer.send(Received(self._received))

    def take_confirmation(self, count: int) -> bool:
        """Forget what has arrived; False if `count` cannot be true."""
        if not self.can_resume:
            return True
        if not self._confirmed <= count <= self._confirmed + len(self._sent):
            return False
        for _ in range(count - self._confirmed):
            self._sent.popleft()
        self._confirmed = count
        return True

    def resume(self, peer: Peer) -> None:
        """Go on over another connection: say how much came, and what did not arrive."""
        self.peer = peer
        self._told = self._received
        peer.send(Received(self._received))
        self._waiting.extendleft(reversed(self._sent))
        for message in self._sent:
            if isinstance(message, JobPrinted | TaskPrinted):
                self._prints_bytes += len(message.text)
        self._sent.clear()
        self.hand_on()
