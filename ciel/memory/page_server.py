"""The data path of a memory server, which is in C: `page_server.c`."""

from __future__ import annotations

import ctypes
import os
import socket
from collections.abc import Iterable, Sequence
from enum import IntEnum
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

LIBRARY: Final = Path(__file__).with_name("pages.so")
PAGE_BYTES: Final = 4096
EXTENT_PAGES: Final = 256
EXTENT_BYTES: Final = PAGE_BYTES * EXTENT_PAGES
TOKEN_BYTES: Final = 32
PEERS_MAX: Final = 64
BACKUPS_MAX: Final = 3
RELEASED_PAGES: Final = 2048
"""How many pages `release` takes at a time: the server serves nobody for some milliseconds."""
_EVENTS: Final = 1024


class Role(IntEnum):
    """The role of a server for an extent."""

    NONE = 0
    PRIMARY = 1
    BACKUP = 2
    JOINING = 3  # a backup that has no pages yet


class Holding(NamedTuple):
    """The role of this server for an extent. Of a primary: its backups, as numbers of peers.

    `joining`: the backups that have no pages yet; `rejoining`: those whose pages it makes equal to
    its own before it answers reads.
    """

    volume: int
    extent: int
    epoch: int
    role: Role
    backups: Sequence[int] = ()
    joining: Sequence[int] = ()
    rejoining: Sequence[int] = ()


class PeerLost(NamedTuple):
    """The connection to a peer has ended."""

    peer: int


class Synced(NamedTuple):
    """A joining backup has all pages of an extent."""

    volume: int
    extent: int
    epoch: int
    peer: int


Event = PeerLost | Synced


class Figures(NamedTuple):
    """Counters since the start, and the present numbers of pages and extents."""

    pages_offered: int
    pages_used: int
    extents: int
    pages_read: int
    pages_written: int
    pages_forwarded: int
    pages_synced: int
    requests: int
    refused: int
    connections: int


class _Holding(ctypes.Structure):
    _fields_ = (
        ("volume", ctypes.c_uint64),
        ("extent", ctypes.c_uint32),
        ("epoch", ctypes.c_uint32),
        ("role", ctypes.c_uint8),
        ("backup_count", ctypes.c_uint8),
        ("backups", ctypes.c_uint8 * BACKUPS_MAX),
        ("joining", ctypes.c_uint8),
        ("rejoining", ctypes.c_uint8),
        ("unused", ctypes.c_uint8),
    )


class _Event(ctypes.Structure):
    _fields_ = (
        ("volume", ctypes.c_uint64),
        ("extent", ctypes.c_uint32),
        ("epoch", ctypes.c_uint32),
        ("kind", ctypes.c_uint32),
        ("peer", ctypes.c_uint32),
    )


class _Figures(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_uint64) for name in Figures._fields)


class PageServer:
    """Keeps pages in memory, and serves them to connections; a thread in C does that.

    Raises OSError if the memory cannot be reserved, or locked.
    """

    def __init__(self, offered_bytes: int, *, is_locked: bool = False) -> None:
        self._library = _library()
        self._server = self._library.page_server_open(offered_bytes, is_locked)
        if not self._server:
            raise _error(f"{offered_bytes} bytes of memory cannot be reserved")
        self._events = (_Event * _EVENTS)()

    def close(self) -> None:
        """Close all connections, and free the memory. More calls do nothing."""
        if self._server:
            self._library.page_server_close(self._server)
            self._server = None

    def listen(self, listening: socket.socket) -> None:
        """Serve a listening socket, whose descriptor is duplicated."""
        fd = os.dup(listening.fileno())
        os.set_blocking(fd, False)
        if self._library.page_server_listen(self._server, fd):
            os.close(fd)
            raise _error("the socket cannot be served")

    def allow(self, token: bytes, for_s: float) -> None:
        """Accept one connection that begins with a token; raises OSError if there are too many."""
        if len(token) != TOKEN_BYTES:
            raise ValueError(f"a token has {TOKEN_BYTES} bytes")
        if self._library.page_server_allow(self._server, token, for_s):
            raise _error("too many connections are expected")

    def lease(self, until_s: float) -> None:
        """Act as primary until a time of the monotonic clock."""
        self._library.page_server_lease(self._server, until_s)

    def connect(self, peer: int, connected: socket.socket, token: bytes) -> None:
        """Use a connection to another server, which has allowed the token, for forwards.

        The descriptor is duplicated.
        """
        connected.sendall(token + bytes(8))
        fd = os.dup(connected.fileno())
        os.set_blocking(fd, False)
        if self._library.page_server_connect(self._server, peer, fd):
            os.close(fd)
            raise _error("the connection cannot be served")

    def hold(self, holdings: Iterable[Holding]) -> None:
        """Take over roles."""
        rows = [_row(holding) for holding in holdings]
        array = (_Holding * len(rows))(*rows)
        if self._library.page_server_hold(self._server, array, len(rows)):
            raise _error("roles cannot be taken over")

    def release(self) -> bool:
        """Return memory of some free pages to the system; return whether there are more.

        Raises OSError. Needs a system with pages of 4 KiB; if the memory is locked, Linux 5.18.
        """
        has_more = int(self._library.page_server_release(self._server, RELEASED_PAGES))
        if has_more < 0:
            raise _error("memory cannot be given back to the system")
        return has_more > 0

    def fileno(self) -> int:
        """Return a descriptor that is readable when there are events."""
        return int(self._library.page_server_event_fd(self._server))

    def events(self) -> list[Event]:
        """Return and remove the events since the last call."""
        found: list[Event] = []
        while count := self._library.page_server_events(self._server, self._events, _EVENTS):
            for event in self._events[:count]:
                if event.kind == 1:
                    found.append(PeerLost(event.peer))
                else:
                    found.append(Synced(event.volume, event.extent, event.epoch, event.peer))
        return found

    def figures(self) -> Figures:
        figures = _Figures()
        self._library.page_server_figures(self._server, ctypes.byref(figures))
        return Figures(*[getattr(figures, name) for name in Figures._fields])


def checksum(content: bytes) -> int:
    """Return the checksum of a page: CRC-32C."""
    return int(_library().page_checksum(content, len(content)))


def _row(holding: Holding) -> _Holding:
    backups = (ctypes.c_uint8 * BACKUPS_MAX)(*holding.backups)
    joining, rejoining = (
        sum(1 << n for n, peer in enumerate(holding.backups) if peer in peers)
        for peers in (holding.joining, holding.rejoining)
    )
    return _Holding(
        holding.volume, holding.extent, holding.epoch, holding.role, len(holding.backups), backups,
        joining, rejoining,
    )  # fmt: skip


def _error(text: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{text}: {os.strerror(number)}")


@cache
def _library() -> Any:
    library = ctypes.CDLL(str(LIBRARY), use_errno=True)
    handle, pointer = ctypes.c_void_p, ctypes.c_void_p
    signatures: dict[str, tuple[Any, tuple[Any, ...]]] = {
        "page_server_open": (handle, (ctypes.c_int64, ctypes.c_int)),
        "page_server_close": (None, (handle,)),
        "page_server_listen": (ctypes.c_int, (handle, ctypes.c_int)),
        "page_server_allow": (ctypes.c_int, (handle, ctypes.c_char_p, ctypes.c_double)),
        "page_server_lease": (None, (handle, ctypes.c_double)),
        "page_server_connect": (ctypes.c_int, (handle, ctypes.c_int, ctypes.c_int)),
        "page_server_hold": (ctypes.c_int, (handle, pointer, ctypes.c_int)),
        "page_server_event_fd": (ctypes.c_int, (handle,)),
        "page_server_events": (ctypes.c_int, (handle, pointer, ctypes.c_int)),
        "page_server_release": (ctypes.c_int, (handle, ctypes.c_uint32)),
        "page_server_figures": (None, (handle, pointer)),
        "page_checksum": (ctypes.c_uint32, (ctypes.c_char_p, ctypes.c_int64)),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library
