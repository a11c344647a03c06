"""Asks the master where the extents of a volume are, and for connections to memory servers."""

from __future__ import annotations

import socket
import struct
from typing import Any, Final, Protocol

from ciel.core.errors import CielError
from ciel.memory.local import LocalAddress
from ciel.memory.volumes import Place

CONNECT_TIMEOUT_S: Final = 1.0
PLACES_MAX: Final = 256
"""The extents about which a query asks at most."""


class Master(Protocol):
    """The requests to a master that this module sends; they raise CielError."""

    def ask(self, topic: str, argument: Any = None) -> Any: ...
    def change(self, topic: str, argument: Any) -> Any: ...


class VolumeOwner:
    """Answers companions, by queries to the master; implements `companion.Owner`."""

    def __init__(self, master: Master, name: str) -> None:
        self._master = master
        self._name = name
        self._given: set[int] = set()  # extents for which there was an answer
        self._ahead: dict[int, Any] = {}  # places that the master has sent with earlier ones

    def place(self, extent: int) -> tuple[Place, int]:
        """Return where an extent is; raises OSError.

        The first answer may be as old as another one. If it is wrong, the server says so, and the
        next one comes from the master.
        """
        if extent not in self._ahead:
            count = 1 if extent in self._given else PLACES_MAX
            wanted = {"name": self._name, "extent": extent, "count": count}
            places = enumerate(self._request(self._master.ask, "memory_places", **wanted), extent)
            self._ahead |= {n: place for n, place in places if n == extent or n not in self._given}
        self._given.add(extent)
        found = self._ahead.pop(extent)
        address = "here" if found["here"] else ""
        return Place(found["epoch"], address, found["why"]), found["server"]

    def connect(self, server: int, session: int) -> socket.socket:
        """Connect to a memory server, by its UNIX socket if it is on this host; raises OSError."""
        found = self._request(self._master.change, "memory_connect", server=server)
        local = LocalAddress.parse(found.get("local"))
        connected = local.connect(CONNECT_TIMEOUT_S) if local is not None else None
        if connected is None:
            host, _, port = found["address"].rpartition(":")
            address = host.strip("[]"), int(port)
            connected = socket.create_connection(address, CONNECT_TIMEOUT_S)
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connected.settimeout(None)
        connected.sendall(bytes.fromhex(found["token"]) + struct.pack("<Q", session))
        return connected

    def _request(self, call: Any, topic: str, **argument: Any) -> Any:
        try:
            return call(topic, argument)
        except CielError as error:
            raise OSError(str(error)) from None
