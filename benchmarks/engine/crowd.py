"""Compares the tasks per second of the master's state machine with 200 workers and with 4 (G13).

Eight workers report in each tick. The cost of a tick should depend on its reports only, and not on
the number of workers.
"""

from __future__ import annotations

import time
from collections import deque

from benchmarks.engine.graph import JOB, make_spec
from ciel.core.events import (
    AddTask,
    AssignTask,
    CloseJob,
    SubmitJob,
    TaskReported,
    WantObjects,
)
from ciel.core.jobs import JobSpec
from ciel.core.refs import Value
from ciel.master.state.machine import MasterMachine
from ciel.master.state.workers import WorkerFacts

TASKS = 20_000
REPORTS_PER_TICK = 8
TICK_S = 0.001
FEW, MANY = 4, 200
PAIRS = 3


def tasks_per_s(worker_count: int) -> float:
    """Return how many tasks end per second if only the state machine limits the rate."""
    machine, now_s = MasterMachine(), 1000.0
    for number in range(worker_count):
        facts = WorkerFacts(
            f"w{number}", f"host{number}:1", f"h{number}", 1, frozenset(("stdinout",))
        )
        machine.worker_joined(facts, now_s)
    specs = [make_spec(index, ()) for index in range(TASKS)]
    machine.client_sent(
        "client", SubmitJob(JobSpec(JOB, "crowd", open=True, detached=False, keep=False)), now_s
    )
    for spec in specs:
        machine.client_sent("client", AddTask(spec, ()), now_s)
    wanted = tuple([spec.outputs[0] for spec in specs])
    machine.client_sent("client", WantObjects(JOB, wanted), now_s)
    machine.client_sent("client", CloseJob(JOB), now_s)
    given: deque[tuple[str, AssignTask]] = deque()

    def end_tick() -> None:
        machine.end_tick(now_s)
        given.extend((to, said) for to, said in machine.outbox if type(said) is AssignTask)
        machine.outbox.clear()

    while machine.has_more or not given:
        end_tick()
    begun_s, ended = time.perf_counter(), 0
    while ended < TASKS:
        now_s += TICK_S
        for _ in range(min(REPORTS_PER_TICK, len(given))):
            worker, order = given.popleft()
            made = (Value.of(order.spec.outputs[0], b"x"),)
            report = TaskReported(order.spec.id, order.attempt, made, None, TICK_S)
            machine.worker_sent(worker, report, now_s)
            ended += 1
        end_tick()
    return TASKS / (time.perf_counter() - begun_s)


def measure() -> dict[str, float]:
    """Measure both in alternation."""
    pairs = [(tasks_per_s(FEW), tasks_per_s(MANY)) for _ in range(PAIRS)]
    few, many = sorted(pairs, key=lambda pair: pair[1] / pair[0])[PAIRS // 2]
    return {"few_per_s": few, "many_per_s": many, "many_to_few": many / few}


if __name__ == "__main__":
    for key, value in measure().items():
        print(f"{key:14} {value:12.2f}")
