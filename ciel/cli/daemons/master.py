"""`ciel-master`: the composition root of the master daemon."""

from __future__ import annotations

import argparse
import os
import secrets
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import ciel
from ciel.access.access_file import AccessFile, key_for_start, process_start
from ciel.access.addresses import parse_url
from ciel.access.errors import AccessError
from ciel.access.keys import Key
from ciel.access.paths import access_path
from ciel.access.pruning import try_prune_ended
from ciel.access.settings import require_safe_listen
from ciel.cli.daemons.addresses import advertised, host_and_port, reachable_address, with_port
from ciel.cli.daemons.channels import add_channel_options, open_channels, poll_s
from ciel.cli.daemons.compactor import COMPACT_FROM_BYTES, Compactor
from ciel.cli.daemons.errors import DaemonError
from ciel.cli.daemons.lifeline import report_failure, report_ready
from ciel.cli.daemons.ports import DEFAULT_LISTEN
from ciel.cli.daemons.process import log, run, set_log_level, settle_memory, start_failure
from ciel.cli.daemons.timeouts import add_worker_limits
from ciel.cli.parsing.parser import Parser, memory_size, seconds
from ciel.core.events import FORGET_JOBS_AFTER_S, MasterStarted
from ciel.core.jobs import ENDED
from ciel.journal.errors import JournalError
from ciel.journal.file_journal import ALWAYS, SYNC_MODES, FileJournal
from ciel.master.journal import Journal, NullJournal
from ciel.master.resources.root import master_site
from ciel.master.service import CLIENT_LOST_AFTER_S, MasterService
from ciel.master.state.invariants import problems
from ciel.master.state.machine import MasterMachine
from ciel.master.state.restoring import Restoration
from ciel.net.control import ControlPeer
from ciel.net.debugging import Debugging
from ciel.net.errors import NetError
from ciel.net.ticks import Ticks
from ciel.net.transports import (
    ControlFactory,
    FrontDoorFactory,
    Listener,
    listen,
    listen_inherited,
    parse_address,
)
from ciel.plugins import PluginError
from ciel.wire.session import Session

LISTEN_FD: Final = "--listen-fd"
"""The option with which a master takes over the socket of the one before it."""

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
        "(default: 64MiB), and to twice the size after the last time",
    )
    add(
        "--forget-jobs-after",
        type=seconds,
        metavar="TIME",
        default=FORGET_JOBS_AFTER_S,
        help="remove ended jobs, with their results, after this time (default: 30 days; 0: never)",
    )


class Master:
    """A master daemon, from reading its key to its end."""

    def __init__(self, reactor: Any, options: argparse.Namespace) -> None:
        self._reactor = reactor
        self._options = options
        self._service: MasterService | None = None
        self._compactor: Compactor | None = None
        self._listeners: list[Listener] = []
        self.dump: Callable[[str], Path | None] = lambda reason: None
        self.successor: list[str] = []
        self.failure = ""
        self.status = 0

    def open(self, cluster_id: str, key: Key, *, is_reserved: bool = False) -> dict[str, Any]:
        """Listen and serve; returns the addresses of the master, and how many jobs it has restored.

        `is_reserved`: the parent keeps the port for this master. Raises NetError, DaemonError,
        JournalError.
        """
        options, reactor = self._options, self._reactor
        if options.worker_timeout < options.suspect_after:
            raise DaemonError(
                "--worker-timeout must not be less than --suspect-after: a worker is suspected "
                "before it is declared dead",
                status=2,
            )
        address = advertised(options)
        ticks = Ticks(reactor)
        channels = open_channels(reactor, options)
        reactor.poll_for_s = poll_s(options, 0.0)
        about = {"version": ciel.__version__, "cluster_id": cluster_id}
        machine = MasterMachine(**self._machine_options())
        machine.epoch_s = time.time() - reactor.seconds()
        journal, is_restored = self._open_journal(machine)
        service = self._service = MasterService(
            reactor, ticks, journal, about, machine, is_restored=is_restored
        )
        if isinstance(journal, FileJournal):
            journal.on_durable = service.journal_durable
            journal.on_failed = self.fail
            self._compactor = Compactor(reactor, journal, options.journal_compact_from)
        service.on_inconsistent = self._fail_inconsistent

        def build() -> ControlPeer:
            session = Session.acceptor(key.derive, software=ciel.__version__, cluster_id=cluster_id)
            return ControlPeer(
                reactor, ticks, session, service,
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
        doors = FrontDoorFactory(reactor, build, site)
        if options.listen_fd is None:
            front = listen(reactor, options.listen, doors, is_reserved=is_reserved)
        else:
            front = listen_inherited(reactor, options.listen_fd, doors)
        self._listeners.append(front)
        if options.embedded:
            front.allow_reservation()
        side = self._listen_locally(f"ciel-{cluster_id[:8]}", key, ControlFactory(build))
        self._listeners.append(side)
        netloc = with_port(address, front.address)
        about["url"] = f"http://{netloc}"
        authorisation.serve_as(netloc)
        log.info("master of cluster {id} at {url}", id=cluster_id, url=about["url"])
        settle_memory()
        unfinished = sum(job.state not in ENDED for job in machine.jobs.values())
        return {
            "url": about["url"], "control": str(side.address),
            "jobs": len(machine.jobs), "unfinished": unfinished,
        }  # fmt: skip

    def _listen_locally(self, name: str, key: Key, factory: ControlFactory) -> Listener:
        """Listen for peers on this host, at an address that a restarted master has again, and that
        only peers with the key can guess.
        """
        suffix = key.mac("local address").hex()[:16]
        try:
            return listen(self._reactor, f"unix:@{name}-{suffix}", factory)
        except NetError:  # another master with this key is running, or still ending
            return listen(self._reactor, f"unix:@{name}-{secrets.token_hex(8)}", factory)

    def _open_journal(self, machine: MasterMachine) -> tuple[Journal, bool]:
        """Restore the machine from the journal; raises JournalError.

        Return the journal, and whether an earlier master has written it.
        """
        options, reactor = self._options, self._reactor
        if options.journal is None:
            return NullJournal(), False
        journal = FileJournal(Path(options.journal), options.journal_sync, reactor.callFromThread)
        restoration = Restoration(machine)
        count = 0
        try:
            for group in journal.groups():
                for record in group.records:
                    restoration.apply(record, group.time_s)
                count += len(group.records)
            restoration.finish(reactor.seconds())
            journal.open()
        except BaseException:
            journal.close()
            raise
        if journal.cut_bytes:
            log.warn("journal: cut off {n} bytes that a crash left unfinished", n=journal.cut_bytes)
        for text in restoration.skipped[:10]:
            log.warn("journal: a record had no effect, because of a bug in ciel: {text}", text=text)
        if count:
            log.info(
                "journal: restored {jobs} jobs from {count} records in {directory}",
                jobs=len(machine.jobs), count=count, directory=journal.directory,
            )  # fmt: skip
        journal.append([MasterStarted(restoration.epoch + 1, ciel.__version__)])
        return journal, restoration.epoch > 0

    def _machine_options(self) -> dict[str, Any]:
        options = self._options
        return {
            "delegates": not options.no_delegation, "suspect_after_s": options.suspect_after,
            "worker_timeout_s": options.worker_timeout,
            "forget_jobs_after_s": options.forget_jobs_after,
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
        """Read or create the key, open, and write the access file. Raises one of START_ERRORS."""
        options = self._options
        address = advertised(options)
        path = self._access_path(address.host, address.port)
        listens_at = parse_address(options.listen).host
        require_safe_listen(listens_at, has_key=path.exists(), new_key=options.new_key)
        cluster_id, key = key_for_start(path, new_key=options.new_key)
        facts = self.open(cluster_id, key)
        path = self._access_path(address.host, parse_url(facts["url"])[2])  # the port is known now
        started = process_start(os.getpid()) or 0
        access = AccessFile(facts["url"], facts["control"], cluster_id, key, os.getpid(), started)
        access.write(path)
        log.info("access file: {path}", path=path)
        if path == access_path(os.environ, address.host, parse_url(facts["url"])[2]):
            try_prune_ended(os.environ)

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
            report_ready(self.open(str(line["cluster_id"]), key, is_reserved=is_reserved))
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

    def _restart(self) -> None:
        """End, and let another master continue from the journal.

        It takes the place of this process, unless a parent process will start it.
        """
        log.info("this master restarts")
        if self._options.embedded:
            self.status = RESTART_STATUS
        else:
            self.successor = successor_of(sys.orig_argv, self._listeners[0].pass_on())
        self.stop()

    def stop(self) -> None:
        """Shut down in order."""
        if self._compactor is not None:
            self._compactor.close()
        if self._service is not None:
            self._service.close()
            self._service = None
        if self._reactor.running:
            self._reactor.stop()


def successor_of(argv: Sequence[str], listen_fd: int) -> list[str]:
    """Return the command that starts a master as this one was started, with its key and socket.

    `argv`: the command line of this process, with the options of the interpreter.
    """
    words = [word for word in argv[1:] if word != "--new-key"]
    if LISTEN_FD in words:
        place = words.index(LISTEN_FD)
        del words[place : place + 2]
    return [sys.executable, *words, LISTEN_FD, str(listen_fd)]


START_ERRORS = (
    KeyError, AccessError, NetError, DaemonError, PluginError, JournalError, OSError,
)  # fmt: skip


def main(argv: list[str] | None = None) -> int:
    """Run a master until a signal, a request or an error ends it; returns the exit status."""
    return run("ciel-master", parser().parse_args(argv), Master, START_ERRORS)


if __name__ == "__main__":
    sys.exit(main())
