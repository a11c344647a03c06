"""Writes frames of the control plane byte by byte to a blocking socket, so that tests can send
frames that no peer of ciel would.
"""

from __future__ import annotations

import json
import socket
import struct
from typing import Any

from ciel.wire.session import Session


def frame(header: bytes | list[Any], payload: bytes = b"") -> bytes:
    """Return a frame whose header is these bytes, or the JSON of these records."""
    header = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack(">II", len(header) + len(payload), len(header)) + header + payload


def shake_hands(connection: socket.socket, session: Session) -> None:
    """Prove the keys of both peers to each other. Raises WireError, and ConnectionResetError if the
    peer closes the connection.
    """
    connection.sendall(session.data_to_send())
    while not session.is_open:
        data = connection.recv(65536)
        if not data:
            raise ConnectionResetError
        session.receive(data)
        connection.sendall(session.data_to_send())
