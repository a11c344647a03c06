"""Tasks as values: the program, its inputs and outputs, its needs; and the states of a task."""

from __future__ import annotations

import re
from collections.abc import Collection
from enum import Enum
from typing import Any, NamedTuple

from ciel.core.errors import InvalidTaskError
from ciel.core.ids import JobId, ObjectId, TaskId, child_id, root_task_id

PRIORITY_MIN, PRIORITY_MAX = -1000, 1000
SLOTS_MAX = 1024
RETRIES_MAX = 1000
TIMEOUT_MAX_S = 1e9  # 30 years; more could not be added to a clock
MEMORY_MAX_BYTES = 2**63 - 1  # what the kernel can count
RETRY_DELAY_MAX_S = 86_400.0
KILL_GRACE_MAX_S = 86_400.0
RETRY_KINDS_MAX = 20
KIND_PATTERN = re.compile("[A-Z][A-Z0-9_]{0,63}")
NOT_RETRIED = frozenset(("CANCELLED", "BAD_ARGUMENTS", "NO_EXECUTOR", "DEPENDENCY_FAILED"))
"""Faults that another attempt cannot fix."""


class Needs(NamedTuple):
    """The resources and limits of a task. The tasks of an array share one value.

    `memory_bytes` is a limit, and is reserved from the memory that a worker offers. `retry_on`: the
    kinds of failure (see `refs.Failure.reason`) after which the task is retried; empty means all
    that another attempt may fix. `retry_delay_s`: the delay of the first retry, doubled for each
    further retry; 0 means a default by kind. `delay_s`: how long the task is delayed, without a
    slot, after its inputs are there. `kill_grace_s`: the time that its program gets to end after
    SIGTERM.
    """

    slots: int = 1
    memory_bytes: int = 0  # 0: no limit
    priority: int = 0  # higher runs first
    timeout_s: float = 0.0  # 0: no limit
    retries: int = 0
    retry_on: tuple[str, ...] = ()
    retry_delay_s: float = 0.0
    delay_s: float = 0.0
    kill_grace_s: float = -1.0  # below 0: the worker's default


DEFAULT_NEEDS = Needs()


def undelayed(needs: Needs) -> Needs:
    """Return the needs of a task that continues another task, which was delayed already."""
    return needs._replace(delay_s=0.0) if needs.delay_s else needs


class Mentions(Enum):
    """Says which objects the outputs and children of a task may name; these objects are kept."""

    NOTHING = 0  # its outputs are bytes of a program that never saw an id
    INPUTS = 1  # its outputs list its inputs
    ANYTHING = 2  # its outputs may name any object that it saw
    OWN = 3  # anything, if it spawned tasks or created undeclared objects; otherwise nothing

    __hash__ = object.__hash__


class TaskSpec(NamedTuple):
    """The immutable description of a task, the same in client, master and worker.

    `payload` contains the executor's arguments: the creator encodes them, and only the executor
    decodes them. The task is the `ordinal`-th child of its parent (a task, or the job itself).
    `inputs` must be consumable before it runs. The last `any_count` of them are alternatives: one
    of these is enough (see `any_inputs`). `sees_errors`: the task runs even if an input failed.
    """

    id: TaskId
    job: JobId
    parent: str
    ordinal: int
    digest: str
    executor: str
    inputs: tuple[ObjectId, ...]
    outputs: tuple[ObjectId, ...]
    needs: Needs
    sees_errors: bool
    mentions: Mentions
    name: str
    payload: bytes
    any_count: int = 0

    @property
    def needed(self) -> tuple[ObjectId, ...]:
        """The inputs that the task requires."""
        return self.inputs[: len(self.inputs) - self.any_count]

    @property
    def alternatives(self) -> tuple[ObjectId, ...]:
        """The inputs of which one is enough."""
        return self.inputs[len(self.inputs) - self.any_count :]


class TaskState(Enum):
    """The state of a task. Nothing needs the outputs of a dormant task (laziness, CIB-1)."""

    DORMANT = 0
    WAITING = 1
    RUNNABLE = 2
    ASSIGNED = 3
    DONE = 4
    FAILED = 5
    CANCELLED = 6

    def __str__(self) -> str:
        return self.name.lower()

    # Members are singletons; hashing them by identity is several times cheaper than Enum's own
    # hash.
    __hash__ = object.__hash__


DORMANT, WAITING, RUNNABLE, ASSIGNED, DONE, FAILED, CANCELLED = TaskState

# The legal transitions. A task goes from DONE to DORMANT when an output is lost and needed, from
# FAILED or CANCELLED when its user retries it.
TRANSITIONS: dict[TaskState, frozenset[TaskState]] = {
    DORMANT: frozenset((WAITING, RUNNABLE, FAILED, CANCELLED)),
    WAITING: frozenset((RUNNABLE, DORMANT, FAILED, CANCELLED)),
    RUNNABLE: frozenset((ASSIGNED, WAITING, DORMANT, FAILED, CANCELLED)),
    ASSIGNED: frozenset((DONE, FAILED, RUNNABLE, WAITING, DORMANT, CANCELLED)),
    DONE: frozenset((DORMANT,)),
    FAILED: frozenset((DORMANT,)),
    CANCELLED: frozenset((DORMANT,)),
}
FINISHED = frozenset((DONE, FAILED, CANCELLED))
ACTIVE = frozenset((WAITING, RUNNABLE, ASSIGNED))


def check_task(spec: TaskSpec) -> None:
    """Raise InvalidTaskError if a task contradicts itself. Its ids are known to match the grammar.

    The id must follow from its parent, ordinal and digest (except for a job's root task), so that a
    client cannot name a task of another job.
    """
    expected = (
        root_task_id(spec.job)
        if spec.parent == spec.job and spec.ordinal < 0
        else child_id(spec.parent, spec.ordinal, spec.digest)
    )
    if spec.id != expected:
        raise InvalidTaskError(spec.id, f"its parent, ordinal and digest give the id {expected}")
    if spec.needs is not DEFAULT_NEEDS:
        _check_needs(spec)
    if not spec.outputs:
        raise InvalidTaskError(spec.id, "it has no outputs, so no job could ever want one")
    if len(spec.outputs) > 1 and len(set(spec.outputs)) != len(spec.outputs):
        raise InvalidTaskError(spec.id, "it names an output twice")
    if spec.inputs and _overlap(spec.inputs, spec.outputs):
        raise InvalidTaskError(spec.id, "one of its outputs is also its input")
    if spec.any_count and not 0 < spec.any_count <= len(spec.inputs):
        text = f"{spec.any_count} of its {len(spec.inputs)} inputs cannot be alternatives"
        raise InvalidTaskError(spec.id, text)


def _overlap(some: tuple[str, ...], others: tuple[str, ...]) -> bool:
    if len(some) == len(others) == 1:
        return some[0] == others[0]
    return not set(some).isdisjoint(others)


def _check_needs(spec: TaskSpec) -> None:
    needs: Any = spec.needs  # numbers of any size; floats may be integers
    if not 1 <= needs.slots <= SLOTS_MAX:
        raise InvalidTaskError(spec.id, f"slots must be 1 to {SLOTS_MAX}, not {needs.slots}")
    if not PRIORITY_MIN <= needs.priority <= PRIORITY_MAX:
        limits = f"{PRIORITY_MIN} to {PRIORITY_MAX}"
        raise InvalidTaskError(spec.id, f"priority must be {limits}, not {needs.priority}")
    if not 0 <= needs.retries <= RETRIES_MAX:
        raise InvalidTaskError(spec.id, f"retries must be 0 to {RETRIES_MAX}, not {needs.retries}")
    if not 0 <= needs.timeout_s <= TIMEOUT_MAX_S:
        raise InvalidTaskError(spec.id, f"timeout_s must be 0 to {TIMEOUT_MAX_S:g}")
    if not 0 <= needs.memory_bytes <= MEMORY_MAX_BYTES:
        raise InvalidTaskError(spec.id, f"memory_bytes must be 0 to {MEMORY_MAX_BYTES}")
    if not 0 <= needs.retry_delay_s <= RETRY_DELAY_MAX_S:
        raise InvalidTaskError(spec.id, f"retry_delay_s must be 0 to {RETRY_DELAY_MAX_S:g}")
    if needs.kill_grace_s > KILL_GRACE_MAX_S:
        raise InvalidTaskError(spec.id, f"kill_grace_s must be at most {KILL_GRACE_MAX_S:g}")
    if not 0 <= needs.delay_s <= TIMEOUT_MAX_S:
        raise InvalidTaskError(spec.id, f"delay_s must be 0 to {TIMEOUT_MAX_S:g}")
    if wrong := wrong_kinds(needs.retry_on):
        raise InvalidTaskError(spec.id, f"retry_on: {wrong}")


def wrong_kinds(kinds: Collection[str]) -> str:
    """Explain what is wrong with a `retry_on`; return "" if it is valid. Programs may define kinds
    of failure, so an unknown kind is valid.
    """
    if len(kinds) > RETRY_KINDS_MAX:
        return f"{len(kinds)} kinds of failure; {RETRY_KINDS_MAX} are allowed"
    for kind in kinds:
        if kind in NOT_RETRIED:
            return f"another attempt cannot fix {kind}"
        if not KIND_PATTERN.fullmatch(kind):
            return f"a kind of failure looks like TIMED_OUT, not {kind!r:.40}"
    return ""
