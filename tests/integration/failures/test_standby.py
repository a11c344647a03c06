"""Tests that a standby takes over from a master that is dead, frozen or unreachable, that no work
is lost or repeated, and that no worker obeys two masters.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ciel.client import Client
from ciel.testing.homes import HandCluster, Home, wait_for
from ciel.wire import codec
from ciel_tests.clusters.hosts import Host, Hosts

PROGRAM = "echo {} >> runs; sleep 0.3; echo result {}"


class Pair:
    """A cluster of three workers on this host, with a master and a standby."""

    def __init__(self, path: Path, *options: str) -> None:
        """`options`: further options of the first master."""
        self.home = Home(path)
        journal = ("--journal", str(path / "journal1"))
        self.cluster = HandCluster.start(self.home, 3, of_master=(*journal, *options))
        self.first_url = self.cluster.url
        self.standbys: list[subprocess.Popen[str]] = []
        self.start_standby("2")

    def start_standby(self, name: str, *options: str) -> subprocess.Popen[str]:
        """Start a standby of the current master; return it when it may take over."""
        log = self.log_path(name)
        known = log.read_text().count("copy is complete") if log.exists() else 0
        journal = self.home.path / f"journal{name}"
        standby = self.home.start(
            "ciel-master", "--listen", "127.0.0.1:0", "--standby", self.cluster.url,
            "--access", str(self.cluster.access), "--journal", str(journal),
            "--log", str(log), *options,
        )  # fmt: skip
        self.standbys.append(standby)
        wait_for(
            lambda: log.exists() and self.log(name).count("copy is complete") > known, "a copy"
        )
        wait_for(lambda: len(self.standby_urls()) > 0, "the standby in the access file")
        return standby

    def log_path(self, name: str) -> Path:
        return self.home.path / f"master{name}.log"

    def log(self, name: str) -> str:
        return self.log_path(name).read_text()

    def standby_urls(self) -> list[str]:
        return list(json.loads(self.cluster.access.read_text()).get("standbys", []))

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.home.run("ciel", "status", "--json").stdout)
        return found

    def kill_master(self) -> None:
        self.cluster.master.send_signal(signal.SIGKILL)
        self.cluster.master.communicate()

    def restart_master(self) -> None:
        """Start the first master again after its end, with the log "1b"; wait until it serves."""
        self.cluster.master = self.home.start(
            "ciel-master", "--listen", self.first_url.removeprefix("http://"),
            "--access", str(self.cluster.access), "--journal", str(self.home.path / "journal1"),
            "--log", str(self.log_path("1b")),
        )  # fmt: skip
        wait_for(
            lambda: self.log_path("1b").exists() and "access file" in self.log("1b"), "the election"
        )

    def runs(self) -> list[str]:
        path = self.home.path / "runs"
        return path.read_text().split() if path.exists() else []

    def wait_for_runs(self, count: int) -> None:
        wait_for(lambda: len(self.runs()) >= count, "some tasks have run")

    def submit(self, count: int) -> subprocess.Popen[str]:
        return self.home.start("ciel", "submit", "--array", f"1-{count}", "--", "sh", "-c", PROGRAM)

    def stop(self) -> None:
        cluster = self.cluster
        processes = [*self.standbys, *cluster.workers, *cluster.lenders, cluster.master]
        for process in processes:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.send_signal(signal.SIGTERM)
        for process in processes:
            if process.stdout is not None and not process.stdout.closed:
                process.communicate(timeout=20)


@pytest.fixture
def pair(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Pair]:
    pair = Pair(tmp_path, *getattr(request, "param", ()))
    yield pair
    pair.stop()


def finished(job: subprocess.Popen[str], count: int) -> None:
    printed, complaints = job.communicate(timeout=60)
    assert job.returncode == 0, complaints
    assert sorted(printed.split("\n")) == sorted(
        ["", *[f"result {n}" for n in range(1, count + 1)]]
    )


def test_a_waiting_submit_goes_on_with_the_standby(pair: Pair) -> None:
    job = pair.submit(30)
    pair.wait_for_runs(6)
    pair.kill_master()
    finished(job, 30)
    assert sorted(pair.runs()) == sorted(str(n) for n in range(1, 31))  # each ran once
    assert pair.cluster.url != pair.first_url  # the access file names the new master
    done = pair.home.run("ciel", "status")
    assert (done.returncode, "jobs: 1 completed" in done.stdout) == (0, True), done.stdout


@pytest.mark.slow
def test_a_frozen_master_is_replaced_and_finds_that_out(pair: Pair) -> None:
    path = str(pair.home.path / "runs")

    def work(number: int) -> int:
        import time

        with open(path, "a") as file:
            file.write(f"{number}\n")
        time.sleep(0.2)
        return number * number

    access = pair.cluster.access
    with Client(pair.first_url, access=str(access)) as client:
        futures = [client.submit(work, number) for number in range(30)]
        pair.wait_for_runs(4)
        pair.cluster.master.send_signal(signal.SIGSTOP)
        assert [future.result(timeout=60) for future in futures] == [n * n for n in range(30)]
        assert sorted(pair.runs(), key=int) == [str(n) for n in range(30)]
        assert client.submit(work, 30).result(timeout=30) == 900
    pair.cluster.master.send_signal(signal.SIGCONT)
    pair.cluster.master.communicate(timeout=30)
    assert pair.cluster.master.returncode == 1
    assert "was elected while this one was away" in pair.cluster.log("master")


@pytest.mark.slow
def test_a_master_without_its_standby_goes_on_when_the_workers_agree(pair: Pair) -> None:
    job = pair.submit(20)
    pair.wait_for_runs(4)
    pair.standbys[0].send_signal(signal.SIGKILL)
    pair.standbys[0].communicate()
    finished(job, 20)
    assert pair.cluster.url == pair.first_url
    wait_for(lambda: not pair.standby_urls(), "the standby to be struck off")
    pair.start_standby("2")  # with its old copy, which is replaced
    job = pair.submit(20)
    pair.kill_master()
    finished(job, 20)


@pytest.mark.slow
def test_the_old_master_becomes_the_standby_and_takes_over_again(pair: Pair) -> None:
    job = pair.submit(40)
    pair.wait_for_runs(6)
    pair.kill_master()
    wait_for(lambda: pair.cluster.url != pair.first_url, "the standby to take over")
    pair.start_standby("1")
    pair.standbys[0].send_signal(signal.SIGKILL)
    pair.standbys[0].communicate()
    finished(job, 40)
    assert sorted(pair.runs()) == sorted(str(n) for n in range(1, 41))


@pytest.mark.slow
def test_a_master_that_returns_before_its_standby_took_over_serves_again(pair: Pair) -> None:
    pair.standbys[0].send_signal(signal.SIGSTOP)  # it cannot take over
    pair.kill_master()
    pair.restart_master()
    assert "elected in epoch 2" in pair.log("1b")
    finished(pair.submit(3), 3)
    pair.standbys[0].send_signal(signal.SIGCONT)
    wait_for(lambda: len(pair.standby_urls()) == 1, "the standby to follow again")


@pytest.mark.slow
@pytest.mark.parametrize("pair", [("--suspect-after", "1", "--worker-timeout", "2")], indirect=True)
def test_a_worker_that_voted_for_a_standby_which_is_lost_returns_to_the_master(pair: Pair) -> None:
    cluster, (url,) = pair.cluster, pair.standby_urls()
    spool = pair.home.path / "spool"
    worker = cluster.start_worker("--spool", str(spool))
    promises = spool / "masters.json"
    wait_for(lambda: promises.exists() and codec.decode(promises.read_bytes())["known"], "a voter")
    for process in (worker, pair.standbys[0]):
        process.send_signal(signal.SIGKILL)
        process.communicate()
        wait_for(lambda: len(pair.status()["workers"]) == 3, "the end of a worker")
    wait_for(lambda: not pair.standby_urls(), "the standby to be struck off by the others")
    # Before it was lost, the standby had asked this worker alone, in several epochs.
    voted = codec.decode(promises.read_bytes()) | {"promised": {"epoch": 7, "url": url}}
    promises.write_bytes(codec.encode(voted))
    pair.kill_master()
    pair.restart_master()
    cluster.start_worker("--spool", str(spool))
    assert "a worker obeys the master" in pair.log("1b")
    finished(pair.submit(8), 8)
    assert (pair.status()["url"], pair.status()["epoch"]) == (pair.first_url, 8)


@pytest.mark.slow
def test_a_standby_that_nobody_elects_serves_when_it_is_promoted(pair: Pair) -> None:
    job = pair.submit(20)
    pair.wait_for_runs(4)
    (standby,), (url,) = pair.standbys, pair.standby_urls()
    standby.send_signal(signal.SIGSTOP)
    for process in (pair.cluster.master, *pair.cluster.workers[:2]):
        process.send_signal(signal.SIGKILL)
        process.communicate()
    standby.send_signal(signal.SIGCONT)
    wait_for(lambda: "not elected: 1 of 3 workers agree" in pair.log("2"), "an election")
    standby.send_signal(signal.SIGTERM)
    standby.communicate()
    pair.cluster.master = pair.home.start(
        "ciel-master", "--promote", "--listen", url.removeprefix("http://"), "--journal",
        str(pair.home.path / "journal2"), "--access", str(pair.cluster.access), "--log",
        str(pair.log_path("2b")),
    )  # fmt: skip
    finished(job, 20)
    assert pair.cluster.url == url
    assert "serves in epoch 1048576 without the votes of workers" in pair.log("2b")


def test_a_master_with_the_journal_of_another_one_says_how_to_start_it(pair: Pair) -> None:
    pair.kill_master()
    done = pair.home.run(
        "ciel-master", "--listen", "127.0.0.1:0", "--access", str(pair.home.path / "other"),
        "--journal", str(pair.home.path / "journal1"),
    )  # fmt: skip
    assert done.returncode == 1
    assert "may not serve with the journal in" in done.stderr
    assert f"ciel-master --standby {pair.first_url}" in done.stderr


# --- refusals -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_standby_needs_journals(tmp_path: Path) -> None:
    cluster = HandCluster.start(Home(tmp_path), 0)
    try:
        options = (
            "--standby",
            cluster.url,
            "--access",
            str(cluster.access),
            "--listen",
            "127.0.0.1:0",
        )
        done = cluster.home.run("ciel-master", *options)
        assert done.returncode == 2
        assert "--standby needs --journal" in done.stderr
        done = cluster.home.run("ciel-master", *options, "--journal", str(tmp_path / "copy"))
        assert done.returncode == 1
        assert "this master has no journal that a standby could follow" in done.stderr
    finally:
        cluster.stop()


def has_copy(log: Path) -> bool:
    return log.exists() and "copy is complete" in log.read_text()


@pytest.mark.slow
def test_a_standby_that_was_never_in_a_succession_starts_again(tmp_path: Path) -> None:
    cluster = HandCluster.start(Home(tmp_path), 0, of_master=("--journal", str(tmp_path / "one")))
    try:
        for log in (tmp_path / "1.log", tmp_path / "2.log"):  # without workers nobody can elect it
            standby = cluster.home.start(
                "ciel-master", "--standby", cluster.url, "--access", str(cluster.access),
                "--listen", "127.0.0.1:0", "--journal", str(tmp_path / "two"), "--log", str(log),
            )  # fmt: skip
            wait_for(partial(has_copy, log), "a copy")
            standby.kill()
            standby.communicate()
    finally:
        cluster.stop()


@pytest.mark.slow
def test_the_journal_of_another_master_is_not_replaced(tmp_path: Path) -> None:
    cluster = HandCluster.start(Home(tmp_path), 0, of_master=("--journal", str(tmp_path / "one")))
    (tmp_path / "other").mkdir()
    other = HandCluster.start(
        Home(tmp_path / "other"), 0, of_master=("--journal", str(tmp_path / "two"))
    )
    other.stop()
    try:
        done = cluster.home.run(
            "ciel-master", "--standby", cluster.url, "--access", str(cluster.access),
            "--listen", "127.0.0.1:0", "--journal", str(tmp_path / "two"),
        )  # fmt: skip
        assert done.returncode == 1
        assert "has the journal of a master without standbys" in done.stderr
    finally:
        cluster.stop()


# --- two hosts ------------------------------------------------------------------------------------


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[list[Host]]:
    with Hosts(tmp_path) as hosts:
        yield hosts


def start_pair(here: Host, there: Host, workers_there: int) -> subprocess.Popen[str]:
    """Start a master and a worker on one host, and a standby and workers on the other; return the
    master.
    """
    listen = ("--listen", f"{here.address}:0", "--new-key", "--journal", "journal")
    master = here.start("ciel-master", *listen, "--log", "master.log")
    wait_for(lambda: [*here.path.glob("state/ciel/*/access.json")], "the access file")
    (access,) = here.path.glob("state/ciel/*/access.json")
    url = str(json.loads(access.read_text())["url"])
    carried = there.path / "carried.json"
    shutil.copy2(access, carried)
    here.environ["CIEL_MASTER"] = url
    there.environ["CIEL_ACCESS"] = str(there.inside / "carried.json")
    there.start(
        "ciel-master", "--listen", f"{there.address}:0", "--standby", url, "--journal", "copy",
        "--access", str(there.inside / "carried.json"), "--log", "standby.log",
    )  # fmt: skip
    for number, host in enumerate([here, *[there] * workers_there]):
        name = f"worker{number}"
        host.start(
            "ciel-worker", "--slots", "1", "--listen", f"{host.address}:0", "--log", f"{name}.log",
            "--spool", f"{name}-spool",
        )  # fmt: skip
    wait_for(lambda: json.loads(access.read_text()).get("standbys"), "the standby")
    promises = here.path / "worker0-spool/masters.json"

    def are_voters() -> bool:
        known = json.loads(promises.read_text())["known"] if promises.exists() else None
        return known is not None and len(known["voters"]) == 1 + workers_there

    wait_for(are_voters, "a succession in which all workers vote")
    return master


@pytest.mark.slow
def test_a_standby_takes_over_when_the_cable_of_the_master_is_unplugged(hosts: list[Host]) -> None:
    here, there = hosts
    master = start_pair(here, there, 2)
    script = "sleep 0.2; echo {}"
    job = there.start("ciel", "submit", "--array", "1-40", "--", "sh", "-c", script)
    assert job.stdout is not None
    assert job.stderr is not None
    printed = [job.stdout.readline()]
    there.set_link(up=False)
    printed += job.stdout
    assert job.wait(timeout=60) == 0, job.stderr.read()
    assert sorted(map(int, printed)) == list(range(1, 41))
    assert master.poll() is None  # it does not know yet
    there.set_link(up=True)
    assert master.wait(timeout=60) == 1
    log = (here.path / "master.log").read_text()
    assert "was elected while this one was away" in log
    worker = here.path / "worker0.log"
    wait_for(lambda: worker.read_text().count("has restarted") == 1, "the worker to change sides")


@pytest.mark.slow
def test_nobody_takes_over_without_a_majority_of_the_workers(hosts: list[Host]) -> None:
    here, there = hosts
    start_pair(here, there, 1)
    there.set_link(up=False)
    log = there.path / "standby.log"
    wait_for(lambda: "not elected: 1 of 2 workers agree" in log.read_text(), "the vote")
    time.sleep(2.0)  # four more rounds
    assert "takes over" not in log.read_text()
    there.set_link(up=True)
    script = "echo {}"
    done = there.run("ciel", "submit", "--array", "1-5", "--", "sh", "-c", script)
    assert done.returncode == 0, done.stderr
