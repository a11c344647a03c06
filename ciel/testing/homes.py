"""Runs real daemons and commands in a private home directory, and finds what they leave behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final

from ciel.core.transports import CORES_MIN, NOT_OPEN
from ciel.worker.host import new_worker_id

BIN = Path(sys.executable).parent
WORKER_ID = rf"\b{re.escape(new_worker_id().rpartition('-')[0])}-[0-9a-f]{{10}}\b"
"""Matches the ids of workers that started on this host."""
DUMPED_WITHIN_S: Final = 2.0


def wait_for(condition: Callable[[], object], what: str, timeout_s: float = 20.0) -> None:
    """Wait until a condition holds; AssertionError with `what` if it does not in time."""
    until_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < until_s, f"waited {timeout_s} s for {what}"
        time.sleep(0.01)


def descriptors_of(pid: int) -> int:
    """Count the open descriptors of a process, except files that a store keeps for reuse."""
    count = 0
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            place = str(entry.readlink())
            count += "/incoming/" not in place and "memfd:ciel-object" not in place
        except FileNotFoundError:
            continue  # just closed
    return count


def private_bytes(pid: int) -> int:
    """Return how much anonymous memory a process has."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.findall(r"RssAnon:\s+(\d+) kB", status)[0]) << 10


class Home:
    """A user's home: settings, state and temporary files in one directory. `inside` is the path by
    which the home's processes know it, if they have another mount namespace.
    """

    proc_name = "self"
    """The name in `/proc` of a process that has the home's namespaces."""

    def __init__(self, path: Path, inside: Path | None = None) -> None:
        self.path = path
        self.tmp = path / "tmp"
        self.tmp.mkdir()
        self._others = self.shared()  # these belong to clusters that existed before
        self._inside = inside or path
        self.environ = {
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "HOME": str(self._inside),
            "XDG_STATE_HOME": str(self._inside / "state"),
            "XDG_CONFIG_HOME": str(self._inside / "config"),
            # What `ciel-cc` has built before.
            "XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache")),
            "TMPDIR": str(self._inside / "tmp"),
            "TEST_SESSION": os.environ.get("TEST_SESSION", ""),
            "PYTHONFAULTHANDLER": "1",  # for `run`
        }
        if pure := os.environ.get("CIEL_PURE"):  # daemons run the same code as the tests
            self.environ["CIEL_PURE"] = pure
        if store := os.environ.get("CIEL_STORE"):  # the same tests, on another store
            self.environ["CIEL_STORE"] = store

    def command(self, argv: Sequence[str]) -> list[str]:
        """Return the command line that runs a command in this home."""
        return [*argv]

    def shared(self) -> dict[str, str]:
        """Return the segments and sockets that ciel's processes share on this machine, each with
        the name that it has in `/proc/PID/fd`.
        """
        segments = Path(f"/proc/{self.proc_name}/root", "dev/shm").glob("ciel-*")
        sockets = Path(f"/proc/{self.proc_name}/net/unix").read_text()
        found = {
            str(path): f"/dev/shm/{path.name}"
            for path in segments
            # The queues of disks, and the counters of full disks, belong to all processes.
            if not path.name.startswith(("ciel-io-", "ciel-full."))
        }
        for inode, name in re.findall(r"(\d+) (@ciel-\S+)", sockets):
            found[name] = f"socket:[{inode}]"
        return found

    def start(
        self,
        *argv: str,
        stdin: int = subprocess.DEVNULL,
        stderr: int | IO[str] = subprocess.PIPE,
        **options: object,
    ) -> subprocess.Popen[str]:
        return subprocess.Popen(  # type: ignore[call-overload, no-any-return]  # options pass through
            self.command(argv),
            env=self.environ,
            cwd=self.path,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            **options,
        )

    def run(self, *argv: str, timeout_s: float = 40.0) -> subprocess.CompletedProcess[str]:
        """Run a command to its end. If it does not end in time, raise AssertionError with its
        stacks and the dumps of the daemons.
        """
        command = self.command(argv)
        with subprocess.Popen(
            command,
            env=self.environ,
            cwd=self.path,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                printed, complaints = process.communicate(timeout=timeout_s)
            except subprocess.TimeoutExpired:
                dumps = self._dump_daemons()
                process.send_signal(signal.SIGABRT)
                printed, complaints = process.communicate(timeout=timeout_s)
                raise AssertionError(
                    f"{command} took longer than {timeout_s} s\n{printed}{complaints}\n{dumps}"
                ) from None
            except BaseException:
                process.kill()
                raise
        return subprocess.CompletedProcess(command, process.returncode, printed, complaints)

    def _dump_daemons(self) -> str:
        """Make the daemons write dumps; return the dumps."""
        for pid, command in self.processes().items():
            if re.search(r"bin/ciel-(master|worker) |cli\.daemons\.(master|worker) ", command):
                os.kill(pid, signal.SIGUSR1)
        time.sleep(DUMPED_WITHIN_S)
        return "\n\n".join(path.read_text() for path in sorted(self.path.rglob("*.dump")))

    def processes(self) -> dict[int, str]:
        """Return the command of every running process that was started from this home, by id."""
        found = {}
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if self._is_ours(entry):
                    found[int(entry.name)] = command_of(entry)
            except OSError:
                continue  # it has ended meanwhile
        return found

    def _is_ours(self, process: Path) -> bool:
        return f"HOME={self.path}".encode() in (process / "environ").read_bytes().split(b"\0")

    def _used_elsewhere(self) -> set[str]:
        """Return the shared files that processes outside this home use, such as other tests."""
        found: set[str] = set()
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it has ended meanwhile
                if not self._is_ours(entry):
                    names = re.findall(r"/dev/shm/ciel-.*", (entry / "maps").read_text())
                    for file in (entry / "fd").iterdir():
                        with suppress(FileNotFoundError):  # just closed
                            names.append(os.readlink(file))
                    found.update("/".join(name.split("/")[:4]) for name in names)
        return found

    def leftovers(self) -> list[str]:
        """Return the processes, files and sockets that a finished command left behind, except
        logs.
        """
        files = [str(path) for path in self.tmp.iterdir()]
        shared = {name: file for name, file in self.shared().items() if name not in self._others}
        elsewhere = self._used_elsewhere() if shared else set()
        left = sorted(name for name, file in shared.items() if file not in elsewhere)
        return [*self.processes().values(), *files, *left]

    def expect_nothing_left(self, timeout_s: float = 20.0) -> None:
        wait_for(lambda: not self.leftovers(), f"the end of {self.leftovers()}", timeout_s)


@dataclass
class HandCluster:
    """A master and workers that the test starts one by one. Commands in its home use this cluster.
    `access` is the master's access file.
    """

    home: Home
    access: Path
    master: subprocess.Popen[str]
    workers: list[subprocess.Popen[str]]
    lenders: list[subprocess.Popen[str]] = field(default_factory=list)
    """Memory servers: one if the stores of workers spill to other machines (`CIEL_STORE`)."""

    @classmethod
    def start(
        cls,
        home: Home,
        workers: int = 2,
        *options: str,
        of_all: Sequence[str] = (),
        of_master: Sequence[str] = (),
    ) -> HandCluster:
        """Start a cluster, and make commands in this home use it. The workers get `options`, the
        master gets `of_master`, and all daemons get `of_all`.
        """
        access = home.path / "access.json"
        log = str(home.path / "master.log")
        master = home.start(
            "ciel-master", "--listen", "127.0.0.1:0", "--access", str(access), "--log", log,
            *of_all, *of_master,
        )  # fmt: skip
        wait_for(access.exists, "the master's access file")
        cluster = cls(home, access, master, [])
        if "spill=remote" in home.environ.get("CIEL_STORE", ""):
            lent = ("--offer", "256MiB", "--listen", "127.0.0.1:0", "--pressure-max", "off")
            cluster.lenders.append(home.start("ciel-memory", *lent, "--access", str(access)))
        begun = [cluster.begin_worker(*options, *of_all) for _ in range(workers)]
        for worker_log in begun:
            cluster.await_worker(worker_log)
        home.environ["CIEL_ACCESS"] = str(access)
        cluster.await_channels()
        return cluster

    def await_channels(self) -> None:
        """Wait until the daemons have switched to the channels that they chose, if these are not
        sockets: that opens descriptors.
        """
        if self.workers and len(os.sched_getaffinity(0)) >= CORES_MIN:
            command = ("ciel", "status", "--transports")
            wait_for(lambda: NOT_OPEN not in self.home.run(*command).stdout, "open channels")

    @property
    def url(self) -> str:
        return str(json.loads(self.access.read_text())["url"])

    @property
    def key(self) -> str:
        return str(json.loads(self.access.read_text())["key"])

    def log(self, name: str) -> str:
        return (self.home.path / f"{name}.log").read_text()

    def netlocs(self) -> list[str]:
        """Return the addresses of the workers, from their logs."""
        logs = [self.log(f"worker{number}") for number in range(1, len(self.workers) + 1)]
        return [re.findall(r"worker \S+ at (127\.0\.0\.1:\d+)", log)[0] for log in logs]

    def start_worker(self, *options: str) -> subprocess.Popen[str]:
        """Start a worker with one slot; return it when it has joined."""
        self.await_worker(self.begin_worker(*options))
        self.await_channels()
        return self.workers[-1]

    def begin_worker(self, *options: str) -> Path:
        """Start a worker with one slot, without waiting; return its log."""
        number = len(self.workers) + 1
        log = self.home.path / f"worker{number}.log"
        own = ("--access", str(self.access), "--slots", "1", "--log", str(log))
        self.workers.append(self.home.start("ciel-worker", *own, *options))
        return log

    @staticmethod
    def await_worker(log: Path) -> None:
        def is_ready() -> bool:  # it may join before it logs its address
            text = log.read_text() if log.exists() else ""
            return "joined the master" in text and re.search(r"worker \S+ at ", text) is not None

        wait_for(is_ready, "a worker")

    def stop(self) -> None:
        processes = [*self.workers, *self.lenders, self.master]
        for process in processes:
            process.send_signal(signal.SIGTERM)
        for process in processes:
            process.communicate(timeout=20)


def command_of(process: Path) -> str:
    """Return the command line of a process, by its directory in `/proc`; raises OSError.

    The name and the arguments of a process may be bytes that are not UTF-8.
    """
    return (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")


def fields_of(process: Path) -> list[str]:
    """Return the state, the parent and the further fields of `/proc/PID/stat`; raises OSError."""
    return (process / "stat").read_text(errors="replace").rpartition(")")[2].split()


def processes_below(pid: int) -> dict[int, str]:
    """Return the commands of all descendants of a process, by process id."""
    parents, commands = {}, {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(entry.name)] = int(fields_of(entry)[1])
            commands[int(entry.name)] = command_of(entry)
        except OSError:
            continue
    found, ours = {}, {pid}
    while more := {child for child, parent in parents.items() if parent in ours} - ours:
        ours |= more
        found.update({child: commands[child] for child in more})
    return found
