"""Tests messages between cores. Each core is a process with private namespaces, which shares only
memory with the others.

With CIEL_LONG=1, the tests kill a process 10,000 times, at every store, and a sanitizer searches
for races.
"""

from __future__ import annotations

import os
import subprocess
from functools import cache
from pathlib import Path

import pytest

from ciel.testing.c_programs import compiled

IS_LONG = os.environ.get("CIEL_LONG") == "1"
SOURCES = (
    "src/port.c",
    "src/mpb.c",
    "src/mpb_pieces.c",
    "src/rcce.c",
    "tests/mpb_cores.c",
    "tests/mpb_talk.c",
    "tests/mpb_deaths.c",
)
SANITIZED = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")
NO_NAMESPACES = 77
SCC_CORES, CORE_MAX_COUNT = 48, 64
KILLS = 10_000 if IS_LONG else 20
STEP = 1 if IS_LONG else 11  # of the stores at which a core dies
LIMIT_S = 1800 if IS_LONG else 100


@cache
def program(build: str) -> Path:
    if build == "races":
        flags = ("-fsanitize=thread",)
        return compiled("mpb", SOURCES, ("SCC_TEST", "CORES_ARE_THREADS"), flags)
    if build == "coherent":
        return compiled("mpb", SOURCES, ("SCC_TEST",), SANITIZED)
    extra = (f"src/{build}.c",)
    return compiled("mpb", SOURCES + extra, ("SCC_TEST", f"PORT_{build.upper()}"))


def run(build: str, scenario: str, cores: int, extent: int = 1, seed: int = 1) -> str:
    """Run a scenario to its end, which it says by its status."""
    arguments = (str(number) for number in (cores, seed, extent))
    done = subprocess.run(
        [program(build), scenario, *arguments], capture_output=True, text=True, timeout=LIMIT_S
    )
    if done.returncode == NO_NAMESPACES:
        pytest.skip("no namespaces here (they want root)")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


BUILDS = pytest.mark.parametrize("build", ["strict", "coherent", "flushing"])
BUILDS_THAT_DIE = pytest.mark.parametrize("build", ["strict", "coherent"])


@pytest.mark.requirement("CIB-30", "CIB-31")
@pytest.mark.slow
@BUILDS
def test_messages_of_every_length_arrive_as_they_were_sent(build: str) -> None:
    run(build, "ping", 2)
    if IS_LONG and build == "flushing":
        run(build, "huge", 2)


@BUILDS
def test_cores_that_send_much_to_each_other_at_once_do_not_wait_for_each_other(build: str) -> None:
    run(build, "cross", 2)


@pytest.mark.requirement("CIB-31")
@BUILDS
@pytest.mark.parametrize("cores", [2, 4])
def test_many_requests_at_a_time_are_each_served_once_and_in_order(build: str, cores: int) -> None:
    run(build, "mix", cores)


@pytest.mark.requirement("CIB-31")
@BUILDS
@pytest.mark.parametrize("cores", [5, 17, 18])
def test_whoever_receives_from_any_serves_all_in_turn(build: str, cores: int) -> None:
    run(build, "any", cores)


@pytest.mark.requirement("CIB-31")
@BUILDS
@pytest.mark.parametrize("cores", [2, 8])
def test_nobody_leaves_a_barrier_before_all_have_come(build: str, cores: int) -> None:
    run(build, "barrier", cores)


@pytest.mark.requirement("CIB-31")
@BUILDS
def test_one_core_at_a_time_holds_a_lock(build: str) -> None:
    run(build, "lock", 4)


@pytest.mark.requirement("CIB-30", "CIB-31")
@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S)
@BUILDS_THAT_DIE
@pytest.mark.parametrize("cores", [SCC_CORES, CORE_MAX_COUNT])
def test_as_many_cores_as_the_scc_had_and_as_a_segment_holds(build: str, cores: int) -> None:
    """A buffer has one line for each other core."""
    for scenario in ("any", "mix", "barrier", "lock", "ping"):
        run(build, scenario, cores)


@BUILDS
def test_what_is_given_up_was_never_sent_or_is_said_to_be_unsure(build: str) -> None:
    run(build, "give_up", 2)


@BUILDS
def test_a_receiver_that_stands_still_costs_time_and_nothing_else(build: str) -> None:
    run(build, "stops", 2)


@BUILDS
def test_the_dead_leave_what_they_sent_and_their_locks(build: str) -> None:
    run(build, "legacy", 2)


@pytest.mark.timeout(LIMIT_S)
@BUILDS_THAT_DIE
def test_death_at_any_store_is_an_error_for_the_other_and_the_next_one_begins_afresh(
    build: str,
) -> None:
    run(build, "stores", 2, extent=STEP, seed=0)


@pytest.mark.timeout(LIMIT_S)
@BUILDS_THAT_DIE
def test_kills_lose_nothing_that_was_acknowledged_and_duplicate_nothing(build: str) -> None:
    counts = run(build, "kills", 3, extent=KILLS)
    assert counts.startswith(f"{KILLS} kills")


@pytest.mark.requirement("POOL-3")
@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S)
def test_no_two_cores_touch_a_byte_at_the_same_time() -> None:
    for scenario in ("give_up", "any", "lock"):
        run("races", scenario, 2)
    for scenario in ("ping", "mix", "cross", "barrier") if IS_LONG else ():
        run("races", scenario, 4)
