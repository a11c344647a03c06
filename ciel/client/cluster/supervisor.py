"""Supervises the daemons of a local cluster in a thread.

The thread restarts daemons that end, and restarts or adds workers on request. After the start of
the cluster, only this thread uses the launcher.
"""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from _thread import allocate_lock
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from ciel.client.cluster.daemons import Daemon, end_in_words, failure, refused
from ciel.client.errors import ClientError, ClusterError
from ciel.launch import Launcher, LaunchError, ProgramExited, ProgramFailed, ProgramStarted

RESTARTS_MAX: Final = 3
"""How often a worker is restarted; a task may take down as many workers."""

MASTER_RESTARTS_MAX: Final = 5
MASTER_RESTARTS_WINDOW_S: Final = 20.0
"""How often a master is restarted within which time. A master that always crashes reaches this
limit; a master that a test kills every 5 s does not."""
MASTER_START_TIMEOUT_S: Final = 3600.0
"""How long a restarted master may take to read its journal: there is nothing to do instead."""

_MARGIN_S = 5.0  # how long a caller waits for the thread to report that a start took too long


class _Start:
    """The start of a daemon that a caller waits for."""

    def __init__(self, daemon: Daemon, timeout_s: float) -> None:
        self.daemon = daemon
        self.timeout_s = timeout_s
        self.deadline_s = time.monotonic() + timeout_s
        self.is_ending = False  # the old process must end first
        self.error: ClientError | None = None
        self._over = allocate_lock()  # Ctrl-C in the `wait` of an Event would corrupt it
        self._over.acquire()

    def finish(self, error: ClientError | None = None) -> None:
        self.error = error
        self._over.release()

    def wait(self) -> None:
        """Wait until the daemon is ready; raises ClientError if the start has failed."""
        if not self._over.acquire(timeout=self.timeout_s + _MARGIN_S):
            raise failure(self.daemon, "was not ready in time")
        if self.error is not None:
            raise self.error


class RestartLimit:
    """Permits `count` restarts within any `window_s`."""

    def __init__(self, count: int, window_s: float) -> None:
        self._count = count
        self._window_s = window_s
        self._times_s: deque[float] = deque()

    def permits(self, now_s: float) -> bool:
        """Count a restart and return True, unless that would be one too many."""
        while self._times_s and self._times_s[0] <= now_s - self._window_s:
            self._times_s.popleft()
        if len(self._times_s) >= self._count:
            return False
        self._times_s.append(now_s)
        return True


class Supervisor:
    """Supervises a master and its workers.

    `workers` is the list of the workers that are ready; the supervisor updates it. `introduce`
    sends a daemon that was just started the line with its key. The thread calls `died` once, with
    the reason for the end of the cluster, and whether a user has shut it down. `has_journal`: the
    thread restarts a master that has crashed; otherwise the cluster ends with it. `services`: other
    daemons, which the thread restarts as often as the master.
    """

    def __init__(
        self,
        launcher: Launcher,
        master: Daemon,
        workers: list[Daemon],
        introduce: Callable[[Daemon], None],
        died: Callable[[str, bool], None],
        *,
        has_journal: bool,
        services: Sequence[Daemon] = (),
    ) -> None:
        self._launcher = launcher
        self._services = {
            daemon: RestartLimit(MASTER_RESTARTS_MAX, MASTER_RESTARTS_WINDOW_S)
            for daemon in services
        }
        self._master = master
        self._workers = workers
        self._introduce = introduce
        self._died = died
        self._has_journal = has_journal
        self._master_restarts = RestartLimit(MASTER_RESTARTS_MAX, MASTER_RESTARTS_WINDOW_S)
        self._launch_count = max(daemon.launch_id for daemon in (master, *workers, *services))
        self._restarts_left = dict.fromkeys(workers, RESTARTS_MAX)
        self._requested: deque[_Start] = deque()
        self._starts: dict[Daemon, _Start] = {}
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._stopping = False
        self._over = ""
        self._was_wanted = False
        self._is_over = False
        self._thread = threading.Thread(target=self._run, name="ciel-cluster", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread, but not the daemons."""
        self._stopping = True
        os.eventfd_write(self._wake_fd, 1)
        self._thread.join()
        self.let_go()

    def let_go(self) -> None:
        """Close the descriptor that wakes the thread; a forked child calls only this method."""
        if self._wake_fd >= 0:
            os.close(self._wake_fd)
            self._wake_fd = -1

    def start(self, daemon: Daemon, timeout_s: float) -> None:
        """Start a worker, and wait until it is ready; raises ClusterError.

        If its process is running, end it first. If a worker that was ready before does not start,
        it is restarted as if it had ended by itself.
        """
        start = _Start(daemon, timeout_s)
        self._requested.append(start)
        if self._is_over:
            raise ClusterError(self._over or "the cluster is closed")
        os.eventfd_write(self._wake_fd, 1)
        start.wait()

    # --- the thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # for the main thread
        try:
            while not self._stopping and not self._over:
                self._wait()
                while self._requested:
                    self._take(self._requested.popleft())
                for event in self._launcher.receive():
                    if isinstance(event, ProgramStarted):
                        self._find(event.launch_id).pid = event.pid
                    elif isinstance(event, ProgramExited | ProgramFailed):
                        self._take_end(event)
                for start in list(self._starts.values()):
                    self._check(start)
        except LaunchError as error:
            self._over = str(error)
        finally:
            self._is_over = True
            if self._over:
                self._died(self._over, self._was_wanted)
            for start in (*self._starts.values(), *self._requested):
                start.finish(ClusterError(self._over or "the cluster is closed"))

    def _wait(self) -> None:
        """Wait for the launcher, a daemon, a request or a deadline."""
        poll = select.poll()
        for fd in (self._wake_fd, self._launcher.fileno()):
            poll.register(fd, select.POLLIN)
        starts = self._starts.values()
        for start in starts:
            if start.daemon.fileno() >= 0 and not start.is_ending:
                poll.register(start.daemon.fileno(), select.POLLIN)
        due_s = min((start.deadline_s for start in starts), default=None)
        wait_ms = None if due_s is None else max(0.0, due_s - time.monotonic()) * 1000
        for fd, _ in poll.poll(wait_ms):
            if fd == self._wake_fd:
                os.eventfd_read(self._wake_fd)
            elif fd != self._launcher.fileno():
                self._listen(next(start for start in starts if start.daemon.fileno() == fd))

    def _take(self, start: _Start) -> None:
        daemon = start.daemon
        if daemon in self._starts:
            start.finish(ClusterError(f"{daemon.name} is being started already"))
            return
        self._starts[daemon] = start
        if daemon.is_launched:
            start.is_ending = True
            self._launcher.kill(daemon.launch_id)
            self._launcher.flush()
        else:
            self._launch(daemon)

    def _launch(self, daemon: Daemon) -> None:
        self._launch_count += 1
        daemon.launch(self._launcher, self._launch_count)
        self._introduce(daemon)

    def _listen(self, start: _Start) -> None:
        try:
            start.daemon.listen()
        except ValueError:
            self._fail(start, failure(start.daemon, "did not report that it is ready"))

    def _check(self, start: _Start) -> None:
        """Check whether a start has succeeded, or has failed."""
        daemon = start.daemon
        if start.is_ending:
            pass
        elif daemon.refusal:
            self._fail(start, refused(daemon))
            return
        elif daemon.ready is not None and daemon.pid:
            del self._starts[daemon]
            start.finish()
            if daemon is self._master:
                return
            if daemon not in self._workers:
                self._workers.append(daemon)
            self._restarts_left[daemon] = RESTARTS_MAX
            return
        if time.monotonic() >= start.deadline_s:
            self._fail(start, failure(daemon, "was not ready in time"))

    def _fail(self, start: _Start, error: ClientError) -> None:
        daemon = start.daemon
        del self._starts[daemon]
        self._launcher.kill(daemon.launch_id)
        self._launcher.flush()
        if daemon is self._master:
            self._over = str(error)
        elif daemon not in self._workers:
            daemon.close()
        start.finish(error)

    def _find(self, launch_id: int) -> Daemon:
        daemons = (
            self._master, *self._services, *self._workers, *self._starts, *self._restarts_left
        )  # fmt: skip
        found = next((daemon for daemon in daemons if daemon.launch_id == launch_id), None)
        return found or Daemon("a worker that was not started again", "", "", (), self._master.log)

    def _take_end(self, event: ProgramExited | ProgramFailed) -> None:
        """Restart a daemon that has ended, or end the cluster."""
        daemon = self._find(event.launch_id)
        daemon.pid, daemon.is_launched = 0, False
        end = end_in_words(event)
        start = self._starts.get(daemon)
        if daemon is self._master:
            # Exit status 0 means that a user has shut it down, by HTTP or by a signal.
            self._was_wanted = isinstance(event, ProgramExited) and event.exit_status == 0
            self._master_ended(start, end)
        elif daemon in self._services:
            self._service_ended(daemon, end)
        elif start is not None and start.is_ending:
            start.is_ending = False
            self._launch(daemon)
        elif start is not None:
            if daemon.fileno() >= 0:
                self._listen(start)  # its last line; it has ended, so this does not wait
            if daemon in self._starts:
                error = failure(daemon, f"{end} before it was ready")
                if daemon.refusal:
                    error = refused(daemon)
                self._fail(start, error)
            self._restart(daemon, end)
        elif (
            isinstance(event, ProgramExited) and event.exit_status == 0 and self._has_others(daemon)
        ):
            self._restarts_left.pop(daemon, None)  # it was drained, or a user has ended it
            if daemon in self._workers:
                self._workers.remove(daemon)
                daemon.close()
        else:
            self._restart(daemon, end)

    def _master_ended(self, start: _Start | None, end: str) -> None:
        """Restart the master at the same addresses, unless it was shut down, refuses to start, or
        was restarted too often. The workers go on meanwhile, and connect to it again.
        """
        master = self._master
        if start is not None:
            del self._starts[master]
            if master.fileno() >= 0:
                self._listen(start)  # its last line; it has ended, so this does not wait
        if self._over:
            return
        if self._was_wanted:
            self._over = "the cluster was shut down"
        elif master.refusal:
            self._over = f"the master could not be restarted: {master.refusal}"
        elif not self._has_journal:
            self._over = f"master {end}"
        elif not self._master_restarts.permits(time.monotonic()):
            self._over = (
                f"master {end}; it was restarted {MASTER_RESTARTS_MAX} times within "
                f"{MASTER_RESTARTS_WINDOW_S:g} s, and is not restarted again"
            )
        else:
            master.note(f"master {end}, and is restarted")
            self._starts[master] = _Start(master, MASTER_START_TIMEOUT_S)
            self._launch(master)

    def _service_ended(self, daemon: Daemon, end: str) -> None:
        if self._services[daemon].permits(time.monotonic()):
            daemon.note(f"{daemon.name} {end}, and is restarted")
            self._launch(daemon)
        elif not self._over:
            self._over = (
                f"{daemon.name} {end}; it was restarted {MASTER_RESTARTS_MAX} times within "
                f"{MASTER_RESTARTS_WINDOW_S:g} s, and is not restarted again"
            )

    def _has_others(self, daemon: Daemon) -> bool:
        """Whether the cluster has other workers."""
        return any(other is not daemon for other in self._workers)

    def _restart(self, daemon: Daemon, end: str) -> None:
        if daemon not in self._restarts_left:
            return  # it was never ready, or is no longer restarted
        if self._restarts_left[daemon] > 0:
            self._restarts_left[daemon] -= 1
            self._launch(daemon)
            return
        self._restarts_left.pop(daemon)
        if not self._restarts_left:
            self._launcher.kill(self._master.launch_id)
            self._launcher.flush()
            self._over = (
                f"{daemon.name} {end} for the {RESTARTS_MAX + 1}th time, and was the last worker"
            )
