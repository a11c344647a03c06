"""One connection on the reactor: decodes received messages, and encodes and sends others.

Invalid bytes end only this connection. While a client does not read its answers, the connection
reads no more requests from it.
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
    """Receives the events of a connection."""

    def connection_opened(self, connection: Connection) -> None: ...

    def connection_said(self, connection: Connection, message: Message) -> None:
        """Handle a message. Raising MessageError ends the connection."""
        ...

    def connection_lost(self, connection: Connection, reason: str) -> None: ...


class Connection(TwistedProtocol):
    """Calls its owner only between `connection_opened` and `connection_lost`."""

    transport: Any

    def __init__(self, owner: ConnectionOwner) -> None:
        self._owner = owner
        self._decoder = Decoder()
        self._is_open = False
        self._why = ""

    def connectionMade(self) -> None:
        handle = getattr(self.transport, "getHandle", None)  # none: memory that this user owns
        if handle is not None and not is_same_user(handle()):
            self._why = "it belongs to another user"
            self.transport.abortConnection()
            return
        self._is_open = True
        self.transport.registerProducer(self.transport, True)  # reads only while it can write
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
        """Send a message. If no frame can hold an answer, send a failure instead."""
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
        """Abort the connection."""
        if self._is_open:
            self._why = why
            self.transport.abortConnection()

    @property
    def refusal(self) -> str:
        """Why the connection was aborted before it was open."""
        return self._why
