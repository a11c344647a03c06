"""Programs of a simulation that hand parts of their work (*lots*) to idle workers.

Bundles of Python calls do the same. Each output is a lot, whose content does not depend on the task
that produces it. Chance decides how many lots a program hands over, and in which order; whether it
puts an object for a child; and whether each lot runs in a separate task while the program waits
in its process. So two attempts of one task may create different tasks and objects, and only the
names distinguish these.
"""

from __future__ import annotations

from random import Random
from typing import Any, NamedTuple

from ciel.core.ids import ObjectId
from ciel.core.refs import Concrete, Fixed, Future, Reference
from ciel.core.tasks import TaskSpec
from ciel.testing.simulator.workloads import EXECUTOR, Outcome, lot_content
from ciel.wire.descriptors import make_task, read_arguments

HANDED_SHARE = 0.4
WAITS_SHARE = 0.4
PUTS_SHARE = 0.5
KINDS_OF_PUTS = 3
Child = tuple[TaskSpec, tuple[Reference, ...]]


class Surroundings(NamedTuple):
    """The circumstances of a run, on which results must not depend."""

    attempt: int
    life: str
    netloc: str
    chance: Random


class Names:
    """Names the tasks and objects that a program creates by their content, in any order."""

    def __init__(self, spec: TaskSpec, around: Surroundings) -> None:
        self.spec = spec
        self.around = around
        self.child_count = 0
        self.put_count = 0

    def ordinal(self) -> int | None:
        """Return the ordinal of the next child; None if its content names it."""
        self.child_count += 1
        return None

    def put(self, content: bytes) -> ObjectId:
        """Name an object that the program puts."""
        self.put_count += 1
        return ObjectId(f"{self.spec.id}:put.{content.hex()}:0")

    def process(self) -> ObjectId:
        """Name the process that waits."""
        around = self.around
        return ObjectId(f"{self.spec.id}:fixed.{around.life}.{around.attempt}:0")


make_names = Names  # tests of the simulator replace it by a class whose names are wrong


def run_lots(spec: TaskSpec, around: Surroundings, memory: tuple[int, ...] | None) -> Outcome:
    """Return the outcome of a program with lots. `memory`: if a waiting process continues, the lots
    of its outputs, in the order that it remembers.
    """
    arguments = read_arguments(spec.payload)
    duration_s = arguments["duration_s"]
    seed, lots = arguments["seed"], list(zip(spec.outputs, arguments["lots"], strict=True))
    if "waits" in arguments:
        assert memory is not None
        made = [
            (object_id, lot_content(seed, lot))
            for object_id, lot in zip(spec.outputs, memory, strict=True)
        ]
        return Outcome(duration_s, made=tuple(made))
    chance, names = around.chance, make_names(spec, around)
    children: list[Child] = []
    puts: dict[ObjectId, bytes] = {}
    while len(lots) > 1 and chance.random() < HANDED_SHARE:
        object_id, lot = lots.pop(chance.choice((0, -1)))
        inputs: list[Reference] = []
        if chance.random() < PUTS_SHARE:
            content = lot_content(seed, -1 - chance.randrange(KINDS_OF_PUTS))
            put_id = names.put(content)
            puts[put_id] = content
            inputs.append(Concrete(put_id, None, frozenset((around.netloc,))))
        children.append(_child(names, arguments, [lot], inputs, (object_id,)))
    if len(spec.outputs) == 1 or chance.random() >= WAITS_SHARE:
        made = [(object_id, lot_content(seed, lot)) for object_id, lot in lots]
        return Outcome(duration_s, tuple(children), tuple(made), puts=tuple(puts.items()))
    alone = [_child(names, arguments, [lot], [], None) for _, lot in lots]
    process = Fixed(names.process(), around.netloc)
    waited: list[Reference] = [process, *[Future(child.outputs[0]) for child, _ in alone]]
    outputs = tuple([object_id for object_id, _ in lots])
    going_on = {**arguments, "waits": True}
    children += alone
    children.append(_child(names, going_on, [lot for _, lot in lots], waited, outputs))
    return Outcome(
        duration_s, tuple(children), processes=(process.id,), puts=tuple(puts.items()),
        memory=tuple([lot for _, lot in lots]),
    )  # fmt: skip


def _child(
    names: Names,
    arguments: dict[str, Any],
    lots: list[int],
    inputs: list[Reference],
    outputs: tuple[ObjectId, ...] | None,
) -> Child:
    spec = names.spec
    return make_task(
        job=spec.job, parent=spec.id, ordinal=names.ordinal(), executor=EXECUTOR,
        arguments={**arguments, "lots": lots, "inputs": inputs},
        outputs=outputs, needs=spec.needs, mentions=spec.mentions,
    )  # fmt: skip
