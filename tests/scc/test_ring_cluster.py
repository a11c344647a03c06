"""Real daemons that talk by rings, or by messages between cores: jobs run as ever, and the dead are
missed as ever.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ciel.testing.homes import HandCluster, Home, wait_for

TALKERS = """
import sys
from ciel import Client

program = "from ciel.executors.sdk import ciel_task; ciel_task.serve(lambda t: t.publish(0, b'x'))"
with Client() as client, client.job("talkers") as job:
    arguments = {"command": [sys.executable, "-c", program]}
    refs = [job.add("proc", {**arguments, "proc_pargs": [n]})[0] for n in range(60)]
    print(b"".join(job.read(ref) for ref in refs).decode())
"""


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    home = Home(tmp_path)
    yield home
    for pid in home.processes():  # of a test that failed
        os.kill(pid, signal.SIGKILL)
    home.expect_nothing_left()


def maps_a_channel(pid: int, kind: str = "ring") -> bool:
    try:
        return f"memfd:ciel-{kind}" in Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        return False  # it has ended


@pytest.mark.requirement("CIB-32", "CIB-53")
@pytest.mark.slow
def test_jobs_run_over_rings_and_a_worker_that_is_killed_is_missed(home: Home) -> None:
    cluster = HandCluster.start(home, 2, of_all=("--channel", "ring", "--spin", "20"))
    daemons = [cluster.master, *cluster.workers]
    wait_for(lambda: all(maps_a_channel(daemon.pid) for daemon in daemons), "rings on both sides")
    assert home.run(sys.executable, "-c", TALKERS).stdout == "x" * 60 + "\n"
    programs = [pid for pid, command in home.processes().items() if "--write-fifo" in command]
    assert any(maps_a_channel(pid) for pid in programs)

    lines = home.path / "lines"
    lines.write_text("".join(f"{number}\n" for number in range(16)))
    submit = home.start(
        *("ciel", "submit", "--each-line", str(lines), "--", "sh", "-c", "sleep 0.05; echo $1"),
        *("sh", "{}"),
    )
    log = home.path / "master.log"
    wait_for(lambda: "sleep 0.05" in "".join(home.processes().values()), "the job to run")
    cluster.workers[0].send_signal(signal.SIGKILL)
    out, errors = submit.communicate(timeout=40)
    assert submit.returncode == 0, errors
    assert out == lines.read_text()
    wait_for(lambda: "is lost" in log.read_text(), "its end to be noticed")
    assert log.read_text().count("continues over ring") == 2
    cluster.stop()
    for spool in home.tmp.iterdir():  # who is killed cannot clear up
        shutil.rmtree(spool)


@pytest.mark.requirement("CIB-32", "CIB-53")
@pytest.mark.slow
def test_jobs_run_over_messages_between_cores(home: Home) -> None:
    cluster = HandCluster.start(home, 2, of_all=("--channel", "mpb"))
    daemons = [cluster.master, *cluster.workers]
    wait_for(
        lambda: all(maps_a_channel(daemon.pid, "mpb") for daemon in daemons),
        "channels on both sides",
    )
    assert home.run(sys.executable, "-c", TALKERS).stdout == "x" * 60 + "\n"
    log = home.path / "master.log"
    cluster.workers[0].send_signal(signal.SIGKILL)
    wait_for(lambda: "is lost" in log.read_text(), "its end to be noticed")
    assert log.read_text().count("continues over mpb") == 2
    assert home.run(sys.executable, "-c", TALKERS).stdout == "x" * 60 + "\n"
    cluster.stop()
    for spool in home.tmp.iterdir():  # who is killed cannot clear up
        shutil.rmtree(spool)


@pytest.mark.slow
def test_a_channel_that_is_not_installed_is_said_in_one_line(home: Home) -> None:
    done = home.run("ciel-master", "--channel", "pigeon", "--listen", "127.0.0.1:0")
    assert done.returncode == 2
    assert done.stderr.startswith(
        "ciel-master: channel 'pigeon': not installed (there is: mpb, ring)"
    )
