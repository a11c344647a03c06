"""`ciel up --on slurm`, as a user types it, on a real Slurm."""

import json
import os
import signal
from collections.abc import Iterator

import pytest

from ciel.testing.homes import Home, wait_for
from ciel_tests.slurm import Slurm

pytestmark = pytest.mark.slow

ON_SLURM = ("--on", "slurm", "--poll", "0.5", "--listen", "127.0.0.1:0", "--time", "10m")
WORDS = ("--", "--partition=cpu", "--mem=300M")
MEMORY_OF_JOB = "300MiB"


@pytest.fixture
def user(home: Home, in_slurm: Slurm) -> Iterator[Home]:
    """A home whose cluster is ended in any case."""
    yield home
    home.run("ciel", "down", "--force", timeout_s=90)


def up(user: Home, *options: str, words: tuple[str, ...] = WORDS) -> None:
    done = user.run("ciel", "up", *ON_SLURM, *options, *words, timeout_s=60)
    assert done.returncode == 0, done.stderr


def decisions(user: Home) -> list[str]:
    done = user.run("ciel", "launcher", "explain", "--last", "200", "--json")
    return [row["what"] for row in json.loads(done.stdout)]


def reasons(user: Home) -> str:
    return user.run("ciel", "launcher", "explain", "--last", "200").stdout


def test_workers_come_as_tasks_wait_and_leave_when_idle(user: Home, in_slurm: Slurm) -> None:
    up(user, "--workers", "0..2", "--idle", "1s")
    assert in_slurm.jobs() == []
    done = user.run("ciel", "submit", "--array", "1-4", "--", "sh", "-c", "echo {}", timeout_s=90)
    assert done.stdout == "1\n2\n3\n4\n"
    assert "`ciel launcher explain` says when one comes" in done.stderr
    wait_for(lambda: in_slurm.jobs() == [], "the workers to leave", 60)
    wait_for(lambda: "cancel" in decisions(user), "the report", 20)
    assert "4 tasks wait for 4 slots" in reasons(user)
    assert "idle for 1 s, without objects" in reasons(user)
    assert user.run("ciel", "launcher", "list").stdout.startswith("no allocation")


def test_down_cancels_running_and_queued_allocations(user: Home, in_slurm: Slurm) -> None:
    up(user, "--workers", "3")  # the node has two CPUs
    wait_for(lambda: sorted(job.split()[1] for job in in_slurm.jobs())
             == ["PENDING", "RUNNING", "RUNNING"], "two running jobs", 60)  # fmt: skip
    assert user.run("ciel", "down", timeout_s=90).returncode == 0
    assert in_slurm.jobs() == []


def test_a_restarted_autoscaler_finds_its_allocations(user: Home, in_slurm: Slurm) -> None:
    up(user, "--workers", "0..2", "--idle", "10m")
    job = user.start("ciel", "submit", "--array", "1-4", "--", "sh", "-c", "sleep 8; echo {}")
    wait_for(lambda: len(in_slurm.jobs()) == 2, "two jobs", 60)
    (pid,) = [
        pid for pid, command in user.processes().items() if "launchers.autoscaler " in command
    ]
    before = in_slurm.jobs()
    os.kill(pid, signal.SIGKILL)
    printed, _ = job.communicate(timeout=90)
    assert printed == "1\n2\n3\n4\n"
    assert {line.split()[0] for line in in_slurm.jobs()} == {line.split()[0] for line in before}
    assert any("launchers.autoscaler " in command for command in user.processes().values())


def test_an_interrupted_cluster_continues_with_its_allocations(user: Home, in_slurm: Slurm) -> None:
    up(user, "--workers", "0..1", "--idle", "10m")
    done = user.run("ciel", "submit", "--detach", "--", "sh", "-c", "sleep 5; echo done")
    assert done.returncode == 0, done.stderr
    wait_for(lambda: len(in_slurm.jobs()) == 1, "a job", 60)
    before = in_slurm.jobs()[0].split()[0]
    for pid, command in user.processes().items():
        if "ciel.cli." in command:
            os.kill(pid, signal.SIGKILL)
    again = user.run("ciel", "up", timeout_s=60)
    assert "0 to 1 workers on slurm" in again.stderr
    assert user.run("ciel", "job", "wait", "last", timeout_s=60).returncode == 0
    assert user.run("ciel", "job", "output", "last").stdout == "done\n"
    assert [line.split()[0] for line in in_slurm.jobs()] == [before]


def test_failed_allocations_pause_the_launcher_and_doctor_says_why(user: Home) -> None:
    up(user, "--workers", "0..2", words=("--", "--partition=nowhere"))
    user.run("ciel", "submit", "--detach", "--", "true")
    paused = "the last 3 allocations have failed"
    wait_for(lambda: paused in reasons(user), "the pause", 60)
    shown = user.run("ciel", "doctor").stdout
    assert paused in shown
    assert "Invalid partition name" in shown
