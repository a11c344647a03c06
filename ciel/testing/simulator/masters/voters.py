"""Questions of simulated masters and candidates to the workers that vote.

A question may get lost, and so may its answer: then the worker has promised something that the
candidate does not know.
"""

from __future__ import annotations

from collections.abc import Callable

from ciel.core.masters import NO_BALLOT, SILENT_S, Ballot, Succession
from ciel.master.succession.candidacy import VoterAnswer
from ciel.testing.simulator.fake_worker import FakeWorker
from ciel.testing.simulator.masters.voter import FakeVoter
from ciel.testing.simulator.world import Process, World

ANSWER_S = 1.0
"""A voter that does not answer within this time counts as absent, as in `master.voters`."""


Act = Callable[[FakeVoter], str]


class FakeVoters:
    """Asks workers over the network, for a master or a candidate."""

    def __init__(self, world: World[FakeWorker], owner: Process, host: str) -> None:
        self._world = world
        self._owner = owner
        self._host = host

    def name(
        self, voter: str, netloc: str, succession: Succession, done: Callable[[VoterAnswer], object]
    ) -> None:
        """Have a worker store a succession."""
        self._ask(voter, netloc, lambda it: it.name_succession(succession), done)

    def vote(
        self, voter: str, netloc: str, ballot: Ballot, latest: Succession, *, only_asks: bool,
        done: Callable[[VoterAnswer], object],
    ) -> None:  # fmt: skip
        """Ask whether a worker would vote for a candidate, or request its vote."""
        self._ask(voter, netloc, lambda it: it.vote(ballot, latest, only_asks=only_asks), done)

    def _ask(
        self, voter: str, netloc: str, act: Act, done: Callable[[VoterAnswer], object]
    ) -> None:
        is_answered = False

        def finish(answer: VoterAnswer) -> None:
            nonlocal is_answered
            if not is_answered:
                is_answered = True
                done(answer)

        def arrive(answer: VoterAnswer) -> None:
            self._owner._live(finish, answer)

        timeline, absent = self._world.timeline, VoterAnswer("", NO_BALLOT, is_absent=True)
        timeline.after(ANSWER_S, arrive, absent)
        timeline.after(self._world.latency_s(), self._arrived, voter, netloc, act, arrive)

    def _arrived(
        self, voter: str, netloc: str, act: Act, arrive: Callable[[VoterAnswer], None]
    ) -> None:
        worker = self._world.serving.get(netloc)
        if worker is not None and not self._is_lost(worker.facts.id):
            worker._live(self._answer, worker, voter, act, arrive)

    def _answer(
        self, worker: FakeWorker, voter: str, act: Act, arrive: Callable[[VoterAnswer], None]
    ) -> None:
        found = worker.voter
        if found is None or found.name != voter:
            return
        try:
            reason = act(found)
        except OSError:
            return  # a real worker answers with an error, and counts as absent
        self._world.note(found.name, f"answers {self._host}: {reason or 'yes'}")
        answer = VoterAnswer(reason, found.state.promised, found.hears(SILENT_S))
        if not self._is_lost(worker.facts.id):
            self._world.timeline.after(self._world.latency_s(), arrive, answer)

    def _is_lost(self, worker_id: str) -> bool:
        share = self._world.options.vote_loss_share
        if self._world.are_apart(self._host, worker_id):
            return True
        return self._world.has_fault(share, f"a message between {self._host} and {worker_id}")
