"""Mounts images of shmfs, the file system in shared memory, as directories."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from ciel.testing.shm_tools import TOOL_DIRECTORY, Image

PROGRAM = TOOL_DIRECTORY / "shmfs-fuse"


def can_mount() -> bool:
    """Whether this machine has everything that `ciel shmfs mount` needs."""
    device = os.access("/dev/fuse", os.R_OK | os.W_OK)
    return device and PROGRAM.exists() and shutil.which("fusermount3") is not None


def ciel_shmfs(image: Image, *words: str | Path) -> subprocess.CompletedProcess[str]:
    """Run `ciel shmfs`."""
    return subprocess.run(
        [sys.executable, "-m", "ciel.cli.main", "shmfs", *words],
        env=image.environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@contextmanager
def mounted(
    image: Image, place: Path, *options: str, stderr: IO[bytes] | None = None
) -> Iterator[subprocess.Popen[str]]:
    """Mount an image with `shmfs-fuse`; end that process when the context ends."""
    with subprocess.Popen(
        [PROGRAM, *options, place],
        env=image.environ,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().endswith(f" is mounted on {place}\n")
        try:
            yield process
        finally:
            process.terminate()
            process.wait(20)
