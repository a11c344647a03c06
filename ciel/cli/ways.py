"""How the daemons of one host talk: by sockets, or by another way that is found by name."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any, Final

from ciel import plugins
from ciel.cli.parser import whole_number

if TYPE_CHECKING:
    from ciel.net.channels import Channels

SOCKET: Final = "socket"
USUAL_CHANNEL: Final = SOCKET
SPIN_MAX_US: Final = 1000
"""Who looks for longer keeps a core busy for nothing: to be woken takes a tenth of it."""


def add_channel_options(parser: argparse.ArgumentParser) -> None:
    """Add the options by which a daemon is told how to talk to others on its host."""
    parser.add_argument(
        "--channel",
        metavar="NAME",
        default=USUAL_CHANNEL,
        help=f"with others on this host, if they agree: {SOCKET} (default), or ring: memory that"
        " both share",
    )
    parser.add_argument(
        "--spin",
        type=whole_number(0, SPIN_MAX_US),
        metavar="US",
        help="look into shared memory for so many microseconds before sleeping, while that pays"
        " (default: 300 on four cores or more, else 0)",
    )


def open_channels(reactor: Any, options: argparse.Namespace) -> Channels | None:
    """Load what the options name; None for sockets. Raises PluginError."""
    if options.channel == SOCKET:
        return None
    from ciel.net.channels import Channels  # the parser above is also a command's, without Twisted

    make_kind = plugins.load("ciel.channels", options.channel)
    return Channels(reactor, make_kind(options.spin))


def channel_switches(options: argparse.Namespace) -> list[str]:
    """Return the switches by which daemons are told what we were told."""
    switches = [] if options.channel == USUAL_CHANNEL else ["--channel", options.channel]
    return switches if options.spin is None else [*switches, "--spin", str(options.spin)]
