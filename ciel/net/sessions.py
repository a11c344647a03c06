"""Sessions: exchanges of messages that outlive the connections which carry them.

A connection may be lost at any moment, and then nobody knows which of the last messages arrived.
So each side counts the messages that it received, keeps those that it sent until the other side
confirms them (`Received`), and sends the rest again over the next connection. To the code above, a
peer that was away for a while is a peer that was slow to answer. The master has one session with
each client and with each worker; a worker has one with its master.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from ciel.core.events import Message, Received
from ciel.net.control import Peer

CONFIRM_EVERY: Final = 256
"""Messages that came; fewer are confirmed by the next tick."""
KEPT_MAX = 400_000
"""Messages that a peer has not confirmed: as many as may wait in a connection. A peer that is so
far behind cannot come back, and nothing more is kept for it."""


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
        self._sent: deque[Message] | None = deque()  # and not confirmed; None: too many
        self._confirmed = 0
        self._received = 0
        self._told = 0

    @property
    def can_resume(self) -> bool:
        return self._sent is not None

    def send(self, message: Message) -> None:
        """Send a message, now or when the peer is back."""
        if self._sent is not None:
            self._sent.append(message)
            if len(self._sent) > KEPT_MAX:
                self._sent = None
        if self.peer is not None:
            self.peer.send(message)

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
