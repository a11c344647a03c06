"""Keeps the latest messages of a daemon's control connections.

People read them to examine a cluster that hangs (docs/hanging.md), and the module
`ciel.testing.replay` replays them. The recorder keeps the bytes of each batch, and formats them
only for a reader. It keeps no decoded messages: many small objects would fragment the memory, so
that the process could not return it to the system after a large job.
"""

from __future__ import annotations

import base64
import textwrap
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from ciel.wire import codec
from ciel.wire.errors import DecodeError

RECORDED_MAX_BYTES: Final = 1 << 20
BATCHES_MAX: Final = 10_000
SHOWN_MAX_LENGTH: Final = 400
RECEIVED: Final = "<"
SENT: Final = ">"
ENDED: Final = "x"
"""The signs of batches; the data of `ENDED` is the reason for which the connection ended."""
RECORD_TITLE: Final = "the record, for python -m ciel.testing.replay"
"""The heading of the encoded record in a dump."""
_LINE_LENGTH: Final = 100


class Batch(NamedTuple):
    """Bytes that one connection sent or received at one time.

    `at_s`: this time, in seconds since the epoch. `sign`: the direction. `connection`: the address
    of the peer, and the number of the connection.
    """

    at_s: float
    sign: str
    connection: str
    data: bytes


class FlightRecorder:
    """The latest batches of messages of one process, oldest first."""

    def __init__(self, clock_s: Callable[[], float] = time.time) -> None:
        self.dropped_count = 0
        """The number of batches that were dropped because the record was full."""
        self._clock_s = clock_s
        self._batches: deque[Batch] = deque()
        self._bytes = 0
        self._connections = 0

    def connect(self, address: str) -> str:
        """Return a name for a new connection."""
        self._connections += 1
        return f"{address}#{self._connections}"

    def add(self, sign: str, connection: str, data: bytes) -> None:
        """Record the bytes of a batch."""
        batches = self._batches
        batches.append(Batch(self._clock_s(), sign, connection, data))
        self._bytes += len(data)
        while self._bytes > RECORDED_MAX_BYTES or len(batches) > BATCHES_MAX:
            self._bytes -= len(batches.popleft().data)
            self.dropped_count += 1

    def lines(self) -> Iterator[str]:
        """Yield a line for each batch: time, direction, connection, and the start of its data."""
        for at_s, sign, connection, data in list(self._batches):
            text = data[:SHOWN_MAX_LENGTH].decode("utf-8", "replace")
            shown = "".join([letter if letter.isprintable() else " " for letter in text]).strip()
            more = f"… {len(data)} bytes" if len(data) > SHOWN_MAX_LENGTH else ""
            yield f"{at_s:.6f} {sign} {connection} {shown}{more}"

    def encoded_lines(self) -> Iterator[str]:
        """Yield the whole record as lines of text, for `read_record`."""
        rows = [
            [at_s, sign, connection, data.decode("latin-1")]
            for at_s, sign, connection, data in list(self._batches)
        ]
        packed = zlib.compress(codec.encode([self.dropped_count, rows]))
        yield from textwrap.wrap(base64.b64encode(packed).decode(), _LINE_LENGTH)


def read_record(lines: Sequence[str]) -> tuple[int, list[Batch]]:
    """Decode the lines of `encoded_lines`; return the number of dropped batches, and the others.

    Raises ValueError for other lines.
    """
    try:
        packed = base64.b64decode("".join(lines), validate=True)
        dropped_count, rows = codec.decode(zlib.decompress(packed))
        batches = [
            Batch(at_s, sign, connection, data.encode("latin-1"))
            for at_s, sign, connection, data in rows
        ]
    except (ValueError, TypeError, DecodeError, zlib.error) as error:
        raise ValueError(f"this is not a record of messages: {error}") from None
    return dropped_count, batches
