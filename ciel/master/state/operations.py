"""Operations on all tasks of a job, in slices: cancel, remove, retry, and check all results (see
`bulk`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from ciel.core.endings import LOOKED_AT_PER_STEP, failed_results, saw_error
from ciel.core.errors import CannotRetryError
from ciel.core.events import JobChanged, Message, ObjectSettled
from ciel.core.graph import TaskGraph
from ciel.core.ids import ObjectId
from ciel.core.job_retry import cancel, revive, stop_reviving
from ciel.core.jobs import Job, JobState, summarise
from ciel.core.nodes import TaskNode
from ciel.core.refs import Failure, Stream
from ciel.core.removal import remove
from ciel.core.retries import Blame
from ciel.core.task_history import Story
from ciel.core.tasks import ACTIVE, TaskState
from ciel.master.state.workers import Call

if TYPE_CHECKING:
    from ciel.master.state.retention import Kept


class JobOperations(ABC):
    """What `JobDesk` begins and does not end in the same turn."""

    graph: TaskGraph
    kept: dict[ObjectId, Kept]
    stories: dict[str, Story]
    blame: dict[str, Blame]
    task_totals: dict[TaskState, int]
    _called_off: dict[str, set[Call]]
    _touched: dict[str, Job]
    _judged: set[Job]
    _removed: dict[str, Job]
    _catching_up: set[tuple[str, str]]

    @abstractmethod
    def _say(self, peer: str, message: Message) -> None: ...

    @abstractmethod
    def _move(self, job: Job, state: JobState) -> None: ...

    @abstractmethod
    def _end_job(self, job: Job, state: JobState, reason: str) -> None: ...

    @abstractmethod
    def _tell_watchers(self, job: Job) -> None: ...

    @abstractmethod
    def _tell_of_retry(self, task: TaskNode) -> None: ...

    @abstractmethod
    def _delete(self, by_place: dict[str, list[ObjectId]]) -> None: ...

    def _tell_all(self, client: str, job: Job) -> Iterator[None]:
        """Tell a client about the finished and growing results of a job, and then about its state:
        if it ends meanwhile, the client learns it then.
        """
        key = (client, job.spec.id)
        self._catching_up.add(key)
        nodes = self.graph.objects.nodes
        for object_id in list(job.wanted):
            self.graph.steps_left -= 1
            if self.graph.steps_left < 0:
                yield
            node = nodes.get(object_id)
            ref = None if node is None else node.ref
            if node is not None and ref is not None and (node.is_settled or type(ref) is Stream):
                self._say(client, ObjectSettled(job.spec.id, ref))
        self._catching_up.discard(key)
        self._say(client, JobChanged(summarise(job)))

    def _removal(self, job: Job) -> Iterator[None]:
        if any(job.counts[state] for state in ACTIVE):
            # What was lost is being made again.
            yield from self._calling_off(job, "its job was removed")
        self.graph.ending.add(job)
        records = (self.stories, self.blame)
        yield from self._delete_all(remove(self.graph, job, self.kept, records))
        self.graph.ending.discard(job)
        for state, count in job.counts.items():  # those that were handed over
            self.task_totals[state] -= count
        del self._removed[job.spec.id]

    def _retrying(
        self,
        job: Job,
        refused: list[CannotRetryError],
        objects: Sequence[ObjectId] | None = None,
    ) -> Iterator[None]:
        """Try a job's failed tasks again, or those that make `objects` and what these need."""
        state, before = job.state, (job.reason, job.ended_at_s, job.called_off)
        if state is not JobState.ACTIVE:
            self._move(job, JobState.ACTIVE)
        job.reason, job.ended_at_s = "", None
        self._judged.add(job)
        is_late = False
        operation: Iterator[object]
        operation = self._try_again(job) if objects is None else revive(self.graph, job, objects)
        try:
            while next(operation, True) is None:
                is_late = True
                yield
                if job.state is not JobState.ACTIVE:  # it was cancelled meanwhile
                    return
        except CannotRetryError as error:
            refused.append(error)
            if state is JobState.CANCELLED:
                self._move(job, JobState.CANCELLING)
            self._move(job, state)
            job.reason, job.ended_at_s, job.called_off = before
            if is_late:
                job.reason = f"{job.reason} ({error})"
                self._tell_watchers(job)
        finally:
            self._judged.discard(job)
            stop_reviving(self.graph, job)
        self._touched[job.spec.id] = job

    def _try_again(self, job: Job) -> Generator[None, None, None]:
        graph = self.graph
        if seer := (yield from saw_error(graph, job)):
            raise CannotRetryError(job.number, f"its task {seer} made its result from an error")
        for place, task_id in enumerate(job.tasks):
            if self.blame.pop(task_id, None) is not None:
                self._tell_of_retry(graph.tasks[task_id])
            if place % LOOKED_AT_PER_STEP == 0:
                graph.steps_left -= 1
                if graph.steps_left < 0:
                    yield
        if not (yield from revive(graph, job)):
            raise CannotRetryError(job.number, "nothing of it failed")

    def _finishing(self, job: Job) -> Iterator[None]:
        self._judged.add(job)
        failed = yield from failed_results(self.graph, job)
        self._judged.discard(job)
        if job.state is not JobState.ACTIVE:
            return  # it was cancelled meanwhile
        if job.unsettled:
            self._touched[job.spec.id] = job  # a result was lost meanwhile
        elif failed:
            ref = self.graph.objects.reference(failed[0])
            more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
            why = f"{ref.reason}: {ref.text}" if isinstance(ref, Failure) else "a result failed"
            self._end_job(job, JobState.FAILED, f"{why}{more}")
        else:
            self._end_job(job, JobState.COMPLETED, "")

    def _ending_by_force(self, job: Job, state: JobState, reason: str) -> Iterator[None]:
        """End a job whose tasks are ended first; one that is cancelled ends when its programs are
        gone.
        """
        job.reason = reason
        yield from self._calling_off(job, reason)
        if state is JobState.FAILED or not self._called_off.get(job.spec.id):
            self._end_job(job, state, reason)

    def _calling_off(self, job: Job, reason: str) -> Iterator[None]:
        """End all tasks of a job; those that run are called off, and remembered until they are
        gone.
        """
        self._decide()
        job.called_off = True
        self.graph.ending.add(job)
        for call in self._stop_attempts(job, reason):
            if call is not None:
                self._called_off.setdefault(job.spec.id, set()).add(call)
            self.graph.steps_left -= 1
            if self.graph.steps_left < 0:
                yield
        yield from cancel(self.graph, job, reason)

    @abstractmethod
    def _decide(self) -> None:
        """Assign what workers began by themselves, or call it off."""

    @abstractmethod
    def _stop_attempts(self, job: Job, reason: str) -> Iterator[Call | None]:
        """Have workers stop all that they run for a job, whose tasks end with that; yield what they
        have to answer for.
        """

    def _delete_all(self, operation: Iterable[dict[str, list[ObjectId]]]) -> Iterator[None]:
        """Have deleted what an operation yields, in slices."""
        for deletions in operation:
            self._delete(deletions)
            if self.graph.steps_left < 0:
                yield
