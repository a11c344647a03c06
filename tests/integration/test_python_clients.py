"""Clients of the Python API whose connection breaks, that share a job, fork, are interrupted, or are
killed in the middle.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import select
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator

import pytest

from ciel.access.settings import MasterLocation
from ciel.client import LocalCluster
from ciel.client.client import Client
from ciel.client.errors import ConnectionLostError, JobEndedError
from ciel.core.refs import Value
from ciel.testing.homes import Home, wait_for

TASKS = 1500


class Proxy:
    """Stands between clients and a master, and cuts or delays what goes by."""

    def __init__(self, netloc: str) -> None:
        host, _, port = netloc.rpartition(":")
        self._master = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.netloc = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self.accepted = 0
        self.is_down = False
        self._accepting = threading.Thread(target=self._accept)
        self._accepting.start()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *error: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._accepting.join()
        self._listener.close()
        self.cut()
        for thread in self._threads:
            thread.join()

    def cut(self) -> None:
        """Break all connections in the middle; what is under way is lost."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            for channel in pair:
                with contextlib.suppress(OSError):
                    channel.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            if self.is_down:
                near.close()
                continue
            self.accepted += 1
            far = socket.create_connection(self._master)
            with self._lock:
                self._pairs.append((near, far))
            thread = threading.Thread(target=self._carry, args=(near, far))
            self._threads.append(thread)
            thread.start()

    def _carry(self, near: socket.socket, far: socket.socket) -> None:
        """Carry small pieces, so that a cut comes in the middle of a frame."""
        other = {near: far, far: near}
        with near, far, contextlib.suppress(OSError):
            while True:
                for source in select.select([near, far], [], [])[0]:
                    data = source.recv(3001)
                    if not data:
                        return
                    other[source].sendall(data)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    environ = {**os.environ, "XDG_STATE_HOME": str(tmp_path_factory.mktemp("state"))}
    with LocalCluster(workers=2, slots=1, environ=environ) as cluster:
        yield cluster


@pytest.fixture
def proxy(cluster: LocalCluster) -> Iterator[Proxy]:
    with Proxy(cluster.location.url.partition("://")[2]) as proxy:
        yield proxy


def through(cluster: LocalCluster, proxy: Proxy) -> MasterLocation:
    return cluster.location._replace(control=proxy.netloc)


def test_a_connection_that_breaks_again_and_again_loses_nothing_and_doubles_nothing(
    cluster: LocalCluster, proxy: Proxy
) -> None:
    chance = random.Random(7)
    with Client(through(cluster, proxy)) as client, client.job("cuts") as job:
        done = threading.Event()

        def cut() -> None:
            while not done.wait(chance.uniform(0.01, 0.1)):
                proxy.cut()

        cutting = threading.Thread(target=cut)
        cutting.start()
        try:
            refs = []
            for number in range(TASKS):
                refs.append(job.run(["echo", number]))
                if number % 50 == 49:
                    job.want(refs[-50:])
                    client.ask("status")
            made = [ref.content for ref in job.results(refs, 60) if isinstance(ref, Value)]
        finally:
            done.set()
            cutting.join()
        assert made == [b"%d\n" % number for number in range(TASKS)]
        assert proxy.accepted > 5
        summary = client.ask("job", {"job": job.id})["summary"]
        assert summary[5] == {"done": TASKS}
