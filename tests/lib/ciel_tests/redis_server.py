"""Debian's redis-server, for tests."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

REDIS = shutil.which("redis-server")


@contextmanager
def redis_server(directory: Path, *options: str) -> Iterator[int]:
    """Run a server that stores nothing unless options say so; yield its port."""
    assert REDIS is not None
    port = free_port()
    process = subprocess.Popen(
        [
            REDIS,
            "--port",
            str(port),
            "--save",
            "",
            "--appendonly",
            "no",
            "--dir",
            str(directory),
            *options,
        ],
        stdout=subprocess.DEVNULL,
    )
    try:
        wait_for_port(port)
        yield port
    finally:
        process.kill()
        process.wait()


def free_port() -> int:
    """Return a port at which nothing listens now."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def wait_for_port(port: int) -> None:
    """Wait until a server listens."""
    deadline_s = time.monotonic() + 20
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            assert time.monotonic() < deadline_s
            time.sleep(0.02)
