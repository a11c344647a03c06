"""Permits of disks for tasks that are bound by I/O, from the queues of disk jobs (CIB-42).

A task waits in the same queue as the worker's own disk jobs, and has its permit until it ends, or
waits for another task. So at most as many such tasks and disk jobs use a disk as its limit says.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from twisted.internet.defer import CancelledError, Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from ciel.core.events import DiskLimit
from ciel.core.tasks import WORK_DISK
from ciel.worker.disk_jobs import SMALL_BYTES, DiskJobs, Permit
from ciel.worker.state.orders import AskForDisk, Key

log = Logger(__name__)  # compiled code cannot determine its own module

NAMES_MAX = 1000
"""The number of paths whose limits are reported to the master."""


class DiskPermits:
    """The permits that attempts have, or ask for."""

    def __init__(self, disk_jobs: DiskJobs, work_directory: Path) -> None:
        self._disk_jobs = disk_jobs
        self._work_directory = work_directory
        self._asking: dict[Key, Deferred[Permit]] = {}
        self._permits: dict[Key, Permit] = {}
        self._names: dict[str, None] = {}  # the disks that tasks have named
        self.admitted: Callable[[Key], object] = lambda key: None
        """Called when an attempt has its permit."""
        self.on_new_name: Callable[[], object] = lambda: None
        """Called when a task names a disk that no task has named before."""

    def ask(self, order: AskForDisk) -> None:
        """Ask for a permit. A path without a limit, or that does not exist, admits all tasks."""
        key = (order.task, order.attempt)
        if order.io not in self._names and len(self._names) < NAMES_MAX:
            self._names[order.io] = None
            self.on_new_name()

        def admitted(permit: Permit) -> None:
            self._asking.pop(key, None)
            self._permits[key] = permit
            self.admitted(key)

        size_bytes = max(order.size_bytes, SMALL_BYTES + 1)  # a smaller job would take no permit
        waiting = self._asking[key] = self._disk_jobs.enter(self._path_of(order.io), size_bytes)
        waiting.addCallbacks(admitted, _not_admitted)

    def leave(self, key: Key) -> None:
        """Give a permit back, or stop asking for it; an attempt that does neither changes nothing.

        The time that a task takes does not show how fast its disk is.
        """
        if (waiting := self._asking.pop(key, None)) is not None:
            waiting.cancel()
        if (permit := self._permits.pop(key, None)) is not None:
            permit.release(is_good=False)

    def limits(self) -> tuple[DiskLimit, ...]:
        """Return the limit of each disk that tasks have named."""
        found = []
        for name in self._names:
            device, at_a_time = self._disk_jobs.limit_at(self._path_of(name))
            found.append(DiskLimit(name, device, at_a_time))
        return tuple(found)

    def _path_of(self, io: str) -> Path:
        return self._work_directory if io == WORK_DISK else Path(io)

    def close(self) -> None:
        """Give back all permits."""
        for key in [*self._asking, *self._permits]:
            self.leave(key)


def _not_admitted(failure: Failure) -> None:
    if not failure.check(CancelledError):  # type: ignore[no-untyped-call]  # Twisted's own
        log.failure("a task got no permit of a disk", failure)
