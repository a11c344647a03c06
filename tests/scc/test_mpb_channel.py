"""Messages between cores as a channel: what every channel does, and what lies in their memory."""

from __future__ import annotations

import os
import random
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from ciel.scc.mpb import CoreGoneError, MpbError
from ciel.scc.mpb_channels import (
    BYTES,
    CHANNEL_BYTES,
    MESSAGE_MAX_BYTES,
    ROOM,
    SLEEPS_AT,
    MpbChannel,
    MpbKind,
)
from ciel.scc.ring import make_segment
from ciel.testing.channel_suite import MpbChannelSuite
from ciel.testing.homes import wait_for

TAKEN_AT = 128 + 2 * 256 + 384 + 128
"""The word in which core 1 counts the bytes that it took from core 0, and its writer."""


class TestMessages(MpbChannelSuite):
    pass


class Pair:
    """Both sides of a channel, in one thread, and its memory."""

    def __init__(self) -> None:
        self.bells = socket.socketpair()
        self.memory = MpbKind().make()
        self.channels = [MpbKind().open(self.memory, n, self.bells[n].fileno()) for n in (0, 1)]
        for channel in self.channels * 2:
            channel.look(0)

    def close(self) -> None:
        for channel in self.channels:
            channel.close()
        for bell in self.bells:
            bell.close()
        os.close(self.memory)


@pytest.fixture
def pair() -> Iterator[Pair]:
    pair = Pair()
    yield pair
    pair.close()


def rang(bell: socket.socket) -> int:
    """Take the bells that came; return how many."""
    bell.setblocking(False)
    with suppress(BlockingIOError):
        return len(bell.recv(100))
    return 0


def test_who_was_never_answered_cannot_write() -> None:
    bell, other = socket.socketpair()
    memory = MpbKind().make()
    channel = MpbKind().open(memory, 0, bell.fileno())
    assert channel.write(b"x") == 0
    assert channel.look(BYTES | ROOM) == 0
    channel.close()
    for thing in (bell, other):
        thing.close()
    os.close(memory)


@pytest.mark.parametrize("size", [1, 80, 81, 4_000, MESSAGE_MAX_BYTES])
def test_all_that_was_written_lies_in_the_buffer_wherever_that_begins(
    pair: Pair, size: int
) -> None:
    one, other = pair.channels
    for number in range(70):  # at each line of the buffer
        written = b""
        while count := one.write(bytes([number]) * size):
            written += bytes([number]) * count
        assert len(written) >= (64 if size < 80 else 2 * size if size < 100 else size)
        assert other.read() == written


def test_what_the_dead_have_given_is_read_whatever_they_have_not_taken(pair: Pair) -> None:
    one, other = pair.channels
    said = [b"%d" % number * 100 for number in range(9)]
    for words in said:
        assert other.write(words) == len(words)
    assert one.write(b"never taken") > 0
    other.close()
    wait_for(lambda: not one.look(ROOM), "its end to be noticed")
    heard = b""
    while data := one.read():
        heard += data
    assert heard == b"".join(said)
    assert one.look(BYTES | ROOM) == 0
    assert one.write(b"to nobody") == 0


def test_who_writes_to_the_dead_still_reads_what_they_have_said(pair: Pair) -> None:
    one, other = pair.channels
    other.write(b"last words")
    assert one.look(BYTES) == BYTES
    other.close()
    threading.Event().wait(0.1)  # twice as long as nobody looks who lives
    assert one.write(b"x") == 0
    assert one.read() == b"last words"
    assert one.read() == b""


def test_bells_ring_for_those_who_sleep_for_what_happened(pair: Pair) -> None:
    one, other = pair.channels
    one.write(b"x")
    assert rang(pair.bells[1]) == 0  # it has not said that it sleeps
    one.look(0)
    other.say_asleep(BYTES)
    one.write(b"y")
    assert rang(pair.bells[1]) == 1
    one.write(b"z")
    assert rang(pair.bells[1]) == 0  # once for a sleep
    one.say_asleep(BYTES)
    assert other.read() == b"xyz"
    assert rang(pair.bells[0]) == 0  # it does not wait for room
    one.write(b"w")
    one.say_asleep(BYTES | ROOM)
    assert other.read() == b"w"
    assert rang(pair.bells[0]) == 1


def test_memory_that_may_shrink_and_other_memory_is_refused(pair: Pair) -> None:
    memory = MpbKind().make()
    bare = os.memfd_create("bare", os.MFD_CLOEXEC)
    os.write(bare, os.pread(memory, CHANNEL_BYTES, 0))
    reads, writes = os.pipe()
    ring = make_segment()
    for descriptor in (bare, ring, reads):
        with pytest.raises(MpbError):
            MpbKind().open(descriptor, 1, pair.bells[0].fileno())
    with pytest.raises(MpbError):  # who lives there already
        MpbKind().open(pair.memory, 1, pair.bells[0].fileno())
    with pytest.raises(MpbError):  # a FIFO has no bells that never wait
        MpbKind().open(memory, 1, writes)
    for descriptor in (bare, ring, reads, writes, memory):
        os.close(descriptor)


def test_who_writes_in_the_name_of_the_living_ends_the_channel(pair: Pair) -> None:
    one = pair.channels[0]
    one.write(b"x")
    os.pwrite(pair.memory, struct.pack("=Q", 9 << 36), TAKEN_AT)
    assert one.look(BYTES) < 0
    assert one.look(0) == 0  # a side that waits for nothing needs no wake-up in each iteration
    for call in (one.read, lambda: one.write(b"y")):
        with pytest.raises(CoreGoneError):
            call()


def talk(channel: MpbChannel, chance: random.Random) -> None:
    channel.say_asleep(chance.randrange(4))
    channel.look(3)
    channel.write(chance.randbytes(chance.choice((1, 100, 9_000))))
    if chance.random() < 0.7:
        channel.read()


@pytest.mark.parametrize("seed", range(20))
def test_whatever_stands_in_the_memory_an_error_comes_of_it_or_nothing(seed: int) -> None:
    pair, chance = Pair(), random.Random(seed)
    for _ in range(300):
        if chance.random() < 0.2:
            place = chance.randrange(0, SLEEPS_AT if chance.random() < 0.1 else 2_304, 8)
            word = chance.choice((bytes(8), b"\xff" * 8, chance.randbytes(8), b"\0\1" * 4))
            os.pwrite(pair.memory, word, place)
        for channel in pair.channels:
            with suppress(MpbError):
                talk(channel, chance)
    pair.close()
