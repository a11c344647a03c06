"""The option --isolate of daemons, and what a worker's host can isolate."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from ciel.access.paths import config_directory, state_directory
from ciel.cli.daemons.executors import Executors
from ciel.core.tasks import ISOLATIONS, LIMITED, STRICT, Isolation
from ciel.launch.control_groups import ControlGroups
from ciel.launch.isolation import Surroundings, lacking
from ciel.worker.limits.sandboxes import Sandboxes

_REASON_MAX_LENGTH = 500


def add_isolate(parser: argparse.ArgumentParser) -> None:
    """Add the option for the least level of isolation."""
    parser.add_argument(
        "--isolate",
        choices=ISOLATIONS,
        default=LIMITED,
        help="how far programs are isolated at least; tasks can ask for more, not for less "
        "(default: %(default)s)",
    )


def offered_when(least: str, executors: Executors) -> Executors:
    """Return the executors of a worker without those that its least level excludes."""
    if least != STRICT:
        return executors
    talking = {name for name, executor in executors.offered.items() if executor.talks}
    why = "its programs are interactive, and this worker isolates strictly (--isolate strict)"
    return executors._replace(
        offered={n: each for n, each in executors.offered.items() if n not in talking},
        lacking=executors.lacking | dict.fromkeys(talking, why),
    )


def sandboxes_of(options: argparse.Namespace, spool: Path) -> Sandboxes:
    """Try what this host can isolate, once; return what creates the sandboxes of attempts."""
    groups = ControlGroups()
    group = groups.create(1024, 0, 0) if groups.are_delegated else None
    try:
        found = lacking("" if group is None else group.members)
    finally:
        if group is not None:
            group.remove()
    secret = [str(state_directory(os.environ)), str(config_directory(os.environ))]
    secret += [path for path in (options.access, os.environ.get("CIEL_ACCESS")) if path]
    reasons = {name: why[:_REASON_MAX_LENGTH] for name, why in found.items()}
    around = Surroundings.of_worker(os.environ, str(spool), [os.path.abspath(s) for s in secret])
    sandboxes = Sandboxes(Isolation(options.isolate, reasons), around, groups)
    sandboxes.remove_left()
    return sandboxes


def described(isolation: Isolation) -> dict[str, Any]:
    """Return the isolation as the worker reports it to the master."""
    return {"least": isolation.least, "lacking": dict(isolation.lacking)}
