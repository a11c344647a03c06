"""Memory servers of a cluster, as processes, and the commands about them."""

from __future__ import annotations

import json
import signal
import subprocess
from typing import Any

from ciel.testing.homes import Home, wait_for
from ciel_tests.documents.schemas import Schemas


class Lenders:
    """Memory servers of a cluster."""

    def __init__(self, home: Home) -> None:
        self.home = home
        self.processes: dict[str, subprocess.Popen[str]] = {}  # by id
        self.schemas = Schemas()

    def start(self, offer: str = "64MiB", *options: str) -> str:
        """Start a server; return its id."""
        before = set(self.servers())
        pressure = options or ("--pressure-max", "off")  # whatever else runs on this host
        words = ["--offer", offer, "--listen", "127.0.0.1:0", *pressure]
        process = self.home.start("ciel-memory", *words)
        wait_for(lambda: set(self.servers()) - before, "the server", 20.0)
        (server,) = set(self.servers()) - before
        self.processes[server] = process
        return server

    def servers(self) -> dict[str, dict[str, Any]]:
        return {row["server"]: row for row in self.listed()["servers"] if row["is_connected"]}

    def listed(self) -> Any:
        found = self.ciel("list")
        self.schemas.check("memory-list", found)
        return found

    def ciel(self, *words: str) -> Any:
        done = self.home.run("ciel", "memory", *words, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def create(self, name: str, size: str, replicas: int) -> None:
        made = self.ciel("create", name, "--size", size, "--replicas", str(replicas))
        self.schemas.check("memory-create", made)
        wait_for(lambda: self.volume(name)["available"] == made["extents"], "the volume")

    def volume(self, name: str) -> dict[str, Any]:
        (found,) = [row for row in self.listed()["volumes"] if row["name"] == name]
        return dict(found)

    def kill(self, server: str) -> None:
        process = self.processes.pop(server)
        process.kill()
        process.communicate(timeout=20)

    def leave(self) -> None:
        for process in self.processes.values():
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=20)
