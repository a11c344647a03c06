"""Tests jobs whose intermediate results do not fit into memory, on a cluster with a store in
memory.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import pytest

from ciel.client.client import Client
from ciel.client.cluster import LocalCluster
from ciel.client.errors import TaskFailedError
from ciel.testing.homes import wait_for

MIB = 1 << 20
PARTS, PART_BYTES = 24, 2 * MIB
PRODUCE = "head -c {size} /dev/zero | tr '\\0' '{letter}'"


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    directory = tmp_path_factory.mktemp("cluster")
    with (
        LocalCluster(
            workers=1, slots=2, store="shm:capacity=16MiB", directory=directory
        ) as cluster,
        Client(cluster) as client,
    ):  # fmt: skip
        yield client


def levels(client: Client) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in client.ask("stores")}


def letter(number: int) -> str:
    return chr(ord("a") + number)


def test_intermediate_results_beyond_the_memory_are_spilled_and_read_correctly(
    client: Client,
) -> None:
    digest = hashlib.sha256()
    with client.job("more than fits") as job:
        parts = []
        for number in range(PARTS):
            script = PRODUCE.format(size=PART_BYTES, letter=letter(number))
            parts.append(job.run(["sh", "-c", script]))
            digest.update(letter(number).encode() * PART_BYTES)
        found = job.read(job.run(["sha256sum"], inputs=parts), timeout_s=60)
        assert found.decode().split()[0] == digest.hexdigest()

    def left_memory_bytes() -> int:  # as the last report of the worker says
        found = levels(client)
        if set(found) < {"memory", "disk"}:
            return 0
        return int(found["memory"]["evicted_bytes"] + found["disk"]["spilled"] * PART_BYTES)

    wait_for(lambda: left_memory_bytes() >= PARTS * PART_BYTES - 16 * MIB, "a report of all parts")
    memory = levels(client)["memory"]
    assert memory["capacity_bytes"] == 16 * MIB
    assert memory["disk_waiting"] == 0


def test_a_job_may_choose_the_level_of_its_results(client: Client) -> None:
    command = ["head", "-c", str(MIB), "/dev/zero"]
    with client.job("on disk", store="disk") as job:
        ref = job.run(command)
        assert "/spill/objects/" in job.read(job.run(["echo", ref])).decode()
        other = job.run([*command, "/dev/null"], store="memory")
        assert job.read(job.run(["echo", other])).decode().startswith("/dev/shm/")


def test_an_unknown_level_is_an_error_that_names_it(client: Client) -> None:
    with client.job("on tape") as job, pytest.raises(TaskFailedError) as caught:
        job.read(job.run(["echo"], store="tape"))
    assert "'store' must be 'memory' or 'disk', not 'tape'" in str(caught.value)
