"""Tests growing files, which real programs write, and the readers that wait for their content."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ciel.core.refs import INLINE_MAX_BYTES
from ciel.storage.files import FileStore
from ciel.storage.interface import ObjectWriter
from ciel.testing.homes import wait_for
from ciel.worker.streams.growing import KEPT_MAX, PACE_S, Growing, Streams
from ciel.worker.streams.stdin_feeder import Feeder, pipe

LARGE = bytes(range(256)) * 4096


def open_count() -> int:
    return len(os.listdir("/proc/self/fd"))


class Grown:
    """Streams on the reactor, with a real store."""

    def __init__(self, run: Any, store: FileStore) -> None:
        self.run = run
        self.store = store
        self.streams: Streams = run(Streams, run.reactor)
        self.writers: list[ObjectWriter] = []

    def open(self, object_id: str = "x", content: bytes = b"") -> tuple[ObjectWriter, Growing]:
        writer = self.store.begin(object_id)
        self.writers.append(writer)
        growing = self.run(self.streams.open, object_id, writer.fileno())
        write(writer, content)
        return writer, growing

    def when(self, growing: Growing, at_least_bytes: float) -> threading.Event:
        happened = threading.Event()
        self.run(self.streams.when, growing, at_least_bytes, lambda _: happened.set())
        return happened

    def end(self, growing: Growing, broken: str = "") -> None:
        if broken:
            self.run(self.streams.break_off, growing, broken)
        else:
            self.run(self.streams.finish, growing)


def write(writer: ObjectWriter, content: bytes) -> None:
    """Append to the file at the writer's path, as a program does."""
    with open(str(writer.path), "ab") as file:
        file.write(content)


@pytest.fixture
def grown(in_reactor: Any, store: FileStore) -> Iterator[Grown]:
    before = open_count()
    grown = Grown(in_reactor, store)
    yield grown
    in_reactor(grown.streams.close)
    for writer in grown.writers:
        writer.abort()
    wait_for(lambda: open_count() <= before, "every descriptor to be closed")


# --- growth ---------------------------------------------------------------------------------------


def test_who_waits_is_called_when_that_much_is_there_and_not_before(grown: Grown) -> None:
    writer, growing = grown.open()
    happened = grown.when(growing, 1000)
    write(writer, b"x" * 999)
    assert not happened.wait(0.05)
    write(writer, b"x")
    assert happened.wait(10)
    assert growing.size_bytes == 1000


def test_what_is_there_already_is_told_but_not_at_once(grown: Grown) -> None:
    _, growing = grown.open(content=b"there")
    told: list[int] = []

    def ask() -> bool:
        grown.streams.when(growing, 5, lambda growing: told.append(growing.size_bytes))
        return bool(told)

    assert grown.run(ask) is False
    wait_for(lambda: told == [5], "the call")


def test_a_program_that_writes_by_name_is_noticed(grown: Grown) -> None:
    writer, growing = grown.open()
    happened = grown.when(growing, 7)
    subprocess.run(["sh", "-c", 'printf content > "$0"', str(writer.path)], check=True)
    assert happened.wait(10)


def test_no_wake_up_is_missed_however_small_the_pieces(grown: Grown) -> None:
    writer, growing = grown.open()
    count, woken, done = 3000, [0], threading.Event()

    def follow(growing: Growing) -> None:
        woken[0] += 1
        if growing.size_bytes >= count:
            done.set()
        else:
            grown.streams.when(growing, growing.size_bytes + 1, follow)

    grown.run(grown.streams.when, growing, 1, follow)
    started_s = time.monotonic()
    with open(str(writer.path), "ab", buffering=0) as file:
        for number in range(count):
            file.write(b"x")
            if number % 100 == 0:
                time.sleep(0.003)  # so that a reader also waits at every stage of a check
    assert done.wait(10)
    assert woken[0] <= (time.monotonic() - started_s) / PACE_S + 2


def test_one_file_that_grows_under_two_ids_wakes_the_readers_of_both(grown: Grown) -> None:
    writer, first = grown.open()
    second = grown.run(grown.streams.open, "other", writer.fileno())
    happened = [grown.when(first, 1), grown.when(second, 1)]
    time.sleep(0.02)  # by now both streams watch the file
    write(writer, b"x")
    assert [event.wait(10) for event in happened] == [True, True]


def test_a_writer_that_tells_needs_no_watch(grown: Grown) -> None:
    writer = grown.store.begin("x")
    grown.writers.append(writer)
    growing = grown.run(grown.streams.open, "x", writer.fileno(to_write=False), is_reported=True)
    happened = grown.when(growing, 4)
    wait_for(
        lambda: grown.run(lambda: growing._due is None),  # in the reactor, between two checks
        "the look that there is when somebody comes",
    )
    writer.write(b"told")
    assert not happened.wait(0.05)
    grown.run(grown.streams.grew, growing, 4)
    assert happened.wait(10)


def test_who_waits_no_more_is_not_called(grown: Grown) -> None:
    writer, growing = grown.open()
    calls: list[Growing] = []
    waiter = grown.run(grown.streams.when, growing, 1, calls.append)
    grown.run(waiter.cancel)
    grown.run(waiter.cancel)
    write(writer, b"x")
    assert grown.when(growing, 1).wait(10)
    assert calls == []


def test_one_reader_may_call_off_another_and_the_rest_are_called(grown: Grown) -> None:
    writer, growing = grown.open()
    calls: list[str] = []

    def wait() -> None:
        grown.streams.when(growing, 1, lambda _: other.cancel())
        other = grown.streams.when(growing, 1, lambda _: calls.append("other"))
        grown.streams.when(growing, 1, lambda _: calls.append("third"))

    grown.run(wait)
    write(writer, b"x")
    wait_for(lambda: calls == ["third"], "the third")


# --- ends -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("broken", ["", "its program was killed"])
def test_an_end_wakes_all_who_wait_for_more(grown: Grown, broken: str) -> None:
    _, growing = grown.open(content=b"x")
    happened = [grown.when(growing, 2), grown.when(growing, float("inf"))]
    grown.end(growing, broken)
    assert [event.wait(10) for event in happened] == [True, True]
    assert (growing.is_whole, growing.broken) == (not broken, broken)


def test_an_end_is_final(grown: Grown) -> None:
    _, growing = grown.open()
    grown.end(growing, "first")
    grown.end(growing)
    grown.end(growing, "second")
    assert (growing.is_whole, growing.broken) == (False, "first")
    assert grown.when(growing, 1).wait(10)


@pytest.mark.parametrize("broken", ["", "gone"])
def test_its_name_opens_while_it_is_held_whatever_becomes_of_the_writer(
    grown: Grown, broken: str
) -> None:
    writer, growing = grown.open(content=LARGE)
    hold = grown.run(grown.streams.hold, growing)
    if broken:
        writer.abort()
    else:
        writer.commit()
    grown.end(growing, broken)
    assert Path(growing.name()).read_bytes() == LARGE
    assert grown.run(grown.streams.get, "x") is growing
    name = growing.name()
    grown.run(hold.close)
    assert grown.run(grown.streams.get, "x") is None
    assert not os.path.exists(name)


def test_what_is_whole_and_small_can_be_found_for_a_while(grown: Grown) -> None:
    content = b"x" * INLINE_MAX_BYTES
    for number in range(KEPT_MAX + 1):
        writer, growing = grown.open(f"o{number}", content)
        assert writer.take(INLINE_MAX_BYTES) == content
        grown.end(growing)
    assert grown.run(grown.streams.get, "o0") is None
    for number in (1, KEPT_MAX):
        growing = grown.run(grown.streams.get, f"o{number}")
        assert Path(growing.name()).read_bytes() == content


def test_what_is_read_is_not_among_those_given_up_for_others(grown: Grown) -> None:
    writer, growing = grown.open("first", b"x")
    writer.take(1)
    grown.end(growing)
    hold = grown.run(grown.streams.hold, growing)
    for number in range(KEPT_MAX + 1):
        other, another = grown.open(f"o{number}")
        other.take(1)
        grown.end(another)
    assert Path(growing.name()).read_bytes() == b"x"
    grown.run(hold.close)
    grown.run(hold.close)


def test_an_object_grows_once_at_a_time_but_may_begin_anew(grown: Grown) -> None:
    writer, broken = grown.open(content=b"first")
    hold = grown.run(grown.streams.hold, broken)
    with pytest.raises(ValueError, match="already"):
        grown.run(grown.streams.open, "x", writer.fileno())
    grown.end(broken, "gone")
    _, again = grown.open(content=b"second")
    assert grown.run(grown.streams.get, "x") is again
    assert Path(broken.name()).read_bytes() == b"first"
    grown.run(hold.close)
    assert grown.run(grown.streams.get, "x") is again
    assert Path(again.name()).read_bytes() == b"second"


def test_a_producer_that_cuts_what_was_read_breaks_it(grown: Grown) -> None:
    writer, growing = grown.open(content=b"content")
    assert grown.when(growing, 7).wait(10)
    os.truncate(str(writer.path), 3)
    grown.end(growing)
    assert not growing.is_whole
    assert "from 7 bytes to 3" in growing.broken


def test_a_producer_that_puts_another_file_in_its_place_is_found_out(
    grown: Grown, tmp_path: Path
) -> None:
    writer, growing = grown.open(content=b"content")
    path = str(writer.path)
    assert growing.is_at(path)
    other = tmp_path / "other"
    other.write_bytes(b"content")
    other.rename(path)
    assert not growing.is_at(path)


def test_many_streams_leave_no_descriptor(grown: Grown) -> None:
    counts = []
    for number in range(300):
        writer, growing = grown.open(f"o{number}", b"x" * 5000)
        happened = grown.when(growing, 6000)
        if number % 2:
            writer.commit()
        else:
            writer.abort()
        grown.end(growing, "" if number % 2 else "gone")
        assert happened.wait(10)
        counts.append(open_count())
    assert max(counts) - min(counts) <= 3


def test_after_close_nothing_happens_any_more(grown: Grown) -> None:
    writer, growing = grown.open()
    happened = grown.when(growing, 1)
    hold = grown.run(grown.streams.hold, growing)
    grown.run(grown.streams.close)
    write(writer, b"x")
    grown.end(growing)
    grown.run(hold.close)
    assert not happened.wait(0.05)


# --- on pipes -------------------------------------------------------------------------------------


def test_by_the_name_of_a_pipe_a_program_reads_to_the_true_end(grown: Grown) -> None:
    writer, growing = grown.open(content=LARGE)
    piping = grown.run(pipe, grown.run.reactor, growing, grown.streams)
    with subprocess.Popen(["cat", piping.name], stdout=subprocess.PIPE) as program:
        assert program.stdout is not None
        assert program.stdout.read(len(LARGE)) == LARGE
        write(writer, b"more")
        assert program.stdout.read(4) == b"more"
        write(writer, LARGE)
        writer.commit()
        grown.end(growing)
        assert program.stdout.read() == LARGE
    assert piping.error is None
    grown.run(piping.close)
    grown.run(piping.close)


def test_a_pipe_is_read_to_its_end_also_when_it_is_opened_late(grown: Grown) -> None:
    writer, growing = grown.open(content=b"small")
    piping = grown.run(pipe, grown.run.reactor, growing, grown.streams)
    writer.take(10)
    grown.end(growing)
    time.sleep(0.05)
    assert Path(piping.name).read_bytes() == b"small"
    grown.run(piping.close)


def _arrived(fd: int) -> bytes:
    try:
        return os.read(fd, 100)
    except BlockingIOError:
        return b""


def test_a_broken_one_leaves_the_pipe_open_and_silent(grown: Grown) -> None:
    writer, growing = grown.open(content=b"some")
    piping = grown.run(pipe, grown.run.reactor, growing, grown.streams)
    fd = os.open(piping.name, os.O_RDONLY | os.O_NONBLOCK)
    wait_for(lambda: _arrived(fd) == b"some", "what there is")
    writer.abort()
    grown.end(growing, "its program was killed")
    wait_for(lambda: piping.error is not None, "the error")
    assert "killed" in str(piping.error)
    with pytest.raises(BlockingIOError):  # at its end, a pipe returns b""
        os.read(fd, 1)
    grown.run(piping.close)
    assert os.read(fd, 1) == b""
    os.close(fd)


def test_files_and_what_grows_are_fed_in_order(grown: Grown, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(LARGE)
    writer, growing = grown.open(content=b"one")
    small, known = grown.open("small", b"two")
    small.take(10)
    grown.end(known)
    feeder = Feeder(
        grown.run.reactor, [str(path), growing, known, str(path), growing], grown.streams
    )
    with subprocess.Popen(["cat"], stdin=feeder.descriptor, stdout=subprocess.PIPE) as program:
        grown.run(feeder.start)
        assert program.stdout is not None
        assert program.stdout.read(len(LARGE) + 3) == LARGE + b"one"
        write(writer, LARGE)
        writer.commit()
        grown.end(growing)
        assert program.stdout.read() == LARGE + b"two" + LARGE + b"one" + LARGE
    wait_for(lambda: feeder.fileno() < 0, "the feeder's end")
    assert feeder.error is None


def test_a_program_that_leaves_ends_the_feeding_and_nothing_else(grown: Grown) -> None:
    writer, growing = grown.open(content=b"x")
    feeder = Feeder(grown.run.reactor, [growing], grown.streams)
    with subprocess.Popen(["head", "-c1"], stdin=feeder.descriptor) as program:
        grown.run(feeder.start)
        assert program.wait(10) == 0
    write(writer, LARGE)
    wait_for(lambda: feeder.fileno() < 0, "the feeder's end")
    assert feeder.error is None
    assert writer.size_bytes == len(LARGE) + 1
    grown.end(growing)


PRODUCER = """
import sys
with open(sys.argv[1], "wb") as file:
    for number in range(int(sys.argv[2]) >> 16):
        file.write(number.to_bytes(4, "big") * (1 << 14))
"""


def test_a_fast_producer_reaches_a_pipe_whole(grown: Grown) -> None:
    writer, growing = grown.open()
    piping = grown.run(pipe, grown.run.reactor, growing, grown.streams)
    reader = subprocess.Popen(["sha256sum", piping.name], stdout=subprocess.PIPE)
    command = [sys.executable, "-c", PRODUCER, str(writer.path), str(64 << 20)]
    subprocess.run(command, check=True)
    writer.commit()
    grown.end(growing)
    read = reader.communicate(timeout=60)[0].split()[0]
    with grown.store.open("x") as stored, stored.view() as content:
        assert len(content) == 64 << 20
        assert read.decode() == hashlib.sha256(content).hexdigest()
    grown.run(piping.close)
