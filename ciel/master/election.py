"""Runs for master: repeats rounds of questions to the voters until one is won."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from twisted.internet.task import LoopingCall
from twisted.logger import Logger

from ciel.core.masters import Ballot, Succession
from ciel.master.succession.candidacy import Round
from ciel.master.voters import VoterAnswer, Voters

_CHECK_INTERVAL_S: Final = 0.1
_PAUSE_S: Final = 0.5
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
    ) -> None:
        self._reactor = reactor
        self._voters = voters
        self._url = url
        self._latest = latest
        self._is_due = is_due
        self._won = won
        self.on_lost: Callable[[Round], object] = lambda round_: None
        """Called with each round that is lost."""
        self._round: Round | None = None
        self._seen_epoch = 0
        self._not_before_s = 0.0
        self._logged = ("", 0.0)
        self._timer = LoopingCall(self._check)
        self._timer.clock = reactor
        self._timer.start(_CHECK_INTERVAL_S, now=False)

    def check(self) -> None:
        """Run now if that is due."""
        if self._timer.running:
            self._check()

    def close(self) -> None:
        self._round = None
        if self._timer.running:
            self._timer.stop()

    def _check(self) -> None:
        if self._round is None and self._reactor.seconds() >= self._not_before_s:
            latest = self._latest()
            if latest and self._is_due():
                self._begin(latest, only_asks=True)

    def _begin(self, latest: Sequence[Succession], *, only_asks: bool) -> None:
        epoch = max([self._seen_epoch, *(item.epoch for item in latest)]) + 1
        current = self._round = Round(Ballot(epoch, self._url), latest, only_asks=only_asks)
        for voter, netloc in current.voters.items():
            self._voters.vote(
                voter, netloc, current.ballot, current.latest, only_asks=only_asks,
                done=partial(self._answered, current, voter),
            )  # fmt: skip
        self._judge(current)

    def _answered(self, current: Round, voter: str, answer: VoterAnswer) -> None:
        if self._round is current:
            current.answered(voter, answer.reason, answer.promised, answer.hears)
            self._judge(current)

    def _judge(self, current: Round) -> None:
        if not current.is_over:
            return
        self._round = None
        self._seen_epoch = max(self._seen_epoch, current.seen_epoch)
        if not current.is_won or not self._is_due():
            self._log(current.tally())
            self._not_before_s = self._reactor.seconds() + _PAUSE_S * (0.5 + random.random())
            self.on_lost(current)
        elif current.only_asks:
            self._seen_epoch = current.ballot.epoch - 1
            self._begin(self._latest(), only_asks=False)
        else:
            log.info("elected in epoch {epoch}", epoch=current.ballot.epoch)
            self.close()
            self._won(current.ballot.epoch)

    def _log(self, tally: str) -> None:
        text, logged_s = self._logged
        now_s = self._reactor.seconds()
        if tally != text or now_s >= logged_s + _LOG_INTERVAL_S:
            self._logged = tally, now_s
            log.warn("not elected: {tally}", tally=tally)
