"""A master that had standbys asks the workers before it serves again."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.task import Clock

from ciel.access.keys import Key
from ciel.cli.daemons import standby
from ciel.core.masters import Ballot, Succession
from ciel.master.state.machine import MasterMachine
from ciel.master.state.restoring import Restoration
from ciel.master.succession.candidacy import VoterAnswer

A, B = "http://a:1", "http://b:1"
LATEST = (Succession(1, 1, (A, B), {"w1": "h:1", "w2": "h:2", "w3": "h:3"}),)


class Voters:
    """Workers that answer only after a minute."""

    def __init__(self, reactor: Clock, key: Key) -> None:
        self._reactor = reactor

    def vote(self, voter: str, netloc: str, ballot: Ballot, *_: Any, done: Any, **__: Any) -> None:
        is_there = self._reactor.seconds() >= 60.0
        answer = VoterAnswer("", ballot, is_absent=not is_there)
        self._reactor.callLater(0.1, done, answer)


class Candidate:
    def __init__(self, reactor: Clock) -> None:
        self._reactor = reactor
        self.served_at_s: list[float] = []

    def finish(self, journal: Any, restoration: Any, return_s: float) -> None:
        self.served_at_s.append(self._reactor.seconds())

    def serve_alone(self, *_: Any) -> None: ...
    def keep(self, close: Any) -> None: ...


class Door:
    def close(self) -> None: ...


def test_clients_may_return_after_an_election_that_took_a_minute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(standby, "Voters", Voters)
    reactor, restoration = Clock(), Restoration(MasterMachine())
    restoration.latest = LATEST
    candidate: Any = Candidate(reactor)
    door: Any = Door()
    standby.run_again(candidate, reactor, "c", Key.new(), None, restoration, door, A)  # type: ignore[arg-type]  # no journal
    reactor.pump([0.05] * 1400)
    (served_at_s,) = candidate.served_at_s
    assert served_at_s > 60.0
