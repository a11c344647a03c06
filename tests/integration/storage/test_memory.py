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
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from ciel.access import access_file
from ciel.client.client import Client
from ciel.memory.master import VolumeOwner
from ciel.memory.space import SpaceError
from ciel.testing.homes import HandCluster, wait_for
from ciel_tests.clusters.lenders import Lenders

MIB = 1 << 20
PAGE = 4096


@pytest.fixture
def lenders(lasting_cluster: HandCluster) -> Iterator[Lenders]:
    lenders = Lenders(lasting_cluster.home)
    yield lenders
    for row in lenders.listed()["volumes"]:
        assert lenders.ciel("remove", row["name"]) == {"name": row["name"]}
    lenders.leave()


@pytest.mark.requirement("NET-4", "NET-5")
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


@pytest.mark.slow
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


def metrics(cluster: HandCluster) -> list[str]:
    key = access_file.read(cluster.access).key.text()
    request = Request(f"{cluster.url}/metrics", headers={"Authorization": f"Bearer {key}"})
    with urlopen(request, timeout=20) as answer:
        return list(answer.read().decode().splitlines())


@pytest.mark.slow
def test_figures_of_servers_and_volumes_are_shown(
    lenders: Lenders, lasting_cluster: HandCluster
) -> None:
    lenders.start()
    lenders.start()
    lenders.create("scratch", "2MiB", 2)
    with Client(lasting_cluster.url, access=str(lasting_cluster.access)) as client:
        space = client.memory("scratch")
        space.write(0, bytes(3 * PAGE))
        space.read(0, 2 * PAGE)
        space.close()

    def totals(name: str) -> int:
        found = lenders.ciel("stats")
        lenders.schemas.check("memory-stats", found)
        return sum(row[name] for row in found["servers"])

    def shows(text: str, *words: str) -> bool:
        return text in lenders.home.run("ciel", *words).stdout

    # On a busy host, a server may be expelled and join again, so numbers are waited for.
    wait_for(lambda: totals("pages_read") >= 2, "the figures")
    wait_for(lambda: totals("used_bytes") == 6 * PAGE, "the backup's figures")
    assert totals("pages_written") >= 6
    wait_for(
        lambda: totals("offer_max_bytes") == totals("offered_bytes") == 128 * MIB, "the offers"
    )
    line = "memory: 2 servers with 128MiB, 1 volume with 4MiB"
    wait_for(lambda: shows(line, "status"), "the status")
    lenders.schemas.check("status", json.loads(lenders.home.run("ciel", "status", "--json").stdout))
    wait_for(lambda: shows("2 servers with 128MiB, 1 volume", "doctor"), "the doctor")
    copies = 'ciel_volume_copies{volume="scratch"} 2'
    wait_for(lambda: copies in metrics(lasting_cluster), "the metrics")
    watching = lenders.home.start("ciel", "memory", "stats", "--watch", "--json")
    assert watching.stdout is not None
    lines = [json.loads(watching.stdout.readline()) for _ in range(2)]
    watching.send_signal(signal.SIGINT)
    assert watching.wait(20) == 130
    watching.communicate()
    assert [line["volumes"][0]["name"] for line in lines] == ["scratch"] * 2


class Kernel:
    """Imitates the files in which the kernel describes its memory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        (directory / "pressure").mkdir()
        self.tells(8 << 20)

    def tells(self, available_kib: int) -> None:
        meminfo = f"MemTotal: {16 << 20} kB\nMemAvailable: {available_kib} kB\nSwapTotal: 0 kB\n"
        (self.directory / "meminfo").write_text(meminfo)
        line = "avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"
        (self.directory / "pressure/memory").write_text(f"some {line}full {line}")


def resident_bytes(process: subprocess.Popen[str]) -> int:
    return int(Path(f"/proc/{process.pid}/statm").read_text().split()[1]) * PAGE


@pytest.mark.slow
def test_a_server_gives_memory_back_while_its_host_is_short_of_it(
    lenders: Lenders, lasting_cluster: HandCluster, tmp_path: Path
) -> None:
    kernel = Kernel(tmp_path)
    short = lenders.start("64MiB", "--proc", str(tmp_path))
    lenders.create("single", "32MiB", 1)
    with Client(lasting_cluster.url, access=str(lasting_cluster.access)) as client:
        space = client.memory("single", timeout_s=20.0)
        content = os.urandom(32 * MIB)
        space.write(0, content)
        before = resident_bytes(lenders.processes[short])

        def has(server: str, name: str, size_bytes: int) -> bool:
            return bool(lenders.servers().get(server, {}).get(name) == size_bytes)

        kernel.tells(100 << 10)
        wait_for(lambda: has(short, "offered_bytes", 0), "the lower offer")
        assert has(short, "reserved_bytes", 32 * MIB)  # the only copy stays
        other = lenders.start("48MiB")
        wait_for(lambda: has(short, "reserved_bytes", 0), "the move", 30.0)
        wait_for(lambda: has(other, "reserved_bytes", 32 * MIB), "the other server")
        process = lenders.processes[short]  # its connections have buffers of some MiB more now
        wait_for(lambda: resident_bytes(process) < before - 20 * MIB, "the memory")
        assert space.read(0, 32 * MIB) == content
        space.close()
    found = json.loads(lenders.home.run("ciel", "doctor", "--json").stdout)
    assert any("offers 0 of 64MiB: its host is short" in finding["found"] for finding in found)


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


def test_a_program_is_run_with_a_volume_and_its_status_is_passed_on(lenders: Lenders) -> None:
    lenders.start()
    lenders.create("space", "2MiB", 1)
    run = ("ciel", "memory", "run")
    done = lenders.home.run(*run, "space", "sh", "-c", "echo $CIEL_MEMORY; exit 3")
    assert (done.returncode, done.stdout.split()[2:]) == (3, ["2", "1", "30", "0"])
    assert lenders.home.run(*run, "space", "--", "sh", "-c", "kill -9 $$").returncode == 137
    for words, why in (
        (("space", "./nothing"), "./nothing cannot be started: No such file or directory"),
        (("space",), "ciel memory run needs a program after the volume"),
        (("nothing", "true"), "there is no volume 'nothing'"),
    ):
        done = lenders.home.run(*run, *words)
        assert done.returncode in (1, 2), words
        assert why in done.stderr


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nbdkit") is None, reason="needs nbdkit")
@pytest.mark.skipif(shutil.which("nbdcopy") is None, reason="needs nbdcopy")
def test_a_compressed_volume_is_used_by_programs_in_python_and_by_nbd_clients(
    lenders: Lenders, lasting_cluster: HandCluster
) -> None:
    lenders.start()
    made = lenders.ciel("create", "texts", "--size", "4MiB", "--compress", "zstd")
    lenders.schemas.check("memory-create", made)
    assert made["compress"] == lenders.volume("texts")["compress"] == "zstd"
    home, content = lenders.home, b"words of text " * (MIB // 4)
    with Client(lasting_cluster.url, access=str(lasting_cluster.access)) as client:
        space = client.memory("texts")
        space.write(5, content)
        space.close()
    serving = home.start("ciel", "memory", "export", "texts", "--socket", "texts.nbd", "--json")
    assert serving.stdout is not None
    uri = json.loads(serving.stdout.readline())["uri"]
    subprocess.run(["nbdcopy", uri, "texts"], check=True, cwd=home.path, timeout=60)
    assert (home.path / "texts").read_bytes()[5 : 5 + len(content)] == content
    serving.send_signal(signal.SIGINT)
    serving.communicate(timeout=20)

    def used() -> int:
        (row,) = [r for r in lenders.ciel("stats")["servers"] if r["server"] in lenders.processes]
        return int(row["used_bytes"])

    wait_for(lambda: 0 < used() < MIB + MIB // 4, "the figures of a server with packed pages")


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
