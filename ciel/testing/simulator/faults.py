"""Draws when faults happen in a simulated cluster, and repairs them some time later.

Faults are numbered in the order in which they happen. A run without some of them (`World.without`)
shows which of them a failure needs.
"""

from __future__ import annotations

from collections.abc import Callable

from ciel.testing.simulator.cluster import Cluster
from ciel.testing.simulator.disk import DamagedJournalError
from ciel.testing.simulator.fake_worker import FakeWorker
from ciel.testing.simulator.masters.candidates import FakeStandby
from ciel.testing.simulator.masters.host import MasterHost
from ciel.testing.simulator.witness import Violation
from ciel.testing.simulator.world import Process


class Faults:
    """The faults of one run. `calm_at_s`: when the last one is repaired, as far as is known.
    `has_refused`: a master did not start because its journal is damaged in the middle.
    """

    def __init__(self, cluster: Cluster) -> None:
        options = cluster.options
        self.calm_at_s = options.faults_end_s
        self.has_refused = False
        self._cluster = cluster
        self._options = options
        self._world = cluster.world
        self._chance = cluster.chance
        self._every(options.kill_interval_s, self._kill)
        self._every(options.blackout_interval_s, self._kill_all)
        self._every(options.signal_interval_s, self._signal)
        self._every(options.cut_interval_s, self._cut)
        self._every(options.pause_interval_s, self._pause)
        self._every(options.client_cut_interval_s, self._cut_client)
        crash = self._crash_host if cluster.hosts else self._crash
        self._every(options.crash_interval_s, crash)
        self._every(options.partition_interval_s, self._partition)
        self._every(options.wall_interval_s, self._raise_wall)
        self._every(options.freeze_interval_s, self._freeze)
        self._every(options.separation_interval_s, self._separate)
        self._every(options.standby_cut_interval_s, self._cut_standby)

    def _every(self, interval_s: float, act: Callable[[], None]) -> None:
        """Call `act` at random intervals until faults end."""
        if interval_s:
            due_s = self._world.timeline.now_s + self._world.mean(interval_s)
            if due_s < self._options.faults_end_s:
                self._world.timeline.at(due_s, act)
                self._world.timeline.at(due_s, self._every, interval_s, act)

    def _repair_after(self, delay_s: float, act: Callable[..., None], *arguments: object) -> None:
        self.calm_at_s = max(self.calm_at_s, self._world.timeline.now_s + delay_s)
        self._world.timeline.after(delay_s, act, *arguments)

    def _is_silent(self) -> bool:
        return self._chance.random() < self._options.silent_share

    # --- workers ----------------------------------------------------------------------------------

    def _kill_all(self) -> None:
        for worker in self._cluster.workers:
            self._kill(worker)

    def _kill(self, worker: FakeWorker | None = None) -> None:
        worker = worker or self._chance.choice(self._cluster.workers)
        if not worker.is_dead and self._world.happens_now(f"{worker.facts.id} is killed"):
            self._world.note(worker.facts.id, "was killed")
            worker.die(silently=self._is_silent())
            place = self._cluster.workers.index(worker)
            delay_s = self._world.mean(self._options.restart_mean_s)
            self._repair_after(delay_s, self._replace, place)

    def _replace(self, place: int) -> None:
        is_wiped = self._chance.random() < self._options.wipe_share
        has_moved = self._chance.random() < self._options.move_share
        self._cluster.replace_worker(place, is_wiped=is_wiped, has_moved=has_moved)

    def _signal(self) -> None:
        worker = self._chance.choice(self._cluster.workers)
        if not worker.is_dead and self._world.happens_now(f"{worker.facts.id} gets SIGTERM"):
            worker.end_within(self._options.drain_grace_s)

    def _cut(self) -> None:
        worker = self._chance.choice(self._cluster.workers)
        if worker.connection is None or worker.is_dead:
            return
        if self._world.happens_now(f"{worker.facts.id} loses its connection"):
            self._world.note(worker.facts.id, "its connection was cut")
            worker.connection.cut(silently=self._is_silent())

    def _pause(self) -> None:
        worker = self._chance.choice(self._cluster.workers)
        if worker.is_dead or worker.is_frozen:
            return
        if self._world.happens_now(f"{worker.facts.id} is paused"):
            self._world.note(worker.facts.id, "was paused")
            worker.freeze()
            pause_s = min(self._world.mean(self._options.pause_mean_s), self._options.pause_max_s)
            self._repair_after(pause_s, self._resume, worker)

    def _resume(self, worker: FakeWorker) -> None:
        self._world.note(worker.facts.id, "was resumed")
        worker.thaw()

    # --- clients ----------------------------------------------------------------------------------

    def _cut_client(self) -> None:
        client = self._chance.choice(self._cluster.clients)
        must_return = client.plan.job.detached  # no other client could close an open job
        comes_back = must_return or self._chance.random() < self._options.client_back_share
        away_s = self._chance.choice((0.1, 3.0, 8.0))
        is_silent = self._is_silent()
        if self._world.happens_now(f"the client of {client.plan.job.id} loses its connection"):
            self._world.note(client.plan.job.id, "its client lost the connection")
            client.cut(for_good=not comes_back, away_s=away_s, silently=is_silent)

    # --- the network ------------------------------------------------------------------------------

    def _partition(self) -> None:
        """Separate some workers and clients from all others for a while."""
        options, world = self._options, self._world
        workers, clients = self._cluster.workers, self._cluster.clients
        some = self._chance.sample(workers, self._chance.randint(1, len(workers)))
        others = [client for client in clients if self._chance.random() < 0.2]
        for_s = min(world.mean(options.partition_mean_s), options.pause_max_s)
        names = {worker.facts.id for worker in some} | {client.plan.job.id for client in others}
        if world.partitioned or not world.happens_now(f"{', '.join(sorted(names))} are cut off"):
            return
        world.partitioned |= names
        for worker in some:
            if worker.connection is not None and not worker.is_dead:
                worker.connection.cut(silently=True)
        for client in others:
            client.cut(for_good=False, away_s=for_s, silently=True)
        self._repair_after(for_s, self._heal)

    def _heal(self) -> None:
        self._world.note("network", "is whole again")
        self._world.partitioned.clear()

    def _raise_wall(self) -> None:
        """Keep some workers from fetching from all others, and mostly also the reverse."""
        options, world, workers = self._options, self._world, self._cluster.workers
        places = [worker.place for worker in workers]
        some = set(self._chance.sample(places, self._chance.randint(1, len(places))))
        is_one_way, lasts = self._chance.random() < 0.3, world.happens(options.lasting_share)
        for_s = min(world.mean(options.wall_mean_s), options.pause_max_s)
        what = f"{', '.join(sorted(some))} cannot fetch from the others"
        if not world.happens_now(what + (" or they from these" if not is_one_way else "")):
            return
        wall = {(one, other) for one in some for other in places if other not in some}
        if not is_one_way:
            wall |= {(other, one) for one, other in wall}
        wall -= world.walls
        world.walls |= wall
        world.note("network", what)
        if not lasts:
            self._repair_after(for_s, world.walls.difference_update, wall)

    # --- the master -------------------------------------------------------------------------------

    def _crash(self) -> None:
        options, cluster = self._options, self._cluster
        is_silent = self._is_silent()
        loses_power = self._chance.random() < options.power_share
        delay_s = self._world.mean(options.master_restart_mean_s)
        if cluster.master.is_dead or not self._world.happens_now("the master is killed"):
            return
        cluster.crash_master(silently=is_silent or loses_power, loses_power=loses_power)
        self._repair_after(delay_s, self._restart)

    def _restart(self) -> None:
        try:
            self._cluster.restart_master()
        except DamagedJournalError as error:
            if not self._options.lying_share:
                raise Violation("journal", f"it is damaged: {error}") from None
            self.has_refused = True

    # --- masters and standbys ---------------------------------------------------------------------

    def _crash_host(self) -> None:
        """Kill the process on one of the hosts. An administrator starts it again in the same role,
        or a master as a standby.
        """
        options, host = self._options, self._chance.choice(self._cluster.hosts)
        is_silent = self._is_silent()
        loses_power = self._chance.random() < options.power_share
        delay_s = self._world.mean(options.master_restart_mean_s)
        as_standby = self._chance.random() < 0.3
        process = host.process
        if process is None or process.is_dead:
            return
        as_standby = as_standby or isinstance(process, FakeStandby)
        if not self._world.happens_now(f"{host.url} is killed{' by a power cut' * loses_power}"):
            return
        self._world.note(host.url, "was killed")
        host.die(silently=is_silent or loses_power)
        if loses_power:
            host.disk.lose_power(self._chance)
        self._repair_after(delay_s, self._restart_host, host, as_standby)

    def _restart_host(self, host: MasterHost, as_standby: bool) -> None:
        try:
            host.restart(as_standby=as_standby)
        except DamagedJournalError as error:
            raise Violation(host.url, f"its journal is damaged: {error}") from None

    def _freeze(self) -> None:
        host = self._chance.choice(self._cluster.hosts)
        process = host.process
        for_s = self._world.mean(self._options.freeze_mean_s)
        if process is None or process.is_dead or process.is_frozen:
            return
        if self._world.happens_now(f"{host.url} is stopped for {for_s:.1f} s"):
            self._world.note(host.url, "was stopped")
            process.freeze()
            self._repair_after(for_s, self._thaw, host, process)

    def _thaw(self, host: MasterHost, process: Process) -> None:
        self._world.note(host.url, "was continued")
        process.thaw()

    def _separate(self) -> None:
        """Separate a host from all other parties, or from some."""
        cluster, chance = self._cluster, self._chance
        host = chance.choice(cluster.hosts)
        names = [other.url for other in cluster.hosts if other is not host]
        names += [worker.place for worker in cluster.workers]
        names += [client.plan.job.id for client in cluster.clients]
        some = (
            names if chance.random() < 0.4 else chance.sample(names, chance.randint(1, len(names)))
        )
        for_s = self._world.mean(self._options.separation_mean_s)
        if self._world.happens_now(f"{host.url} is separated from {', '.join(sorted(some))}"):
            self._world.note(host.url, f"was separated from {some}")
            pairs = cluster.separate(host, set(some))
            self._repair_after(for_s, self._world.apart.difference_update, pairs)

    def _cut_standby(self) -> None:
        host = self._chance.choice(self._cluster.hosts)
        is_silent = self._is_silent()
        process = host.process
        if isinstance(process, FakeStandby) and process.connection is not None:
            if self._world.happens_now(f"the standby {host.url} loses its connection"):
                process.connection.cut(silently=is_silent)
