"""States of tasks that run together: vectors of flags, which each task sets and all see (POOL-6).

On one host, states lie in shared memory, and a change wakes the waiting tasks within microseconds.
Between hosts, the master forwards each change.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final

from ciel.core.errors import CielError
from ciel.core.states import FLAGS_MASK, JOINED
from ciel.execution.state_board import StateBoard, has_failed
from ciel.python.task_session import current_states

FLAGS_COUNT: Final = 30
"""The number of flags that a program may set; two more flags count the barriers."""
_OWN_MASK: Final = 2**FLAGS_COUNT - 1
_WAIT_S: Final = 600.0
_ROUND_SHIFT: Final = FLAGS_COUNT


class StateError(CielError):
    """A member of a group has failed for good, so that waiting for it would not end."""

    def __init__(self, group: str, members: list[int]) -> None:
        self.group = group
        self.members = members
        listed = ", ".join(map(str, members))
        super().__init__(f"of the group {group!r}, the tasks of these members failed: {listed}")


class StateTimeoutError(CielError, TimeoutError):
    """Other members did not reach a state in time."""

    def __init__(self, group: str, timeout_s: float, absent: list[int], late: list[int]) -> None:
        self.group = group
        self.absent = absent
        self.late = late
        parts = []
        if absent:
            parts.append(
                f"members {absent} have not joined: each member needs a slot of its own, since a "
                f"member that waits keeps its slot"
            )
        if late:
            parts.append(f"members {late} have not reached the state")
        super().__init__(f"group {group!r}, after {timeout_s:g} s: {'; '.join(parts)}")


class SharedTaskError(CielError, RuntimeError):
    """A call that shares its task with other calls tried to join a group."""

    def __init__(self) -> None:
        super().__init__(
            "the client has sent this call together with others as one task, or as a row of a map, "
            "and calls of one task cannot wait for each other: submit each member with an option, "
            "as in client.submit(ciel.task(function, slots=1), ...)"
        )


class States:
    """This task's membership in a group of tasks of one job.

    `States("phase", number=2, size=8)` makes the calling task the third of eight members. Each has
    a vector of 30 flags, at first zeros, that only it sets and all members see. Members run at the
    same time, so the cluster needs as many free slots.
    """

    def __init__(self, name: str, *, number: int, size: int) -> None:
        """Join. Raises NotInTaskError outside of a task, and SharedTaskError if the call shares
        its task with others: those could wait for each other.
        """
        self.name = name
        self.number = number
        self.size = size
        join = current_states()
        if join is None:
            raise SharedTaskError
        path, self._has_set = join(name, size, number)
        self._board = StateBoard(path, size)
        self._pid = os.getpid()
        self._round = 0

    def set(self, flags: int, mask: int | None = None) -> None:
        """Set the flags of this member that are in `mask`, by default all that are ones in `flags`.

        `set(0, mask=0b10)` clears a flag.
        """
        chosen = flags if mask is None else mask
        _check(flags)
        _check(chosen)
        self._put(self._own() & ~chosen | flags & chosen)

    def flags(self, member: int | None = None) -> int:
        """Return the flags of a member, by default of this one."""
        number = self.number if member is None else member
        if not 0 <= number < self.size:
            raise ValueError(f"the group {self.name!r} has no member {number}, only {self.size}")
        return self._board.word(number) & _OWN_MASK

    def wait(
        self,
        flags: int,
        mask: int | None = None,
        *,
        members: Iterable[int] | None = None,
        timeout: float | None = None,
    ) -> None:
        """Wait until the flags in `mask` of all members, or of some, are those in `flags`.

        By default the mask is `flags`. Raises StateError if one of them has failed for good before
        it reached that state, and StateTimeoutError after `timeout` seconds, by default 600.
        """
        chosen = flags if mask is None else mask
        _check(flags)
        _check(chosen)
        awaited = list(range(self.size) if members is None else members)
        for member in awaited:
            self.flags(member)  # it exists
        self._await(awaited, timeout, lambda word: word & chosen == flags & chosen)

    def barrier(self, timeout: float | None = None) -> None:
        """Wait until all members have called this as often as this one. Raises as `wait` does."""
        before = self._own()
        self._round = (self._round + 1) % 4
        here, next_one = self._round, (self._round + 1) % 4
        self._put(before & _OWN_MASK | self._round << _ROUND_SHIFT)
        # A member that has seen all others here may be at the next barrier already.
        self._await(
            list(range(self.size)), timeout,
            lambda word: (word & FLAGS_MASK) >> _ROUND_SHIFT in (here, next_one),
        )  # fmt: skip

    def close(self) -> None:
        """Stop watching the members. Their flags stay as they are."""
        self._board.close()

    def __del__(self) -> None:
        with suppress(AttributeError):  # it has not joined
            if self._pid == os.getpid():
                self._board.close()

    def _own(self) -> int:
        return self._board.word(self.number) & FLAGS_MASK

    def _put(self, flags: int) -> None:
        self._board.put(self.number, JOINED | flags)
        self._has_set(self.name, self.number)

    def _await(
        self, members: list[int], timeout: float | None, is_reached: Callable[[int], bool]
    ) -> None:
        timeout_s = _WAIT_S if timeout is None else timeout
        late = members

        def all_there() -> bool:
            nonlocal late
            words = [(member, self._board.word(member)) for member in members]
            behind = [(m, word) for m, word in words if not word & JOINED or not is_reached(word)]
            if failed := [member for member, word in behind if has_failed(word)]:
                raise StateError(self.name, failed)
            late = [member for member, _ in behind]
            return not late

        if not self._board.wait(all_there, timeout_s):
            absent = [member for member in late if not self._board.word(member) & JOINED]
            behind = [member for member in late if member not in absent]
            raise StateTimeoutError(self.name, timeout_s, absent, behind)


def _check(flags: int) -> None:
    if not 0 <= flags <= _OWN_MASK:
        raise ValueError(f"{flags} has other flags than the {FLAGS_COUNT} that a member has")
