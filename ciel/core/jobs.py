"""A job: a set of wanted objects, the tasks that were created for it, and its state."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from enum import Enum
from itertools import islice
from typing import NamedTuple, Protocol

from ciel.core.history import History
from ciel.core.ids import JobId, ObjectId, TaskId
from ciel.core.scheduling import DEFAULT_SCHEDULING, Scheduling
from ciel.core.tasks import TaskSpec, TaskState
from ciel.core.wanted import WantedObjects

JOB_NAME_MAX_LENGTH = 200
AFTER_MAX = 1000
"""How many jobs one job can follow."""
KINDS_MAX = 1000
"""The number of kinds of tasks in one job that are counted separately."""
REASON_LISTED_MAX_LENGTH = 1000


class JobState(Enum):
    """The state of a job. A job with an error among its results has failed."""

    ACTIVE = "active"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLING = "cancelling"  # its tasks and programs are being ended
    CANCELLED = "cancelled"

    def __str__(self) -> str:
        return self.value

    __hash__ = object.__hash__


JOB_TRANSITIONS: dict[JobState, frozenset[JobState]] = {
    JobState.ACTIVE: frozenset((JobState.COMPLETED, JobState.FAILED, JobState.CANCELLING)),
    JobState.CANCELLING: frozenset((JobState.CANCELLED, JobState.FAILED)),
    JobState.COMPLETED: frozenset(),
    JobState.FAILED: frozenset((JobState.ACTIVE,)),  # a retry of its failed tasks
    JobState.CANCELLED: frozenset((JobState.ACTIVE,)),  # a retry of its cancelled tasks, too
}
_SELECTOR = re.compile("last|all|[0-9]{1,19}")
ENDED = frozenset((JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED))


def is_selector(job_id: str) -> bool:
    """Whether an id looks like a number, a range, or a word that selects jobs."""
    return _SELECTOR.fullmatch(job_id) is not None


class CallerContext(NamedTuple):
    """The working directory and the environment variables of the client that submits a job.

    Programs and Python calls of the job run with both (docs/where-programs-run.md). `cwd`: an
    absolute path; "": each program runs in a private directory. `env` takes the place of the
    worker's environment, or is added to it if not `replaces_env`.
    """

    cwd: str
    env: Mapping[str, str]
    replaces_env: bool = True


class Predecessor(NamedTuple):
    """A job that has to end before another one starts: completed, or `in_any_way`."""

    job: JobId
    in_any_way: bool = False


class JobSpec(NamedTuple):
    """The description of a job by its client.

    The client may add tasks and wants to an *open* job until it closes the job; a closed job ends
    when all its wanted objects exist. A `detached` job continues without its client; any other
    job is cancelled `CLIENT_GRACE_S` after its client has disconnected. `keep`: intermediate
    objects stay until the job is removed. `context`: if None, programs run in private directories
    and with the environment of the worker, as for packages and scripts. `after`: no task of the job
    starts before these jobs have ended; the job is cancelled if one of them did not end as needed.
    `max_fails`: the job is cancelled when more of its tasks have failed; negative: never.
    """

    id: JobId
    name: str
    open: bool
    detached: bool
    keep: bool
    scheduling: Scheduling = DEFAULT_SCHEDULING
    context: CallerContext | None = None
    after: tuple[Predecessor, ...] = ()
    max_fails: int = -1


class Kind(NamedTuple):
    """The kind of a task, by which a job counts its tasks: name and executor.

    `spawned`: tasks created these tasks, and may create more later.
    """

    name: str
    executor: str
    spawned: bool

    @classmethod
    def of(cls, spec: TaskSpec) -> Kind:
        """Return the kind of a task. The elements of an array, named by numbers, are one kind."""
        name = "" if spec.name.isdecimal() else spec.name
        return cls(name, spec.executor, spec.parent != spec.job)


class Counted(Protocol):
    """The attributes of a task that counting needs."""

    spec: TaskSpec
    state: TaskState


class Job:
    """A job in the master. The graph counts its tasks, and the machine changes its state."""

    __slots__ = (
        "as_wanter",
        "awaited",
        "by_kind",
        "counted",
        "counts",
        "created_at_s",
        "ended_at_s",
        "failures",
        "first",
        "foreign",
        "handed_over",
        "history",
        "is_cancelled",
        "is_started",
        "lost",
        "number",
        "open",
        "postponed",
        "ran_on",
        "reason",
        "released",
        "spec",
        "state",
        "tasks",
        "totals",
        "uncounted",
        "unmet",
        "unsettled",
        "uploads",
        "wanted",
    )  # fmt: skip

    def __init__(
        self,
        spec: JobSpec,
        number: int,
        now_s: float,
        totals: dict[TaskState, int] | None = None,
    ) -> None:
        """`totals`: counts over all jobs, which the job updates as well."""
        self.spec = spec
        self.number = number
        self.open = spec.open
        self.state = JobState.ACTIVE
        self.reason = ""
        self.is_cancelled = False  # its tasks were cancelled, so lost objects are not recomputed
        self.lost: list[ObjectId] = []  # lost while it is cancelled: errors until a retry
        # Objects that were demanded during a retry, or before all predecessors have ended.
        self.postponed: dict[ObjectId, None] | None = None
        self.awaited: dict[JobId, Predecessor] = {}  # predecessors that have not ended
        self.unmet = ""  # why the job cannot start: how a predecessor ended
        self.created_at_s = now_s
        self.ended_at_s: float | None = None
        self.counts = dict.fromkeys(TaskState, 0)
        self.totals = dict.fromkeys(TaskState, 0) if totals is None else totals
        self.by_kind: dict[Kind, dict[TaskState, int]] | None = None  # None before the first query
        self.counted: set[TaskId] = set()  # tasks counted by kind, until all of them are
        self.uncounted: Iterator[TaskId] | None = None  # tasks not counted by kind yet
        self.tasks: list[TaskId] = []
        self.uploads: dict[ObjectId, None] = {}  # inputs of its tasks that no task produces
        self.foreign: dict[ObjectId, None] = {}  # inputs of its tasks that another job may produce
        self.first: TaskSpec | None = None  # describes the job even when its tasks are forgotten
        self.ran_on: dict[str, int] = {}  # worker: attempts that ended there
        self.history = History()
        self.is_started = False  # a task of it was assigned
        self.failures = 0  # how often one of its tasks has failed or was cancelled
        self.handed_over = 0  # tasks forgotten because the client has taken over their results
        self.released: dict[ObjectId, None] = {}  # handed over, but not forgotten yet
        self.wanted = WantedObjects()
        self.unsettled = 0  # how many of `wanted` are missing
        # Shared by all objects that only this job wants. Without the type, compiled code makes a
        # tuple for each use.
        self.as_wanter: tuple[Job, ...] = (self,)

    def __repr__(self) -> str:
        return f"<Job {self.number} {self.spec.id} {self.state}>"

    def count(self, spec: TaskSpec, before: TaskState | None, state: TaskState) -> None:
        """Update the counts for a task that changed its state; `before` is None if it is new."""
        counts, totals = self.counts, self.totals
        if before is not None:
            counts[before] -= 1
            totals[before] -= 1
        counts[state] += 1
        totals[state] += 1
        if self.by_kind is not None:
            if self.uncounted is not None:
                if before is None:
                    self.counted.add(spec.id)
                elif spec.id not in self.counted:
                    return
            counts = self._counts_of(self.by_kind, spec)
            if before is not None:
                counts[before] -= 1
            counts[state] += 1

    def count_by_kind(self, tasks: Mapping[str, Counted], limit: int) -> bool:
        """Count tasks by kind from now on; return whether all tasks of the job are counted.

        Add up to `limit` earlier tasks of the job, found in `tasks`, to the counts.
        """
        if self.by_kind is None:
            self.by_kind, self.uncounted = {}, iter(self.tasks[:])
        if self.uncounted is None:
            return True
        some = list(islice(self.uncounted, limit))
        for task_id in some:
            if task_id not in self.counted and (task := tasks.get(task_id)) is not None:
                self.counted.add(task_id)
                self._counts_of(self.by_kind, task.spec)[task.state] += 1
        if len(some) == limit:
            return False
        self.uncounted = None
        self.counted = set()
        return True

    def _counts_of(
        self, by_kind: dict[Kind, dict[TaskState, int]], spec: TaskSpec
    ) -> dict[TaskState, int]:
        kind = Kind.of(spec)
        if kind not in by_kind:
            if len(by_kind) >= KINDS_MAX:
                kind = kind._replace(name="")
            by_kind.setdefault(kind, dict.fromkeys(TaskState, 0))
        return by_kind[kind]

    @property
    def is_busy(self) -> bool:
        """Whether a task of the job can run now or is running."""
        return bool(self.counts[TaskState.RUNNABLE] or self.counts[TaskState.ASSIGNED])


class JobSummary(NamedTuple):
    """The state of a job, for listings and for its client."""

    id: JobId
    number: int
    name: str
    state: str
    reason: str
    counts: dict[str, int]
    created_at_s: float
    ended_at_s: float | None
    wanted: int
    unsettled: int
    handed_over: int


def summarise(job: Job) -> JobSummary:
    """Return the current state of a job."""
    counts = {str(state): count for state, count in job.counts.items() if count}
    return JobSummary(
        job.spec.id, job.number, job.spec.name, str(job.state), job.reason, counts,
        job.created_at_s, job.ended_at_s, len(job.wanted), job.unsettled, job.handed_over,
    )  # fmt: skip


def summarise_briefly(job: Job) -> JobSummary:
    """Return the current state of a job for a listing, with a shortened reason."""
    summary = summarise(job)
    if len(summary.reason) <= REASON_LISTED_MAX_LENGTH:
        return summary
    return summary._replace(reason=summary.reason[:REASON_LISTED_MAX_LENGTH] + "…")
