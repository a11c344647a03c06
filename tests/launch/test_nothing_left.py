"""Checks that no process survives, whatever a program started and whichever process dies first."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from ciel.launch import (
    DEV_NULL,
    Launcher,
    LauncherDiedError,
    LaunchSpec,
    ProgramExited,
    ProgramFailed,
    ProgramStarted,
)

Popen = subprocess.Popen[bytes]
Alive = Callable[[str], list[int]]
Eventually = Callable[..., bool]
Ends = Callable[[Launcher, int], list[ProgramExited | ProgramFailed]]

pytestmark = pytest.mark.usefixtures("clean")

DAEMONS = {
    "background": "sleep {0} &",
    "own session": "setsid sleep {0} &",
    "double fork": "(setsid sh -c 'sleep {0} & sleep {0}' &) ;",
    "no environment": "env -i setsid sh -c 'sleep {0} & exec sleep {0}' &",
    "deaf": "setsid sh -c \"trap '' TERM HUP INT; sleep {0}; sleep {0}\" &",
}
# Each of these ends after a while, so that a failing test does no lasting harm.
CROWD = "import os, time\nfor _ in range(8): os.fork()\ntime.sleep(60)  # {0}"
SHED = """import os, resource, time  # {0}
if os.fork() == 0:
    os.setsid()
    resource.setrlimit(10, (5, 5))
    os.kill(os.getppid(), 9)
    time.sleep(60)
time.sleep(60)
"""
COMET = """import os, time  # {0}
begun_s = time.monotonic()
while time.monotonic() < begun_s + 20:
    os.setsid() if os.getsid(0) != os.getpid() else None
    if os.fork():
        os._exit(0)
"""


@pytest.fixture
def clean(marker: str, alive: Alive) -> Iterator[None]:
    yield
    leftovers = alive(marker)
    for pid in leftovers:
        os.kill(pid, signal.SIGKILL)
    assert not leftovers


@pytest.fixture
def bystander() -> Iterator[Popen]:
    """Start a child of this process that belongs to no launcher."""
    with subprocess.Popen(["/bin/sleep", "100"]) as process:
        yield process
        process.kill()


def script(text: str, marker: str) -> LaunchSpec:
    return LaunchSpec(["/bin/sh", "-c", text.format(marker)], stdout=DEV_NULL)


def start_daemons(launcher: Launcher, marker: str) -> None:
    for i, daemon in enumerate(DAEMONS.values()):
        launcher.start(i, script(f"{daemon} sleep {{0}}", marker))
    launcher.flush()


def receive_forever(launcher: Launcher) -> None:
    while launcher.wait_events(5):
        pass


def send_forever(launcher: Launcher, spec: LaunchSpec) -> None:
    for i in range(1000):
        launcher.start(i, spec)
        launcher.flush()
        time.sleep(0.001)


def python(text: str, marker: str) -> LaunchSpec:
    return LaunchSpec([sys.executable, "-S", "-c", text.format(marker)])


@pytest.mark.parametrize("daemon", DAEMONS.values(), ids=DAEMONS)
def test_children_of_a_program_are_dead_when_its_exit_is_reported(
    launcher: Launcher, ends: Ends, marker: str, alive: Alive, daemon: str
) -> None:
    launcher.start(1, script(f"{daemon} exit 5", marker))
    (event,) = ends(launcher, 1)
    assert not alive(marker)
    assert isinstance(event, ProgramExited)
    assert event.exit_status == 5


@pytest.mark.parametrize("daemon", DAEMONS.values(), ids=DAEMONS)
def test_sigkill_reaches_processes_that_left_the_session(
    launcher: Launcher,
    ends: Ends,
    marker: str,
    alive: Alive,
    eventually: Eventually,
    daemon: str,
) -> None:
    launcher.start(1, script(f"{daemon} sleep {{0}}", marker))
    launcher.flush()
    assert eventually(lambda: len(alive(f"sleep\0{marker}")) > 1)
    launcher.kill(1)
    ends(launcher, 1)
    assert not alive(marker)


def test_a_daemon_lives_as_long_as_its_program(
    launcher: Launcher, ends: Ends, marker: str, alive: Alive, eventually: Eventually
) -> None:
    launcher.start(1, script("setsid sleep {0} & sleep 100", marker))
    launcher.flush()
    assert eventually(lambda: alive(f"sleep\0{marker}"))
    launcher.start(2, LaunchSpec(["/bin/true"]))
    ends(launcher, 1)
    assert alive(f"sleep\0{marker}")
    launcher.kill(1)
    ends(launcher, 1)


def test_a_daemon_that_cannot_be_identified_is_killed_when_no_program_runs(
    launcher: Launcher, ends: Ends, marker: str, alive: Alive, eventually: Eventually
) -> None:
    launcher.start(1, python(SHED, marker))
    launcher.start(2, LaunchSpec(["/bin/sleep", "100"]))
    while not isinstance(launcher.wait_events(5)[-1], ProgramExited):
        pass
    assert alive(marker)
    launcher.kill(2)
    ends(launcher, 1)
    assert eventually(lambda: not alive(marker))


def test_sigkill_kills_a_program_that_ignores_sigterm_with_its_children(
    launcher: Launcher, ends: Ends, marker: str, alive: Alive, eventually: Eventually
) -> None:
    deaf = "trap '' TERM; sh -c 'sleep {0}; sleep {0}' & setsid sleep {0} & wait; sleep {0}"
    launcher.start(1, script(deaf, marker))
    launcher.flush()
    assert eventually(lambda: len(alive(f"sleep\0{marker}")) == 2)
    launcher.kill(1, signal.SIGTERM)
    assert not any(isinstance(event, ProgramExited) for event in launcher.wait_events(0.1))
    begun_s = time.monotonic()
    launcher.kill(1, signal.SIGKILL)
    ends(launcher, 1)
    assert time.monotonic() - begun_s < 10
    assert not alive(marker)


def test_a_signal_is_sent_to_the_whole_process_group(
    launcher: Launcher, ends: Ends, marker: str, alive: Alive, eventually: Eventually
) -> None:
    # The shell waits for its children: it ends only if they got the signal as well.
    launcher.start(1, script("trap 'wait; exit 9' TERM; sleep {0} & sleep {0} & wait", marker))
    launcher.flush()
    assert eventually(lambda: len(alive(f"sleep\0{marker}")) == 2)
    launcher.kill(1, signal.SIGTERM)
    (event,) = ends(launcher, 1)
    assert isinstance(event, ProgramExited)
    assert event.exit_status == 9


def test_a_program_with_hundreds_of_forked_processes_is_killed(
    launcher: Launcher, ends: Ends, marker: str, alive: Alive, eventually: Eventually
) -> None:
    launcher.start(1, python(CROWD, marker))
    launcher.flush()
    assert eventually(lambda: len(alive(marker)) == 256, 15)
    launcher.kill(1)
    ends(launcher, 1)
    assert not alive(marker)


def test_a_process_that_keeps_forking_is_killed(
    launcher: Launcher, ends: Ends, marker: str, alive: Alive
) -> None:
    begun_s = time.monotonic()
    launcher.start(1, python(COMET, marker))
    ends(launcher, 1)
    assert not alive(marker)
    assert time.monotonic() - begun_s < 10


def test_five_hundred_programs_leave_no_daemon(
    launcher: Launcher, ends: Ends, marker: str, alive: Alive
) -> None:
    for i in range(500):
        launcher.start(i, script("(setsid sleep {0} &) ; exit 0", marker))
    ends(launcher, 500)
    assert not alive(marker)


def test_closing_a_launcher_ends_all_programs(
    launcher: Launcher, marker: str, alive: Alive, eventually: Eventually
) -> None:
    start_daemons(launcher, marker)
    assert eventually(lambda: len(alive(f"sleep\0{marker}")) >= 2 * len(DAEMONS))
    launcher.close()
    assert not alive(marker)
    with pytest.raises(ProcessLookupError):
        os.kill(launcher.pid, 0)


def test_closing_a_launcher_that_hangs_ends_all_programs(
    launcher: Launcher, marker: str, alive: Alive, eventually: Eventually
) -> None:
    start_daemons(launcher, marker)
    assert eventually(lambda: len(alive(f"sleep\0{marker}")) >= 2 * len(DAEMONS))
    os.kill(launcher.pid, signal.SIGSTOP)
    launcher.close(timeout_s=0.2)
    assert not alive(marker)


def test_closing_a_killed_launcher_ends_all_programs(
    launcher: Launcher, marker: str, alive: Alive, eventually: Eventually
) -> None:
    start_daemons(launcher, marker)
    assert eventually(lambda: len(alive(f"sleep\0{marker}")) >= 2 * len(DAEMONS))
    os.kill(launcher.pid, signal.SIGKILL)
    launcher.close()
    assert not alive(marker)


@pytest.mark.usefixtures("subreaper")
def test_the_owner_of_a_killed_launcher_can_kill_its_programs(
    launcher: Launcher, marker: str, alive: Alive, eventually: Eventually, bystander: Popen
) -> None:
    start_daemons(launcher, marker)
    assert eventually(lambda: len(alive(f"sleep\0{marker}")) >= 2 * len(DAEMONS))
    os.kill(launcher.pid, signal.SIGKILL)
    with pytest.raises(LauncherDiedError, match="signal 9"):
        receive_forever(launcher)
    assert launcher.kill_descendants() > 0
    assert not alive(marker)
    assert os.waitpid(-1, os.WNOHANG) == (0, 0)  # all of them are reaped; `bystander` lives
    assert bystander.poll() is None
    assert launcher.kill_descendants() == 0


def test_sending_to_a_dead_launcher_raises(launcher: Launcher, marker: str) -> None:
    os.kill(launcher.pid, signal.SIGKILL)
    with pytest.raises(LauncherDiedError, match="signal 9"):
        send_forever(launcher, script("exit", marker))


OWNER = """
import os, sys, time
from ciel.launch import Launcher, LaunchSpec
launcher = Launcher.start_process()
for i, daemon in enumerate(sys.argv[2:]):
    launcher.start(i, LaunchSpec(["/bin/sh", "-c", daemon]))
if sys.argv[1] == "forks" and os.fork() == 0:
    time.sleep(30)  # with a copy of the stream
launcher.wait_events(5)
print(launcher.pid, flush=True)
time.sleep(30)
"""


@pytest.mark.usefixtures("subreaper")
@pytest.mark.parametrize("how", ["alone", "forks"])
def test_all_programs_end_when_the_owner_is_killed(
    marker: str, alive: Alive, eventually: Eventually, how: str
) -> None:
    daemons = [f"{daemon} sleep {{0}}".format(marker) for daemon in DAEMONS.values()]
    command = [sys.executable, "-c", OWNER, how, *daemons]
    with subprocess.Popen(command, stdout=subprocess.PIPE, process_group=0) as owner:
        assert owner.stdout is not None
        launcher_pid = int(owner.stdout.readline())
        grown = eventually(lambda: len(alive(f"sleep\0{marker}")) >= 2 * len(DAEMONS))
        begun_s = time.monotonic()  # no program here ends by itself within 30 s
        owner.kill()
        owner.wait()
        ended = os.waitpid(launcher_pid, 0)
        took_s = time.monotonic() - begun_s
        left = alive(marker)
        if how == "forks":  # the forked copy, with the owner's command line
            os.killpg(owner.pid, signal.SIGKILL)
            assert left == [os.waitpid(-owner.pid, 0)[0]]
    assert grown
    assert ended == (launcher_pid, 0)
    assert took_s < 10
    assert how == "forks" or not left


def test_an_owner_that_sleeps_loses_no_events(launcher: Launcher, ends: Ends, marker: str) -> None:
    for i in range(300):
        launcher.start(i, script("exit 0", marker))
    launcher.flush()
    time.sleep(0.5)
    assert len(ends(launcher, 300)) == 300


def test_a_started_program_has_the_reported_pid(launcher: Launcher, marker: str) -> None:
    launcher.start(1, script("exec sleep {0}", marker))
    (event,) = launcher.wait_events(5)
    assert isinstance(event, ProgramStarted)
    assert os.getpgid(event.pid) == event.pid
