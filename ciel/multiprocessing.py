"""A look-alike of `multiprocessing.Pool`, whose processes are those of a cluster."""

from __future__ import annotations

import builtins
import os
import queue
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError, Future
from multiprocessing import TimeoutError as TimeoutError
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from ciel.client.executor import Executor, chunks_of, failed, slots_of, when_done
from ciel.client.shared import session_here
from ciel.python.calls import Mapped
from ciel.python.failures import unpack_error

if TYPE_CHECKING:
    from ciel.client import Client

__all__ = ["AsyncResult", "Pool", "TimeoutError", "cpu_count"]

RUN, CLOSE, TERMINATE = "RUN", "CLOSE", "TERMINATE"


def cpu_count() -> int:
    """Return how many calls the cluster runs at a time; in a task, how many this host could."""
    return slots_of(session_here(), len(os.sched_getaffinity(0)))


class Pool:
    """Runs calls in the processes of a cluster; its methods are those of `multiprocessing.Pool`.

    `processes`: how many calls may run at once, by default as many as the cluster has slots.
    `client`: whose cluster, by default as for `ciel.Executor`. `initializer` runs in each process
    before the first call there. The processes are the cluster's: `maxtasksperchild` and `context`
    are accepted, and have no effect.
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
        self._feeders: list[threading.Thread] = []
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
        """Call a function; return what stands for its result. `callback` is called with the
        value, `error_callback` with what was raised, by a thread that brings results: neither may
        wait for others.
        """
        self._require_running()
        result = AsyncResult(1, callback, error_callback, lambda values: values[0])
        result._expect(self._executor.submit(func, *args, **kwds), 0)
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
        """Call a function with every item; they are taken as they come, by a thread. Yield the
        results in order.
        """
        return self._imap(func, iterable, chunksize, in_order=True)

    def imap_unordered(
        self, func: Callable[..., Any], iterable: Iterable[Any], chunksize: int = 1
    ) -> Iterator[Any]:
        """Call a function as `imap` does, and yield results as they come."""
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
        except Exception as error:  # of anybody's __reduce__
            parts = [failed(error)]
        result = AsyncResult(len(parts), callback, error_callback, _joined)
        for number, part in enumerate(parts):
            result._expect(part, number)
        return result

    def _imap(
        self, func: Callable[..., Any], iterable: Iterable[Any], chunksize: int, in_order: bool
    ) -> Iterator[Any]:
        self._require_running()
        if chunksize < 1:
            raise ValueError(f"Chunksize must be 1+, not {chunksize:n}")
        results = _Results(in_order)
        rows = ((item,) for item in iterable)
        feeder = threading.Thread(
            target=results.feed,
            args=(
                chunks_of(rows, chunksize),
                lambda chunk: self._executor.map_parts(func, chunk, chunksize)[0],
            ),
            name="ciel-pool",
            daemon=True,
        )
        self._feeders = [thread for thread in self._feeders if thread.is_alive()] + [feeder]
        feeder.start()
        return results

    # --- the end ----------------------------------------------------------------------------------

    def close(self) -> None:
        """Take no further calls; those that were taken run to their end."""
        if self._state == RUN:
            self._state = CLOSE

    def terminate(self) -> None:
        """Take no further calls, and stop those that run."""
        self._state = TERMINATE
        self._executor.terminate()

    def join(self) -> None:
        """Wait until all calls are over; raises ValueError before `close` and `terminate`."""
        if self._state == RUN:
            raise ValueError("Pool is still running")
        for feeder in self._feeders:
            feeder.join()
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


def _joined(parts: list[Mapped]) -> list[Any]:
    """Return the results of all parts; raises what the first raised that did."""
    joined: list[Any] = []
    for values, error in parts:
        joined += values
        if error is not None:
            raise unpack_error(error)
    return joined


class AsyncResult:
    """What came of a call, or of several: as that of `multiprocessing.pool`."""

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
        self._of_task: list[tuple[Any, Any]] = []  # they run when somebody waits for them
        self._parts: list[Any] = [None] * count
        self._missing = count
        self._value: Any = None
        self._error: BaseException | None = None
        if not count:
            self._settle(None)

    def get(self, timeout: float | None = None) -> Any:
        """Return the result, or raise what the call raised; raises `multiprocessing.TimeoutError`
        when it is not there after `timeout` seconds.
        """
        self.wait(timeout)
        if not self.ready():
            raise TimeoutError
        if self._error is not None:
            raise self._error
        return self._value

    def wait(self, timeout: float | None = None) -> None:
        """Wait until it is over, or for `timeout` seconds."""
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
        """Tell whether it is over."""
        return self._is_over.is_set()

    def successful(self) -> bool:
        """Tell whether nothing was raised; raises ValueError while it is not over."""
        if not self.ready():
            raise ValueError(f"{self!r} not ready")
        return self._error is None

    def _expect(self, future: Future[Any], place: int) -> None:
        def take(future: Future[Any]) -> None:
            error = _error_of(future)
            if error is None:
                self._parts[place] = future.result()
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
        parts, self._parts = self._parts, []
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


class _Results(Iterator[Any]):
    """The results of `imap` as they come, of calls that a thread makes."""

    def __init__(self, in_order: bool) -> None:
        self._in_order = in_order
        self._coming: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
        self._early: dict[int, Any] = {}
        self._next = 0
        self._count: int | None = None
        self._values: list[Any] = []
        self._error: BaseException | None = None

    def feed(
        self,
        chunks: Iterator[list[tuple[Any, ...]]],
        begin: Callable[[list[tuple[Any, ...]]], Future[Any]],
    ) -> None:
        """Begin calls as the chunks come; what the iterator raises is the last result."""
        count = 0
        try:
            for chunk in chunks:
                self._expect(begin(chunk), count)
                count += 1
        except Exception as error:
            self._expect(failed(error), count)
            count += 1
        self._coming.put((-1, count))

    def _expect(self, future: Future[Any], number: int) -> None:
        if not isinstance(future, Future):
            self._coming.put((number, future))  # a task's own is computed when it is asked for
        else:
            when_done(future, lambda future: self._coming.put((number, future)))

    def __next__(self) -> Any:
        return self.next()

    def next(self, timeout: float | None = None) -> Any:
        """Return the next result; raises StopIteration, and `multiprocessing.TimeoutError`."""
        until_s = None if timeout is None else time.monotonic() + timeout
        while not self._values:
            if self._error is not None:
                raised, self._error = self._error, None
                raise raised
            self._values, error = self._future(until_s).result()
            self._values.reverse()
            self._error = None if error is None else unpack_error(error)
        return self._values.pop()

    def _future(self, until_s: float | None) -> Future[Any]:
        while True:
            wanted = self._next if self._in_order else next(iter(self._early), -1)
            if wanted in self._early:
                self._next += 1
                future: Future[Any] = self._early.pop(wanted)
                return future
            if self._count is not None and self._next >= self._count:
                raise StopIteration
            try:
                number, what = self._coming.get(timeout=_left_s(until_s))
            except queue.Empty:
                raise TimeoutError from None
            if number < 0:
                self._count = what
            else:
                self._early[number] = what


def _left_s(until_s: float | None) -> float | None:
    return None if until_s is None else max(0.0, until_s - time.monotonic())


def _error_of(future: Future[Any]) -> BaseException | None:
    return CancelledError() if future.cancelled() else future.exception()
