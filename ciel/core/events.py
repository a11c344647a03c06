"""The messages between clients, master and workers, as plain values.

Names in the imperative are orders; names in the past tense are reports. `wire.messages` encodes
them. The state machines take and return them; they know no connections, only names of peers.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ciel.core.ids import JobId, ObjectId, TaskId
from ciel.core.jobs import CallerContext, JobSpec, JobSummary
from ciel.core.masters import Succession
from ciel.core.refs import Reference, details_text
from ciel.core.tasks import TaskSpec

# --- client to master -----------------------------------------------------------------------------


class SubmitJob(NamedTuple):
    """Create a job. A second message with the same id has no effect, so a client may resend it."""

    spec: JobSpec


class AddTask(NamedTuple):
    """Add a task to the client's open job, or the first task to any job of the client.

    `known`: the inputs that are not futures.
    """

    spec: TaskSpec
    known: tuple[Reference, ...]


class WantObjects(NamedTuple):
    """Make a job want objects: the master lets tasks produce them, and announces them."""

    job: JobId
    objects: tuple[ObjectId, ...]


class ReleaseObjects(NamedTuple):
    """Make a job stop wanting objects.

    `for_good`: the client will not name them again, so the master may forget their lineage.
    `uploads`: references to released objects that the client has uploaded to workers: the master
    may not know of them yet.
    """

    job: JobId
    objects: tuple[ObjectId, ...]
    for_good: bool = False
    uploads: tuple[Reference, ...] = ()


class ReplicateObjects(NamedTuple):
    """Have a number of workers hold each of these objects until the job ends or releases them.

    The client has uploaded them to some workers. Other workers copy them if these are too few, and
    again whenever a worker with a copy is lost.
    """

    job: JobId
    copies: int
    refs: tuple[Reference, ...]


class CloseJob(NamedTuple):
    """Announce that no tasks or wants follow: the job ends when its wanted objects exist."""

    job: JobId


class CancelJob(NamedTuple):
    """Cancel a job. Its programs are killed; the job is cancelled when they have ended."""

    job: JobId
    reason: str


class WatchJob(NamedTuple):
    """Subscribe to a job, and keep it alive.

    Objects that are settled already are announced at once. `prints`: subscribe to the lines that
    its tasks print as well.
    """

    job: JobId
    prints: bool = False


class Ask(NamedTuple):
    """Query the master (`status`, `jobs`, `job`, …). An `Answer` with the same number replies."""

    number: int
    topic: str
    argument: Any


class Change(NamedTuple):
    """Change a worker, or a job, task or object of any client.

    Clients `remove` or `retry` a job, `cancel_task` or `retry_task`, `keep` or `discard` an object,
    and `drain` a worker. Workers `attach` a process to a new job, or `fail` a job. An `Answer` with
    the same number replies, except to `LEAVE`, by which a worker ends its session.
    """

    number: int
    topic: str
    argument: Any


LEAVE = "leave"


class ServiceOpened(NamedTuple):
    """The program of this attempt is a replica of a service, and answers calls at an address.

    The program itself sends it, and sends it again to a master that does not know it.
    """

    task: TaskId
    attempt: int
    address: str


class StartOver(NamedTuple):
    """The first message to a peer that wanted to resume a session which the master does not know: a
    new session begins. The master has restarted, or has declared the peer dead.
    """


# --- master to client -----------------------------------------------------------------------------


class ObjectSettled(NamedTuple):
    """A wanted object is complete, or has failed.

    If `ref` is a Stream, a task still writes the object, and clients can read it.
    """

    job: JobId
    ref: Reference


class JobChanged(NamedTuple):
    """The state of a job, sent at intervals while the job runs, and when it has ended."""

    summary: JobSummary


class RequestRefused(NamedTuple):
    """The master rejected a message about a job; `reason` says what is wrong with it."""

    job: JobId
    reason: str


class JobPrinted(NamedTuple):
    """A task has printed text, see `TaskPrinted`.

    `number`: the position of the task among the tasks of the client, from 1; 0 if a task created
    it. `netloc`: the worker whose log contains the text. `is_notice`: sent to all clients that
    watch the job, whether they subscribe to prints or not.
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
    """The reply to an `Ask` or a `Change`; `error` is empty on success."""

    number: int
    value: Any
    error: str


# --- master to worker -----------------------------------------------------------------------------


class DescribeJob(NamedTuple):
    """The directory and the environment in which the programs of a job run.

    The master sends it before the first task of the job, and None when the job has ended.
    """

    job: JobId
    context: CallerContext | None


class AssignTask(NamedTuple):
    """Run a task.

    `inputs`: its inputs as the master knows them now, in the order of the spec. An input that is
    still a future is the output of a task that the worker was assigned before. `taken`: the numbers
    of the outputs that children of an earlier attempt produce.
    """

    spec: TaskSpec
    attempt: int
    inputs: tuple[Reference, ...]
    taken: tuple[int, ...] = ()


class CancelTask(NamedTuple):
    """Cancel an attempt.

    The worker replies with `TaskReported` when no process of it is left. `aborts`: the attempt then
    counts as failed, with the fault `ABORTED`.
    """

    task: TaskId
    attempt: int
    aborts: bool = False


class RecallTasks(NamedTuple):
    """Return attempts that have not started: the worker reports each with the fault `RECALLED`.

    An attempt that has started continues.
    """

    attempts: tuple[tuple[TaskId, int], ...]


RECALLED = "RECALLED"


class DropObjects(NamedTuple):
    """Delete objects that are not needed any more.

    `unless_complete`: only stop fetching them, since the streams have broken; a worker that has
    received all of an object keeps it.
    """

    objects: tuple[ObjectId, ...]
    unless_complete: bool = False


class CopyObjects(NamedTuple):
    """Copy objects to this worker's store, which must not drop them when it is full.

    The worker replies with `ObjectsStored` or `NotCopied`, also for objects that it has already.
    """

    refs: tuple[Reference, ...]


class CompareObjects(NamedTuple):
    """Compare outputs of a superseded attempt with the objects that count, and delete them.

    The worker sends `ContentDiffers` for each object whose content differs. `refs`: the locations
    of the first results.
    """

    refs: tuple[Reference, ...]


class StateChanged(NamedTuple):
    """The state of a member on another host has changed, or its task has failed."""

    job: JobId
    group: str
    member: int
    word: int


class DrainWorker(NamedTuple):
    """Start no children locally any more: the worker is to leave.

    It says so if it joins again, with the rest of `timeout_s`: after this time, other workers run
    its tasks. None: without limit.
    """

    timeout_s: float | None


class DismissWorker(NamedTuple):
    """Leave, and end: the worker was drained, and no task or job needs it any more."""


class Neighbour(NamedTuple):
    """Another worker, as workers see it: its address and its host."""

    netloc: str
    host: str


class MeetWorkers(NamedTuple):
    """Workers that have joined, and the addresses of workers that are lost.

    If `is_complete`, `neighbours` lists all workers and replaces earlier lists. It may contain the
    receiver.
    """

    neighbours: tuple[Neighbour, ...]
    gone: tuple[str, ...] = ()
    is_complete: bool = False

    def apply_to(self, hosts: dict[str, str], own_netloc: str) -> None:
        """Update `hosts`, the hosts of all workers except `own_netloc`, by address."""
        if self.is_complete:
            hosts.clear()
        for netloc in self.gone:
            hosts.pop(netloc, None)
        hosts.update(self.neighbours)
        hosts.pop(own_netloc, None)


# --- worker to master -----------------------------------------------------------------------------


class TaskFault(NamedTuple):
    """Why an attempt failed.

    `reason` is a keyword for programs. `details` has the message for users (see `refs.Failure`).
    """

    reason: str
    details: Any

    @property
    def text(self) -> str:
        """The message for users."""
        return details_text(self.details)


class TaskReported(NamedTuple):
    """An attempt has ended: its published objects, or its fault.

    `run_s`: the run time of its program. `exit_status`: see `nodes.Ending`.
    """

    task: TaskId
    attempt: int
    published: tuple[Reference, ...]
    fault: TaskFault | None
    run_s: float
    exit_status: int | None = None


class SpawnTask(NamedTuple):
    """A running attempt of the parent created a task.

    The master ignores the message if that attempt is superseded. `started`: the worker has started
    the child by itself, as attempt 0; the worker stops it on `CancelTask`. `wanted`: the parent
    needs the child's outputs while it runs. Both: the child runs within the program of its parent,
    which waits for it, and occupies no slot.
    """

    spec: TaskSpec
    known: tuple[Reference, ...]
    attempt: int
    started: bool = False
    wanted: bool = False


class StreamsOpened(NamedTuple):
    """Other tasks can read outputs of a running attempt on this worker while they grow."""

    task: TaskId
    attempt: int
    refs: tuple[Reference, ...]


class ObjectsStored(NamedTuple):
    """This worker stores objects that it did not just produce.

    They are copies that it fetched, or objects that its store has `kept` since before it joined.
    Another worker may have produced a kept object with different content since. `idle`: uploads
    that no job has named in time; their client does not need them any more. A `Tombstone` means
    that the worker has deleted an object that was damaged.
    """

    refs: tuple[Reference, ...]
    kept: bool = False
    idle: bool = False


class AttemptsKept(NamedTuple):
    """The attempts that a worker has from an earlier session: running attempts, and attempts whose
    ends the master has not confirmed. `within`: tasks that run in the programs of other tasks.
    `cancelled`: tasks that the master has cancelled. The worker's unconfirmed messages follow.
    """

    attempts: tuple[tuple[TaskId, int], ...]
    within: tuple[TaskId, ...]
    cancelled: tuple[TaskId, ...]


class StoreListed(NamedTuple):
    """The worker has reported all objects that its store has kept since before it joined."""


class TaskPrinted(NamedTuple):
    """An attempt has printed some lines; sent before its end is reported.

    `text` contains short lines; otherwise it is empty, and the lines are `size_bytes` of the job's
    log on this worker, from the offset `start` on. `is_stderr`: the program wrote them to standard
    error. `is_notice`: the worker itself says how the attempt ended.
    """

    task: TaskId
    attempt: int
    start: int
    size_bytes: int
    text: str
    is_stderr: bool = False
    is_notice: bool = False


class InputsLost(NamedTuple):
    """An attempt could not start because inputs are missing at their listed locations.

    `losses`: (object, location) pairs. `lacks_room`: the inputs exist, but do not fit into the
    worker's store.
    """

    task: TaskId
    attempt: int
    losses: tuple[tuple[ObjectId, str], ...]
    details: str
    lacks_room: bool = False


class NotCopied(NamedTuple):
    """An object could not be copied to this worker, see `CopyObjects`.

    `missing_at`: the locations that do not have it. `lacks_room`: it does not fit into the store.
    """

    object: ObjectId
    missing_at: tuple[str, ...]
    details: str
    lacks_room: bool


class ContentDiffers(NamedTuple):
    """A second attempt on this worker has produced other content; see `CompareObjects`."""

    object: ObjectId


class DiskQueued(NamedTuple):
    """The length of the queue at the disk of this worker's store.

    `pending_bytes`: to be read or written before a new disk job. `wait_s`: how long that takes.
    Sent again when the queue has changed much.
    """

    pending_bytes: int
    wait_s: float


class CopyTimed(NamedTuple):
    """Copying an object from another worker took `run_s`; placement computes bandwidths from it."""

    netloc: str
    size_bytes: int
    run_s: float


class WorkersUnreached(NamedTuple):
    """No answer came from these addresses for as long as this worker retries a fetch.

    The reports of the attempts that needed objects from there follow.
    """

    netlocs: tuple[str, ...]


class StateSet(NamedTuple):
    """A member of a group of `size` members has joined, or has changed its state (`core.states`).

    The worker follows the group from then on. `word`: its flags and marks.
    """

    job: JobId
    group: str
    size: int
    member: int
    task: TaskId
    attempt: int
    word: int


class DiskLimit(NamedTuple):
    """How many tasks may use a disk at a time. `io`: the name by which tasks declare it.

    `device`: the same for all workers of a host that use the disk; empty if it has no limit.
    """

    io: str
    device: str
    at_a_time: int


class StoresReported(NamedTuple):
    """The contents and counters of each level of this worker's store, by name.

    `disk_waiting`: the number of waiting disk jobs. `is_full`: the device of the work directory has
    no room, so tasks should run elsewhere. `disks`: the disks that tasks have declared. Sent after
    changes.
    """

    levels: tuple[dict[str, Any], ...]
    disk_waiting: int
    is_full: bool = False
    disks: tuple[DiskLimit, ...] = ()


# --- master to standby ----------------------------------------------------------------------------


class JournalCopied(NamedTuple):
    """A part of the journal as it was when the standby connected, without the headers of files."""

    content: bytes


class JournalCopyEnds(NamedTuple):
    """All parts were sent; the records after them follow. `number`: of the last append in them."""

    number: int


class JournalGrew(NamedTuple):
    """Records that the master has appended as number `number`, or a part of their frames."""

    number: int
    is_last_part: bool
    content: bytes


# --- standby to master ----------------------------------------------------------------------------


class JournalStored(NamedTuple):
    """All records up to append `number` are durable at the standby."""

    number: int


# --- memory server to master ----------------------------------------------------------------------


class LeaseAsked(NamedTuple):
    """A memory server wants to act as primary. `asked_us`: when it asked, by its own clock."""

    asked_us: int


class ExtentsOffered(NamedTuple):
    """All extents that a memory server has: volume, extent, epoch. Its first message."""

    extents: tuple[tuple[int, int, int], ...]


class RolesTaken(NamedTuple):
    """A memory server has carried out `TakeRoles`."""

    number: int


class ExtentSynced(NamedTuple):
    """A joining backup, whose number is `peer`, has all pages of an extent."""

    volume: int
    extent: int
    epoch: int
    peer: int


class PeerServerLost(NamedTuple):
    """The connection of a memory server to a backup has ended, or was impossible."""

    peer: int


class MemoryReported(NamedTuple):
    """The counters of a memory server since its start, and its present numbers, by name."""

    figures: dict[str, int]


class OfferChanged(NamedTuple):
    """A memory server offers another number of extents: its host is short of memory, or no more.

    `is_urgent`: the kernel may soon kill programs there.
    """

    extents: int
    is_urgent: bool


# --- master to memory server ----------------------------------------------------------------------


class LeaseGranted(NamedTuple):
    """A memory server may act as primary until this time after it asked."""

    asked_us: int
    duration_us: int


class AllowToken(NamedTuple):
    """Accept one connection that begins with a token, in hexadecimal digits."""

    token: str


class ConnectServer(NamedTuple):
    """Connect to another memory server, which becomes the peer of this number."""

    peer: int
    address: str
    token: str


class ExtentRole(NamedTuple):
    """The role of a memory server for an extent: 0 none, 1 primary, 2 backup, 3 joining.

    `backups`, `joining` and `rejoining`: numbers of peers; all of them are backups.
    """

    volume: int
    extent: int
    epoch: int
    role: int
    backups: tuple[int, ...] = ()
    joining: tuple[int, ...] = ()
    rejoining: tuple[int, ...] = ()


class TakeRoles(NamedTuple):
    """Take over roles, in order; answer by `RolesTaken` with the same number."""

    number: int
    roles: tuple[ExtentRole, ...]


class KeepExtents(NamedTuple):
    """Forget all extents, except these: pairs of volume and extent."""

    extents: tuple[tuple[int, int], ...]


class DismissServer(NamedTuple):
    """Leave, and end: other memory servers have all pages."""


# --- master to client -----------------------------------------------------------------------------


class MastersNamed(NamedTuple):
    """The URLs at which a client or memory server may find a master when this one has ended."""

    urls: tuple[str, ...]


# --- in the journal only --------------------------------------------------------------------------


class MasterStarted(NamedTuple):
    """A master has started with this journal, for the `epoch`-th time. `software`: its version."""

    epoch: int
    software: str


class JobNoted(NamedTuple):
    """A line of the history of a job; `at_s`: seconds since the epoch."""

    job: JobId
    at_s: float
    text: str


class WorkerSeen(NamedTuple):
    """A worker has joined, at an address."""

    worker: str
    netloc: str


class WorkerLeft(NamedTuple):
    """A worker has left or was declared dead."""

    worker: str


class AttemptFailed(NamedTuple):
    """An attempt on a worker has failed, and its task is retried. `worker_died`: it failed because
    the process of the worker ended; the `details` of the fault say why.
    """

    task: TaskId
    attempt: int
    worker: str
    fault: TaskFault
    worker_died: bool = False


class SuccessionChanged(NamedTuple):
    """The masters that may be elected, and their voters (`core.masters`): proposed, or agreed."""

    succession: Succession
    is_agreed: bool


class VolumeCreated(NamedTuple):
    """A volume of remote memory was created, with so many extents and copies of each.

    No other volume ever gets its number. `compress`: by which codec its clients compress pages; ""
    for none.
    """

    number: int
    name: str
    extents: int
    replicas: int
    owner: str
    compress: str


class VolumeRemoved(NamedTuple):
    """The volume of this number was removed."""

    number: int


class MemoryServerSeen(NamedTuple):
    """A memory server has joined, at an address, and offers so many extents; or it drains now.

    `number`: of the server, which other servers get when it has left.
    """

    server: str
    number: int
    address: str
    extents: int
    is_draining: bool


class MemoryServerLeft(NamedTuple):
    """The memory server of this number has left, and has no pages that are needed."""

    number: int


class ExtentPlaced(NamedTuple):
    """The latest decision about an extent. `primary` and `in_sync`: numbers of servers.

    `is_used`: a primary has served it, so that its servers have pages which must not be lost.
    """

    extent: int
    epoch: int
    is_used: bool
    primary: int
    in_sync: tuple[int, ...]


class ExtentsPlaced(NamedTuple):
    """Decisions about extents of a volume, each of which replaces the one before it."""

    volume: int
    extents: tuple[ExtentPlaced, ...]


class JournalCompacted(NamedTuple):
    """Ends the records that a compaction has left. `jobs`: the number of jobs that were ever
    created, including removed ones.
    """

    jobs: int


# --- between any two ------------------------------------------------------------------------------


class Heartbeat(NamedTuple):
    """Shows that the sender is alive; both sides send it after a time without other messages."""


class Received(NamedTuple):
    """The number of messages received in this session, over all of its connections.

    Both sides send it at intervals. `Heartbeat` and `Received` are not counted.
    """

    total: int


FromService = Ask | ServiceOpened | Received | Heartbeat
FromClient = (
    SubmitJob | AddTask | WantObjects | ReleaseObjects | ReplicateObjects | CloseJob | CancelJob
    | WatchJob | Ask | Change | Received | Heartbeat
)  # fmt: skip
ToClient = (
    ObjectSettled | JobChanged | RequestRefused | JobPrinted | Answer | StartOver | MastersNamed
    | Received | Heartbeat
)  # fmt: skip
ToWorker = (
    StartOver | DescribeJob | AssignTask | CancelTask | RecallTasks | DropObjects | MeetWorkers
    | CopyObjects | CompareObjects | StateChanged | DrainWorker | DismissWorker | Answer | Received
    | Heartbeat
)  # fmt: skip
FromWorker = (
    TaskReported | SpawnTask | StreamsOpened | ObjectsStored | NotCopied | TaskPrinted | InputsLost
    | ContentDiffers | DiskQueued | CopyTimed | WorkersUnreached | StoresReported | StateSet
    | AttemptsKept | StoreListed | Change | Received | Heartbeat
)  # fmt: skip
ToStandby = JournalCopied | JournalCopyEnds | JournalGrew | Heartbeat
FromStandby = JournalStored | Heartbeat
FromMemory = (
    ExtentsOffered | LeaseAsked | RolesTaken | ExtentSynced | PeerServerLost | MemoryReported
    | OfferChanged | Heartbeat
)  # fmt: skip
ToMemory = (
    LeaseGranted | AllowToken | ConnectServer | TakeRoles | KeepExtents | DismissServer
    | MastersNamed | Heartbeat
)  # fmt: skip
VolumeRecord = VolumeCreated | VolumeRemoved | MemoryServerSeen | MemoryServerLeft | ExtentsPlaced
InJournal = (
    MasterStarted | SuccessionChanged | JobNoted | WorkerSeen | WorkerLeft | AttemptFailed
    | VolumeRecord | JournalCompacted
)  # fmt: skip
Message = (
    FromClient | FromService | ToClient | ToWorker | FromWorker | ToStandby | FromStandby
    | FromMemory | ToMemory | InJournal
)  # fmt: skip

COPIES_MAX = 8
"""The largest number of copies of an object that workers maintain: a client uploads each of them,
and so many workers seldom fail together."""
HEARTBEAT_INTERVAL_S = 1.0
LOST_AFTER_S = 3.0
"""After this time without a message, the connecting side closes the connection and reconnects: a
new connection succeeds sooner than TCP's retransmissions, whose intervals grow."""
SUSPECT_AFTER_S = 3.0
"""After this time without a message, a worker is suspected: it gets no new tasks until it sends
one."""
WORKER_TIMEOUT_S = 60.0
"""After this time without a message, a worker is declared dead, and other workers run its tasks."""
RESTART_GRACE_S = 3.0
"""The objects of a worker whose process has ended stay listed for this time, if they are in a work
directory: a worker that is started again there has them, and nothing is recomputed."""
KILL_GRACE_S = 5.0
"""The time between SIGTERM and SIGKILL, after a time limit or a cancellation, for programs that
write a checkpoint."""
FORGET_JOBS_AFTER_S = 30 * 86400.0
TASKS_MAX = 10_000_000  # of a job: the master needs about 1 KB for each
"""The time after which an ended job is removed, with its results."""
CLIENT_GRACE_S = 5.0
"""The time for which a job waits for its client to reconnect before it is cancelled."""
