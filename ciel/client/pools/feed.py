"""Calls of the items of an iterable, which is read only so far ahead of who reads the results.

A thread reads the iterable, as each item may take long. It hears of the reader by a queue, into
which a destructor may put: so who drops the reader ends the reading.
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
from ciel.client.pools.executor import failed, when_done
from ciel.python.calls import Mapped
from ciel.python.failures import PackingError, error_of_map, unpack_error

Rows = list[tuple[Any, ...]]

ITEMS_AHEAD: Final = 1024
"""So many keep the bundles full of calls that take no time."""
CHUNKS_AHEAD_PER_SLOT: Final = 4
"""So many keep the slots busy where the chunks are large."""


class Feed:
    """Begins a call with each chunk of rows. `begin` returns its future; PackingError is that
    chunk's own result, and whatever else it or the iterable raises is the last one.

    Without `in_thread` the chunks are taken by whoever asks for a result.
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
        """Futures that are done, with their numbers; at last -1, with their count."""
        self._chunks = chunks
        self._begin = begin
        # Few at first: while nobody knows what a call takes, many would travel in one bundle.
        self._first = TRIALS_PER_SLOT * slots
        self._most = max(self._first, ITEMS_AHEAD // chunksize, CHUNKS_AHEAD_PER_SLOT * slots)
        self._begun = self._taken = 0
        self._news: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._is_bounded = True
        self._is_unread = self._is_stopped = self._is_over = False
        self._thread: threading.Thread | None = None
        if in_thread:
            self._thread = threading.Thread(target=self._feed, name="ciel-feed", daemon=True)
            self._thread.start()

    def take(self, until_s: float | None) -> tuple[int, Any]:
        """Return what comes next; raises `queue.Empty` when it is later than `until_s`."""
        if self._thread is None:
            self._feed()
        return self.coming.get(timeout=_left_s(until_s))

    def taken(self) -> None:
        """A result was taken: there is room for another call."""
        if self._thread is None:
            self._taken += 1
        else:
            self._news.put(1)

    def dropped(self, *, unread: bool) -> None:
        """Nobody will read on. Who has not even begun wants the calls alone, and all of them."""
        if unread:
            self._is_unread = True
        else:
            self._is_stopped = True
        self._news.put(0)

    def stop(self) -> None:
        """Begin nothing more."""
        self._is_stopped = True
        self._news.put(0)

    def finish(self) -> None:
        """Wait until all is begun, however far ahead that is: the reader may be who waits here."""
        self._is_bounded = False
        self._news.put(0)
        if self._thread is None:
            self._feed()
        else:
            self._thread.join()

    def is_over(self) -> bool:
        """Tell whether nothing more will be begun."""
        return self._is_over

    def _feed(self) -> None:
        """Begin calls as far as there is room; in a thread, to the end."""
        while not self._is_over and self._has_room():
            try:
                chunk = None if self._is_stopped else next(self._chunks, None)
                if self._is_stopped:
                    raise CancelledError
                if chunk is None:
                    self._end()
                else:
                    self._expect(self._begun_with(chunk))
            except BaseException as error:  # it is for the reader
                self._expect(failed(error))
                self._end()

    def _has_room(self) -> bool:
        while True:
            ahead = self._begun - self._taken
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
                self._taken += self._news.get()

    def _begun_with(self, chunk: Rows) -> Any:
        try:
            return self._begin(chunk)
        except PackingError as error:
            return failed(error)

    def _expect(self, future: Any) -> None:
        number, coming = self._begun, self.coming
        self._begun += 1
        if isinstance(future, Future):
            when_done(future, lambda future: coming.put((number, future)))
        else:
            coming.put((number, future))  # a task's own is computed when it is asked for

    def _end(self) -> None:
        self._is_over = True
        self._chunks = iter(())  # a generator ends here
        self.coming.put((-1, self._begun))


class FedResults(Iterator[Any]):
    """The results of what a feed begins, as they come. `in_chunks`: each is a `Mapped`. `owner` is
    kept as long as this is.
    """

    def __init__(self, feed: Feed, *, in_order: bool, in_chunks: bool, owner: Any) -> None:
        self._feed = feed
        self._in_order = in_order
        self._in_chunks = in_chunks
        self._owner = owner
        self._early: dict[int, Any] = {}
        self._next = 0
        self._count: int | None = None
        self._values: list[Any] = []
        self._error: BaseException | None = None
        self._taken = 0  # of the results in chunks
        self._was_read = False

    def __next__(self) -> Any:
        return self.next()

    def next(self, timeout: float | None = None) -> Any:
        """Return the next result; raises StopIteration, and `multiprocessing.TimeoutError`."""
        self._was_read = True
        until_s = None if timeout is None else time.monotonic() + timeout
        while not self._values:
            if self._error is not None:
                raised, self._error = self._error, None
                raise raised
            found = self._future(until_s).result()
            if not self._in_chunks:
                return found
            self._take(found)
        return self._values.pop()

    def _take(self, mapped: Mapped) -> None:
        self._values = mapped.values
        self._values.reverse()
        self._taken += len(mapped.values)
        if (error := mapped.error) is not None:
            in_order = self._in_order
            self._error = error_of_map(error, self._taken) if in_order else unpack_error(error)

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


def _left_s(until_s: float | None) -> float | None:
    return None if until_s is None else max(0.0, until_s - time.monotonic())
