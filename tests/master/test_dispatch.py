"""The dispatcher alone, over a real graph; `Floor` records who was given what."""

from __future__ import annotations

from ciel.core.arrivals import introduce
from ciel.core.events import DiskQueued, Message, RecallTasks
from ciel.core.graph import TaskGraph
from ciel.core.ids import ObjectId
from ciel.core.refs import Reference
from ciel.core.tasks import TaskNode, TaskSpec
from ciel.master.state.dispatch import HELD_BACK_MAX, RECALL_AFTER_S, Dispatcher
from ciel.master.state.workers import WorkerFacts, WorkerNode
from ciel.testing.builders import a_job, a_task, a_worker, inline, place_of, stored

BIG = 100 << 20  # a second on the way to another host


class Floor:
    """Workers with a limit of their own, and every assignment in order."""

    def __init__(self, *workers: WorkerFacts, limit: int = 1) -> None:
        self.graph = TaskGraph()
        self.job = a_job()
        self.said: list[tuple[str, Message]] = []
        self.dispatcher = Dispatcher(
            self.graph, self._assign, self._refuse, lambda *said: self.said.append(said)
        )
        self.limit = limit
        self.given: list[str] = []
        self.refused: list[str] = []
        for facts in workers:
            self.join(facts)

    def _assign(self, task: TaskNode, worker: WorkerNode) -> None:
        self.graph.assign(task, worker.facts.id)
        worker.take(task, 0.0)
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
        """Dispatch; who was given what by that."""
        self.dispatcher.dispatch()
        given, self.given = self.given, []
        return given

    def done(self, name: str) -> None:
        """The task that makes `name` has ended."""
        node = self.graph.objects.nodes[name].producer
        assert node is not None
        assert node.worker is not None
        self.dispatcher.workers[node.worker].give_back(node, node.attempt)
        self.graph.finish(node, [inline(name)])

    def parked(self, worker: str) -> list[str]:
        return [task.spec.outputs[0] for task in self.dispatcher.workers[worker].parked]


def held_by(worker: str, *names: str) -> list[Reference]:
    return [stored(name, place_of(worker), size_bytes=BIG) for name in names]


def a_reader(name: str, *inputs: str) -> TaskSpec:
    return a_task(name, inputs=inputs)


# --- room and order -------------------------------------------------------------------------------


def test_without_workers_everything_waits() -> None:
    floor = Floor()
    floor.add(a_task("a"))
    assert floor.gives() == []
    floor.join(a_worker("w1"))
    assert floor.gives() == ["a to w1"]


def test_tasks_without_inputs_go_round() -> None:
    floor = Floor(a_worker("w1"), a_worker("w2"), limit=2)
    floor.add(*[a_task(name) for name in "abcde"])
    assert floor.gives() == ["a to w1", "b to w2", "c to w1", "d to w2"]
    assert floor.gives() == []


def test_a_freed_place_is_filled_by_the_next_task() -> None:
    floor = Floor(a_worker("w1"))
    floor.add(a_task("a"), a_task("b"))
    assert floor.gives() == ["a to w1"]
    floor.done("a")
    assert floor.gives() == ["b to w1"]


def test_a_higher_priority_goes_first() -> None:
    floor = Floor(a_worker("w1"))
    floor.add(a_task("usual"), a_task("urgent", priority=7))
    assert floor.gives() == ["urgent to w1"]


def test_a_task_that_is_not_wanted_any_more_is_passed_over() -> None:
    floor = Floor(a_worker("w1"))
    floor.add(a_task("a"), a_task("b"))
    floor.graph.unwant(ObjectId("a"), floor.job)
    assert floor.gives() == ["b to w1"]
    floor.graph.validate()


def test_a_task_fills_as_many_slots_as_it_asked_for() -> None:
    floor = Floor(a_worker("w1", slots=4), limit=4)
    floor.add(a_task("wide", slots=3), a_task("a"), a_task("b"))
    assert floor.gives() == ["wide to w1", "a to w1"]
    floor.done("wide")
    assert floor.gives() == ["b to w1"]


# --- who can run it -------------------------------------------------------------------------------


def test_a_task_goes_to_a_worker_that_offers_its_executor() -> None:
    floor = Floor(a_worker("w1"), a_worker("w2", executors=["java"]))
    floor.add(a_task("a", executor="java"), a_task("b", executor="java"), a_task("c"))
    assert floor.gives() == ["a to w2", "c to w1"]
    floor.done("a")
    assert floor.gives() == ["b to w2"]


def test_an_executor_that_nobody_offers_is_refused_with_what_there_is() -> None:
    floor = Floor(a_worker("w1", executors=["init", "stdinout"]), a_worker("w2"))
    floor.add(a_task("a", executor="cobol"), a_task("b"))
    assert floor.gives() == ["b to w1"]
    assert floor.refused == ["a: no worker offers the executor 'cobol' (there are: init, stdinout)"]


def test_a_task_goes_to_a_worker_that_is_wide_enough() -> None:
    floor = Floor(a_worker("w1"), a_worker("w2", slots=4), limit=4)
    floor.add(a_task("wide", slots=4))
    assert floor.gives() == ["wide to w2"]


def test_a_task_too_wide_for_all_is_refused_with_what_there_is() -> None:
    floor = Floor(a_worker("w1"), a_worker("w2", slots=4))
    floor.add(a_task("wide", slots=5))
    assert floor.gives() == []
    assert floor.refused == ["wide: it needs 5 slots, and no worker has more than 4"]


def test_those_who_wait_for_a_special_worker_do_not_hold_up_the_others() -> None:
    floor = Floor(a_worker("w1"), a_worker("w2", executors=["java"]))
    special = [a_task(f"j{number}", executor="java") for number in range(HELD_BACK_MAX)]
    floor.add(*special, a_task("usual"))
    assert floor.gives() == ["j0 to w2", "usual to w1"]
    floor.done("j0")
    assert floor.gives() == ["j1 to w2"]


# --- locality -------------------------------------------------------------------------------------


def a_floor_with_parked(*names: str) -> Floor:
    """w1 is full, and readers of what it holds are parked there; w2 has work, and room for more."""
    floor = Floor(a_worker("w1"), a_worker("w2"), limit=2)
    floor.upload(*held_by("w1", "x"))
    floor.add(a_task("busy1"), a_task("busy2"), a_task("busy3"))
    assert floor.gives() == ["busy1 to w1", "busy2 to w2", "busy3 to w1"]
    floor.add(*[a_reader(name, "x") for name in names])
    assert floor.gives() == []
    assert floor.parked("w1") == list(names)
    return floor


def test_a_reader_goes_where_its_input_lies() -> None:
    floor = Floor(a_worker("w1"), a_worker("w2"), a_worker("w3"))
    floor.upload(*held_by("w2", "x"))
    floor.add(a_reader("a", "x"))
    assert floor.gives() == ["a to w2"]
    assert "0 bytes to fetch" in floor.graph.tasks[a_reader("a", "x").id].reason


def test_a_reader_goes_where_the_disk_is_free_to_take_its_input() -> None:
    holder = a_worker("w1", executors=("other",))
    floor = Floor(holder, a_worker("w2"), a_worker("w3"))
    floor.dispatcher.workers["w2"].disk = DiskQueued(10**9, 10.0)
    floor.upload(*held_by("w1", "x"))
    floor.add(a_reader("a", "x"))
    assert floor.gives() == ["a to w3"]


def test_a_reader_of_small_values_goes_anywhere() -> None:
    floor = Floor(a_worker("w1"), a_worker("w2"))
    floor.upload(inline("x"))
    floor.add(a_reader("a", "x"), a_reader("b", "x"))
    assert floor.gives() == ["a to w1", "b to w2"]


def test_a_reader_waits_for_its_holder_while_others_have_work() -> None:
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


def test_an_idle_worker_takes_what_is_parked_elsewhere() -> None:
    floor = Floor(a_worker("w1"), a_worker("w2"))
    floor.upload(*held_by("w1", "x"))
    floor.add(a_reader("a", "x"), a_reader("b", "x"))
    assert floor.gives() == ["a to w1", "b to w2"]


def test_the_last_that_was_parked_is_taken_first() -> None:
    floor = a_floor_with_parked("a", "b", "c")
    floor.done("busy2")
    assert floor.gives() == ["c to w2", "b to w2"]
    floor.done("busy1")
    assert floor.gives() == ["a to w1"]


def test_what_an_idle_worker_cannot_run_stays_parked() -> None:
    floor = Floor(a_worker("w1", slots=2), limit=2)
    floor.upload(*held_by("w1", "x"))
    wide = a_task("wide", inputs=["x"], slots=2)
    floor.add(a_reader("a", "x"), a_reader("b", "x"), wide)
    assert floor.gives() == ["a to w1", "b to w1"]
    floor.join(a_worker("w2"))
    assert floor.gives() == []
    assert floor.parked("w1") == ["wide"]


def test_a_reader_whose_holder_is_lost_goes_elsewhere_in_the_old_order() -> None:
    floor = a_floor_with_parked("a", "b", "c")
    floor.dispatcher.remove_worker(floor.dispatcher.workers["w1"])
    assert floor.gives() == ["a to w2"]
    floor.done("busy2")
    assert floor.gives() == ["b to w2"]


def test_a_parked_task_that_is_not_wanted_any_more_is_forgotten() -> None:
    floor = a_floor_with_parked("a", "b")
    floor.graph.unwant(ObjectId("a"), floor.job)
    floor.done("busy1")
    assert floor.gives() == ["b to w1"]
    assert floor.parked("w1") == []


# --- what was given ahead is taken back -----------------------------------------------------------


def recalled(floor: Floor, now_s: float) -> list[str]:
    """Who is asked for what."""
    floor.said.clear()
    floor.dispatcher.recall(now_s)
    tasks = floor.graph.tasks
    return [
        f"{worker}: {tasks[task].spec.outputs[0]}"
        for worker, message in floor.said
        if isinstance(message, RecallTasks)
        for task, _ in message.attempts
    ]


def test_what_stands_behind_a_long_task_is_asked_for_by_one_that_is_idle() -> None:
    floor = Floor(a_worker("w1"), limit=4)
    floor.add(*[a_task(f"t{number}", ordinal=number) for number in range(4)])
    assert len(floor.gives()) == 4
    floor.join(a_worker("w2"))
    assert recalled(floor, RECALL_AFTER_S / 2) == []
    assert recalled(floor, RECALL_AFTER_S) == ["w1: t3", "w1: t2", "w1: t1"]
    assert recalled(floor, 2 * RECALL_AFTER_S) == []  # each once


def test_no_more_is_asked_for_than_the_idle_have_room_for() -> None:
    floor = Floor(a_worker("w1"), limit=9)
    floor.add(*[a_task(f"t{number}", ordinal=number) for number in range(9)])
    floor.gives()
    floor.limit = 2
    floor.join(a_worker("w2"))
    assert recalled(floor, RECALL_AFTER_S) == ["w1: t8", "w1: t7"]


def test_a_worker_that_goes_on_ending_tasks_keeps_what_it_has() -> None:
    floor = Floor(a_worker("w1"), limit=4)
    floor.add(*[a_task(f"t{number}", ordinal=number) for number in range(4)])
    floor.gives()
    floor.join(a_worker("w2"))
    worker = floor.dispatcher.workers["w1"]
    worker.reported_at_s = 10.0
    worker.credit.task_s = 0.001
    assert recalled(floor, 10.05) == []


def test_only_what_the_idle_can_run_is_asked_for() -> None:
    floor = Floor(a_worker("w1", slots=2), limit=6)
    floor.add(*[a_task(f"t{number}", ordinal=number, slots=2) for number in range(3)])
    floor.gives()
    floor.join(a_worker("w2", slots=1))
    assert recalled(floor, 10.0) == []


def test_alone_a_worker_keeps_everything() -> None:
    floor = Floor(a_worker("w1"), limit=4)
    floor.add(*[a_task(f"t{number}", ordinal=number) for number in range(4)])
    floor.gives()
    assert recalled(floor, 10.0) == []
