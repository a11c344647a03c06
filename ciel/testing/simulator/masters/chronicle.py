"""Checks that the masters of a simulation follow each other, as docs/adr/0091 says.

No two masters have one epoch. A worker keeps its promises. A later master knows all committed
records of the earlier ones, and all masters commit the same ones in the same order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import takewhile
from operator import eq

from ciel.core.events import JournalCompacted, MasterStarted, Message, SuccessionChanged
from ciel.core.masters import NO_BALLOT, Ballot
from ciel.journal.groups import decode_records, encode_records
from ciel.testing.simulator.witness import Violation


class Chronicle:
    """The actions of all masters and workers of a simulation so far."""

    def __init__(self) -> None:
        self.committed: list[Message] = []
        """The records that may have had consequences, in their order."""
        self.last = NO_BALLOT
        """The master of the latest epoch. Workers have elected it, so that no earlier one can
        commit a record; it may have committed none itself."""
        self._urls: dict[int, str] = {}  # of masters, by epoch
        self._promised: defaultdict[str, Ballot] = defaultdict(lambda: NO_BALLOT)  # by voter
        self._compacted: defaultdict[bytes, list[list[Message]]] = defaultdict(list)
        """By the records of a base, the whole journals that it replaced. Journals that differ only
        in workers which came and left have the same base."""

    def serves(self, master: Ballot, records: Iterable[Message], appended: int) -> Ledger:
        """Record that a master starts to serve with the records of its journal, of which it has
        appended some as a standby.
        """
        self.last = max(self.last, master)
        return Ledger(self, master, records, appended)

    def compacted(self, base: Sequence[Message], records: Sequence[Message]) -> None:
        """Record that a base was made of these records, with or without an earlier base."""
        as_read = decode_records(encode_records(base))
        known = self._compacted[encode_records(as_read)]
        known += [whole for whole in self._wholes(records) if whole not in known]

    def whole(self, records: Sequence[Message]) -> list[Message]:
        """Return the records of a journal, and the records that its base leaves out.

        If the base stands for several journals, return the journal with the most committed records.
        """
        return max(self._wholes(records), key=self._known_count)

    def _wholes(self, records: Sequence[Message]) -> list[list[Message]]:
        for end, record in enumerate(records, 1):
            if isinstance(record, JournalCompacted):
                bases = self._compacted[encode_records(records[:end])]
                return [[*base, *records[end:]] for base in bases]
        return [[*records]]

    def _known_count(self, records: Iterable[Message]) -> int:
        """Count the committed records with which a journal begins."""
        same = map(eq, filter(_counts, records), self.committed)
        return len([*takewhile(bool, same)])

    def takes_epoch(self, master: Ballot) -> None:
        """Record that the start of a master is committed. Before, it has no effect."""
        if self._urls.setdefault(master.epoch, master.url) != master.url:
            raise Violation(
                master.url,
                f"epoch {master.epoch} has already the master {self._urls[master.epoch]}",
            )

    def promised(self, voter: str, master: Ballot) -> None:
        """Record a promise of a worker, when it is durable."""
        before = self._promised[voter]
        is_other = master.epoch == before.epoch and before.url not in ("", master.url)
        if master.epoch < before.epoch or is_other:
            raise Violation(voter, f"it promises to obey {master}, after {before}")
        self._promised[voter] = master

    def obeyed(self, voter: str, master: Ballot) -> None:
        """Record that a worker processes a message of a master."""
        promised = self._promised[voter]
        is_other = master.epoch == promised.epoch and promised.url != master.url
        if master.epoch < promised.epoch or is_other:
            raise Violation(voter, f"it obeys {master}, and has promised to obey {promised}")


class Ledger:
    """The records of one master: its own, and the known records of earlier masters."""

    def __init__(
        self, chronicle: Chronicle, master: Ballot, records: Iterable[Message], appended: int
    ) -> None:
        self._chronicle = chronicle
        self._committed = chronicle.committed
        self._master = master
        self._url = master.url
        self._appended_before = appended
        self._records = [record for record in records if _counts(record)]
        self._ends = {appended: len(self._records)}  # how many records there are after appends
        self._checked = 0  # records that are known to agree with the committed ones

    def takes_office(self) -> None:
        """Check that this master knows all committed records: from now on it may add to them."""
        known = self._records[: len(self._committed)]
        for number, record in enumerate(self._committed):
            if number >= len(known) or known[number] != record:
                raise Violation(self._url, f"it does not know a committed record: {record!r:.200}")

    def appended(self, number: int, frames: bytes) -> None:
        """Record an append of this master."""
        self._records += [record for record in decode_records(frames) if _counts(record)]
        self._ends[number] = len(self._records)

    def durable(self, number: int) -> None:
        """Record that all appends up to a number are committed."""
        if number > self._appended_before:  # the first one says that the master has started
            self._chronicle.takes_epoch(self._master)
        end = self._ends.get(number, 0)
        for place in range(self._checked, end):
            record = self._records[place]
            if place == len(self._committed):
                self._committed.append(record)
            elif self._committed[place] != record:
                raise Violation(
                    self._url,
                    f"it commits {record!r:.200} instead of {self._committed[place]!r:.200}",
                )
        self._checked = max(self._checked, end)


def _counts(record: Message) -> bool:
    """Whether masters must agree about a record: they need not about their own successions."""
    return not isinstance(record, MasterStarted | SuccessionChanged)
