"""Decides whether a candidate is elected: one round of questions to the voters, and their answers.

A candidate first asks which voters would vote for it, and requests their promises only if there are
enough. So a standby that has lost its own connection disturbs nobody.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ciel.core.masters import Ballot, Succession


class VoterAnswer(NamedTuple):
    """The answer of a voter: its reason to refuse, or "", and its promise.

    `hears`: the URL of the master that sends it messages. `is_absent`: it did not answer.
    """

    reason: str
    promised: Ballot
    hears: str = ""
    is_absent: bool = False


def contested(url: str, latest: Sequence[Succession]) -> list[Succession]:
    """Return the successions by which a master other than the one with this URL may be elected."""
    return [item for item in latest if item.urls != (url,)]


def may_run(url: str, latest: Sequence[Succession]) -> bool:
    """Whether the master with this URL is in the succession in effect, the first of `latest`.

    A standby that was only proposed has to wait, since its master may have lost the proposal.
    """
    return url in latest[0].urls


def may_follow(latest: Sequence[Succession], epoch: int) -> bool:
    """Whether a master with this journal may replace it by that of a master of an epoch.

    It may have served in a later epoch, whose records would be lost.
    """
    return all(item.epoch <= epoch for item in latest)


class Round:
    """One round: the voters of each succession in `latest` are asked, and a majority of each is
    needed by which another master could be elected. The first one of `latest` is in effect, as far
    as the candidate knows; the last one is the latest succession.
    """

    def __init__(self, ballot: Ballot, latest: Sequence[Succession], *, only_asks: bool) -> None:
        self.ballot = ballot
        self.only_asks = only_asks
        self.successions = tuple(latest)
        self.latest = latest[-1]
        self.voters = {voter: at for item in latest for voter, at in item.voters.items()}
        """The addresses of those to ask, by identity."""
        self.seen_epoch = ballot.epoch
        """The greatest epoch that a voter has named."""
        self.elected = ""
        """The URL of a master of a later epoch that a voter hears: it was elected."""
        self._contested = contested(ballot.url, latest)
        self._is_eligible = may_run(ballot.url, latest)
        self._granted: set[str] = set()
        self._refused: dict[str, str] = {}

    def answered(self, voter: str, answer: VoterAnswer) -> None:
        """Take the answer of a voter; an absent voter has granted nothing."""
        if answer.reason or answer.is_absent:
            self._refused[voter] = answer.reason or "no answer"
        else:
            self._granted.add(voter)
        promised, hears = answer.promised, answer.hears
        self.seen_epoch = max(self.seen_epoch, promised.epoch)
        is_other = hears not in ("", self.ballot.url) and hears == promised.url
        if is_other and promised.epoch > self.latest.epoch:
            self.elected = hears

    @property
    def is_won(self) -> bool:
        return self._is_eligible and all(
            item.is_majority(self._granted) for item in self._contested
        )

    @property
    def is_over(self) -> bool:
        """Whether nothing changes any more: it is won, or all voters have answered."""
        return self.is_won or len(self._granted) + len(self._refused) == len(self.voters)

    def tally(self) -> str:
        """Describe the result for the log."""
        reasons = sorted(set(self._refused.values()))
        refused = f"; {len(self._refused)} refused: {'; '.join(reasons)}" if reasons else ""
        wait = "" if self._is_eligible else "; it is not in the succession in effect"
        return f"{len(self._granted)} of {len(self.voters)} workers agree{refused}{wait}"
