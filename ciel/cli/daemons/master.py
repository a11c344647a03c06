"""`ciel-master`: the composition root of the master daemon."""

from __future__ import annotations

import argparse
import os
import secrets
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import ciel
from ciel.access.access_file import AccessFile, key_for_start, process_start
from ciel.access.addresses import parse_url
from ciel.access.errors import AccessError
from ciel.access.keys import Key
from ciel.access.paths import access_path
from ciel.access.pruning import try_prune_ended
from ciel.access.settings import require_safe_listen
from ciel.cli.daemons.addresses import advertised, host_and_port, reachable_address, with_port
from ciel.cli.daemons.channels import add_channel_options, open_channels, own_end
from ciel.cli.daemons.cluster_state import JobState, kv_url
from ciel.cli.daemons.compactor import COMPACT_FROM_BYTES, Compactor
from ciel.cli.daemons.errors import DaemonError
from ciel.cli.daemons.lifeline import report_failure, report_ready
from ciel.cli.daemons.ports import DEFAULT_LISTEN
from ciel.cli.daemons.process import (
    log,
    run,
    set_log_level,
    settle_memory,
    start_failure,
    without_collection,
)
from ciel.cli.daemons.standby import follow, run_again
from ciel.cli.daemons.timeouts import add_worker_limits
from ciel.cli.parsing.parser import Parser, memory_size, seconds, whole_number
from ciel.core.events import FORGET_JOBS_AFTER_S, TASKS_MAX, MasterStarted
from ciel.core.jobs import ENDED
from ciel.core.masters import Ballot, Succession, promoted_epoch
from ciel.core.volume_table import VolumeTable
from ciel.journal.errors import JournalError
from ciel.journal.file_journal import ALWAYS, SYNC_MODES, FileJournal
from ciel.master.journal import Journal, NullJournal
from ciel.master.memory import MemoryServers
from ciel.master.memory_limits import VOLUMES_MAX, Limits
from ciel.master.resources.root import master_site
from ciel.master.service import CLIENT_LOST_AFTER_S, MasterService
from ciel.master.standbys import RIVAL_S, ByRole, Standbys
from ciel.master.state.invariants import problems
from ciel.master.state.machine import MasterMachine
from ciel.master.state.restoring import RETURN_S, Restoration
from ciel.master.succession.candidacy import contested
from ciel.master.succession.commits import Commits
from ciel.master.succession.leadership import FollowedJournal, Leadership
from ciel.master.voters import Voters
from ciel.memory.volumes import LEASE_S
from ciel.net.control import ControlPeer, Owner
from ciel.net.debugging import Debugging
from ciel.net.errors import NetError
from ciel.net.ticks import Ticks
from ciel.net.transports import (
    ControlFactory,
    FrontDoorFactory,
    Listener,
    Reserved,
    listen,
    parse_address,
)
from ciel.plugins import PluginError
from ciel.wire.session import Session

LISTEN_FD: Final = "--listen-fd"
"""The option with which a master takes over the socket of the one before it."""

LATER_THAN: Final = "--later-than"
"""The option with an epoch that a worker has promised to obey: the master begins a later one."""

RESTART_STATUS: Final = 75
"""The exit status of an embedded master whose parent is to start it again (EX_TEMPFAIL)."""


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parse = Parser(
        prog="ciel-master",
        allow_abbrev=False,
        description="Hold the task graph and the object table of a cluster, and place its tasks.",
        epilog="It writes an access file with its address and key, which give full access.",
    )
    add = parse.add_argument
    add(
        "--listen",
        type=host_and_port,
        metavar="HOST:PORT",
        default=DEFAULT_LISTEN,
        help="the address to listen at (default %(default)s; port 0 means any free port)",
    )
    add(
        "--advertise",
        type=reachable_address,
        metavar="HOST:PORT",
        help="the address that other hosts connect to (default: the address of --listen)",
    )
    add(
        "--no-delegation",
        action="store_true",
        help="dispatch no task before its inputs exist, and start no child inline",
    )
    add("--state", metavar="DIR", help="the directory of the access file (also $STATE_DIRECTORY)")
    add(
        "--access",
        metavar="FILE",
        help="the access file (default: below the user's state directory)",
    )
    _add_journal_options(parse)
    _add_memory_options(parse)
    add(
        "--kv",
        type=kv_url,
        metavar="URL",
        default="",
        help="the key-value base of the cluster, about which clients ask; workers need the same",
    )
    add(
        "--standby",
        metavar="URL",
        help="follow the journal of the master at this URL, and take over when it is gone "
        "(needs --journal)",
    )
    add(
        "--promote",
        action="store_true",
        help="serve without asking the workers, although another master may serve: only when the "
        "other masters are gone for good",
    )
    add_worker_limits(parse)
    add("--new-key", action="store_true", help="create a new key even if one exists")
    add(
        "--open-healthz",
        action="store_true",
        help="answer /healthz without a key",
    )
    add_channel_options(parse)
    add("--log", metavar="FILE", help="the log file (default: standard error)")
    add(LISTEN_FD, type=int, help=argparse.SUPPRESS)
    add(LATER_THAN, type=int, default=0, help=argparse.SUPPRESS)
    add("--embedded", action="store_true", help=argparse.SUPPRESS)
    add("--version", action="version", version=f"ciel {ciel.__version__}")
    return parse


def _add_journal_options(parse: argparse.ArgumentParser) -> None:
    add = parse.add_argument
    add(
        "--journal",
        metavar="DIR",
        help="keep a journal in this directory: a master that is started with it again continues "
        "the jobs (default: none)",
    )
    add(
        "--journal-sync",
        choices=SYNC_MODES,
        default=ALWAYS,
        help="when records are written to the disk: before anything that depends on them is sent "
        "(always, the default), once a second (interval), or when the system does it (off)",
    )
    add(
        "--journal-compact-from",
        type=memory_size,
        metavar="SIZE",
        default=COMPACT_FROM_BYTES,
        help="remove records that are no longer needed when the journal has grown by this size "
        "(default: 64MiB), and is twice as large as after the previous compaction",
    )
    add(
        "--forget-jobs-after",
        type=seconds,
        metavar="TIME",
        default=FORGET_JOBS_AFTER_S,
        help="remove ended jobs, with their results, after this time (default: 30 days; 0: never)",
    )
    add(
        "--tasks-max",
        type=whole_number(0, 2**62),
        metavar="N",
        default=TASKS_MAX,
        help=f"fail a job that has more tasks than this (default: {TASKS_MAX:,}; 0: no limit)",
    )


def _add_memory_options(parse: argparse.ArgumentParser) -> None:
    add = parse.add_argument
    add(
        "--memory-volumes-max",
        type=whole_number(0, 2**31),
        metavar="N",
        default=VOLUMES_MAX,
        help=f"create no volume of remote memory if there are as many (default: {VOLUMES_MAX:,}; "
        "0: no limit)",
    )
    add(
        "--memory-max-per-user",
        type=memory_size,
        metavar="SIZE",
        default=0,
        help="how much remote memory the volumes of one user may reserve, with their copies "
        "(default 0: no limit)",
    )


class Restored(NamedTuple):
    """A master as its journal describes it. `epoch`: the number of the last start."""

    machine: MasterMachine
    volumes: VolumeTable
    journal: FileJournal | None = None
    epoch: int = 0
    latest: tuple[Succession, ...] = ()


class Master:
    """A master daemon, from reading its key to its end."""

    def __init__(self, reactor: Any, options: argparse.Namespace) -> None:
        self._reactor = reactor
        self._options = options
        self._service: MasterService | None = None
        self._closers: list[Callable[[], object]] = []
        self._listeners: list[Listener] = []
        self._access: tuple[Path, AccessFile] | None = None
        self.dump: Callable[[str], Path | None] = lambda reason: None
        self.successor: list[str] = []
        self.failure = ""
        self.status = 0

    def serve(
        self, cluster_id: str, key: Key, restored: Restored, door: Reserved, url: str, epoch: int,
        before: Sequence[Succession] = (),
    ) -> dict[str, Any]:  # fmt: skip
        """Listen and serve; returns the addresses of the master, and how many jobs it has restored.

        `before`: the successions of earlier epochs by which another master could be elected.
        Raises NetError, DaemonError, JournalError.
        """
        options, reactor = self._options, self._reactor
        ticks = Ticks(reactor)
        channels = open_channels(reactor, options, 0.0)
        about = {
            "version": ciel.__version__, "cluster_id": cluster_id, "url": url, "epoch": epoch
        }  # fmt: skip
        machine, file_journal = restored.machine, restored.journal
        commits = Commits(url, epoch, before)
        journal: Journal = NullJournal()
        if file_journal is not None:
            file_journal.append([MasterStarted(epoch, ciel.__version__)])
            journal = FollowedJournal(file_journal, commits)
        service = self._service = MasterService(
            reactor, ticks, journal, about, machine, is_restored=restored.epoch > 0
        )
        service.own_end = own_end(options)
        service.on_inconsistent = self._fail_inconsistent
        self._serve_state(service, key, cluster_id)
        memory = self._serve_memory(service, restored, is_elected=bool(before))
        owner: Owner = ByRole(service, memory, None)
        if file_journal is not None:
            file_journal.on_durable = service.journal_durable
            file_journal.on_failed = self.fail
            self._compact(file_journal)
            leadership = Leadership(commits, file_journal, is_recorded=bool(before))
            owner = self._serve_standbys(key, file_journal, leadership, service, memory)

        def build() -> ControlPeer:
            session = Session.acceptor(
                key.derive, software=ciel.__version__, cluster_id=cluster_id,
                about={"epoch": epoch, "url": url},
            )  # fmt: skip
            return ControlPeer(
                reactor, ticks, session, owner,
                lost_after_s=max(CLIENT_LOST_AFTER_S, options.worker_timeout), channels=channels,
                recorder=reactor.recorder,
            )  # fmt: skip

        site, authorisation = master_site(
            reactor,
            key,
            service,
            self.stop,
            self._restart if options.journal else None,
            Debugging(self._write_dump, set_log_level),
            open_healthz=options.open_healthz,
        )
        front = door.listen(reactor, FrontDoorFactory(reactor, build, site))
        self._listeners.append(front)
        if options.embedded:
            front.allow_reservation()
        side = self._listen_locally(f"ciel-{cluster_id[:8]}", key, ControlFactory(build))
        self._listeners.append(side)
        authorisation.serve_as(url.removeprefix("http://"))
        log.info("master of cluster {id} at {url}", id=cluster_id, url=url)
        settle_memory()
        unfinished = sum(job.state not in ENDED for job in machine.jobs.values())
        return {
            "url": url, "control": str(side.address),
            "jobs": len(machine.jobs), "unfinished": unfinished,
        }  # fmt: skip

    def _serve_memory(
        self, service: MasterService, restored: Restored, *, is_elected: bool
    ) -> MemoryServers:
        """Let memory servers connect. `is_elected`: an earlier master may still grant leases."""
        fence_s = RIVAL_S if is_elected else LEASE_S
        limits = Limits(self._options.memory_volumes_max, self._options.memory_max_per_user)
        memory = MemoryServers(self._reactor, service, restored.volumes, fence_s, limits)
        service.memory = memory
        self._closers.append(memory.close)
        return memory

    def _serve_state(self, service: MasterService, key: Key, cluster_id: str) -> None:
        """Tell clients where the key-value base is, and remove the rows of removed jobs from it."""
        service.kv_url = url = self._options.kv
        if url:
            jobs = service.machine.jobs
            state = JobState(self._reactor, url, key, cluster_id, lambda job_id: job_id in jobs)
            self._closers.append(state.close)

    def _compact(self, journal: FileJournal) -> None:
        compactor = Compactor(self._reactor, journal, self._options.journal_compact_from)
        self._closers.append(compactor.close)

    def _serve_standbys(
        self, key: Key, journal: FileJournal, leadership: Leadership, service: MasterService,
        memory: MemoryServers,
    ) -> Owner:  # fmt: skip
        """Let standbys follow the journal; return the owner of all connections."""
        if self._options.embedded:
            return ByRole(service, memory, None)
        voters = Voters(self._reactor, key)
        standbys = Standbys(self._reactor, journal, leadership, service, voters)
        journal.on_durable = standbys.journal_durable
        standbys.on_urls = partial(self._name_masters, service, memory)
        memory.may_lease = lambda: leadership.commits.is_followed
        standbys.on_challenged = self._challenged
        service.on_workers_changed = lambda: standbys.workers_changed(service.voters())
        self._closers.append(standbys.close)
        standbys.begin()
        return ByRole(service, memory, standbys)

    def _name_masters(
        self, service: MasterService, memory: MemoryServers, urls: tuple[str, ...]
    ) -> None:
        """Send the addresses of the masters to all clients and memory servers, and write them into
        the access file.
        """
        service.name_masters(urls)
        memory.name_masters(urls)
        if self._access is not None:
            path, access = self._access
            self._access = path, access._replace(standbys=urls[1:])
            self._access[1].write(path)

    def _challenged(self, promised: Ballot) -> None:
        """Run for master again, since a worker obeys another one: end if that one was elected."""
        log.warn("a worker obeys the master {url} of epoch {epoch}", url=promised.url,
                 epoch=promised.epoch)  # fmt: skip
        self._restart(LATER_THAN, str(promised.epoch))

    def _listen_locally(self, name: str, key: Key, factory: ControlFactory) -> Listener:
        """Listen for peers on this host, at an address that a restarted master has again, and that
        only peers with the key can guess.
        """
        suffix = key.mac("local address").hex()[:16]
        try:
            return listen(self._reactor, f"unix:@{name}-{suffix}", factory)
        except NetError:  # another master with this key is running, or still ending
            return listen(self._reactor, f"unix:@{name}-{secrets.token_hex(8)}", factory)

    def restore(self) -> Restored:
        """Restore a master that serves at once; raises JournalError."""
        journal, restoration = self.read_journal()
        return self.finish(journal, restoration)

    def read_journal(self) -> tuple[FileJournal | None, Restoration]:
        """Apply the records of the journal, if there is one, to a machine; raises JournalError.

        `finish` ends the restoration when this master starts to serve.
        """
        options = self._options
        if options.worker_timeout < options.suspect_after:
            raise DaemonError(
                "--worker-timeout must not be less than --suspect-after: a worker is suspected "
                "before it is declared dead",
                status=2,
            )
        restoration = Restoration(self.new_machine())
        if options.journal is None:
            return None, restoration
        journal = self.open_journal()
        count = 0
        try:
            with without_collection():
                for group in journal.groups():
                    for record in group.records:
                        restoration.apply(record, group.time_s)
                    count += len(group.records)
            journal.open()
        except BaseException:
            journal.close()
            raise
        if journal.cut_bytes:
            log.warn("journal: cut off {n} bytes that a crash left unfinished", n=journal.cut_bytes)
        if count:
            log.info(
                "journal: restored {jobs} jobs from {count} records in {directory}",
                jobs=len(restoration.machine.jobs), count=count, directory=journal.directory,
            )  # fmt: skip
        restoration.epoch = max(restoration.epoch, options.later_than)
        return journal, restoration

    def finish(
        self, journal: FileJournal | None, restoration: Restoration, return_s: float = RETURN_S
    ) -> Restored:
        """End a restoration, since this master starts to serve: from now on workers have `return_s`
        to return.
        """
        if journal is None:
            return Restored(restoration.machine, restoration.volumes)
        restoration.finish(self._reactor.seconds(), return_s)
        for text in restoration.skipped[:10]:
            log.warn("journal: a record had no effect, because of a bug in ciel: {text}", text=text)
        return Restored(
            restoration.machine, restoration.volumes, journal, restoration.epoch, restoration.latest
        )

    def open_journal(self) -> FileJournal:
        """Lock the directory of the journal; raises JournalError."""
        options = self._options
        return FileJournal(
            Path(options.journal), options.journal_sync, self._reactor.callFromThread
        )

    def new_machine(self) -> MasterMachine:
        """Create a master that knows nothing yet."""
        machine = MasterMachine(**self._machine_options())
        machine.epoch_s = time.time() - self._reactor.seconds()
        return machine

    def _machine_options(self) -> dict[str, Any]:
        options = self._options
        return {
            "delegates": not options.no_delegation, "suspect_after_s": options.suspect_after,
            "worker_timeout_s": options.worker_timeout,
            "forget_jobs_after_s": options.forget_jobs_after, "tasks_max": options.tasks_max,
        }  # fmt: skip

    def _write_dump(self, reason: str) -> Path | None:
        return self.dump(reason)

    def _fail_inconsistent(self, reason: str) -> None:
        self.dump("its tables contradict each other")
        self.fail(reason)

    def describe(self) -> Any:
        """Return the state for a dump."""
        if self._service is None:
            return None
        answers = {topic: self._service.answer(topic, {}) for topic in ("status", "jobs")}
        found = list(problems(self._service.machine))
        return answers | {"problems": found, "machine": self._machine_options()}

    def open_alone(self) -> None:
        """Read or create the key, open, and write the access file. Raises one of START_ERRORS.

        A standby follows its master first. A master that had standbys asks the workers first.
        """
        options = self._options
        if options.standby:
            follow(self, self._reactor, options)
            return
        address = advertised(options)
        inherited = None if options.listen_fd is None else self.reserve()
        port = address.port if inherited is None else inherited[0].address.port
        path = self._access_path(address.host, port)
        listens_at = parse_address(options.listen).host
        require_safe_listen(listens_at, has_key=path.exists(), new_key=options.new_key)
        cluster_id, key = key_for_start(path, new_key=options.new_key)
        journal, restoration = self.read_journal()
        door, url = inherited or self.reserve()
        if options.promote:
            epoch = promoted_epoch(restoration.epoch)
            log.info("serves in epoch {epoch} without the votes of workers", epoch=epoch)
            restored = self.finish(journal, restoration)
            self.serve_alone(cluster_id, key, restored, door, url, epoch)
        elif journal is not None and contested(url, restoration.latest):
            run_again(self, self._reactor, cluster_id, key, journal, restoration, door, url)
        else:
            restored = self.finish(journal, restoration)
            self.serve_alone(cluster_id, key, restored, door, url, restored.epoch + 1)

    def reserve(self, *, is_reserved: bool = False) -> tuple[Reserved, str]:
        """Bind the address to listen at later; return it with the URL of this master."""
        options = self._options
        if options.listen_fd is None:
            door = Reserved.bind(options.listen, is_reserved=is_reserved)
        else:
            door = Reserved.inherit(options.listen_fd)
        return door, f"http://{with_port(advertised(options), door.address)}"

    def serve_alone(
        self, cluster_id: str, key: Key, restored: Restored, door: Reserved, url: str, epoch: int,
        before: Sequence[Succession] = (),
    ) -> None:  # fmt: skip
        """Serve, and write the access file. Raises one of START_ERRORS."""
        facts = self.serve(cluster_id, key, restored, door, url, epoch, before)
        _, host, port = parse_url(url)
        path = self._access_path(host, port)
        started = process_start(os.getpid()) or 0
        access = AccessFile(url, facts["control"], cluster_id, key, os.getpid(), started)
        if path == access_path(os.environ, host, port):
            try_prune_ended(os.environ)
        access.write(path)
        self._access = path, access
        log.info("access file: {path}", path=path)

    def keep(self, close: Callable[[], object]) -> None:
        """Call a function when this daemon ends."""
        self._closers.append(close)

    def _access_path(self, host: str, port: int) -> Path:
        options = self._options
        state = options.state or os.environ.get("STATE_DIRECTORY")
        if options.access:
            return Path(options.access)
        if state:
            return Path(state) / "access.json"
        return access_path(os.environ, host, port)

    def open_embedded(self, line: dict[str, Any]) -> None:
        """Open as an embedded master, with the key that the parent sent."""
        try:
            key, is_reserved = Key.from_text(str(line["key"])), line.get("reserved") is True
            restored = self.restore()
            door, url = self.reserve(is_reserved=is_reserved)
            epoch = restored.epoch + 1
            report_ready(self.serve(str(line["cluster_id"]), key, restored, door, url, epoch))
        except START_ERRORS as error:
            self.fail(start_failure(error)[0])

    def fail(self, reason: str) -> None:
        """Shut down because of a failure; the reason goes to the log and to the parent process."""
        self.failure = reason
        self.status = 1
        log.error("{reason}", reason=reason)
        if self._options.embedded:
            report_failure(reason, self.status)
        self.stop()

    def _restart(self, *options: str) -> None:
        """End, and let another master continue from the journal, with further options.

        It takes the place of this process, unless a parent process will start it.
        """
        log.info("this master restarts")
        if self._options.embedded:
            self.status = RESTART_STATUS
        else:
            successor = successor_of(sys.orig_argv, self._listeners[0].pass_on())
            self.successor = [*successor, *options]
        self.stop()

    def summary(self) -> str:
        """Return the state in one line, for the service manager."""
        if self._service is None:
            return "follows another master, or starts"
        machine = self._service.machine
        totals = machine.job_table.totals
        active = sum(count for state, count in totals.items() if state not in ENDED)
        return f"{len(machine.workers)} workers, {active} active jobs"

    def terminate(self) -> None:
        self.stop()

    def stop(self) -> None:
        """Shut down in order."""
        while self._closers:
            self._closers.pop()()
        if self._service is not None:
            self._service.close()
            self._service = None
        if self._reactor.running:
            self._reactor.stop()


def successor_of(argv: Sequence[str], listen_fd: int) -> list[str]:
    """Return the command that starts a master as this one was started, with its key and socket.

    `argv`: the command line of this process, with the options of the interpreter.
    """
    words = [word for word in argv[1:] if word not in ("--new-key", "--promote")]
    for option in (LISTEN_FD, LATER_THAN, "--standby"):  # this process has become the master
        if option in words:
            place = words.index(option)
            del words[place : place + 2]
    words = [word for word in words if not word.startswith("--standby=")]
    return [sys.executable, *words, LISTEN_FD, str(listen_fd)]


START_ERRORS = (
    KeyError, AccessError, NetError, DaemonError, PluginError, JournalError, OSError,
)  # fmt: skip


def main(argv: list[str] | None = None) -> int:
    """Run a master until a signal, a request or an error ends it; returns the exit status."""
    return run("ciel-master", parser().parse_args(argv), Master, START_ERRORS)


if __name__ == "__main__":
    sys.exit(main())
