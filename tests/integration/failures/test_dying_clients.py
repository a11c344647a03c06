"""Kills a client at any byte of a submit: the master keeps nothing of it, and goes on serving.

A relay between each client and the master kills the client when it has forwarded a given number of
its bytes, at any position in a frame.
"""

from __future__ import annotations

import json
import socket
import stat
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any, Final

import pytest

from ciel.client.client import Client
from ciel.testing.homes import HandCluster, Home, descriptors_of, wait_for

pytestmark = pytest.mark.slow

PHASES: Final = 5
"""The number of positions at which a client is killed; one more case is never."""


class Relay:
    """Forwards bytes between one client and a master. After a given number of the client's bytes it
    kills the client and disconnects.
    """

    def __init__(self, master: tuple[str, int], limit: int | None) -> None:
        self.passed = 0
        self.client: Future[subprocess.Popen[str]] = Future()
        self.is_cut = threading.Event()
        self._limit = limit
        self._master = master
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with client, socket.create_connection(self._master) as master:
                back = threading.Thread(target=self._pass_back, args=(master, client))
                back.start()
                self._pass_on(client, master)
                master.shutdown(socket.SHUT_RDWR)
                back.join()

    def _pass_on(self, client: socket.socket, master: socket.socket) -> None:
        while True:
            try:
                data = client.recv(1 << 16)
            except OSError:
                return
            if not data:
                return
            if self._limit is not None and self.passed + len(data) >= self._limit:
                master.sendall(data[: self._limit - self.passed])
                self.client.result().kill()
                self.is_cut.set()
                return
            self.passed += len(data)
            master.sendall(data)

    @staticmethod
    def _pass_back(master: socket.socket, client: socket.socket) -> None:
        try:
            while data := master.recv(1 << 16):
                client.sendall(data)
        except OSError:
            pass  # the client is gone
        client.close()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HandCluster]:
    """Start a cluster of one worker, and check that its logs contain no fault."""
    cluster = HandCluster.start(Home(tmp_path_factory.mktemp("dying")), 1, "--slots", "2")
    yield cluster
    cluster.stop()
    for name in ("master", "worker1"):
        assert "Traceback" not in cluster.log(name)


def submit_through(cluster: HandCluster, limit: int | None, number: int) -> Relay:
    """Start a submit whose client is killed after `limit` bytes."""
    home = cluster.home
    known = json.loads(cluster.access.read_text())
    host, _, port = known["url"].removeprefix("http://").rpartition(":")
    relay = Relay((host, int(port)), limit)
    access = home.path / f"access-{number}.json"
    access.write_text(json.dumps({**known, "control": relay.address}))
    access.chmod(stat.S_IRUSR | stat.S_IWUSR)
    client = home.start(
        "ciel", "submit", "--access", str(access), "--in", str(home.path / "input"),
        "--array", "1-150", "--name", f"dying {number}", "--", "wc", "-c", "input",
    )  # fmt: skip
    relay.client.set_result(client)
    return relay


def ask(cluster: HandCluster, topic: str, argument: Any = None) -> Any:
    with Client(access=str(cluster.access), environ=cluster.home.environ) as client:
        return client.ask(topic, argument)


def held(cluster: HandCluster) -> int:
    """Count the objects that workers hold."""
    return sum(int(level["objects"]) for level in ask(cluster, "stores"))


def test_a_client_may_die_at_any_byte_of_a_submit(served: HandCluster) -> None:
    home = served.home
    (home.path / "input").write_bytes(b"x" * 200_000)
    whole = submit_through(served, None, 0)
    out, said = whole.client.result().communicate(timeout=40)
    assert (out, said) == ("200000 input\n" * 150, "")
    whole.close()
    limits = [whole.passed * phase // (PHASES + 1) for phase in range(1, PHASES + 1)]
    daemons = [served.master.pid, served.workers[0].pid]
    descriptors = sum(map(descriptors_of, daemons))
    dying = [submit_through(served, limit, number) for number, limit in enumerate([1, *limits], 1)]
    for relay in dying:
        relay.client.result().communicate(timeout=40)
        assert relay.is_cut.is_set()
        relay.close()

    def is_quiet() -> bool:
        (worker,) = ask(served, "workers")
        active = [job for job in ask(served, "jobs", {}) if job[3] == "active"]
        return not active and not worker["running"] and not worker["queued"]

    wait_for(is_quiet, "the end of all that was begun")
    wait_for(lambda: sum(map(descriptors_of, daemons)) <= descriptors, "as few descriptors")
    # Uploads for tasks that never arrived belong to no job; the worker deletes them.
    came = [job[2] for job in ask(served, "jobs", {}) if job[5] or job[10]]
    removed = home.run("ciel", "job", "rm", "all")
    assert removed.returncode == 0, removed.stderr
    status = ask(served, "status")
    assert (status["jobs"], status["tasks"], status["objects"]) == ({}, {}, 0)
    wait_for(lambda: held(served) <= 1 + len(dying) - len(came), "no more than was nobody's")
