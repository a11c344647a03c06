"""Tests a job on two workers that reach the master, but not each other: each of three hosts is a
namespace with its own network.
"""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from ciel.testing.homes import wait_for
from ciel_tests.clusters.hosts import Host, Hosts

pytestmark = pytest.mark.slow

LOGS: Final = ("worker0.log", "worker1.log")
JOB: Final = """
from ciel import Client
from time import sleep
made = "head -c 100000 /dev/zero; sleep 0.5"
with Client() as client, client.job("apart", keep=True) as job:
    parts = [job.run(["sh", "-c", f"{made}; echo {number}"]) for number in range(4)]
    job.want(parts)
    for part in parts:
        job.read(part, timeout_s=60)
    print("made", flush=True)
    input()
    read = job.run(["wc", "-c"], inputs=parts)
    print(job.read(read, timeout_s=100).decode())
"""


def start_cluster(here: Host, others: list[Host]) -> None:
    """Start a master on the first host, and a worker with one slot on each other host."""
    here.start("ciel-master", "--listen", f"{here.address}:0", "--new-key", "--log", "master.log")
    wait_for(lambda: [*here.path.glob("state/ciel/*/access.json")], "the access file")
    (access,) = here.path.glob("state/ciel/*/access.json")
    here.environ["CIEL_MASTER"] = str(json.loads(access.read_text())["url"])
    for number, host in enumerate(others):
        shutil.copy2(access, host.path / "carried.json")
        host.environ["CIEL_ACCESS"] = str(host.inside / "carried.json")
        host.environ["CIEL_MASTER"] = here.environ["CIEL_MASTER"]
        listen = ("--slots", "1", "--store", "disk", "--listen", f"{host.address}:0")
        host.start("ciel-worker", *listen, "--spool", "spool", "--log", LOGS[number])
        wait_for(partial(has_joined, host.path / LOGS[number]), "a worker")


def has_joined(log: Path) -> bool:
    return log.exists() and "joined the master" in log.read_text()


def test_a_job_whose_workers_do_not_reach_each_other_ends(tmp_path: Path) -> None:
    with Hosts(tmp_path, 3) as hosts:
        here, *others = hosts
        start_cluster(here, others)
        job = here.start("python", "-c", JOB, stdin=-1)
        assert job.stdout is not None
        line = job.stdout.readline()
        assert line == "made\n", job.communicate(timeout=20)[1]
        one, other = others
        one.lose_frames_to(other)
        other.lose_frames_to(one)
        printed, errors = job.communicate("\n", timeout=110)
        assert job.returncode == 0, errors
        assert int(printed) == 4 * 100_002
        logs = [(h.path / name).read_text() for h, name in zip(others, LOGS, strict=True)]
        assert "cannot fetch" in "".join(logs), "the workers reached each other"
        log = (here.path / "master.log").read_text()
        assert "is lost" not in log
        listed = here.run("ciel", "worker", "list", "--json")
        assert len(json.loads(listed.stdout)) == 2
