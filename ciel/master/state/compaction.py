"""Decides which records of a journal a restored master still needs.

A journal grows with everything that happens; a compacted one contains only the records about what
the master still knows: jobs, tasks and objects that were not removed or forgotten, and removed jobs
some of whose objects remain. It is the same sequence of records with parts left out, so a master
restores it like any other journal. First all records are replayed, then the same records are
filtered by what the replayed master knows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from ciel.core.events import (
    AddTask,
    AttemptFailed,
    CancelJob,
    Change,
    CloseJob,
    ExtentsPlaced,
    JobChanged,
    JobNoted,
    JournalCompacted,
    MemoryServerLeft,
    MemoryServerSeen,
    Message,
    ObjectsStored,
    ReleaseObjects,
    ReplicateObjects,
    SubmitJob,
    SuccessionChanged,
    TaskReported,
    VolumeCreated,
    VolumeRemoved,
    WantObjects,
    WorkerLeft,
    WorkerSeen,
)
from ciel.core.ids import ObjectId
from ciel.core.jobs import ENDED, JobState, summarise
from ciel.core.refs import Reference
from ciel.core.tasks import TaskSpec
from ciel.master.state.machine import MasterMachine
from ciel.master.state.restoring import Restoration


class Survey:
    """Replays the records of a journal, and notes which objects outlive their removed job."""

    def __init__(self, machine: MasterMachine) -> None:
        self.machine = machine
        self.restoration = Restoration(machine)
        self.created: dict[str, int] = {}
        """How often a job with this id was created: an id may be used again after a removal."""
        self.left: dict[tuple[str, int], list[ObjectId]] = {}
        """Objects that stayed when their job was removed, by job and number of its creation."""

    def apply(self, record: Message, time_s: float) -> None:
        """Replay one record, which was written at a time since the epoch."""
        if type(record) is SubmitJob:
            job_id = record.spec.id
            self.created[job_id] = self.created.get(job_id, 0) + 1
        objects: list[ObjectId] = []
        removed = _removed_job(record)
        if removed is not None:
            objects = self._objects_of(removed)
        self.restoration.apply(record, time_s)
        if objects:
            nodes = self.machine.graph.objects.nodes
            left = [object_id for object_id in objects if object_id in nodes]
            if left:
                assert removed is not None
                self.left[removed, self.created.get(removed, 0)] = left

    def _objects_of(self, job_id: str) -> list[ObjectId]:
        job = self.machine.jobs.get(job_id)
        tasks = self.machine.graph.tasks
        objects = [] if job is None else list(job.uploads)
        for task_id in () if job is None else job.tasks:
            task = tasks.get(task_id)
            objects += () if task is None else task.outputs
        return objects


class Compaction:
    """Filters the records that a `Survey` has replayed, in the same order; `last` follows them."""

    def __init__(self, survey: Survey) -> None:
        machine = survey.machine
        self._survey = survey
        self._machine = machine
        self._tasks = machine.graph.tasks
        self._objects = machine.graph.objects.nodes
        self._created: dict[str, int] = {}
        self._kept_whole: set[tuple[str, int]] = set()
        """Removed jobs some of whose objects remain, by job and number of its creation."""
        self._tasks_kept_whole: set[str] = set()  # the tasks of these jobs
        for creation, objects in survey.left.items():
            if any(object_id in self._objects for object_id in objects):
                self._kept_whole.add(creation)
        self._handed_over: dict[str, int] = {}
        """By job: the number of forgotten tasks in the latest `JobChanged` that was not omitted."""
        self._known: dict[str, dict[ObjectId, Reference]] = {}
        """By job: uploads that only omitted tasks have introduced so far."""
        self._stored: set[str] = set()
        """Objects that an earlier record reports as stored; later reports of them are omitted."""
        self._specs: dict[str, TaskSpec] = {}  # by job: the last task that is not omitted

    def last(self) -> list[Message]:
        """Return the records that follow all others: the state that omitted records would give."""
        records: list[Message] = []
        for job_id, known in self._known.items():
            if known and job_id in self._specs:
                records.append(AddTask(self._specs[job_id], tuple(known.values())))
        for job in self._machine.jobs.values():
            # The end of a job may be in a later file, as if `CancelJob` is the last record of it.
            if job.state not in ENDED or job.handed_over > self._handed_over.get(job.spec.id, -1):
                records.append(JobChanged(summarise(job)))
        latest = self._survey.restoration.latest
        records += [SuccessionChanged(item, item is latest[0]) for item in latest]
        workers = self._survey.restoration.workers
        records += [WorkerSeen(worker, netloc) for worker, netloc in workers.items()]
        records += self._survey.restoration.volumes.records()
        return [*records, JournalCompacted(self._machine.job_table.count)]

    def records(self, record: Message) -> Iterator[Message]:
        """Yield the record, its part that is still needed, or nothing."""
        match record:
            case SubmitJob(spec):
                self._created[spec.id] = self._created.get(spec.id, 0) + 1
                if self._created[spec.id] > 1:
                    self._stored.clear()  # its objects may have the same ids as before
                if self._is_needed(spec.id):
                    yield record
            case AddTask():
                yield from self._added(record)
            case TaskReported(task_id) | AttemptFailed(task_id):
                if task_id in self._tasks or task_id in self._tasks_kept_whole:
                    yield record
            case ObjectsStored(refs):
                refs = tuple([ref for ref in refs if ref.id in self._objects])
                refs = tuple([ref for ref in refs if ref.id not in self._stored])
                self._stored.update([ref.id for ref in refs])
                if refs:
                    yield ObjectsStored(refs)
            case WantObjects(job_id, objects) | ReleaseObjects(job_id, objects):
                if self._is_needed(job_id):
                    known = tuple(object_id for object_id in objects if object_id in self._objects)
                    if known:
                        yield record._replace(objects=known)
            case ReplicateObjects(job_id, _, refs):
                needed = tuple(ref for ref in refs if ref.id in self._objects)
                if needed and self._is_needed(job_id):
                    yield record._replace(refs=needed)
            case CloseJob(job_id) | CancelJob(job_id) | JobNoted(job_id):
                if self._is_needed(job_id):
                    yield record
            case JobChanged(summary):
                if JobState(summary.state) in ENDED and self._is_needed(summary.id):
                    self._handed_over[summary.id] = summary.handed_over
                    yield record
            case Change(_, topic, argument):
                if self._changes_needed(topic, argument):
                    yield record
            case (
                WorkerSeen() | WorkerLeft() | SuccessionChanged() | JournalCompacted()
                | VolumeCreated() | VolumeRemoved() | MemoryServerSeen() | MemoryServerLeft()
                | ExtentsPlaced()
            ):  # fmt: skip
                pass  # `last` has the final state
            case _:
                yield record

    def _is_needed(self, job_id: str) -> bool:
        """Whether the job that a record names is known, or some of its objects remain.

        An id can be used again: the record is about the latest creation before the record.
        """
        count = self._created.get(job_id, 0)
        if (job_id, count) in self._kept_whole:
            return True
        return job_id in self._machine.jobs and count == self._survey.created.get(job_id)

    def _added(self, record: AddTask) -> Iterator[Message]:
        spec, known = record
        if not self._is_needed(spec.job):
            return
        if (spec.job, self._created[spec.job]) in self._kept_whole:
            self._tasks_kept_whole.add(spec.id)
            yield record
        elif spec.id not in self._tasks:  # it was forgotten, but later tasks may read its uploads
            refs = {ref.id: ref for ref in known if ref.id in self._objects}
            self._known.setdefault(spec.job, {}).update(refs)
        else:
            self._specs[spec.job] = spec
            before = self._known.pop(spec.job, None)
            if before:
                yield AddTask(spec, (*before.values(), *known))
            else:
                yield record

    def _changes_needed(self, topic: str, argument: Any) -> bool:
        if topic in ("keep", "discard"):
            return argument["object"] in self._objects
        job_id = argument["job"]
        is_whole = (job_id, self._created.get(job_id, 0)) in self._kept_whole
        if topic == "remove" or is_whole:
            return is_whole
        task_id = argument.get("task")
        return self._is_needed(job_id) and (task_id is None or task_id in self._tasks)


def _removed_job(record: Message) -> str | None:
    """Return the id of the job that a record removes."""
    if type(record) is Change and record.topic == "remove":
        return str(record.argument["job"])
    return None


Batch = tuple[float, Sequence[Message]]
"""Records with the time at which they were written, in seconds since the epoch."""


def compact(read: Callable[[], Iterable[Batch]]) -> Iterator[Batch]:
    """Yield the records of a journal that are still needed.

    `read` returns all records in order; it is called twice.
    """
    survey = Survey(MasterMachine())
    time_s = 0.0
    for time_s, records in read():
        for record in records:
            survey.apply(record, time_s)
    compaction = Compaction(survey)
    for time_s, records in read():
        needed = [part for record in records for part in compaction.records(record)]
        if needed:
            yield time_s, needed
    yield time_s, compaction.last()
