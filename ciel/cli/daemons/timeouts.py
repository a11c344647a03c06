"""The options for how long daemons wait: for silent workers, and for programs after SIGTERM."""

from __future__ import annotations

import argparse

from ciel.cli.parsing.parser import seconds
from ciel.core.events import KILL_GRACE_S, SUSPECT_AFTER_S, WORKER_TIMEOUT_S


def add_worker_limits(parser: argparse.ArgumentParser) -> None:
    """Add the options for how long a master waits for a silent worker."""
    parser.add_argument(
        "--suspect-after",
        type=seconds,
        metavar="TIME",
        default=SUSPECT_AFTER_S,
        help="send a worker no new tasks after this time without a message (default: %(default)gs)",
    )
    parser.add_argument(
        "--worker-timeout",
        type=seconds,
        metavar="TIME",
        default=WORKER_TIMEOUT_S,
        help="declare a worker dead after this time without a message, and run its tasks elsewhere "
        "(default: %(default)gs; at once if its host reports that its process has "
        "ended)",
    )


def add_kill_grace(parser: argparse.ArgumentParser) -> None:
    """Add the option for the time between SIGTERM and SIGKILL."""
    parser.add_argument(
        "--kill-grace",
        type=seconds,
        metavar="TIME",
        default=KILL_GRACE_S,
        help="time between SIGTERM and SIGKILL for programs, unless their tasks set another "
        "(default: %(default)gs)",
    )
