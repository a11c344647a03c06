"""Encodes and decodes journal records: the messages that a restarted master needs, with checksums.

    record = body length (4 bytes, big-endian) || CRC-32 of the body (4 bytes) || body
    body   = header length (4 bytes) || JSON array [kind, field, …] || payload

A record contains a control message in its wire format. `JOURNALLED` is the set of all kinds: jobs,
tasks, wants, reports of tasks, ends of jobs, and their removals and retries. A reader uses the
longest valid prefix: the journal ends at the first record that is truncated or does not match its
checksum.
"""

from __future__ import annotations

import struct
from typing import NamedTuple
from zlib import crc32

from ciel.core.events import (
    AddTask,
    Change,
    CloseJob,
    JobChanged,
    Message,
    ReleaseObjects,
    SubmitJob,
    TaskReported,
    WantObjects,
)
from ciel.wire import codec, messages
from ciel.wire.errors import DecodeError, LocalProtocolError
from ciel.wire.limits import RECORD_MAX_BYTES

JOURNALLED: frozenset[type] = frozenset(
    (SubmitJob, AddTask, WantObjects, ReleaseObjects, CloseJob, TaskReported, JobChanged, Change)
)
_PREFIX = struct.Struct(">II")
_HEADER_LENGTH = struct.Struct(">I")


class Replay(NamedTuple):
    """The content of a journal: its records, the size of the valid prefix, and what follows it."""

    records: list[Message]
    good_bytes: int
    damage: str  # empty if the journal is whole


def encode(message: Message) -> bytes:
    """Encode a message as a journal record; raises LocalProtocolError for other kinds."""
    if type(message) not in JOURNALLED:
        raise LocalProtocolError(f"a {type(message).__name__} cannot be written to the journal")
    fields, payload = messages.encode(message)
    header = codec.encode(fields)
    body = _HEADER_LENGTH.pack(len(header)) + header + payload
    return _PREFIX.pack(len(body), crc32(body)) + body


def read(journal: bytes | memoryview) -> Replay:
    """Read records until the end or the first damage; never raises for any content."""
    data = memoryview(journal)
    records: list[Message] = []
    offset = 0
    while offset < len(data):
        if len(data) - offset < _PREFIX.size:
            return Replay(records, offset, "the last record is cut off in its prefix")
        length, checksum = _PREFIX.unpack_from(data, offset)
        if not _HEADER_LENGTH.size <= length <= RECORD_MAX_BYTES:
            return Replay(records, offset, f"a record claims a length of {length} bytes")
        body = data[offset + _PREFIX.size : offset + _PREFIX.size + length]
        if len(body) < length:
            return Replay(records, offset, "the last record is cut off")
        if crc32(body) != checksum:
            return Replay(records, offset, "a record does not match its checksum")
        try:
            records.append(_decode(body))
        except DecodeError as error:
            return Replay(records, offset, str(error))
        offset += _PREFIX.size + length
    return Replay(records, offset, "")


def _decode(body: memoryview) -> Message:
    (header_length,) = _HEADER_LENGTH.unpack_from(body)
    end = _HEADER_LENGTH.size + header_length
    if end > len(body):
        raise DecodeError("a record's header is longer than the record")
    fields = codec.decode(body[_HEADER_LENGTH.size : end])
    if not isinstance(fields, list) or not fields:
        raise DecodeError("a record's header is not a list")
    return messages.decode((fields, bytes(body[end:])), JOURNALLED)
