"""Runs the tools of shmfs (`shminit`, `shmls` and others) on temporary images.

An image is the memory that holds one file system of shmfs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ciel.testing.homes import wait_for

TOOL_DIRECTORY = Path(sys.executable).parent
TOOLS = (
    "shminit", "shmld", "shmls", "shmln", "shmst", "shmrm", "shmlist", "shmdf", "shmfsck",
    "shmdump", "drop_caches",
)  # fmt: skip


class Image:
    """A private image in /dev/shm. `environ`: the environment of the tools."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.control = Path(f"/dev/shm/{name}-control")
        self.data = Path(f"/dev/shm/{name}-data")
        self.environ = {**os.environ, "SHMFS_NAME": name, "LC_ALL": "C"}

    def start(self, tool: str, *arguments: str | bytes | Path) -> subprocess.Popen[bytes]:
        """Start a tool."""
        return subprocess.Popen(
            [TOOL_DIRECTORY / tool, *arguments],
            env=self.environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def run(self, tool: str, *arguments: str | bytes | Path) -> subprocess.CompletedProcess[bytes]:
        """Run a tool to its end; it may fail."""
        with self.start(tool, *arguments) as process:
            out, err = process.communicate(timeout=60)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def do(self, tool: str, *arguments: str | bytes | Path) -> bytes:
        """Run a tool that must succeed; return its output."""
        ended = self.run(tool, *arguments)
        assert ended.returncode == 0, ended.stderr.decode()
        assert ended.stderr == b""
        return ended.stdout

    def refusal(self, tool: str, *arguments: str | bytes | Path, status: int = 1) -> str:
        """Run a tool that must fail; return its one-line message."""
        ended = self.run(tool, *arguments)
        text = ended.stderr.decode()
        assert ended.returncode == status, (ended, text)
        assert text.startswith(f"{tool}: ")
        assert text.count("\n") == 1
        return text.removeprefix(f"{tool}: ").rstrip("\n")

    def usage(self) -> dict[str, int]:
        """Return the statistics of shmdf."""
        statistics: dict[str, int] = json.loads(self.do("shmdf", "--json"))
        return statistics

    def names(self) -> dict[str, dict[str, Any]]:
        """Return the rows of shmlist, by name."""
        rows = [json.loads(line) for line in self.do("shmlist", "--json").splitlines()]
        return {row["name"]: row for row in rows}

    def assert_clean(self) -> None:
        """Wait until no process is attached to the image, then check it. The process of a mount may
        end a moment after the unmount: the kernel waits for other users of the mount.
        """
        wait_for(self._is_detached_after_sweep, "all processes to detach from the image")
        self.do("shmfsck")

    def _is_detached_after_sweep(self) -> bool:
        """Remove what dead processes left; return whether no process is attached."""
        self.do("shmfsck", "--sweep")
        return self.usage()["attached"] == 0


@contextmanager
def fresh_image(*options: str, create: bool = True) -> Iterator[Image]:
    """Create an image with shminit, and remove it at the end of the context.

    With `create=False`, only choose its name.
    """
    image = Image(f"shmfs-test-{uuid.uuid4().hex[:12]}")
    try:
        if create:
            image.do("shminit", *options)
        yield image
    finally:
        image.control.unlink(missing_ok=True)
        image.data.unlink(missing_ok=True)
