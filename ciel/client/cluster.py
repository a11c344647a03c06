"""A cluster of our own: master and workers on this host, which end with this process.

However it ends: the launcher kills all daemons, with all that they started, when we are gone, and a
`Sweeper` removes their files. `ciel up` has a process that does nothing but hold one.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import shutil
import signal
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from ciel.access.keys import Key
from ciel.access.settings import MasterLocation
from ciel.client.daemons import Daemon, end_in_words
from ciel.client.errors import ClientError, ClusterError
from ciel.client.runs import RunDirectory, Sweeper
from ciel.core.tasks import SLOTS_MAX
from ciel.execution.kept import KeptAttempts
from ciel.launch import Launcher, LaunchError, ProgramExited, ProgramFailed

START_TIMEOUT_S = 30.0
RESTARTS_MAX = 3
"""How often one worker is started again; as often as one task may take a worker down."""

_DEATH_NOTICE_S = 0.5
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class LocalCluster:
    """A master and `workers` workers on this host; ready when it is made, gone when it is closed.

    `slots` are those of each worker (by default the cores that we may use, shared out), `store` is
    a store's specification such as `shm:capacity=1GiB`, of each, or `scc:capacity=1GiB`, of all (by
    default what `CIEL_STORE` says, or `disk`). Logs, and scratch directories of failed tasks, stay
    in `directory` (by default a new one of the last ten below the user's state). `delegates`: tasks
    are sent to workers ahead of their inputs, and children begin where their parents run.
    `switches` are further options of all daemons. Raises ClusterError, with the end of the log of
    whoever did not start.
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
        switches: Sequence[str] = (),
        start_timeout_s: float = START_TIMEOUT_S,
    ) -> None:
        if workers < 1 or (slots is not None and not 1 <= slots <= SLOTS_MAX):
            raise ValueError(f"a cluster has at least one worker with 1 to {SLOTS_MAX} slots")
        store = store or environ.get("CIEL_STORE") or None
        self.worker_count = workers
        self.slots = slots or max(1, len(os.sched_getaffinity(0)) // workers)
        self._switches = [*switches, *([] if delegates else ["--no-delegation"])]
        self.died = ""
        """Why it is of no use any more; empty while it is."""
        self.ended = threading.Event()
        """Set when it died or was closed."""
        self._cluster_id, self._key = identity or (secrets.token_hex(8), Key.new())
        self._launch_count = 0
        self._closed = False
        with contextlib.ExitStack() as undo:
            if directory is None:
                run = RunDirectory(environ)
                undo.callback(run.release)
            self.directory = directory or run.path
            try:
                self._open(undo, listen, store, time.monotonic() + start_timeout_s)
            except LaunchError as error:
                raise ClusterError(str(error)) from error
            self._undo = undo.pop_all()
        self._restarts_left = {worker.name: RESTARTS_MAX for worker in self._workers}
        self._watcher = threading.Thread(target=self._watch, name="ciel-cluster", daemon=True)
        self._watcher.start()

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
        if self._closed:
            return
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
        try:
            self._closed = True
            os.eventfd_write(self._wake_fd, 1)
            self._watcher.join()
            self._undo.close()
            self.ended.set()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    @property
    def location(self) -> MasterLocation:
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
        """Replace the paths of kept scratch directories by those they will have in the end."""
        for number, spool in enumerate(self._spools):
            text = text.replace(str(spool / "kept"), str(self._scratch(number)))
        return text

    def cause_of_death(self) -> ClientError | None:
        """Return why it died, if it did, for whoever has just lost the connection to it."""
        if not self._has_died():
            return None
        return ClusterError(self.died, self._master.log, self._master.log_start_bytes)

    def _has_died(self) -> bool:
        return self.ended.wait(_DEATH_NOTICE_S) and bool(self.died)

    # --- start ------------------------------------------------------------------------------------

    def _open(
        self, undo: contextlib.ExitStack, listen: str, store: str | None, deadline_s: float
    ) -> None:
        """Start everything; `undo` is told how to end it, the latest first."""
        self._launcher = undo.enter_context(Launcher.start_process())
        self._spools = [_new_spool() for _ in range(self.worker_count)]
        self._instances = [secrets.token_hex(8) for _ in self._spools]
        undo.callback(Sweeper(self._launcher.pid, self._swept_paths()).finish)
        undo.callback(self._keep_scratch)
        self._master = self._daemon(
            "master", "ciel.cli.master", ["--listen", listen, *self._switches]
        )
        self._workers = [self._worker(number, store) for number in range(self.worker_count)]
        for daemon in (self._master, *self._workers):
            undo.callback(daemon.close)
        # Before their pipes are closed: a worker that is told to end removes what it stored.
        undo.callback(self._launcher.close)
        self._start(deadline_s)
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC)
        undo.callback(os.close, self._wake_fd)

    def _daemon(self, name: str, module: str, arguments: list[str]) -> Daemon:
        return Daemon(name, module, arguments, self.directory / f"{name}.log")

    def _worker(self, number: int, store: str | None) -> Daemon:
        arguments = ["--listen", "127.0.0.1:0", "--slots", str(self.slots), *self._switches]
        arguments += ["--spool", str(self._spools[number])]
        if store is not None:
            arguments += ["--store", self._store_of(store, number)]
        return self._daemon(f"worker-{number + 1}", "ciel.cli.worker", arguments)

    def _store_of(self, store: str, number: int) -> str:
        """Name the instance of a store under /dev/shm, whose files must be found when all is dead.
        One that all workers share has a seat for each.
        """
        name, _, text = store.partition(":")
        given = text.split(",") if text else []
        if name == "shm":
            ours = {"instance": self._instances[number]}
        elif name == "scc":
            shared = self._instances[0]
            ours = {"instance": shared, "cores": str(self.worker_count), "core": str(number)}
        else:
            return store
        named = {option.partition("=")[0] for option in given}
        added = [f"{option}={value}" for option, value in ours.items() if option not in named]
        return f"{name}:{','.join([*given, *added])}"

    def _swept_paths(self) -> list[Path]:
        shared = _shm_directory(f"scc-{self._instances[0]}")
        arena = _shm_directory(f"arena-{os.geteuid()}")
        in_arena = [arena / f"ciel-{instance}" for instance in self._instances]
        return [*self._spools, *map(_shm_directory, self._instances), *in_arena, shared]

    def _launch(self, daemon: Daemon) -> None:
        self._launch_count += 1
        daemon.launch(self._launcher, self._launch_count)

    def _start(self, deadline_s: float) -> None:
        """Start all at once, introduce the workers to the master, and wait until all are ready."""
        daemons = [self._master, *self._workers]
        for daemon in daemons:
            self._launch(daemon)
        self._tell(self._master, {})
        poll = select.poll()
        by_fd = {daemon.fileno(): daemon for daemon in daemons}
        for fd in (self._launcher.fileno(), *by_fd):
            poll.register(fd, select.POLLIN)
        while waiting := [daemon for daemon in daemons if daemon.ready is None]:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                raise _failure(waiting[0], "was not ready in time")
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
            raise _failure(daemon, "said something else than ready") from None
        if daemon.refusal:
            raise ClusterError(f"{daemon.name} could not start: {daemon.refusal}")
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
            if isinstance(event, ProgramExited | ProgramFailed):
                daemon = self._launched_as(event.launch_id)
                if daemon.fileno() >= 0:
                    self._listen(daemon)  # its last words; it has ended, so there is no waiting
                raise _failure(daemon, f"{end_in_words(event)} before it was ready")

    def _launched_as(self, launch_id: int) -> Daemon:
        daemons = (self._master, *self._workers)
        return next(daemon for daemon in daemons if daemon.launch_id == launch_id)

    # --- the thread that watches ------------------------------------------------------------------

    def _watch(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # the main thread's
        poll = select.poll()
        poll.register(self._wake_fd, select.POLLIN)
        poll.register(self._launcher.fileno(), select.POLLIN)
        try:
            while self._wake_fd not in (fd for fd, _ in poll.poll()):
                for event in self._launcher.receive():
                    if isinstance(event, ProgramExited | ProgramFailed):
                        self._take_end(event)
                if self.died:
                    return
        except LaunchError as error:
            self._die(str(error))

    def _take_end(self, event: ProgramExited | ProgramFailed) -> None:
        """Start a worker again; without its master, or any worker, a cluster is over."""
        daemon = self._launched_as(event.launch_id)
        end = f"{daemon.name} {end_in_words(event)}"
        if daemon is self._master:
            self._die(end)
        elif self._restarts_left[daemon.name] > 0:
            self._restarts_left[daemon.name] -= 1
            self._launch(daemon)
            self._introduce(daemon)
        else:
            self._restarts_left.pop(daemon.name)
            if not self._restarts_left:
                self._launcher.kill(self._master.launch_id)
                self._launcher.flush()
                self._die(f"{end} for the {RESTARTS_MAX + 1}th time, and was the last worker")

    def _die(self, reason: str) -> None:
        self.died = reason
        self.ended.set()

    # --- end --------------------------------------------------------------------------------------

    def _scratch(self, number: int) -> Path:
        return self.directory / "scratch" / f"worker-{number + 1}"

    def _keep_scratch(self) -> None:
        """Move what failed tasks left to where it may stay, beside what earlier ones left."""
        for number, spool in enumerate(self._spools):
            for kept in _entries(spool / "kept"):
                scratch = self._scratch(number)
                with contextlib.suppress(
                    OSError, shutil.Error
                ):  # a full disk must not keep us here
                    scratch.mkdir(mode=0o700, parents=True, exist_ok=True)
                    shutil.move(kept, scratch / kept.name)
            with contextlib.suppress(OSError):
                KeptAttempts(self._scratch(number)).make_room()


def _failure(daemon: Daemon, what: str) -> ClusterError:
    return ClusterError(f"{daemon.name} {what}", daemon.log, daemon.log_start_bytes)


def _entries(directory: Path) -> Iterable[Path]:
    try:
        return list(directory.iterdir())
    except OSError:
        return []


def _new_spool() -> Path:
    import tempfile

    return Path(tempfile.mkdtemp(prefix="ciel-worker-"))


def _shm_directory(instance: str) -> Path:
    return Path("/dev/shm", f"ciel-{instance}")
