"""What a client and we have said to each other, over however many connections.

A connection may be lost at any moment, and then nobody knows what of the last messages has arrived.
So each side counts those that come, keeps its own until the other has confirmed them (`Received`),
and says the rest again when the client comes back within its grace period. To everybody above a
client that was away for a while is one that was slow to answer.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from ciel.core.events import Message, Received
from ciel.net.control import Peer

CONFIRM_EVERY: Final = 256
"""Messages that came; fewer are confirmed by the next tick."""
KEPT_MAX = 400_000
"""Messages that a client has not confirmed: as many as may wait in a connection. One that is so far
behind cannot come back, and nothing more is kept for it."""


class ClientSession:
    """The session of a client; `name` is what the machine calls it. To be sent to as a peer is."""

    def __init__(self, name: str, peer: Peer) -> None:
        self.name = name
        self.peer: Peer | None = peer
        self.gone_at_s = 0.0
        """When its connection was lost; of no meaning while there is one."""
        self._sent: deque[Message] | None = deque()  # and not confirmed; None: too many
        self._confirmed = 0
        self._received = 0
        self._told = 0

    @property
    def can_resume(self) -> bool:
        return self._sent is not None

    def send(self, message: Message) -> None:
        """Send a message, now or when the client is back."""
        if self._sent is not None:
            self._sent.append(message)
            if len(self._sent) > KEPT_MAX:
                self._sent = None
        if self.peer is not None:
            self.peer.send(message)

    def count(self, messages: int) -> None:
        """Take note that so many messages came."""
        self._received += messages
        if self._received - self._told >= CONFIRM_EVERY:
            self.confirm()

    def confirm(self) -> None:
        """Tell the client how many came, if that is news."""
        if self._told < self._received and self.peer is not None:
            self._told = self._received
            self.peer.send(Received(self._received))

    def take_confirmation(self, count: int) -> bool:
        """Forget what has arrived; False if `count` cannot be true."""
        if self._sent is None:
            return True
        if not self._confirmed <= count <= self._confirmed + len(self._sent):
            return False
        for _ in range(count - self._confirmed):
            self._sent.popleft()
        self._confirmed = count
        return True

    def resume(self, peer: Peer) -> None:
        """Go on over another connection: say how much came, and what did not arrive."""
        assert self._sent is not None  # it `can_resume`
        self.peer = peer
        self._told = self._received
        peer.send(Received(self._received))
        for message in self._sent:
            peer.send(message)
