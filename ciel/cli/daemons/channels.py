"""Chooses how the daemons of one host exchange messages: by sockets, or by a channel plugin.

Without a choice by the user, the table in `ciel.core.transports` decides (CIB-53).
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from ciel import plugins
from ciel.cli.parsing.parser import whole_number
from ciel.core.transports import (
    AUTO,
    SOCKET,
    ControlSituation,
    End,
    channel_alone,
    control_choice,
    read_end,
)

if TYPE_CHECKING:
    from ciel.net.channels import Channels, Kind

_GROUP: Final = "ciel.channels"
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
        default=AUTO,
        help=f"how to exchange messages with daemons on this host: {AUTO} (default: what suits the"
        f" machine), {SOCKET}, ring (shared memory), or mpb (shared memory, as messages between two"
        " cores)",
    )
    parser.add_argument(
        "--spin",
        type=whole_number(0, SPIN_MAX_US),
        metavar="US",
        help="poll for up to this many microseconds before sleeping (default: 200 for workers on"
        " two or more cores; with rings 300 for both daemons on four or more cores; else 0)",
    )


def own_end(options: argparse.Namespace) -> End:
    """Describe this daemon as one end of a connection."""
    wish = options.channel
    kinds = plugins.names(_GROUP) if wish == AUTO else [] if wish == SOCKET else [wish]
    return End(wish, tuple(kinds), len(os.sched_getaffinity(0)), options.spin != 0)


def open_channels(reactor: Any, options: argparse.Namespace, usual_us: float) -> Channels | None:
    """Load the channel that the user chose or the daemon prefers; None if only sockets remain.

    `usual_us`: how long the reactor polls descriptors before it sleeps, unless the user says how
    long, or a channel polls. Raises PluginError.
    """
    own = own_end(options)
    reactor.poll_for_s = _poll_s(own, options.spin, usual_us)
    if own.wish == SOCKET:
        return None
    from ciel.net.channels import Channels  # `ciel up` uses the options above, and loads no Twisted

    def load(name: str) -> Kind:
        kind: Kind = plugins.load(_GROUP, name)(options.spin)
        return kind

    def choose(about: Mapping[str, Any]) -> str:
        return control_choice(ControlSituation(own, read_end(about), is_local=True)).way

    alone = channel_alone(own)
    preferred = None if alone == SOCKET else load(alone)
    other = load if own.wish == AUTO else None
    return Channels(reactor, preferred, load=other, choose=choose)


def _poll_s(own: End, spin_us: int | None, usual_us: float) -> float:
    """Return how long a daemon polls its descriptors while no channel is open."""
    if own.wish not in (AUTO, SOCKET):
        return 0.0
    usual_us = 0.0 if own.cores == 1 else usual_us
    return (usual_us if spin_us is None else float(spin_us)) / 1e6


def channel_switches(options: argparse.Namespace) -> list[str]:
    """Return the command-line options that pass these options on to a daemon."""
    switches = [] if options.channel == AUTO else ["--channel", options.channel]
    return switches if options.spin is None else [*switches, "--spin", str(options.spin)]
