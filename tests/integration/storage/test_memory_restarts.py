"""Volumes of remote memory outlive the master: it is killed, and started again or replaced."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ciel.client.client import Client
from ciel.testing.homes import HandCluster, Home, wait_for
from ciel_tests.clusters.lenders import Lenders

MIB = 1 << 20


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[HandCluster]:
    journal = ("--journal", str(tmp_path / "journal"))
    cluster = HandCluster.start(Home(tmp_path), 1, of_master=journal)
    yield cluster
    cluster.stop()


@pytest.fixture
def lenders(cluster: HandCluster) -> Iterator[Lenders]:
    lenders = Lenders(cluster.home)
    yield lenders
    lenders.leave()


def kill_master(cluster: HandCluster) -> None:
    cluster.master.kill()
    cluster.master.communicate(timeout=20)


def start_master(cluster: HandCluster) -> None:
    home = cluster.home
    log = home.path / "master2.log"
    cluster.master = home.start(
        "ciel-master", "--listen", cluster.url.removeprefix("http://"),
        "--access", str(cluster.access), "--log", str(log),
        "--journal", str(home.path / "journal"),
    )  # fmt: skip
    wait_for(lambda: log.exists() and "access file:" in log.read_text(), "the master is back")


def open_client(cluster: HandCluster) -> Client:
    return Client(cluster.url, access=str(cluster.access))


def epochs(client: Client, extents: int) -> list[int]:
    """Return the epochs of the extents of the volume `scratch`: each decision raises one."""
    wanted = {"name": "scratch", "extent": 0, "count": extents}
    return [place["epoch"] for place in client.ask("memory_places", wanted)]


def comparable(listed: Any) -> Any:
    """Return what `ciel memory list` prints, in an order that servers do not choose."""
    return sorted(listed["servers"], key=lambda row: row["server"]), listed["volumes"]


@pytest.mark.slow
def test_a_volume_is_read_after_the_master_and_one_of_its_servers_have_died(
    cluster: HandCluster, lenders: Lenders
) -> None:
    servers = [lenders.start() for _ in range(3)]
    lenders.create("scratch", "4MiB", 2)
    content = os.urandom(4 * MIB)
    with open_client(cluster) as client:
        space = client.memory("scratch", timeout_s=30.0)
        space.write(0, content)
        before, epochs_before = comparable(lenders.listed()), epochs(client, 4)
        kill_master(cluster)
        start_master(cluster)
        wait_for(lambda: comparable(lenders.listed()) == before, "the same list", 20.0)
        assert epochs(client, 4) == [epoch + 1 for epoch in epochs_before]
        lenders.kill(servers[0])
        assert space.read(0, len(content)) == content
        space.write(MIB, b"after")
        assert space.read(MIB, 5) == b"after"
        wait_for(lambda: lenders.volume("scratch")["copies"] == 2, "the second copies", 30.0)
        space.close()
    assert servers[0] not in lenders.servers()


@pytest.mark.slow
def test_a_server_that_dies_with_the_master_is_replaced_after_a_time(
    cluster: HandCluster, lenders: Lenders
) -> None:
    servers = [lenders.start() for _ in range(3)]
    lenders.create("scratch", "4MiB", 2)
    content = os.urandom(4 * MIB)
    with open_client(cluster) as client:
        space = client.memory("scratch", timeout_s=30.0)
        space.write(0, content)
        kill_master(cluster)
        lenders.kill(servers[0])
        start_master(cluster)
        assert space.read(0, len(content)) == content
        wait_for(lambda: lenders.volume("scratch")["copies"] == 2, "the second copies", 30.0)
        assert space.read(0, len(content)) == content
        space.close()
    assert set(lenders.servers()) == {*servers[1:]}


@pytest.mark.slow
def test_what_has_left_before_a_restart_does_not_come_back(
    cluster: HandCluster, lenders: Lenders
) -> None:
    servers = [lenders.start() for _ in range(3)]
    for name in ("kept", "removed"):
        lenders.create(name, "2MiB", 2)
    lenders.ciel("remove", "removed")
    lenders.ciel("drain", servers[0])
    lenders.processes.pop(servers[0]).communicate(timeout=20)
    wait_for(lambda: lenders.volume("kept")["available"] == 2, "the volume")
    before = comparable(lenders.listed())
    kill_master(cluster)
    start_master(cluster)
    wait_for(lambda: comparable(lenders.listed()) == before, "the same list", 20.0)
    assert [row["name"] for row in before[1]] == ["kept"]
    assert [row["server"] for row in before[0]] == sorted(servers[1:])


@pytest.mark.requirement("NET-5")
@pytest.mark.slow
def test_a_standby_that_takes_over_has_the_volumes(cluster: HandCluster, lenders: Lenders) -> None:
    home = cluster.home
    log = home.path / "standby.log"
    standby = home.start(
        "ciel-master", "--listen", "127.0.0.1:0", "--standby", cluster.url, "--access",
        str(cluster.access), "--journal", str(home.path / "journal2"), "--log", str(log),
    )  # fmt: skip
    wait_for(lambda: json.loads(cluster.access.read_text()).get("standbys"), "the standby")
    servers = [lenders.start() for _ in range(3)]
    lenders.create("scratch", "4MiB", 2)
    content = os.urandom(4 * MIB)
    with open_client(cluster) as client:
        space = client.memory("scratch", timeout_s=30.0)
        space.write(0, content)
        before = comparable(lenders.listed())
        kill_master(cluster)
        assert space.read(0, len(content)) == content
        cluster.master = standby  # the access file names it, too
        wait_for(lambda: comparable(lenders.listed()) == before, "the same list", 20.0)
        lenders.kill(servers[0])
        assert space.read(0, len(content)) == content
        space.write(0, content[::-1])
        assert space.read(0, len(content)) == content[::-1]
        space.close()


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nbdkit") is None, reason="needs nbdkit")
@pytest.mark.skipif(shutil.which("nbdcopy") is None, reason="needs nbdcopy")
def test_an_export_goes_on_with_the_restarted_master(
    cluster: HandCluster, lenders: Lenders
) -> None:
    for _ in range(2):
        lenders.start()
    lenders.create("disk", "4MiB", 2)
    home = cluster.home
    serving = home.start("ciel", "memory", "export", "disk", "--socket", "disk.nbd", "--json")
    assert serving.stdout is not None
    uri = json.loads(serving.stdout.readline())["uri"]
    content = os.urandom(4 * MIB)
    (home.path / "image").write_bytes(content)
    subprocess.run(["nbdcopy", "image", uri], check=True, cwd=home.path, timeout=60)
    kill_master(cluster)
    start_master(cluster)
    subprocess.run(["nbdcopy", uri, "back"], check=True, cwd=home.path, timeout=60)
    assert (home.path / "back").read_bytes() == content
    serving.send_signal(signal.SIGINT)
    serving.communicate(timeout=20)
