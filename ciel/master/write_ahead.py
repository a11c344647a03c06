"""Holds what a tick causes until the records of that tick are durable.

This is the rule of write-ahead logging: decide, persist, act. The service and the simulator use the
same code, so the simulator can crash a master between any two of these steps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ciel.core.events import Message
from ciel.core.jobs import Job
from ciel.master.journal import Journal
from ciel.net.control import Peer
from ciel.net.sessions import PeerSession


class Consequences(NamedTuple):
    """The consequences of a tick: messages with receivers, ended jobs, functions to call."""

    messages: list[tuple[Peer | PeerSession, Message]]
    ended: list[Job]
    calls: list[Callable[[], object]]


class WriteAhead:
    """Appends the records of ticks to a journal, and releases the consequences in order.

    Nothing happens before the earlier records of the journal are durable, the start of the master
    among them: an elected master that has not taken office may know what the next one will not.
    The caller carries out what `end_tick` and `take_durable` return.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._appended = journal.appended
        self._held: deque[tuple[int, Consequences]] = deque()  # with the append that they wait for
        self._calls: list[Callable[[], object]] = []  # of the current tick

    def end_tick(
        self,
        records: Sequence[Message],
        messages: list[tuple[Peer | PeerSession, Message]],
        ended: list[Job],
    ) -> Consequences | None:
        """Append the records of a tick; return its consequences if they may happen at once."""
        if records:
            self._appended = self._journal.append(records)
        calls, self._calls = self._calls, []
        caused = Consequences(messages, ended, calls)
        if not self._held and self._appended <= self._journal.durable:
            return caused
        if messages or ended or calls:
            self._held.append((self._appended, caused))
        return None

    def take_durable(self) -> list[Consequences]:
        """Remove and return what earlier ticks caused, as far as their records are durable."""
        durable = []
        while self._held and self._held[0][0] <= self._journal.durable:
            durable.append(self._held.popleft()[1])
        return durable

    def must_wait(self, records: Sequence[Message]) -> bool:
        """Whether something that has happened is not durable yet, or a function that waited for
        that has not been called yet. `records`: of this tick.
        """
        is_waiting = self._held or self._calls or self._appended > self._journal.durable
        return bool(is_waiting or records)

    def call_after_tick(self, call: Callable[[], object]) -> None:
        """Add a function to what the current tick causes."""
        self._calls.append(call)
