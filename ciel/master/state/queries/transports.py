"""Describes how messages and objects reach each worker, and why (CIB-53)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ciel.core.transports import (
    NOT_OPEN,
    TCP,
    ControlSituation,
    End,
    ObjectSituation,
    control_choice,
    object_choice,
)
from ciel.master.state.machine import MasterMachine
from ciel.master.state.workers import WorkerFacts


def describe(machine: MasterMachine, own: End, carriers: Mapping[str, str]) -> list[dict[str, Any]]:
    """Describe all workers. `carriers`: what carries the messages of each connected worker."""
    facts = [worker.facts for worker in machine.workers.values()]
    return [
        {
            "worker": each.id, "netloc": each.netloc,
            "control": _control(own, each, carriers.get(each.id)),
            "objects": [_objects(other, each) for other in facts if other is not each],
        }
        for each in facts
    ]  # fmt: skip


def _control(own: End, worker: WorkerFacts, carrier: str | None) -> dict[str, str | None]:
    if carrier is None:
        return {"way": None, "reason": "it is not connected now"}
    choice = control_choice(ControlSituation(own, worker.end, is_local=carrier != TCP))
    if choice.way == carrier:
        return {"way": carrier, "reason": choice.reason}
    reason = f"{choice.way} suits it, but {NOT_OPEN}"
    return {"way": carrier, "reason": reason}


def _objects(source: WorkerFacts, taker: WorkerFacts) -> dict[str, str]:
    choice = object_choice(ObjectSituation(source.store, taker.store))
    return {"from": source.id, "way": choice.way, "reason": choice.reason}
