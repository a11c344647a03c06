"""The daemon of a key-value base, `ciel-kv`: serves state to tasks and clients (KVB-2, KVB-3)."""

from __future__ import annotations

import argparse
import os
import resource
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import ciel
from ciel.access.addresses import is_loopback, netloc
from ciel.access.errors import AccessError
from ciel.access.keys import Key, Role
from ciel.access.settings import find_master
from ciel.cli.daemons.addresses import host_and_port
from ciel.cli.daemons.errors import DaemonError
from ciel.cli.daemons.process import log, run, settle_memory
from ciel.cli.parsing.parser import Parser, memory_size, whole_number
from ciel.core.errors import CielError
from ciel.net.authorisation import Authorisation
from ciel.net.errors import NetError
from ciel.net.http import Routes, SecureSite
from ciel.net.metrics import Metrics
from ciel.net.transports import listen, parse_address
from ciel.state.batches import VALUE_MAX_BYTES
from ciel.state.server.buffered import BufferedRows
from ciel.state.server.limits import DEFAULT, OVERHEAD_BYTES, KvLimits
from ciel.state.server.service import ALWAYS, SYNC_MODES, KvService
from ciel.state.server.sessions import Server

START_ERRORS: Final = (AccessError, NetError, DaemonError, CielError, OSError)
PASSWORD_FILE: Final = "password"
CAPACITY_MIN_BYTES: Final = 1 << 20
CAPACITY_MAX_BYTES: Final = 16 << 40
"""The file is mapped, and may have four times that."""
FILES_SPARE: Final = 64
"""Descriptors that are not for connections of clients: logs, LMDB, HTTP."""


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parse = Parser(
        prog="ciel-kv",
        allow_abbrev=False,
        description="Serve a key-value base to tasks, and to clients of Redis.",
    )
    add = parse.add_argument
    add("--path", type=Path, metavar="DIRECTORY", required=True, help="where the base is stored")
    add(
        "--listen",
        type=host_and_port,
        metavar="HOST:PORT",
        default="127.0.0.1:6380",
        help="the address to listen at (default %(default)s; port 0 means any free port)",
    )
    add(
        "--sync",
        choices=SYNC_MODES,
        default=ALWAYS,
        help="when writes are made durable: before they are acknowledged, every second, or when "
        "the operating system does it (default %(default)s)",
    )
    _add_limits(add)
    add(
        "--passwords",
        action="store_true",
        help="accept passwords from other hosts, although the network can read them",
    )
    add(
        "--http",
        type=host_and_port,
        metavar="HOST:PORT",
        help="serve metrics for Prometheus at this address (default: do not)",
    )
    add("--master", metavar="URL", help="the master of the cluster whose key clients must have")
    add("--access", metavar="FILE", help="the access file of that master")
    add("--log", metavar="FILE", help="the log file (default: standard error)")
    add("--embedded", action="store_true", help=argparse.SUPPRESS)
    add("--version", action="version", version=f"ciel {ciel.__version__}")
    return parse  # fmt: skip


def _add_limits(add: Callable[..., object]) -> None:
    add(
        "--capacity",
        type=memory_size,
        metavar="SIZE",
        default="256GiB",
        help="the largest size of all keys and values; then writes are refused, and reads and "
        "deletes go on (default %(default)s)",
    )
    add(
        "--value-max",
        type=memory_size,
        metavar="SIZE",
        default="64MiB",
        help="the largest size of a value (default and maximum %(default)s)",
    )
    add(
        "--output-max",
        type=memory_size,
        metavar="SIZE",
        default="256MiB",
        help="the largest size of what waits for a client; a reply has at most half (default "
        "%(default)s)",
    )
    add(
        "--clients-max",
        type=whole_number(1, 100_000),
        metavar="N",
        default=DEFAULT.clients,
        help="the largest number of connections (default %(default)s)",
    )


def limits(options: argparse.Namespace, open_files: int) -> KvLimits:
    """Return the limits of the command line; raises DaemonError.

    `open_files`: how many descriptors the process may have.
    """
    if not CAPACITY_MIN_BYTES <= options.capacity <= CAPACITY_MAX_BYTES:
        raise DaemonError("--capacity is from 1MiB to 16TiB", status=2)
    if not 0 < options.value_max <= VALUE_MAX_BYTES:
        raise DaemonError(f"--value-max is at most {VALUE_MAX_BYTES >> 20}MiB", status=2)
    is_bounded = open_files != resource.RLIM_INFINITY
    clients = min(options.clients_max, open_files - FILES_SPARE if is_bounded else sys.maxsize)
    if clients < 1:
        raise DaemonError(f"{open_files} open files are too few; see `ulimit -n`")
    if clients < options.clients_max:
        log.warn(
            "this process may open {files} files: --clients-max is {clients}, and not {asked}",
            files=open_files, clients=clients, asked=options.clients_max,
        )  # fmt: skip
    found = KvLimits(clients, options.value_max, options.output_max)
    if found.reply_bytes < options.value_max + OVERHEAD_BYTES:
        needed = 2 * (options.value_max + OVERHEAD_BYTES)
        text = "a reply has at most half of it, and must have room for a value"
        raise DaemonError(f"--output-max is at least {needed}: {text} (--value-max)", status=2)
    return found


class KvDaemon:
    """A base and its sockets, from the start to the end of the process."""

    def __init__(self, reactor: Any, options: argparse.Namespace) -> None:
        self.failure = ""
        self.status = 0
        self.successor: list[str] = []
        self.dump: Callable[[str], Path | None] = lambda reason: None
        self._reactor = reactor
        self._options = options
        self._closers: list[Callable[[], object]] = []
        self._server: Server | None = None

    def open_alone(self) -> None:
        """Find the key, open the base, and listen."""
        options = self._options
        allowed = limits(options, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        rows = BufferedRows(options.path, _now_us, self._reactor.callFromThread, options.capacity)
        rows.on_failed = self.fail
        self._closers.append(rows.close)
        if rows.lost:
            log.warn("{lost} records follow one that was lost, and were dropped", lost=rows.lost)
        key = self._key()
        server = self._server = Server(rows, key.derive, allowed)
        service = KvService(
            self._reactor, rows, server, options.sync, allows_passwords=options.passwords
        )
        service.on_failed = self.fail
        listening = self._listen()
        service.start([listening])
        self._closers.append(service.stop)
        host, port = listening.getsockname()[:2]
        server.metrics.port = port
        if options.http:
            self._serve_metrics(key, server)
        log.info("the base {path} is at {address}", path=str(options.path),
                 address=netloc(host, port))  # fmt: skip
        settle_memory()

    def open_embedded(self, line: dict[str, Any]) -> None:
        raise DaemonError("a key-value base cannot be embedded")

    def describe(self) -> Any:
        """Return the state for a dump."""
        server = self._server
        return None if server is None else {
            "records": server.rows.number, "committed": server.rows.committed,
            "size": server.rows.layers.size._asdict(), "log_bytes": server.rows.log_bytes(),
            "snapshots": server.rows.snapshots, "clients": len(server.sessions),
            "commands": server.metrics.calls,
        }  # fmt: skip

    def summary(self) -> str:
        """Return the state in one line, for the service manager."""
        server = self._server
        if server is None:
            return "starts"
        return f"{len(server.sessions)} clients, {server.rows.number} records"

    def terminate(self) -> None:
        self.stop()

    def fail(self, reason: str, status: int = 1) -> None:
        """Shut down because of a failure."""
        if not self.failure:
            self.failure, self.status = reason, status
            log.error("{reason}", reason=reason)
            self._reactor.callLater(0, self.stop)

    def stop(self) -> None:
        """Close everything, in reverse order."""
        while self._closers:
            close = self._closers.pop()
            try:
                close()
            except (CielError, OSError) as error:
                log.error("{error}", error=error)
        if self._reactor.running:
            self._reactor.stop()

    def _listen(self) -> socket.socket:
        host, port, _ = parse_address(self._options.listen)
        listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((host, port))
            listening.listen(1024)
        except OSError as error:
            listening.close()
            text = f"cannot listen at {self._options.listen}: {error.strerror}"
            raise DaemonError(text) from None
        if not is_loopback(host) and self._options.passwords:
            log.warn("clients of Redis send their password over the network, which can read it")
        return listening

    def _serve_metrics(self, key: Key, server: Server) -> None:
        """Serve metrics over HTTP, to the keys that read them on other daemons. A base without a
        cluster has only its password.
        """
        routes, authorisation = Routes(), Authorisation(key.derive)
        needed = Role.READ if key.derive(Role.READ) else key.role
        routes.add("/metrics", Metrics(server.metrics.families, needed))
        site: Any = SecureSite(self._reactor, routes, authorisation)
        listener = listen(self._reactor, self._options.http, site)
        self._closers.append(listener.close)
        authorisation.serve_as(str(listener.address))
        log.info("metrics are at http://{address}/metrics", address=str(listener.address))

    def _key(self) -> Key:
        """Return the key of the cluster. A base without a cluster has its key in a file."""
        found = find_master(self._options.master, self._options.access, os.environ)
        if found is not None:
            return found.key
        path: Path = self._options.path / PASSWORD_FILE
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        except FileExistsError:
            return Key.from_text(path.read_text().strip())
        key = Key(os.urandom(32), Role.KV)
        with os.fdopen(fd, "w") as file:
            file.write(key.text() + "\n")
        log.info("no cluster was found: the password of this base is in {path}", path=str(path))
        return key


def _now_us() -> int:
    return int(time.time() * 1e6)


def main() -> int:
    """Run `ciel-kv`."""
    return run("ciel-kv", parser().parse_args(), KvDaemon, START_ERRORS)


if __name__ == "__main__":
    sys.exit(main())
