"""Tests that objects with several copies outlive their workers: with real daemons, and kills."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from ciel.client import Client
from ciel.testing.homes import HandCluster, Home, wait_for

pytestmark = pytest.mark.slow

CONTENT = bytes(range(256)) * 2000


class Hosts:
    """A cluster whose workers have work directories, which a test deletes."""

    def __init__(self, cluster: HandCluster) -> None:
        self.cluster = cluster
        self._destroyed: set[str] = set()
        self.start(3)

    def start(self, count: int) -> None:
        for _ in range(count):
            number = len(self.cluster.workers) + 1
            self.cluster.start_worker("--store", "disk", "--spool", f"spool{number}")

    def destroy(self, netloc: str) -> None:
        """Kill a worker, and delete all that it has stored."""
        place = self.cluster.netlocs().index(netloc)
        worker = self.cluster.workers[place]
        worker.send_signal(signal.SIGKILL)
        worker.communicate()
        self._destroyed.add(netloc)
        shutil.rmtree(self.cluster.home.path / f"spool{place + 1}")

    def out(self, *words: str) -> str:
        done = self.cluster.home.run("ciel", *words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def facts(self, object_id: str) -> Any:
        return json.loads(self.out("object", "info", object_id, "--json"))

    def known(self) -> list[str]:
        """Return the ids of all uploads that the master knows."""
        rows = json.loads(self.out("object", "list", "--known", "--json"))
        return [row["object"] for row in rows if row["object"].startswith("upload:")]

    def await_copies(self, object_id: str, count: int) -> list[str]:
        """Wait until so many living workers hold an object; return their addresses."""
        found: list[str] = []

        def are_there() -> bool:
            facts = self.facts(object_id)
            found[:] = facts["at"]
            return facts["copies"]["there"] == count and self._destroyed.isdisjoint(found)

        wait_for(are_there, f"{count} copies", 30.0)
        return found

    def restart_master(self) -> None:
        """Kill the master, and start it again."""
        cluster = self.cluster
        url = cluster.url.removeprefix("http://")
        cluster.master.send_signal(signal.SIGKILL)
        cluster.master.communicate()
        before = cluster.log("master").count("access file:")
        cluster.master = cluster.home.start(
            "ciel-master", "--listen", url, "--access", str(cluster.access),
            "--log", str(cluster.home.path / "master.log"), *journal(cluster.home),
        )  # fmt: skip
        wait_for(lambda: cluster.log("master").count("access file:") > before, "the master is back")


def journal(home: Home) -> tuple[str, str]:
    return "--journal", str(home.path / "journal")


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    home = Home(tmp_path)
    cluster = HandCluster.start(home, 0, of_master=journal(home))
    yield Hosts(cluster)
    cluster.stop()


def test_a_value_outlives_the_workers_that_held_it_first(hosts: Hosts) -> None:
    with Client(hosts.cluster.url, access=str(hosts.cluster.access)) as client:
        value = client.put(CONTENT, copies=2)
        wait_for(lambda: len(hosts.known()) == 1, "the master knows the value")
        (object_id,) = hosts.known()
        before = hosts.await_copies(object_id, 2)
        assert len(before) == 2  # they existed when `put` returned
        hosts.destroy(before[0])
        assert client.submit(len, value).result(timeout=60) == len(CONTENT)
        hosts.await_copies(object_id, 2)
        hosts.destroy(before[1])
        assert client.submit(len, value).result(timeout=60) == len(CONTENT)
        assert hosts.facts(object_id)["copies"]["wanted"] == 2
        assert client.get(value) == CONTENT
        del value
        wait_for(lambda: hosts.known() == [], "the value is released")


def test_a_stored_file_is_copied_again_after_a_restart_of_the_master(hosts: Hosts) -> None:
    hosts.cluster.home.path.joinpath("file").write_bytes(CONTENT)
    object_id = hosts.out("object", "put", "file", "--copies", "3").strip()
    before = hosts.await_copies(object_id, 3)
    hosts.restart_master()
    assert hosts.await_copies(object_id, 3)
    hosts.destroy(before[0])
    wait_for(lambda: hosts.facts(object_id)["copies"]["there"] == 2, "the loss is noticed", 30.0)
    said = "copies: 2 of 3; no other worker can take a copy now"
    wait_for(lambda: said in hosts.out("object", "info", object_id), "the reason", 30.0)
    hosts.start(1)
    hosts.await_copies(object_id, 3)
    hosts.destroy(before[1])
    hosts.destroy(before[2])
    done = hosts.cluster.home.run("ciel", "object", "get", object_id, "-o", "again")
    assert done.returncode == 0, done.stderr
    assert hosts.cluster.home.path.joinpath("again").read_bytes() == CONTENT


def test_an_upload_over_http_is_copied_for_the_job_that_names_it(hosts: Hosts) -> None:
    cluster = hosts.cluster
    go = cluster.home.path / "go"

    def ask(method: str, url: str, body: bytes | None = None) -> Any:
        request = Request(url, body, method=method)
        request.add_header("Authorization", f"Bearer {cluster.key}")
        with urlopen(request) as answer:
            return json.load(answer)

    first = cluster.netlocs()[0]
    ref = ask("POST", f"http://{first}/control/data/numbers", CONTENT)
    assert ref["__ref__"][1] == "numbers"
    program = ["sh", "-c", f"until test -e {go}; do sleep 0.05; done; wc -c"]
    task = {
        "executor": "stdinout",
        "arguments": {"args": {"command_line": program, "inputs": [ref]}},
    }
    body = json.dumps({"tasks": [task], "copies": 2}).encode()
    job = ask("POST", f"{cluster.url}/api/v1/jobs", body)["job"]["id"]
    assert first in hosts.await_copies("numbers", 2)
    hosts.destroy(first)
    hosts.await_copies("numbers", 2)
    go.touch()
    assert ask("GET", f"{cluster.url}/api/v1/jobs/{job}?wait_s=60")["state"] == "completed"
    assert hosts.out("job", "output", job).strip() == str(len(CONTENT))
    assert hosts.facts("numbers")["copies"] is None


def test_an_impossible_number_of_copies_is_refused(hosts: Hosts) -> None:
    for copies in ("0", "9", "two"):
        done = hosts.cluster.home.run("ciel", "object", "put", "x", "--copies", copies)
        assert done.returncode == 2
        assert "--copies" in done.stderr
    with Client(hosts.cluster.url, access=str(hosts.cluster.access)) as client:
        with pytest.raises(ValueError, match="copies must be 1 to 8, not 9"):
            client.put(CONTENT, copies=9)
        with pytest.raises(TypeError, match="copies must be a number, not 'two'"):
            client.put(CONTENT, copies="two")  # type: ignore[arg-type]  # to be refused
