"""Chooses how the daemons of one host exchange messages: by sockets, or by a channel plugin."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING, Any, Final

from ciel import plugins
from ciel.cli.parsing.parser import whole_number

if TYPE_CHECKING:
    from ciel.net.channels import Channels

SOCKET: Final = "socket"
USUAL_CHANNEL: Final = SOCKET
SPIN_MAX_US: Final = 1000
"""The longest time of polling: a wake-up takes a tenth of it, so longer polling wastes a core."""
WORKER_POLL_US: Final = 200
"""How long workers poll: about the time until the master answers.

A short task takes less time if its program is already running."""


def add_channel_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for the channel between daemons of one host."""
    parser.add_argument(
        "--channel",
        metavar="NAME",
        default=USUAL_CHANNEL,
        help=f"how to reach daemons on this host with the same option: {SOCKET} (default), ring"
        " (shared memory), or mpb (shared memory, as messages between two cores)",
    )
    parser.add_argument(
        "--spin",
        type=whole_number(0, SPIN_MAX_US),
        metavar="US",
        help="poll for up to this many microseconds before sleeping (default: 200 for workers on"
        " two or more cores; with rings 300 for both daemons on four or more cores; else 0)",
    )


def open_channels(reactor: Any, options: argparse.Namespace) -> Channels | None:
    """Load the channel that the options name; None for sockets. Raises PluginError."""
    if options.channel == SOCKET:
        return None
    from ciel.net.channels import Channels  # `ciel up` uses the options above, and loads no Twisted

    make_kind = plugins.load("ciel.channels", options.channel)
    return Channels(reactor, make_kind(options.spin))


def poll_s(options: argparse.Namespace, usual_us: float) -> float:
    """Return how long a daemon polls its descriptors before it sleeps; 0 if the channel polls."""
    if options.channel != SOCKET:
        return 0.0
    if len(os.sched_getaffinity(0)) == 1:
        usual_us = 0.0
    return (usual_us if options.spin is None else float(options.spin)) / 1e6


def channel_switches(options: argparse.Namespace) -> list[str]:
    """Return the command-line options that pass these options on to a daemon."""
    switches = [] if options.channel == USUAL_CHANNEL else ["--channel", options.channel]
    return switches if options.spin is None else [*switches, "--spin", str(options.spin)]
