"""`ciel shmd`: serves a block store to programs, without a worker (CIB-10)."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from ciel import plugins
from ciel.cli.daemons.errors import DaemonError
from ciel.cli.daemons.process import log, run
from ciel.cli.outcome import OutputClosedError
from ciel.cli.output.printing import print_json, print_text
from ciel.cli.parsing.options import make_parser
from ciel.core.errors import CielError

DEFAULT_GROUP: Final = "stores"
_EPILOG: Final = """\
It prints the path of its socket once it serves. SIGTERM and SIGINT end it; what is only in memory
is lost then. Programs use the library libshmdc, the command shmdc, or a client in Python.
"""
_START_ERRORS: Final = (CielError, DaemonError, OSError, plugins.PluginError)


class ShmdDaemon:
    """A block store and its socket, from the start to the end of the process."""

    def __init__(self, reactor: Any, options: argparse.Namespace) -> None:
        self.failure = ""
        self.status = 0
        self.successor: list[str] = []
        self.dump: Callable[[str], Path | None] = lambda reason: None
        self._reactor = reactor
        self._options = options
        self._store: Any = None

    def open_alone(self) -> None:
        """Serve, and print the path of the socket."""
        options = self._options
        open_store = plugins.load("ciel.neighbours", "block-store")
        store = self._store = open_store(
            self._reactor, options.directory, capacity=options.capacity, group=options.group
        )
        log.info("serves {directory}", directory=str(store.directory))
        with suppress(OutputClosedError):  # nobody waits for the line
            if options.json:
                print_json({"directory": str(store.directory), "socket": str(store.socket)})
            else:
                print_text(str(store.socket))

    def open_embedded(self, line: dict[str, Any]) -> None:
        raise DaemonError("the daemon of a block store cannot be embedded")

    def describe(self) -> Any:
        """Return the state for a dump."""
        return None if self._store is None else self._store.figures()

    def summary(self) -> str:
        """Return the state in one line, for the service manager."""
        return "starts" if self._store is None else f"serves {self._store.directory}"

    def terminate(self) -> None:
        self.stop()

    def fail(self, reason: str) -> None:
        """Shut down because of a failure."""
        self.failure, self.status = reason, 1
        self._reactor.callLater(0, self.stop)

    def stop(self) -> None:
        """Stop serving; a second call does nothing."""
        if self._store is not None:
            self._store.close()
        if self._reactor.running:
            self._reactor.stop()


def main(prog: str, words: Sequence[str]) -> int:
    """Serve until a signal arrives."""
    parser = make_parser("ciel shmd", "Serve a block store to programs of this user.", _EPILOG)
    add = parser.add_argument
    add("directory", type=Path, metavar="DIRECTORY", help="the block store; created if missing")
    add(
        "--capacity", metavar="SIZE", default="",
        help="memory to use (default: half of the free memory)",
    )  # fmt: skip
    add(
        "--group", metavar="NAME", default=DEFAULT_GROUP,
        help="group of stores that request objects from each other (default %(default)s)",
    )  # fmt: skip
    add("--log", metavar="FILE", help="the log file (default: standard error)")
    add("--json", action="store_true", help="print JSON, for programs")
    parser.set_defaults(embedded=False)
    return run("ciel shmd", parser.parse_args(words), ShmdDaemon, _START_ERRORS)
