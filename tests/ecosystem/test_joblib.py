"""Runs joblib's own tests of `joblib.Parallel`, from its package, with the backend "ciel" in place
of joblib's; and further tests of the backend.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
from joblib import Parallel, delayed, parallel_backend, parallel_config
from joblib.test import test_parallel as theirs
from joblib.testing import check_subprocess_call
from threadpoolctl import threadpool_info

import ciel.joblib  # it registers the backend
from ciel import Client

cloudpickle.register_pickle_by_value(sys.modules[__name__])

IS_LONG = os.environ.get("CIEL_LONG") == "1"

# The reasons why tests of joblib are left out, or run with other values.
OWN = "of joblib's own backends, or of none: nothing of ours takes part"
THREADS = "of threads, which share memory"
MANAGER = "the proxies of a multiprocessing.Manager are for children of its process; see below"
LIMITS = "threads of BLAS are limited by the environment of loky's processes; see below"
NESTED = "loops within loops are tasks here, not threads; see below"
MAPPED = "wants numpy.memmap; what lies in our stores is mapped as plain arrays, see below"
LEFT_OUT = {
    "test_cpu_count": OWN,
    "test_effective_n_jobs": OWN,
    "test_effective_n_jobs_None": OWN,
    "test_nested_loop_with_exception_with_loky": OWN,
    "test_parallel_pickling": OWN,
    "test_parallel_byteorder_corruption": OWN,
    "test_invalid_backend": OWN,
    "test_register_parallel_backend": OWN,
    "test_overwrite_default_backend": OWN,
    "test_backend_no_multiprocessing": OWN,
    "test_parameterized_backend_context_manager": OWN,
    "test_directly_parameterized_backend_context_manager": OWN,
    "test_retrieval_context": OWN,
    "test_invalid_batch_size": OWN,
    "test_default_mp_context": OWN,
    "test_parallel_with_interactively_defined_functions_loky": OWN,
    "test_parallel_with_interactively_defined_bound_method_loky": OWN,
    "test_warning_about_timeout_not_supported_by_backend": OWN,
    "test_backend_hinting_and_constraints": OWN,
    "test_backend_hinting_and_constraints_with_custom_backends": OWN,
    "test_invalid_backend_hinting_and_constraints": OWN,
    "test_dask_backend_when_dask_not_installed": OWN,
    "test_zero_worker_backend": OWN,
    "test_background_thread_parallelism": OWN,
    "test_initializer_reused": OWN,
    "test_error_capture": "a task's KeyboardInterrupt is a RemoteError for who waits",
    "test_initializer_not_reused": OWN,
    "test_mutate_input_with_threads": THREADS,
    "test_batching_auto_threading": THREADS,
    "test_parallel_return_order_with_return_as_generator_parameter": THREADS,
    "test_dispatch_multiprocessing": MANAGER,
    "test_initializer_context": MANAGER,
    "test_initializer_parallel": MANAGER,
    "test_parallel_thread_limit": LIMITS,
    "test_threadpool_limitation_in_child_loky": LIMITS,
    "test_threadpool_limitation_in_child_context": LIMITS,
    "test_nested_backend_context_manager": NESTED,
    "test_nested_parallelism_limit": NESTED,
    "test_auto_memmap_on_arrays_from_generator": MAPPED,
    "test_memmapping_leaks": MAPPED,
}
NOT_SO = {
    "test_nested_parallel_warnings": (
        {"expected": True}, "warns where loky and multiprocessing cannot be nested; ours can"
    ),
    "test_multiple_generator_call_separated_gc": (
        {"error": True}, "the loops of loky share a pool, and one ends that of another"
    ),
}  # fmt: skip
FEW: dict[str, tuple[Any, ...]] = {
    "n_jobs": (2,),
    "verbose": (2,),
    "return_as_1": ("generator",),
    "callable_position": ("args",),
    "define_func": (theirs.SQUARE_LAMBDA,),
    "batch_size": ("auto",),
}
"""Values that replace long lists of equivalent parameters (with CIEL_LONG=1 all are tested)."""

pytestmark = pytest.mark.usefixtures("client")

CONTEXTS = ("backend", "parent_backend", "child_backend", "outer_backend", "inner_backend")


def cases() -> Iterator[Any]:
    """Yield every test that is not left out, with the values of its parameters."""
    for name, function in vars(theirs).items():
        if not name.startswith("test_") or name in LEFT_OUT or not inspect.isfunction(function):
            continue
        axes: list[list[dict[str, Any]]] = []
        for mark in getattr(function, "pytestmark", ()):
            if mark.name == "parametrize":
                names = [part.strip() for part in mark.args[0].split(",")]
                axes.append(rows(names, mark.args[1]))
        number = 0
        for combined in itertools.product(*axes):
            values = {key: value for row in combined for key, value in row.items()}
            if is_wanted(name, values):
                number += 1
                yield pytest.param(name, values, id=f"{name}-{number}")


def is_wanted(name: str, values: dict[str, Any]) -> bool:
    not_so, _ = NOT_SO.get(name, ({"": ""}, ""))
    return not not_so.items() <= values.items()


def rows(names: list[str], values: Any) -> list[dict[str, Any]]:
    """Return the values of a parametrisation, with the backend "ciel" where it names one."""
    values = list(values)
    if len(names) == 1 and not IS_LONG:
        values = [value for value in values if value in FEW.get(names[0], (value,))] or values
    found: list[dict[str, Any]] = []
    for value in values:
        row = dict(zip(names, [value] if len(names) == 1 else value, strict=True))
        row |= {name: "ciel" for name in CONTEXTS if name in row}
        if row not in found:
            found.append(row)
    return found


@pytest.mark.filterwarnings("default::UserWarning")  # warnings of a loop that is abandoned
@pytest.mark.parametrize("name, values", list(cases()))
def test_joblibs_test(name: str, values: dict[str, Any], request: pytest.FixtureRequest) -> None:
    monkeypatch = request.getfixturevalue("monkeypatch")
    monkeypatch.setattr(theirs, "check_subprocess_call", run_script)
    function = getattr(theirs, name)
    wanted = inspect.signature(function).parameters
    fixtures = {key: request.getfixturevalue(key) for key in wanted if key not in values}
    inside: Any = contextlib.nullcontext()
    if not any(key in values for key in CONTEXTS):
        inside = parallel_config("ciel")
    with inside:
        function(**values, **fixtures)


def run_script(command: list[str], **expected: Any) -> None:
    """Run a script as joblib's tests do, with the backend registered."""
    *options, script = command
    known = "import ciel.joblib\n"
    if "-c" in options:
        check_subprocess_call([*options, known + script], **expected)
    else:
        path = Path(script)
        path.write_text(known + path.read_text())
        check_subprocess_call(command, **expected)


@pytest.mark.parametrize("name", [*LEFT_OUT, *NOT_SO])
def test_a_left_out_test_still_exists(name: str) -> None:
    assert inspect.isfunction(getattr(theirs, name, None))


# --- tests of the backend -------------------------------------------------------------------------


def process_id(_: object = None) -> int:
    return os.getpid()


def test_batches_run_in_the_cluster() -> None:
    with parallel_backend("ciel"):
        found = Parallel(n_jobs=2)(delayed(process_id)() for _ in range(8))
    assert os.getpid() not in found


def test_all_slots_are_used_by_default(client: Client) -> None:
    with parallel_config("ciel"):
        assert Parallel()._effective_n_jobs() == client.slot_count()


def look_at(array: Any) -> tuple[bool, float]:
    return bool(array.flags.writeable), float(array.sum())


@pytest.mark.parametrize(
    "mmap_mode, max_nbytes, is_writeable",
    [("r", "1M", False), ("r", None, True), ("c", "1M", True), (None, "1M", True)],
)
def test_large_arrays_are_mapped_read_only_unless_copies_are_requested(
    mmap_mode: str | None, max_nbytes: str | None, is_writeable: bool
) -> None:
    large, small = np.ones(1 << 18), np.ones(16)
    found = Parallel(n_jobs=2, backend="ciel", mmap_mode=mmap_mode, max_nbytes=max_nbytes)(
        delayed(look_at)(array) for array in (large, small)
    )
    assert found == [(is_writeable, 1 << 18), (True, 16)]


def test_tasks_can_write_to_a_shared_file_mapping(tmp_path: Path) -> None:
    """joblib's manual recommends this for results that are too large to be sent."""
    shared = np.memmap(tmp_path / "shared", dtype="int64", shape=(4,), mode="w+")

    def fill(array: Any, place: int) -> None:
        array[place] = place + 1

    Parallel(n_jobs=2, backend="ciel")(delayed(fill)(shared, place) for place in range(4))
    assert shared.tolist() == [1, 2, 3, 4]


def test_a_writable_mapping_of_the_store_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot be changed"):
        Parallel(n_jobs=2, backend="ciel", mmap_mode="r+")(delayed(abs)(n) for n in range(2))


def test_results_are_writable() -> None:
    for array in Parallel(n_jobs=2, backend="ciel")(delayed(np.zeros)(n) for n in (4, 1 << 20)):
        array[0] = 1


def nested(depth: int) -> list[str]:
    backend = type(Parallel(n_jobs=2)._backend).__name__
    if depth == 0:
        return [backend]
    return [backend, *Parallel(n_jobs=2)(delayed(nested)(depth - 1) for _ in range(2))[0]]


def test_nested_loops_are_tasks_and_loops_within_those_are_sequential() -> None:
    with parallel_config("ciel", n_jobs=2):
        names = nested(3)
    assert names == ["CielBackend", "CielBackend", "SequentialBackend", "SequentialBackend"]


def remember(value: str) -> None:
    os.environ["REMEMBERED"] = value


def remembered() -> str | None:
    return os.environ.get("REMEMBERED")


def test_an_initializer_runs_in_every_process_before_its_first_batch() -> None:
    found = Parallel(n_jobs=3, backend="ciel", initializer=remember, initargs=("this",))(
        delayed(remembered)() for _ in range(20)
    )
    assert set(found) == {"this"}


def blas_threads() -> set[int]:
    np.dot(np.ones((2, 2)), np.ones((2, 2)))
    return {found["num_threads"] for found in threadpool_info()}


def test_threads_within_a_call_can_be_limited() -> None:
    with parallel_config("ciel", inner_max_num_threads=1):
        found = Parallel(n_jobs=2)(delayed(blas_threads)() for _ in range(2))
    assert set().union(*found) <= {1}


def test_a_loop_may_read_the_generator_of_another() -> None:
    parallel = functools.partial(Parallel, n_jobs=2, backend="ciel", return_as="generator")
    first = parallel()(delayed(abs)(-n) for n in range(20))
    second = parallel()(delayed(abs)(-n) for n in first)
    assert list(second) == list(range(20))


def loop() -> list[int]:
    with parallel_config(ciel.joblib.CielBackend()):
        return list(Parallel(n_jobs=2)(delayed(abs)(-n) for n in range(5)))


def test_a_loop_runs_within_a_task(client: Client) -> None:
    assert client.submit(loop).result(60) == list(range(5))
