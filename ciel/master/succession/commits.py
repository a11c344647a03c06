"""Decides which records of a master are committed while standbys follow its journal.

A standby may take over with the records that it has. So nothing that depends on a record may leave
the master before each standby in the succession has stored the record. To continue without a lost
standby, the master proposes a succession without it. This takes effect when a majority of the
voters has stored it: from then on that standby cannot be elected.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from ciel.core.masters import Succession

ALL: Final = 2**63
"""A limit for records that excludes none."""


class Commits:
    """The succession of a serving master, and which of its appended records all standbys have.

    A new succession is first *proposed*. It is *agreed*, and takes effect, when all standbys of the
    previous succession have stored it, or a majority of that succession's voters. There is at most
    one proposal. While there is one, the standbys of both successions must store each record.
    """

    def __init__(self, url: str, epoch: int, before: Sequence[Succession]) -> None:
        """`before`: the successions of earlier epochs by which another master could still be
        elected. The first succession of this epoch must be agreed under each of them. Until then no
        record of this master is committed.
        """
        self.url = url
        self.epoch = epoch
        self.proposed: Succession | None = None
        self._before = tuple(before) or (Succession(epoch, 0, (url,), {}),)
        """The successions in effect: one, except in the beginning."""
        self._proposed_at = ALL  # the number of the append with the proposal
        self._own_stored = 0  # the last append that is durable at this master
        self._stored_by: set[str] = set()  # the voters that have stored the latest succession
        # The last durable append of each standby that follows, by its URL.
        self._standbys: dict[str, int] = {}
        self._workers: dict[str, str] = {}  # the voters that have joined
        self.limit = ALL
        """The last append that every standby that may take over has stored; ALL without standbys,
        0 before this master's own succession is in effect."""
        self._recount()

    @property
    def agreed(self) -> Succession:
        """The succession that is in effect; one of an earlier epoch in the beginning."""
        return self._before[-1]

    @property
    def took_office(self) -> bool:
        """Whether the succession in effect is this master's own."""
        return self.agreed.epoch == self.epoch

    @property
    def is_followed(self) -> bool:
        """Whether this master is in office, and every standby that could replace it follows it.

        Such a standby does not stand for election. A lost standby counts until the voters have
        agreed that it cannot be elected.
        """
        return self.took_office and self._standbys.keys() >= self._rivals()

    def _rivals(self) -> set[str]:
        """Return the standbys that could be elected."""
        later = () if self.proposed is None else self.proposed.urls
        return {*self.agreed.urls, *later} - {self.url}

    # --- events -----------------------------------------------------------------------------------

    def own_stored(self, stored: int) -> None:
        """Note the last append that is durable at this master itself.

        A proposal that it could still lose takes no effect, and no voter hears of it: a restarted
        master would not know who may be elected, or could not be elected itself.
        """
        self._own_stored = stored

    def standby_stored(self, url: str, stored: int) -> None:
        """Note that a standby follows, and its last durable append."""
        self._standbys[url] = stored
        self._recount()

    def standby_lost(self, url: str) -> None:
        """Note that a standby does not follow any more."""
        self._standbys.pop(url, None)
        self._recount()

    def workers_changed(self, workers: Mapping[str, str]) -> None:
        """Note which workers have joined: addresses by identity."""
        self._workers = dict(workers)

    def voter_stored(self, voter: str, version: tuple[int, int]) -> None:
        """Note that a worker has stored a succession."""
        if version == (self.proposed or self.agreed).version:
            self._stored_by.add(voter)

    def proposal_appended(self, number: int) -> None:
        """Note the append that has the proposal."""
        self._proposed_at = number

    # --- decisions --------------------------------------------------------------------------------

    def agree(self) -> bool:
        """Let the proposal take effect if it is agreed; return whether it is."""
        if self.proposed is None or not all(self._is_agreed_by(item) for item in self._before):
            return False
        self._before, self.proposed = (self.proposed,), None
        self._recount()
        return True

    def propose(self) -> Succession | None:
        """Return the next succession if one is needed now; the caller appends it to the journal,
        and calls `proposal_appended`.
        """
        if self.proposed is not None:
            return None
        # Without voters no standby could be elected, and no voter could agree to drop a lost one.
        voters = self._workers or dict(self.agreed.voters)
        urls = (self.url, *self._standbys) if voters else (self.url,)
        if self.took_office:
            is_alone = len(urls) == len(self.agreed.urls) == 1
            if is_alone or (urls, voters) == (self.agreed.urls, self.agreed.voters):
                return None
        number = self.agreed.number + 1 if self.took_office else 0
        self.proposed = Succession(self.epoch, number, urls, voters)
        self._stored_by = set()
        self._proposed_at = ALL
        self._recount()
        return self.proposed

    def voters_to_inform(self) -> dict[str, str]:
        """Return the voters that should store the latest succession, and have not yet."""
        if self.proposed is not None and self._own_stored < self._proposed_at:
            return {}
        latest = (*self._before, *([] if self.proposed is None else [self.proposed]))
        found = dict(self._workers)
        for succession in latest:  # a voter that is away may still obey an earlier master
            found = {**succession.voters, **found}
        if latest[-1].number == 0 and not latest[-1].voters:
            return {}  # there has never been a standby
        return {voter: at for voter, at in found.items() if voter not in self._stored_by}

    def _is_agreed_by(self, before: Succession) -> bool:
        if before.is_majority(self._stored_by):
            return True
        stored = {**self._standbys, self.url: self._own_stored}
        return all(stored.get(url, 0) >= self._proposed_at for url in before.urls)

    def _recount(self) -> None:
        stored = [self._standbys.get(url, 0) for url in self._rivals()]
        self.limit = min([ALL, *stored]) if self.took_office else 0
