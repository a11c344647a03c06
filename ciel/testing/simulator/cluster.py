"""The parties of a simulation: a master, its workers and clients, and who reaches whom.

The disk outlives the masters that write their journals on it, and each worker's place outlives the
workers. `master` is the one that has started last; it may be dead. A master that follows another
one would have a disk of its own, and be a further party here.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from random import Random

from ciel.core.ids import ObjectId
from ciel.master.state.machine import MasterMachine
from ciel.master.state.workers import WorkerFacts
from ciel.testing.simulator import fake_master
from ciel.testing.simulator.disk import FakeDisk, FakeJournal
from ciel.testing.simulator.fake_client import FakeClient
from ciel.testing.simulator.fake_master import FakeMaster
from ciel.testing.simulator.fake_worker import FakeWorker
from ciel.testing.simulator.invariants import check_worker
from ciel.testing.simulator.options import Options
from ciel.testing.simulator.session_client import SessionClient
from ciel.testing.simulator.workloads import EXECUTOR, draw_plan
from ciel.testing.simulator.world import PEER, Connection, World


class Cluster:
    """All parties, and the world between them."""

    def __init__(
        self,
        seed: int,
        options: Options,
        make_master: Callable[..., MasterMachine],
        without: Set[int],
    ) -> None:
        self.options = options
        self.chance = Random(seed)
        self.world: World[FakeWorker] = World(options, self.chance, check_worker, without)
        self.disk = FakeDisk()
        self._make_master = make_master
        journal = FakeJournal(self.world, self.disk) if options.journal else None
        self.master = FakeMaster(self.world, self._new_machine(), journal)
        self.workers: list[FakeWorker] = []
        self.clients: list[FakeClient] = []
        self._lives = 0
        self._stale: list[Connection] = []  # of a dead master, whose peers have not noticed it
        for place in range(options.workers):
            self.workers.append(self._start_worker(place, 9000 + place, {}, f"spool{place}"))
        make_client = SessionClient if options.journal else FakeClient
        for number in range(options.jobs):
            plan = draw_plan(options, self.chance, number)
            self.clients.append(make_client(self.world, plan, self._dial_as_client))

    def _dial_as_client(self, name: str) -> Connection | None:
        if self.master.is_dead or name.split(".")[0] in self.world.partitioned:
            return None
        connection = Connection(self.world, name)
        self.master.accept_client(connection)
        self._maybe_cut_soon(connection)
        return connection

    def _dial_as_worker(self, worker: FakeWorker) -> Connection | None:
        if self.master.is_dead or worker.facts.id in self.world.partitioned:
            return None
        connection = Connection(self.world, worker.facts.id)
        self.master.accept_worker(connection)
        self._maybe_cut_soon(connection)
        return connection

    def _maybe_cut_soon(self, connection: Connection) -> None:
        """Let a connection end during the exchange of the numbers of received messages."""
        share = self.options.flap_share
        if share and self.world.has_fault(share, f"{connection.name} loses its new connection"):
            delay_s = self.world.mean(3 * self.options.latency_mean_s)
            self.world.timeline.after(delay_s, self._end, connection)

    @staticmethod
    def _end(connection: Connection) -> None:
        connection.cut(silently=False)

    # --- workers ----------------------------------------------------------------------------------

    def _start_worker(
        self, place: int, port: int, store: dict[ObjectId, bytes], spool: str
    ) -> FakeWorker:
        self._lives += 1
        host = f"host{place % self.options.hosts}"
        slots, executors = self.options.slots_per_worker, frozenset((EXECUTOR,))
        facts = WorkerFacts(
            f"w{place}.{self._lives}", f"{host}:{port}", host, slots, executors,
            memory_bytes=self.options.memory_per_worker, spool=spool,
            keeps_objects=self.options.wipe_share < 1,
        )  # fmt: skip
        return FakeWorker(self.world, facts, store, self._dial_as_worker)

    def replace_worker(self, place: int, *, is_wiped: bool, has_moved: bool) -> None:
        """Start a worker that replaces an ended one; if it `is_wiped`, in a new directory."""
        before = self.workers[place]
        port = int(before.facts.netloc.split(":")[1]) + (100 if has_moved else 0)
        store, spool = before.store, before.facts.spool
        if is_wiped:
            store, spool = {}, f"spool{place}.{self._lives}"
        worker = self._start_worker(place, port, store, spool)
        self.workers[place] = worker
        self.world.note(worker.facts.id, f"replaces it with {len(worker.store)} objects")

    # --- the master -------------------------------------------------------------------------------

    def _new_machine(self) -> MasterMachine:
        machine = self._make_master(delegates=self.options.delegates)
        machine.membership.timeout_s = self.options.worker_timeout_s
        return machine

    def crash_master(self, *, silently: bool, loses_power: bool) -> None:
        """End the master's process. If `silently`, its peers do not notice that."""
        self.world.note("master", "was killed")
        self._stale += self.master.open_connections() if silently else []
        self.master.die(silently=silently)
        if loses_power:
            self.disk.lose_power(self.chance)

    def restart_master(self) -> None:
        """Start a master that continues from the journal; raises DamagedJournalError.

        Its host refuses the messages of connections that belonged to the earlier master.
        """
        self.master = fake_master.restart(self.world, self._new_machine(), self.disk)
        if not self.options.lying_share:
            for client in self.clients:
                client.check_promises(self.master.machine)
        self.world.note("master", f"was restarted with {len(self.master.machine.jobs)} jobs")
        for connection in self._stale:
            self.world.timeline.after(self.chance.uniform(0.0, 1.0), connection.end, PEER)
        self._stale.clear()
