"""Who may take over from a master, and when its records count (docs/adr/0091)."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from ciel.core.masters import NO_BALLOT, Ballot, Succession, promoted_epoch, was_replaced
from ciel.master.journal import NullJournal
from ciel.master.succession.candidacy import Round, VoterAnswer, contested, may_follow, may_run
from ciel.master.succession.commits import ALL, Commits
from ciel.master.succession.leadership import Leadership, RunAgain
from ciel.worker.state.voter import Promises, Voter

A, B, C = "http://a:1", "http://b:1", "http://c:1"
VOTERS = {"w1": "h:1", "w2": "h:2", "w3": "h:3"}


def commits_with(*standbys: str, voters: dict[str, str] = VOTERS) -> Commits:
    """Return the commits of A in epoch 1, with standbys that have stored all records so far."""
    commits = Commits(A, 1, ())
    commits.workers_changed(voters)
    for url in standbys:
        commits.standby_stored(url, 10)
    commits.own_stored(10)
    while commits.propose() is not None:
        commits.proposal_appended(10)
        assert commits.agree()
    return commits


# --- the master in office -------------------------------------------------------------------------


def test_records_of_a_master_without_standbys_wait_for_nobody() -> None:
    commits = commits_with()
    assert commits.limit == ALL
    assert commits.propose() is None
    assert commits.voters_to_inform() == {}


def test_a_record_counts_when_the_standby_has_stored_it() -> None:
    commits = commits_with(B)
    assert commits.agreed.urls == (A, B)
    assert commits.limit == 10
    commits.standby_stored(B, 12)
    assert commits.limit == 12


def test_a_master_is_followed_until_a_standby_that_could_replace_it_is_lost() -> None:
    commits = commits_with(B, C)
    assert commits.is_followed
    commits.standby_lost(B)
    assert not commits.is_followed
    assert commits.propose() is not None
    commits.proposal_appended(11)
    commits.own_stored(11)
    for voter in ("w1", "w2"):
        assert not commits.is_followed
        commits.voter_stored(voter, (1, 2))
        commits.agree()
    assert commits.agreed.urls == (A, C)
    assert commits.is_followed


def test_a_new_standby_counts_from_its_proposal() -> None:
    commits = commits_with()
    commits.standby_stored(B, 10)
    assert commits.propose() is not None
    assert commits.is_followed
    commits.standby_lost(B)
    assert not commits.is_followed


def test_an_elected_master_is_followed_when_its_own_succession_is_agreed() -> None:
    commits = Commits(B, 2, [Succession(1, 1, (A, B), VOTERS)])
    assert not commits.is_followed


def test_without_the_standby_records_wait_until_a_majority_of_the_workers_agrees() -> None:
    commits = commits_with(B)
    commits.standby_lost(B)
    proposal = commits.propose()
    assert proposal is not None
    assert proposal.urls == (A,)
    commits.proposal_appended(11)
    commits.own_stored(11)
    assert commits.limit == 0
    assert set(commits.voters_to_inform()) == set(VOTERS)
    commits.voter_stored("w1", proposal.version)
    assert not commits.agree()
    commits.voter_stored("w2", proposal.version)
    assert commits.agree()
    assert commits.limit == ALL


def test_one_of_two_workers_is_no_majority() -> None:
    commits = commits_with(B, voters={"w1": "h:1", "w2": "h:2"})
    commits.standby_lost(B)
    proposal = commits.propose()
    assert proposal is not None
    commits.own_stored(11)
    commits.voter_stored("w1", proposal.version)
    assert not commits.agree()


def test_a_standby_joins_only_when_there_are_voters() -> None:
    commits = commits_with(B, voters={})
    assert commits.agreed.urls == (A,)
    commits.workers_changed({"w1": "h:1"})
    proposal = commits.propose()
    assert proposal is not None
    assert proposal.urls == (A, B)


def test_the_last_voters_stay_when_all_workers_are_gone() -> None:
    commits = commits_with(B)
    commits.workers_changed({})
    assert commits.propose() is None
    assert commits.agreed.voters == VOTERS


def test_an_elected_master_counts_nothing_before_its_first_succession_is_agreed() -> None:
    before = Succession(1, 3, (A, B), VOTERS)
    commits = Commits(B, 2, (before,))
    assert commits.limit == 0
    proposal = commits.propose()
    assert proposal == Succession(2, 0, (B,), VOTERS)
    commits.proposal_appended(1)
    commits.own_stored(1)
    assert not commits.agree()
    for voter in ("w1", "w3"):
        commits.voter_stored(voter, proposal.version)
    assert commits.agree()
    assert commits.took_office
    assert commits.limit == ALL


def test_a_proposal_that_the_master_could_lose_takes_no_effect() -> None:
    """Otherwise the standby could be elected, and the restarted master would not know of it."""
    commits = Commits(A, 1, ())
    commits.workers_changed(VOTERS)
    commits.standby_stored(B, 7)
    assert commits.propose() is not None
    commits.proposal_appended(7)
    commits.own_stored(6)
    assert not commits.agree()
    assert commits.voters_to_inform() == {}
    commits.own_stored(7)
    assert set(commits.voters_to_inform()) == set(VOTERS)
    assert commits.agree()


def test_late_answers_about_an_earlier_succession_do_not_count() -> None:
    commits = commits_with(B)
    old = commits.agreed.version
    commits.standby_lost(B)
    assert commits.propose() is not None
    for voter in VOTERS:
        commits.voter_stored(voter, old)
    assert not commits.agree()


# --- candidates -----------------------------------------------------------------------------------


def test_a_round_is_won_by_more_than_half_of_the_voters_of_each_succession() -> None:
    agreed, proposed = Succession(1, 1, (A, B), VOTERS), Succession(1, 2, (A, B), {"w4": "h:4"})
    current = Round(Ballot(2, B), (agreed, proposed), only_asks=False)
    assert set(current.voters) == {"w1", "w2", "w3", "w4"}
    for voter in ("w1", "w2"):
        current.answered(voter, VoterAnswer("", Ballot(2, B), ""))
    assert not current.is_won
    current.answered("w4", VoterAnswer("", Ballot(2, B), ""))
    assert current.is_won


def test_a_standby_that_was_only_proposed_is_not_elected() -> None:
    """Its master may have lost the proposal, and serve alone."""
    latest = (Succession(1, 1, (A,), VOTERS), Succession(1, 2, (A, B), VOTERS))
    current = Round(Ballot(2, B), latest, only_asks=True)
    for voter in VOTERS:
        current.answered(voter, VoterAnswer("", Ballot(1, A), ""))
    assert not current.is_won
    assert "not in the succession in effect" in current.tally()
    assert [may_run(url, latest) for url in (A, B)] == [True, False]


def test_a_round_is_over_when_all_have_answered() -> None:
    current = Round(Ballot(2, B), (Succession(1, 1, (A, B), VOTERS),), only_asks=True)
    for voter in VOTERS:
        assert not current.is_over
        current.answered(voter, VoterAnswer(f"this worker hears the master {A}", Ballot(1, A), A))
    assert current.is_over
    assert not current.is_won
    assert not current.elected
    assert "0 of 3 workers agree; 3 refused" in current.tally()


def test_a_voter_that_does_not_answer_has_granted_nothing() -> None:
    """The reason may be empty: it is the text of an error of the network."""
    current = Round(Ballot(2, B), (Succession(1, 1, (A, B), VOTERS),), only_asks=False)
    for voter in VOTERS:
        current.answered(voter, VoterAnswer("", NO_BALLOT, is_absent=True))
    assert current.is_over
    assert not current.is_won
    assert "0 of 3 workers agree; 3 refused: no answer" in current.tally()


def test_a_candidate_learns_of_the_master_that_was_elected_meanwhile() -> None:
    current = Round(Ballot(2, A), (Succession(1, 1, (A, B), VOTERS),), only_asks=True)
    current.answered("w1", VoterAnswer(f"this worker hears the master {B}", Ballot(2, B), B))
    assert current.elected == B


def test_a_succession_of_one_master_elects_nobody_else() -> None:
    assert contested(A, (Succession(1, 0, (A,), VOTERS),)) == []
    assert contested(A, (Succession(1, 0, (A, B), VOTERS),))
    assert contested(B, (Succession(1, 0, (A,), VOTERS),))


def test_a_standby_follows_no_master_of_an_earlier_epoch_than_its_own_journal() -> None:
    latest = (Succession(2, 0, (B,), VOTERS),)
    assert not may_follow(latest, 1)
    assert may_follow(latest, 2)
    assert may_follow((), 0)


# --- voters ---------------------------------------------------------------------------------------

KNOWN = Succession(3, 2, (A, B), VOTERS)


def test_a_worker_votes_for_a_standby_when_it_hears_no_master() -> None:
    voter = Voter(Ballot(3, A), KNOWN, KNOWN.urls)
    assert not voter.vote(Ballot(4, B), KNOWN, served_by="", only_asks=False)
    assert voter.promised == Ballot(4, B)
    assert voter.refusal(Ballot(3, A)).startswith(f"the master {B} was elected in epoch 4")
    assert voter.refusal(Ballot(4, A))
    assert not voter.refusal(Ballot(4, B))
    assert voter.urls == (B, A)


def test_asking_promises_nothing() -> None:
    voter = Voter(Ballot(3, A), KNOWN)
    assert not voter.vote(Ballot(4, B), KNOWN, served_by="", only_asks=True)
    assert voter.promised == Ballot(3, A)


def test_a_promise_is_not_given_before_it_is_stored() -> None:
    voter = Voter(Ballot(3, A), KNOWN)
    promises = Promises(Ballot(4, B), KNOWN, ())
    for _ in range(2):  # the first attempt to store it has failed: the disk is full
        assert not voter.vote(Ballot(4, B), KNOWN, served_by="", only_asks=False)
        assert voter.unstored == promises
    voter.stored(promises)
    assert not voter.vote(Ballot(4, B), KNOWN, served_by="", only_asks=False)
    assert voter.unstored is None


def test_a_worker_that_promised_something_leaves_the_other_master() -> None:
    voter = Voter(Ballot(3, A), KNOWN)
    assert not voter.must_leave(Ballot(3, A))
    assert voter.must_leave(Ballot(3, B))
    assert voter.must_leave(Ballot(2, A))  # messages of its earlier life may still arrive
    assert voter.must_leave(NO_BALLOT)
    assert not Voter().must_leave(Ballot(3, A))


def test_a_worker_promises_nothing_to_a_master_without_standbys() -> None:
    voter = Voter()
    assert not voter.meet(Ballot(3, A))
    assert voter.unstored is None
    voter = Voter(Ballot(3, A), KNOWN)
    assert not voter.meet(Ballot(4, A))
    assert voter.promised == Ballot(4, A)
    assert voter.meet(Ballot(3, A))


def test_a_client_knows_a_master_that_was_replaced() -> None:
    assert was_replaced(Ballot(1, A), Ballot(2, B))
    assert not was_replaced(Ballot(2, B), Ballot(1, A))
    assert not was_replaced(Ballot(1, A), Ballot(2, A))  # it has lost its journal


@pytest.mark.parametrize(
    "ballot, latest, served_by, reason",
    [
        (Ballot(4, B), KNOWN, A, "hears the master"),
        (Ballot(4, C), KNOWN, "", "is not in the succession"),
        (Ballot(4, B), KNOWN._replace(number=1), "", "does not know the latest succession"),
        (Ballot(3, B), KNOWN, "", "epoch 3 has already had a master"),
    ],
)
def test_a_vote_is_refused(ballot: Ballot, latest: Succession, served_by: str, reason: str) -> None:
    voter = Voter(Ballot(3, A), KNOWN)
    assert reason in voter.vote(ballot, latest, served_by=served_by, only_asks=False)
    assert voter.promised == Ballot(3, A)


def test_an_earlier_master_can_name_no_succession() -> None:
    voter = Voter(Ballot(4, B), KNOWN)
    assert voter.name(KNOWN._replace(number=9, urls=(A,)))
    assert voter.known == KNOWN


def test_a_late_succession_does_not_replace_a_later_one() -> None:
    voter = Voter(Ballot(3, A), KNOWN)
    assert not voter.name(KNOWN._replace(number=1))
    assert voter.known == KNOWN


def test_a_promoted_master_is_obeyed_after_promises_to_others() -> None:
    voter = Voter(Ballot(3, A), KNOWN)
    for epoch in (4, 5, 900):
        assert not voter.vote(Ballot(epoch, A), KNOWN, served_by="", only_asks=False)
    assert voter.refusal(Ballot(4, B))
    assert not voter.refusal(Ballot(promoted_epoch(3), B))
    assert promoted_epoch(promoted_epoch(3)) > promoted_epoch(3) + 900


def test_a_worker_remembers_masters_that_were_struck_off() -> None:
    voter = Voter()
    assert not voter.name(KNOWN)
    assert not voter.name(KNOWN._replace(number=3, urls=(A,)))
    assert voter.urls == (A, B)


# --- all of them, with every fault ----------------------------------------------------------------


class Host:
    """A master's host: its journal, and the master that runs there, if one does."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.journal: list[tuple[str, object]] = []  # "record" or "succession", and its value
        self.commits: Commits | None = None
        self.follows: Host | None = None
        self.is_copied = False
        self.pending: list[tuple[int, tuple[str, object]]] = []  # sent by the master, not received

    @property
    def latest(self) -> tuple[Succession, ...]:
        found: tuple[Succession, ...] = ()
        for kind, value in self.journal:
            if kind == "proposed" and isinstance(value, Succession):
                found = (*found, value)
            elif kind == "agreed" and isinstance(value, Succession):
                found = (value,)
        return found


class World:
    """Masters, voters and the messages between them. Any message may be lost or late, any host may
    crash, and voters may hear a master or not: safety must not depend on time.
    """

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.hosts = {url: Host(url) for url in (A, B, C)}
        self.voters = {name: Voter() for name in VOTERS}
        self.released: list[object] = []
        self.records = 0
        self.loss = self.chance.choice((0.0, 0.1, 0.4))
        self._serve(self.hosts[A], 1, ())

    # --- masters ----------------------------------------------------------------------------------

    def _append(self, host: Host, kind: str, value: object) -> int:
        host.journal.append((kind, value))
        for other in self.hosts.values():
            if other.follows is host:
                other.pending.append((len(host.journal), (kind, value)))
        return len(host.journal)

    def _serve(self, host: Host, epoch: int, before: Sequence[Succession]) -> None:
        host.commits = Commits(host.url, epoch, before)
        host.follows = None
        host.pending.clear()
        host.commits.workers_changed(VOTERS)
        self.step(host)

    def step(self, host: Host) -> None:
        commits = host.commits
        assert commits is not None
        while True:
            commits.own_stored(len(host.journal))
            if commits.agree():
                self._append(host, "agreed", commits.agreed)
                records = [value for kind, value in host.journal if kind == "record"]
                if commits.agreed.number == 0:  # it takes office, and must know what has counted
                    assert records[: len(self.released)] == self.released
            before = commits.agreed
            proposal = commits.propose()
            if proposal is None:
                break
            if not host.latest:
                self._append(host, "agreed", before)
            commits.proposal_appended(self._append(host, "proposed", proposal))
        self._release(host)

    def _release(self, host: Host) -> None:
        assert host.commits is not None
        counted = host.journal[: min(len(host.journal), host.commits.limit)]
        records = [value for kind, value in counted if kind == "record"]
        common = min(len(records), len(self.released))
        assert records[:common] == self.released[:common], "two masters disagree about the past"
        self.released += records[common:]

    # --- events -----------------------------------------------------------------------------------

    def masters(self) -> list[Host]:
        return [host for host in self.hosts.values() if host.commits is not None]

    def is_lost(self) -> bool:
        return self.chance.random() < self.loss

    def work(self) -> None:
        for host in self.masters():
            self.records += 1
            self._append(host, "record", self.records)
            self.step(host)

    def name(self) -> None:
        for host in self.masters():
            commits = host.commits
            assert commits is not None
            latest = commits.proposed or commits.agreed
            for voter in commits.voters_to_inform():
                if self.is_lost():
                    continue
                reason = self.voters[voter].name(latest)
                if not reason and not self.is_lost():
                    commits.voter_stored(voter, latest.version)
            self.step(host)

    def connect(self) -> None:
        standby = self.chance.choice(list(self.hosts.values()))
        masters = [host for host in self.masters() if host is not standby]
        if standby.commits is None and masters and standby.follows is None:
            master = self.chance.choice(masters)
            assert master.commits is not None
            if not may_follow(standby.latest, master.commits.epoch):
                return
            standby.follows = master
            standby.journal = list(standby.follows.journal)
            standby.pending.clear()
            standby.is_copied = True
            self._confirm(standby)

    def _confirm(self, standby: Host) -> None:
        master = standby.follows
        if master is not None and master.commits is not None and not self.is_lost():
            master.commits.standby_stored(standby.url, len(standby.journal))
            self.step(master)

    def deliver(self) -> None:
        for standby in self.hosts.values():
            if standby.follows is not None and standby.pending and not self.is_lost():
                _, entry = standby.pending.pop(0)
                standby.journal.append(entry)
                self._confirm(standby)

    def disconnect(self) -> None:
        standby = self.chance.choice(list(self.hosts.values()))
        master = standby.follows
        if master is not None:
            standby.follows = None
            standby.pending.clear()
            if master.commits is not None:
                master.commits.standby_lost(standby.url)
                self.step(master)

    def crash(self) -> None:
        host = self.chance.choice(list(self.hosts.values()))
        for other in self.hosts.values():
            if other.follows is host:
                other.follows = None
                other.pending.clear()
        if host.follows is not None and host.follows.commits is not None:
            host.follows.commits.standby_lost(host.url)
        host.follows, host.commits = None, None

    def run_for_master(self) -> None:
        host = self.chance.choice(list(self.hosts.values()))
        if host.commits is not None or not host.latest or host.follows is not None:
            return
        latest = host.latest
        seen = max(item.epoch for item in latest)
        for only_asks in (True, False):
            ballot = Ballot(seen + 1, host.url)
            current = Round(ballot, latest, only_asks=only_asks)
            for name in current.voters:
                voter = self.voters[name]
                if self.is_lost():
                    continue
                served_by = self.chance.choice(("", "", "", A, B, C))
                reason = voter.vote(
                    ballot, current.latest, served_by=served_by, only_asks=only_asks
                )
                seen = max(seen, voter.promised.epoch - 1 if only_asks else seen)
                if not self.is_lost():
                    current.answered(name, VoterAnswer(reason, voter.promised, served_by))
            if not current.is_won:
                return
        self._serve(host, ballot.epoch, latest)

    def run(self, steps: int) -> None:
        events = (
            [self.work] * 4 + [self.name] * 4 + [self.deliver] * 6 + [self.connect] * 3
            + [self.disconnect, self.crash] + [self.run_for_master] * 3
        )  # fmt: skip
        for _ in range(steps):
            self.chance.choice(events)()


@pytest.mark.parametrize("first", range(0, 400, 100))
def test_no_record_that_counted_is_unknown_to_a_later_master(first: int) -> None:
    released = elected = 0
    for seed in range(first, first + 100):
        world = World(seed)
        world.run(300)
        released += len(world.released)
        elected += max(voter.promised.epoch for voter in world.voters.values())
    assert released > 1000  # otherwise the runs show nothing
    assert elected > 200


@pytest.mark.parametrize(
    "promised, is_obeyed",
    [
        (NO_BALLOT, True),
        (Ballot(4, B), True),
        (Ballot(5, A), True),
        (Ballot(5, B), False),
        (Ballot(6, A), False),
    ],
)
def test_a_master_runs_again_if_a_joining_worker_does_not_obey_it(
    promised: Ballot, is_obeyed: bool
) -> None:
    leadership = Leadership(Commits(A, 5, ()), NullJournal(), is_recorded=False)
    assert leadership.worker_promised(promised) == ([] if is_obeyed else [RunAgain(promised)])
