"""A `concurrent.futures.Executor` whose calls run on a cluster."""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent import futures
from typing import Any, Final, TypeVar

from ciel.client.calls.map_results import call_each, chunks_of, rest_of, results_of_map
from ciel.client.client import Client
from ciel.client.locks import Condition
from ciel.client.pools.initializers import InitializedFunction, Initializer, InitializerError
from ciel.python.calls import Mapped
from ciel.python.failures import PackingError
from ciel.python.options import USUAL, Options, read_options
from ciel.python.sessions import NoClientError, Session, current, leave
from ciel.python.tasks import Task, split_task

R = TypeVar("R")

_log: Final = logging.getLogger("concurrent.futures")  # the logger of the standard executors


class Executor(futures.Executor):
    """Runs calls in the processes of a cluster.

    `max_workers`: how many calls may be sent to the cluster at a time; by default there is no
    limit. `client`: by default the client that was opened last, or within a task the task's own. If
    there is none, the executor opens a client, and starts a cluster of `max_workers` slots if none
    is running; both end with the executor. `initializer(*initargs)` runs in each process before the
    first call of this executor there; other programs that use the process see its effects.
    `options`: as for `ciel.task`, for all calls.

    Without a limit the executor returns futures of the client. They may be arguments of further
    calls, and cancelling one stops a running call. With a limit below the number of slots of the
    cluster, calls wait in this process, and only a waiting call can be cancelled.
    """

    def __init__(
        self,
        max_workers: int | None = None,
        *,
        client: Client | None = None,
        initializer: Callable[..., object] | None = None,
        initargs: tuple[Any, ...] = (),
        **options: Any,
    ) -> None:
        if max_workers is not None and max_workers <= 0:
            raise ValueError("max_workers must be greater than 0")
        if initializer is not None and not callable(initializer):
            raise TypeError("initializer must be a callable")
        self._options = options
        read_options(USUAL, options)  # raises now if one is wrong
        session, owned = (client, None) if client is not None else _session(max_workers)
        limit = max_workers
        if limit is not None and slots_of(session, limit) <= limit:
            limit = None  # the cluster never runs more calls
        self._queue = _Queue(session, owned, limit)
        self._initializer = Initializer(initializer, initargs) if initializer else None
        self._initialized: weakref.WeakKeyDictionary[Any, InitializedFunction]
        self._initialized = weakref.WeakKeyDictionary()
        weakref.finalize(self, self._queue.close, False, False).atexit = False

    @property
    def _broken(self) -> bool:
        return self._queue.broken is not None

    def submit(self, fn: Callable[..., R], /, *args: Any, **kwargs: Any) -> futures.Future[R]:
        """Submit `fn(*args, **kwargs)`, and return the future of its result.

        Raises RuntimeError after `shutdown`, InitializerError, and PackingError for a function or
        an argument that cannot be pickled.
        """
        called, options = self._called(fn)
        found: futures.Future[R] = self._queue.add(called, args, kwargs, options)
        return found

    def map(
        self,
        fn: Callable[..., R],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int | None = None,
        buffersize: int | None = None,
    ) -> Iterator[R]:
        """Call `fn` with the first items of all iterables, the second items, and so on.

        Return an iterator of the results, in that order. It raises TimeoutError if a result is not
        available `timeout` seconds from now. `chunksize`: how many calls run as one task; by
        default the client chooses. `buffersize`: how many items are read ahead of the results that
        the caller has taken; by default all are read now. Closing the iterator cancels the
        remaining calls.
        """

        def begin(rows: list[tuple[Any, ...]], size: int | None) -> list[futures.Future[Mapped]]:
            return self.map_parts(fn, rows, size)

        return results_of_map(begin, iterables, timeout, chunksize, buffersize)

    def map_parts(
        self, fn: Callable[..., Any], rows: list[tuple[Any, ...]], chunksize: int | None = None
    ) -> list[futures.Future[Mapped]]:
        """Call `fn` with each row of arguments, `chunksize` rows in a task.

        Return the futures of the tasks.
        """
        called, options = self._called(fn)
        return self._queue.add_parts(called, rows, options, chunksize)

    @property
    def is_of_task(self) -> bool:
        """Whether it belongs to a task, whose calls run only while the task waits for them."""
        return self._queue.is_of_task

    def slot_count(self) -> int:
        """Return how many calls may run at a time; within a task, the cores of this host."""
        return self._queue.slot_count()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Refuse further calls.

        `wait`: return when all submitted calls have ended. `cancel_futures`: cancel all calls that
        can be cancelled; without a limit this includes running calls.
        """
        self._queue.close(wait, cancel_futures)

    def terminate(self) -> None:
        """Refuse further calls, and cancel all calls that have not ended, also running ones."""
        self._queue.close(False, True, also_running=True)

    def _called(self, fn: Callable[..., Any]) -> tuple[Any, Options]:
        """Return the function that is sent for a function, and its options."""
        called, options = split_task(fn)
        if self._initializer is not None:
            called = self._with_initializer(called, self._initializer)
        return called, read_options(options, self._options) if self._options else options

    def _with_initializer(self, function: Any, initializer: Initializer) -> InitializedFunction:
        try:
            found = self._initialized.get(function)
            if found is None:
                found = InitializedFunction(function, initializer)
                self._initialized[function] = found
            return found
        except TypeError:  # it has no hash, or allows no weak references
            return InitializedFunction(function, initializer)


class _Queue:
    """The calls of one executor: held back by the limit, or sent.

    `owned`: the client that the queue closes when it is closed and all its calls have ended.
    """

    def __init__(self, session: Session, owned: Client | None, limit: int | None) -> None:
        self.broken: BaseException | None = None
        self._session: Any = session
        self.is_of_task = not hasattr(session, "map_parts")
        self._owned = owned
        self._limit = limit
        self._slots = 0  # the number of slots at the first query
        self._changed = Condition()
        self._waiting: deque[tuple[_QueuedFuture, tuple[Any, ...]]] = deque()
        self._sent: dict[Any, _QueuedFuture | None] = {}  # futures of the client, and ours
        self._sent_count = 0
        self._is_closed = False
        _open_queues.add(self)

    def slot_count(self) -> int:
        """Return how many of its calls may run at a time."""
        if not self._slots:
            self._slots = self._limit or slots_of(self._session, len(os.sched_getaffinity(0)))
        return self._slots

    def add(self, *call: Any) -> Any:
        """Send a call (see `Session.call`), or queue it; return its future."""
        if self._limit is not None:
            outer = _QueuedFuture()
            with self._changed:
                self._require_open()
                self._waiting.append((outer, call))
            self._send_next()
            return outer
        with self._changed:
            self._require_open()
            self._sent_count += 1
        try:
            future = self._session.call(*call)
        except BaseException as error:
            self._one_less()
            if isinstance(error, PackingError):
                return failed(error)  # as with other executors, the future raises it
            raise
        self._watch(future, None)
        return future

    def add_parts(
        self, function: Any, rows: list[tuple[Any, ...]], options: Options, size: int | None
    ) -> list[Any]:
        """Send calls with each row, `size` of them in a task; return futures of `Mapped`."""
        if self._limit is not None or self.is_of_task:
            return [
                self.add(call_each, (function, chunk), {}, options)
                for chunk in chunks_of(rows, size or 1)
            ]
        with self._changed:
            self._require_open()
        called = function if options is USUAL else Task(function, options)
        parts = self._session.map_parts(called, rows, size)
        with self._changed:
            self._sent_count += len(parts)
        for part in parts:
            self._watch(part, None)
        return list(parts)

    def _require_open(self) -> None:
        if self.broken is not None:
            raise InitializerError(str(self.broken))
        if self._is_closed:
            raise RuntimeError("cannot schedule new futures after shutdown")
        if _is_ending:
            raise RuntimeError("cannot schedule new futures after interpreter shutdown")

    def close(self, wait: bool, cancel: bool, also_running: bool = False) -> None:
        """Refuse further calls; see `Executor.shutdown`."""
        with self._changed:
            first = not self._is_closed
            self._is_closed = True
            waiting = list(self._waiting) if cancel else []
            sent = list(self._sent) if cancel and (self._limit is None or also_running) else []
        for outer, _call in waiting:
            outer.cancel()
        for future in sent:
            if also_running or not future.running():
                future.cancel()
        self._send_next()  # cancelled calls leave the queue
        if wait:
            self.finish()
        elif first and self._owned is not None:
            threading.Thread(target=self.finish, name="ciel-executor", daemon=True).start()

    def finish(self) -> None:
        """Wait until all calls have ended, and close the client that the executor has opened."""
        if self.is_of_task:
            self._session.wait(list(self._sent), None, futures.ALL_COMPLETED)  # this runs them
            self._sent.clear()
            self._sent_count = 0
        with self._changed:
            while self._sent_count or self._waiting:
                self._changed.wait()
            self._is_closed = True
            owned, self._owned = self._owned, None
        _open_queues.discard(self)
        if owned is not None:
            owned.close()

    def _watch(self, future: Any, outer: _QueuedFuture | None) -> None:
        with self._changed:
            self._sent[future] = outer
        if not self.is_of_task:
            when_done(future, self._ended)

    def _ended(self, future: Any) -> None:
        with self._changed:
            outer = self._sent.pop(future, None)
            self._sent_count += len(rest_of(future))
        for part in rest_of(future):
            self._watch(part, None)
        error = None if future.cancelled() else future.exception()
        if isinstance(error, InitializerError):
            self._break(error)
        if outer is not None:
            outer.settle(future, error)
        self._one_less()
        self._send_next()

    def _send_next(self) -> None:
        """Send queued calls, as far as the limit allows."""
        while True:
            with self._changed:
                if self._limit is None or not self._waiting or self._sent_count >= self._limit:
                    self._changed.notify_all()
                    return
                outer, call = self._waiting.popleft()
                if not outer.set_running_or_notify_cancel():
                    continue
                self._sent_count += 1
            try:
                self._watch(self._session.call(*call), outer)
            except BaseException as error:  # a user's __reduce__ may raise anything
                outer.set_exception(error)
                self._one_less()

    def _one_less(self) -> None:
        with self._changed:
            self._sent_count -= 1
            self._changed.notify_all()

    def _break(self, error: InitializerError) -> None:
        with self._changed:
            if self.broken is not None:
                return
            self.broken = error
            waiting = list(self._waiting)
            self._waiting.clear()
        _log.critical("Exception in initializer:", exc_info=error)
        for outer, _call in waiting:
            if outer.set_running_or_notify_cancel():
                outer.set_exception(InitializerError(str(error)))


class _QueuedFuture(futures.Future[Any]):
    """The future of a call that the limit may hold back.

    The thread that requests the value reads it.
    """

    inner: Any = None

    def result(self, timeout: float | None = None) -> Any:
        until_s = None if timeout is None else time.monotonic() + timeout
        found = super().result(timeout)
        if found is not _UNREAD:
            return found
        return self.inner.result(None if until_s is None else max(0.0, until_s - time.monotonic()))

    def settle(self, future: Any, error: BaseException | None) -> None:
        """Become done like the client's future of this call, which exists since it was sent."""
        if future.cancelled():
            self.set_exception(futures.CancelledError())
        elif error is not None:
            self.set_exception(error)
        else:
            self.inner = future
            self.set_result(_UNREAD)


_UNREAD = object()


def failed(error: BaseException) -> futures.Future[Any]:
    """Return the future of a call that could not be sent."""
    future: futures.Future[Any] = futures.Future()
    future.set_exception(error)
    return future


def when_done(future: futures.Future[Any], function: Callable[[Any], object]) -> None:
    """Call a function with a future when it is done."""
    # The method of `ClientFuture` would send the call at once, as a separate task.
    futures.Future.add_done_callback(future, function)


def slots_of(session: Session, otherwise: int) -> int:
    """Return how many slots the cluster of a session has; `otherwise` within a task."""
    count = getattr(session, "slot_count", None)
    return otherwise if count is None else int(count())


def _session(max_workers: int | None) -> tuple[Session, Client | None]:
    """Return the session for the calls, and the client if it was opened for them."""
    try:
        return current(), None
    except NoClientError:
        options = {} if max_workers is None else {"slots": max_workers}
        owned = Client(name="executor", cluster_options=options)
        leave(owned)  # `ciel.spawn` and so on must not use it
        owned.print_label = lambda printed: ""  # as with other pools, lines have no label
        return owned, owned


# --- the end of the program -----------------------------------------------------------------------

_open_queues: set[_Queue] = set()
_is_ending = False


def _finish_all() -> None:
    """Wait for the calls of all executors that were not shut down, as standard executors do."""
    global _is_ending
    _is_ending = True
    for queue in list(_open_queues):
        queue.finish()


# Before threads are joined, as for the executors of concurrent.futures. Later no thread can start.
threading._register_atexit(_finish_all)  # type: ignore[attr-defined]  # not in typeshed
