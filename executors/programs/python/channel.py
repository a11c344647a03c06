"""The Python program's end of the conversation with its worker (see `ciel.executors.python`)."""

from __future__ import annotations

import json
import os
import sys
from threading import RLock
from typing import Any

from ciel.executors.sdk import ciel_task

_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
_decode = json.JSONDecoder().raw_decode


class Channel(ciel_task.Channel):
    """The two FIFOs. `lock` is held by whoever says something, or changes what is shared with the
    thread that gives work away.
    """

    def __init__(self, write_fifo: str, read_fifo: str) -> None:
        super().__init__(write_fifo, read_fifo)
        self.lock = RLock()

    def cut(self) -> None:
        """Let go of both FIFOs: in a child of this program."""
        os.close(self._writes)
        os.close(self._reads)
        self.lock = RLock()

    def tell(self, method: str, arguments: dict[str, Any]) -> None:
        """Make a call that nobody answers; it is sent with the next that waits, or at the end."""
        with self.lock:
            self.send(_encode([method, arguments]).encode())

    def ask(self, method: str, arguments: Any) -> ciel_task._Answer:
        """Make a call that is answered."""
        with self.lock:
            return super().ask(method, _encode([method, arguments]).encode())

    def reply(self, method: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Make a call and wait for the answer."""
        with self.lock:
            answer = self.ask(method, arguments)
            self.flush()
            while answer.payload is None:
                self.read_answer()
            found: dict[str, Any] = _read(answer.payload)[1]
        return found

    def next_start(self) -> tuple[dict[str, Any], dict[str, str]] | None:
        """Wait for a task; return what it is told, and the paths of inputs. None: there will be no
        more.
        """
        paths: dict[str, str] = {}
        with self.lock:
            self.flush()
            try:
                while self._unanswered:
                    self.read_answer()
            except ciel_task.WorkerGoneError:
                return None
            while True:
                payload = self._frame()
                if payload is None:
                    return None
                method, arguments = _read(payload)
                if method == "start_task":
                    return arguments, paths
                if method != "input":
                    return None  # `die`
                paths[arguments["id"]] = arguments["filename"]


def _read(payload: bytes) -> Any:
    return _decode(str(payload, "utf-8"))[0]


def connect() -> Channel:
    """Open the FIFOs that the last four arguments name."""
    write_flag, write_fifo, read_flag, read_fifo = ["", "", "", "", *sys.argv][-4:]
    if (write_flag, read_flag) != ("--write-fifo", "--read-fifo"):
        raise SystemExit("a worker of ciel starts it, with --write-fifo PATH --read-fifo PATH")
    return Channel(write_fifo, read_fifo)
