"""Fixed seeds of each scenario, seeds that failed once, and machines made wrong on purpose."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ciel.core.events import Message, TaskReported
from ciel.core.graph import TaskGraph, TaskNode
from ciel.core.ids import ObjectId
from ciel.core.objects import ObjectNode
from ciel.core.refs import NOWHERE
from ciel.master.state.machine import MasterMachine
from ciel.master.state.workers import WorkerNode
from ciel.testing.options import SCENARIOS, options_for
from ciel.testing.simulator import Simulation, SimulationError, main, simulate

SEEDS = (1, 2, 3, 4)


@pytest.mark.parametrize("scenario", [name for name in SCENARIOS if name != "thousand"])
def test_all_jobs_end_with_the_right_answer_and_nothing_is_left(scenario: str) -> None:
    for seed in SEEDS:
        simulate(seed, scenario)


def test_a_thousand_tasks_survive_kills() -> None:
    result = simulate(3, "thousand")
    assert result.tasks > 1000
    assert not result.excused


def test_faults_drawn_by_the_seed_do_no_harm() -> None:
    for seed in range(1, 31):
        simulate(seed)


def test_a_seed_says_all() -> None:
    first, second = (Simulation(7, options_for("any", 7)) for _ in range(2))
    assert first.run() == second.run()
    assert first.world.log == second.world.log


# --- seeds that failed once ---------------------------------------------------------------------


def test_a_task_needed_again_before_it_was_called_off_runs_on() -> None:
    simulate(14, "calm")


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


class HearsNoNews(MasterMachine):
    """Loses every tenth report."""

    count = 0

    def worker_said(self, worker_id: str, message: Message, now_s: float) -> None:
        self.count += isinstance(message, TaskReported)
        if not isinstance(message, TaskReported) or self.count % 10:
            super().worker_said(worker_id, message, now_s)


class DropsTooMuch(MasterMachine):
    """Drops every object once it is there, whoever may still need it."""

    def __init__(self) -> None:
        super().__init__()
        self.graph._drop_if_unused = self._drop_always  # type: ignore[method-assign]  # on purpose
        self.graph.drop = self._drop_anyway  # type: ignore[method-assign]  # on purpose

    def _drop_always(self, object_id: ObjectId, node: ObjectNode) -> None:
        self.graph.droppable.append(object_id)

    def _drop_anyway(self, object_id: ObjectId) -> frozenset[str]:
        node = self.graph.objects.get(object_id)
        if node is None or node.ref is None or node.wanters:
            return NOWHERE
        node.holds = 0
        return TaskGraph.drop(self.graph, object_id)


@pytest.mark.parametrize(
    "make_master, scenario",
    [
        (ForgetsTheLost, "kills"),
        (BelievesLateReports, "wavering"),
        (KeepsSlots, "cancels"),
        (HearsNoNews, "calm"),
        (DropsTooMuch, "calm"),
    ],
)
def test_a_wrong_machine_is_found_out(
    make_master: Callable[[], MasterMachine], scenario: str
) -> None:
    with pytest.raises(SimulationError):
        for seed in range(1, 21):
            simulate(seed, scenario, make_master)


def test_a_failure_tells_the_story_and_the_command_that_replays_it() -> None:
    with pytest.raises(SimulationError) as caught:
        simulate(1, "calm", HearsNoNews)
    text = str(caught.value)
    assert "AssignTask" in text
    assert text.endswith("replay: python -m ciel.testing.simulator --scenario calm --seeds 1-1")


def test_the_long_run_sums_up(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "1-2", "--scenario", "calm"]) == 0
    assert "2 seeds" in capsys.readouterr().out
