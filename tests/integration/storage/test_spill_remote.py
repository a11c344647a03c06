"""Workers whose stores spill to memory of other machines: real memory servers and programs."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ciel
from ciel.client import Client
from ciel.client.jobs import Job
from ciel.core.refs import Future
from ciel.testing.homes import HandCluster, Home, wait_for
from ciel_tests.clusters.lenders import Lenders

OBJECT_BYTES = 400_000
OBJECTS = 50  # some 20 MB
REMOTE_MIN = 20
"""An output that is begun while memory is full goes to the disk at once."""
STORE = "shm:capacity=8MiB,spill=remote"


class Lab:
    """A cluster with a small store, and memory servers."""

    def __init__(self, home: Home) -> None:
        self.cluster = HandCluster.start(home, workers=0)
        self.lenders = Lenders(home)
        self.home = home
        self.runs = home.path / "runs"

    def start_worker(self) -> Any:
        return self.cluster.start_worker("--store", STORE, "--slots", "1")

    def levels(self) -> dict[str, dict[str, Any]]:
        """Return the levels of the only worker's store, by name."""
        done = self.home.run("ciel", "store", "stats", "--json")
        assert done.returncode == 0, done.stderr
        return {row["name"]: row for row in json.loads(done.stdout)}

    def large(self, job: Job, number: int) -> Future:
        """Add a task with a large result; it notes each of its runs."""
        made = f"printf {number}, >>{self.runs}; head -c {OBJECT_BYTES} /dev/zero"
        return job.run(["sh", "-c", f"{made} | tr '\\0' '\\{number + 65:03o}'"])

    def digests(self, job: Job, made: list[Future], order: list[int]) -> list[str]:
        """Let a program read each object, and return its checksums."""
        sums = [job.run(["sha256sum"], inputs=[made[number]]) for number in order]
        return [job.read(one, timeout_s=60).decode().split()[0] for one in sums]

    def spilled(self) -> list[dict[str, Any]]:
        """Return the volumes of workers."""
        rows: list[dict[str, Any]] = self.lenders.listed()["volumes"]
        return [row for row in rows if row["owner"].startswith("worker ")]


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    lab = Lab(Home(tmp_path))
    yield lab
    lab.cluster.stop()
    lab.lenders.leave()


def expected(number: int) -> str:
    return hashlib.sha256(bytes([number + 65]) * OBJECT_BYTES).hexdigest()


def test_a_job_reads_objects_that_other_machines_kept_for_its_worker(lab: Lab) -> None:
    lab.lenders.start()
    lab.start_worker()
    order = [*range(OBJECTS)]
    random.Random(1).shuffle(order)
    with Client(access=str(lab.cluster.access)) as client, client.job("large") as job:
        made = [lab.large(job, number) for number in range(OBJECTS)]
        job.want(made)
        job.results(made, timeout_s=60)
        wait_for(lambda: lab.levels()["remote"]["objects"] >= REMOTE_MIN, "objects to be remote")
        assert len(lab.spilled()) == 1
        assert lab.digests(job, made, order) == [expected(number) for number in order]
        for number in order[:3]:  # as a client reads them, by HTTP
            assert hashlib.sha256(job.read(made[number])).hexdigest() == expected(number)
    removed = lab.home.run("ciel", "job", "rm", "1")
    assert removed.returncode == 0, removed.stderr
    assert sorted(lab.runs.read_text().split(",")[:-1], key=int) == [*map(str, range(OBJECTS))]
    wait_for(lambda: not lab.spilled(), "the empty volume to be removed", 30.0)


@pytest.mark.slow
def test_objects_of_a_dead_memory_server_are_computed_again(lab: Lab) -> None:
    server = lab.lenders.start()
    lab.start_worker()
    with Client(access=str(lab.cluster.access)) as client, client.job("large") as job:
        made = [lab.large(job, number) for number in range(OBJECTS)]
        job.want(made)
        job.results(made, timeout_s=60)
        wait_for(lambda: lab.levels()["remote"]["objects"] >= REMOTE_MIN, "objects to be remote")
        lab.lenders.kill(server)
        order = [0, 7, 3, 20]
        assert lab.digests(job, made, order) == [expected(number) for number in order]


def test_the_volumes_of_a_killed_worker_are_removed(lab: Lab) -> None:
    lab.lenders.start()
    worker = lab.start_worker()
    with Client(access=str(lab.cluster.access)) as client, client.job("large") as job:
        made = [lab.large(job, number) for number in range(OBJECTS)]
        job.want(made)
        job.results(made, timeout_s=60)
        wait_for(lambda: bool(lab.spilled()), "a volume")
        worker.kill()
        worker.communicate(timeout=20)
        wait_for(lambda: not lab.spilled(), "its removal", 30.0)
        job.cancel()


def test_a_worker_without_memory_servers_spills_to_its_disk(lab: Lab) -> None:
    lab.start_worker()
    with Client(access=str(lab.cluster.access)) as client, client.job("large") as job:
        made = [lab.large(job, number) for number in range(OBJECTS)]
        order = [5, 0]
        assert lab.digests(job, made, order) == [expected(number) for number in order]
        job.want(made)
        job.results(made, timeout_s=60)
        wait_for(lambda: lab.levels()["disk"]["objects"] >= REMOTE_MIN, "objects on the disk")


def test_a_program_whose_output_is_larger_than_memory_runs_again_on_the_disk(lab: Lab) -> None:
    lab.lenders.start()
    lab.start_worker()
    with Client(access=str(lab.cluster.access)) as client, client.job("large") as job:
        made = job.run(["sh", "-c", f"echo run >>{lab.runs}; head -c 12000000 /dev/zero"])
        job.want([made])
        assert len(job.read(made, timeout_s=60)) == 12_000_000
    assert lab.runs.read_text() == "run\nrun\n"


def test_a_task_reads_many_objects_of_which_some_were_moved(lab: Lab) -> None:
    """Objects that are brought back for it do not displace its other inputs."""
    lab.lenders.start()
    lab.start_worker()
    with Client(access=str(lab.cluster.access)) as client:
        make = ciel.task(lambda number: bytes([number]) * OBJECT_BYTES)
        check = ciel.task(lambda parts: [part[0] for part in parts])
        made = [client.submit(make, number) for number in range(OBJECTS)]
        ciel.wait(made)
        chance = random.Random(1)
        chosen = [[chance.randrange(OBJECTS) for _ in range(12)] for _ in range(30)]
        read = [client.submit(check, [made[n] for n in numbers]) for numbers in chosen]
        assert client.gather(read) == chosen
