"""Runs for master: sends the questions of a campaign to the voters, and gives it their answers."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from twisted.internet.task import LoopingCall
from twisted.logger import Logger

from ciel.core.masters import Succession
from ciel.master.succession.campaign import AskVoters, Campaign, Defeated, Elected, Step
from ciel.master.succession.candidacy import Round, VoterAnswer
from ciel.master.voters import Voters

_CHECK_INTERVAL_S: Final = 0.1
_LOG_INTERVAL_S: Final = 10.0

log = Logger(__name__)


class Election:
    """Runs whenever `is_due` returns True, until it is won.

    It calls `won` once, with the epoch.
    """

    def __init__(
        self,
        reactor: Any,
        voters: Voters,
        url: str,
        latest: Callable[[], Sequence[Succession]],
        is_due: Callable[[], bool],
        won: Callable[[int], object],
        known_epoch: Callable[[], int],
    ) -> None:
        self._reactor = reactor
        self._voters = voters
        self._latest = latest
        self._is_due = is_due
        self._won = won
        self.on_lost: Callable[[Round], object] = lambda round_: None
        """Called with each round that is lost."""
        self._campaign = Campaign(url, random.random, known_epoch)
        self._logged = ("", 0.0)
        self._timer = LoopingCall(self.check)
        self._timer.clock = reactor
        self._timer.start(_CHECK_INTERVAL_S, now=False)

    def check(self) -> None:
        """Run now if that is due."""
        now_s = self._reactor.seconds()
        self._carry_out(self._campaign.check(now_s, self._latest(), is_due=self._is_due()))

    def close(self) -> None:
        self._campaign.end()
        if self._timer.running:
            self._timer.stop()

    def _carry_out(self, steps: list[Step]) -> None:
        for step in steps:
            match step:
                case AskVoters(current):
                    self._ask(current)
                case Defeated(current):
                    self._log(current.tally())
                    self.on_lost(current)
                case Elected(epoch):
                    log.info("elected in epoch {epoch}", epoch=epoch)
                    self.close()
                    self._won(epoch)

    def _ask(self, current: Round) -> None:
        for voter, netloc in current.voters.items():
            self._voters.vote(
                voter, netloc, current.ballot, current.latest, only_asks=current.only_asks,
                done=partial(self._answered, current, voter),
            )  # fmt: skip

    def _answered(self, current: Round, voter: str, answer: VoterAnswer) -> None:
        steps = self._campaign.answered(
            current, voter, answer, self._reactor.seconds(), self._latest(), is_due=self._is_due()
        )
        self._carry_out(steps)

    def _log(self, tally: str) -> None:
        text, logged_s = self._logged
        now_s = self._reactor.seconds()
        if tally != text or now_s >= logged_s + _LOG_INTERVAL_S:
            self._logged = tally, now_s
            log.warn("not elected: {tally}", tally=tally)
