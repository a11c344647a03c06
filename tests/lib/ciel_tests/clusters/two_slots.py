"""A cluster of two slots that many tests share; after each test it must be as before."""

from __future__ import annotations

import os
import re
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Self

from ciel.testing.homes import WORKER_ID, Home, private_bytes, wait_for


class Ends(NamedTuple):
    """The exit status, output and messages of a command."""

    status: int
    output: str
    said: str


class TwoSlots:
    """A cluster of `ciel up` with one worker of two slots, in a private home."""

    def __init__(self, path: Path, *options: str) -> None:
        self.home = Home(path)
        self._options = options

    def __enter__(self) -> Self:
        up = ("up", "--workers", "1", "--slots", "2", "--listen", "127.0.0.1:0")
        begun = self.run(*up, *self._options)
        assert begun.returncode == 0, begun.stderr
        try:
            (self.spool,) = self.home.tmp.glob("*/1")
            self.daemons = self.home.processes()
            warm = self.submit("--array", "1-9", "--", "echo", "warm")
            assert warm.stdout == "warm\n" * 9, warm.stderr
            self.descriptors = self.count_descriptors()
        except BaseException:
            self.run("down", "--force")
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.run("down", "--force")
        assert not self.home.processes()
        assert not list(self.home.tmp.iterdir())

    def run(self, *argv: str) -> subprocess.CompletedProcess[str]:
        return self.home.run("ciel", *argv)

    def submit(self, *argv: str) -> subprocess.CompletedProcess[str]:
        return self.run("submit", *argv)

    def add_program(self, name: str, script: str, mode: int = 0o755) -> str:
        """Write a program into the home, where commands are run from; return its path."""
        path = self.home.path / name
        path.write_text(script)
        path.chmod(mode)
        return str(path)

    def pid(self, daemon: str) -> int:
        (pid,) = [pid for pid, line in self.daemons.items() if f"ciel.cli.daemons.{daemon}" in line]
        return pid

    def count_descriptors(self) -> dict[str, int]:
        """Count the open descriptors of each daemon, without empty files for later attempts."""
        found = {}
        for daemon in ("master", "worker"):
            places = []
            for entry in Path(f"/proc/{self.pid(daemon)}/fd").iterdir():
                with suppress(FileNotFoundError):  # closed at this moment
                    places.append(os.readlink(entry))
            kept = ("/incoming/", "memfd:ciel-object")  # for other attempts
            found[daemon] = sum(not any(mark in place for mark in kept) for place in places)
        return found

    def memory_bytes(self) -> dict[str, int]:
        """Return the anonymous memory of each daemon."""
        return {daemon: private_bytes(self.pid(daemon)) for daemon in ("master", "worker")}

    def kept(self) -> list[Path]:
        return sorted((self.spool / "kept").glob("*"))

    def left(self) -> list[str]:
        """Return the files that attempts left, without objects and files of failed tasks."""
        found = []
        for path in (*self.spool.glob("scratch/*/*"), *self.spool.glob("store/incoming/*/*")):
            with suppress(FileNotFoundError):  # it goes at this moment
                if any(path.iterdir()) if path.is_dir() else path.stat().st_size:
                    found.append(str(path))  # an empty file is for a later attempt
        started = self.home.processes().keys() - self.daemons.keys()
        return found + [f"process {pid}" for pid in started]

    def expect_as_before(self) -> None:
        """Both slots are free and usable at once, and all is as it was before."""
        done = self.submit("--slots", "2", "--timeout", "10s", "--", "echo", "free")
        assert (done.returncode, done.stdout, done.stderr) == (0, "free\n", "")
        wait_for(lambda: not self.left(), f"the end of {self.left()}")
        wait_for(self._has_few_descriptors, f"fewer than {self.count_descriptors()}")
        assert not self.daemons.keys() - self.home.processes().keys()

    def _has_few_descriptors(self) -> bool:
        found = self.count_descriptors()
        return all(found[name] <= 1.05 * self.descriptors[name] for name in found)

    def plain(self, text: str) -> str:
        """Replace what differs from run to run."""
        text = text.replace(str(self.spool), "SPOOL").replace(str(self.home.path), "HOME")
        text = re.sub(r"\b[0-9a-f]{32}\.", "TASK.", text)
        return re.sub(WORKER_ID, "W", text)

    def ends(self, done: subprocess.CompletedProcess[str]) -> Ends:
        """How a command ended, without what differs from run to run."""
        return Ends(done.returncode, done.stdout, self.plain(done.stderr))
