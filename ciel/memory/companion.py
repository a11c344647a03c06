"""Answers the client in C (`page_client.h`): where extents are, and connections to servers.

It runs in a thread of the process that uses an address space, or that has started nbdkit.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from typing import Final, Protocol

from ciel.memory.volumes import Place

_QUESTION: Final = struct.Struct("<IIIIQ")
_ANSWER: Final = struct.Struct("<III256s")
_ASK_PLACE = 1
_OK, _WAIT = 0, 1


class Owner(Protocol):
    """The owner of a volume, as a space asks it from another thread."""

    def place(self, extent: int) -> tuple[Place, int]:
        """Return where an extent is, and the number of its server."""
        ...

    def connect(self, server: int, session: int) -> socket.socket:
        """Connect to a server, and send the token and the session's number; raises OSError."""
        ...


class Companion(threading.Thread):
    """Answers the library in C until it closes its end."""

    def __init__(self, owner: Owner, own: socket.socket) -> None:
        super().__init__(name="ciel-memory-companion", daemon=True)
        self._owner = owner
        self._socket = own
        self.start()

    def run(self) -> None:
        with self._socket:
            while question := self._socket.recv(_QUESTION.size):
                kind, extent, server, _, session = _QUESTION.unpack(question)
                try:
                    if kind == _ASK_PLACE:
                        self._socket.send(self._place(extent))
                    else:
                        self._connect(server, session)
                except OSError as error:
                    with contextlib.suppress(OSError):
                        self._socket.send(_answer(_WAIT, why=str(error)))

    def _place(self, extent: int) -> bytes:
        place, server = self._owner.place(extent)
        if not place.address:
            return _answer(_WAIT, why=place.why)
        return _answer(_OK, place.epoch, server)

    def _connect(self, server: int, session: int) -> None:
        with self._owner.connect(server, session) as connected:
            socket.send_fds(self._socket, [_answer(_OK)], [connected.fileno()])


def _answer(status: int, epoch: int = 0, server: int = 0, why: str = "") -> bytes:
    return _ANSWER.pack(status, epoch, server, why.encode()[:255])


def listen(path: str) -> socket.socket:
    """Return a socket at a path to which clients connect; each client needs a companion."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listening.bind(path)
    listening.listen(8)
    return listening
