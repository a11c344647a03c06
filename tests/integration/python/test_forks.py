"""Tests programs of Python tasks that a preloaded parent forks: tasks find the same environment as
in other programs, and are not affected when the parent ends.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

import ciel
from ciel.testing.homes import wait_for

pytestmark = pytest.mark.slow

WITHIN_S = 30

cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ciel.LocalCluster]:
    with ciel.LocalCluster(workers=1, slots=2, directory=tmp_path) as cluster:
        yield cluster


@pytest.fixture
def client(cluster: ciel.LocalCluster) -> Iterator[ciel.Client]:
    with ciel.Client(cluster) as client:
        yield client


def together(directory: str, number: int, count: int) -> tuple[int, bool]:
    """Run until other tasks run, too; return the process id, and whether this process was
    forked.
    """
    Path(directory, str(number)).touch()
    while len(os.listdir(directory)) < count:
        time.sleep(0.001)
    return os.getpid(), "--preloaded" in Path("/proc/self/cmdline").read_text().split("\0")


def forked(client: ciel.Client, directory: Path) -> tuple[int, int]:
    """Make two programs run; return the ids of the forked one and of the launcher."""
    directory.mkdir()
    both = client.gather([client.submit(together, str(directory), n, 2) for n in range(2)])
    (pid,) = [pid for pid, is_forked in both if is_forked]
    return pid, int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def parents_of(launcher: int) -> list[int]:
    """Return the preloaded parents that a launcher runs."""
    found = []
    for child in Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split():
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/{child}/fd/1") == os.devnull:
                found.append(int(child))
    return found


def state() -> dict[str, Any]:
    import random
    import threading

    main = sys.modules["__main__"]
    return {
        "arguments": [len(sys.argv), sys.argv[0], sys.argv[1]],
        "main": [main.__name__, main.__file__],
        "threads": threading.main_thread() is threading.current_thread(),
        "path": sys.path,
        "variables": sorted(os.environ),
        "modules": "numpy" in sys.modules,
        "random": random.random(),
    }


def spawned_pool() -> list[int]:
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        return pool.map(abs, [-1, -2, -3])


@ciel.task(timeout_s=60)
def down(depth: int) -> int:
    return down.spawn(depth - 1).result() + 1 if depth else 0


def at_once(directory: str, number: int, count: int) -> dict[str, Any]:
    found = state()
    return found | {"forked": together(directory, number, count)[1]}


def test_a_forked_program_has_the_same_environment_as_a_started_one(
    client: ciel.Client, tmp_path: Path
) -> None:
    (tmp_path / "meet").mkdir()
    found = client.gather([client.submit(at_once, str(tmp_path / "meet"), n, 2) for n in range(2)])
    assert sorted(each.pop("forked") for each in found) == [False, True]
    first, second = found
    assert first.pop("random") != second.pop("random")
    assert first == second
    assert not first["modules"]


def test_a_pool_of_processes_works_in_a_forked_program(client: ciel.Client, tmp_path: Path) -> None:
    forked(client, tmp_path / "meet")
    futures = [client.submit(spawned_pool) for _ in range(2)]
    assert client.gather(futures) == [[1, 2, 3], [1, 2, 3]]


def test_tasks_are_not_affected_when_the_parent_ends(client: ciel.Client, tmp_path: Path) -> None:
    _, launcher = forked(client, tmp_path / "meet")
    dice = random.Random(49)
    killed = 0
    future = client.submit(down, 20)
    until_s = time.monotonic() + WITHIN_S
    while not future.done():
        assert time.monotonic() < until_s
        for parent in parents_of(launcher):
            with contextlib.suppress(ProcessLookupError):
                os.kill(parent, signal.SIGKILL)
                killed += 1
        time.sleep(dice.uniform(0, 0.1))
    assert future.result() == 20
    assert killed
    assert not client.submit(down, 3).exception(WITHIN_S)


def test_time_and_memory_of_a_task_are_limited_in_a_forked_program(
    client: ciel.Client, tmp_path: Path
) -> None:
    _, launcher = forked(client, tmp_path / "meet")

    def take(size_bytes: int) -> tuple[int, bool]:
        taken = b"x" * size_bytes
        time.sleep(0.3)
        return len(taken), "--preloaded" in Path("/proc/self/cmdline").read_text()

    brief = ciel.task(timeout_s=0.3)(time.sleep)
    assert isinstance(client.submit(brief, 60).exception(WITHIN_S), ciel.TaskTimeoutError)
    limited = ciel.task(memory_bytes=100 << 20)(take)
    assert client.submit(limited, 10 << 20).result(WITHIN_S) == (10 << 20, True)
    error = client.submit(limited, 200 << 20).exception(WITHIN_S)
    assert isinstance(error, ciel.TaskMemoryError)
    assert len(parents_of(launcher)) == 1


def test_the_parent_ends_with_the_worker(cluster: ciel.LocalCluster, tmp_path: Path) -> None:
    with ciel.Client(cluster) as client:
        pid, launcher = forked(client, tmp_path / "meet")
        (parent,) = parents_of(launcher)
        os.kill(cluster.workers[0].pid, signal.SIGKILL)
        wait_for(lambda: not (Path(f"/proc/{pid}").exists()), "the end of a forked program")
        wait_for(lambda: not (Path(f"/proc/{parent}").exists()), "the end of its parent")
