"""The data path of memory servers: pages, roles, backups, hostile peers (NET-1, NET-5, KVB-3)."""

from __future__ import annotations

import os
import random
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from ciel.memory import local
from ciel.memory.page_server import (
    EXTENT_BYTES,
    EXTENT_PAGES,
    PAGE_BYTES,
    RELEASED_PAGES,
    TOKEN_BYTES,
    Event,
    Holding,
    PageServer,
    PeerLost,
    Role,
    Synced,
    checksum,
)
from ciel.testing.homes import wait_for

FRAME: Final = struct.Struct("<IHHQQQQQII")
READ, WRITE, TRIM, FORWARD, FORWARD_TRIM, SYNC = range(1, 7)
PACKED: Final = 0x100
OK, STALE, NO_SPACE, DAMAGED = range(4)
VOLUME: Final = 7
LATEST: Final = 2**32 - 1  # an epoch that differs from 1 in all bytes
SESSIONS = count(1)
WITHIN_S = 10.0


def page(text: str) -> bytes:
    return text.encode().ljust(PAGE_BYTES, b".")


ZEROS = bytes(PAGE_BYTES)


class Reply(NamedTuple):
    op: int
    status: int
    id: int
    content: bytes


class Caller:
    """A session of a client, or of a peer (session 0), over one connection at a time."""

    def __init__(self, server: Server, session: int | None = None, *, epoch: int = 1) -> None:
        self.session = next(SESSIONS) if session is None else session
        self.epoch = epoch
        self.last_id = 0
        self.use(server)

    def use(self, server: Server) -> None:
        """Connect to a server, instead of the present one."""
        token = os.urandom(TOKEN_BYTES)
        server.pages.allow(token, 5.0)
        self.socket = server.connect()
        self.socket.sendall(token + struct.pack("<Q", self.session))

    def send(self, op: int, first: int, pages: list[bytes] | int, **fields: Any) -> None:
        self.socket.sendall(self.encoded(op, first, pages, **fields))

    def encoded(
        self, op: int, first: int, pages: list[bytes] | int, *, id: int | None = None,
        volume: int = VOLUME, sums: list[int] | None = None, session: int = 0, sequence: int = 0,
    ) -> bytes:  # fmt: skip
        if id is None:
            id = self.last_id = self.last_id + 1
        content = [] if isinstance(pages, int) else pages
        sums = [checksum(each) for each in content] if sums is None else sums
        lengths = [len(each) for each in content] if op & PACKED else []
        payload = struct.pack(f"<{len(sums)}I{len(lengths)}H", *sums, *lengths) + b"".join(content)
        number = pages if isinstance(pages, int) else len(pages)
        header = FRAME.pack(
            len(payload), op, 0, id, session, sequence, volume, first, number, self.epoch
        )
        return header + payload

    def reply(self) -> Reply:
        header = self._take(FRAME.size)
        size_bytes, op, status, id, *_, number, _ = FRAME.unpack(header)
        payload = self._take(size_bytes)
        if op & PACKED:
            return Reply(op, status, id, payload)
        number = size_bytes // (PAGE_BYTES + 4)
        content = payload[4 * number :]
        sums = struct.unpack_from(f"<{number}I", payload)
        for n in range(number):
            assert checksum(content[n * PAGE_BYTES : (n + 1) * PAGE_BYTES]) == sums[n]
        return Reply(op, status, id, content)

    def _take(self, size_bytes: int) -> bytes:
        pieces = b""
        while len(pieces) < size_bytes:
            piece = self.socket.recv(size_bytes - len(pieces))
            if not piece:
                raise EOFError
            pieces += piece
        return pieces

    def write(self, first: int, *pages: bytes) -> int:
        self.send(WRITE, first, list(pages))
        return self.reply().status

    def trim(self, first: int, number: int) -> int:
        self.send(TRIM, first, number)
        return self.reply().status

    def read(self, first: int, number: int = 1) -> bytes | int:
        """Return the content, or the status of a refusal."""
        self.send(READ, first, number)
        status, content = self.reply()[1::2]
        return int(status) or bytes(content)

    def write_packed(self, first: int, *pages: bytes) -> int:
        self.send(WRITE | PACKED, first, list(pages))
        return self.reply().status

    def read_packed(self, first: int, number: int = 1) -> list[bytes]:
        """Return the pages as they were written; one of zeros is empty."""
        self.send(READ | PACKED, first, number)
        status, payload = self.reply()[1::2]
        assert status == OK
        sums = struct.unpack_from(f"<{number}I", payload)
        lengths = struct.unpack_from(f"<{number}H", payload, 4 * number)
        pages, at = [], 6 * number
        for length, expected in zip(lengths, sums, strict=True):
            pages.append(payload[at : at + length])
            at += length
            assert not length or checksum(pages[-1]) == expected
        assert at == len(payload)
        return pages

    def is_waiting(self) -> bool:
        """Whether the server sends nothing for a while."""
        return not select.select([self.socket], [], [], 0.1)[0]

    def is_closed(self) -> bool:
        """Whether the server closes the connection, without another answer."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True


class Server:
    def __init__(self, extents: int = 4, *, is_local: bool = False) -> None:
        self.pages = PageServer(extents * EXTENT_BYTES)
        if is_local:
            self._listening, _ = local.listen()
        else:
            self._listening = socket.create_server(("127.0.0.1", 0))
        self._clients: list[socket.socket] = []
        self.pages.listen(self._listening)
        self.pages.lease(time.monotonic() + 3600.0)

    def connect(self) -> socket.socket:
        client = socket.socket(self._listening.family)
        client.settimeout(WITHIN_S)
        client.connect(self._listening.getsockname())
        self._clients.append(client)
        return client

    def forget_client(self) -> None:
        """Take the last connection from the list of those to close."""
        self._clients.pop()

    def join(self, peer: int, other: Server) -> None:
        """Connect to another server, which becomes the peer of this number."""
        token = os.urandom(TOKEN_BYTES)
        other.pages.allow(token, 5.0)
        with other.connect() as connected:
            self.pages.connect(peer, connected, token)

    def hold(
        self, role: Role, epoch: int = 1, backups: tuple[int, ...] = (),
        joining: tuple[int, ...] = (), *, rejoining: tuple[int, ...] = (), extent: int = 0,
    ) -> None:  # fmt: skip
        self.pages.hold([Holding(VOLUME, extent, epoch, role, backups, joining, rejoining)])

    def happens(self) -> list[Event]:
        """Wait for events."""
        assert select.select([self.pages], [], [], WITHIN_S)[0]
        return self.pages.events()

    def has_got(self, requests: int) -> None:
        """Wait until so many requests have arrived."""
        wait_for(lambda: self.pages.figures().requests >= requests, "the requests")

    def leave(self) -> None:
        self.pages.close()
        for each in (self._listening, *self._clients):
            each.close()


Make = Callable[..., Server]


@pytest.fixture(params=["tcp", "unix"])
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    """Make servers at TCP ports or at UNIX sockets, whose rules are the same."""
    made: list[Server] = []

    def make(extents: int = 4) -> Server:
        made.append(Server(extents, is_local=request.param == "unix"))
        return made[-1]

    yield make
    for server in made:
        server.leave()


@pytest.fixture
def server(make: Make) -> Server:
    """A server that is the primary of the first extent, without backups."""
    server = make()
    server.hold(Role.PRIMARY)
    return server


@pytest.fixture
def pair(make: Make) -> tuple[Server, Server]:
    """A primary, and its backup: its peer 3."""
    primary, backup = make(), make()
    backup.hold(Role.BACKUP)
    primary.join(3, backup)
    primary.hold(Role.PRIMARY, 1, (3,))
    return primary, backup


# --- pages ----------------------------------------------------------------------------------------


def test_what_was_written_is_read_and_the_rest_is_zeros(server: Server) -> None:
    caller = Caller(server)
    assert caller.write(5, page("a"), page("b")) == OK
    assert caller.write(6, page("c")) == OK
    assert caller.read(4, 4) == ZEROS + page("a") + page("c") + ZEROS
    assert server.pages.figures()[:3] == (4 * EXTENT_PAGES, 2, 1)


def test_a_whole_extent_is_one_request(server: Server) -> None:
    caller, content = Caller(server), [os.urandom(PAGE_BYTES) for _ in range(EXTENT_PAGES)]
    assert caller.write(0, *content) == OK
    assert caller.read(0, EXTENT_PAGES) == b"".join(content)


def test_trimmed_pages_are_zeros_and_their_space_is_free(server: Server) -> None:
    caller = Caller(server)
    caller.write(0, page("a"), page("b"), page("c"))
    assert caller.trim(1, EXTENT_PAGES - 1) == OK
    assert caller.read(0, 3) == page("a") + ZEROS * 2
    assert server.pages.figures().pages_used == 1


@pytest.mark.requirement("NET-1")
def test_volumes_and_extents_are_apart(server: Server) -> None:
    server.hold(Role.PRIMARY, extent=1)
    server.pages.hold([Holding(VOLUME + 1, 0, 1, Role.PRIMARY)])
    caller = Caller(server)
    caller.write(0, page("first"))
    caller.write(EXTENT_PAGES, page("second"))
    caller.send(WRITE, 0, [page("other")], volume=VOLUME + 1)
    assert caller.reply().status == OK
    assert caller.read(0) == page("first")
    assert caller.read(EXTENT_PAGES) == page("second")


def test_a_dropped_extent_is_forgotten(server: Server) -> None:
    caller = Caller(server)
    caller.write(0, page("a"))
    server.hold(Role.NONE, 2)
    assert caller.read(0) == STALE
    server.hold(Role.PRIMARY, 3)
    caller.epoch = 3
    assert caller.read(0) == ZEROS


def test_a_full_server_says_so_and_goes_on(make: Make) -> None:
    server = make(extents=1)
    server.hold(Role.PRIMARY)
    server.hold(Role.PRIMARY, extent=1)
    caller = Caller(server)
    assert caller.write(0, *[page("a")] * 255) == OK
    assert caller.write(EXTENT_PAGES, page("b"), page("b")) == NO_SPACE
    assert caller.write(EXTENT_PAGES, page("b")) == OK
    assert caller.write(0, page("again")) == OK
    assert caller.read(0) == page("again")
    assert caller.trim(0, 255) == OK
    assert caller.write(EXTENT_PAGES, page("b"), page("b")) == OK


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES


def test_the_memory_of_free_pages_is_given_back_and_can_be_used_again(make: Make) -> None:
    server = make(32)
    content = [os.urandom(PAGE_BYTES)] * EXTENT_PAGES
    caller = Caller(server)
    for extent in range(32):
        server.hold(Role.PRIMARY, extent=extent)
        assert caller.write(extent * EXTENT_PAGES, *content) == OK
    for extent in range(31):
        assert caller.trim(extent * EXTENT_PAGES, EXTENT_PAGES) == OK
    before = resident_bytes()
    while server.pages.release():
        pass
    assert before - resident_bytes() > 25 * EXTENT_BYTES
    assert caller.read(31 * EXTENT_PAGES, EXTENT_PAGES) == b"".join(content)
    assert caller.read(0) == ZEROS
    assert caller.write(0, *content) == OK
    assert caller.read(0, EXTENT_PAGES) == b"".join(content)
    assert caller.trim(0, EXTENT_PAGES) == OK
    before = resident_bytes()
    assert not server.pages.release()
    assert before - resident_bytes() > EXTENT_BYTES // 2


def test_memory_is_given_back_in_parts() -> None:
    pages = PageServer((RELEASED_PAGES + 1) * PAGE_BYTES)
    try:
        assert pages.release()
        assert not pages.release()
    finally:
        pages.close()


def test_locked_memory_is_given_back_too() -> None:
    try:
        pages = PageServer(EXTENT_BYTES, is_locked=True)
    except OSError as error:
        pytest.skip(f"this process may not lock memory: {error}")
    try:
        before = resident_bytes()
        assert not pages.release()
        assert before - resident_bytes() > EXTENT_BYTES // 2
    finally:
        pages.close()


def _half_sent(server: Server, content: list[bytes]) -> tuple[Caller, bytes]:
    """Start to write a whole extent; return the caller, and the bytes that it has still to send."""
    caller = Caller(server)
    whole = caller.encoded(WRITE, 0, content)
    caller.socket.sendall(whole[: len(whole) // 2])
    return caller, whole[len(whole) // 2 :]


def test_a_write_that_ends_in_the_middle_changes_nothing(server: Server) -> None:
    caller, content = Caller(server), [os.urandom(PAGE_BYTES) for _ in range(EXTENT_PAGES)]
    assert caller.write(0, *content) == OK
    for _ in range(10):
        other, _ = _half_sent(server, [page("x")] * EXTENT_PAGES)
        other.socket.close()
    assert caller.read(0, EXTENT_PAGES) == b"".join(content)
    assert server.pages.figures().pages_used == EXTENT_PAGES


def test_many_long_writes_arrive_at_the_same_time(make: Make) -> None:
    """They take no memory from others, although the server is full."""
    server = make(extents=1)
    server.hold(Role.PRIMARY)
    content = [[os.urandom(PAGE_BYTES) for _ in range(EXTENT_PAGES)] for _ in range(7)]
    halves = [_half_sent(server, each) for each in content]
    assert Caller(server).write(3, page("meanwhile")) == OK
    assert server.pages.figures().pages_used == 1
    for (caller, rest), each in zip(halves, content, strict=True):
        caller.socket.sendall(rest)
        assert caller.reply().status == OK
        assert caller.read(0, EXTENT_PAGES) == b"".join(each)
    assert server.pages.figures().pages_used == EXTENT_PAGES


@pytest.mark.parametrize("at", [0, 40, 255])
def test_a_long_write_with_a_damaged_page_changes_nothing(server: Server, at: int) -> None:
    caller = Caller(server)
    content = [page(str(n)) for n in range(EXTENT_PAGES)]
    assert caller.write(0, *content) == OK
    sums = [checksum(ZEROS)] * EXTENT_PAGES
    sums[at] ^= 1
    caller.send(WRITE, 0, [ZEROS] * EXTENT_PAGES, sums=sums)
    assert caller.reply().status == DAMAGED
    assert caller.read(0, EXTENT_PAGES) == b"".join(content)


def test_a_page_without_its_checksum_is_refused(server: Server) -> None:
    caller = Caller(server)
    caller.send(WRITE, 0, [page("a"), page("b")], sums=[checksum(page("a")), 5])
    assert caller.reply().status == DAMAGED
    assert caller.read(0) == ZEROS


def test_the_checksum_is_crc_32c() -> None:
    assert checksum(b"123456789") == 0xE3069283
    assert checksum(bytes(32)) == 0x8A9136AA
    assert checksum(b"") == 0


@pytest.mark.parametrize("size", [7, 1360, 4079, 4080, 4096, 4099, 8175, 9000])
def test_the_checksum_of_long_content_is_that_of_its_bytes(size: int) -> None:
    content, expected = random.Random(size).randbytes(size), 0xFFFFFFFF
    for byte in content:
        expected ^= byte
        for _ in range(8):
            expected = expected >> 1 ^ (0x82F63B78 if expected & 1 else 0)
    assert checksum(content) == expected ^ 0xFFFFFFFF


# --- packed pages ---------------------------------------------------------------------------------


def used_pages(server: Server) -> int:
    return int(server.pages.figures().pages_used)


def test_packed_pages_are_returned_as_they_were_written(server: Server) -> None:
    caller = Caller(server)
    pages = [b"a", b"", bytes(range(256)) * 4, b"c" * 1025, page("whole"), b"e" * 4095]
    assert caller.write_packed(3, *pages) == OK
    assert caller.read_packed(2, 8) == [b"", *pages, b""]
    assert caller.trim(4, 3) == OK
    assert caller.read_packed(3, 4) == [b"a", b"", b"", b""]


def test_packed_pages_share_the_memory_of_a_page(server: Server) -> None:
    caller = Caller(server)
    assert caller.write_packed(0, *[b"q" * 1024] * 8) == OK
    assert used_pages(server) == 2
    assert caller.write_packed(8, b"h" * 2000, b"t" * 3000) == OK
    assert used_pages(server) == 4
    assert caller.write_packed(10, b"q", b"h" * 2048) == OK  # in the rest of the last two
    assert used_pages(server) == 4
    assert caller.trim(0, 8) == OK
    assert used_pages(server) == 2


@pytest.mark.parametrize("seed", range(30))
def test_packed_pages_never_lack_space_and_none_is_lost(make: Make, seed: int) -> None:
    """Even if all pages are written again and again, with lengths that share pages badly."""
    server, chance = make(2), random.Random(seed)
    for extent in range(2):
        server.hold(Role.PRIMARY, extent=extent)
    caller, model = Caller(server), [b""] * 512
    lengths = [0, 1, 1024, 1025, 2048, 2049, 3072, 3073, 4096]
    for _ in range(60):
        at = chance.randrange(512)
        number = min(chance.choice([1, 2, 16, 256]), 256 - at % 256)
        length = chance.choice([*lengths, None])
        sizes = [chance.choice(lengths) if length is None else length for _ in range(number)]
        pages = [chance.randbytes(size) for size in sizes]
        assert caller.write_packed(at, *pages) == OK
        model[at : at + number] = pages
    assert caller.read_packed(0, 256) + caller.read_packed(256, 256) == model
    assert used_pages(server) <= sum(bool(each) for each in model)
    for start in (0, 256):
        assert caller.trim(start, 256) == OK
    assert used_pages(server) == 0


def test_a_backup_and_a_joining_one_have_packed_pages(
    pair: tuple[Server, Server], make: Make
) -> None:
    primary, backup = pair
    caller = Caller(primary)
    pages = [b"short", page("whole"), b"", b"x" * 2500]
    assert caller.write_packed(7, *pages) == OK
    third = make()
    third.hold(Role.JOINING)
    primary.join(4, third)
    primary.hold(Role.PRIMARY, 2, (3, 4), (4,))
    assert primary.happens() == [Synced(VOLUME, 0, 2, 4)]
    for server in (backup, third):
        server.hold(Role.PRIMARY, 3)
        assert Caller(server, epoch=3).read_packed(7, 4) == pages


@pytest.mark.parametrize("lengths", [(5, 6), (4, 5), (4097, 0), (65535, 65535)])
def test_packed_pages_of_other_lengths_than_the_frame_are_refused(
    server: Server, lengths: tuple[int, int]
) -> None:
    caller = Caller(server)
    assert caller.write_packed(0, b"old", b"old too") == OK
    frame = bytearray(caller.encoded(WRITE | PACKED, 0, [b"abcde", b"fghij"]))
    struct.pack_into("<2H", frame, FRAME.size + 8, *lengths)
    caller.socket.sendall(frame)
    assert caller.reply().status == DAMAGED
    assert caller.read_packed(0, 2) == [b"old", b"old too"]


def test_who_does_not_unpack_pages_gets_none_that_are_packed(server: Server) -> None:
    caller = Caller(server)
    assert caller.write_packed(0, page("whole"), b"packed") == OK
    assert caller.read(0) == page("whole")
    assert caller.read(2) == ZEROS
    caller.send(READ, 0, 2)
    assert caller.is_closed()


# --- roles ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", [Role.NONE, Role.BACKUP, Role.JOINING])
def test_only_the_primary_serves_clients(make: Make, role: Role) -> None:
    server = make()
    server.hold(role)
    caller = Caller(server)
    assert caller.read(0) == STALE
    assert caller.write(0, page("a")) == STALE
    assert caller.trim(0, 1) == STALE


def test_a_client_with_another_epoch_is_told_so(server: Server) -> None:
    server.hold(Role.PRIMARY, 2)
    for epoch in (1, 3):
        assert Caller(server, epoch=epoch).read(0) == STALE
    assert Caller(server, epoch=2).read(0) == ZEROS


def test_a_late_decision_has_no_effect(server: Server) -> None:
    server.hold(Role.PRIMARY, 5)
    server.hold(Role.NONE, 4)
    assert Caller(server, epoch=5).read(0) == ZEROS


def test_a_primary_without_its_lease_serves_nobody(server: Server) -> None:
    caller = Caller(server)
    caller.write(0, page("a"))
    server.pages.lease(0.0)
    assert caller.read(0) == STALE
    assert caller.write(0, page("b")) == STALE
    server.pages.lease(time.monotonic() + 60.0)
    assert caller.read(0) == page("a")


# --- backups --------------------------------------------------------------------------------------


@pytest.mark.requirement("NET-5")
def test_a_backup_that_is_promoted_has_all_pages(pair: tuple[Server, Server]) -> None:
    primary, backup = pair
    caller = Caller(primary)
    caller.write(0, page("a"), page("b"))
    caller.write(1, page("c"))
    caller.trim(0, 1)
    assert backup.pages.figures().pages_used == 1
    backup.hold(Role.PRIMARY, 2)
    caller.epoch = 2
    caller.use(backup)
    assert caller.read(0, 3) == ZEROS + page("c") + ZEROS


def test_a_write_waits_for_its_backups_and_a_read_does_not(make: Make) -> None:
    primary = make()
    primary.hold(Role.PRIMARY, 1, (3,))  # not connected yet
    writer, reader = Caller(primary), Caller(primary)
    writer.send(WRITE, 0, [page("a")])
    primary.has_got(1)
    assert reader.read(0) == ZEROS
    primary.hold(Role.PRIMARY, 2)  # the owner gives the backup up
    assert writer.reply().status == OK
    reader.epoch = 2
    assert reader.read(0) == page("a")


def test_writes_take_effect_in_their_order(make: Make) -> None:
    primary = make()
    primary.hold(Role.PRIMARY, 1, (3,))
    callers = [Caller(primary) for _ in range(5)]
    for number, caller in enumerate(callers):
        caller.send(WRITE, 0, [page(str(number))])
        primary.has_got(number + 1)
    primary.hold(Role.PRIMARY, 2)
    assert [caller.reply().status for caller in callers] == [OK] * 5
    assert Caller(primary, epoch=2).read(0) == page("4")


@pytest.mark.requirement("KVB-3")
def test_a_repeated_request_takes_effect_once(pair: tuple[Server, Server]) -> None:
    """The client did not get the reply, and another one has written since (KVB-3)."""
    primary, backup = pair
    first, second = Caller(primary), Caller(primary)
    first.write(0, page("first"))
    second.write(0, page("second"))
    first.use(primary)
    first.send(WRITE, 0, [page("first")], id=1)
    assert first.reply().status == OK
    assert second.read(0) == page("second")
    backup.hold(Role.PRIMARY, 2)  # which knows of it, too
    first.epoch = second.epoch = 2
    first.use(backup)
    first.send(WRITE, 0, [page("first")], id=1)
    assert first.reply().status == OK
    second.use(backup)
    assert second.read(0) == page("second")


def test_a_write_that_a_server_has_forgotten_with_its_pages_is_not_answered_as_done(
    make: Make,
) -> None:
    """The backup has taken it over, and the primary has never completed it."""
    server = make()
    server.hold(Role.BACKUP)
    caller, peer = Caller(server), Caller(server, 0)
    peer.send(FORWARD, 0, [page("a")], id=1, session=caller.session)
    assert peer.reply().status == OK
    server.hold(Role.JOINING, 2)
    server.hold(Role.PRIMARY, 3)
    caller.epoch = 3
    assert caller.read(0) == ZEROS
    caller.send(WRITE, 0, [page("a")], id=1)
    assert caller.reply().status == OK
    assert caller.read(0) == page("a")


def test_a_request_that_is_repeated_while_it_waits_is_answered_once(make: Make) -> None:
    primary = make()
    primary.hold(Role.PRIMARY, 1, (3,))
    caller = Caller(primary)
    caller.send(WRITE, 0, [page("a")])
    before = caller.socket
    caller.use(primary)
    caller.send(WRITE, 0, [page("a")], id=1)
    primary.has_got(2)
    primary.hold(Role.PRIMARY, 2)
    assert caller.reply()[:3] == (WRITE, OK, 1)
    before.settimeout(0.2)
    with pytest.raises(TimeoutError):
        before.recv(1)


def test_a_primary_that_lost_its_role_refuses_what_waits(make: Make) -> None:
    primary = make()
    primary.hold(Role.PRIMARY, 1, (3,))
    caller = Caller(primary)
    caller.send(WRITE, 0, [page("a")])
    primary.has_got(1)
    primary.hold(Role.NONE, 2)
    assert caller.reply().status == STALE


def test_an_earlier_primary_is_refused_by_its_backups(pair: tuple[Server, Server]) -> None:
    primary, backup = pair
    caller = Caller(primary)
    caller.write(0, page("a"))
    backup.hold(Role.PRIMARY, 2)
    caller.send(WRITE, 0, [page("b")])
    assert primary.happens() == [PeerLost(3)]
    later = Caller(backup, epoch=2)
    assert later.read(0) == page("a")
    primary.hold(Role.NONE, 2)
    assert caller.reply().status == STALE


def test_a_lost_backup_is_reported_and_given_up(make: Make) -> None:
    primary, backup = make(), make()
    backup.hold(Role.BACKUP)
    primary.join(3, backup)
    primary.hold(Role.PRIMARY, 1, (3,))
    caller = Caller(primary)
    caller.write(0, page("a"))
    backup.pages.close()
    assert primary.happens() == [PeerLost(3)]
    caller.send(WRITE, 0, [page("b")])
    primary.has_got(3)  # with the backup's acknowledgement
    primary.hold(Role.PRIMARY, 2)
    assert caller.reply().status == OK


def test_a_backup_without_space_is_reported(make: Make) -> None:
    primary, backup = make(), make(extents=1)
    backup.hold(Role.BACKUP)
    backup.hold(Role.PRIMARY, extent=1)
    Caller(backup).write(EXTENT_PAGES, *[page("x")] * EXTENT_PAGES)
    primary.join(3, backup)
    primary.hold(Role.PRIMARY, 1, (3,))
    Caller(primary).send(WRITE, 0, [page("a")])
    assert primary.happens() == [PeerLost(3)]


# --- joining backups ------------------------------------------------------------------------------


def test_a_joining_backup_gets_all_pages(pair: tuple[Server, Server], make: Make) -> None:
    primary, _ = pair
    caller, content = Caller(primary), [os.urandom(PAGE_BYTES) for _ in range(EXTENT_PAGES)]
    caller.write(0, *content)
    caller.trim(10, 20)
    content[10:30] = [ZEROS] * 20
    joining = make()
    joining.hold(Role.JOINING, 2)
    primary.join(5, joining)
    primary.hold(Role.PRIMARY, 2, (3, 5), joining=(5,))
    assert primary.happens() == [Synced(VOLUME, 0, 2, 5)]
    joining.hold(Role.PRIMARY, 3)
    assert Caller(joining, epoch=3).read(0, EXTENT_PAGES) == b"".join(content)


def test_a_joining_server_forgets_what_it_had(make: Make) -> None:
    primary, joining = make(), make()
    joining.hold(Role.PRIMARY)
    Caller(joining).write(0, page("old"), page("old"))
    primary.hold(Role.PRIMARY, 2)
    Caller(primary, epoch=2).write(1, page("new"))
    joining.hold(Role.JOINING, 3)
    primary.join(5, joining)
    primary.hold(Role.PRIMARY, 3, (5,), joining=(5,))
    assert primary.happens() == [Synced(VOLUME, 0, 3, 5)]
    joining.hold(Role.PRIMARY, 4)
    assert Caller(joining, epoch=4).read(0, 2) == ZEROS + page("new")


def forwarded(server: Server, *, session: int, id: int, content: bytes, at: int = 0) -> None:
    """Let a backup take over a write, as from a primary that then dies."""
    peer = Caller(server, 0)
    peer.send(FORWARD, at, [content], id=id, session=session)
    assert peer.reply().status == OK


@pytest.fixture
def divided(make: Make) -> tuple[Server, Server, Caller]:
    """Two backups that differ in writes of a dead primary, and the client that has sent these.

    Write 1, of the first page, has reached both of them. Write 2, of the pages from 1 on, has
    reached the second backup only.
    """
    one, other = make(), make()
    caller = Caller(one)
    for server in (one, other):
        server.hold(Role.BACKUP)
        forwarded(server, session=caller.session, id=1, content=page("done"))
    forwarded(other, session=caller.session, id=2, content=page("lost"), at=1)
    caller.epoch, caller.last_id = 2, 2
    other.hold(Role.BACKUP, 2)
    return one, other, caller


def test_a_new_primary_makes_its_backup_equal_before_it_answers_reads(
    divided: tuple[Server, Server, Caller],
) -> None:
    one, other, caller = divided
    one.hold(Role.PRIMARY, 2, (3,), rejoining=(3,))  # it cannot reach its peer yet
    caller.send(READ, 0, 2)
    one.has_got(2)
    assert caller.is_waiting()
    one.join(3, other)
    assert caller.reply().content == page("done") + ZEROS
    assert one.happens() == [Synced(VOLUME, 0, 2, 3)]
    other.hold(Role.PRIMARY, 3)
    caller.epoch = 3
    caller.use(other)
    assert caller.read(0, 3) == page("done") + ZEROS * 2
    assert other.pages.figures().pages_used == 1  # no memory for zeros


def test_a_rejoining_backup_keeps_its_pages_when_its_primary_dies(
    divided: tuple[Server, Server, Caller],
) -> None:
    one, other, caller = divided
    one.hold(Role.PRIMARY, 2, (3,), rejoining=(3,))
    other.hold(Role.PRIMARY, 3)
    caller.epoch = 3
    caller.use(other)
    assert caller.read(0, 2) == page("done") + page("lost")


def test_a_write_is_answered_as_done_only_when_the_backups_have_it(
    divided: tuple[Server, Server, Caller],
) -> None:
    one, other, caller = divided
    one, other = other, one  # the new primary knows of write 2
    one.hold(Role.PRIMARY, 3, (3,), rejoining=(3,))
    other.hold(Role.BACKUP, 3)
    caller.epoch = 3
    caller.use(one)
    caller.send(WRITE, 1, [page("lost")], id=2)
    assert caller.is_waiting()
    one.join(3, other)
    assert caller.reply().status == OK
    other.hold(Role.PRIMARY, 4)
    caller.epoch = 4
    caller.use(other)
    assert caller.read(0, 2) == page("done") + page("lost")


def test_a_write_that_was_undone_is_not_answered_as_done(
    divided: tuple[Server, Server, Caller],
) -> None:
    one, other, caller = divided
    one.hold(Role.PRIMARY, 2, (3,), rejoining=(3,))
    one.join(3, other)
    assert one.happens() == [Synced(VOLUME, 0, 2, 3)]
    other.hold(Role.PRIMARY, 3)
    caller.epoch = 3
    caller.use(other)
    caller.send(WRITE, 1, [page("lost")], id=2)
    assert caller.reply().status == OK
    assert caller.read(1) == page("lost")


def test_a_later_order_does_not_end_the_wait_for_equal_backups(
    divided: tuple[Server, Server, Caller], make: Make
) -> None:
    one, other, caller = divided
    one.hold(Role.PRIMARY, 2, (3,), rejoining=(3,))
    caller.send(READ, 1, 1)
    one.has_got(2)
    joining = make()
    joining.hold(Role.JOINING, 3)
    one.join(5, joining)
    one.hold(Role.PRIMARY, 3, (3, 5), joining=(5,))
    assert one.happens() == [Synced(VOLUME, 0, 3, 5)]
    caller.epoch = 3
    caller.send(READ, 1, 1)
    one.has_got(3)
    one.join(3, other)
    assert caller.reply().status == STALE  # its epoch was an earlier one
    assert caller.reply().content == ZEROS


def test_requests_that_wait_for_equal_backups_are_refused_when_the_role_ends(
    divided: tuple[Server, Server, Caller],
) -> None:
    one, _, caller = divided
    one.hold(Role.PRIMARY, 2, (3,), rejoining=(3,))
    gone = Caller(one, epoch=2)
    gone.send(READ, 0, 1)
    caller.send(READ, 0, 1)
    one.has_got(3)
    gone.socket.close()
    one.hold(Role.BACKUP, 3)
    assert caller.reply().status == STALE
    one.hold(Role.PRIMARY, 4)
    caller.epoch = 4
    assert caller.read(0) == page("done")


def test_a_write_from_before_a_join_reaches_the_joining_backup(make: Make) -> None:
    primary, joining = make(), make()
    primary.hold(Role.PRIMARY, 1, (3,))
    caller = Caller(primary)
    caller.send(WRITE, 0, [page("waits")])  # for peer 3, which is not there
    primary.has_got(1)
    joining.hold(Role.JOINING, 2)
    primary.join(5, joining)
    primary.hold(Role.PRIMARY, 2, (3, 5), joining=(5,))
    primary.hold(Role.PRIMARY, 3, (5,), joining=(5,))
    assert caller.reply().status == OK
    assert primary.happens() == [Synced(VOLUME, 0, 3, 5)]
    joining.hold(Role.PRIMARY, 4)
    assert Caller(joining, epoch=4).read(0) == page("waits")


def test_writers_do_not_disturb_a_join(make: Make) -> None:
    """Four clients write at random while backups join and leave; each copy has the last content."""
    primary, others = make(), {5: make(), 6: make()}
    primary.hold(Role.PRIMARY)
    epoch, is_over, expected = 1, threading.Event(), [ZEROS] * EXTENT_PAGES
    now = [epoch]

    def work(number: int) -> None:
        chance, caller = random.Random(number), Caller(primary)
        while not is_over.is_set():
            at = chance.randrange(number, EXTENT_PAGES, 4)
            content = chance.randbytes(8) * (PAGE_BYTES // 8)
            is_trim = chance.random() < 0.2
            caller.epoch = now[0]
            caller.send(TRIM if is_trim else WRITE, at, 1 if is_trim else [content])
            while caller.reply().status == STALE:
                caller.epoch = now[0]
                caller.send(TRIM if is_trim else WRITE, at, 1 if is_trim else [content])
            expected[at] = ZEROS if is_trim else content

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(10):
        for peer, other in others.items():
            epoch += 1
            other.hold(Role.JOINING, epoch)
            primary.join(peer, other)
            primary.hold(Role.PRIMARY, epoch, (peer,), joining=(peer,))
            now[0] = epoch
            while Synced(VOLUME, 0, epoch, peer) not in primary.happens():
                pass
    is_over.set()
    for thread in threads:
        thread.join(WITHIN_S)
        assert not thread.is_alive()
    others[6].hold(Role.PRIMARY, epoch + 1)
    whole = b"".join(expected)
    assert Caller(primary, epoch=epoch).read(0, EXTENT_PAGES) == whole
    assert Caller(others[6], epoch=epoch + 1).read(0, EXTENT_PAGES) == whole


# --- hostile peers --------------------------------------------------------------------------------


@pytest.mark.slow  # 5 s
def test_a_stranger_without_a_token_is_turned_away(server: Server) -> None:
    caller = Caller(server)
    for hello in (b"", bytes(40), os.urandom(50), b"GET / HTTP/1.1\r\n" * 3):
        caller.socket = server.connect()
        caller.socket.sendall(hello)
    assert caller.is_closed()


def test_a_connection_may_be_there_before_its_token(server: Server) -> None:
    token, caller = os.urandom(TOKEN_BYTES), Caller(server)
    caller.socket = server.connect()
    caller.socket.sendall(token + struct.pack("<Q", 77))
    caller.send(WRITE, 0, [page("early")])
    caller.socket.settimeout(0.1)
    with pytest.raises(TimeoutError):
        caller.reply()
    server.pages.allow(token, 5.0)
    caller.socket.settimeout(WITHIN_S)
    assert caller.reply().status == OK
    assert caller.read(0) == page("early")


def test_a_token_is_for_one_connection(server: Server) -> None:
    token = os.urandom(TOKEN_BYTES)
    server.pages.allow(token, 5.0)
    caller = Caller(server)
    for is_first in (True, False):
        caller.socket = server.connect()
        caller.socket.sendall(token + struct.pack("<Q", 77))
        caller.send(READ, 0, 1)
        if is_first:
            assert caller.reply().content == ZEROS
    caller.socket.settimeout(0.2)
    with pytest.raises(TimeoutError):
        caller.reply()


def test_an_old_token_is_worth_nothing(server: Server) -> None:
    token = os.urandom(TOKEN_BYTES)
    server.pages.allow(token, 0.0)
    caller = Caller(server)
    caller.socket = server.connect()
    caller.socket.sendall(token + struct.pack("<Q", 77))
    caller.socket.settimeout(0.2)
    with pytest.raises(TimeoutError):
        caller.reply()


def test_tokens_are_limited(server: Server) -> None:
    for _ in range(256):
        server.pages.allow(os.urandom(TOKEN_BYTES), 0.3)
    with pytest.raises(OSError, match="too many connections are expected"):
        server.pages.allow(os.urandom(TOKEN_BYTES), 0.3)


def test_the_oldest_of_too_many_strangers_is_turned_away(server: Server) -> None:
    caller = Caller(server)
    assert caller.read(0) == ZEROS
    caller.socket = server.connect()
    others = [server.connect() for _ in range(64)]
    assert caller.is_closed()
    for other in others:
        other.close()


@pytest.mark.parametrize(
    "fields",
    [
        {"op": 0}, {"op": 4}, {"op": 6}, {"op": 99}, {"count": 0}, {"count": 257},
        {"first": 255, "count": 2}, {"first": 2**64 - 1}, {"size": 1}, {"size": 2**32 - 1},
        {"op": WRITE, "size": 0}, {"op": WRITE, "size": 4099}, {"id": 0},
    ],
)  # fmt: skip
def test_a_malformed_request_ends_its_connection(server: Server, fields: dict[str, int]) -> None:
    caller, other = Caller(server), Caller(server)
    header = FRAME.pack(
        fields.get("size", 0), fields.get("op", READ), 0, fields.get("id", 1), 0, 0, VOLUME,
        fields.get("first", 0), fields.get("count", 1), 1,
    )  # fmt: skip
    caller.socket.sendall(header)
    assert caller.is_closed()
    assert other.read(0) == ZEROS


@pytest.mark.parametrize("op", [READ, WRITE, TRIM])
def test_a_peer_may_not_act_as_a_client(server: Server, op: int) -> None:
    caller = Caller(server, session=0)
    caller.send(op, 0, [page("a")] if op == WRITE else 1)
    assert caller.is_closed()


def test_mutated_frames_harm_nobody(pair: tuple[Server, Server]) -> None:
    primary, _ = pair
    chance, healthy = random.Random(1), Caller(primary)
    healthy.write(200, page("intact"))
    for round_number in range(400):
        caller = Caller(primary, session=0 if round_number % 4 == 0 else None)
        header = bytearray(FRAME.pack(4100, WRITE, 0, 1, 0, 0, VOLUME, 3, 1, 1))
        for _ in range(chance.randrange(1, 4)):
            header[chance.randrange(len(header))] = chance.randrange(256)
        sent = bytes(header) + chance.randbytes(chance.choice([0, 100, 4100, 9000]))
        try:
            caller.socket.sendall(sent)
            caller.socket.shutdown(socket.SHUT_WR)
            while caller.socket.recv(1 << 16):
                pass
        except (ConnectionResetError, BrokenPipeError):
            pass
        caller.socket.close()
    assert healthy.read(200) == page("intact")


# 1,000,000 together at the two kinds of sockets
@pytest.mark.parametrize("number", [3_000, pytest.param(500_000, marks=pytest.mark.slow)])
def test_a_mutated_frame_closes_its_connection_and_nothing_else(
    server: Server, number: int
) -> None:
    chance, healthy = random.Random(number), Caller(server)
    healthy.write(200, page("intact"))
    before, descriptors = server.pages.figures(), len(os.listdir("/proc/self/fd"))
    sent = 0
    while sent < number:
        frames: list[bytes] = []
        is_last_valid = True
        while is_last_valid and len(frames) < 16:
            frames.append(_mutated(chance))
            is_last_valid = _is_valid(frames[-1])
        _expect_an_end(server, frames)
        sent += len(frames)
    after = server.pages.figures()
    assert after.pages_used == before.pages_used
    assert after.extents == before.extents
    assert healthy.read(200) == page("intact")
    wait_for(lambda: len(os.listdir("/proc/self/fd")) <= descriptors, "the ends of connections")


def _mutated(chance: random.Random) -> bytes:
    """Return a header, without payload, in which some bytes are random."""
    op = chance.choice((READ, WRITE, TRIM))
    size_bytes = 4100 if op == WRITE else 0
    header = bytearray(
        FRAME.pack(size_bytes, op, 0, 1, 0, 0, VOLUME, chance.randrange(100), 1, LATEST)
    )
    for _ in range(chance.randrange(1, 4)):
        header[chance.randrange(len(header))] = chance.randrange(256)
    return bytes(header)


def _is_valid(header: bytes) -> bool:
    """Whether a client may send this header: the rules of docs/protocol/memory.md."""
    size_bytes, op, _, id, _, _, _, first, number, _ = FRAME.unpack(header)
    fits = 0 < number <= EXTENT_PAGES - first % EXTENT_PAGES and first < EXTENT_PAGES << 32
    return (
        op in (READ, TRIM) and size_bytes == 0 and fits and id > 0  # a write lacks its payload
    )


def _expect_an_end(server: Server, frames: list[bytes]) -> None:
    """Send frames: the server may answer valid ones, in their order, and ends the connection."""
    token = os.urandom(TOKEN_BYTES)
    server.pages.allow(token, 5.0)
    received = b""
    with server.connect() as connected:
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        try:
            connected.sendall(token + struct.pack("<Q", 1 << 40) + b"".join(frames))
            connected.shutdown(socket.SHUT_WR)
            while piece := connected.recv(1 << 16):
                received += piece
        except (ConnectionResetError, BrokenPipeError):
            pass
    server.forget_client()
    for frame, at in zip(frames, range(0, len(received), FRAME.size), strict=False):
        reply = FRAME.unpack_from(received, at)
        assert _is_valid(frame)
        assert reply[:4] == (0, FRAME.unpack(frame)[1], STALE, FRAME.unpack(frame)[3])
    assert len(received) <= FRAME.size * len(frames)


def test_too_little_memory_cannot_be_offered() -> None:
    with pytest.raises(OSError, match="cannot be reserved"):
        PageServer(EXTENT_BYTES - 1)
    with pytest.raises(OSError, match="cannot be reserved"):
        PageServer(1 << 60)


def test_roles_are_checked(server: Server) -> None:
    with pytest.raises(OSError, match="cannot be taken over"):
        server.hold(Role.PRIMARY, 2, (64,))
    assert Caller(server).read(0) == ZEROS
