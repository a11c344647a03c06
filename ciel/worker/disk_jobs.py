"""The disk jobs of this process: each waits until its device admits it (CIB-40).

First the policy of this process (`core.admission`), which knows sizes; then the line of all
processes of this host (`storage.tokens`), which knows who came first. A job holds no slot and no
thread while it waits. What lies in memory, and what is small, waits for nobody.
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
from ciel.net.turns import DelayedCall
from ciel.storage.devices import Device, Kind, device_of
from ciel.storage.errors import StorageError
from ciel.storage.tokens import Claim, sweep

log = Logger()

SMALL_BYTES = 64 * 1024
"""Not worth a token, which costs as much time as such a file in the page cache."""

LAPSE_S = 0.5
LAPSE_FACTOR = 4
"""A job whose bytes come by a network keeps its token for half a second and four times what a disk
needs for them. What takes longer leaves the disk idle, and should not keep others from it."""

T = TypeVar("T")


class Ticket:
    """A job was admitted. `leave` when it is done, whichever way; twice is once."""

    def __init__(self, leave: Callable[[bool], None] | None = None) -> None:
        self._leave = leave
        self._lapse: DelayedCall | None = None

    def lapse_after(self, reactor: Any, delay_s: float) -> None:
        """Leave by itself after a time, as one that says nothing of the device."""
        self._lapse = reactor.callLater(delay_s, self.leave, is_good=False)

    def leave(self, *, is_good: bool = True) -> None:
        """Let others in. `is_good`: how long it took says how fast the device is."""
        if self._lapse is not None and self._lapse.active():
            self._lapse.cancel()
        leave, self._leave = self._leave, None
        if leave is not None:
            leave(is_good)


class Admit(Protocol):
    """How those wait who always work in one place: as `DiskJobs.enter`, but for the path."""

    def __call__(
        self, size_bytes: int, *, within_s: float | None = None, by_network: bool = False
    ) -> Deferred[Ticket]: ...


def at_once(
    size_bytes: int, *, within_s: float | None = None, by_network: bool = False
) -> Deferred[Ticket]:
    """Admit whoever comes, as in memory."""
    return succeed(Ticket())


class DiskJobs:
    """All disk jobs of a process. `changed` is called when more or fewer are pending."""

    def __init__(
        self,
        reactor: Any,
        policy: Policy,
        changed: Callable[[], object] = lambda: None,
        *,
        find: Callable[[str | os.PathLike[str]], Device] = device_of,
    ) -> None:
        self._reactor = reactor
        self._find = find
        self._policy = policy
        self._changed = changed
        self._lines: dict[str, _Line] = {}  # by the names of devices
        self._found: dict[int, _Line | None] = {}  # by the numbers of file systems
        self._turns: set[threading.Event] = set()  # of threads that wait
        self._is_closed = False
        sweep()

    def line_of(self, path: str | os.PathLike[str]) -> _Line | None:
        """Return the line of the device that a path lies on; None if it has no limit."""
        try:
            number = os.stat(path).st_dev
            if number not in self._found:
                self._found[number] = self._line(self._find(path))
        except OSError as error:
            log.warn("the device of {path} is not known: {error}", path=path, error=error)
            return None
        return self._found[number]

    def _line(self, device: Device) -> _Line | None:
        if not device.is_limited:
            return None
        if device.name not in self._lines:
            self._lines[device.name] = _Line(self._reactor, device, self._policy, self._changed)
        return self._lines[device.name]

    def enter(
        self, path: str | os.PathLike[str], size_bytes: int, *, within_s: float | None = None,
        by_network: bool = False,
    ) -> Deferred[Ticket]:  # fmt: skip
        """Wait until a job of so many bytes on a path that exists may begin. `within_s`: then it
        begins all the same. `by_network`: its bytes come from elsewhere or go there, and its ticket
        lapses if they are slow. Cancelling gives the place up.
        """
        line = None
        if size_bytes > SMALL_BYTES and not self._is_closed:
            line = self.line_of(path)
        if line is None:
            return succeed(Ticket())
        admitted: Deferred[Ticket] = Deferred(line.give_up)
        line.request(admitted, size_bytes)
        if within_s is not None and not admitted.called:
            due = self._reactor.callLater(within_s, line.overrun, admitted)
            admitted.addBoth(_cancelling(due))
        if by_network:
            delay_s = LAPSE_S + LAPSE_FACTOR * size_bytes / DEFAULT_BYTES_PER_S
            admitted.addCallback(_lapsing, self._reactor, delay_s)
        return admitted

    def run(
        self, path: str | os.PathLike[str], size_bytes: int, job: Callable[..., T], *arguments: Any
    ) -> Deferred[T]:
        """Run a job in a thread once it is admitted."""

        def begin(ticket: Ticket) -> Deferred[T]:
            def leave(result: Any) -> Any:
                ticket.leave(is_good=not isinstance(result, Failure))
                return result

            # Not one of the reactor's threads: a disk that is stuck would have them all in time.
            return _in_thread(self._reactor, job, *arguments).addBoth(leave)

        return self.enter(path, size_bytes).addCallback(begin)

    @contextmanager
    def turn(self, path: str | os.PathLike[str], size_bytes: int) -> Iterator[None]:
        """Do a job in a thread of one's own, not the reactor's, once it is admitted, or when these
        jobs are closed.
        """
        admitted = threading.Event()
        tickets: list[Ticket] = []

        def enter() -> None:
            waiting = self.enter(path, size_bytes)
            waiting.addCallbacks(tickets.append, lambda failure: failure.trap(CancelledError))
            waiting.addBoth(lambda _: admitted.set())

        def leave() -> None:
            for ticket in tickets:
                ticket.leave()

        self._turns.add(admitted)
        if not self._is_closed:
            self._reactor.callFromThread(enter)
            admitted.wait()
        self._turns.discard(admitted)
        try:
            yield
        finally:
            self._reactor.callFromThread(leave)

    @property
    def waiting_count(self) -> int:
        """How many jobs wait, for the policy of this process or for others on this host."""
        return sum(len(line.waiting) for line in self._lines.values())

    @property
    def pending_bytes(self) -> int:
        """Of all jobs that wait or run."""
        return sum(line.admission.pending_bytes for line in self._lines.values())

    def queue_at(self, path: str | os.PathLike[str]) -> tuple[int, float]:
        """Return the bytes that are pending on a path's device, and about how long they take."""
        line = self.line_of(path)
        return (0, 0.0) if line is None else (line.admission.pending_bytes, line.admission.busy_s)

    def rows(self) -> list[dict[str, Any]]:
        """Tell of every device, for people."""
        return [line.row() for line in self._lines.values()]

    def close(self) -> None:
        """Admit nobody any more, and have those that wait fail."""
        self._is_closed = True
        for line in self._lines.values():
            line.close()
        for admitted in list(self._turns):
            admitted.set()
        sweep()


class _Line:
    """The jobs of one device, known by what is told when they are admitted."""

    def __init__(
        self, reactor: Any, device: Device, policy: Policy, changed: Callable[[], object]
    ) -> None:
        self.device = device
        self.admission: Admission[Deferred[Ticket]] = Admission(
            policy, is_rotating=device.kind is Kind.ROTATING
        )
        self.waiting: dict[Deferred[Ticket], _Watch | None] = {}
        self._claims: dict[Deferred[Ticket], Claim] = {}
        self._reactor = reactor
        self._policy = policy
        self._changed = changed
        self._is_warned = False  # that the host's tokens cannot be used
        self._is_closed = False

    def request(self, job: Deferred[Ticket], size_bytes: int) -> None:
        self.waiting[job] = None
        self._begin(self.admission.request(job, size_bytes, self._reactor.seconds()))
        self._changed()

    def _begin(self, jobs: list[Deferred[Ticket]]) -> None:
        for job in () if self._is_closed else jobs:
            limit = self.admission.limit
            if limit is None:
                self._admit(job)
            else:
                joining = deferToThread(self._join, limit)
                joining.addCallbacks(self._joined, self._not_joined, (job,), {}, (job,))

    def _join(self, limit: int) -> Claim:
        claim = Claim(self.device.name, limit)
        if self._is_closed:  # perhaps nobody learns of it any more
            claim.release()
        return claim

    def _joined(self, claim: Claim, job: Deferred[Ticket]) -> None:
        if job not in self.waiting:  # given up meanwhile
            claim.release()
        elif claim.look():
            self._claims[job] = claim
            self._admit(job)
        else:
            self.waiting[job] = watch = _Watch(self, job, claim)
            self._reactor.addReader(watch)

    def _not_joined(self, failure: Failure, job: Deferred[Ticket]) -> None:
        if not isinstance(failure.value, StorageError):
            log.failure("the host's line of disk jobs could not be joined", failure)
        elif not self._is_warned:
            log.warn("{error}", error=failure.getErrorMessage())
        self._is_warned = True
        if job in self.waiting:
            self._admit(job)

    def looked(self, watch: _Watch) -> None:
        """Something has changed in the host's line."""
        if watch.claim.look():
            self._reactor.removeReader(watch)
            self._claims[watch.job] = watch.claim
            self._admit(watch.job)

    def _admit(self, job: Deferred[Ticket]) -> None:
        del self.waiting[job]
        self.admission.started(job, self._reactor.seconds())
        job.callback(Ticket(lambda is_good: self._leave(job, is_good)))

    def _leave(self, job: Deferred[Ticket], is_good: bool) -> None:
        claim = self._claims.pop(job, None)
        if claim is not None:
            claim.release()
        self._begin(self.admission.end(job, self._reactor.seconds(), is_good=is_good))
        self._changed()

    def give_up(self, job: Deferred[Ticket]) -> None:
        """Take a job that waits out of every line."""
        watch = self.waiting.pop(job)
        if watch is not None:
            self._reactor.removeReader(watch)
            watch.claim.release()
        self._leave(job, False)

    def overrun(self, job: Deferred[Ticket]) -> None:
        """Begin a job that has waited for as long as it can; it counts no more."""
        self.give_up(job)
        job.callback(Ticket())

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
        while self._claims:
            self._claims.popitem()[1].release()


class _Watch:
    """A claim that waits, as the reactor wants to see it."""

    def __init__(self, line: _Line, job: Deferred[Ticket], claim: Claim) -> None:
        self._line = line
        self.job = job
        self.claim = claim

    def fileno(self) -> int:
        return self.claim.fileno()

    def logPrefix(self) -> str:
        return "disk jobs"

    def doRead(self) -> None:
        self._line.looked(self)

    def connectionLost(self, reason: Failure) -> None:
        self._line.looked(self)


def _lapsing(ticket: Ticket, reactor: Any, delay_s: float) -> Ticket:
    ticket.lapse_after(reactor, delay_s)
    return ticket


def _cancelling(due: DelayedCall) -> Callable[[T], T]:
    def cancel(result: T) -> T:
        if due.active():
            due.cancel()
        return result

    return cancel


def _in_thread(reactor: Any, job: Callable[..., T], *arguments: Any) -> Deferred[T]:
    """Run a call in a thread of its own, which does not hold up the end of the process."""
    done: Deferred[T] = Deferred(lambda _: None)

    def tell(result: Any) -> None:
        if not done.called:
            done.callback(result) if not isinstance(result, Failure) else done.errback(result)

    def run() -> None:
        try:
            result: Any = job(*arguments)
        except BaseException as error:
            result = Failure(error)  # type: ignore[no-untyped-call]  # Twisted's own
        reactor.callFromThread(tell, result)

    threading.Thread(target=run, name="disk job", daemon=True).start()
    return done
