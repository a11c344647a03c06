"""The commands of values and of keys."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from ciel.state.bases.rows import Kind, content_of, end_of, kind_of, pack_row
from ciel.state.server.command import (
    ANY,
    INT_MAX,
    INT_MIN,
    SLICE_STEPS,
    Command,
    Slices,
    checked_key,
    first_slice,
    integer,
    pattern,
    steps_of,
    syntax_error,
)
from ciel.state.server.errors import CommandError
from ciel.state.server.resp import OK, Simple
from ciel.state.server.view import RowsView

_UNIT_US: Final = {b"EX": 1_000_000, b"PX": 1_000, b"EXAT": 1_000_000, b"PXAT": 1_000}
_KEYS_MAX: Final = 1_000_000


def get(rows: RowsView, args: list[bytes]) -> bytes | None:
    return rows.get(args[0])


def set_(rows: RowsView, args: list[bytes]) -> Any:
    """SET key value [NX|XX] [GET] [EX s|PX ms|EXAT s|PXAT ms|KEEPTTL]."""
    key, value = args[0], args[1]
    if len(args) == 2:
        rows.write(checked_key(key), b"\0" + value)
        return OK
    options = [option.upper() for option in args[2:]]
    end_us, condition, must_get, keeps = None, b"", False, False
    while options:
        option = options.pop(0)
        if option in (b"NX", b"XX") and not condition:
            condition = option
        elif option == b"GET":
            must_get = True
        elif option == b"KEEPTTL" and end_us is None:
            keeps = True
        elif option in _UNIT_US and options and end_us is None and not keeps:
            end_us = _end_us(rows, option, options.pop(0))
        else:
            raise syntax_error()
    before = rows.row(key)
    old = rows.get(key) if must_get else None
    if condition and (before is None) != (condition == b"NX"):
        return old
    end_us = end_of(before) if keeps else end_us
    rows.write(checked_key(key), pack_row(value, end_us))
    return old if must_get else OK


def _end_us(rows: RowsView, unit: bytes, text: bytes) -> int:
    number = integer(text)
    us = number * _UNIT_US[unit]
    end_us = us if unit.endswith(b"AT") else rows.now_us + us
    if number <= 0 or end_us > INT_MAX:
        raise CommandError("invalid expire time in 'set' command")
    return end_us


def setnx(rows: RowsView, args: list[bytes]) -> int:
    return int(set_(rows, [*args, b"NX"]) is OK)


def setex(rows: RowsView, args: list[bytes]) -> Any:
    return set_(rows, [args[0], args[2], b"EX", args[1]])


def psetex(rows: RowsView, args: list[bytes]) -> Any:
    return set_(rows, [args[0], args[2], b"PX", args[1]])


def getset(rows: RowsView, args: list[bytes]) -> Any:
    return set_(rows, [*args, b"GET"])


def getdel(rows: RowsView, args: list[bytes]) -> bytes | None:
    value = rows.get(args[0])
    if value is not None:
        rows.write(args[0], None)
    return value


def mget(rows: RowsView, args: list[bytes]) -> list[bytes | None]:
    """MGET: a key with a hash counts as missing."""
    return rows.collected(map(_plain, map(rows.row, args)))


def _plain(row: bytes | None) -> bytes | None:
    return None if row is None or row[0] > 1 else content_of(row)


def mset(rows: RowsView, args: list[bytes]) -> Any:
    if len(args) % 2:
        raise CommandError("wrong number of arguments for 'mset' command")
    for key, value in zip(args[::2], args[1::2], strict=True):
        rows.write(checked_key(key), b"\0" + value)
    return OK


def msetnx(rows: RowsView, args: list[bytes]) -> int:
    if any(rows.row(key) is not None for key in args[::2]):
        return 0
    mset(rows, args)
    return 1


def _add(rows: RowsView, key: bytes, by: int) -> int:
    value = rows.get(key)
    total = (0 if value is None else integer(value)) + by
    if not INT_MIN <= total <= INT_MAX:
        raise CommandError("increment or decrement would overflow")
    rows.replace(checked_key(key), b"%d" % total)
    return total


def incr(rows: RowsView, args: list[bytes]) -> int:
    return _add(rows, args[0], 1)


def decr(rows: RowsView, args: list[bytes]) -> int:
    return _add(rows, args[0], -1)


def incrby(rows: RowsView, args: list[bytes]) -> int:
    return _add(rows, args[0], integer(args[1]))


def decrby(rows: RowsView, args: list[bytes]) -> int:
    return _add(rows, args[0], -integer(args[1]))


def append(rows: RowsView, args: list[bytes]) -> int:
    value = (rows.get(args[0]) or b"") + args[1]
    rows.replace(checked_key(args[0]), value)
    return len(value)


def strlen(rows: RowsView, args: list[bytes]) -> int:
    return len(rows.get(args[0]) or b"")


# --- keys -----------------------------------------------------------------------------------------

TYPES: Final = {Kind.VALUE: b"string", Kind.HASH: b"hash", Kind.SORTED_SET: b"zset"}


def delete(rows: RowsView, args: list[bytes]) -> int:
    there = [key for key in dict.fromkeys(args) if rows.row(key) is not None]
    for key in there:
        rows.write(key, None)
    return len(there)


def exists(rows: RowsView, args: list[bytes]) -> int:
    return sum(rows.row(key) is not None for key in args)


def type_(rows: RowsView, args: list[bytes]) -> Simple:
    row = rows.row(args[0])
    return Simple(b"none" if row is None else TYPES[Kind(kind_of(row))])


def _expiry(unit_us: int, *, is_absolute: bool) -> Callable[[RowsView, list[bytes]], int]:
    def expire(rows: RowsView, args: list[bytes]) -> int:
        row, end_us = rows.row(args[0]), integer(args[1]) * unit_us
        if row is None:
            return 0
        end_us += 0 if is_absolute else rows.now_us
        if end_us > INT_MAX:
            raise CommandError("invalid expire time in 'expire' command")
        is_over = end_us <= rows.now_us
        rows.write(args[0], None if is_over else pack_row(content_of(row), end_us, kind_of(row)))
        return 1

    return expire


def persist(rows: RowsView, args: list[bytes]) -> int:
    row = rows.row(args[0])
    if row is None or end_of(row) is None:
        return 0
    rows.write(args[0], pack_row(content_of(row), None, kind_of(row)))
    return 1


def pttl(rows: RowsView, args: list[bytes]) -> int:
    row = rows.row(args[0])
    if row is None:
        return -2
    end_us = end_of(row)
    return -1 if end_us is None else (end_us - rows.now_us) // 1000


def ttl(rows: RowsView, args: list[bytes]) -> int:
    left_ms = pttl(rows, args)
    return left_ms if left_ms < 0 else (left_ms + 500) // 1000


def keys(rows: RowsView, args: list[bytes]) -> Any:
    """KEYS pattern, in slices: the keys of one moment."""
    return first_slice(_keys(rows, args[0]))


def _keys(rows: RowsView, glob: bytes) -> Slices:
    matches = pattern(glob).match
    found: list[bytes] = []
    steps = 0
    with rows.moment() as then:
        for key, row in then.user_rows():
            if matches(key.decode("latin-1")):
                if len(found) == _KEYS_MAX:
                    raise CommandError(f"more than {_KEYS_MAX:,} keys: use SCAN")
                found.append(key)
            steps += steps_of(row)
            if steps >= SLICE_STEPS:
                steps = 0
                yield
    return found


def dbsize(rows: RowsView, args: list[bytes]) -> int:
    return rows.count()


def flush(rows: RowsView, args: list[bytes]) -> Any:
    if any(option.upper() not in (b"SYNC", b"ASYNC") for option in args):
        raise syntax_error()
    rows.clear()
    return OK


def _table(rows: Sequence[tuple[bytes, Any, int, int, bool]]) -> dict[bytes, Command]:
    return {
        name: Command(call, least, most, is_write) for name, call, least, most, is_write in rows
    }


COMMANDS: Final[dict[bytes, Command]] = _table((
    (b"GET", get, 1, 1, False), (b"SET", set_, 2, ANY, True), (b"SETNX", setnx, 2, 2, True),
    (b"SETEX", setex, 3, 3, True), (b"PSETEX", psetex, 3, 3, True),
    (b"GETSET", getset, 2, 2, True), (b"GETDEL", getdel, 1, 1, True),
    (b"MGET", mget, 1, ANY, False), (b"MSET", mset, 2, ANY, True),
    (b"MSETNX", msetnx, 2, ANY, True), (b"INCR", incr, 1, 1, True), (b"DECR", decr, 1, 1, True),
    (b"INCRBY", incrby, 2, 2, True), (b"DECRBY", decrby, 2, 2, True),
    (b"APPEND", append, 2, 2, True), (b"STRLEN", strlen, 1, 1, False),
    (b"DEL", delete, 1, ANY, True), (b"UNLINK", delete, 1, ANY, True),
    (b"EXISTS", exists, 1, ANY, False), (b"TYPE", type_, 1, 1, False),
    (b"EXPIRE", _expiry(1_000_000, is_absolute=False), 2, 2, True),
    (b"PEXPIRE", _expiry(1_000, is_absolute=False), 2, 2, True),
    (b"EXPIREAT", _expiry(1_000_000, is_absolute=True), 2, 2, True),
    (b"PEXPIREAT", _expiry(1_000, is_absolute=True), 2, 2, True),
    (b"PERSIST", persist, 1, 1, True), (b"TTL", ttl, 1, 1, False), (b"PTTL", pttl, 1, 1, False),
    (b"KEYS", keys, 1, 1, False), (b"DBSIZE", dbsize, 0, 0, False),
    (b"FLUSHDB", flush, 0, 1, True), (b"FLUSHALL", flush, 0, 1, True),
))  # fmt: skip
