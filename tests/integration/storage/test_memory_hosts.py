"""Memory of other hosts: three hosts of namespaces, with the commands of docs/memory.md."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from string import ascii_letters
from typing import Any, Final

import pytest

from ciel.testing.homes import wait_for
from ciel_tests.clusters.hosts import Host, Hosts

MIB: Final = 1 << 20
SPACE: Final = """
import ciel, hashlib
with ciel.Client() as client:
    space = client.memory("scratch", timeout_s=10)
    print(space.attributes())
    content = hashlib.shake_256(b"seed").digest(12 << 20)
    space.write(4096, content)
    print(space.read(4096, 12 << 20) == content, space.read(0, 4))
    space.close()
"""
AGAIN: Final = """
import ciel, hashlib
with ciel.Client() as client:
    space = client.memory("scratch", timeout_s=10)
    print(space.read(4096, 12 << 20) == hashlib.shake_256(b"seed").digest(12 << 20))
    space.close()
"""


class Cluster:
    """A master on the first of three hosts, and a memory server on each."""

    def __init__(self, hosts: list[Host]) -> None:
        self.hosts, first = hosts, hosts[0]
        listen = ("--listen", f"{first.address}:0", "--new-key")
        first.start("ciel-master", *listen, "--log", "master.log")
        wait_for(lambda: [*first.path.glob("state/ciel/*/access.json")], "the access file")
        (access,) = first.path.glob("state/ciel/*/access.json")
        for host in hosts:
            if host is not first:
                shutil.copy2(access, host.path / "carried.json")
                host.environ["CIEL_ACCESS"] = str(host.inside / "carried.json")
        first.environ["CIEL_MASTER"] = str(json.loads(access.read_text())["url"])
        self.lenders = [self.start_lender(host) for host in hosts]

    def start_lender(self, host: Host, offer: str = "64MiB") -> subprocess.Popen[str]:
        before = len(self.servers())
        words = ("--offer", offer, "--listen", f"{host.address}:0", "--pressure-max", "off")
        lender = host.start("ciel-memory", *words, "--log", "memory.log")
        wait_for(lambda: len(self.servers()) > before, "a memory server")
        return lender

    def ciel(self, *words: str, host: int = 0) -> Any:
        done = self.hosts[host].run("ciel", *words, "--json", timeout_s=60)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def python(self, host: int, script: str) -> str:
        done = self.hosts[host].run("python", "-c", script, timeout_s=60)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def servers(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.ciel("memory", "list")["servers"]
        return [row for row in rows if row["is_connected"]]

    def volume(self, name: str) -> dict[str, Any]:
        (found,) = [v for v in self.ciel("memory", "list")["volumes"] if v["name"] == name]
        return dict(found)

    def create(self, name: str, size: str, replicas: int, *options: str) -> None:
        words = ("--size", size, "--replicas", str(replicas), *options)
        made = self.ciel("memory", "create", name, *words)
        wait_for(lambda: self.volume(name)["available"] == made["extents"], "the volume")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Hosts(tmp_path, count=3) as hosts:
        yield Cluster(hosts)


@pytest.mark.slow
def test_programs_on_any_host_use_a_volume_while_a_server_dies_and_another_leaves(
    cluster: Cluster,
) -> None:
    cluster.create("scratch", "16MiB", 2, "--compress", "zstd")
    said = cluster.python(1, SPACE)
    assert "Attributes(size_bytes=16777216, page_bytes=4096, replicas=2)" in said
    assert "True b'\\x00\\x00\\x00\\x00'" in said
    assert cluster.python(2, AGAIN) == "True\n"
    cluster.lenders[2].kill()
    cluster.lenders[2].communicate(timeout=20)
    assert cluster.python(0, AGAIN) == "True\n"
    wait_for(lambda: cluster.volume("scratch")["copies"] == 2, "another copy", 30.0)
    cluster.start_lender(cluster.hosts[2])
    leaving = next(s for s in cluster.servers() if s["address"].startswith("10.77.0.2:"))
    cluster.hosts[0].run("ciel", "memory", "drain", leaving["server"])
    cluster.lenders[1].communicate(timeout=60)
    assert cluster.python(1, AGAIN) == "True\n"
    assert cluster.volume("scratch")["copies"] == 2
    assert "scratch" in cluster.hosts[1].run("ciel", "memory", "stats").stdout
    cluster.ciel("memory", "remove", "scratch")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nbdkit") is None, reason="needs nbdkit")
@pytest.mark.skipif(shutil.which("nbdcopy") is None, reason="needs nbdcopy")
def test_a_host_without_a_memory_server_exports_a_volume_of_the_others(cluster: Cluster) -> None:
    cluster.lenders[0].send_signal(signal.SIGTERM)
    cluster.lenders[0].communicate(timeout=60)
    cluster.create("disk", "8MiB", 2)
    first = cluster.hosts[0]
    serving = first.start("ciel", "memory", "export", "disk", "--socket", "disk.nbd", "--json")
    assert serving.stdout is not None
    uri = json.loads(serving.stdout.readline())["uri"]
    content = os.urandom(8 * MIB)
    (first.path / "image").write_bytes(content)
    for words in (("image", uri), (uri, "back")):
        done = first.run("nbdcopy", *words, timeout_s=60)
        assert done.returncode == 0, done.stderr
    assert (first.path / "back").read_bytes() == content
    serving.send_signal(signal.SIGINT)
    serving.communicate(timeout=20)


@pytest.mark.slow
def test_a_worker_spills_to_the_memory_of_other_hosts(cluster: Cluster) -> None:
    worker = cluster.hosts[1]
    words = ("--store", "shm:capacity=8MiB,spill=remote", "--slots", "1")
    worker.start("ciel-worker", *words, "--listen", f"{worker.address}:0", "--log", "worker.log")
    script = """
import ciel, hashlib
with ciel.Client() as client, client.job("large") as job:
    made = [job.run(["sh", "-c", f"head -c 400000 /dev/zero | tr '\\\\0' {c}"]) for c in LETTERS]
    job.want(made)
    job.results(made, timeout_s=60)
    sums = [job.run(["sha256sum"], inputs=[one]) for one in reversed(made)]
    right = [hashlib.sha256(c.encode() * 400000).hexdigest() for c in reversed(LETTERS)]
    print([job.read(one, timeout_s=60).decode().split()[0] for one in sums] == right)
"""
    assert cluster.python(2, f"LETTERS = {ascii_letters!r}{script}") == "True\n"

    def remote() -> int:
        levels = {row["name"]: row for row in cluster.ciel("store", "stats")}
        return int(levels["remote"]["objects"])

    wait_for(lambda: remote() > 10, "the figures of objects on other hosts")
