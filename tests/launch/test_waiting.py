"""Tests launches that wait until fewer programs run."""

from __future__ import annotations

import errno
import itertools
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from ciel.launch import (
    Descriptor,
    File,
    Launcher,
    LaunchSpec,
    LaunchSpecError,
    ProgramExited,
    ProgramFailed,
    ProgramStarted,
)

Ends = Callable[[Launcher, int], list[ProgramExited | ProgramFailed]]


def sleeper(at_most: int, for_s: str = "60") -> LaunchSpec:
    return LaunchSpec(["/bin/sleep", for_s], at_most=at_most)


_probes = itertools.count(1001)


def started(launcher: Launcher, *expected: int) -> set[int]:
    """Wait until the expected launches have started, and until a later launch without a limit has
    started and ended.

    Return all launches that have started.
    """
    until_s = time.monotonic() + 20
    begun: set[int] = set()
    ended: set[int] = set()

    def wait_for(numbers: set[int], where: set[int]) -> None:
        while not numbers <= where:
            assert time.monotonic() < until_s, f"{numbers - where} are waited for"
            for event in launcher.wait_events(1):
                (begun if isinstance(event, ProgramStarted) else ended).add(event.launch_id)

    wait_for({*expected}, begun)
    probe = next(_probes)
    launcher.start(probe, LaunchSpec(["/bin/true"]))
    wait_for({probe}, ended)
    return begun - {probe}


def numbers(events: Iterable[ProgramExited | ProgramFailed]) -> list[int]:
    return [event.launch_id for event in events]


def test_the_next_launch_starts_when_fewer_programs_run(launcher: Launcher) -> None:
    for number in range(1, 5):
        launcher.start(number, sleeper(2))
    assert started(launcher, 1, 2) == {1, 2}
    launcher.kill(2)
    assert started(launcher, 3) == {3}
    launcher.kill(1)
    launcher.kill(3)
    assert started(launcher, 4) == {4}


def test_launches_start_in_order_and_all_ends_are_reported(
    launcher: Launcher, ends: Ends, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    for number in range(300):
        script = f"echo {number}"
        stdout = File(out, append=True)
        launcher.start(number, LaunchSpec(["/bin/sh", "-c", script], stdout=stdout, at_most=1))
    assert numbers(ends(launcher, 300)) == list(range(300))
    assert out.read_text().split() == [str(number) for number in range(300)]


def test_a_launch_without_a_limit_overtakes_waiting_ones(launcher: Launcher) -> None:
    for number in (1, 2):
        launcher.start(number, sleeper(1))
    launcher.start(3, sleeper(0))
    assert started(launcher, 1, 3) == {1, 3}


def test_a_launch_that_fails_makes_room_for_the_next(launcher: Launcher, ends: Ends) -> None:
    launcher.start(1, sleeper(1, "0.05"))
    launcher.start(2, LaunchSpec(["/no/such/program"], at_most=1))
    launcher.start(3, LaunchSpec(["/bin/true"], at_most=1))
    ended = {event.launch_id: event for event in ends(launcher, 3)}
    assert ended.keys() == {1, 2, 3}
    second, third = ended[2], ended[3]
    assert isinstance(second, ProgramFailed)
    assert second.errno == errno.ENOENT
    assert isinstance(third, ProgramExited)
    assert third.exit_status == 0


def test_a_killed_launch_that_waits_never_starts(launcher: Launcher, ends: Ends) -> None:
    for number in range(1, 5):
        launcher.start(number, sleeper(1))
    launcher.kill(3, signal.SIGTERM)
    assert started(launcher, 1) == {1}
    launcher.kill(4)
    launcher.kill(1)
    launcher.kill(2)
    ended = ends(launcher, 3)
    assert {event.launch_id for event in ended} == {1, 2, 4}


def test_a_waiting_launch_can_be_recalled_and_a_running_one_cannot(
    launcher: Launcher, ends: Ends
) -> None:
    launcher.start(1, sleeper(1))
    launcher.start(2, sleeper(1))
    launcher.recall(1)
    launcher.recall(2)
    (second,) = ends(launcher, 1)
    assert isinstance(second, ProgramFailed)
    assert (second.launch_id, second.errno) == (2, errno.ECANCELED)
    launcher.kill(1)
    (first,) = ends(launcher, 1)
    assert isinstance(first, ProgramExited)
    assert first.signal_name == "SIGKILL"


def test_the_end_of_a_launch_killed_while_waiting_names_its_signal(
    launcher: Launcher, ends: Ends
) -> None:
    launcher.start(1, sleeper(1))
    launcher.start(2, sleeper(1))
    launcher.kill(2, signal.SIGTERM)
    (end,) = ends(launcher, 1)
    assert isinstance(end, ProgramExited)
    assert (end.launch_id, end.signal_name, end.wall_s) == (2, "SIGTERM", 0.0)


def test_large_launches_wait_for_room_in_the_queue(launcher: Launcher, ends: Ends) -> None:
    large = ["x" * 100_000] * 15  # 1.5 MB: six of them fill the buffer of waiting launches
    launcher.start(0, sleeper(1, "0.3"))
    for number in range(1, 20):
        launcher.start(number, LaunchSpec(["/bin/true", *large], at_most=1))
    assert numbers(ends(launcher, 20)) == list(range(20))


def test_the_measured_time_of_a_program_does_not_include_its_wait(
    launcher: Launcher, ends: Ends
) -> None:
    launcher.start(1, sleeper(1, "1.5"))
    launcher.start(2, sleeper(1, "0"))
    first, second = ends(launcher, 2)
    assert isinstance(first, ProgramExited)
    assert isinstance(second, ProgramExited)
    assert first.wall_s > 1.4  # the launcher may sleep for a moment before it records the start
    assert second.wall_s < 1.4


def test_a_launch_with_a_descriptor_cannot_wait(launcher: Launcher) -> None:
    spec = LaunchSpec(["/bin/true"], stdin=Descriptor(0), at_most=1)
    with pytest.raises(LaunchSpecError, match="at_most"):
        launcher.start(1, spec)
