"""Lets a task run as soon as one of several inputs is available.

The last `any_count` inputs of the task's spec are alternatives. The task waits for its other inputs
like any task, and for its *choice*, an additional entry in the waiting table. The choice is made
when an alternative is eligible: complete, or failed if the task sees errors. A stream is not
eligible. While the task waits or runs, `AnyInputs.choosers` demands all alternatives, complete ones
included, so that a lost one is recomputed.
"""

from __future__ import annotations

from collections.abc import Iterator

from ciel.core.graph.failures import propagated
from ciel.core.graph.nodes import TaskNode
from ciel.core.graph.objects import ObjectNode, ObjectTable
from ciel.core.graph.waiting import Waiting
from ciel.core.ids import ObjectId
from ciel.core.refs import Failure, Future, Reference
from ciel.core.tasks import ACTIVE, TaskSpec


class AnyInputs:
    """The waiting and running tasks that have alternatives."""

    __slots__ = ("_objects", "_waiting", "choosers")

    def __init__(self, objects: ObjectTable, waiting: Waiting[TaskNode]) -> None:
        """`waiting`: the waiting table of the graph, which also contains the choices."""
        self._objects = objects
        self._waiting = waiting
        self.choosers: Waiting[TaskNode] = Waiting()  # by each alternative

    def add(self, task: TaskNode, missing: list[ObjectId]) -> list[ObjectId]:
        """Add a task that becomes active.

        Append its choice to `missing` unless an alternative is eligible already. Return all objects
        to be demanded.
        """
        spec = task.spec
        demanded = [*missing, *spec.alternatives]
        self.choosers.wait(task, spec.alternatives)
        if not is_chosen(self._objects, spec):
            missing.append(choice_of(spec))
        return demanded

    def remove(self, task: TaskNode) -> None:
        """Remove a task that is not active any more: it needs no alternatives."""
        self.choosers.forget(task, task.spec.alternatives)

    def settled(
        self, object_id: ObjectId
    ) -> tuple[list[TaskNode], list[tuple[TaskNode, str, object]]]:
        """Note that an object is settled.

        Return the tasks that can run now, and the tasks whose alternatives have all failed now,
        each with the failure to propagate.
        """
        node = self._objects.nodes[object_id]
        ready: list[TaskNode] = []
        failing: list[tuple[TaskNode, str, object]] = []
        for task in self.choosers.waiters_of(object_id):
            choice = choice_of(task.spec)
            if not self._waiting.is_awaited(choice):
                continue
            if _is_eligible(node, task.spec):
                ready += self._waiting.release(choice)
            elif (failure := failure_of_all(self._objects, task.spec)) is not None:
                self._waiting.forget(task, waits_for(task.spec))
                failing.append((task, *propagated(self._objects, failure)))
        return ready, failing

    def problems(self, task: TaskNode, *, is_deferred: bool) -> Iterator[str]:
        """Yield the broken invariants of a task that has alternatives.

        `is_deferred`: demands are processed in slices, so some producers may not be active yet.
        """
        spec = task.spec
        demanded = [i for i in spec.inputs if task in self.choosers.waiters_of(i)]
        expected = list(spec.alternatives) if task.state in ACTIVE else []
        if demanded != expected or (task in self.choosers) != bool(expected):
            yield f"T6 {spec.id} is {task.state} and demands {demanded}, not {expected}"
        for object_id in expected:
            node = self._objects.nodes[object_id]
            producer = node.producer
            if node.is_settled or producer is None or producer.state in ACTIVE or is_deferred:
                continue
            yield f"T7 {spec.id} demands {object_id}, whose producer is {producer.state}"
        if self._waiting.is_awaited(choice_of(spec)):
            if is_chosen(self._objects, spec) or failure_of_all(self._objects, spec):
                yield f"T8 {spec.id} waits for its choice, which has been made"


def choice_of(spec: TaskSpec) -> ObjectId:
    """Return the name of a task's choice, which no object can have."""
    return ObjectId(f"any {spec.id}")


def waits_for(spec: TaskSpec) -> tuple[ObjectId, ...]:
    """Return the names of everything that a task may wait for."""
    return (*spec.inputs, choice_of(spec)) if spec.any_count else spec.inputs


def _is_eligible(node: ObjectNode, spec: TaskSpec) -> bool:
    return node.is_settled and (spec.sees_errors or node.failure is None)


def is_chosen(objects: ObjectTable, spec: TaskSpec) -> bool:
    """Return whether an alternative is eligible."""
    nodes = objects.nodes
    return any(_is_eligible(nodes[object_id], spec) for object_id in spec.alternatives)


def failure_of_all(objects: ObjectTable, spec: TaskSpec) -> Failure | None:
    """Return the last alternative's failure if all alternatives have failed; otherwise None.

    Return None also if the task sees errors, since it can then run.
    """
    failure: Failure | None = None
    if not spec.sees_errors:
        for object_id in reversed(spec.alternatives):  # usually the last one is produced last
            ref = objects.nodes[object_id].ref
            if not isinstance(ref, Failure):
                return None
            failure = failure or ref
    return failure


def inputs_of(objects: ObjectTable, spec: TaskSpec) -> tuple[Reference, ...]:
    """Return the references that a task gets as its inputs if it starts now.

    Alternatives that are not eligible become futures, even if more is known about them.
    """
    inputs = tuple([objects.reference(object_id) for object_id in spec.inputs])
    if not spec.any_count:
        return inputs
    alternatives = [
        ref if _is_eligible(objects.nodes[ref.id], spec) else Future(ref.id)
        for ref in inputs[-spec.any_count :]
    ]
    return (*inputs[: -spec.any_count], *alternatives)
