"""The format of a journal file: a header, and then groups of records.

    header   16 bytes: "ciel journal 1", a line feed, a zero byte
    group    4 bytes   "CJg1"
             4 bytes   length of the body, big-endian
             4 bytes   CRC-32 of the rest of the group, big-endian (the polynomial of zlib)
             8 bytes   time of the group in microseconds since the epoch, big-endian
             1 byte    1 if the body is compressed (zlib), 0 if not
    body     frames, as `wire.frames` encodes them

A record is a message (docs/protocol/journal.md). The records of a group take effect together or
not at all: a group is what one call has written and made durable. So after a crash only the last
group of a file may be incomplete. If intact groups follow a damaged one, the file was damaged
later.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from ciel.core.events import (
    AddTask,
    CancelJob,
    Change,
    CloseJob,
    JobChanged,
    Message,
    ObjectsStored,
    ReleaseObjects,
    ReplicateObjects,
    SubmitJob,
    TaskReported,
    WantObjects,
)
from ciel.wire.errors import LocalProtocolError, WireError
from ciel.wire.frames import FrameReader, encode_frames
from ciel.wire.limits import RECORD_MAX_BYTES
from ciel.wire.messages import IN_JOURNAL, decode_all, encode_all
from ciel.wire.references import from_json, to_json

HEADER: Final = b"ciel journal 1\n\0"
_FAMILY: Final = b"ciel journal "
_MARK: Final = b"CJg1"
_PREFIX: Final = struct.Struct(">4sIIQB")
_SUMMED: Final = struct.Struct(">QB")
BODY_MAX_BYTES: Final = 4 * RECORD_MAX_BYTES
"""The size of a body, also after decompression: a group contains at least one record."""
COMPRESSED_FROM_BYTES: Final = 512

JOURNALLED: Final[frozenset[type]] = IN_JOURNAL | {
    SubmitJob, AddTask, WantObjects, ReleaseObjects, ReplicateObjects, CloseJob, CancelJob,
    TaskReported, ObjectsStored, JobChanged, Change,
}  # fmt: skip
"""The kinds of messages that are records."""


class Group(NamedTuple):
    """Records that were written together, at `time_s` since the epoch, from byte `offset` on."""

    offset: int
    size_bytes: int
    time_s: float
    records: list[Message]


class Damage(NamedTuple):
    """Why reading ended before the end of a file. `is_tail`: no intact group follows."""

    offset: int
    reason: str
    is_tail: bool


def encode_records(records: Sequence[Message]) -> bytes:
    """Encode records for `seal`; raises LocalProtocolError for messages of other kinds."""
    for record in records:
        if type(record) not in JOURNALLED:
            raise LocalProtocolError(f"a {type(record).__name__} is not a record of the journal")
    return encode_frames(encode_all([_with_json(record, to_json) for record in records]))


def seal(frames: bytes, time_s: float, *, may_compress: bool = True) -> bytes:
    """Make a group of encoded records, which may be several results of `encode_records`."""
    flag = may_compress and len(frames) >= COMPRESSED_FROM_BYTES
    time_us = int(time_s * 1e6)
    body = zlib.compress(frames, 1) if flag else frames
    checksum = zlib.crc32(body, zlib.crc32(_SUMMED.pack(time_us, flag)))
    return _PREFIX.pack(_MARK, len(body), checksum, time_us, flag) + body


class JournalReader:
    """Reads the groups of a file. `damage` is set when reading ends before the end of the file, and
    `good_bytes` is the size of the part that was read: the file may be cut there.
    """

    def __init__(self, data: bytes | memoryview) -> None:
        self._data = memoryview(data)
        self.good_bytes = 0
        self.damage: Damage | None = None

    def groups(self) -> Iterator[Group]:
        """Yield the groups up to the end or the first damage; never raises for any content."""
        data = self._data
        if not data:
            return  # a crash cut off the header, and the next master the rest of it
        if bytes(data[: len(HEADER)]) != HEADER:
            self._end(0, self._header_fault())
            return
        self.good_bytes = offset = len(HEADER)
        while offset < len(data):
            found = _read_body(data, offset)
            if isinstance(found, str):
                self._end(offset, found)
                return
            time_s, size_bytes, frames = found
            try:
                records = decode_records(frames)
            except WireError as error:  # no crash leaves that: a newer version of ciel wrote it
                self.damage = Damage(offset, f"the group cannot be read: {error}", is_tail=False)
                return
            yield Group(offset, size_bytes, time_s, records)
            self.good_bytes = offset = offset + size_bytes

    @property
    def is_foreign(self) -> bool:
        """Whether the file does not begin as a journal of this version, even if it is cut short."""
        start = bytes(self._data[: len(HEADER)])
        return not HEADER.startswith(start)

    def _header_fault(self) -> str:
        start = bytes(self._data[: len(HEADER)])
        if HEADER.startswith(start):
            return "the header is cut off"
        if start.startswith(_FAMILY):
            version = start[len(_FAMILY) :].rstrip(b"\n\0").decode(errors="replace")
            return f"the file has version {version}, and this version of ciel reads version 1"
        return "the file is not a journal"

    def _end(self, offset: int, reason: str) -> None:
        self.damage = Damage(offset, reason, not self._has_group_after(offset))

    def _has_group_after(self, offset: int) -> bool:
        data = bytes(self._data[offset:])
        place = data.find(_MARK, 1)
        while place >= 0:
            if not isinstance(_read_body(memoryview(data), place), str):
                return True
            place = data.find(_MARK, place + 1)
        return False


def _read_body(data: memoryview, offset: int) -> tuple[float, int, bytes] | str:
    """Return the time, the size and the frames of the group at an offset, or what is wrong."""
    if len(data) - offset < _PREFIX.size:
        return "the last group is cut off"
    mark, length, checksum, time_us, flag = _PREFIX.unpack_from(data, offset)
    if mark != _MARK:
        return "no group starts"
    if not 0 < length <= BODY_MAX_BYTES or flag > 1:
        return f"a group claims a length of {length:,} bytes"
    body = data[offset + _PREFIX.size : offset + _PREFIX.size + length]
    if len(body) < length:
        return "the last group is cut off"
    if zlib.crc32(body, zlib.crc32(_SUMMED.pack(time_us, flag))) != checksum:
        return "a group does not match its checksum"
    frames = bytes(body)
    if flag:
        decompressor = zlib.decompressobj()
        try:
            frames = decompressor.decompress(frames, BODY_MAX_BYTES)
        except zlib.error as error:
            return f"a group cannot be decompressed: {error}"
        if not decompressor.eof or decompressor.unused_data:
            return f"a group has more than {BODY_MAX_BYTES:,} bytes, or ends too early"
    return time_us / 1e6, _PREFIX.size + length, frames


def _with_json(record: Message, convert: Callable[[Any], Any]) -> Message:
    """Convert the references in the argument of a change to JSON or back, as its sender does."""
    return record._replace(argument=convert(record.argument)) if type(record) is Change else record


def decode_records(frames: bytes) -> list[Message]:
    """Decode the result of `encode_records`, which was not changed; raises WireError."""
    reader = FrameReader(is_own=True)
    reader.feed(frames)
    records: list[Message] = []
    while (found := reader.next_frame()) is not None:
        records += [_with_json(record, from_json) for record in decode_all(found, JOURNALLED)]
    if not reader.is_between_frames:
        raise WireError("its last frame is cut off")
    return records
