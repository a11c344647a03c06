"""The commands of hashes and of sorted sets."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import chain
from operator import itemgetter
from typing import Any, Final

from ciel.state.bases.rows import (
    ELEMENT,
    NUMBERS,
    Kind,
    end_of,
    head_of,
    pack_head,
    pack_row,
)
from ciel.state.server.command import (
    ANY,
    INT_MAX,
    INT_MIN,
    Command,
    checked_key,
    decimal,
    integer,
    syntax_error,
)
from ciel.state.server.errors import CommandError
from ciel.state.server.resp import OK, Pairs
from ciel.state.server.view import RowsView

FIELD_MAX_BYTES: Final = 480
_NUMBER: Final = struct.Struct(">Q")
_SCORE: Final = struct.Struct(">d")
_FIELD, _MEMBER, _RANK = b"f", b"m", b"s"
"""The part of an element's key after the number: a field, a member, or a score and a member."""


class Elements:
    """The elements of one hash or sorted set, of which a command may change several."""

    def __init__(self, rows: RowsView, key: bytes, kind: Kind) -> None:
        """Raise KindError if the key has something else."""
        self._rows = rows
        self._key = key
        self._kind = kind
        row = rows.row_of(key, kind)
        self._end_us = end_of(row)
        self.number, self.count = (0, 0) if row is None else head_of(row)

    def get(self, name: bytes, part: bytes = _FIELD) -> bytes | None:
        return self._rows.get(self._element(part, name)) if self.number else None

    def put(self, name: bytes, content: bytes, part: bytes = _FIELD) -> None:
        if not self.number:
            self.number = int(self._rows.get(NUMBERS) or 0) + 1
            self._rows.write(NUMBERS, b"\0%d" % self.number)
        if len(name) > FIELD_MAX_BYTES:
            raise CommandError(f"a field or member has at most {FIELD_MAX_BYTES} bytes")
        self._rows.write(self._element(part, name), b"\0" + content)

    def remove(self, name: bytes, part: bytes = _FIELD) -> None:
        self._rows.write(self._element(part, name), None)

    def all(self, part: bytes = _FIELD, first: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Yield the names of one part from one on, with their contents, in order."""
        if not self.number:
            return
        if (few := self.few(part, first)) is not None:
            yield from few
            return
        start = self._element(part, b"")
        for key, content in self._rows.rows(start + first, ELEMENT + self._after(part)):
            yield key[len(start) :], content

    def few(self, part: bytes = _FIELD, first: bytes = b"") -> list[tuple[bytes, bytes]] | None:
        """Return what `all` yields, faster; None if it is much."""
        if not self.number:
            return []
        start = self._element(part, b"")
        found = self._rows.few(start + first, ELEMENT + self._after(part))
        skipped = len(start)
        return found and [(key[skipped:], row[1:]) for key, row in found]

    def finish(self, count: int) -> None:
        """Set the number of elements; the key of an empty hash or set is removed."""
        head = pack_head(self.number, count)
        row = pack_row(head, self._end_us, self._kind) if count else None
        self._rows.write(checked_key(self._key), row)

    def _element(self, part: bytes, name: bytes) -> bytes:
        return ELEMENT + _NUMBER.pack(self.number) + part + name

    def _after(self, part: bytes) -> bytes:
        return _NUMBER.pack(self.number) + bytes((part[0] + 1,))


def _hash(rows: RowsView, key: bytes) -> Elements:
    return Elements(rows, key, Kind.HASH)


def hset(rows: RowsView, args: list[bytes]) -> int:
    if len(args) % 2 == 0:
        raise CommandError("wrong number of arguments for 'hset' command")
    fields = _hash(rows, args[0])
    added = 0
    for name, value in zip(args[1::2], args[2::2], strict=True):
        added += fields.get(name) is None
        fields.put(name, value)
    fields.finish(fields.count + added)
    return added


def hmset(rows: RowsView, args: list[bytes]) -> Any:
    hset(rows, args)
    return OK


def hsetnx(rows: RowsView, args: list[bytes]) -> int:
    return 0 if _hash(rows, args[0]).get(args[1]) is not None else hset(rows, args)


def hget(rows: RowsView, args: list[bytes]) -> bytes | None:
    return _hash(rows, args[0]).get(args[1])


def hmget(rows: RowsView, args: list[bytes]) -> list[bytes | None]:
    fields = _hash(rows, args[0])
    return rows.collected(map(fields.get, args[1:]))


def hgetall(rows: RowsView, args: list[bytes]) -> dict[bytes, bytes]:
    elements = _hash(rows, args[0])
    if (few := elements.few()) is not None:
        return dict(few)
    fields = elements.all()
    parts = rows.collected(chain.from_iterable(fields))
    return dict(zip(parts[::2], parts[1::2], strict=True))


def hkeys(rows: RowsView, args: list[bytes]) -> list[bytes]:
    return [name for name, _ in _hash(rows, args[0]).all()]


def hvals(rows: RowsView, args: list[bytes]) -> list[bytes]:
    return rows.collected(map(itemgetter(1), _hash(rows, args[0]).all()))


def hlen(rows: RowsView, args: list[bytes]) -> int:
    return _hash(rows, args[0]).count


def hexists(rows: RowsView, args: list[bytes]) -> int:
    return int(_hash(rows, args[0]).get(args[1]) is not None)


def hdel(rows: RowsView, args: list[bytes]) -> int:
    fields = _hash(rows, args[0])
    there = [name for name in dict.fromkeys(args[1:]) if fields.get(name) is not None]
    for name in there:
        fields.remove(name)
    if there:
        fields.finish(fields.count - len(there))
    return len(there)


def hincrby(rows: RowsView, args: list[bytes]) -> int:
    by = integer(args[2])
    fields = _hash(rows, args[0])
    value = fields.get(args[1])
    total = (0 if value is None else integer(value)) + by
    if not INT_MIN <= total <= INT_MAX:
        raise CommandError("increment or decrement would overflow")
    fields.put(args[1], b"%d" % total)
    fields.finish(fields.count + (value is None))
    return total


# --- sorted sets ----------------------------------------------------------------------------------


def pack_score(score: float) -> bytes:
    """Return 8 bytes that are ordered as scores are."""
    (bits,) = _NUMBER.unpack(_SCORE.pack(score + 0.0))  # -0.0 becomes 0.0
    return _NUMBER.pack(bits ^ ((1 << 64) - 1 if bits >> 63 else 1 << 63))


def unpack_score(content: bytes) -> float:
    """Return the score of 8 bytes."""
    (bits,) = _NUMBER.unpack(content[:8])
    score: float = _SCORE.unpack(_NUMBER.pack(bits ^ (1 << 63 if bits >> 63 else (1 << 64) - 1)))[0]
    return score


def _sorted_set(rows: RowsView, key: bytes) -> Elements:
    return Elements(rows, key, Kind.SORTED_SET)


def zadd(rows: RowsView, args: list[bytes]) -> int:
    """ZADD key [NX|XX] [CH] score member [score member …]."""
    options: set[bytes] = set()
    rest = args[1:]
    while rest and rest[0].upper() in (b"NX", b"XX", b"CH"):
        options.add(rest.pop(0).upper())
    if not rest or len(rest) % 2 or {b"NX", b"XX"} <= options:
        raise syntax_error()
    pairs = [(decimal(score), member) for score, member in zip(rest[::2], rest[1::2], strict=True)]
    members = _sorted_set(rows, args[0])
    added = changed = 0
    for score, member in pairs:
        before, packed = members.get(member, _MEMBER), pack_score(score)
        if before == packed or (b"NX" if before else b"XX") in options:
            continue
        if before is not None:
            members.remove(before + member, _RANK)
            changed += 1
        else:
            added += 1
        members.put(member, packed, _MEMBER)
        members.put(packed + member, b"", _RANK)
    if added or changed:
        members.finish(members.count + added)
    return added + changed if b"CH" in options else added


def zrem(rows: RowsView, args: list[bytes]) -> int:
    members = _sorted_set(rows, args[0])
    removed = 0
    for member in dict.fromkeys(args[1:]):
        packed = members.get(member, _MEMBER)
        if packed is not None:
            members.remove(member, _MEMBER)
            members.remove(packed + member, _RANK)
            removed += 1
    if removed:
        members.finish(members.count - removed)
    return removed


def zscore(rows: RowsView, args: list[bytes]) -> float | None:
    packed = _sorted_set(rows, args[0]).get(args[1], _MEMBER)
    return None if packed is None else unpack_score(packed)


def zcard(rows: RowsView, args: list[bytes]) -> int:
    return _sorted_set(rows, args[0]).count


def zrange(rows: RowsView, args: list[bytes]) -> Any:
    """ZRANGE key start stop [WITHSCORES], by rank."""
    start, stop = (integer(text) for text in args[1:3])
    with_scores = _with_scores(args[3:])
    members = _sorted_set(rows, args[0])
    start = max(0, start + members.count if start < 0 else start)
    stop = stop + members.count if stop < 0 else stop
    found = [name for place, (name, _) in enumerate(members.all(_RANK)) if start <= place <= stop]
    return _ranked(found, with_scores=with_scores)


def zrangebyscore(rows: RowsView, args: list[bytes]) -> Any:
    """ZRANGEBYSCORE key min max [WITHSCORES] [LIMIT offset count]."""
    options = [option.upper() for option in args[3:]]
    offset, count = 0, -1
    if b"LIMIT" in options:
        place = options.index(b"LIMIT")
        if len(options) < place + 3:
            raise syntax_error()
        offset, count = (integer(text) for text in options[place + 1 : place + 3])
        del options[place : place + 3]
    with_scores = _with_scores(options)
    least, excludes_least = _bound(args[1])
    most, excludes_most = _bound(args[2])
    found: list[bytes] = []
    for name, _ in _sorted_set(rows, args[0]).all(_RANK, pack_score(least)):
        score = unpack_score(name)
        if score > most or (excludes_most and score == most) or len(found) == offset + count:
            break
        if not (excludes_least and score == least):
            found.append(name)
    return _ranked(found[offset:] if offset >= 0 else [], with_scores=with_scores)


def _bound(text: bytes) -> tuple[float, bool]:
    return decimal(text.removeprefix(b"(")), text.startswith(b"(")


def _with_scores(options: list[bytes]) -> bool:
    if [option.upper() for option in options] not in ([], [b"WITHSCORES"]):
        raise syntax_error()
    return bool(options)


def _ranked(names: list[bytes], *, with_scores: bool) -> Any:
    if with_scores:
        return Pairs([(name[8:], unpack_score(name)) for name in names])
    return [name[8:] for name in names]


COMMANDS: Final[dict[bytes, Command]] = {
    b"HSET": Command(hset, 3, ANY, True), b"HMSET": Command(hmset, 3, ANY, True),
    b"HSETNX": Command(hsetnx, 3, 3, True), b"HGET": Command(hget, 2, 2),
    b"HMGET": Command(hmget, 2, ANY), b"HGETALL": Command(hgetall, 1, 1),
    b"HKEYS": Command(hkeys, 1, 1), b"HVALS": Command(hvals, 1, 1), b"HLEN": Command(hlen, 1, 1),
    b"HEXISTS": Command(hexists, 2, 2), b"HDEL": Command(hdel, 2, ANY, True),
    b"HINCRBY": Command(hincrby, 3, 3, True), b"ZADD": Command(zadd, 3, ANY, True),
    b"ZREM": Command(zrem, 2, ANY, True), b"ZSCORE": Command(zscore, 2, 2),
    b"ZCARD": Command(zcard, 1, 1), b"ZRANGE": Command(zrange, 3, 4),
    b"ZRANGEBYSCORE": Command(zrangebyscore, 3, ANY),
}  # fmt: skip
