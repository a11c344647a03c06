"""Divides the rows of a map into tasks, and divides tasks that take too long again (ADR 62)."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, Protocol

from ciel.client.calls import bundling
from ciel.client.calls.functions import Functions
from ciel.client.calls.futures import ClientFuture, Owner
from ciel.client.calls.pending import PendingCall, find_dependencies
from ciel.python.calls import Mapped
from ciel.python.failures import packing_error
from ciel.python.options import Options
from ciel.python.packing import UnpackedError, copy_buffers, pack_with_futures, unpack
from ciel.python.rows import each_with_its_own, with_shared

SLOTS_KNOWN_S: Final = 5.0
DIVISIBLE_MAX_BYTES: Final = 64 << 10
"""The client keeps the packed rows of a task up to this size until all of them were called, so that
it can divide them again.
"""


class Pack(Protocol):
    """Packs a call; raises PackingError."""

    def __call__(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: Options,
        *,
        is_map: bool = False,
    ) -> PendingCall: ...


class SlotCount:
    """The number of slots of the cluster.

    The client queries the master once, and then at most every few seconds.
    """

    def __init__(self, ask: Callable[[], int]) -> None:
        self.last = 0
        """The last answer; 0 before the first."""
        self._ask = ask
        self._asked_s = 0.0

    def get(self, *, may_ask: bool = False) -> int:
        """Return the number of slots. `may_ask`: the calling thread may wait for a newer answer."""
        now_s = time.monotonic()
        if not self.last or (may_ask and now_s - self._asked_s > SLOTS_KNOWN_S):
            self.last = max(1, self._ask())
            self._asked_s = now_s
        return self.last


class Maps:
    """Creates the tasks of one client's maps. Thread-safe."""

    def __init__(self, owner: Owner, functions: Functions, pack: Pack, slots: SlotCount) -> None:
        self._owner = owner
        self._functions = functions
        self._pack = pack
        self._slots = slots

    def parts(
        self,
        function: Callable[..., Any],
        rows: Sequence[tuple[Any, ...]],
        options: Options,
        chunksize: int | None,
    ) -> Iterable[PendingCall]:
        """Return the tasks of a map, `chunksize` rows each.

        If `chunksize` is None, the measured time of a call determines the number of rows. A task
        that takes longer than expected stops, and `further_parts` creates tasks for its remaining
        rows.
        """
        if chunksize is not None:
            chunks = [rows[at : at + chunksize] for at in range(0, len(rows), chunksize)]
            return [self._part(function, chunk, options) for chunk in chunks]
        return self._sized_parts(function, rows, options)

    def _sized_parts(
        self, function: Callable[..., Any], rows: Sequence[tuple[Any, ...]], options: Options
    ) -> Iterator[PendingCall]:
        slots, row_s = self._slots.get(), self._functions.find(function, options).took_s
        size = bundling.part_rows(len(rows), slots, row_s)
        # One row for each slot shows how long a row takes.
        trials = slots if row_s is None and size > 1 else 0
        for at in (*range(trials), *range(trials, len(rows), size)):
            chunk = rows[at : at + 1] if at < trials else rows[at : at + size]
            for part in self._divisible_parts(function, chunk, options, row_s):
                part.rows_of_map = len(rows)
                yield part

    def _divisible_parts(
        self,
        function: Callable[..., Any],
        rows: Sequence[tuple[Any, ...]],
        options: Options,
        row_s: float | None,
    ) -> list[PendingCall]:
        """Pack rows so that they can be divided again, unless their calls are known to be short.

        Divisible parts are small, since the client keeps their rows until all were called.
        """
        whole = self._part(function, rows, options)
        size_bytes, most_bytes = whole.arguments.size_bytes, DIVISIBLE_MAX_BYTES
        is_short = row_s is not None and row_s * len(rows) <= bundling.PART_S
        if len(rows) == 1 or (size_bytes > most_bytes and is_short):
            return [whole]
        parts = [whole]
        if size_bytes > most_bytes:
            step = max(1, len(rows) * most_bytes // size_bytes)
            chunks = [rows[at : at + step] for at in range(0, len(rows), step)]
            parts = [self._part(function, chunk, options) for chunk in chunks]
            if sum(part.arguments.size_bytes for part in parts) > 2 * size_bytes:
                parts, unused = [whole], parts  # all rows share something large
            else:
                unused = [whole]
            for part in unused:
                part.function.tally.submitted -= part.rows
        for part in parts:
            if part.rows > 1 and part.arguments.size_bytes <= most_bytes:
                part.arguments = copy_buffers(part.arguments)
                part.is_divisible = part.may_wait = True
        return parts

    def _part(
        self, function: Callable[..., Any], rows: Sequence[tuple[Any, ...]], options: Options
    ) -> PendingCall:
        """Pack one task that calls a function with each row."""
        part = self._pack(function, with_shared(rows), {}, options, is_map=True)
        part.is_map, part.may_be_bundled, part.may_wait, part.rows = True, False, False, len(rows)
        part.function.tally.submitted += len(rows) - 1
        return part

    def further_parts(
        self, call: PendingCall, start: int
    ) -> tuple[list[ClientFuture[Mapped]], list[PendingCall]]:
        """Create tasks for the rows of a task from `start` on.

        The measured time of a call determines how many rows each task gets. Return the futures of
        the tasks, and the calls to send.
        """
        futures: list[ClientFuture[Mapped]] = []
        parts: list[PendingCall] = []
        name = call.function.name
        try:
            args, _ = unpack(call.arguments.head, call.arguments.buffers, call.taken)
            rows, has_shared = args
            if has_shared:
                rows = list(each_with_its_own(rows, bytearray, call.taken))
            known_s = call.function.took_s
            size = bundling.part_rows(call.rows_of_map, self._slots.get(), known_s)
            for at in range(start, len(rows), size):
                chunk = rows[at : at + size]
                part = PendingCall(
                    call.function, call.options, *pack_with_futures((with_shared(chunk), {}))
                )
                part.is_map, part.may_be_bundled, part.rows = True, False, len(chunk)
                part.rows_of_map = call.rows_of_map
                part.is_divisible, part.may_wait = len(chunk) > 1, False
                part.arguments = copy_buffers(part.arguments)
                futures.append(ClientFuture(self._owner, name, part))
                part.futures = [weakref.ref(futures[-1])]
                parts.append(part)
        except Exception as error:  # a user's __reduce__ or __setstate__ may raise anything
            text = UnpackedError(
                f"they cannot be packed again for smaller tasks: {type(error).__name__}: {error}"
            )
            futures = [ClientFuture(self._owner, name)]
            futures[0].fail(packing_error(f"the arguments of {name}", text))
            return futures, []
        return futures, parts

    def divide_slow(self, pending: list[PendingCall]) -> list[PendingCall]:
        """Divide the maps that would run too long, by the current average time of a call.

        Return the calls to send.
        """
        found: list[PendingCall] = []
        for call in pending:
            future = call.futures[0]()
            known_s = call.call_s if call.is_divisible else None
            if known_s is None or future is None or call.rows * known_s <= 2 * bundling.PART_S:
                found.append(call)
                continue
            call.is_sent = True  # its rows are sent by other calls
            future.rest, parts = self.further_parts(call, 0)
            future.never_sent()
            future.set_result(Mapped([], None))
            found += [part for part in parts if find_dependencies(part)]
        return found
