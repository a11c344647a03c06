"""Tests `ciel up` when its master or all its processes are killed: jobs go on, finished tasks do
not run again, and commands wait for the master.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import pytest

from ciel.access import access_file
from ciel.access.access_file import AccessFile
from ciel.access.paths import host_name
from ciel.testing.homes import Home, wait_for

pytestmark = pytest.mark.slow

PROGRAM = "echo {} >> runs; sleep 0.2; echo result {}"
DAEMON = "ciel.cli.daemons."


def up(home: Home, *options: str) -> str:
    """Start or continue a cluster, and return what the command says."""
    done = home.run("ciel", "up", *options, timeout_s=90)
    assert done.returncode == 0, done.stderr
    return done.stderr


def start(home: Home, *options: str) -> None:
    up(home, "--listen", free_address(), "--workers", "2", "--slots", "1", *options)


def free_address() -> str:
    """Return an address that no other test takes while the cluster is interrupted."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def found(home: Home) -> AccessFile:
    return access_file.read(home.path / "state" / "ciel" / f"current@{host_name()}")


def directory(home: Home) -> Path:
    return (home.path / "state" / "ciel" / f"current@{host_name()}").resolve().parent


def daemons(home: Home, name: str = "") -> list[int]:
    return [pid for pid, line in home.processes().items() if DAEMON + name in line]


def kill_master(home: Home) -> None:
    (pid,) = daemons(home, "master")
    os.kill(pid, signal.SIGKILL)


def kill_all(home: Home, waiting: subprocess.Popen[str] | None = None) -> None:
    """Kill all processes of the home at once, except a command."""
    spared = {waiting.pid} if waiting else set()
    stopped: set[int] = set()
    while new := set(home.processes()) - stopped - spared:  # none may notice the end of another
        send(new, signal.SIGSTOP)
        stopped |= new
    send(stopped, signal.SIGKILL)
    wait_for(lambda: not set(home.processes()) - spared, "their end")


def send(pids: Iterable[int], number: signal.Signals) -> None:
    """Send a signal to processes; a program may have ended by itself meanwhile."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def runs(home: Home) -> list[str]:
    path = home.path / "runs"
    return path.read_text().split() if path.exists() else []


def wait_for_runs(home: Home, count: int) -> None:
    wait_for(lambda: len(runs(home)) >= count, "some tasks have run", 60.0)


def submit(home: Home, *options: str) -> subprocess.Popen[str]:
    return home.start("ciel", "submit", *options, "--", "sh", "-c", PROGRAM)


def results(count: int) -> list[str]:
    return sorted(f"result {number}" for number in range(1, count + 1))


def down(home: Home, *options: str) -> None:
    done = home.run("ciel", "down", *options)
    assert done.returncode == 0, done.stderr
    home.expect_nothing_left()


# --- the master is killed -------------------------------------------------------------------------


def test_a_waiting_submit_gets_all_results_although_the_master_is_killed_twice(home: Home) -> None:
    start(home)
    workers, url = daemons(home, "worker"), found(home).url
    waiting = submit(home, "--array", "1-200")
    for count in (20, 90):
        wait_for_runs(home, count)
        kill_master(home)
    printed, complaints = waiting.communicate(timeout=120)
    assert waiting.returncode == 0, complaints
    assert sorted(printed.splitlines()) == results(200)
    assert sorted(runs(home), key=int) == [str(number) for number in range(1, 201)]  # each once
    assert (daemons(home, "worker"), found(home).url) == (workers, url)
    down(home)


@pytest.mark.parametrize(
    "words", [("status",), ("job", "list"), ("worker", "list"), ("submit", "--", "true"), ("down",)]
)
def test_a_command_waits_for_the_master(home: Home, words: tuple[str, ...]) -> None:
    start(home)
    kill_master(home)
    done = home.run("ciel", *words)
    assert done.returncode == 0, done.stderr
    if words != ("down",):
        down(home)


def test_down_does_not_end_jobs_because_the_master_is_away(home: Home) -> None:
    start(home)
    submit(home, "--detach", "--array", "1-200").communicate(timeout=30)
    wait_for_runs(home, 2)
    kill_master(home)
    done = home.run("ciel", "down")
    assert done.returncode == 1
    assert "keeps running, since 1 job is unfinished" in done.stderr
    down(home, "--force")


def test_a_client_gives_up_after_the_time_that_its_user_has_set(home: Home) -> None:
    start(home)
    home.environ["CIEL_RECONNECT_S"] = "1.5"
    waiting = submit(home, "--array", "1-200")
    wait_for_runs(home, 2)
    os.kill(found(home).pid, signal.SIGKILL)
    _, complaints = waiting.communicate(timeout=60)
    assert waiting.returncode == 3
    assert complaints.count("is away (nothing listens there); waiting for it for up to 1.5 s") == 1
    assert "it could not be reached again within 1.5 s: nothing listens there" in complaints
    down(home, "--force")


def test_a_wrong_time_is_reported(home: Home) -> None:
    start(home)
    home.environ["CIEL_RECONNECT_S"] = "soon"
    done = home.run("ciel", "status")
    assert (done.returncode, done.stderr) == (
        2,
        "ciel: CIEL_RECONNECT_S: 'soon' is not a number of seconds; write 60, or inf to wait "
        "without end\n",
    )
    del home.environ["CIEL_RECONNECT_S"]
    down(home)


# --- everything is killed -------------------------------------------------------------------------


def test_a_detached_job_goes_on_after_everything_was_killed(home: Home) -> None:
    start(home)
    submit(home, "--detach", "--array", "1-60").communicate(timeout=30)
    wait_for_runs(home, 15)
    kill_all(home)
    said = up(home)  # with the options of the interrupted cluster
    assert "continues the earlier cluster (jobs: 1, unfinished: 1); `ciel up --fresh`" in said
    assert "2 workers with 1 slot each" in said
    done = home.run("ciel", "job", "wait", "last", timeout_s=90)
    assert done.returncode == 0, done.stderr
    # Only programs have run again that ran at that moment, or had ended without a report.
    assert len(runs(home)) <= 60 + 4
    assert set(runs(home)) == {str(number) for number in range(1, 61)}
    shown = home.run("ciel", "job", "output", "last")
    assert sorted(shown.stdout.splitlines()) == results(60), shown.stderr
    down(home)


def test_a_waiting_submit_goes_on_after_everything_was_killed(home: Home) -> None:
    start(home)
    waiting = submit(home, "--array", "1-40")
    wait_for_runs(home, 10)
    kill_all(home, waiting)
    up(home)
    printed, complaints = waiting.communicate(timeout=90)
    assert waiting.returncode == 0, complaints
    assert sorted(printed.splitlines()) == results(40)
    # Each of two slots may have a program, and one whose report has not arrived.
    assert len(runs(home)) <= 40 + 4
    down(home)


def test_a_job_whose_client_was_killed_too_is_cancelled(home: Home) -> None:
    start(home)
    waiting = submit(home, "--array", "1-200")
    wait_for_runs(home, 2)
    kill_all(home)
    waiting.communicate(timeout=30)
    up(home)

    def is_cancelled() -> bool:  # `ciel job wait` would be a new client of the job
        listed = home.run("ciel", "job", "list", "--all").stdout
        return "cancelled" in listed

    wait_for(is_cancelled, "the end of the job", 60.0)
    down(home)


def test_a_cluster_that_was_ended_by_a_signal_is_continued(home: Home) -> None:
    start(home)
    submit(home, "--detach", "--array", "1-20").communicate(timeout=30)
    wait_for_runs(home, 4)
    os.kill(found(home).pid, signal.SIGTERM)  # as when the host shuts down
    wait_for(lambda: not home.processes(), "its end")
    said = up(home)
    assert "continues the earlier cluster (jobs: 1, unfinished: 1)" in said
    assert home.run("ciel", "job", "wait", "last", timeout_s=60).returncode == 0
    assert set(runs(home)) == {str(number) for number in range(1, 21)}
    down(home)


def test_down_leaves_nothing_to_continue(home: Home) -> None:
    start(home)
    place = directory(home)
    assert home.run("ciel", "submit", "--detach", "--", "true").returncode == 0
    assert home.run("ciel", "job", "wait", "last").returncode == 0
    down(home)
    assert not (place / "journal").exists()
    port = found_port(place)
    assert "continues" not in up(home, "--listen", f"127.0.0.1:{port}")
    assert home.run("ciel", "job", "list", "--all").stdout == "no jobs\n"
    down(home)


def found_port(place: Path) -> int:
    return int(place.name.rpartition("_")[2])


def test_an_interrupted_job_is_only_removed_on_request(home: Home) -> None:
    start(home)
    submit(home, "--detach", "--array", "1-60").communicate(timeout=30)
    wait_for_runs(home, 2)
    kill_all(home)
    place = directory(home)
    kept = home.run("ciel", "down")
    assert kept.returncode == 1
    assert "is kept, since 1 job is unfinished: sh; continue it (ciel up)" in kept.stderr
    said = up(home, "--fresh")
    assert "continues" not in said
    assert home.run("ciel", "job", "list", "--all").stdout == "no jobs\n"
    kill_all(home)
    down(home)
    assert not (place / "journal").exists()


def test_a_damaged_journal_stops_up(home: Home) -> None:
    start(home)
    for _ in range(2):
        assert home.run("ciel", "submit", "--", "true").returncode == 0
    kill_all(home)
    journal = directory(home) / "journal" / "00000001.journal"
    content = bytearray(journal.read_bytes())
    content[40] ^= 1
    journal.write_bytes(content)
    for _ in range(2):
        done = home.run("ciel", "up")
        assert done.returncode == 3, done.stderr
        assert "master could not start: journal" in done.stderr
        assert "move the journal's directory away" in done.stderr
    assert not home.processes()
    assert home.run("ciel", "down").returncode == 1  # it may contain unfinished jobs
    up(home, "--fresh")
    down(home)
