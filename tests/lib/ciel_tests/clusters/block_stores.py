"""Runs block stores with stand-alone daemons, as real processes in one group."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

from ciel.shm.client import ShmdClient
from ciel.shm.store import open_shm
from ciel.storage.files import open_disk
from ciel.testing.homes import BIN

CAPACITY = "32MiB"


class BlockStores:
    """Stores in subdirectories of `path`, each with a daemon after its start."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.group = f"test-{os.getpid()}-{path.name}"
        self.daemons: dict[str, subprocess.Popen[str]] = {}
        self._clients: list[ShmdClient] = []

    def begin(self, name: str, *options: str) -> subprocess.Popen[str]:
        """Start a daemon, without waiting."""
        words = ("--capacity", CAPACITY, "--group", self.group, *options)
        self.daemons[name] = subprocess.Popen(
            [str(BIN / "ciel"), "shmd", str(self.path / name), *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        return self.daemons[name]

    def start(self, *names: str) -> None:
        """Start daemons, and wait until they serve."""
        for process in [self.begin(name) for name in names]:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.endswith("/shmd/socket\n"), process.communicate()

    def client(self, name: str, *, attempt: str = "", timeout_s: float = 20.0) -> ShmdClient:
        """Return a client, which `end` closes."""
        client = ShmdClient(self.path / name, attempt=attempt, timeout_s=timeout_s)
        self._clients.append(client)
        return client

    def put(self, name: str, object_id: str, content: bytes) -> None:
        """Put an object into a store's directory on disk."""
        with open_disk({}, self.path / name) as store:
            store.put(object_id, content)

    def make(self, client: ShmdClient, object_id: str, content: bytes) -> str:
        """Write and commit an object, as a program does; return its path."""
        path = client.write(object_id)
        Path(path).write_bytes(content)
        return client.commit(path, object_id)

    def kill(self, name: str) -> None:
        process = self.daemons.pop(name)
        process.kill()
        process.communicate(timeout=20)

    def stop(self, name: str) -> None:
        self.daemons[name].send_signal(signal.SIGSTOP)

    def end(self) -> list[str]:
        """End all daemons; return the errors and the remains of the daemons that still ran."""
        for client in self._clients:
            client.close()
        for process in self.daemons.values():
            process.send_signal(signal.SIGCONT)
            process.terminate()
        wrong = []
        for name, process in self.daemons.items():
            _, said = process.communicate(timeout=20)
            if process.returncode or "Traceback" in said:
                wrong.append(f"{name}: {process.returncode}, {said}")
            wrong += [str(path) for path in (self.path / name).glob("shmd")]
            wrong += [str(path) for path in (self.path / name).glob("incoming/*")]
        self.daemons.clear()
        open_shm(
            {"capacity": "1MiB", "spill": "no"}, self.path
        ).close()  # removes segments of killed daemons
        return wrong
