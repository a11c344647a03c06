"""Simulated processes that are to be elected: standbys, and masters that had standbys.

The decisions are those of `master.succession`; the edges are those of `master.following`,
`master.election` and `cli.daemons.standby`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from ciel.core.events import HEARTBEAT_INTERVAL_S, LOST_AFTER_S, Heartbeat, Message
from ciel.core.masters import SILENT_S, Succession
from ciel.master.state.machine import MasterMachine
from ciel.master.succession.campaign import AskVoters, Campaign, Defeated, Elected, Step
from ciel.master.succession.candidacy import Round, VoterAnswer
from ciel.master.succession.copying import AdoptCopy, Copy, Copying, WriteCopy
from ciel.testing.simulator.compacting import compact_at_times
from ciel.testing.simulator.disk import FakeDisk, FakeJournal
from ciel.testing.simulator.fake_worker import FakeWorker
from ciel.testing.simulator.masters.voters import FakeVoters
from ciel.testing.simulator.world import PEER, Connection, Line, Process, StandbyHello, World
from ciel.wire import messages

CHECK_INTERVAL_S = 0.1


class Restored(Copy):
    """A master that was restored from a journal, with all records of that journal."""

    def __init__(self, journal: FakeJournal, machine: MasterMachine) -> None:
        super().__init__(journal, machine)
        self.journal = journal
        self.records: list[Message] = []

    def apply(self, records: Sequence[Message], time_s: float) -> None:
        self.records += records
        super().apply(records, time_s)


class FakeElection:
    """Runs the campaign of a process, until it is won or the process ends."""

    def __init__(
        self,
        world: World[FakeWorker],
        process: Process,
        url: str,
        latest: Callable[[], Sequence[Succession]],
        is_due: Callable[[], bool],
        won: Callable[[int], object],
        lost: Callable[[Round], object],
        known_epoch: Callable[[], int],
    ) -> None:
        self._world = world
        self._process = process
        self._latest = latest
        self._is_due = is_due
        self._won = won
        self._lost = lost
        self._voters = FakeVoters(world, process, url)
        self._campaign = Campaign(url, world.chance.random, known_epoch)
        process._after(CHECK_INTERVAL_S, self._check)

    def check(self) -> None:
        """Run now if that is due."""
        now_s = self._world.timeline.now_s
        self._carry_out(self._campaign.check(now_s, self._latest(), is_due=self._is_due()))

    def _check(self) -> None:
        self.check()
        self._process._after(CHECK_INTERVAL_S, self._check)

    def _carry_out(self, steps: list[Step]) -> None:
        for step in steps:
            match step:
                case AskVoters(current):
                    for voter, netloc in current.voters.items():
                        self._voters.vote(
                            voter, netloc, current.ballot, current.latest,
                            only_asks=current.only_asks,
                            done=partial(self._answered, current, voter),
                        )  # fmt: skip
                case Defeated(current):
                    self._lost(current)
                case Elected(epoch):
                    self._won(epoch)

    def _answered(self, current: Round, voter: str, answer: VoterAnswer) -> None:
        now_s = self._world.timeline.now_s
        steps = self._campaign.answered(
            current, voter, answer, now_s, self._latest(), is_due=self._is_due()
        )
        self._carry_out(steps)


class FakeCandidate(Process):
    """A master that has started again, and asks the workers whether it may serve."""

    def __init__(
        self, world: World[FakeWorker], url: str, restored: Restored,
        won: Callable[[Restored, int], object], lost: Callable[[str], object],
    ) -> None:  # fmt: skip
        """`lost` is called with the URL of another master that was elected."""
        super().__init__(world)
        self._election = FakeElection(
            world, self, url, lambda: restored.restoration.latest, lambda: True,
            lambda epoch: won(restored, epoch),
            lambda round_: lost(round_.elected) if round_.elected else None,
            lambda: restored.restoration.epoch,
        )  # fmt: skip

    def die(self, *, silently: bool) -> None:
        """End the process, which has no connections."""
        self.is_dead = True


class FakeStandby(Process):
    """A standby: it follows a master's journal, and runs when that master is silent."""

    def __init__(
        self,
        world: World[FakeWorker],
        url: str,
        disk: FakeDisk,
        new_machine: Callable[[], MasterMachine],
        dial: Callable[[Sequence[Succession]], Connection | None],
        won: Callable[[Restored, int], object],
    ) -> None:
        """`dial` returns a connection to a master that may be followed, or None."""
        super().__init__(world)
        self.copying = Copying()
        self._url = url
        self._disk = disk
        self._new_machine = new_machine
        self._dial = dial
        self._won = won
        self.connection: Connection | None = None
        self._heard_at_s = 0.0
        self._content: list[bytes] = []  # of the copy that is being received
        if disk.files:
            self._take(self._restore())
        self._election = FakeElection(
            world, self, url, lambda: self.copying.latest, lambda: self.master_is_silent,
            self._elected, lambda round_: None, lambda: self.copying.epoch,
        )  # fmt: skip
        self._connect()
        self._after(HEARTBEAT_INTERVAL_S, self._beat)

    def die(self, *, silently: bool) -> None:
        """End the process. If `silently`, its host does not answer any more."""
        self.is_dead = True
        if self._restored is not None:
            self._restored.journal.die()
        if self.connection is not None:
            if silently:
                self.connection.cut(silently=True)
            else:
                self.connection.close(PEER)

    @property
    def _restored(self) -> Restored | None:
        copy = self.copying.copy
        assert copy is None or isinstance(copy, Restored)
        return copy

    def _restore(self) -> Restored:
        journal = FakeJournal(self._world, self._disk, is_open=False)
        restored = Restored(journal, self._new_machine())
        restored.restore()
        return restored

    def _take(self, restored: Restored) -> None:
        self.copying.copy = restored
        restored.journal.on_durable = lambda: self._live(self._confirm)
        compact_at_times(self._world, self, restored.journal)

    # --- the connection ---------------------------------------------------------------------------

    @property
    def master_is_silent(self) -> bool:
        """Whether no master is connected, or it has sent nothing for a while."""
        return self.connection is None or self._now_s - self._heard_at_s >= SILENT_S

    def _connect(self) -> None:
        connection = self._dial(self.copying.latest)
        if connection is None:
            self._connect_later()
            return
        if not self.copying.opened(connection.master.epoch):
            connection.close(PEER)
            self._connect_later()
            return
        self.connection = connection
        self._heard_at_s = self._now_s
        self._content = []
        connection.attach(
            PEER,
            lambda message: self._live(self._said, connection, message),
            lambda: self._live(self._lost, connection),
        )
        connection.send(PEER, StandbyHello(self._url))

    def _connect_later(self) -> None:
        self._after(self._world.mean(self._world.options.reconnect_mean_s), self._connect)

    def _lost(self, connection: Connection) -> None:
        if connection is self.connection:
            connection.close(PEER)
            self.connection = None
            self.copying.closed()
            self._connect_later()
            self._election.check()

    def _beat(self) -> None:
        if self.connection is not None:
            if self._now_s - self._heard_at_s > LOST_AFTER_S:
                self._lost(self.connection)
            else:
                self._send(Heartbeat())
        self._after(HEARTBEAT_INTERVAL_S, self._beat)

    def _send(self, message: Message) -> None:
        if self.connection is not None:
            is_coded = self._world.options.through_wire
            Line(self.connection, PEER, messages.FROM_STANDBY, is_coded).send(message)

    # --- the copy ---------------------------------------------------------------------------------

    def _said(self, connection: Connection, message: Message) -> None:
        if connection is not self.connection:
            return
        self._heard_at_s = self._now_s
        match self.copying.said(message, self._now_s):
            case WriteCopy(content):
                self._content.append(content)
            case AdoptCopy(number):
                self._adopt(number)
        self._confirm()

    def _adopt(self, number: int) -> None:
        if self._restored is not None:
            self._restored.journal.close()
        self._disk.adopt_copy(b"".join(self._content))
        restored = self._restore()
        confirmation = self.copying.adopted(restored, number)
        self._take(restored)
        self._send(confirmation)

    def _confirm(self) -> None:
        if (confirmation := self.copying.confirmation()) is not None:
            self._send(confirmation)

    def _elected(self, epoch: int) -> None:
        """End, and let a master go on with the copy."""
        restored = self._restored
        assert restored is not None
        self.is_dead = True
        if self.connection is not None:
            self.connection.close(PEER)
        self._won(restored, epoch)
