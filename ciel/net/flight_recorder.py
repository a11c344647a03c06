"""Keeps the latest messages of a daemon's control connections, for people who look into a cluster
that hangs (docs/hanging.md).

The recorder keeps the bytes of each batch, and formats them only for a reader. It keeps no decoded
messages: small objects that stay would keep the memory of large jobs from the system.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

RECORDED_MAX_BYTES: Final = 1 << 20
BATCHES_MAX: Final = 10_000
SHOWN_MAX_LENGTH: Final = 400


class FlightRecorder:
    """The latest batches of messages of one process, oldest first."""

    def __init__(self, clock_s: Callable[[], float] = time.time) -> None:
        self._clock_s = clock_s
        self._batches: deque[tuple[float, str, str, bytes]] = deque()
        self._bytes = 0

    def add(self, sign: str, address: str, data: bytes) -> None:
        """Record bytes that were received (`sign` is `<`) or sent (`>`)."""
        batches = self._batches
        batches.append((self._clock_s(), sign, address, data))
        self._bytes += len(data)
        while self._bytes > RECORDED_MAX_BYTES or len(batches) > BATCHES_MAX:
            self._bytes -= len(batches.popleft()[3])

    def lines(self) -> Iterator[str]:
        """Yield a line for each batch: time, direction, address, and the start of its content."""
        for at_s, sign, address, data in list(self._batches):
            text = data[:SHOWN_MAX_LENGTH].decode("utf-8", "replace")
            shown = "".join([letter if letter.isprintable() else " " for letter in text]).strip()
            more = f"… {len(data)} bytes" if len(data) > SHOWN_MAX_LENGTH else ""
            yield f"{at_s:.6f} {sign} {address} {shown}{more}"
