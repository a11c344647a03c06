"""Checks that memory of deleted arrays is recycled, unless a program or the client still sees the
array.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest

import ciel

MIB = 1 << 20
COUNT = 4 * MIB // 8
INSTANCE = f"memory-{os.getpid()}"  # of the store
ROUNDS = 4

cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ciel.Client]:
    directory = tmp_path_factory.mktemp("memory")
    with (
        ciel.LocalCluster(
            workers=1,
            slots=1,
            store=f"shm:capacity=128MiB,instance={INSTANCE}",
            directory=directory,
        ) as cluster,
        ciel.Client(cluster) as client,
    ):
        yield client


def made(value: float) -> Any:
    array = ciel.empty(COUNT, "float64")
    array.fill(value)
    return array


def plain(value: float) -> Any:
    return np.full(COUNT, value)


def hold(array: Any) -> int:
    vars(sys.modules["json"])["held_by_test"] = array
    return os.getpid()


def look() -> tuple[int, float, float]:
    held = vars(sys.modules["json"])["held_by_test"]
    return os.getpid(), float(held.min()), float(held.max())


def end() -> None:
    if "held_by_test" in vars(sys.modules["json"]):
        os._exit(1)


def files() -> dict[int, str]:
    """Return the files of the cluster's store that are large enough for an array, by inode."""
    found = {}
    for path in Path(f"/dev/shm/ciel-{INSTANCE}").glob("**/*"):
        try:
            status = path.stat()
        except OSError:
            continue  # it has just been deleted
        if path.is_file() and status.st_size >= COUNT * 8:
            found[status.st_ino] = path.parent.name
    return found


def until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline_s, "it did not come to be"
        time.sleep(0.01)


def inodes_of(client: ciel.Client, make: Callable[[float], Any]) -> list[int]:
    """Create arrays in sequence, each after the last one is deleted; return the inodes of their
    files.
    """
    found = []
    for number in range(ROUNDS):
        before = {inode for inode, place in files().items() if place == "objects"}
        array = client.submit(make, float(number))
        ciel.wait([array])
        found += [i for i, place in files().items() if place == "objects" and i not in before]
        del array
        client.submit(abs, 1).result()  # this call reports that the array is no longer needed
        until(lambda: files().get(found[-1]) != "objects")  # noqa: B023  # called in this iteration
    return found


@pytest.mark.parametrize("make", [made, plain])
def test_an_array_reuses_the_memory_of_a_deleted_one(
    client: ciel.Client, make: Callable[[float], Any]
) -> None:
    found = inodes_of(client, make)
    assert len(found) == ROUNDS
    # each array reuses the last one's file, unless the store is still checking that
    assert len(set(found)) < ROUNDS


@pytest.mark.parametrize("make", [made, plain])
def test_an_array_that_a_program_holds_is_unchanged_until_the_program_ends(
    client: ciel.Client, make: Callable[[float], Any]
) -> None:
    array = client.submit(make, 42.0)
    pid = client.submit(hold, array).result()
    (inode,) = [inode for inode, place in files().items() if place == "objects"]
    del array
    client.submit(abs, 1).result()
    until(lambda: files().get(inode) != "objects")
    others = inodes_of(client, make)
    assert inode not in others
    assert client.submit(look).result() == (pid, 42.0, 42.0)
    with pytest.raises(ciel.TaskKilledError):
        client.submit(end).result()
    assert any(inode in inodes_of(client, make) for _ in range(5))


def test_an_array_that_the_client_holds_is_unchanged(client: ciel.Client) -> None:
    array = client.submit(made, 42.0)
    value = array.result()
    (inode,) = [inode for inode, place in files().items() if place == "objects"]
    del array
    client.submit(abs, 1).result()
    until(lambda: files().get(inode) != "objects")
    assert inode not in inodes_of(client, made)
    assert (value.min(), value.max()) == (42.0, 42.0)
