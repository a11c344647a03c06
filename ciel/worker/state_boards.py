"""The boards on which this host's members of groups see each other's states (POOL-6).

    /dev/shm/ciel-states-<cluster>/<group>

All workers of a cluster on one host use the same directory, which exists as long as one of them.
A board exists until a worker learns that its job has ended.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from contextlib import suppress
from hashlib import blake2b

from ciel.core.events import Message, StateChanged, StateSet
from ciel.core.ids import JobId
from ciel.core.states import MEMBERS_MAX, NAME_MAX_LENGTH, Group, Member, boards_directory
from ciel.execution.outputs import BadCallError
from ciel.execution.state_board import StateBoard, joined
from ciel.storage import leases
from ciel.storage.errors import StorageError


class StateBoards:
    """The boards that members on this worker have joined."""

    def __init__(self, cluster_id: str, send: Callable[[Message], None]) -> None:
        self._directory = boards_directory(cluster_id)
        self._send = send
        self._root_fd = self._directory_fd = -1
        self._boards: dict[Group, StateBoard] = {}
        self._members: dict[tuple[Group, int], Member] = {}  # which attempts here have played

    def join(self, member: Member) -> str:
        """Let an attempt join its group; return the path of the board. Raises BadCallError."""
        group, size, number = member.group, member.size, member.number
        if not 0 < len(group.name) <= NAME_MAX_LENGTH:
            raise BadCallError(f"the name of a group has 1 to {NAME_MAX_LENGTH} characters")
        if not 0 <= number < size <= MEMBERS_MAX:
            raise BadCallError(
                f"{number} and {size} are no number of a member and size of its group, which has "
                f"1 to {MEMBERS_MAX} members, numbered from 0"
            )
        try:
            self._open_directory()
            board = self._boards.get(group)
            if board is None:
                board = self._boards[group] = StateBoard(self._path_of(group), size)
            elif board.size != size:
                raise ValueError(f"the group has {board.size} members, not {size}")
        except ValueError as error:
            raise BadCallError(f"{group.name!r}: {error}") from None
        except (OSError, StorageError) as error:
            raise BadCallError(f"cannot share states in {self._directory}: {error}") from error
        board.put(number, joined(0))
        self._members[group, number] = member
        self._report(member, board)
        return self._path_of(group)

    def has_set(self, group: Group, number: int) -> None:
        """Report what a member has written to the board."""
        member = self._members.get((group, number))
        if member is not None:
            self._report(member, self._boards[group])

    def changed(self, message: StateChanged) -> None:
        """Write what the master knows of a member that runs elsewhere, or has failed."""
        group = Group(message.job, message.group)
        board = self._boards.get(group)
        if board is not None and message.member < board.size:
            self._members.pop((group, message.member), None)
            board.put(message.member, message.word)

    def report_all(self) -> None:
        """Report all members that have joined here to a master that has restarted."""
        for (group, _), member in self._members.items():
            self._report(member, self._boards[group])

    def job_ended(self, job: JobId) -> None:
        """Remove the boards of a job."""
        self._remove([group for group in self._boards if group.job == job])

    def clear(self) -> None:
        """Remove all boards: the attempts here have ended."""
        self._remove(list(self._boards))

    def close(self) -> None:
        """Close all boards; the last worker of this host removes their directory."""
        for board in self._boards.values():
            board.close()
        self._boards.clear()
        if self._directory_fd >= 0:
            fcntl.flock(self._directory_fd, fcntl.LOCK_UN)  # forked processes have it, too
            os.close(self._directory_fd)
            name = os.path.basename(self._directory)
            leases.remove_unheld(name, parent_fd=self._root_fd)
            os.close(self._root_fd)
            self._directory_fd = -1

    def _open_directory(self) -> None:
        if self._directory_fd < 0:
            root, name = os.path.split(self._directory)
            self._root_fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                self._directory_fd = leases.hold(name, parent_fd=self._root_fd)
            except BaseException:
                os.close(self._root_fd)
                raise

    def _path_of(self, group: Group) -> str:
        name = blake2b(f"{group.job}\n{group.name}".encode(), digest_size=16).hexdigest()
        return f"{self._directory}/{name}"

    def _report(self, member: Member, board: StateBoard) -> None:
        group, size, number, task, attempt = member
        word = board.word(number)
        self._send(StateSet(group.job, group.name, size, number, task, attempt, word))

    def _remove(self, groups: list[Group]) -> None:
        for group in groups:
            self._boards.pop(group).close()
            with suppress(OSError):  # another worker of this host has removed it
                os.unlink(self._path_of(group))
        for group, number in list(self._members):
            if group not in self._boards:
                del self._members[group, number]
