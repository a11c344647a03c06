"""Several inputs on one standard input: files and texts are fed into a pipe as fast as the program
reads.

A program that closes its standard input early is no error: feeding just stops (ciel-interfaces,
6.2). An input that cannot be read is one: the program took the end of what came for the end of all.
"""

from __future__ import annotations

import errno
import os
from collections import deque
from typing import Any

from twisted.internet.interfaces import IWriteDescriptor
from twisted.python.failure import Failure as TwistedFailure
from zope.interface import implementer

CHUNK_BYTES = 64 * 1024


@implementer(IWriteDescriptor)
class Feeder:
    """Feeds one pipe; `descriptor` is its read end, for the program (owned by the caller until it
    closed it).
    """

    def __init__(self, reactor: Any, paths: list[str]) -> None:
        self._reactor = reactor
        self._paths = deque(paths)
        self._source: int | None = None
        self.error: OSError | None = None  # why the program did not get everything
        self.descriptor, self._pipe = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._pipe, False)

    def start(self) -> None:
        """Begin to feed, once the program has its end of the pipe."""
        os.close(self.descriptor)
        self._reactor.addWriter(self)

    def close(self) -> None:
        """Stop, whether or not everything was fed."""
        if self._pipe >= 0:
            self._reactor.removeWriter(self)
            os.close(self._pipe)
            self._pipe = -1
        if self._source is not None:
            os.close(self._source)
            self._source = None

    def fileno(self) -> int:
        return self._pipe

    def logPrefix(self) -> str:
        return "feeder"

    def doWrite(self) -> None:
        """Move what the pipe takes; the bytes never enter this process."""
        try:
            if self._source is None:
                if not self._paths:
                    self.close()
                    return
                self._source = os.open(self._paths.popleft(), os.O_RDONLY | os.O_CLOEXEC)
            if not os.splice(self._source, self._pipe, CHUNK_BYTES):
                os.close(self._source)
                self._source = None
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno != errno.EPIPE:
                self.error = error
            self.close()

    def connectionLost(self, reason: TwistedFailure) -> None:
        self.close()
