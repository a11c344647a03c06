"""Sends objects as response bodies, as fast as the client reads them."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

from twisted.internet.interfaces import IPushProducer
from twisted.logger import Logger
from zope.interface import implementer

from ciel.net.http import Request
from ciel.net.ticks import DelayedCall
from ciel.storage.errors import StorageError
from ciel.worker.streams.growing import Growing, Streams, Waiter

CHUNK_BYTES = 256 * 1024
CHUNK_MIN_BYTES = 16 * 1024
"""Bytes read at a time; about twice as many are in memory for a slow reader."""

HELD_BYTES = 16 << 20
"""About how many bytes are in memory for all readers: if there are many, each gets less at a time.
"""

STALLED_S = 600.0
"""The worker cuts the connection of a reader that takes nothing for this time."""

Read = Callable[[int, int], bytes]
"""Returns bytes from an offset on, at most so many."""

log = Logger()


def read_file(fd: int, offset_bytes: int, length_bytes: int) -> bytes:
    """Read from an open file; see `Read`."""
    return os.pread(fd, length_bytes, offset_bytes)


@implementer(IPushProducer)
class _Sending(ABC):
    """The body of a response. `close` is called when it has ended, in any way."""

    under_way: ClassVar[int] = 0

    def __init__(
        self, request: Request, read: Read, start: int, close: Callable[[], object]
    ) -> None:
        self.request = request
        self.read = read
        self.offset = start
        self.is_paused = False
        self.is_over = False
        self._due: DelayedCall | None = None
        _Sending.under_way += 1
        request.notifyFinish().addBoth(lambda _: self.ended(close))
        request.registerProducer(self, True)
        request.write(b"")
        self.resumeProducing()

    def resumeProducing(self) -> None:
        self.is_paused = False
        self.attempt(self.send)

    def pauseProducing(self) -> None:
        self.is_paused = True
        if self._due is None:
            self._due = self.request.channel.callLater(STALLED_S, self._check_progress, self.offset)

    def _check_progress(self, offset: int) -> None:
        """Cut the connection if the reader has taken nothing since the offset was reached."""
        self._due = None
        if self.is_paused and self.offset == offset:
            self.cut()
        elif self.is_paused:
            self.pauseProducing()

    def stopProducing(self) -> None:  # noqa: B027  # nothing to do
        """The client is gone; `notifyFinish` handles that."""

    @abstractmethod
    def send(self) -> None:
        """Continue to send; raises OSError or StorageError."""

    def ended(self, close: Callable[[], object]) -> None:
        self.is_over = True
        _Sending.under_way -= 1
        if self._due is not None:
            self._due.cancel()
            self._due = None
        close()

    def attempt(self, step: Callable[[], object]) -> None:
        """Take a step; if it fails, cut the connection, so that the client notices the loss."""
        try:
            step()
        except ConnectionError:
            self.cut()  # the reader has left
        except (OSError, StorageError) as error:
            log.warn("an object cannot be sent to its end: {error}", error=error)
            self.cut()

    def write(self, end: int) -> None:
        """Write the next bytes, at most up to an offset."""
        share = max(CHUNK_MIN_BYTES, HELD_BYTES // _Sending.under_way)
        chunk = self.read(self.offset, min(CHUNK_BYTES, share, end - self.offset))
        if not chunk:
            raise OSError(f"it ends after {self.offset} bytes, of {end}")
        self.offset += len(chunk)
        self.request.write(chunk)

    def finish(self) -> None:
        self.request.unregisterProducer()
        self.request.finish()

    def cut(self) -> None:
        channel: Any = self.request.channel
        if not self.is_over and channel is not None:
            channel.forceAbortClient()


class Sending(_Sending):
    """Sends a part of an object."""

    def __init__(
        self, request: Request, read: Read, start: int, end: int, close: Callable[[], object]
    ) -> None:
        self._end = end
        super().__init__(request, read, start, close)

    def send(self) -> None:
        while not (self.is_paused or self.is_over):
            if self.offset < self._end:
                self.write(self._end)
            else:
                self.finish()


class GrowingSending(_Sending):
    """Sends a growing object, and ends the response properly only once it is complete."""

    def __init__(self, request: Request, growing: Growing, streams: Streams) -> None:
        self._growing = growing
        self._streams = streams
        self._waiter: Waiter | None = None
        read = partial(read_file, growing.fileno())
        super().__init__(request, read, 0, streams.hold(growing).close)

    def send(self) -> None:
        growing = self._growing
        while not (self.is_paused or self.is_over or self._waiter is not None):
            if self.offset < growing.size_bytes:
                self.write(growing.size_bytes)
            elif growing.is_whole:
                self.finish()
            elif growing.broken:
                self.cut()
                return
            else:
                self._waiter = self._streams.when(growing, self.offset + 1, self._grew)

    def ended(self, close: Callable[[], object]) -> None:
        if self._waiter is not None:
            self._waiter.cancel()
        super().ended(close)

    def _grew(self, growing: Growing) -> None:
        self._waiter = None
        if not self.is_paused:
            self.attempt(self.send)
