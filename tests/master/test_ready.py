import pytest
from hypothesis import given
from hypothesis import strategies as st

from ciel.core.tasks import TaskNode
from ciel.master.state.ready import ReadyQueue
from ciel.testing.builders import a_job, a_task

JOB = a_job()


def a_node(name: str, priority: int = 0) -> TaskNode:
    return TaskNode(a_task(name, priority=priority), JOB)


def drain(queue: ReadyQueue) -> list[str]:
    return [queue.pop().spec.outputs[0] for _ in range(len(queue))]


def test_tasks_leave_in_the_order_in_which_they_came() -> None:
    queue = ReadyQueue()
    for name in ("a", "b", "c"):
        queue.push(a_node(name))
    assert drain(queue) == ["a", "b", "c"]


def test_a_higher_priority_goes_first() -> None:
    queue = ReadyQueue()
    for name, priority in [("low", -1), ("first", 5), ("usual", 0), ("second", 5)]:
        queue.push(a_node(name, priority))
    assert drain(queue) == ["first", "second", "usual", "low"]


def test_a_task_that_is_put_back_is_the_next_of_its_priority() -> None:
    queue = ReadyQueue()
    for name in ("a", "b"):
        queue.push(a_node(name))
    queue.push_first(queue.pop())
    queue.push(a_node("urgent", 1))
    assert drain(queue) == ["urgent", "a", "b"]


def test_nothing_comes_out_of_an_empty_queue() -> None:
    queue = ReadyQueue()
    with pytest.raises(IndexError):
        queue.pop()
    queue.push(a_node("a"))
    queue.pop()
    with pytest.raises(IndexError):
        queue.pop()
    assert not queue


steps = st.lists(
    st.tuples(st.sampled_from(["push", "push first"]), st.integers(-2, 2)) | st.just(("pop", 0))
)


@given(steps)
def test_it_agrees_with_a_sorted_list(steps: list[tuple[str, int]]) -> None:
    queue = ReadyQueue()
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
