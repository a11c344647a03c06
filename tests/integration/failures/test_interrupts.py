"""Checks that Ctrl-C at any moment ends `ciel submit` and all its processes."""

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ciel.testing.homes import Home, wait_for

MOMENTS = 6


def catches_signals(process: subprocess.Popen[str]) -> bool:
    """Return whether a command handles signals; before that, Python handles an interrupt."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    (caught,) = [line.split()[1] for line in status.splitlines() if line.startswith("SigCgt")]
    return bool(int(caught, 16) >> (signal.SIGTERM - 1) & 1)


@pytest.mark.slow
def test_ctrl_c_at_any_moment_leaves_nothing(home: Home) -> None:
    moments = random.Random(20)
    statuses = []
    for _ in range(MOMENTS):
        process = home.start(
            "ciel", "submit", "--array", "1-30", "--", "sh", "-c", "sleep 0.01; echo {}"
        )
        wait_for(lambda process=process: catches_signals(process), "the command")  # type: ignore[misc]  # defaults bind now
        time.sleep(moments.uniform(0.0, 0.7))
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=20)
        assert process.returncode in (0, 130), stderr
        assert "Traceback" not in stderr
        whole = "".join(f"{number}\n" for number in range(1, 31))
        assert stdout == whole if process.returncode == 0 else whole.startswith(stdout)
        home.expect_nothing_left()
        statuses.append(process.returncode)
    assert 130 in statuses


@pytest.mark.slow
def test_ctrl_c_ends_the_wait_for_a_line(home: Home) -> None:
    mark = home.path / "runs"
    process = home.start(
        "ciel", "submit", "--each-line", "-", "--", "sh", "-c", f"touch {mark}; sleep 333",
        stdin=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdin is not None
    process.stdin.write("a\nunended")
    process.stdin.flush()
    wait_for(mark.exists, "the first line's program")
    process.send_signal(signal.SIGINT)
    assert process.wait(10) == 130
    process.communicate()
    home.expect_nothing_left()


@pytest.mark.slow
def test_a_supervisor_that_is_stopped_before_it_knows_its_cluster_ends_well(home: Home) -> None:
    supervisor = home.start(
        sys.executable, "-P", "-m", "ciel.cli.daemons.supervisor", stdin=subprocess.PIPE
    )
    wait_for(lambda: catches_signals(supervisor), "its handler of SIGTERM")
    supervisor.terminate()
    assert supervisor.communicate(timeout=20) == ("", "")
    assert supervisor.returncode in (0, 128 + signal.SIGTERM)  # every command ends so at first
