"""Real daemons and real commands in a home of their own, with an account of what they leave."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

BIN = Path(sys.executable).parent


def wait_for(condition: Callable[[], object], what: str, timeout_s: float = 20.0) -> None:
    """Wait until a condition holds; AssertionError with `what` if it does not in time."""
    until_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < until_s, f"waited {timeout_s} s for {what}"
        time.sleep(0.01)


class Home:
    """A user's home: settings, state and temporary files under one directory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tmp = path / "tmp"
        self.tmp.mkdir()
        self.environ = {
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "HOME": str(path),
            "XDG_STATE_HOME": str(path / "state"),
            "XDG_CONFIG_HOME": str(path / "config"),
            "TMPDIR": str(self.tmp),
            "TEST_SESSION": os.environ.get("TEST_SESSION", ""),
        }

    def start(self, *argv: str, **options: object) -> subprocess.Popen[str]:
        return subprocess.Popen(  # type: ignore[call-overload, no-any-return]  # options pass through
            argv,
            env=self.environ,
            cwd=self.path,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **options,
        )

    def run(self, *argv: str, timeout_s: float = 40.0) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            argv,
            env=self.environ,
            cwd=self.path,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def processes(self) -> dict[int, str]:
        """Every process that was started from this home and still runs, by id."""
        found = {}
        mark = f"HOME={self.path}".encode()
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                    found[int(entry.name)] = command
            except OSError:
                continue  # it has ended meanwhile
        return found

    def leftovers(self) -> list[str]:
        """What is left of a command that has ended, but for logs: processes, files, sockets."""
        files = [str(path) for path in self.tmp.iterdir()]
        segments = [str(path) for path in Path("/dev/shm").glob("ciel-*")]
        sockets = Path("/proc/net/unix").read_text().count("@ciel-")
        found = [*self.processes().values(), *files, *segments]
        return [*found, f"{sockets} sockets"] if sockets else found

    def expect_nothing_left(self, timeout_s: float = 10.0) -> None:
        wait_for(lambda: not self.leftovers(), f"the end of {self.leftovers()}", timeout_s)


@dataclass
class HandCluster:
    """A master and workers started by hand; `access` is the master's access file."""

    home: Home
    access: Path
    master: subprocess.Popen[str]
    workers: list[subprocess.Popen[str]]

    @property
    def url(self) -> str:
        return str(json.loads(self.access.read_text())["url"])

    @property
    def key(self) -> str:
        return str(json.loads(self.access.read_text())["key"])

    def log(self, name: str) -> str:
        return (self.home.path / f"{name}.log").read_text()

    def netlocs(self) -> list[str]:
        """Where the workers serve, as they logged it."""
        logs = [self.log(f"worker{number}") for number in range(1, len(self.workers) + 1)]
        return [re.findall(r"worker \w+ at (127\.0\.0\.1:\d+)", log)[0] for log in logs]

    def start_worker(self, *options: str) -> subprocess.Popen[str]:
        number = len(self.workers) + 1
        log = self.home.path / f"worker{number}.log"
        worker = self.home.start(
            "ciel-worker", "--access", str(self.access), "--slots", "1", "--log", str(log), *options
        )
        self.workers.append(worker)
        wait_for(lambda: log.exists() and "joined the master" in log.read_text(), "a worker")
        return worker

    def stop(self) -> None:
        for process in [*self.workers, self.master]:
            process.send_signal(signal.SIGTERM)
        for process in [*self.workers, self.master]:
            process.communicate(timeout=20)
