"""The part of a simulated master that serves its standbys and voters, like `master.standbys`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ciel.core.events import Heartbeat, JournalCopied, JournalStored, Message
from ciel.core.masters import Ballot
from ciel.master.succession.candidacy import VoterAnswer
from ciel.master.succession.feed import Feed
from ciel.master.succession.leadership import (
    BEAT_INTERVAL_S,
    AnnounceMasters,
    FollowedJournal,
    Leadership,
    NameSuccession,
    Order,
    RunAgain,
)
from ciel.testing.simulator.disk import FakeJournal
from ciel.testing.simulator.fake_master import FakeMaster
from ciel.testing.simulator.fake_worker import FakeWorker
from ciel.testing.simulator.masters.chronicle import Ledger
from ciel.testing.simulator.masters.voters import FakeVoters
from ciel.testing.simulator.world import MASTER, Connection, Line, StandbyHello, World
from ciel.wire import messages


class FakeFollower:
    """The connection of one standby."""

    def __init__(self, world: World[FakeWorker], line: Line, url: str) -> None:
        self.line = line
        self.url = url
        self.heard_at_s = world.timeline.now_s
        self.feed = Feed()
        self.is_gone = False

    def send(self, messages: list[Message]) -> None:
        for message in messages:
            self.line.send(message)


class FakeStandbys:
    """Serves the standbys of one master until it ends."""

    def __init__(
        self,
        world: World[FakeWorker],
        master: FakeMaster,
        journal: FakeJournal,
        followed: FollowedJournal,
        leadership: Leadership,
        ledger: Ledger,
        run_again: Callable[[Ballot], object],
    ) -> None:
        """`run_again` is called when a worker obeys another master."""
        self.leadership = leadership
        self._world = world
        self._master = master
        self._journal = journal
        self._followed = followed
        self._ledger = ledger
        self._run_again = run_again
        self._has_office = False
        self._voters = FakeVoters(world, master, master.ballot.url)
        self._followers: dict[str, FakeFollower] = {}  # by URL
        journal.followers.append(self._appended)
        journal.on_durable = lambda: master._live(self._journal_durable)
        master.on_workers_changed = self._workers_changed
        master.admits = self._admits
        master._after(BEAT_INTERVAL_S, self._beat)

    def begin(self) -> None:
        """Take office, if this master was elected."""
        self._step()

    # --- connections ------------------------------------------------------------------------------

    def accept(self, connection: Connection) -> None:
        """Serve a standby, which first says its URL."""
        world, master = self._world, self._master
        line = Line(connection, MASTER, messages.TO_STANDBY, world.options.through_wire)

        def receive(message: Message | StandbyHello) -> None:
            if isinstance(message, StandbyHello):
                self._opened(line, message.url)
                return
            follower = self._followers.get(connection.name)
            if follower is None or follower.line is not line:
                return
            follower.heard_at_s = world.timeline.now_s
            if isinstance(message, JournalStored):
                self.leadership.standby_stored(follower.url, message.number)
                self._step()

        def hear_end() -> None:
            follower = self._followers.get(connection.name)
            if follower is not None and follower.line is line:
                self._remove(follower)
                self._step()

        connection.attach(
            MASTER,
            lambda message: master._live(receive, message),
            lambda: master._live(hear_end),
        )
        master.connections.append(connection)

    def _opened(self, line: Line, url: str) -> None:
        if (before := self._followers.get(url)) is not None:
            before.line.connection.close(MASTER)
            self._remove(before)
        follower = self._followers[url] = FakeFollower(self._world, line, url)
        self.leadership.copy_begins()
        self._journal.begin_file(
            lambda content, last: self._master._live(self._begun, follower, content, last)
        )

    def _begun(self, follower: FakeFollower, content: bytes, last: int) -> None:
        """Send the copy in two parts; what is appended meanwhile waits."""
        if not follower.is_gone:
            middle = len(content) // 2
            follower.feed.chose_files(last)
            follower.line.send(JournalCopied(content[:middle]))
            delay_s = self._world.latency_s()
            self._master._after(delay_s, self._end_copy, follower, content[middle:])

    def _end_copy(self, follower: FakeFollower, content: bytes) -> None:
        if not follower.is_gone:
            follower.line.send(JournalCopied(content))
            follower.send(follower.feed.sent_files())

    def _remove(self, follower: FakeFollower) -> None:
        follower.is_gone = True
        del self._followers[follower.url]
        self.leadership.standby_lost(follower.url)

    def _appended(self, number: int, frames: bytes) -> None:
        for follower in self._followers.values():
            follower.send(follower.feed.appended(number, frames))

    # --- the succession ---------------------------------------------------------------------------

    def _admits(self, promised: Ballot) -> bool:
        orders = self.leadership.worker_promised(promised)
        if orders:
            self._carry_out(orders)
        return not orders

    def _workers_changed(self) -> None:
        self.leadership.workers_changed(self._master.voters())
        self._step()

    def _journal_durable(self) -> None:
        if self.leadership.awaits_journal:
            self._step()
        else:
            self._release()

    def _step(self) -> None:
        self._carry_out(self.leadership.step())

    def _carry_out(self, orders: list[Order]) -> None:
        if self._master.is_dead:
            return
        for order in orders:
            match order:
                case AnnounceMasters(urls):
                    self._master.name_masters(urls)
                case NameSuccession(voter, netloc, succession):
                    done = partial(self._named, order)
                    self._voters.name(voter, netloc, succession, done)
                case RunAgain(promised):
                    self._run_again(promised)
                    return
        self._release()

    def _named(self, order: NameSuccession, answer: VoterAnswer) -> None:
        self._carry_out(self.leadership.voter_answered(order, answer))

    def _release(self) -> None:
        if self.leadership.commits.took_office and not self._has_office:
            self._has_office = True
            self._ledger.takes_office()
        if self._has_office:
            self._ledger.durable(self._followed.durable)
        self._master.journal_durable()

    def _beat(self) -> None:
        now_s = self._world.timeline.now_s
        for follower in list(self._followers.values()):
            follower.line.send(Heartbeat())
            if self.leadership.is_gone(follower.url, now_s - follower.heard_at_s):
                follower.line.connection.close(MASTER)
                self._remove(follower)
        if self.leadership.must_beat:
            self._master.beat()
        self._step()
        self._master._after(BEAT_INTERVAL_S, self._beat)

    @property
    def urls(self) -> tuple[str, ...]:
        """The URLs of the masters that may be elected, as the master has told clients."""
        commits = self.leadership.commits
        return tuple(url for url in commits.agreed.urls if self.leadership.can_take_over(url))
