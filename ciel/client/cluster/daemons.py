"""Starts one daemon of a local cluster, and waits until it is ready.

The daemon receives the key, and other values, in one line on its standard input. The pipe stays
open: when it is closed, the daemon knows that this process has ended. The daemon writes one line to
its standard output: that it is ready, or why it cannot start.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ciel.client.errors import ClusterError, ClusterOptionError
from ciel.launch import Descriptor, File, Launcher, LaunchSpec, ProgramExited, ProgramFailed

_USAGE = 2  # the exit status if the command line is wrong
_LINE_MAX_BYTES = 4096  # a pipe accepts this many bytes without blocking
# The settings of this process must not lead the daemons to another cluster.
_ENVIRONMENT = {"CIEL_MASTER": None, "CIEL_ACCESS": None, "CIEL_CONFIG": None}


class Daemon:
    """A master, a worker or a service, which listens at `listen`, or nowhere. Not thread-safe."""

    def __init__(
        self, name: str, module: str, listen: str, arguments: Sequence[str], log: Path
    ) -> None:
        self.name = name
        self.listen_at = listen
        """The address for the next launch."""
        self.log = log
        self.log_start_bytes = 0
        """The size of the log before this launch."""
        self.launch_id = -1
        self.pid = 0
        """Its process, while it runs; the owner of the launcher sets it."""
        self.is_launched = False
        """Whether it was launched, and its end was not reported yet; the owner sets it to False."""
        self.ready: dict[str, Any] | None = None
        self.refusal = ""
        """The reason that it has reported for which it cannot start; or empty."""
        self.is_misused = False
        """Whether it cannot start because its options are wrong."""
        self._module = module
        self._arguments = arguments
        self._stdin_fd = self._stdout_fd = -1
        self._received = b""

    def launch(self, launcher: Launcher, launch_id: int) -> None:
        """Start the process, or start it again."""
        self.close()
        self.launch_id, self.ready, self.refusal, self._received = launch_id, None, "", b""
        self.is_misused = False
        self.pid, self.is_launched = 0, True
        with contextlib.suppress(FileNotFoundError):
            self.log_start_bytes = self.log.stat().st_size
        # -P: do not import modules from the working directory.
        command = [sys.executable, "-P", "-m", self._module, "--embedded", "--log", str(self.log)]
        command += ["--listen", self.listen_at] if self.listen_at else []
        stdin_fd, self._stdin_fd = os.pipe()
        self._stdout_fd, stdout_fd = os.pipe()
        try:
            launcher.start(
                launch_id,
                LaunchSpec(
                    [*command, *self._arguments],
                    cwd=self.log.parent,
                    env=_ENVIRONMENT,
                    stdin=Descriptor(stdin_fd),
                    stdout=Descriptor(stdout_fd),
                    stderr=File(self.log, append=True),
                ),
            )
            launcher.flush()
        finally:
            os.close(stdin_fd)
            os.close(stdout_fd)

    def send(self, fields: Mapping[str, Any]) -> None:
        """Write the line on its standard input; raises BrokenPipeError if it has ended."""
        line = json.dumps(fields).encode() + b"\n"
        assert len(line) <= _LINE_MAX_BYTES
        os.write(self._stdin_fd, line)

    def fileno(self) -> int:
        """Return the descriptor of its standard output; -1 after the line was read."""
        return self._stdout_fd

    def listen(self) -> bool:
        """Read its standard output; return False at the end. Raises ValueError for a wrong line."""
        data = os.read(self._stdout_fd, _LINE_MAX_BYTES)
        self._received += data
        line, end, _ = self._received.partition(b"\n")
        if end:
            fields = json.loads(line)
            if not isinstance(fields, dict):
                raise ValueError("not an object")
            if "error" in fields:
                self.refusal = str(fields["error"])
                self.is_misused = fields.get("status") == _USAGE
            else:
                self.ready = fields
        if end or not data:
            os.close(self._stdout_fd)
            self._stdout_fd = -1
        elif len(self._received) > _LINE_MAX_BYTES:
            raise ValueError("too long")
        return self._stdout_fd >= 0

    def note(self, text: str) -> None:
        """Append a line to its log."""
        with contextlib.suppress(OSError), open(self.log, "a") as log:  # a full disk
            log.write(f"{text}\n")

    def close(self) -> None:
        """Close the pipes; the daemon then ends."""
        for fd in (self._stdin_fd, self._stdout_fd):
            if fd >= 0:
                os.close(fd)
        self._stdin_fd = self._stdout_fd = -1


def reserve_port(netloc: str) -> socket.socket | None:
    """Keep the port of an embedded master for the next one, which starts when this one has ended.

    Otherwise another program could take the port meanwhile. Return the socket that keeps it.
    """
    host, _, port = netloc.rpartition(":")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    keeper = socket.socket(family, socket.SOCK_STREAM)
    try:
        keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        # Connections of an earlier owner of the port may linger; SO_REUSEADDR allows these. Without
        # it, the kernel lets no other socket listen there that lacks SO_REUSEPORT.
        keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        keeper.bind((host.strip("[]"), int(port)))
        keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
    except OSError:  # the system does not support it
        keeper.close()
        return None
    return keeper


class LocalDaemon:
    """A master or a worker of a `LocalCluster`, as users see it."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon

    def __repr__(self) -> str:
        state = f"process {self._daemon.pid}" if self._daemon.pid else "not running"
        return f"<{self.name}: {state}, logs to {self.log}>"

    @property
    def name(self) -> str:
        """Its name in errors: `master`, `worker-1`."""
        return self._daemon.name

    @property
    def log(self) -> Path:
        """Its log file."""
        return self._daemon.log

    @property
    def pid(self) -> int:
        """Its process id, which a restart changes. Raises ClusterError if it does not run."""
        if pid := self._daemon.pid:
            return pid
        raise failure(self._daemon, "is not running")


def failure(daemon: Daemon, what: str) -> ClusterError:
    """Return an error about a daemon, with the end of its log."""
    return ClusterError(f"{daemon.name} {what}", daemon.log, daemon.log_start_bytes)


def refused(daemon: Daemon) -> ClusterError:
    """Return the error of a daemon that has reported why it cannot start."""
    kind = ClusterOptionError if daemon.is_misused else ClusterError
    return kind(f"{daemon.name} could not start: {daemon.refusal}")


def end_in_words(event: ProgramExited | ProgramFailed) -> str:
    """Describe how a daemon has ended."""
    if isinstance(event, ProgramFailed):
        return f"could not be started ({event.reason})"
    if event.signal_name:
        return f"was ended by {event.signal_name}"
    return f"ended with exit status {event.exit_status}"
