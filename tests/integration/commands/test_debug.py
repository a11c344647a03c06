"""Looks into daemons that run, that hang, and that do not answer."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ciel.net.flight_recorder import RECORD_TITLE
from ciel.testing.homes import Home, wait_for
from ciel.testing.replay import Dump, ReplayError
from ciel.testing.replay import replayed as replay_of

HANGING = """
import sys, time
from ciel.cli.daemons import master
from ciel.master.service import MasterService

def hang(self, topic, argument):
    time.sleep(2.5)
    return usual(self, topic, argument)

usual, MasterService.answer = MasterService.answer, hang
sys.exit(master.main(sys.argv[1:]))
"""


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    home = Home(tmp_path_factory.mktemp("debug"))
    done = home.run("ciel", "up", "--workers", "1", "--listen", "127.0.0.1:0")
    assert done.returncode == 0, done.stderr
    yield home
    home.run("ciel", "down", "--force")
    home.expect_nothing_left()


def parts(text: str) -> list[str]:
    return [line.strip("- ") for line in text.splitlines() if line.startswith("--- ")]


def test_a_dump_of_each_daemon_is_fetched(up: Home) -> None:
    assert up.run("ciel", "submit", "--name", "mine", "--", "echo", "hi").returncode == 0
    done = up.run("ciel", "debug", "dump")
    assert done.returncode == 0, done.stderr
    paths = [up.path / line for line in done.stdout.splitlines()]
    master, worker = (path.read_text() for path in paths)
    expected = [
        "stacks",
        "state",
        "timers",
        "the latest messages, < received, > sent",
        RECORD_TITLE,
    ]
    assert parts(master) == parts(worker) == expected
    assert '"problems": []' in master
    assert '"attempts": []' in worker
    assert '"submit"' in master or '"job"' in master
    assert "MainThread" in master
    assert [stat.S_IMODE(path.stat().st_mode) for path in paths] == [0o600, 0o600]
    (access,) = up.path.rglob("access.json")
    key = access.read_text().split('"key"')[1].split('"')[1]
    assert len(key) > 20
    assert key not in master + worker


def test_a_signal_writes_a_dump_beside_the_log(up: Home) -> None:
    (pid,) = [pid for pid in up.processes() if "daemons.worker" in command_of(pid)]
    before = set(up.path.rglob("ciel-worker-*.dump"))
    os.kill(pid, signal.SIGUSR1)
    wait_for(lambda: set(up.path.rglob("ciel-worker-*.dump")) - before, "the dump")
    assert up.run("ciel", "submit", "--", "echo", "hi").stdout == "hi\n"


@pytest.mark.slow
def test_at_most_five_dumps_of_a_kind_stay(up: Home) -> None:
    for _ in range(7):
        assert up.run("ciel", "debug", "dump", "--worker", worker_of(up)).returncode == 0
        for path in up.path.glob("*.dump"):
            path.unlink()
    assert len(list(up.path.rglob("ciel-worker-*.dump"))) == 5


def test_the_log_level_is_changed_while_daemons_run(up: Home) -> None:
    assert up.run("ciel", "debug", "log-level", "debug").returncode == 0
    assert up.run("ciel", "debug", "log-level", "info").returncode == 0
    wrong = up.run("ciel", "debug", "log-level", "loud")
    assert wrong.returncode == 2
    assert "LEVEL" in wrong.stderr


def test_an_unknown_worker_is_reported(up: Home) -> None:
    done = up.run("ciel", "debug", "dump", "--worker", "nobody")
    assert done.returncode == 2
    assert "unknown worker; the workers are: " in done.stderr


@pytest.mark.slow
def test_a_loop_that_stands_still_writes_a_dump_with_its_stack(home: Home) -> None:
    access, log = home.path / "access.json", home.path / "log" / "master.log"
    master = home.start(
        sys.executable, "-c", HANGING, "--listen", "127.0.0.1:0", "--access", str(access),
        "--log", str(log), stdin=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        wait_for(access.exists, "the master")
        assert home.run("ciel", "status", "--access", str(access)).returncode == 0
        wait_for(lambda: "wrote a dump to" in log.read_text(), "the dump")
        (dump,) = log.parent.glob("ciel-master-*.dump")
        text = dump.read_text()
        assert "its event loop was blocked for" in text
        assert "in hang" in text
        assert str(dump) in log.read_text()
    finally:
        master.terminate()
        master.communicate(timeout=20)


def command_of(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")


def worker_of(up: Home) -> str:
    return up.run("ciel", "worker", "list").stdout.splitlines()[1].split()[0]


def replayed(up: Home, path: Path, *options: str) -> tuple[dict[str, Any], str]:
    """Replay a dump; return the state of the machine, and the text on standard error."""
    done = up.run("python", "-m", "ciel.testing.replay", str(path), *options)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    home = Home(tmp_path)
    done = home.run("ciel", "up", "--workers", "1", "--slots", "2", "--listen", "127.0.0.1:0")
    assert done.returncode == 0, done.stderr
    yield home
    home.run("ciel", "down", "--force")
    home.expect_nothing_left()


@pytest.mark.slow
def test_a_replay_of_a_dump_ends_in_the_state_of_the_daemon(home: Home) -> None:
    """All messages since the start are in the records: finished, failed and running tasks."""
    home.run("ciel", "submit", "--array", "1-20", "--", "echo", "{}")
    home.run("ciel", "submit", "--", "false")
    home.run("ciel", "submit", "--detach", "--array", "1-3", "--", "sleep", "60")
    wait_for(lambda: '"assigned": 3' in home.run("ciel", "job", "list", "--json").stdout, "tasks")
    fetched = home.run("ciel", "debug", "dump")
    assert fetched.returncode == 0, fetched.stderr
    for line in fetched.stdout.splitlines():
        dump = Dump.read(home.path / line)
        state, differences = replayed(home, home.path / line)
        assert differences == ""
        assert state["problems"] == []
        if "attempts" in state:
            assert len(state["attempts"]) == 3
        for key in state.keys() & {"attempts", "slots_free", "queue", "objects"}:
            assert state[key] == dump.state[key], key
        # Columns 6 and 7 are times: the clock of the daemon starts with the computer.
        jobs, expected = state.get("jobs", []), dump.state.get("jobs", [])
        assert [row[:6] + row[8:] for row in jobs] == [row[:6] + row[8:] for row in expected]


@pytest.mark.slow
def test_a_replay_can_stop_earlier(up: Home) -> None:
    assert up.run("ciel", "submit", "--", "echo", "hi").returncode == 0
    before_s = time.time()
    assert up.run("ciel", "submit", "--", "echo", "later").returncode == 0
    path = up.path / up.run("ciel", "debug", "dump").stdout.splitlines()[0]
    jobs = [
        len(replayed(up, path, *options)[0]["jobs"]) for options in ((), ("--until", str(before_s)))
    ]
    assert jobs[0] == jobs[1] + 1


@pytest.mark.parametrize("content", ["nothing", "--- state ---\n{}\n\n"])
def test_a_file_that_is_not_a_dump_is_not_replayed(tmp_path: Path, content: str) -> None:
    path = tmp_path / "dump"
    path.write_text(content)
    with pytest.raises(ReplayError, match="is not a dump with a record"):
        Dump.read(path)


def test_a_record_that_lacks_its_start_is_not_replayed() -> None:
    with pytest.raises(ReplayError, match="the dump lacks the first 7 batches"):
        replay_of(Dump({}, 7, []))
