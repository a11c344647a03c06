import pytest
from hypothesis import given
from hypothesis import strategies as st

from ciel.core.graph.nodes import TaskNode
from ciel.core.graph.task_graph import TaskGraph
from ciel.core.ids import ObjectId
from ciel.core.jobs import Job
from ciel.core.tasks import PRIORITY_MIN, TaskSpec, TaskState
from ciel.master.state.placement.ready import DELAYED_MIN, LOWEST_EVERY, ReadyQueue
from ciel.testing.builders import a_chain, a_fan, a_job, a_task

JOB = a_job()


def a_node(name: str, priority: int = 0, job: Job = JOB) -> TaskNode:
    return TaskNode(a_task(name, priority=priority, job=job.spec.id), job)


def drain(queue: ReadyQueue) -> list[str]:
    return [queue.pop().spec.outputs[0] for _ in range(len(queue))]


def test_tasks_are_popped_in_the_order_of_their_pushes() -> None:
    queue = ReadyQueue(TaskGraph())
    for name in ("a", "b", "c"):
        queue.push(a_node(name))
    assert drain(queue) == ["a", "b", "c"]


def test_a_task_with_higher_priority_is_popped_first() -> None:
    queue = ReadyQueue(TaskGraph())
    for name, priority in [("low", -1), ("first", 5), ("usual", 0), ("second", 5)]:
        queue.push(a_node(name, priority))
    assert drain(queue) == ["first", "second", "usual", "low"]


def test_a_task_pushed_first_is_the_next_of_its_priority() -> None:
    queue = ReadyQueue(TaskGraph())
    for name in ("a", "b"):
        queue.push(a_node(name))
    queue.push_first(queue.pop())
    queue.push(a_node("urgent", 1))
    assert drain(queue) == ["urgent", "a", "b"]


def test_popping_an_empty_queue_raises_index_error() -> None:
    queue = ReadyQueue(TaskGraph())
    with pytest.raises(IndexError):
        queue.pop()
    queue.push(a_node("a"))
    queue.pop()
    with pytest.raises(IndexError):
        queue.pop()
    assert not queue


def test_delayed_tasks_that_are_no_longer_needed_are_removed() -> None:
    ready = Ready()
    for number in range(5 * DELAYED_MIN):
        ready.queue.push_later(a_node(f"n{number}"), 1e6)  # in no graph, so no task needs it
        assert len(list(ready.queue)) <= DELAYED_MIN


# --- tasks that finish started work come first ----------------------------------------------------


class Ready:
    """A queue and a graph; `push` names a task by its output."""

    def __init__(self, *specs: TaskSpec, job: Job = JOB) -> None:
        self.graph = TaskGraph()
        self.queue = ReadyQueue(self.graph)
        self.add(*specs, job=job)

    def add(self, *specs: TaskSpec, job: Job = JOB) -> None:
        for spec in specs:
            self.graph.add(spec, job)

    def push(self, *names: str, attempt: int = 0) -> None:
        for name in names:
            node = self.graph.objects.nodes[name].producer
            assert node is not None
            node.attempt = attempt
            self.queue.push(node)


def test_readers_of_existing_outputs_come_before_tasks_that_start_new_work() -> None:
    ready = Ready(*a_fan(4), a_task("end", inputs=["total"]))
    ready.push("leaf0", "leaf1", "leaf2", "total", "leaf3", "end")
    assert drain(ready.queue) == ["end", "total", "leaf0", "leaf1", "leaf2", "leaf3"]


def test_an_input_that_all_tasks_read_gives_no_precedence() -> None:
    first = a_task("first")
    many = [a_task(f"part{number}", inputs=["first"]) for number in range(3)]
    ready = Ready(first, *many, a_task("sum", inputs=["part0", "part1"]))
    ready.push("first", "part0", "part1", "part2", "sum")
    assert drain(ready.queue) == ["sum", "part0", "part1", "part2", "first"]


def test_a_child_has_the_precedence_of_its_parent() -> None:
    leaf, parent = a_task("leaf"), a_task("parent", inputs=["leaf"])
    ready = Ready(leaf, parent, a_task("fresh"), a_task("child", parent=parent))
    ready.push("leaf", "parent")
    assert drain(ready.queue) == ["parent", "leaf"]
    ready.push("fresh", "child")
    assert drain(ready.queue) == ["child", "fresh"]


def test_of_equal_tasks_one_that_was_assigned_before_comes_first() -> None:
    ready = Ready(*a_fan(3))
    ready.push("leaf0", "leaf1")
    ready.push("leaf2", attempt=1)
    assert drain(ready.queue) == ["leaf2", "leaf0", "leaf1"]


def test_jobs_alternate_whichever_of_their_tasks_is_popped() -> None:
    other = a_job("other")
    ready = Ready(*a_fan(2))
    ready.add(*[a_task(f"other{number}", job="other") for number in range(2)], job=other)
    ready.push("leaf0", "other0", "leaf1", "other1", "total")
    assert drain(ready.queue) == ["total", "other0", "leaf0", "other1", "leaf1"]


def test_a_short_job_does_not_wait_for_the_end_of_a_long_one() -> None:
    queue = ReadyQueue(TaskGraph())
    short, another = a_job("short"), a_job("another")
    for number in range(4):
        queue.push(a_node(f"long{number}"))
    queue.push(a_node("short0", job=short))
    queue.push(a_node("short1", job=short))
    queue.push(a_node("urgent", 1, job=another))
    came = drain(queue)
    assert came == ["urgent", "long0", "short0", "long1", "short1", "long2", "long3"]


def test_the_queue_shows_the_priority_of_its_next_task() -> None:
    queue = ReadyQueue(TaskGraph())
    assert queue.priority == PRIORITY_MIN
    queue.push(a_node("low", -5))
    queue.push(a_node("high", 5))
    assert queue.priority == 5
    queue.pop()
    assert queue.priority == -5


def test_no_task_starves_behind_an_endless_chain() -> None:
    ready = Ready(a_task("leaf"), *a_chain(2 * LOWEST_EVERY))
    ready.push("leaf")
    came = []
    for number in range(1, 2 * LOWEST_EVERY):
        ready.push(f"c{number}")
        came.append(ready.queue.pop().spec.outputs[0])
    assert came.index(ObjectId("leaf")) == LOWEST_EVERY - 1


# --- the whole queue ------------------------------------------------------------------------------

steps = st.lists(
    st.tuples(st.sampled_from(["push", "push first"]), st.integers(-2, 2)) | st.just(("pop", 0))
)


@given(steps)
def test_the_queue_agrees_with_a_sorted_list(steps: list[tuple[str, int]]) -> None:
    queue = ReadyQueue(TaskGraph())
    model: list[TaskNode] = []
    for number, (step, priority) in enumerate(steps):
        node = a_node(f"t{number}", priority)
        if step == "push":
            queue.push(node)
            model.append(node)
        elif step == "push first":
            queue.push_first(node)
            model.insert(0, node)
        elif model:
            model.sort(key=lambda task: -task.spec.needs.priority)
            assert queue.pop() is model.pop(0)
        assert len(queue) == len(model)


def test_a_job_without_running_tasks_is_the_first_that_pop_new_returns() -> None:
    long, short = a_job("1" * 32), a_job("2" * 32)
    queue = ReadyQueue(TaskGraph())
    long.counts[TaskState.ASSIGNED] = 2
    for name in ("a", "b"):
        queue.push(a_node(name, job=long))
    assert queue.pop_new() is None
    for name in ("x", "y"):
        queue.push(a_node(name, job=short))
    let_in = queue.pop_new()
    assert let_in is not None
    assert let_in.spec.outputs == ("x",)
    assert queue.pop_new() is None
    assert len(queue) == 3
    assert drain(queue) == ["a", "y", "b"]


def test_pop_new_returns_no_task_before_tasks_of_higher_priority() -> None:
    queue = ReadyQueue(TaskGraph())
    long, short = a_job("1" * 32), a_job("2" * 32)
    long.counts[TaskState.ASSIGNED] = 2
    queue.push(a_node("urgent", 1, long))
    queue.push(a_node("x", job=short))
    assert queue.pop_new() is None


def test_pop_new_skips_a_dropped_job() -> None:
    queue = ReadyQueue(TaskGraph())
    long, short = a_job("1" * 32), a_job("2" * 32)
    long.counts[TaskState.ASSIGNED] = 2
    queue.push(a_node("a", job=long))
    queue.push(a_node("x", job=short))
    queue.drop_job(short)
    assert queue.pop_new() is None
    assert drain(queue) == ["a"]
