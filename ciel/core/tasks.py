"""Tasks as values: the program, its inputs and outputs, its needs; and the states of a task."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from enum import Enum
from math import inf
from types import MappingProxyType
from typing import Any, NamedTuple

from ciel.core.errors import InvalidNeedError, InvalidTaskError
from ciel.core.ids import JobId, ObjectId, TaskId, child_id, root_task_id
from ciel.core.offers.labels import WHERE_MAX_LENGTH, wrong_where
from ciel.core.offers.resources import (
    RESOURCES_MAX,
    Amounts,
    amounts_json,
    read_amounts,
    wrong_amounts,
)

PRIORITY_MIN, PRIORITY_MAX = -1000, 1000
SLOTS_MAX = 1024
RETRIES_MAX = 1000
TIMEOUT_MAX_S = 1e9  # 30 years; more could not be added to a clock
MEMORY_MAX_BYTES = 2**63 - 1  # what the kernel can count
RETRY_DELAY_MAX_S = 86_400.0
KILL_GRACE_MAX_S = 86_400.0
RETRY_KINDS_MAX = 20
IO_MAX_LENGTH = 1000
WORK_DISK = "disk"
"""As `Needs.io`: the disk of the worker's work directory."""
IMAGE_MAX_LENGTH = 1000
NO_ISOLATION, LIMITED, STRICT = ISOLATIONS = ("none", "limits", "strict")
"""The levels of isolation, as `Needs.isolate`; each one includes the levels before it."""
PODMAN, APPTAINER = "podman", "apptainer"
MECHANISMS = (STRICT, PODMAN, APPTAINER)
"""The mechanisms that a worker may lack (see `Isolation`)."""
KIND_PATTERN = re.compile("[A-Z][A-Z0-9_]{0,63}")
NOT_RETRIED = frozenset(("CANCELLED", "BAD_ARGUMENTS", "NO_EXECUTOR", "DEPENDENCY_FAILED"))
"""Faults that another attempt cannot fix."""


class Needs(NamedTuple):
    """The resources and limits of a task. The tasks of an array share one value.

    `memory_bytes` is a limit, and is reserved from the memory that a worker offers. `retry_on`: the
    kinds of failure (see `refs.Failure.reason`) after which the task is retried; empty means all
    that another attempt may fix. `retry_delay_s`: the delay of the first retry, doubled for each
    further retry; 0 means a default by kind. `delay_s`: how long the task is delayed, without a
    slot, after its inputs exist. `kill_grace_s`: the time that its program gets to end after
    SIGTERM. `io`: the disk that bounds the speed of the task (CIB-42): `WORK_DISK`, or a path on
    the disk; empty if none does. Such a task waits for a permit of the disk without a slot.
    `resources`: see `core.offers.resources`. `where`: an expression over the labels of workers (see
    `core.offers.labels`), which the task's worker fulfils; empty: any worker.
    `isolate`: one of `ISOLATIONS`; empty means the least level of the worker. `image`: the
    container image in which its program runs; empty if it runs in none.
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
    io: str = ""
    resources: Amounts = ()
    where: str = ""
    isolate: str = ""
    image: str = ""

    @property
    def is_plain(self) -> bool:
        """Whether any worker with free slots can start the task."""
        is_scarce = self.memory_bytes or self.io or self.resources or self.where
        return not (is_scarce or self.is_isolated)

    @property
    def is_isolated(self) -> bool:
        """Whether the task asks for a level of isolation or a container."""
        return bool(self.isolate or self.image)

    @property
    def container(self) -> str:
        """The program that runs its image; empty if it needs none."""
        if not self.image:
            return ""
        return APPTAINER if self.image.endswith(".sif") else PODMAN


DEFAULT_NEEDS = Needs()


class Limit(NamedTuple):
    """A row of the table of needs: what a field of `Needs` may be, and who can set it.

    `kind`: the kind of its values: whole numbers (`count`), `bytes`, `seconds`, `kinds` of
    failure, a `disk`, `resources`, an expression over `labels`, a level of `isolation`, or an
    `image`. `option`: its name in `ciel submit`, with its `metavar` and its `help`; empty if there
    is none. `in_python`: whether `ciel.task` takes it.
    """

    name: str
    kind: str
    least: Any  # Any, since a compiled module would turn an int into a float
    most: Any
    option: str = ""
    metavar: str = ""
    help: str = ""
    in_python: bool = True

    @property
    def is_whole(self) -> bool:
        """Whether its values are whole numbers."""
        return self.kind in ("count", "bytes")


LIMITS: tuple[Limit, ...] = (
    Limit(
        "slots", "count", 1, SLOTS_MAX, "--slots", "N",
        "slots that each run occupies (default 1)",
    ),
    Limit(
        "memory_bytes", "bytes", 0, MEMORY_MAX_BYTES, "--memory", "SIZE",
        "reserve this memory for each run, and kill a run that uses more (512M, 2G)",
    ),
    Limit(
        "priority", "count", PRIORITY_MIN, PRIORITY_MAX, "--priority", "N",
        "runs with a higher priority start first, across all jobs (-1000 to 1000)",
    ),
    Limit(
        "timeout_s", "seconds", 0, TIMEOUT_MAX_S, "--timeout", "TIME",
        "kill a run after this time: 90s, 10m, 2h, 01:00:00",
    ),
    Limit(
        "retries", "count", 0, RETRIES_MAX, "--retries", "N",
        "repeat a failed run up to N times",
    ),
    Limit(
        "retry_on", "kinds", 0, RETRY_KINDS_MAX, "--retry-on", "KIND,…",
        "repeat only after these failures: ",
    ),
    Limit(
        "retry_delay_s", "seconds", 0, RETRY_DELAY_MAX_S, "--retry-delay", "TIME",
        "wait this long before the first retry, twice as long before each next one, up to 30s",
    ),
    Limit("delay_s", "seconds", 0, TIMEOUT_MAX_S, in_python=False),
    Limit(
        "kill_grace_s", "seconds", -inf, KILL_GRACE_MAX_S, "--kill-grace", "TIME",
        "time between SIGTERM and SIGKILL (default: the worker's --kill-grace, 5s)",
    ),
    Limit(
        "io", "disk", 0, IO_MAX_LENGTH, "--io", "DISK",
        "the disk that bounds each run: disk (of the worker's work directory), or a path on it; "
        "a run that waits for this disk holds no slot",
    ),
    Limit(
        "resources", "resources", 0, RESOURCES_MAX, "--resource", "NAME=AMOUNT",
        "a resource that each run has for itself, such as gpu=1, gpu=0.5 or licence/matlab=1 "
        "(repeatable)",
    ),
    Limit(
        "where", "labels", 0, WHERE_MAX_LENGTH, "--where", "LABELS",
        "run on workers with these labels only: 'zone=b and not disk=hdd'",
    ),
    Limit(
        "isolate", "isolation", 0, 0, "--isolate", "LEVEL",
        "how far each run is isolated: none, limits, or strict (default: the worker's --isolate)",
    ),
    Limit(
        "image", "image", 0, IMAGE_MAX_LENGTH, "--image", "IMAGE",
        "run in a container of this image: FILE.sif by apptainer, any other name by podman",
        in_python=False,
    ),
)  # fmt: skip
"""One row for each field of `Needs`, in their order. The checks, the records, the options of
`ciel submit` and `ciel.task` derive from it."""


def read_needs(given: Mapping[str, Any]) -> Needs:
    """Read needs as clients write them in JSON: only the kinds of values, not their ranges, which
    `check_task` checks. Ignores other names. Raises InvalidNeedError.
    """
    read = {limit.name: _read_need(limit, given[limit.name]) for limit in LIMITS
            if limit.name in given}  # fmt: skip
    return Needs(**read)


def _read_need(limit: Limit, value: Any) -> Any:
    match limit.kind:
        case "kinds":
            if isinstance(value, list) and all(isinstance(kind, str) for kind in value):
                return tuple(value)
            wanted = "a list of strings"
        case kind if kind in TEXT_CHECKS:
            if isinstance(value, str):
                return value
            wanted = "a string"
        case "resources":
            if isinstance(value, dict):
                try:
                    return read_amounts(value)
                except ValueError as error:
                    raise InvalidNeedError(limit.name, f"is wrong: {error}") from None
            wanted = 'an object of amounts, as {"gpu": 1}'
        case "seconds":
            if type(value) is int or type(value) is float:
                return value
            wanted = "a number of seconds"
        case _:
            if type(value) is int:
                return value
            wanted = "a whole number"
    raise InvalidNeedError(limit.name, f"must be {wanted}, not {value!r:.40}")


def needs_json(needs: Needs) -> dict[str, Any]:
    """Return needs as `read_needs` reads them."""
    return needs._asdict() | {"resources": amounts_json(needs.resources)}


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
    of these is enough (see `any_inputs`). The worker need not copy the first `apart_count` before
    the task starts: its program may read parts of them from other hosts. `sees_errors`: the task
    runs even if an input failed.
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
    apart_count: int = 0

    @property
    def needed(self) -> tuple[ObjectId, ...]:
        """The inputs that the task requires."""
        return self.inputs[: len(self.inputs) - self.any_count]

    @property
    def apart(self) -> tuple[ObjectId, ...]:
        """The inputs of which the program may read only parts."""
        return self.inputs[: self.apart_count]

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
        raise InvalidTaskError(spec.id, f"its parent, ordinal and digest require the id {expected}")
    if spec.needs is not DEFAULT_NEEDS:
        _check_needs(spec)
    if not spec.outputs:
        raise InvalidTaskError(spec.id, "it has no outputs, so no job could ever want one")
    if len(spec.outputs) > 1 and len(set(spec.outputs)) != len(spec.outputs):
        raise InvalidTaskError(spec.id, "it names an output twice")
    if spec.inputs and _overlap(spec.inputs, spec.outputs):
        raise InvalidTaskError(spec.id, "one of its outputs is also its input")
    if spec.any_count and not 0 < spec.any_count <= len(spec.inputs):
        text = f"it has only {len(spec.inputs)} inputs, but {spec.any_count} alternatives"
        raise InvalidTaskError(spec.id, text)
    if not 0 <= spec.apart_count <= len(spec.inputs) - spec.any_count:
        text = f"it needs only {len(spec.needed)} inputs, but reads parts of {spec.apart_count}"
        raise InvalidTaskError(spec.id, text)


def _overlap(some: tuple[str, ...], others: tuple[str, ...]) -> bool:
    if len(some) == len(others) == 1:
        return some[0] == others[0]
    return not set(some).isdisjoint(others)


def _check_needs(spec: TaskSpec) -> None:
    value: Any  # numbers of any size; floats may be integers
    for limit, value in zip(LIMITS, spec.needs, strict=True):
        if (wrong_value := _CHECKS.get(limit.kind)) is not None:
            if wrong := wrong_value(value):
                raise InvalidTaskError(spec.id, f"{limit.name}: {wrong}")
        elif not limit.least <= value <= limit.most:
            bounds = f"{_shown(limit.least)} to {_shown(limit.most)}"
            if limit.least == -inf:
                bounds = f"at most {_shown(limit.most)}"
            raise InvalidTaskError(spec.id, f"{limit.name} must be {bounds}, not {value}")


def _shown(bound: Any) -> str:
    return f"{bound}" if type(bound) is int else f"{bound:g}"


def wrong_kinds(kinds: Collection[str]) -> str:
    """Explain what is wrong with a `retry_on`; return "" if it is valid.

    Programs may define kinds of failure, so an unknown kind is valid.
    """
    if len(kinds) > RETRY_KINDS_MAX:
        return f"{len(kinds)} kinds of failure; {RETRY_KINDS_MAX} are allowed"
    for kind in kinds:
        if kind in NOT_RETRIED:
            return f"another attempt cannot fix {kind}"
        if not KIND_PATTERN.fullmatch(kind):
            return f"a kind of failure looks like TIMED_OUT, not {kind!r:.40}"
    return ""


def wrong_disk(io: str) -> str:
    """Explain why an `io` is invalid; return "" if it is valid."""
    if len(io) > IO_MAX_LENGTH or "\0" in io:
        return f"a path has at most {IO_MAX_LENGTH} characters, and no NUL"
    if io and io != WORK_DISK and not io.startswith("/"):
        return f"it must be {WORK_DISK!r} or an absolute path, not {io!r:.40}"
    return ""


def wrong_isolation(level: str) -> str:
    """Explain why a level of isolation is invalid; return "" if it is valid."""
    if level and level not in ISOLATIONS:
        return f"it must be {', '.join(ISOLATIONS[:-1])} or {ISOLATIONS[-1]}, not {level!r:.40}"
    return ""


def wrong_image(image: str) -> str:
    """Explain why the name of a container image is invalid; return "" if it is valid."""
    if len(image) > IMAGE_MAX_LENGTH or not image.isprintable() or " " in image:
        return f"an image's name has at most {IMAGE_MAX_LENGTH} characters, and no blanks"
    if image.startswith("-"):
        return f"an image's name does not begin with '-', as {image!r:.40} does"
    return ""


TEXT_CHECKS: dict[str, Callable[[str], str]] = {
    "disk": wrong_disk,
    "labels": wrong_where,
    "isolation": wrong_isolation,
    "image": wrong_image,
}
"""By the kind of a limit whose values are texts: what explains an invalid value."""


def is_below(level: str, least: str) -> bool:
    """Whether a level of isolation is lower than another one."""
    return ISOLATIONS.index(level) < ISOLATIONS.index(least)


class Isolation(NamedTuple):
    """How far a worker can isolate programs.

    `least`: its least level, which tasks may only raise. `lacking`: why it lacks strict isolation
    or a container program (see `Needs.container`), by their names.
    """

    least: str = NO_ISOLATION
    lacking: Mapping[str, str] = MappingProxyType({})

    def level_of(self, needs: Needs) -> str:
        """Return the level at which a task would run."""
        return needs.isolate or self.least

    def why_not(self, needs: Needs) -> str:
        """Explain why a task cannot run here as it asks; return "" if it can."""
        level, container = self.level_of(needs), needs.container
        if is_below(level, self.least):
            return f"isolates programs at least by {self.least!r} (ciel-worker --isolate)"
        if container:
            return f"{container}: {self.lacking[container]}" if container in self.lacking else ""
        return self.lacking.get(STRICT, "") if level == STRICT else ""


_CHECKS: dict[str, Callable[[Any], str]] = {
    "kinds": wrong_kinds,
    "resources": wrong_amounts,
    **TEXT_CHECKS,
}
"""The checks of values other than numbers: each returns an explanation, or "" for a valid value."""
