"""Encodes and decodes the messages of the daemon; docs/protocol/shmd.md specifies them.

    4 bytes   length of the rest, big-endian, at most FRAME_MAX_BYTES
    1 byte    version
    1 byte    kind
    2 bytes   flags
    8 bytes   number of the request; an answer repeats it
    …         the fields of the kind: whole numbers, then texts, each after its length in 2 bytes

Decoding is strict: a frame has exactly its fields, every text has a maximum length, and lengths are
checked before memory is allocated. Names are only texts here; their users check whether they are
valid ids.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from ciel.shm.errors import MessageError

VERSION: Final = 1
FRAME_MAX_BYTES: Final = 8 * 1024
"""Enough for the longest path of the system, a name and a reason."""

NAME_MAX_BYTES: Final = 256
PATH_MAX_BYTES: Final = 4095
REASON_MAX_BYTES: Final = 1024
TIMEOUT_MAX_MS: Final = 3_600_000
NUMBER_MAX: Final = 2**64 - 1

_LENGTH = struct.Struct(">I")
_HEAD = struct.Struct(">BBHQ")
_TEXT_LENGTH = struct.Struct(">H")
_RECURSIVE = 1
_DESCRIBED = 2
_MAPPED = 1
_REQUESTS: Final = (1, 2, 3, 6)
_FLAGS: Final = {1: _RECURSIVE | _DESCRIBED, 2: _MAPPED}
"""The flags of each kind that has any."""


class Code(IntEnum):
    """The cause of a failed request, for programs; the reason is for people."""

    NOT_FOUND = 1
    BAD_NAME = 2
    BUSY = 3
    TIMEOUT = 4
    NO_SPACE = 5
    CONFLICT = 6
    UNKNOWN_PATH = 7
    CORRUPT = 8
    FAILED = 9


@dataclass(frozen=True, slots=True)
class Load:
    """Make an object readable, and return its path. A `recursive` load may ask peers. A `described`
    load returns the checksum, even if the daemon must read the object to compute it.
    """

    number: int
    name: str
    recursive: bool = True
    described: bool = False
    timeout_ms: int = 0
    """How long the client waits; 0 means the daemon's default."""


@dataclass(frozen=True, slots=True)
class Write:
    """Open an object for writing, and return its path. If the same attempt repeats the request, it
    gets the same file. Without an attempt, the same holds for the same connection. `is_mapped`: see
    `ObjectWriter.mapped_path`.
    """

    number: int
    name: str
    attempt: str = ""
    size_hint_bytes: int = 0
    timeout_ms: int = 0
    is_mapped: bool = False


@dataclass(frozen=True, slots=True)
class Commit:
    """Commit the file at a path as an object of that name."""

    number: int
    path: str
    name: str
    timeout_ms: int = 0


@dataclass(frozen=True, slots=True)
class Abandon:
    """Discard the file at a path, unless other connections have it open for writing, too."""

    number: int
    path: str
    timeout_ms: int = 0


@dataclass(frozen=True, slots=True)
class Ok:
    """Success, with a path. Size and checksum are those of a committed object; `""` is unknown."""

    number: int
    path: str
    size_bytes: int = 0
    checksum: str = ""


@dataclass(frozen=True, slots=True)
class Fail:
    """Failure; `subject` is the requested name or path."""

    number: int
    code: Code
    subject: str
    reason: str


Request = Load | Write | Commit | Abandon
Response = Ok | Fail
Message = Request | Response

# For each kind: its numbers, and the maximum lengths of its texts.
_FIELDS: Final = {
    1: (struct.Struct(">I"), (NAME_MAX_BYTES,)),
    2: (struct.Struct(">IQ"), (NAME_MAX_BYTES, NAME_MAX_BYTES)),
    3: (struct.Struct(">I"), (PATH_MAX_BYTES, NAME_MAX_BYTES)),
    4: (struct.Struct(">Q"), (PATH_MAX_BYTES, NAME_MAX_BYTES)),
    5: (struct.Struct(">H"), (PATH_MAX_BYTES, REASON_MAX_BYTES)),
    6: (struct.Struct(">I"), (PATH_MAX_BYTES,)),
}


def encode(message: Message) -> bytes:
    """Return a message as a frame. A subject or a reason that is too long is truncated, and a NUL
    byte in it becomes `?`. Raises MessageError if no frame can hold the message.
    """
    flags = 0
    numbers: tuple[int, ...]
    texts: tuple[str, ...]
    match message:
        case Load():
            kind, numbers, texts = 1, (message.timeout_ms,), (message.name,)
            flags = message.recursive * _RECURSIVE | message.described * _DESCRIBED
        case Write():
            kind, numbers = 2, (message.timeout_ms, message.size_hint_bytes)
            texts = (message.name, message.attempt)
            flags = message.is_mapped * _MAPPED
        case Commit():
            kind, numbers, texts = 3, (message.timeout_ms,), (message.path, message.name)
        case Abandon():
            kind, numbers, texts = 6, (message.timeout_ms,), (message.path,)
        case Ok():
            kind, numbers, texts = 4, (message.size_bytes,), (message.path, message.checksum)
        case Fail():
            kind, numbers = 5, (message.code,)
            texts = (
                _cut(message.subject, PATH_MAX_BYTES),
                _cut(message.reason, REASON_MAX_BYTES),
            )
    fields, limits = _FIELDS[kind]
    try:
        parts = [_HEAD.pack(VERSION, kind, flags, message.number), fields.pack(*numbers)]
    except struct.error:
        raise MessageError("a number is out of range") from None
    if kind in _REQUESTS and numbers[0] > TIMEOUT_MAX_MS:
        raise MessageError(f"a timeout of more than {TIMEOUT_MAX_MS} ms")
    for text, limit in zip(texts, limits, strict=True):
        try:
            raw = text.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            raise MessageError("a text cannot be encoded") from None
        if len(raw) > limit or b"\0" in raw:
            raise MessageError(f"a text is longer than {limit} bytes, or contains a zero byte")
        parts += (_TEXT_LENGTH.pack(len(raw)), raw)
    body = b"".join(parts)
    return _LENGTH.pack(len(body)) + body


def _cut(text: str, max_bytes: int) -> str:
    """Truncate a text for people so that a frame can hold it."""
    try:
        raw = text.replace("\0", "?").encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raw = text.replace("\0", "?").encode("utf-8", "replace")
    if len(raw) <= max_bytes:
        return raw.decode("utf-8", "surrogateescape")
    return raw[:max_bytes].decode("utf-8", "ignore")


def decode(body: bytes) -> Message:
    """Return the message in a frame's body; raises MessageError."""
    try:
        version, kind, flags, number = _HEAD.unpack_from(body)
    except struct.error:
        raise MessageError("a frame ends inside its header") from None
    if version != VERSION:
        raise MessageError(f"version {version} is not supported; this is version {VERSION}")
    if kind not in _FIELDS:
        raise MessageError(f"there is no kind {kind}")
    if flags & ~_FLAGS.get(kind, 0):
        raise MessageError(f"kind {kind} has no flags {flags:#x}")
    fields, limits = _FIELDS[kind]
    try:
        numbers = fields.unpack_from(body, _HEAD.size)
    except struct.error:
        raise MessageError("a frame ends inside its numbers") from None
    texts = _texts(body, _HEAD.size + fields.size, limits)
    if kind in _REQUESTS and numbers[0] > TIMEOUT_MAX_MS:
        raise MessageError(f"a timeout of more than {TIMEOUT_MAX_MS} ms")
    match kind:
        case 1:
            recursive, described = bool(flags & _RECURSIVE), bool(flags & _DESCRIBED)
            return Load(number, texts[0], recursive, described, numbers[0])
        case 2:
            is_mapped = bool(flags & _MAPPED)
            return Write(number, texts[0], texts[1], numbers[1], numbers[0], is_mapped)
        case 3:
            return Commit(number, texts[0], texts[1], numbers[0])
        case 4:
            return Ok(number, texts[0], numbers[0], texts[1])
        case 6:
            return Abandon(number, texts[0], numbers[0])
    try:
        code = Code(numbers[0])
    except ValueError:
        raise MessageError(f"there is no code {numbers[0]}") from None
    return Fail(number, code, texts[0], texts[1])


def _texts(body: bytes, offset: int, limits: tuple[int, ...]) -> list[str]:
    texts = []
    for limit in limits:
        try:
            (length,) = _TEXT_LENGTH.unpack_from(body, offset)
        except struct.error:
            raise MessageError("a frame ends before a text") from None
        offset += _TEXT_LENGTH.size
        raw = body[offset : offset + length]
        if length > limit or len(raw) < length or b"\0" in raw:
            raise MessageError(
                f"a text of {length} bytes is too long, truncated, or contains a zero byte"
            )
        texts.append(raw.decode("utf-8", "surrogateescape"))
        offset += length
    if offset != len(body):
        raise MessageError(f"a frame has {len(body) - offset} bytes too many")
    return texts


class Decoder:
    """Splits a stream into frames. It buffers less than one frame; unusable after an error."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, chunk: bytes) -> list[Message]:
        """Return the messages that are complete now; raises MessageError."""
        data = self._rest + chunk if self._rest else chunk
        messages: list[Message] = []
        start = 0
        while len(data) - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(data, start)
            if length > FRAME_MAX_BYTES:
                raise MessageError(f"a frame of {length} bytes; {FRAME_MAX_BYTES} are allowed")
            end = start + _LENGTH.size + length
            if len(data) < end:
                break
            messages.append(decode(data[start + _LENGTH.size : end]))
            start = end
        self._rest = data[start:]
        return messages
