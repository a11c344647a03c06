"""Forwards TCP connections, and loses answers: the request arrives, and its sender never knows."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import Final, Self

CHUNK_BYTES: Final = 65536


class Proxy:
    """Forwards each connection to a daemon.

    While `cuts` is true, it closes a connection as soon as the daemon's answer arrives, and
    forwards nothing of it. `address` is where it listens, `cut` how many answers it has lost.
    """

    def __init__(self, target: tuple[str, int]) -> None:
        self.cuts = False
        self.cut = 0
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
        cuts = self.cuts
        with client, socket.create_connection(self._target, timeout=60) as daemon:
            client.settimeout(60)
            forward = threading.Thread(target=_copy, args=(client, daemon), daemon=True)
            forward.start()
            if cuts:
                with suppress(OSError):
                    daemon.recv(1)  # the daemon has decided, and its answer begins
                self.cut += 1
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
