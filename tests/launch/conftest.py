"""Provides a launcher for each test, and functions that find living processes."""

import ctypes
import itertools
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ciel.launch import (
    DEV_NULL,
    Launcher,
    LaunchSpec,
    ProgramExited,
    ProgramFailed,
    become_subreaper,
)

_numbers = itertools.count(1)


@pytest.fixture
def subreaper() -> Iterator[None]:
    """Make orphans among our descendants our children while the test runs."""
    become_subreaper()
    yield
    ctypes.CDLL(None).prctl(36, 0, 0, 0, 0)


@pytest.fixture
def launcher() -> Iterator[Launcher]:
    with Launcher.start_process() as launcher:
        yield launcher


@pytest.fixture
def ends() -> Callable[[Launcher, int], list[ProgramExited | ProgramFailed]]:
    """Wait until so many launches have ended; return their last events."""

    def ends(launcher: Launcher, count: int) -> list[ProgramExited | ProgramFailed]:
        ended: list[ProgramExited | ProgramFailed] = []
        deadline_s = time.monotonic() + 30
        while len(ended) < count:
            assert time.monotonic() < deadline_s, f"only {ended} of {count} ended"
            for event in launcher.wait_events(1):
                if isinstance(event, ProgramExited | ProgramFailed):
                    ended.append(event)
        return ended

    return ends


@pytest.fixture
def run(
    launcher: Launcher, ends: Callable[[Launcher, int], list[ProgramExited | ProgramFailed]]
) -> Callable[[LaunchSpec], ProgramExited | ProgramFailed]:
    """Run one program to its end; return its last event."""

    def run(spec: LaunchSpec) -> ProgramExited | ProgramFailed:
        launcher.start(1, spec)
        return ends(launcher, 1)[0]

    return run


@pytest.fixture
def shell(
    run: Callable[[LaunchSpec], ProgramExited | ProgramFailed],
) -> Callable[[str], ProgramExited]:
    """Run a shell script to its end."""

    def shell(script: str) -> ProgramExited:
        event = run(LaunchSpec(["/bin/sh", "-c", script], stdout=DEV_NULL))
        assert isinstance(event, ProgramExited)
        return event

    return shell


@pytest.fixture
def marker() -> str:
    """Return a number of seconds that no other process sleeps."""
    return f"1{os.getpid()}.{next(_numbers):06}"


@pytest.fixture
def alive() -> Callable[[str], list[int]]:
    """Return the processes with this text in their command line, zombies excluded."""

    def alive(marker: str) -> list[int]:
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal() and int(entry.name) != os.getpid():
                try:
                    if marker.encode() in (entry / "cmdline").read_bytes():
                        found.append(int(entry.name))
                except (FileNotFoundError, ProcessLookupError):
                    pass
        return found

    return alive


@pytest.fixture
def eventually() -> Callable[..., bool]:
    """Return whether a condition becomes true in time; for conditions without an event."""

    def eventually(condition: Callable[[], object], timeout_s: float = 20.0) -> bool:
        deadline_s = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > deadline_s:
                return False
            time.sleep(0.005)
        return True

    return eventually
