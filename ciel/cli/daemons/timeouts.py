"""The options for how long daemons wait: for silent workers, and for programs after SIGTERM."""

from __future__ import annotations

import argparse

from ciel.cli.parsing.parser import seconds
from ciel.core.events import KILL_GRACE_S, SUSPECT_AFTER_S, WORKER_TIMEOUT_S
from ciel.core.workers.lives import DRAIN_GRACE_S


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


def add_life(parser: argparse.ArgumentParser) -> None:
    """Add the options for when a worker leaves by itself, and how."""
    parser.add_argument(
        "--time-limit",
        type=seconds,
        metavar="TIME",
        help="end after this time; no task starts that cannot end before, by its own --timeout or "
        "by the run times of such tasks",
    )
    parser.add_argument(
        "--idle-timeout",
        type=seconds,
        metavar="TIME",
        help="leave, and end with status 0, after this time without a task; other workers get the "
        "objects",
    )
    parser.add_argument(
        "--drain-grace",
        type=seconds,
        metavar="TIME",
        help="time to hand tasks and objects over to other workers: before the end of --time-limit "
        f"(default {DRAIN_GRACE_S:g}s), and after SIGTERM (default: none, programs are cancelled)",
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
