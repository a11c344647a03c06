"""One connection on the reactor: bytes of the other side become messages, messages become bytes.

What is no message ends the connection, and nothing else. Who does not read what it asked for is not
heard until it does.
"""

from __future__ import annotations

from typing import Any, Protocol

from twisted.internet.protocol import Protocol as TwistedProtocol
from twisted.internet.protocol import connectionDone
from twisted.logger import Logger
from twisted.python.failure import Failure

from ciel.shm.credentials import is_same_user
from ciel.shm.errors import MessageError
from ciel.shm.messages import Code, Decoder, Fail, Message, Response, encode

log = Logger()


class ConnectionOwner(Protocol):
    """Who is told what a connection says."""

    def connection_opened(self, connection: Connection) -> None: ...

    def connection_said(self, connection: Connection, message: Message) -> None:
        """Take a message; a MessageError that is raised ends the connection."""
        ...

    def connection_lost(self, connection: Connection, reason: str) -> None: ...


class Connection(TwistedProtocol):
    """The owner is told nothing before `connection_opened`, and nothing after the loss of it."""

    transport: Any

    def __init__(self, owner: ConnectionOwner) -> None:
        self._owner = owner
        self._decoder = Decoder()
        self._is_open = False
        self._why = ""

    def connectionMade(self) -> None:
        if not is_same_user(self.transport.getHandle()):
            self._why = "it is another user's"
            self.transport.abortConnection()
            return
        self._is_open = True
        self.transport.registerProducer(self.transport, True)  # reading stops while writing does
        self._owner.connection_opened(self)

    def dataReceived(self, data: bytes) -> None:
        if not self._is_open:
            return
        try:
            for message in self._decoder.feed(data):
                self._owner.connection_said(self, message)
        except MessageError as error:
            log.warn("{error}", error=error)
            self.end(str(error))

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        if self._is_open:
            self._is_open = False
            self._owner.connection_lost(self, self._why or "the connection has ended")

    def send(self, message: Message) -> None:
        """Send a message; one that no frame can hold becomes a failure, if it is an answer."""
        if not self._is_open:
            return
        try:
            raw = encode(message)
        except MessageError as error:
            if not isinstance(message, Response):
                raise
            raw = encode(Fail(message.number, Code.FAILED, "", str(error)))
        self.transport.write(raw)

    def end(self, why: str) -> None:
        """End it at once."""
        if self._is_open:
            self._why = why
            self.transport.abortConnection()

    @property
    def refusal(self) -> str:
        """Why it was ended before it was open."""
        return self._why
