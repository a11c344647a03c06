"""What the worker's machine keeps of an attempt, and what it orders its service to do."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from ciel.core.events import RECALLED, AssignTask, InputsLost, TaskFault, TaskReported
from ciel.core.ids import ObjectId, TaskId
from ciel.core.plans import Plan
from ciel.core.refs import Concrete, Future, Reference, Sweetheart, with_text
from ciel.core.tasks import TaskSpec


class Phase(Enum):
    """What an attempt on this worker is doing."""

    FETCHING = "fetching"
    QUEUED = "queued"
    RUNNING = "running"
    ENDING = "ending"  # called off or out of time; its program is being killed

    __hash__ = object.__hash__


# --- orders for the service -----------------------------------------------------------------------


class FetchObject(NamedTuple):
    """Get an object into the own store by the first plan that works; answer with `fetched`."""

    ref: Reference
    plans: tuple[Plan, ...]


class StartAttempt(NamedTuple):
    """Run a task; answer with `ended`, exactly once, whatever happens. `at_most`: its program is to
    wait until fewer than that run here; 0: it is not to wait. `may_run_children`: within itself.
    """

    spec: TaskSpec
    attempt: int
    inputs: tuple[Reference, ...]
    at_most: int
    may_run_children: bool = False


class KillAttempt(NamedTuple):
    """End a running program: politely, or at once."""

    task: TaskId
    attempt: int
    force: bool


class RecallAttempt(NamedTuple):
    """End an attempt whose program still waits, with the fault `RECALLED`; else let it be."""

    task: TaskId
    attempt: int


class DeleteObjects(NamedTuple):
    """Delete objects from the own store."""

    objects: tuple[ObjectId, ...]


class AbandonFetch(NamedTuple):
    """End a fetch of what grows elsewhere and broke there; it is answered by `fetch_failed`."""

    object_id: ObjectId


class EndProcesses(NamedTuple):
    """End the processes that wait in the middle of a task under these names; nobody will go on."""

    objects: tuple[ObjectId, ...]


_WHOLE = (Concrete, Sweetheart)
CANCELLED = TaskFault("CANCELLED", "it was called off")
ABORTED = TaskFault("ABORTED", "somebody had it aborted")
ABORTED_HERE = TaskFault("ABORTED", "somebody had it aborted on the worker where it was")

Order = (
    FetchObject | AbandonFetch | StartAttempt | KillAttempt | RecallAttempt | DeleteObjects
    | EndProcesses
)  # fmt: skip
Key = tuple[TaskId, int]


class Attempt:
    """One attempt at a task on this worker."""

    __slots__ = ("ending", "inputs", "key", "memory_bytes", "phase", "slots", "spec", "streams")

    def __init__(self, message: AssignTask) -> None:
        self.spec = message.spec
        self.key: Key = (message.spec.id, message.attempt)
        self.inputs = message.inputs
        needs = message.spec.needs
        self.slots = needs.slots
        self.memory_bytes = needs.memory_bytes
        self.phase = Phase.FETCHING
        self.ending: TaskFault | InputsLost | None = None  # why it is being killed
        self.streams: tuple[ObjectId, ...] = ()  # its outputs that others read meanwhile

    def is_spare(self, ref: Reference) -> bool:
        """Whether it does without one of its inputs: others were enough. What chooses is never sent
        ahead, so nothing else of it is a future.
        """
        return self.spec.any_count > 0 and isinstance(ref, Future)

    def knows(self, object_id: ObjectId) -> bool:
        """Whether it was told where a whole object lies, and so does not read it as it grows."""
        return any(ref.id == object_id and type(ref) in _WHOLE for ref in self.inputs)

    def reads(self, object_id: ObjectId) -> bool:
        """Whether its program may read an object as an input."""
        return any(ref.id == object_id and not self.is_spare(ref) for ref in self.inputs)


def given_back(attempt: Attempt) -> TaskReported:
    """Say that an attempt is to be sent again, as it was sent before its time."""
    fault = TaskFault(RECALLED, "what it waits for is not made here")
    return TaskReported(*attempt.key, (), fault, 0.0)


def ending_of(cause: TaskFault, fault: TaskFault | None) -> TaskFault:
    """Say why an attempt was ended; of one that ran too long also what became of its program."""
    if cause.reason != "TIMED_OUT" or fault is None:
        return cause
    how, end, more = fault.text.partition("\n")
    text = f"{how}: {cause.text}{end}{more}"
    return TaskFault(cause.reason, with_text(fault.details, text))
