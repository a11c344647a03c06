"""A task in the graph: its state, its current attempt, and how its latest attempt ended."""

from __future__ import annotations

from ciel.core.ids import ObjectId, TaskId
from ciel.core.jobs import Job
from ciel.core.tasks import DORMANT, Mentions, TaskSpec


class Ending:
    """How the latest attempt at a task ended.

    `exit_status`: the exit status of its program, or minus the number of the signal that killed it;
    None if the attempt shared its program.
    """

    __slots__ = ("ended_at_s", "exit_status", "hostname", "run_s", "worker")

    def __init__(
        self, worker: str, hostname: str, ended_at_s: float, run_s: float, exit_status: int | None
    ) -> None:
        self.worker = worker
        self.hostname = hostname
        self.ended_at_s = ended_at_s
        self.run_s = run_s
        self.exit_status = exit_status


class TaskNode:
    """A task in the graph: its spec, its state, and its current attempt."""

    __slots__ = (
        "attempt",
        "children",
        "ending",
        "holds_inputs",
        "is_childless",
        "job",
        "live_outputs",
        "rank",
        "ready_at_s",
        "reason",
        "spec",
        "state",
        "undeclared",
        "worker",
    )

    def __init__(self, spec: TaskSpec, job: Job) -> None:
        self.spec = spec
        self.job = job
        self.state = DORMANT
        self.attempt = 0
        self.rank = 0  # its depth in the graph; known once it can run
        self.ready_at_s = 0.0  # when it became runnable; 0 if a worker started it by itself
        self.worker: str | None = None
        self.children: dict[int, TaskId] | None = None
        self.ending: Ending | None = None  # of its latest finished attempt
        self.undeclared: tuple[ObjectId, ...] = ()  # outputs that it did not declare
        self.reason = ""  # why it was placed on its worker, if there was a choice
        self.holds_inputs = True
        self.is_childless = False  # it has finished without children or undeclared outputs
        self.live_outputs = 0  # settled outputs; counted only if its outputs mention its inputs

    @property
    def outputs(self) -> tuple[ObjectId, ...]:
        """All known outputs, declared and undeclared."""
        return self.spec.outputs + self.undeclared if self.undeclared else self.spec.outputs

    @property
    def mentions(self) -> Mentions:
        """Says which objects its outputs may name."""
        mentions = self.spec.mentions
        if mentions is not Mentions.OWN:
            return mentions
        return Mentions.NOTHING if self.is_childless else Mentions.ANYTHING

    def __repr__(self) -> str:
        return f"<Task {self.spec.id} {self.state} attempt {self.attempt}>"
