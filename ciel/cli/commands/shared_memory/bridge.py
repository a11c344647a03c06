"""`ciel bridge`: joins the networks of kernels that share only memory (CIB-30)."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from ciel import plugins
from ciel.cli.daemons.errors import DaemonError
from ciel.cli.daemons.process import log, run
from ciel.cli.parsing.options import make_parser
from ciel.core.errors import CielError
from ciel.net.cores.bridge import Bridge
from ciel.storage.specs import load_kind

PORT_MAX: Final = 65535
_EPILOG: Final = """\
Start one bridge in each kernel, with the same store as the workers there, and with a number that no
other bridge has. If port 8100 is the master's, and 8101 a worker's, "ciel bridge --offer 8100
--offer 8101" lets processes of the other kernels connect to 127.0.0.1:8100 and 127.0.0.1:8101.
Daemons must listen at ports that differ between the kernels. It runs until SIGTERM or SIGINT.
"""
_START_ERRORS: Final = (CielError, DaemonError, OSError, plugins.PluginError)


class BridgeDaemon:
    """The bridge of this kernel, from the start to the end of the process."""

    def __init__(self, reactor: Any, options: argparse.Namespace) -> None:
        self.failure = ""
        self.status = 0
        self.successor: list[str] = []
        self.dump: Callable[[str], Path | None] = lambda reason: None
        self._reactor = reactor
        self._options = options
        self._bridge: Bridge | None = None

    def open_alone(self) -> None:
        """Serve. Raises one of the start errors."""
        kind, _, store_options = load_kind(self._options.store)
        core = kind.bridge_core(store_options, self._options.number)
        self._bridge = Bridge(self._reactor, core, self._options.offer)
        log.info("this bridge is core {core}", core=core.number)

    def open_embedded(self, line: dict[str, Any]) -> None:
        raise DaemonError("a bridge cannot be embedded")

    def describe(self) -> Any:
        """Return the state for a dump."""
        return None if self._bridge is None else {"ports": self._bridge.ports}

    def summary(self) -> str:
        """Return the state in one line, for the service manager."""
        return "starts" if self._bridge is None else f"offers the ports {self._bridge.ports}"

    def terminate(self) -> None:
        self.stop()

    def fail(self, reason: str) -> None:
        """Shut down because of a failure."""
        self.failure, self.status = reason, 1
        self._reactor.callLater(0, self.stop)

    def stop(self) -> None:
        """Stop serving; a second call does nothing."""
        bridge, self._bridge = self._bridge, None
        if bridge is not None:
            bridge.close()
        if self._reactor.running:
            self._reactor.stop()


def _port(text: str) -> int:
    if not (text.isdecimal() and 0 < int(text) <= PORT_MAX):
        raise argparse.ArgumentTypeError(f"{text!r} is not a port: a number from 1 to {PORT_MAX}")
    return int(text)


def main(prog: str, words: Sequence[str]) -> int:
    """Serve until a signal arrives."""
    parser = make_parser("ciel bridge", "Join networks of kernels that share memory.", _EPILOG)
    add = parser.add_argument
    add("number", type=int, metavar="NUMBER", help="of this bridge, from 0")
    add("--store", required=True, metavar="SPEC", help="the store of the workers of this kernel")
    add(
        "--offer", type=_port, action="append", default=[], metavar="PORT",
        help="a port of 127.0.0.1 that other kernels may use; repeatable",
    )  # fmt: skip
    add("--log", metavar="FILE", help="the log file (default: standard error)")
    parser.set_defaults(embedded=False)
    return run("ciel bridge", parser.parse_args(words), BridgeDaemon, _START_ERRORS)
