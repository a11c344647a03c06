"""Tests of tasks that see each other's states, on one host and on two: POOL-6."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

pytest.importorskip("pyarrow")

import ciel
import ciel.arrow
from ciel_tests.clusters.hosts import Hosts, TwoHosts

cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.fixture(scope="module", params=[(1, 3), (3, 1)], ids=["one worker", "three workers"])
def client(request: pytest.FixtureRequest) -> Iterator[ciel.Client]:
    workers, slots = request.param
    with ciel.Client(cluster_options={"workers": workers, "slots": slots}) as client:
        yield client


def together(client: ciel.Client, function: Any, *args: Any) -> list[Any]:
    """Return the futures of three members that run at the same time."""
    member = ciel.task(function, slots=1)
    return [client.submit(member, number, *args) for number in range(3)]


def pass_on(number: int) -> list[int]:
    """Let each member wait for the flags of the one before, and set its own."""
    states = ciel.arrow.States("chain", number=number, size=3)
    if number:
        states.wait(1, members=[number - 1], timeout=60)
    states.set(number << 1 | 1)
    states.wait(1, timeout=60)
    for _ in range(20):
        states.barrier(timeout=60)
    return [states.flags(member) for member in range(3)]


@pytest.mark.requirement("POOL-6")
def test_members_see_what_others_have_set(client: ciel.Client) -> None:
    found = client.gather(together(client, pass_on))
    assert found == [[0b001, 0b011, 0b101]] * 3


def fail_once(number: int, place: str) -> int:
    states = ciel.arrow.States("retried", number=number, size=3)
    states.set(1)
    if number == 0 and not os.path.exists(place):
        Path(place).touch()
        raise OSError("only once")
    states.set(2)
    states.wait(2, timeout=60)
    return states.flags(0)


def test_a_member_that_runs_again_joins_again(client: ciel.Client, tmp_path: Path) -> None:
    member = ciel.task(fail_once, slots=1, retries=1)
    place = str(tmp_path / "failed")
    found = client.gather([client.submit(member, n, place) for n in range(3)])
    assert found == [3, 3, 3]
    assert os.path.exists(place)


def fail(number: int) -> str:
    states = ciel.arrow.States("failing", number=number, size=3)
    states.set(1)
    states.wait(1, timeout=60)
    if number == 0:
        raise ValueError("by itself")
    try:
        states.wait(2, timeout=60)
    except ciel.arrow.StateError as error:
        return str(error)
    return ""


def test_others_notice_that_a_member_has_failed(client: ciel.Client) -> None:
    first, *others = together(client, fail)
    text = "of the group 'failing', the tasks of these members failed: 0"
    assert client.gather(others) == [text, text]
    with pytest.raises(ValueError, match="by itself"):
        first.result()


def join_in_a_map(number: int) -> None:
    ciel.arrow.States("map", number=number, size=3)


def join_wrongly(number: int) -> None:
    ciel.arrow.States("wrong", number=number, size=number)


def test_a_wrong_member_is_told_why(client: ciel.Client) -> None:
    with pytest.raises(ciel.arrow.SharedTaskError, match="as a row of a map"):
        list(client.map(join_in_a_map, range(3)))
    with pytest.raises(Exception, match="3 and 3 are no number of a member and size of its group"):
        client.submit(join_wrongly, 3).result(timeout=60)


REMOTE = """
import time
import ciel, ciel.arrow

def member(number):
    states = ciel.arrow.States("far", number=number, size=2)
    states.set(number + 1)
    states.wait(1, members=[0], timeout=60)
    states.wait(2, members=[1], timeout=60)
    for _ in range(10):
        states.barrier(timeout=60)
    begun_s = time.perf_counter()
    for _ in range(50):
        states.barrier(timeout=60)
    return ciel.current_task().id, (time.perf_counter() - begun_s) / 50

with ciel.Client() as client:
    alone = ciel.task(member, slots=1)
    found = client.gather([client.submit(alone, number) for number in range(2)])
    assert max(seconds for _, seconds in found) < 0.1, found
    print(len({task for task, _ in found}))
"""


@pytest.mark.requirement("POOL-6")
@pytest.mark.slow
def test_members_on_two_hosts_see_each_other(tmp_path: Path) -> None:
    with Hosts(tmp_path) as (here, there):
        cluster = TwoHosts(here, there)
        for host in (here, there):
            cluster.start_worker(host)
        done: subprocess.CompletedProcess[str] = there.run("python", "-c", REMOTE)
        assert (done.returncode, done.stdout) == (0, "2\n"), done.stderr
