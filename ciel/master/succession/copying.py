"""Decides what a standby does with the journal of its master, and when it confirms records.

The standby first receives a copy of the journal. When the copy is complete, it replaces the
standby's own journal; the standby restores a master from it, and applies each later record to it.
It confirms records when they are durable here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

from ciel.core.events import JournalCopied, JournalCopyEnds, JournalGrew, JournalStored, Message
from ciel.core.masters import Succession
from ciel.journal.groups import Group, decode_records
from ciel.master.state.machine import MasterMachine
from ciel.master.state.restoring import Restoration
from ciel.master.succession.candidacy import may_follow


class CopiedJournal(Protocol):
    """The journal of a standby: see `journal.file_journal`."""

    @property
    def durable(self) -> int: ...
    def groups(self) -> Iterator[Group]: ...
    def open(self) -> None: ...
    def append_frames(self, frames: bytes) -> int: ...


class Copy:
    """A complete copy of the journal, with a master that was restored from it."""

    def __init__(self, journal: CopiedJournal, machine: MasterMachine) -> None:
        self.machine = machine
        self.restoration = Restoration(machine)
        self._journal = journal
        self._stored: deque[tuple[int, int]] = deque()  # numbers of our and of the master's append

    def restore(self) -> None:
        """Restore the master from the files, and open the journal. Raises JournalError."""
        for group in self._journal.groups():
            self.apply(group.records, group.time_s)
        self._journal.open()

    def append(self, number: int, frames: bytes, time_s: float) -> None:
        """Store and apply records that the master has appended under a number. `time_s`: since the
        epoch.
        """
        self._stored.append((self._journal.append_frames(frames), number))
        self.apply(decode_records(frames), time_s)

    def apply(self, records: Sequence[Message], time_s: float) -> None:
        """Apply records to the master."""
        for record in records:
            self.restoration.apply(record, time_s)

    def take_durable(self) -> int:
        """Return the master's number of the last append that has become durable; 0 if none has."""
        number = 0
        while self._stored and self._stored[0][0] <= self._journal.durable:
            number = self._stored.popleft()[1]
        return number


class WriteCopy(NamedTuple):
    """Write a part of the copy that is being received."""

    content: bytes


class AdoptCopy(NamedTuple):
    """Replace the journal by the copy that was received, restore a `Copy` from it, and call
    `Copying.adopted` with both.
    """

    number: int


class Copying:
    """The copy of a standby, and what its connection to a master has brought so far."""

    def __init__(self) -> None:
        self.copy: Copy | None = None
        """The last complete copy; a new connection first replaces it by another one."""
        self._is_receiving = False  # the copy is not complete yet on this connection
        self._follows = False  # the copy is complete, and this connection continues it
        self._parts: list[bytes] = []  # of the append that is being received

    @property
    def latest(self) -> tuple[Succession, ...]:
        """The successions that are known here; none before the copy is complete."""
        return () if self.copy is None else self.copy.restoration.latest

    @property
    def epoch(self) -> int:
        """The epoch of the last master in the copy; 0 before the copy is complete."""
        return 0 if self.copy is None else self.copy.restoration.epoch

    def opened(self, epoch: object) -> bool:
        """Begin to follow the master of an epoch on a new connection; return False if this standby
        must not follow it.
        """
        if type(epoch) is not int or not may_follow(self.latest, epoch):
            return False
        self._is_receiving, self._follows = True, False
        self._parts.clear()
        return True

    def closed(self) -> None:
        """Note that the connection has ended."""
        self._is_receiving = self._follows = False

    def said(self, message: Message, time_s: float) -> WriteCopy | AdoptCopy | None:
        """Take a message of the master; return what to do with the copy."""
        match message:
            case JournalCopied(content) if self._is_receiving:
                return WriteCopy(content)
            case JournalCopyEnds(number) if self._is_receiving:
                self._is_receiving = False
                return AdoptCopy(number)
            case JournalGrew(number, is_last_part, content) if self._follows:
                self._parts.append(content)
                if is_last_part and self.copy is not None:
                    self.copy.append(number, b"".join(self._parts), time_s)
                    self._parts.clear()
        return None

    def adopted(self, copy: Copy, number: int) -> JournalStored:
        """Note that a copy has replaced the journal; return the message that confirms it."""
        self.copy, self._follows = copy, True
        return JournalStored(number)

    def confirmation(self) -> JournalStored | None:
        """Return the message that confirms the durable appends, if there are new ones."""
        if self.copy is None or not self._follows:
            return None
        number = self.copy.take_durable()
        return JournalStored(number) if number else None
