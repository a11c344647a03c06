"""A cluster of our own: master and workers on this host, which end with this process.

However it ends: the launcher kills all daemons, with all that they started, when we are gone, and a
`Sweeper` removes their files. `ciel up` has a process that does nothing but hold one.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import signal
import tempfile
import time
from _thread import allocate_lock
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ciel.access.keys import Key
from ciel.access.settings import MasterLocation
from ciel.client.changes import Flag
from ciel.client.daemons import Daemon, LocalDaemon, end_in_words, failure, refused
from ciel.client.errors import ClientError, ClusterError, ForkedError
from ciel.client.forks import tell_of_forks
from ciel.client.runs import RunDirectory, Sweeper
from ciel.client.stores import WorkerStores, in_arena, shm_directory
from ciel.client.watching import Watcher
from ciel.core.events import KILL_GRACE_S, SUSPECT_AFTER_S, WORKER_TIMEOUT_S
from ciel.core.tasks import SLOTS_MAX
from ciel.execution.kept import KeptAttempts
from ciel.launch import Launcher, LaunchError, ProgramExited, ProgramFailed, ProgramStarted
from ciel.launch.memory import memory_of_host
from ciel.python.showing import Shown
from ciel.storage.trees import move_tree

START_TIMEOUT_S = 30.0

_DEATH_NOTICE_S = 0.5
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class LocalCluster(Shown):
    """A master and `workers` workers on this host; ready when it is made, gone when it is closed.

    `slots` are those of each worker (by default the cores that we may use, shared out), `store` is
    a store's specification such as `shm:capacity=1GiB`, of each, or `scc:capacity=1GiB`, of all (by
    default what `CIEL_STORE` says, or `disk`). Logs, and scratch directories of failed tasks, stay
    in `directory` (by default a new one of the last ten below the user's state). `delegates`: tasks
    are sent to workers ahead of their inputs, and children begin where their parents run.
    A worker that is not heard for `suspect_after_s` gets no new tasks, and one that is not heard
    for `worker_timeout_s` is declared dead; programs that are to end have `kill_grace_s` from
    SIGTERM to SIGKILL. `switches` are further options of all daemons. Raises ClusterError, with the
    end of the log of whoever did not start. A worker that ends is started again, up to three
    times. Usable from any thread; a forked child can neither use nor disturb it.
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
        switches: Sequence[str] = (),
        start_timeout_s: float = START_TIMEOUT_S,
    ) -> None:
        if workers < 1 or (slots is not None and not 1 <= slots <= SLOTS_MAX):
            raise ValueError(f"a cluster has at least one worker with 1 to {SLOTS_MAX} slots")
        self._stores = WorkerStores(store or environ.get("CIEL_STORE") or None, workers)
        self.slots = slots or max(1, len(os.sched_getaffinity(0)) // workers)
        self._memory_bytes = memory_of_host() // workers
        self._of_master = [
            "--suspect-after", str(suspect_after_s), "--worker-timeout", str(worker_timeout_s),
        ]  # fmt: skip
        self._of_workers = ["--kill-grace", str(kill_grace_s)]
        self._switches = [*switches, *([] if delegates else ["--no-delegation"])]
        self.died = ""
        """Why it is of no use any more; empty while it is."""
        self.was_shut_down = False
        """Whether it died because somebody told its master to end."""
        self.ended = Flag()
        """Set when it died or was closed."""
        self._cluster_id, self._key = identity or (secrets.token_hex(8), Key.new())
        self._pid = os.getpid()
        self._closed = False
        self._growing = allocate_lock()
        self._spools: list[Path] = []  # of all workers there ever were, by number
        self._instances: list[str] = []
        self._workers: list[Daemon] = []
        self._undo = contextlib.ExitStack()
        try:
            if directory is None:
                run = RunDirectory(environ)
                self._undo.callback(run.release)
            self.directory = directory or run.path
            self._open(self._undo, listen, workers, time.monotonic() + start_timeout_s)
        except BaseException as error:
            self._undo.close()
            if isinstance(error, LaunchError):
                raise ClusterError(str(error)) from error
            raise
        tell_of_forks(self)

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
        """Kill all daemons with all that they started, and remove what they stored.

        A signal to end waits meanwhile: to stop half-way would take longer, and leave more.
        """
        if os.getpid() != self._pid:
            return  # it is the parent's
        self._closed = True
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
        try:
            self._undo.close()
            self.ended.set()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def forked(self) -> None:
        """Be a copy in a forked child: nobody is to take it for its parent, once that has ended."""
        self._watcher.let_go()
        self._launcher.let_go()
        self._sweeper.let_go()
        for daemon in (self._master, *self._workers):
            daemon.close()

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
        """The workers' processes and logs, in the order in which they were first up."""
        return [LocalDaemon(daemon) for daemon in self._workers]

    @property
    def worker_count(self) -> int:
        """How many workers there are."""
        return len(self._workers)

    def restart(self, number: int, timeout_s: float = START_TIMEOUT_S) -> None:
        """Kill worker `number`, as in `workers`, with all that it runs, and start it again; return
        when it is up. What it ran runs again, there or elsewhere.

        Raises IndexError, ClusterError, and ForkedError in a forked child.
        """
        self._require_open()
        if not 0 <= number < len(self._workers):
            raise IndexError(f"there is no worker {number}: there are {len(self._workers)}, from 0")
        self._watcher.start(self._workers[number], timeout_s)

    def add_worker(
        self, slots: int | None = None, timeout_s: float = START_TIMEOUT_S
    ) -> LocalDaemon:
        """Start another worker, with so many slots (by default as many as the others have), and
        return it when it is up.

        Raises ClusterError, also when a store that all share, `scc`, has no seat left: it has as
        many as there were workers at the start, or as its option `cores` says.
        """
        self._require_open()
        if slots is not None and not 1 <= slots <= SLOTS_MAX:
            raise ValueError(f"a worker has 1 to {SLOTS_MAX} slots, not {slots}")
        with self._growing:
            number = len(self._spools)
            seats = self._stores.seats
            if seats is not None and number >= seats:
                raise ClusterError(
                    f"the scc store of this cluster has seats for {seats} workers, and all "
                    "are taken; give it more from the start, as in store='scc:cores=8'"
                )
            self._make_room()
            daemon = self._worker(number, slots or self.slots)
            self._watcher.start(daemon, timeout_s)
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
        """Where its master is, and the key to it: an `address` for clients."""
        ready = self._master.ready or {}
        return MasterLocation(
            ready["url"],
            ready["control"],
            self._cluster_id,
            self._key,
            f"a cluster of our own (logs in {self.directory})",
        )

    def describe(self) -> str:
        """Say in words what it is."""
        workers = "1 worker" if self.worker_count == 1 else f"{self.worker_count} workers"
        slots = "1 slot" if self.slots == 1 else f"{self.slots} slots"
        each = "" if self.worker_count == 1 else " each"
        return f"{workers} with {slots}{each}; logs in {self.directory}"

    def relocated(self, text: str) -> str:
        """Replace the paths of kept scratch directories by those they will have in the end, which
        lead there from now on.
        """
        for number, spool in enumerate(self._spools):
            if str(spool / "kept") in text:
                text = text.replace(str(spool / "kept"), str(self._scratch(number)))
                self._link_scratch(number)
        return text

    def cause_of_death(self) -> ClientError | None:
        """Return why it ended, if it did, for whoever has just lost the connection to it."""
        return self._end() if self.ended.wait(_DEATH_NOTICE_S) else None

    # --- start ------------------------------------------------------------------------------------

    def _open(
        self, undo: contextlib.ExitStack, listen: str, workers: int, deadline_s: float
    ) -> None:
        """Start everything; `undo` is told how to end it, the latest first."""
        self._launcher = undo.enter_context(Launcher.start_process())
        self._sweeper = Sweeper(self._launcher.pid)
        undo.callback(self._sweeper.finish)
        undo.callback(self._keep_scratch)
        for _ in range(workers):
            self._make_room()
        self._master = self._daemon(
            "master",
            "ciel.cli.daemons.master",
            ["--listen", listen, *self._of_master, *self._switches],
        )
        self._workers += [self._worker(number, self.slots) for number in range(workers)]
        undo.callback(self._close_pipes)
        # Before their pipes are closed: a worker that is told to end removes what it stored.
        undo.callback(self._launcher.close)
        self._start(deadline_s)
        self._watcher = Watcher(
            self._launcher, self._master, self._workers, self._introduce, self._die
        )
        undo.callback(self._watcher.stop)

    def _close_pipes(self) -> None:
        for daemon in (self._master, *self._workers):
            daemon.close()

    def _make_room(self) -> None:
        """Make a place for the files of another worker, which will be swept however we end."""
        spool = Path(tempfile.gettempdir(), f"ciel-worker-{secrets.token_hex(6)}")
        instance = secrets.token_hex(8)
        paths = [spool, shm_directory(instance), in_arena(instance)]
        if not self._spools:
            paths.append(shm_directory(f"scc-{instance}"))
        self._sweeper.add(paths)
        self._sweeper.add_leased(self._stores.left_by(len(self._spools)))
        spool.mkdir(mode=0o700)
        self._spools.append(spool)
        self._instances.append(instance)

    def _daemon(self, name: str, module: str, arguments: list[str]) -> Daemon:
        return Daemon(name, module, arguments, self.directory / f"{name}.log")

    def _worker(self, number: int, slots: int) -> Daemon:
        arguments = ["--listen", "127.0.0.1:0", "--slots", str(slots), *self._switches]
        arguments += self._of_workers
        arguments += ["--spool", str(self._spools[number])]
        if self._memory_bytes:
            arguments += ["--memory", str(self._memory_bytes)]
        store = self._stores.told(number, self._instances[number], self._instances[0])
        if store is not None:
            arguments += ["--store", store]
        return self._daemon(f"worker-{number + 1}", "ciel.cli.daemons.worker", arguments)

    def _start(self, deadline_s: float) -> None:
        """Start all at once, introduce the workers to the master, and wait until all are ready."""
        daemons = [self._master, *self._workers]
        for launch_id, daemon in enumerate(daemons):
            daemon.launch(self._launcher, launch_id)
        self._tell(self._master, {})
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
                    for worker in self._workers:
                        self._introduce(worker)

    def _listen(self, daemon: Daemon) -> bool:
        try:
            goes_on = daemon.listen()
        except ValueError:
            raise failure(daemon, "said something else than ready") from None
        if daemon.refusal:
            raise refused(daemon)
        return goes_on

    def _tell(self, daemon: Daemon, fields: Mapping[str, str]) -> None:
        """Give a daemon the key; one that has ended already is noticed elsewhere."""
        with contextlib.suppress(BrokenPipeError):
            daemon.tell({"key": self._key.text(), "cluster_id": self._cluster_id, **fields})

    def _introduce(self, worker: Daemon) -> None:
        location = self.location
        self._tell(worker, {"control": location.control, "url": location.url})

    def _check_events(self) -> None:
        for event in self._launcher.receive():
            daemon = (self._master, *self._workers)[event.launch_id]
            if isinstance(event, ProgramStarted):
                daemon.pid = event.pid
            elif isinstance(event, ProgramExited | ProgramFailed):
                if daemon.fileno() >= 0:
                    self._listen(daemon)  # its last words; it has ended, so there is no waiting
                raise failure(daemon, f"{end_in_words(event)} before it was ready")

    def _die(self, reason: str, was_wanted: bool) -> None:
        self.died = reason
        self.was_shut_down = was_wanted
        self.ended.set()

    # --- end --------------------------------------------------------------------------------------

    def _scratch(self, number: int) -> Path:
        return self.directory / "scratch" / f"worker-{number + 1}"

    def _link_scratch(self, number: int) -> None:
        """Have what failed tasks left be found already where it will lie in the end."""
        scratch = self._scratch(number)
        with contextlib.suppress(OSError):  # a full disk; it is moved there in the end
            scratch.mkdir(mode=0o700, parents=True, exist_ok=True)
            for kept in _entries(self._spools[number] / "kept"):
                with contextlib.suppress(FileExistsError):
                    (scratch / kept.name).symlink_to(kept)

    def _keep_scratch(self) -> None:
        """Move what failed tasks left to where it may stay, beside what earlier ones left."""
        for number, spool in enumerate(self._spools):
            for link in _entries(self._scratch(number)):
                if link.is_symlink():
                    link.unlink(missing_ok=True)
            for kept in _entries(spool / "kept"):
                scratch = self._scratch(number)
                with contextlib.suppress(OSError):  # a full disk must not keep us here
                    scratch.mkdir(mode=0o700, parents=True, exist_ok=True)
                    move_tree(kept, scratch / kept.name)
            with contextlib.suppress(OSError):
                KeptAttempts(self._scratch(number)).make_room()


def _entries(directory: Path) -> Iterable[Path]:
    try:
        return list(directory.iterdir())
    except OSError:
        return []
