"""Tests that every channel must pass: a channel carries bytes in both directions between two sides.

A test class inherits `ChannelSuite`. It defines how to create a pair of sides, and how another
process opens one of them.
"""

from __future__ import annotations

import os
import random
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import pytest

from ciel.scc.mpb_channels import BYTES, ROOM, MpbKind
from ciel.scc.ring import Ring, make_segment

WAIT_S = 20.0
CHILD = """
import os, sys
from ciel.testing import channel_suite

end = channel_suite.{opener}(*map(int, sys.argv[2:]))
channel_suite.{role}(end)
"""


class End(Protocol):
    """One side of a channel."""

    def write(self, data: bytes, /) -> int:
        """Write as many bytes as the channel has room for now; return their number."""

    def read(self) -> bytes:
        """Return some of the bytes that have arrived; b"" if there are none."""

    def wait(self, wants_room: bool = False, /) -> bool:
        """Wait until there are bytes to read (or room, if wanted). Return False if the other side
        is closed and all its bytes were read.
        """

    def close(self) -> None: ...


# --- sides of channels ----------------------------------------------------------------------------


class SocketEnd:
    """A side of a socket pair."""

    def __init__(self, fd: int) -> None:
        self.socket = socket.socket(fileno=fd)
        self.socket.setblocking(False)
        self._next = b""

    def write(self, data: bytes) -> int:
        try:
            return self.socket.send(data)
        except (BlockingIOError, BrokenPipeError, ConnectionResetError):
            return 0

    def read(self) -> bytes:
        if self._next:
            data, self._next = self._next, b""
            return data
        try:
            return self.socket.recv(65536)
        except (BlockingIOError, ConnectionResetError):
            return b""

    def wait(self, wants_room: bool = False) -> bool:
        readable, writable, _ = select.select(
            [self.socket], [self.socket] if wants_room else [], [], WAIT_S
        )
        if not readable:
            return bool(writable)
        self._next += self.read()
        return bool(self._next)

    def close(self) -> None:
        self.socket.close()


class RingEnd:
    """A side of a ring, with a socket for wake-ups."""

    def __init__(self, segment: int, side: int, bell: int, spin_us: int = 0) -> None:
        self.bell = bell
        self.ring = Ring(segment, side, bell, bell, spin_us)
        self.write, self.read = self.ring.write, self.ring.read

    def wait(self, wants_room: bool = False) -> bool:
        return self.ring.wait(wants_room)

    def close(self) -> None:
        self.ring.close()
        os.close(self.bell)


class MpbEnd:
    """A side of a channel of messages between two cores, with a socket for wake-ups."""

    def __init__(self, segment: int, side: int, bell: int) -> None:
        kind = MpbKind()
        self.bell = bell
        self.channel = kind.open(segment, side, bell)
        self.write, self.read = self.channel.write, self.channel.read
        self._lookout = kind.lookout
        self._lookout.add(self.channel, lambda what: None)

    def wait(self, wants_room: bool = False) -> bool:
        self._lookout.want(self.channel, BYTES | (ROOM if wants_room else 0))
        is_over = False
        while not self._lookout.before_wait():
            if is_over:
                return False
            try:
                is_over = not os.read(self.bell, 65536)
            except ConnectionResetError:  # the peer did not read our wake-ups
                is_over = True
        return True

    def close(self) -> None:
        self.channel.close()
        os.close(self.bell)


# --- roles of the peer ----------------------------------------------------------------------------


def echo(end: End) -> None:
    """Send all received bytes back, until the peer closes."""
    while end.wait():
        while data := end.read():
            send_all(end, data)


def count_up(end: End) -> None:
    """Write numbers without end; print after every 64 how many were written."""
    for number in range(1 << 30):
        send_all(end, number.to_bytes(8, "big"))
        if number % 64 == 0:
            os.write(1, b"%d\n" % number)


def send_all(end: End, data: bytes) -> None:
    """Write all bytes, without reading; return early if the peer closes."""
    while data:
        count = end.write(data)
        data = data[count:]
        if not count and not end.wait(True):
            return


def receive(end: End, size_bytes: int) -> bytes:
    """Read `size_bytes` bytes; fewer only if the peer closes."""
    data = b""
    while len(data) < size_bytes:
        piece = end.read()
        data += piece
        if not piece and not end.wait():
            break
    return data


def in_thread(call: Callable[[], object]) -> threading.Thread:
    """Call a function in a thread."""
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    return thread


class ChannelSuite:
    """Tests the guarantees that a channel gives to both sides."""

    opener: str
    """The name of the class in this module that opens a side in another process."""

    piece_bytes = 10_000
    """A size of pieces, of which the channel must have room for more than one."""

    @pytest.fixture
    def pair(self) -> Iterator[tuple[End, End]]:
        """Yield the two sides of a channel. A test may close a side before the fixture does."""
        raise NotImplementedError

    def child_arguments(self) -> tuple[End, list[int]]:
        """Return one side, and the arguments with which `opener` opens the other side in a child.
        The child inherits the descriptors among them; `forget` closes them in this process.
        """
        raise NotImplementedError

    def forget(self, numbers: list[int]) -> None:
        """Close this process's copies of the descriptors that the child has inherited."""
        raise NotImplementedError

    def start(self, role: str) -> tuple[End, subprocess.Popen[bytes]]:
        """Start a child that runs the function `role` on the other side."""
        end, numbers = self.child_arguments()
        script = CHILD.format(opener=self.opener, role=role)
        child = subprocess.Popen(
            [sys.executable, "-c", script, self.opener, *map(str, numbers)],
            stdout=subprocess.PIPE,
            close_fds=False,  # only the descriptors of `child_arguments` are inheritable
        )
        self.forget(numbers)
        return end, child

    # --- bytes ------------------------------------------------------------------------------------

    def test_nothing_comes_of_nothing(self, pair: tuple[End, End]) -> None:
        one, other = pair
        assert one.write(b"") == 0
        assert other.read() == b""
        assert one.write(b"x") == 1
        assert other.wait()
        assert other.read() == b"x"
        assert other.read() == b""

    @pytest.mark.parametrize("seed", [1, 2, 3])
    def test_every_byte_arrives_in_order_whatever_the_pieces(
        self, pair: tuple[End, End], seed: int
    ) -> None:
        chance = random.Random(seed)
        sent = [chance.randbytes(400_000), chance.randbytes(300_000)]
        got = [b"", b""]

        def talk(side: int) -> None:
            end, mine, pieces = pair[side], sent[side], random.Random(seed + side)
            place = 0
            while place < len(mine) or len(got[side]) < len(sent[1 - side]):
                size = pieces.choice((1, 7, 300, 5_000, 70_000, 200_000))
                count = end.write(mine[place : place + size])
                place += count
                data = end.read()
                got[side] += data
                if not count and not data:
                    end.wait(place < len(mine))

        thread = in_thread(lambda: talk(1))
        talk(0)
        thread.join(WAIT_S)
        assert got == [sent[1], sent[0]]

    def test_what_is_larger_than_the_channel_goes_through_in_pieces(
        self, pair: tuple[End, End]
    ) -> None:
        one, other = pair
        data = random.Random(5).randbytes(5 << 20)
        thread = in_thread(lambda: send_all(one, data))
        assert receive(other, len(data)) == data
        thread.join(WAIT_S)

    def test_who_does_not_read_is_not_written_to_without_bound(self, pair: tuple[End, End]) -> None:
        one, other = pair
        written = 0
        while count := one.write(b"x" * 10_000):
            written += count
            assert written < 16 << 20
        assert one.write(b"y") == 0
        assert len(receive(other, written)) == written
        assert one.wait(True)
        assert one.write(b"y") == 1
        assert receive(other, 1) == b"y"

    def test_two_that_are_full_both_ways_get_on(self, pair: tuple[End, End]) -> None:
        for end in pair:
            while end.write(b"z" * self.piece_bytes):
                pass
        ours = 0
        while piece := pair[0].read():
            ours += len(piece)
        assert pair[1].wait(True)
        assert pair[1].write(b"!") == 1
        assert receive(pair[0], 1) == b"!"
        assert ours > self.piece_bytes

    # --- waiting ----------------------------------------------------------------------------------

    def test_who_waits_is_woken_by_what_is_said(self, pair: tuple[End, End]) -> None:
        one, other = pair
        heard: list[bytes] = []

        def listen() -> None:
            for _ in range(300):
                heard.append(receive(other, 5))
                send_all(other, b"yes")

        thread = in_thread(listen)
        for number in range(300):
            send_all(one, b"%5d" % number)
            assert receive(one, 3) == b"yes"
        thread.join(WAIT_S)
        assert heard == [b"%5d" % number for number in range(300)]

    def test_who_waits_for_room_is_woken_by_who_reads(self, pair: tuple[End, End]) -> None:
        one, other = pair
        while one.write(b"x" * 10_000):
            pass
        woken = threading.Event()

        def await_room() -> None:
            if one.wait(True):
                woken.set()

        thread = in_thread(await_room)
        while not woken.is_set():
            if not other.read():
                assert woken.wait(WAIT_S)
        thread.join(WAIT_S)
        assert one.write(b"y") == 1

    # --- ends -------------------------------------------------------------------------------------

    @pytest.mark.parametrize("side", [0, 1])
    def test_what_was_said_before_the_end_is_heard_and_then_the_end(
        self, pair: tuple[End, End], side: int
    ) -> None:
        leaves, stays = pair[side], pair[1 - side]
        assert leaves.write(b"last words") == 10
        leaves.close()
        assert receive(stays, 100) == b"last words"
        assert not stays.wait()
        assert not stays.wait(False)

    def test_who_waits_hears_of_the_end(self, pair: tuple[End, End]) -> None:
        one, other = pair
        results: list[bool] = []
        thread = in_thread(lambda: results.append(other.wait()))
        one.close()
        thread.join(WAIT_S)
        assert results == [False]

    def test_another_process_answers(self) -> None:
        end, child = self.start("echo")
        data = random.Random(7).randbytes(300_000)
        sent, heard = 0, b""
        while len(heard) < len(data):
            count = end.write(data[sent : sent + 10_000])
            sent += count
            piece = end.read()
            heard += piece
            if not count and not piece:
                assert end.wait(sent < len(data))
        assert heard == data
        end.close()
        assert child.wait(WAIT_S) == 0
        self._stdout(child)

    @pytest.mark.parametrize("after", [1, 20_000])
    def test_of_a_process_that_is_killed_nothing_is_lost_that_it_has_said(self, after: int) -> None:
        end, child = self.start("count_up")
        heard = receive(end, 8 * after)
        child.send_signal(signal.SIGKILL)
        said = [int(line) for line in self._stdout(child).split(b"\n")[:-1]]
        while end.wait():
            heard += end.read()
        end.close()
        numbers = [int.from_bytes(heard[i : i + 8], "big") for i in range(0, len(heard) - 7, 8)]
        assert numbers == list(range(len(numbers)))
        assert len(numbers) > max(said, default=-1)
        assert child.wait(WAIT_S) == -signal.SIGKILL

    def _stdout(self, child: Any) -> bytes:
        data: bytes = child.stdout.read()
        child.stdout.close()
        return data


class SocketChannelSuite(ChannelSuite):
    """Tests a pair of sockets."""

    opener = "SocketEnd"

    @pytest.fixture
    def pair(self) -> Iterator[tuple[End, End]]:
        one, other = socket.socketpair()
        ends = SocketEnd(one.detach()), SocketEnd(other.detach())
        yield ends
        for end in ends:
            end.close()

    def child_arguments(self) -> tuple[End, list[int]]:
        one, other = socket.socketpair()
        other.set_inheritable(True)
        return SocketEnd(one.detach()), [other.detach()]

    def forget(self, numbers: list[int]) -> None:
        os.close(numbers[0])


class RingChannelSuite(ChannelSuite):
    """Tests rings; `spin_us` is how long a side polls before it sleeps."""

    opener = "RingEnd"
    spin_us = 0

    @pytest.fixture
    def pair(self) -> Iterator[tuple[End, End]]:
        bells = [bell.detach() for bell in socket.socketpair()]
        segment = make_segment()
        ends = [RingEnd(segment, side, bells[side], self.spin_us) for side in (0, 1)]
        os.close(segment)
        yield ends[0], ends[1]
        for end in ends:
            if end.ring.is_open:
                end.close()

    def child_arguments(self) -> tuple[End, list[int]]:
        ours, theirs = (bell.detach() for bell in socket.socketpair())
        segment = make_segment()
        for fd in (segment, theirs):
            os.set_inheritable(fd, True)
        return RingEnd(segment, 0, ours, self.spin_us), [segment, 1, theirs, self.spin_us]

    def forget(self, numbers: list[int]) -> None:
        os.close(numbers[0])
        os.close(numbers[2])


class MpbChannelSuite(ChannelSuite):
    """Tests channels of messages between two cores."""

    opener = "MpbEnd"
    piece_bytes = 1_000  # a core's buffer has 8 KiB

    @pytest.fixture
    def pair(self) -> Iterator[tuple[End, End]]:
        bells = [bell.detach() for bell in socket.socketpair()]
        segment = MpbKind().make()
        ends = [MpbEnd(segment, side, bells[side]) for side in (0, 1)]
        os.close(segment)
        for end in ends * 2:  # until both sides have answered
            end.channel.look(0)
        yield ends[0], ends[1]
        for end in ends:
            if end.channel.is_open:
                end.close()

    def child_arguments(self) -> tuple[End, list[int]]:
        ours, theirs = (bell.detach() for bell in socket.socketpair())
        segment = MpbKind().make()
        for fd in (segment, theirs):
            os.set_inheritable(fd, True)
        return MpbEnd(segment, 0, ours), [segment, 1, theirs]

    def forget(self, numbers: list[int]) -> None:
        os.close(numbers[0])
        os.close(numbers[2])
