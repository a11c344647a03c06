"""A task in the graph: its state, its current attempt, and how its latest attempt ended."""

from __future__ import annotations

from ciel.core.ids import ObjectId, TaskId
from ciel.core.jobs import Job
from ciel.core.tasks import DORMANT, Mentions, TaskSpec


class Ending:
    """How the latest attempt at a task ended. `exit_status`: the exit status of its program, or
    minus the number of the signal that killed it; None if the attempt had no program for itself.
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
        self.ready_at_s = 0.0  # when it could run, as far as is known
        self.worker: str | None = None
        self.children: dict[int, TaskId] | None = None
        self.ending: Ending | None = None  # of its latest attempt that is over
        self.undeclared: tuple[ObjectId, ...] = ()  # outputs that it did not declare
        self.reason = ""  # why it was placed where it is, if there was a choice
        self.holds_inputs = True
        self.is_childless = False  # it has ended, with declared outputs only
        self.live_outputs = 0  # outputs that are there; only counted where outputs mention inputs

    @property
    def outputs(self) -> tuple[ObjectId, ...]:
        """All its outputs, declared or not, as far as they are known."""
        return self.spec.outputs + self.undeclared if self.undeclared else self.spec.outputs

    @property
    def mentions(self) -> Mentions:
        """Which objects its outputs may name, as far as is known."""
        mentions = self.spec.mentions
        if mentions is not Mentions.OWN:
            return mentions
        return Mentions.NOTHING if self.is_childless else Mentions.ANYTHING

    def __repr__(self) -> str:
        return f"<Task {self.spec.id} {self.state} attempt {self.attempt}>"
