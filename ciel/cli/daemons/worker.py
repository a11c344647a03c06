"""`ciel-worker`: the composition root of a worker daemon."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import ciel
from ciel import plugins
from ciel.access.addresses import netloc, parse_url
from ciel.access.errors import AccessError
from ciel.access.keys import Key, Role
from ciel.cli.daemons.addresses import (
    advertised,
    find_reachable_master,
    host_and_port_or_auto,
    listen_towards,
    reachable,
    reachable_address,
    require_reachable,
    try_address,
    with_port,
)
from ciel.cli.daemons.channels import (
    WORKER_POLL_US,
    add_channel_options,
    open_channels,
    own_end,
)
from ciel.cli.daemons.cluster_state import kv_environment, kv_url, service_environment
from ciel.cli.daemons.errors import DaemonError
from ciel.cli.daemons.executors import Executors, load_executors, offered_when
from ciel.cli.daemons.lifeline import report_failure, report_ready
from ciel.cli.daemons.process import log, run, set_log_level, settle_memory, start_failure
from ciel.cli.daemons.spool import Spool
from ciel.cli.daemons.stores import add_verify
from ciel.cli.daemons.timeouts import add_kill_grace, add_life
from ciel.cli.parsing.parser import Parser, memory_size, whole_number
from ciel.core.admission import Policy
from ciel.core.errors import CielError
from ciel.core.ids import ObjectId
from ciel.core.masters import NO_BALLOT
from ciel.core.offers.labels import read_label
from ciel.core.offers.resources import Offer, offer_of, read_offer
from ciel.core.tasks import LIMITED, NO_ISOLATION, SLOTS_MAX, wrong_isolation
from ciel.core.workers.lives import DRAIN_GRACE_S, FOREVER, limited
from ciel.execution.environment import GPU, SHMD, Callers, device_order, inherited
from ciel.execution.kept import KeptAttempts
from ciel.launch import LaunchError, become_subreaper
from ciel.launch.memory import memory_of_host
from ciel.net.channels import Channels
from ciel.net.control import ControlPeer, Owner
from ciel.net.cores.connections import Cores
from ciel.net.cores.space import share_space
from ciel.net.debugging import Debugging
from ciel.net.errors import ListenError, NetError
from ciel.net.ticks import Ticks
from ciel.net.transfers import Transfers
from ciel.net.transports import Address, Reconnector, listen, parse_address
from ciel.net.url_policy import UrlPolicy
from ciel.storage.errors import StorageError, StoreSpecError
from ciel.storage.interface import ObjectStore, Verify
from ciel.storage.specs import DEFAULT, VARIABLE, describe_kinds, load_kind
from ciel.wire.errors import RefusedError
from ciel.wire.masters import ballot_to_json
from ciel.wire.session import Session
from ciel.worker.attempt_reports import AttemptReports
from ciel.worker.attempts.attempts import Attempts
from ciel.worker.attempts.batch import BatchPrograms
from ciel.worker.attempts.launching import Launching
from ciel.worker.attempts.lifecycle import Lifecycle
from ciel.worker.attempts.scratch import ScratchPool
from ciel.worker.attempts.workplace import Workplace
from ciel.worker.checksums import Checksums
from ciel.worker.disk_jobs import Admit, DiskJobs, at_once
from ciel.worker.disk_permits import DiskPermits
from ciel.worker.events import Events
from ciel.worker.fetch_reports import FetchReports
from ciel.worker.gpus import Claims, find_gpus
from ciel.worker.host import host_identity, host_name, new_worker_id
from ciel.worker.interactive.programs import InteractivePrograms
from ciel.worker.limits.host_probe import HostProbe, described
from ciel.worker.limits.sandboxes import Sandboxes
from ciel.worker.logs import JobLogs
from ciel.worker.master_session import MasterSession
from ciel.worker.masters import Masters
from ciel.worker.metrics import WorkerMetrics
from ciel.worker.operations import Operations
from ciel.worker.pins import Pins
from ciel.worker.resources.control import Controls
from ciel.worker.resources.root import WorkerSite
from ciel.worker.resources.uploads import IncomingUploads
from ciel.worker.retention import Retention
from ciel.worker.service import WorkerService
from ciel.worker.spill_volumes import SpillVolumes
from ciel.worker.state.machine import WorkerMachine
from ciel.worker.state_boards import StateBoards
from ciel.worker.store_reports import StoreReports
from ciel.worker.streams.growing import Streams
from ciel.worker.transfer.fetching import Fetcher
from ciel.worker.transfer.peer_stores import PeerStores
from ciel.worker.transfer.url_fetching import UrlFetching

DEFAULT_LISTEN = "127.0.0.1:0"
END_S = 1.0
"""How long a worker whose life ends, or that was drained, waits for programs after SIGTERM: its
drain gave them time to end."""
ISOLATE_VARIABLE = "CIEL_ISOLATE"
"""Sets the default of --isolate, also for the workers of `ciel up` and `ciel submit`."""


def _add_resources(add: Callable[..., object]) -> None:
    """Add the options of named resources and of labels."""
    add(
        "--resource", type=_offer, action="append", default=[], metavar="NAME=AMOUNT",
        help="offer a resource to tasks that ask for it: an amount (licence/matlab=2), or indices "
        "that tasks receive (gpu=[0-3]); GPUs are detected, unless this option names gpu "
        "(repeatable)",
    )  # fmt: skip
    add(
        "--label", type=_label, action="append", default=[], metavar="NAME=VALUE",
        help="a label that tasks can ask for, such as zone=b; `host` is the name of the host "
        "(repeatable)",
    )  # fmt: skip


def _add_isolation(add: Callable[..., object]) -> None:
    """Add the option of the least isolation of programs."""
    add(
        "--isolate", type=_isolation, metavar="LEVEL",
        default=os.environ.get(ISOLATE_VARIABLE) or LIMITED,
        help="how far programs are isolated at least: none, limits (default), or strict; tasks can "
        "ask for more, not for less",
    )  # fmt: skip


def _add_storage(add: Callable[..., object]) -> None:
    """Add the options of the store and its disks."""
    add(
        "--store",
        metavar="SPEC",
        default=os.environ.get(VARIABLE) or DEFAULT,
        help=describe_kinds(),
    )
    add(
        "--io",
        type=_io_policy,
        metavar="N",
        default="adaptive",
        help="limit of concurrent disk jobs for each disk: a number, off (no limit), or adaptive "
        "(default)",
    )
    add(
        "--io-shared",
        type=_shared_limit,
        metavar="DIR=N",
        help="at most N disk jobs at a time on the device of DIR, of all workers that share the "
        "store and its memory, also on other kernels",
    )
    add(
        "--spool",
        metavar="DIR",
        help="the work directory, for objects and scratch files (default: a temporary directory)",
    )


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parse = Parser(
        prog="ciel-worker",
        allow_abbrev=False,
        description="Run the tasks that a master assigns, and store their outputs.",
    )
    add = parse.add_argument
    found = "the master (default: CIEL_MASTER, the configuration, `ciel up`)"
    add("--master", metavar="URL", help=found)
    add("--access", metavar="FILE", help="the master's access file, with its key")
    add(
        "--listen",
        type=host_and_port_or_auto,
        metavar="HOST:PORT",
        default=DEFAULT_LISTEN,
        help="the address to listen at (default %(default)s; port 0 means any free port); auto: "
        "any port of the address from which this host reaches the master",
    )
    add(
        "--advertise",
        type=reachable_address,
        metavar="HOST:PORT",
        help="the address that other hosts connect to (default: the address of --listen)",
    )
    add(
        "--slots",
        type=whole_number(1, SLOTS_MAX),
        metavar="N",
        help="how many tasks run at a time (default: the number of cores that the worker may use)",
    )
    add(
        "--memory",
        type=memory_size,
        metavar="SIZE",
        help="memory for all tasks that request some (default: the memory of the host or of the "
        "control group)",
    )
    _add_resources(add)
    _add_storage(add)
    add_verify(parse)
    add_kill_grace(parse)
    add_life(parse)
    _add_isolation(add)
    add(
        "--no-delegation",
        action="store_true",
        help="start only tasks that the master assigns, and no child inline",
    )
    add(
        "--fetch-urls",
        choices=[which.value for which in UrlPolicy],
        default=UrlPolicy.OFF.value,
        help="which URLs the worker fetches when clients request it by HTTP: off (default), https, "
        "or any",
    )
    add("--kv", type=kv_url, metavar="URL", default="", help="the key-value base that tasks use")
    add(
        "--allocation",
        metavar="ID",
        default="",
        help="the allocation of a resource manager in which the worker runs, for its launcher",
    )
    add("--open-healthz", action="store_true", help="answer /healthz without a key")
    add_channel_options(parse)
    add("--log", metavar="FILE", help="the log file (default: standard error)")
    add("--embedded", action="store_true", help=argparse.SUPPRESS)
    add("--version", action="version", version=f"ciel {ciel.__version__}")
    return parse


def _control_peer(
    reactor: Any,
    ticks: Ticks,
    begin_session: Callable[[], Session],
    channels: Channels | None,
    owner: Owner,
) -> ControlPeer:
    """Create the worker's end of a control connection; called each time that it connects."""
    return ControlPeer(
        reactor, ticks, begin_session(), owner, channels=channels, recorder=reactor.recorder
    )


class Worker:
    """A worker daemon, from finding its master to its end."""

    def __init__(self, reactor: Any, options: argparse.Namespace) -> None:
        self._reactor = reactor
        self._options = options
        self._id = new_worker_id()
        self._spool = Spool(options.spool)
        self._probe: HostProbe
        self._sandboxes: Sandboxes
        self._offers: list[Offer] = []
        self._closers: list[Any] = []
        self._has_joined = False
        self._drain: Callable[[float], bool] | None = None  # after SIGTERM
        self._is_draining = False  # because of a signal
        self._cancel_all: Callable[[Callable[[], None]], None] | None = None
        self._url = ""
        self._state: WorkerMachine | None = None
        self.dump: Callable[[str], Path | None] = lambda reason: None
        self.successor: list[str] = []
        self.failure = ""
        self.status = 0

    def open(self, control: str, cluster_id: str, key: Key) -> None:
        """Open the store, the launcher and the server, and join the master.

        Raises one of START_ERRORS.
        """
        reactor, options = self._reactor, self._options
        address, ticks = advertised(options), Ticks(reactor)
        self._probe, channels = HostProbe(), open_channels(reactor, options, WORKER_POLL_US)
        become_subreaper()
        (spool := self._keep(self._spool)).open()
        logs, store = JobLogs(reactor, spool.logs_directory(options.log)), self._open_store()
        self._offers = self._resources()
        about = self._variables(control, address.host, key, cluster_id)
        launching = self._keep(self._launching(ticks, about, store))
        executors = offered_when(options.isolate, _executors_here())
        transfers, streams = self._keep(Transfers(reactor)), self._keep(Streams(reactor))
        disk_jobs = self._keep(self._disk_jobs(store))
        admit, queue = self._disk_of(store, disk_jobs)
        permits = self._keep(DiskPermits(disk_jobs, spool.path))
        site = WorkerSite(reactor, key, open_healthz=options.open_healthz)
        own = with_port(address, self._listen(site.site))
        site.serve_as(own, self._id)
        machine = self._state = self._machine(own, store, executors)
        checksums = Checksums(reactor, store, Verify(options.verify))
        callers, events = Callers(launching.environ), Events(reactor)
        master = MasterSession(events)
        masters = Masters(spool.path / "masters.json", spool.identity, cluster_id, master)
        store.use_memory(self._keep(SpillVolumes(reactor, master, self._id)))
        retention = Retention(reactor, store, machine, disk_jobs.turn, checksums)
        store_reports = self._keep(StoreReports(
            reactor, ticks, master, store, disk_jobs, queue, permits, self.fail, str(spool.path)
        ))  # fmt: skip
        service = WorkerService(
            reactor, ticks, machine, master, store_reports, permits, retention, callers, events,
            partial(self._joined, own), self._refused,
        )  # fmt: skip
        service.on_dismissed = self._dismissed
        self._closers.append(service.close)
        checksums.damaged = service.damaged
        fetches = FetchReports(service, master, retention, events)
        reports = AttemptReports(service, master, fetches, store_reports, checksums, events)
        attempts, interactive, boards = self._attempts(
            callers, reactor=reactor, ticks=ticks, owner=reports, launching=launching, store=store,
            streams=streams, executors=executors.known, netloc=own, logs=logs, channels=channels,
            checksums=checksums, boards=StateBoards(cluster_id, master.send), cluster_id=cluster_id,
        )  # fmt: skip
        operations = Operations(service, master, interactive, events)
        peer_stores = self._open_peer_stores(store, cluster_id, own, operations, disk_jobs)
        fetcher = Fetcher(
            reactor, transfers, store, streams, key, fetches, checksums=checksums, admit=admit,
            enter=disk_jobs.enter, peer_stores=peer_stores,
        )  # fmt: skip
        service.set_components(attempts, interactive, fetcher, boards)

        facts = self._about(machine, executors, () if peer_stores is None else store.places)
        begin = partial(self._begin_session, key, cluster_id, facts, master, machine, masters)
        dial = partial(_control_peer, reactor, ticks, begin, channels)
        reconnector = self._reconnector(control, dial, service, masters)
        site.serve_succession(masters)
        uploads = self._keep(IncomingUploads(reactor, store, own, operations.uploaded, admit))
        site.serve_objects(store, streams, uploads, checksums)
        site.serve_logs(logs, spool.kept)
        controls = self._controls(
            machine, operations, store, executors, service, reconnector, masters
        )
        metrics = WorkerMetrics(machine, master, events, reports, fetcher, store, disk_jobs)
        site.serve_controls(controls, metrics, Debugging(self._write_dump, set_log_level))
        self._join(reconnector, own, transfers, key)
        settle_memory()

    def _reconnector(
        self, control: str, dial: Callable[[Owner], ControlPeer], service: WorkerService,
        masters: Masters,
    ) -> Reconnector:  # fmt: skip
        """Return the reconnector, which maintains the connection to the master that this worker
        obeys.
        """
        reconnector = Reconnector(self._reactor, control, dial, service)
        masters.lead(reconnector)
        service.objection = masters.objection
        self._closers.append(reconnector.stop)
        self._cancel_all = partial(self._cancel_programs, service, reconnector)
        self._drain = service.leave_within
        return reconnector

    def _listen(self, factory: Any) -> Address:
        """Listen. If --listen has port 0, try the port of the previous worker with this work
        directory first.

        A restarted master knows the objects in the work directory by that address.
        """
        wanted = parse_address(self._options.listen)
        last = wanted._replace(port=wanted.port or self._spool.last_port())
        try:
            found = listen(self._reactor, str(last), factory).address
        except ListenError:
            if last == wanted:
                raise
            found = listen(self._reactor, str(wanted), factory).address
        self._spool.note_port(found.port)
        return found

    def _write_dump(self, reason: str) -> Path | None:
        return self.dump(reason)

    def describe(self) -> Any:
        """Return the state for a dump."""
        machine = self._state
        if machine is None:
            return None
        attempts = [
            [*key, attempt.phase.value, attempt.spec.executor]
            for key, attempt in machine.attempts.items()
        ]
        return {
            "worker": self._id, "master": self._url, "slots": machine.slots,
            "slots_free": machine.slots_free, "queue": machine.queue_length,
            "attempts": attempts, "objects": len(machine.stored),
            "problems": list(machine.problems()), "machine": self._machine_options,
        }  # fmt: skip

    def _machine(self, own: str, store: ObjectStore, executors: Executors) -> WorkerMachine:
        """Create the state, with the objects that the store has from an earlier run."""
        options, here = self._options, executors.offered
        self._machine_options = {
            "netloc": own, "host": host_identity(),
            "slots": options.slots or len(os.sched_getaffinity(0)),
            "interactive": [name for name, executor in here.items() if executor.talks],
            "starts_locally": [] if options.no_delegation else list(here),
            "memory_bytes": options.memory or memory_of_host(),
            "resources": self._offers,
            "kill_grace_s": options.kill_grace, "idle_timeout_s": options.idle_timeout,
        }  # fmt: skip
        grace_s = DRAIN_GRACE_S if options.drain_grace is None else options.drain_grace
        life = limited(options.time_limit, grace_s, self._reactor.seconds())
        machine = WorkerMachine(**self._machine_options, life=life)
        machine.add_retained(held_by(store))
        machine.uploads.found(machine.stored, self._reactor.seconds())
        return machine

    def _resources(self) -> list[Offer]:
        """Return the resources that the options name, and the GPUs of this host.

        Raises DaemonError if the options name one twice.
        """
        offers: list[Offer] = self._options.resource
        names = [offer.name for offer in offers]
        for name in names:
            if names.count(name) > 1:
                raise DaemonError(f"--resource names {name} twice: name all of it once")
        if GPU not in names and (found := find_gpus(os.environ)):
            claimed = self._keep(Claims()).claim(found)
            log.info("GPUs of this host: {found}; this worker offers {claimed}",
                     found=",".join(found), claimed=",".join(claimed) or "none")  # fmt: skip
            offers = [*offers, offer_of(GPU, claimed)]
        return [offer for offer in offers if offer.amount]

    def _about(
        self, machine: WorkerMachine, executors: Executors, places: tuple[str, ...]
    ) -> dict[str, Any]:
        """Return how this worker describes itself to the master. `places`: of the store that other
        workers can reach.
        """
        return own_end(self._options).described() | {
            "netloc": machine.netloc, "host": machine.host, "slots": machine.slots,
            "memory_bytes": machine.memory_bytes, "executors": sorted(executors.offered),
            "isolation": described(self._sandboxes.isolation),
            "lacking": executors.lacking, "user": os.geteuid(), "places": list(places),
            "resources": [list(offer) for offer in machine.resources],
            "labels": {"host": host_name()} | dict(self._options.label),
        }  # fmt: skip

    def _begin_session(
        self, key: Key, cluster_id: str, about: dict[str, Any], master: MasterSession,
        machine: WorkerMachine, masters: Masters,
    ) -> Session:  # fmt: skip
        if masters.promised != NO_BALLOT:
            about = about | {"promised": ballot_to_json(masters.promised)}
        if machine.life is not FOREVER:
            left_s = max(machine.life.ends_at_s - self._reactor.seconds(), 0.0)
            about = about | {"life_left_s": left_s, "drain_grace_s": machine.life.grace_s}
        if machine.is_draining:
            left_s = machine.drain_left_s(self._reactor.seconds())
            about = about | {"draining": True, "drain_within_s": left_s}
        return self._session(key, cluster_id, about | master.greeting())

    def _session(self, key: Key, cluster_id: str, about: dict[str, Any]) -> Session:
        """Start a session with the master. `about`: what this worker reports of itself."""
        own = {
            "kind": "worker", "worker": self._id, "hostname": host_name(),
            "spool": self._spool.identity, "keeps_objects": not self._spool.is_temporary,
            "allocation": self._options.allocation,
        }  # fmt: skip
        return Session.initiator(
            worker_key(key), Role.WORKER, software=ciel.__version__, cluster_id=cluster_id,
            about=own | about,
        )  # fmt: skip

    def _join(self, reconnector: Reconnector, own: str, transfers: Transfers, key: Key) -> None:
        """Join the master; with --advertise only after the advertised address was checked."""
        if not self._options.advertise:
            reconnector.start()
            return
        wrong = partial(self.fail, status=2)
        cancel = try_address(own, self._id, transfers, worker_key(key), reconnector.start, wrong)
        self._closers.append(cancel)

    def _controls(
        self, machine: WorkerMachine, operations: Operations, store: ObjectStore,
        executors: Executors, service: WorkerService, reconnector: Reconnector, masters: Masters,
    ) -> Controls:  # fmt: skip
        """Return the operations on this worker that users request by HTTP."""
        pins = Pins(self._spool.path / "pins", machine.uploads, machine.stored)

        def keep(object_id: ObjectId) -> None:
            operations.uploaded(object_id)
            pins.add(object_id)

        def rejoin(url: str) -> None:
            url, host, port = parse_url(url)
            require_reachable(advertised(self._options).host, url, "worker")
            self._url, reconnector.places.address = url, netloc(host, port)
            masters.forget()
            service.leave_master()

        policy = UrlPolicy(self._options.fetch_urls)
        urls = self._keep(UrlFetching(self._reactor, store, policy, machine.netloc, keep))
        return Controls(
            reactor=self._reactor, worker=self._id, netloc=machine.netloc,
            features=sorted(executors.offered), operations=operations, store=store, pins=pins,
            urls=urls, master=lambda: self._url, rejoin=rejoin, stop=self.stop,
        )  # fmt: skip

    def _keep(self, part: Any) -> Any:
        """Have `_stop_now` close a part; return the part."""
        self._closers.append(part.close)
        return part

    def _attempts(
        self, callers: Callers, boards: StateBoards, **means: Any
    ) -> tuple[Attempts, InteractivePrograms, StateBoards]:
        """Create the components that run the attempts of batch programs and of interactive
        programs.
        """
        kept, scratch = KeptAttempts(self._spool.kept), ScratchPool(self._spool.path)
        self._keep(boards)
        options, path = self._options, self._spool.path
        self._sandboxes = self._probe.sandboxes(options.isolate, path, options.access)
        place = Workplace(
            worker=self._id, scratch=scratch, kept=kept, boards=boards, sandboxes=self._sandboxes,
            **means,
        )  # fmt: skip
        lifecycle = Lifecycle(place)
        interactive = InteractivePrograms(lifecycle)
        batch = BatchPrograms(lifecycle, interactive.idle_count)
        attempts = self._keep(Attempts(lifecycle, batch, interactive, callers))
        return attempts, interactive, boards

    def _disk_of(
        self, store: ObjectStore, disk_jobs: DiskJobs
    ) -> tuple[Admit, Callable[[], tuple[int, float]]]:
        """Return functions that queue copies for the store's disk, and that measure this queue."""
        if not store.capabilities.may_block:
            return at_once, lambda: (0, 0.0)
        place = self._spool.store
        return partial(disk_jobs.enter, place), partial(disk_jobs.queue_at, place)

    def _disk_jobs(self, store: ObjectStore) -> DiskJobs:
        """Create the queues of disk jobs; raises StoreSpecError if the store can share no limit."""
        jobs = DiskJobs(self._reactor, self._options.io)
        if self._options.io_shared is not None:
            path, at_most = self._options.io_shared
            limit = store.disk_limit()
            if limit is None:
                raise StoreSpecError(
                    self._options.store, "--io-shared needs a store that kernels can share"
                )
            jobs.share(path, at_most, limit)
        return jobs

    def _open_peer_stores(
        self, store: ObjectStore, cluster_id: str, own: str, operations: Operations, jobs: DiskJobs
    ) -> PeerStores | None:
        """Share the store with the workers of this host, and find their stores.

        If this fails, workers copy objects by HTTP, also on this host.
        """
        try:
            open_peers = plugins.load("ciel.neighbours", "shmd")
            peer_stores: PeerStores = open_peers(
                self._reactor, store, self._spool.store, cluster_id=cluster_id, netloc=own,
                kept=lambda object_id: operations.uploaded(ObjectId(object_id)), turn=jobs.turn,
                cores=self._cores_of(store),
            )  # fmt: skip
        except (plugins.PluginError, CielError, OSError) as error:
            log.error(
                "cannot share the store with other workers of this host: {error}; objects are "
                "copied by HTTP instead",
                error=error,
            )
            return None
        self._closers.append(peer_stores.close)
        return peer_stores

    def _cores_of(self, store: ObjectStore) -> Cores | None:
        """Join the cores that share the memory of the store by messages, if it has these."""
        core, neighbours = store.message_core(), store.neighbours()
        if core is None:
            return None
        cores: Cores = self._keep(Cores(self._reactor, core))
        if neighbours is not None:
            share_space(self._reactor, cores, neighbours)
        return cores

    def _members(self) -> str:
        """Create the control group of all programs; return its file `cgroup.procs`.

        Return nothing if there is none. An embedded worker ends by SIGKILL, which would leave the
        group behind.
        """
        options = self._options
        if options.isolate == NO_ISOLATION or options.embedded:
            return ""
        group = self._probe.group_of_programs(options.slots or len(os.sched_getaffinity(0)))
        if group is None:
            return ""
        self._closers.append(group.remove)
        return group.members

    def _variables(self, control: str, host: str, key: Key, cluster_id: str) -> dict[str, str]:
        """Return the variables that tell programs about the cluster."""
        path = self._spool.path
        return {
            SHMD: str(self._spool.store),
            **service_environment(control, host, path, key, cluster_id),
            **kv_environment(self._options.kv, path, key, cluster_id),
        }

    def _launching(self, ticks: Ticks, about: dict[str, str], store: ObjectStore) -> Launching:
        """Start the launcher; programs inherit the variables `about` the cluster."""
        environ = inherited(os.environ) | about
        if any(offer.name == GPU and offer.indices for offer in self._offers):
            environ |= device_order(os.environ)
        return Launching(self._reactor, ticks, environ, store.directories, self._members())

    def _open_store(self) -> ObjectStore:
        open_store, _, store_options = load_kind(self._options.store)
        store: ObjectStore = self._keep(open_store(store_options, self._spool.store))
        store.claim()
        if store.about:
            log.info("objects are stored in {about}", about=store.about)
        return store

    def open_alone(self) -> None:
        """Find the master, then open."""
        found, control = find_reachable_master(self._options, "worker")
        self._url = found.url
        self.open(control, found.cluster_id, found.key)

    def open_embedded(self, line: dict[str, Any]) -> None:
        """Open as an embedded worker, with the address and the key that the parent sent."""
        try:
            key = Key.from_text(str(line["key"]))
            self._url = str(line["url"])
            self._options.listen = listen_towards(self._options.listen, self._url)
            control = reachable(str(line["control"]), self._url)
            self.open(control, str(line["cluster_id"]), key)
        except START_ERRORS as error:
            self.fail(*start_failure(error))

    def _joined(self, own: str) -> None:
        if not self._has_joined:
            self._has_joined = True
            log.info("worker {id} at {netloc}", id=self._id, netloc=own)
            if self._options.embedded:
                report_ready({"netloc": own, "worker": self._id})

    def _refused(self, error: RefusedError) -> None:
        self.fail(f"this worker was {error}", status=3)

    def fail(self, reason: str, status: int = 1) -> None:
        """Shut down because of a failure, with an exit status."""
        self.failure = reason
        self.status = status
        log.error("{reason}", reason=reason)
        if self._options.embedded:
            report_failure(reason, status)
        self._reactor.callLater(0, self.stop)

    def _cancel_programs(
        self, service: WorkerService, reconnector: Reconnector, done: Callable[[], None]
    ) -> None:
        reconnector.stop()
        service.cancel_all(done)

    def _dismissed(self) -> None:
        """Leave: the worker was drained, or its life has ended."""
        machine = self._state
        if machine is not None and machine.life.ends_at_s <= self._reactor.seconds():
            left = len(machine.attempts)
            log.info("the time of this worker is over: it ends; {left} tasks still run", left=left)
        else:
            log.info("this worker was drained: it leaves, and ends")
        self._is_draining = False
        self._reactor.callLater(0, self.stop)
        self._reactor.callLater(END_S, self.stop)

    def summary(self) -> str:
        """Return the state in one line, for the service manager."""
        machine = self._state
        if machine is None:
            return "starts"
        taken, drains = machine.slots - machine.slots_free, ", drains" * machine.is_draining
        queued = machine.queue_length
        return f"{taken} of {machine.slots} slots taken, {queued} tasks queued{drains}"

    def terminate(self) -> None:
        """Drain for --drain-grace at most, and stop; a second signal stops at once."""
        grace_s, drain, self._drain = self._options.drain_grace, self._drain, None
        if drain is None or not grace_s or self._options.embedded or not drain(grace_s):
            self.stop()
            return
        self._is_draining = True
        log.info("drains for {grace:g} s at most, and ends", grace=grace_s)

    def stop(self) -> None:
        """Cancel all attempts; close everything once they have ended, at most after their grace
        time.

        A second call closes everything at once, and so does the first one in an embedded worker,
        in a worker that drains after SIGTERM, or after a failure.
        """
        cancel_all, self._cancel_all = self._cancel_all, None
        is_at_once = self._options.embedded or self._is_draining or bool(self.failure)
        if cancel_all is None or is_at_once:
            self._stop_now()
        else:
            cancel_all(self._stop_now)

    def _stop_now(self) -> None:
        """Close everything, in reverse order, and remove a temporary work directory."""
        while self._closers:
            close = self._closers.pop()
            try:
                close()
            except (CielError, LaunchError, OSError) as error:
                log.error("cannot close a part of this worker: {error}", error=error)
        # Another directory belongs to the user, or to the parent of an embedded worker.
        if self._spool.is_temporary and not self._spool.remove():
            log.info("files of failed tasks are kept in {kept}", kept=self._spool.kept)
        if self._reactor.running:
            self._reactor.stop()


START_ERRORS = (
    KeyError, AccessError, NetError, DaemonError, LaunchError, CielError, OSError,
    plugins.PluginError,
)  # fmt: skip


def _offer(text: str) -> Offer:
    try:
        return read_offer(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _label(text: str) -> tuple[str, str]:
    try:
        return read_label(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _isolation(text: str) -> str:
    if wrong := wrong_isolation(text):
        raise argparse.ArgumentTypeError(wrong)
    return text


def _io_policy(text: str) -> Policy:
    try:
        return Policy.from_text(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _shared_limit(text: str) -> tuple[str, int]:
    path, _, number = text.rpartition("=")
    if not path or not number.isascii() or not number.isdecimal() or not 0 < int(number) <= 1000:
        raise argparse.ArgumentTypeError(f"{text!r} is not DIR=N with a number of 1 to 1000")
    if not os.path.isdir(path):
        raise argparse.ArgumentTypeError(f"{path} is not a directory")
    return path, int(number)


def held_by(store: ObjectStore) -> dict[ObjectId, int]:
    """Return the objects in a store when its worker starts, with their sizes.

    Logs objects that it cannot read, and leaves them out.
    """
    held = {}
    for object_id in store:
        try:
            info = store.stat(object_id)
        except StorageError as error:
            log.error(
                "object {id} cannot be read, so this worker does not report it: {error}",
                id=object_id,
                error=error,
            )
            continue
        if info is not None:
            held[ObjectId(object_id)] = info.size_bytes
    return held


def _executors_here() -> Executors:
    found = load_executors(os.environ)
    for name, why in found.lacking.items():
        log.info("executor {name} is not available here: {why}", name=name, why=why)
    return found


def worker_key(key: Key) -> Key:
    """Return the key of the worker role, derived from the given key."""
    return key.derive(Role.WORKER) or key


def main(argv: list[str] | None = None) -> int:
    """Run a worker until a signal, a request or an error ends it; returns the exit status."""
    return run("ciel-worker", parser().parse_args(argv), Worker, START_ERRORS)


if __name__ == "__main__":
    sys.exit(main())
