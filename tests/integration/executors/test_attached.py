"""Tests attached processes, which run before a cluster knows of them: each becomes the root task of
a job and ends it with its own end. They also cover jobs that end in other ways.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from base64 import b64decode
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from ciel.access.keys import Role
from ciel.testing.homes import HandCluster, Home, descriptors_of, wait_for
from ciel_tests.http.routes import Door, Told
from ciel_tests.scenes.one_worker import SDK

READ, SUBMIT = Role.READ, Role.SUBMIT

PROGRAM = f"""import json, os, signal, sys
sys.path.insert(0, {str(SDK)!r})
import ciel_task

def told(signal_number, frame):
    say(f"signal {{signal_number}}")

def say(text):
    print(text, flush=True)

def run(task):
    say("begun")
    if sys.argv[1] == "waits":
        sys.stdin.readline()
    command = sys.argv[2:]
    (made,) = task.spawn("stdinout", args={{"command_line": command}})
    task.publish(0, task.read(made))

signal.signal(signal.SIGTERM, told)
say("here")
os.environ.update(json.loads(sys.stdin.readline()))
try:
    ciel_task.serve(run)
    say("served")
except ciel_task.WorkerGoneError:
    say("cut off")
sys.stdin.read()
"""


class Guest:
    """A process that was started outside of any cluster."""

    def __init__(self, home: Home, what: str, *command: str) -> None:
        argv = (sys.executable, "-IS", "-c", PROGRAM, what, *command)
        self.process = home.start(*argv, stdin=subprocess.PIPE)
        self.hears("here")

    @property
    def pid(self) -> int:
        return self.process.pid

    def has_opened(self, path: str) -> bool:
        """Return whether the process has opened a file: the worker may remove it before."""
        descriptors = Path(f"/proc/{self.pid}/fd")
        try:
            return any(os.path.realpath(entry) == path for entry in descriptors.iterdir())
        except OSError:
            return False

    def hears(self, *expected: str) -> None:
        """Wait until the process prints these lines."""
        assert self.process.stdout is not None
        assert [self.process.stdout.readline().strip() for _ in expected] == [*expected]

    def tell(self, text: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{text}\n")
        self.process.stdin.flush()

    def end(self) -> str:
        """Make the process end by itself; return the rest of its output."""
        said, _ = self.process.communicate(timeout=20)
        assert self.process.returncode == 0
        return said


class Site(NamedTuple):
    """A cluster of one worker with one slot, and the HTTP sides of both daemons."""

    cluster: HandCluster
    master: Door
    worker: Door

    @classmethod
    def start(cls, path: Path) -> Site:
        cluster = HandCluster.start(Home(path), workers=1)
        master = Door(cluster.url.removeprefix("http://"), cluster.key)
        return cls(cluster, master, Door(cluster.netlocs()[0], cluster.key))

    def attach(self, pid: int, *, role: Role = SUBMIT) -> Told:
        return self.worker.ask_as(role, "POST", "/control/process/", [pid, "json"])

    def take_in(self, guest: Guest) -> dict[str, Any]:
        """Attach a process, and tell it where its FIFOs are; return the worker's answer."""
        told = self.attach(guest.pid)
        assert told.status == 200, told
        facts: dict[str, Any] = told.json()
        environ = {
            "CIEL_PIPE_TO_WORKER": facts["to_worker_fifo"],
            "CIEL_PIPE_FROM_WORKER": facts["from_worker_fifo"],
        }
        guest.tell(json.dumps(environ))
        return facts

    def job(self, job: str) -> dict[str, Any]:
        found: dict[str, Any] = self.master.ask_as(READ, "GET", f"/api/v1/jobs/{job}").json()
        return found

    def ended(self, job: str) -> dict[str, Any]:
        """Wait for the end of a job."""
        target = f"/api/v1/jobs/{job}?wait_s=20"
        found: dict[str, Any] = self.master.ask_as(READ, "GET", target).json()
        return found

    def cancel(self, job: str) -> None:
        told = self.master.ask_as(SUBMIT, "POST", f"/api/v1/jobs/{job}/cancel")
        assert told.status == 200, told

    def attached(self) -> list[str]:
        found: list[str] = self.worker.ask_as(READ, "GET", "/control/process/").json()
        return found

    def expect_nothing_left(self, fifo: str) -> None:
        wait_for(lambda: self.attached() == [], "nobody attached")
        wait_for(lambda: not Path(fifo).exists(), "the removal of the FIFOs")

        def runs() -> int:
            return int(self.master.ask_as(READ, "GET", "/api/v1/workers").json()[0]["running"])

        wait_for(lambda: not runs(), "the end of its child")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    site = Site.start(tmp_path_factory.mktemp("attached"))
    try:
        yield site
        for name in ("master", "worker1"):
            assert "Traceback" not in site.cluster.log(name)
    finally:
        site.cluster.stop()


@pytest.fixture
def guest_of(site: Site) -> Iterator[Callable[..., Guest]]:
    guests: list[Guest] = []

    def start(what: str, *command: str, home: Home = site.cluster.home) -> Guest:
        guests.append(Guest(home, what, *command))
        return guests[-1]

    yield start
    for guest in guests:
        guest.process.kill()
        guest.process.communicate()


Start = Callable[..., Guest]


def test_a_running_process_can_become_the_root_task_of_a_job(site: Site, guest_of: Start) -> None:
    open_before = descriptors_of(site.cluster.workers[0].pid)
    guest = guest_of("goes", "echo", "made by a child")
    facts = site.take_in(guest)
    job = facts["job_id"]
    guest.hears("begun")  # it then waits, without a slot, for its child, which has the only one
    ended = site.ended(job)
    assert (ended["state"], ended["counts"]) == ("completed", {"done": 3})
    assert ended["name"].startswith(f"process {guest.pid} (")
    described = site.master.ask_as(READ, "GET", f"/control/job/{job}").json()
    assert described["root_task"] == f"root:{job}"
    assert b64decode(described["result_ref"]["__ref__"][2]) == b"made by a child\n"
    guest.hears("served")
    site.expect_nothing_left(facts["to_worker_fifo"])
    assert guest.end() == ""
    wait_for(lambda: descriptors_of(site.cluster.workers[0].pid) <= open_before, "few descriptors")
    shown = site.cluster.home.run("ciel", "job", "info", job)
    assert f"process {guest.pid}" in shown.stdout
    done = site.cluster.home.run("ciel", "job", "rm", job)
    assert done.returncode == 0, done.stderr


def test_an_attached_process_is_listed_and_described(site: Site, guest_of: Start) -> None:
    guest = guest_of("waits", "true")
    facts = site.take_in(guest)
    assert facts["protocol"] == "json"
    assert (facts["id"], facts["pid"]) == (f"process:{facts['job_id']}", guest.pid)
    assert site.attached() == [facts["id"]]
    told = site.worker.ask_as(READ, "GET", f"/control/process/{facts['id']}")
    assert told.json() == facts
    guest.hears("begun")
    assert site.job(facts["job_id"])["counts"] == {"assigned": 1}
    guest.tell("go on")
    assert site.ended(facts["job_id"])["state"] == "completed"
    guest.hears("served")  # it can be attached again
    again = site.attach(guest.pid)
    assert again.status == 200
    site.cancel(again.json()["job_id"])
    site.expect_nothing_left(again.json()["to_worker_fifo"])


@pytest.mark.parametrize("when", ["before", "running", "waiting"])
def test_the_death_of_a_process_fails_its_job(site: Site, guest_of: Start, when: str) -> None:
    """The process dies before it has opened its FIFOs, while it runs, or while it waits for its
    child, which ends with it.
    """
    guest = guest_of("waits" if when == "running" else "goes", "sleep", "1000")
    if when == "before":
        facts = site.attach(guest.pid).json()
        wait_for(lambda: site.job(facts["job_id"])["counts"] == {"assigned": 1}, "its turn")
    else:
        facts = site.take_in(guest)
        guest.hears("begun")
    if when == "waiting":
        expected = {"done": 1, "assigned": 1, "waiting": 1}
        wait_for(lambda: site.job(facts["job_id"])["counts"] == expected, "its child")
    guest.process.kill()
    ended = site.ended(facts["job_id"])
    assert ended["state"] == "failed"
    assert f"process {guest.pid} (" in ended["reason"]
    assert "ended, before" in ended["reason"] or "ended before" in ended["reason"]
    site.expect_nothing_left(facts["to_worker_fifo"])


def test_a_process_that_closes_its_connection_but_lives_on_fails_its_job(
    site: Site, guest_of: Start
) -> None:
    guest = guest_of("waits", "true")
    facts = site.attach(guest.pid).json()
    with (
        open(facts["to_worker_fifo"], "wb", buffering=0),
        open(facts["from_worker_fifo"], "rb", buffering=0) as told,
    ):
        size_bytes = int.from_bytes(told.read(4), "big")
        method, args = json.loads(told.read(size_bytes))
    assert (method, args["id"], args["proc_pargs"]) == ("start_task", facts["id"], [])
    ended = site.ended(facts["job_id"])
    assert "closed the FIFO that it" in ended["reason"]
    site.expect_nothing_left(facts["to_worker_fifo"])


@pytest.mark.parametrize("when", ["in line", "running", "waiting"])
def test_cancelling_the_job_disconnects_its_process_without_a_signal(
    site: Site, guest_of: Start, when: str
) -> None:
    guest = guest_of("waits" if when == "running" else "goes", "sleep", "1000")
    other = ""
    if when == "in line":
        task = {"executor": "stdinout", "arguments": {"args": {"command_line": ["sleep", "1000"]}}}
        begun = site.master.ask_as(SUBMIT, "POST", "/api/v1/jobs", {"tasks": [task]})
        other = begun.json()["job"]["id"]
        wait_for(lambda: site.job(other)["counts"] == {"assigned": 1}, "the other's begin")
    facts = site.take_in(guest)
    if when == "in line":
        wait_for(lambda: guest.has_opened(facts["to_worker_fifo"]), "the process has its FIFOs")
    elif when == "running":
        guest.hears("begun")
    elif when == "waiting":
        guest.hears("begun")
        expected = {"done": 1, "assigned": 1, "waiting": 1}
        wait_for(lambda: site.job(facts["job_id"])["counts"] == expected, "its child")
    site.cancel(facts["job_id"])
    assert site.ended(facts["job_id"])["state"] == "cancelled"
    if when == "running":
        guest.tell("go on")
    guest.hears("served" if when == "in line" else "cut off")
    assert guest.end() == ""
    if other:
        site.cancel(other)
        site.ended(other)
    site.expect_nothing_left(facts["to_worker_fifo"])


@pytest.mark.slow
@pytest.mark.parametrize("daemon", ["master", "worker"])
@pytest.mark.parametrize("what", ["waits", "goes"])
def test_a_process_is_disconnected_when_a_daemon_ends(
    tmp_path: Path, guest_of: Start, daemon: str, what: str
) -> None:
    site = Site.start(tmp_path)
    home = site.cluster.home
    guest = guest_of(what, "sleep", "1000", home=home)
    try:
        facts = site.take_in(guest)
        guest.hears("begun")
        if what == "goes":
            expected = {"done": 1, "assigned": 1, "waiting": 1}
            wait_for(lambda: site.job(facts["job_id"])["counts"] == expected, "its child")
        (site.cluster.master if daemon == "master" else site.cluster.workers[0]).kill()
        # the worker waits for another master, and keeps the process meanwhile
        if daemon == "master":
            site.cluster.workers[0].terminate()
        else:
            ended = site.ended(facts["job_id"])
            assert (ended["state"], "LOST_FIXED_OBJECT" in ended["reason"]) == ("failed", True)
        if what == "waits":
            guest.tell("go on")
        guest.hears("cut off")
        assert guest.end() == ""
        if daemon == "worker":  # it deletes what a killed worker leaves in memory
            site.cluster.start_worker()
    finally:
        site.cluster.stop()


def test_attaching_needs_the_submit_role_and_an_existing_process(
    site: Site, guest_of: Start
) -> None:
    guest = guest_of("goes", "true")
    assert site.attach(guest.pid, role=READ).status == 403
    assert site.attach(site.cluster.workers[0].pid).error.endswith(
        "is this worker; attach another process"
    )
    told = site.worker.ask_as(SUBMIT, "POST", "/control/process/", [guest.pid, "pickle"])
    assert (told.status, "no protocol 'pickle'" in told.error) == (400, True)
    for body in ([guest.pid], [str(guest.pid), "json"], [True, "json"], [0, "json"], [-1, "json"]):
        assert site.worker.ask_as(SUBMIT, "POST", "/control/process/", body).status == 400
    guest.process.kill()
    os.waitid(os.P_PID, guest.pid, os.WEXITED | os.WNOWAIT)  # a zombie keeps its process id
    told = site.attach(guest.pid)
    assert (told.status, told.error) == (404, f"process {guest.pid} has ended")
    assert site.attached() == []
