"""Daemons of one image that share its memory, but no network and no abstract name: they ask each
other by message-passing buffers.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.task import Clock

from ciel.shm.client import ShmdClient
from ciel.shm.credentials import core_prefix
from ciel.shm.errors import RequestFailedError, RequestTimeoutError
from ciel.shm.peers import Peers
from ciel.storage.sharing import PeerStoreError
from ciel_tests.clusters import core_daemon

pytestmark = [pytest.mark.requirement("CIB-14"), pytest.mark.requirement("CIB-31")]

PROGRAM = core_daemon.__file__
CONTENT = bytes(range(256)) * 300


class CoreDaemons:
    """Runs the daemons of an image's cores, each in a private network namespace."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.instance = f"cores-{os.getpid()}"
        self.running: dict[int, subprocess.Popen[str]] = {}
        self._clients: list[ShmdClient] = []

    def start(self, *cores: int) -> None:
        for core in cores:
            (self.path / str(core)).mkdir(exist_ok=True)
            self.running[core] = subprocess.Popen(
                ["unshare", "--net", sys.executable, PROGRAM, str(self.path / str(core)),
                 self.instance, str(core)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )  # fmt: skip
        for core in cores:
            process = self.running[core]
            assert process.stdout is not None
            if process.stdout.readline() != "ready\n":
                said = process.communicate()[1]
                if "Operation not permitted" in said:
                    pytest.skip("no namespaces here (they want root)")
                raise AssertionError(said)

    def client(self, core: int) -> ShmdClient:
        self._clients.append(ShmdClient(self.path / str(core), timeout_s=20.0))
        return self._clients[-1]

    def make(self, core: int, object_id: str) -> None:
        client = self.client(core)
        path = client.write(object_id)
        Path(path).write_bytes(CONTENT)
        client.commit(path, object_id)

    def kill(self, core: int) -> None:
        process = self.running.pop(core)
        process.kill()
        process.communicate(timeout=20)

    def counters(self, core: int) -> dict[str, int]:
        """End a daemon, and return its counters."""
        printed, said = self.running.pop(core).communicate(timeout=20)
        assert "Traceback" not in said, said
        counters: dict[str, int] = json.loads(printed)
        return counters

    def end(self) -> None:
        for client in self._clients:
            client.close()
        for core in [*self.running]:
            self.running[core].send_signal(signal.SIGCONT)
            self.counters(core)
        shutil.rmtree(f"/dev/shm/ciel-scc-{self.instance}", ignore_errors=True)  # of killed ones


@pytest.fixture
def daemons(tmp_path: Path) -> Iterator[CoreDaemons]:
    daemons = CoreDaemons(tmp_path)
    yield daemons
    daemons.end()


def test_a_load_is_forwarded_to_all_cores_and_the_first_answer_wins(daemons: CoreDaemons) -> None:
    daemons.start(0, 1, 3)
    daemons.make(1, "x")
    daemons.make(3, "x")
    client = daemons.client(0)
    assert Path(client.load("x")).read_bytes() == CONTENT
    with pytest.raises(RequestFailedError, match=r"neither in this store nor in another.*not in"):
        client.load("nowhere")
    counters = daemons.counters(0)
    assert (counters["asked"], counters["linked"], counters["copied"]) == (4, 1, 0)
    assert daemons.counters(1)["not_served"] == daemons.counters(3)["not_served"] == 1


def test_a_stopped_core_delays_only_what_nobody_else_has(daemons: CoreDaemons) -> None:
    daemons.start(0, 1, 2)
    daemons.make(2, "x")
    daemons.running[1].send_signal(signal.SIGSTOP)
    client = daemons.client(0)
    assert Path(client.load("x")).read_bytes() == CONTENT
    with pytest.raises(RequestTimeoutError, match="worker-core:1: no answer"):
        client.load("nowhere", timeout_s=0.3)


def test_cores_that_are_killed_and_started_again_are_found(daemons: CoreDaemons) -> None:
    daemons.start(0, 1)
    daemons.make(1, "x")
    client = daemons.client(0)
    assert Path(client.load("x")).read_bytes() == CONTENT
    daemons.kill(1)
    with pytest.raises(RequestFailedError, match=r"neither in this store nor in another$"):
        client.load("y")
    daemons.start(1)
    daemons.make(1, "y")
    assert Path(client.load("y")).read_bytes() == CONTENT


def test_peers_are_those_with_a_socket_and_those_that_are_cores() -> None:
    group = f"cores-{os.getpid()}"
    cores = KnownCores({f"{core_prefix(group)}one": 3, "bridge 8100": 7})
    peers = Peers(Clock(), group, "own", cores)
    assert cores.own == f"{core_prefix(group)}own"
    assert peers.names() == ["one"]
    asked = peers.ask("one", "x", 60.0)
    assert cores.asked == [(3, "shmd")]
    failures: list[object] = []
    asked.addErrback(lambda failure: failures.append(failure.type))
    peers.close()
    assert failures == [PeerStoreError]


class KnownCores:
    """A fixed list of cores."""

    def __init__(self, names: dict[str, int]) -> None:
        self._names = names
        self.own = ""
        self.asked: list[tuple[int, str]] = []

    def introduce(self, name: str) -> None:
        self.own = name

    def names(self) -> dict[str, int]:
        return self._names

    def listen(self, service: str, factory: Any) -> None: ...

    def connect(self, number: int, service: str, factory: Any) -> None:
        self.asked.append((number, service))

    def close(self) -> None: ...
