"""Hand-made peers: the control plane by bytes, over a blocking socket, for saying what no peer of
ours would.
"""

from __future__ import annotations

import json
import socket
import struct
from typing import Any

from ciel.wire.session import Session


def frame(header: bytes | list[Any], payload: bytes = b"") -> bytes:
    """Return a frame whose header is these bytes, or these records with their payloads' lengths."""
    header = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack(">II", len(header) + len(payload), len(header)) + header + payload


def shake_hands(connection: socket.socket, session: Session) -> None:
    """Have both sides prove their keys. Raises WireError, and ConnectionResetError when the other
    side leaves.
    """
    connection.sendall(session.data_to_send())
    while not session.is_open:
        data = connection.recv(65536)
        if not data:
            raise ConnectionResetError
        session.receive(data)
        connection.sendall(session.data_to_send())
