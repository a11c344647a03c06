"""When a candidate asks the voters, and when it has been elected."""

from __future__ import annotations

from ciel.core.masters import Ballot, Succession
from ciel.master.succession.campaign import PAUSE_S, AskVoters, Campaign, Defeated, Elected, Step
from ciel.master.succession.candidacy import Round, VoterAnswer

A, B = "http://a:1", "http://b:1"
VOTERS = {"w1": "h:1", "w2": "h:2", "w3": "h:3"}
LATEST = (Succession(1, 1, (A, B), VOTERS),)


class Asker:
    """A candidate whose voters all give the same answer."""

    def __init__(self) -> None:
        self.campaign = Campaign(B, lambda: 0.5)
        self.latest = LATEST
        self.is_due = True

    def check(self, now_s: float) -> list[Step]:
        return self.campaign.check(now_s, self.latest, is_due=self.is_due)

    def answer(self, round_: Round, reason: str = "", promised: int = 1) -> list[Step]:
        steps: list[Step] = []
        answer = VoterAnswer(reason, Ballot(promised, A))
        for voter in VOTERS:
            steps += self.campaign.answered(
                round_, voter, answer, 1.0, self.latest, is_due=self.is_due
            )
        return steps


def round_of(steps: list[Step]) -> Round:
    (step,) = steps
    assert isinstance(step, AskVoters)
    return step.round


def test_a_candidate_asks_first_and_then_requests_the_votes() -> None:
    asker = Asker()
    asked = round_of(asker.check(0.0))
    assert asked.only_asks
    assert asker.check(0.1) == []  # one round at a time
    requested = round_of(asker.answer(asked))
    assert not requested.only_asks
    assert requested.ballot == Ballot(2, B)
    assert asker.answer(requested) == [Elected(2)]
    assert asker.check(9.0) == []


def test_a_lost_round_is_repeated_after_a_pause_in_a_later_epoch() -> None:
    asker = Asker()
    asked = round_of(asker.check(0.0))
    assert asker.answer(asked, "no", promised=7) == [Defeated(asked)]
    assert asker.check(1.0 + 0.9 * PAUSE_S) == []
    assert round_of(asker.check(1.0 + 1.1 * PAUSE_S)).ballot.epoch == 8


def test_a_candidate_begins_after_an_epoch_that_a_worker_has_promised() -> None:
    campaign = Campaign(A, lambda: 0.5, known_epoch=lambda: 7)
    assert round_of(campaign.check(0.0, LATEST, is_due=True)).ballot.epoch == 8


def test_a_candidate_whose_master_is_heard_again_is_not_elected() -> None:
    asker = Asker()
    requested = round_of(asker.answer(round_of(asker.check(0.0))))
    asker.is_due = False
    assert asker.answer(requested) == [Defeated(requested)]


def test_votes_do_not_count_for_a_copy_that_was_completed_since() -> None:
    """The newer succession may have other voters, who have promised nothing."""
    asker = Asker()
    requested = round_of(asker.answer(round_of(asker.check(0.0))))
    asker.latest = (Succession(1, 2, (A, B), {"w9": "h:9"}),)
    assert asker.answer(requested) == [Defeated(requested)]
