"""What must hold of a worker's machine after every step; each rule has a code."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ciel.worker.state.orders import Phase

if TYPE_CHECKING:
    from ciel.worker.state.machine import WorkerMachine


def problems(machine: WorkerMachine) -> Iterator[str]:
    """Name every broken rule."""
    slots, waiting = machine._slots, machine._waiting
    attempts = machine.attempts.values()
    running = [a for a in attempts if a.phase in (Phase.RUNNING, Phase.ENDING)]
    if machine.slots_free + sum(a.slots for a in running) != machine.slots:
        yield f"W1 {machine.slots_free} slots are free of {machine.slots}, {len(running)} run"
    for key, attempt in machine.attempts.items():
        if (attempt.phase is Phase.FETCHING) != (key in waiting):
            yield f"W2 {key} is {attempt.phase.value}, its waiting disagrees"
    for object_id in machine.stored:
        if object_id not in machine._kept and waiting.is_awaited(object_id):
            yield f"W3 {object_id} is awaited and is there"
    taken = sum([min(a.memory_bytes, machine.memory_bytes) for a in running])
    if slots.memory_free + taken != machine.memory_bytes or slots.memory_free < 0:
        free, of = slots.memory_free, machine.memory_bytes
        yield f"W4 {free} bytes of memory are free of {of}, {taken} are taken"
