"""A backend for joblib: `joblib.parallel_config("ciel")`.

`ciel.joblib_name` registers the name "ciel" when `ciel` and `joblib` are both imported. joblib
imports this module when a program uses the name.
"""

from __future__ import annotations

import io
import pickle
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from joblib.parallel import (
    AutoBatchingMixin,
    FallbackToBackend,
    ParallelBackendBase,
    SequentialBackend,
    register_parallel_backend,
)

from ciel.client.pools.executor import Executor, slots_of, when_done
from ciel.client.pools.shared import session_here
from ciel.python.packing import PROTOCOL
from ciel.python.pickling import Pickler

if TYPE_CHECKING:
    from ciel.client import Client

SLOTS_UNKNOWN: Final = 2
"""The number of slots that a loop within a task assumes: it cannot query the cluster."""


class CielBackend(AutoBatchingMixin, ParallelBackendBase):  # type: ignore[misc]  # joblib is untyped
    """Runs the batches of `joblib.Parallel` in a cluster.

    `client`: the default is the client that was opened last; if there is none, one new client
    serves all loops. `options`: the options of `ciel.task`, for every batch. The default of
    `n_jobs` is -1: the number of slots of the cluster.

    Arrays above `max_nbytes` are stored once and mapped, as in joblib: read-only with
    `mmap_mode="r"`, copied on write with "c". Smaller arrays are writable copies; so are all arrays
    with `mmap_mode=None` or `max_nbytes=None`. An `initializer` runs in each process before its
    first batch of a loop. `inner_max_num_threads` requires threadpoolctl. The calls of a nested
    loop become tasks if it sets `n_jobs`; loops within such a loop are sequential.
    """

    default_n_jobs = -1
    supports_inner_max_num_threads = find_spec("threadpoolctl") is not None
    supports_sharedmem = False
    uses_threads = False

    def __init__(
        self,
        client: Client | None = None,
        nesting_level: int | None = None,
        inner_max_num_threads: int | None = None,
        slots: int = SLOTS_UNKNOWN,
        initializer: Callable[..., object] | None = None,
        initargs: tuple[Any, ...] = (),
        **options: Any,
    ) -> None:
        super().__init__(nesting_level=nesting_level, inner_max_num_threads=inner_max_num_threads)
        self._client = client
        self._options = options
        self._initializer, self._initargs = initializer, initargs
        self._slots = slots
        self._workers: Executor | None = None
        self._callbacks: _CallbackThread | None = None
        self._max_bytes: int | None = None
        self._is_read_only = True
        self._is_nested = False

    def __reduce__(self) -> Any:
        return _nested_backend, (self.nesting_level, self._slots, self._options)

    @property
    def supports_retrieve_callback(self) -> bool:
        # Within a task, calls run when they are waited for, so no thread could call back.
        return not self._is_nested

    @property
    def supports_return_generator(self) -> bool:
        return True

    @property
    def supports_timeout(self) -> bool:
        return True

    def effective_n_jobs(self, n_jobs: int | None) -> int:
        if n_jobs == 0:
            raise ValueError("n_jobs == 0 in Parallel has no meaning")
        if n_jobs is None:
            n_jobs = self.default_n_jobs
        if n_jobs > 0:
            return n_jobs
        self._slots = slots_of(self._client or session_here(), self._slots)
        return max(self._slots + 1 + n_jobs, 1)

    def configure(
        self,
        n_jobs: int = 1,
        parallel: Any = None,
        prefer: Any = None,
        require: Any = None,
        max_nbytes: int | None = 1 << 20,
        mmap_mode: str | None = "r",
        initializer: Callable[..., object] | None = None,
        initargs: tuple[Any, ...] = (),
        **ignored: Any,
    ) -> int:
        n_jobs = self.effective_n_jobs(n_jobs)
        session = self._client or session_here()
        self._is_nested = not hasattr(session, "slot_count")
        if n_jobs == 1 or (self._is_nested and not parallel.return_ordered):
            raise FallbackToBackend(SequentialBackend(nesting_level=self.nesting_level))
        if mmap_mode not in ("r", "c", None):
            raise ValueError(
                f"mmap_mode={mmap_mode!r} is not supported, since stored objects cannot be "
                "changed; use 'r' (mapped read-only), 'c' (copied on write) or None (copied)"
            )
        self._max_bytes = max_nbytes if mmap_mode is not None else None
        self._is_read_only = mmap_mode == "r"
        self.parallel = parallel
        if self._is_nested:
            parallel.pre_dispatch = "all"  # without callbacks, no later batch would be dispatched
        if initializer is None:
            initializer, initargs = self._initializer, self._initargs
        self._workers = Executor(
            n_jobs,
            client=session,  # type: ignore[arg-type]  # or the session of a task
            initializer=initializer,
            initargs=initargs,
            **self._options,
        )
        self._callbacks = None if self._is_nested else _CallbackThread()
        return n_jobs

    def submit(self, func: Any, callback: Callable[[Any], object] | None = None) -> Future[Any]:
        assert self._workers is not None  # `configure` was called
        # It is unpickled as `func`.
        batch: Any = _Batch(func, self._max_bytes, self._is_read_only)
        future = self._workers.submit(_run_batch, batch, self.inner_max_num_threads)
        if callback is not None:
            if self._callbacks is None:
                callback(future)
            else:
                self._callbacks.after(future, callback)
        return future

    def retrieve_result_callback(self, out: Future[Any]) -> Any:
        return out.result()

    def retrieve_result(self, out: Future[Any], timeout: float | None = None) -> Any:
        return out.result(timeout)

    def compute_batch_size(self) -> int:
        # Spawned children are cheap, and run inline if no other worker is free.
        return 1 if self._is_nested else int(super().compute_batch_size())

    def get_nested_backend(self) -> tuple[Any, int | None]:
        level = (self.nesting_level or 0) + 1
        if level > 1:
            return SequentialBackend(nesting_level=level), None
        return _nested_backend(level, self._slots, self._options), None

    def terminate(self) -> None:
        self._close()
        self.reset_batch_stats()

    def abort_everything(self, ensure_ready: bool = True) -> None:
        self._close()
        if ensure_ready:
            self.configure(self.parallel.n_jobs, self.parallel, **self.parallel._backend_kwargs)

    def _close(self) -> None:
        if self._workers is not None:
            self._workers.terminate()
            self._workers = None
        if self._callbacks is not None:
            self._callbacks.close()
            self._callbacks = None


def _nested_backend(level: int, slots: int, options: dict[str, Any]) -> CielBackend:
    backend = CielBackend(nesting_level=level, slots=slots, **options)
    backend.default_n_jobs = 1  # a nested loop is parallel only if it sets n_jobs
    return backend


class _CallbackThread:
    """Runs callbacks in a thread. A callback reads items of a loop, and may thereby wait for the
    results of another loop, so it must not block the thread that receives results.
    """

    def __init__(self) -> None:
        self._done: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def after(self, future: Future[Any], callback: Callable[[Any], object]) -> None:
        """Run the callback when a future is done."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="ciel-joblib", daemon=True)
            self._thread.start()
        when_done(future, lambda future: self._done.put((future, callback)))

    def close(self) -> None:
        """Stop the thread; later callbacks are dropped."""
        self._done.put(None)

    def _run(self) -> None:
        while (item := self._done.get()) is not None:
            future, callback = item
            callback(future)
            del item, future, callback


# --- batches --------------------------------------------------------------------------------------


class _Batch:
    """A batch of calls. Its arrays above a size are pickled as references to stored objects, and
    smaller ones as copies.
    """

    def __init__(self, calls: Any, max_bytes: int | None, is_read_only: bool) -> None:
        self._calls = calls
        self._max_bytes = max_bytes
        self._is_read_only = is_read_only

    def __reduce__(self) -> Any:
        shared: list[pickle.PickleBuffer] = []

        def is_copied(buffer: pickle.PickleBuffer) -> bool:
            if self._max_bytes is None or buffer.raw().nbytes <= self._max_bytes:
                return True
            shared.append(buffer)
            return False

        file = io.BytesIO()
        _BatchPickler(file, PROTOCOL, buffer_callback=is_copied).dump(self._calls)
        return _read_batch, (file.getvalue(), shared, self._is_read_only)


class _BatchPickler(Pickler):
    """Pickles a memory-mapped array as its file's name, as joblib does, so that writes reach the
    file.
    """

    def reducer_override(self, value: Any) -> Any:
        if type(value).__module__ == "numpy" and hasattr(value, "filename"):
            from joblib._memmapping_reducer import _get_backing_memmap, _reduce_memmap_backed

            mapped = _get_backing_memmap(value)
            if mapped is not None and mapped.filename is not None:
                return _reduce_memmap_backed(value, mapped)
        return super().reducer_override(value)


def _read_batch(head: bytes, shared: list[Any], is_read_only: bool) -> Any:
    if is_read_only:
        shared = [memoryview(buffer).toreadonly() for buffer in shared]
    return pickle.loads(head, buffers=shared)


def _run_batch(calls: Callable[[], Any], threads: int | None) -> Any:
    if threads is None:
        return calls()
    from threadpoolctl import threadpool_limits

    with threadpool_limits(threads):
        return calls()


register_parallel_backend("ciel", CielBackend)
