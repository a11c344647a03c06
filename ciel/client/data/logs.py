"""Reads the output of programs from workers: logs of jobs, and the output of failed programs."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ciel.access.keys import Key
from ciel.client.data.worker_http import (
    STALLED_S,
    authorization,
    connect,
    is_remote,
    refusal,
    text_of,
)
from ciel.client.errors import LogUnreadableError, OutputGoneError

if TYPE_CHECKING:
    from http.client import HTTPConnection


class LogReader:
    """Reads the standard error of a job's programs on one worker.

    Each `read` continues where the last one stopped.
    """

    def __init__(
        self,
        netloc: str,
        worker: str,
        job_id: str,
        key: Key,
        *,
        offset: int = 0,
        timeout_s: float = STALLED_S,
    ) -> None:
        self.netloc = netloc
        self.worker = worker
        self._job_id = job_id
        self._key = key
        self._offset = offset
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._waiting: HTTPConnection | None = None
        self.interrupted = False

    def read(self, *, wait: bool = False) -> bytes:
        """Return new bytes; none at the end of the log. Raises LogUnreadableError.

        With `wait`, wait for new bytes, and return none only after some 20 s or upon `interrupt`.
        """
        target = f"/log/{self._job_id}?offset={self._offset}{'&wait=1' if wait else ''}"
        headers = authorization(self._key, "GET", self.netloc, target)
        try:
            with contextlib.closing(connect(self.netloc, self._timeout_s)) as connection:
                connection.connect()
                with self._lock:
                    if wait and self.interrupted:
                        return b""
                    self._waiting = connection if wait else None
                connection.request("GET", target, headers=headers)
                answer = connection.getresponse()
                if answer.status != 200:
                    raise refusal(answer)
                content = answer.read()
        except Exception as error:
            if not is_remote(error):
                raise
            if wait and self.interrupted:
                return b""
            raise LogUnreadableError(self.netloc, text_of(error)) from None
        finally:
            with self._lock:
                self._waiting = None
        self._offset += len(content)
        return content

    def interrupt(self) -> None:
        """Make a `read` that waits in another thread return, and each later one return at once."""
        with self._lock:
            self.interrupted = True
            if self._waiting is not None and self._waiting.sock is not None:
                with contextlib.suppress(OSError):  # the worker has closed the connection
                    self._waiting.sock.shutdown(socket.SHUT_RDWR)


def read_kept(netloc: str, name: str, key: Key) -> Iterator[bytes]:
    """Yield the output of a failed program, which a worker retains under `name`.

    Raises OutputGoneError.
    """
    offset = 0
    while True:
        target = f"/kept/{name}?offset={offset}"
        headers = authorization(key, "GET", netloc, target)
        try:
            with contextlib.closing(connect(netloc)) as connection:
                connection.request("GET", target, headers=headers)
                answer = connection.getresponse()
                if answer.status != 200:
                    raise refusal(answer)
                content = answer.read()
        except Exception as error:
            if not is_remote(error):
                raise
            raise OutputGoneError(netloc, text_of(error)) from None
        if not content:
            return
        offset += len(content)
        yield content
