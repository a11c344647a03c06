"""The limits of the wire formats and their reasons. All are checked before memory is allocated."""

from typing import Final

FRAME_MAX_BYTES: Final = 16 * 1024 * 1024
"""The size of a frame: 13 ms of a 10 Gbit/s link. Below 32 MiB the first byte of every frame is 0
or 1, with which no HTTP request starts."""

HEADER_MAX_BYTES: Final = 8 * 1024 * 1024
"""The size of a frame's JSON. One task may have 100,000 inputs at about 60 bytes each. A decoded
header takes about ten times its size."""

RECORD_MAX_BYTES: Final = 32 * 1024 * 1024
"""The size of a record, which is sent in parts if it does not fit into a frame. A task with 15,000
inputs by value takes 16 MiB, and is decoded in 0.1 s. Two of the largest records may wait for a
slow peer (`net.control`)."""

PART_BYTES: Final = 4 * 1024 * 1024
"""The size of a part of a record: a quarter of a frame."""

RECORDS_PER_FRAME_MAX: Final = 4096
"""Decoding so many records takes about 8 ms, well below the 50 ms that a reactor may be blocked."""

CALL_MAX_BYTES: Final = 16 * 1024 * 1024
"""The JSON size of a call between a worker and an interactive program. Programs publish small
objects in one call. Printed text that is misread as a length always exceeds this limit."""

HELLO_MAX_BYTES: Final = 4096
"""How many bytes are read from a peer before it has proved its key: one page."""

HELLO_TIMEOUT_S: Final = 5.0
"""How long a peer may take to prove its key: enough for one lost packet on a slow link, but not for
a peer that is silent or sends single bytes."""

UNPROVEN_PEERS_MAX: Final = 128
"""How many unauthenticated connections a listener has: at most 512 KiB and 128 descriptors,
while a hundred workers may start at once. With more, the oldest connection is aborted."""

JSON_DEPTH_MAX: Final = 200
"""The nesting of accepted JSON: enough for values that people write, and far below Python's
recursion limit of 1,000, so that recursive code can process decoded values."""

ID_MAX_LENGTH: Final = 128
"""The length of an id in characters. With a prefix and a suffix it fits a file name (255 bytes)."""

TEXT_MAX_LENGTH: Final = 300
"""How many characters of a peer's text are repeated in errors and logs: three terminal lines."""
