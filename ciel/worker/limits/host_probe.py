"""Finds what the host of a worker can isolate, and with it sets up the sandboxes of attempts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

from ciel.access.paths import config_directory, state_directory
from ciel.core.tasks import Isolation
from ciel.launch.control_groups import ControlGroups, Group
from ciel.launch.isolation import PROCESSES_MAX, Probes, Surroundings
from ciel.worker.limits.sandboxes import Sandboxes

_REASON_MAX_LENGTH: Final = 500
PROCESSES_PER_SLOT: Final = 4096
"""Processes and threads of all programs of a worker, for each slot. A large JVM has 500."""


class HostProbe:
    """Finds what a worker's host can isolate, while the worker starts."""

    def __init__(self) -> None:
        self._groups = ControlGroups()
        self._group = self._groups.create(PROCESSES_MAX, 0, 0)
        self._probes = Probes("" if self._group is None else self._group.members)

    def sandboxes(self, least: str, spool: Path, access: str | None) -> Sandboxes:
        """Wait for the results; return what creates the sandboxes of attempts."""
        found, left = self._probes.finish()
        if self._group is not None:
            self._group.remove()
        secret = [str(state_directory(os.environ)), str(config_directory(os.environ))]
        secret += [path for path in (access, os.environ.get("CIEL_ACCESS")) if path]
        reasons = {name: why[:_REASON_MAX_LENGTH] for name, why in found.items()}
        around = Surroundings.of_worker(
            os.environ, str(spool), [os.path.abspath(path) for path in secret]
        )
        return Sandboxes(Isolation(least, reasons), around, self._groups, left)

    def group_of_programs(self, slots: int) -> Group | None:
        """Create the group that limits the processes of all programs; None if that is impossible.

        It costs nothing at the start of a program.
        """
        return self._groups.create(slots * PROCESSES_PER_SLOT, 0, 0)


def described(isolation: Isolation) -> dict[str, Any]:
    """Return the isolation as the worker reports it to the master."""
    return {"least": isolation.least, "lacking": dict(isolation.lacking)}
