"""Tests memory limits with real programs."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.task import Clock

from ciel.core.ids import TaskId
from ciel.launch import DEV_NULL, File, LaunchSpec, ProgramExited, ProgramFailed
from ciel.net.ticks import Ticks
from ciel.testing.homes import wait_for
from ciel.worker.attempts.launching import Launching
from ciel.worker.limits.memory import CHECK_S, MemoryWatch
from ciel.worker.state.orders import Key

MIB = 1 << 20
LIMIT = 64 * MIB
TOLD_WITHIN_S = 20.0
PRELUDE = """
import mmap, os, sys, time
from pathlib import Path

def take(mib):
    return mmap.mmap(-1, mib << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE)

def rest():
    Path("resting").touch()
    time.sleep(1000)
"""


def key_of(number: int) -> Key:
    return (TaskId("t"), number)


class Programs:
    """Starts Python programs in a directory, and watches their memory."""

    def __init__(self, in_reactor: Any, directory: Path) -> None:
        self.in_reactor = in_reactor
        self.directory = directory
        self.clock = Clock()
        self.exceeded: list[tuple[int, int]] = []
        self.pids: dict[int, int] = {}
        self.ends: dict[int, ProgramExited | ProgramFailed] = {}
        reactor = in_reactor.reactor
        self.launching: Launching = in_reactor(Launching, reactor, Ticks(reactor), os.environ)
        self.watch = MemoryWatch(self.clock, self._told)

    def watch_in_time(self) -> None:
        """Let the real clock, not the test, trigger the checks."""
        self.watch = MemoryWatch(self.in_reactor.reactor, self._told)

    def _told(self, key: Key, used_bytes: int) -> None:
        number = key[1]
        self.exceeded.append((number, used_bytes))
        self.launching.kill(number, signal.SIGKILL)

    def start(self, script: str, limit_bytes: int = LIMIT) -> int:
        """Start a program, and wait until it is watched."""
        spec = LaunchSpec(
            [sys.executable, "-c", PRELUDE + script],
            cwd=str(self.directory),
            stdout=DEV_NULL,
            stderr=File(self.directory / "stderr"),
        )

        def ended(event: ProgramExited | ProgramFailed) -> None:
            self.watch.remove(key_of(event.launch_id))
            self.ends[event.launch_id] = event

        def start() -> int:
            def started(pid: int) -> None:
                self.watch.add(key_of(number), pid, limit_bytes)
                self.pids[number] = pid

            number = self.launching.start(spec, ended, started)
            return number

        number: int = self.in_reactor(start)
        wait_for(lambda: number in self.pids, "the start")
        return number

    def rested(self, script: str, limit_bytes: int = LIMIT) -> int:
        """Start a program, and wait until it reports that it will take no more memory."""
        number = self.start(script, limit_bytes)
        wait_for(self.mark("resting").exists, "the program to rest")
        return number

    def mark(self, name: str) -> Path:
        return self.directory / name

    def look(self) -> None:
        """Check several times, and wait for the measurements."""
        for _ in range(3):
            self.in_reactor(self.clock.advance, 20 * CHECK_S)
            wait_for(lambda: not self.is_measuring(), "the measurement")

    def is_measuring(self) -> bool:
        watched = self.watch._watched
        return bool(
            self.in_reactor(lambda: any(w.measure_from_s == float("inf") for w in watched.values()))
        )

    def caught(self) -> tuple[int, int]:
        """Check until a program is reported; return its number, and its memory."""

        def is_reported() -> bool:
            self.look()
            return bool(self.exceeded)

        wait_for(is_reported, "a program to be caught")
        (told,) = self.exceeded
        return told

    def close(self) -> None:
        self.in_reactor(self.watch.close)
        self.in_reactor(self.launching.close)


@pytest.fixture
def programs(in_reactor: Any, tmp_path: Path) -> Iterator[Programs]:
    programs = Programs(in_reactor, tmp_path)
    yield programs
    programs.close()


def test_one_that_grows_as_fast_as_it_can_is_caught_in_time(programs: Programs) -> None:
    limit_bytes = 256 * MIB
    programs.watch_in_time()
    number = programs.start("taken = [take(32) for _ in range(96)]\nrest()", limit_bytes)
    wait_for(lambda: number in programs.ends, "the end")
    ((told, used_bytes),) = programs.exceeded
    assert told == number
    assert used_bytes > limit_bytes
    end = programs.ends[number]
    assert isinstance(end, ProgramExited)
    assert limit_bytes < end.max_rss_bytes < 8 * limit_bytes  # it would take 12 times its limit


def test_one_that_keeps_within_its_limit_is_let_be(programs: Programs) -> None:
    programs.rested("taken = take(40)\nrest()")
    programs.look()
    assert programs.exceeded == []


def test_each_is_held_to_its_own_limit(programs: Programs) -> None:
    large = programs.rested("taken = take(100)\nrest()", 200 * MIB)
    programs.mark("resting").unlink()
    small = programs.rested("taken = take(100)\nrest()")
    assert programs.caught()[0] == small
    programs.look()
    assert large not in programs.ends


ORPHAN = """
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        taken = take(100)
        rest()
    os._exit(0)
os.wait()
time.sleep(1000)
"""
TWO = """
for _ in range(2):
    if os.fork() == 0:
        taken = take(40)
        os.close(1)
        Path(f"child{os.getpid()}").touch()
        time.sleep(1000)
while len(list(Path().glob("child*"))) < 2:
    time.sleep(0.01)
rest()
"""
CLUSTER = """
from ciel.launch.launcher import Launcher
from ciel.launch.messages import LaunchSpec
with Launcher.start_process() as launcher:
    taken = "taken = bytearray(b'x') * (100 << 20); open('resting', 'w'); import time; "
    launcher.start(1, LaunchSpec([sys.executable, "-c", taken + "time.sleep(1000)"]))
    while True:
        launcher.wait_events(1000)
"""


@pytest.mark.parametrize("script", [ORPHAN, TWO, CLUSTER], ids=["orphan", "two", "launcher"])
def test_what_it_has_started_counts(programs: Programs, script: str) -> None:
    number = programs.rested(script)
    told, used_bytes = programs.caught()
    assert told == number
    assert 80 * MIB <= used_bytes < 160 * MIB
    wait_for(lambda: number in programs.ends, "the end")


SHARED = """
with open("file", "w+b") as file:
    file.truncate(100 << 20)
    mapped = mmap.mmap({number}, 100 << 20, mmap.MAP_SHARED | mmap.MAP_POPULATE)
rest()
"""


@pytest.mark.parametrize("number", ["file.fileno()", "-1"], ids=["file", "anonymous"])
def test_what_is_shared_does_not_count(programs: Programs, number: str) -> None:
    pid = programs.pids[programs.rested(SHARED.format(number=number))]
    programs.look()
    assert programs.exceeded == []
    resident_pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    assert resident_pages * os.sysconf("SC_PAGESIZE") > 100 * MIB


FORKED = """
taken = take(40)
for _ in range(3):
    if os.fork() == 0:
        while not Path("write").exists():
            time.sleep(0.01)
        for page in range(0, len(taken), 4096):
            taken[page] = 1
        Path(f"child{os.getpid()}").touch()
        time.sleep(1000)
rest()
"""


def test_pages_that_forks_share_count_once_until_they_are_written(programs: Programs) -> None:
    number = programs.rested(FORKED, 100 * MIB)
    programs.look()
    assert programs.exceeded == []
    programs.mark("write").touch()
    wait_for(lambda: len(list(programs.directory.glob("child*"))) == 3, "the pages to be written")
    told, used_bytes = programs.caught()
    assert told == number
    assert 120 * MIB <= used_bytes < 200 * MIB


STARTING = """
taken = take(40)
os.mkfifo("fifo")
opening = [(os.POSIX_SPAWN_OPEN, 0, "fifo", os.O_RDONLY, 0)]
os.posix_spawn("/bin/true", ["true"], {}, file_actions=opening)  # the vfork child waits there
"""


def test_one_that_is_just_being_started_has_nothing_of_its_own(programs: Programs) -> None:
    pid = programs.pids[programs.start(STARTING)]
    started = Path(f"/proc/{pid}/task/{pid}/children")
    wait_for(started.read_text, "the program that it starts")
    programs.look()
    assert programs.exceeded == []


def test_nobody_looks_when_nothing_runs(programs: Programs) -> None:
    number = programs.rested("taken = take(100)\nrest()")
    programs.in_reactor(programs.watch.remove, key_of(number))
    programs.look()
    assert programs.exceeded == []
    assert programs.clock.getDelayedCalls() == []
    programs.in_reactor(programs.watch.add, key_of(0), os.getpid(), 1)
    assert programs.clock.getDelayedCalls() == []  # a process that no launcher started is ignored
    programs.start("rest()")
    assert len(programs.clock.getDelayedCalls()) == 1
    programs.in_reactor(programs.watch.close)
    assert programs.clock.getDelayedCalls() == []
