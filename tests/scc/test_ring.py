"""The ring in C by its own programs, and its binding."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from ciel.core.transports import CORES_MIN
from ciel.scc.channels import RingKind, usual_spin_us
from ciel.scc.ring import BYTES, ROOM, Lookout, Ring, RingError, make_segment
from ciel.testing.c_programs import compiled
from ciel.testing.homes import descriptors_of

PARTS = ("src/ring.c", "src/port.c")
CHECKED = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")


def run(program: Path, *arguments: object) -> str:
    done = subprocess.run(
        [str(program), *map(str, arguments)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def program(name: str, flags: Sequence[str]) -> Path:
    return compiled(name, (f"tests/{name}.c", *PARTS), flags=tuple(flags))


@pytest.mark.parametrize("seed", [1, 2])
def test_every_step_is_as_said_and_no_memory_of_another_misleads_it(seed: int) -> None:
    assert run(program("ring_units", CHECKED), seed) == "all well\n"


@pytest.mark.parametrize("seed", [2, 3], ids=["sleeping", "looking"])
def test_two_threads_talk_without_a_race(seed: int) -> None:
    checked = compiled(
        "ring_two", ("tests/ring_two.c", "src/port.c"), ("ONE_MAPPING",), ("-fsanitize=thread",)
    )
    run(checked, "threads", seed, 1_000_000)


@pytest.mark.parametrize("seed", [1, 2])
def test_either_end_may_be_killed_at_any_moment(seed: int) -> None:
    run(program("ring_two", CHECKED), "kill", seed, 100)


def test_round_trips_lose_no_bell() -> None:
    for looks in (0, 50):
        assert float(run(program("ring_two", CHECKED), "trip", 1_500, looks)) > 0


# --- the binding ----------------------------------------------------------------------------------


@pytest.fixture
def rings() -> Iterator[tuple[Ring, Ring]]:
    before = descriptors_of(os.getpid())
    bells = socket.socketpair()
    segment = make_segment(4096)
    ends = [Ring(segment, side, bells[side].fileno(), bells[side].fileno()) for side in (0, 1)]
    os.close(segment)
    yield ends[0], ends[1]
    for end in ends:
        end.close()
        end.close()
        assert not end.is_open
    for bell in bells:
        bell.close()
    assert descriptors_of(os.getpid()) == before


def test_a_ring_says_how_full_it_is(rings: tuple[Ring, Ring]) -> None:
    one, other = rings
    assert one.capacity_bytes == 4096
    assert one.write(b"abc") == 3
    assert (one.unread_bytes, other.readable_bytes) == (3, 3)
    assert other.read() == b"abc"
    assert (one.unread_bytes, other.readable_bytes) == (0, 0)


def test_signals_are_served_while_somebody_waits(rings: tuple[Ring, Ring]) -> None:
    heard: list[int] = []

    def ring(number: int, frame: object) -> None:
        heard.append(number)
        rings[1].write(b"x")

    before = signal.signal(signal.SIGALRM, ring)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        assert rings[0].wait()
    finally:
        signal.signal(signal.SIGALRM, before)
    assert heard == [signal.SIGALRM]


def test_what_is_no_segment_is_refused_in_words(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(20_000))
    with path.open("r+b") as file, pytest.raises(RingError, match="not a segment of rings"):
        Ring(file.fileno(), 0, -1)
    with pytest.raises(RingError, match="invalid argument"):
        make_segment(5000)
    with pytest.raises(RingError, match="a system call failed: Bad file descriptor"):
        Ring(-1, 0, -1)


def test_a_loop_is_told_what_it_wants_to_know_of_each_ring(rings: tuple[Ring, Ring]) -> None:
    lookout = Lookout()
    told: list[tuple[str, int]] = []
    lookout.add(rings[0], lambda what: told.append(("a", what)))
    lookout.add(rings[1], lambda what: told.append(("b", what)))
    assert not lookout.before_wait()  # nobody wants anything
    rings[0].write(b"x")
    lookout.want(rings[1], BYTES)
    assert lookout.before_wait()
    lookout.after_wait()
    assert told == [("b", BYTES)]
    lookout.want(rings[0], ROOM)
    lookout.remove(rings[1])
    lookout.after_wait()
    assert told == [("b", BYTES), ("a", ROOM)]
    lookout.remove(rings[0])
    assert not len(lookout)
    assert not lookout.before_wait()


def test_who_was_told_may_take_others_away(rings: tuple[Ring, Ring]) -> None:
    lookout = Lookout()
    told: list[int] = []

    def leave(what: int) -> None:
        told.append(what)
        lookout.remove(rings[0])
        lookout.remove(rings[1])

    for ring in rings:
        lookout.add(ring, leave if ring is rings[0] else told.append)
        lookout.want(ring, ROOM)
    lookout.after_wait()
    assert told == [ROOM]


def test_a_thread_that_waits_lets_others_run(rings: tuple[Ring, Ring]) -> None:
    results: list[bool] = []
    thread = threading.Thread(target=lambda: results.append(rings[0].wait()))
    thread.start()
    time.sleep(0.01)  # most likely it sleeps now; it makes no difference if it does not
    assert rings[1].write(random.Random(1).randbytes(100)) == 100
    thread.join(10)
    assert results == [True]


def test_looking_is_off_where_cores_are_few() -> None:
    assert usual_spin_us(1) == usual_spin_us(2) == 0
    assert usual_spin_us(CORES_MIN) > 0
    assert RingKind(7).lookout.spin_us == 7
