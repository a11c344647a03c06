"""Memory servers, volumes and their clients, as real processes (NET-1, NET-4, NET-5, KVB-1)."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from ciel.client.client import Client
from ciel.client.memory import VolumeOwner
from ciel.memory.space import SpaceError
from ciel.testing.homes import HandCluster, Home, wait_for
from ciel_tests.documents.schemas import Schemas

MIB = 1 << 20
PAGE = 4096


class Lenders:
    """Memory servers of a cluster."""

    def __init__(self, home: Home) -> None:
        self.home = home
        self.processes: dict[str, subprocess.Popen[str]] = {}  # by id
        self.schemas = Schemas()

    def start(self, offer: str = "64MiB") -> str:
        """Start a server; return its id."""
        before = set(self.servers())
        process = self.home.start("ciel-memory", "--offer", offer, "--listen", "127.0.0.1:0")
        wait_for(lambda: set(self.servers()) - before, "the server", 20.0)
        (server,) = set(self.servers()) - before
        self.processes[server] = process
        return server

    def servers(self) -> dict[str, dict[str, Any]]:
        return {row["server"]: row for row in self.listed()["servers"] if row["is_here"]}

    def listed(self) -> Any:
        found = self.ciel("list")
        self.schemas.check("memory-list", found)
        return found

    def ciel(self, *words: str) -> Any:
        done = self.home.run("ciel", "memory", *words, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def create(self, name: str, size: str, replicas: int) -> None:
        made = self.ciel("create", name, "--size", size, "--replicas", str(replicas))
        self.schemas.check("memory-create", made)
        wait_for(lambda: self.volume(name)["available"] == made["extents"], "the volume")

    def volume(self, name: str) -> dict[str, Any]:
        (found,) = [row for row in self.listed()["volumes"] if row["name"] == name]
        return dict(found)

    def kill(self, server: str) -> None:
        process = self.processes.pop(server)
        process.kill()
        process.communicate(timeout=20)

    def leave(self) -> None:
        for process in self.processes.values():
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=20)


@pytest.fixture
def lenders(lasting_cluster: HandCluster) -> Iterator[Lenders]:
    lenders = Lenders(lasting_cluster.home)
    yield lenders
    for row in lenders.listed()["volumes"]:
        assert lenders.ciel("remove", row["name"]) == {"name": row["name"]}
    lenders.leave()


def test_nothing_is_lost_while_servers_die_and_leave(
    lenders: Lenders, lasting_cluster: HandCluster
) -> None:
    servers = [lenders.start() for _ in range(3)]
    lenders.create("scratch", "8MiB", 2)
    expected: dict[int, bytes] = {}
    is_over, problems = threading.Event(), []
    with Client(lasting_cluster.url, access=str(lasting_cluster.access)) as client:
        space = client.memory("scratch", timeout_s=20.0)

        def work() -> None:
            chance = random.Random(1)
            while not is_over.is_set():
                at = chance.randrange(8 * MIB // PAGE)
                if space.read(at * PAGE, PAGE) != expected.get(at, bytes(PAGE)):
                    problems.append(at)
                expected[at] = os.urandom(16) * (PAGE // 16)
                space.write(at * PAGE, expected[at])

        thread = threading.Thread(target=work)
        thread.start()
        lenders.kill(servers[0])
        wait_for(lambda: lenders.volume("scratch")["copies"] == 2, "the second copies", 30.0)
        fourth = lenders.start()
        assert lenders.ciel("drain", servers[1]) == {"server": servers[1]}
        left = lenders.processes.pop(servers[1])
        left.communicate(timeout=20)
        assert left.returncode == 0
        assert lenders.volume("scratch")["copies"] == 2
        is_over.set()
        thread.join(30)
        assert problems == []
        assert len(expected) > 50
        for at, content in expected.items():
            assert space.read(at * PAGE, PAGE) == content
        space.close()
    assert set(lenders.servers()) == {servers[2], fourth}


def test_a_server_that_stood_still_joins_again(
    lenders: Lenders, lasting_cluster: HandCluster
) -> None:
    first, _ = lenders.start(), lenders.start()
    lenders.create("scratch", "2MiB", 2)
    with Client(lasting_cluster.url, access=str(lasting_cluster.access)) as client:
        space = client.memory("scratch", timeout_s=20.0)
        space.write(0, b"before")
        lenders.processes[first].send_signal(signal.SIGSTOP)
        wait_for(lambda: first not in lenders.servers(), "the master gives it up")
        space.write(0, b"after!")
        lenders.processes[first].send_signal(signal.SIGCONT)
        wait_for(lambda: lenders.volume("scratch")["copies"] == 2, "both copies", 30.0)
        assert first in lenders.servers()
        lenders.kill(next(server for server in lenders.processes if server != first))
        assert space.read(0, 6) == b"after!"  # it has no old page
        space.close()


def test_a_client_on_the_host_of_a_server_uses_its_unix_socket(
    lenders: Lenders, lasting_cluster: HandCluster
) -> None:
    lenders.start()
    lenders.create("near", "1MiB", 1)
    with Client(lasting_cluster.url, access=str(lasting_cluster.access)) as client:
        owner = VolumeOwner(client, "near")
        with owner.connect(owner.place(0)[1], session=1) as connected:
            assert connected.family == socket.AF_UNIX


@pytest.mark.slow
def test_pages_without_a_copy_are_lost_with_an_error_that_names_the_server(
    lenders: Lenders, lasting_cluster: HandCluster
) -> None:
    server = lenders.start()
    lenders.create("fragile", "1MiB", 1)
    with Client(lasting_cluster.url, access=str(lasting_cluster.access)) as client:
        space = client.memory("fragile")
        space.write(0, b"here")
        lenders.kill(server)
        with pytest.raises(SpaceError, match=f"memory server {server} is gone"):
            space.read(0, 4)
        space.close()
        with pytest.raises(SpaceError, match="no volume 'nothing'; `ciel memory create` makes one"):
            client.memory("nothing")


def test_requests_that_cannot_be_met_say_why(lenders: Lenders) -> None:
    lenders.start("4MiB")
    for words, why in (
        (("create", "big", "--size", "8MiB"), "needs 8 MiB on at least 1 servers; 4 MiB are free"),
        (("create", "v", "--size", "1MiB", "--replicas", "2"), "at least 2 servers"),
        (("remove", "nothing"), "there is no volume 'nothing'"),
        (("drain", "nobody"), "there is no memory server nobody"),
        (("export", "nothing", "--socket", "s"), "there is no volume 'nothing'"),
    ):
        done = lenders.home.run("ciel", "memory", *words)
        assert done.returncode in (1, 2), words
        assert why in done.stderr


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nbdkit") is None, reason="needs nbdkit")
@pytest.mark.skipif(shutil.which("nbdcopy") is None, reason="needs nbdcopy")
def test_a_volume_is_exported_to_nbd_clients(lenders: Lenders) -> None:
    lenders.start()
    lenders.create("disk", "4MiB", 1)
    home = lenders.home
    serving = home.start("ciel", "memory", "export", "disk", "--socket", "disk.nbd", "--json")
    assert serving.stdout is not None
    found = json.loads(serving.stdout.readline())
    lenders.schemas.check("memory-export", found)
    content = os.urandom(4 * MIB)
    (home.path / "image").write_bytes(content)
    for words in (("image", found["uri"]), (found["uri"], "back")):
        subprocess.run(["nbdcopy", *words], check=True, cwd=home.path, timeout=60)
    assert (home.path / "back").read_bytes() == content
    serving.send_signal(signal.SIGINT)
    serving.communicate(timeout=20)
    assert not any("nbdkit" in line for line in home.processes().values())
