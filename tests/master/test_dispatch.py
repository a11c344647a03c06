"""Tests the dispatcher with a real graph and without a master; `Floor` records each assignment."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ciel.core.events import CopyTimed, DiskLimit, DiskQueued, Message, RecallTasks
from ciel.core.graph.early_outputs import introduce
from ciel.core.graph.invariants import validate
from ciel.core.graph.nodes import TaskNode
from ciel.core.ids import ObjectId
from ciel.core.offers.resources import read_amounts
from ciel.core.placement import MEASURED_FROM_BYTES
from ciel.core.refs import Reference
from ciel.core.scheduling import DEFAULT_SCHEDULING, Scheduling, read_scheduling
from ciel.core.tasks import Isolation, TaskSpec
from ciel.master.state.context import Context
from ciel.master.state.placement.dispatch import RECALL_AFTER_S, UNPLACED_MAX, Dispatcher
from ciel.master.state.placement.lives import Lives
from ciel.master.state.placement.reach import Reach
from ciel.master.state.workers import Capacity, WorkerFacts, WorkerNode
from ciel.testing.builders import a_job, a_task, a_worker, inline, place_of, stored

BIG = 100 << 20  # copying it to another host takes a second


class Floor:
    """Workers with a fixed credit, and the record of every assignment in order."""

    def __init__(
        self, *workers: WorkerFacts, limit: int = 1, scheduling: Scheduling = DEFAULT_SCHEDULING
    ) -> None:
        context = Context()
        self.graph = context.graph
        self.job = a_job(scheduling=scheduling)
        self.said: list[tuple[str, Message]] = []
        self.retry_states = context.retry_states
        self.dispatcher = Dispatcher(
            self.graph,
            context.table,
            self.retry_states,
            Reach(context),
            Lives(context),
            self._assign,
            self._refuse,
            lambda *said: self.said.append(said),
        )
        self.limit = limit
        self.given: list[str] = []
        self.refused: list[str] = []
        for facts in workers:
            self.join(facts)

    def _assign(self, task: TaskNode, worker: WorkerNode) -> None:
        self.graph.assign(task, worker.facts.id)
        worker.add_attempt(task, 0.0)
        self.given.append(f"{task.spec.outputs[0]} to {worker.facts.id}")

    def _refuse(self, task: TaskNode, reason: str, details: str) -> None:
        self.graph.fail(task, reason, details)
        self.refused.append(f"{task.spec.outputs[0]}: {details}")

    def join(self, facts: WorkerFacts) -> None:
        worker = WorkerNode(facts, 0.0)
        worker.credit.limit = self.limit
        self.dispatcher.add_worker(worker)

    def upload(self, *refs: Reference) -> None:
        for ref in refs:
            introduce(self.graph, ref, self.job)

    def add(self, *tasks: TaskSpec) -> None:
        for task in tasks:
            self.graph.add(task, self.job)
            for output in task.outputs:
                self.graph.want(output, self.job)
        runnable, self.graph.runnable = self.graph.runnable, []
        for node in runnable:
            self.dispatcher.ready.push(node)

    def gives(self) -> list[str]:
        """Dispatch; return the new assignments."""
        self.dispatcher.dispatch()
        given, self.given = self.given, []
        return given

    def done(self, name: str) -> None:
        """End the task that produces `name`."""
        node = self.graph.objects.nodes[name].producer
        assert node is not None
        assert node.worker is not None
        self.dispatcher.workers[node.worker].remove_attempt(node, node.attempt)
        self.graph.finish(node, [inline(name)])

    def parked(self, worker: str) -> list[str]:
        return [task.spec.outputs[0] for task in self.dispatcher.workers[worker].parked]


def held_by(worker: str, *names: str) -> list[Reference]:
    return [stored(name, place_of(worker), size_bytes=BIG) for name in names]


def a_reader(name: str, *inputs: str) -> TaskSpec:
    return a_task(name, inputs=inputs)


# --- room and order -------------------------------------------------------------------------------


def test_without_workers_all_tasks_wait() -> None:
    floor = Floor()
    floor.add(a_task("a"))
    assert floor.gives() == []
    floor.join(a_worker("w1"))
    assert floor.gives() == ["a to w1"]


def test_tasks_without_inputs_are_dispatched_round_robin() -> None:
    floor = Floor(a_worker("w1"), a_worker("w2"), limit=2)
    floor.add(*[a_task(name) for name in "abcde"])
    assert floor.gives() == ["a to w1", "b to w2", "c to w1", "d to w2"]
    assert floor.gives() == []


def test_a_freed_slot_is_filled_by_the_next_task() -> None:
    floor = Floor(a_worker("w1"))
    floor.add(a_task("a"), a_task("b"))
    assert floor.gives() == ["a to w1"]
    floor.done("a")
    assert floor.gives() == ["b to w1"]


def test_a_task_with_higher_priority_is_dispatched_first() -> None:
    floor = Floor(a_worker("w1"))
    floor.add(a_task("usual"), a_task("urgent", priority=7))
    assert floor.gives() == ["urgent to w1"]


def test_a_task_that_is_no_longer_wanted_is_skipped() -> None:
    floor = Floor(a_worker("w1"))
    floor.add(a_task("a"), a_task("b"))
    floor.graph.unwant(ObjectId("a"), floor.job)
    assert floor.gives() == ["b to w1"]
    validate(floor.graph)


def test_a_task_occupies_as_many_slots_as_it_needs() -> None:
    floor = Floor(a_worker("w1", slots=4), limit=4)
    floor.add(a_task("wide", slots=3), a_task("a"), a_task("b"))
    assert floor.gives() == ["wide to w1", "a to w1"]
    floor.done("wide")
    assert floor.gives() == ["b to w1"]


# --- eligible workers -----------------------------------------------------------------------------


def test_a_task_is_dispatched_to_a_worker_that_offers_its_executor() -> None:
    floor = Floor(a_worker("w1"), a_worker("w2", executors=["java"]))
    floor.add(a_task("a", executor="java"), a_task("b", executor="java"), a_task("c"))
    assert floor.gives() == ["a to w2", "c to w1"]
    floor.done("a")
    assert floor.gives() == ["b to w2"]


def test_a_refusal_lists_why_workers_do_not_offer_the_executor() -> None:
    lacking = {"cobol": "no compiler"}
    workers = [a_worker(f"w{number}")._replace(lacking=lacking) for number in range(3)]
    workers.append(a_worker("x")._replace(lacking={"cobol": "no cards", "lisp": "no"}))
    floor = Floor(*workers)
    floor.add(a_task("a", executor="cobol"))
    floor.gives()
    (refused,) = floor.refused
    assert refused.splitlines()[1:] == [
        "worker w0 and 2 more: no compiler",
        "worker x: no cards",
    ]


def test_a_task_for_an_unknown_executor_is_refused_with_the_offered_ones() -> None:
    floor = Floor(a_worker("w1", executors=["init", "stdinout"]), a_worker("w2"))
    floor.add(a_task("a", executor="cobol"), a_task("b"))
    assert floor.gives() == ["b to w1"]
    assert floor.refused == ["a: no worker offers the executor 'cobol' (offered: init, stdinout)"]


def test_a_task_is_dispatched_to_a_worker_with_enough_slots() -> None:
    floor = Floor(a_worker("w1"), a_worker("w2", slots=4), limit=4)
    floor.add(a_task("wide", slots=4))
    assert floor.gives() == ["wide to w2"]


def test_a_task_that_needs_too_many_slots_is_refused_with_the_largest_number() -> None:
    floor = Floor(a_worker("w1"), a_worker("w2", slots=4))
    floor.add(a_task("wide", slots=5))
    assert floor.gives() == []
    (refused,) = floor.refused
    assert refused.startswith("wide: the task needs 5 slots, and no worker has more than 4")


def test_tasks_that_wait_for_a_special_worker_do_not_block_other_tasks() -> None:
    floor = Floor(a_worker("w1"), a_worker("w2", executors=["java"]))
    special = [a_task(f"j{number}", executor="java") for number in range(UNPLACED_MAX)]
    floor.add(*special, a_task("usual"))
    assert floor.gives() == ["j0 to w2", "usual to w1"]
    floor.done("j0")
    assert floor.gives() == ["j1 to w2"]


# --- locality -------------------------------------------------------------------------------------


def a_floor_with_parked(*names: str) -> Floor:
    """Return a floor where w1 is full and readers of its object `x` are parked, and w2 has work and
    room for more.
    """
    floor = Floor(a_worker("w1"), a_worker("w2"), limit=2)
    floor.upload(*held_by("w1", "x"))
    floor.add(a_task("busy1"), a_task("busy2"), a_task("busy3"))
    assert floor.gives() == ["busy1 to w1", "busy2 to w2", "busy3 to w1"]
    floor.add(*[a_reader(name, "x") for name in names])
    assert floor.gives() == []
    assert floor.parked("w1") == list(names)
    return floor


def test_a_reader_is_dispatched_to_the_worker_that_holds_its_input() -> None:
    floor = Floor(a_worker("w1"), a_worker("w2"), a_worker("w3"))
    floor.upload(*held_by("w2", "x"))
    floor.add(a_reader("a", "x"))
    assert floor.gives() == ["a to w2"]
    assert "has all inputs" in floor.graph.tasks[a_reader("a", "x").id].reason


def test_a_reader_is_dispatched_to_a_worker_whose_disk_is_idle() -> None:
    holder = a_worker("w1", executors=("other",))
    floor = Floor(holder, a_worker("w2"), a_worker("w3"))
    floor.dispatcher.workers["w2"].disk = DiskQueued(10**9, 10.0)
    floor.upload(*held_by("w1", "x"))
    floor.add(a_reader("a", "x"))
    assert floor.gives() == ["a to w3"]


def test_a_reader_of_inline_values_is_dispatched_to_any_worker() -> None:
    floor = Floor(a_worker("w1"), a_worker("w2"))
    floor.upload(inline("x"))
    floor.add(a_reader("a", "x"), a_reader("b", "x"))
    assert floor.gives() == ["a to w1", "b to w2"]


def test_a_reader_waits_for_the_holder_while_other_workers_have_tasks() -> None:
    floor = Floor(a_worker("w1"), a_worker("w2"))
    floor.upload(*held_by("w1", "x"))
    floor.add(a_task("busy1"), a_task("busy2"))
    assert floor.gives() == ["busy1 to w1", "busy2 to w2"]
    floor.done("busy2")
    floor.add(a_reader("a", "x"), a_task("b"))
    assert floor.gives() == ["b to w2"]
    assert floor.parked("w1") == ["a"]
    floor.done("busy1")
    assert floor.gives() == ["a to w1"]


def test_an_idle_worker_takes_a_reader_parked_at_another_worker() -> None:
    floor = Floor(a_worker("w1"), a_worker("w2"))
    floor.upload(*held_by("w1", "x"))
    floor.add(a_reader("a", "x"), a_reader("b", "x"))
    assert floor.gives() == ["a to w1", "b to w2"]


def test_the_task_parked_last_is_taken_first_by_another_worker() -> None:
    floor = a_floor_with_parked("a", "b", "c")
    floor.done("busy2")
    assert floor.gives() == ["c to w2", "b to w2"]
    floor.done("busy1")
    assert floor.gives() == ["a to w1"]


def test_a_parked_task_that_the_idle_worker_cannot_run_stays_parked() -> None:
    floor = Floor(a_worker("w1", slots=2), limit=2)
    floor.upload(*held_by("w1", "x"))
    wide = a_task("wide", inputs=["x"], slots=2)
    floor.add(a_reader("a", "x"), a_reader("b", "x"), wide)
    assert floor.gives() == ["a to w1", "b to w1"]
    floor.join(a_worker("w2"))
    assert floor.gives() == []
    assert floor.parked("w1") == ["wide"]


def test_readers_parked_at_a_lost_worker_are_dispatched_in_their_old_order() -> None:
    floor = a_floor_with_parked("a", "b", "c")
    floor.dispatcher.remove_worker(floor.dispatcher.workers["w1"])
    assert floor.gives() == ["a to w2"]
    floor.done("busy2")
    assert floor.gives() == ["b to w2"]


def test_a_parked_task_that_is_no_longer_wanted_is_forgotten() -> None:
    floor = a_floor_with_parked("a", "b")
    floor.graph.unwant(ObjectId("a"), floor.job)
    floor.done("busy1")
    assert floor.gives() == ["b to w1"]
    assert floor.parked("w1") == []


def test_a_parked_task_does_not_overtake_a_task_with_higher_priority() -> None:
    floor = a_floor_with_parked("a")
    floor.add(a_task("urgent", priority=5))
    floor.add(a_task("low", inputs=["x"], priority=-1))
    floor.add(a_task("high", inputs=["x"], priority=7))
    floor.done("busy1")
    assert floor.gives() == ["high to w1", "urgent to w2"]
    floor.done("busy3")
    assert floor.gives() == ["a to w1"]
    floor.done("high")
    assert floor.gives() == ["low to w1"]


def test_a_free_slot_takes_a_task_parked_at_another_worker_if_that_is_cheaper() -> None:
    floor = Floor(a_worker("w1"), a_worker("w2", slots=2), limit=1)
    floor.upload(*held_by("w1", "x"))
    floor.add(a_task("busy1"), a_task("busy2"))
    assert floor.gives() == ["busy1 to w1", "busy2 to w2"]
    floor.dispatcher.workers["w2"].credit.limit = 2
    floor.add(a_reader("a", "x"))
    assert floor.gives() == []  # fetching its input takes a second
    floor.dispatcher.workers["w1"].credit.task_s = 3.0
    assert floor.gives() == ["a to w2"]
    assert floor.graph.tasks[a_reader("a", "x").id].reason == (
        "this worker had room, and worker w1 had none"
    )


def test_a_reader_is_dispatched_to_the_worker_with_the_fastest_measured_copies() -> None:
    holder = a_worker("w1", executors=("other",))
    floor = Floor(holder, a_worker("w2"), a_worker("w3"))
    floor.upload(*held_by("w1", "x", "y"))
    slow = CopyTimed(place_of("w1"), MEASURED_FROM_BYTES, 1.0)
    floor.dispatcher.learn_bandwidth(floor.dispatcher.workers["w2"], slow)
    floor.add(a_reader("a", "x"))
    assert floor.gives() == ["a to w3"]
    unknown = CopyTimed("nobody:8001", MEASURED_FROM_BYTES, 1.0)
    floor.dispatcher.learn_bandwidth(floor.dispatcher.workers["w2"], unknown)
    assert len(floor.dispatcher.bandwidths) == 1
    floor.dispatcher.remove_worker(floor.dispatcher.workers["w2"])
    floor.dispatcher.introduce_workers()
    assert len(floor.dispatcher.bandwidths) == 0


# --- policies of a job ----------------------------------------------------------------------------


def reason_of(floor: Floor, name: str) -> str:
    node = floor.graph.objects.nodes[name].producer
    assert node is not None
    return node.reason


def test_tworandom_chooses_the_less_loaded_of_two_workers() -> None:
    workers = [a_worker(f"w{number}") for number in range(2)]
    floor = Floor(*workers, limit=4, scheduling=read_scheduling("tworandom"))
    floor.upload(*held_by("w0", "x"))
    floor.add(*[a_reader(f"t{number}", "x") for number in range(8)])
    given = floor.gives()
    assert [sum(f"to w{number}" in line for line in given) for number in range(2)] == [4, 4]
    assert "the policy tworandom drew this worker and worker w" in reason_of(floor, "t7")


def test_random_weights_workers_by_their_slots() -> None:
    small, large = a_worker("small"), a_worker("large", slots=9)
    floor = Floor(small, large, limit=1000, scheduling=read_scheduling("random"))
    floor.add(*[a_task(f"t{number}", ordinal=number) for number in range(200)])
    share = sum("to large" in line for line in floor.gives()) / 200
    assert 0.8 < share < 1.0
    assert reason_of(floor, "t0") == "the policy random drew this worker among 2"


def test_a_task_for_a_drawn_worker_without_room_is_parked_until_a_worker_is_idle() -> None:
    scheduling = read_scheduling("random")
    workers = [f"w{number}" for number in range(4)]
    floor = Floor(*map(a_worker, workers), scheduling=scheduling)
    floor.add(*[a_task(f"t{number}", ordinal=number) for number in range(12)])
    assert len(floor.gives()) == 4
    assert any(floor.parked(worker) for worker in workers)
    count = 4
    for _ in range(4):
        for node in floor.dispatcher.workers.values():
            for task in list(node.assigned.values()):
                floor.done(task.spec.outputs[0])
        count += len(floor.gives())
    assert count == 12


# --- memory ---------------------------------------------------------------------------------------

GIB = 1 << 30


def hungry(name: str, gib: int, **others: Any) -> TaskSpec:
    return a_task(name, memory_bytes=gib * GIB, **others)


def test_tasks_are_dispatched_only_as_far_as_memory_allows() -> None:
    floor = Floor(a_worker("w1", slots=4, memory_bytes=4 * GIB), limit=8)
    floor.add(hungry("a", 2), hungry("b", 2), hungry("c", 2))
    assert floor.gives() == ["a to w1", "b to w1"]
    floor.done("a")
    assert floor.gives() == ["c to w1"]


def test_a_task_without_memory_needs_does_not_wait_behind_tasks_with_them() -> None:
    floor = Floor(a_worker("w1", slots=4, memory_bytes=4 * GIB), limit=8)
    floor.add(hungry("a", 3), *[hungry(f"b{number}", 3) for number in range(100)], a_task("c"))
    assert floor.gives() == ["a to w1", "c to w1"]


def test_a_task_that_waits_for_memory_is_not_overtaken_by_tasks_that_need_less() -> None:
    floor = Floor(a_worker("w1", slots=4, memory_bytes=4 * GIB), limit=8)
    floor.add(hungry("a", 3), hungry("all", 4), hungry("b", 1))
    assert floor.gives() == ["a to w1"]
    floor.add(hungry("c", 1))
    assert floor.gives() == []
    floor.done("a")
    assert floor.gives() == ["all to w1"]
    floor.done("all")
    assert floor.gives() == ["b to w1", "c to w1"]


def test_a_task_that_waits_for_a_large_worker_does_not_block_a_small_worker() -> None:
    large = a_worker("w1", slots=4, memory_bytes=8 * GIB)
    floor = Floor(large, a_worker("w2", slots=4, memory_bytes=2 * GIB), limit=8)
    floor.add(hungry("a", 8), hungry("b", 8), hungry("c", 1))
    assert floor.gives() == ["a to w1", "c to w2"]


def test_a_task_with_higher_priority_gets_memory_first() -> None:
    floor = Floor(a_worker("w1", slots=4, memory_bytes=4 * GIB), limit=2)
    floor.add(hungry("a", 4), a_task("b"))
    assert floor.gives() == ["a to w1", "b to w1"]
    floor.add(hungry("c", 4), hungry("urgent", 4, priority=1), a_task("low", priority=-1))
    floor.done("a")
    assert floor.gives() == ["urgent to w1"]
    floor.done("b")
    assert floor.gives() == ["low to w1"]


def test_a_reader_that_needs_memory_is_dispatched_to_a_worker_with_enough() -> None:
    workers = [a_worker(f"w{number}", slots=2, memory_bytes=2 * GIB) for number in (1, 2)]
    floor = Floor(*workers, limit=4)
    floor.upload(*held_by("w1", "x"))
    floor.add(*[hungry(name, 2, inputs=["x"]) for name in ("a", "b", "c")])
    assert floor.gives() == ["a to w1", "b to w2"]
    assert "has all inputs" in reason_of(floor, "a")


def test_a_parked_task_waits_again_if_its_memory_has_been_taken() -> None:
    floor = Floor(a_worker("w1", slots=2, memory_bytes=2 * GIB), limit=1)
    floor.upload(*held_by("w1", "x"))
    floor.add(a_task("busy"))
    assert floor.gives() == ["busy to w1"]
    floor.add(hungry("a", 2, inputs=["x"]))
    assert floor.gives() == []
    floor.dispatcher.workers["w1"].memory_used = GIB
    floor.done("busy")
    assert floor.gives() == []
    floor.dispatcher.workers["w1"].memory_used = 0
    assert floor.gives() == ["a to w1"]


def isolated(name: str, **needs: Any) -> TaskSpec:
    task = a_task(name)
    return task._replace(needs=task.needs._replace(**needs))


def test_a_task_is_dispatched_to_a_worker_that_can_isolate_it() -> None:
    unable = Isolation("limits", {"strict": "no user namespaces", "podman": "none"})
    floor = Floor(a_worker("w1")._replace(isolation=unable), a_worker("w2"), limit=9)
    floor.add(isolated("a", isolate="strict"), isolated("b", image="tools"))
    floor.add(isolated("c", isolate="limits", image="tools"))
    assert floor.gives() == ["a to w2", "b to w2", "c to w2"]


def test_a_task_that_no_worker_can_isolate_is_refused_with_the_reasons() -> None:
    unable = Isolation("limits", {"strict": "no user namespaces", "podman": "not installed"})
    workers = [a_worker(name)._replace(isolation=unable) for name in ("w1", "w2")]
    floor = Floor(*workers)
    floor.add(isolated("a", isolate="strict"), isolated("b", image="tools"))
    floor.add(isolated("c", isolate="none"))
    assert floor.gives() == []
    both = "worker w1 and 1 more"
    assert floor.refused == [
        f"a: no worker can isolate the task as it asks (--isolate strict):\n{both}: no user "
        "namespaces",
        f"b: no worker can run the image tools:\n{both}: podman: not installed",
        f"c: no worker can isolate the task as it asks (--isolate none):\n{both}: isolates "
        "programs at least by 'limits' (ciel-worker --isolate)",
    ]


def test_a_task_that_needs_more_memory_than_any_worker_has_is_refused() -> None:
    floor = Floor(a_worker("w1", slots=4, memory_bytes=GIB), a_worker("w2", memory_bytes=4 * GIB))
    floor.add(hungry("a", 5), hungry("b", 4, slots=2), hungry("c", 4))
    assert floor.gives() == ["c to w2"]
    assert floor.refused == [
        "a: the task asks for 5 GiB of memory, and no worker offers more than 4 GiB: ask for less, "
        "or start a worker on a larger host",
        "b: the task needs 2 slots and 4 GiB of memory, and no worker has both: ask for less, or "
        "start a larger worker",
    ]


def test_memory_is_unlimited_on_workers_that_do_not_report_it() -> None:
    floor = Floor(a_worker("w1", slots=2), limit=2)
    floor.add(hungry("a", 1000), hungry("b", 1000))
    assert floor.gives() == ["a to w1", "b to w1"]


# --- recalling prefetched tasks -------------------------------------------------------------------


def recalled(floor: Floor, now_s: float) -> list[str]:
    """Recall tasks for idle workers; return which worker has to give back which task."""
    floor.said.clear()
    floor.dispatcher.recall(now_s)
    tasks = floor.graph.tasks
    return [
        f"{worker}: {tasks[task].spec.outputs[0]}"
        for worker, message in floor.said
        if isinstance(message, RecallTasks)
        for task, _ in message.attempts
    ]


def test_tasks_queued_behind_a_long_one_are_recalled_for_an_idle_worker() -> None:
    floor = Floor(a_worker("w1"), limit=4)
    floor.add(*[a_task(f"t{number}", ordinal=number) for number in range(4)])
    assert len(floor.gives()) == 4
    floor.join(a_worker("w2"))
    assert recalled(floor, RECALL_AFTER_S / 2) == []
    assert recalled(floor, RECALL_AFTER_S) == ["w1: t3", "w1: t2", "w1: t1"]
    assert recalled(floor, 2 * RECALL_AFTER_S) == []  # each task is recalled only once


def test_no_more_tasks_are_recalled_than_idle_workers_have_room_for() -> None:
    floor = Floor(a_worker("w1"), limit=9)
    floor.add(*[a_task(f"t{number}", ordinal=number) for number in range(9)])
    floor.gives()
    floor.limit = 2
    floor.join(a_worker("w2"))
    assert recalled(floor, RECALL_AFTER_S) == ["w1: t8", "w1: t7"]


def test_no_task_is_recalled_from_a_worker_that_keeps_finishing_tasks() -> None:
    floor = Floor(a_worker("w1"), limit=4)
    floor.add(*[a_task(f"t{number}", ordinal=number) for number in range(4)])
    floor.gives()
    floor.join(a_worker("w2"))
    worker = floor.dispatcher.workers["w1"]
    worker.reported_at_s = 10.0
    worker.credit.task_s = 0.001
    assert recalled(floor, 10.05) == []


def test_only_tasks_that_an_idle_worker_can_run_are_recalled() -> None:
    floor = Floor(a_worker("w1", slots=2), limit=6)
    floor.add(*[a_task(f"t{number}", ordinal=number, slots=2) for number in range(3)])
    floor.gives()
    floor.join(a_worker("w2", slots=1))
    assert recalled(floor, 10.0) == []


def test_tasks_that_wait_for_a_special_worker_do_not_prevent_recalls() -> None:
    floor = Floor(a_worker("w1", executors=["stdinout", "java"]), limit=4)
    floor.add(*[a_task(f"t{number}", ordinal=number) for number in range(4)])
    floor.gives()
    floor.add(a_task("j", executor="java"))
    floor.join(a_worker("w2"))
    assert floor.gives() == []
    assert recalled(floor, 10.0) == ["w1: t3", "w1: t2", "w1: t1"]


def test_a_task_with_many_slots_is_dispatched_to_a_worker_with_free_ones() -> None:
    floor = Floor(a_worker("w1", slots=4), a_worker("w2", slots=4), limit=5)
    floor.add(a_task("a"), a_task("wide", slots=4), a_task("b"))
    assert floor.gives() == ["a to w1", "wide to w2", "b to w1"]


def test_no_task_is_recalled_from_the_only_worker() -> None:
    floor = Floor(a_worker("w1"), limit=4)
    floor.add(*[a_task(f"t{number}", ordinal=number) for number in range(4)])
    floor.gives()
    assert recalled(floor, 10.0) == []


# --- tasks that are bound by the I/O of a disk ----------------------------------------------------


def bound(*names: str, io: str = "/data", priority: int = 0) -> list[TaskSpec]:
    specs = [a_task(name, priority=priority) for name in names]
    return [spec._replace(needs=spec.needs._replace(io=io)) for spec in specs]


def learns(floor: Floor, worker: str, device: str, at_a_time: int, io: str = "/data") -> None:
    floor.dispatcher.workers[worker].disks.learn([DiskLimit(io, device, at_a_time)])


@pytest.mark.requirement("CIB-42")
def test_a_worker_gets_one_task_more_than_its_disk_admits() -> None:
    floor = Floor(a_worker("w1", slots=8), limit=20)
    floor.add(*bound("a", "b", "c", "d", "e"))
    assert floor.gives() == ["a to w1", "b to w1"]  # a limit of 1 until the worker reports
    learns(floor, "w1", "8-0", 2)
    assert floor.gives() == ["c to w1"]
    floor.done("a")
    assert floor.gives() == ["d to w1"]


@pytest.mark.requirement("CIB-42")
def test_tasks_that_wait_for_a_disk_delay_no_others() -> None:
    floor = Floor(a_worker("w1", slots=2), limit=3)
    floor.add(*bound("a", "b", "c", "d"), a_task("x"))
    assert floor.gives() == ["a to w1", "b to w1", "x to w1"]


@pytest.mark.requirement("CIB-42")
def test_tasks_at_different_disks_do_not_wait_for_each_other() -> None:
    floor = Floor(a_worker("w1", slots=8), limit=20)
    floor.add(*bound("a", "b", "c"), *bound("x", "y", "z", io="disk"))
    assert sorted(floor.gives()) == ["a to w1", "b to w1", "x to w1", "y to w1"]


@pytest.mark.requirement("CIB-42")
def test_the_workers_of_a_host_share_its_disk() -> None:
    floor = Floor(a_worker("w1", host="h"), a_worker("w2", host="h"), a_worker("w3"), limit=9)
    for worker in ("w1", "w2", "w3"):
        learns(floor, worker, "8-0", 1)
    floor.add(*bound("a", "b", "c", "d", "e", "f"))
    given = [line.split()[-1] for line in floor.gives()]
    assert given.count("w3") == 2
    assert len(given) == 4


@pytest.mark.requirement("CIB-42")
def test_a_report_of_the_device_moves_the_running_tasks_to_it() -> None:
    floor = Floor(a_worker("w1", host="h"), a_worker("w2", host="h"), limit=9)
    floor.add(*bound("a", "b", "c", "d", "e"))
    assert len(floor.gives()) == 4  # the workers might have different disks
    learns(floor, "w1", "8-0", 2)
    learns(floor, "w2", "8-0", 2)
    assert floor.dispatcher.workers["w1"].disks.use_of("/data") == (4, 2)
    assert floor.gives() == []


@pytest.mark.requirement("CIB-42")
def test_a_disk_without_a_limit_takes_all_tasks() -> None:
    floor = Floor(a_worker("w1", slots=8), limit=20)
    learns(floor, "w1", "", 0)
    floor.add(*bound("a", "b", "c", "d"))
    assert len(floor.gives()) == 4


@pytest.mark.requirement("CIB-42")
def test_the_tasks_of_a_lost_worker_do_not_count() -> None:
    floor = Floor(a_worker("w1", host="h"), a_worker("w2", host="h"), limit=9)
    learns(floor, "w1", "8-0", 1)
    learns(floor, "w2", "8-0", 1)
    floor.add(*bound("a", "b"))
    assert len(floor.gives()) == 2
    floor.dispatcher.remove_worker(floor.dispatcher.workers["w1"])
    used, _ = floor.dispatcher.workers["w2"].disks.use_of("/data")
    assert used == len(floor.dispatcher.workers["w2"].assigned)


@pytest.mark.requirement("CIB-42")
def test_a_task_that_ends_twice_counts_once() -> None:
    floor = Floor(a_worker("w1", slots=8), limit=20)
    floor.add(*bound("a", "b", "c"))
    floor.gives()
    disks = floor.dispatcher.workers["w1"].disks
    (key,) = [key for key, task in floor.dispatcher.workers["w1"].assigned.items()
              if task.spec.outputs[0] == "a"]  # fmt: skip
    disks.remove(key)  # it waits for its child
    assert floor.gives() == ["c to w1"]
    floor.done("a")
    assert disks.use_of("/data")[0] == 2


@pytest.mark.requirement("CIB-42")
def test_a_bound_task_with_a_higher_priority_comes_first() -> None:
    floor = Floor(a_worker("w1", slots=1), limit=1)
    floor.add(a_task("x"), *bound("a", priority=5))
    assert floor.gives() == ["a to w1"]


@pytest.mark.requirement("CIB-42")
def test_a_reader_of_a_busy_disk_lets_others_pass_until_the_disk_has_room() -> None:
    floor = Floor(a_worker("w1", slots=1), limit=1)
    floor.upload(*held_by("w1", "x"))
    reader = a_reader("a", "x")
    floor.add(a_task("busy"))
    assert floor.gives() == ["busy to w1"]
    floor.add(reader._replace(needs=reader.needs._replace(io="/data")))
    worker = floor.dispatcher.workers["w1"]
    worker.credit.limit = 2
    worker.disks.add(("t1", 1), "/data")
    worker.disks.add(("t2", 1), "/data")
    floor.add(a_task("b"))
    assert floor.gives() == ["b to w1"]
    worker.disks.remove(("t1", 1))
    worker.credit.limit = 3
    assert floor.gives() == ["a to w1"]


# --- named resources and labels -------------------------------------------------------------------


def needing(
    *names: str, where: str = "", priority: int = 0, inputs: tuple[str, ...] = (), slots: int = 1,
    gib: int = 0, **amounts: Any,
) -> list[TaskSpec]:  # fmt: skip
    specs = [
        a_task(name, inputs=inputs, priority=priority, slots=slots, memory_bytes=gib * GIB)
        for name in names
    ]
    needs = specs[0].needs._replace(resources=read_amounts(amounts), where=where)
    return [spec._replace(needs=needs) for spec in specs]


def test_tasks_get_no_more_of_a_resource_than_a_worker_has() -> None:
    floor = Floor(a_worker("w1", slots=8, resources="gpu=[0-1]"), limit=20)
    floor.add(*needing("a", "b", "c", gpu=1), *needing("d", gpu=0.5))
    assert floor.gives() == ["a to w1", "b to w1"]
    floor.done("a")
    assert floor.gives() == ["c to w1"]
    floor.done("b")
    assert floor.gives() == ["d to w1"]


def test_tasks_that_wait_for_a_resource_delay_no_others() -> None:
    floor = Floor(a_worker("w1", slots=4, resources="gpu=1 x=1"), limit=9)
    floor.add(*needing(*"abcdefghijklmnopqrstuvw", gpu=1), *needing("z", x=1), a_task("plain"))
    assert sorted(floor.gives()) == ["a to w1", "plain to w1", "z to w1"]


def test_a_task_runs_where_the_resource_and_the_labels_are() -> None:
    workers = [
        a_worker("w1", resources="gpu=1", labels="zone=a"),
        a_worker("w2", resources="gpu=1", labels="zone=b"),
        a_worker("w3", labels="zone=b"),
    ]
    floor = Floor(*workers, limit=9)
    floor.add(*needing("a", "b", where="zone=b", gpu=1), *needing("c", where="not has zone"))
    assert floor.gives() == ["a to w2"]
    assert floor.refused[0].startswith("c: no worker has labels for which 'not has zone' is true")


def test_a_task_that_needs_all_of_a_resource_is_not_starved_by_tasks_that_need_little() -> None:
    floor = Floor(a_worker("w1", slots=8, resources="gpu=2 x=1"), limit=20)
    floor.add(*needing("a", "b", gpu=1))
    assert floor.gives() == ["a to w1", "b to w1"]
    floor.add(*needing("all", gpu=2, x=1), *needing("c", gpu=1))
    assert floor.gives() == []
    for number, name in enumerate(("a", "b")):
        floor.done(name)
        floor.add(*needing(f"late{number}", gpu=1))
        expected = ["all to w1"] if name == "b" else []
        assert floor.gives() == expected
    floor.done("all")
    assert sorted(floor.gives()) == ["c to w1", "late0 to w1"]


def test_a_task_that_waits_for_several_workers_keeps_only_one_of_them_free() -> None:
    workers = [a_worker(f"w{number}", slots=8, resources="gpu=2") for number in (1, 2)]
    floor = Floor(*workers, limit=20)
    floor.add(*needing("a", "b", "c", gpu=1))
    assert len(floor.gives()) == 3
    floor.add(*needing("both", gpu=2))
    assert floor.gives() == []
    (free_at,) = [w for w in floor.dispatcher.workers.values() if w.resources_used["gpu"] == 10_000]
    (full,) = [w for w in floor.dispatcher.workers.values() if w is not free_at]
    floor.add(*needing("d", gpu=1))
    assert floor.gives() == []
    floor.done(next(iter(full.assigned.values())).spec.outputs[0])
    assert floor.gives() == [f"d to {full.facts.id}"]
    floor.done(next(iter(free_at.assigned.values())).spec.outputs[0])
    assert floor.gives() == [f"both to {free_at.facts.id}"]


def test_the_worker_that_is_kept_free_does_not_change_when_another_one_is_as_free() -> None:
    workers = [a_worker(f"w{number}", slots=8, resources="gpu=2") for number in (1, 2)]
    floor = Floor(*workers, limit=20)
    floor.add(*needing("a0", "a1", "a2", "a3", gpu=1))
    running = [line.split()[0] for line in floor.gives()]
    floor.add(*needing("both", gpu=2))
    for number in range(10):  # each end makes both workers equally free
        floor.done(running.pop(0))
        floor.add(*needing(f"b{number}", gpu=1))
        given = [line.split()[0] for line in floor.gives()]
        running += given
        if "both" in given:
            return
    pytest.fail("the task was starved")


def test_memory_beyond_that_of_a_task_that_waits_for_a_resource_is_for_others() -> None:
    floor = Floor(a_worker("w1", slots=8, resources="gpu=1", memory_bytes=4 * GIB), limit=20)
    floor.add(*needing("a", "b", gpu=1, gib=1))
    assert floor.gives() == ["a to w1"]
    floor.add(hungry("c", 2), hungry("d", 1))
    assert floor.gives() == ["c to w1"]
    floor.done("a")
    assert floor.gives() == ["b to w1", "d to w1"]


def test_queued_tasks_with_labels_are_recalled_only_for_workers_that_have_them() -> None:
    floor = Floor(a_worker("w1", labels="zone=b"), a_worker("w2"), limit=4)
    floor.add(*needing("a", "b", where="zone=b"))
    assert floor.gives() == ["a to w1", "b to w1"]
    assert recalled(floor, 10.0) == []


def test_the_refusal_names_what_is_offered() -> None:
    workers = [
        a_worker("w1", slots=2, resources="gpu=[0-1]", labels="zone=a"),
        a_worker("w2", slots=4, resources="licence/x=1", labels="zone=b"),
    ]
    floor = Floor(*workers)
    floor.add(
        *needing("a", gpu=3), *needing("b", fpga=1), *needing("c", where="zone=c"),
        *needing("d", where="zone=b", gpu=1), *needing("e", slots=4, gpu=1),
    )  # fmt: skip
    assert floor.gives() == []
    assert [text.partition(": ask")[0].partition(": change")[0] for text in floor.refused] == [
        "a: no worker has gpu=3 (offered: gpu=2 on w1)",
        "b: no worker has fpga=1 (offered: gpu, licence/x)",
        "c: no worker has labels for which 'zone=c' is true (their labels: zone=a; zone=b)",
        "d: no worker for which 'zone=b' is true has gpu=1 (offered there: licence/x=1)",
        "e: no worker has all that the task needs together: 4 slots, gpu=1",
    ]


def test_a_task_waits_for_a_worker_that_a_launcher_can_start() -> None:
    floor = Floor(a_worker("w1"))
    floor.dispatcher.set_launchable([Capacity(8, 0, {"gpu": 40_000}, {"zone": "cloud"})])
    floor.add(*needing("a", "b", where="zone=cloud", gpu=2), *needing("c", gpu=5))
    assert floor.gives() == []
    assert [text.partition(":")[0] for text in floor.refused] == ["c"]
    assert len(floor.dispatcher.for_launchers) == 2
    floor.join(a_worker("w2", slots=8, resources="gpu=[0-3]", labels="zone=cloud"))
    floor.limit = 9
    assert floor.gives() == ["a to w2"]
    floor.dispatcher.remove_worker(floor.dispatcher.workers["w2"])
    floor.gives()
    floor.dispatcher.set_launchable([])
    assert floor.gives() == []
    assert [text.partition(":")[0] for text in floor.refused] == ["c", "b"]


_SHAPES: list[dict[str, Any]] = [
    {"gpu": 1}, {"gpu": 2}, {"gpu": 0.5}, {"gpu": 2, "x": 1}, {"x": 1}, {"gib": 2}, {"gib": 1},
    {"gpu": 1, "gib": 1}, {"where": "zone=b"}, {"where": "zone=b", "gpu": 1}, {},
]  # fmt: skip


@settings(max_examples=60)
@given(st.lists(st.tuples(st.sampled_from(_SHAPES), st.integers(0, 30)), max_size=30), st.data())
def test_workers_are_never_over_committed_and_no_task_starves(
    steps: list[tuple[dict[str, Any], int]], data: st.DataObject
) -> None:
    """A task of each kind runs within a bounded number of ends, although tasks keep coming."""
    workers = [
        a_worker("w1", slots=4, resources="gpu=[0-1]", memory_bytes=2 * GIB, labels="zone=a"),
        a_worker("w2", slots=2, resources="gpu=2 x=1", memory_bytes=2 * GIB, labels="zone=b"),
    ]
    floor = Floor(*workers, limit=5)
    running: list[str] = []

    def tick() -> None:
        running.extend(line.split()[0] for line in floor.gives())
        for worker in floor.dispatcher.workers.values():
            assert worker.memory_used <= 2 * GIB
            for name, used in worker.resources_used.items():
                assert used <= worker.capacity.resources[name]
        validate(floor.graph)

    for number, (shape, which) in enumerate(steps):
        floor.add(*needing(f"t{number}", **shape))
        tick()
        if running and which % 3:
            floor.done(running.pop(which % len(running)))
    kept = data.draw(st.sampled_from(_SHAPES[:-1]))
    floor.add(*needing("last", **kept))
    for number in range(150):
        tick()
        if "last" in running:
            break
        small = data.draw(st.sampled_from(_SHAPES)) if number % 10 == 0 else {"gpu": 1}
        floor.add(*needing(f"s{number}", **small))
        if running:
            floor.done(running.pop(0))
    else:
        pytest.fail(f"{kept} was starved")
