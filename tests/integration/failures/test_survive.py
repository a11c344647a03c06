"""Tests the promises of docs/reliability.md on two hosts: whatever is killed, accepted work goes
on, finished tasks do not run again, and waiting clients get their answers.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from ciel.testing.homes import wait_for
from ciel_tests.clusters.hosts import Host, Hosts

NOTED: Final = "echo {} >> runs; sleep 0.2; echo {} >> ends; echo result {}"
"""A program that notes its start and its end in files of its host."""

CLIENT: Final = """
import sys, time
import ciel

def work(number):
    with open("runs", "a") as file:
        file.write(f"{number}\\n")
    time.sleep(0.2)
    with open("ends", "a") as file:
        file.write(f"{number}\\n")
    return number * number

with ciel.Client() as client:
    futures = [client.submit(work, number) for number in range(1, 31)]
    print([future.result(timeout=90) for future in futures] == [n * n for n in range(1, 31)])
"""


class Site:
    """A cluster on two hosts: its master on the first one, and a worker with two slots on each.

    All have journals and work directories, so the daemons can be started again with the same
    options.
    """

    def __init__(self, here: Host, there: Host) -> None:
        self.here, self.there = here, there
        self.port = "0"
        self.master = self.start_master("--new-key")
        (access,) = here.path.glob("state/ciel/*/access.json")
        self.url = str(json.loads(access.read_text())["url"])
        self.port = self.url.rpartition(":")[2]
        here.environ["CIEL_MASTER"] = self.url
        shutil.copy2(access, there.path / "carried.json")
        there.environ["CIEL_ACCESS"] = str(there.inside / "carried.json")
        self.workers = [self.start_worker(here), self.start_worker(there)]

    def start_master(self, *options: str) -> subprocess.Popen[str]:
        """Start the master; return it when it serves."""
        known = self.master_log().count("access file:")
        listen = ("--listen", f"{self.here.address}:{self.port}", "--journal", "journal")
        master = self.here.start("ciel-master", *listen, "--log", "master.log", *options)
        wait_for(lambda: self.master_log().count("access file:") > known, "the master serves")
        return master

    def start_worker(self, host: Host) -> subprocess.Popen[str]:
        log = host.path / "worker.log"
        known = log.read_text().count("joined the master") if log.exists() else 0
        worker = host.start(
            "ciel-worker", "--slots", "2", "--store", "disk", "--spool", "spool",
            "--listen", f"{host.address}:0", "--log", "worker.log",
        )  # fmt: skip
        wait_for(
            lambda: log.exists() and log.read_text().count("joined the master") > known, "a worker"
        )
        return worker

    def master_log(self) -> str:
        path = self.here.path / "master.log"
        return path.read_text() if path.exists() else ""

    def kill_master(self) -> None:
        self.master.send_signal(signal.SIGKILL)
        self.master.communicate()

    def noted(self, name: str) -> list[int]:
        """Return what programs on both hosts have noted in a file, sorted."""
        paths = [host.path / name for host in (self.here, self.there)]
        return sorted(int(n) for path in paths if path.exists() for n in path.read_text().split())

    def wait_for_ends(self, count: int) -> None:
        wait_for(lambda: len(self.noted("ends")) >= count, "some tasks have ended")

    def out(self, *words: str) -> str:
        done = self.here.run("ciel", *words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def rows(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.out("worker", "list", "--json"))
        return found


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with Hosts(tmp_path) as hosts:
        yield Site(*hosts)


def submit(host: Host, count: int, *options: str) -> subprocess.Popen[str]:
    words = ("--array", f"1-{count}", *options)
    return host.start("ciel", "submit", *words, "--", "sh", "-c", NOTED)


def expect_results(job: subprocess.Popen[str], count: int) -> None:
    printed, complaints = job.communicate(timeout=90)
    assert job.returncode == 0, complaints
    expected = [f"result {number}" for number in range(1, count + 1)]
    assert sorted(printed.splitlines()) == sorted(expected)


def test_the_master_dies_twice_and_waiting_clients_get_their_results(site: Site) -> None:
    job = submit(site.there, 40)
    program = site.there.start("python", "-c", CLIENT)
    for count in (10, 30):
        site.wait_for_ends(count)
        site.kill_master()
        site.master = site.start_master()
    expect_results(job, 40)
    printed, complaints = program.communicate(timeout=90)
    assert (program.returncode, printed) == (0, "True\n"), complaints
    once = sorted([*range(1, 41), *range(1, 31)])
    assert site.noted("runs") == site.noted("ends") == once  # programs were not disturbed


@pytest.mark.slow
def test_a_job_continues_after_a_power_cut_of_both_hosts(site: Site) -> None:
    submit(site.there, 40, "--detach").communicate(timeout=30)
    site.wait_for_ends(12)
    rows = json.loads(site.out("task", "list", "last", "--state", "done", "--json"))
    done = [int(row["name"]) for row in rows]
    assert len(done) > 3
    for host in (site.here, site.there):
        host.kill_all()
    site.master = site.start_master()
    site.workers = [site.start_worker(site.here), site.start_worker(site.there)]
    site.out("job", "wait", "last")
    output = site.out("job", "output", "last")
    assert sorted(output.splitlines()) == sorted(f"result {n}" for n in range(1, 41))
    # Other programs may have noted their ends before the cut, and were not reported.
    assert [number for number in done if site.noted("ends").count(number) > 1] == []
    assert sorted(set(site.noted("ends"))) == list(range(1, 41))


@pytest.mark.slow
@pytest.mark.parametrize("host", ["here", "there"])
def test_a_drained_worker_leaves_a_running_job(site: Site, host: str) -> None:
    job = submit(site.there, 40)
    site.wait_for_ends(8)
    drained: Host = getattr(site, host)
    (row,) = [row for row in site.rows() if row["netloc"].startswith(f"{drained.address}:")]
    site.out("worker", "drain", row["worker"])
    assert site.workers[drained is site.there].wait(timeout=20) == 0
    drained.run("rm", "-rf", "spool")
    expect_results(job, 40)
    assert site.noted("runs") == list(range(1, 41))
    output = site.out("job", "output", "last")  # also what only the drained worker had
    assert sorted(output.splitlines()) == sorted(f"result {n}" for n in range(1, 41))


@pytest.mark.slow
def test_a_restart_of_the_master_interrupts_no_job(site: Site) -> None:
    job = submit(site.there, 40)
    site.wait_for_ends(8)
    site.out("master", "restart")
    expect_results(job, 40)
    assert site.noted("runs") == list(range(1, 41))
    assert "the master was restarted" in site.out("job", "info", "last")


@pytest.mark.slow
def test_the_commands_look_into_the_journal_of_a_killed_master(site: Site) -> None:
    expect_results(submit(site.there, 10), 10)
    site.kill_master()
    dump = site.here.run("ciel", "journal", "dump", "journal")
    kinds = [json.loads(line)["kind"] for line in dump.stdout.splitlines()]
    assert (kinds[0], kinds.count("report")) == ("master_started", 10)
    checked = site.here.run("ciel", "journal", "check", "journal")
    assert (checked.returncode, checked.stderr) == (0, "")
    size_bytes = journal_bytes(site.here)
    done = site.here.run("ciel", "journal", "compact", "journal")
    assert done.returncode == 0, done.stderr
    assert journal_bytes(site.here) < size_bytes
    site.master = site.start_master()
    assert "state: completed" in site.out("job", "info", "last")
    found = site.here.run("ciel", "doctor", "--json", "--journal", "journal").stdout
    doctor = json.loads(found)
    states = {each["check"]: each["state"] for each in doctor}
    assert states["journal"] == "ok", states


def journal_bytes(host: Host) -> int:
    return sum(path.stat().st_size for path in (host.path / "journal").iterdir())
