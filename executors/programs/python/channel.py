"""The connection of a Python program to its worker.

`ciel.executors.python_calls` answers its calls.
"""

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
    """Two FIFOs, and the lock of the program's state.

    A thread holds `lock` while it sends a message, or changes state that the sharing thread reads.
    """

    def __init__(self, write_fifo: str, read_fifo: str) -> None:
        super().__init__(write_fifo, read_fifo)
        self.lock = RLock()

    def detach(self) -> None:
        """Close both FIFOs; called in a child that this program has forked."""
        os.close(self._writes)
        os.close(self._reads)
        self.lock = RLock()

    def notify(self, method: str, arguments: dict[str, Any]) -> None:
        """Queue a call that has no reply; the next call that waits sends it, or the task's end."""
        with self.lock:
            self.send(_encode([method, arguments]).encode())

    def request(self, method: str, arguments: Any) -> ciel_task._Answer:
        """Queue a call whose reply is read later."""
        with self.lock:
            return self.ask(method, _encode([method, arguments]).encode())

    def call(self, method: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Send a call, wait for its reply and return it."""
        with self.lock:
            answer = self.request(method, arguments)
            self.flush()
            while answer.payload is None:
                self.read_answer()
            found: dict[str, Any] = _read(answer.payload)[1]
        return found

    def next_start(self) -> tuple[dict[str, Any], dict[str, str]] | None:
        """Wait for a task; return the arguments of `start_task`, and the paths of its inputs by id.

        None: there are no more tasks.
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
    """Open the FIFOs that the last four arguments of the command line name."""
    write_flag, write_fifo, read_flag, read_fifo = ["", "", "", "", *sys.argv][-4:]
    if (write_flag, read_flag) != ("--write-fifo", "--read-fifo"):
        raise SystemExit(
            "only a worker of ciel can start this program, with --write-fifo PATH --read-fifo PATH"
        )
    return Channel(write_fifo, read_fifo)
