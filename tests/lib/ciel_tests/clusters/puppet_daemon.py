"""Stands in for the daemon of a block store, and sends the bytes that a test prescribes."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ciel.shm.messages import Decoder, Message

Script = Callable[[Message], bytes | None]
NOTHING = b""


class Puppet:
    """A daemon that answers what a script says: bytes, or None to end the connection."""

    def __init__(self, directory: Path) -> None:
        (directory / "shmd").mkdir(mode=0o700)
        self.directory = directory
        self.heard: list[Message] = []
        self.script: Script = lambda message: NOTHING
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(directory / "shmd" / "socket"))
        self._listening.listen()
        self._connection: socket.socket | None = None
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            connection, _ = self._listening.accept()
            self._connection = connection
            with connection:
                decoder = Decoder()
                while chunk := connection.recv(4096):
                    messages = decoder.feed(chunk)
                    self.heard += messages
                    answers = [self.script(message) for message in messages]
                    if None in answers:
                        break
                    connection.sendall(b"".join(answer or NOTHING for answer in answers))
                else:
                    if not self.heard:
                        return

    def end(self) -> None:
        with suppress(OSError):  # a test that failed may have left its client
            if self._connection is not None:
                self._connection.shutdown(socket.SHUT_RDWR)
        self.heard.clear()
        with socket.socket(socket.AF_UNIX) as last:
            last.connect(str(self.directory / "shmd" / "socket"))
            last.shutdown(socket.SHUT_WR)
            self._thread.join(20)
        self._listening.close()
        assert not self._thread.is_alive()
