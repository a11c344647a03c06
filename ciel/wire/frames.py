"""Encodes and decodes frames, which are batches of records and their opaque payloads.

    4 bytes   length of the header and the payloads, big-endian
    4 bytes   length of the header, big-endian
    header    JSON list of records, each a list `[kind, field ..., payload length]`
    payloads  one after the other, in the order of their records

In this module a record is a pair: its fields, starting with the kind, and its payload (empty if
none). Encoding adds the payload's length to the fields, and decoding removes it. Payloads are never
decoded here: master and worker forward them unchanged.

A record that is too large for a frame is sent in parts. It is encoded as a frame of any size, which
is split into pieces. Each piece is the payload of a record `["part", number of bytes that follow]`,
alone in its frame. The reader joins the pieces (ADR 75).
"""

import struct
from collections.abc import Sequence
from typing import Any, Final

from ciel.wire.codec import decode_header, encode
from ciel.wire.errors import (
    DecodeError,
    FrameTooLargeError,
    RecordTooLargeError,
    RemoteProtocolError,
)
from ciel.wire.limits import (
    FRAME_MAX_BYTES,
    HEADER_MAX_BYTES,
    PART_BYTES,
    RECORD_MAX_BYTES,
    RECORDS_PER_FRAME_MAX,
)

Record = tuple[list[Any], bytes]
"""A received record: fields and payload."""

SendableRecord = tuple[Sequence[Any], bytes | memoryview]
"""A record to send. It is not modified, so it can be sent to many peers."""

_RECORD_BYTES: Final = 300  # of a typical record, without its payload
_ITEM_BYTES: Final = 40  # of an item in a list
_PREFIX: Final = struct.Struct(">II")
_PART: Final = "part"


def looks_like_frame(first_byte: int) -> bool:
    """Whether a connection that starts with this byte sends frames; HTTP starts with a letter."""
    return first_byte <= 1


def encode_frames(records: Sequence[SendableRecord]) -> bytes:
    """Encode records as one frame, or as few as the limits allow; no records give no bytes.

    Raise `RecordTooLargeError` for a record above `RECORD_MAX_BYTES`, and `EncodeError` for a
    record that has no JSON form. Then none of the records may be sent.
    """
    if len(records) <= RECORDS_PER_FRAME_MAX:
        return _encode_batch(records) if records else b""
    step = RECORDS_PER_FRAME_MAX
    batches = (records[start : start + step] for start in range(0, len(records), step))
    return b"".join([_encode_batch(batch) for batch in batches])


def _encode_batch(records: Sequence[SendableRecord]) -> bytes:
    header = encode([[*fields, len(payload)] for fields, payload in records])
    payloads = [payload for _, payload in records]
    size_bytes = len(header) + sum(map(len, payloads))
    if size_bytes + _PREFIX.size > FRAME_MAX_BYTES or len(header) > HEADER_MAX_BYTES:
        if len(records) > 1:
            half = len(records) // 2
            return _encode_batch(records[:half]) + _encode_batch(records[half:])
        if size_bytes + _PREFIX.size > RECORD_MAX_BYTES:
            kind = str(records[0][0][0])
            raise RecordTooLargeError(kind, size_bytes + _PREFIX.size, RECORD_MAX_BYTES)
        return _encode_parts(_frame_of(header, payloads))
    return _frame_of(header, payloads)


def _frame_of(header: bytes, payloads: Sequence[bytes | memoryview]) -> bytes:
    size_bytes = len(header) + sum(map(len, payloads))
    return b"".join([_PREFIX.pack(size_bytes, len(header)), header, *payloads])


def _encode_parts(whole: bytes) -> bytes:
    frames = []
    for start in range(0, len(whole), PART_BYTES):
        part = whole[start : start + PART_BYTES]
        left_bytes = len(whole) - start - len(part)
        frames.append(_frame_of(encode([[_PART, left_bytes, len(part)]]), [part]))
    return b"".join(frames)


def estimate_sizes(records: Sequence[SendableRecord]) -> list[int]:
    """Estimate how many bytes each of the records takes on the wire."""
    sizes = []
    for fields, payload in records:
        size_bytes = _RECORD_BYTES + len(payload)
        for field in fields:
            if type(field) is tuple or type(field) is list:
                size_bytes += _ITEM_BYTES * len(field)
                for item in field:
                    if type(item) is list and item and type(item[-1]) is str:
                        size_bytes += len(item[-1])  # the content of a reference
        sizes.append(size_bytes)
    return sizes


class FrameReader:
    """Decodes frames from a stream that is fed in arbitrary pieces.

    It buffers at most `max_bytes`, one piece, and the parts of one record. A larger frame raises
    `FrameTooLargeError` once its first eight bytes have arrived, a larger record with its first
    part. `max_bytes` may be changed between frames; below `FRAME_MAX_BYTES` it also limits records
    in parts. After an error the boundaries of frames are unknown, and the reader is unusable.
    `is_own`: this program has written the stream.
    """

    def __init__(self, max_bytes: int = FRAME_MAX_BYTES, *, is_own: bool = False) -> None:
        self.max_bytes = max_bytes
        self._is_own = is_own
        self.taken_bytes = 0  # size of all frames returned so far
        self._buffer = bytearray()
        self._header_bytes = 0
        self._frame_bytes = 0  # size of the incomplete frame with its prefix; 0 while unknown
        self._parts = bytearray()
        self._left_bytes = 0  # missing bytes of the record in parts

    @property
    def is_between_frames(self) -> bool:
        """Whether the stream is at a boundary between records, where it may end."""
        return not self._buffer and not self._left_bytes

    def feed(self, data: bytes) -> None:
        self._buffer += data

    def next_frame(self) -> list[Record] | None:
        """Return the records of the next complete frame; None if more bytes are needed.

        Raise `RemoteProtocolError` if the bytes are not a frame.
        """
        while (records := self._next_records()) is not None:
            if records[0][0][0] == _PART:
                records = self._join(records)
                if not records:
                    continue
            elif self._left_bytes:
                raise RemoteProtocolError("a record in parts is interrupted by another one")
            return records
        return None

    def _next_records(self) -> list[Record] | None:
        if not self._frame_bytes and not self._read_prefix():
            return None
        size_bytes = self._frame_bytes
        if len(self._buffer) < size_bytes:
            return None
        with memoryview(self._buffer) as view:
            frame = bytes(view[:size_bytes])
        del self._buffer[:size_bytes]  # fast: a bytearray does not move the rest
        self.taken_bytes += size_bytes
        self._frame_bytes = 0
        return _decode_frame(frame, _PREFIX.size + self._header_bytes, self._is_own)

    def _join(self, records: list[Record]) -> list[Record]:
        """Add a part; return the record that it completes, or an empty list."""
        fields, part = records[0]
        if len(records) > 1 or len(fields) != 2 or type(fields[1]) is not int or not part:
            raise RemoteProtocolError(
                "a part must be alone in its frame, with the number of bytes that follow"
            )
        left_bytes: int = fields[1]
        if self._left_bytes:
            if left_bytes < 0 or left_bytes + len(part) != self._left_bytes:
                raise RemoteProtocolError("a part is not the next one of its record")
        else:
            size_bytes = len(part) + left_bytes
            limit_bytes = self.max_bytes if self.max_bytes < FRAME_MAX_BYTES else RECORD_MAX_BYTES
            if left_bytes < 0 or size_bytes > limit_bytes:
                raise FrameTooLargeError("record in parts", size_bytes, limit_bytes)
        self._parts += part
        self._left_bytes = left_bytes
        if left_bytes:
            return []
        whole = bytes(self._parts)
        self._parts.clear()
        if len(whole) < _PREFIX.size:
            raise RemoteProtocolError("the parts of a record do not form a frame")
        rest_bytes, header_bytes = _PREFIX.unpack_from(whole)
        if rest_bytes + _PREFIX.size != len(whole) or header_bytes > rest_bytes:
            raise RemoteProtocolError("the parts of a record do not form a frame")
        found = _decode_frame(whole, _PREFIX.size + header_bytes, self._is_own)
        if found[0][0][0] == _PART:
            raise RemoteProtocolError("the parts of a record contain another part")
        return found

    def _read_prefix(self) -> bool:
        """Read the sizes of the next frame; False if there are too few bytes."""
        if self._buffer and not looks_like_frame(self._buffer[0]):
            raise RemoteProtocolError(f"not a frame: it begins with byte {self._buffer[0]}")
        if len(self._buffer) < _PREFIX.size:
            return False
        rest_bytes, header_bytes = _PREFIX.unpack_from(self._buffer)
        if rest_bytes + _PREFIX.size > self.max_bytes:
            raise FrameTooLargeError("frame", rest_bytes + _PREFIX.size, self.max_bytes)
        if header_bytes > HEADER_MAX_BYTES:
            raise FrameTooLargeError("frame header", header_bytes, HEADER_MAX_BYTES)
        if header_bytes > rest_bytes:
            raise RemoteProtocolError("a frame's header is longer than the frame")
        self._header_bytes = header_bytes
        self._frame_bytes = rest_bytes + _PREFIX.size
        return True


def _decode_frame(frame: bytes, payloads_at: int, is_own: bool) -> list[Record]:
    try:
        header = decode_header(frame[_PREFIX.size : payloads_at], is_own=is_own)
    except DecodeError as error:
        raise RemoteProtocolError(f"frame header: {error}") from None
    if type(header) is not list or not 0 < len(header) <= RECORDS_PER_FRAME_MAX:
        raise RemoteProtocolError(f"a frame holds 1 to {RECORDS_PER_FRAME_MAX} records")
    records = []
    start = payloads_at
    for fields in header:
        if type(fields) is not list or len(fields) < 2 or type(fields[0]) is not str:
            raise RemoteProtocolError("a record is a list of its kind, fields and payload length")
        length = fields.pop()
        if type(length) is not int or length < 0:
            raise RemoteProtocolError("a payload length is not a whole number of bytes")
        end = start + length
        records.append((fields, frame[start:end]))
        start = end
    if start != len(frame):
        raise RemoteProtocolError("the payload lengths do not add up to the frame's")
    return records
