"""Checks that a master remembers nothing of removed jobs, however many there were."""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable, Iterator
from enum import Enum
from types import FunctionType, MethodType, ModuleType
from typing import Any

from ciel.core.events import (
    RECALLED,
    AddTask,
    AssignTask,
    CancelJob,
    CancelTask,
    CloseJob,
    Message,
    SubmitJob,
    TaskFault,
    TaskReported,
    WantObjects,
)
from ciel.core.ids import ObjectId
from ciel.core.scheduling import POLICIES, read_scheduling
from ciel.core.tasks import Mentions, Needs
from ciel.master.state.machine import MasterMachine
from ciel.testing.builders import a_job_spec, a_task, a_worker, inline, stored

GIB = 1 << 30


def reachable(root: object) -> int:
    """Count the objects that a machine holds, except code and numbers."""
    code = (type, FunctionType, MethodType, ModuleType, Enum)
    seen: set[int] = set()
    pending: deque[object] = deque([root])
    while pending:
        found = pending.popleft()
        if id(found) in seen or isinstance(found, code):
            continue
        seen.add(id(found))
        pending.extend(gc.get_referents(found))
    return len(seen)


class Busy:
    """A master with two workers that execute messages at once, and jobs that end in every way."""

    def __init__(self) -> None:
        self.machine = MasterMachine()
        self.now_s = 0.0
        self.count = 0
        self.failures = 0
        for name in ("w1", "w2"):
            facts = a_worker(name, slots=2, memory_bytes=4 * GIB)
            self.machine.worker_joined(facts, 0.0)

    def turns(self) -> None:
        """Let workers answer until no message is left."""
        while True:
            self.now_s += 1.0
            for worker in list(self.machine.workers):
                self.machine.workers[worker].heard_at_s = self.now_s
            self.machine.end_tick(self.now_s)
            self.machine.journal.clear()
            self.machine.take_ended()
            said = self.machine.take_outbox()
            answers = [(peer, answer) for peer, m in said for answer in self.answers(peer, m)]
            if not answers and self.machine.due_s() is None:
                return
            for worker, answer in answers:
                self.machine.worker_sent(worker, answer, self.now_s)

    def answers(self, worker: str, message: Message) -> Iterator[Message]:
        if isinstance(message, CancelTask):
            fault = TaskFault("CANCELLED", "the task was cancelled")
            yield TaskReported(message.task, message.attempt, (), fault, 0.1)
        if isinstance(message, AssignTask):
            spec, attempt, inputs, _ = message
            fault = TaskFault(RECALLED, "")
            if any(type(ref).__name__ == "Future" for ref in inputs):
                yield TaskReported(spec.id, attempt, (), fault, 0.0)
            elif spec.name == "fails" or (spec.name == "flaky" and attempt == 1):
                fault = TaskFault("RUNTIME_EXCEPTION", "exit status 3")
                yield TaskReported(spec.id, attempt, (), fault, 0.1)
            elif spec.name != "hangs":
                place = self.machine.workers[worker].facts.netloc
                made = tuple([stored(o, place) for o in spec.outputs])
                small = tuple([inline(o) for o in spec.outputs])
                yield TaskReported(spec.id, attempt, small if attempt > 1 else made, None, 0.1)

    def job(self) -> None:
        """Run a job that ends in one of several ways, and remove it."""
        job_id = self.ended_job()
        self.machine.remove_job(self.machine.jobs[job_id])
        self.turns()

    def ended_job(self) -> str:
        """Run a job that ends in one of several ways; return its id."""
        self.count += 1
        name, fate = f"job{self.count}", self.count % 4
        scheduling = read_scheduling(POLICIES[self.count % 3])
        spec = a_job_spec(name, keep=fate == 1, scheduling=scheduling)
        kinds = ("", "flaky", "hangs" if fate == 2 else "", "fails" if fate == 3 else "")
        messages: list[Message] = [SubmitJob(spec)]
        before: tuple[str, ...] = ()
        for number, kind in enumerate(kinds):
            task = a_task(
                f"{name}:{number}", inputs=before, job=name, ordinal=number, name=kind,
                mentions=tuple(Mentions)[self.count % 4],
            )  # fmt: skip
            needs = Needs(1 + number % 2, number % 2 * GIB, priority=number, retries=number % 3)
            messages.append(AddTask(task._replace(needs=needs), ()))
            before = task.outputs
        messages.append(WantObjects(spec.id, (ObjectId(before[0]),)))
        messages.append(CloseJob(spec.id))
        for message in messages:
            self.machine.client_sent("client", message, self.now_s)
        self.turns()
        if fate == 2:
            self.machine.client_sent("client", CancelJob(spec.id, "enough"), self.now_s)
            self.turns()
        return spec.id

    def spans(self, job: str, first: int | None) -> Any:
        return self.machine.timeline.page([job], first, (), self.now_s)


def grown(busy: Busy, do: Callable[[], Any], count: int) -> int:
    before = reachable(busy.machine)
    for _ in range(count):
        do()
    return reachable(busy.machine) - before


def test_removed_jobs_leave_nothing_in_the_master() -> None:
    busy = Busy()
    for _ in range(24):
        busy.job()
    assert not busy.machine.jobs
    assert not busy.machine.graph.tasks
    assert not busy.machine.graph.objects.nodes
    assert grown(busy, busy.job, 240) < 24  # cached numbers, such as times of day, vary


def test_spans_of_remaining_jobs_keep_their_position() -> None:
    busy = Busy()
    busy.job()
    kept = busy.ended_job()
    first = busy.spans(kept, 0)
    middle = first["next"] or busy.spans(kept, None)["next"] - 1
    for _ in range(8):
        busy.job()
    assert busy.spans(kept, 0)["spans"] == first["spans"]
    assert busy.spans(kept, 0)["lost"] == 0
    assert busy.spans(kept, middle)["spans"] == first["spans"][-1:]
    assert busy.spans("job3", 0)["spans"] == []
