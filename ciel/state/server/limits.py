"""The limits of a daemon that its command line sets."""

from __future__ import annotations

from typing import Final, NamedTuple

from ciel.state.batches import VALUE_MAX_BYTES

PAUSE_MAX_BYTES: Final = 16 << 20
OVERHEAD_BYTES: Final = 64 << 10
"""What a reply with one value has besides, at most."""


class KvLimits(NamedTuple):
    """`clients`: connections; `value_bytes`: of a value; `output_bytes`: of the replies and reports
    that a client has not read.
    """

    clients: int = 10_000
    value_bytes: int = VALUE_MAX_BYTES
    output_bytes: int = 256 << 20

    @property
    def reply_bytes(self) -> int:
        """The largest reply. So a client that reads its replies stays below `output_bytes`."""
        return self.output_bytes // 2

    @property
    def pause_bytes(self) -> int:
        """With more replies waiting, no further command of a connection is carried out."""
        return min(PAUSE_MAX_BYTES, self.output_bytes // 4)


DEFAULT: Final = KvLimits()
