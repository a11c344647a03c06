"""The resources that all attempts on a worker share: store, launcher, and owner of reports."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol
from weakref import WeakValueDictionary

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from ciel.core.events import TaskFault, TaskPrinted
from ciel.core.ids import ObjectId
from ciel.core.refs import INLINE_MAX_BYTES, Concrete, Reference, Sweetheart
from ciel.core.tasks import Isolation, TaskSpec
from ciel.execution.executor import Child, Executor
from ciel.execution.kept import KeptAttempts
from ciel.execution.report import device_text, logged_name
from ciel.launch.isolation import Surroundings
from ciel.net.channels import Channels
from ciel.net.ticks import Ticks
from ciel.storage.errors import ChangedObjectError, ObjectNotFoundError
from ciel.storage.interface import Fingerprint, ObjectReader, ObjectStore
from ciel.storage.space import lacks_room
from ciel.worker.attempts.launching import Launching
from ciel.worker.attempts.scratch import ScratchPool
from ciel.worker.checksums import Checksums
from ciel.worker.interactive.attached import AttachedProcess
from ciel.worker.limits.sandboxes import Sandboxes
from ciel.worker.logs import JobLogs
from ciel.worker.state.orders import Key
from ciel.worker.state_boards import StateBoards
from ciel.worker.streams.growing import Streams
from ciel.worker.transfer.parts import Part

log = Logger()

Losses = tuple[tuple[ObjectId, str], ...]
"""Objects, each with the location where it is missing."""


class AttemptsOwner(Protocol):
    """Receives reports of attempts.

    The end of each is reported exactly once, by `attempt_ended` or by `inputs_gone`.
    """

    def attempt_ended(
        self,
        key: Key,
        published: tuple[Reference, ...],
        fault: TaskFault | None,
        run_s: float,
        exit_status: int | None = None,
    ) -> None: ...

    def inputs_gone(self, key: Key, losses: Losses, details: str) -> None: ...

    def attached_process_left(self, attached: AttachedProcess, details: str) -> None:
        """An attached process has left while it served no attempt."""

    def attempt_spawned(self, key: Key, child: Child, *, wanted: bool | None = None) -> None: ...

    def child_started_inline(self, key: Key, child: Child) -> None:
        """The program of an attempt has started a child inline; `inline_child_ended` follows."""

    def inline_child_ended(
        self, key: Key, published: tuple[Reference, ...], fault: TaskFault | None, run_s: float
    ) -> None: ...

    def recent(self, object_id: ObjectId) -> Reference | None:
        """Return a small result that was produced here recently."""

    def room(self) -> int | None:
        """Return how many slots have no task to run; None if other workers may have some, too."""

    def streams_opened(self, key: Key, objects: tuple[ObjectId, ...]) -> None: ...

    def outputs_discarded(self, objects: tuple[ObjectId, ...]) -> None:
        """An attempt has committed objects to the store before it failed."""

    def stream_broken(self, object_id: ObjectId, details: str) -> None: ...

    def preferred(self, ref: Sweetheart) -> None:
        """An object is better read here than anywhere else."""

    def printed(self, printed: TaskPrinted) -> None:
        """The log of a job has new lines of an attempt."""

    def waits(self, key: Key) -> None:
        """A running attempt waits for an object or a task, and does not use its disk meanwhile."""

    def fetch(self, ref: Reference, then: Callable[[Losses | None, str], None]) -> None:
        """Fetch an object for a running attempt.

        Calls `then` once the object can be read here, or with the locations where it is missing,
        and the reason.
        """

    def copy_parts(self, ref: Reference, parts: Sequence[Part], fd: int) -> Deferred[bool]:
        """Copy parts of an object that other hosts have into a file; see `PartCopies.copy`."""


@dataclass(frozen=True, slots=True)
class Workplace:
    """The parts of a worker that all attempts use. `netloc`: where it serves its objects."""

    cluster_id: str
    reactor: Any
    ticks: Ticks
    owner: AttemptsOwner
    worker: str
    netloc: str
    executors: Mapping[str, Executor]
    launching: Launching
    store: ObjectStore
    checksums: Checksums
    boards: StateBoards
    streams: Streams
    scratch: ScratchPool
    kept: KeptAttempts
    logs: JobLogs
    channels: Channels | None
    fingerprints: WeakValueDictionary[tuple[int, int], Fingerprint] = field(
        default_factory=WeakValueDictionary
    )
    """The state of each input file when the first of its present readers opened it.

    The reading attempts keep the entries alive.
    """
    sandboxes: Sandboxes = field(default_factory=lambda: Sandboxes(Isolation(), Surroundings()))

    @property
    def here(self) -> frozenset[str]:
        return frozenset((self.netloc,))

    @property
    def device(self) -> str:
        """Describe the device of the work directory, for messages."""
        return device_text(self.scratch.spool)

    @property
    def store_device(self) -> str:
        """Describe the device on which programs write outputs; empty if that is not one place."""
        directories = self.store.directories
        return device_text(directories[0]) if len(directories) == 1 else ""

    @property
    def lacks_room(self) -> bool:
        """Whether the device of the work directory is full."""
        return lacks_room(self.scratch.spool)

    def open(self, object_id: ObjectId, ref: Reference | None) -> ObjectReader:
        """Open an input with a known reference; raises StorageError.

        An input whose size has changed is deleted.
        """
        reader = self.store.open(object_id)
        known = ref.size_bytes if isinstance(ref, Concrete | Sweetheart) else None
        if known in (None, reader.size_bytes):
            return reader
        assert known is not None
        raise self._deleted(reader, known)

    def fingerprint(self, reader: ObjectReader) -> Fingerprint | None:
        """Return the original state of an input that programs could change; None if they cannot.

        An input that differs from the state that a running program found is deleted. Raises
        StorageError.
        """
        found = reader.fingerprint()
        if found is None:
            return None
        if not found.is_named:
            raise ObjectNotFoundError(reader.object_id)
        first = self.fingerprints.setdefault(found.file, found)
        if first != found:
            raise self._deleted(reader, first.size_bytes)
        return first

    def _deleted(self, reader: ObjectReader, size_bytes: int) -> ChangedObjectError:
        """Delete an object that a program has damaged; return the error to raise.

        After that, no other program can read it.
        """
        error = ChangedObjectError(reader.object_id, size_bytes, reader.size_bytes)
        reader.close()
        self.store.delete(reader.object_id)
        log.error("{error}; the worker deletes it", error=error)
        return error

    def prefer(self, ref: Concrete | Sweetheart) -> None:
        """Report that an input is better read here than anywhere else."""
        self.owner.preferred(Sweetheart(ref.id, self.netloc, ref.size_bytes, self.here))

    def log(
        self,
        spec: TaskSpec,
        attempt: int,
        text: str,
        *,
        is_stderr: bool = False,
        is_notice: bool = False,
    ) -> None:
        """Write lines that an attempt printed to the log of its job, and report them.

        `is_notice`: the worker wrote them, not the attempt.
        """
        try:
            start, size_bytes = self.logs.append(spec.job, logged_name(spec.name, spec.id), text)
        except OSError as error:
            log.warn("the log of job {job} cannot be written: {error}", job=spec.job, error=error)
            return
        if size_bytes:
            lines = "".join([f"{line}\n" for line in text.splitlines()])
            is_short = len(lines.encode()) <= INLINE_MAX_BYTES
            self.owner.printed(
                TaskPrinted(
                    spec.id,
                    attempt,
                    start,
                    size_bytes,
                    lines if is_short else "",
                    is_stderr,
                    is_notice,
                )
            )
