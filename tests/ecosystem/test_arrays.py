"""Checks that arrays, data frames and tables are passed between tasks without copies."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from ciel import Client

cloudpickle.register_pickle_by_value(sys.modules[__name__])

ROWS = 1 << 20


def an_array() -> Any:
    return np.arange(ROWS)


def a_frame() -> Any:
    return pd.DataFrame({"whole": np.arange(ROWS), "half": np.arange(ROWS) / 2})


def a_table() -> Any:
    return pa.table({"whole": np.arange(ROWS), "text": [f"{n:08}" for n in range(ROWS // 64)] * 64})


def parts_of_array(array: Any) -> list[tuple[int, bool]]:
    return [(array.__array_interface__["data"][0], array.flags.writeable)]


def parts_of_frame(frame: Any) -> list[tuple[int, bool]]:
    columns = [frame[name].to_numpy() for name in frame]
    return [part for column in columns for part in parts_of_array(column)]


def parts_of_table(table: Any) -> list[tuple[int, bool]]:
    chunks = [chunk for column in table.columns for chunk in column.chunks]
    buffers = [buffer for chunk in chunks for buffer in chunk.buffers() if buffer is not None]
    return [(buffer.address, buffer.is_mutable) for buffer in buffers]


def mapped_file(address: int) -> str:
    """Return the file that is mapped at an address; an empty text for private memory."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, _, _, device, _, *file = line.split(maxsplit=5)
        start, end = (int(bound, 16) for bound in span.split("-"))
        if start <= address < end:
            return file[0] if file and device != "00:00" else ""
    return ""


def look(value: Any, parts: Callable[[Any], list[tuple[int, bool]]]) -> list[tuple[str, bool]]:
    return [(mapped_file(address), is_writeable) for address, is_writeable in parts(value)]


@pytest.mark.parametrize(
    "make, parts, count",
    [(an_array, parts_of_array, 1), (a_frame, parts_of_frame, 2), (a_table, parts_of_table, 3)],
)
def test_readers_map_the_one_object_that_the_producer_stored(
    client: Client, make: Any, parts: Any, count: int
) -> None:
    made = client.submit(make)
    readers = [client.submit(look, made, parts) for _ in range(2)]
    first, second = (reader.result(60) for reader in readers)
    assert len(first) == count
    assert {file for file, _ in first + second} == {first[0][0]} != {""}


@pytest.mark.parametrize("make", [an_array, a_frame, a_table])
def test_the_result_of_a_task_arrives_unchanged(client: Client, make: Any) -> None:
    made, expected = client.submit(make).result(60), make()
    assert made.equals(expected) if hasattr(made, "equals") else np.array_equal(made, expected)


def test_changing_an_argument_or_a_result_does_not_change_the_stored_value(client: Client) -> None:
    def fill(array: Any) -> bool:
        array.fill(0)
        return bool(array.any())

    stored = client.put(np.ones(ROWS))
    assert [client.submit(fill, stored).result(60) for _ in range(2)] == [False, False]
    assert stored.result().all()
    array = client.submit(an_array).result(60)
    array.fill(0)
    assert not array.any()
