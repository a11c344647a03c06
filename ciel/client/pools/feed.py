"""Calls a function with the items of an iterable, reading a bounded number of items ahead.

The bound counts from the results that the caller has taken. A thread reads the iterable, since each
item may take long. The iterator of the results reports to the thread by a queue, which a destructor
may use: the thread ends when the program drops the iterator.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from multiprocessing import TimeoutError as TimeoutError
from typing import Any, Final

from ciel.client.calls.bundling import TRIALS_PER_SLOT
from ciel.client.calls.map_results import values_of
from ciel.client.pools.executor import failed, when_done
from ciel.python.failures import PackingError

Rows = list[tuple[Any, ...]]

ITEMS_AHEAD: Final = 1024
"""Enough to fill bundles with calls that take no time."""
CHUNKS_AHEAD_PER_SLOT: Final = 4
"""Enough to keep the slots busy if the chunks are large."""


class Feed:
    """Submits a call with each chunk of rows.

    `begin` submits a chunk, and returns its future. If it raises PackingError, that is the result
    of the chunk. Any other error of `begin` or of the iterable is the last result. Without
    `in_thread`, `take` reads the iterable.
    """

    def __init__(
        self,
        chunks: Iterator[Rows],
        begin: Callable[[Rows], Any],
        chunksize: int,
        slots: int,
        *,
        in_thread: bool,
    ) -> None:
        self.coming: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
        """Futures that are done, with their numbers; at the end -1, with their count."""
        self._chunks = chunks
        self._begin = begin
        # Few at first, until the client knows how long a call takes.
        self._first = TRIALS_PER_SLOT * slots
        self._most = max(self._first, ITEMS_AHEAD // chunksize, CHUNKS_AHEAD_PER_SLOT * slots)
        self._submitted = self._taken = 0
        self._reports: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._is_bounded = True
        self._is_unread = self._is_stopped = self._is_over = False
        self._thread: threading.Thread | None = None
        if in_thread:
            self._thread = threading.Thread(target=self._feed, name="ciel-feed", daemon=True)
            self._thread.start()

    def take(self, until_s: float | None) -> tuple[int, Any]:
        """Return the next item of `coming`; raises `queue.Empty` at the time `until_s`."""
        if self._thread is None:
            self._feed()
        return self.coming.get(timeout=_left_s(until_s))

    def taken(self) -> None:
        """Note that a result was taken, so that there is room for another call."""
        if self._thread is None:
            self._taken += 1
        else:
            self._reports.put(1)

    def dropped(self, *, unread: bool) -> None:
        """Note that the iterator was dropped.

        If it was never read (`unread`), the program wants the calls and not their results, so all
        calls run. Otherwise no more calls are submitted.
        """
        if unread:
            self._is_unread = True
        else:
            self._is_stopped = True
        self._reports.put(0)

    def stop(self) -> None:
        """Submit no more calls."""
        self._is_stopped = True
        self._reports.put(0)

    def finish(self) -> None:
        """Submit all calls, however far ahead, and return when they are submitted.

        The caller may be the thread that takes results.
        """
        self._is_bounded = False
        self._reports.put(0)
        if self._thread is None:
            self._feed()
        else:
            self._thread.join()

    def is_over(self) -> bool:
        """Whether no more calls will be submitted."""
        return self._is_over

    def _feed(self) -> None:
        """Submit calls as far as there is room; in the thread, to the end."""
        while not self._is_over and self._has_room():
            try:
                chunk = None if self._is_stopped else next(self._chunks, None)
                if self._is_stopped:
                    raise CancelledError
                if chunk is None:
                    self._end()
                else:
                    self._expect(self._submit(chunk))
            except BaseException as error:  # the iterator raises it
                self._expect(failed(error))
                self._end()

    def _has_room(self) -> bool:
        while True:
            ahead = self._submitted - self._taken
            if self._is_stopped or not self._is_bounded:
                return True
            if ahead < min(self._first + self._taken, self._most):
                return True
            if self._thread is None:
                return False
            if self._is_unread:
                self.coming.get()
                self._taken += 1
            else:
                self._taken += self._reports.get()

    def _submit(self, chunk: Rows) -> Any:
        try:
            return self._begin(chunk)
        except PackingError as error:
            return failed(error)

    def _expect(self, future: Any) -> None:
        number, coming = self._submitted, self.coming
        self._submitted += 1
        if isinstance(future, Future):
            when_done(future, lambda future: coming.put((number, future)))
        else:
            coming.put((number, future))  # a task computes it when its result is requested

    def _end(self) -> None:
        self._is_over = True
        self._chunks = iter(())  # closes a generator
        self.coming.put((-1, self._submitted))


class FedResults(Iterator[Any]):
    """The results of a feed.

    `in_order`: in the order of the items, otherwise as they arrive. `in_chunks`: each future has a
    `Mapped`. The iterator keeps `owner` alive.
    """

    def __init__(self, feed: Feed, *, in_order: bool, in_chunks: bool, owner: Any) -> None:
        self._feed = feed
        self._in_order = in_order
        self._in_chunks = in_chunks
        self._owner = owner
        self._early: dict[int, Any] = {}
        self._next = 0
        self._count: int | None = None
        self._values: Iterator[Any] = iter(())  # of the current chunk
        self._count_before = 0  # how many results the earlier chunks had
        self._was_read = False

    def __next__(self) -> Any:
        return self.next()

    def next(self, timeout: float | None = None) -> Any:
        """Return the next result; raises StopIteration, and `multiprocessing.TimeoutError`."""
        self._was_read = True
        until_s = None if timeout is None else time.monotonic() + timeout
        while (value := next(self._values, _END)) is _END:
            found = self._future(until_s).result()
            if not self._in_chunks:
                return found
            before = self._count_before
            self._count_before += len(found.values)
            self._values = values_of(found, before if self._in_order else None)
        return value

    def _future(self, until_s: float | None) -> Any:
        while True:
            wanted = self._next if self._in_order else next(iter(self._early), -1)
            if wanted in self._early:
                self._next += 1
                self._feed.taken()
                return self._early.pop(wanted)
            if self._count is not None and self._next >= self._count:
                raise StopIteration
            try:
                number, what = self._feed.take(until_s)
            except queue.Empty:
                raise TimeoutError from None
            if number < 0:
                self._count = what
            else:
                self._early[number] = what

    def __del__(self) -> None:
        self._feed.dropped(unread=not self._was_read)


_END: Final = object()


def _left_s(until_s: float | None) -> float | None:
    return None if until_s is None else max(0.0, until_s - time.monotonic())
