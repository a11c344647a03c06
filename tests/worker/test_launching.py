"""Tests starting programs with a real launcher on a real reactor."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ciel.launch import DEV_NULL, File, LaunchSpec, LaunchSpecError, ProgramExited, ProgramFailed
from ciel.net.ticks import Ticks
from ciel.testing.homes import wait_for
from ciel.worker.attempts.launching import Launching

End = ProgramExited | ProgramFailed


class Launched:
    """Starts shell scripts, and keeps the report of each end, by launch id."""

    def __init__(self, in_reactor: Any) -> None:
        self.in_reactor = in_reactor
        reactor = in_reactor.reactor
        self.launching: Launching = in_reactor(Launching, reactor, Ticks(reactor), os.environ)
        self.ends: list[tuple[int, End]] = []
        self._changed = threading.Condition()

    def start(self, script: str, then: Callable[[], None] = lambda: None) -> int:
        def ended(event: End) -> None:
            with self._changed:
                self.ends.append((event.launch_id, event))
                self._changed.notify_all()
            then()

        spec = LaunchSpec(["/bin/sh", "-c", script], stdout=DEV_NULL, stderr=DEV_NULL)
        launch_id: int = self.in_reactor(self.launching.start, spec, ended)
        return launch_id

    def wait(self, count: int) -> dict[int, End]:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.ends) >= count, 20), self.ends
        assert len(self.ends) == count
        return dict(self.ends)

    def launcher_pid(self) -> int:
        return int(self.launching._launcher.pid)


@pytest.fixture
def launched(in_reactor: Any) -> Iterator[Launched]:
    launched = Launched(in_reactor)
    yield launched
    in_reactor(launched.launching.close)


def is_alive(pid: str) -> bool:
    """Return whether a process runs; a zombie does not."""
    try:
        return bool(Path("/proc", pid, "cmdline").read_bytes())
    except OSError:
        return False


def status(end: End) -> int | None:
    assert isinstance(end, ProgramExited)
    return end.exit_status


def test_each_owner_is_told_of_its_own_end(launched: Launched) -> None:
    numbers = {launched.start(f"exit {code}"): code for code in (0, 3, 7)}
    ends = launched.wait(3)
    assert {number: status(end) for number, end in ends.items()} == numbers


def test_a_program_that_is_no_program_is_told_as_a_failure(launched: Launched) -> None:
    ends: list[End] = []
    spec = LaunchSpec(["no-such-program"])
    launched.in_reactor(launched.launching.start, spec, ends.append)
    wait_for(lambda: ends, "the failure")
    assert isinstance(ends[0], ProgramFailed)
    assert ends[0].reason == "exec: No such file or directory"


def test_a_launch_that_cannot_be_asked_for_has_no_end(launched: Launched) -> None:
    with pytest.raises(LaunchSpecError):
        launched.in_reactor(launched.launching.start, LaunchSpec([]), launched.ends.append)
    launched.start("exit 0")
    assert list(launched.wait(1)) == [2]


def test_a_signal_ends_one_program(launched: Launched) -> None:
    sleeper, other = launched.start("exec sleep 60"), launched.start("exec sleep 60")
    launched.in_reactor(launched.launching.kill, sleeper, signal.SIGTERM)
    (number, event) = next(iter(launched.wait(1).items()))
    assert isinstance(event, ProgramExited)
    assert (number, event.signal_name) == (sleeper, "SIGTERM")
    launched.in_reactor(launched.launching.kill, other, signal.SIGKILL)
    launched.wait(2)


def test_more_than_the_socket_takes_at_once_all_end(launched: Launched) -> None:
    ends: list[End] = []

    def start_all() -> None:
        for _ in range(300):
            launched.launching.start(LaunchSpec(["/bin/true"], env={"X": "x" * 4000}), ends.append)

    launched.in_reactor(start_all)
    wait_for(lambda: len(ends) == 300, "all ends")
    assert {status(end) for end in ends} == {0}


def test_when_the_launcher_dies_every_owner_is_told_and_the_next_start_works(
    launched: Launched, tmp_path: Path
) -> None:
    mark = tmp_path / "runs"
    script = "echo $$ >{0}.new; mv {0}.new {0}; exec sleep 60"
    started = [launched.start(script.format(f"{mark}.{n}")) for n in (1, 2)]
    wait_for(lambda: all(Path(f"{mark}.{n}").exists() for n in (1, 2)), "both programs")
    dead = launched.launcher_pid()
    os.kill(dead, signal.SIGKILL)
    ends = launched.wait(2)
    assert sorted(ends) == started
    signals = {end.signal_name for end in ends.values() if isinstance(end, ProgramExited)}
    assert signals == {"SIGKILL"}
    programs = [Path(f"{mark}.{n}").read_text().strip() for n in (1, 2)]
    wait_for(lambda: not any(is_alive(program) for program in programs), "the programs' death")
    assert launched.launcher_pid() != dead
    again = launched.start("exit 5")
    assert status(launched.wait(3)[again]) == 5


def test_who_starts_anew_when_told_of_the_launchers_death_is_served_by_the_next(
    launched: Launched, tmp_path: Path
) -> None:
    mark = tmp_path / "runs"

    def again() -> None:
        spec = LaunchSpec(["/bin/echo", "again"], stdout=File(tmp_path / "again"))
        launched.launching.start(spec, lambda event: launched.ends.append((99, event)))

    launched.start(f"touch {mark}; exec sleep 60", again)
    wait_for(mark.exists, "the program")
    os.kill(launched.launcher_pid(), signal.SIGKILL)
    wait_for(lambda: len(launched.ends) == 2, "both ends")
    assert status(dict(launched.ends)[99]) == 0
    assert (tmp_path / "again").read_text() == "again\n"


def test_closing_ends_all_and_tells_nobody(launched: Launched, tmp_path: Path) -> None:
    mark = tmp_path / "runs"
    launched.start(f"echo $$ >{mark}.new; mv {mark}.new {mark}; exec sleep 60")
    wait_for(mark.exists, "the program")
    launched.in_reactor(launched.launching.close)
    assert not is_alive(mark.read_text().strip())
    launched.in_reactor(launched.launching.close)
    assert launched.ends == []
