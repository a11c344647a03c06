"""Runs a cluster with memory servers, and exports its volumes to NBD clients."""

from __future__ import annotations

import json
import os
import re
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, NamedTuple

from ciel.client.client import Client
from ciel.testing.homes import BIN, Home, wait_for

STARTED_WITHIN_S: Final = 60.0
COPIED_WITHIN_S: Final = 60.0


class Export(NamedTuple):
    """A volume that NBD clients can reach: its socket, and the process of nbdkit."""

    socket: str
    uri: str
    nbdkit: int


class MemoryCluster:
    """A cluster of `ciel up` with memory servers, which all end with the stack.

    Each server offers memory as `--offer` says, such as "64MiB". `client` is connected to the
    cluster.
    """

    def __init__(self, home: Home, stack: ExitStack, offer: str, servers: int = 2) -> None:
        self.servers: dict[str, subprocess.Popen[str]] = {}
        """The processes by the ids of the servers, the oldest first."""
        self._home = home
        self._stack = stack
        self._offer = offer
        self._logs = 0
        self._ciel("up", "--workers", "1", "--listen", "127.0.0.1:0")
        stack.callback(self._ciel, "down")
        self.client = stack.enter_context(Client(environ=home.environ))
        for _ in range(servers):
            self.start()

    def start(self) -> str:
        """Start a server; return its id when the master knows it."""
        self._logs += 1
        log = self._home.path / f"memory{self._logs}.log"
        words = ("--offer", self._offer, "--pressure-max", "off", "--log", str(log))
        process = self._started(str(BIN / "ciel-memory"), *words)

        def found() -> list[str]:
            text = log.read_text() if log.exists() else ""
            return re.findall(r"memory server (memory-\w+) at ", text)

        wait_for(found, "the log of a memory server", STARTED_WITHIN_S)
        server = found()[0]
        wait_for(lambda: server in self.connected(), "a memory server", STARTED_WITHIN_S)
        self.servers[server] = process
        return server

    def kill(self, server: str) -> None:
        """Kill the process of a server."""
        process = self.servers.pop(server)
        process.kill()
        process.wait()

    def connected(self) -> set[str]:
        """Return the ids of the servers that are connected to the master."""
        rows = self.client.ask("memory")["servers"]
        return {row["server"] for row in rows if row["is_connected"]}

    def volume(self, name: str) -> dict[str, Any]:
        """Return what `ciel memory stats --json` says about a volume."""
        rows = self.client.ask("memory_stats")["volumes"]
        return next(row for row in rows if row["name"] == name)

    def create(self, name: str, size_mib: int, replicas: int) -> None:
        """Create a volume, and wait until servers have all its extents."""
        size = f"{size_mib}MiB"
        self._ciel("memory", "create", name, "--size", size, "--replicas", str(replicas))
        self.wait_for_copies(name)

    def wait_for_copies(self, name: str) -> None:
        """Wait until a volume has all its copies."""

        def is_complete() -> bool:
            row = self.volume(name)
            return bool(row["available"] == row["extents"] and row["copies"] == row["replicas"])

        wait_for(is_complete, f"the copies of volume {name}", COPIED_WITHIN_S)

    def export(self, name: str) -> Export:
        """Serve a volume to NBD clients. The messages of nbdkit go to NAME.log in the home."""
        path = self._home.path
        socket = str(path / name)
        words = ("memory", "export", name, "--socket", socket, "--json")
        log = path / f"{name}.log"
        serving = self._started(str(BIN / "ciel"), *words, log=log)
        assert serving.stdout is not None
        line = serving.stdout.readline()
        assert line, f"volume {name} cannot be exported: {log.read_text()}"
        uri = json.loads(line)["uri"]
        children = Path(f"/proc/{serving.pid}/task/{serving.pid}/children").read_text()
        return Export(socket, uri, int(children.split()[0]))

    def _ciel(self, *words: str) -> None:
        done = self._home.run(str(BIN / "ciel"), *words)
        assert done.returncode == 0, f"ciel {' '.join(words)}: {done.stderr}"

    def _started(self, *command: str, log: Path = Path(os.devnull)) -> subprocess.Popen[str]:
        with log.open("w") as messages:
            process = self._home.start(*command, stderr=messages)

        def end() -> None:
            process.terminate()
            process.communicate()

        self._stack.callback(end)
        return process
