"""Keeps the latest messages of a daemon's control connections, for people who look into a cluster
that hangs (docs/hanging.md).

The recorder keeps the records as they were received and sent, and formats them only for a reader.
Their size on the wire is bounded, so the cost in memory is, too: about ten times that much.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from ciel.wire.codec import encode
from ciel.wire.frames import Record

RECORDED_MAX_BYTES: Final = 1 << 20
BATCHES_MAX: Final = 10_000
SHOWN_MAX_LENGTH: Final = 400


class FlightRecorder:
    """The latest batches of messages of one process, oldest first."""

    def __init__(self, clock_s: Callable[[], float] = time.time) -> None:
        self._clock_s = clock_s
        self._batches: deque[tuple[float, str, str, Sequence[Record], int]] = deque()
        self._bytes = 0

    def add(self, sign: str, address: str, records: Sequence[Record], size_bytes: int) -> None:
        """Record a batch that was received (`sign` is `<`) or sent (`>`)."""
        size_bytes += sum([len(payload) for _, payload in records])
        batches = self._batches
        batches.append((self._clock_s(), sign, address, records, size_bytes))
        self._bytes += size_bytes
        while self._bytes > RECORDED_MAX_BYTES or len(batches) > BATCHES_MAX:
            self._bytes -= batches.popleft()[4]

    def lines(self) -> Iterator[str]:
        """Yield a line for each message: time, direction, address, the message without payload."""
        for at_s, sign, address, records, _ in list(self._batches):
            for header, payload in records:
                text = encode(header).decode()
                if len(text) > SHOWN_MAX_LENGTH:
                    text = f"{text[:SHOWN_MAX_LENGTH]}…"
                more = f" and {len(payload)} bytes" if payload else ""
                yield f"{at_s:.6f} {sign} {address} {text}{more}"
