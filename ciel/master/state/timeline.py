"""Records when recent attempts ran, in a bounded list, for traces."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Final

from ciel.core.graph.nodes import TaskNode
from ciel.core.jobs import Job
from ciel.master.state.workers import WorkerNode

SPANS_MAX = 20_000
"""The number of recorded attempts, of about 250 bytes each; a page scans all in about 2 ms."""
PAGE_MAX = 2000
FORGOTTEN_SHARE: Final = 8
"""Spans of removed jobs are deleted once their estimated share of all spans is at least one in this
number. Deleting them takes 5 ms, so the timeline does not do it for each job.
"""

FIELDS: Final = (
    "job", "task", "name", "executor", "parent", "attempt", "worker", "slots",
    "ready_at_s", "given_at_s", "ended_at_s", "run_s", "fault",
)  # fmt: skip
"""The fields of a span. `slots`: 0 for a task that runs within its parent's program. `ready_at_s`:
when it became runnable, 0 if a worker started it by itself. `given_at_s`: when it was assigned.
`ended_at_s`: when the worker reported its end, None if it still runs. `run_s`: the run time of its
program.
"""

Span = tuple[Any, ...]  # no named tuple: the garbage collector stops tracking plain tuples


class Timeline:
    """The latest attempts that have ended, numbered from 0 in the order of their ends."""

    def __init__(self) -> None:
        self.slots: dict[str, int] = {}  # by worker
        self._spans: deque[Span | None] = deque(maxlen=SPANS_MAX)  # None: of a removed job
        self._removed: set[str] = set()  # removed jobs whose spans are not deleted yet
        self._removed_spans = 0  # the estimated number of these spans
        self._removed_to = 0  # all spans before this number were of removed jobs
        self._count = 0
        self.totals = {"done": 0, "failed": 0, "lost": 0}  # of all attempts, by how they ended
        self.run_s = 0.0  # the total run time of their programs

    def note(
        self, worker: WorkerNode, task: TaskNode, attempt: int, given_at_s: float | None,
        now_s: float, run_s: float, fault: str,
    ) -> None:  # fmt: skip
        """Record an attempt that has ended."""
        self.slots[worker.facts.id] = worker.facts.slots
        slots = worker.slots_of(task, attempt)
        self._spans.append(_span(worker, task, attempt, slots, given_at_s, now_s, run_s, fault))
        self._count += 1
        ending = "lost" if fault == "WORKER_LOST" else "failed" if fault else "done"
        self.totals[ending] += 1
        self.run_s += run_s

    def forget(self, job: Job) -> None:
        """Delete the spans of a removed job, now or later."""
        self._removed.add(job.spec.id)
        self._removed_spans += max(sum(job.counts.values()), 1)
        if self._removed_spans * FORGOTTEN_SHARE < len(self._spans):
            return
        removed, self._removed, self._removed_spans = self._removed, set(), 0
        spans = [None if span is None or span[0] in removed else span for span in self._spans]
        self._spans.clear()
        if any(spans):
            self._spans.extend(spans)  # with None in place of deleted spans: numbers stay the same
            return
        self.slots.clear()
        self._removed_to = self._count

    def latest(self, count: int) -> Iterator[tuple[str, float]]:
        """Yield the job and the run time of the latest attempts that have succeeded, at most
        `count`, the newest first.
        """
        for span in islice(reversed(self._spans), count):
            if span is not None and not span[-1]:
                yield span[0], span[-2]

    def page(
        self, jobs: Any, first: Any, workers: Iterable[WorkerNode], now_s: float
    ) -> dict[str, Any]:
        """Return a page of spans of these jobs, from number `first` on.

        The last page also contains running attempts. `next` is the `first` of the next page, None
        at the end. `lost`: how many spans from `first` on were deleted because the list was full.
        Without `first`, return no spans, and the number of the next span as `next`.
        """
        if not isinstance(first, int):
            return {"spans": [], "next": self._count}
        named = jobs if isinstance(jobs, list) else ()
        wanted = {job for job in named if isinstance(job, str)}
        oldest = self._count - len(self._spans)
        place = min(max(first, oldest), self._count)
        spans: list[Span] = []
        for span in islice(self._spans, place - oldest, None):
            place += 1
            if span is not None and span[0] in wanted:
                spans.append(span)
                if len(spans) == PAGE_MAX:
                    break
        is_last = place >= self._count
        if is_last:
            for worker in workers:
                spans += _running(worker, wanted, now_s)
                self.slots[worker.facts.id] = worker.facts.slots
        working = {span[6] for span in spans}
        return {
            "fields": FIELDS,
            "spans": spans,
            "slots": {worker: count for worker, count in self.slots.items() if worker in working},
            "next": None if is_last else place,
            "lost": max(0, oldest - max(first, self._removed_to)),
            "now_s": now_s,
        }


def _span(
    worker: WorkerNode, task: TaskNode, attempt: int, slots: int, given_at_s: float | None,
    ended_at_s: float | None, run_s: float, fault: str,
) -> Span:  # fmt: skip
    spec = task.spec
    parent = "" if spec.parent == spec.job else spec.parent
    return (
        spec.job, spec.id, spec.name, spec.executor, parent, attempt, worker.facts.id, slots,
        task.ready_at_s, given_at_s, ended_at_s, run_s, fault,
    )  # fmt: skip


def _running(worker: WorkerNode, wanted: set[str], now_s: float) -> Iterable[Span]:
    for task in worker.running_tasks():
        if task.spec.job in wanted:
            given_at_s = worker.given_at_s.get((task.spec.id, task.attempt), now_s)
            slots = worker.slots_of(task, task.attempt)
            run_s = max(0.0, now_s - given_at_s)
            yield _span(worker, task, task.attempt, slots, given_at_s, None, run_s, "")
