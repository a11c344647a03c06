"""Fixed seeds of each scenario, seeds that failed once, and machines made wrong on purpose."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from ciel.core.events import AssignTask, Message, ReleaseObjects, TaskReported
from ciel.core.ids import ObjectId
from ciel.core.jobs import Job
from ciel.core.objects import ObjectNode
from ciel.core.refs import Future
from ciel.core.tasks import TaskNode
from ciel.master.state.machine import MasterMachine
from ciel.master.state.workers import WorkerNode
from ciel.testing.options import SCENARIOS, options_for
from ciel.testing.simulator import Simulation, SimulationError, main, simulate
from ciel.testing.witness import Violation

IS_LONG = os.environ.get("CIEL_LONG") == "1"
SEEDS = range(1, 21 if IS_LONG else 3)
OWN_TESTS = ("thousand", "handed", "afterwards")


@pytest.mark.parametrize("scenario", [name for name in SCENARIOS if name not in OWN_TESTS])
def test_all_jobs_end_with_the_right_answer_and_nothing_is_left(scenario: str) -> None:
    for seed in SEEDS if IS_LONG else SEEDS[:1]:
        simulate(seed, scenario)


def test_a_thousand_tasks_survive_kills() -> None:
    result = simulate(3, "thousand")
    assert result.tasks > 1000
    assert not result.excused


def test_what_was_handed_over_is_forgotten_and_nothing_else() -> None:
    for seed in SEEDS:
        assert simulate(seed, "handed").handed_over


def test_jobs_that_ended_can_be_tried_again_and_removed() -> None:
    results = [simulate(seed, "afterwards") for seed in SEEDS]
    assert sum(result.retried for result in results)
    assert sum(result.removed for result in results)


def test_faults_drawn_by_the_seed_do_no_harm() -> None:
    for seed in range(1, 201 if IS_LONG else 11):
        simulate(seed)


def test_a_seed_says_all() -> None:
    first, second = (Simulation(7, options_for("any", 7)) for _ in range(2))
    assert first.run() == second.run()
    assert first.world.log == second.world.log


# --- seeds that failed once ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "scenario, seed",
    [
        pytest.param("calm", 16, id="needed-again-before-it-was-called-off"),
        pytest.param("calm", 14, id="assigned-anew-to-where-it-still-is-being-ended"),
        pytest.param("wiped", 30, id="child-names-a-place-that-is-gone"),
        pytest.param("kills", 2, id="list-is-back-and-holds-what-it-mentions"),
        pytest.param("cancels", 15, id="output-of-a-failed-task-is-lost"),
        pytest.param("wavering", 2, id="ended-well-while-it-was-called-off"),
        pytest.param("calm", 34, id="report-crosses-its-cancellation"),
        pytest.param("cancels", 5, id="returning-worker-holds-what-was-cancelled"),
        pytest.param("pauses", 6, id="holder-that-did-not-answer-is-back"),
        pytest.param("cuts", 2, id="object-is-back-before-it-was-made-again"),
        pytest.param("cuts", 24, id="unneeded-output-of-a-task-that-runs-again"),
        pytest.param("pauses", 32, id="made-here-while-it-was-fetched"),
        pytest.param("uploads", 4, id="upload-whose-holder-did-not-answer-once"),
        pytest.param("cancels", 37, id="nothing-ran-when-it-was-cancelled"),
        pytest.param("any", 3403, id="needed-for-an-output-it-delegated"),
        pytest.param("any", 123, id="tried-again-though-nothing-would-run"),
        pytest.param("afterwards", 59, id="what-a-list-names-failed-since"),
        pytest.param("handed", 7, id="handed-over-before-who-reads-it"),
        pytest.param("any", 286, id="input-of-who-went-ahead-is-lost"),
        pytest.param("any", 2005, id="counted-while-another-report-comes"),
        pytest.param("any", 19, id="unpromised-output-of-who-was-on-three-lost-workers"),
        pytest.param("any", 2190, id="client-that-is-cut-again-before-it-is-heard"),
        pytest.param("any", 2172, id="broken-for-a-reader-where-it-is-made"),
        pytest.param("any", 2460, id="failed-under-what-was-not-needed"),
        pytest.param("streams", 16, id="copy-of-what-is-not-needed-any-more"),
        pytest.param("streams", 29, id="follows-what-was-lost-while-it-was-away"),
        pytest.param("streams", 48, id="copied-before-it-turns-out-to-be-small"),
        pytest.param("streams", 598, id="whole-when-it-is-said-to-be-read-in-vain"),
        pytest.param("blocks", 51, id="unpromised-output-is-back"),
        pytest.param("blocks", 310, id="unpromised-output-known-before-its-maker"),
        pytest.param("choices", 1269, id="lost-where-it-was-to-be-made-anew"),
        pytest.param("any", 5410, id="lost-after-its-maker-was-given-up"),
    ],
)
def test_what_failed_once(scenario: str, seed: int) -> None:
    simulate(seed, scenario)


# --- what is wrong is found -----------------------------------------------------------------------


class ForgetsTheLost(MasterMachine):
    """Does not give the tasks of a lost worker to others."""

    def worker_lost(self, worker_id: str, reason: str, now_s: float) -> None:
        worker = self.workers.get(worker_id)
        if worker is not None:
            worker.assigned.clear()
        super().worker_lost(worker_id, reason, now_s)


class BelievesLateReports(MasterMachine):
    """Takes the report of any attempt for that of the current one."""

    def _current(self, worker: WorkerNode, task_id: str, attempt: int) -> TaskNode | None:
        task = self.graph.tasks.get(task_id)
        return task if task is not None and task.worker is not None else None


class KeepsSlots(MasterMachine):
    """Forgets to free the slots of what was called off."""

    def _superseded(self, worker: WorkerNode, task_id: str, attempt: int) -> None:
        pass


class KeepsMemory(MasterMachine):
    """Forgets now and then that what an attempt had asked for is free again."""

    def _note_end(self, worker: WorkerNode, task: TaskNode, report: TaskReported) -> None:
        super()._note_end(worker, task, report)
        worker.memory_used += task.spec.needs.memory_bytes


class LosesTheCramped(MasterMachine):
    """Forgets who waits for memory."""

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
    """Does not mind who reads what is handed over."""

    def client_said(self, client: str, message: Message, now_s: float) -> None:
        for object_id in message.objects if isinstance(message, ReleaseObjects) else ():
            if (node := self.graph.objects.get(object_id)) is not None:
                node.others = 0
        super().client_said(client, message, now_s)


class RemovesInSilence(MasterMachine):
    """Does not call off what runs for a job that it removes."""

    def _call_off(self, job: Job, reason: str) -> None:
        if reason != "its job was removed":
            super()._call_off(job, reason)


class ForgetsSlots(MasterMachine):
    """Takes no note of the end of what it has forgotten."""

    def _superseded(self, worker: WorkerNode, task_id: str, attempt: int) -> None:
        if task_id in self.graph.tasks:
            super()._superseded(worker, task_id, attempt)


class BelievesReaders(MasterMachine):
    """Takes the report of who reads before what was read is whole."""

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


def test_what_never_ends_is_found_without_a_look_at_the_books() -> None:
    options = replace(SCENARIOS["kills"], turns_per_check=10**9)
    with pytest.raises(Violation, match=r"300 s after all faults, <Job \d job\d active>"):
        Simulation(2, options, ForgetsTheLost).run()


def test_a_failure_tells_the_story_and_the_command_that_replays_it() -> None:
    with pytest.raises(SimulationError) as caught:
        simulate(2, "kills", ForgetsTheLost)
    text = str(caught.value)
    worker = re.findall(r"it is assigned to (\S+), which was not told", text)[0]
    assert f"{worker} to: AssignTask" in text
    assert f"{worker}: was killed" in text
    assert text.endswith("replay: python -m ciel.testing.simulator --scenario kills --seeds 2-2")


def test_the_long_run_sums_up(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "1-2", "--scenario", "calm"]) == 0
    assert "2 seeds" in capsys.readouterr().out
