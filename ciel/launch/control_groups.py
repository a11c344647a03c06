"""Limits programs by control groups, where this process may create some (versions 1 and 2).

<own group>/ciel-<pid>-<number>/   a group of one program
"""

from __future__ import annotations

import contextlib
import itertools
import os
from pathlib import Path
from typing import Final, NamedTuple

_CPU_PERIOD_US: Final = 100_000


class Group(NamedTuple):
    """A control group of one program. `members`: the file to which a process writes to join it."""

    path: Path

    @property
    def members(self) -> str:
        return str(self.path / "cgroup.procs")

    def remove(self) -> None:
        """Remove the group, whose processes have ended."""
        with contextlib.suppress(OSError):  # another process has removed it
            self.path.rmdir()


class ControlGroups:
    """Creates groups that limit processes, below the group of this process."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._parent = _parent(root)
        self._numbers = itertools.count(1)
        if self._parent is not None:
            self._sweep(self._parent)

    def create(self, processes_max: int, memory_bytes: int, cores: int) -> Group | None:
        """Create a group; None if this process may not.

        The limits of memory and cores apply if version 2 delegates them; 0: no limit.
        """
        if self._parent is None:
            return None
        group = Group(self._parent / f"ciel-{os.getpid()}-{next(self._numbers)}")
        try:
            group.path.mkdir()
            (group.path / "pids.max").write_text(str(processes_max), encoding="ascii")
            for name, limit in (
                ("memory.max", f"{memory_bytes}" if memory_bytes else ""),
                ("cpu.max", f"{cores * _CPU_PERIOD_US} {_CPU_PERIOD_US}" if cores else ""),
            ):
                if limit and (group.path / name).exists():
                    (group.path / name).write_text(limit, encoding="ascii")
        except OSError:
            group.remove()
            return None
        return group

    @staticmethod
    def _sweep(parent: Path) -> None:
        """Remove the groups of workers that were killed; groups with processes stay."""
        for path in parent.glob("ciel-*-*"):
            if not Path(f"/proc/{path.name.split('-')[1]}").exists():
                Group(path).remove()


def _parent(root: Path) -> Path | None:
    """Return the directory in which groups with a limit of processes can be created."""
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    for line in lines:
        _, _, rest = line.partition(":")
        kinds, _, place = rest.partition(":")
        top = root / "sys/fs/cgroup"
        if "pids" in kinds.split(","):
            return top / "pids" / place.lstrip("/")
        if kinds == "":
            own = top / place.lstrip("/")
            # Version 2: only a group without processes has children with limits, so ours go beside
            # this process's group, if the parent group was delegated.
            controllers = _words(own.parent / "cgroup.subtree_control")
            if "pids" in controllers and own != top:
                return own.parent
    return None


def _words(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="ascii").split()
    except OSError:
        return []
