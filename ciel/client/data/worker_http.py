"""HTTP requests to workers. Each carries a ticket that proves the key.

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
"""After this time without a byte the client gives up a worker."""
_IDLE_MAX = 4  # connections for each worker


class BadAnswerError(Exception):
    """A worker gave a wrong answer."""


class Connections:
    """A pool of connections to workers: opening a connection costs more than a small object.
    Thread-safe.
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
        """Send a request; return the connection and the unread answer. If the worker has closed an
        idle connection, try the next one, with new headers and a new body.
        """
        from http.client import HTTPException

        while True:
            with self._lock:
                idle = self._idle.get(netloc)
                known = idle.pop() if idle else None
            connection = known or connect(netloc)
            try:
                # A worker that refuses the body answers why, and closes the connection meanwhile.
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
    assert role_key is not None  # a client has the cluster's key or that for submitting
    return {"Authorization": make_ticket(role_key, method, netloc, target, time.time())}


def refusal(answer: HTTPResponse) -> BadAnswerError:
    """Return the error that a worker has answered."""
    text = ""
    with contextlib.suppress(WireError, AttributeError):
        text = codec.decode(answer.read(ANSWER_MAX_BYTES)).get("error", "")
    reason = f": {text}" if text else ""
    return BadAnswerError(f"it answered {answer.status} {answer.reason}{reason}")


def is_remote(error: Exception) -> bool:
    """Whether an error is the fault of the worker, so that the caller may try another one."""
    from http.client import HTTPException

    return isinstance(error, BadAnswerError | OSError | HTTPException | WireError | CielError)


def text_of(error: Exception) -> str:
    """Return the message of an error that is remote."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return str(error) or type(error).__name__
