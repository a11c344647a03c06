"""Brings workers by ssh: one connection for each worker, which holds the worker's life.

The user's own OpenSSH client connects, with its configuration and its agent, and asks nobody
(`BatchMode`). The worker reads the key of the cluster from its standard input, and ends when that
ends. So it ends with the connection, whichever side dies.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import subprocess
import time
from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from ciel.launchers.commands import WORKER, check_words, last_line, worker_command
from ciel.launchers.interface import (
    Allocation,
    LauncherError,
    LauncherOptionError,
    Phase,
    Site,
    WorkerSize,
)

WORKERS_PER_HOST_MAX: Final = 64
CONNECT_TIMEOUT_S: Final = 15
END_TIMEOUT_S: Final = 10.0
"""How long a worker may take to end after its connection was closed."""

_READY_MAX_BYTES: Final = 65536
_LOG_TAIL_BYTES: Final = 4096

_NO_WORKER = "the worker needs the connection for itself"
FORBIDDEN: Final = dict.fromkeys(
    ("-f", "-G", "-M", "-N", "-n", "-O", "-Q", "-s", "-T", "-t", "-tt", "-V", "-W"), _NO_WORKER
)
_VALUED: Final = "BbcDEeFIiJLlmOoPpQRSWw"


class Host(NamedTuple):
    """A line of the file of hosts. `slots`: of each worker; 0 means the cores of the host."""

    name: str
    port: int = 0
    slots: int = 0
    workers: int = 1


def read_hosts(text: str) -> list[Host]:
    """Read a file of hosts: `[USER@]HOST[:PORT] [slots=N] [workers=N]` on each line.

    `#` begins a comment. Raises LauncherOptionError.
    """
    hosts = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if words:
            try:
                hosts.append(_read_host(words))
            except ValueError as error:
                raise LauncherOptionError(f"line {number} of the hosts: {error}") from None
    if not hosts:
        raise LauncherOptionError("the file of hosts names no host")
    return hosts


def _read_host(words: Sequence[str]) -> Host:
    name, colon, port = words[0].rpartition(":")
    if words[0].endswith("]") or not colon or (name.count(":") > 1 and not name.endswith("]")):
        name, port = words[0], ""  # no port: the colons belong to an address of IPv6
    host = name.rpartition("@")[2]
    if not host.strip("[]") or name.startswith("-") or host.startswith("-"):
        raise ValueError(f"{words[0]!a:.80} is not [USER@]HOST[:PORT]")
    found = Host(name.replace("[", "").replace("]", ""), _number("the port", port or "0", 65535))
    for word in words[1:]:
        key, _, value = word.partition("=")
        if key == "slots":
            found = found._replace(slots=_number(key, value, 1024))
        elif key == "workers":
            found = found._replace(workers=_number(key, value, WORKERS_PER_HOST_MAX))
        else:
            raise ValueError(f"{word!a:.80} is neither slots=N nor workers=N")
    return found


def _number(what: str, text: str, most: int) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 7 and int(text) <= most):
        raise ValueError(f"{what} must be a number up to {most}, not {text!a:.40}")
    return int(text)


class _Place(NamedTuple):
    """A place for one worker: a host, and the number of the worker there."""

    host: Host
    number: int

    @property
    def label(self) -> str:
        port = f":{self.host.port}" if self.host.port else ""
        return f"{self.host.name}{port}#{self.number}"


class _Link:
    """A connection to a host, with a worker at its other end."""

    def __init__(self, place: _Place, command: Sequence[str], line: bytes, log: Path) -> None:
        self.place = place
        self.log = log
        self.is_ready = False
        with log.open("ab") as errors:
            self.log_start_bytes = errors.tell()
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors
            )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._stdin, self._stdout = self.process.stdin, self.process.stdout
        os.set_blocking(self._stdout.fileno(), False)
        with contextlib.suppress(BrokenPipeError):
            self._stdin.write(line)
            self._stdin.flush()

    def poll(self) -> int | None:
        """Return the exit status of the connection; None while it lasts."""
        if not self.is_ready:
            with contextlib.suppress(BlockingIOError, ValueError):
                data = os.read(self._stdout.fileno(), _READY_MAX_BYTES)
                self.is_ready = b'"netloc"' in data
        return self.process.poll()

    def hang_up(self) -> None:
        """Close the worker's standard input, which ends it."""
        with contextlib.suppress(BrokenPipeError):
            self._stdin.close()

    def end(self, timeout_s: float) -> None:
        """Hang up, and wait for the end of the connection; kill it if it takes too long."""
        self.hang_up()
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._stdout.close()

    def said(self) -> str:
        """Return the last line of its log; "" if it has written none."""
        with self.log.open("rb") as file:
            size_bytes = file.seek(0, os.SEEK_END)
            file.seek(max(self.log_start_bytes, size_bytes - _LOG_TAIL_BYTES))
            return last_line(file.read().decode(errors="replace"))


class SshLauncher:
    """Connects to hosts. `words`: options of `ssh`."""

    def __init__(self, site: Site, options: Mapping[str, Any], words: Sequence[str]) -> None:
        self.poll_s = 0.5
        self.size = WorkerSize()
        self._site = site
        self._words = list(words)
        self._program = options["worker_command"] or WORKER
        self._log = site.directory / "ssh"
        self._places = places(read_hosts(_content(options["hosts"])))
        self._links: dict[str, _Link] = {}  # by the id of the allocation
        self._failures: dict[_Place, int] = {}
        self._count = 0

    @staticmethod
    def add_options(parser: ArgumentParser) -> None:
        add = parser.add_argument
        add(
            "--hosts", metavar="FILE",
            help="the hosts, one on each line: [USER@]HOST[:PORT] [slots=N] [workers=N]",
        )  # fmt: skip
        add(
            "--worker-command", metavar="COMMAND",
            help="the command that starts a worker there (default: ciel-worker)",
        )  # fmt: skip

    @staticmethod
    def check(options: dict[str, Any], words: Sequence[str]) -> tuple[int, int] | None:
        check_words(words, FORBIDDEN, _VALUED, "ssh")
        if not options["hosts"]:
            raise LauncherOptionError("--on ssh needs --hosts FILE, with a host on each line")
        options["hosts"] = os.path.abspath(options["hosts"])
        count = len(places(read_hosts(_content(options["hosts"]))))
        return count, count

    def request(self, count: int) -> list[str]:
        used = {link.place for link in self._links.values()}
        free = [place for place in self._places if place not in used]
        free.sort(key=lambda place: self._failures.get(place, 0))
        if not free:
            raise LauncherError(f"all {len(self._places)} places of the hosts have a worker")
        self._log.mkdir(mode=0o700, exist_ok=True)
        return [self._connect(place) for place in free[:count]]

    def _connect(self, place: _Place) -> str:
        self._count += 1
        name = f"{place.label}-{os.getpid()}.{self._count}"
        own = {"--allocation": shlex.quote(name)}
        if place.host.slots:
            own["--slots"] = str(place.host.slots)
        remote = f"exec {worker_command(f'{self._program} --embedded', self._site, own)}"
        command = [
            "ssh", "-T", "-o", "BatchMode=yes", *self._words,
            "-o", f"ConnectTimeout={CONNECT_TIMEOUT_S}", "-o", "ServerAliveInterval=15",
            *(["-p", str(place.host.port)] if place.host.port else []),
            "--", place.host.name, remote,
        ]  # fmt: skip
        access = self._site.access
        line = {
            "key": access.key.text(), "cluster_id": access.cluster_id, "url": access.url,
            "control": access.control,
        }  # fmt: skip
        log = self._log / f"{place.label.replace('/', '_')}.log"
        try:
            link = _Link(place, command, json.dumps(line).encode() + b"\n", log)
        except FileNotFoundError:
            raise LauncherError("ssh is not installed on this host") from None
        self._links[name] = link
        return name

    def allocations(self) -> list[Allocation]:
        found = []
        for name, link in list(self._links.items()):
            status = link.poll()
            host = link.place.host.name
            if status is None:
                phase = Phase.RUNNING if link.is_ready else Phase.QUEUED
                found.append(Allocation(name, phase, "" if link.is_ready else "connecting", host))
                continue
            link.end(0)
            del self._links[name]
            failed = 0 if link.is_ready else self._failures.get(link.place, 0) + 1
            self._failures[link.place] = failed
            reason = why_ended(link.place.host.name, status, link.said(), self._program)
            found.append(Allocation(name, Phase.ENDED, reason, host))
        return found

    def cancel(self, ids: Sequence[str]) -> None:
        for name in ids:
            if name in self._links:
                self._links[name].hang_up()

    def close(self) -> None:
        """Close all connections, and wait for the ends of their workers."""
        for link in self._links.values():
            link.hang_up()
        until_s = time.monotonic() + END_TIMEOUT_S
        for link in self._links.values():
            link.end(max(0.0, until_s - time.monotonic()))
        self._links.clear()


def why_ended(host: str, status: int, said: str, program: str) -> str:
    """Say why a connection has ended, and what to do. `status`: the exit status of `ssh`."""
    if status == 0:
        return "has ended"
    if status == 127:
        return (
            f"has failed: {host} has no {program} in the PATH that ssh sets there: install ciel, "
            "or name its path with --worker-command"
        )
    if status != 255:
        how = f"by signal {-status}" if status < 0 else f"with status {status}"
        return f"has ended {how}; its log ends: {said}"
    if "Host key verification" in said:
        advice = f"the key of the host is unknown or has changed: check it by hand: ssh {host}"
    elif "Permission denied" in said:
        advice = f"no key of yours is accepted there: ssh-copy-id {host}, or start ssh-agent"
    else:
        advice = "check the name, the port, and whether the host is up"
    return f"has failed: cannot connect to {host}: {said or 'the connection broke'}: {advice}"


def places(hosts: Sequence[Host]) -> list[_Place]:
    """Return where workers can run, the first workers of all hosts first."""
    found = [_Place(host, number) for host in hosts for number in range(1, host.workers + 1)]
    if len(set(found)) < len(found):
        raise LauncherOptionError("the file of hosts names a host twice: use workers=N")
    return sorted(found, key=lambda place: place.number)


def _content(path: str) -> str:
    try:
        return Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise LauncherOptionError(f"--hosts {path}: {reason}") from None
