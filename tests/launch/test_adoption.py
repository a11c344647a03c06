"""Tests programs that a preloaded parent forked and the launcher adopted: they behave like any
other program.

The parent is the one of Python tasks; its forked processes run their last argument as Python code.
"""

import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ciel.launch import (
    DEV_NULL,
    Descriptor,
    Event,
    File,
    Launcher,
    LauncherDiedError,
    LaunchSpec,
    ProgramExited,
    ProgramFailed,
    ProgramStarted,
    Standard,
)

SERVE = """import sys
from ciel.executors.programs.python.fork_server import serve
if sys.argv[1:] == ["serve"]:
    serve()
exec(sys.argv[-1])
"""
PARENT_ID, CHILD_ID = 100, 1

# Prints what a program finds when it starts, except values that differ between any two programs.
STATE = r"""import gc, json, os, re, sys, threading
status = open("/proc/self/status").read()
limits = open("/proc/self/limits").read()
print(json.dumps({
    "signals": re.findall(r"^(?:Sig|Shd).*$", status, re.MULTILINE)[1:],
    "subreaper and names": [open("/proc/self/comm").read(), threading.current_thread().name],
    "threads": os.listdir("/proc/self/task") == [str(os.getpid())],
    "limits": [line for line in limits.splitlines() if "file locks" not in line],
    "files": {n: os.readlink("/proc/self/fd/" + n) for n in ("0", "1", "2")},
    "more files": len(os.listdir("/proc/self/fd")),
    "leads": os.getpid() == os.getsid(0) == os.getpgid(0),
    "parent": os.getppid(),
    "directory": os.getcwd(),
    "environment": dict(os.environ),
    "arguments": [sys.argv[1:], sys.orig_argv[0]],
    "path": sys.path,
    "mask": os.umask(0o077),
    "collects": [gc.isenabled(), gc.get_threshold()],
    "prints": [sys.stdout.line_buffering, sys.stdout.encoding, sys.stdin.read()],
}))"""

Eventually = Callable[..., bool]


class Parent:
    """A preloaded parent, and its launcher."""

    def __init__(self, launcher: Launcher, directory: Path) -> None:
        self.launcher = launcher
        self.directory = directory
        self._events: list[Event] = []
        self.link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.link.settimeout(20)
        with theirs:
            argv = [sys.executable, "-c", SERVE, "serve"]
            stdin = Descriptor(theirs.fileno())
            launcher.start(PARENT_ID, LaunchSpec(argv, stdin=stdin, stderr=DEV_NULL))
            self.pid = self._started()

    def _started(self) -> int:
        event = self._next()
        assert isinstance(event, ProgramStarted)
        return event.pid

    def end(self) -> ProgramExited | ProgramFailed:
        """Wait for the end of a launch."""
        while isinstance(event := self._next(), ProgramStarted):
            pass
        return event

    def _next(self) -> Event:
        while not self._events:
            self._events += self.launcher.wait_events(20)
        return self._events.pop(0)

    def fork(self, script: str) -> int:
        """Fork a process that waits to be adopted; return its process id."""
        stdout = str(self.directory / "printed")
        argv = [sys.executable, "-c", "fork", script]
        added = {"ADDED": "1", "HOME": None}
        request = [CHILD_ID, argv, str(self.directory), stdout, stdout, added]
        self.link.send(json.dumps(request).encode())
        launch_id, pid = json.loads(self.link.recv(1000))
        assert launch_id == CHILD_ID
        return int(pid)

    def start(self, script: str) -> int:
        """Fork and adopt a process; return its process id."""
        pid = self.fork(script)
        self.launcher.adopt(CHILD_ID, PARENT_ID, pid)
        assert self._started() == pid
        return pid

    def printed(self) -> str:
        return (self.directory / "printed").read_text()


@pytest.fixture
def parent(launcher: Launcher, tmp_path: Path) -> Iterator[Parent]:
    parent = Parent(launcher, tmp_path)
    with parent.link:
        yield parent


def is_alive(pid: int) -> bool:
    try:
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())
    except OSError:
        return False


def test_the_output_and_end_of_an_adopted_program_are_reported(parent: Parent) -> None:
    parent.start("print('said'); sum(range(3_000_000)); sys.exit(7)")
    end = parent.end()
    assert isinstance(end, ProgramExited)
    assert (end.launch_id, end.exit_status, parent.printed()) == (CHILD_ID, 7, "said\n")
    assert 0 < end.user_s + end.system_s <= end.wall_s + 0.05
    assert end.max_rss_bytes > 1 << 20


def test_an_adopted_program_has_the_same_environment_as_a_started_one(parent: Parent) -> None:
    parent.start(STATE)
    parent.end()
    forked = json.loads(parent.printed())
    (parent.directory / "printed").unlink()
    started = LaunchSpec(
        [sys.executable, "-c", SERVE, STATE],
        cwd=str(parent.directory),
        env={"ADDED": "1", "HOME": None},
        stdout=File(parent.directory / "printed", append=True),
        stderr=Standard.STDOUT,
    )
    parent.launcher.start(2, started)
    parent.end()
    expected = json.loads(parent.printed())
    forked["arguments"][0] = forked["arguments"][0][-1:]  # the forked one has one more
    forked["environment"].pop("LC_CTYPE", None)
    expected["environment"].pop("LC_CTYPE", None)
    assert forked == expected


def test_signals_reach_an_adopted_program_and_its_children(
    parent: Parent, marker: str, alive: Callable[[str], list[int]]
) -> None:
    shell = f"setsid sleep {marker} & sleep {marker} & sleep {marker}"
    parent.start(f"import os; os.system({shell!r})")
    while len(alive(f"sleep\0{marker}")) < 3:
        pass
    parent.launcher.kill(CHILD_ID, signal.SIGTERM)
    end = parent.end()
    assert isinstance(end, ProgramExited)
    assert end.signal_name == "SIGTERM"
    assert not alive(f"sleep\0{marker}")


def test_children_of_an_adopted_program_are_dead_when_its_end_is_reported(
    parent: Parent, marker: str, alive: Callable[[str], list[int]]
) -> None:
    parent.start(f"import os; os.system('(setsid env -i sleep {marker} &) ; sleep 0.1')")
    end = parent.end()
    assert isinstance(end, ProgramExited)
    assert end.exit_status == 0
    assert not alive(f"sleep\0{marker}")
    assert is_alive(parent.pid)


def test_an_adopted_program_outlives_its_parent(parent: Parent) -> None:
    pid = parent.start("import time; time.sleep(60)")
    os.kill(parent.pid, signal.SIGKILL)
    end = parent.end()
    assert end.launch_id == PARENT_ID
    assert is_alive(pid)
    parent.launcher.kill(CHILD_ID)
    end = parent.end()
    assert end.launch_id == CHILD_ID


def test_a_forked_process_waits_for_adoption_and_ends_with_its_parent(parent: Parent) -> None:
    pid = parent.fork("print('began', flush=True)")
    os.kill(parent.pid, signal.SIGKILL)
    parent.end()
    assert not is_alive(pid)
    assert parent.printed() == ""
    parent.launcher.adopt(CHILD_ID, PARENT_ID, pid)
    end = parent.end()
    assert isinstance(end, ProgramFailed)
    assert end.reason == "vfork: No such process"


def test_only_a_forked_child_of_the_named_parent_can_be_adopted(parent: Parent) -> None:
    waits = parent.fork("")
    adopted = parent.start("import time; time.sleep(60)")
    launcher = parent.launcher
    for parent_id, pid in (
        (PARENT_ID, os.getpid()),  # not a child of the launcher
        (PARENT_ID, parent.pid),  # a program
        (PARENT_ID, adopted),
        (CHILD_ID, waits),  # child of another parent
        (99, waits),
    ):
        launcher.adopt(2, parent_id, pid)
        end = parent.end()
        assert (end.launch_id, isinstance(end, ProgramFailed)) == (2, True), pid
    assert all(map(is_alive, (parent.pid, adopted, waits)))


def test_a_fork_without_its_directory_fails_and_the_parent_goes_on(parent: Parent) -> None:
    where, parent.directory = parent.directory, parent.directory / "gone"
    assert parent.fork("") == 0
    parent.directory = where
    parent.start("sys.exit(3)")
    end = parent.end()
    assert isinstance(end, ProgramExited)
    assert end.exit_status == 3


@pytest.mark.usefixtures("subreaper")
@pytest.mark.parametrize("adopted", [True, False])
def test_a_forked_program_dies_with_the_launcher(
    parent: Parent, eventually: Eventually, adopted: bool
) -> None:
    pid = (parent.start if adopted else parent.fork)("import time; time.sleep(60)")
    os.kill(parent.launcher.pid, signal.SIGKILL)
    assert eventually(lambda: not is_alive(pid))  # without any call that would look for it
    with pytest.raises(LauncherDiedError):
        parent.launcher.wait_events(20)
    parent.launcher.kill_descendants()
