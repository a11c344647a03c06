"""Feeds inputs into pipes, as fast as programs read and as far as growing inputs have grown.

Feeding stops if a program closes its standard input early. That is not an error, as in the original
CIEL. It is an error if an input cannot be read: the program takes the end of the pipe for the end
of the input. It is also an error if a growing input breaks; then the pipe stays open and silent
until the program is killed, so that the program does not take a part for the whole.
"""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from twisted.internet.error import ConnectionDone, ConnectionLost
from twisted.internet.interfaces import IWriteDescriptor
from twisted.python.failure import Failure as TwistedFailure
from zope.interface import implementer

if TYPE_CHECKING:
    from ciel.worker.streams.growing import Growing, Hold, Streams, Waiter

CHUNK_BYTES = 64 * 1024


class Trace:
    """Records when a program waited for a growing input and when it could compute.

    The text has the format of the original CIEL: `C0.000,I1|0.020,C1.310,`. The times are in
    seconds since the start; from a `C` on the program could compute, from an `I1` on it waited for
    input 1.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._begun_s = clock()
        self._waited_for: int | None = None
        self._words = ["C0.000,"]

    @property
    def text(self) -> str:
        """The record up to now."""
        return "".join(self._words)

    def note(self, number: int | None) -> None:
        """Note that the program waits for an input, by number; None: it has got something."""
        if number != self._waited_for:
            self._waited_for = number
            what = "C" if number is None else f"I{number}|"
            self._words.append(f"{what}{self._clock() - self._begun_s:.3f},")


@implementer(IWriteDescriptor)
class Feeder:
    """Feeds one pipe; `descriptor` is its read end, for the program; `start` closes it.

    Sources are paths of files and growing objects.
    """

    chunk_bytes = 1
    """A growing object is fed in pieces of at least this size, except for the last one."""

    def __init__(
        self, reactor: Any, sources: Sequence[str | Growing], streams: Streams | None = None
    ) -> None:
        self._reactor = reactor
        self._streams = streams
        self._sources = deque(sources)
        self._holds: dict[Growing, Hold] = {}
        self._source: int | None = None
        self._offset_bytes = 0  # in the growing object, ...
        self._due_bytes = 0  # ...and how far to feed it, if in large pieces
        self._waiter: Waiter | None = None
        self._trace: Trace | None = None
        self._number = 0  # of the current source
        self.error: OSError | None = None  # why the program did not get everything
        self.descriptor, self._pipe = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._pipe, False)
        for source in sources:
            if streams is not None and not isinstance(source, str):
                self._holds[source] = streams.hold(source)

    def trace_as(self, trace: Trace | None, number: int) -> None:
        """Record when there is nothing to feed. `number`: of the first source."""
        self._trace, self._number = trace, number

    def start(self) -> None:
        """Start to feed; the program has its end of the pipe."""
        os.close(self.descriptor)
        self._reactor.addWriter(self)

    def close(self) -> None:
        """Stop feeding."""
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
        """Move bytes in the kernel, as many as the pipe takes."""
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
        """Stop: the program has closed its end of the pipe, or the reactor cannot serve ours."""
        if self._pipe >= 0 and not isinstance(reason.value, ConnectionLost | ConnectionDone):
            self.error = OSError(errno.EIO, f"its pipe cannot be served: {reason.value}")
        self._stop()


def pipe(reactor: Any, growing: Growing, streams: Streams) -> Piping:
    """Give a growing object the path of a pipe: reads wait for growth, and end with the object."""
    piping = Piping(reactor, [growing], streams)
    piping.start()
    return piping


class Piping(Feeder):
    """Feeds a pipe that the program opens by path. It owns the `descriptor` until `close`."""

    @property
    def name(self) -> str:
        """The path that a program opens to read; valid until `close`."""
        return f"/proc/{os.getpid()}/fd/{self.descriptor}"

    def start(self) -> None:
        self._reactor.addWriter(self)

    def close(self) -> None:
        """Stop feeding; a reader sees the end of the pipe."""
        super().close()
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
