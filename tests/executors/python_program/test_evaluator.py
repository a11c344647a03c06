"""Calls that a task spawns: run by its own program, or by another one."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import ciel
from ciel.python.futures import InParts


@ciel.task
def fib(n: int) -> int:
    return n if n < 2 else fib.spawn(n - 1).result() + fib.spawn(n - 2).result()


@ciel.task
def fib_by_delegation(n: int) -> Any:
    return n if n < 2 else ciel.call(add, fib_by_delegation.spawn(n - 1), fib.spawn(n - 2))


def add(one: int, other: int) -> int:
    return one + other


def divide(one: int, other: int) -> float:
    return one / other


@pytest.mark.parametrize("tree", [fib, fib_by_delegation])
def test_a_task_runs_its_children_itself(cluster: Any, tree: Any) -> None:
    task = cluster.call(tree.function, 9)
    assert task.value == 34
    assert cluster.ran == []
    assert task.channel.named("within") == [{}]


@pytest.mark.slow
def test_a_loop_of_delegations_needs_no_stack(cluster: Any) -> None:
    def countdown(n: int) -> Any:
        return ciel.spawn(countdown, n - 1) if n else "end"

    assert cluster.call(countdown, 5000).value == "end"


def test_results_within_each_other_may_be_deep(cluster: Any) -> None:
    def depth(n: int) -> int:
        return 1 + ciel.spawn(depth, n - 1).result() if n else 0

    assert cluster.call(depth, 150).value == 150
    assert len(cluster.ran) == 1  # so many calls may wait on top of each other; this one may not


def test_an_exception_of_a_child_reaches_its_parent_with_both_tracebacks(cluster: Any) -> None:
    def parent() -> str:
        try:
            ciel.spawn(divide, 1, 0).result()
        except ZeroDivisionError as error:
            return str(error.__cause__)
        return ""

    assert "return one / other" in cluster.call(parent).value

    def careless() -> float:
        return ciel.spawn(divide, 1, 0).result()

    _, details = cluster.call(careless).failure
    assert "in careless" in details["text"]
    assert "in divide" in details["text"]


def test_a_call_does_not_run_if_an_argument_has_failed(cluster: Any) -> None:
    ran: list[int] = []

    def note(value: Any) -> None:
        ran.append(value)

    note.keeps_state = True  # type: ignore[attr-defined]  # see `functions.Loaded`

    def parent() -> str:
        error = ciel.spawn(note, ciel.spawn(divide, 1, 0)).exception()
        return type(error).__name__

    assert cluster.call(parent).value == "ZeroDivisionError"
    assert ran == []


def test_a_child_that_waits_for_itself_fails(cluster: Any) -> None:
    def parent() -> str:
        future = _registered[-1] = ciel.spawn(its_own_future)
        return str(future.exception())

    assert cluster.run([(run_parent, id(register(parent)))]).values() == [
        "the call waits for its own result"
    ]


def its_own_future() -> Any:
    return _registered[-1]


def test_several_values_have_a_future_each(cluster: Any) -> None:
    def parent() -> Any:
        one, other = ciel.task(divmod, returns=2).spawn(17, 5)
        return one.result(), other.result()

    assert cluster.call(parent).value == (3, 2)


def test_a_child_of_several_values_may_forward_one_of_them(cluster: Any) -> None:
    def two() -> Any:
        return ciel.spawn(add, 1, 2), "x"

    def parent() -> Any:
        one, other = ciel.task(two, returns=2).spawn()
        return one.result(), other.result()

    assert cluster.call(parent).value == (3, "x")


# --- values ---------------------------------------------------------------------------------------


def test_each_reader_of_a_value_has_a_copy_of_its_own(cluster: Any) -> None:
    def grow(items: list[int]) -> list[int]:
        items.append(len(items))
        return items

    def parent() -> Any:
        first = ciel.spawn(grow, [])
        second, third = ciel.spawn(grow, first), ciel.spawn(grow, first)
        return first.result(), second.result(), third.result()

    assert cluster.call(parent).value == ([0], [0, 1], [0, 1])


def test_arguments_are_those_of_the_time_of_the_spawn(cluster: Any) -> None:
    def parent() -> Any:
        items = [1]
        future = ciel.spawn(sum, items)
        items.append(2)
        stored = ciel.put(items)
        items.append(3)
        return future.result(), stored.result()

    assert cluster.call(parent).value == (1, [1, 2])


def test_a_child_has_the_state_of_its_function_at_the_time_of_the_spawn(cluster: Any) -> None:
    def parent() -> Any:
        settings = {"scale": 2}

        def scaled(value: int) -> int:
            settings["scale"] += 1
            return value * settings["scale"]

        before = ciel.spawn(scaled, 1)
        settings["scale"] = 10
        return before.result(), ciel.spawn(scaled, 1).result(), settings["scale"]

    assert cluster.call(parent).value == (3, 11, 10)


def test_futures_within_a_result_become_objects(cluster: Any) -> None:
    def parent() -> Any:
        done = ciel.spawn(add, 1, 2)
        done.result()
        return {"done": done, "pending": ciel.spawn(add, 3, 4)}

    task = cluster.call(parent)
    (outcome,) = task.outcomes()
    assert len(outcome.refs) == 2
    assert len(task.channel.named("put")) == 1
    assert [request["name"] for request in task.channel.named("spawn")] == ["add"]


# --- cancelling and waiting -----------------------------------------------------------------------


def test_a_pending_call_can_be_cancelled(cluster: Any) -> None:
    def parent() -> Any:
        future = ciel.spawn(add, 1, 2)
        was_pending = future.cancel()
        error = future.exception()
        return was_pending, future.cancelled(), future.done(), type(error).__name__

    assert cluster.call(parent).value == (True, True, True, "TaskCancelledError")


def test_a_call_that_is_done_cannot_be_cancelled(cluster: Any) -> None:
    def parent() -> Any:
        future = ciel.spawn(add, 1, 2)
        future.result()
        return future.cancel(), future.cancelled(), future.result()

    assert cluster.call(parent).value == (False, False, 3)


def test_a_call_with_a_cancelled_argument_fails_in_the_same_way(cluster: Any) -> None:
    def parent() -> str:
        first = ciel.spawn(add, 1, 2)
        second = ciel.spawn(add, first, 3)
        first.cancel()
        return type(second.exception()).__name__

    assert cluster.call(parent).value == "TaskCancelledError"


def test_wait_ends_when_the_first_call_does_or_when_one_fails(cluster: Any) -> None:
    def parent() -> Any:
        futures = [ciel.spawn(divide, 1, divisor) for divisor in (1, 0, 2)]
        done, pending = ciel.wait(futures, return_when="FIRST_COMPLETED")
        counts = [len(done), len(pending)]
        done, pending = ciel.wait(futures, return_when="FIRST_EXCEPTION")
        counts += [len(done), len(pending)]
        return counts, ciel.gather(futures, errors="skip")

    assert cluster.call(parent).value == ([1, 2, 2, 1], [1.0, 0.5])


def test_a_wait_with_a_timeout_has_another_program_run_the_call(cluster: Any) -> None:
    def parent() -> Any:
        future = ciel.spawn(add, 1, 2)
        try:
            future.result(timeout=0.01)
        except TimeoutError:
            return future.running()
        return None

    task = cluster.call(parent)
    assert task.value is True
    (wait,) = task.channel.named("tail_spawn")
    assert (wait["needed"], wait["others"]) == ([], [0])
    assert 0 < wait["timeout_s"] <= 0.01


# --- other programs -------------------------------------------------------------------------------


def test_a_free_slot_gets_the_child_that_the_task_needs_last(cluster: Any) -> None:
    cluster.slots = 1

    def parent() -> Any:
        futures = [ciel.spawn(add, number, 0) for number in range(3)]
        cluster.share()
        return [future.result() for future in futures]

    parent.keeps_state = True  # type: ignore[attr-defined]  # it refers to the cluster
    task = cluster.run([(run_parent, id(register(parent)))])
    assert task.values() == [[0, 1, 2]]
    assert cluster.ran == ["add"]
    (request,) = task.channel.named("spawn")
    assert request["wanted"] is True


def test_where_nobody_knows_of_free_slots_more_are_given_away_each_time(cluster: Any) -> None:
    cluster.slots = None
    counts: list[int] = []

    def parent() -> Any:
        futures = [ciel.spawn(add, number, 0) for number in range(20)]
        for _ in range(3):
            cluster.share()
            counts.append(sum(future.running() for future in futures))
        return ciel.gather(futures)

    task = cluster.run([(run_parent, id(register(parent)))])
    assert task.values() == [list(range(20))]
    assert counts == [2, 6, 14]


def test_a_child_goes_with_the_calls_that_it_depends_on(cluster: Any) -> None:
    cluster.slots = 1

    def parent() -> Any:
        last = ciel.spawn(add, ciel.spawn(add, 1, 2), 3)
        cluster.share()
        return last.result()

    task = cluster.run([(run_parent, id(register(parent)))])
    assert task.values() == [6]
    first, second = task.channel.named("spawn")
    assert (first.get("inputs"), second["inputs"]) == (None, [0])
    assert cluster.ran == ["add", "add"]


def test_the_error_of_a_remote_child_reaches_its_parent(cluster: Any) -> None:
    cluster.slots = 1

    def parent() -> Any:
        future = ciel.spawn(divide, 1, 0)
        cluster.share()
        return future.result()

    (error,) = cluster.run([(run_parent, id(register(parent))), (add, 1, 2)]).values()[:1]
    assert isinstance(error, ZeroDivisionError)
    assert cluster.ran == ["divide"]


def test_a_child_with_options_of_its_own_is_a_task_of_its_own(cluster: Any) -> None:
    def parent() -> Any:
        return ciel.task(add, slots=2, retries=3, name="sum").spawn(1, 2).result()

    task = cluster.call(parent)
    assert task.value == 3
    (request,) = task.channel.named("spawn")
    assert (request["name"], request["slots"], request["retries"]) == ("sum", 2, 3)


class Selected:
    """An argument that selects from a value, as `ciel.arrow.concat` does."""

    def __init__(self, future: Any) -> None:
        self.future = future

    def __reduce__(self) -> Any:
        return float, (InParts(self.future),)


def test_a_child_may_read_parts_of_what_another_child_returns(cluster: Any) -> None:
    def parent() -> Any:
        alone = ciel.task(add, slots=2)
        one, other = alone.spawn(1, 2), alone.spawn(3, 4)
        chosen = alone.spawn(Selected(one), other)
        both = alone.spawn(Selected(other), other)
        return chosen.result(), both.result()

    task = cluster.call(parent)
    assert task.value == (10.0, 14.0)
    *_, chosen, both = task.channel.named("spawn")
    assert (sorted(chosen["inputs"]), chosen["apart"]) == ([0, 1], [0])
    assert "apart" not in both


def test_the_output_is_delegated_to_a_remote_child(cluster: Any) -> None:
    def parent() -> Any:
        return ciel.task(add, slots=2).spawn(1, 2)

    task = cluster.call(parent)
    assert task.channel.named("tail_spawn") == [{"forward": 0, "place": None}]
    assert cluster.ran == []


def test_a_child_that_cannot_be_pickled_runs_here(cluster: Any) -> None:
    cluster.slots = 1

    def parent() -> Any:
        future: Any = ciel.spawn(abs, 1)
        future.work.args = (threading.Lock(),)  # `spawn` would refuse it
        has_more = cluster.share()
        return has_more, type(future.exception()).__name__

    assert cluster.run([(run_parent, id(register(parent)))]).values() == [(False, "TypeError")]


def test_after_a_crash_children_run_elsewhere(cluster: Any) -> None:
    task = cluster.run([(fib.function, 3)], attempt=2)
    assert task.value == 2
    assert cluster.ran[:2] == ["fib", "fib"]
    assert task.channel.named("within") == []


def test_a_thread_of_a_function_may_run_calls_but_not_wait_for_others(cluster: Any) -> None:
    def parent() -> Any:
        found: list[Any] = []

        def in_thread() -> None:
            found.append(ciel.spawn(add, 1, 2).result())
            try:
                ciel.task(add, slots=2).spawn(1, 2).result()
            except RuntimeError as error:
                found.append(str(error))

        thread = threading.Thread(target=in_thread)
        thread.start()
        thread.join()
        return found

    three, text = cluster.call(parent).value
    assert three == 3
    assert "only the thread in which a task started" in text


# Functions that refer to the test's own objects are found by their identity: they are not pickled.
_registered: dict[int, Any] = {}


def register(function: Any) -> Any:
    _registered[id(function)] = function
    return function


def run_parent(identity: int) -> Any:
    return _registered[identity]()
