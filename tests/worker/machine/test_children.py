"""Scenes with the worker's machine: children that start on their parent's worker, and any-of
inputs.
"""

from __future__ import annotations

import pytest

from ciel.core.events import (
    SpawnTask,
    StreamsOpened,
    TaskFault,
)
from ciel.core.ids import ObjectId
from ciel.core.refs import Concrete, Reference
from ciel.core.tasks import Needs, TaskSpec
from ciel.testing.builders import a_task, inline, stored
from ciel.worker.state.orders import (
    DeleteObjects,
    KillAttempt,
    StartAttempt,
)
from ciel_tests.scenes.worker import (
    A_TO_COME,
    CANCELLED,
    FIXED,
    HERE,
    THERE,
    A,
    Played,
    X,
    copied,
    fetch,
    growing,
    lost,
    report,
    spawn,
    start,
)

# --- children that start on their parent's worker -------------------------------------------------


def child_of(parent: TaskSpec, *inputs: str, executor: str = "stdinout") -> TaskSpec:
    return a_task("child", inputs=inputs, parent=parent, executor=executor)


def test_no_child_begins_twice_on_one_worker() -> None:
    """The parent may run again on this worker while outputs of the first child are in use."""
    played = Played(slots=2, starts_locally="stdinout")
    for attempt in (1, 2):
        played.assign(A, attempt=attempt)
        played.machine.spawned((A.id, attempt), child_of(A), (), played.now_s)
        begun = [o for o in played.machine.orders if isinstance(o, StartAttempt) and o.attempt == 0]
        assert len(begun) == (attempt == 1)
        played.machine.take_orders()
        for key in list(played.machine.attempts):
            played.machine.ended(key, (), None, 0.001, played.now_s)


def test_a_child_begins_at_once_where_there_is_room() -> None:
    played = Played(slots=2, starts_locally="stdinout")
    played.run(A)
    played.machine.uploaded(X, played.now_s)
    child = child_of(A, "x", "y")
    spawn(played, child, inline("y"))
    here = Concrete(X, None, frozenset((HERE,)))
    played.comes(
        start(child, here, inline("y"), attempt=0), SpawnTask(child, (inline("y"),), 1, True)
    )
    played.machine.ended((child.id, 0), (inline("child"),), None, 2.5, played.now_s)
    played.comes(report(child, inline("child"))._replace(attempt=0))


@pytest.mark.parametrize(
    "slots, child, known",
    [
        (1, child_of(A), ()),
        (2, child_of(A, executor="sync"), ()),
        (2, child_of(A)._replace(needs=Needs(slots=2)), ()),
        (2, child_of(A, "x"), ()),
        (2, child_of(A, "x"), (stored("x", THERE),)),
        (2, child_of(A, "f"), (FIXED,)),
    ],
    ids=["no slot", "not such a one", "too wide", "to come", "elsewhere", "a process"],
)
def test_other_children_are_left_to_the_master(
    slots: int, child: TaskSpec, known: tuple[Reference, ...]
) -> None:
    played = Played(slots, starts_locally="stdinout")
    played.run(A)
    spawn(played, child, *known)
    played.comes(SpawnTask(child, known, 1, False))


def test_no_child_overtakes_what_waits_for_a_slot() -> None:
    played = Played(slots=2, starts_locally="stdinout")
    played.run(A)
    played.assign(a_task("wide", slots=2))
    played.comes()
    spawn(played, child_of(A))
    played.comes(SpawnTask(child_of(A), (), 1, False))


def test_a_child_that_has_begun_is_cancelled_like_any_attempt() -> None:
    played = Played(slots=2, starts_locally="stdinout")
    played.run(A)
    spawn(played, child_of(A))
    played.comes(start(child_of(A), attempt=0), SpawnTask(child_of(A), (), 1, True))
    played.cancel(child_of(A), attempt=0)
    played.comes(KillAttempt(child_of(A).id, 0, force=False))
    played.machine.ended((child_of(A).id, 0), (), None, 2.5, played.now_s)
    played.comes(report(child_of(A), fault=CANCELLED)._replace(attempt=0))


def within(played: Played, parent: TaskSpec, attempt: int = 1) -> TaskSpec:
    """Let a program start a child inline; return the child."""
    child = child_of(parent)
    played.machine.child_started_inline((parent.id, attempt), child, (), played.now_s)
    return child


def test_a_child_that_runs_within_its_parent_takes_no_slot() -> None:
    played = Played(slots=1, starts_locally="stdinout")
    played.run(A)
    child = within(played, A)
    played.comes(SpawnTask(child, (), 1, True, True))
    played.machine.ended((child.id, 0), (inline("child"),), None, 2.5, played.now_s)
    played.comes(report(child, inline("child"))._replace(attempt=0))
    assert played.machine.slots_free == 0
    played.ended(A)
    played.comes(report(A))
    assert played.machine.slots_free == 1


def test_who_calls_off_a_child_that_runs_within_another_ends_the_program() -> None:
    played = Played(slots=1, starts_locally="stdinout")
    played.run(A)
    child = within(played, A)
    played.comes(SpawnTask(child, (), 1, True, True))
    played.cancel(child, attempt=0)
    played.comes(KillAttempt(child.id, 0, force=False))


def test_nothing_begins_within_what_is_cancelled() -> None:
    played = Played(slots=1, starts_locally="stdinout")
    played.run(A)
    played.cancel(A)
    child = within(played, A)
    played.comes(KillAttempt(A.id, 1, force=False))
    made = (inline("child"), stored("child:pub:0", HERE))
    played.machine.ended((child.id, 0), made, None, 2.5, played.now_s)
    played.comes(DeleteObjects((ObjectId("child:pub:0"),)))


def test_what_ran_within_what_was_cancelled_does_not_begin_here_beside_that() -> None:
    """The cancelled program may still run when the next attempt creates the same child."""
    played = Played(slots=3, starts_locally="stdinout")
    played.run(A)
    played.cancel(A)
    child = within(played, A)
    played.comes(KillAttempt(A.id, 1, force=False))
    played.assign(A, attempt=2)
    played.machine.take_orders()
    played.machine.spawned((A.id, 2), child, (), played.now_s)
    played.comes(SpawnTask(child, (), 2, False))


def test_a_child_that_is_needed_now_is_for_the_master_to_place() -> None:
    played = Played(slots=2, starts_locally="stdinout")
    played.run(A)
    child = child_of(A)
    played.machine.spawned((A.id, 1), child, (), played.now_s, wanted=True)
    played.comes(SpawnTask(child, (), 1, False, True))


@pytest.mark.parametrize(
    "needs, attempt, begins, may",
    [
        (Needs(), 1, "stdinout", True),
        (Needs(priority=3, retries=2), 1, "stdinout", True),
        (Needs(), 2, "stdinout", False),
        (Needs(timeout_s=9.0), 1, "stdinout", False),
        (Needs(memory_bytes=1 << 30), 1, "stdinout", False),
        (Needs(), 1, "", False),
    ],
)
def test_children_run_within_what_has_no_limits_and_runs_for_the_first_time(
    needs: Needs, attempt: int, begins: str, may: bool
) -> None:
    played = Played(starts_locally=begins)
    played.assign(a_task("a")._replace(needs=needs), attempt=attempt)
    (order,) = played.machine.orders
    assert isinstance(order, StartAttempt)
    assert order.may_run_children is may


def test_no_child_runs_within_what_was_begun_here_before() -> None:
    """The master may know its children already."""
    played = Played(slots=2, starts_locally="stdinout")
    played.run(A)
    child = within(played, A)
    played.machine.ended((child.id, 0), (), TaskFault("RECALLED", ""), 0.0, played.now_s)
    played.machine.take_orders()
    played.assign(child)
    (order,) = played.machine.orders
    assert isinstance(order, StartAttempt)
    assert not order.may_run_children


# --- any-of inputs --------------------------------------------------------------------------------

EITHER = a_task("either", any_of=["a", "b"])


def test_an_alternative_that_is_not_there_is_neither_fetched_nor_waited_for(
    played: Played,
) -> None:
    played.assign(EITHER, A_TO_COME, stored("b", THERE))
    played.comes(fetch("b", THERE))
    played.fetched("b")
    played.comes(start(EITHER, A_TO_COME, stored("b", THERE)), copied("b"))
    played.ended(EITHER)
    played.comes(report(EITHER))


def test_who_chose_another_does_not_mind_what_grows_or_breaks() -> None:
    played = Played(slots=2)
    played.run(A)
    played.machine.streams_opened((A.id, 1), (ObjectId("a"),), played.now_s)
    played.assign(EITHER, A_TO_COME, inline("b"))
    played.comes(
        start(EITHER, A_TO_COME, inline("b")), StreamsOpened(A.id, 1, (growing("a", HERE),))
    )
    played.machine.stream_broken(ObjectId("a"), "its program ended", played.now_s)
    played.comes()


def test_an_alternative_that_cannot_be_had_is_a_loss(played: Played) -> None:
    played.assign(EITHER, A_TO_COME, stored("b", THERE))
    played.comes(fetch("b", THERE))
    played.fetch_failed("b", THERE)
    played.comes(lost(EITHER, ("b", THERE)))
