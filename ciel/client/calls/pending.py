"""Holds calls that the client has packed, but not sent yet."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from typing import Any

from ciel.client.calls.functions import PackedFunction
from ciel.python.options import USUAL, Options
from ciel.python.packing import Packed


class PendingCall:
    """A call that waits to be sent.

    `taken`: the futures in its arguments. `futures`: weak references to the futures of its results;
    a call is not sent if the program holds none of them. `is_sent`: the call no longer waits: it
    was sent, or it never will be, since nothing needs its results or it cannot be sent. `is_held`:
    the client holds it back, to send it in a bundle with later calls. `is_divisible`: a map whose
    rows may be sent in several tasks. `rows`: how many calls it represents; `rows_of_map`: the
    number of rows of its whole map. `may_be_bundled`: it has the default options, and is neither a
    map, nor a stream, nor `raw`. `may_wait`: its arguments are packed and small, so the client may
    hold it back.

    `producers`: the pending calls whose results it takes; `outside`: the ids of other objects that
    it needs and that do not exist yet. Once a `BundleWriter` has written the call, `lot` is the
    number of its lot in the bundle, and `place` the position of its first result in the lot;
    before, both are -1.
    """

    __slots__ = (
        "arguments", "call_s", "function", "futures", "has_cancelled", "is_divisible", "is_held",
        "is_map", "is_sent", "lot", "may_be_bundled", "may_wait", "options", "outside", "place",
        "producers", "raw", "rows", "rows_of_map", "size_bytes", "taken",
    )  # fmt: skip

    def __init__(
        self, function: PackedFunction, options: Options, arguments: Packed, taken: list[Any]
    ) -> None:
        self.function = function
        self.options = options
        self.arguments = arguments
        self.taken: Sequence[Any] = (
            taken or ()
        )  # thousands of empty lists would cause a garbage collection
        self.is_sent = self.is_held = self.is_divisible = False
        self.is_map = self.raw = self.has_cancelled = False
        self.rows = self.rows_of_map = 1
        self.futures: list[weakref.ref[Any]] = []
        self.size_bytes = len(arguments.head)
        self.may_be_bundled = options is USUAL and not function.streams
        self.may_wait = self.may_be_bundled and not arguments.buffers
        self.call_s: float | None = None
        self.producers: Sequence[PendingCall] = ()
        self.outside: frozenset[str] = frozenset()
        self.lot = self.place = -1

    @property
    def streams(self) -> bool:
        """Whether the task sends each item as soon as the function yields it.

        Not in a map: there all items of a call are one result.
        """
        return self.function.streams and not self.is_map

    def is_dropped(self) -> bool:
        """Whether the program has dropped or cancelled all futures of the call."""
        for known in self.futures:
            future = known()
            if future is not None and not future.is_cancelled:
                return False
        return True


def still_needed(calls: list[PendingCall]) -> list[PendingCall]:
    """Return the calls whose results the program or another call of the list needs.

    The client never sends the other calls: mark them, and notify their futures.
    """
    if not any(call.is_dropped() for call in calls):
        return calls
    found: list[PendingCall] = []
    needed: set[PendingCall | None] = set()
    for call in reversed(calls):  # a call follows the calls whose results it takes
        is_dropped = call.is_dropped()
        if is_dropped and call not in needed:
            call.is_sent = True
            if not call.has_cancelled:  # else `cancel` has subtracted it
                call.function.tally.submitted -= call.rows
            for known in call.futures:
                if (future := known()) is not None:
                    future.never_sent()
            continue
        if is_dropped and call.has_cancelled:
            call.function.tally.submitted += call.rows  # it runs after all
        found.append(call)
        needed.update([future.pending_call for future in call.taken])
    found.reverse()
    return found


def fail_unsent(calls: Iterable[PendingCall], error: BaseException) -> None:
    """Fail the futures of calls that cannot be sent."""
    for call in calls:
        call.is_sent = True
        for known in call.futures:
            future = known()
            if future is not None and future.lot is None:
                future.fail(error)


def find_dependencies(call: PendingCall) -> bool:
    """Note which of the results that a call takes do not exist yet.

    If one of them will never exist, fail the call and return False.
    """
    call.call_s = call.function.took_s
    if not call.taken:
        return True
    unsent, outside = [], set()
    for future in call.taken:
        other = future.pending_call
        if other is not None:
            unsent.append(other)
        elif future.lot is None:
            fail_unsent([call], future.unsent_error())
            return False
        elif not future.lot.exists:
            outside.add(str(future.lot.id))
    call.producers, call.outside = unsent, frozenset(outside)
    return True
