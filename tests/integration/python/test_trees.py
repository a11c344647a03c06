"""Runs a tree of 32,767 tasks on a worker with one slot: it ends with blocking waits alone, with
delegation alone, and with `await` alone. It needs no more processes than the depth of the tree, and
one for the slot.

Such tasks run in the process where they were spawned. Tasks with options do not; a blocked one
keeps a process, but no slot. A worker runs the oldest task first, so siblings wait at the same
time: the smaller tree of such tasks ends, too, with more processes than its depth.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import cloudpickle
import pytest

import ciel

pytestmark = pytest.mark.slow

DEPTH = 14
DEPTH_APART = 5
CHECK_S = 0.005

cloudpickle.register_pickle_by_value(sys.modules[__name__])

Found = tuple[int, frozenset[int]]
"""The number of tasks of a tree, and the processes in which they ran."""


def joined(*parts: Found) -> Found:
    return 1 + sum(count for count, _ in parts), frozenset({os.getpid()}).union(
        *(pids for _, pids in parts)
    )


@ciel.task
def blocking(depth: int) -> Found:
    if not depth:
        return joined()
    children = [blocking.spawn(depth - 1) for _ in range(2)]
    return joined(*(child.result() for child in children))


@ciel.task(retries=1)
def blocking_apart(depth: int) -> Found:
    if not depth:
        return joined()
    children = [blocking_apart.spawn(depth - 1) for _ in range(2)]
    return joined(*(child.result() for child in children))


@ciel.task
def delegating(depth: int) -> Found:
    if not depth:
        return joined()
    return ciel.call(joined, *(delegating.spawn(depth - 1) for _ in range(2)))


@ciel.task
async def awaiting(depth: int) -> Found:
    if not depth:
        return joined()
    children = [awaiting.spawn(depth - 1) for _ in range(2)]
    return joined(*[await child for child in children])


class Census(threading.Thread):
    """Repeatedly counts the programs of tasks below a worker."""

    def __init__(self, worker: int) -> None:
        super().__init__(daemon=True)
        self.most = 0
        self._worker = worker
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.wait(CHECK_S):
            launchers = children_of(self._worker)
            self.most = max(self.most, sum(len(children_of(pid)) for pid in launchers))

    def end(self) -> int:
        self._over.set()
        self.join()
        return self.most


def children_of(pid: int) -> list[int]:
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ciel.Client]:
    directory = tmp_path_factory.mktemp("trees")
    with (
        ciel.LocalCluster(workers=1, slots=1, directory=directory) as cluster,
        ciel.Client(cluster) as client,
    ):
        yield client


def run(client: ciel.Client, tree: ciel.Task[[int], Found], depth: int) -> int:
    """Return the largest number of processes at one time."""
    assert client.cluster is not None
    census = Census(client.cluster.workers[0].pid)
    census.start()
    count, pids = client.submit(tree, depth).result(100)
    most = census.end()
    print(f"\n{tree}: {count} tasks in {len(pids)} processes, at most {most} at a time")
    assert count == (2 << depth) - 1
    return most


@pytest.mark.parametrize(
    "tree", [blocking, delegating, awaiting], ids=["blocking", "delegating", "awaiting"]
)
def test_a_tree_of_many_tasks_ends_on_one_slot(
    client: ciel.Client, tree: ciel.Task[[int], Found]
) -> None:
    assert 1 <= run(client, tree, DEPTH) <= DEPTH + 1


def test_a_tree_of_tasks_in_separate_processes_ends_on_one_slot(client: ciel.Client) -> None:
    # suspended tasks keep their processes
    assert 1 < run(client, blocking_apart, DEPTH_APART) <= 1 << DEPTH_APART
