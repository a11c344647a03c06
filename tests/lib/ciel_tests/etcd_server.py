"""Debian's etcd, for tests."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ciel_tests.redis_server import free_port, wait_for_port

ETCD = shutil.which("etcd")


@contextmanager
def etcd_server(directory: Path) -> Iterator[int]:
    """Run a server; yield its port."""
    assert ETCD is not None
    port, peer = free_port(), free_port()
    client_url, peer_url = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{peer}"
    process = subprocess.Popen(
        [ETCD, "--data-dir", str(directory / "data"), "--listen-client-urls", client_url,
         "--advertise-client-urls", client_url, "--listen-peer-urls", peer_url,
         "--initial-advertise-peer-urls", peer_url, "--initial-cluster", f"default={peer_url}",
         "--log-level", "error", "--unsafe-no-fsync"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        wait_for_port(port)
        yield port
    finally:
        process.kill()
        process.wait()
