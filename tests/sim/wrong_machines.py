"""Machines made wrong on purpose: the simulator finds each out. Run by `test_simulator`."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Iterator, Set
from dataclasses import replace

import pytest

from ciel.core.events import AddTask, AssignTask, Message, ReleaseObjects, SpawnTask, TaskReported
from ciel.core.graph.nodes import TaskNode
from ciel.core.graph.objects import ObjectNode
from ciel.core.graph.retention import Retention
from ciel.core.graph.task_graph import TaskGraph
from ciel.core.ids import ObjectId
from ciel.core.jobs import Job
from ciel.core.refs import Future
from ciel.core.tasks import TaskSpec
from ciel.master.state.machine import MasterMachine
from ciel.master.state.placement.dispatch import MEMORY_QUEUE
from ciel.master.state.workers import WorkerNode
from ciel.testing.simulator import lots
from ciel.testing.simulator.options import SCENARIOS
from ciel.testing.simulator.shrinking import shrink
from ciel.testing.simulator.simulation import Simulation, SimulationError, simulate
from ciel.testing.simulator.witness import Violation


class ForgetsTheLost(MasterMachine):
    """Does not give the tasks of a lost worker to others."""

    def worker_lost(self, worker_id: str, reason: str, now_s: float, *, died: bool = False) -> None:
        worker = self.workers.get(worker_id)
        if worker is not None:
            worker.assigned.clear()
        super().worker_lost(worker_id, reason, now_s, died=died)


class Spoiled(MasterMachine):
    """A machine with a wrong method in one of its components."""

    def __init__(self, *, delegates: bool = True) -> None:
        super().__init__(delegates=delegates)
        self.spoil()

    @abstractmethod
    def spoil(self) -> None:
        """Replace the method."""


class BelievesLateReports(Spoiled):
    """Takes the report of any attempt for the report of the current one."""

    def spoil(self) -> None:
        self.attempts._current = self._any  # type: ignore[method-assign]  # on purpose

    def _any(self, worker: WorkerNode, task_id: str, attempt: int) -> TaskNode | None:
        task = self.graph.tasks.get(task_id)
        return task if task is not None and task.worker is not None else None


class KeepsSlots(Spoiled):
    """Forgets to free the slots of cancelled attempts."""

    def spoil(self) -> None:
        self.attempts._superseded = lambda *_: None  # type: ignore[method-assign]  # on purpose


class KeepsMemory(Spoiled):
    """Forgets that the memory of an ended attempt is free."""

    def spoil(self) -> None:
        note_end = self.attempts._note_end

        def wrong(worker: WorkerNode, task: TaskNode, report: TaskReported) -> None:
            note_end(worker, task, report)
            worker.memory_used += task.spec.needs.memory_bytes

        self.attempts._note_end = wrong  # type: ignore[method-assign]  # on purpose


class LosesTheCramped(MasterMachine):
    """Forgets the tasks that wait for memory."""

    def end_tick(self, now_s: float) -> None:
        super().end_tick(now_s)
        if queue := self.dispatcher.scarce.get(MEMORY_QUEUE):
            queue.pop()


class HearsNoNews(MasterMachine):
    """Loses every tenth report."""

    count = 0

    def worker_sent(self, worker_id: str, message: Message, now_s: float) -> None:
        self.count += isinstance(message, TaskReported)
        if not isinstance(message, TaskReported) or self.count % 10:
            super().worker_sent(worker_id, message, now_s)


class DropsTooMuch(Spoiled):
    """Drops every object once it is there, also if tasks need it."""

    def spoil(self) -> None:
        self.graph.retention = _HoldsNothing(self.graph.tasks, self.graph.objects)


class _HoldsNothing(Retention):
    def drop_if_unused(self, object_id: ObjectId, node: ObjectNode) -> None:
        node.holds = 0
        self.droppable.append(object_id)


class ForgetsWhatIsRead(MasterMachine):
    """Ignores the readers of an object that it hands over."""

    def client_sent(self, client: str, message: Message, now_s: float) -> None:
        for object_id in message.objects if isinstance(message, ReleaseObjects) else ():
            if (node := self.graph.objects.get(object_id)) is not None:
                node.users = 0
        super().client_sent(client, message, now_s)


class RemovesInSilence(Spoiled):
    """Does not cancel the attempts of a job that it removes."""

    def spoil(self) -> None:
        cancelling = self.operations._cancelling

        def wrong(job: Job, reason: str) -> Iterator[None]:
            if reason != "its job was removed":
                yield from cancelling(job, reason)

        self.operations._cancelling = wrong  # type: ignore[method-assign]  # on purpose


class ForgetsSlots(Spoiled):
    """Ignores the end of attempts at forgotten tasks."""

    def spoil(self) -> None:
        superseded = self.attempts._superseded

        def wrong(worker: WorkerNode, task_id: str, attempt: int) -> None:
            if task_id in self.graph.tasks:
                superseded(worker, task_id, attempt)

        self.attempts._superseded = wrong  # type: ignore[method-assign]  # on purpose


class BelievesReaders(MasterMachine):
    """Accepts the report of a reader before the streams that it read are complete."""

    def worker_sent(self, worker_id: str, message: Message, now_s: float) -> None:
        if isinstance(message, TaskReported):
            self.graph.streams.reading.clear()
            self.graph.streams.readers.clear()
        super().worker_sent(worker_id, message, now_s)


class ForgetsReaders(Spoiled):
    """Does not stop the readers of broken streams."""

    def spoil(self) -> None:
        self.attempts._stop_reading = lambda *_: None  # type: ignore[method-assign]  # on purpose


class ForgetsEagerTasks(Spoiled):
    """Does not cancel eager attempts that cannot start where they were sent."""

    def spoil(self) -> None:
        self.eager.check = lambda: None  # type: ignore[method-assign]  # on purpose


class GivesNoChoice(Spoiled):
    """Gives futures to a task with alternatives, though one is there."""

    def spoil(self) -> None:
        self.dispatcher._assign = self._assign

    def _assign(self, task: TaskNode, worker: WorkerNode) -> None:
        self.attempts.assign(task, worker)
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
        (ForgetsReaders, "streams", 22),
        (ForgetsEagerTasks, "wavering", 1),
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

    def end_tick(self, now_s: float) -> None:
        super().end_tick(now_s)
        for task in self.graph.tasks.values():
            task.children = None


class Forgiving(TaskGraph):
    """Takes a task with other outputs for the known task of that id."""

    def add(self, spec: TaskSpec, job: Job) -> TaskNode:
        known = self.tasks.get(spec.id)
        return known if known is not None else super().add(spec, job)


class Forgives(HidesDivergence):
    def __init__(self, *, delegates: bool = True) -> None:
        super().__init__(delegates=delegates)
        self.graph.__class__ = Forgiving
        spawned = self.children.spawned

        def forgiving(worker: WorkerNode, parent: TaskNode, message: SpawnTask) -> None:
            spawned(worker, parent, message)
            if message.wanted:
                self.graph.demand(message.spec.outputs)

        self.children.spawned = forgiving  # type: ignore[method-assign]  # on purpose


@pytest.mark.parametrize("scenario", ["bundles", "blackouts"])
@pytest.mark.parametrize("make_master", [MasterMachine, HidesDivergence, Forgives])
def test_names_that_depend_on_the_execution_are_found_out(
    make_master: Callable[..., MasterMachine], scenario: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls would get results of other calls, or jobs would never end."""
    monkeypatch.setattr(lots, "make_names", NamesByOrder)

    def run_seeds() -> None:
        for seed in range(1, 41):
            simulate(seed, scenario, make_master)

    with pytest.raises(SimulationError):
        run_seeds()


def test_what_never_ends_is_found_without_a_look_at_the_books() -> None:
    options = replace(SCENARIOS["kills"], ticks_per_check=10**9)
    with pytest.raises(Violation, match=r"900 s after all faults, <Job \d job\d active>"):
        Simulation(5, options, ForgetsTheLost).run()


def test_a_failure_tells_the_story_and_the_command_that_replays_it() -> None:
    with pytest.raises(SimulationError) as caught:
        simulate(5, "kills", ForgetsTheLost)
    text = str(caught.value)
    worker = re.findall(r"it is assigned to (\S+), which has not received it", text)[0]
    assert f"{worker} to: AssignTask" in text
    assert f"{worker}: was killed" in text
    assert text.endswith("replay: python -m ciel.testing.simulator --scenario kills --seeds 5-5")


class ForgetsTasks(MasterMachine):
    """Does not record tasks, which shows when it restarts."""

    def take_journal(self) -> list[Message]:
        return [record for record in super().take_journal() if not isinstance(record, AddTask)]


def test_the_smallest_story_needs_fewer_faults_and_is_replayed_by_one_line() -> None:
    def fails(without: Set[int]) -> SimulationError | None:
        try:
            simulate(11, "restarts", ForgetsTasks, without)
        except SimulationError as error:
            return error
        return None

    first = fails(frozenset())
    assert first is not None
    smallest = shrink(first, fails, max_s=20.0)
    left = smallest.fault_count - len(smallest.without)
    assert left < first.fault_count
    assert "the master is killed" in str(smallest)
    *_, replay = str(smallest).splitlines()
    assert replay.startswith("replay: python -m ciel.testing.simulator --scenario restarts")
    assert "--without" in replay
