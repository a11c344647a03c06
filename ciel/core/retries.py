"""Whether a failed attempt is tried again: how often, for which failures, with what delay.

A program's own failure counts against the task's `retries`. The loss of a worker is not the task's
fault, until the same task has taken down three workers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from ciel.core.refs import details_text, with_text

WORKER_LOSSES_MAX = 3
INPUT_LOSSES_MAX = 10
"""So often on the average a task may find an input gone. Each time it is made again, but if workers
cannot reach each other perhaps always where this task's cannot get at it.
"""
BACK_OFF_FIRST_S = 0.2
BACK_OFF_MAX_S = 30.0

NOT_RETRIED = frozenset(("CANCELLED", "BAD_ARGUMENTS", "NO_EXECUTOR", "DEPENDENCY_FAILED"))
"""Faults that another attempt cannot mend."""


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


def after_failure(blame: Blame, retries: int, reason: str, details: Any) -> Again | GiveUp:
    """Decide after a failed attempt; `blame` is updated."""
    blame.failures += 1
    if reason in NOT_RETRIED or blame.failures > retries:
        if retries and reason not in NOT_RETRIED:
            text = f"{details_text(details)}\n(attempt {blame.failures} of {retries + 1})"
            details = with_text(details, text)
        return GiveUp(reason, details)
    return Again(min(BACK_OFF_FIRST_S * 2 ** (blame.failures - 1), BACK_OFF_MAX_S))


def after_worker_loss(blame: Blame, worker: str) -> Again | GiveUp:
    """Decide after the worker that ran an attempt was lost; `blame` is updated."""
    blame.worker_losses += 1
    if blame.worker_losses >= WORKER_LOSSES_MAX:
        details = (
            f"{blame.worker_losses} workers were lost while they ran it, the last was {worker}"
        )
        return GiveUp("WORKER_FAILED", details)
    return Again(0.0)
