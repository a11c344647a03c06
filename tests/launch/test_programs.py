"""Tests what a launched program gets, and what the launcher reports about its end."""

import errno
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ciel.launch import (
    DEV_NULL,
    Descriptor,
    File,
    Launcher,
    LauncherMissingError,
    LaunchSpec,
    Limits,
    ProgramExited,
    ProgramFailed,
    ProgramStarted,
    Stage,
    Standard,
)

Run = Callable[[LaunchSpec], ProgramExited | ProgramFailed]
Ends = Callable[[Launcher, int], list[ProgramExited | ProgramFailed]]
Shell = Callable[[str], ProgramExited]


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.fixture
def output(run: Run, out: Path) -> Callable[..., str]:
    """Run a shell script; return its standard output."""

    def output(script: str, **fields: object) -> str:
        event = run(LaunchSpec(["/bin/sh", "-c", script], stdout=File(out), **fields))  # type: ignore[arg-type] # forwarded as given
        assert isinstance(event, ProgramExited), event
        return out.read_text()

    return output


def test_a_program_starts_and_exits(launcher: Launcher) -> None:
    launcher.start(2**64 - 1, LaunchSpec(["/bin/true"]))
    events = launcher.wait_events(5)
    while not isinstance(events[-1], ProgramExited):
        events += launcher.wait_events(5)
    started, exited = events
    assert isinstance(started, ProgramStarted)
    assert isinstance(exited, ProgramExited)
    assert started.launch_id == exited.launch_id == 2**64 - 1
    assert exited.exit_status == 0


def test_a_long_program_is_reported_as_started_at_once(launcher: Launcher) -> None:
    launcher.start(1, LaunchSpec(["/bin/sleep", "100"]))
    (event,) = launcher.wait_events(5)
    assert isinstance(event, ProgramStarted)
    assert Path(f"/proc/{event.pid}/comm").read_text() == "sleep\n"


def test_the_exit_status_is_reported(shell: Shell) -> None:
    assert shell("exit 117").exit_status == 117


def test_the_signal_is_reported(shell: Shell) -> None:
    assert shell("kill -SEGV $$").signal_name == "SIGSEGV"


def test_the_used_resources_are_reported(run: Run) -> None:
    program = "import time\nb = bytearray(64 << 20)\nwhile time.process_time() < 0.1: pass"
    event = run(LaunchSpec([sys.executable, "-S", "-c", program]))
    assert isinstance(event, ProgramExited)
    assert 0.1 <= event.user_s + event.system_s < 5
    assert 64 << 20 < event.max_rss_bytes < 256 << 20


@pytest.mark.parametrize(
    "fields, number, stage",
    [
        ({"cwd": "/nowhere"}, errno.ENOENT, Stage.CHDIR),
        ({"cwd": "/dev/null"}, errno.ENOTDIR, Stage.CHDIR),
        ({"stdin": File("/nowhere")}, errno.ENOENT, Stage.STDIN),
        ({"stdout": File("/nowhere/out")}, errno.ENOENT, Stage.STDOUT),
        ({"stderr": File("/dev")}, errno.EISDIR, Stage.STDERR),
        ({"limits": Limits(open_files=1 << 40)}, errno.EPERM, Stage.SETRLIMIT),
        ({"argv": ["/nowhere/program"]}, errno.ENOENT, Stage.EXEC),
        ({"argv": ["no-such-program"]}, errno.ENOENT, Stage.EXEC),
        ({"argv": ["/dev/null"]}, errno.EACCES, Stage.EXEC),
        ({"argv": ["/bin/true", "x" * (1 << 20)]}, errno.E2BIG, Stage.EXEC),
        ({"argv": ["/bin/true", *["x" * 1000] * 7000]}, errno.E2BIG, Stage.EXEC),
        ({"argv": ["/bin/true", *["x"] * 900_000]}, errno.E2BIG, Stage.EXEC),
    ],
)
def test_a_launch_fails_with_errno_and_stage(
    run: Run, fields: dict[str, object], number: int, stage: Stage
) -> None:
    spec = LaunchSpec(**{"argv": ["/bin/true"]} | fields)  # type: ignore[arg-type] # any field
    assert run(spec) == ProgramFailed(1, number, stage)


def test_opening_an_output_fifo_without_a_reader_does_not_wait(run: Run, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    event = run(LaunchSpec(["/bin/true"], stdout=File(tmp_path / "fifo")))
    assert event == ProgramFailed(1, errno.ENXIO, Stage.STDOUT)


def test_a_name_is_searched_in_the_path_of_the_program(run: Run, tmp_path: Path) -> None:
    (tmp_path / "ours").symlink_to("/bin/true")
    event = run(LaunchSpec(["ours"], env={"PATH": f"/nowhere:{tmp_path}"}))
    assert isinstance(event, ProgramExited)
    assert event.exit_status == 0


def test_a_relative_name_with_a_slash_is_searched_in_the_directory(
    run: Run, tmp_path: Path
) -> None:
    (tmp_path / "ours").symlink_to("/bin/true")
    assert isinstance(run(LaunchSpec(["./ours"], cwd=tmp_path)), ProgramExited)


def test_the_search_skips_files_that_cannot_be_executed(run: Run, tmp_path: Path) -> None:
    """It skips a file without the right, a directory, and an element that is a file, as a shell
    does.
    """
    for place in ("first", "second", "third"):
        (tmp_path / place).mkdir()
    (tmp_path / "first" / "ours").touch()
    (tmp_path / "second" / "ours").mkdir()
    path = f"{tmp_path}/first:{tmp_path}/second:/dev/null:{'x' * 5000}"
    event = run(LaunchSpec(["ours"], env={"PATH": path}))
    assert event == ProgramFailed(1, errno.EACCES, Stage.EXEC)
    (tmp_path / "third" / "ours").symlink_to("/bin/true")
    event = run(LaunchSpec(["ours"], env={"PATH": f"{path}:{tmp_path}/third"}))
    assert isinstance(event, ProgramExited)


@pytest.mark.parametrize("path", ["", "/nowhere:", ":/nowhere", "/nowhere::/nowhere"])
def test_an_empty_element_of_the_path_is_the_working_directory(
    run: Run, tmp_path: Path, path: str
) -> None:
    (tmp_path / "ours").symlink_to("/bin/true")
    assert isinstance(run(LaunchSpec(["ours"], env={"PATH": path}, cwd=tmp_path)), ProgramExited)


def test_without_a_path_the_systems_programs_are_found(run: Run) -> None:
    assert isinstance(run(LaunchSpec(["true"], env={"PATH": None})), ProgramExited)


@pytest.mark.parametrize("content", ["", "echo text\n"])
def test_a_file_that_is_not_a_program_is_not_passed_to_a_shell(
    run: Run, tmp_path: Path, content: str
) -> None:
    (tmp_path / "ours").write_text(content)
    (tmp_path / "ours").chmod(0o700)
    for name in ("./ours", "ours"):
        event = run(LaunchSpec([name], env={"PATH": str(tmp_path)}, cwd=tmp_path))
        assert event == ProgramFailed(1, errno.ENOEXEC, Stage.EXEC)


def test_a_program_runs_in_its_directory(output: Callable[..., str], tmp_path: Path) -> None:
    assert output("pwd -P", cwd=tmp_path) == f"{tmp_path.resolve()}\n"


def test_the_environment_is_the_launchers_with_changes(ends: Ends, out: Path) -> None:
    environ = {"KEPT": "1", "CHANGED": "2", "CHANGED_NOT": "3", "UNSET": "4"}
    changes = {"CHANGED": "two", "NEW": "=5=", "UNSET": None, "UNSET_ALREADY": None, "EMPTY": ""}
    with Launcher.start_process(environ) as launcher:
        launcher.start(1, LaunchSpec(["/usr/bin/env"], env=changes, stdout=File(out)))
        launcher.start(2, LaunchSpec(["/usr/bin/env"], stdout=File(f"{out}2")))
        ends(launcher, 2)
    assert out.read_text() == "KEPT=1\nCHANGED_NOT=3\nCHANGED=two\nNEW==5=\nEMPTY=\n"
    assert Path(f"{out}2").read_text() == "KEPT=1\nCHANGED=2\nCHANGED_NOT=3\nUNSET=4\n"


def test_arguments_are_passed_byte_for_byte(run: Run, out: Path) -> None:
    arguments = [b"", b"\xff\xfe", b"a b\n", b"$HOME", "\N{SNOWMAN}".encode()]
    run(LaunchSpec(["/usr/bin/printf", "%s\\0", *arguments], stdout=File(out)))
    assert out.read_bytes() == b"\0".join(arguments) + b"\0"


def test_standard_input_is_empty_by_default(output: Callable[..., str]) -> None:
    assert output("cat; echo end") == "end\n"


def test_a_file_as_standard_input_is_only_read(output: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "in").write_text("hello")
    script = "cat; { echo x >&0; } 2>/dev/null || echo ' read-only'"
    assert output(script, stdin=File(tmp_path / "in")) == "hello read-only\n"


def test_an_output_file_is_truncated(output: Callable[..., str], out: Path) -> None:
    out.write_text("long before")
    assert output("echo now") == "now\n"


def test_an_output_file_can_be_appended_to(run: Run, out: Path) -> None:
    for word in ("one", "two"):
        run(LaunchSpec(["/bin/echo", word], stdout=File(out, append=True)))
    assert out.read_text() == "one\ntwo\n"


def test_standard_error_may_be_sent_to_standard_output(output: Callable[..., str]) -> None:
    script = "echo 1; echo 2 >&2; echo 3"
    assert output(script, stderr=Standard.STDOUT) == "1\n2\n3\n"


def test_streams_may_be_descriptors_of_the_owner(launcher: Launcher, ends: Ends) -> None:
    from_us, to_us = os.pipe(), os.pipe()
    spec = LaunchSpec(["/bin/cat"], stdin=Descriptor(from_us[0]), stdout=Descriptor(to_us[1]))
    launcher.start(1, spec)
    os.close(from_us[0])
    os.close(to_us[1])
    os.write(from_us[1], b"through")
    os.close(from_us[1])
    ends(launcher, 1)
    assert os.read(to_us[0], 100) == b"through"
    assert os.read(to_us[0], 100) == b""  # no copy is left open
    os.close(to_us[0])


def test_many_descriptors_reach_the_programs_they_are_for(launcher: Launcher, ends: Ends) -> None:
    pipes = [os.pipe() for _ in range(300)]
    for i, (_, write_end) in enumerate(pipes):
        # stderr as well: 600 descriptors, more than one message takes
        streams = {"stdout": Descriptor(write_end), "stderr": Descriptor(write_end)}
        launcher.start(i, LaunchSpec(["/bin/echo", str(i)], **streams))  # type: ignore[arg-type] # by name
        os.close(write_end)
    ends(launcher, len(pipes))
    assert [os.read(read_end, 100) for read_end, _ in pipes] == [
        b"%d\n" % i for i in range(len(pipes))
    ]
    for read_end, _ in pipes:
        os.close(read_end)


def test_a_closed_descriptor_is_refused_at_once(launcher: Launcher) -> None:
    with pytest.raises(OSError, match="Bad file descriptor"):
        launcher.start(1, LaunchSpec(["/bin/true"], stdin=Descriptor(10_000)))
    assert not launcher.wants_write


def test_a_program_has_its_three_descriptors_and_no_other(ends: Ends, out: Path) -> None:
    inheritable = os.dup(0)
    os.set_inheritable(inheritable, True)
    with Launcher.start_process() as launcher:
        launcher.start(1, LaunchSpec(["/bin/ls", "/proc/self/fd"], stdout=File(out)))
        ends(launcher, 1)
    os.close(inheritable)
    assert out.read_text().split() == ["0", "1", "2", "3"]  # 3 is ls reading that directory


def test_signals_are_at_their_defaults(output: Callable[..., str]) -> None:
    status = output("grep Sig /proc/self/status")
    masks = dict(line.split(":\t") for line in status.splitlines())
    internal = 0b11 << 31  # 32 and 33 belong to the C library, ignored after its posix_spawn
    assert {int(masks[name], 16) & ~internal for name in ("SigBlk", "SigIgn", "SigPnd")} == {0}


def test_a_program_leads_its_session_and_has_no_terminal(output: Callable[..., str]) -> None:
    pid, group, session, terminal = output("set -- $(cat /proc/$$/stat); echo $1 $5 $6 $7").split()
    assert pid == group == session
    assert terminal == "0"


def test_limits_are_set(output: Callable[..., str]) -> None:
    limits = Limits(address_space_bytes=1 << 32, open_files=77, processes=5000)
    script = "ulimit -v; ulimit -n; ulimit -Hn; ulimit -c; ulimit -p 2>/dev/null || echo 5000"
    assert output(script, limits=limits).split() == ["4194304", "77", "77", "0", "5000"]


def test_limits_are_unchanged_by_default(output: Callable[..., str]) -> None:
    ours = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert output("ulimit -Sn; ulimit -Hn").split() == [str(limit) for limit in ours]


def test_memory_beyond_the_limit_is_refused(run: Run) -> None:
    argv = [sys.executable, "-S", "-c", "bytearray(1 << 30)"]
    event = run(LaunchSpec(argv, stderr=DEV_NULL, limits=Limits(address_space_bytes=512 << 20)))
    assert isinstance(event, ProgramExited)
    assert event.exit_status == 1


def test_two_hundred_programs_run_at_once(launcher: Launcher, ends: Ends) -> None:
    gate, opener = os.pipe()
    argv = ["/bin/sh", "-c", "read x; exit $0"]
    for i in range(200):
        launcher.start(i, LaunchSpec([*argv, str(i)], stdin=Descriptor(gate), stderr=DEV_NULL))
    started = 0
    while started < 200:
        started += len(launcher.wait_events(5))
    os.close(gate)
    os.close(opener)  # only now can a program end
    ended = {event.launch_id: event for event in ends(launcher, 200)}
    assert len(ended) == 200
    for launch_id, event in ended.items():
        assert isinstance(event, ProgramExited)
        assert event.exit_status == launch_id


def test_kill_signals_the_program(launcher: Launcher, ends: Ends) -> None:
    launcher.start(1, LaunchSpec(["/bin/sleep", "100"]))
    launcher.start(2, LaunchSpec(["/bin/true"]))
    launcher.kill(1, signal.SIGTERM)
    ended = {event.launch_id: event for event in ends(launcher, 2)}
    assert isinstance(ended[1], ProgramExited)
    assert ended[1].signal_name == "SIGTERM"


def test_killing_a_program_that_has_ended_does_nothing(launcher: Launcher, run: Run) -> None:
    run(LaunchSpec(["/bin/true"]))
    launcher.kill(1)
    launcher.kill(4711)
    assert isinstance(run(LaunchSpec(["/bin/true"])), ProgramExited)


def test_an_exit_is_reported_promptly(launcher: Launcher, ends: Ends) -> None:
    """A launcher that polled for ends would report each of them a whole period late."""
    took_s = []
    for i in range(20):
        begun_s = time.perf_counter()
        launcher.start(i, LaunchSpec(["/bin/true"]))
        ends(launcher, 1)
        took_s.append(time.perf_counter() - begun_s)
    assert min(took_s) < 0.05


def test_ctrl_c_reaches_neither_launcher_nor_program(launcher: Launcher, run: Run) -> None:
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM):
        os.kill(launcher.pid, number)
    assert isinstance(run(LaunchSpec(["/bin/true"])), ProgramExited)
    assert os.getsid(launcher.pid) == launcher.pid


def test_waiting_for_events_times_out(launcher: Launcher) -> None:
    begun_s = time.monotonic()
    assert launcher.wait_events(0.05) == []
    assert 0.05 <= time.monotonic() - begun_s < 10
    assert launcher.receive() == []


def test_more_than_the_socket_buffer_holds_is_sent_in_pieces(
    launcher: Launcher, ends: Ends
) -> None:
    os.kill(launcher.pid, signal.SIGSTOP)  # a fast launcher would keep the buffer empty
    for i in range(40):
        launcher.start(i, LaunchSpec(["/bin/true", *["x" * 1000] * 100]))
    assert not launcher.flush()
    assert launcher.wants_write
    os.kill(launcher.pid, signal.SIGCONT)
    assert len(ends(launcher, 40)) == 40
    assert launcher.flush()


def test_a_missing_launcher_says_how_to_build_it(tmp_path: Path) -> None:
    with pytest.raises(LauncherMissingError, match="make dev"):
        Launcher.start_process(program=tmp_path / "ciel-launcher")


def test_programs_can_only_read_in_protected_directories(
    ends: Ends, out: Path, tmp_path: Path
) -> None:
    protected, other = tmp_path / "with space", tmp_path / "other"
    for directory in (protected, other):
        directory.mkdir()
        (directory / "file").write_text("old\n")
    paths = f"'{protected}/file' '{other}/file'"
    script = f'for f in {paths}; do echo new >> "$f"; cat "$f"; done; rm {paths}'
    with Launcher.start_process(read_only=[str(protected)]) as launcher:
        launcher.start(1, LaunchSpec(["/bin/sh", "-c", script], stdout=File(out)))
        ends(launcher, 1)
        protects = launcher.protects([str(protected)])
        assert not launcher.protects([str(other)])
    assert not (other / "file").exists()
    if protects:  # as root with the right to mount
        assert (protected / "file").read_text() == "old\n"
        (protected / "file").write_text("ours\n")  # the restriction does not apply to this process
    elif os.geteuid() == 0:
        assert not can_mount(), "it could have been protected"
    shutil.rmtree(protected)


def can_mount() -> bool:
    """Return whether a process of ours may have its own mount namespace."""
    return subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode == 0
