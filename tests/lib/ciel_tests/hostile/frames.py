"""Mutated frames at the port of a memory server, from clients, from peers and from strangers."""

from __future__ import annotations

import os
import random
import select
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum, auto
from typing import Final, NamedTuple

from ciel.memory import local
from ciel.memory.page_server import (
    EXTENT_BYTES,
    EXTENT_PAGES,
    PAGE_BYTES,
    TOKEN_BYTES,
    Holding,
    PageServer,
    Role,
    checksum,
)
from ciel.testing.homes import private_bytes, wait_for

FRAME: Final = struct.Struct("<IBBHQQQQQII")
READ, WRITE, TRIM, FORWARD, FORWARD_TRIM, SYNC = range(1, 7)
OK, STALE, NO_SPACE, DAMAGED = range(4)
OF_CLIENTS, OF_PEERS = (READ, WRITE, TRIM), (FORWARD, FORWARD_TRIM, SYNC)
WITH_PAGES: Final = frozenset((WRITE, FORWARD, SYNC))

VOLUME: Final = 0x0102030405060708
EPOCH: Final = 5
OWN, FOLLOWED = 0, 1  # the extents of which the server is the primary, and a backup
WHOLE, USED = 128, 192  # of each extent, the pages before are whole, or used
PAGES_MAX: Final = 3  # of a frame, before it is mutated
FRAMES_MAX: Final = 16  # of a connection
STRANGERS: Final = 16  # one of so many connections has no token
EXTREMES: Final = (
    0, 1, 2, EPOCH - 1, EPOCH + 1, 255, 256, 2**16 - 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1,
)  # fmt: skip
FIELDS: Final = ((0, 4), (4, 1), (5, 1), (8, 8), (32, 8), (40, 8), (48, 4), (52, 4))
"""The offsets and sizes of the fields by which the server judges a frame."""
WITHIN_S: Final = 10.0


class Verdict(Enum):
    """The reaction of a server to a frame."""

    ANSWERS = auto()
    CLOSES = auto()
    WAITS = auto()  # for the rest, or it takes what follows for another frame
    WRITES = auto()  # the mutation has left it valid


class Frame(NamedTuple):
    """The header of a frame."""

    size: int
    op: int
    packed: int
    status: int
    id: int
    session: int
    sequence: int
    volume: int
    page: int
    pages: int
    epoch: int

    def is_malformed(self, is_peer: bool) -> bool:
        """Whether the server closes the connection after it (docs/protocol/memory.md)."""
        first = self.page % EXTENT_PAGES
        if not 0 < self.pages <= EXTENT_PAGES - first or self.page >= EXTENT_PAGES << 32:
            return True
        if self.op not in (OF_PEERS if is_peer else OF_CLIENTS) or self.packed > 1:
            return True
        if not is_peer and self.id == 0:
            return True
        if self.op not in WITH_PAGES or (self.op == SYNC and self.size == 0):
            return self.size != 0
        if self.packed:
            return not 6 * self.pages <= self.size <= (PAGE_BYTES + 6) * self.pages
        return self.size != self.pages * (PAGE_BYTES + 4)

    def is_served(self, is_peer: bool) -> bool:
        """Whether the server has the extent, in the role and the epoch that the frame needs."""
        extent = self.page // EXTENT_PAGES
        if is_peer:
            return (self.volume, extent) == (VOLUME, FOLLOWED) and self.epoch >= EPOCH
        return (self.volume, extent, self.epoch) == (VOLUME, OWN, EPOCH)

    def is_read_of_packed(self) -> bool:
        """Whether it asks for whole pages of the own extent where the server has packed ones."""
        first = self.page % EXTENT_PAGES
        is_whole = self.op == READ and not self.packed and self.is_served(is_peer=False)
        return is_whole and first < USED and first + self.pages > WHOLE


class Mutant(NamedTuple):
    """A frame that was mutated: its bytes, its header unless that is cut, and the verdict."""

    content: bytes
    header: Frame
    verdict: Verdict


class Done(NamedTuple):
    """The numbers of frames and connections, and the growth of the memory of the process.

    The server had to close the connection after the `malformed` frames, and to reply to the
    `answered` ones. The rest were cut off, or longer than their headers say. The `unadmitted`
    frames followed no valid token.
    """

    frames: int
    connections: int
    unadmitted: int
    malformed: int
    answered: int
    growth_bytes: int


class Target:
    """A memory server that is the primary of one extent and a backup of another one.

    It listens at a TCP port and at a UNIX socket.
    """

    def __init__(self) -> None:
        self.pages = PageServer(8 * EXTENT_BYTES)
        self._listening = [socket.create_server(("127.0.0.1", 0)), local.listen()[0]]
        for each in self._listening:
            self.pages.listen(each)
        self.pages.lease(time.monotonic() + 86400.0)
        self.hold(Holding(VOLUME, OWN, EPOCH, Role.PRIMARY))
        self.hold(Holding(VOLUME, FOLLOWED, EPOCH, Role.BACKUP))
        self.content = []
        for extent, op, session in ((OWN, WRITE, 1), (FOLLOWED, FORWARD, 0)):
            pages = [os.urandom(PAGE_BYTES if n < WHOLE else 10 * n) for n in range(USED)]
            payload, page = payload_of(pages, is_packed=True), extent * EXTENT_PAGES
            lengths = [*map(len, pages), *[0] * (EXTENT_PAGES - USED)]
            self.content.append(struct.pack(f"<{EXTENT_PAGES}H", *lengths) + b"".join(pages))
            with self.connect(session, 0) as connected:
                header = (len(payload), op, 1, 0, 1, 1, 1, VOLUME, page, USED, EPOCH)
                connected.sendall(FRAME.pack(*header) + payload)
                assert Frame(*FRAME.unpack(taken(connected, FRAME.size))).status == OK

    def close(self) -> None:
        self.pages.close()
        for each in self._listening:
            each.close()

    def hold(self, holding: Holding) -> None:
        self.pages.hold([holding])

    def reach(self, number: int) -> socket.socket:
        """Connect, to one of the two sockets in turns."""
        listening = self._listening[number % 2]
        connected = socket.socket(listening.family)
        connected.settimeout(WITHIN_S)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connected.connect(listening.getsockname())
        return connected

    def connect(self, session: int, number: int) -> socket.socket:
        """Connect with a token, as a client, or as a peer if the session is 0."""
        token = os.urandom(TOKEN_BYTES)
        self.pages.allow(token, WITHIN_S)
        connected = self.reach(number)
        connected.sendall(token + struct.pack("<Q", session))
        return connected

    def has_content(self, connected: socket.socket, extent: int, epoch: int) -> bool:
        """Read an extent of which the server is the primary; whether it has its content."""
        page = extent * EXTENT_PAGES
        connected.sendall(FRAME.pack(0, READ, 1, 0, 1, 0, 0, VOLUME, page, EXTENT_PAGES, epoch))
        reply = Frame(*FRAME.unpack(taken(connected, FRAME.size)))
        payload = taken(connected, reply.size)
        return reply.status == OK and payload[4 * EXTENT_PAGES :] == self.content[extent]


def payload_of(pages: list[bytes], is_packed: bool) -> bytes:
    """Return pages with their checksums, and with their lengths if they are packed."""
    lengths = [len(each) for each in pages] if is_packed else []
    sums = map(checksum, pages)
    return struct.pack(f"<{len(pages)}I{len(lengths)}H", *sums, *lengths) + b"".join(pages)


def taken(connected: socket.socket, count: int) -> bytes:
    """Receive so many bytes; raise AssertionError if the connection ends before."""
    pieces = bytearray()
    while len(pieces) < count:
        piece = connected.recv(count - len(pieces))
        assert piece, "a healthy connection has ended"
        pieces += piece
    return bytes(pieces)


# --- frames ---------------------------------------------------------------------------------------

PAYLOADS: Final = [
    [payload_of([b"m" * length] * count, bool(packed)) for count in range(PAGES_MAX + 1)]
    for packed, length in enumerate((PAGE_BYTES, 1000))
]


def judged(content: bytes, is_peer: bool, is_damaged: bool) -> Mutant:
    """Return what a server has to do with a frame; `is_damaged`: its pages are."""
    if len(content) < FRAME.size:
        return Mutant(content, Frame(*[0] * 11), Verdict.WAITS)
    header = Frame(*FRAME.unpack_from(content))
    rest = len(content) - FRAME.size - header.size
    if header.is_malformed(is_peer) or (not is_peer and header.is_read_of_packed()):
        verdict = Verdict.CLOSES
    elif rest < 0:
        verdict = Verdict.WAITS
    elif header.op != READ and header.is_served(is_peer) and not (is_damaged and header.size):
        verdict = Verdict.WRITES
    else:
        verdict = Verdict.WAITS if rest else Verdict.ANSWERS
    return Mutant(content, header, verdict)


def mutated(chance: random.Random, is_peer: bool) -> Mutant:
    """Return a mutated frame that no server may carry out, unless it is a read."""
    while True:
        op = chance.choice(OF_PEERS if is_peer else OF_CLIENTS)
        packed, count = chance.randrange(2), chance.randrange(1, PAGES_MAX + 1)
        page = EXTENT_PAGES * (FOLLOWED if is_peer else OWN) + chance.randrange(EXTENT_PAGES - 4)
        payload = PAYLOADS[packed][count if op in WITH_PAGES else 0]
        id = chance.getrandbits(32) + 1
        header = (len(payload), op, packed, 0, id, 1, 1, VOLUME, page, count, EPOCH)
        content = bytearray(FRAME.pack(*header) + payload)
        kind, is_damaged = chance.random(), False
        if kind < 0.75:
            for _ in range(chance.randrange(1, 4)):
                content[chance.randrange(FRAME.size)] ^= chance.randrange(1, 256)
        elif kind < 0.85:
            at, size = chance.choice(FIELDS)
            extreme = chance.choice(EXTREMES) % (1 << 8 * size)
            content[at : at + size] = extreme.to_bytes(size, "little")
        elif kind < 0.92 and payload:
            content[chance.randrange(FRAME.size, len(content))] ^= chance.randrange(1, 256)
            is_damaged = True
        elif kind < 0.96:
            del content[chance.randrange(1, len(content)) :]
        else:
            content = bytearray(chance.randbytes(chance.choice((8, FRAME.size, 200))))
        mutant = judged(bytes(content), is_peer, is_damaged)
        if mutant.verdict is not Verdict.WRITES:
            return mutant


def batch(chance: random.Random, is_peer: bool) -> list[Mutant]:
    """Return the frames of a connection, of which the last may end it."""
    mutants = [mutated(chance, is_peer)]
    while mutants[-1].verdict is Verdict.ANSWERS and len(mutants) < FRAMES_MAX:
        mutants.append(mutated(chance, is_peer))
    return mutants


# --- connections ----------------------------------------------------------------------------------


def expect_an_end(connected: socket.socket, mutants: list[Mutant], is_peer: bool) -> None:
    """Send frames; raise AssertionError unless the server answers valid ones, and then closes.

    It has to close after a malformed frame by itself, and after others at the end of the stream.
    """
    received = bytearray()
    try:
        connected.sendall(b"".join([mutant.content for mutant in mutants]))
        if mutants[-1].verdict is not Verdict.CLOSES:
            connected.shutdown(socket.SHUT_WR)
        while piece := connected.recv(1 << 16):
            received += piece
    except TimeoutError:
        raise AssertionError(f"a connection stays open after {mutants[-1]}") from None
    except (ConnectionResetError, BrokenPipeError):
        pass  # it had not read all frames; its last replies may be lost
    at = 0
    for mutant in mutants:
        if at + FRAME.size > len(received):
            return
        reply, sent = Frame(*FRAME.unpack_from(received, at)), mutant.header
        assert (reply.op, reply.id) == (sent.op, sent.id), f"{mutant}: {reply}"
        assert mutant.verdict is not Verdict.CLOSES, f"{mutant}: {reply}"
        is_read = sent.op == READ and sent.is_served(is_peer)
        assert (reply.size > 0) == is_read, f"{mutant}: {reply}"
        assert (reply.status == OK) if is_read else reply.status, f"{mutant}: {reply}"
        at += FRAME.size + reply.size
    assert at >= len(received), "the server has sent more than replies"


def intrude(target: Target, chance: random.Random, number: int) -> int:
    """Connect as a stranger without a valid token; return how many frames follow."""
    mutants = batch(chance, is_peer=False)
    hello = chance.randbytes(chance.choice((0, 1, 39, 40, 41, 100)))
    with target.reach(number) as connected:
        try:
            connected.sendall(hello + b"".join([mutant.content for mutant in mutants]))
            is_silent = not select.select([connected], [], [], 0)[0] or not connected.recv(1)
            assert is_silent, "a stranger gets an answer"
        except (ConnectionResetError, BrokenPipeError):
            pass
    return len(mutants)


@contextmanager
def unharmed(target: Target) -> Iterator[socket.socket]:
    """Compare the server before and after the block; yield the connection of a healthy client."""
    descriptors = len(os.listdir("/proc/self/fd"))
    before = target.pages.figures()
    with target.connect(1, 0) as healthy:
        yield healthy
        assert target.has_content(healthy, OWN, EPOCH), "the content has changed"
    after = target.pages.figures()
    assert (after.pages_used, after.extents) == (before.pages_used, before.extents)
    wait_for(lambda: len(os.listdir("/proc/self/fd")) <= descriptors, "the ends of connections")
    target.hold(Holding(VOLUME, FOLLOWED, EPOCH + 1, Role.PRIMARY))
    with target.connect(1, 0) as other:
        assert target.has_content(other, FOLLOWED, EPOCH + 1), "the content of a backup has changed"


def attack(count: int, growth_max_bytes: int) -> Done:
    """Send mutated frames, some of them without a valid token or as a peer.

    Raises AssertionError if the server does more than to close connections.
    """
    target, chance = Target(), random.Random(6)
    frames = connections = unadmitted = malformed = answered = 0
    memory_bytes = None
    try:
        with unharmed(target) as healthy:
            while frames < count:
                connections += 1
                if memory_bytes is None and frames > count // 20:  # the buffers exist
                    memory_bytes = private_bytes(os.getpid())
                if connections % 5000 == 0:
                    assert target.has_content(healthy, OWN, EPOCH), "the content has changed"
                if connections % STRANGERS == 0:
                    sent = intrude(target, chance, connections // STRANGERS)
                    unadmitted += sent
                    frames += sent
                    continue
                is_peer = connections % 4 == 1
                mutants = batch(chance, is_peer)
                session = 0 if is_peer else chance.getrandbits(40) + 1
                with target.connect(session, connections // 2) as connected:
                    expect_an_end(connected, mutants, is_peer)
                frames += len(mutants)
                malformed += mutants[-1].verdict is Verdict.CLOSES
                answered += sum(mutant.verdict is Verdict.ANSWERS for mutant in mutants)
        growth_bytes = private_bytes(os.getpid()) - (memory_bytes or 0)
        assert growth_bytes <= growth_max_bytes, f"the process has grown by {growth_bytes} bytes"
    finally:
        target.close()
    return Done(frames, connections, unadmitted, malformed, answered, growth_bytes)
