"""Every limit of the wire, by name and with its reason. All are checked before memory is taken."""

from typing import Final

FRAME_MAX_BYTES: Final = 16 * 1024 * 1024
"""A whole frame. 256 records with the largest payload; 13 ms of a 10 Gbit/s link. Being under
32 MiB it also makes the first byte of every frame 0 or 1, which no HTTP request begins with."""

HEADER_MAX_BYTES: Final = 8 * 1024 * 1024
"""The JSON part of a frame. One task may have 100,000 inputs at about 60 bytes each; parsed, a
header takes about ten times its size."""

RECORD_MAX_BYTES: Final = 32 * 1024 * 1024
"""One record, which travels in parts where a frame is too small: a task with 15,000 inputs by value
takes 16 MiB, and 0.1 s to read. Two of the largest may wait for a slow peer (`net.control`)."""

PART_BYTES: Final = 4 * 1024 * 1024
"""One part of a record: a quarter of a frame."""

RECORDS_PER_FRAME_MAX: Final = 4096
"""Decoding so many takes about 8 ms, well under the 50 ms that a reactor may pause."""

PAYLOAD_INLINE_MAX_BYTES: Final = 64 * 1024
"""Arguments and code in a frame; more becomes an object and goes by the data plane. One default
pipe buffer or socket buffer."""

CALL_MAX_BYTES: Final = 16 * 1024 * 1024
"""The JSON of one call between a worker and a program it talks with. Programs publish whole small
objects in one. No text that is taken for a length is that small."""

INLINE_OBJECT_BYTES: Final = 1024
"""Content under this rides in its reference: fetching it would cost more than carrying it."""

HELLO_MAX_BYTES: Final = 4096
"""All that is read from a peer before it has proved its key: one page."""

HELLO_TIMEOUT_S: Final = 5.0
"""How long a peer may take to prove its key: one lost packet on a slow link is waited for, a
silent or dripping peer is not."""

UNPROVEN_PEERS_MAX: Final = 128
"""Connections without proof at one time, per listener: 512 KiB and 128 descriptors at worst, while
a hundred workers may start together. One more, and the eldest must go."""

JSON_DEPTH_MAX: Final = 200
"""Nesting of any JSON we accept: deep enough for values that people write, and far enough from
Python's recursion limit of 1,000 that code may walk what was decoded by calling itself."""

ID_MAX_LENGTH: Final = 128
"""Characters in an id. With a prefix and a suffix it is still a file name (255 bytes)."""

TEXT_MAX_LENGTH: Final = 300
"""Characters of a peer's text that we repeat in an error or a log: three lines of a terminal."""
