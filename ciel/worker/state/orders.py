"""The attempts of a worker's machine, and the orders that it gives to its service."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from ciel.core.events import RECALLED, AssignTask, InputsLost, TaskFault, TaskReported
from ciel.core.ids import ObjectId, TaskId
from ciel.core.offers.resources import Given
from ciel.core.plans import Plan
from ciel.core.refs import Concrete, Future, Reference, Sweetheart, with_text
from ciel.core.tasks import TaskSpec


class Phase(Enum):
    """The phases of an attempt on this worker."""

    FETCHING = "fetching"
    SHORT = "short"  # waits for its resources
    QUEUED = "queued"
    ASKING = "asking"  # waits for a permit of its disk
    RUNNING = "running"
    ENDING = "ending"  # cancelled or out of time; its program is being killed

    __hash__ = object.__hash__


BEFORE_START = (Phase.FETCHING, Phase.SHORT, Phase.QUEUED, Phase.ASKING)


class Disk(Enum):
    """Whether an attempt has a permit of the disk that bounds its speed."""

    NONE = 0
    ASKED = 1
    PERMIT = 2

    __hash__ = object.__hash__


# --- orders for the service -----------------------------------------------------------------------


class FetchObject(NamedTuple):
    """Fetch an object into this worker's store by the first plan that works.

    The answer is `fetched` or `fetch_failed`.
    """

    ref: Reference
    plans: tuple[Plan, ...]


class StartAttempt(NamedTuple):
    """Run a task; answer with `ended` or `inputs_gone`, exactly once.

    `at_most`: launch the program when fewer than this number of programs run; 0: at once.
    `may_run_children`: the program may run tasks that it spawns inline. `taken`: the numbers of the
    outputs that children of an earlier attempt produce. `given`: the indices of the resources that
    it has.
    """

    spec: TaskSpec
    attempt: int
    inputs: tuple[Reference, ...]
    at_most: int
    may_run_children: bool = False
    taken: tuple[int, ...] = ()
    given: Given = ()


class KillAttempt(NamedTuple):
    """End a running program: by SIGTERM, or by SIGKILL."""

    task: TaskId
    attempt: int
    force: bool


class RecallAttempt(NamedTuple):
    """End an attempt with the fault `RECALLED`, unless its program has been launched."""

    task: TaskId
    attempt: int


class AskForDisk(NamedTuple):
    """Ask for a permit of the disk of a task; answer with `disk_admitted`, at most once.

    `size_bytes`: the size of its inputs.
    """

    task: TaskId
    attempt: int
    io: str
    size_bytes: int


class LeaveDisk(NamedTuple):
    """Give an attempt's permit back, or stop asking for it."""

    task: TaskId
    attempt: int


class DeleteObjects(NamedTuple):
    """Delete objects from this worker's store."""

    objects: tuple[ObjectId, ...]


class CompareContents(NamedTuple):
    """Compare objects with copies elsewhere; call `content_differs` for each one that differs.

    The next order deletes them.
    """

    refs: tuple[Concrete, ...]


class AbandonFetch(NamedTuple):
    """End the copy of a stream that broke at its source; answer with `fetch_failed`."""

    object_id: ObjectId


class EndProcesses(NamedTuple):
    """End the processes that wait for these fixed objects: no task will continue in them."""

    objects: tuple[ObjectId, ...]


class LeaveMaster(NamedTuple):
    """Leave the master, and end this worker: it was drained."""


_WHOLE = (Concrete, Sweetheart)
CANCELLED = TaskFault("CANCELLED", "the task was cancelled")
ABORTED = TaskFault("ABORTED", "a user aborted the task")
ABORTED_HERE = TaskFault("ABORTED", "a user aborted the task on its worker")

Order = (
    FetchObject | AbandonFetch | AskForDisk | LeaveDisk | StartAttempt | KillAttempt
    | RecallAttempt | DeleteObjects | CompareContents | EndProcesses | LeaveMaster
)  # fmt: skip
Key = tuple[TaskId, int]


class Attempt:
    """One attempt at a task on this worker."""

    __slots__ = (
        "disk", "ending", "inputs", "key", "memory_bytes", "phase", "position", "slots", "spec",
        "streams", "taken",
    )  # fmt: skip

    def __init__(self, message: AssignTask) -> None:
        self.spec = message.spec
        self.key: Key = (message.spec.id, message.attempt)
        self.inputs = message.inputs
        self.taken = message.taken
        needs = message.spec.needs
        self.slots = needs.slots
        self.memory_bytes = needs.memory_bytes
        self.phase = Phase.FETCHING
        self.disk = Disk.NONE
        self.position: int | None = None  # in the queue, which it keeps if it has to fetch again
        self.ending: TaskFault | InputsLost | None = None  # the reason for which it is being killed
        self.streams: tuple[ObjectId, ...] = ()  # outputs that others may read while it writes

    @property
    def input_bytes(self) -> int:
        """The known size of its inputs."""
        stored = [ref for ref in self.inputs if isinstance(ref, _WHOLE)]
        return sum([ref.size_bytes or 0 for ref in stored])

    def is_unneeded(self, ref: Reference) -> bool:
        """Return whether an input is an alternative that the attempt does not need.

        It is if it is a future, and the task has any-of inputs. Such a task is never dispatched
        eagerly, so its other inputs are no futures.
        """
        return self.spec.any_count > 0 and isinstance(ref, Future)

    def knows(self, object_id: ObjectId) -> bool:
        """Return whether the attempt knows a location of the complete object.

        If so, it does not read a growing one.
        """
        return any(ref.id == object_id and type(ref) in _WHOLE for ref in self.inputs)

    def reads(self, object_id: ObjectId) -> bool:
        """Return whether the program may read an object as an input."""
        return any(ref.id == object_id and not self.is_unneeded(ref) for ref in self.inputs)


def returned(attempt: Attempt) -> TaskReported:
    """Return the report that returns an eagerly dispatched attempt to the master."""
    fault = TaskFault(RECALLED, "no task on this worker produces its inputs")
    return TaskReported(*attempt.key, (), fault, 0.0)


def ending_of(cause: TaskFault, fault: TaskFault | None) -> TaskFault:
    """Return why an attempt was ended; after a timeout, also how its program ended."""
    if cause.reason != "TIMED_OUT" or fault is None:
        return cause
    how, end, more = fault.text.partition("\n")
    text = f"{how}: {cause.text}{end}{more}"
    return TaskFault(cause.reason, with_text(fault.details, text))
