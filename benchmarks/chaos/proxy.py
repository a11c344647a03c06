"""Forwards TCP connections, and can drop replies: a client cannot know if its request arrived."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import Final, Self

CHUNK_BYTES: Final = 65536


class Proxy:
    """Forwards each connection to a daemon.

    A connection that is accepted while `loses_replies` is true is closed as soon as the daemon's
    reply starts to arrive; no byte of the reply is forwarded. `address` is the address at which the
    proxy listens. `lost_count` counts the lost replies.
    """

    def __init__(self, target: tuple[str, int]) -> None:
        self.loses_replies = False
        self.lost_count = 0
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.address: tuple[str, int] = self._listener.getsockname()
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return  # it is closed
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        loses_reply = self.loses_replies
        with client, socket.create_connection(self._target, timeout=60) as daemon:
            client.settimeout(60)
            forward = threading.Thread(target=_copy, args=(client, daemon), daemon=True)
            forward.start()
            if loses_reply:
                with suppress(OSError):
                    daemon.recv(1)  # the daemon has processed the request: its reply starts
                self.lost_count += 1
                for end in (client, daemon):
                    with suppress(OSError):
                        end.shutdown(socket.SHUT_RDWR)
            else:
                _copy(daemon, client)
            forward.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()


def _copy(source: socket.socket, target: socket.socket) -> None:
    """Copy bytes until the source ends; then end the writing side of the target."""
    with suppress(OSError):
        while data := source.recv(CHUNK_BYTES):
            target.sendall(data)
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)
