"""Compares a master with one that is restored from its journal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ciel.core.events import Message
from ciel.core.graph.lost_objects import OBJECT_LOST
from ciel.core.jobs import ENDED
from ciel.core.refs import Failure, Value, locations_of
from ciel.core.tasks import ACTIVE, DONE, DORMANT
from ciel.master.state.invariants import problems
from ciel.master.state.machine import MasterMachine
from ciel.master.state.restoring import Restoration


def restore(records: Sequence[Message], now_s: float) -> MasterMachine:
    """Return a machine that was restored from records; raises AssertionError for useless ones."""
    machine = MasterMachine()
    restoration = Restoration(machine)
    for record in records:
        restoration.apply(record, now_s)
    assert not restoration.skipped, restoration.skipped[:3]
    restoration.finish(now_s)
    machine.end_tick(now_s)
    return machine


def differences(live: MasterMachine, records: Sequence[Message], now_s: float) -> Iterator[str]:
    """Yield what a restart at this moment would lose or invent. A restored master does not know
    which objects were lost or dropped since they were reported.
    """
    restored = restore(records, now_s)
    for subject, text in problems(restored):
        yield f"the restored tables contradict each other: {subject}: {text}"
    if live.has_more:
        return  # the restored machine has done what the live one has deferred
    if restored.jobs.keys() != live.jobs.keys():
        yield f"jobs {sorted(restored.jobs)} instead of {sorted(live.jobs)}"
        return
    for job_id, job in live.jobs.items():
        found = restored.jobs[job_id]
        before, now = (job.state, job.reason), (found.state, found.reason)
        if job.state in ENDED and now != before:
            yield f"job {job.number} ended as {now} instead of {before}"
        if found.number != job.number or (found.open, found.spec) != (job.open, job.spec):
            yield f"job {job.number} became number {found.number}, or is described differently"
        wanted = [
            object_id for object_id in job.wanted if not live.job_table.is_given_up(object_id)
        ]
        if {*found.wanted} != {*wanted}:
            yield f"job {job.number} wants {len(found.wanted)} objects instead of {len(wanted)}"
        for object_id in wanted:
            yield from _object_differences(live, restored, object_id)
    found_copies = restored.replication.copies()
    for object_id, copies in live.replication.copies().items():
        ref = restored.graph.objects.reference(object_id)
        if object_id in live.graph.objects.nodes and not isinstance(ref, Failure):
            if found_copies.get(object_id) != copies:
                has = found_copies.get(object_id)
                yield f"object {object_id} is to have {has} copies instead of {copies}"
    for task_id, task in live.graph.tasks.items():
        if task.job.spec.id not in live.jobs:
            continue  # it is being removed in slices
        twin = restored.graph.tasks.get(task_id)
        if twin is None:
            yield f"task {task_id} is missing"
        elif task.state is DONE and twin.state is not DONE:
            yield f"task {task_id} is {twin.state} instead of done"
        elif task.state in ACTIVE and twin.state not in (*ACTIVE, DONE, DORMANT):
            yield f"task {task_id} is {twin.state} instead of {task.state}"


def _object_differences(
    live: MasterMachine, restored: MasterMachine, object_id: str
) -> Iterator[str]:
    node, twin = live.graph.objects.get(object_id), restored.graph.objects.get(object_id)
    if node is None or node.ref is None or not node.is_settled:
        return
    ref = None if twin is None else twin.ref
    if ref is None or twin is None or not twin.is_settled:
        is_wrong = not locations_of(node.ref)  # otherwise its worker reports it again
        is_lost = (
            isinstance(node.ref, Failure) and OBJECT_LOST in f"{node.ref.reason}{node.ref.text}"
        )
        is_wrong = is_wrong and not is_lost
    elif isinstance(node.ref, Value):
        is_wrong = ref != node.ref
    else:
        is_wrong = isinstance(node.ref, Failure) != isinstance(ref, Failure)
        is_wrong = is_wrong and not locations_of(ref)
    if is_wrong:
        yield f"object {object_id} became {ref!r:.200} instead of {node.ref!r:.200}"
