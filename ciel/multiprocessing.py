"""A replacement for `multiprocessing.Pool` that runs calls in a cluster."""

from __future__ import annotations

import builtins
import os
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError, Future
from multiprocessing import TimeoutError as TimeoutError
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from ciel.client.calls.map_results import chunks_of, rest_of, values_of
from ciel.client.pools.executor import Executor, failed, slots_of, when_done
from ciel.client.pools.feed import FedResults, Feed
from ciel.client.pools.shared import session_here
from ciel.python.calls import Mapped
from ciel.python.tasks import split_task

if TYPE_CHECKING:
    from ciel.client import Client

__all__ = ["AsyncResult", "Pool", "TimeoutError", "cpu_count"]

RUN, CLOSE, TERMINATE = "RUN", "CLOSE", "TERMINATE"


def cpu_count() -> int:
    """Return the number of slots of the cluster; within a task, the number of CPUs of this host."""
    return slots_of(session_here(), len(os.sched_getaffinity(0)))


class Pool:
    """Runs calls in a cluster, with the methods of `multiprocessing.Pool`.

    `processes`: how many calls may run at once; the default is the cluster's number of slots.
    `client`: the same default as in `ciel.Executor`. `initializer` runs in each process before its
    first call. The cluster manages its processes, so `maxtasksperchild` and `context` have no
    effect.
    """

    def __init__(
        self,
        processes: int | None = None,
        initializer: Callable[..., object] | None = None,
        initargs: tuple[Any, ...] = (),
        maxtasksperchild: int | None = None,
        context: Any = None,
        *,
        client: Client | None = None,
    ) -> None:
        if processes is not None and processes < 1:
            raise ValueError("Number of processes must be at least 1")
        if maxtasksperchild is not None and (
            not isinstance(maxtasksperchild, int) or maxtasksperchild <= 0
        ):
            raise ValueError("maxtasksperchild must be a positive int or None")
        if initializer is not None and not callable(initializer):
            raise TypeError("initializer must be a callable")
        self._state = "INIT"
        self._executor = Executor(
            processes, client=client, initializer=initializer, initargs=tuple(initargs)
        )
        self._process_count = processes
        self._feeds: list[Feed] = []
        self._state = RUN

    # --- calls ------------------------------------------------------------------------------------

    def apply(self, func: Callable[..., Any], args: Iterable[Any] = (), kwds: Any = {}) -> Any:  # noqa: B006  # as in multiprocessing, and only read
        """Call a function, and wait for its result."""
        return self.apply_async(func, args, kwds).get()

    def apply_async(
        self,
        func: Callable[..., Any],
        args: Iterable[Any] = (),
        kwds: Any = {},  # noqa: B006  # as in multiprocessing, and only read
        callback: Callable[[Any], object] | None = None,
        error_callback: Callable[[BaseException], object] | None = None,
    ) -> AsyncResult:
        """Call a function; return its `AsyncResult`. `callback` is called with the value,
        `error_callback` with the exception. The thread that receives results calls them, so they
        must not wait for further results.
        """
        self._require_running()
        result = AsyncResult(1, callback, error_callback, lambda values: values[0])
        result._add_part(self._executor.submit(func, *args, **kwds), 0)
        return result

    def map(
        self, func: Callable[..., Any], iterable: Iterable[Any], chunksize: int | None = None
    ) -> list[Any]:
        """Call a function with every item; return all results."""
        values: list[Any] = self.map_async(func, iterable, chunksize).get()
        return values

    def map_async(
        self,
        func: Callable[..., Any],
        iterable: Iterable[Any],
        chunksize: int | None = None,
        callback: Callable[[Any], object] | None = None,
        error_callback: Callable[[BaseException], object] | None = None,
    ) -> AsyncResult:
        """Call a function with every item; see `apply_async`."""
        rows = ((item,) for item in iterable)
        return self._map_async(func, rows, chunksize, callback, error_callback)

    def starmap(
        self,
        func: Callable[..., Any],
        iterable: Iterable[Iterable[Any]],
        chunksize: int | None = None,
    ) -> list[Any]:
        """Call a function with the items of every item as arguments; return all results."""
        values: list[Any] = self.starmap_async(func, iterable, chunksize).get()
        return values

    def starmap_async(
        self,
        func: Callable[..., Any],
        iterable: Iterable[Iterable[Any]],
        chunksize: int | None = None,
        callback: Callable[[Any], object] | None = None,
        error_callback: Callable[[BaseException], object] | None = None,
    ) -> AsyncResult:
        """Call a function with the items of every item as arguments; see `apply_async`."""
        return self._map_async(func, map(tuple, iterable), chunksize, callback, error_callback)

    def imap(
        self, func: Callable[..., Any], iterable: Iterable[Any], chunksize: int = 1
    ) -> Iterator[Any]:
        """Call a function with every item; yield the results in order.

        A thread reads the items and starts calls, up to some hundreds ahead of the results. It goes
        on to the last item if the iterator is dropped unread, or `join` is called. Dropping a
        partly read iterator stops it.
        """
        return self._imap(func, iterable, chunksize, in_order=True)

    def imap_unordered(
        self, func: Callable[..., Any], iterable: Iterable[Any], chunksize: int = 1
    ) -> Iterator[Any]:
        """Call a function like `imap`, and yield results as they complete."""
        return self._imap(func, iterable, chunksize, in_order=False)

    def _map_async(
        self,
        func: Callable[..., Any],
        rows: Iterable[tuple[Any, ...]],
        chunksize: int | None,
        callback: Callable[[Any], object] | None,
        error_callback: Callable[[BaseException], object] | None,
    ) -> AsyncResult:
        self._require_running()
        try:
            parts = self._executor.map_parts(func, list(rows), chunksize)
        except RuntimeError:
            raise
        except Exception as error:  # any exception of a user's __reduce__
            parts = [failed(error)]
        result = AsyncResult(len(parts), callback, error_callback, _join_parts)
        for number, part in enumerate(parts):
            result._add_part(part, number)
        return result

    def _imap(
        self, func: Callable[..., Any], iterable: Iterable[Any], chunksize: int, in_order: bool
    ) -> Iterator[Any]:
        self._require_running()
        if chunksize < 1:
            raise ValueError(f"Chunksize must be 1+, not {chunksize:n}")
        if split_task(func)[1].returns != 1:
            raise ValueError("the functions of a map return one value each")
        in_chunks, executor = chunksize > 1, self._executor

        def begin(chunk: list[tuple[Any, ...]]) -> Any:
            if in_chunks:
                return executor.map_parts(func, chunk, chunksize)[0]
            return executor.submit(func, *chunk[0])

        feed = Feed(
            chunks_of(((item,) for item in iterable), chunksize),
            begin,
            chunksize,
            executor.slot_count(),
            in_thread=not executor.is_of_task,
        )
        self._feeds = [other for other in self._feeds if not other.is_over()] + [feed]
        return FedResults(feed, in_order=in_order, in_chunks=in_chunks, owner=self)

    # --- shutdown ---------------------------------------------------------------------------------

    def close(self) -> None:
        """Accept no further calls; accepted ones run to their end."""
        if self._state == RUN:
            self._state = CLOSE

    def terminate(self) -> None:
        """Accept no further calls, and stop running ones."""
        self._state = TERMINATE
        for feed in self._feeds:
            feed.stop()
        self._executor.terminate()

    def join(self) -> None:
        """Wait until all calls have ended; raises ValueError before `close` or `terminate`."""
        if self._state == RUN:
            raise ValueError("Pool is still running")
        for feed in self._feeds:
            feed.finish()
        self._executor.shutdown(wait=True)

    def __enter__(self) -> Self:
        self._require_running()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.terminate()

    def __del__(self) -> None:
        if getattr(self, "_state", "") == RUN:
            warnings.warn(
                f"unclosed running multiprocessing pool {self!r}",
                ResourceWarning,
                source=self,
                stacklevel=2,
            )

    def __repr__(self) -> str:
        size = "" if self._process_count is None else f" pool_size={self._process_count}"
        return f"<ciel.multiprocessing.Pool state={self._state}{size}>"

    def __reduce__(self) -> Any:
        raise NotImplementedError(
            "pool objects cannot be passed between processes or pickled; a task has 'ciel.spawn'"
        )

    def _require_running(self) -> None:
        if self._state != RUN:
            raise ValueError("Pool not running")


def _join_parts(parts: list[Mapped]) -> list[Any]:
    """Return the results of all parts; raises the first part's exception, if any."""
    joined: list[Any] = []
    for part in parts:
        joined += values_of(part, len(joined))
    return joined


class AsyncResult:
    """The result of one or more calls, like `multiprocessing.pool.AsyncResult`."""

    def __init__(
        self,
        count: int,
        callback: Callable[[Any], object] | None,
        error_callback: Callable[[BaseException], object] | None,
        join: Callable[[list[Any]], Any],
    ) -> None:
        self._callback = callback
        self._error_callback = error_callback
        self._join = join
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self._of_task: list[tuple[Any, Any]] = []  # futures within a task, run on demand
        self._parts: dict[tuple[int, ...], Any] = {}  # by position; parts may be nested
        self._missing = count
        self._value: Any = None
        self._error: BaseException | None = None
        if not count:
            self._settle(None)

    def get(self, timeout: float | None = None) -> Any:
        """Return the result, or raise the call's exception. Raises `multiprocessing.TimeoutError`
        if there is no result within `timeout` seconds.
        """
        self.wait(timeout)
        if not self.ready():
            raise TimeoutError
        if self._error is not None:
            raise self._error
        return self._value

    def wait(self, timeout: float | None = None) -> None:
        """Wait until the calls have ended, or for `timeout` seconds."""
        until_s = None if timeout is None else time.monotonic() + timeout
        try:
            while self._of_task:
                future, take = self._of_task[-1]
                future.exception(_left_s(until_s))
                self._of_task.pop()
                take(future)
        except builtins.TimeoutError:
            return
        self._is_over.wait(_left_s(until_s))

    def ready(self) -> bool:
        """Whether the calls have ended."""
        return self._is_over.is_set()

    def successful(self) -> bool:
        """Whether no call raised an exception; raises ValueError before the calls have ended."""
        if not self.ready():
            raise ValueError(f"{self!r} not ready")
        return self._error is None

    def _add_part(self, future: Future[Any], *place: int) -> None:
        def take(future: Future[Any]) -> None:
            error = _error_of(future)
            if error is None:
                self._parts[place] = future.result()
            rest = rest_of(future)
            with self._lock:
                self._missing += len(rest)
            for number, part in enumerate(rest):
                self._add_part(part, *place, number)
            with self._lock:
                self._missing -= 1
                self._error = self._error or error
                is_last = not self._missing
            if is_last:
                self._settle(self._error)

        if isinstance(future, Future):
            when_done(future, take)
        else:
            self._of_task.append((future, take))

    def _settle(self, error: BaseException | None) -> None:
        found, self._parts = self._parts, {}
        parts = [found[place] for place in sorted(found)]
        if error is None:
            try:
                self._value = self._join(parts)
            except Exception as raised:
                error = raised
        self._error = error
        try:
            if error is None and self._callback is not None:
                self._callback(self._value)
            elif error is not None and self._error_callback is not None:
                self._error_callback(error)
        finally:
            self._is_over.set()


MapResult = ApplyResult = AsyncResult


def _left_s(until_s: float | None) -> float | None:
    return None if until_s is None else max(0.0, until_s - time.monotonic())


def _error_of(future: Future[Any]) -> BaseException | None:
    return CancelledError() if future.cancelled() else future.exception()
