"""A ring of shared memory in place of a program's two FIFOs, where worker and program have one.

For `ciel_task`, and loaded only if the worker has said that it knows rings. Until both sides have
agreed, everything goes by the FIFOs as ever; then they carry bells, and show the end of the worker.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

VARIABLE = "CIEL_CHANNEL"
OFFER_AFTER_READS = 20
"""Programs that say less are not worth the time that it takes to load what rings are made of."""

_TAKEN = b'\0\0\0\x19["channel",{"take":true}]'
_GONE = b'\0\0\0\x17["channel",{"go":true}]'


class Pipes:
    """Reads and writes as `os` does, of a program's own ends of its FIFOs."""

    def __init__(self) -> None:
        self._kind, _, spin_us = os.environ.get(VARIABLE, "").partition(":")
        self._spin_us = float(spin_us or 0)
        self._read_count = 0
        self._writes = -1
        self._segment = -1  # as long as it is offered
        self._kept = b""  # what may be the beginning of the worker's last word
        self._ring: Any = None

    def read(self, fd: int, size_bytes: int) -> bytes:
        """Wait for something to come; empty at the end. All that was to be said has been."""
        if self._ring is not None:
            return self._read_ring()
        self._read_count += 1
        if self._read_count == OFFER_AFTER_READS and self._writes >= 0:
            self._offer()
        if self._segment < 0:
            return os.read(fd, size_bytes)
        while True:
            came = os.read(fd, size_bytes)
            data = self._kept + came
            if data.endswith(_TAKEN):
                self._cross(fd)
                return data[: -len(_TAKEN)] or self._read_ring()
            # The word may come in pieces; of any other call's beginning the rest comes, too.
            kept = next((n for n in range(len(_TAKEN), 0, -1) if data.endswith(_TAKEN[:n])), 0)
            self._kept = data[len(data) - kept :]
            if len(data) > kept or not came:
                return data[: len(data) - kept]

    def write(self, fd: int, data: bytearray) -> int:
        """Write some of it, at least a byte."""
        self._writes = fd
        if self._ring is None:
            return os.write(fd, data)
        piece = bytes(data[:65536])
        while not (count := self._ring.write(piece)):
            self._kept += self._ring.read()  # else both sides might wait for room
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
        """Offer a ring to the worker, who may never answer."""
        try:
            from ciel.scc.ring import RingError, make_segment

            if self._kind == "ring":
                self._segment = make_segment()
                place = b"/proc/%d/fd/%d" % (os.getpid(), self._segment)
                payload = b'["channel",{"offer":"%b"}]' % place
                os.write(self._writes, len(payload).to_bytes(4, "big") + payload)
        except (ImportError, RingError):
            return  # then it is FIFOs

    def _cross(self, reads: int) -> None:
        from ciel.scc.ring import Ring

        self._ring = Ring(self._segment, 0, self._writes, reads, self._spin_us)
        os.close(self._segment)
        self._segment, self._kept = -1, b""
        os.write(self._writes, _GONE)
