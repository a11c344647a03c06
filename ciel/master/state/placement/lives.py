"""Decides which workers live long enough for a task: by its time limit, or by earlier tasks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from ciel.core.graph.nodes import TaskNode
from ciel.core.tasks import TaskSpec
from ciel.master.state.context import Context
from ciel.master.state.workers import WorkerNode

KINDS_MAX: Final = 1000
"""The number of kinds of tasks whose run times are remembered: the latest ones."""
DECAY: Final = 0.1
"""How far one shorter run lowers an estimate: an estimate should not be exceeded."""


class Lives:
    """The run times of the tasks that have ended, by kind, and which workers outlive a task.

    The kind of a task is its name and its executor. A task without a name is of the kind of the
    nameless tasks of its job. Nothing is learned before a worker whose life is limited has joined.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._run_s: dict[tuple[str, str], float] = {}
        self.matters = False  # whether a worker whose life is limited has joined

    def joined(self, worker: WorkerNode) -> None:
        """Note that a worker has joined."""
        self.matters = self.matters or worker.has_limited_life

    def learn(self, spec: TaskSpec, run_s: float) -> None:
        """Note how long a task ran that has succeeded."""
        if self.matters:
            before_s = self._run_s.get(_kind(spec), 0.0)
            self._set(_kind(spec), max(run_s, before_s + DECAY * (run_s - before_s)))

    def learn_at_least(self, spec: TaskSpec, run_s: float) -> None:
        """Note that a task ran for this time, and had not ended."""
        self._set(_kind(spec), max(run_s, self._run_s.get(_kind(spec), 0.0)))

    def _set(self, kind: tuple[str, str], run_s: float) -> None:
        self._run_s.pop(kind, None)
        self._run_s[kind] = run_s
        if len(self._run_s) > KINDS_MAX:
            del self._run_s[next(iter(self._run_s))]

    def needed_s(self, spec: TaskSpec) -> float:
        """Return the time that a task may need: its limit, or an estimate; 0 if there is none."""
        return spec.needs.timeout_s or self._run_s.get(_kind(spec), 0.0)

    def outlives(self, worker: WorkerNode, task: TaskNode) -> bool:
        """Whether a task that starts now on a worker ends before the worker does."""
        if not self.matters:
            return True
        return worker.life.may_start(self.needed_s(task.spec), self._context.now_s)

    def lasting(self, task: TaskNode, workers: list[WorkerNode]) -> list[WorkerNode]:
        """Return the workers that outlive a task."""
        if not self.matters:
            return workers
        return [worker for worker in workers if self.outlives(worker, task)]

    def why_short(self, task: TaskNode, workers: Iterable[WorkerNode]) -> list[str]:
        """Explain which workers end too early for a task, one line for each."""
        needed_s, now_s = self.needed_s(task.spec), self._context.now_s
        by = "its --timeout" if task.spec.needs.timeout_s else "the run times of such tasks"
        needs = f"the task needs {needed_s:.4g} s by {by}" if needed_s else "tasks start no more"
        return [
            f"worker {worker.facts.id} is about to end: it runs tasks for "
            f"{worker.life.left_s(now_s):.4g} s more, and {needs}"
            for worker in workers
            if not self.outlives(worker, task)
        ]


def _kind(spec: TaskSpec) -> tuple[str, str]:
    return spec.name or spec.job, spec.executor
