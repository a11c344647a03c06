"""joblib's own tests of `joblib.Parallel`, from its package, with the backend "ciel" in the place
of its own; and what is ours alone.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
from collections.abc import Iterator
from typing import Any

import joblib
import numpy as np
import pytest
from joblib.test import test_parallel as theirs

import ciel.joblib
from ciel import Client

# Why what joblib has is not run, or not so.
OF_JOBLIB = "of joblib's own backends, or of what has none: nothing of ours takes part"
THREADS = "of threads, which share memory"
LEFT_OUT = {
    "test_cpu_count": OF_JOBLIB,
    "test_effective_n_jobs": OF_JOBLIB,
    "test_effective_n_jobs_None": OF_JOBLIB,
    "test_invalid_backend": OF_JOBLIB,
    "test_register_parallel_backend": OF_JOBLIB,
    "test_overwrite_default_backend": OF_JOBLIB,
    "test_backend_no_multiprocessing": OF_JOBLIB,
    "test_parameterized_backend_context_manager": OF_JOBLIB,
    "test_directly_parameterized_backend_context_manager": OF_JOBLIB,
    "test_retrieval_context": OF_JOBLIB,
    "test_invalid_batch_size": OF_JOBLIB,
    "test_default_mp_context": OF_JOBLIB,
    "test_warning_about_timeout_not_supported_by_backend": OF_JOBLIB,
    "test_invalid_backend_hinting_and_constraints": OF_JOBLIB,
    "test_backend_hinting_and_constraints": OF_JOBLIB,
    "test_backend_hinting_and_constraints_with_custom_backends": OF_JOBLIB,
    "test_dask_backend_when_dask_not_installed": OF_JOBLIB,
    "test_zero_worker_backend": OF_JOBLIB,
    "test_batching_auto_threading": THREADS,
    "test_mutate_input_with_threads": THREADS,
    "test_parallel_return_order_with_return_as_generator_parameter": THREADS,
}


@pytest.fixture(scope="module", autouse=True)
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    import sys

    sys.path.insert(0, "/tmp/notes/eco")
    import fake

    yield fake.enter()


CONTEXTS = ("backend", "parent_backend", "child_backend", "outer_backend", "inner_backend")


def cases() -> Iterator[Any]:
    """Yield every test that is not left out, with the values it is to be called with."""
    for name, function in vars(theirs).items():
        if not name.startswith("test_") or name in LEFT_OUT or not inspect.isfunction(function):
            continue
        axes: list[list[dict[str, Any]]] = []
        for mark in getattr(function, "pytestmark", ()):
            if mark.name == "parametrize":
                names = [part.strip() for part in mark.args[0].split(",")]
                axes.append(rows(names, mark.args[1]))
        for number, combined in enumerate(itertools.product(*axes)):
            values = {key: value for row in combined for key, value in row.items()}
            yield pytest.param(name, values, id=f"{name}-{number}")


def rows(names: list[str], values: Any) -> list[dict[str, Any]]:
    """Return the values of a parametrisation, with our backend where it names one."""
    found: list[dict[str, Any]] = []
    for value in values:
        row = dict(zip(names, [value] if len(names) == 1 else value, strict=True))
        row |= {name: "ciel" for name in CONTEXTS if name in row}
        if row not in found:
            found.append(row)
    return found


@pytest.mark.parametrize("name, values", list(cases()))
def test_of_joblib(name: str, values: dict[str, Any], request: pytest.FixtureRequest) -> None:
    function = getattr(theirs, name)
    wanted = inspect.signature(function).parameters
    fixtures = {key: request.getfixturevalue(key) for key in wanted if key not in values}
    inside = contextlib.nullcontext()
    if not any(key in values for key in CONTEXTS):
        inside = joblib.parallel_config("ciel")
    with inside:
        function(**values, **fixtures)


@pytest.mark.parametrize("name", sorted(LEFT_OUT))
def test_what_is_left_out_is_still_there(name: str) -> None:
    assert inspect.isfunction(getattr(theirs, name, None))
