"""Tests jobs on a store in memory that all workers share: results have the same bytes, and no
object is transferred.
"""

import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from ciel.client import Client, LocalCluster
from ciel.testing.homes import command_of, wait_for

# Each task waits for the second one to run, so that they run on two cores.
PRODUCER = 'touch "$1"; until [ -e "$2" ]; do sleep 0.01; done; head -c 300000 /dev/zero'
LINES = "".join(f"{number}\n" for number in range(1, 20_001)).encode()
SEEKS = "import sys; f = open(sys.argv[1], 'rb'); f.seek(-6, 2); print(f.read().decode(), end='')"


@pytest.fixture(scope="module", params=["coherent", "strict"])
def cluster(request: pytest.FixtureRequest) -> Iterator[LocalCluster]:
    store = f"scc:capacity=64MiB,build={request.param}"
    with LocalCluster(workers=2, slots=1, store=store) as cluster:
        directory = directory_of(cluster)
        assert directory.exists()
        yield cluster
    assert not directory.exists()


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[Client]:
    with Client(cluster) as client:
        yield client


def directory_of(cluster: LocalCluster) -> Path:
    return Path("/dev/shm", f"ciel-scc-{cluster._stores.names[0]}")


def test_programs_produce_the_same_bytes_as_on_a_disk(client: Client) -> None:
    with client.job() as job:
        numbers = job.run(["seq", "20000"])
        reversed_lines = job.run(["sort", "-rn"], inputs=[numbers])
        joined = job.run(["cat"], inputs=[numbers, reversed_lines])
        seeking = job.run([sys.executable, "-c", SEEKS, numbers])
        script = job.run(
            ["sh", "-c", 'printf "#!/bin/sh\\n"; seq 500 | sed "s/.*/# &/"; echo echo ran']
        )
        ran = job.run([script])
        small = job.run(["sh", "-c", 'wc -l < "$1"', "sh", joined])
        expected = b"".join(reversed(LINES.splitlines(keepends=True)))
        assert job.read(joined, 30) == LINES + expected
        assert job.read(seeking, 30) == b"20000\n"
        assert job.read(ran, 30) == b"ran\n"
        assert job.read(small, 30) == b"40000\n"


def fetches(cluster: LocalCluster, client: Client) -> dict[str, int]:
    """Return how objects came to workers, summed over all workers."""
    total: dict[str, int] = {}
    headers = {"Authorization": f"Bearer {cluster.location.key.text()}"}
    for worker in client.ask("status")["workers"]:
        asked = Request(f"http://{worker['netloc']}/api/v1/counters", headers=headers)
        with urlopen(asked) as answer:
            for name, count in json.load(answer)["fetches"].items():
                total[name] = total.get(name, 0) + count
    return total


@pytest.mark.requirement("CIB-56")
def test_an_object_of_one_core_is_found_by_another_without_a_transfer(
    cluster: LocalCluster, client: Client, tmp_path: Path
) -> None:
    marks = [str(tmp_path / "here"), str(tmp_path / "there")]
    before = fetches(cluster, client)
    with client.job() as job:
        parts = [job.run(["sh", "-c", PRODUCER, "sh", *pair]) for pair in (marks, reversed(marks))]
        both = job.run(["sha256sum"], inputs=parts)
        assert job.read(both, 30).split()[0].decode() == sha256(bytes(600_000)).hexdigest()
    after = fetches(cluster, client)
    counted = {name: after[name] - before[name] for name in after if after[name] != before[name]}
    assert counted == {"discovered": 1}


def copies(cluster: LocalCluster) -> set[int]:
    """Return the sealed copies that workers have, by their numbers."""
    found = set()
    for core in "01":
        for entry in Path(f"/proc/{pid_of(f'core={core}', cluster)}/fd").iterdir():
            with suppress(FileNotFoundError):  # just closed
                if "memfd:ciel-object" in os.readlink(entry):
                    found.add(entry.stat().st_ino)
    return found


def test_an_upload_is_read_in_place(cluster: LocalCluster, client: Client) -> None:
    before = copies(cluster)
    with client.job() as job:
        uploaded = client.upload_content(LINES, "sent")
        assert client.read(uploaded) == LINES
        assert copies(cluster) <= before
        seeking = job.run([sys.executable, "-c", SEEKS, uploaded])  # this program gets a copy
        assert job.read(seeking, 30) == b"20000\n"
        assert not copies(cluster) <= before


@pytest.mark.slow
def test_a_killed_core_restarts_and_replaces_only_its_own_names(
    cluster: LocalCluster, client: Client, tmp_path: Path
) -> None:
    cores = directory_of(cluster) / "cores"
    before = set(os.listdir(cores))
    marks = [str(tmp_path / "here"), str(tmp_path / "there")]
    with client.job() as job:
        parts = [job.run(["sh", "-c", PRODUCER, "sh", *pair]) for pair in (marks, reversed(marks))]
        assert job.read(job.run(["wc", "-c"], inputs=parts), 30) == b"600000\n"
        for core in "01":
            known = worker_ids(client)
            os.kill(pid_of(f"core={core}", cluster), signal.SIGKILL)
            wait_for(lambda: len(worker_ids(client) - known) == 1, "the next life of a core")  # noqa: B023
            wait_for(lambda: len(worker_ids(client)) == 2, "the end of its former life")
            assert job.read(job.run(["wc", "-c"], inputs=parts), 30) == b"600000\n"
    after = set(os.listdir(cores))
    assert {seat[0] for seat in after} == {"0", "1"}
    assert not after & before


def worker_ids(client: Client) -> set[str]:
    return {worker["worker"] for worker in client.ask("workers")}


def pid_of(option: str, cluster: LocalCluster) -> int:
    """Find a worker by an option of its store."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            command = command_of(path.parent)
            if option in command and cluster._stores.names[0] in command:
                return int(path.parent.name)
    raise AssertionError(f"no worker with {option}")
