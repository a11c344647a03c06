"""Creates test hosts from Linux namespaces: each has a private network, directories and shared
memory.

The hosts are connected by a switch, which is a namespace, too; the network of this machine is not
changed. For each host, one process holds its namespaces; that process ends with the process that
started it. Then the kernel removes interfaces, mounts and files. Needs root.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

from ciel.testing.homes import Home, command_of, wait_for

TOOLS: Final = ("unshare", "nsenter", "ip", "mount")
NOWHERE: Final = "02:00:00:00:de:ad"
ROOT: Final = Path(__file__).resolve().parents[2]

# A private mount hides the needed directory if that is below it. Then the script mounts the needed
# directory at its path again, through ".", which still refers to it.
_FURNISH: Final = """
set -e
needed=$1; shift
cd "$needed"
for place; do mkdir -p "$place"; mount -t tmpfs -o mode=0755 none "$place"; done
if ! [ -e "$needed" ]; then mkdir -p "$needed"; mount -c --bind . "$needed"; fi
ip link set lo up
echo ready
exec cat
"""


class HostsUnavailableError(Exception):
    """Hosts cannot be created on this machine; the text is the reason."""


def _hold(*command: str) -> subprocess.Popen[str]:
    """Start a process that holds namespaces for as long as its standard input is open.

    Raises HostsUnavailableError if the command does not print `ready`.
    """
    keeper = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert keeper.stdout is not None
    if keeper.stdout.readline() != "ready\n":
        raise HostsUnavailableError(keeper.communicate()[1].strip())
    return keeper


def _let_go(keeper: subprocess.Popen[str]) -> None:
    keeper.communicate(timeout=20)  # it reads to the end of its standard input


class Host(Home):
    """A host, and the home of its user. `path` is the path of the home for this process, `inside`
    the path for processes of the host.
    """

    def __init__(self, keeper: subprocess.Popen[str], address: str, inside: Path) -> None:
        self.keeper = keeper
        self.proc_name = str(keeper.pid)
        self.address = address
        self.inside = inside
        path = Path(f"/proc/{keeper.pid}/root{inside}")
        path.mkdir(parents=True)
        super().__init__(path, inside)
        self._started: list[subprocess.Popen[str]] = []

    def start(self, *argv: str, **options: Any) -> subprocess.Popen[str]:
        started = super().start(*argv, **options)
        self._started.append(started)
        return started

    def command(self, argv: Sequence[str]) -> list[str]:
        """Return the command line that runs a command on this host, in the home."""
        enter = ["nsenter", "-t", str(self.keeper.pid), "-n", "-m", "--"]
        return [*enter, "env", "-C", str(self.inside), *argv]

    def processes(self) -> dict[int, str]:
        """Return the processes of this host by id, except the process that holds its namespaces."""
        own = os.readlink(f"/proc/{self.keeper.pid}/ns/net")
        found = {}
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it has ended meanwhile
                if os.readlink(entry / "ns" / "net") == own:
                    command = command_of(entry)
                    found[int(entry.name)] = command
        found.pop(self.keeper.pid, None)
        return found

    def set_link(self, *, up: bool) -> None:
        """Plug this host's cable in, or pull it out."""
        done = self.run("ip", "link", "set", "eth0", "up" if up else "down")
        assert done.returncode == 0, done.stderr

    def lose_frames_to(self, other: Host, *, loses: bool = True) -> None:
        """Drop all that this host sends to another one, without an error; or stop dropping it.

        The kernel sends it to a hardware address that no host has.
        """
        if loses:
            words = ["replace", other.address, "lladdr", NOWHERE, "nud", "permanent"]
        else:
            words = ["del", other.address]
        done = self.run("ip", "neigh", *words, "dev", "eth0")
        assert done.returncode == 0, done.stderr

    def traffic_bytes(self) -> tuple[int, int]:
        """Return the bytes that the host has received and sent by its cable."""
        lines = Path(f"/proc/{self.keeper.pid}/net/dev").read_text().splitlines()
        (line,) = [line for line in lines if line.strip().startswith("eth0:")]
        fields = line.partition(":")[2].split()
        return int(fields[0]), int(fields[8])

    def kill_all(self) -> None:
        """End every process on this host at once, as a power failure would."""
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for started in self._started:
            started.communicate(timeout=20)
        self._started.clear()
        wait_for(lambda: not self.processes(), f"the end of {self.processes()}")


class Hosts:
    """Hosts on one switch; a context manager. Raises HostsUnavailableError.

    The private directories of a host are `/tmp`, `/dev/shm` and `path`; it shares all others.
    """

    def __init__(self, path: Path, count: int = 2) -> None:
        self._path = path
        self._count = count
        self._keepers: list[subprocess.Popen[str]] = []
        self._hosts: list[Host] = []

    def __enter__(self) -> list[Host]:
        missing = [tool for tool in TOOLS if shutil.which(tool) is None]
        if missing:
            raise HostsUnavailableError(f"{', '.join(missing)} not found")
        try:
            self._make()
        except BaseException:
            self.__exit__()
            raise
        return self._hosts

    def __exit__(self, *error: object) -> None:
        for host in self._hosts:
            host.kill_all()
        self._hosts.clear()
        while self._keepers:
            _let_go(self._keepers.pop())

    def _make(self) -> None:
        switch = self._keep("unshare", "-n", "sh", "-c", "echo ready; exec cat")
        self._ip(switch, "link", "add", "switch", "type", "bridge")
        self._ip(switch, "link", "set", "switch", "up")
        for number in range(1, self._count + 1):
            places = ("/tmp", "/dev/shm", str(self._path))
            keeper = self._keep(
                "unshare", "-nm", "sh", "-c", _FURNISH, "sh", str(ROOT), *places
            )  # fmt: skip
            port, address = f"port{number}", f"10.77.0.{number}"
            self._ip(
                switch, "link", "add", port, "type", "veth",
                "peer", "name", "eth0", "netns", str(keeper.pid),
            )  # fmt: skip
            self._ip(switch, "link", "set", port, "master", "switch", "up")
            self._ip(keeper, "addr", "add", f"{address}/24", "dev", "eth0")
            self._ip(keeper, "link", "set", "eth0", "up")
            self._hosts.append(Host(keeper, address, self._path / "home"))

    def _keep(self, *command: str) -> subprocess.Popen[str]:
        self._keepers.append(_hold(*command))
        return self._keepers[-1]

    def _ip(self, keeper: subprocess.Popen[str], *words: str) -> None:
        command = ["nsenter", "-t", str(keeper.pid), "-n", "--", "ip", *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise HostsUnavailableError(f"ip {' '.join(words)}: {done.stderr.strip()}")


class TwoHosts:
    """A master on the first host, and access to it on both; the test starts the workers."""

    def __init__(self, here: Host, there: Host) -> None:
        listen = ("--listen", f"{here.address}:0", "--new-key")
        here.start("ciel-master", *listen, "--log", "master.log")
        wait_for(lambda: [*here.path.glob("state/ciel/*/access.json")], "the access file")
        (access,) = here.path.glob("state/ciel/*/access.json")
        here.environ["CIEL_MASTER"] = str(json.loads(access.read_text())["url"])
        shutil.copy2(access, there.path / "carried.json")
        there.environ["CIEL_ACCESS"] = str(there.inside / "carried.json")

    def start_worker(self, host: Host) -> None:
        own = ("--listen", f"{host.address}:0", "--slots", "1", "--spool", "spool")
        host.start("ciel-worker", *own, "--log", "worker.log")
        wait_for(partial(_has_joined, host.path / "worker.log"), "a worker")


def _has_joined(log: Path) -> bool:
    return log.exists() and "joined the master" in log.read_text()
