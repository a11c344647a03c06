"""Tests what a task needs, without a cluster."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from snakemake_executor_plugin_ciel.commands import needs_of

from ciel.core.offers.resources import read_amounts
from ciel.core.tasks import Needs


def needs(priority: int = 0, is_direct: bool = True, **resources: Any) -> Needs:
    job = SimpleNamespace(resources=resources, priority=priority)
    return needs_of(job, ["gpu"], is_direct=is_direct)


def test_threads_memory_and_runtime_become_needs() -> None:
    found = needs(_cores=3, mem_mb=2, runtime=5)
    assert (found.slots, found.memory_bytes, found.timeout_s) == (3, 2 << 20, 300.0)


def test_a_snakemake_on_the_worker_gets_memory_of_its_own() -> None:
    assert needs(is_direct=False, mem_mb=2).memory_bytes == 258 << 20
    assert needs(is_direct=False).memory_bytes == 0


def test_values_that_only_the_host_knows_are_no_needs() -> None:
    assert needs(_cores=1, mem_mb="<TBD>", runtime="<TBD>") == Needs()


@pytest.mark.parametrize("priority, expected", [(5, 5), (2**63 - 1, 1000), (-(2**40), -1000)])
def test_priorities_fit(priority: int, expected: int) -> None:
    assert needs(priority).priority == expected


def test_named_resources_are_requested_from_workers() -> None:
    assert needs(_cores=1, gpu=2, other=4).resources == read_amounts({"gpu": 2})
