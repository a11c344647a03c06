"""Batches as arguments of a command, as `ciel-kv` gets them (docs/protocol/kv.md)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from ciel.state.batches import (
    Delete,
    Increment,
    Insert,
    Put,
    Renew,
    Same,
    SameRange,
    Step,
    Update,
)
from ciel.state.errors import (
    ChangedError,
    KeyMissingError,
    KeyPresentError,
    KvError,
    NotANumberError,
)

TTL_MAX_S: Final = 1e10


class StepError(KvError):
    """Arguments are not steps."""


REASONS: Final[dict[str, Any]] = {
    "PRESENT": KeyPresentError,
    "MISSING": KeyMissingError,
    "CHANGED": ChangedError,
    "NUMBER": NotANumberError,
}
WORDS: Final = {kind: word for word, kind in REASONS.items()}


def pack_steps(steps: Iterable[Step]) -> list[bytes]:
    """Return steps as the arguments of CIEL.BATCH: a letter for each, and its fields."""
    parts: list[bytes] = []
    for step in steps:
        match step:
            case Put(key, value, ttl_s):
                parts += (b"P", key, value, _pack_ttl(ttl_s))
            case Insert(key, value, ttl_s):
                parts += (b"I", key, value, _pack_ttl(ttl_s))
            case Update(key, value):
                parts += (b"U", key, value)
            case Delete(key):
                parts += (b"D", key)
            case Increment(key, by):
                parts += (b"+", key, b"%d" % by)
            case Same(key, None):
                parts += (b"N", key)
            case Same(key, bytes(value)):
                parts += (b"S", key, value)
            case SameRange(first, last, digest):
                parts += (b"R", first, last or b"", digest)
            case Renew(key, ttl_s):
                parts += (b"T", key, _pack_ttl(ttl_s))
    return parts


def unpack_steps(parts: list[bytes]) -> list[Step]:
    """Return the steps of `pack_steps`; raises StepError."""
    steps: list[Step] = []
    left = iter(parts)
    try:
        for letter in left:
            steps.append(_unpack_step(letter, left))
    except StopIteration:
        raise StepError("the last step is cut off") from None
    return steps


def _unpack_step(letter: bytes, left: Any) -> Step:
    key = next(left)
    match letter:
        case b"P":
            return Put(key, next(left), _ttl_s(next(left)))
        case b"I":
            return Insert(key, next(left), _ttl_s(next(left)))
        case b"U":
            return Update(key, next(left))
        case b"D":
            return Delete(key)
        case b"+":
            return Increment(key, _int(next(left)))
        case b"N":
            return Same(key, None)
        case b"S":
            return Same(key, next(left))
        case b"R":
            return SameRange(key, next(left) or None, next(left))
        case b"T":
            return Renew(key, _ttl_s(next(left)))
    raise StepError(f"{letter[:20]!r} is not the letter of a step")


def _pack_ttl(ttl_s: float | None) -> bytes:
    return b"" if ttl_s is None else repr(ttl_s).encode()


def _ttl_s(text: bytes) -> float | None:
    if not text:
        return None
    try:
        ttl_s = float(text)
    except ValueError:
        ttl_s = -1.0
    if not 0 <= ttl_s <= TTL_MAX_S:
        raise StepError("a lifetime is a number of seconds from 0 to 1e10")
    return ttl_s


def _int(text: bytes) -> int:
    digits = text.removeprefix(b"-")
    if not digits.isdigit() or len(digits) > 19:
        raise StepError("an increment is an integer of 64 bits")
    return int(text)
