"""Tables of all types, as pyarrow's own tests generate them, survive in each store (POOL-2)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings

from ciel.python import arrow_tables
from ciel.scc.store import open_scc
from ciel.shm.store import open_shm
from ciel.storage.files import open_disk
from ciel.storage.interface import ObjectStore
from ciel.testing.arrow_mutants import stored

strategies = pytest.importorskip("pyarrow.tests.strategies")

STORES = {
    "disk": (open_disk, {}),
    "shm": (open_shm, {"capacity": "64MiB"}),
    "scc": (open_scc, {"capacity": "64MiB", "instance": f"arrow-stores-{os.getpid()}"}),
}


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ObjectStore]:
    open_store, options = STORES[request.param]
    with open_store(options, tmp_path / "store") as store:
        yield store


def has_zones(kind: pa.DataType) -> bool:
    """Whether the timestamps in a type have time zones: values of others are not generated."""
    if pa.types.is_timestamp(kind):
        return kind.tz is not None
    parts = [kind.field(n).type for n in range(kind.num_fields)]
    if pa.types.is_dictionary(kind):
        parts += [kind.value_type]
    return all(map(has_zones, parts))


@given(value=strategies.tables(strategies.all_types.filter(has_zones), max_fields=4))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_a_table_of_any_types_survives(store: ObjectStore, value: pa.Table) -> None:
    store.put("table", b"".join(map(bytes, [stored(value)])))
    try:
        with store.open("table") as reader:
            found = arrow_tables.read(reader.view())
            found.validate(full=True)
            assert found.schema.equals(value.schema, check_metadata=True)
            assert found.equals(value)
    finally:
        store.delete("table")
