"""Runs dask's own tests of schedulers, from its package, on `ciel.dask.get`; and further tests of
`ciel.dask`.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any
from unittest import mock

import cloudpickle
import dask.array
import dask.local
import dask.tests.test_callbacks
import dask.tests.test_multiprocessing
import dask.tests.test_threaded
import numpy as np
import pytest
from dask.utils_test import GetFunctionTestMixin

import ciel.dask
from ciel import Client

cloudpickle.register_pickle_by_value(sys.modules[__name__])
pytestmark = pytest.mark.usefixtures("client")

delayed: Any = importlib.import_module("dask").delayed  # dask is only partly typed
compute: Any = importlib.import_module("dask").compute
ProgressBar: Any = importlib.import_module("dask.diagnostics").ProgressBar

MODULES: tuple[ModuleType, ...] = (
    dask.tests.test_callbacks, dask.tests.test_multiprocessing, dask.tests.test_threaded,
)  # fmt: skip
GETS = ("get", "get_sync", "get_threaded")
"""The names of schedulers in dask's tests."""

OWN = "of that scheduler's own parts: no `get` of ours is asked"
POOLS = "of pools that are handed to a scheduler"
CONTEXTS = "of how multiprocessing starts processes"
THREADS = "of threads in one process"
LEFT_OUT = {
    "test_callbacks.test_add_remove_mutates_not_replaces": OWN,
    "test_callbacks.test_nested_schedulers": THREADS,
    "test_callbacks.test_finish_always_called": "raises KeyboardInterrupt within a task; see below",
    "test_multiprocessing.test_pickle_globals": OWN,
    "test_multiprocessing.test_pickle_locals": OWN,
    "test_multiprocessing.test_out_of_band_pickling": OWN,
    "test_multiprocessing.test_remote_exception": OWN,
    "test_multiprocessing.test_reuse_pool": POOLS,
    "test_multiprocessing.test_optimize_graph_false": "counts a task for each key of data, too",
    "test_multiprocessing.test_random_seeds": "names the scheduler; see below",
    "test_multiprocessing.test_process_initializer": POOLS,
    "test_multiprocessing.test_custom_context_used_python3_posix": CONTEXTS,
    "test_multiprocessing.test_get_context_using_python3_posix": CONTEXTS,
    "test_multiprocessing.test_custom_context_ignored_elsewhere": CONTEXTS,
    "test_multiprocessing.test_get_context_always_default": CONTEXTS,
    "test_threaded.test_reuse_pool": POOLS,
    "test_threaded.test_pool_kwarg": POOLS,
    "test_threaded.test_interrupt": THREADS,
    "test_threaded.test_contextvars": THREADS,
    "test_threaded.test_context_aware_warnings": THREADS,
}


class TestGet(GetFunctionTestMixin):
    get = staticmethod(ciel.dask.get)


def theirs() -> Iterator[str]:
    for module in MODULES:
        for name, function in vars(module).items():
            if name.startswith("test_") and inspect.isfunction(function):
                yield f"{module.__name__.rpartition('.')[2]}.{name}"


@pytest.mark.parametrize("name", [name for name in theirs() if name not in LEFT_OUT])
def test_dasks_test(name: str) -> None:
    file, _, function = name.partition(".")
    module: Any = next(m for m in MODULES if m.__name__.endswith(file))
    ours: dict[str, Any] = {get: ciel.dask.get for get in GETS if hasattr(module, get)}
    with mock.patch.multiple(module, **ours):
        getattr(module, function)()


@pytest.mark.parametrize("name", LEFT_OUT)
def test_a_left_out_test_still_exists(name: str) -> None:
    assert name in set(theirs())


# --- tests of ciel.dask ---------------------------------------------------------------------------


@pytest.mark.slow
def test_an_array_is_computed_from_its_blocks() -> None:
    array = dask.array.arange(1_000_000, chunks=250_000).reshape(1000, 1000)
    found = (array + array.T).sum().compute(scheduler=ciel.dask.get)
    assert found == 2 * sum(range(1_000_000))


def test_only_wanted_keys_are_computed() -> None:
    graph = {"good": (abs, -1), "bad": (divmod, 1, 0), "none": (abs, "bad")}
    assert ciel.dask.get(graph, "good") == 1


def test_an_exception_is_raised_for_the_tasks_that_need_the_result() -> None:
    graph = {"bad": (divmod, 1, 0), "left": (abs, "bad"), "both": (max, "left", "bad")}
    with pytest.raises(ZeroDivisionError):
        ciel.dask.get(graph, "both")


def test_data_are_stored_once_for_any_number_of_readers(client: Client) -> None:
    data = np.ones(1 << 20)
    graph: dict[str, Any] = {"data": data} | {f"sum{n}": (np.sum, "data") for n in range(4)}
    with mock.patch.object(client, "put", wraps=client.put) as put:
        assert ciel.dask.get(graph, [f"sum{n}" for n in range(4)]) == (float(1 << 20),) * 4
    assert put.call_count == 1


def draw() -> int:
    return int(np.random.randint(1 << 60))


def test_random_numbers_differ_from_task_to_task() -> None:
    drawn = [delayed(draw, pure=False)() for _ in range(8)]
    assert len(set(compute(*drawn, scheduler=ciel.dask.get))) == 8


def test_dasks_progress_bar_shows_progress(capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressBar():
        assert delayed(abs)(-2).compute(scheduler=ciel.dask.get) == 2
    assert "100% Completed" in capsys.readouterr().out


def nested() -> int:
    total = delayed(sum)([delayed(abs)(-n) for n in range(4)])
    return int(total.compute(scheduler=ciel.dask.get))


def test_a_graph_is_computed_within_a_task(client: Client) -> None:
    assert client.submit(nested).result(60) == 6


@pytest.mark.parametrize("keys", [(1, 2, 3), (("x", 1), ("x", 2), 7), ((0, "x"), 1.5, "z")])
def test_keys_need_not_be_texts(keys: tuple[Any, ...]) -> None:
    graph = {keys[0]: -5, keys[1]: (abs, keys[0]), keys[2]: (float, keys[1])}
    assert ciel.dask.get(graph, keys[2]) == dask.local.get_sync(graph, keys[2]) == 5.0
    assert ciel.dask.get(graph, list(keys)) == (-5, 5, 5.0)


@pytest.mark.parametrize("graph", [{"a": (abs, "b"), "b": (abs, "a")}, {1: (abs, 2), 2: (abs, 1)}])
def test_a_cycle_is_refused(graph: dict[Any, Any]) -> None:
    with pytest.raises(RuntimeError, match="Cycle detected between the following keys:\n  -> "):
        ciel.dask.get(graph, next(iter(graph)))
