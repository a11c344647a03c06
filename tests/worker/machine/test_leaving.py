"""Scenes with the worker's machine: its life is limited, or it has nothing to do."""

from __future__ import annotations

import pytest

from ciel.core.events import RECALLED, DrainAsked, DrainWorker, FromWorker, SpawnTask, TaskFault
from ciel.core.ids import ObjectId
from ciel.core.workers.lives import DRAIN_GRACE_S, FOREVER, Life, limited
from ciel.testing.builders import a_task
from ciel.worker.state.orders import LeaveMaster
from ciel_tests.scenes.worker import FIXED, A, B, Played, report, start

RETURNED = TaskFault(RECALLED, "it was returned to the master before it started")
SHORT = a_task("short", timeout_s=40)


def a_short_life() -> Played:
    """A worker that ends in 100 s, drains 40 s before that, and hands over 20 s before."""
    return Played(life=Life(200.0, 40.0))


def settle(played: Played) -> list[FromWorker]:
    """End a batch of events; return the reports."""
    played.machine.take_orders()
    return played.machine.take_reports(played.now_s)


def test_a_worker_without_limits_never_leaves(played: Played) -> None:
    settle(played)
    assert played.machine.due_s() is None
    played.advance(1e9)
    played.comes()
    played.run(a_task("long", timeout_s=1e9))


@pytest.mark.parametrize(
    "limit_s, grace_s, life",
    [
        (None, DRAIN_GRACE_S, FOREVER),
        (7200.0, DRAIN_GRACE_S, Life(7300.0, DRAIN_GRACE_S)),
        (10.0, DRAIN_GRACE_S, Life(110.0, 5.0)),
    ],
)
def test_at_most_half_of_a_life_is_for_its_drain(
    limit_s: float | None, grace_s: float, life: Life
) -> None:
    assert limited(limit_s, grace_s, now_s=100.0) == life


def test_a_task_starts_only_if_its_time_limit_ends_before_the_tasks_are_handed_over() -> None:
    played = a_short_life()
    played.advance(40)
    played.run(SHORT)
    played.ended(SHORT)
    played.forget()
    played.advance(0.1)
    played.assign(SHORT, attempt=2)
    played.comes(report(SHORT, fault=RETURNED, run_s=0.0)._replace(attempt=2))


def test_a_task_that_waited_too_long_for_its_slot_is_returned_to_the_master() -> None:
    played = a_short_life()
    played.run(A)
    played.assign(SHORT)
    played.advance(50)
    played.comes()
    played.ended(A)
    played.comes(report(A), report(SHORT, fault=RETURNED, run_s=0.0))


def test_a_task_without_a_time_limit_starts_until_the_worker_drains() -> None:
    played = Played(slots=2, life=Life(200.0, 40.0))
    played.advance(59)
    played.run(A)
    played.advance(1)
    played.comes(DrainAsked(20.0))
    played.assign(B)
    played.comes(report(B, fault=RETURNED, run_s=0.0))


def test_a_task_that_continues_in_a_process_of_the_worker_starts_as_it_can_run_nowhere_else() -> (
    None
):
    played = a_short_life()
    played.machine.process_attached(ObjectId("f"))
    played.advance(60)
    played.forget()
    spec = a_task("out", inputs=["f"])
    played.assign(spec, FIXED)
    played.comes(start(spec, FIXED))


def test_a_child_that_may_outlive_the_worker_is_left_to_the_master() -> None:
    played = Played(slots=2, starts_locally="stdinout", life=Life(200.0, 40.0))
    played.run(A)
    child = a_task("child", parent=A, timeout_s=90)
    played.machine.spawned((A.id, 1), child, (), played.now_s)
    played.comes(SpawnTask(child, (), 1, False))


def test_the_worker_ends_at_the_end_of_its_life_even_if_it_is_not_dismissed() -> None:
    played = a_short_life()
    assert played.machine.due_s() == 160.0
    played.advance(60)
    assert settle(played) == [DrainAsked(20.0)]
    assert played.machine.is_draining
    assert played.machine.drain_left_s(played.now_s) == 20.0
    assert played.machine.due_s() == 200.0
    played.advance(40)
    played.comes(LeaveMaster())
    played.advance(1)
    played.comes()
    assert played.machine.due_s() is None


def test_a_worker_that_is_to_end_drains_at_once() -> None:
    played = Played()
    played.run(A)
    played.machine.leave_within(30.0, played.now_s)
    played.comes(DrainAsked(15.0))
    played.advance(30)
    played.comes(LeaveMaster())


def test_a_signal_does_not_prolong_a_life() -> None:
    played = a_short_life()
    played.advance(90)
    played.forget()
    played.machine.leave_within(30.0, played.now_s)
    assert played.machine.life.ends_at_s == 200.0


def test_a_worker_asks_each_master_that_it_reaches() -> None:
    played = a_short_life()
    played.advance(60)
    settle(played)
    unconfirmed = [DrainAsked(20.0)]
    assert DrainAsked(20.0) not in played.machine.master_restarted([*unconfirmed])
    played.machine.master_reached()
    played.forget()
    played.advance(5)
    played.comes(DrainAsked(15.0))


def test_a_worker_without_a_task_asks_to_leave_and_again_if_it_has_to_stay() -> None:
    played = Played(idle_timeout_s=600.0)
    settle(played)
    assert played.machine.due_s() == 700.0
    played.advance(600)
    played.comes(DrainAsked(None))
    played.advance(599)
    played.comes()
    played.advance(1)
    played.comes(DrainAsked(None))
    assert not played.machine.is_draining


def test_a_worker_that_runs_a_task_is_not_idle() -> None:
    played = Played(idle_timeout_s=600.0)
    settle(played)
    played.advance(300)
    played.assign(A)
    settle(played)
    assert played.machine.due_s() is None
    played.advance(5000)
    played.ended(A)
    settle(played)
    played.advance(599)
    played.comes()
    played.advance(1)
    played.comes(DrainAsked(None))


def test_a_worker_that_drains_already_does_not_ask() -> None:
    played = Played(idle_timeout_s=600.0)
    played.machine.master_message(DrainWorker(None), played.now_s)
    settle(played)
    played.advance(600)
    played.comes()
