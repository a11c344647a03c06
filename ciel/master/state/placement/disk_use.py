"""Counts how many attempts use each disk, for tasks that are bound by I/O (CIB-42).

Such a task waits on its worker for a permit of the disk, without a slot. A worker gets one more of
them than its disk admits at a time: the next one starts without a round trip to the master. Further
ones stay with the master, so that neither the worker's credit nor its queue is full of tasks that
wait, and another worker may run them. Workers of one host share its disks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from ciel.core.events import DiskLimit

Disk = tuple[str, str]
"""A host, and the name of a disk there."""

UNKNOWN_AT_A_TIME = 1
"""The limit of a disk that a worker has not reported yet. It does so with the first task."""
WAITING_MAX = 1
"""The number of tasks that workers have in advance."""


class DiskUse:
    """The disks that the attempts of one worker use."""

    __slots__ = ("_attempts", "_host", "_id", "_known", "_used")

    def __init__(self, worker_id: str, host: str) -> None:
        self._id = worker_id
        self._host = host
        self._used: Counter[Disk] = Counter()
        self._known: dict[str, tuple[Disk, int]] = {}  # disks and limits, by what tasks name
        self._attempts: dict[tuple[str, int], str] = {}  # what each attempt names

    def share(self, used: Counter[Disk]) -> None:
        """Count in the table of all workers; called before the first attempt."""
        self._used = used

    def _find(self, io: str) -> tuple[Disk, int]:
        """Return the disk that a task names, and its limit (0: none)."""
        known = self._known.get(io)
        return ((self._host, f"{self._id} {io}"), UNKNOWN_AT_A_TIME) if known is None else known

    def use_of(self, io: str) -> tuple[int, int]:
        """Return how many attempts of all workers use a disk, and its limit (0: none)."""
        disk, limit = self._find(io)
        return self._used[disk], limit

    def has_room(self, io: str) -> bool:
        """Whether a further task that uses a disk starts soon."""
        used, limit = self.use_of(io)
        return not limit or used < limit + WAITING_MAX

    def add(self, attempt: tuple[str, int], io: str) -> None:
        """Add an attempt."""
        self._attempts[attempt] = io
        self._used[self._find(io)[0]] += 1

    def remove(self, attempt: tuple[str, int]) -> None:
        """Remove an attempt that has ended, or that waits for another task; maybe a second time."""
        io = self._attempts.pop(attempt, None)
        if io is not None:
            self._discount(self._find(io)[0], 1)

    def _discount(self, disk: Disk, count: int) -> None:
        self._used[disk] -= count
        if not self._used[disk]:
            del self._used[disk]

    def learn(self, limits: Iterable[DiskLimit]) -> None:
        """Take the limits that the worker has reported."""
        for io, device, at_a_time in limits:
            before, now = self._find(io)[0], (self._host, device or f"{self._id} {io}")
            count = sum([other == io for other in self._attempts.values()])
            self._discount(before, count)
            self._known[io] = now, at_a_time
            if count:
                self._used[now] += count

    def __len__(self) -> int:
        return len(self._attempts)

    def clear(self) -> None:
        """Forget all attempts: the worker is lost."""
        for attempt in list(self._attempts):
            self.remove(attempt)
