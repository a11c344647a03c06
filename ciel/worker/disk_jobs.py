"""Admission of disk jobs: each job waits for a permit of its device (requirement CIB-40).

First the policy of this process (`core.admission`) admits the job, by its size; then the queue of
all processes of this host (`storage.device_semaphores`), in order of arrival, or a limit that
processes of several kernels share (`share`), in no order. A job that waits in
`enter` or `run` holds no thread; `turn` blocks the thread of its caller. Jobs in memory and small
jobs do not wait.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

from twisted.internet.defer import CancelledError, Deferred, succeed
from twisted.internet.threads import deferToThread
from twisted.logger import Logger
from twisted.python.failure import Failure

from ciel.core.admission import DEFAULT_BYTES_PER_S, Admission, Policy
from ciel.net.ticks import DelayedCall
from ciel.storage.device_semaphores import QueueEntry, sweep
from ciel.storage.devices import Device, Kind, device_of
from ciel.storage.errors import StorageError
from ciel.storage.interface import DiskLimit

log = Logger()

SMALL_BYTES = 64 * 1024
"""Smaller jobs take no permit: it costs as much time as writing so few bytes to the page cache."""

LAPSE_S = 0.5
LAPSE_FACTOR = 4
"""The time after which a job whose bytes come over the network loses its permit.

It is half a second plus four times the time that a disk needs for the bytes. A slower job leaves
the disk idle, so it must not block other jobs.
"""

TRY_S = 0.25
"""How long a thread waits for a limit of several kernels before it looks whether its job has left.

The limit wakes it sooner when a job ends. Between kernels, and after the death of a process, the
image notices that within 0.1 s (`IO_LOOK_US` in scc/src/client.c).
"""

T = TypeVar("T")


class Permit:
    """The permit of a job to use its device.

    Its owner calls `release` when the job has ended in any way; more calls do nothing.
    """

    def __init__(self, release: Callable[[bool], None] | None = None) -> None:
        self._release = release
        self._lapse: DelayedCall | None = None

    def lapse_after(self, reactor: Any, delay_s: float) -> None:
        """Release it after a time. The job then does not count for the device's speed."""
        self._lapse = reactor.callLater(delay_s, self.release, is_good=False)

    def release(self, *, is_good: bool = True) -> None:
        """Admit other jobs. `is_good`: the time that the job took shows how fast the device is."""
        if self._lapse is not None and self._lapse.active():
            self._lapse.cancel()
        release, self._release = self._release, None
        if release is not None:
            release(is_good)


class Admit(Protocol):
    """Admits jobs on one path, as `DiskJobs.enter` does on any path."""

    def __call__(
        self, size_bytes: int, *, within_s: float | None = None, by_network: bool = False
    ) -> Deferred[Permit]: ...


def at_once(
    size_bytes: int, *, within_s: float | None = None, by_network: bool = False
) -> Deferred[Permit]:
    """Admit every job at once, as for stores in memory."""
    return succeed(Permit())


class DiskJobs:
    """The disk jobs of a process."""

    def __init__(
        self,
        reactor: Any,
        policy: Policy,
        *,
        find: Callable[[str | os.PathLike[str]], Device] = device_of,
    ) -> None:
        self._reactor = reactor
        self._find = find
        self._policy = policy
        self._notify: Callable[[], object] = lambda: None
        self._queues: dict[str, _DeviceQueue] = {}  # by the names of devices
        self._found: dict[int, _DeviceQueue | None] = {}  # by the numbers of file systems
        self._waiting: set[threading.Event] = set()  # for each waiting thread
        self._is_closed = False
        sweep()

    def share(self, path: str | os.PathLike[str], at_most: int, limit: DiskLimit) -> None:
        """Limit the jobs on a path's device together with the processes of other kernels.

        Raises OSError if the path does not exist.
        """
        queue = _DeviceQueue(self._reactor, self._find(path), Policy(at_most), self._changed, limit)
        self._queues[f"shared {queue.device.name}"] = queue
        self._found[os.stat(path).st_dev] = queue

    def on_change(self, notify: Callable[[], object]) -> None:
        """Call this whenever more or fewer jobs are pending."""
        self._notify = notify

    def _changed(self) -> None:
        self._notify()

    def queue_of(self, path: str | os.PathLike[str]) -> _DeviceQueue | None:
        """Return the queue of the device on which a path lies.

        None if the device has no limit, or cannot be determined.
        """
        try:
            number = os.stat(path).st_dev
            if number not in self._found:
                self._found[number] = self._queue(self._find(path))
        except OSError as error:
            log.warn("the device of {path} is not known: {error}", path=path, error=error)
            return None
        return self._found[number]

    def _queue(self, device: Device) -> _DeviceQueue | None:
        if not device.is_limited:
            return None
        if device.name not in self._queues:
            self._queues[device.name] = _DeviceQueue(
                self._reactor, device, self._policy, self._changed
            )
        return self._queues[device.name]

    def enter(
        self, path: str | os.PathLike[str], size_bytes: int, *, within_s: float | None = None,
        by_network: bool = False,
    ) -> Deferred[Permit]:  # fmt: skip
        """Wait until a job of some size may start on an existing path.

        `within_s`: the job starts after this time in any case. `by_network`: its bytes come over
        the network, and its permit lapses if they are slow. Cancel the result to leave the queue.
        """
        queue = None
        if size_bytes > SMALL_BYTES and not self._is_closed:
            queue = self.queue_of(path)
        if queue is None:
            return succeed(Permit())
        admitted: Deferred[Permit] = Deferred(queue.give_up)
        queue.request(admitted, size_bytes)
        if within_s is not None and not admitted.called:
            due = self._reactor.callLater(within_s, queue.overrun, admitted)
            admitted.addBoth(_cancelling(due))
        if by_network:
            delay_s = LAPSE_S + LAPSE_FACTOR * size_bytes / DEFAULT_BYTES_PER_S
            admitted.addCallback(_lapsing, self._reactor, delay_s)
        return admitted

    def run(
        self, path: str | os.PathLike[str], size_bytes: int, job: Callable[..., T], *arguments: Any
    ) -> Deferred[T]:
        """Run a job in a thread once the device admits it."""

        def begin(permit: Permit) -> Deferred[T]:
            def leave(result: Any) -> Any:
                permit.release(is_good=not isinstance(result, Failure))
                return result

            # Not one of the reactor's threads: a disk that hangs would occupy all of them in time.
            return in_daemon_thread(self._reactor, job, *arguments).addBoth(leave)

        return self.enter(path, size_bytes).addCallback(begin)

    @contextmanager
    def turn(self, path: str | os.PathLike[str], size_bytes: int) -> Iterator[None]:
        """A context for a job in the calling thread, which is not the reactor's.

        Entering it waits until the device admits the job, or until `close`.
        """
        admitted = threading.Event()
        permits: list[Permit] = []

        def enter() -> None:
            waiting = self.enter(path, size_bytes)
            waiting.addCallbacks(permits.append, lambda failure: failure.trap(CancelledError))
            waiting.addBoth(lambda _: admitted.set())

        def leave() -> None:
            for permit in permits:
                permit.release()

        self._waiting.add(admitted)
        if not self._is_closed:
            self._reactor.callFromThread(enter)
            admitted.wait()
        self._waiting.discard(admitted)
        try:
            yield
        finally:
            self._reactor.callFromThread(leave)

    @property
    def waiting_count(self) -> int:
        """How many jobs wait, for this process's policy or for other processes of this host."""
        return sum(len(queue.waiting) for queue in self._queues.values())

    @property
    def pending_bytes(self) -> int:
        """The bytes of all jobs that wait or run."""
        return sum(queue.admission.pending_bytes for queue in self._queues.values())

    def queue_at(self, path: str | os.PathLike[str]) -> tuple[int, float]:
        """Return the bytes that are pending on a path's device, and about how long they take."""
        queue = self.queue_of(path)
        return (
            (0, 0.0) if queue is None else (queue.admission.pending_bytes, queue.admission.busy_s)
        )

    def limit_at(self, path: str | os.PathLike[str]) -> tuple[str, int]:
        """Return the name of a path's device, and its limit. 0: none; then the name is empty."""
        queue = self.queue_of(path)
        limit = None if queue is None else queue.admission.limit
        return ("", 0) if queue is None or limit is None else (queue.device.name, limit)

    def rows(self) -> list[dict[str, Any]]:
        """Describe every device, for people."""
        return [queue.row() for queue in self._queues.values()]

    def close(self) -> None:
        """Stop queueing. Jobs that arrive later start at once.

        The Deferreds of waiting jobs are cancelled; threads that wait in `turn` continue.
        """
        self._is_closed = True
        for queue in self._queues.values():
            queue.close()
        for admitted in list(self._waiting):
            admitted.set()
        sweep()


class _DeviceQueue:
    """The queue of one device. Jobs are known by their Deferred."""

    def __init__(
        self, reactor: Any, device: Device, policy: Policy, changed: Callable[[], object],
        shared: DiskLimit | None = None,
    ) -> None:  # fmt: skip
        """`shared`: the limit of all kernels, which replaces the queue of this host."""
        self.device = device
        self.admission: Admission[Deferred[Permit]] = Admission(
            policy, is_rotating=device.kind is Kind.ROTATING
        )
        self.waiting: dict[Deferred[Permit], _Watch | None] = {}
        self._entries: dict[Deferred[Permit], QueueEntry | SharedEntry] = {}
        self._shared = shared
        self._joining: set[threading.Thread] = set()  # that wait for `shared`
        self._reactor = reactor
        self._policy = policy
        self._changed = changed
        self._is_warned = False  # about an unusable queue of the host
        self._is_closed = False

    def request(self, job: Deferred[Permit], size_bytes: int) -> None:
        self.waiting[job] = None
        self._begin(self.admission.request(job, size_bytes, self._reactor.seconds()))
        self._changed()

    def _begin(self, jobs: list[Deferred[Permit]]) -> None:
        for job in () if self._is_closed else jobs:
            limit = self.admission.limit
            if limit is None:
                self._admit(job)
            else:
                joining: Deferred[QueueEntry | SharedEntry]
                if self._shared is None:
                    joining = deferToThread(self._join, limit)
                else:  # it may wait for long
                    joining = in_daemon_thread(self._reactor, self._join_shared, job, limit)
                joining.addCallbacks(self._joined, self._not_joined, (job,), {}, (job,))

    def _join(self, limit: int) -> QueueEntry:
        entry = QueueEntry(self.device.name, limit)
        if self._is_closed:  # `close` does not know this entry
            entry.release()
        return entry

    def _join_shared(self, job: Deferred[Permit], limit: int) -> SharedEntry:
        """Wait until the limit of all kernels admits a job, or the job leaves the queue."""
        assert self._shared is not None
        entry, own = SharedEntry(self._shared), threading.current_thread()
        self._joining.add(own)
        try:
            while not self._is_closed and job in self.waiting:
                if entry.begin(limit):
                    break
        finally:
            self._joining.discard(own)
        if self._is_closed:
            entry.release()
        return entry

    def _joined(self, entry: QueueEntry | SharedEntry, job: Deferred[Permit]) -> None:
        if job not in self.waiting:  # it has left the queue
            entry.release()
        elif isinstance(entry, SharedEntry) or entry.check():
            self._entries[job] = entry
            self._admit(job)
        else:
            self.waiting[job] = watch = _Watch(self, job, entry)
            self._reactor.addReader(watch)

    def _not_joined(self, failure: Failure, job: Deferred[Permit]) -> None:
        if not isinstance(failure.value, StorageError):
            log.failure(
                "a disk job could not join the queue of this host; it starts without waiting",
                failure,
            )
        elif not self._is_warned:
            log.warn("{error}", error=failure.getErrorMessage())
        self._is_warned = True
        if job in self.waiting:
            self._admit(job)

    def queue_changed(self, watch: _Watch) -> None:
        """The queue of the host has changed."""
        if watch.entry.check():
            self._reactor.removeReader(watch)
            self._entries[watch.job] = watch.entry
            self._admit(watch.job)

    def _admit(self, job: Deferred[Permit]) -> None:
        del self.waiting[job]
        self.admission.started(job, self._reactor.seconds())
        job.callback(Permit(lambda is_good: self._leave(job, is_good)))

    def _leave(self, job: Deferred[Permit], is_good: bool) -> None:
        entry = self._entries.pop(job, None)
        if entry is not None:
            entry.release()
        self._begin(self.admission.end(job, self._reactor.seconds(), is_good=is_good))
        self._changed()

    def give_up(self, job: Deferred[Permit]) -> None:
        """Remove a waiting job from the queues."""
        watch = self.waiting.pop(job)
        if watch is not None:
            self._reactor.removeReader(watch)
            watch.entry.release()
        self._leave(job, False)

    def overrun(self, job: Deferred[Permit]) -> None:
        """Start a job whose maximum waiting time has passed, without counting it."""
        self.give_up(job)
        job.callback(Permit())

    def row(self) -> dict[str, Any]:
        limit = self.admission.limit
        return {
            "device": self.device.name,
            "kind": self.device.kind.value,
            "policy": str(self._policy),
            "at_a_time": "any number" if limit is None else limit,
            "running": self.admission.running_count,
            "waiting": len(self.waiting),
            "pending_bytes": self.admission.pending_bytes,
            "bytes_per_s": round(self.admission.bytes_per_s),
        }

    def close(self) -> None:
        self._is_closed = True
        for job in list(self.waiting):
            job.cancel()
        for joining in list(self._joining):  # its store closes next
            joining.join(2 * TRY_S)
        while self._entries:
            self._entries.popitem()[1].release()


class SharedEntry:
    """A job that counts in a limit of several kernels from `begin` to `release`."""

    def __init__(self, limit: DiskLimit) -> None:
        self._limit = limit
        self._is_counted = False

    def begin(self, at_most: int) -> bool:
        """Wait for `TRY_S`; return whether the job is counted."""
        self._is_counted = self._limit.begin(at_most, TRY_S)
        return self._is_counted

    def release(self) -> None:
        """End the job, if it is counted; a second call does nothing."""
        is_counted, self._is_counted = self._is_counted, False
        if is_counted:
            self._limit.end()


class _Watch:
    """A waiting entry, as a descriptor of the reactor."""

    def __init__(self, queue: _DeviceQueue, job: Deferred[Permit], entry: QueueEntry) -> None:
        self._queue = queue
        self.job = job
        self.entry = entry

    def fileno(self) -> int:
        return self.entry.fileno()

    def logPrefix(self) -> str:
        return "disk jobs"

    def doRead(self) -> None:
        self._queue.queue_changed(self)

    def connectionLost(self, reason: Failure) -> None:
        self._queue.queue_changed(self)


def _lapsing(permit: Permit, reactor: Any, delay_s: float) -> Permit:
    permit.lapse_after(reactor, delay_s)
    return permit


def _cancelling(due: DelayedCall) -> Callable[[T], T]:
    def cancel(result: T) -> T:
        if due.active():
            due.cancel()
        return result

    return cancel


def in_daemon_thread(reactor: Any, job: Callable[..., T], *arguments: Any) -> Deferred[T]:
    """Run a call in a new thread, which does not delay the exit of the process."""
    done: Deferred[T] = Deferred(lambda _: None)

    def report(result: Any) -> None:
        if not done.called:
            done.callback(result) if not isinstance(result, Failure) else done.errback(result)

    def run() -> None:
        try:
            result: Any = job(*arguments)
        except BaseException as error:
            result = Failure(error)  # type: ignore[no-untyped-call]  # Twisted's own
        reactor.callFromThread(report, result)

    threading.Thread(target=run, name="disk job", daemon=True).start()
    return done
