"""Messages between cores (`mpb`) as a channel of the control plane, see `ciel.net.channels.Kind`.

A way is a segment of two cores, and each side is one of them. What `write` takes goes as one
message that lies wholly in the core's buffer when `write` returns: it is read even if the writer
dies the moment after. A core gives to another one only once that one has answered, so each side's
first message, an empty one, asks for that, and nothing is written before it was taken.

Behind the segment lies a line for each side in which it says what it sleeps for; who has something
of it rings, with a byte on the socket. No bell is lost. A side that sleeps (1) says so, (2) adds to
its own bell in the segment, (3) looks once more. The other one (a) gives or takes, (b) adds to that
same bell, as MPB does after every move, (c) looks whether anybody sleeps. Additions to one word
have an order: if (2) comes first, (c) sees that somebody sleeps; if (b) does, (3) sees what was
given or taken. Who rings first takes back what the sleeper said: what it says later, and is taken
back by mistake, it has said before that bell comes, and is woken by it.

Nobody looks for long before sleeping here, and every look is a few calls for each way.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import socket
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Final

from ciel.core.errors import CielError
from ciel.scc.mpb import Core, CoreGoneError, MpbError, Request, make_segment, segment_bytes

BYTES: Final = 1
ROOM: Final = 2
"""What somebody may want of a way."""

LINE_BYTES: Final = 128
LINES: Final = 64
"""Of a buffer, all of them for the one other core."""

HEADS_BYTES: Final = 3 * 16
"""A message lies there in three pieces at most: a half, a half, and where the buffer begins anew in
the midst of one of them."""

MESSAGE_MAX_BYTES: Final = LINES * LINE_BYTES - HEADS_BYTES
READ_BYTES: Final = 64 * 1024

SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
SLEEPS_AT: Final = -(-segment_bytes(2) // LINE_BYTES) * LINE_BYTES
WAY_BYTES: Final = SLEEPS_AT + 2 * LINE_BYTES

SYSTEM: Final = -13
CORRUPT: Final = -12
FORMAT: Final = -2
"""Errors of mpb.h."""


def make_way() -> int:
    """Make the memory of a way; returns its descriptor, which is the caller's. Raises MpbError."""
    descriptor = -1
    try:
        descriptor = os.memfd_create("ciel-mpb", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        make_segment(descriptor, 2)
        # Allocated now: a page that is missing later would be a signal, on either side.
        os.posix_fallocate(descriptor, 0, WAY_BYTES)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, SEALS)
    except (MpbError, OSError) as error:
        if descriptor >= 0:
            os.close(descriptor)
        raise error if isinstance(error, MpbError) else MpbError(SYSTEM, str(error)) from None
    return descriptor


def _check(descriptor: int) -> None:
    """Memory that can shrink would be a signal at our next access."""
    try:
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
    except OSError:
        seals = 0  # no memory at all
    if seals & SEALS != SEALS or os.fstat(descriptor).st_size != WAY_BYTES:
        raise MpbError(FORMAT, "no way for messages, or of another version")


class MpbWay:
    """One side. `bell_fd` is a socket and stays the caller's. Raises MpbError; what it has failed
    with once, every call fails with.
    """

    def __init__(self, descriptor: int, side: int, bell_fd: int) -> None:
        self._side = side
        self._other = 1 - side
        self._came = b""  # and not read yet
        self._sends: list[tuple[Request, int]] = []  # not taken yet, and how many lines each takes
        self._error: MpbError | None = None
        self._is_gone = False
        self._told = (0, 0)  # pieces given, bells rung, when we last looked who sleeps
        try:
            with ExitStack() as undone:
                _check(descriptor)
                # A socket's number may be another's before whoever closed it has told us.
                bell = socket.fromfd(bell_fd, socket.AF_UNIX, socket.SOCK_STREAM)
                self._bell = undone.enter_context(bell)
                bell.getsockopt(socket.SOL_SOCKET, socket.SO_TYPE)  # a FIFO is none
                self._memory = undone.enter_context(mmap.mmap(descriptor, WAY_BYTES))
                self._core = Core(descriptor, side)
                undone.pop_all()
        except OSError as error:
            raise MpbError(SYSTEM, str(error)) from None
        self._receive = self._core.irecv(MESSAGE_MAX_BYTES, self._other)
        self._hello: Request | None = self._core.isend(self._other, b"")
        self.is_open = True

    def close(self) -> None:
        """Let go of the memory; what was written is still read by the other side."""
        if self.is_open:
            self.is_open = False
            self._core.close()
            self._memory.close()
            self._bell.close()

    def write(self, data: bytes) -> int:
        """Write what there is room for; returns how many bytes."""
        self._advance()
        content = data[: self._room_bytes]
        if not content:
            return 0
        send = self._core.isend(self._other, content)
        if send.moved_bytes < len(content):
            self._is_over(send)
            if not self._is_gone:  # there was room: somebody else has written there
                self._fail(MpbError(CORRUPT, "the other side takes less than there is room for"))
            return 0
        self._sends.append((send, -(-(len(content) + HEADS_BYTES) // LINE_BYTES)))
        self._carry_bell()
        return len(content)

    def read(self) -> bytes:
        """Return what is there, at most READ_BYTES; empty if nothing is."""
        self._advance()
        pieces = []
        left_bytes = READ_BYTES
        while self._came and len(self._came) <= left_bytes:
            pieces.append(self._came)
            left_bytes -= len(self._came)
            self._came = b""
            self._advance()
        return b"".join(pieces)

    @property
    def unread_bytes(self) -> int:
        """How much of what was written is still in our buffer: a message and a half, which the
        other side has taken out and not read, are not known of here.
        """
        self._advance()
        return sum(send.size_bytes for send, _ in self._sends)

    def say_asleep(self, wants: int) -> None:
        """Say what we sleep for, 0: we are awake. Who says that it sleeps then looks once more."""
        if wants and self._hello is not None:
            wants |= ROOM  # whatever the other side does may be what we wait for
        self._memory[SLEEPS_AT + self._side * LINE_BYTES] = wants
        if wants:
            self._core.ring(self._side)

    def look(self, wants: int) -> int:
        """Move on what is under way; returns what there is of BYTES and ROOM, or a negative
        number when the way is spoilt.
        """
        try:
            self._advance()
        except CielError:
            return -1 if wants else 0
        return wants & (bool(self._came) * BYTES | (self._room_bytes > 0) * ROOM)

    @property
    def _room_bytes(self) -> int:
        if self._is_gone or self._hello is not None:
            return 0
        lines = LINES - sum(lines for _, lines in self._sends)
        return max(0, lines * LINE_BYTES - HEADS_BYTES)

    def _advance(self) -> None:
        if self._error is not None:
            raise self._error
        self._core.push()
        while not self._came and self._is_over(self._receive):
            self._came = self._receive.content
            self._receive = self._core.irecv(MESSAGE_MAX_BYTES, self._other)
        if self._hello is not None and self._is_over(self._hello):
            self._hello = None
        if self._sends:
            self._sends = [send for send in self._sends if not self._is_over(send[0])]
        self._carry_bell()

    def _is_over(self, request: Request) -> bool:
        if not request.is_over:
            return False
        try:
            return self._core.test(request)
        except CoreGoneError as error:
            if self._core.lives(self._other):  # it says so, or somebody who wrote there for it
                self._fail(error)
            self._is_gone = True  # as its socket shows, in its own time
            return False
        except MpbError as error:
            self._fail(error)
            raise

    def _fail(self, error: MpbError) -> None:
        self._error = error
        raise error

    def _carry_bell(self) -> None:
        """Ring, if the other side sleeps for what was moved since we last looked."""
        counters = self._core.counters()
        told = counters["pieces_sent"], counters["rings"]
        place = SLEEPS_AT + self._other * LINE_BYTES
        if told != self._told:
            moved = ROOM if told[0] == self._told[0] else BYTES | ROOM
            self._told = told
            if self._memory[place] & moved:
                self._memory[place] = 0
                # A socket that is full wakes it as well, and one that is closed ends us.
                with suppress(OSError):
                    self._bell.send(b"\0", socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)


@dataclass(slots=True)
class _Watch:
    found: Callable[[int], object]
    wants: int = 0


class Lookout:
    """The ways of one event loop."""

    spin_us = 0.0

    def __init__(self) -> None:
        self._watches: dict[MpbWay, _Watch] = {}

    def __len__(self) -> int:
        return len(self._watches)

    def glance_at(self, poller_fd: int) -> None:
        """Nothing is ever late for our looking."""

    def add(self, way: MpbWay, found: Callable[[int], object]) -> None:
        self._watches[way] = _Watch(found)

    def remove(self, way: MpbWay) -> None:
        del self._watches[way]

    def want(self, way: MpbWay, wants: int) -> None:
        self._watches[way].wants = wants

    def before_wait(self) -> bool:
        """Say whether the loop need not wait; else every way has said that it sleeps."""
        for way, watch in self._watches.items():
            way.say_asleep(watch.wants)
        found = [way.look(watch.wants) for way, watch in self._watches.items()]
        if any(found):
            self._wake()
        return any(found)

    def after_wait(self) -> None:
        """Have all be awake, and call those that found something."""
        self._wake()
        for way, watch in list(self._watches.items()):
            # One that is gone by an earlier call is not looked at, it may be closed.
            if way in self._watches and (what := way.look(watch.wants)):
                watch.found(what)

    def _wake(self) -> None:
        for way in self._watches:
            way.say_asleep(0)


class MpbKind:
    """Makes and opens ways. How long to look before sleeping is asked of every kind; here nobody
    does. Raises MpbError.
    """

    name = "mpb"

    def __init__(self, spin_us: float | None = None) -> None:
        self.lookout = Lookout()

    def make(self) -> int:
        return make_way()

    def open(self, descriptor: int, side: int, bell_fd: int) -> MpbWay:
        return MpbWay(descriptor, side, bell_fd)
