"""Runs programs that try to escape: strict isolation stops each, and without it each succeeds.

Each attempt to escape is a Python program whose exit status is 0 if it succeeded. It runs with
strict isolation, and as a control without it. Root also runs every test as an ordinary user.
"""

import os
import shutil
import socket
import subprocess
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from ciel.launch import Launcher, LaunchSpec, ProgramExited, ProgramFailed
from ciel.launch.control_groups import ControlGroups
from ciel.launch.isolation import PROCESSES_MAX, PROGRAM, STRICT, Probes, Sandbox, Surroundings
from ciel.launch.messages import File
from ciel.testing.homes import wait_for

pytestmark = pytest.mark.slow
NOBODY = 65534
PYTHON = "/usr/bin/python3"  # that other users may execute


def _why_not() -> str:
    groups = ControlGroups()
    group = groups.create(PROCESSES_MAX, 0, 0)
    try:
        return Probes("" if group is None else group.members).finish()[0].get(STRICT, "")
    finally:
        if group is not None:
            group.remove()


@pytest.fixture(scope="module", autouse=True)
def _possible() -> None:
    if why := _why_not():
        pytest.skip(f"this host has no strict isolation: {why}")
    if not os.path.exists(PYTHON):
        pytest.skip(f"{PYTHON} is missing")


class Place(NamedTuple):
    """A launcher, a scratch directory, a secret file, and the user who runs programs."""

    launcher: Launcher
    scratch: Path
    secret: Path
    as_nobody: bool

    def run(self, script: str, *, strict: bool, processes_max: int = PROCESSES_MAX) -> int:
        """Run a script to its end; return its exit status."""
        program = self.scratch / "escape.py"
        program.write_text(textwrap.dedent(script))
        argv = [PYTHON, "-S", str(program)]
        group = None
        if strict:
            group = ControlGroups().create(processes_max, 0, 0)
            around = Surroundings((str(self.secret.parent),), (), (str(self.secret),))
            members = "" if group is None or self.as_nobody else group.members
            box = Sandbox(around, is_strict=True, scratch=f"{self.scratch}/", group=members)
            argv = [str(word) for word in box.wrap(LaunchSpec(argv, str(self.scratch))).argv]
            argv[0] = str(self.scratch.parent / "ciel-isolate")
            if self.as_nobody:
                argv.insert(2, f"n:{processes_max}")
        if self.as_nobody:
            argv = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", *argv]
        output = self.scratch.parent / "output"
        spec = LaunchSpec(argv, str(self.scratch), stdout=File(output), stderr=File(output))
        self.launcher.start(1, spec)
        try:
            return _status(self.launcher, output)
        finally:
            if group is not None:
                group.remove()


def _status(launcher: Launcher, output: Path) -> int:
    for _ in range(60):
        for event in launcher.wait_events(1):
            assert not isinstance(event, ProgramFailed)
            if isinstance(event, ProgramExited):
                status = -1 if event.exit_status is None else event.exit_status
                assert status != 125, output.read_text()
                return status
    raise AssertionError("the program did not end")


@pytest.fixture(params=["as this user", "as an ordinary user"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    as_nobody = request.param == "as an ordinary user"
    if as_nobody and os.geteuid() != 0:
        pytest.skip("this user is an ordinary one")
    home = Path(os.environ.get("CIEL_REACH_DIR", "/var/tmp")) / f"ciel-isolation-{os.getpid()}"
    scratch = home / "scratch"
    scratch.mkdir(parents=True)
    shutil.copy(PROGRAM, home / "ciel-isolate")
    secret = home / "secrets" / "access.json"
    secret.parent.mkdir()
    secret.write_text("the key")
    if as_nobody:
        for path in (home, scratch, secret.parent, secret):
            os.chown(path, NOBODY, NOBODY)
    try:
        with Launcher.start_process() as launcher:
            yield Place(launcher, scratch, secret, as_nobody)
    finally:
        shutil.rmtree(home)


def test_a_program_writes_to_its_scratch_directory_only(place: Place) -> None:
    outside = place.secret.parent / "written"
    script = f"open('inside', 'w').close(); open({str(outside)!r}, 'w').close()"
    assert place.run(script, strict=True) != 0 or not outside.exists()
    assert not outside.exists()
    assert (place.scratch / "inside").exists()
    assert place.run(script, strict=False) == 0
    assert outside.exists()


@pytest.mark.parametrize("path", ["/usr/written", "/etc/written", "/written"])
def test_not_even_root_writes_to_the_system(place: Place, path: str) -> None:
    script = f"open({path!r}, 'w')"
    assert place.run(script, strict=True) != 0
    assert not os.path.exists(path)


def test_a_program_cannot_read_the_access_file(place: Place) -> None:
    script = f"open({str(place.secret)!r}).read()"
    assert place.run(script, strict=True) != 0
    assert place.run(script, strict=False) == 0


def test_a_program_sees_no_other_process(place: Place) -> None:
    script = f"import os, sys; sys.exit(not os.path.exists('/proc/{os.getpid()}/stat'))"
    assert place.run(script, strict=True) != 0
    assert place.run(script, strict=False) == 0


def test_a_program_cannot_signal_the_worker(place: Place) -> None:
    victim = subprocess.Popen(["sleep", "600"], user=NOBODY if place.as_nobody else None)
    script = f"import os; os.kill({victim.pid}, 9)"
    try:
        assert place.run(script, strict=True) != 0
        assert victim.poll() is None
        assert place.run(script, strict=False) == 0
        assert victim.wait(10) == -9
    finally:
        victim.kill()
        victim.wait()


def test_a_program_cannot_connect_to_loopback(place: Place) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
        script = f"import socket; socket.create_connection({address!r}, timeout=5)"
        assert place.run(script, strict=True) != 0
        assert place.run(script, strict=False) == 0


def test_a_program_cannot_connect_to_an_abstract_socket(place: Place) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        name = f"\0ciel-isolation-{os.getpid()}"
        server.bind(name)
        server.listen()
        script = f"import socket; socket.socket(socket.AF_UNIX).connect({name!r})"
        assert place.run(script, strict=True) != 0
        assert place.run(script, strict=False) == 0


@pytest.mark.parametrize("family", [40, 38])  # AF_VSOCK, AF_ALG: no network namespace confines them
def test_a_program_opens_no_socket_that_leaves_the_namespace(place: Place, family: int) -> None:
    script = f"""
        import errno, socket, sys
        try:
            socket.socket({family}, socket.SOCK_STREAM if {family} == 40 else socket.SOCK_SEQPACKET)
        except OSError as error:
            sys.exit(error.errno == errno.EPERM)
    """
    assert place.run(script, strict=True) == 1
    assert place.run(script, strict=False) == 0


def test_a_program_gains_no_privileges(place: Place) -> None:
    if not place.as_nobody:
        pytest.skip("root has them already")
    tool = place.scratch / "tool"
    shutil.copy("/usr/bin/id", tool)
    tool.chmod(0o4755)
    script = """
        import subprocess, sys
        sys.exit(subprocess.run(["./tool", "-u"], capture_output=True).stdout != b"0\\n")
    """
    assert place.run(script, strict=True) != 0
    assert place.run(script, strict=False) == 0


def test_root_has_no_capability(place: Place) -> None:
    script = """
        import os, sys
        caps = [line for line in open("/proc/self/status") if line.startswith("CapBnd")]
        sys.exit(int(caps[0].split()[1], 16) == 0)
    """
    assert place.run(script, strict=True) == 1
    assert place.run(script, strict=False) == 0


def test_a_program_cannot_create_namespaces(place: Place) -> None:
    script = """
        import ctypes, sys
        sys.exit(ctypes.CDLL(None).unshare(0x10000000) != 0)
    """
    assert place.run(script, strict=True) != 0
    assert place.run(script, strict=False) == 0


def test_a_program_cannot_fork_without_end(place: Place) -> None:
    script = """
        import os, sys, time
        for count in range(60):
            try:
                if os.fork() == 0:
                    time.sleep(600)
            except OSError:
                sys.exit(1)
    """
    assert place.run(script, strict=True, processes_max=30) == 1
    assert place.run(script, strict=False) == 0


def test_a_program_keeps_no_descriptor_of_the_worker(place: Place) -> None:
    count = "import os, sys; sys.exit(len(os.listdir('/proc/self/fd')) > 4)"  # 0 to 2, the listing
    assert place.run(count, strict=True) == 0
    assert place.run(f"kept = open('/dev/null'); {count}", strict=True) == 1


def test_a_program_leaves_no_process(place: Place) -> None:
    marker = f"9{os.getpid()}.5"
    script = f"""
        import os, sys
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                os.execvp("sleep", ["sleep", "{marker}"])
    """
    assert place.run(script, strict=True) == 0
    assert not _with(marker)


def test_the_death_of_the_launcher_ends_the_sandbox(place: Place) -> None:
    marker = f"8{os.getpid()}.5"
    program = place.scratch / "sleep.py"
    program.write_text(f"import os; os.execvp('sleep', ['sleep', '{marker}'])")
    around = Surroundings()
    box = Sandbox(around, is_strict=True, scratch=f"{place.scratch}/")
    argv = [str(w) for w in box.wrap(LaunchSpec([PYTHON, str(program)], str(place.scratch))).argv]
    place.launcher.start(1, LaunchSpec(argv))
    place.launcher.wait_events(10)
    wait_for(lambda: _with(marker), "the program to start")
    os.kill(place.launcher.pid, 9)
    place.launcher.kill_descendants()
    wait_for(lambda: not _with(marker), "the program to end")


def _with(marker: str) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if marker in path.read_bytes().decode(errors="replace"):
                found.append(path.parent.name)
        except OSError:
            continue
    return found
