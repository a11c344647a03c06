"""Machines made wrong on purpose: the simulator finds each out. Run by `test_simulator`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from ciel.core.events import AssignTask, Message, ReleaseObjects, SpawnTask, TaskReported
from ciel.core.graph import TaskGraph
from ciel.core.ids import ObjectId
from ciel.core.jobs import Job
from ciel.core.nodes import TaskNode
from ciel.core.objects import ObjectNode
from ciel.core.refs import Future
from ciel.core.tasks import TaskSpec
from ciel.master.state.machine import MasterMachine
from ciel.master.state.workers import WorkerNode
from ciel.testing.simulator import lots
from ciel.testing.simulator.options import SCENARIOS
from ciel.testing.simulator.simulation import Simulation, SimulationError, simulate
from ciel.testing.simulator.witness import Violation


class ForgetsTheLost(MasterMachine):
    """Does not give the tasks of a lost worker to others."""

    def worker_lost(self, worker_id: str, reason: str, now_s: float, *, died: bool = False) -> None:
        worker = self.workers.get(worker_id)
        if worker is not None:
            worker.assigned.clear()
        super().worker_lost(worker_id, reason, now_s, died=died)


class BelievesLateReports(MasterMachine):
    """Accepts the report of any attempt as the report of the current one."""

    def _current(self, worker: WorkerNode, task_id: str, attempt: int) -> TaskNode | None:
        task = self.graph.tasks.get(task_id)
        return task if task is not None and task.worker is not None else None


class KeepsSlots(MasterMachine):
    """Does not free the slots of cancelled attempts."""

    def _superseded(self, worker: WorkerNode, task_id: str, attempt: int) -> None:
        pass


class KeepsMemory(MasterMachine):
    """Forgets now and then that what an attempt had asked for is free again."""

    def _note_end(self, worker: WorkerNode, task: TaskNode, report: TaskReported) -> None:
        super()._note_end(worker, task, report)
        worker.memory_used += task.spec.needs.memory_bytes


class LosesTheCramped(MasterMachine):
    """Forgets the tasks that wait for memory."""

    def end_turn(self, now_s: float) -> None:
        super().end_turn(now_s)
        if self.dispatcher.cramped:
            self.dispatcher.cramped.pop()


class HearsNoNews(MasterMachine):
    """Loses every tenth report."""

    count = 0

    def worker_said(self, worker_id: str, message: Message, now_s: float) -> None:
        self.count += isinstance(message, TaskReported)
        if not isinstance(message, TaskReported) or self.count % 10:
            super().worker_said(worker_id, message, now_s)


class DropsTooMuch(MasterMachine):
    """Drops every object once it is there, whoever may still need it."""

    def __init__(self, *, delegates: bool = True) -> None:
        super().__init__(delegates=delegates)
        self.graph.drop_if_unused = self._drop_always  # type: ignore[method-assign]  # on purpose

    def _drop_always(self, object_id: ObjectId, node: ObjectNode) -> None:
        node.holds = 0
        self.graph.droppable.append(object_id)


class ForgetsWhatIsRead(MasterMachine):
    """Ignores the readers of results that are handed over."""

    def client_said(self, client: str, message: Message, now_s: float) -> None:
        for object_id in message.objects if isinstance(message, ReleaseObjects) else ():
            if (node := self.graph.objects.get(object_id)) is not None:
                node.others = 0
        super().client_said(client, message, now_s)


class RemovesInSilence(MasterMachine):
    """Does not call off what runs for a job that it removes."""

    def _calling_off(self, job: Job, reason: str) -> Iterator[None]:
        if reason != "its job was removed":
            yield from super()._calling_off(job, reason)


class ForgetsSlots(MasterMachine):
    """Ignores the end of attempts that it has forgotten."""

    def _superseded(self, worker: WorkerNode, task_id: str, attempt: int) -> None:
        if task_id in self.graph.tasks:
            super()._superseded(worker, task_id, attempt)


class BelievesReaders(MasterMachine):
    """Accepts the report of a reader before its input is complete."""

    def _reported(self, worker: WorkerNode, report: TaskReported) -> None:
        self.graph.streams.reading.clear()
        self.graph.streams.readers.clear()
        super()._reported(worker, report)


class ForgetsReaders(MasterMachine):
    """Lets those run on that read what broke."""

    def _stop_reading(self, task: TaskNode, attempt: int) -> None:
        pass


class ForgetsWhoWentAhead(MasterMachine):
    """Does not call off what cannot be let run where it was sent."""

    def __init__(self, *, delegates: bool = True) -> None:
        super().__init__(delegates=delegates)
        self.ahead.check = lambda: None  # type: ignore[method-assign]  # on purpose


class GivesNoChoice(MasterMachine):
    """Gives futures to who chooses, whatever is there."""

    def _assign(self, task: TaskNode, worker: WorkerNode) -> None:
        super()._assign(task, worker)
        peer, message = self.outbox[-1]
        if isinstance(message, AssignTask) and task.spec.any_count:
            needed = message.inputs[: len(task.spec.needed)]
            futures = [Future(object_id) for object_id in task.spec.alternatives]
            self.outbox[-1] = (peer, message._replace(inputs=(*needed, *futures)))


@pytest.mark.parametrize(
    "make_master, scenario, first",
    [
        (ForgetsTheLost, "kills", 1),
        (BelievesLateReports, "wavering", 1),
        (KeepsSlots, "cancels", 1),
        (HearsNoNews, "calm", 1),
        (DropsTooMuch, "calm", 1),
        (ForgetsWhatIsRead, "handed", 1),
        (RemovesInSilence, "afterwards", 1),
        (ForgetsSlots, "afterwards", 1),
        (BelievesReaders, "streams", 1),
        (ForgetsReaders, "streams", 24),
        (ForgetsWhoWentAhead, "wavering", 1),
        (GivesNoChoice, "choices", 1),
        (KeepsMemory, "memory", 1),
        (LosesTheCramped, "memory", 1),
    ],
)
def test_a_wrong_machine_is_found_out(
    make_master: Callable[..., MasterMachine], scenario: str, first: int
) -> None:
    def run_twenty_seeds() -> None:
        for seed in range(first, first + 20):
            simulate(seed, scenario, make_master)

    with pytest.raises(SimulationError):
        run_twenty_seeds()


class NamesByOrder(lots.Names):
    """Names what a program creates by its place in one execution, as once led to wrong answers."""

    def ordinal(self) -> int | None:
        self.child_count += 1
        return self.child_count - 1

    def put(self, content: bytes) -> ObjectId:
        self.put_count += 1
        return ObjectId(f"{self.spec.id}:put:{self.put_count - 1}")

    def process(self) -> ObjectId:
        return ObjectId(f"{self.spec.id}:fixed:0")


class HidesDivergence(MasterMachine):
    """Does not note that a task created other children than before: only what follows can tell."""

    def end_turn(self, now_s: float) -> None:
        super().end_turn(now_s)
        self.graph.divergent.clear()


class Forgiving(TaskGraph):
    """Accepts a task with other outputs as the known task of that id."""

    def add(self, spec: TaskSpec, job: Job) -> TaskNode:
        known = self.tasks.get(spec.id)
        return known if known is not None else super().add(spec, job)


class Forgives(HidesDivergence):
    def __init__(self, *, delegates: bool = True) -> None:
        super().__init__(delegates=delegates)
        self.graph.__class__ = Forgiving

    def _spawned(self, worker: WorkerNode, parent: TaskNode, message: SpawnTask) -> None:
        super()._spawned(worker, parent, message)
        if message.wanted:
            self.graph.demand(message.spec.outputs)


@pytest.mark.parametrize("scenario", ["bundles", "blackouts"])
@pytest.mark.parametrize("make_master", [MasterMachine, HidesDivergence, Forgives])
def test_names_that_depend_on_the_execution_are_found_out(
    make_master: Callable[..., MasterMachine], scenario: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A0 and G1: results of other calls, and jobs that hang."""
    monkeypatch.setattr(lots, "make_names", NamesByOrder)

    def run_seeds() -> None:
        for seed in range(1, 41):
            simulate(seed, scenario, make_master)

    with pytest.raises(SimulationError):
        run_seeds()


def test_what_never_ends_is_found_without_a_look_at_the_books() -> None:
    options = replace(SCENARIOS["kills"], turns_per_check=10**9)
    with pytest.raises(Violation, match=r"900 s after all faults, <Job \d job\d active>"):
        Simulation(2, options, ForgetsTheLost).run()


def test_a_failure_tells_the_story_and_the_command_that_replays_it() -> None:
    with pytest.raises(SimulationError) as caught:
        simulate(2, "kills", ForgetsTheLost)
    text = str(caught.value)
    worker = re.findall(r"it is assigned to (\S+), which was not told", text)[0]
    assert f"{worker} to: AssignTask" in text
    assert f"{worker}: was killed" in text
    assert text.endswith("replay: python -m ciel.testing.simulator --scenario kills --seeds 2-2")
