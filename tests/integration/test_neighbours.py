"""Two block stores on one host: what one has and the other needs goes from store to store, in one
hop, without HTTP (CIB-56).
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from ciel.client import Client
from ciel.testing.homes import HandCluster, Home

SIZE = 300_000
# Each waits for the other to run, so that they run at two workers.
TOGETHER = "touch {own}; until [ -e {other} ]; do sleep 0.01; done; "
PRODUCER = f"{TOGETHER}head -c {SIZE} /dev/zero"
READER = f"{TOGETHER}sha256sum"

Counters = dict[str, dict[str, int]]


def counters(cluster: HandCluster) -> Counters:
    """What all workers have counted, together."""
    total: Counters = {"fetches": {}, "shmd": {}}
    for netloc in cluster.netlocs():
        headers = {"Authorization": f"Bearer {cluster.key}"}
        with urlopen(Request(f"http://{netloc}/api/v1/counters", headers=headers)) as answer:
            for subject, counts in json.load(answer).items():
                for name, count in counts.items():
                    total[subject][name] = total[subject].get(name, 0) + count
    return total


def exchange(cluster: HandCluster, path: Path) -> Counters:
    """Make an object at each of two workers, and have both read at both; what was counted more."""
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
    after = counters(cluster)
    return {
        subject: {name: after[subject][name] - before[subject][name] for name in after[subject]}
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


@pytest.mark.parametrize("one, other, expected", CASES.values(), ids=CASES)
def test_between_two_stores_an_object_goes_in_one_hop_and_not_over_http(
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
