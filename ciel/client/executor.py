"""A `concurrent.futures.Executor` over a cluster, for whatever takes one."""

from __future__ import annotations

import itertools
import logging
import os
import threading
import time
import uuid
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent import futures
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ciel.client.changes import Condition
from ciel.python.calls import Mapped
from ciel.python.failures import PackingError, error_of_map, pack_error
from ciel.python.importable import is_importable
from ciel.python.options import USUAL, Options, read_options
from ciel.python.sessions import NoClientError, Session, current, leave
from ciel.python.tasks import Task, name_of, split_task

if TYPE_CHECKING:
    from ciel.client import Client

R = TypeVar("R")

_log: Final = logging.getLogger("concurrent.futures")  # where its own executors complain


class InitializerError(futures.BrokenExecutor):
    """The initializer of an executor failed in a process of the cluster: the executor is broken."""


class Executor(futures.Executor):
    """Runs calls in the processes of a cluster, as other executors do in processes of their own.

    `max_workers`: how many calls may be with the cluster at once; by default as many as there are.
    `client`: whose cluster it is; by default that of the innermost active client, or of the task
    that we are in. Where there is neither, a client of our own is opened, with a cluster of its
    own if none is up (of `max_workers` slots), which ends with the executor.
    `initializer(*initargs)` runs in each process before the first call of this executor there; its
    traces stay, for all who use the process. `options` are those of `ciel.task`, for every call.

    Without a limit the futures are the client's own, and may be arguments of further calls; to
    cancel one stops it even when it runs. With a limit that the slots of the cluster are not
    already, calls wait here, and only those can be cancelled that still do.
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
        read_options(USUAL, options)  # what is wrong with them is said now
        session, owned = (client, None) if client is not None else _session(max_workers)
        limit = max_workers
        if limit is not None and slots_of(session, limit) <= limit:
            limit = None  # the slots are limit enough
        self._line = _Line(session, owned, limit)
        self._prepare = _Preparation(initializer, initargs) if initializer else None
        self._prepared: weakref.WeakKeyDictionary[Any, _Prepared] = weakref.WeakKeyDictionary()
        weakref.finalize(self, self._line.close, False, False).atexit = False

    @property
    def _broken(self) -> bool:
        return self._line.broken is not None

    def submit(self, fn: Callable[..., R], /, *args: Any, **kwargs: Any) -> futures.Future[R]:
        """Have `fn(*args, **kwargs)` called, and return the future of its result. Raises
        RuntimeError after `shutdown`, InitializerError, and PackingError for what has no bytes.
        """
        called, options = self._called(fn)
        found: futures.Future[R] = self._line.add(called, args, kwargs, options)
        return found

    def map(
        self,
        fn: Callable[..., R],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int | None = None,
        buffersize: int | None = None,
    ) -> Iterator[R]:
        """Call `fn` with the first items of all iterables, the second, and so on; return an
        iterator of the results, in that order.

        `timeout`: seconds from now until the last result must be there, or TimeoutError comes.
        `chunksize`: how many calls make a task; by itself, many small ones do. `buffersize`: the
        iterables are read only so far ahead of the results that are taken; by default to their
        ends, now. What is left when the iterator is closed is cancelled.
        """

        def begin(rows: list[tuple[Any, ...]], size: int | None) -> list[futures.Future[Mapped]]:
            return self.map_parts(fn, rows, size)

        return results_of_map(begin, iterables, timeout, chunksize, buffersize)

    def map_parts(
        self, fn: Callable[..., Any], rows: list[tuple[Any, ...]], chunksize: int | None = None
    ) -> list[futures.Future[Mapped]]:
        """Call `fn` with each row of arguments, `chunksize` rows in a task; return the futures of
        these tasks.
        """
        called, options = self._called(fn)
        return self._line.add_parts(called, rows, options, chunksize)

    @property
    def is_of_task(self) -> bool:
        """Whether its calls are those of a task, where nothing runs while nobody waits."""
        return self._line.is_task

    def slot_count(self) -> int:
        """Return how many calls may run at once; a task does not know more than this host could."""
        return self._line.slot_count()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no further calls. `wait`: return when all that were taken are over.
        `cancel_futures`: cancel those that can be, see above: also what runs, without a limit.
        """
        self._line.close(wait, cancel_futures)

    def terminate(self) -> None:
        """Take no further calls, and cancel all that are not over, whether they run or not."""
        self._line.close(False, True, also_running=True)

    def _called(self, fn: Callable[..., Any]) -> tuple[Any, Options]:
        """Return what is to be called for a function, and how."""
        called, options = split_task(fn)
        if self._prepare is not None:
            called = self._with_preparation(called, self._prepare)
        return called, read_options(options, self._options) if self._options else options

    def _with_preparation(self, function: Any, preparation: _Preparation) -> _Prepared:
        try:
            found = self._prepared.get(function)
            if found is None:
                found = self._prepared[function] = _Prepared(function, preparation)
            return found
        except TypeError:  # it has no hash, or is not to be referred to weakly
            return _Prepared(function, preparation)


class _Line:
    """The calls of one executor: those that wait here, and those that are with the cluster.

    `owned`: the client that ends when the line is closed, and all its calls are over.
    """

    def __init__(self, session: Session, owned: Client | None, limit: int | None) -> None:
        self.broken: BaseException | None = None
        self._session: Any = session
        self.is_task = not hasattr(session, "map_parts")
        self._owned = owned
        self._limit = limit
        self._slots = 0  # as many as there were when somebody asked
        self._changed = Condition()
        self._waiting: deque[tuple[_Outer, tuple[Any, ...]]] = deque()
        self._begun: dict[Any, _Outer | None] = {}
        self._begin_count = 0
        self._is_closed = False
        _open_lines.add(self)

    def slot_count(self) -> int:
        """Return how many of its calls may run at once."""
        if not self._slots:
            self._slots = self._limit or slots_of(self._session, len(os.sched_getaffinity(0)))
        return self._slots

    def add(self, *call: Any) -> Any:
        """Begin a call (see `Session.call`), or keep it for later; return its future."""
        if self._limit is not None:
            outer = _Outer()
            with self._changed:
                self._require_open()
                self._waiting.append((outer, call))
            self._begin_next()
            return outer
        with self._changed:
            self._require_open()
            self._begin_count += 1
        try:
            future = self._session.call(*call)
        except BaseException as error:
            self._one_less()
            if isinstance(error, PackingError):
                return failed(error)  # as with other executors, whoever waits is told
            raise
        self._watch(future, None)
        return future

    def add_parts(
        self, function: Any, rows: list[tuple[Any, ...]], options: Options, size: int | None
    ) -> list[Any]:
        """Begin a call with each row, `size` of them in a task; return futures of `Mapped`."""
        if self._limit is not None or self.is_task:
            return [
                self.add(call_each, (function, chunk), {}, options)
                for chunk in chunks_of(rows, size or 1)
            ]
        with self._changed:
            self._require_open()
        called = function if options is USUAL else Task(function, options)
        parts = self._session.map_parts(called, rows, size)
        with self._changed:
            self._begin_count += len(parts)
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
        """Take no further calls; see `Executor.shutdown`."""
        with self._changed:
            first = not self._is_closed
            self._is_closed = True
            waiting = list(self._waiting) if cancel else []
            begun = list(self._begun) if cancel and (self._limit is None or also_running) else []
        for outer, _call in waiting:
            outer.cancel()
        for future in begun:
            if also_running or not future.running():
                future.cancel()
        self._begin_next()  # those that were cancelled leave the line
        if wait:
            self.finish()
        elif first and self._owned is not None:
            threading.Thread(target=self.finish, name="ciel-executor", daemon=True).start()

    def finish(self) -> None:
        """Wait until all calls are over, and end the client that is ours."""
        if self.is_task:
            self._session.wait(list(self._begun), None, futures.ALL_COMPLETED)  # now they run
            self._begun.clear()
            self._begin_count = 0
        with self._changed:
            while self._begin_count or self._waiting:
                self._changed.wait()
            self._is_closed = True
            owned, self._owned = self._owned, None
        _open_lines.discard(self)
        if owned is not None:
            owned.close()

    def _watch(self, future: Any, outer: _Outer | None) -> None:
        with self._changed:
            self._begun[future] = outer
        if not self.is_task:
            when_done(future, self._ended)

    def _ended(self, future: Any) -> None:
        with self._changed:
            outer = self._begun.pop(future, None)
            self._begin_count += len(rest_of(future))
        for part in rest_of(future):
            self._watch(part, None)
        error = None if future.cancelled() else future.exception()
        if isinstance(error, InitializerError):
            self._break(error)
        if outer is not None:
            outer.settle(future, error)
        self._one_less()
        self._begin_next()

    def _begin_next(self) -> None:
        """Begin what waits, as far as the limit allows."""
        while True:
            with self._changed:
                if self._limit is None or not self._waiting or self._begin_count >= self._limit:
                    self._changed.notify_all()
                    return
                outer, call = self._waiting.popleft()
                if not outer.set_running_or_notify_cancel():
                    continue
                self._begin_count += 1
            try:
                self._watch(self._session.call(*call), outer)
            except BaseException as error:  # of anybody's __reduce__; whoever waits for it is told
                outer.set_exception(error)
                self._one_less()

    def _one_less(self) -> None:
        with self._changed:
            self._begin_count -= 1
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


class _Outer(futures.Future[Any]):
    """The future of a call that may still have to wait here. Its value is read by who asks."""

    inner: Any = None

    def result(self, timeout: float | None = None) -> Any:
        until_s = None if timeout is None else time.monotonic() + timeout
        found = super().result(timeout)
        if found is not _LATER:
            return found
        return self.inner.result(None if until_s is None else max(0.0, until_s - time.monotonic()))

    def settle(self, future: Any, error: BaseException | None) -> None:
        """Be done, as the future is that the call got when it was begun."""
        if future.cancelled():
            self.set_exception(futures.CancelledError())
        elif error is not None:
            self.set_exception(error)
        else:
            self.inner = future
            self.set_result(_LATER)


_LATER = object()


def failed(error: BaseException) -> futures.Future[Any]:
    """Return a future of a call that could not be made."""
    future: futures.Future[Any] = futures.Future()
    future.set_exception(error)
    return future


def when_done(future: futures.Future[Any], function: Callable[[Any], object]) -> None:
    """Have a function called with a future that is done."""
    # Not its own method: that is for whoever waits, and has the call sent at once and alone.
    futures.Future.add_done_callback(future, function)


def slots_of(session: Session, otherwise: int) -> int:
    """Return how many slots the cluster of a session has; a task does not know."""
    count = getattr(session, "slot_count", None)
    return otherwise if count is None else int(count())


def _session(max_workers: int | None) -> tuple[Session, Client | None]:
    """Return whose calls ours are, and the client if it had to be made."""
    try:
        return current(), None
    except NoClientError:
        from ciel.client import Client

        options = {} if max_workers is None else {"slots": max_workers}
        owned = Client(name="executor", cluster_options=options)
        leave(owned)  # it is nobody else's
        owned.print_label = lambda printed: ""  # pools print without names
        return owned, owned


# --- maps -----------------------------------------------------------------------------------------


def chunks_of(rows: Iterable[tuple[Any, ...]], size: int) -> Iterator[list[tuple[Any, ...]]]:
    """Yield rows in lists of at most `size`."""
    rows = iter(rows)
    while chunk := list(itertools.islice(rows, size)):
        yield chunk


def call_each(function: Callable[..., Any], rows: list[tuple[Any, ...]]) -> Mapped:
    """Call a function with each row, until one raises."""
    values: list[Any] = []
    resolve = getattr(current(), "resolve", None)  # unless the task is within a client of its own
    name = name_of(function)
    try:
        for row in rows:
            value = function(*row)
            values.append(value if resolve is None else resolve(value, name))
    except Exception as error:
        return Mapped(values, pack_error(error, 1))
    return Mapped(values, None)


Begin = Callable[[list[tuple[Any, ...]], int | None], Sequence[Any]]
"""Begins calls with rows of arguments, so many in a task; returns the futures of these tasks."""


def results_of_map(
    begin: Begin,
    iterables: Iterable[Iterable[Any]],
    timeout: float | None,
    chunksize: int | None,
    buffersize: int | None,
) -> Iterator[Any]:
    """Begin the calls of a map and return the iterator of their results; see `Executor.map`."""
    if chunksize is not None and chunksize < 1:
        raise ValueError(f"chunksize must be at least 1, not {chunksize}")
    if buffersize is not None and buffersize < 1:
        raise ValueError(f"buffersize must be None or at least 1, not {buffersize}")
    until_s = None if timeout is None else time.monotonic() + timeout
    rows = zip(*iterables, strict=False)
    if buffersize is None:
        return _results(deque(begin(list(rows), chunksize)), iter(()), until_s)
    size = chunksize or 1
    further = (part for chunk in chunks_of(rows, size) for part in begin(chunk, size))
    return _results(deque(itertools.islice(further, -(-buffersize // size))), further, until_s)


def _results(
    waiting: deque[futures.Future[Mapped]],
    further: Iterator[futures.Future[Mapped]],
    until_s: float | None,
) -> Iterator[Any]:
    """Yield the results of parts in order, holding none of those that were taken."""
    count = 0
    try:
        while waiting:
            mapped = _value(waiting, until_s)
            count += len(mapped.values)
            waiting.extend(itertools.islice(further, 1))
            mapped.values.reverse()
            while mapped.values:
                yield mapped.values.pop()
            if mapped.error is not None:
                raise error_of_map(mapped.error, count)
    finally:
        for future in waiting:
            future.cancel()


def _value(waiting: deque[futures.Future[Mapped]], until_s: float | None) -> Mapped:
    """Return the value of the first part; what has not come in time is cancelled with the rest."""
    left_s = None if until_s is None else max(0.0, until_s - time.monotonic())
    mapped = waiting[0].result(left_s)
    waiting.extendleft(reversed(rest_of(waiting.popleft())))
    return mapped


def rest_of(part: futures.Future[Any]) -> Sequence[Any]:
    """Return the futures whose results follow those of a part of a map that is done."""
    return getattr(part, "rest", ())


# --- initializers ---------------------------------------------------------------------------------


class _Preparation:
    """An initializer, on its way to every process that runs a call of the executor."""

    def __init__(self, initializer: Callable[..., object], initargs: tuple[Any, ...]) -> None:
        self.token = uuid.uuid4().hex
        self._initializer = initializer
        self._initargs = initargs

    def run_once(self) -> None:
        """Run it, unless that was done: in this process, or, if its code travels, with this copy of
        the variables that it and the function have in common.
        """
        key = (os.getpid(), self.token)
        known: Any = _prepared_here
        if not is_importable(self._initializer):
            known, key = _prepared_copies.setdefault(self, {}), (os.getpid(), "")
        if key not in known:
            before = os.environ.copy()
            try:
                self._initializer(*self._initargs)
                now = os.environ.copy()
                names = [name for name in before | now if before.get(name) != now.get(name)]
                known[key] = {name: now.get(name) for name in names}
            except Exception as error:
                known[key] = error
        failed = known[key]
        if isinstance(failed, dict):  # what calls change of their environment is undone after each
            for name, text in failed.items():
                if text is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = text
        else:
            raise InitializerError(
                f"the initializer of the executor raised {type(failed).__name__}: {failed}"
            ) from failed


class _Prepared:
    """A function that is called in prepared processes only: what the initializer has set in them
    stays for all calls, and so does what calls change.
    """

    keeps_state = True

    def __init__(self, function: Callable[..., Any], preparation: _Preparation) -> None:
        self._function = function
        self._preparation = preparation
        self.__qualname__ = getattr(function, "__qualname__", type(function).__qualname__)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._preparation.run_once()
        return self._function(*args, **kwargs)


_Outcomes = dict[tuple[int, str], BaseException | dict[str, str | None]]
"""By process and executor: the variables that the initializer has set, or what it raised."""

_prepared_here: _Outcomes = {}
_prepared_copies: weakref.WeakKeyDictionary[Any, _Outcomes] = weakref.WeakKeyDictionary()


# --- the end of the program -----------------------------------------------------------------------

_open_lines: set[_Line] = set()
_is_ending = False


def _finish_all() -> None:
    """Let all calls end that were taken, as executors do that nobody has shut down."""
    global _is_ending
    _is_ending = True
    for line in list(_open_lines):
        line.finish()


# When threads are joined, as for the executors of concurrent.futures: what runs later finds none.
threading._register_atexit(_finish_all)  # type: ignore[attr-defined]  # typeshed has public names only
