"""Decides when a candidate asks the voters: it repeats rounds until one is won.

The caller reports events with their time, and carries out the steps that the methods return.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from ciel.core.masters import Ballot, Succession
from ciel.master.succession.candidacy import Round, VoterAnswer

PAUSE_S: Final = 0.5
"""The mean pause after a lost round. It is random, so that two candidates do not meet again."""


class AskVoters(NamedTuple):
    """Send the ballot of a round to its voters."""

    round: Round


class Elected(NamedTuple):
    """This candidate was elected: it becomes the master of an epoch."""

    epoch: int


class Defeated(NamedTuple):
    """A round was lost; another one follows."""

    round: Round


Step = AskVoters | Elected | Defeated


class Campaign:
    """Holds one round after another until the candidate wins.

    `latest` of the methods: the successions that the candidate knows. `is_due`: whether it may run
    now, because its master is silent.
    """

    def __init__(
        self, url: str, chance: Callable[[], float], known_epoch: Callable[[], int] = lambda: 0
    ) -> None:
        """`chance` returns random numbers from 0 to 1. `known_epoch` returns the epoch of the last
        master in the journal: a voter may have promised it to that master, which may have had no
        standbys, and then named no succession.
        """
        self.is_over = False
        self._url = url
        self._chance = chance
        self._round: Round | None = None
        self._known_epoch = known_epoch
        self._seen_epoch = 0
        self._not_before_s = 0.0

    def end(self) -> None:
        """Hold no further round, and ignore the answers to the current one."""
        self.is_over = True
        self._round = None

    def check(self, now_s: float, latest: Sequence[Succession], *, is_due: bool) -> list[Step]:
        """Begin a round if none is held, and one is due."""
        is_pausing = self._round is not None or now_s < self._not_before_s
        if self.is_over or is_pausing or not latest or not is_due:
            return []
        return self._begin(latest, now_s, is_due, only_asks=True)

    def answered(
        self, round_: Round, voter: str, answer: VoterAnswer, now_s: float,
        latest: Sequence[Succession], *, is_due: bool,
    ) -> list[Step]:  # fmt: skip
        """Take the answer of a voter to a round."""
        if self._round is not round_:
            return []
        round_.answered(voter, answer)
        return self._judge(round_, now_s, latest, is_due)

    def _begin(
        self, latest: Sequence[Succession], now_s: float, is_due: bool, *, only_asks: bool
    ) -> list[Step]:
        epoch = max(self._seen_epoch, self._known_epoch(), *[item.epoch for item in latest]) + 1
        current = self._round = Round(Ballot(epoch, self._url), latest, only_asks=only_asks)
        return [AskVoters(current), *self._judge(current, now_s, latest, is_due)]

    def _judge(
        self, current: Round, now_s: float, latest: Sequence[Succession], is_due: bool
    ) -> list[Step]:
        if not current.is_over:
            return []
        self._round = None
        self._seen_epoch = max(self._seen_epoch, current.seen_epoch)
        # A copy that was completed meanwhile may name other voters.
        is_stale = not current.only_asks and tuple(latest) != current.successions
        if not current.is_won or not is_due or is_stale:
            self._not_before_s = now_s + PAUSE_S * (0.5 + self._chance())
            return [Defeated(current)]
        if current.only_asks:
            self._seen_epoch = current.ballot.epoch - 1
            return self._begin(latest, now_s, is_due, only_asks=False)
        self.end()
        return [Elected(current.ballot.epoch)]
