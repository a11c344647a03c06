"""A host of a simulation on which a master or a standby runs, and what an administrator does there.

The disk outlives the processes. `cli.daemons` decides in the same way what a process becomes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ciel.core.events import MasterStarted, Message, SuccessionChanged, TaskReported
from ciel.core.masters import Ballot, Succession
from ciel.master.state import invariants
from ciel.master.state.machine import MasterMachine
from ciel.master.succession.candidacy import contested, may_run
from ciel.master.succession.commits import Commits
from ciel.master.succession.leadership import FollowedJournal, Leadership
from ciel.testing.simulator.disk import FakeDisk, FakeJournal
from ciel.testing.simulator.fake_master import FakeMaster
from ciel.testing.simulator.fake_worker import FakeWorker
from ciel.testing.simulator.masters.candidates import FakeCandidate, FakeStandby, Restored
from ciel.testing.simulator.masters.standbys import FakeStandbys
from ciel.testing.simulator.witness import Violation
from ciel.testing.simulator.world import Connection, World

TAKEOVER_RETURN_S = 2.0
"""As in `cli.daemons.standby`."""


class MasterHost:
    """One host. `url`: of its master; it is also the name of the host."""

    def __init__(
        self,
        world: World[FakeWorker],
        url: str,
        new_machine: Callable[[], MasterMachine],
        dial: Callable[[MasterHost, Sequence[Succession]], Connection | None],
        depose: Callable[[], object],
        serves: Callable[[FakeMaster, Restored], object],
    ) -> None:
        """`dial` returns a connection to a master that a standby here may follow. `depose` is
        called before a master starts to serve, and `serves` with that master.
        """
        self.url = url
        self.process: FakeMaster | FakeStandby | FakeCandidate | None = None
        self.standbys: FakeStandbys | None = None
        """The part of the master that serves its standbys, if a master runs here."""
        self.disk = FakeDisk()
        self._later_than = 0  # an epoch that a worker has promised
        self._world = world
        self._new_machine = new_machine
        self._dial = dial
        self._depose = depose
        self._serves = serves

    @property
    def is_serving(self) -> bool:
        """Whether a master runs here."""
        return isinstance(self.process, FakeMaster) and not self.process.is_dead

    @property
    def master(self) -> FakeMaster:
        """The master that runs here."""
        assert isinstance(self.process, FakeMaster)
        return self.process

    @property
    def answers(self) -> bool:
        """Whether a new connection to this host finds a master."""
        return self.is_serving and self.process is not None and not self.process.is_frozen

    # --- starts -----------------------------------------------------------------------------------

    def start_master(self) -> None:
        """Start a master with the journal on the disk, if there is one.

        It asks the workers first if another master could be elected by what it knows. Raises
        DamagedJournalError.
        """
        journal = FakeJournal(self._world, self.disk, is_open=False)
        restored = Restored(journal, self._new_machine())
        restored.restore()
        self._world.note(self.url, f"has read {len(restored.records)} records")
        restoration = restored.restoration
        restoration.epoch = max(restoration.epoch, self._later_than)
        if contested(self.url, restoration.latest):
            if not may_run(self.url, restoration.latest):
                self._fails("it may not serve with a copy")
                return
            self.process = FakeCandidate(
                self._world, self.url, restored, self._run_again_won, self._lost
            )
            return
        restoration.finish(self._world.timeline.now_s)
        self._serve(restored, restoration.epoch + 1, ())

    def _run_again_won(self, restored: Restored, epoch: int) -> None:
        assert self.process is not None
        self.process.is_dead = True
        now_s = self._world.timeline.now_s
        restored.restoration.finish(now_s)
        self._serve(restored, epoch, restored.restoration.latest)

    def start_standby(self) -> None:
        """Start a standby, with the copy on the disk, if there is one."""
        self.process = FakeStandby(
            self._world, self.url, self.disk, self._new_machine,
            lambda latest: self._dial(self, latest), self._take_over,
        )  # fmt: skip

    def _take_over(self, restored: Restored, epoch: int) -> None:
        now_s = self._world.timeline.now_s
        latest = restored.restoration.latest
        restored.restoration.finish(now_s, TAKEOVER_RETURN_S)
        self._serve(restored, epoch, latest)

    def _lost(self, elected: str) -> None:
        self._fails(f"{elected} was elected while it was away")

    def _fails(self, reason: str) -> None:
        """End with an error; an administrator starts a standby here."""
        self._world.note(self.url, f"ends: {reason}")
        if self.process is not None:
            self.process.is_dead = True
        delay_s = self._world.mean(self._world.options.master_restart_mean_s)
        self._world.timeline.after(delay_s, self._restart_if_down, True)

    def _restart_if_down(self, as_standby: bool) -> None:
        if self.process is None or self.process.is_dead:
            self.restart(as_standby=as_standby)

    def restart(self, *, as_standby: bool) -> None:
        """Start again after the end of a process.

        A standby does not replace the journal of a master that has had no standbys: then a master
        starts, and a standby with an empty directory if the journal is an unfinished copy.
        """
        if as_standby and not self._has_succession():
            as_standby = isinstance(self.process, FakeStandby)
            self.disk.files = [] if as_standby else self.disk.files
        if as_standby:
            self.start_standby()
        else:
            self.start_master()

    def _has_succession(self) -> bool:
        records = [record for group in self.disk.groups() for record in group.records]
        return any(isinstance(record, SuccessionChanged) for record in records)

    def _serve(self, restored: Restored, epoch: int, before: Sequence[Succession]) -> None:
        world, machine, journal = self._world, restored.machine, restored.journal
        assert not restored.restoration.skipped, restored.restoration.skipped[:3]
        ballot = Ballot(epoch, self.url)
        records = world.chronicle.whole(restored.records)
        is_latest = ballot >= world.chronicle.last  # else a later one was elected meanwhile
        if is_latest:
            self._depose()
            world.witness.master_restarted(machine, _done_in(records))
        world.note(self.url, f"serves in epoch {epoch} with {len(machine.jobs)} jobs")
        ledger = world.chronicle.serves(ballot, records, journal.appended)
        for subject, text in invariants.problems(machine):
            if subject not in machine.context.touched:  # else the first tick may end this job
                raise Violation(subject, f"after the restart, {text}")
        commits = Commits(self.url, epoch, before)
        followed = FollowedJournal(journal, commits)
        leadership = Leadership(commits, journal, is_recorded=bool(before))
        journal.followers.append(ledger.appended)
        journal.append([MasterStarted(epoch, "simulated")])
        master = self.process = FakeMaster(world, machine, journal, followed, ballot)
        self.standbys = FakeStandbys(
            world, master, journal, followed, leadership, ledger, self._run_again
        )
        if is_latest:
            self._serves(master, restored)
        else:
            master.depose()
        self.standbys.begin()

    def _run_again(self, promised: Ballot) -> None:
        """End, since a worker obeys another master, and start again in a later epoch."""
        self._later_than = promised.epoch
        self._world.note(self.url, "restarts: a worker obeys another master")
        self.die(silently=False)
        delay_s = self._world.mean(self._world.options.master_restart_mean_s)
        self._world.timeline.after(delay_s, self._restart_if_down, False)

    # --- faults -----------------------------------------------------------------------------------

    def die(self, *, silently: bool) -> None:
        """End the process that runs here."""
        assert self.process is not None
        if self.standbys is not None and self.is_serving:
            self.standbys.leadership.end()
        self.process.die(silently=silently)


def _done_in(records: Sequence[Message]) -> set[tuple[str, int]]:
    """Return the attempts that succeeded, as records say."""
    return {
        (record.task, record.attempt)
        for record in records
        if isinstance(record, TaskReported) and record.fault is None
    }
