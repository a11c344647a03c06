"""Scenes with the master's machine: workers whose lives are limited, or that are idle."""

from __future__ import annotations

import pytest

from ciel.core.events import RECALLED, DrainAsked, ReleaseObjects, TaskFault, TaskReported
from ciel.core.ids import ObjectId
from ciel.core.tasks import TaskSpec, TaskState
from ciel.master.state.placement.lives import KINDS_MAX, Lives
from ciel.master.state.queries import explain
from ciel.testing.builders import a_task, a_worker, place_of, stored
from ciel_tests.scenes.master import Cluster, one, two

BEGUN, DISMISSED = "w1: DrainWorker", "w1: DismissWorker"


def why(cluster: Cluster, spec: TaskSpec) -> list[str]:
    return explain.why(cluster.machine, cluster.machine.graph.tasks[spec.id], cluster.now_s)


def short_and_long(*, slots: int = 1) -> Cluster:
    """A worker that ends in 100 s, and hands over 5 s before, and a worker without a limit."""
    short = a_worker("w1", slots=slots, life_left_s=100, drain_grace_s=10)
    return Cluster(short, a_worker("w2", slots=slots))


def ran(cluster: Cluster, worker: str, spec: TaskSpec, run_s: float) -> None:
    cluster.worker_says(worker, TaskReported(spec.id, 1, (stored(*spec.outputs),), None, run_s))


def test_a_task_runs_only_where_its_time_limit_ends_in_time() -> None:
    cluster = short_and_long(slots=2)
    tasks = [a_task(name, ordinal=n, timeout_s=96) for n, name in enumerate("ab")]
    cluster.job(*tasks, a_task("c", ordinal=2, timeout_s=95), want="abc")
    cluster.said("w2: run a", "w2: run b", "w1: run c")


def test_a_task_that_no_worker_outlives_waits_for_another_worker_and_says_so() -> None:
    cluster = Cluster(a_worker("w1", life_left_s=100, drain_grace_s=10))
    task = a_task("a", timeout_s=3600)
    cluster.job(task, want="a")
    cluster.said()
    assert cluster.state(task) is TaskState.RUNNABLE
    assert why(cluster, task) == [
        "no worker lives long enough for it, and it waits for another one:",
        "worker w1 is about to end: it runs tasks for 95 s more, and the task needs 3600 s by its "
        "--timeout",
    ]
    cluster.joins(a_worker("w2", life_left_s=7200, drain_grace_s=30))
    cluster.said("w2: run a")


def test_a_task_that_waits_for_room_says_which_workers_end_too_early() -> None:
    cluster = short_and_long()
    a, b = a_task("a", timeout_s=96), a_task("b", ordinal=1, timeout_s=96)
    cluster.job(a, b, want="ab")
    cluster.said("w2: run a", "w2: run b")  # queued there
    c = a_task("c", job="another", timeout_s=96)
    cluster.job(c, want="c", job="another")
    cluster.lines()
    d = a_task("d", job="third", timeout_s=96)
    cluster.job(d, want="d", job="third")
    cluster.said()
    lines = why(cluster, d)
    assert lines[0] == "it could run, but no worker has room:"
    assert lines[-1].startswith("worker w1 is about to end")


def test_without_a_time_limit_the_run_times_of_earlier_tasks_count() -> None:
    cluster = short_and_long(slots=2)
    first = a_task("a", name="train")
    cluster.job(first, want="a")
    worker = cluster.machine.graph.tasks[first.id].worker
    cluster.lines()
    ran(cluster, str(worker), first, 96.0)
    cluster.lines()
    later = [a_task(name, ordinal=n, name="train", job="another") for n, name in enumerate("bc")]
    cluster.job(*later, want="bc", job="another")
    cluster.said("w2: run b", "w2: run c")
    cluster.job(a_task("d", name="other", job="third"), want="d", job="third")
    cluster.said("w1: run d")


def test_a_task_without_an_estimate_starts_until_the_worker_drains() -> None:
    cluster = Cluster(a_worker("w1", life_left_s=100, drain_grace_s=10))
    a, b = a_task("a"), a_task("b", job="another")
    cluster.passes(89)
    cluster.job(a, want="a")
    cluster.said("w1: run a")
    cluster.done("w1", a)
    cluster.passes(1)
    cluster.lines()
    cluster.job(b, want="b", job="another")
    cluster.said()


def test_a_task_that_did_not_end_in_time_runs_elsewhere_and_needs_a_longer_life() -> None:
    cluster = Cluster(
        a_worker("w1", life_left_s=100, drain_grace_s=10),
        a_worker("w2", life_left_s=150, drain_grace_s=10),
    )
    a = a_task("a", name="train")
    cluster.job(a, want="a")
    cluster.said("w1: run a")
    cluster.passes(90)
    cluster.worker_says("w1", DrainAsked(5.0))
    cluster.said(BEGUN, "w1: give back a")
    cluster.passes(5)
    cluster.said("w1: stop a (1)")  # w2 runs tasks for 50 s more only
    assert "the task needs 95 s by the run times of such tasks" in " ".join(why(cluster, a))
    assert a.id not in cluster.machine.retry_states  # it does not count as a failure
    cluster.joins(a_worker("w3"))
    cluster.said("w3: run a again (2)")


def test_a_worker_that_leaves_gets_no_task_that_no_other_worker_can_run() -> None:
    cluster = one()
    cluster.worker_says("w1", DrainAsked(5.0))
    cluster.said(BEGUN, DISMISSED)
    task = a_task("a")
    cluster.job(task, want="a")
    cluster.said()
    cluster.joins(a_worker("w2"))
    cluster.said("w2: run a")


def test_a_task_that_a_worker_returned_since_it_ends_runs_elsewhere() -> None:
    cluster = short_and_long()
    a, b = a_task("a", timeout_s=90), a_task("b", ordinal=1, timeout_s=90)
    cluster.job(a, b, want="ab")
    cluster.said("w1: run a", "w2: run b")
    cluster.passes(6)
    cluster.worker_says("w1", TaskReported(a.id, 1, (), TaskFault(RECALLED, "returned"), 0.0))
    cluster.said("w2: run a again (2)")


# --- idle workers ---------------------------------------------------------------------------------


def test_an_idle_worker_leaves_when_others_have_its_objects() -> None:
    cluster = two()
    a = a_task("a")
    cluster.job(a, want="a")
    cluster.done("w1", a, stored("a", place_of("w1")))
    cluster.lines()
    cluster.worker_says("w1", DrainAsked(None))
    cluster.said(BEGUN, "w2: copy a")


def test_the_last_worker_stays_while_it_has_an_object_or_tasks_wait() -> None:
    cluster = one()
    a = a_task("a")
    cluster.job(a, want="a", open=True)
    cluster.done("w1", a, stored("a", place_of("w1")))
    cluster.lines()
    cluster.worker_says("w1", DrainAsked(None))
    cluster.said()
    cluster.says(ReleaseObjects(a.job, (ObjectId("a"),)))
    cluster.said("w1: drop a")
    cluster.worker_says("w1", DrainAsked(None))
    cluster.said(BEGUN, DISMISSED)


def test_the_last_worker_leaves_if_nothing_needs_it() -> None:
    cluster = one()
    cluster.worker_says("w1", DrainAsked(None))
    cluster.said(BEGUN, DISMISSED)


def test_a_worker_that_has_got_a_task_meanwhile_stays() -> None:
    cluster = two()
    a, b = a_task("a"), a_task("b", ordinal=1)
    cluster.job(a, b, want="ab")
    cluster.lines()
    cluster.worker_says("w1", DrainAsked(None))
    cluster.said()
    assert not cluster.machine.workers["w1"].is_draining


# --- estimates ------------------------------------------------------------------------------------


def test_estimates_rise_at_once_fall_slowly_and_are_bounded() -> None:
    cluster = short_and_long()
    lives = Lives(cluster.machine.context)
    task = a_task("a", name="train")
    lives.learn(task, 10.0)
    assert lives.needed_s(task) == 0.0  # no worker whose life is limited has joined
    lives.joined(cluster.machine.workers["w1"])
    for run_s in (10.0, 100.0, 10.0):
        lives.learn(task, run_s)
    assert lives.needed_s(task) == pytest.approx(91.0)
    lives.learn_at_least(task, 95.0)
    assert lives.needed_s(task) == 95.0
    for number in range(KINDS_MAX):
        lives.learn(a_task("a", name=f"{number}"), 1.0)
    assert lives.needed_s(task) == 0.0
