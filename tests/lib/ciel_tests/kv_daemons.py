"""Real `ciel-kv` daemons for tests."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, Self

from ciel.access.keys import Key
from ciel.state.bases.remote import RemoteBase

START_S = 20.0


class Process(Protocol):
    """A process that tests start and end."""

    pid: int

    def poll(self) -> int | None: ...
    def send_signal(self, number: int) -> None: ...
    def wait(self, timeout: float | None = None) -> int: ...


def spawn(arguments: list[str], environment: dict[str, str]) -> Process:
    """Start a daemon with the interpreter of the tests."""
    command = [sys.executable, "-m", "ciel.cli.daemons.kv", *arguments]
    return subprocess.Popen(command, env=environment)


class KvDaemon:
    """A `ciel-kv` of the base in a directory, for a `with`. It keeps its key and its port across
    restarts.
    """

    def __init__(
        self, directory: Path, *options: str,
        spawn: Callable[[list[str], dict[str, str]], Process] = spawn,
    ) -> None:  # fmt: skip
        self.directory = directory
        self.log = directory.with_name(f"{directory.name}.log")
        self.port = 0
        self._options = options
        self._spawn = spawn
        self._process: Process | None = None
        self.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start it, and wait until it serves."""
        size_bytes = self.log.stat().st_size if self.log.exists() else 0
        home = str(self.directory.parent)
        self._process = self._spawn(
            ["--path", str(self.directory), "--listen", f"127.0.0.1:{self.port}",
             "--log", str(self.log), *self._options],
            {**os.environ, "CIEL_MASTER": "", "HOME": home, "XDG_STATE_HOME": home},
        )  # fmt: skip
        deadline_s = time.monotonic() + START_S
        while True:
            text = self.log.read_bytes()[size_bytes:].decode() if self.log.exists() else ""
            if found := re.search(r"is at 127\.0\.0\.1:(\d+)", text):
                self.port = int(found[1])
                return
            assert self._process.poll() is None, text
            assert time.monotonic() < deadline_s, text
            time.sleep(0.005)

    @property
    def key(self) -> Key:
        return Key.from_text((self.directory / "password").read_text().strip())

    def base(self, timeout_s: float = 30.0) -> RemoteBase:
        return RemoteBase("127.0.0.1", self.port, self.key, timeout_s)

    def kill(self) -> None:
        """Kill it, as if the operating system had."""
        self.end(signal.SIGKILL)

    def end(self, number: int = signal.SIGTERM) -> int:
        """End it with a signal; return its exit status."""
        process, self._process = self._process, None
        if process is None:
            return 0
        process.send_signal(number)
        return process.wait(START_S)
