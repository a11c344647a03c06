"""The option --isolate of daemons, and what a worker's host can isolate."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any, Final

from ciel.access.paths import config_directory, state_directory
from ciel.cli.daemons.executors import Executors
from ciel.core.tasks import LIMITED, NO_ISOLATION, STRICT, Isolation, wrong_isolation
from ciel.launch.control_groups import ControlGroups, Group
from ciel.launch.isolation import PROCESSES_MAX, Probes, Surroundings
from ciel.worker.limits.sandboxes import Sandboxes

VARIABLE: Final = "CIEL_ISOLATE"
"""Sets the default of --isolate, also for the workers of `ciel up` and `ciel submit`."""
_REASON_MAX_LENGTH: Final = 500
PROCESSES_PER_SLOT: Final = 4096
"""Processes and threads of all programs of a worker, for each slot. A large JVM has 500."""


def add_isolate(parser: argparse.ArgumentParser) -> None:
    """Add the option for the least level of isolation."""
    parser.add_argument(
        "--isolate",
        type=_level,
        metavar="LEVEL",
        default=os.environ.get(VARIABLE) or LIMITED,
        help="how far programs are isolated at least: none, limits (default), or strict; tasks can "
        "ask for more, not for less",
    )


def _level(text: str) -> str:
    if wrong := wrong_isolation(text):
        raise argparse.ArgumentTypeError(wrong)
    return text


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


class HostProbe:
    """Finds what a worker's host can isolate, while the worker starts."""

    def __init__(self) -> None:
        self._groups = ControlGroups()
        self._group = self._groups.create(PROCESSES_MAX, 0, 0)
        self._probes = Probes("" if self._group is None else self._group.members)

    def sandboxes(self, options: argparse.Namespace, spool: Path) -> Sandboxes:
        """Wait for the results; return what creates the sandboxes of attempts."""
        found, left = self._probes.finish()
        if self._group is not None:
            self._group.remove()
        secret = [str(state_directory(os.environ)), str(config_directory(os.environ))]
        secret += [path for path in (options.access, os.environ.get("CIEL_ACCESS")) if path]
        reasons = {name: why[:_REASON_MAX_LENGTH] for name, why in found.items()}
        around = Surroundings.of_worker(
            os.environ, str(spool), [os.path.abspath(path) for path in secret]
        )
        return Sandboxes(Isolation(options.isolate, reasons), around, self._groups, left)

    def group_of_programs(self, options: argparse.Namespace) -> Group | None:
        """Create the group that limits the processes of all programs; None if that is impossible.

        It costs nothing at the start of a program. A worker of `ciel up` has no such group, since
        it ends by SIGKILL and would leave the group behind.
        """
        if options.isolate == NO_ISOLATION or options.embedded:
            return None
        slots = options.slots or len(os.sched_getaffinity(0))
        return self._groups.create(slots * PROCESSES_PER_SLOT, 0, 0)


def described(isolation: Isolation) -> dict[str, Any]:
    """Return the isolation as the worker reports it to the master."""
    return {"least": isolation.least, "lacking": dict(isolation.lacking)}
