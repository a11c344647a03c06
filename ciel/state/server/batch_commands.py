"""The commands of ciel: batches, and the rows of a range (docs/protocol/kv.md)."""

from __future__ import annotations

from typing import Any, Final

from ciel.state.bases.wire import WORDS, unpack_steps
from ciel.state.batches import Request, carry_out_once, check
from ciel.state.errors import RefusedError, StaleRequestError
from ciel.state.server.command import ANY, Command, integer
from ciel.state.server.errors import CommandError
from ciel.state.server.view import RowsView

RANGE_BYTES: Final = 4 << 20
"""A reply with several rows has at most this size."""
_PART_BYTES: Final = 16
"""What a key or a value has besides in a reply, at most."""
CLIENT_MAX_BYTES: Final = 256


def batch(rows: RowsView, args: list[bytes]) -> Any:
    """CIEL.BATCH client number seconds step …: the results are kept for some seconds. A batch with
    an empty client has no number.
    """
    client, number, keep_s, *parts = args
    steps = unpack_steps(parts)
    check(steps)
    request = Request(client, integer(number), integer(keep_s)) if client else None
    if len(client) > CLIENT_MAX_BYTES:
        raise CommandError(f"the name of a client has at most {CLIENT_MAX_BYTES} bytes")
    try:
        return carry_out_once(steps, rows, request)
    except RefusedError as error:
        raise CommandError(f"{WORDS[type(error)]} {error.step}", "REFUSED") from None
    except StaleRequestError as error:
        raise CommandError(str(error.latest), "STALE") from None


def read_range(rows: RowsView, args: list[bytes]) -> list[Any]:
    """CIEL.RANGE first last count: 1 if the range ends with these rows, else 0; keys and values.

    An empty `last`: up to the end.
    """
    first, last, count = args[0], args[1] or b"\xff", integer(args[2])
    reply: list[Any] = [1]
    size_bytes = 0
    most_bytes = min(RANGE_BYTES, rows.limits.reply_bytes // 2)
    for key, value in rows.rows(first, min(last, b"\xff")):
        size_bytes += len(key) + len(value) + 2 * _PART_BYTES
        if len(reply) > 2 * count or (size_bytes > most_bytes and len(reply) > 1):
            reply[0] = 0
            break
        reply += (key, value)
    return reply


COMMANDS: Final[dict[bytes, Command]] = {
    b"CIEL.BATCH": Command(batch, 3, ANY, True),
    b"CIEL.RANGE": Command(read_range, 3, 3),
}
