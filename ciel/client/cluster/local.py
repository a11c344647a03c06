"""Runs a cluster on this host whose master and workers end with this process.

They end even if this process is killed: then the launcher kills all daemons and the processes that
they have started, and a `Sweeper` removes their files. `ciel up` starts a process whose only
purpose is such a cluster.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import signal
import socket
import tempfile
import time
from _thread import allocate_lock
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ciel.access.keys import Key
from ciel.access.settings import MasterLocation
from ciel.client.cluster.daemons import (
    Daemon,
    LocalDaemon,
    end_in_words,
    failure,
    refused,
    reserve_port,
)
from ciel.client.cluster.run_directories import (
    RunDirectory,
    Sweeper,
    journal_directory,
    open_work,
)
from ciel.client.cluster.supervisor import Supervisor
from ciel.client.cluster.worker_stores import WorkerStores
from ciel.client.errors import ClientError, ClusterError, ForkedError
from ciel.client.forks import register_fork
from ciel.client.locks import Flag
from ciel.core.events import KILL_GRACE_S, SUSPECT_AFTER_S, WORKER_TIMEOUT_S
from ciel.core.states import boards_directory
from ciel.core.tasks import SLOTS_MAX
from ciel.execution.kept import KeptAttempts
from ciel.journal.file_journal import OFF, SYNC_MODES
from ciel.launch import Launcher, LaunchError, ProgramExited, ProgramFailed, ProgramStarted
from ciel.launch.memory import memory_of_host
from ciel.python.showing import Shown
from ciel.storage.specs import VARIABLE
from ciel.storage.trees import move_tree

START_TIMEOUT_S = 30.0

_DEATH_NOTICE_S = 0.5
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class LocalCluster(Shown):
    """A master and `workers` workers on this host. Thread-safe.

    The constructor returns when they are ready, and `close` when they have ended. `slots`: the
    number for each worker; by default the cores that this process may use, divided by the number of
    workers. `store`: the specification of a store, for each worker (`shm:capacity=1GiB`) or shared
    by all (`scc:capacity=1GiB`); by default the specification in `CIEL_STORE`, or `disk`. Logs, and
    scratch directories of failed tasks, stay in `directory`; by default a new run directory in the
    user's state directory, where the last ten are kept. `delegates`: the master sends tasks to
    workers before their inputs exist, and workers start children locally.

    If the master has received nothing from a worker for `suspect_after_s`, it suspects the worker,
    and assigns no new tasks to it; after `worker_timeout_s` it declares the worker dead. A program
    that is stopped has `kill_grace_s` from SIGTERM to SIGKILL. `verify`: when workers compare a
    stored object with its checksum: when they `first` read it, `always`, or `never`. `switches`:
    further options of all daemons. A worker that ends is restarted, up to three times. Raises
    ClusterError, with the end of the log of the daemon that did not start. A forked child can
    neither use the cluster nor disturb it.

    A master that crashes is restarted, up to five times within 20 s, and continues all jobs from
    its journal. `journal_sync`: when the journal is written to the disk (`SYNC_MODES`). The end of
    the master's process loses nothing even with `off`; the journal ends with the cluster. With None
    no journal is kept, and the cluster ends with its master. `resumable`: the journal, and a link
    to the work directories of the workers, are in `directory`, and stay there when the cluster
    ends. Then a cluster with the same directory and `identity` continues the jobs. `kv`: it has a
    key-value base, in `directory`. `offers`: the options `--resource` and `--label` of the first
    worker.
    """

    def __init__(
        self,
        *,
        workers: int = 1,
        slots: int | None = None,
        store: str | None = None,
        listen: str = "127.0.0.1:0",
        directory: Path | None = None,
        identity: tuple[str, Key] | None = None,
        environ: Mapping[str, str] = os.environ,
        delegates: bool = True,
        suspect_after_s: float = SUSPECT_AFTER_S,
        worker_timeout_s: float = WORKER_TIMEOUT_S,
        kill_grace_s: float = KILL_GRACE_S,
        verify: str = "first",
        switches: Sequence[str] = (),
        start_timeout_s: float = START_TIMEOUT_S,
        journal_sync: str | None = OFF,
        resumable: bool = False,
        kv: bool = False,
        offers: Sequence[str] = (),
    ) -> None:
        if journal_sync not in (None, *SYNC_MODES):
            raise ValueError(f"journal_sync is None or one of {SYNC_MODES}, not {journal_sync!r}")
        if resumable and (journal_sync is None or directory is None or identity is None):
            raise ValueError("a resumable cluster has a journal, a directory and an identity")
        if workers < 1 or (slots is not None and not 1 <= slots <= SLOTS_MAX):
            raise ValueError(f"a cluster has at least one worker with 1 to {SLOTS_MAX} slots")
        self._stores = WorkerStores(store or environ.get(VARIABLE) or None, workers)
        self.slots = slots or max(1, len(os.sched_getaffinity(0)) // workers)
        self._memory_bytes = memory_of_host() // workers
        self._of_master = [
            "--suspect-after", str(suspect_after_s), "--worker-timeout", str(worker_timeout_s),
        ]  # fmt: skip
        self._of_workers = ["--kill-grace", str(kill_grace_s), "--verify", verify]
        self._offers = offers
        self._journal_sync = journal_sync
        self._is_resumable = resumable
        self._switches = [*switches, *([] if delegates else ["--no-delegation"])]
        self.died = ""
        """Why the cluster has ended by itself; empty if it has not."""
        self.was_shut_down = False
        """Whether it ended because a user has shut down its master."""
        self.ended = Flag()
        """Set when the cluster has ended or was closed."""
        self._cluster_id, self._key = identity or (secrets.token_hex(8), Key.new())
        self._pid = os.getpid()
        self._closed = False
        self._growing = allocate_lock()
        self._spools: list[Path] = []  # work directories of all workers so far, by number
        self._workers: list[Daemon] = []
        self._keeper: socket.socket | None = None  # reserves the port of the master
        self._undo = contextlib.ExitStack()
        try:
            if directory is None:
                run = RunDirectory(environ)
                self._undo.callback(run.release)
            self.directory = directory or run.path
            self._switches += ["--kv", f"lmdb:{self.directory / 'kv'}"] if kv else []
            self._open(self._undo, listen, workers, time.monotonic() + start_timeout_s)
        except BaseException as error:
            self._undo.close()
            if isinstance(error, LaunchError):
                raise ClusterError(str(error)) from error
            raise
        register_fork(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Kill all daemons and the processes that they have started, and remove their files.

        Signals that would end this process are blocked meanwhile: an interrupted cleanup would take
        longer, and leave files behind.
        """
        if os.getpid() != self._pid:
            return  # the parent closes it
        self._closed = True
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
        try:
            self._undo.close()
            self.ended.set()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def forked(self) -> None:
        """Close the descriptors of this copy in a forked child.

        Otherwise the daemons would not notice the end of the parent.
        """
        self._supervisor.let_go()
        self._launcher.let_go()
        self._sweeper.let_go()
        self._close_pipes()

    def _facts(self) -> Iterator[tuple[str, Any]]:
        yield "", "closed" if self._closed else self.died or self.location.url
        yield "workers", len(self._workers)
        yield "slots", self.slots * len(self._workers)
        yield "store", self._stores.spec
        yield "directory", self.directory

    # --- its daemons ------------------------------------------------------------------------------

    @property
    def master(self) -> LocalDaemon:
        """The master's process and log."""
        return LocalDaemon(self._master)

    @property
    def workers(self) -> Sequence[LocalDaemon]:
        """The workers' processes and logs, in the order in which they first became ready."""
        return [LocalDaemon(daemon) for daemon in self._workers]

    @property
    def worker_count(self) -> int:
        """How many workers there are."""
        return len(self._workers)

    def restart(self, number: int, timeout_s: float = START_TIMEOUT_S) -> None:
        """Kill worker `number` of `workers` and its programs, and start it again.

        Return when it is ready. Its tasks are executed again, there or on other workers. Raises
        IndexError, ClusterError, and ForkedError in a forked child.
        """
        self._require_open()
        if not 0 <= number < len(self._workers):
            raise IndexError(f"there is no worker {number}: there are {len(self._workers)}, from 0")
        self._supervisor.start(self._workers[number], timeout_s)

    def add_worker(
        self, slots: int | None = None, timeout_s: float = START_TIMEOUT_S
    ) -> LocalDaemon:
        """Start another worker, and return it when it is ready.

        `slots`: by default as many as the first workers have. Raises ClusterError, also if all
        workers share a store without a place for another worker. For example, the store `scc` has
        as many cores as there were workers at the start, or as its option `cores` says.
        """
        self._require_open()
        if slots is not None and not 1 <= slots <= SLOTS_MAX:
            raise ValueError(f"a worker has 1 to {SLOTS_MAX} slots, not {slots}")
        with self._growing:
            number = len(self._spools)
            if reason := self._stores.refusal():
                raise ClusterError(reason)
            self._add_spool()
            daemon = self._worker(number, slots or self.slots)
            self._supervisor.start(daemon, timeout_s)
            return LocalDaemon(daemon)

    def _require_open(self) -> None:
        if os.getpid() != self._pid:
            raise ForkedError(self._pid, os.getpid(), "cluster")
        if (error := self._end()) is not None:
            raise error

    def _end(self) -> ClusterError | None:
        if self.died:
            return ClusterError(self.died, self._master.log, self._master.log_start_bytes)
        return ClusterError("the cluster is closed") if self._closed else None

    @property
    def location(self) -> MasterLocation:
        """The address and the key of its master; clients accept it as their `address`."""
        return MasterLocation(
            self._ready["url"],
            self._ready["control"],
            self._cluster_id,
            self._key,
            f"a cluster of this client (logs in {self.directory})",
        )

    @property
    def restored(self) -> dict[str, int]:
        """How many `jobs` its master has restored from the journal at the start of the cluster, and
        how many of them were `unfinished`.
        """
        return {name: int(self._ready[name]) for name in ("jobs", "unfinished")}

    def describe(self) -> str:
        """Return a description of the cluster for messages."""
        workers = "1 worker" if self.worker_count == 1 else f"{self.worker_count} workers"
        slots = "1 slot" if self.slots == 1 else f"{self.slots} slots"
        each = "" if self.worker_count == 1 else " each"
        return f"{workers} with {slots}{each}; logs in {self.directory}"

    def relocated(self, text: str) -> str:
        """Replace the paths of retained scratch directories by their paths after the cluster ends.

        Links make these paths valid at once.
        """
        for number, spool in enumerate(self._spools):
            if str(spool / "kept") in text:
                text = text.replace(str(spool / "kept"), str(self._scratch(number)))
                self._link_scratch(number)
        return text

    def cause_of_death(self) -> ClientError | None:
        """Return why the cluster has ended; None if it has not.

        A client that has lost its connection calls this method.
        """
        return self._end() if self.ended.wait(_DEATH_NOTICE_S) else None

    # --- start ------------------------------------------------------------------------------------

    def _open(
        self, undo: contextlib.ExitStack, listen: str, workers: int, deadline_s: float
    ) -> None:
        """Start all daemons, and register in `undo` how to end them."""
        self._launcher = undo.enter_context(Launcher.start_process())
        self._sweeper = Sweeper(self._launcher.pid)
        undo.callback(self._sweeper.finish)
        undo.callback(self._keep_scratch)
        self._work = open_work(self.directory, os.environ) if self._is_resumable else None
        for _ in range(workers):
            self._add_spool()
        of_journal = self._add_journal()
        self._master = self._daemon(
            "master",
            "ciel.cli.daemons.master",
            listen,
            [*self._of_master, *of_journal, *self._switches],
        )
        self._workers += [self._worker(number, self.slots) for number in range(workers)]
        undo.callback(self._close_pipes)
        undo.callback(self._launcher.close)
        self._start(deadline_s)
        self._supervisor = Supervisor(
            self._launcher, self._master, self._workers, self._introduce, self._die,
            has_journal=self._journal_sync is not None,
        )  # fmt: skip
        undo.callback(self._supervisor.stop)

    def _close_pipes(self) -> None:
        for daemon in (self._master, *self._workers):
            daemon.close()
        if self._keeper is not None:
            self._keeper.close()

    def _add_spool(self) -> None:
        """Create the work directory of another worker, and have the sweeper remove its files."""
        number = len(self._spools)
        for left in self._stores.add():
            if left.is_leased:
                self._sweeper.add_leased([left.path])
            else:
                self._sweeper.add([Path(left.path)])
        if number == 0:
            self._sweeper.add_leased([boards_directory(self._cluster_id)])
        if self._work is not None:
            spool = self._work / str(number + 1)
        else:
            spool = Path(tempfile.gettempdir(), f"ciel-worker-{secrets.token_hex(6)}")
            self._sweeper.add([spool])
        spool.mkdir(mode=0o700, exist_ok=self._is_resumable)
        self._spools.append(spool)

    def _add_journal(self) -> list[str]:
        """Return the options for the master's journal, and have the sweeper remove its files."""
        if self._journal_sync is None:
            return []
        if self._is_resumable:
            path = journal_directory(self.directory)
        else:
            path = Path(tempfile.gettempdir(), f"ciel-journal-{secrets.token_hex(6)}")
            self._sweeper.add([path])
        return ["--journal", str(path), "--journal-sync", self._journal_sync]

    def _daemon(self, name: str, module: str, listen: str, arguments: list[str]) -> Daemon:
        return Daemon(name, module, listen, arguments, self.directory / f"{name}.log")

    def _worker(self, number: int, slots: int) -> Daemon:
        arguments = ["--slots", str(slots), *self._switches]
        arguments += [*self._of_workers, *(self._offers if number == 0 else ())]
        arguments += ["--spool", str(self._spools[number])]
        if self._memory_bytes:
            arguments += ["--memory", str(self._memory_bytes)]
        arguments += ["--store", self._stores.spec_of(number)]
        name = f"worker-{number + 1}"
        return self._daemon(name, "ciel.cli.daemons.worker", "127.0.0.1:0", arguments)

    def _start(self, deadline_s: float) -> None:
        """Start all daemons together, and wait until all are ready.

        When the master is ready, send its address to the workers.
        """
        daemons = [self._master, *self._workers]
        for launch_id, daemon in enumerate(daemons):
            daemon.launch(self._launcher, launch_id)
        self._introduce(self._master)
        poll = select.poll()
        by_fd = {daemon.fileno(): daemon for daemon in daemons}
        for fd in (self._launcher.fileno(), *by_fd):
            poll.register(fd, select.POLLIN)
        while waiting := [daemon for daemon in daemons if not (daemon.ready and daemon.pid)]:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                raise failure(waiting[0], "was not ready in time")
            for fd, _ in poll.poll(left_s * 1000):
                if fd == self._launcher.fileno():
                    self._check_events()
                    continue
                daemon = by_fd[fd]
                if not self._listen(daemon):
                    poll.unregister(fd)
                if daemon is self._master and daemon.ready:
                    self._ready = daemon.ready
                    daemon.listen_at = daemon.ready["url"].partition("://")[2]
                    self._keeper = reserve_port(daemon.listen_at)
                    for worker in self._workers:
                        self._introduce(worker)

    def _listen(self, daemon: Daemon) -> bool:
        try:
            goes_on = daemon.listen()
        except ValueError:
            raise failure(daemon, "did not report that it is ready") from None
        if daemon.refusal:
            raise refused(daemon)
        return goes_on

    def _send(self, daemon: Daemon, fields: Mapping[str, Any]) -> None:
        """Send a daemon the key, and further `fields`."""
        with contextlib.suppress(BrokenPipeError):  # it has ended, which the launcher reports
            daemon.send({"key": self._key.text(), "cluster_id": self._cluster_id, **fields})

    def _introduce(self, daemon: Daemon) -> None:
        """Send the master its key, and a worker also the addresses of the master."""
        if daemon is self._master:
            self._send(daemon, {"reserved": self._keeper is not None})
        else:
            found = self.location
            self._send(daemon, {"control": found.control, "url": found.url})

    def _check_events(self) -> None:
        for event in self._launcher.receive():
            daemon = (self._master, *self._workers)[event.launch_id]
            if isinstance(event, ProgramStarted):
                daemon.pid = event.pid
            elif isinstance(event, ProgramExited | ProgramFailed):
                if daemon.fileno() >= 0:
                    self._listen(daemon)  # its last line; it has ended, so this does not wait
                raise failure(daemon, f"{end_in_words(event)} before it was ready")

    def _die(self, reason: str, was_wanted: bool) -> None:
        self.died = reason
        self.was_shut_down = was_wanted
        self.ended.set()

    # --- closing ----------------------------------------------------------------------------------

    def _scratch(self, number: int) -> Path:
        return self.directory / "scratch" / f"worker-{number + 1}"

    def _link_scratch(self, number: int) -> None:
        """Create links to the scratch directories of failed tasks in their final place."""
        scratch = self._scratch(number)
        with contextlib.suppress(OSError):  # a full disk; the directories are moved at the end
            scratch.mkdir(mode=0o700, parents=True, exist_ok=True)
            for kept in _entries(self._spools[number] / "kept"):
                with contextlib.suppress(FileExistsError):
                    (scratch / kept.name).symlink_to(kept)

    def _keep_scratch(self) -> None:
        """Move the scratch directories of failed tasks to the run directory."""
        for number, spool in enumerate(self._spools):
            for link in _entries(self._scratch(number)):
                if link.is_symlink():
                    link.unlink(missing_ok=True)
            for kept in _entries(spool / "kept"):
                scratch = self._scratch(number)
                with contextlib.suppress(OSError):  # a full disk must not stop the cleanup
                    scratch.mkdir(mode=0o700, parents=True, exist_ok=True)
                    move_tree(kept, scratch / kept.name)
            with contextlib.suppress(OSError):
                KeptAttempts(self._scratch(number)).make_room()


def _entries(directory: Path) -> Iterable[Path]:
    try:
        return list(directory.iterdir())
    except OSError:
        return []
