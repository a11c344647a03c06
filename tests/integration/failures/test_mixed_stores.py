"""Tests clusters whose hosts have different stores: tasks of both hosts read all objects."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import pytest

from ciel.core.refs import INLINE_MAX_BYTES
from ciel.testing.homes import wait_for
from ciel.wire.limits import RECORD_MAX_BYTES
from ciel_tests.clusters.hosts import Host, Hosts, TwoHosts

PROGRAM: Final = Path(__file__).parents[1] / "programs" / "mixed.py"
content: Final = runpy.run_path(str(PROGRAM))["content"]
SIZES: Final = (1, INLINE_MAX_BYTES + 1, RECORD_MAX_BYTES + 7)
STREAM_BYTES: Final = 3_000_000
STORES: Final = {
    "disk": "disk",
    "shm": "shm:capacity=256MiB",
    "scc": "scc:capacity=256MiB,cores=2",
}
ALONE_BYTES: Final = 200_000
SIDES: Final = ("here", "there")

# Only the worker of a host offers the executor of that side, so the script chooses where tasks run.
SCRIPT: Final = f"""
import json, sys
from ciel import Client
runs, marks = sys.argv[1:]
with Client() as client, client.job("mixed", keep=True) as job:
    def add(side, *args):
        return job.add(side, {{"proc_pargs": list(args)}})[0]
    def report(refs):
        print(json.dumps([json.loads(job.read(ref, timeout_s=50)) for ref in refs]), flush=True)
    sides, others = {SIDES}, {SIDES[::-1]}
    made = [add(side, "make", size, side, runs) for side in sides for size in {SIZES}]
    reads = [add(side, "read", *made) for side in sides]
    follows = []
    for side, other in zip(sides, others):
        grown = add(side, "grow", {STREAM_BYTES}, side, marks + side)
        follows.append(add(other, "follow", grown, marks + side))
    job.want(reads + follows)
    report(reads + follows)
    alone = add("there", "make", {ALONE_BYTES}, "alone", runs)
    job.want([alone])
    job.result(alone, timeout_s=50)
    print("made", flush=True)
    sys.stdin.readline()
    report([add("here", "read", alone)])
"""


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Host]]:
    """Provide two hosts whose workers offer their own executor, with a master on the first."""
    with Hosts(tmp_path_factory.mktemp("hosts")) as hosts:
        for host, side in zip(hosts, SIDES, strict=True):
            settings = host.path / "config" / "ciel" / "config.toml"
            settings.parent.mkdir(parents=True)
            command = json.dumps([sys.executable, str(PROGRAM)])
            settings.write_text(f"[executors.{side}]\ncommand = {command}\n")
        TwoHosts(*hosts)
        yield hosts


@pytest.fixture
def shared() -> Iterator[Path]:
    """Provide a directory that both hosts see: each has its own /tmp and /dev/shm."""
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="ciel-test-") as name:
        yield Path(name)


def start_worker(host: Host, name: str, store: str) -> subprocess.Popen[str]:
    own = ("--listen", f"{host.address}:0", "--slots", "2", "--spool", name, "--store", store)
    worker = host.start("ciel-worker", *own, "--log", f"{name}.log")
    log = host.path / f"{name}.log"
    wait_for(lambda: log.exists() and "joined the master" in log.read_text(), "a worker")
    return worker


def digests(side: str, *sizes_bytes: int) -> list[str]:
    return [sha256(content(size_bytes, side)).hexdigest() for size_bytes in sizes_bytes]


@pytest.mark.requirement("CIB-3")
@pytest.mark.parametrize(
    "kinds",
    [
        pytest.param(("disk", "shm"), marks=pytest.mark.slow),
        pytest.param(("shm", "scc"), marks=pytest.mark.slow),
        pytest.param(("scc", "disk"), marks=pytest.mark.slow),
    ],
    ids="-".join,
)
def test_hosts_with_different_stores_read_each_others_objects(
    hosts: list[Host], shared: Path, kinds: tuple[str, str]
) -> None:
    here, there = hosts
    name = "-".join(kinds)
    worker = start_worker(here, name, STORES[kinds[0]])
    start_worker(there, name, STORES[kinds[1]])
    words = (str(shared / "runs"), str(shared / "mark-"))
    script = here.start("python", "-c", SCRIPT, *words, stdin=subprocess.PIPE)
    assert script.stdout is not None

    def reported() -> Any:
        line = script.stdout.readline()  # type: ignore[union-attr]  # it is a pipe
        assert line, script.communicate()[1]
        return json.loads(line)

    (one, read_here), (other, read_there), *follows = reported()
    assert one != other
    assert read_here == read_there == digests("here", *SIZES) + digests("there", *SIZES)
    streams = [digests(side, STREAM_BYTES) for side in SIDES]
    assert follows == [[other, streams[0]], [one, streams[1]]]

    assert script.stdout.readline() == "made\n"
    there.kill_all()  # all that this host had is lost
    start_worker(there, f"{name}-again", STORES[kinds[1]])
    printed, errors = script.communicate("\n", timeout=60)
    assert script.returncode == 0, errors
    assert json.loads(printed) == [[one, digests("alone", ALONE_BYTES)]]
    runs = (shared / "runs").read_text().splitlines()
    assert {word: runs.count(word) for word in runs} == {
        "here": len(SIZES), "there": len(SIZES), "alone": 2,
    }  # fmt: skip

    there.kill_all()
    worker.terminate()
    worker.communicate(timeout=20)
