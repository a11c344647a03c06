"""Tests two block stores on one host: an object is copied from store to store in one hop, without
HTTP and without the master (CIB-56).
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from ciel.client import Client
from ciel.shm.client import ShmdClient
from ciel.testing.homes import BIN, HandCluster, Home

pytestmark = pytest.mark.slow

SIZE = 300_000
# Each of the two tasks waits until both run, so that they run on two workers.
TOGETHER = "touch {own}; until [ -e {other} ]; do sleep 0.01; done; "
PRODUCER = f"{TOGETHER}head -c {SIZE} /dev/zero"
READER = f"{TOGETHER}sha256sum"

Counters = dict[str, dict[str, int]]


def counters(cluster: HandCluster) -> Counters:
    """Return the sums of all workers' counters."""
    total: Counters = {"fetches": {}, "shmd": {}, "messages": {}}
    for netloc in cluster.netlocs():
        headers = {"Authorization": f"Bearer {cluster.key}"}
        with urlopen(Request(f"http://{netloc}/api/v1/counters", headers=headers)) as answer:
            for subject, counts in json.load(answer).items():
                for name, count in counts.items():
                    total[subject][name] = total[subject].get(name, 0) + count
    return total


def exchange(cluster: HandCluster, path: Path) -> Counters:
    """Produce an object on each of two workers, and read both on both; return the increase of the
    counters.
    """
    before = counters(cluster)
    marks = [path / name for name in ("one", "other", "third", "fourth")]
    with Client(access=str(cluster.access)) as client, client.job("neighbours") as job:
        parts = [
            job.run(["sh", "-c", PRODUCER.format(own=own, other=other)])
            for own, other in (marks[:2], marks[1::-1])
        ]
        wholes = [
            job.run(["sh", "-c", READER.format(own=own, other=other)], inputs=parts)
            for own, other in (marks[2:], marks[:1:-1])
        ]
        job.want(wholes)
        printed = [job.read(whole, timeout_s=30) for whole in wholes]
    digest = hashlib.sha256(bytes(2 * SIZE)).hexdigest()
    assert [words.split()[0].decode() for words in printed] == [digest, digest]
    return more(before, counters(cluster))


def more(before: Counters, after: Counters) -> Counters:
    return {
        subject: {n: after[subject][n] - before[subject].get(n, 0) for n in after[subject]}
        for subject in after
    }


IMAGE = "scc:capacity=16MiB"
COPIED = {"asked": 2, "copied": 2, "copied_bytes": 2 * SIZE}
CASES = {
    "two directories": ("disk", "disk", {"asked": 2, "linked": 2}),
    "memory and disk": ("shm:capacity=16MiB,spill=no", "disk", COPIED),
    "image and disk": (IMAGE, "disk", COPIED),
    "two images": (IMAGE, IMAGE, COPIED),
}


@pytest.mark.requirement("CIB-56")
@pytest.mark.parametrize("one, other, expected", CASES.values(), ids=CASES)
def test_an_object_is_copied_between_two_stores_in_one_hop_without_http(
    home: Home, tmp_path: Path, one: str, other: str, expected: dict[str, int]
) -> None:
    cluster = HandCluster.start(home, 0)
    try:
        for log in [cluster.begin_worker("--store", spec) for spec in (one, other)]:
            cluster.await_worker(log)
        counted = exchange(cluster, tmp_path)
    finally:
        cluster.stop()
    fetches = {name: count for name, count in counted["fetches"].items() if count}
    assert fetches == expected
    shmd = counted["shmd"]
    assert shmd["asked"] == shmd["found"] == 2
    assert shmd["not_served"] == 0
    # The master received no queries, only reports of four tasks, and later of the two copies.
    assert messages(counted) == {"report": 4, "stored": 2}


WAYS = {"link": "linked", "copy": "copied", "memory": "discovered"}
ONE_IMAGE = f"{IMAGE},cores=2,instance=neighbours-{os.getpid()}"


@pytest.mark.requirement("CIB-53")
@pytest.mark.parametrize(
    "one, other, way",
    [
        ("disk", "disk", "link"),
        ("disk", "shm:capacity=16MiB,spill=no", "copy"),
        (IMAGE, IMAGE, "copy"),
        (ONE_IMAGE, ONE_IMAGE, "memory"),
    ],
    ids=["directories", "disk and memory", "images", "one image"],
)
def test_objects_travel_as_ciel_status_says(
    home: Home, tmp_path: Path, one: str, other: str, way: str
) -> None:
    cluster = HandCluster.start(home, 0)
    try:
        for log in [cluster.begin_worker("--store", spec) for spec in (one, other)]:
            cluster.await_worker(log)
        shown = json.loads(home.run("ciel", "status", "--transports", "--json").stdout)[
            "transports"
        ]
        fetches = exchange(cluster, tmp_path)["fetches"]
    finally:
        cluster.stop()
    assert [item["way"] for worker in shown for item in worker["objects"]] == [way, way]
    used = {name: fetches[name] for name in (*WAYS.values(), "http") if fetches[name]}
    assert used == {WAYS[way]: 2}


def messages(counted: Counters) -> dict[str, int]:
    """Count the messages to the master, except reports of full stores, which are sent each
    second.
    """
    return {kind: n for kind, n in counted["messages"].items() if n and kind != "stores"}


@pytest.mark.requirement("CIB-56")
@pytest.mark.parametrize("one, other", [specs[:2] for specs in CASES.values()], ids=CASES)
def test_a_program_loads_from_another_store_without_the_master(
    home: Home, one: str, other: str
) -> None:
    cluster = HandCluster.start(home, 0)
    try:
        cluster.await_worker(cluster.begin_worker("--store", one))
        with Client(access=str(cluster.access)) as client, client.job("alone") as job:
            made = job.result(job.run(["head", "-c", str(SIZE), "/dev/zero"]), timeout_s=30)
            cluster.await_worker(cluster.begin_worker("--store", other, "--spool", "second"))
            before = counters(cluster)
            with ShmdClient(home.path / "second" / "store") as shmd:
                assert Path(shmd.load(made.id)).read_bytes() == bytes(SIZE)
            counted = more(before, counters(cluster))
    finally:
        cluster.stop()
    assert counted["shmd"]["asked"] == counted["shmd"]["found"] == 1
    assert counted["fetches"]["http_bytes"] == 0
    assert messages(counted) == {}


@pytest.mark.requirement("CIB-10")
@pytest.mark.parametrize("store", ["disk", "shm:capacity=16MiB", IMAGE])
def test_a_task_uses_the_store_of_its_worker_from_a_shell(home: Home, store: str) -> None:
    shmdc = shlex.quote(str(BIN / "shmdc"))
    script = f"head -c {SIZE} /dev/zero | {shmdc} write own > path && {shmdc} read own"
    cluster = HandCluster.start(home, 0)
    try:
        cluster.await_worker(cluster.begin_worker("--store", store))
        with Client(access=str(cluster.access)) as client, client.job("shell") as job:
            assert job.read(job.run(["sh", "-c", script]), timeout_s=30) == bytes(SIZE)
    finally:
        cluster.stop()
