"""Whether a failed attempt is tried again: how often, for which failures, with what delay.

A program's own failure counts against the task's `retries`, if it is of a kind after which that is
to be tried again. The loss of a worker is not the task's fault, until three workers have ended
while they ran the same task. A worker that was only silent, or cut off, does not count.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from ciel.core.nodes import TaskNode
from ciel.core.refs import details_text, with_text
from ciel.core.tasks import NOT_RETRIED, Needs

WORKER_LOSSES_MAX = 3
INPUT_LOSSES_MAX = 10
"""So often on the average a task may find an input gone. Each time it is made again, but if workers
cannot reach each other perhaps always where this task's cannot get at it.
"""
BACK_OFF_FIRST_S = 0.2
BACK_OFF_MAX_S = 30.0
BACK_OFF_FIRST_BY_KIND_S = {"NO_SPACE": 2.0, "MEMORY_LIMIT": 1.0, "WORKER_FAULT": 1.0}
"""Where what went wrong takes longer to pass than a program's bad luck: others must end first."""


@dataclass(slots=True)
class Blame:
    """What has gone wrong with one task so far; exists only for tasks that had trouble."""

    failures: int = 0
    worker_losses: int = 0
    missing_inputs: int = 0  # though they are said to be there
    input_losses: int = 0
    not_before_s: float = 0.0  # when it may be tried again


class Again(NamedTuple):
    """Try again after a delay."""

    delay_s: float


class GiveUp(NamedTuple):
    """Do not try again."""

    reason: str
    details: Any


def not_before_s(task: TaskNode, blame: Blame | None) -> float:
    """Return when a task may begin that could run since its `ready_at_s`; it may be over."""
    if blame is not None:
        return blame.not_before_s
    return task.ready_at_s if task.attempt else task.ready_at_s + task.spec.needs.delay_s


def after_failure(blame: Blame, needs: Needs, reason: str, details: Any) -> Again | GiveUp:
    """Decide after a failed attempt; `blame` is updated."""
    blame.failures += 1
    if reason in NOT_RETRIED or not needs.retries:
        return GiveUp(reason, details)
    count = f"attempt {blame.failures} of {needs.retries + 1}"
    if needs.retry_on and reason not in needs.retry_on:
        count += f"; it is tried again only after {', '.join(needs.retry_on)}"
    elif blame.failures <= needs.retries:
        first_s = needs.retry_delay_s or BACK_OFF_FIRST_BY_KIND_S.get(reason, BACK_OFF_FIRST_S)
        return Again(min(first_s * 2 ** (blame.failures - 1), max(first_s, BACK_OFF_MAX_S)))
    return GiveUp(reason, with_text(details, f"{details_text(details)}\n({count})"))


def after_worker_loss(blame: Blame, worker: str) -> Again | GiveUp:
    """Decide after the process of the worker that ran an attempt has ended; `blame` is updated.

    Each call is for another worker: a worker's id is that of one process.
    """
    blame.worker_losses += 1
    if blame.worker_losses >= WORKER_LOSSES_MAX:
        details = (
            f"{blame.worker_losses} workers ended while they ran it, the last was {worker}: "
            "it seems to end them, or to take all memory of their hosts (their logs may say more)"
        )
        return GiveUp("WORKER_FAILED", details)
    return Again(0.0)
