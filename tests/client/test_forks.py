"""Forks of a process with a client and a cluster: the child can use neither, and does not disturb
the parent.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import ciel
from ciel.client.errors import ForkedError
from ciel.testing.homes import Home, wait_for

AT_ONCE_S = 20  # a child that waits longer is killed


def double(number: int) -> int:
    return 2 * number


def slow(number: int) -> int:
    time.sleep(30)
    return number


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ciel.Client]:
    environ = {**os.environ, "XDG_STATE_HOME": str(tmp_path_factory.mktemp("state"))}
    with (
        ciel.LocalCluster(slots=2, environ=environ) as cluster,
        ciel.Client(cluster) as client,
    ):
        yield client


def in_child(act: Callable[[], object]) -> str:
    """Return the result or the error of a function in a forked child."""
    read_fd, write_fd = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.alarm(AT_ONCE_S)
        try:
            said = repr(act())
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(write_fd, said.encode())
        os._exit(0)
    os.close(write_fd)
    with open(read_fd) as file:
        said = file.read()
    os.waitpid(pid, 0)
    return said.replace(str(pid), "CHILD")


def uses(client: ciel.Client) -> dict[str, Callable[[], Any]]:
    """List the uses of a client, its futures, its jobs and its cluster."""
    done, running = client.submit(double, 1), client.submit(slow, 1)
    assert done.result() == 2
    job = client.job()
    cluster = client.cluster
    assert cluster is not None
    return {
        "submit": lambda: client.submit(double, 1),
        "map": lambda: list(client.map(double, [1])),
        "run": lambda: client.run(["true"]),
        "put": lambda: client.put(1),
        "get": lambda: client.get(running),
        "gather": lambda: client.gather(running),
        "wait": lambda: client.wait([running]),
        "as_completed": lambda: list(client.as_completed([running])),
        "cancel": lambda: client.cancel(running),
        "result": running.result,
        "exception": running.exception,
        "add_done_callback": lambda: running.add_done_callback(print),
        "spawn": lambda: ciel.spawn(double, 1),
        "ciel.wait": lambda: ciel.wait([running]),
        "job": client.job,
        "job.results": lambda: list(job.results([job.run(["true"])])),
        "job.wait": job.wait,
        "attach": lambda: client.attach("last"),
        "ask": lambda: client.ask("status"),
        "explain": lambda: client.explain(running),
        "upload": lambda: client.upload("/etc/hostname"),
        "cancel_job": lambda: client.cancel_job("x"),
        "wait_for_job": lambda: client.wait_for_job("x"),
        "slot_count": client.slot_count,
        "progress": lambda: ciel.progress().__enter__(),
    }


def test_every_use_of_a_client_in_a_child_is_refused_at_once(client: ciel.Client) -> None:
    refusal = (
        f"ForkedError: this client was created in process {os.getpid()} and cannot be used in its "
        "child CHILD; create another client in the child"
    )
    asked = uses(client)

    def ask_all() -> dict[str, str]:
        told = {}
        for name, use in asked.items():
            try:
                told[name] = repr(use())
            except BaseException as error:
                told[name] = f"{type(error).__name__}: {error}"
        return {name: said for name, said in told.items() if not said.startswith("ForkedError")}

    assert in_child(ask_all) == "{}"
    assert in_child(asked["submit"]) == refusal
    client.cancel(client.submit(slow, 1))


@pytest.mark.slow
def test_a_child_is_refused_while_other_threads_hold_locks(client: ciel.Client) -> None:
    done = threading.Event()

    def work() -> None:
        while not done.is_set():
            assert client.submit(double, 2).result() == 4

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        said = {in_child(lambda: client.submit(double, 1)).split(":")[0] for _ in range(4)}
        said |= {in_child(lambda: client.ask("status")).split(":")[0] for _ in range(4)}
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert said == {"ForkedError"}


def test_a_child_cannot_use_the_cluster_but_can_have_a_client_of_it(client: ciel.Client) -> None:
    cluster = client.cluster
    assert cluster is not None
    assert in_child(lambda: cluster.restart(0)).startswith(
        "ForkedError: this cluster was created in"
    )
    assert in_child(cluster.add_worker).startswith("ForkedError")

    def own() -> int:
        with ciel.Client(cluster) as mine:
            return mine.submit(double, 4).result() + ciel.spawn(double, 1).result()

    assert in_child(own) == "10"


def test_the_end_of_a_child_ends_nothing_of_its_parent(client: ciel.Client) -> None:
    cluster = client.cluster
    assert cluster is not None
    pids = [cluster.master.pid, *(worker.pid for worker in cluster.workers)]
    future = client.submit(time.sleep, 0.2)

    def leave() -> None:
        client.close()
        client.__exit__(None, None, None)
        cluster.close()
        cluster.__exit__(None, None, None)

    assert in_child(leave) == "None"
    for how in (lambda: os._exit(1), sys.exit, lambda: os.kill(os.getpid(), signal.SIGKILL)):
        in_child(how)
    assert future.result() is None
    assert client.submit(double, 3).result() == 6
    assert [cluster.master.pid, *(worker.pid for worker in cluster.workers)] == pids


def test_a_fork_with_a_closed_client_and_cluster_prints_nothing(
    capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    environ = {**os.environ, "XDG_STATE_HOME": str(tmp_path)}
    with ciel.LocalCluster(environ=environ) as cluster, ciel.Client(cluster) as client:
        client.submit(double, 1).result()
    assert in_child(lambda: 1) == "1"
    assert capfd.readouterr().err == ""
    with pytest.raises(ForkedError):
        raise ForkedError(1, 2)


ORPHANED = """
import os, sys, time, ciel
client = ciel.Client(cluster_options={"slots": 1, "store": "shm"})
client.job().want([client.job().run(["sleep", "1000"])])
if os.fork() == 0:
    print("forked", flush=True)
    time.sleep(60)
    os._exit(0)
time.sleep(60)
"""


@pytest.mark.slow
def test_the_cluster_of_a_killed_parent_ends_though_a_child_lives(tmp_path: Path) -> None:
    home = Home(tmp_path)
    parent = home.start("python", "-c", ORPHANED, start_new_session=True)
    try:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "forked\n"
        parent.kill()

        def left() -> list[str]:
            return [line for line in home.leftovers() if "import os, sys, time, ciel" not in line]

        wait_for(lambda: not left(), "the end of its cluster")
        assert len(home.processes()) == 1
    finally:
        os.killpg(parent.pid, signal.SIGKILL)
        parent.communicate(timeout=20)
