"""Checks that a command leaves nothing but its logs, however it ends."""

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ciel.testing.homes import HandCluster, Home, wait_for

EXAMPLES = Path(__file__).parents[3] / "examples"
AT_ONCE_S = 10.0  # a tenth of it is usual; the programs would run for minutes
STUBBORN = "trap '' TERM INT; (setsid sleep 333 &) ; sleep 333 & touch {mark}; wait"


def start_stubborn(home: Home) -> subprocess.Popen[str]:
    """Submit a program that ignores signals and leaves a daemon; return once it runs."""
    mark = home.path / "runs"
    command = STUBBORN.replace("{mark}", str(mark))
    process = home.start("ciel", "submit", "--", "sh", "-c", command)
    wait_for(mark.exists, "the program to run")
    return process


@pytest.fixture(scope="module", autouse=True)
def forsaken(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HandCluster]:
    """Start a cluster whose client is killed; its grace period passes while the other tests of this
    file run.
    """
    cluster = HandCluster.start(Home(tmp_path_factory.mktemp("forsaken")), 1)
    client = start_stubborn(cluster.home)
    client.kill()
    client.communicate(timeout=20)
    yield cluster
    cluster.stop()


@pytest.mark.slow
def test_ctrl_c_cancels_the_job_and_leaves_nothing(home: Home) -> None:
    process = start_stubborn(home)
    pressed_s = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=20)
    assert process.returncode == 130, stderr
    assert time.monotonic() - pressed_s < AT_ONCE_S
    assert "Traceback" not in stderr
    home.expect_nothing_left()


@pytest.mark.slow
def test_the_demo_can_be_cancelled_in_the_middle(home: Home) -> None:
    demo = home.start("python", str(EXAMPLES / "search.py"))
    wait_for(lambda: any("grep" in c for c in home.processes().values()), "the first grep")
    pressed_s = time.monotonic()
    demo.send_signal(signal.SIGINT)
    _, stderr = demo.communicate(timeout=20)
    assert demo.returncode == 130, stderr
    assert time.monotonic() - pressed_s < AT_ONCE_S
    assert "Traceback" not in stderr
    home.expect_nothing_left()


@pytest.mark.slow
def test_a_killed_embedded_submit_leaves_nothing(home: Home) -> None:
    process = start_stubborn(home)
    process.kill()
    process.communicate(timeout=20)
    home.expect_nothing_left()


IN_MEMORY = """
import time
from ciel import Client, LocalCluster
with LocalCluster(workers=2, store="shm:capacity=64MiB") as cluster, Client(cluster) as client:
    with client.job("large") as job:
        parts = [job.run(["seq", str(n), "300000"]) for n in (1, 2)]
        job.want(parts)
        for part in parts:
            job.result(part)
        print("ready", flush=True)
        time.sleep(60)
"""


@pytest.mark.slow
def test_a_killed_program_leaves_no_segments_of_its_memory_stores(home: Home) -> None:
    process = home.start("python", "-c", IN_MEMORY)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    instances = {*re.findall(r"instance=([\w-]+)", " ".join(home.processes().values()))}
    segments = [path for i in instances for path in Path(f"/dev/shm/ciel-{i}/objects").iterdir()]
    assert len(segments) == 2
    process.kill()
    process.communicate(timeout=20)
    home.expect_nothing_left()


@pytest.mark.slow
@pytest.mark.parametrize(
    "victim", ["the first launcher", "a worker's launcher", "worker", "master"]
)
def test_a_killed_part_of_an_embedded_cluster_leaves_nothing(home: Home, victim: str) -> None:
    """The command ends by itself or is cancelled, whichever process is killed."""
    process = start_stubborn(home)
    launchers = sorted(pid for pid, c in home.processes().items() if c.startswith("ciel-launcher"))
    found = {
        "the first launcher": launchers[:1],
        "a worker's launcher": launchers[1:],
        "worker": [pid for pid, c in home.processes().items() if "ciel.cli.daemons.worker" in c],
        "master": [pid for pid, c in home.processes().items() if "ciel.cli.daemons.master" in c],
    }
    (pid,) = found[victim]
    os.kill(pid, signal.SIGKILL)
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=20)
    assert "Traceback" not in stderr
    home.expect_nothing_left()


def test_the_job_of_a_killed_client_is_cancelled(forsaken: HandCluster) -> None:
    home = forsaken.home
    wait_for(lambda: "cancelled" in home.run("ciel", "job", "list").stdout, "the job's end", 60)
    wait_for(lambda: not any("sleep 333" in c for c in home.processes().values()), "its programs")
