"""Decides which child tasks start on their parent's worker without a dispatch by the master.

See ADR 0017 and 0020.
"""

from __future__ import annotations

from collections.abc import Container, Iterable

from ciel.core.ids import ObjectId, TaskId
from ciel.core.refs import Concrete, Reference, Value
from ciel.core.tasks import TaskSpec
from ciel.worker.state.recent import Recent


class LocalStarts:
    """The tasks that were started this way recently. `executors`: whose tasks may start so."""

    def __init__(self, executors: frozenset[str]) -> None:
        self._executors = executors
        self._tasks: Recent[TaskId, None] = Recent()

    def note(self, task: TaskId) -> None:
        """Add a task that was started."""
        self._tasks.put(task, None)

    def may_run_children(self, spec: TaskSpec, attempt: int) -> bool:
        """Whether children may run inline within an attempt.

        No limits of their own apply to such children, and none of them can be known from an earlier
        attempt here.
        """
        needs = spec.needs
        if spec.executor not in self._executors:
            return False
        if needs.timeout_s or needs.memory_bytes or needs.io or needs.resources:
            return False
        return attempt == 0 or (attempt == 1 and spec.id not in self._tasks)

    def inputs_at_hand(
        self,
        spec: TaskSpec,
        known: Iterable[Reference],
        recent: Recent[ObjectId, Value],
        stored: Container[ObjectId],
        here: str,
    ) -> tuple[Reference, ...] | None:
        """Return the inputs of a child that may start; None if it may not, or lacks one."""
        needs = spec.needs
        if spec.executor not in self._executors or needs.delay_s or needs.io:
            return None
        if needs.resources or needs.where or needs.is_isolated:  # the master knows who can run them
            return None
        if spec.id in self._tasks:  # by an earlier attempt of its parent
            return None
        values = {ref.id: ref for ref in known if isinstance(ref, Value)}
        inputs: list[Reference] = []
        for object_id in spec.inputs:
            ref = values.get(object_id) or recent.get(object_id)
            if ref is None and object_id not in stored:
                return None
            inputs.append(ref or Concrete(object_id, None, frozenset((here,))))
        return tuple(inputs)
