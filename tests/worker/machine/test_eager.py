"""Scenes with the worker's machine: eager dispatch, early launches, and when reports are sent."""

from __future__ import annotations

import pytest

from ciel.core.events import (
    RECALLED,
    RecallTasks,
    SpawnTask,
    TaskFault,
    TaskReported,
)
from ciel.core.ids import ObjectId
from ciel.core.refs import Future, Reference
from ciel.core.tasks import Needs, TaskSpec
from ciel.testing.builders import a_task, inline, stored
from ciel.worker.state.machine import REPORT_EVERY_S, SUCCESSOR_WAIT_S
from ciel.worker.state.orders import (
    KillAttempt,
    RecallAttempt,
    StartAttempt,
)
from ciel.worker.state.slots import AHEAD_MAX, BRIEF_S
from ciel_tests.scenes.worker import (
    A_TO_COME,
    CANCELLED,
    HERE,
    READS_A,
    READS_X,
    THERE,
    A,
    B,
    Played,
    X,
    ends,
    fetch,
    lost,
    report,
    start,
)

# --- children -------------------------------------------------------------------------------------


def test_children_of_a_running_attempt_are_reported_others_are_not(played: Played) -> None:
    child = a_task("child", parent=A)
    known = (inline("k"),)
    played.machine.spawned((A.id, 1), child, known, played.now_s)
    played.comes()
    played.run(A)
    played.machine.spawned((A.id, 1), child, known, played.now_s)
    played.comes(SpawnTask(child, known, 1))
    played.cancel(A)
    played.machine.spawned((A.id, 1), child, known, played.now_s)
    played.comes(KillAttempt(A.id, 1, force=False))


# --- when reports are sent ------------------------------------------------------------------------


def busy(played: Played, count: int) -> list[TaskSpec]:
    tasks = [a_task(f"t{number}", ordinal=number) for number in range(count)]
    for task in tasks:
        played.assign(task)
    return tasks


def test_successes_are_told_together_while_there_is_work(played: Played) -> None:
    first, second, third, _, _ = busy(played, 5)
    assert len(ends(played, first)) == 1
    assert ends(played, second) == []
    due_s = played.machine.due_s()
    assert due_s is not None
    assert played.now_s < due_s <= played.now_s + REPORT_EVERY_S
    played.now_s = due_s
    assert len(ends(played, third)) == 2
    assert played.machine.due_s() is None


def test_successes_that_are_not_close_to_each_other_are_told_at_once(played: Played) -> None:
    """They would run again if this worker died."""
    first, second, third, _, _ = busy(played, 5)
    assert len(ends(played, first)) == 1
    played.now_s += BRIEF_S
    assert len(ends(played, second)) == 1
    played.now_s += BRIEF_S / 2
    assert ends(played, third) == []
    played.now_s += REPORT_EVERY_S
    assert len(played.machine.take_reports(played.now_s)) == 1


def test_the_last_success_is_told_at_once(played: Played) -> None:
    first, second, third = busy(played, 3)
    assert len(ends(played, first)) == 1
    assert len(ends(played, second)) == 1  # the third runs, and nothing waits for a slot
    assert len(ends(played, third)) == 1


def test_a_failure_is_told_at_once_with_what_had_to_wait(played: Played) -> None:
    first, second, third, _, _ = busy(played, 5)
    assert len(ends(played, first)) == 1
    assert ends(played, second) == []
    assert len(ends(played, third, TaskFault("RUNTIME_ERROR", "exit status 3"))) == 2


def test_all_is_told_before_an_attempt_begins_that_is_not_the_first(played: Played) -> None:
    """A task that runs again may have killed its last worker. If this worker dies too, only that
    task is to be blamed.
    """
    first, second = busy(played, 2)
    played.assign(again := a_task("again", ordinal=7), attempt=2)
    played.assign(a_task("last", ordinal=8))
    assert len(ends(played, first)) == 1
    played.machine.ended((second.id, 1), (), None, 0.001, played.now_s)
    assert start(again, attempt=2) in played.machine.orders
    played.machine.take_orders()
    assert len(played.machine.take_reports(played.now_s)) == 1


# --- programs that are launched before a slot is free ---------------------------------------------


def brief(played: Played, count: int = 40, run_s: float = 0.001) -> None:
    """Let `count` programs run, each for `run_s`."""
    for number in range(count):
        spec = a_task(f"brief{number}", ordinal=number)
        played.assign(spec)
        played.machine.ended((spec.id, 1), (), None, run_s, played.now_s)
    played.forget()


def ordered(played: Played) -> list[tuple[str, int]]:
    """Take the orders to start programs; return each task's first output, and its `at_most`."""
    orders = [order for order in played.machine.orders if isinstance(order, StartAttempt)]
    found: list[tuple[str, int]] = [(order.spec.outputs[0], order.at_most) for order in orders]
    played.machine.take_orders()
    return found


def test_brief_programs_are_launched_ahead_and_wait_for_each_other() -> None:
    played = Played(slots=2)
    brief(played)
    busy(played, 30)
    started = ordered(played)
    assert started[:3] == [("t0", 0), ("t1", 0), ("t2", 2)]
    assert len(started) == 2 + AHEAD_MAX
    assert {at_most for _, at_most in started[2:]} == {2}
    ends(played, a_task("t0", ordinal=0))
    assert not [*played.machine.problems()]


def test_programs_that_take_their_time_are_not() -> None:
    played = Played(slots=2)
    brief(played)
    brief(played, run_s=0.1)
    busy(played, 30)
    assert ordered(played) == [("t0", 0), ("t1", 0)]


@pytest.mark.parametrize(
    "spec, attempt",
    [
        (a_task("x", slots=2), 1),
        (a_task("x", inputs=["in"]), 1),
        (a_task("x")._replace(needs=Needs(timeout_s=5.0)), 1),
        (a_task("x"), 2),
    ],
    ids=["wide", "with inputs", "with a time limit", "once more"],
)
def test_only_plain_programs_are_launched_ahead(spec: TaskSpec, attempt: int) -> None:
    played = Played(slots=2)
    brief(played)
    busy(played, 2)
    ordered(played)
    played.assign(spec, *[inline(name) for name in spec.inputs], attempt=attempt)
    assert ordered(played) == []
    for number in range(2):
        played.machine.ended((a_task(f"t{number}", ordinal=number).id, 1), (), None, 0.001, 0.0)
    assert ordered(played) == [("x", 0)]


def test_beside_a_wide_program_so_many_run_as_there_are_slots_left() -> None:
    played = Played(slots=4)
    brief(played)
    played.assign(wide := a_task("wide", slots=3))
    busy(played, 3)
    assert ordered(played) == [("wide", 0), ("t0", 0), ("t1", 2), ("t2", 2)]
    played.machine.ended((wide.id, 1), (), None, 0.001, 0.0)
    played.assign(a_task("t3", ordinal=3))
    assert ordered(played) == [("t3", 0)]


# --- recalled attempts ----------------------------------------------------------------------------


def test_what_has_not_begun_is_given_back_and_what_runs_goes_on(played: Played) -> None:
    first, second = a_task("a"), a_task("b", ordinal=1)
    third = a_task("c", inputs=["x"])
    played.assign(first)
    played.assign(second)
    played.assign(third, stored("x", THERE))
    played.comes(start(first), fetch("x", THERE))
    keys = tuple((task.id, 1) for task in (first, second, third))
    played.machine.master_message(RecallTasks((*keys, (first.id, 7))), played.now_s)
    fault = TaskFault(RECALLED, "it was returned to the master before it started")
    played.comes(
        RecallAttempt(first.id, 1),
        report(second, fault=fault, run_s=0.0),
        report(third, fault=fault, run_s=0.0),
    )
    played.ended(first)
    played.comes(report(first))


# --- attempts that are dispatched before their inputs exist ---------------------------------------

GIVEN_BACK = TaskFault(RECALLED, "no task on this worker produces its inputs")
GONE = ((X, HERE),)


def given_back(spec: TaskSpec) -> TaskReported:
    return report(spec, fault=GIVEN_BACK, run_s=0.0)


@pytest.mark.parametrize(
    "content", [inline("a", b"content"), stored("a", HERE)], ids=["small", "large"]
)
def test_a_successor_begins_when_what_it_waits_for_is_made_here(
    played: Played, content: Reference
) -> None:
    played.run(A)
    played.assign(READS_A, A_TO_COME)
    played.comes()
    played.ended(A, content)
    played.comes(start(READS_A, content), report(A, content))
    played.ended(READS_A)
    played.comes(report(READS_A))


def test_a_worker_that_goes_on_tells_after_a_moment(played: Played) -> None:
    """Each report wakes the master, which the next task in a chain does not need."""

    def tells(number: int) -> int:
        """Return how many reports leave as a task of the chain ends."""
        spec = chain[number]
        made = (inline(f"out{number}"),)
        played.machine.ended((spec.id, 1), made, None, 0.001, played.now_s)
        played.machine.take_orders()
        return len(played.machine.take_reports(played.now_s))

    chain = [a_task(f"out{n}", inputs=[f"out{n - 1}"] if n else []) for n in range(4)]
    for number, spec in enumerate(chain):
        played.assign(spec, *[Future(ref) for ref in chain[number - 1].outputs if number])
    assert tells(0) == 1
    assert tells(1) == 0
    due_s = played.machine.due_s()
    assert due_s is not None
    assert played.now_s < due_s <= played.now_s + SUCCESSOR_WAIT_S
    played.now_s = due_s
    assert len(played.machine.take_reports(due_s)) == 1
    assert tells(2) == 0
    assert tells(3) == 2  # no task continues the chain
    assert played.machine.due_s() is None


@pytest.mark.parametrize("content", [inline("a"), stored("a", HERE)], ids=["small", "large"])
def test_a_successor_may_come_after_what_it_was_to_wait_for(
    played: Played, content: Reference
) -> None:
    """Its assignment and the report of its producer crossed on the way."""
    played.run(A)
    played.ended(A, content)
    played.comes(report(A, content))
    played.assign(READS_A, A_TO_COME)
    played.comes(start(READS_A, content))
    played.ended(READS_A)
    played.comes(report(READS_A))


def test_a_successor_of_nothing_here_is_given_back(played: Played) -> None:
    played.assign(READS_A, A_TO_COME)
    played.comes(given_back(READS_A))


@pytest.mark.parametrize("fault", [None, TaskFault("RUNTIME_ERROR", "no luck")])
def test_successors_of_what_was_not_made_are_given_back(
    played: Played, fault: TaskFault | None
) -> None:
    """The producer failed, or delegated its output to another task."""
    played.run(A)
    last = a_task("end", inputs=["out"])
    played.assign(READS_A, A_TO_COME)
    played.assign(last, Future(ObjectId("out")))
    played.comes()
    played.ended(A, fault=fault)
    played.comes(report(A, fault=fault), given_back(READS_A), given_back(last))


def test_successors_of_what_is_cancelled_before_it_began_are_given_back(played: Played) -> None:
    played.run(B)
    for call_off in (played.cancel, played.recall):
        played.assign(A)
        played.assign(READS_A, A_TO_COME)
        played.comes()
        call_off(A)
        first, second = played.machine.reports
        assert isinstance(first, TaskReported)
        played.comes(first, given_back(READS_A))
        assert second == given_back(READS_A)
    played.ended(B)
    played.comes(report(B))


def test_successors_of_what_could_not_get_its_inputs_are_given_back(played: Played) -> None:
    played.assign(READS_X, stored("x", THERE))
    last = a_task("end", inputs=["also"])
    played.assign(last, Future(ObjectId("also")))
    played.fetch_failed("x", THERE)
    played.comes(fetch("x", THERE), lost(READS_X, ("x", THERE)), given_back(last))
    played.machine.uploaded(X, played.now_s)
    played.assign(READS_X, stored("x", HERE), attempt=2)
    played.assign(last, Future(ObjectId("also")), attempt=2)
    played.machine.inputs_gone((READS_X.id, 2), GONE, "why", played.now_s)
    played.comes(
        start(READS_X, stored("x", HERE), attempt=2),
        lost(READS_X, ("x", HERE))._replace(attempt=2),
        given_back(last)._replace(attempt=2),
    )


def test_who_lacks_two_things_is_ended_once(played: Played) -> None:
    """One input cannot be fetched, and the producer of the second one ends for the same reason."""
    x = stored("x", THERE)
    both = a_task("both", inputs=["x", "also"])
    played.assign(READS_X, x)
    played.assign(both, x, Future(ObjectId("also")))
    played.comes(fetch("x", THERE))
    played.fetch_failed("x", THERE)
    played.comes(lost(READS_X, ("x", THERE)), given_back(both))


def test_a_successor_waits_for_the_attempt_that_makes_its_input_still(two: Played) -> None:
    """Another attempt at the producer was cancelled."""
    two.run(A)
    two.run(B)
    two.assign(A, attempt=2)
    two.assign(READS_A, A_TO_COME)
    two.cancel(A, attempt=2)
    two.comes(report(A, fault=CANCELLED, run_s=0.0)._replace(attempt=2))
    two.ended(A, inline("a"))
    two.comes(start(READS_A, inline("a")), report(A, inline("a")))
    for spec in (B, READS_A):
        two.ended(spec)
        two.comes(report(spec))
