"""Scenes with the master's machine: workers that are drained."""

from __future__ import annotations

from typing import Any

import pytest

from ciel.core.events import (
    RECALLED,
    AddTask,
    DrainWorker,
    NotCopied,
    ObjectsStored,
    SpawnTask,
    TaskFault,
    TaskReported,
    WantObjects,
)
from ciel.core.ids import JobId, ObjectId
from ciel.core.refs import Concrete, Fixed, Reference
from ciel.core.tasks import Mentions, TaskSpec, TaskState
from ciel.master.state.draining import AGAIN_AFTER_S, COPIES_MAX, NAMED_WITHIN_S, CannotDrainError
from ciel.testing.builders import a_chain, a_task, a_worker, place_of, stored
from ciel_tests.scenes.master import Cluster, ask, one, opened, two

BEGUN, DISMISSED = "w1: DrainWorker", "w1: DismissWorker"


def drain(cluster: Cluster, worker: str = "w1", timeout_s: float | None = None) -> None:
    cluster.machine.drain_worker(cluster.machine.workers[worker], timeout_s, cluster.now_s)
    cluster.end_turn()


def row(cluster: Cluster, worker: str = "w1") -> Any:
    return next(row for row in ask(cluster, "workers") if row["worker"] == worker)["draining"]


def copies(cluster: Cluster, worker: str, *objects: str) -> None:
    refs = tuple([stored(object_id, place_of(worker)) for object_id in objects])
    cluster.worker_says(worker, ObjectsStored(refs))


def not_copied(
    cluster: Cluster, worker: str, object_id: str, *missing_at: str, lacks_room: bool = False
) -> None:
    message = NotCopied(ObjectId(object_id), missing_at, "its store is full", lacks_room)
    cluster.worker_says(worker, message)


def returned(cluster: Cluster, worker: str, spec: TaskSpec) -> None:
    fault = TaskFault(RECALLED, "it was returned")
    cluster.worker_says(worker, TaskReported(spec.id, 1, (), fault, 0.0))


def test_an_idle_worker_leaves_at_once() -> None:
    cluster = two()
    drain(cluster)
    cluster.said(BEGUN, DISMISSED)


def test_the_last_worker_is_not_drained() -> None:
    cluster = one()
    with pytest.raises(CannotDrainError, match="no other worker can take the tasks and objects"):
        drain(cluster)
    cluster.said()
    cluster.joins(a_worker("w2"))
    drain(cluster)
    with pytest.raises(CannotDrainError):
        drain(cluster, "w2")


def test_a_running_task_ends_there_and_new_tasks_run_elsewhere() -> None:
    cluster = two()
    a, b = a_task("a"), a_task("b", ordinal=1)
    cluster.job(a, b, want="ab", open=True)
    cluster.said("w1: run a", "w2: run b")
    drain(cluster)
    cluster.said(BEGUN, "w1: give back a")  # it has started, so this has no effect
    assert row(cluster)["tasks"] == 1
    cluster.done("w1", a)
    cluster.said(DISMISSED, "client: a is there")
    cluster.done("w2", b)
    cluster.said("client: b is there")


def test_tasks_that_have_not_started_run_elsewhere() -> None:
    cluster = two()
    tasks = [a_task(name, ordinal=n) for n, name in enumerate("abcd")]
    cluster.job(*tasks, want="abcd")
    cluster.lines()
    own = [task for task in tasks if cluster.machine.graph.tasks[task.id].worker == "w1"]
    drain(cluster)
    for task in own:
        returned(cluster, "w1", task)
    assert all(cluster.machine.graph.tasks[task.id].worker != "w1" for task in own)
    assert DISMISSED in cluster.lines()


def test_after_the_time_limit_tasks_run_elsewhere() -> None:
    cluster = two()
    a, b = a_task("a"), a_task("b", ordinal=1)
    cluster.job(a, b, want="ab")
    cluster.done("w2", b)
    cluster.lines()
    drain(cluster, timeout_s=10)
    cluster.said(BEGUN, "w1: give back a")
    cluster.passes(9)
    cluster.said()
    assert row(cluster)["left_s"] == 1.0
    cluster.passes(1)
    cluster.said("w1: stop a (1)", "w2: run a again (2)")
    cluster.worker_says("w1", TaskReported(a.id, 1, (), TaskFault("CANCELLED", "it was"), 1.0))
    cluster.said(DISMISSED)
    story = " ".join(cluster.machine.histories[a.id].lines(cluster.now_s))
    assert "worker w1 was drained during attempt 1: the task runs again" in story


def test_a_second_request_changes_the_time_limit() -> None:
    cluster = two()
    a, b = a_task("a"), a_task("b", ordinal=1)
    cluster.job(a, b, want="ab")
    cluster.done("w2", b)
    drain(cluster)
    cluster.lines()
    drain(cluster, timeout_s=0)
    cluster.said(BEGUN, "w1: stop a (1)", "w2: run a again (2)")


def test_objects_that_no_other_worker_holds_move_before_it_leaves() -> None:
    cluster = two()
    a = a_task("a")
    cluster.job(a, want="a")
    cluster.done("w1", a, stored("a", place_of("w1")))
    cluster.lines()
    drain(cluster)
    cluster.said(BEGUN, "w2: copy a")
    assert row(cluster)["copying"] == 1
    copies(cluster, "w2", "a")
    cluster.said(DISMISSED)
    cluster.loses("w1")
    ref = cluster.machine.graph.objects.reference(ObjectId("a"))
    assert isinstance(ref, Concrete)
    assert ref.locations == {place_of("w2")}
    assert cluster.state(a) is TaskState.DONE


def test_a_worker_that_has_an_object_is_asked_to_retain_it() -> None:
    cluster = Cluster(a_worker("w1"), a_worker("w2"), a_worker("w3"))
    a = a_task("a")
    cluster.job(a, want="a")
    cluster.done("w1", a, stored("a", place_of("w1")))
    copies(cluster, "w3", "a")
    cluster.lines()
    drain(cluster)
    cluster.said(BEGUN, "w3: copy a")  # its store might drop its copy otherwise


def test_a_worker_on_the_same_host_is_preferred() -> None:
    cluster = Cluster(
        a_worker("w1", host="h"), a_worker("w2"), a_worker("w3"), a_worker("w4", host="h")
    )
    a = a_task("a")
    cluster.job(a, want="a")
    cluster.done("w1", a, stored("a", place_of("w1")))
    cluster.lines()
    drain(cluster)
    cluster.said(BEGUN, "w4: copy a")


def test_objects_move_some_at_a_time() -> None:
    cluster = two()
    names = [f"o{n}" for n in range(COPIES_MAX + 10)]
    a = a_task(*names)
    cluster.job(a, want=names)
    cluster.done("w1", a, *[stored(name, place_of("w1")) for name in names])
    cluster.lines()
    drain(cluster)
    line = cluster.lines()[1]
    first = line.removeprefix("w2: copy ").split()
    assert len(first) == COPIES_MAX
    copies(cluster, "w2", *first)
    rest = cluster.lines()[0].removeprefix("w2: copy ").split()
    assert {*first, *rest} == {*names}
    copies(cluster, "w2", *rest)
    cluster.said(DISMISSED)


def test_an_object_that_does_not_fit_goes_to_another_worker() -> None:
    cluster = Cluster(a_worker("w1"), a_worker("w2"), a_worker("w3"))
    a = a_task("a")
    cluster.job(a, want="a")
    cluster.done("w1", a, stored("a", place_of("w1")))
    cluster.lines()
    drain(cluster)
    first = cluster.lines()[1].partition(":")[0]
    not_copied(cluster, first, "a", lacks_room=True)
    second = ({"w2", "w3"} - {first}).pop()
    cluster.said(f"{second}: copy a")


def test_a_worker_whose_objects_fit_nowhere_stays_until_they_do() -> None:
    cluster = two()
    a = a_task("a")
    cluster.job(a, want="a")
    cluster.done("w1", a, stored("a", place_of("w1")))
    cluster.lines()
    drain(cluster, timeout_s=0)
    for _ in range(2):
        cluster.lines()
        not_copied(cluster, "w2", "a", lacks_room=True)
    while row(cluster)["stuck"] == 0:
        not_copied(cluster, "w2", "a", lacks_room=True)
    assert row(cluster)["why"] == "its store is full"
    cluster.lines()
    cluster.passes(AGAIN_AFTER_S)
    cluster.said("w2: copy a")
    copies(cluster, "w2", "a")
    cluster.said(DISMISSED)


def test_a_missing_object_that_can_be_recomputed_does_not_hold_it_up() -> None:
    cluster = two()
    a = a_task("a")
    cluster.job(a, want="a", open=True)
    cluster.done("w1", a, stored("a", place_of("w1")))
    cluster.lines()
    drain(cluster)
    cluster.lines()
    not_copied(cluster, "w2", "a", place_of("w1"))
    assert "w2: run a again (2)" in cluster.lines()


def test_objects_go_elsewhere_when_the_worker_that_copies_them_dies() -> None:
    cluster = Cluster(a_worker("w1"), a_worker("w2"), a_worker("w3"))
    a = a_task("a")
    cluster.job(a, want="a")
    cluster.done("w1", a, stored("a", place_of("w1")))
    cluster.lines()
    drain(cluster)
    first = cluster.lines()[1].partition(":")[0]
    cluster.loses(first)
    second = ({"w2", "w3"} - {first}).pop()
    assert f"{second}: copy a" in cluster.lines()


def test_what_is_produced_meanwhile_moves_too() -> None:
    cluster = two()
    a, b = a_task("a"), a_task("b", ordinal=1)
    cluster.job(a, b, want="ab")
    cluster.done("w2", b)
    drain(cluster)
    cluster.lines()
    cluster.done("w1", a, stored("a", place_of("w1")))
    assert "w2: copy a" in cluster.lines()


def test_an_upload_that_no_job_has_named_yet_is_awaited() -> None:
    cluster = two()
    drain_with_upload(cluster, stored("up-1", place_of("w1")))
    assert row(cluster)["uploads"] == 1
    cluster.lines()
    cluster.passes(NAMED_WITHIN_S)
    cluster.said(DISMISSED)


def drain_with_upload(cluster: Cluster, ref: Reference) -> None:
    worker = cluster.machine.workers["w1"]
    cluster.machine.drain_worker(worker, None, cluster.now_s)
    cluster.worker_says("w1", ObjectsStored((ref,), kept=True))  # both arrive within a tick


def test_eagerly_dispatched_tasks_run_elsewhere() -> None:
    cluster = Cluster(a_worker("w1"), delegates=True)
    a, b = a_chain(2)
    cluster.job(a, b, want=["c1"])
    cluster.said("w1: run c0", "w1: run c1")
    cluster.joins(a_worker("w2"))
    drain(cluster)
    cluster.said(BEGUN, "w1: stop c1 (1)", "w1: give back c0")
    fault = TaskFault("CANCELLED", "it was")
    cluster.worker_says("w1", TaskReported(b.id, 1, (), fault, 0.0))
    cluster.done("w1", a)
    cluster.said("w2: run c1 again (2)", DISMISSED)


def test_a_task_that_only_it_can_run_runs_there() -> None:
    cluster = Cluster(a_worker("w1", executors=["only", "test"]), a_worker("w2"))
    a = a_task("a", executor="only")
    first = a_task("b", ordinal=1, executor="only")
    cluster.job(first, want="b", open=True)
    drain(cluster)
    cluster.lines()
    cluster.says(*_more(a))
    assert cluster.lines() == ["w1: run a"]
    cluster.done("w1", first)
    cluster.done("w1", a)
    assert DISMISSED in cluster.lines()


def _more(spec: TaskSpec) -> list[Any]:
    return [AddTask(spec, ()), WantObjects(JobId(spec.job), (ObjectId(spec.outputs[0]),))]


def test_a_drain_goes_on_with_a_restarted_master() -> None:
    cluster = Cluster(a_worker("w2"))
    facts = a_worker("w1")._replace(is_draining=True, drain_within_s=3.0)
    cluster.joins(facts)
    cluster.said(BEGUN, DISMISSED)
    message = next(m for m in cluster.sent if isinstance(m, DrainWorker))
    assert message.timeout_s == 3.0


def test_readers_of_a_stream_run_again_after_the_time_limit() -> None:
    cluster = Cluster(a_worker("w1"), a_worker("w2", executors=["stdinout", "only"]))
    a, b = a_task("a"), a_task("b", inputs=["a"], ordinal=1, executor="only")
    cluster.job(a, b, want=["b"])
    cluster.worker_says("w1", opened(a, "w1"))
    assert cluster.lines() == ["w1: run a", "w2: run b"]
    drain(cluster, timeout_s=0)
    lines = cluster.lines()
    assert {"w1: stop a (1)", "w2: stop b (1)"} <= {*lines}


def test_a_process_that_waits_there_is_awaited_until_the_time_limit() -> None:
    cluster, first, rest = _waiting_process()
    cluster.passes(59)
    cluster.said()
    assert row(cluster)["tasks"] == 1
    cluster.done("w1", rest)
    cluster.said("client: out is there", f"w1: drop {first.id}:fixed:0", "client: completed")
    cluster.passes(0.5)
    cluster.said(DISMISSED)


def _waiting_process() -> tuple[Cluster, TaskSpec, TaskSpec]:
    """A task of a worker that drains, for 60 s, leaves a process; its child continues in it."""
    cluster = two()
    first = a_task("out", mentions=Mentions.ANYTHING)
    process = ObjectId(f"{first.id}:fixed:0")
    rest = a_task("out", inputs=[process], parent=first, mentions=Mentions.ANYTHING)
    cluster.job(first, want=["out"])
    cluster.said("w1: run out")
    drain(cluster, timeout_s=60)
    cluster.said(BEGUN, "w1: give back out")
    fixed = (Fixed(process, place_of("w1")),)
    report = TaskReported(first.id, 1, fixed, None, 0.01)
    cluster.worker_says("w1", SpawnTask(rest, fixed, 1), report)
    cluster.said("w1: run out")
    return cluster, first, rest


def test_a_process_that_waits_there_is_started_elsewhere_after_the_time_limit() -> None:
    cluster, first, rest = _waiting_process()
    cluster.passes(60)
    cluster.said("w1: stop out (1)", f"w1: drop {first.id}:fixed:0", "w2: run out again (2)")
    fault = TaskFault("CANCELLED", "it was")
    cluster.worker_says("w1", TaskReported(rest.id, 1, (), fault, 0.0))
    cluster.said(DISMISSED)


def test_a_suspected_worker_keeps_the_master_idle_even_if_its_time_has_passed() -> None:
    cluster = two()
    a, b = a_task("a"), a_task("b", ordinal=1)
    cluster.job(a, b, want="ab")
    drain(cluster, timeout_s=10)
    cluster.machine.worker_cut_off("w1", "it ended", cluster.now_s)
    cluster.passes(11, "w2")
    assert cluster.machine.due_s() is None
    cluster.lines()
    cluster.passes(0)
    assert "w1: stop a (1)" in cluster.lines()


def test_a_restarted_master_that_awaits_workers_is_idle_although_one_drains() -> None:
    cluster = one()
    a = a_task("a")
    cluster.job(a, want="a")
    cluster.done("w1", a, stored("a", place_of("w1")))
    cluster.machine.membership.await_workers({"w9": place_of("w9")}, cluster.now_s + 5)
    cluster.joins(a_worker("w2"))
    drain(cluster)
    assert not cluster.machine.has_more
    cluster.lines()
    cluster.passes(6)
    cluster.said("w2: copy a")
