"""Tests a store of another package on real clusters: ciel finds it by its entry point alone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from ciel.testing.homes import Home, wait_for
from ciel_tests.installed.packages import install

pytestmark = pytest.mark.requirement("CIB-54")
LINES = "".join(f"{number}\n" for number in range(1, 100_001)).encode()
DIGEST = sha256(LINES).hexdigest()


@pytest.fixture
def rows(home: Home) -> Path:
    """Install the store `rows` in the home; return the place for databases."""
    install("ciel_rows", home.path / "site")
    home.environ["PYTHONPATH"] = str(home.path / "site")
    place = home.path / "place"
    place.mkdir()
    return place


def printed(home: Home, *argv: str) -> str:
    done = home.run(*argv)
    assert done.returncode == 0, (argv, done.stderr)
    return done.stdout


def names(place: Path) -> list[str]:
    return sorted(path.name for path in place.iterdir())


def test_up_doctor_status_and_down_work_with_it(home: Home, rows: Path) -> None:
    store = f"rows:place={rows},instance=mine,capacity=32MiB"
    printed(home, "ciel", "up", "--workers", "2", "--listen", "127.0.0.1:0", "--store", store)
    assert names(rows) == ["ciel-rows-mine", "ciel-rows-mine-2"]
    assert printed(home, "ciel", "submit", "--", "seq", "100000").encode() == LINES
    status = json.loads(printed(home, "ciel", "status", "--json"))
    assert len(status["workers"]) == 2

    def levels() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(printed(home, "ciel", "store", "stats", "--json"))
        return found

    wait_for(lambda: len(levels()) == 2, "the reports of both stores")
    assert [level["capacity_bytes"] for level in levels()] == [32 << 20] * 2
    found = doctor(home, store)
    assert found["store"]["found"] == f"{store} (installed: disk, rows, scc, shm)"
    assert found["store directory"]["found"] == str(rows)
    assert found["stores"]["found"] == "none is full"
    printed(home, "ciel", "down")
    assert names(rows) == []
    home.expect_nothing_left()


def doctor(home: Home, store: str) -> dict[str, Any]:
    """Return the findings, by check, if a store is the default."""
    home.environ["CIEL_STORE"] = store
    done = home.run("ciel", "doctor", "--json", "--listen", "127.0.0.1:0")
    del home.environ["CIEL_STORE"]
    return {one["check"]: one for one in json.loads(done.stdout)}


CLUSTER = """
import json, sys
from ciel import Client, LocalCluster
with LocalCluster(workers=2, slots=1, store=sys.argv[1]) as cluster, Client(cluster) as client:
    cluster.add_worker()
    with client.job() as job:
        made = [job.run(["sh", "-c", "seq 100000; sleep 0.2; : " + n]) for n in "123"]
        read = job.run(["sha256sum"], inputs=made[:1])
        contents = {job.read(ref, 30) for ref in made}
        print(json.dumps([len(contents), job.read(read, 30).decode()]))
        sys.stdout.flush()
        sys.stdin.read()
"""


@pytest.mark.parametrize("end", [pytest.param("at its end", marks=pytest.mark.slow), "killed"])
def test_each_worker_has_its_own_instance_which_goes_with_the_cluster(
    home: Home, rows: Path, end: str
) -> None:
    script = home.start("python", "-c", CLUSTER, f"rows:place={rows}", stdin=subprocess.PIPE)
    assert script.stdout is not None
    count, read = json.loads(script.stdout.readline())
    assert (count, read.split()[0]) == (1, DIGEST)
    there = names(rows)
    assert len(there) == 3
    assert all(name.startswith("ciel-rows-") for name in there)
    if end == "killed":
        os.kill(script.pid, signal.SIGKILL)
    _, errors = script.communicate("", timeout=30)
    assert script.returncode == (-signal.SIGKILL if end == "killed" else 0), errors
    wait_for(lambda: names(rows) == [], "the end of all instances")
    home.expect_nothing_left()


@pytest.mark.parametrize(
    "check, make, said",
    [
        ("store", lambda place: "rows:capacity=much", "'much': not a size"),
        ("store", lambda place: "rows:instance=mine", "an instance needs one"),
        (
            "store",
            lambda place: "rows:speed=9",
            "unknown option 'speed'; the options are: ",
        ),
        ("store directory", lambda place: f"rows:place={place}/file/below", "Not a directory"),
        (
            "store",
            lambda place: "rowz",
            "not installed (there is: disk, rows, scc, shm)",
        ),
    ],
    ids=["capacity", "instance", "option", "place", "name"],
)
def test_the_doctor_finds_what_is_wrong_with_its_options(
    home: Home, rows: Path, check: str, make: Callable[[Path], str], said: str
) -> None:
    (rows / "file").touch()
    found = doctor(home, make(rows))[check]
    assert (found["state"], said in found["found"]) == ("fault", True), found


def test_up_refuses_wrong_options_before_it_starts_a_daemon(home: Home, rows: Path) -> None:
    done = home.run("ciel", "up", "--listen", "127.0.0.1:0", "--store", "rows:capacity=much")
    said = "ciel: 'much': not a size; write a size such as 8GiB, 512MiB or 1000000\n"
    assert (done.returncode, done.stderr) == (2, said)
    assert not home.processes()


def test_the_help_names_it(home: Home, rows: Path) -> None:
    for command in (("ciel", "up"), ("ciel-worker",)):
        assert "disk, rows, scc, shm" in " ".join(printed(home, *command, "--help").split())
