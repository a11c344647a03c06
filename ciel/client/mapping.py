"""Calls for each row of arguments: how a map is parted into tasks, and parted again when these take
long (ADR 62).
"""

from __future__ import annotations

import threading
import time
import weakref
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from ciel.client import bundling
from ciel.client.functions import Functions
from ciel.client.futures import ClientFuture, WaitingCall
from ciel.client.results import Results
from ciel.python import calls
from ciel.python.contents import Outcome
from ciel.python.failures import packing_error
from ciel.python.options import Options
from ciel.python.packing import UnpackedError, copy_buffers, pack_with_futures, unpack
from ciel.python.rows import each_with_its_own, with_shared

if TYPE_CHECKING:
    from ciel.client.api import Client

SLOTS_KNOWN_S: Final = 5.0
DIVISIBLE_MAX_BYTES: Final = 64 << 10
"""Rows of a map of this size are kept by the client until all were called."""


class Maps(Results):
    """The maps of one client."""

    def __init__(self, client: Client) -> None:
        super().__init__(client)
        self.functions = Functions(client.upload_content, self.dropped)
        self._waiting: list[WaitingCall] = []
        self._thread: threading.Thread | None = None
        self._slots = (0, 0.0)  # how many, and when that was so
        self._to_divide: deque[tuple[WaitingCall, int, ClientFuture[Any], Outcome]] = deque()

    @abstractmethod
    def _pack(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: Options,
        *,
        is_map: bool = False,
    ) -> WaitingCall:
        """Pack a call; raises PackingError."""

    @abstractmethod
    def _add_with_future(self, waiting: WaitingCall, name: str = "") -> ClientFuture[Any]:
        """Have a call be sent, and return its future."""

    @abstractmethod
    def _look_around(self, call: WaitingCall) -> bool:
        """Find out what a call needs that is not there; False if that will never be."""

    def _slot_count(self) -> int:
        count, at_s = self._slots
        now_s = time.monotonic()
        if not count or (
            now_s - at_s > SLOTS_KNOWN_S and threading.current_thread() is self._thread
        ):
            count = max(1, self._client.slot_count())
            self._slots = (count, now_s)
        return count

    def map_parts(
        self,
        function: Callable[..., Any],
        rows: Sequence[tuple[Any, ...]],
        options: Options,
        chunksize: int | None,
    ) -> list[ClientFuture[calls.Mapped]]:
        """Make tasks of calls for each row of arguments, `chunksize` rows each. If that is None,
        they are as large as the function is quick, and a task that takes long after all leaves its
        other rows to further tasks: their futures are the `rest` of its own.
        """
        if chunksize is not None:
            chunks = [rows[at : at + chunksize] for at in range(0, len(rows), chunksize)]
            parts = [self._part(function, chunk, options) for chunk in chunks]
            return [self._add_with_future(part) for part in parts]
        slots, row_s = self._slot_count(), self.functions.find(function, options).took_s
        size = bundling.part_rows(len(rows), slots, row_s)
        # One row for each slot shows how long a row takes.
        trials = slots if row_s is None and size > 1 else 0
        futures = []
        for at in (*range(trials), *range(trials, len(rows), size)):
            chunk = rows[at : at + 1] if at < trials else rows[at : at + size]
            for part in self._divisible_parts(function, chunk, options, row_s):
                part.rows_of_map = len(rows)
                futures.append(self._add_with_future(part))
        return futures

    def _divisible_parts(
        self,
        function: Callable[..., Any],
        rows: Sequence[tuple[Any, ...]],
        options: Options,
        row_s: float | None,
    ) -> list[WaitingCall]:
        """Pack rows of a map so that they can be divided again, if they are not known to be quick.
        Then they are small: the client keeps them until it knows that all were called.
        """
        whole = self._part(function, rows, options)
        size_bytes, most_bytes = whole.arguments.size_bytes, DIVISIBLE_MAX_BYTES
        is_quick = row_s is not None and row_s * len(rows) <= bundling.PART_S
        if len(rows) == 1 or (size_bytes > most_bytes and is_quick):
            return [whole]
        parts = [whole]
        if size_bytes > most_bytes:
            step = max(1, len(rows) * most_bytes // size_bytes)
            chunks = [rows[at : at + step] for at in range(0, len(rows), step)]
            parts = [self._part(function, chunk, options) for chunk in chunks]
            if sum(part.arguments.size_bytes for part in parts) > 2 * size_bytes:
                parts, doubled = [whole], parts  # what is large is shared by all rows
            else:
                doubled = [whole]
            for part in doubled:
                part.function.tally.submitted -= part.rows
        for part in parts:
            if part.rows > 1 and part.arguments.size_bytes <= most_bytes:
                part.arguments = copy_buffers(part.arguments)
                part.is_divisible = part.may_wait = True
        return parts

    def _part(
        self, function: Callable[..., Any], rows: Sequence[tuple[Any, ...]], options: Options
    ) -> WaitingCall:
        """Pack one task that calls a function with each row."""
        part = self._pack(function, with_shared(rows), {}, options, is_map=True)
        part.is_map, part.is_usual, part.may_wait, part.rows = True, False, False, len(rows)
        part.function.tally.submitted += len(rows) - 1
        return part

    def _divide(
        self, call: WaitingCall, start: int, future: ClientFuture[Any], outcome: Outcome
    ) -> None:
        self._to_divide.append((call, start, future, outcome))
        self._remind()  # what was packed by others is not unpacked by the connection's thread

    def _divide_all(self) -> None:
        while self._to_divide:
            try:
                call, start, future, outcome = self._to_divide.popleft()
            except IndexError:  # another thread was as quick
                return
            if not future.cancelled():
                future.rest, pieces = self._pieces(call, start)
                with self._lock:
                    self._waiting += pieces
            future.settle(outcome)

    def _pieces(
        self, call: WaitingCall, start: int
    ) -> tuple[list[ClientFuture[calls.Mapped]], list[WaitingCall]]:
        """Make calls of the rows of a map from `start` on, as many in each as its function is
        quick; return their futures as well.
        """
        futures: list[ClientFuture[calls.Mapped]] = []
        pieces: list[WaitingCall] = []
        name = call.function.name
        try:
            args, _ = unpack(call.arguments.head, call.arguments.buffers, call.taken)
            rows, has_shared = args
            if has_shared:
                rows = list(each_with_its_own(rows, bytearray, call.taken))
            known_s = call.function.took_s
            size = bundling.part_rows(call.rows_of_map, self._slot_count(), known_s)
            for at in range(start, len(rows), size):
                chunk = rows[at : at + size]
                piece = WaitingCall(
                    call.function, call.options, *pack_with_futures((with_shared(chunk), {}))
                )
                piece.is_map, piece.is_usual, piece.rows = True, False, len(chunk)
                piece.rows_of_map = call.rows_of_map
                piece.is_divisible, piece.may_wait = len(chunk) > 1, False
                piece.arguments = copy_buffers(piece.arguments)
                futures.append(ClientFuture(self, name, piece))
                piece.futures = [weakref.ref(futures[-1])]
                pieces.append(piece)
        except Exception as error:  # of anybody's __reduce__ or __setstate__
            text = UnpackedError(f"they cannot be packed again: {type(error).__name__}: {error}")
            futures = [ClientFuture(self, name)]
            futures[0].fail(packing_error(f"the arguments of {name}", text))
            return futures, []
        return futures, pieces

    def _as_parts(self, waiting: list[WaitingCall]) -> list[WaitingCall]:
        """Divide maps that were packed before it was known how long they take."""
        found: list[WaitingCall] = []
        for call in waiting:
            future = call.futures[0]()
            known_s = call.call_s if call.is_divisible else None
            if known_s is None or future is None or call.rows * known_s <= 2 * bundling.PART_S:
                found.append(call)
                continue
            call.is_sent = True  # nor will it be, as a whole
            future.rest, pieces = self._pieces(call, 0)
            future.never_sent()
            future.set_result(calls.Mapped([], None))
            found += [piece for piece in pieces if self._look_around(piece)]
        return found
