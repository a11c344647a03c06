"""The client in C, with servers that answer in pieces, wrongly or not at all (KVB-1, KVB-3)."""

from __future__ import annotations

import os
import random
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final

import pytest

from ciel.memory.page_server import EXTENT_BYTES, EXTENT_PAGES, PAGE_BYTES, checksum
from ciel.memory.space import Space, SpaceError
from ciel.memory.volumes import Place

FRAME: Final = struct.Struct("<IHHQQQQQII")
READ, WRITE = 1, 2
CONTENT: Final = random.Random(1).randbytes(EXTENT_BYTES)
TIMEOUT_S: Final = 0.3

Answer = Callable[[int, bytes], list[bytes]]
"""Returns the pieces of the answer to a request; its first argument numbers requests from 0."""


class Server:
    """Plays a memory server: implements `companion.Owner`, and answers requests by a function."""

    def __init__(self, answer: Answer) -> None:
        self.requests = self.connections = 0
        self.written = b""
        self._answer = answer
        self._sockets: list[socket.socket] = []

    def place(self, extent: int) -> tuple[Place, int]:
        return Place(1, "here", ""), 0

    def connect(self, server: int, session: int) -> socket.socket:
        self.connections += 1
        theirs, own = socket.socketpair()
        self._sockets.append(own)
        threading.Thread(target=self._serve, args=(own,), daemon=True).start()
        return theirs

    def _serve(self, own: socket.socket) -> None:
        try:
            while header := own.recv(FRAME.size, socket.MSG_WAITALL):
                size_bytes = FRAME.unpack(header)[0]
                if size_bytes:
                    self.written = own.recv(size_bytes, socket.MSG_WAITALL)
                number, self.requests = self.requests, self.requests + 1
                for piece in self._answer(number, header):
                    own.sendall(piece)
        except OSError:
            pass

    def close(self) -> None:
        for each in self._sockets:
            each.close()


Open = Callable[[Answer], tuple[Server, Space]]


@pytest.fixture
def open_space() -> Iterator[Open]:
    opened: list[tuple[Server, Space]] = []

    def open_space(answer: Answer) -> tuple[Server, Space]:
        server = Server(answer)
        opened.append((server, Space(server, 1, 1, 1, TIMEOUT_S)))
        return opened[-1]

    yield open_space
    for server, space in opened:
        space.close()
        server.close()


def reply(header: bytes, *, status: int = 0, flipped: int = -1) -> bytes:
    """Return the right answer to a read or write; `flipped`: this page arrives damaged."""
    fields = list(FRAME.unpack(header))
    first, number = fields[7], fields[8]
    pages = [CONTENT[n * PAGE_BYTES :][:PAGE_BYTES] for n in range(first, first + number)]
    if fields[1] != READ or status:
        pages = []
    sums = b"".join(checksum(page).to_bytes(4, "little") for page in pages)
    if 0 <= flipped < len(pages):
        pages[flipped] = bytes([pages[flipped][0] ^ 1]) + pages[flipped][1:]
    fields[0], fields[2] = len(pages) * (PAGE_BYTES + 4), status
    return FRAME.pack(*fields) + sums + b"".join(pages)


@pytest.mark.parametrize("size", [1, 57, 4096, 100_000])
@pytest.mark.parametrize("length", [PAGE_BYTES, EXTENT_BYTES])
def test_a_reply_may_arrive_in_pieces(open_space: Open, size: int, length: int) -> None:
    def in_pieces(number: int, header: bytes) -> list[bytes]:
        whole = reply(header)
        start = len(whole) - 5000 if size == 1 else 0  # single bytes take long
        pieces = [whole[at : at + size] for at in range(max(start, 0), len(whole), size)]
        return [whole[: max(start, 0)], *pieces]

    _, space = open_space(in_pieces)
    assert space.read(0, length) == CONTENT[:length]


@pytest.mark.parametrize("flipped", [0, 31, 32, EXTENT_PAGES - 1])
def test_a_damaged_page_is_read_again(open_space: Open, flipped: int) -> None:
    server, space = open_space(
        lambda number, header: [reply(header, flipped=flipped if number == 0 else -1)]
    )
    assert space.read(0, EXTENT_BYTES) == CONTENT
    assert (server.requests, server.connections) == (2, 1)


@pytest.mark.requirement("NET-6")
def test_a_page_that_stays_damaged_is_an_error(open_space: Open) -> None:
    server, space = open_space(lambda number, header: [reply(header, flipped=5)])
    with pytest.raises(SpaceError, match="damaged"):
        space.read(0, EXTENT_BYTES)
    assert server.requests == 3


def _with(header: bytes, field: int, value: int) -> bytes:
    fields = list(FRAME.unpack(reply(header)[: FRAME.size]))
    fields[field] = value
    return FRAME.pack(*fields) + reply(header)[FRAME.size :]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda header: _with(header, 0, 2**32 - 1),
        lambda header: _with(header, 0, 0),
        lambda header: _with(header, 1, WRITE),
        lambda header: _with(header, 3, 99),
        lambda header: _with(header, 2, 1),  # refused, with pages
        lambda header: reply(header, status=1) + b"x",
        lambda header: reply(header) + b"x",
        lambda header: os.urandom(FRAME.size),
    ],
)
def test_a_wrong_reply_ends_the_connection(
    open_space: Open, wrong: Callable[[bytes], bytes]
) -> None:
    """The client repeats its request through another one."""
    server, space = open_space(
        lambda number, header: [wrong(header) if number == 0 else reply(header)]
    )
    assert space.read(0, 2 * PAGE_BYTES) == CONTENT[: 2 * PAGE_BYTES]
    assert space.read(0, PAGE_BYTES) == CONTENT[:PAGE_BYTES]
    assert server.connections == 2


@pytest.mark.parametrize("end", [0, 20, FRAME.size, FRAME.size + 100, 3 * PAGE_BYTES])
def test_a_server_that_stops_within_a_reply_is_given_up_in_time(open_space: Open, end: int) -> None:
    _, space = open_space(lambda number, header: [reply(header)[:end]])
    begun_s = time.monotonic()
    with pytest.raises(SpaceError, match="connection to a memory server has ended"):
        space.read(0, EXTENT_BYTES)
    assert time.monotonic() - begun_s < TIMEOUT_S + 2.0


def test_whole_and_incomplete_pages_are_written_with_their_checksums(open_space: Open) -> None:
    server, space = open_space(lambda number, header: [reply(header)])
    for address, length in ((0, EXTENT_BYTES), (8192, 4096), (100, 50), (4090, 9000), (0, 5)):
        new = os.urandom(length)
        space.write(address, new)
        first, end = address // PAGE_BYTES, -(-(address + length) // PAGE_BYTES)
        expected = bytearray(CONTENT[first * PAGE_BYTES : end * PAGE_BYTES])
        at = address - first * PAGE_BYTES
        expected[at : at + length] = new
        assert server.written[4 * (end - first) :] == expected
        sums = struct.unpack_from(f"<{end - first}I", server.written)
        for n, each in enumerate(sums):
            assert each == checksum(bytes(expected[n * PAGE_BYTES : (n + 1) * PAGE_BYTES]))
