"""Decides what a serving master does for its succession: record it, name it to voters, announce it.

The caller reports events, and carries out the orders that the methods return. Then it releases what
waited for standbys (`FollowedJournal.durable` may have grown).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from ciel.core.events import Message, SuccessionChanged
from ciel.core.masters import Ballot, Succession
from ciel.master.journal import Journal
from ciel.master.succession.candidacy import VoterAnswer
from ciel.master.succession.commits import Commits

BEAT_INTERVAL_S: Final = 0.3
"""While a standby follows, every peer hears from the master this often: a master that is silent for
a second may be replaced."""
SILENT_MAX_S: Final = 2.0
"""A standby that is silent for this time is gone: nothing of the master leaves meanwhile."""


class FollowedJournal:
    """The journal of a master with standbys: an append is durable when all of them have it, too."""

    def __init__(self, journal: Journal, commits: Commits) -> None:
        self._journal = journal
        self._commits = commits

    @property
    def appended(self) -> int:
        return self._journal.appended

    @property
    def durable(self) -> int:
        return min(self._journal.durable, self._commits.limit)

    def append(self, records: Sequence[Message]) -> int:
        return self._journal.append(records)

    def close(self) -> None:
        self._journal.close()


class NameSuccession(NamedTuple):
    """Have a voter store a succession; report its answer (`Leadership.voter_answered`)."""

    voter: str
    netloc: str
    succession: Succession


class AnnounceMasters(NamedTuple):
    """Tell clients where a master may be: a succession has taken effect."""

    urls: tuple[str, ...]


class RunAgain(NamedTuple):
    """End, and ask the workers before serving again: one of them obeys another master."""

    promised: Ballot


Order = NameSuccession | AnnounceMasters | RunAgain


class Leadership:
    """Carries out the decisions of its `Commits`, from the start of a master to its end."""

    def __init__(self, commits: Commits, journal: Journal, *, is_recorded: bool) -> None:
        """`journal`: where successions are recorded, without its standbys. `is_recorded`: it has
        the succession in effect.
        """
        self.commits = commits
        self._journal = journal
        self._is_recorded = is_recorded
        self._asked: set[str] = set()  # the voters that have not answered yet
        self._announced: tuple[str, ...] = (commits.url,)
        self._agreed_at = 0  # the number of the append with the succession in effect
        self._is_over = False

    def end(self) -> None:
        """Do nothing any more."""
        self._is_over = True

    def can_take_over(self, url: str) -> bool:
        """Whether a standby knows that it may take over."""
        return url in self._announced

    @property
    def must_beat(self) -> bool:
        """Whether all peers must hear from this master with each beat."""
        return len(self.commits.agreed.urls) > 1

    @property
    def awaits_journal(self) -> bool:
        """Whether the next step may depend on the durable appends of this master."""
        return self.commits.proposed is not None

    def is_gone(self, url: str, silent_s: float) -> bool:
        """Whether a standby that has been silent for a time counts as lost."""
        return silent_s >= SILENT_MAX_S and url in self.commits.agreed.urls

    # --- events -----------------------------------------------------------------------------------

    def copy_begins(self) -> None:
        """Record the succession in effect: a copy then shows that it may be replaced."""
        if not self._is_recorded:
            self._is_recorded = True
            self._journal.append([SuccessionChanged(self.commits.agreed, True)])

    def standby_stored(self, url: str, number: int) -> None:
        """Note the last append that is durable at a standby."""
        self.commits.standby_stored(url, number)

    def standby_lost(self, url: str) -> None:
        """Note that a standby does not follow any more."""
        self.commits.standby_lost(url)

    def workers_changed(self, workers: Mapping[str, str]) -> None:
        """Note which workers have joined: addresses by identity."""
        self.commits.workers_changed(workers)

    def worker_promised(self, promised: Ballot) -> list[Order]:
        """Note what a worker has promised, which is joining: it may not obey this master."""
        own = Ballot(self.commits.epoch, self.commits.url)
        if self._is_over or promised.epoch < own.epoch or promised == own:
            return []
        return [RunAgain(promised)]

    def voter_answered(self, order: NameSuccession, answer: VoterAnswer) -> list[Order]:
        """Take the answer of a voter to a succession."""
        self._asked.discard(order.voter)
        if self._is_over or answer.is_absent:
            return []  # it is asked again with the next step
        if not answer.reason:
            self.commits.voter_stored(order.voter, order.succession.version)
            return self.step()
        if answer.promised.epoch >= self.commits.epoch:
            return [RunAgain(answer.promised)]
        return []

    # --- decisions --------------------------------------------------------------------------------

    def step(self) -> list[Order]:
        """Carry the succession on as far as possible now."""
        if self._is_over:
            return []
        self._record()
        orders: list[Order] = []
        commits = self.commits
        is_known = commits.took_office and commits.limit >= self._agreed_at
        if commits.agreed.urls != self._announced and is_known:
            self._announced = commits.agreed.urls  # all standbys know now that they may take over
            orders.append(AnnounceMasters(self._announced))
        latest = commits.proposed or commits.agreed
        for voter, netloc in commits.voters_to_inform().items():
            if voter not in self._asked:
                self._asked.add(voter)
                orders.append(NameSuccession(voter, netloc, latest))
        return orders

    def _record(self) -> None:
        """Let a proposal take effect that is agreed, and record the next one."""
        commits, journal = self.commits, self._journal
        while True:
            commits.own_stored(journal.durable)
            if commits.agree():
                self._agreed_at = journal.append([SuccessionChanged(commits.agreed, True)])
            proposal = commits.propose()
            if proposal is None:
                return
            self.copy_begins()
            commits.proposal_appended(journal.append([SuccessionChanged(proposal, False)]))
