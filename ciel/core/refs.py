"""References describe the state of an object. There are eleven kinds, and a table that merges them.

A reference never contains bulk data. Content below 1,024 bytes travels in it as base64 text, which
only the reader decodes. Locations are `host:port` of workers, as sets.
Requirements CIB-1, CIB-4.
"""

from __future__ import annotations

from base64 import b64decode
from binascii import b2a_base64
from collections.abc import Callable
from typing import Any, NamedTuple

from ciel.core.errors import InvalidContentError
from ciel.core.ids import ObjectId

INLINE_MAX_BYTES = 1023
"""Content up to this size becomes a `Value`; larger content is stored."""

NOWHERE: frozenset[str] = frozenset()


class Future(NamedTuple):
    """The object is not produced yet."""

    id: ObjectId


class Concrete(NamedTuple):
    """The object is complete, and stored at `locations`."""

    id: ObjectId
    size_bytes: int | None
    locations: frozenset[str]


class Sweetheart(NamedTuple):
    """The object is complete; readers should prefer the copy at `preferred`."""

    id: ObjectId
    preferred: str
    size_bytes: int | None
    locations: frozenset[str]


class Stream(NamedTuple):
    """A task writes the object, which can be read at `locations` while it grows."""

    id: ObjectId
    locations: frozenset[str]


class SocketStream(NamedTuple):
    """A task writes the object, which can be read from one auxiliary TCP port."""

    id: ObjectId
    location: str
    port: int


class Value(NamedTuple):
    """The content itself, as base64 text."""

    id: ObjectId
    encoded: str

    @property
    def content(self) -> bytes:
        """The decoded content; raises InvalidContentError if `encoded` is not valid base64."""
        try:
            return b64decode(self.encoded, validate=True)
        except ValueError:
            raise InvalidContentError(self.id) from None

    @property
    def size_bytes(self) -> int:
        """The length of the content, computed without decoding it, even if it is not base64."""
        return len(self.encoded) // 4 * 3 - self.encoded.endswith("=") - self.encoded.endswith("==")

    @classmethod
    def of(cls, object_id: ObjectId, content: bytes) -> Value:
        return cls(object_id, b2a_base64(content, newline=False).decode())


class Fixed(NamedTuple):
    """The object is a process that waits on one worker."""

    id: ObjectId
    location: str


class Failure(NamedTuple):
    """The object could not be produced.

    `reason` is a keyword. `details` is the message for users, or a mapping with the message as its
    `text` and data for programs.
    """

    id: ObjectId
    reason: str
    details: Any

    @property
    def text(self) -> str:
        """The message for users."""
        return details_text(self.details)

    def propagated(self, producer: str = "") -> tuple[str, Any]:
        """Return the reason and details of a task that cannot run because this input has failed.

        `producer`: the label of the input's producer. The message names the task or the input that
        failed first, once. It names no reader, since all tasks of a long chain get the same
        message.
        """
        if self.reason in ("DEPENDENCY_FAILED", "CANCELLED"):
            return self.reason, self.details
        text = f"input {self.id} failed ({self.reason}): {self.text}"
        if producer:
            text = (
                f"{producer} failed ({self.reason}): {self.text}\n"
                f"tasks that read its output {self.id} cannot run"
            )
        return "DEPENDENCY_FAILED", with_text(self.details, text)


def details_text(details: Any) -> str:
    """Return the message for users in the details of a failure."""
    text = details.get("text") if isinstance(details, dict) else details
    return "" if text is None else str(text)


def with_text(details: Any, text: str) -> Any:
    """Return the details of a failure with another message for users."""
    return {**details, "text": text} if isinstance(details, dict) else text


class Tombstone(NamedTuple):
    """An update: the object is not at these locations."""

    id: ObjectId
    locations: frozenset[str]


class Piped(NamedTuple):
    """The object was produced, but sent directly to its only reader, and no worker stores it."""

    id: ObjectId


class Fetch(NamedTuple):
    """A worker must fetch the object from a URL (uploads only)."""

    id: ObjectId
    url: str


Reference = (
    Future | Concrete | Sweetheart | Stream | SocketStream | Value | Fixed | Failure | Tombstone
    | Piped | Fetch
)  # fmt: skip
REFERENCE_TYPES = (
    Future, Concrete, Sweetheart, Stream, SocketStream, Value, Fixed, Failure, Tombstone, Piped,
    Fetch,
)  # fmt: skip

CONSUMABLE: frozenset[type] = frozenset(
    (Concrete, Sweetheart, Stream, SocketStream, Value, Fixed, Failure)
)
"""The kinds of reference with which a waiting task can run. An error is one of them."""


STREAMS: frozenset[type] = frozenset((Stream, SocketStream))
"""The kinds that can be read while they grow."""


def locations_of(ref: Reference) -> frozenset[str]:
    """Return the workers from which the content can be read; empty for other kinds."""
    if isinstance(ref, Concrete | Sweetheart | Stream):
        return ref.locations
    if isinstance(ref, SocketStream | Fixed):
        return frozenset((ref.location,))
    return NOWHERE


# --- merging --------------------------------------------------------------------------------------


def _keep(old: Any, update: Any) -> Reference:
    return old  # type: ignore[no-any-return]  # by the table's key, this is a Reference


def _take(old: Any, update: Any) -> Reference:
    return update  # type: ignore[no-any-return]  # as above


def _take_with_locations(old: Concrete | Sweetheart, update: Sweetheart) -> Reference:
    return update._replace(locations=update.locations | old.locations)


def _join_streams(old: Stream, update: Stream | SocketStream) -> Reference:
    return old._replace(locations=old.locations | locations_of(update))


def _join_copies(old: Concrete | Sweetheart, update: Concrete) -> Reference:
    size_bytes = update.size_bytes if old.size_bytes is None else old.size_bytes
    return old._replace(locations=old.locations | update.locations, size_bytes=size_bytes)


def _bury(old: Concrete | Sweetheart | Stream, update: Tombstone) -> Reference:
    left = old.locations - update.locations
    return old._replace(locations=left) if left else Future(old.id)


def _bury_socket(old: SocketStream, update: Tombstone) -> Reference:
    return Future(old.id) if old.location in update.locations else old


def _bury_fixed(old: Fixed, update: Tombstone) -> Reference:
    if old.location not in update.locations:
        return old
    return Failure(old.id, "LOST_FIXED_OBJECT", old.location)


_ANY: tuple[type, ...] = REFERENCE_TYPES
_COPIES: tuple[type, ...] = (Concrete, Sweetheart)

# The first matching row wins. Rows are numbered as in the original CIEL's table. Its row 11
# ("anything else: keep the old") is the default, with two additional exceptions: an error ends a
# stream, and a future may become fixed.
_ROWS: tuple[
    tuple[str, tuple[type, ...], tuple[type, ...], Callable[[Any, Any], Reference]], ...
] = (
    ("1", (Value,), _ANY, _keep),
    ("2", _ANY, (Value,), _take),
    ("3 concrete", _COPIES, (Sweetheart,), _take_with_locations),
    ("3", _ANY, (Sweetheart,), _take),
    ("4", (Future, *STREAMS), (Concrete,), _take),
    ("5", (Future,), tuple(STREAMS), _take),
    ("6", (Future,), (Failure,), _take),
    ("7", (Stream,), tuple(STREAMS), _join_streams),
    ("7 socket", (SocketStream,), tuple(STREAMS), _keep),
    ("8", _COPIES, (Concrete,), _join_copies),
    ("9", (Concrete, Sweetheart, Stream), (Tombstone,), _bury),
    ("9 socket", (SocketStream,), (Tombstone,), _bury_socket),
    ("10", (Fixed,), (Tombstone,), _bury_fixed),
    ("11 stream error", tuple(STREAMS), (Failure,), _take),
    ("11 fixed", (Future,), (Fixed,), _take),
)
MERGE_TABLE: dict[tuple[type, type], tuple[str, Callable[[Any, Any], Reference]]] = {}
for _name, _olds, _updates, _rule in _ROWS[::-1]:
    for _old in _olds:
        for _update in _updates:
            MERGE_TABLE[_old, _update] = (_name, _rule)


def merge(old: Reference, update: Reference) -> Reference:
    """Merge two references of one object; raises ValueError if they name different objects."""
    if old.id != update.id:
        raise ValueError(f"cannot merge references of two objects: {old.id} and {update.id}")
    row = MERGE_TABLE.get((type(old), type(update)))
    return old if row is None else row[1](old, update)


def differs_in_content(known: Reference | None, other: Reference) -> bool:
    """Whether two references to an object describe different contents."""
    if isinstance(known, Value) and isinstance(other, Value):
        return known.encoded != other.encoded
    sized = Value, Concrete, Sweetheart
    if not isinstance(known, sized) or not isinstance(other, sized):
        return False
    return None not in (known.size_bytes, other.size_bytes) and known.size_bytes != other.size_bytes
