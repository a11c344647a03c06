"""Decides whether a failed attempt is repeated: how often, after which failures, with what delay.

A failure of the program counts against the task's `retries`, if `retry_on` lists its kind. The
death of a worker counts against the task only when three workers have died while they ran it. A
worker that was only silent or disconnected does not count.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ciel.core.graph.nodes import TaskNode
from ciel.core.ids import ObjectId
from ciel.core.refs import details_text, with_text
from ciel.core.tasks import NOT_RETRIED, Needs

WORKER_LOSSES_MAX = 3
INPUT_LOSSES_MAX = 10
"""How often, on average for each input, a task may find an input missing. Each time the input is
recomputed; if workers cannot reach each other, they may not reach the new copy either.
"""
BACK_OFF_FIRST_S = 0.2
BACK_OFF_MAX_S = 30.0
BACK_OFF_FIRST_BY_KIND_S = {"NO_SPACE": 2.0, "MEMORY_LIMIT": 1.0, "WORKER_FAULT": 1.0}
"""The first delays after failures that are likely to repeat until other tasks have ended."""


@dataclass(slots=True)
class RetryState:
    """The failures of one task so far; exists only for tasks with failures.

    `full_workers`: the ids of the workers on which it found no space. `out_of_reach`: of the
    workers from which the reader of an output that was lost cannot fetch. `unfetched`: objects, and
    the ids of the workers that could not reach them.
    """

    failures: int = 0
    worker_losses: int = 0
    missing_inputs: int = 0  # attempts without an input that the object table lists
    input_losses: int = 0
    full_workers: set[str] = field(default_factory=set)
    out_of_reach: set[str] = field(default_factory=set)
    unfetched: dict[ObjectId, set[str]] = field(default_factory=dict)
    gathered: int = 0  # how often its inputs were gathered for one worker, see `Reach`
    apart_since_s: float = 0.0  # no worker can fetch all its inputs since then; 0: one can
    not_before_s: float = 0.0  # the earliest time of the next attempt


class Retry(NamedTuple):
    """Retry after a delay."""

    delay_s: float


class GiveUp(NamedTuple):
    """Do not retry."""

    reason: str
    details: Any


def not_before_s(task: TaskNode, retry_state: RetryState | None) -> float:
    """Return the earliest time at which a runnable task may start; it may be in the past."""
    if retry_state is not None:
        return retry_state.not_before_s
    return task.ready_at_s if task.attempt else task.ready_at_s + task.spec.needs.delay_s


def may_kill_workers(retry_state: RetryState | None) -> bool:
    """Whether a worker has died that had the task."""
    return retry_state is not None and retry_state.worker_losses > 0


def after_failure(
    retry_state: RetryState, needs: Needs, reason: str, details: Any
) -> Retry | GiveUp:
    """Decide whether to retry after a failed attempt; update `retry_state`."""
    retry_state.failures += 1
    if reason in NOT_RETRIED or not needs.retries:
        return GiveUp(reason, details)
    count = f"attempt {retry_state.failures} of {needs.retries + 1}"
    if needs.retry_on and reason not in needs.retry_on:
        count += f"; it is retried only after {', '.join(needs.retry_on)}"
    elif retry_state.failures <= needs.retries:
        first_s = needs.retry_delay_s or BACK_OFF_FIRST_BY_KIND_S.get(reason, BACK_OFF_FIRST_S)
        return Retry(min(first_s * 2 ** (retry_state.failures - 1), max(first_s, BACK_OFF_MAX_S)))
    return GiveUp(reason, with_text(details, f"{details_text(details)}\n({count})"))


def after_worker_loss(retry_state: RetryState, worker: str) -> Retry | GiveUp:
    """Decide whether to retry after a worker died that ran an attempt; update `retry_state`.

    Each call is about a different worker, since a worker id names one process.
    """
    retry_state.worker_losses += 1
    if retry_state.worker_losses >= WORKER_LOSSES_MAX:
        details = (
            f"{retry_state.worker_losses} workers died while they ran this task, the last was "
            f"{worker}: the task seems to crash them, or to exhaust the memory of their hosts (see "
            "the logs of these workers)"
        )
        return GiveUp("WORKER_FAILED", details)
    return Retry(0.0)
