"""Tasks, clients and commands share the base of their cluster (KVB-2, KVB-3)."""

from __future__ import annotations

import json
import os
import queue
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import ciel
from ciel.cli.main import main
from ciel.state.batches import Put
from ciel.state.errors import NoBaseError
from ciel.state.finding import open_base
from ciel.testing.state.suite import wait_until
from ciel_tests.documents.schemas import Schemas


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ciel.Client]:
    url = f"lmdb:{tmp_path_factory.mktemp('kv')}/base?sync=off"
    with (
        ciel.LocalCluster(slots=2, switches=["--kv", url]) as cluster,
        ciel.Client(cluster) as client,
    ):
        yield client


def count(word: str) -> int:
    kv = ciel.kv("words")
    return kv.increment(word)


@pytest.mark.requirement("KVB-2")
def test_tasks_and_clients_share_rows(client: ciel.Client) -> None:
    results = list(client.map(count, ["a", "b", "a"] * 5))
    with client.kv("words") as kv:
        assert (kv["a"], kv["b"]) == (10, 5)
        kv.put("pair", (1, 2))
    assert sorted(results) == sorted([*range(1, 11), *range(1, 6)])
    assert ciel.kv("words")["pair"] == (1, 2)
    assert client.submit(lambda: ciel.kv("words")["pair"]).result(30) == (1, 2)
    assert client.submit(lambda: ciel.Client().kv("words")["pair"]).result(30) == (1, 2)


def add_then_die(name: str, marker: str) -> int:
    kv = ciel.kv("once")
    was_done = False
    with kv.transaction(once="add") as t:
        was_done = t.was_done
        t[name] = t.get(name, 0) + 1
    if not Path(marker).exists():
        Path(marker).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return int(was_done)


@pytest.mark.requirement("KVB-3")
def test_second_attempt_sees_what_the_first_has_done(client: ciel.Client, tmp_path: Path) -> None:
    task = ciel.task(retries=2)(add_then_die)
    future = client.submit(task, "n", str(tmp_path / "marker"))
    assert future.result(60) == 1
    with client.kv("once") as kv:
        assert kv["n"] == 1


def write_of_job() -> str:
    ciel.kv("mine", of_job=True).put("a", 1)
    return ciel.current_task().job


def test_rows_of_a_job_are_removed_with_it(tmp_path: Path) -> None:
    url = f"lmdb:{tmp_path}/base?sync=off"
    with ciel.LocalCluster(slots=1, switches=["--kv", url]) as cluster:
        with ciel.Client(cluster) as client:
            job = client.submit(write_of_job).result(30)
            with client.kv("mine", job_id=job) as kv:
                assert kv["a"] == 1
            with client.kv("mine") as kv:
                assert "a" not in kv
        with ciel.Client(cluster) as client, open_base(url) as base:
            other = b"@other/job/mine:a"  # of a cluster that shares the base
            base.apply([Put(other, b"1")])
            own = f"@{cluster.location.cluster_id}/{job}/mine:a".encode()
            assert {key for key, _ in base.scan()} == {own, other}
            client.remove_job(job)
            wait_until(lambda: [key for key, _ in base.scan()] == [other])


def twice() -> None:
    kv = ciel.kv("twice")
    for _ in range(2):
        with kv.transaction(once="same") as t:
            t["n"] = 1


def test_name_that_two_calls_of_a_task_share_is_refused(client: ciel.Client) -> None:
    with pytest.raises(ValueError, match="use a name that contains their arguments"):
        client.submit(twice).result(30)


def work() -> list[Any]:
    found = []
    pages = ciel.kv("work").queue("pages")
    with suppress(queue.Empty):
        while True:
            with pages.claim(timeout_s=0.2) as entry:
                found.append(entry.value)
    return found


def test_tasks_share_a_queue(client: ciel.Client) -> None:
    with client.kv("work") as kv:
        kv.queue("pages").put_many(range(20))
    lists = [future.result(60) for future in [client.submit(work) for _ in range(2)]]
    assert sorted(entry for part in lists for entry in part) == list(range(20))


def test_command_within_a_task(client: ciel.Client) -> None:
    ciel_ = f"{shlex.quote(sys.executable)} -m ciel.cli.main"
    script = f"{ciel_} kv put shell n 41 && {ciel_} kv increment shell n && {ciel_} kv get shell n"
    done = client.run(["sh", "-c", script])
    assert done.result(60) == b"42\n42\n"


def test_cluster_without_a_base_says_so(capfd: pytest.CaptureFixture[str]) -> None:
    with ciel.LocalCluster(slots=1) as cluster, ciel.Client(cluster) as client:
        with pytest.raises(NoBaseError, match="ciel up --kv"):
            client.kv("a")
        with pytest.raises(NoBaseError, match="ciel-worker --kv"):
            client.submit(lambda: ciel.kv("a")).result(30)


@pytest.mark.parametrize("daemon", ["master", "worker"])
def test_daemon_refuses_a_url_of_no_base(daemon: str) -> None:
    command = [sys.executable, "-m", f"ciel.cli.daemons.{daemon}", "--kv", "none:x"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert "--kv: kv 'none': not installed (there is: ciel-kv, etcd, lmdb" in done.stderr


# --- the command ----------------------------------------------------------------------------------


def run(capfd: pytest.CaptureFixture[str], url: str, *words: str) -> tuple[int, str, str]:
    status = main(["kv", words[0], "scores", *words[1:], "--url", url])
    out, err = capfd.readouterr()
    return status, out, err


def test_command(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    url = f"lmdb:{tmp_path}/base?sync=off"
    assert run(capfd, url, "put", "a", '{"x": [1]}') == (0, "", "")
    assert run(capfd, url, "get", "a") == (0, '{"x":[1]}\n', "")
    assert run(capfd, url, "put", "text", "hello")[0] == 0
    assert run(capfd, url, "get", "text") == (0, "hello\n", "")
    assert run(capfd, url, "get", "text", "--json")[1] == '{"key": "text", "value": "hello"}\n'
    assert run(capfd, url, "increment", "n", "5")[1] == "5\n"
    assert run(capfd, url, "increment", "n", "-7")[1] == "-2\n"
    assert run(capfd, url, "insert", "n", "1")[0] == 1
    assert run(capfd, url, "update", "none", "1")[:2] == (1, "")
    assert run(capfd, url, "get", "none") == (1, "", "ciel: 'scores:none' is not in the base\n")
    assert run(capfd, url, "scan")[1] == 'a\t{"x":[1]}\nn\t-2\ntext\thello\n'
    assert run(capfd, url, "scan", "--prefix", "t", "--json")[1] == (
        '{"key": "text", "value": "hello"}\n'
    )
    assert run(capfd, url, "delete", "a") == (0, "", "")
    assert run(capfd, url, "clear")[1] == "2 removed\n"
    assert run(capfd, "none:x", "scan")[0] == 1


def test_json_of_commands_is_documented(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    schemas = Schemas()
    url = f"lmdb:{tmp_path}/base?sync=off"
    for words in (
        ["put", "a", "[1]"], ["insert", "b", "x"], ["update", "b", "y"], ["get", "a"], ["scan"],
        ["increment", "n"], ["delete", "n"], ["clear"],
    ):  # fmt: skip
        status, out, _ = run(capfd, url, *words, "--json")
        assert status == 0
        for line in out.splitlines():
            schemas.check(f"kv-{words[0]}", json.loads(line))


def test_command_stores_bytes(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ciel.cli.main", "kv"]
    where = ["scores", "a", "--url", f"lmdb:{tmp_path}/base"]
    content = bytes(range(256))
    subprocess.run([*command, "put", *where[:2], "-", *where[2:]], input=content, check=True)
    assert subprocess.run([*command, "get", *where], capture_output=True).stdout == content
