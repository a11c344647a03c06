"""`ciel up --on ssh`, as a user types it, over a real server of ssh."""

import os
import signal

import pytest

from ciel.testing.homes import Home, wait_for
from ciel_tests.sshd import Sshd

pytestmark = pytest.mark.slow


def test_workers_come_over_ssh_and_leave_with_the_cluster(home: Home, sshd: Sshd) -> None:
    hosts = home.path / "hosts.txt"
    hosts.write_text(f"# one host, two workers\n{sshd.host} workers=2 slots=1\n")
    on_ssh = ("--on", "ssh", "--hosts", str(hosts), "--listen", "127.0.0.1:0")
    done = home.run("ciel", "up", *on_ssh, "--", *sshd.options, timeout_s=60)
    assert done.returncode == 0, done.stderr
    try:
        assert "2 workers on ssh" in done.stderr
        done = home.run("ciel", "submit", "--array", "1-4", "--", "echo", "{}", timeout_s=90)
        assert done.stdout == "1\n2\n3\n4\n"
        wait_for(
            lambda: home.run("ciel", "launcher", "list").stdout.count("running") == 2,
            "two workers", 60,
        )  # fmt: skip
        (pid,) = [
            pid for pid, command in home.processes().items() if "launchers.autoscaler " in command
        ]
        os.kill(pid, signal.SIGKILL)  # its connections break; the next one connects again
        wait_for(
            lambda: home.run("ciel", "submit", "--", "echo", "again").stdout == "again\n",
            "workers to return", 90,
        )  # fmt: skip
    finally:
        home.run("ciel", "down", "--force", timeout_s=90)
