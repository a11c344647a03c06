"""The dynamic task graph: the states of all tasks and objects, and the rules that change them.

It implements lineage, laziness, delegation, tasks that spawn tasks, errors, loss and release.

The graph is pure. Its owner reports events, and empties the outboxes after each tick: `runnable`,
`settled` and `unneeded` here, `broken_readers` and `completed_readers` of the streams, `droppable`
of the retention, `released` of the fixed processes. No method recurses, so the depth of the graph
has no limit.

The graph itself owns the states of tasks, the objects, the table of waiting tasks, and demand. Its
components own everything else: streams, tasks with alternatives, retention, waiting processes,
tasks that delegate differently when they run again, undeclared outputs, and the waits of running
tasks. The graph reports events to its components; they return the consequences, and never call the
graph. The rules (CIB-1, CIB-4):

- A task becomes active only when a job wants one of its outputs, or an active task waits for one.
  The code calls this to *demand* the output.
- An active task waits until all its inputs are consumable. A failed input fails the task, unless it
  sees errors. For some tasks one of several inputs is enough (`any_inputs`).
- A child may take over outputs of its parent (delegation). A known task is not added twice.
- If an object that was lost or dropped is needed, its producer recomputes it, and so on upwards.
- An object whose id starts with a task's id is an output of that task, declared or not.
- The readers of a growing object may run. If the object breaks, they stop and wait again.
- An object is droppable when no job wants it and no unfinished task can name it.

One event may cause any amount of work: an object may have 300,000 readers. The owner limits the
work by `steps_left`, the number of tasks that may be touched before the graph defers the rest,
which `deferred.resume` continues. `notifying`, `demanding` and `releasing` contain the objects
whose readers or producers are still to be visited. The state of each is checked when it is visited,
so the graph may change in between.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from ciel.core.errors import InvalidTaskError, InvalidTransitionError
from ciel.core.graph import any_inputs
from ciel.core.graph.any_inputs import AnyInputs
from ciel.core.graph.failures import label, no_output_text, propagated
from ciel.core.graph.fixed import FixedProcesses
from ciel.core.graph.nodes import TaskNode
from ciel.core.graph.objects import NO_JOBS, ObjectNode, ObjectTable
from ciel.core.graph.redelegation import Redelegation
from ciel.core.graph.retention import Retention
from ciel.core.graph.running_waits import RunningWaits
from ciel.core.graph.streams import Streams
from ciel.core.graph.undeclared_outputs import UndeclaredOutputs
from ciel.core.graph.waiting import Waiting
from ciel.core.ids import ObjectId
from ciel.core.jobs import Job
from ciel.core.refs import STREAMS, Failure, Reference
from ciel.core.tasks import (
    ACTIVE,
    ASSIGNED,
    CANCELLED,
    DONE,
    DORMANT,
    FAILED,
    FINISHED,
    RUNNABLE,
    TRANSITIONS,
    WAITING,
    TaskSpec,
    TaskState,
)

UNBOUNDED = 1 << 60
"""The steps of an owner that never interrupts the graph."""
INPUTS_PER_STEP = 8
"""The number of inputs that cost as much time as one step."""


class TaskGraph:
    """All tasks and objects of all jobs of one master."""

    def __init__(self) -> None:
        self.tasks: dict[str, TaskNode] = {}
        self.objects = ObjectTable()
        self.waiting: Waiting[TaskNode] = Waiting()
        self.runnable: list[TaskNode] = []
        self.settled: list[ObjectId] = []
        self.unneeded: list[TaskNode] = []
        self.retention = Retention(self.tasks, self.objects)
        self.streams = Streams(self.objects)
        self.any_inputs = AnyInputs(self.objects, self.waiting)
        self.running_waits = RunningWaits()
        self.redelegation = Redelegation(self.tasks, self.objects, self.retention)
        self.undeclared_outputs = UndeclaredOutputs(self.tasks, self.objects, self.retention)
        self.fixed = FixedProcesses(self.tasks, self.objects, self.retention)
        self.steps_left = UNBOUNDED
        # Objects that exist, and for which tasks still wait.
        self.notifying: deque[ObjectId] = deque()
        self.demanding: list[ObjectId] = []  # needed objects whose producers may be dormant
        self.releasing: list[ObjectId] = []  # released objects whose producers may be active
        self.cancelling: set[Job] = set()  # jobs whose tasks are being cancelled: none may start
        self.retrying: set[Job] = set()  # jobs whose failed tasks are being reset
        self._growing = self.objects.growing
        # Tasks that began to wait; recorded if the owner sets this to a list.
        self.newly_waiting: list[TaskNode] | None = None
        self.disturbed = False  # a task was reset, an object lost, or a producer replaced

    # --- growth -----------------------------------------------------------------------------------

    def add(self, spec: TaskSpec, job: Job) -> TaskNode:
        """Add a task (checked by `tasks.check_task`); return it.

        A known task is returned unchanged.

        Its parent must be `job` itself or a task of it. Raises InvalidTaskError, and then changes
        nothing.
        """
        known = self.tasks.get(spec.id)
        if known is not None:
            if known.spec.outputs != spec.outputs:
                raise InvalidTaskError(spec.id, "a task with this id has other outputs")
            self._redelegate(known)
            return known
        parent = self._parent_of(spec, job)
        node = TaskNode(spec, job)
        nodes = self.objects.nodes
        producing: Sequence[ObjectId] = spec.outputs
        has_known_output = False
        for object_id in producing:  # searched once, since large tables are slow
            output = ObjectNode(object_id, node)
            has_known_output |= nodes.setdefault(object_id, output) is not output
        if has_known_output:
            for object_id in producing:
                if nodes[object_id].producer is node:
                    del nodes[object_id]
            producing = self._claim_outputs(node, parent)
        self.tasks[spec.id] = node
        if job.first is None:
            job.first = spec
        job.tasks.append(spec.id)
        job.count(spec, None, DORMANT)
        for object_id in spec.inputs:
            source = nodes.get(object_id)
            if source is None:
                source = nodes[object_id] = ObjectNode(object_id)
                self.undeclared_outputs.named(object_id, job)
            source.holds += 1
            source.users += 1
            if source.producer is None or source.producer.job is not job:
                self.objects.use(job.foreign, object_id)
        if self.objects.fixed:
            self.fixed.task_added(node)
        self.retention.task_added(node, parent, producing)
        if parent is not None:
            self._note_child(parent, spec)
        if has_known_output:  # a job or a task may need them already
            self._redelegate(node)
            for object_id in producing:
                if nodes[object_id].is_future and self.is_awaited(object_id):
                    self.demand((object_id,))
                    break
        return node

    def _claim_outputs(self, task: TaskNode, parent: TaskNode | None) -> list[ObjectId]:
        """Make a task the producer of its outputs, except for outputs of an earlier task."""
        spec = task.spec
        nodes = self.objects.nodes
        for object_id in spec.outputs:
            output = nodes.get(object_id)
            if output is not None and output.producer is None and output.is_settled:
                raise InvalidTaskError(spec.id, f"its output {object_id} exists already")
        producing = []
        for object_id in spec.outputs:
            output = nodes.get(object_id)
            if output is None:
                nodes[object_id] = ObjectNode(object_id, task)
            elif output.producer is None:
                output.producer = task
            else:
                output.users += 1
                if output.producer is not parent:
                    continue  # another task produces it; `_redelegate` handles repeated delegations
                output.producer = task
                self.disturbed = True
                if object_id in self.objects.growing:
                    self.streams.opened[parent].remove(object_id)
                    self.streams.reset(object_id)
            producing.append(object_id)
        return producing

    def _parent_of(self, spec: TaskSpec, job: Job) -> TaskNode | None:
        if spec.parent == job.spec.id:
            return None
        parent = self.tasks.get(spec.parent)
        if parent is None or parent.job is not job:
            raise InvalidTaskError(spec.id, f"its parent {spec.parent} is not a task of its job")
        return parent

    def _note_child(self, parent: TaskNode, spec: TaskSpec) -> None:
        if parent.children is None:
            parent.children = {}
        parent.children[spec.ordinal] = spec.id

    def _redelegate(self, child: TaskNode) -> None:
        """Make a child the producer of the outputs that its parent has just delegated to it."""
        inherited, replaced = self.redelegation.task_added(child)
        if not inherited:
            return
        self.disturbed = True
        if child.state is CANCELLED:  # it was cancelled with its job, which was retried since
            self.reset_failed(child)
        for before in replaced:
            if before.state in ACTIVE and not self.is_needed(before):
                if before.worker is not None:
                    self.unneeded.append(before)
                else:
                    self.deactivate(before)
        self.demand(inherited)

    # --- demand -----------------------------------------------------------------------------------

    def want(self, object_id: ObjectId, job: Job) -> None:
        """Make a job want an object; if the object is missing, its producer becomes active."""
        node = self.objects.nodes.get(object_id) or self.objects.ensure(object_id)
        if node.wanters and job in node.wanters:
            return
        job.wanted.add(node.id)
        node.wanters = (*node.wanters, job) if node.wanters else job.as_wanter
        if node.is_settled:
            self.settled.append(object_id)
            return
        job.unsettled += 1
        producer = node.producer
        if (
            producer is not None
            and producer.state is DORMANT
            and not producer.spec.inputs
            and producer.job.postponed is None
        ):
            self.make_runnable(producer)  # the usual case for the elements of an array
        else:
            self.demand((object_id,))

    def unwant(self, object_id: ObjectId, job: Job) -> None:
        """Make a job stop wanting an object: it may be dropped, and its producer may stop."""
        node = self.objects.nodes.get(object_id)
        if node is None or job not in node.wanters:
            return
        job.wanted.remove(object_id)
        node.wanters = tuple([other for other in node.wanters if other is not job]) or NO_JOBS
        if not node.is_settled:
            job.unsettled -= 1
            self.release_demand([object_id])
        self.retention.drop_if_unused(object_id, node)

    def demand(self, object_ids: Iterable[ObjectId]) -> None:
        """Activate the producers of needed objects that are missing, and so on upwards.

        If no steps are left after the first producer, defer the rest.
        """
        pending = list(object_ids)
        nodes = self.objects.nodes
        while pending:
            object_id = pending.pop()
            node = nodes.get(object_id)
            if node is None:  # forgotten since this was deferred
                continue
            producer = node.producer
            if producer is None or not node.is_future:
                continue
            if producer.job.postponed is not None:  # a retry or a predecessor has not ended
                producer.job.postponed[object_id] = None
                continue
            if producer.state is DORMANT or producer.state is DONE:
                # The activation of other tasks may have failed the tasks that needed this object.
                if self.is_awaited(object_id):
                    pending.extend(self._activate(producer))
                    self.steps_left -= 1
                    if self.steps_left < 0 and pending:
                        self.demanding += pending
                        return

    def _activate(self, task: TaskNode) -> list[ObjectId]:
        """Make a task runnable, or wait for missing inputs; return the objects to be demanded."""
        if task.state is DONE:
            self.reopen(task)
        spec = task.spec
        if not spec.inputs:
            self.make_runnable(task)
            return []
        self.steps_left -= len(spec.inputs) // INPUTS_PER_STEP
        nodes = self.objects.nodes
        missing = []
        chooses = spec.any_count
        for object_id in spec.needed if chooses else spec.inputs:
            node = nodes[object_id]
            if not node.is_consumable:
                missing.append(object_id)
            elif (failure := node.failure) is not None and not spec.sees_errors:
                self._fail([(task, *propagated(self.objects, failure))])
                return []
        demanded = missing
        if chooses:
            if (failure := any_inputs.failure_of_all(self.objects, spec)) is not None:
                self._fail([(task, *propagated(self.objects, failure))])
                return []
            demanded = self.any_inputs.add(task, missing)
        if not missing:
            self.make_runnable(task)
            return demanded
        self._move(task, WAITING)
        self.waiting.wait(task, missing)
        if self.newly_waiting is not None:
            self.newly_waiting.append(task)
        if self._growing:
            self.streams.add_reader(task)
        return demanded

    def reopen(self, task: TaskNode) -> None:
        """Allow a finished task to run again."""
        self.retention.task_reopened(task)
        self._set_back(task, DORMANT)

    def reset_failed(self, task: TaskNode) -> None:
        """Allow a failed or cancelled task to run again, and forget its errors."""
        for object_id in task.outputs:
            node = self.objects.nodes[object_id]
            if node.producer is task and node.failure is not None:
                self.objects.forget(node)
                for wanter in node.wanters:
                    wanter.unsettled += 1
        self.reopen(task)

    def make_runnable(self, task: TaskNode) -> None:
        self._move(task, RUNNABLE)
        self.runnable.append(task)
        if self._growing:
            self.streams.add_reader(task)

    def release_demand(self, object_ids: list[ObjectId]) -> None:
        """Deactivate tasks whose outputs are not needed any more, and so on upwards.

        If no steps are left, defer the rest.
        """
        pending, nodes = object_ids, self.objects.nodes
        while pending:
            node = nodes.get(pending.pop())
            task = None if node is None else node.producer
            if task is None or task.state not in (WAITING, RUNNABLE, ASSIGNED):
                continue
            if self.is_needed(task):
                continue
            if task.state is ASSIGNED:
                self.unneeded.append(task)
                continue
            self._set_back(task, DORMANT)
            pending.extend(task.spec.inputs)
            self.steps_left -= 1
            if self.steps_left < 0:
                self.releasing += pending
                return

    # --- deferred work ----------------------------------------------------------------------------

    @property
    def has_more(self) -> bool:
        """Whether there is work for `deferred.resume`."""
        return bool(self.notifying or self.demanding or self.releasing)

    def is_needed(self, task: TaskNode) -> bool:
        """Whether a job or a task needs a missing output of this task."""
        for object_id in task.outputs:
            node = self.objects.nodes[object_id]
            if node.producer is task and self._is_awaited(object_id, node):
                return True
        return False

    def is_awaited(self, object_id: ObjectId) -> bool:
        """Whether a job or a task needs an object that is missing."""
        return self._is_awaited(object_id, self.objects.nodes[object_id])

    def _is_awaited(self, object_id: ObjectId, node: ObjectNode) -> bool:
        is_read = object_id in self.streams.readers
        return not node.is_settled and (is_read or self._is_demanded(object_id, node))

    def _is_demanded(self, object_id: ObjectId, node: ObjectNode) -> bool:
        """Whether a job wants an object, or a task waits for it or can choose it."""
        return (
            bool(node.wanters)
            or object_id in self.waiting.awaited
            or object_id in self.any_inputs.choosers.awaited
            or object_id in self.running_waits.awaited
        )

    # --- events of tasks --------------------------------------------------------------------------

    def is_ready(self, task: TaskNode) -> bool:
        """Whether a task can be assigned now.

        A task whose input was lost meanwhile waits again, or fails.
        """
        if self.cancelling and task.job in self.cancelling:
            return False
        return task.state is RUNNABLE and not (task.spec.inputs and self.recheck(task))

    def recheck(self, task: TaskNode) -> bool:
        """Make an active task wait again, or fail, if one of its inputs is lost or has failed.

        Return whether that was the case.

        Losses are rare and objects have many readers, so a loss does not visit the readers: they
        notice it here, when they are to be assigned.
        """
        spec, nodes = task.spec, self.objects.nodes
        awaited, inputs = self.waiting.missing_of(task), spec.inputs
        if spec.any_count:
            awaited -= not any_inputs.is_chosen(self.objects, spec)
            inputs = spec.needed
        for object_id in inputs:
            node = nodes[object_id]
            if not node.is_consumable:
                awaited -= 1
            elif node.failure is not None and not spec.sees_errors:
                awaited = -1
                break
        if awaited >= 0:
            return False
        self._set_back(task, DORMANT)
        self.demand_outputs(task)
        return True

    def assign(self, task: TaskNode, worker: str) -> int:
        """Give a task that `is_ready` to a worker; return the number of this attempt, from 1."""
        self._move(task, ASSIGNED)
        task.attempt += 1
        task.worker = worker
        if self._growing:
            self.streams.add_reader(task)
        return task.attempt

    def restore_assigned(self, task: TaskNode) -> None:
        """Make a task assigned as it was when it ended before a restart of its owner, in whatever
        state it is.
        """
        if task.state in (FAILED, CANCELLED):
            self.reset_failed(task)
        elif task.state is DONE:  # it ran again, since an output was lost
            self.reopen(task)
        elif task.state is WAITING:
            self._set_back(task, DORMANT)
        if task.state is DORMANT:
            self._move(task, RUNNABLE)
        if task.state is RUNNABLE:
            self._move(task, ASSIGNED)

    def adopt(self, task: TaskNode) -> None:
        """Make a task assigned whose attempt was started before a restart of the graph's owner.

        If an input is missing, the attempt may read it as a stream of which no worker has reported
        yet. So it must be complete before the attempt counts.
        """
        demands_alternatives = task.state is RUNNABLE
        self.restore_assigned(task)
        if task.spec.any_count and not demands_alternatives:
            self.any_inputs.add(task, [])
        nodes = self.objects.nodes
        missing = [object_id for object_id in task.spec.needed if not nodes[object_id].is_settled]
        for object_id in missing:
            self.streams.add_read(task, object_id)
        self.demand(missing)

    def finish(self, task: TaskNode, published: Iterable[Reference]) -> None:
        """Publish the outputs of an attempt that succeeded.

        An output that it neither published nor delegated becomes an error; so does an undeclared
        output of an earlier attempt that this one did not publish, if a task waits for it.
        """
        task.worker = None
        self._move(task, DONE)
        nodes, update = self.objects.nodes, self.objects.update
        for ref in published:
            node = nodes.get(ref.id)
            if node is None or node.producer is None:
                self.undeclared_outputs.adopt(task, (ref,))
                node = self.objects.ensure(ref.id)
            if update(node, ref):
                if failing := self._notify(ref.id, node):
                    self._fail(failing)
            elif ref.id in self.any_inputs.choosers.awaited:
                self._fail(self._settle_alternative(ref.id))  # it may have replaced an error
        if self.streams.opened:
            self._end_streams(task)
        for object_id in task.spec.outputs:
            output = nodes[object_id]
            if output.is_future and output.producer is task:
                self.publish(Failure(object_id, "NO_OUTPUT", no_output_text(task, object_id)))
        if task.undeclared:
            for object_id in self.redelegation.not_repeated(task):
                if self.is_awaited(object_id):
                    details = (
                        f"an earlier attempt at {label(task)} produced it, but the one that "
                        "succeeded did not"
                    )
                    self.publish(Failure(object_id, "NO_OUTPUT", details))
        self.retention.task_ended(task)
        if self.any_inputs.choosers.awaited and task.spec.any_count:
            self._release_alternatives(task)
        if self.objects.fixed:
            self.fixed.task_stopped(task)

    def fail(self, task: TaskNode, reason: str, details: object) -> None:
        """Fail a task: its missing outputs become errors, and the tasks that need them fail."""
        self._fail([(task, reason, details)])

    def requeue(self, task: TaskNode) -> None:
        """Take back a task whose attempt ended without result: it waits or runs again if needed."""
        if task.state is not ASSIGNED:
            raise InvalidTransitionError(f"task {task.spec.id}", task.state, RUNNABLE)
        task.worker = None
        self._set_back(task, DORMANT)
        self._end_streams(task)
        self.demand_outputs(task)
        if task.state is DORMANT and task.spec.any_count:
            self._release_alternatives(task)

    def _release_alternatives(self, task: TaskNode) -> None:
        self.any_inputs.remove(task)
        self.release_demand(list(task.spec.alternatives))

    def _end_streams(self, task: TaskNode) -> None:
        """Break the streams that an attempt did not complete; demand them again if needed."""
        for object_id in self.streams.end(task):
            self.demand((object_id,))

    def demand_outputs(self, task: TaskNode) -> None:
        awaited = [output for output in task.outputs if self.is_awaited(output)]
        if awaited:
            self.demand(awaited)
        else:  # its outputs may have been released meanwhile
            self.release_demand(list(task.spec.inputs))

    def deactivate(self, task: TaskNode) -> None:
        """Deactivate an assigned task whose attempt was cancelled because it is not needed."""
        task.worker = None
        self._set_back(task, DORMANT)
        self._end_streams(task)
        self.release_demand(list(task.spec.inputs))

    def _fail(self, pending: list[tuple[TaskNode, str, object]]) -> None:
        while pending:
            task, reason, details = pending.pop()
            if task.state in FINISHED:
                continue
            task.worker = None
            task.job.failures += 1
            self._set_back(task, CANCELLED if reason == "CANCELLED" else FAILED)
            for object_id in task.outputs:
                output = self.objects.nodes[object_id]
                if output.producer is task:
                    if self.objects.update(output, Failure(object_id, reason, details)):
                        pending.extend(self._notify(object_id, output))
            self._end_streams(task)
            self.retention.task_ended(task)
            self.release_demand(list(task.spec.inputs))

    # --- events of objects ------------------------------------------------------------------------

    def publish(self, ref: Reference) -> None:
        """Merge a reference into the object table; release or fail the tasks that wait for it."""
        node = self.objects.nodes.get(ref.id) or self.objects.ensure(ref.id)
        if self.objects.update(node, ref):
            if failing := self._notify(ref.id, node):
                self._fail(failing)
        elif ref.id in self.any_inputs.choosers.awaited:
            self._fail(self._settle_alternative(ref.id))  # it may have replaced an error

    def _notify(self, object_id: ObjectId, node: ObjectNode) -> list[tuple[TaskNode, str, object]]:
        """Notify the tasks that wait for an object; return the tasks that fail because of it.

        Each failing task is returned with its reason and details. If more tasks wait than steps are
        left, `deferred` notifies them later.
        """
        failing: list[tuple[TaskNode, str, object]] = []
        waiters = self.waiting.awaited.get(object_id)
        if waiters is not None:
            self.steps_left -= len(waiters)
            if self.steps_left < 0:
                self.notifying.append(object_id)
            else:
                failing = self._notify_waiters(object_id, node.ref)
        if not node.is_settled:
            return failing
        if object_id in self.any_inputs.choosers.awaited:
            failing += self._settle_alternative(object_id)
        if object_id in self.streams.readers:
            if node.failure is not None:
                self.streams.break_off(object_id)
            else:
                self.streams.complete(object_id)
        producer = node.producer
        if producer is not None and node.failure is None:
            self.retention.output_settled(producer)
        if producer is not None and producer.state in ACTIVE:
            if producer.state is not ASSIGNED or object_id not in producer.undeclared:
                # A lost copy exists again: its worker has reconnected.
                self.release_demand([object_id])
        if node.wanters:
            self.settled.append(object_id)
            for job in node.wanters:
                job.unsettled -= 1
        else:
            self.retention.drop_if_unused(object_id, node)
        return failing

    def _settle_alternative(self, object_id: ObjectId) -> list[tuple[TaskNode, str, object]]:
        """Make tasks runnable for which a settled alternative is enough.

        Return the tasks that fail because it was their last alternative.
        """
        ready, failing = self.any_inputs.settled(object_id)
        for task in ready:
            self.make_runnable(task)
        return failing

    def _notify_waiters(
        self, object_id: ObjectId, ref: Reference | None
    ) -> list[tuple[TaskNode, str, object]]:
        """Notify all tasks that wait for an object; return the tasks that fail because of it."""
        failing: list[tuple[TaskNode, str, object]] = []
        if type(ref) is Failure:
            cause = propagated(self.objects, ref)
            for task in self.waiting.waiters_of(object_id):
                if not task.spec.sees_errors:
                    self.waiting.forget(task, any_inputs.waits_for(task.spec))
                    failing.append((task, *cause))
        if type(ref) in STREAMS:
            for task in self.waiting.waiters_of(object_id):
                self.streams.add_read(task, object_id)
        for task in self.waiting.release(object_id):
            self.make_runnable(task)
        return failing

    def remove_object(self, object_id: ObjectId) -> None:
        """Forget an object that no task names any more."""
        self.objects.remove(object_id)
        if self.fixed.attached:
            self.fixed.attached.pop(object_id, None)
        if self.redelegation.next_producers:
            self.redelegation.next_producers.pop(object_id, None)

    # --- states -----------------------------------------------------------------------------------

    def _set_back(self, task: TaskNode, state: TaskState) -> None:
        """Move a task to a state from which it does not continue by itself."""
        if task.state is WAITING:
            self.waiting.forget(task, any_inputs.waits_for(task.spec))
        if task.spec.any_count:
            self.any_inputs.remove(task)
        self._move(task, state)
        self.disturbed = True
        if self.streams.reading:
            self.streams.remove_reader(task)
        if self.objects.fixed:
            self.fixed.task_stopped(task)

    def _move(self, task: TaskNode, state: TaskState) -> None:
        before = task.state
        if state not in TRANSITIONS[before]:
            raise InvalidTransitionError(f"task {task.spec.id}", before, state)
        task.job.count(task.spec, before, state)
        task.state = state
        if (
            before is ASSIGNED
            and self.running_waits.awaited
            and (left := self.running_waits.end(task))
        ):
            self.release_demand(left)
