"""What the parties tell each other: plain values, the same at both ends of a connection.

Orders are in the imperative, reports in the past tense. `wire.messages` gives each its form on the
wire; the state machines take and return them and know of no connection, only of names for peers.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ciel.core.ids import JobId, ObjectId, TaskId
from ciel.core.jobs import CallerContext, JobSpec, JobSummary
from ciel.core.refs import Reference, details_text
from ciel.core.tasks import TaskSpec

# --- client to master -----------------------------------------------------------------------------


class SubmitJob(NamedTuple):
    """Create a job; sent again with the same id it changes nothing, so it may be retried."""

    spec: JobSpec


class AddTask(NamedTuple):
    """Add a task to one's open job (or the first task of any job). `known`: inputs that are no
    futures.
    """

    spec: TaskSpec
    known: tuple[Reference, ...]


class WantObjects(NamedTuple):
    """Have a job want objects: they are made, and announced when they are there."""

    job: JobId
    objects: tuple[ObjectId, ...]


class ReleaseObjects(NamedTuple):
    """Have a job want objects no longer. `for_good`: its client will never name them again, so that
    how they were made may be forgotten, too. `uploads`: references to those of them that it has
    brought to workers, since no task that the master knows may ever have named them.
    """

    job: JobId
    objects: tuple[ObjectId, ...]
    for_good: bool = False
    uploads: tuple[Reference, ...] = ()


class CloseJob(NamedTuple):
    """No more tasks or wants will come: the job ends when what it wants is there."""

    job: JobId


class CancelJob(NamedTuple):
    """End a job now; its programs are killed, and it is over when they are gone."""

    job: JobId
    reason: str


class WatchJob(NamedTuple):
    """Be told of a job from now on (what is settled already is told at once), and answer for it.
    `prints`: also of what its tasks print.
    """

    job: JobId
    prints: bool = False


class Ask(NamedTuple):
    """Ask for something to look at (`status`, `jobs`, `job`, …); answered by an `Answer` of the
    same number.
    """

    number: int
    topic: str
    argument: Any


class Change(NamedTuple):
    """Have something changed that is not one's own (`remove` or `retry` a job, `cancel_task`,
    `retry_task`; from a worker: `attach` a process to a new one, or `fail` it); answered as an
    `Ask` is, but for `LEAVE`: with that a worker takes its leave, and its session ends.
    """

    number: int
    topic: str
    argument: Any


LEAVE = "leave"


# --- master to client -----------------------------------------------------------------------------


class ObjectSettled(NamedTuple):
    """A wanted object is there, or has failed. If `ref` is a Stream, a task still writes it, and
    clients can read it.
    """

    job: JobId
    ref: Reference


class JobChanged(NamedTuple):
    """How a job stands: now and then while it runs, and when it has ended."""

    summary: JobSummary


class RequestRefused(NamedTuple):
    """A message about a job was not carried out; says whose fault it was and why."""

    job: JobId
    reason: str


class JobPrinted(NamedTuple):
    """A task has printed, see `TaskPrinted`. `number`: which task of its job's client it is, from
    1; 0 for one that a task has created. `netloc`: where the worker serves that has it in its log.
    `is_notice`: every client that watches the job gets it, not only those that want its prints.
    """

    job: JobId
    task: TaskId
    name: str
    number: int
    netloc: str
    start: int
    size_bytes: int
    text: str
    is_stderr: bool = False
    is_notice: bool = False


class Answer(NamedTuple):
    """The reply to an `Ask` or a `Change`; `error` is empty if it could be done."""

    number: int
    value: Any
    error: str


# --- master to worker -----------------------------------------------------------------------------


class DescribeJob(NamedTuple):
    """Know in which directory and environment the programs of a job run. The master sends it before
    the first task of such a job, and None once the job is over.
    """

    job: JobId
    context: CallerContext | None


class AssignTask(NamedTuple):
    """Run a task. `inputs` are its inputs as the master knows them now, in the spec's order; one
    that is still a future will be made by a task that this worker was assigned before.
    """

    spec: TaskSpec
    attempt: int
    inputs: tuple[Reference, ...]


class CancelTask(NamedTuple):
    """Call an attempt off; it is answered by a `TaskReported` once nothing of it runs any more.
    `aborts`: that counts as a failure of its own, with the fault `ABORTED`.
    """

    task: TaskId
    attempt: int
    aborts: bool = False


class RecallTasks(NamedTuple):
    """Give attempts back that have not begun: each is answered by a `TaskReported` with the fault
    `RECALLED`. One that has begun goes on.
    """

    attempts: tuple[tuple[TaskId, int], ...]


RECALLED = "RECALLED"


class DropObjects(NamedTuple):
    """Delete objects; nobody needs them any more. `unless_whole`: only follow them no longer, since
    what was read while it grew elsewhere has broken; who has all of one says so and keeps it.
    """

    objects: tuple[ObjectId, ...]
    unless_whole: bool = False


class Neighbour(NamedTuple):
    """Another worker, as seen by workers: where it serves, and on which host."""

    netloc: str
    host: str


class MeetWorkers(NamedTuple):
    """Workers that joined, and the locations of those that were lost. `afresh`: `neighbours` are
    all that there are, and nothing said before counts. The receiver may be among them.
    """

    neighbours: tuple[Neighbour, ...]
    gone: tuple[str, ...] = ()
    afresh: bool = False

    def apply_to(self, hosts: dict[str, str], own_netloc: str) -> None:
        """Change what the worker at `own_netloc` knows: the hosts of all others, by location."""
        if self.afresh:
            hosts.clear()
        for netloc in self.gone:
            hosts.pop(netloc, None)
        hosts.update(self.neighbours)
        hosts.pop(own_netloc, None)


# --- worker to master -----------------------------------------------------------------------------


class TaskFault(NamedTuple):
    """Why an attempt failed: a word for programs, text for people (see `refs.Failure`)."""

    reason: str
    details: Any

    @property
    def text(self) -> str:
        """What people read of it."""
        return details_text(self.details)


class TaskReported(NamedTuple):
    """An attempt is over: what it published, or why it failed; `run_s` is the time its program
    took. `exit_status`: see `nodes.Ending`.
    """

    task: TaskId
    attempt: int
    published: tuple[Reference, ...]
    fault: TaskFault | None
    run_s: float
    exit_status: int | None = None


class SpawnTask(NamedTuple):
    """A running attempt of the task's parent created a task; counts only if that attempt still
    does. `begun`: the worker has begun the child as its attempt 0, without being told to; it calls
    that off if it is told `CancelTask`. `wanted`: the parent needs its outputs while it runs. Both:
    it runs within its parent, whose attempt cannot go on without it, and takes no slot.
    """

    spec: TaskSpec
    known: tuple[Reference, ...]
    attempt: int
    begun: bool = False
    wanted: bool = False


class StreamsOpened(NamedTuple):
    """Outputs of a running attempt can be read on this worker while they grow."""

    task: TaskId
    attempt: int
    refs: tuple[Reference, ...]


class ObjectsStored(NamedTuple):
    """This worker holds objects that it did not make just now: copies that it fetched, or what its
    store `kept` from before it joined, which somebody else may have made otherwise since. `idle`:
    somebody brought them, and has had the time to name them in a job; who has not needs them no
    longer.
    """

    refs: tuple[Reference, ...]
    kept: bool = False
    idle: bool = False


class TaskPrinted(NamedTuple):
    """An attempt has printed some lines; said before its end is. `text` has them if they are short
    enough to travel here; else it is empty, and they are so many bytes of its job's log on this
    worker, from `start` on. `is_stderr`: its program wrote them to standard error. `is_notice`: the
    worker itself says it, of how the attempt ended.
    """

    task: TaskId
    attempt: int
    start: int
    size_bytes: int
    text: str
    is_stderr: bool = False
    is_notice: bool = False


class InputsLost(NamedTuple):
    """An attempt came to nothing since inputs are not where they were said to be: (object,
    location) pairs. `lacks_room`: or they are, and do not fit into the worker's store.
    """

    task: TaskId
    attempt: int
    losses: tuple[tuple[ObjectId, str], ...]
    details: str
    lacks_room: bool = False


class DiskQueued(NamedTuple):
    """The disk of this worker's store has so many bytes to read or write before those of anything
    that comes now, which takes about `wait_s`. Said again when it has changed much.
    """

    pending_bytes: int
    wait_s: float


class CopyTimed(NamedTuple):
    """A copy of so many bytes came from another worker in so long: what placement reckons with."""

    netloc: str
    size_bytes: int
    run_s: float


class StoresReported(NamedTuple):
    """What each level of this worker's store holds, and what passed through it, by name, and how
    many disk jobs wait there; told when it has changed, for those who look on.
    """

    levels: tuple[dict[str, Any], ...]
    disk_waiting: int


class Heartbeat(NamedTuple):
    """I am alive; sent both ways when nothing else was for a while."""


class Received(NamedTuple):
    """So many messages came in this session, over all of its connections; sent both ways, now and
    then. `Heartbeat` and this are not counted.
    """

    total: int


FromClient = (
    SubmitJob | AddTask | WantObjects | ReleaseObjects | CloseJob | CancelJob | WatchJob | Ask
    | Change | Received | Heartbeat
)  # fmt: skip
ToClient = ObjectSettled | JobChanged | RequestRefused | JobPrinted | Answer | Received | Heartbeat
ToWorker = (
    DescribeJob | AssignTask | CancelTask | RecallTasks | DropObjects | MeetWorkers | Answer
    | Received
    | Heartbeat
)  # fmt: skip
FromWorker = (
    TaskReported | SpawnTask | StreamsOpened | ObjectsStored | TaskPrinted | InputsLost | DiskQueued
    | CopyTimed | StoresReported | Change | Received | Heartbeat
)  # fmt: skip
Message = FromClient | ToClient | ToWorker | FromWorker

HEARTBEAT_INTERVAL_S = 1.0
LOST_AFTER_S = 3.0
"""A connection on which nothing was heard for so long is given up by the side that can dial again:
a new one gets through sooner than what TCP repeats ever more rarely."""
SUSPECT_AFTER_S = 3.0
"""A worker that was silent for so long is sent no new tasks until it is heard again."""
WORKER_TIMEOUT_S = 60.0
"""A worker that was silent for so long is declared dead, and its tasks run elsewhere."""
KILL_GRACE_S = 5.0
"""Between SIGTERM and SIGKILL, when a time limit has passed or an attempt is cancelled: time to
write a checkpoint. A program that ends at SIGTERM uses none of it."""
CLIENT_GRACE_S = 5.0
"""How long a job whose client is gone waits for it to come back before it is cancelled."""
