"""The parties of a simulation: a master, its workers and clients, and who reaches whom.

The disk outlives the masters that write their journals on it, and each worker's place outlives the
workers. `master` is the one that has started last; it may be dead. With standbys there are several
`hosts`, each with a disk, on which masters and standbys run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from random import Random

from ciel.core.ids import ObjectId
from ciel.core.masters import Succession
from ciel.master.state.machine import MasterMachine
from ciel.master.state.workers import WorkerFacts
from ciel.testing.simulator import fake_master
from ciel.testing.simulator.disk import FakeDisk, FakeJournal
from ciel.testing.simulator.fake_client import CLIENT_SILENT_S, FakeClient, Problems
from ciel.testing.simulator.fake_master import FakeMaster
from ciel.testing.simulator.fake_worker import FakeWorker
from ciel.testing.simulator.invariants import check_worker
from ciel.testing.simulator.masters.candidates import Restored
from ciel.testing.simulator.masters.host import MasterHost
from ciel.testing.simulator.masters.voter import FakeVoter, Spool
from ciel.testing.simulator.options import Options
from ciel.testing.simulator.session_client import SessionClient
from ciel.testing.simulator.workloads import EXECUTOR, OFFERS, draw_plan, labels_of
from ciel.testing.simulator.world import MASTER, PEER, Connection, World, party_of


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
        self.workers: list[FakeWorker] = []
        self.clients: list[FakeClient] = []
        self.master: FakeMaster
        self.hosts = [
            MasterHost(
                self.world, f"http://m{number}:9000", self._new_machine, self._dial_as_standby,
                self._depose_masters, self._master_serves,
            )
            for number in range(options.standbys + 1 if options.standbys else 0)
        ]  # fmt: skip
        self._next_place: dict[str, int] = {}  # by client: the place in `hosts` to try next
        self._spools: dict[str, Spool] = {}
        if self.hosts:
            self.hosts[0].start_master()
            for host in self.hosts[1:]:
                host.start_standby()
        else:
            journal = FakeJournal(self.world, self.disk) if options.journal else None
            self.master = FakeMaster(self.world, self._new_machine(), journal)
        self._lives = 0
        self._stale: list[Connection] = []  # of a dead master, whose peers have not noticed it
        for place in range(options.workers):
            self.workers.append(self._start_worker(place, 9000 + place, {}, f"spool{place}"))
        make_client = SessionClient if options.journal else FakeClient
        for number in range(options.jobs):
            plan = draw_plan(options, self.chance, number)
            self.clients.append(make_client(self.world, plan, self._dial_as_client))

    def _dial_as_client(self, name: str) -> Connection | None:
        if self.hosts:
            return self._dial_any(name)
        if self.master.is_dead or name.split(".")[0] in self.world.partitioned:
            return None
        connection = Connection(self.world, name)
        self.master.accept_client(connection)
        self._maybe_cut_soon(connection)
        return connection

    def _dial_any(self, name: str) -> Connection | None:
        """Connect a client to the next master that answers."""
        party = party_of(name)
        for _ in self.hosts:
            place = self._next_place.get(party, 0)
            self._next_place[party] = (place + 1) % len(self.hosts)
            host = self.hosts[place]
            if host.answers and not self.world.are_apart(host.url, name):
                connection = Connection(self.world, name, host.master.ballot)
                host.master.accept_client(connection)
                self._maybe_cut_soon(connection)
                return connection
        return None

    def _dial_as_worker(self, worker: FakeWorker) -> Connection | None:
        if worker.voter is not None:
            host = self._answering(worker.voter.places.address, worker.facts.id)
            if host is None:
                return None
            connection = Connection(self.world, worker.facts.id, host.master.ballot)
            host.master.accept_worker(connection)
            self._maybe_cut_soon(connection)
            return connection
        if self.master.is_dead or worker.facts.id in self.world.partitioned:
            return None
        connection = Connection(self.world, worker.facts.id)
        self.master.accept_worker(connection)
        self._maybe_cut_soon(connection)
        return connection

    def _dial_as_standby(
        self, standby: MasterHost, latest: Sequence[Succession]
    ) -> Connection | None:
        """Connect to a master of the succession, or one that the administrator has named."""
        known = [url for succession in latest for url in succession.urls]
        for url in dict.fromkeys((*known, *[host.url for host in self.hosts])):
            host = self._answering(url, standby.url)
            if host is not None and host is not standby and host.standbys is not None:
                connection = Connection(self.world, standby.url, host.master.ballot)
                host.standbys.accept(connection)
                self._maybe_cut_soon(connection)
                return connection
        return None

    def _answering(self, url: str, name: str) -> MasterHost | None:
        """Return the host at a URL if a party finds a master there."""
        if self.world.are_apart(url, name):
            return None
        return next((host for host in self.hosts if host.url == url and host.answers), None)

    def _depose_masters(self) -> None:
        for host in self.hosts:
            if host.is_serving:
                host.master.depose()

    def _master_serves(self, master: FakeMaster, restored: Restored) -> None:
        """Note that a master starts: it knows all that earlier ones have told clients."""
        for client in self.clients:
            client.check_promises(restored.machine)
            client.finds_master(self.master.ended_at_s)
        self.master = master

    def separate(self, host: MasterHost, names: Set[str]) -> set[frozenset[str]]:
        """Separate parties from the host of a master; return the separated pairs."""
        pairs = {frozenset((host.url, name)) for name in names} - self.world.apart
        self.world.apart |= pairs
        for master in [it.process for it in self.hosts if isinstance(it.process, FakeMaster)]:
            for connection in master.open_connections():
                if self.world.are_apart(master.ballot.url, connection.name):
                    connection.cut(silently=True)
                    if connection.name.startswith("job"):
                        self.world.timeline.after(CLIENT_SILENT_S, connection.end, MASTER)
        return pairs

    def _maybe_cut_soon(self, connection: Connection) -> None:
        """Let a connection end during the exchange of the numbers of received messages."""
        share = self.options.flap_share
        if share and self.world.has_fault(share, f"{connection.name} loses its new connection"):
            delay_s = self.world.mean(3 * self.options.latency_mean_s)
            self.world.timeline.after(delay_s, self._end, connection)

    @staticmethod
    def _end(connection: Connection) -> None:
        connection.cut(silently=False)

    def unrest(self) -> Problems:
        """Yield a problem unless one master serves, which all other hosts follow."""
        if not self.hosts:
            return
        serving = [host for host in self.hosts if host.is_serving]
        if len(serving) != 1:
            yield "masters", f"{len(serving)} masters serve"
            return
        standbys = serving[0].standbys
        missing = {host.url for host in self.hosts} - {*(standbys.urls if standbys else ())}
        for url in sorted(missing):
            yield url, "it may not take over"

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
            keeps_objects=self.options.wipe_share < 1, resources=OFFERS, labels=labels_of(place),
        )  # fmt: skip
        voter = None
        if self.hosts:
            own = self._spools.setdefault(spool, Spool(spool, [host.url for host in self.hosts]))
            voter = FakeVoter(self.world, own)
        return FakeWorker(self.world, facts, store, self._dial_as_worker, voter)

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
