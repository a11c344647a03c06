"""The interface of launchers of workers.

An *allocation* is what a resource manager gives for a time: a job of Slurm, a pod, or a connection
of ssh. One worker runs in it, and tells the master the allocation's id (`ciel-worker
--allocation`). The resource manager, not the launcher, knows which allocations exist: a launcher
that is opened again for the same cluster has to find them.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ciel.access.access_file import AccessFile

if TYPE_CHECKING:
    from argparse import ArgumentParser


class LauncherError(Exception):
    """A request to a resource manager has failed; the message names the program and the reason."""


class LauncherOptionError(LauncherError):
    """The user's options for a launcher contradict each other, or miss something."""


class Phase(Enum):
    """The phase of an allocation."""

    QUEUED = "queued"
    RUNNING = "running"
    ENDED = "ended"


class Allocation(NamedTuple):
    """An allocation, as its resource manager reports it.

    `reason`: why it is queued, or how it has ended. `place`: the host that it runs on, if known.
    """

    id: str
    phase: Phase
    reason: str = ""
    place: str = ""


class WorkerSize(NamedTuple):
    """The slots and the memory of the worker of one allocation; 0 means that they are unknown."""

    slots: int = 0
    memory_bytes: int = 0


class Site(NamedTuple):
    """The cluster for which a launcher brings workers.

    `access`: the content of the access file at `access_path`. `directory`: for logs of workers; it
    belongs to the cluster. `worker_options`: further options of each `ciel-worker`, as shell words.
    `time_limit_s`: after this time an allocation ends; 0 means no limit.
    """

    access: AccessFile
    access_path: Path
    directory: Path
    worker_options: Sequence[str] = ()
    time_limit_s: float = 0.0

    @property
    def cluster_id(self) -> str:
        return self.access.cluster_id


class Launcher(Protocol):
    """Brings workers. Methods may wait for the resource manager, at most for some seconds each.

    The entry point in the group `ciel.launchers` is a class whose constructor takes the site, the
    values of its options by their names, and the words after `--` on the command line.
    """

    poll_s: float
    """How long a caller waits between two calls of `allocations`, if nothing else has happened."""

    size: WorkerSize
    """The size of the workers that `request` brings."""

    @staticmethod
    def add_options(parser: ArgumentParser) -> None:
        """Add the launcher's own options to `ciel up --on NAME`."""

    @staticmethod
    def check(options: dict[str, Any], words: Sequence[str]) -> tuple[int, int] | None:
        """Check the options before anything starts; raises LauncherOptionError.

        Return the lowest and the highest number of workers if the options imply them.
        """

    def request(self, count: int) -> list[str]:
        """Ask for allocations, and return their ids, which may be fewer; raises LauncherError.

        From now on `allocations` lists these.
        """

    def allocations(self) -> list[Allocation]:
        """List all allocations of the cluster, whichever instance has requested them.

        An ended allocation is listed at least once after its end, if this instance has listed it
        before. Raises LauncherError; then the caller must not conclude that there is none.
        """

    def cancel(self, ids: Sequence[str]) -> None:
        """End allocations, queued or running; ids that have ended are allowed. Raises
        LauncherError.
        """

    def close(self) -> None:
        """Let go of what this process holds. Allocations of a resource manager continue."""
