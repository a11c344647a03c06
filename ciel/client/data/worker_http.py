"""Sends HTTP requests to workers. Each contains a ticket that proves the key.

`http.client` is loaded with the first request: most results are small and arrive inside their
reference.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from ciel.access.keys import Key, Role
from ciel.access.tickets import make_ticket
from ciel.client.data.pieces import CHUNK_BYTES, Limited
from ciel.core.errors import CielError
from ciel.wire import codec
from ciel.wire.errors import WireError

if TYPE_CHECKING:
    from http.client import HTTPConnection, HTTPResponse

ANSWER_MAX_BYTES: Final = 64 << 10
STALLED_S: Final = 30.0
"""After this time without a byte, the client gives up on a worker."""
_IDLE_MAX = 4  # connections for each worker


class BadAnswerError(Exception):
    """A worker gave a wrong answer."""


class Connections:
    """A pool of connections to workers. Thread-safe.

    Opening a connection takes longer than sending a small object.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: dict[str, list[HTTPConnection]] = {}
        self._is_closed = False

    def request(
        self,
        netloc: str,
        method: str,
        target: str,
        headers: Callable[[], dict[str, str]],
        body: Callable[[], Limited | None] = lambda: None,
    ) -> tuple[HTTPConnection, HTTPResponse]:
        """Send a request; return the connection and the unread answer.

        If the worker has closed an idle connection, try the next connection, with new headers and a
        new body.
        """
        from http.client import HTTPException

        while True:
            with self._lock:
                idle = self._idle.get(netloc)
                known = idle.pop() if idle else None
            connection = known or connect(netloc)
            try:
                # A worker that refuses the body answers with the reason, and closes the connection
                # while the body is still being sent.
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    connection.request(method, target, body(), headers())
                return connection, connection.getresponse()
            except (OSError, HTTPException):
                connection.close()
                if known is None:
                    raise

    def release(self, netloc: str, connection: HTTPConnection, answer: HTTPResponse) -> None:
        """Keep a connection whose answer was read to its end; close any other."""
        if answer.isclosed() and not answer.will_close:
            with self._lock:
                idle = self._idle.setdefault(netloc, [])
                if not self._is_closed and len(idle) < _IDLE_MAX:
                    idle.append(connection)
                    return
        answer.close()
        connection.close()

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, {}
        for connections in idle.values():
            for connection in connections:
                connection.close()


def connect(netloc: str, timeout_s: float = STALLED_S) -> HTTPConnection:
    """Return a connection that connects with its first request."""
    from http.client import HTTPConnection

    return HTTPConnection(netloc, timeout=timeout_s, blocksize=CHUNK_BYTES)


def authorization(key: Key, method: str, netloc: str, target: str) -> dict[str, str]:
    """Return the header with the ticket of one request."""
    role_key = key.derive(Role.SUBMIT)
    assert role_key is not None  # a client has the cluster's key, or the key of this role
    return {"Authorization": make_ticket(role_key, method, netloc, target, time.time())}


def refusal(answer: HTTPResponse) -> BadAnswerError:
    """Return the error for an answer with which a worker refuses a request."""
    text = ""
    with contextlib.suppress(WireError, AttributeError):
        text = codec.decode(answer.read(ANSWER_MAX_BYTES)).get("error", "")
    reason = f": {text}" if text else ""
    return BadAnswerError(f"it answered {answer.status} {answer.reason}{reason}")


def is_remote(error: Exception) -> bool:
    """Whether an error is the worker's fault, so that the caller may try another worker."""
    from http.client import HTTPException

    return isinstance(error, BadAnswerError | OSError | HTTPException | WireError | CielError)


def text_of(error: Exception) -> str:
    """Return the message of an error for which `is_remote` is true."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return str(error) or type(error).__name__
