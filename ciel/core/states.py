"""States of the members of a group: vectors of flags, which members set and wait for (POOL-6)."""

from __future__ import annotations

from typing import Final, NamedTuple

from ciel.core.ids import JobId, TaskId

MEMBERS_MAX: Final = 1024
GROUPS_MAX: Final = 256
"""How many groups a job may have."""
NAME_MAX_LENGTH: Final = 100
FLAGS_MASK: Final = 2**32 - 1
JOINED: Final = 1 << 32
"""The mark of a member that has joined; flags alone cannot tell, since they start as zeros."""
FAILED: Final = 1 << 33
"""The mark of a member whose task has failed for good."""


def boards_directory(cluster_id: str) -> str:
    """Return the directory of the boards of a cluster, on each host."""
    return f"/dev/shm/ciel-states-{cluster_id}"


class Group(NamedTuple):
    """The identity of a group: a name within a job."""

    job: JobId
    name: str


class Member(NamedTuple):
    """A member of a group of `size` members: its number from 0, and the attempt that plays it."""

    group: Group
    size: int
    number: int
    task: TaskId
    attempt: int
