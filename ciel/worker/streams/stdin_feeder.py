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
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from twisted.internet.interfaces import IWriteDescriptor
from twisted.python.failure import Failure as TwistedFailure
from zope.interface import implementer

if TYPE_CHECKING:
    from ciel.worker.streams.growing import Growing, Hold, Streams, Waiter

CHUNK_BYTES = 64 * 1024


class Trace:
    """When a program had to wait for what grows, and when it could compute, in seconds since its
    start, in the words of the original (ciel-interfaces, 6.4): `C0.000,I1|0.020,C1.310,`.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._begun_s = clock()
        self._waited_for: int | None = None
        self._words = ["C0.000,"]

    @property
    def text(self) -> str:
        """All of it, up to now."""
        return "".join(self._words)

    def note(self, number: int | None) -> None:
        """Note that it waits for an input of this number, or, None, has something of one."""
        if number != self._waited_for:
            self._waited_for = number
            what = "C" if number is None else f"I{number}|"
            self._words.append(f"{what}{self._clock() - self._begun_s:.3f},")


@implementer(IWriteDescriptor)
class Feeder:
    """Feeds one pipe; `descriptor` is its read end, for the program (owned by the caller until it
    closed it). Sources are the paths of files, and objects that grow.
    """

    chunk_bytes = 1
    """So much more of what grows is to be there before it is fed, or the end of it."""

    def __init__(
        self, reactor: Any, sources: Sequence[str | Growing], streams: Streams | None = None
    ) -> None:
        self._reactor = reactor
        self._streams = streams
        self._sources = deque(sources)
        self._holds: dict[Growing, Hold] = {}
        self._source: int | None = None
        self._offset_bytes = 0  # in what grows, ...
        self._due_bytes = 0  # ...and how far it may be fed where it is fed in large pieces
        self._waiter: Waiter | None = None
        self._trace: Trace | None = None
        self._number = 0  # of the source that is fed now
        self.error: OSError | None = None  # why the program did not get everything
        self.descriptor, self._pipe = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._pipe, False)
        for source in sources:
            if streams is not None and not isinstance(source, str):
                self._holds[source] = streams.hold(source)

    def trace_as(self, trace: Trace | None, number: int) -> None:
        """Have it noted when there is nothing to feed; the first source has this number."""
        self._trace, self._number = trace, number

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
            self._number += 1

    def _feed_growing(self, growing: Growing) -> None:
        if growing.broken:
            self.error = OSError(errno.EIO, growing.broken)
            self._reactor.removeWriter(self)
            return
        wanted_bytes = CHUNK_BYTES
        if growing.is_whole:
            wanted_bytes = min(CHUNK_BYTES, growing.size_bytes - self._offset_bytes)
        elif self.chunk_bytes > 1:
            wanted_bytes = min(CHUNK_BYTES, self._due_bytes - self._offset_bytes)
        if wanted_bytes:
            fd, offset_bytes = growing.fileno(), self._offset_bytes
            moved_bytes = os.splice(fd, self._pipe, wanted_bytes, offset_src=offset_bytes)
            self._offset_bytes += moved_bytes
            growing.saw(self._offset_bytes)
            if moved_bytes:
                return
        if growing.is_whole:
            self._sources.popleft()
            self._offset_bytes = self._due_bytes = 0
            self._number += 1
        elif self._streams is not None:
            self._reactor.removeWriter(self)
            least_bytes = self._offset_bytes + self.chunk_bytes
            self._waiter = self._streams.when(growing, least_bytes, self._go_on)
            if self._trace is not None:
                self._trace.note(self._number)

    def _go_on(self, growing: Growing) -> None:
        self._waiter = None
        self._due_bytes = growing.size_bytes
        if self._trace is not None:
            self._trace.note(None)
        self._reactor.addWriter(self)

    def connectionLost(self, reason: TwistedFailure) -> None:
        self._stop()


def pipe(reactor: Any, growing: Growing, streams: Streams) -> Piping:
    """Give a growing object a name like a pipe's: reading waits for growth, and ends with the
    object.
    """
    piping = Piping(reactor, [growing], streams)
    piping.start()
    return piping


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
