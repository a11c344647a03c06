"""Reports the state of a daemon to the service manager that has started it (sd_notify).

systemd, and programs that follow its protocol, receive datagrams at the socket NOTIFY_SOCKET.
Without that variable nothing is sent. A report that cannot be delivered is dropped.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import MutableMapping
from typing import Final

NAMES: Final = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")
STATUS_EVERY_S: Final = 10.0
STATUS_MAX_LENGTH: Final = 1000
WATCHDOG_SHARE: Final = 0.4
"""A daemon reports that it is alive after this share of the time after which it is killed."""


class ServiceReports:
    """Reports to the service manager that has started this process, if there is one.

    It takes its variables out of the environment, since programs of tasks must not report to it.
    """

    def __init__(self, environ: MutableMapping[str, str]) -> None:
        self.variables = {name: environ.pop(name) for name in NAMES if name in environ}
        """For a successor of this process."""
        address = self.variables.get("NOTIFY_SOCKET", "")
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._status = ""
        self._is_stopping = False

    def __bool__(self) -> bool:
        return bool(self._address)

    @property
    def alive_every_s(self) -> float | None:
        """How often `alive` has to be called; None: never."""
        limit_us = self.variables.get("WATCHDOG_USEC", "")
        process = self.variables.get("WATCHDOG_PID", str(os.getpid()))
        if not limit_us.isdecimal() or not int(limit_us) or process != str(os.getpid()):
            return None
        return int(limit_us) / 1e6 * WATCHDOG_SHARE

    def ready(self, status: str) -> None:
        """Report that the daemon serves."""
        self._status = status
        self._send("READY=1", _status_line(status))

    def alive(self) -> None:
        """Report that the event loop runs."""
        self._send("WATCHDOG=1")

    def describe(self, status: str) -> None:
        """Report the state in one line, if it has changed."""
        if status != self._status:
            self._status = status
            self._send(_status_line(status))

    def stopping(self) -> None:
        """Report that the daemon ends; a second call does nothing."""
        if not self._is_stopping:
            self._is_stopping = True
            self._send("STOPPING=1")

    def _send(self, *lines: str) -> None:
        if not self._address:
            return
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock,
        ):
            sock.setblocking(False)
            sock.sendto("\n".join(lines).encode(), self._address)


def _status_line(status: str) -> str:
    return f"STATUS={' '.join(status.split())[:STATUS_MAX_LENGTH]}"
