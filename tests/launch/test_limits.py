"""Tests the limits of open files of daemons and programs."""

import errno
import resource
import subprocess
import sys

from ciel.launch.limits import open_files_advice
from ciel.storage.errors import StoreSystemError

# Prints the limit of this process and of a program; then again, under a second launcher.
RAISED = """
import resource
from ciel.launch import Launcher, LaunchSpec, ProgramExited
from ciel.launch.limits import raise_open_files
for _ in range(2):
    raise_open_files()
    print(*resource.getrlimit(resource.RLIMIT_NOFILE), flush=True)
    with Launcher.start_process() as launcher:
        launcher.start(1, LaunchSpec(["sh", "-c", "ulimit -Sn; ulimit -Hn"]))
        while not any(isinstance(event, ProgramExited) for event in launcher.wait_events(10)):
            pass
"""


def test_programs_keep_the_limit_that_the_daemon_was_started_with() -> None:
    limited = 'ulimit -Sn 200 && ulimit -Hn 300 && exec "$@"'
    done = subprocess.run(
        ["sh", "-c", limited, "sh", sys.executable, "-c", RAISED],
        capture_output=True, text=True, check=True, timeout=30,
    )  # fmt: skip
    assert done.stdout.split("\n") == ["300 300", "200", "300"] * 2 + [""]


def test_only_an_error_about_open_files_advises_to_raise_the_limit() -> None:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    advice = f"; raise the limit of open files (ulimit -n, now {soft})"
    assert open_files_advice(OSError(errno.EMFILE, "too many")) == advice
    assert open_files_advice(StoreSystemError("open", errno.EMFILE)) == advice
    assert open_files_advice(OSError(errno.ENOENT, "no such file")) == ""
    assert open_files_advice(ValueError()) == ""
