"""Inputs on a pipe: files and texts are fed into it as fast as the program reads, those that still
grow as far as they have grown.

A program that closes its standard input early is no error: feeding just stops (ciel-interfaces,
6.2). An input that cannot be read is one: the program took the end of what came for the end of all.
One that breaks while it grows is one too, and then the pipe is left open and silent until it is
closed: no program shall take what came for all that there is.
"""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from twisted.internet.interfaces import IWriteDescriptor
from twisted.python.failure import Failure as TwistedFailure
from zope.interface import implementer

if TYPE_CHECKING:
    from ciel.worker.streaming import Growing, Hold, Streams, Waiter

CHUNK_BYTES = 64 * 1024


@implementer(IWriteDescriptor)
class Feeder:
    """Feeds one pipe; `descriptor` is its read end, for the program (owned by the caller until it
    closed it). Sources are the paths of files, and objects that grow.
    """

    def __init__(
        self, reactor: Any, sources: Sequence[str | Growing], streams: Streams | None = None
    ) -> None:
        self._reactor = reactor
        self._streams = streams
        self._sources = deque(sources)
        self._holds: dict[Growing, Hold] = {}
        self._source: int | None = None
        self._offset_bytes = 0  # in what grows
        self._waiter: Waiter | None = None
        self.error: OSError | None = None  # why the program did not get everything
        self.descriptor, self._pipe = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._pipe, False)
        for source in sources:
            if streams is not None and not isinstance(source, str):
                self._holds[source] = streams.hold(source)

    def start(self) -> None:
        """Begin to feed, once the program has its end of the pipe."""
        os.close(self.descriptor)
        self._reactor.addWriter(self)

    def close(self) -> None:
        """Stop, whether or not everything was fed."""
        self._stop()

    def _stop(self) -> None:
        if self._waiter is not None:
            self._waiter.cancel()
            self._waiter = None
        if self._pipe >= 0:
            self._reactor.removeWriter(self)
            os.close(self._pipe)
            self._pipe = -1
        if self._source is not None:
            os.close(self._source)
            self._source = None
        for hold in self._holds.values():
            hold.close()
        self._holds.clear()

    def fileno(self) -> int:
        return self._pipe

    def logPrefix(self) -> str:
        return "feeder"

    def doWrite(self) -> None:
        """Move what the pipe takes; the bytes never enter this process."""
        try:
            if not self._sources:
                self._stop()
            elif isinstance(source := self._sources[0], str):
                self._feed_file(source)
            else:
                self._feed_growing(source)
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno != errno.EPIPE:
                self.error = error
            self._stop()

    def _feed_file(self, path: str) -> None:
        if self._source is None:
            self._source = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        if not os.splice(self._source, self._pipe, CHUNK_BYTES):
            os.close(self._source)
            self._source = None
            self._sources.popleft()

    def _feed_growing(self, growing: Growing) -> None:
        if growing.broken:
            self.error = OSError(errno.EIO, growing.broken)
            self._reactor.removeWriter(self)
            return
        wanted_bytes = CHUNK_BYTES
        if growing.is_whole:
            wanted_bytes = min(CHUNK_BYTES, growing.size_bytes - self._offset_bytes)
        if wanted_bytes:
            fd, offset_bytes = growing.fileno(), self._offset_bytes
            moved_bytes = os.splice(fd, self._pipe, wanted_bytes, offset_src=offset_bytes)
            self._offset_bytes += moved_bytes
            growing.saw(self._offset_bytes)
            if moved_bytes:
                return
        if growing.is_whole:
            self._sources.popleft()
            self._offset_bytes = 0
        elif self._streams is not None:
            self._reactor.removeWriter(self)
            self._waiter = self._streams.when(growing, self._offset_bytes + 1, self._go_on)

    def _go_on(self, growing: Growing) -> None:
        self._waiter = None
        self._reactor.addWriter(self)

    def connectionLost(self, reason: TwistedFailure) -> None:
        self._stop()


class Piping(Feeder):
    """Feeds a pipe that is opened by name, so that its reader waits for what grows. `descriptor` is
    its own until close.
    """

    @property
    def name(self) -> str:
        """What a program opens to read; valid until close."""
        return f"/proc/{os.getpid()}/fd/{self.descriptor}"

    def start(self) -> None:
        self._reactor.addWriter(self)

    def close(self) -> None:
        """Stop; whoever has it open comes to an end."""
        super().close()
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
