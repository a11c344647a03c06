"""Bytes of objects on their way to whoever asked, as fast as the other side reads them."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from twisted.internet.interfaces import IPushProducer
from twisted.logger import Logger
from zope.interface import implementer

from ciel.net.http import Request
from ciel.worker.streaming import Growing, Streams, Waiter

CHUNK_BYTES = 1024 * 1024
"""Read at a time, so this much is held for a slow reader."""

log = Logger()


@implementer(IPushProducer)
class Sending:
    """Sends a part of a file as the body of an answer; `close` is called when that is over."""

    def __init__(
        self, request: Request, fd: int, start: int, end: int, close: Callable[[], object]
    ) -> None:
        self._request = request
        self._fd = fd
        self._offset = start
        self._end = end
        self._is_paused = False
        self._is_over = False
        request.notifyFinish().addBoth(lambda _: self._ended(close))
        request.registerProducer(self, True)
        request.write(b"")
        self.resumeProducing()

    def resumeProducing(self) -> None:
        self._is_paused = False
        try:
            self._send()
        except OSError as error:
            log.error("an object cannot be read: {error}", error=error)
            self._cut()

    def pauseProducing(self) -> None:
        self._is_paused = True

    def stopProducing(self) -> None:
        """The other side is gone; `notifyFinish` tells of that."""

    def _ended(self, close: Callable[[], object]) -> None:
        self._is_over = True
        close()

    def _send(self) -> None:
        while not (self._is_paused or self._is_over):
            if self._offset >= self._end and not self._goes_on():
                return
            chunk = os.pread(self._fd, min(CHUNK_BYTES, self._end - self._offset), self._offset)
            if not chunk:
                raise OSError(f"it ends after {self._offset} bytes, of {self._end}")
            self._offset += len(chunk)
            self._request.write(chunk)

    def _goes_on(self) -> bool:
        """Whether there is more after all; if not, see to it that the end is a good one."""
        self._request.unregisterProducer()
        self._request.finish()
        return False

    def _cut(self) -> None:
        """Have the other side see that this is not all."""
        channel: Any = self._request.channel
        if not self._is_over and channel is not None:
            channel.forceAbortClient()


class GrowingSending(Sending):
    """Sends what grows, and ends well only if it became whole."""

    def __init__(self, request: Request, growing: Growing, streams: Streams) -> None:
        self._growing = growing
        self._streams = streams
        self._waiter: Waiter | None = None
        hold = streams.hold(growing)
        super().__init__(request, growing.fileno(), 0, growing.size_bytes, hold.close)

    def _ended(self, close: Callable[[], object]) -> None:
        if self._waiter is not None:
            self._waiter.cancel()
        super()._ended(close)

    def _goes_on(self) -> bool:
        growing = self._growing
        if self._waiter is not None:
            return False
        self._end = growing.size_bytes
        if self._offset < self._end:
            return True
        if growing.is_whole:
            return super()._goes_on()
        if growing.broken:
            self._cut()
        else:
            self._waiter = self._streams.when(growing, self._offset + 1, self._grew)
        return False

    def _grew(self, growing: Growing) -> None:
        self._waiter = None
        if not self._is_paused:
            self.resumeProducing()
