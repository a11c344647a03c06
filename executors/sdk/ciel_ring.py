"""Replaces a program's two FIFOs by a ring buffer in shared memory.

`ciel_task` loads this module only if the worker supports rings. Until both sides have agreed on a
ring, all data goes through the FIFOs. Afterwards the FIFOs carry only wake-ups, and show when the
worker has ended.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

VARIABLE = "CIEL_CHANNEL"
OFFER_AFTER_READS = 20
"""The program offers a ring after this many reads. For fewer reads, loading the ring's module takes
more time than the ring saves.
"""

_TAKEN = b'\0\0\0\x19["channel",{"take":true}]'
_GONE = b'\0\0\0\x17["channel",{"go":true}]'


class Pipes:
    """Reads and writes a program's ends of its FIFOs, with the interface of `os`."""

    def __init__(self) -> None:
        self._kind, _, spin_us = os.environ.get(VARIABLE, "").partition(":")
        self._spin_us = float(spin_us or 0)
        self._read_count = 0
        self._writes = -1
        self._segment = -1  # while the offer is pending
        self._kept = b""  # received bytes that may be the start of the worker's `take`
        self._ring: Any = None

    def read(self, fd: int, size_bytes: int) -> bytes:
        """Wait for data; empty at the end. The caller has sent all of its own data before."""
        if self._ring is not None:
            return self._read_ring()
        self._read_count += 1
        if self._read_count == OFFER_AFTER_READS and self._writes >= 0:
            self._offer()
        if self._segment < 0:
            return os.read(fd, size_bytes)
        while True:
            piece = os.read(fd, size_bytes)
            data = self._kept + piece
            if data.endswith(_TAKEN):
                self._cross(fd)
                return data[: -len(_TAKEN)] or self._read_ring()
            # `take` may arrive in pieces. If this is the start of another call, the rest arrives,
            # too.
            kept = next((n for n in range(len(_TAKEN), 0, -1) if data.endswith(_TAKEN[:n])), 0)
            self._kept = data[len(data) - kept :]
            if len(data) > kept or not piece:
                return data[: len(data) - kept]

    def write(self, fd: int, data: bytearray) -> int:
        """Write at least one byte of the data; return the number of bytes."""
        self._writes = fd
        if self._ring is None:
            return os.write(fd, data)
        piece = bytes(data[:65536])
        while not (count := self._ring.write(piece)):
            self._kept += self._ring.read()  # otherwise both sides might wait for space for ever
            if not self._ring.wait(True):
                raise BrokenPipeError
        return int(count)

    def _read_ring(self) -> bytes:
        if self._kept:
            data, self._kept = self._kept, b""
            return data
        while not (data := self._ring.read()):
            if not self._ring.wait():
                return b""
        return bytes(data)

    def _offer(self) -> None:
        """Offer a ring to the worker, which need not answer."""
        try:
            from ciel.scc.ring import RingError, make_segment

            if self._kind == "ring":
                self._segment = make_segment()
                place = b"/proc/%d/fd/%d" % (os.getpid(), self._segment)
                payload = b'["channel",{"offer":"%b"}]' % place
                os.write(self._writes, len(payload).to_bytes(4, "big") + payload)
        except (ImportError, RingError):
            return  # the FIFOs stay in use

    def _cross(self, reads: int) -> None:
        from ciel.scc.ring import Ring

        self._ring = Ring(self._segment, 0, self._writes, reads, self._spin_us)
        os.close(self._segment)
        self._segment, self._kept = -1, b""
        os.write(self._writes, _GONE)
