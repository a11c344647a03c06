"""One daemon of a cluster of our own: how it is started, told what it needs, and known to be ready.

What it needs (the key above all) goes over its standard input, which stays open: its end tells the
daemon that we are gone. When it is ready it says so in one line on standard output, or else why it
never will be.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ciel.client.errors import ClusterError, ClusterOptionError
from ciel.launch import Descriptor, File, Launcher, LaunchSpec, ProgramExited, ProgramFailed

_USAGE = 2  # the exit status when the command line is at fault
_LINE_MAX_BYTES = 4096  # what is told and said; so little never blocks in a pipe
# The cluster is ours alone: its daemons must not follow our own settings to another one.
_ENVIRONMENT = {"CIEL_MASTER": None, "CIEL_ACCESS": None, "CIEL_CONFIG": None}


class Daemon:
    """A master or worker started by us, or about to be. Not thread-safe."""

    def __init__(self, name: str, module: str, arguments: Sequence[str], log: Path) -> None:
        self.name = name
        self.log = log
        self.log_start_bytes = 0
        """What was in the log before this launch."""
        self.launch_id = -1
        self.pid = 0
        """Of its process, while it runs; said by the launcher, told by who owns that."""
        self.ready: dict[str, Any] | None = None
        self.refusal = ""
        """Why it does not start, in its own words."""
        self.is_misused = False
        """Whether what it was told to be is why."""
        self._module = module
        self._arguments = arguments
        self._stdin_fd = self._stdout_fd = -1
        self._said = b""

    def launch(self, launcher: Launcher, launch_id: int) -> None:
        """Start it, or start it again."""
        self.close()
        self.launch_id, self.ready, self.refusal, self._said = launch_id, None, "", b""
        self.is_misused = False
        self.pid = 0
        with contextlib.suppress(FileNotFoundError):
            self.log_start_bytes = self.log.stat().st_size
        # -P: the directory we happen to be in must not be imported from.
        command = [sys.executable, "-P", "-m", self._module, "--embedded", "--log", str(self.log)]
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

    def tell(self, fields: Mapping[str, str]) -> None:
        """Write its one line; BrokenPipeError when it has ended already."""
        line = json.dumps(fields).encode() + b"\n"
        assert len(line) <= _LINE_MAX_BYTES
        os.write(self._stdin_fd, line)

    def fileno(self) -> int:
        """Return the descriptor on which it says that it is ready; -1 once it has."""
        return self._stdout_fd

    def listen(self) -> bool:
        """Take what it says; False when there will be nothing more. ValueError if it is no line."""
        data = os.read(self._stdout_fd, _LINE_MAX_BYTES)
        self._said += data
        line, end, _ = self._said.partition(b"\n")
        if end:
            said = json.loads(line)
            if not isinstance(said, dict):
                raise ValueError("not an object")
            if "error" in said:
                self.refusal = str(said["error"])
                self.is_misused = said.get("status") == _USAGE
            else:
                self.ready = said
        if end or not data:
            os.close(self._stdout_fd)
            self._stdout_fd = -1
        elif len(self._said) > _LINE_MAX_BYTES:
            raise ValueError("too long")
        return self._stdout_fd >= 0

    def close(self) -> None:
        """Close our ends of its pipes, which tells it to end."""
        for fd in (self._stdin_fd, self._stdout_fd):
            if fd >= 0:
                os.close(fd)
        self._stdin_fd = self._stdout_fd = -1


class LocalDaemon:
    """A master or worker of a `LocalCluster`, for tests and the curious."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon

    def __repr__(self) -> str:
        state = f"process {self._daemon.pid}" if self._daemon.pid else "not running"
        return f"<{self.name}: {state}, logs to {self.log}>"

    @property
    def name(self) -> str:
        """What it is called in errors: `master`, `worker-1`."""
        return self._daemon.name

    @property
    def log(self) -> Path:
        """The file that it logs to."""
        return self._daemon.log

    @property
    def pid(self) -> int:
        """Its process: another one once it was restarted. Raises ClusterError if it has none."""
        if pid := self._daemon.pid:
            return pid
        raise failure(self._daemon, "is not running")


def failure(daemon: Daemon, what: str) -> ClusterError:
    """Return the error that a daemon is in trouble, with the end of its log."""
    return ClusterError(f"{daemon.name} {what}", daemon.log, daemon.log_start_bytes)


def refused(daemon: Daemon) -> ClusterError:
    """Return the error that a daemon has told us why it does not start."""
    kind = ClusterOptionError if daemon.is_misused else ClusterError
    return kind(f"{daemon.name} could not start: {daemon.refusal}")


def end_in_words(event: ProgramExited | ProgramFailed) -> str:
    """Say how a daemon ended."""
    if isinstance(event, ProgramFailed):
        return f"could not be started ({event.reason})"
    if event.signal_name:
        return f"was ended by {event.signal_name}"
    return f"ended with exit status {event.exit_status}"
