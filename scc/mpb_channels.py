"""Message-passing buffers (`mpb`) as a channel of the control plane, see `ciel.net.channels.Kind`.

A channel (`MpbChannel`) is a segment of two cores, one for each side. `write` sends its bytes as
one message, which is completely in the core's buffer when `write` returns: the peer can read it
even if the writer dies right afterwards. A core can fill its buffer only after the peer has
answered. Each side therefore first sends an empty message, and writes nothing until the peer has
taken it.

After the segment there is a line for each side, in which a sleeping side announces whether it waits
for bytes or for room. After the peer has written bytes or made room, it rings the sleeping side by
sending a byte on the socket. No bell is lost. A side that sleeps (1) announces it, (2) increments
its own bell in the segment, (3) checks once more. The peer (a) writes or reads bytes, (b)
increments the same bell, as MPB does after every move, (c) checks whether the side sleeps.
Increments of one word are ordered: if (2) comes first, (c) sees the sleep; if (b) comes first, (3)
sees the bytes. The peer clears the announcement before it rings. If this clears a newer
announcement by mistake, that announcement was made before the bell arrived, and the bell wakes the
side.

This channel does not poll before sleeping, because each check takes a few calls per channel.
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
"""The conditions that a side can wait for."""

LINE_BYTES: Final = 128
LINES: Final = 64
"""Lines of a buffer; all of them belong to the only peer."""

HEADS_BYTES: Final = 3 * 16
"""A message has at most three pieces in the buffer: two halves, one of which is split where the
buffer wraps around."""

MESSAGE_MAX_BYTES: Final = LINES * LINE_BYTES - HEADS_BYTES
READ_BYTES: Final = 64 * 1024

SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
SLEEPS_AT: Final = -(-segment_bytes(2) // LINE_BYTES) * LINE_BYTES
CHANNEL_BYTES: Final = SLEEPS_AT + 2 * LINE_BYTES

SYSTEM: Final = -13
CORRUPT: Final = -12
FORMAT: Final = -2
"""Error codes of mpb.h."""


def make_channel() -> int:
    """Create the memory of a channel; returns its descriptor, which the caller owns. Raises
    MpbError.
    """
    descriptor = -1
    try:
        descriptor = os.memfd_create("ciel-mpb", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        make_segment(descriptor, 2)
        # Allocate now: a missing page would later raise a signal on either side.
        os.posix_fallocate(descriptor, 0, CHANNEL_BYTES)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, SEALS)
    except (MpbError, OSError) as error:
        if descriptor >= 0:
            os.close(descriptor)
        raise error if isinstance(error, MpbError) else MpbError(SYSTEM, str(error)) from None
    return descriptor


def _check(descriptor: int) -> None:
    """Check the seals and the size: if the memory shrank, our next access would raise a signal."""
    try:
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
    except OSError:
        seals = 0  # not a memfd
    if seals & SEALS != SEALS or os.fstat(descriptor).st_size != CHANNEL_BYTES:
        raise MpbError(
            FORMAT, "not memory of a message channel, or a different version of ciel created it"
        )


class MpbChannel:
    """One side of a channel. `bell_fd` is a socket that the caller owns. Raises MpbError; after an
    error, every call raises the same error again.
    """

    def __init__(self, descriptor: int, side: int, bell_fd: int) -> None:
        self._side = side
        self._other = 1 - side
        self._arrived = b""  # received bytes that are not read yet
        self._sends: list[tuple[Request, int]] = []  # pending sends, and their lines
        self._error: MpbError | None = None
        self._is_gone = False
        # The numbers of pieces sent and bells rung at the last check whether the peer sleeps.
        self._counted = (0, 0)
        try:
            with ExitStack() as undone:
                _check(descriptor)
                # Keep the bell: its caller may close it before us, and its number may be reused.
                bell = socket.fromfd(bell_fd, socket.AF_UNIX, socket.SOCK_STREAM)
                self._bell = undone.enter_context(bell)
                bell.getsockopt(socket.SOL_SOCKET, socket.SO_TYPE)  # fails for a FIFO
                self._memory = undone.enter_context(mmap.mmap(descriptor, CHANNEL_BYTES))
                self._core = Core(descriptor, side)
                undone.pop_all()
        except OSError as error:
            raise MpbError(SYSTEM, str(error)) from None
        self._receive = self._core.irecv(MESSAGE_MAX_BYTES, self._other)
        self._hello: Request | None = self._core.isend(self._other, b"")
        self.is_open = True

    def close(self) -> None:
        """Release the memory; the peer can still read the written bytes."""
        if self.is_open:
            self.is_open = False
            self._core.close()
            self._memory.close()
            self._bell.close()

    def write(self, data: bytes) -> int:
        """Write as many bytes as there is room for; returns the number."""
        self._advance()
        content = data[: self._room_bytes]
        if not content:
            return 0
        send = self._core.isend(self._other, content)
        if send.moved_bytes < len(content):
            self._is_over(send)
            if not self._is_gone:  # there was room, so another program has written there
                text = "the buffer accepted fewer bytes than it has room for; its memory is damaged"
                self._fail(MpbError(CORRUPT, text))
            return 0
        self._sends.append((send, -(-(len(content) + HEADS_BYTES) // LINE_BYTES)))
        self._ring_if_asleep()
        return len(content)

    def read(self) -> bytes:
        """Return the available bytes, at most READ_BYTES, or none."""
        self._advance()
        pieces = []
        left_bytes = READ_BYTES
        while self._arrived and len(self._arrived) <= left_bytes:
            pieces.append(self._arrived)
            left_bytes -= len(self._arrived)
            self._arrived = b""
            self._advance()
        return b"".join(pieces)

    @property
    def unread_bytes(self) -> int:
        """The number of written bytes that are still in our buffer. Up to one and a half messages
        that the peer has taken out but not read are not included.
        """
        self._advance()
        return sum(send.size_bytes for send, _ in self._sends)

    def say_asleep(self, wants: int) -> None:
        """Announce what this side sleeps for; 0: it is awake. The caller then checks once more."""
        if wants and self._hello is not None:
            wants |= ROOM  # any action of the peer may be the awaited one
        self._memory[SLEEPS_AT + self._side * LINE_BYTES] = wants
        if wants:
            self._core.ring(self._side)

    def look(self, wants: int) -> int:
        """Make progress; return which of the wanted BYTES and ROOM are available, or a negative
        number if the channel has failed.
        """
        try:
            self._advance()
        except CielError:
            return -1 if wants else 0
        return wants & (bool(self._arrived) * BYTES | (self._room_bytes > 0) * ROOM)

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
        while not self._arrived and self._is_over(self._receive):
            self._arrived = self._receive.content
            self._receive = self._core.irecv(MESSAGE_MAX_BYTES, self._other)
        if self._hello is not None and self._is_over(self._hello):
            self._hello = None
        if self._sends:
            self._sends = [send for send in self._sends if not self._is_over(send[0])]
        self._ring_if_asleep()

    def _is_over(self, request: Request) -> bool:
        """Return whether a request has succeeded. Record it if the peer is gone; raise any other
        error.
        """
        if not request.is_over:
            return False
        try:
            return self._core.test(request)
        except CoreGoneError as error:
            if self._core.lives(self._other):  # the peer, or another program, refused a message
                self._fail(error)
            self._is_gone = True  # the peer's socket reports its end
            return False
        except MpbError as error:
            self._fail(error)
            raise

    def _fail(self, error: MpbError) -> None:
        self._error = error
        raise error

    def _ring_if_asleep(self) -> None:
        """Ring if the peer sleeps for bytes or room that have moved since the last check."""
        counters = self._core.counters()
        counted = counters["pieces_sent"], counters["rings"]
        place = SLEEPS_AT + self._other * LINE_BYTES
        if counted != self._counted:
            moved = ROOM if counted[0] == self._counted[0] else BYTES | ROOM
            self._counted = counted
            if self._memory[place] & moved:
                self._memory[place] = 0
                # A full socket wakes the peer as well; a closed one ends this channel.
                with suppress(OSError):
                    self._bell.send(b"\0", socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)


@dataclass(slots=True)
class _Watch:
    found: Callable[[int], object]
    wants: int = 0


class Lookout:
    """The channels of one event loop."""

    spin_us = 0.0

    def __init__(self) -> None:
        self._watches: dict[MpbChannel, _Watch] = {}

    def __len__(self) -> int:
        return len(self._watches)

    def glance_at(self, poller_fd: int) -> None:
        """Do nothing, because this channel never polls before sleeping."""

    def add(self, channel: MpbChannel, found: Callable[[int], object]) -> None:
        self._watches[channel] = _Watch(found)

    def remove(self, channel: MpbChannel) -> None:
        del self._watches[channel]

    def want(self, channel: MpbChannel, wants: int) -> None:
        self._watches[channel].wants = wants

    def before_wait(self) -> bool:
        """Return whether the loop must not wait; otherwise each channel has announced a sleep."""
        for channel, watch in self._watches.items():
            channel.say_asleep(watch.wants)
        found = [channel.look(watch.wants) for channel, watch in self._watches.items()]
        if any(found):
            self._wake()
        return any(found)

    def after_wait(self) -> None:
        """Announce that all channels are awake, and notify the owners of ready ones."""
        self._wake()
        for channel, watch in list(self._watches.items()):
            # An earlier call may have removed it, and it may be closed.
            if channel in self._watches and (what := channel.look(watch.wants)):
                watch.found(what)

    def _wake(self) -> None:
        for channel in self._watches:
            channel.say_asleep(0)


class MpbKind:
    """Makes and opens channels. `spin_us` is ignored, because this channel never polls before
    sleeping. Raises MpbError.
    """

    name = "mpb"

    def __init__(self, spin_us: float | None = None) -> None:
        self.lookout = Lookout()

    def make(self) -> int:
        return make_channel()

    def open(self, descriptor: int, side: int, bell_fd: int) -> MpbChannel:
        return MpbChannel(descriptor, side, bell_fd)
