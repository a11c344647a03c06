"""Two block stores on one host: what one has and the other needs goes from store to store, in one
hop, without HTTP (CIB-56).
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from urllib.request import Request, urlopen

from ciel.client import Client
from ciel.testing.homes import HandCluster, Home

SIZE = 300_000
# Each waits for the other to run, so that they run at two workers.
PRODUCER = "touch {own}; until [ -e {other} ]; do sleep 0.01; done; head -c {size} /dev/zero"

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


def bring_together(cluster: HandCluster, path: Path) -> Counters:
    """Make an object at each of two workers, and have both read at one; what was counted more."""
    before = counters(cluster)
    marks = [path / "here", path / "there"]
    with Client(access=str(cluster.access)) as client, client.job("neighbours") as job:
        parts = [
            job.run(["sh", "-c", PRODUCER.format(own=own, other=other, size=SIZE)])
            for own, other in (marks, marks[::-1])
        ]
        whole = job.run(["sha256sum"], inputs=parts)
        job.want([whole])
        printed = job.read(whole, timeout_s=30)
    assert printed.split()[0].decode() == hashlib.sha256(bytes(2 * SIZE)).hexdigest()
    after = counters(cluster)
    return {
        subject: {name: after[subject][name] - before[subject][name] for name in after[subject]}
        for subject in after
    }


def test_between_two_stores_an_object_is_linked_in_one_hop(
    lasting_cluster: HandCluster, tmp_path: Path
) -> None:
    counted = bring_together(lasting_cluster, tmp_path)
    assert counted["fetches"] == {
        "discovered": 0, "asked": 1, "linked": 1, "copied": 0, "copied_bytes": 0, "link_failed": 0,
        "http": 0, "http_bytes": 0,
    }  # fmt: skip
    hops = {name: counted["shmd"][name] for name in ("asked", "found", "served", "not_served")}
    assert hops == {"asked": 1, "found": 1, "served": 1, "not_served": 0}


def test_between_memory_and_disk_an_object_is_copied_in_one_hop(home: Home) -> None:
    cluster = HandCluster.start(home, 1)
    cluster.start_worker("--store", "shm:capacity=16MiB,spill=no")
    counted = bring_together(cluster, home.path)
    cluster.stop()
    assert counted["fetches"]["copied_bytes"] == SIZE
    assert counted["fetches"]["http_bytes"] == 0
    assert counted["shmd"]["served"] == 1
