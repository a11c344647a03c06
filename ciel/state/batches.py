"""Batches: the operations of key-value bases as values, with their meaning (KVB-2).

A base carries out all steps of a batch at one moment, in their order, or none of them: it refuses a
batch if one of its steps does not allow it. So a batch is also a transaction, with `Same` and
`SameRange` for what the client has read: if these still hold, the client would read the same now.

`carry_out` is the only implementation. A base gives it a `View` of one moment, and makes all its
writes visible together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import blake2b
from typing import Final, NamedTuple, Protocol

import orjson

from ciel.state.errors import (
    ChangedError,
    KeyMissingError,
    KeyPresentError,
    LimitError,
    NotANumberError,
    StaleRequestError,
    show,
)

RESERVED: Final = b"\xff"
"""Keys of this prefix are for the base itself; no text in UTF-8 starts with this byte."""
KEY_MAX_BYTES: Final = 480
"""LMDB, which most bases use, has keys of at most 511 bytes."""
VALUE_MAX_BYTES: Final = 64 << 20
BATCH_MAX_BYTES: Final = 256 << 20
_INT_MIN, _INT_MAX = -(1 << 63), (1 << 63) - 1
_INT_MAX_DIGITS: Final = 20


class Same(NamedTuple):
    """Refuse the batch unless the key has this value; None: unless it is missing."""

    key: bytes
    value: bytes | None


class SameRange(NamedTuple):
    """Refuse the batch unless the rows from `first` to before `last` have this digest."""

    first: bytes
    last: bytes | None
    digest: bytes


class Put(NamedTuple):
    """Set the value of a key, which is removed after `ttl_s` seconds if that is given."""

    key: bytes
    value: bytes
    ttl_s: float | None = None


class Insert(NamedTuple):
    """Set the value of a key; refuse the batch if the key is there."""

    key: bytes
    value: bytes
    ttl_s: float | None = None


class Update(NamedTuple):
    """Set the value of a key; refuse the batch if the key is missing. It keeps its lifetime."""

    key: bytes
    value: bytes


class Delete(NamedTuple):
    """Remove a key; refuse the batch if the key is missing."""

    key: bytes


class Increment(NamedTuple):
    """Add to the integer in decimal digits that a key has, or to 0 if it is missing."""

    key: bytes
    by: int = 1


class Renew(NamedTuple):
    """Give a key another lifetime, None for no end; refuse the batch if the key is missing."""

    key: bytes
    ttl_s: float | None


Step = Same | SameRange | Put | Insert | Update | Delete | Increment | Renew
Result = int | None
Row = tuple[bytes, bytes]


class Request(NamedTuple):
    """The identity of a batch: a base carries out a number of a client at most once (KVB-3).

    The numbers of a client grow. A base remembers the results of the latest one for `keep_s`.
    """

    client: bytes
    number: int
    keep_s: float = 3600.0


class View(Protocol):
    """A base at one moment. Reads see the writes that were made before."""

    def get(self, key: bytes) -> bytes | None: ...

    def put(self, key: bytes, value: bytes, ttl_s: float | None) -> None: ...

    def replace(self, key: bytes, value: bytes) -> None:
        """Set the value of a key that is there, and keep its lifetime."""
        ...

    def delete(self, key: bytes) -> None: ...

    def rows(self, first: bytes, last: bytes | None) -> Iterable[Row]:
        """Return the rows from `first` to before `last`, or to the end, ordered by key."""
        ...


def carry_out(steps: Sequence[Step], view: View) -> list[Result]:
    """Carry out the steps; return the result of each: the sum for `Increment`, else None.

    Raises RefusedError. Then the caller must drop all that was written to the view.
    """
    return [_STEPS[type(step)](step, view, place) for place, step in enumerate(steps)]


def carry_out_once(steps: Sequence[Step], view: View, request: Request | None) -> list[Result]:
    """Carry out the steps, or return the results of the same request, if it was carried out.

    The results are a row of the base, so they last as long as what the steps have written. A
    refused batch has changed nothing, so it is not remembered. Raises RefusedError and
    StaleRequestError.
    """
    if request is None:
        return carry_out(steps, view)
    key = request_key(request)
    if (stored := view.get(key)) is not None:
        latest, *results = orjson.loads(stored)
        if latest == request.number:
            return list(results)
        if latest > request.number:
            raise StaleRequestError(request.number, latest)
    results = carry_out(steps, view)
    view.put(key, orjson.dumps([request.number, *results]), request.keep_s)
    return results


def request_key(request: Request) -> bytes:
    """Return the key of the row with the results of a client's latest request."""
    return RESERVED + b"request/" + request.client


def request_number(stored: bytes) -> int:
    """Return the number of the latest request, from the row of its client."""
    number: int = orjson.loads(stored)[0]
    return number


def keys_of(steps: Iterable[Step], request: Request | None = None) -> list[bytes]:
    """Return the keys that a batch reads or writes, each once. Ranges are not among them."""
    keys = [step.key for step in steps if not isinstance(step, SameRange)]
    if request is not None:
        keys.append(request_key(request))
    return list(dict.fromkeys(keys))


def digest(rows: Iterable[Row]) -> bytes:
    """Return the digest of rows, for `SameRange`."""
    sum_ = blake2b(digest_size=16)
    for key, value in rows:
        sum_.update(b"%d %d " % (len(key), len(value)))
        sum_.update(key)
        sum_.update(value)
    return sum_.digest()


def end_of_prefix(prefix: bytes) -> bytes | None:
    """Return the first key after all that start with a prefix; None if none is after them."""
    head = prefix.rstrip(b"\xff")
    return head[:-1] + bytes((head[-1] + 1,)) if head else None


def check(steps: Sequence[Step], batch_max_bytes: int = BATCH_MAX_BYTES) -> None:
    """Raise LimitError if a key, a value or the batch is too large."""
    size_bytes = 0
    for step in steps:
        if isinstance(step, SameRange):
            continue
        check_key(step.key)
        value = getattr(step, "value", None)
        if value is not None:
            if len(value) > VALUE_MAX_BYTES:
                raise LimitError(
                    f"the value of {show(step.key)} has {len(value):,} bytes, and the limit is "
                    f"{VALUE_MAX_BYTES:,}: store it as an object, and its reference here"
                )
            size_bytes += len(value)
        size_bytes += len(step.key)
    if size_bytes > batch_max_bytes:
        raise LimitError(
            f"a batch of {size_bytes:,} bytes is larger than {batch_max_bytes:,}: make several"
        )


def check_key(key: bytes) -> None:
    """Raise LimitError if a key is empty, too long, or reserved."""
    if not 0 < len(key) <= KEY_MAX_BYTES:
        raise LimitError(
            f"the key {show(key)} has {len(key):,} bytes; a key has 1 to {KEY_MAX_BYTES}"
        )
    if key.startswith(RESERVED):
        raise LimitError(f"the key {show(key)} starts with the byte 255, which is reserved")


def number_of(key: bytes, value: bytes | None, step: int = 0) -> int:
    """Return a value as an integer, 0 if the key is missing; raises NotANumberError."""
    if value is None:
        return 0
    digits = value[1:] if value[:1] == b"-" else value
    if not digits.isdigit() or len(value) > _INT_MAX_DIGITS:
        raise NotANumberError(key, step)
    number = int(value)
    if not _INT_MIN <= number <= _INT_MAX:
        raise NotANumberError(key, step)
    return number


# --- steps ----------------------------------------------------------------------------------------


def _same(step: Same, view: View, place: int) -> None:
    if view.get(step.key) != step.value:
        raise ChangedError(step.key, place)


def _same_range(step: SameRange, view: View, place: int) -> None:
    if digest(view.rows(step.first, step.last)) != step.digest:
        raise ChangedError(step.first, place)


def _put(step: Put, view: View, place: int) -> None:
    view.put(step.key, step.value, step.ttl_s)


def _insert(step: Insert, view: View, place: int) -> None:
    if view.get(step.key) is not None:
        raise KeyPresentError(step.key, place)
    view.put(step.key, step.value, step.ttl_s)


def _update(step: Update, view: View, place: int) -> None:
    if view.get(step.key) is None:
        raise KeyMissingError(step.key, place)
    view.replace(step.key, step.value)


def _delete(step: Delete, view: View, place: int) -> None:
    if view.get(step.key) is None:
        raise KeyMissingError(step.key, place)
    view.delete(step.key)


def _increment(step: Increment, view: View, place: int) -> int:
    value = view.get(step.key)
    total = number_of(step.key, value, place) + step.by
    if not _INT_MIN <= total <= _INT_MAX:
        raise NotANumberError(step.key, place)
    if value is None:
        view.put(step.key, b"%d" % total, None)
    else:
        view.replace(step.key, b"%d" % total)
    return total


def _renew(step: Renew, view: View, place: int) -> None:
    value = view.get(step.key)
    if value is None:
        raise KeyMissingError(step.key, place)
    view.put(step.key, value, step.ttl_s)


_STEPS: Final[dict[type, Callable[..., Result]]] = {
    Same: _same, SameRange: _same_range, Put: _put, Insert: _insert, Update: _update,
    Delete: _delete, Increment: _increment, Renew: _renew,
}  # fmt: skip


class Overlay:
    """A view of a base that collects the writes, and does not change the base.

    `writes`: for each key its new value and lifetime in seconds (None: no end; `KEPT`: unchanged),
    or None if the key is deleted.
    """

    KEPT: Final = -1.0

    def __init__(
        self,
        get: Callable[[bytes], bytes | None],
        rows: Callable[[bytes, bytes | None], Iterable[Row]],
    ) -> None:
        self._get = get
        self._rows = rows
        self.writes: dict[bytes, tuple[bytes, float | None] | None] = {}

    def get(self, key: bytes) -> bytes | None:
        if key in self.writes:
            written = self.writes[key]
            return written and written[0]
        return self._get(key)

    def put(self, key: bytes, value: bytes, ttl_s: float | None) -> None:
        self.writes[key] = value, ttl_s

    def replace(self, key: bytes, value: bytes) -> None:
        written = self.writes.get(key)
        self.writes[key] = value, written[1] if written else self.KEPT

    def delete(self, key: bytes) -> None:
        self.writes[key] = None

    def rows(self, first: bytes, last: bytes | None) -> Iterator[Row]:
        written = sorted(
            key for key in self.writes if key >= first and (last is None or key < last)
        )
        if not written:
            yield from self._rows(first, last)
            return
        merged = dict(self._rows(first, last))
        for key in written:
            if (new := self.writes[key]) is None:
                merged.pop(key, None)
            else:
                merged[key] = new[0]
        yield from sorted(merged.items())
