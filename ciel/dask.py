"""A scheduler for dask graphs: `dask.compute(graph, scheduler=ciel.dask.get)`.

Each node of a graph becomes a task; linear chains of nodes are fused into one task. Results are
passed between tasks by reference, and the client receives only the requested values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final

from dask import _task_spec
from dask._task_spec import Alias, DataNode, convert_legacy_graph
from dask.callbacks import local_callbacks
from dask.core import getcycle
from dask.local import start_state_from_dask
from dask.order import order
from dask.utils import funcname

from ciel.client.pools.executor import when_done
from ciel.client.pools.shared import session_here
from ciel.python.failures import TaskError
from ciel.python.options import Options, read_options
from ciel.python.sessions import FIRST_EXCEPTION, Session

if TYPE_CHECKING:
    from ciel.client import Client

SHARED_MIN_BYTES: Final = 64 << 10
"""Data of a graph from this size on is stored once, however many tasks read it."""


def get(
    dsk: Any,
    keys: Any,
    *,
    client: Client | None = None,
    optimize_graph: bool = True,
    callbacks: Any = None,
    options: Mapping[str, Any] | None = None,
    **ignored: Any,
) -> Any:
    """Compute the values of `keys` (a key, or nested lists of keys) in a dask graph.

    `client`: the default is the innermost active client, or the cluster of the current task, or
    else a new cluster. `optimize_graph`: fuse chains into one task. `callbacks`: dask's callbacks,
    such as its progress bar; they get only the values that the client receives. `options`: those of
    `ciel.task`, for every task. Other arguments, for other schedulers, are ignored. Raises KeyError
    for a key that is not in the graph, RuntimeError for a cycle, and the exception of the first
    task that failed.
    """
    session = client or session_here()
    graph = dict(dsk.__dask_graph__() if hasattr(dsk, "__dask_graph__") else dsk)
    wanted = list(dict.fromkeys(_flat(keys)))
    for key in wanted:
        if key not in graph:
            raise KeyError(key)
    nodes: dict[Any, Any] = _task_spec.cull(convert_legacy_graph(graph), set(wanted))
    find_cycle: Any = getcycle  # which is not typed
    if cycle := find_cycle(nodes, wanted):
        path = "".join(f"\n  -> {key}" for key in cycle)
        raise RuntimeError(f"Cycle detected between the following keys:{path}")
    # dask names a chain by its last key, and supports only keys that start with a text.
    if optimize_graph and len(nodes) > 1 and all(map(_begins_with_text, nodes)):
        fuse: Any = _task_spec.fuse_linear_task_spec  # which is not typed
        nodes = fuse(nodes, set(wanted))
    with local_callbacks(callbacks) as active:
        run = _Run(session, nodes, wanted, read_options(Options(), dict(options or {})))
        values = run.observed(active) if active else run.values()
    return _nested(keys, values)


class _Run:
    """The computation of one graph."""

    def __init__(
        self, session: Session, nodes: dict[Any, Any], wanted: list[Any], options: Options
    ) -> None:
        self._session = session
        self._nodes = nodes
        self._wanted = wanted
        self._options = options
        self._results: dict[Any, Any] = {}  # data, and futures of tasks
        self.futures: dict[Any, Any] = {}

    def values(self) -> dict[Any, Any]:
        """Return the requested values; raises the exception of a failed task."""
        self.submit_all()
        return self.collect()

    def submit_all(self) -> None:
        """Submit all tasks, in dask's order, which keeps the number of intermediates small."""
        priorities = order(self._nodes)
        for key in sorted(self._nodes, key=priorities.__getitem__):
            self._results[key] = self._submit(key, self._nodes[key])

    def _submit(self, key: Any, node: Any) -> Any:
        if isinstance(node, DataNode):
            value = node.value
            return self._session.put(value) if _is_large(value) else value
        if isinstance(node, Alias):
            return self._results[node.target]
        needed = {name: self._results[name] for name in node.dependencies}
        name = key if isinstance(key, str) else key[0] if isinstance(key, tuple) else funcname(node)
        options = self._options._replace(name=self._options.name or str(name)[:200])
        future = self._session.call(_compute, (node, needed), {}, options)
        self.futures[key] = future
        return future

    def collect(self) -> dict[Any, Any]:
        """Wait for the requested values and return them."""
        own = [self._results[key] for key in self._wanted if key in self.futures]
        others = list(self.futures.values())
        try:
            self._session.wait(own, None, FIRST_EXCEPTION)
            for future in own:
                if future.done() and future.exception() is not None:
                    raise self._cause(future.exception())
            return {key: _value(self._results[key]) for key in self._wanted}
        except BaseException:
            for future in others:
                future.cancel()
            raise

    def _cause(self, error: BaseException) -> BaseException:
        """Return the exception of the task that made another one fail, if known."""
        if not isinstance(error, TaskError):
            return error
        for future in self.futures.values():
            found: BaseException | None = None
            if future.done() and not future.cancelled():
                found = future.exception()
            if found is not None and not isinstance(found, TaskError):
                return found
        return error

    def observed(self, callbacks: Iterable[Any]) -> dict[Any, Any]:
        """Return the requested values, and report every step to the callbacks."""
        failed, started = True, []
        state: dict[str, Any] = {}
        ended: SimpleQueue[Any] = SimpleQueue()
        try:
            for callback in callbacks:
                _notify([callback], 0, self._nodes)
                started.append(callback)
            first: Any = start_state_from_dask  # which is not typed
            state = first(self._nodes, keys=set(self._wanted))
            _notify(callbacks, 1, self._nodes, state)
            self.submit_all()
            state["ready"], state["waiting"] = [], {}
            state["running"] = set(self.futures)
            for key, future in self.futures.items():
                _notify(callbacks, 2, key, self._nodes, state)
                _watch(future, key, ended)
            for _ in range(len(self.futures)):
                key, future = ended.get()
                if future.cancelled() or future.exception() is not None:
                    break
                state["running"].discard(key)
                state["finished"].add(key)
                value = future.result() if key in self._wanted else None
                _notify(callbacks, 3, key, value, self._nodes, state, 0)
            values = self.collect()
            failed = False
            return values
        finally:
            _notify(started, 4, self._nodes, state, failed)


def _watch(future: Any, key: Any, ended: SimpleQueue[Any]) -> None:
    if isinstance(future, Future):
        when_done(future, lambda future: ended.put((key, future)))
    else:  # a future within a task, which runs when its result is requested
        future.exception()
        ended.put((key, future))


def _notify(callbacks: Iterable[Any], which: int, *arguments: Any) -> None:
    for callback in callbacks:
        if callback[which]:
            callback[which](*arguments)


def _compute(node: Any, values: dict[Any, Any]) -> Any:
    """Compute a node of a graph, in a task."""
    return node(values)


def _begins_with_text(key: Any) -> bool:
    return isinstance(key[0] if type(key) is tuple and key else key, str)


def _is_large(value: Any) -> bool:
    from dask.sizeof import sizeof

    return bool(sizeof(value) >= SHARED_MIN_BYTES)


def _value(known: Any) -> Any:
    return known.result() if hasattr(known, "__ciel_future__") else known


def _flat(keys: Any) -> Iterator[Any]:
    if isinstance(keys, list):
        for key in keys:
            yield from _flat(key)
    else:
        yield keys


def _nested(keys: Any, values: Mapping[Any, Any]) -> Any:
    """Return values in the shape of the keys, as all schedulers of dask do."""
    if isinstance(keys, list):
        return tuple(_nested(key, values) for key in keys)
    return values[keys]
