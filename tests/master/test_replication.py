"""Scenes with the master's machine: objects of which several copies are to exist."""

from __future__ import annotations

from typing import Any

import pytest

from ciel.core.errors import CielError
from ciel.core.events import (
    AddTask,
    CloseJob,
    NotCopied,
    ObjectsStored,
    ReleaseObjects,
    ReplicateObjects,
    StoreListed,
    SubmitJob,
    WantObjects,
)
from ciel.core.ids import ObjectId
from ciel.core.jobs import JobState
from ciel.core.refs import Failure
from ciel.master.state import invariants
from ciel.master.state.compaction import compact
from ciel.master.state.placement.replication import (
    AGAIN_AFTER_S,
    COPYING_MAX,
    LISTING_MAX_S,
    NO_SOURCE,
    NO_WORKER,
)
from ciel.master.state.queries import topics
from ciel.master.state.restoring import Restoration
from ciel.testing.builders import JOB, a_job_spec, a_task, a_worker, inline, place_of, stored
from ciel_tests.scenes.master import Cluster, ask

UPLOAD = ObjectId("upload:1")


class Scene(Cluster):
    """A cluster whose tables are checked after each step. New workers list an empty store."""

    def __init__(self, *workers: str, hosts: str = "") -> None:
        """`hosts`: one letter for the host of each worker; by default each has its own."""
        super().__init__(
            *[a_worker(w, host=hosts[i] if hosts else "") for i, w in enumerate(workers)]
        )
        self.lists(*workers)

    def end_turn(self) -> None:
        super().end_turn()
        assert list(invariants.problems(self.machine)) == []

    def lists(self, *workers: str) -> None:
        for worker in workers:
            self.worker_says(worker, StoreListed())

    def comes(self, worker: str, host: str = "") -> None:
        """A worker joins, with an empty store."""
        self.joins(a_worker(worker, host=host))
        self.lists(worker)

    def opens(self) -> None:
        self.says(SubmitJob(a_job_spec()._replace(open=True)))
        self.lines()

    def puts(self, *at: str, copies: int = 2, objects: tuple[ObjectId, ...] = (UPLOAD,)) -> None:
        """A client has uploaded objects to some workers, in its job."""
        refs = tuple([stored(each, *map(place_of, at)) for each in objects])
        self.says(ReplicateObjects(a_job_spec().id, copies, refs))

    def copies(self, worker: str, *objects: ObjectId) -> None:
        """A worker has copied objects."""
        refs = tuple([stored(each, place_of(worker)) for each in objects or (UPLOAD,)])
        self.worker_says(worker, ObjectsStored(refs))

    def cannot_copy(self, worker: str, *missing_at: str, why: str = "its store is full") -> None:
        places = tuple(map(place_of, missing_at))
        self.worker_says(worker, NotCopied(UPLOAD, places, why, lacks_room=not missing_at))

    def status(self) -> Any:
        return ask(self, "object", object=UPLOAD)["copies"]

    def is_lost(self) -> bool:
        return isinstance(self.machine.graph.objects.reference(UPLOAD), Failure)


def opened(*workers: str, hosts: str = "") -> Scene:
    scene = Scene(*workers, hosts=hosts)
    scene.opens()
    return scene


# --- the number of copies -------------------------------------------------------------------------


def test_enough_copies_are_left_alone() -> None:
    scene = opened("w1", "w2", "w3")
    scene.puts("w1", "w2")
    scene.said()
    assert scene.status() == {"wanted": 2, "there": 2, "copying": 0, "why": ""}


def test_another_worker_copies_an_object_that_one_worker_was_sent() -> None:
    scene = opened("w1", "w2")
    scene.puts("w1")
    scene.said("w2: copy upload:1")
    assert scene.status() == {"wanted": 2, "there": 1, "copying": 1, "why": ""}
    scene.copies("w2")
    scene.said()
    assert scene.status() == {"wanted": 2, "there": 2, "copying": 0, "why": ""}


def test_an_object_is_copied_again_whenever_a_worker_with_a_copy_is_lost() -> None:
    scene = opened("w1", "w2", "w3", "w4")
    scene.puts("w1", "w2")
    scene.loses("w1")
    (order,) = scene.lines()
    third = order[:2]
    assert order == f"{third}: copy upload:1"
    scene.copies(third)
    scene.loses("w2")
    (order,) = scene.lines()
    scene.copies(order[:2])
    scene.loses(third)
    scene.said()  # only one worker is left
    assert not scene.is_lost()
    assert scene.status() == {"wanted": 2, "there": 1, "copying": 0, "why": NO_WORKER}


def test_a_worker_that_is_lost_while_it_copies_is_replaced() -> None:
    scene = opened("w1", "w2", "w3")
    scene.puts("w1")
    (order,) = scene.lines()
    scene.loses(order[:2])
    other = {"w2": "w3", "w3": "w2"}[order[:2]]
    scene.said(f"{other}: copy upload:1")


def test_without_enough_workers_the_rest_is_copied_when_one_joins() -> None:
    scene = opened("w1")
    scene.puts("w1", copies=3)
    scene.said()
    assert scene.status() == {"wanted": 3, "there": 1, "copying": 0, "why": NO_WORKER}
    scene.passes(1000)
    scene.said()
    scene.comes("w2")
    scene.said("w2: copy upload:1")
    scene.comes("w3")
    scene.said("w3: copy upload:1")


def test_one_copy_and_short_content_need_no_other_worker() -> None:
    scene = opened("w1", "w2")
    scene.puts("w1", copies=1)
    assert scene.status() is None
    scene.says(ReplicateObjects(a_job_spec().id, 2, (inline("upload:2"),)))
    scene.said()
    assert ask(scene, "object", object="upload:2")["state"] == "there"
    assert scene.machine.replication.copies() == {}


@pytest.mark.parametrize("copies", [0, 9])
def test_an_impossible_number_is_refused(copies: int) -> None:
    scene = opened("w1", "w2")
    scene.puts("w1", copies=copies)
    scene.said(f"client: refused: an object has 1 to 8 copies, not {copies}")
    assert UPLOAD not in scene.machine.graph.objects.nodes


def test_outputs_of_tasks_are_refused() -> None:
    scene = opened("w1", "w2")
    task = a_task("0" * 32 + ":out:0")
    scene.puts("w1", objects=(task.outputs[0],))
    (line,) = scene.lines()
    assert "is not an upload: a task can produce it again" in line


# --- which worker copies --------------------------------------------------------------------------


def test_another_host_is_preferred() -> None:
    for _ in range(3):
        scene = opened("w1", "w2", "w3", "w4", hosts="aaab")
        scene.puts("w1")
        scene.said("w4: copy upload:1")
        scene.comes("w5", host="a")
        scene.loses("w4")
        (order,) = scene.lines()
        assert order.endswith(": copy upload:1")  # a copy on the same host is better than none


def test_a_worker_that_has_fetched_the_object_is_asked_to_retain_it() -> None:
    scene = opened("w1", "w2", "w3", "w4")
    scene.puts("w1", "w2")
    scene.copies("w4")  # for a task
    scene.loses("w2")
    scene.said("w4: copy upload:1")


def test_a_fetched_copy_does_not_count_since_a_store_may_drop_it() -> None:
    scene = opened("w1", "w2", "w3")
    scene.puts("w1", "w2", copies=3)
    scene.copies("w3")
    assert scene.status()["there"] == 3  # by order
    scene = opened("w1", "w2", "w3")
    scene.puts("w1", "w2")
    scene.copies("w3")
    assert scene.status()["there"] == 2


def test_suspected_workers_keep_their_copies_and_take_none() -> None:
    scene = opened("w1", "w2", "w3")
    scene.puts("w1", "w2")
    scene.machine.worker_cut_off("w2", "reset", scene.now_s)
    scene.machine.worker_cut_off("w3", "reset", scene.now_s)
    scene.end_turn()
    scene.said()
    scene.loses("w2")
    scene.said()
    assert scene.status()["why"] == NO_WORKER
    scene.passes(0.1, "w3")
    scene.said("w3: copy upload:1")


def test_no_worker_copies_from_workers_that_cannot_be_reached() -> None:
    scene = opened("w1", "w2", "w3")
    scene.puts("w1", "w2")
    scene.machine.worker_cut_off("w1", "reset", scene.now_s)
    scene.loses("w2")
    scene.said()
    assert scene.status()["why"] == NO_SOURCE
    scene.passes(0.1, "w1")
    scene.said("w3: copy upload:1")


def test_after_a_refusal_another_worker_copies_and_later_all_may_again() -> None:
    scene = opened("w1", "w2", "w3")
    scene.puts("w1")
    (first,) = scene.lines()
    scene.cannot_copy(first[:2])
    (second,) = scene.lines()
    assert second != first
    scene.cannot_copy(second[:2])
    scene.said()
    assert scene.status() == {"wanted": 2, "there": 1, "copying": 0, "why": "its store is full"}
    assert scene.machine.due_s() == scene.now_s + AGAIN_AFTER_S
    scene.passes(AGAIN_AFTER_S - 0.1)
    scene.said()
    scene.passes(0.2)
    (third,) = scene.lines()
    scene.copies(third[:2])
    assert scene.status() == {"wanted": 2, "there": 2, "copying": 0, "why": ""}


def test_a_worker_without_its_copy_is_asked_to_make_it_again() -> None:
    scene = opened("w1", "w2", "w3")
    scene.puts("w1", "w2", copies=3)
    scene.said("w3: copy upload:1")
    scene.cannot_copy("w3", "w1", why="w1 answered 404")
    scene.said("w1: copy upload:1")
    scene.copies("w1")
    scene.passes(AGAIN_AFTER_S)
    scene.said("w3: copy upload:1")


def test_a_worker_that_joins_may_have_the_object_already() -> None:
    scene = opened("w1", "w2")
    scene.puts("w1")
    scene.copies("w2")
    scene.lines()
    scene.machine.worker_lost("w2", "it ended", scene.now_s, died=True)
    scene.joins(a_worker("w3"))
    scene.said()  # until it has listed its objects
    scene.worker_says("w3", ObjectsStored((stored(UPLOAD, place_of("w3")),), kept=True))
    scene.said()
    scene.comes("w4")
    scene.lists("w3")
    scene.said("w3: copy upload:1")  # which only means to retain it


def test_a_worker_that_does_not_list_its_objects_delays_copies_for_some_seconds_only() -> None:
    scene = opened("w1", "w2", "w3")
    scene.joins(a_worker("w4"))
    scene.puts("w1", "w2")
    scene.loses("w2")
    scene.said()
    assert scene.machine.due_s() == scene.now_s + LISTING_MAX_S
    scene.passes(LISTING_MAX_S)
    (order,) = scene.lines()
    assert order.endswith(": copy upload:1")


def test_only_some_objects_are_copied_at_a_time() -> None:
    scene = opened("w1", "w2")
    objects = tuple(ObjectId(f"upload:{n}") for n in range(COPYING_MAX + 10))
    scene.puts("w1", objects=objects)
    (line,) = scene.lines()
    first = [ObjectId(name) for name in line.split()[2:]]
    assert len(first) == COPYING_MAX
    assert not scene.machine.has_more
    scene.copies("w2", *first)
    (line,) = scene.lines()
    assert {*first, *line.split()[2:]} == {*objects}


# --- draining -------------------------------------------------------------------------------------


def test_a_worker_that_drains_hands_its_copy_to_a_worker_without_one() -> None:
    scene = opened("w1", "w2", "w3")
    scene.puts("w1", "w2")
    scene.machine.drain_worker(scene.machine.workers["w1"], None, scene.now_s)
    scene.end_turn()
    scene.said("w1: DrainWorker", "w3: copy upload:1")
    scene.copies("w3")
    scene.said("w1: DismissWorker")
    scene.loses("w1")
    scene.said("w3: copy upload:1")  # for the master's own table; the worker has it
    scene.copies("w3")
    assert scene.status() == {"wanted": 2, "there": 2, "copying": 0, "why": ""}


def test_a_worker_that_drains_leaves_if_all_others_have_a_copy() -> None:
    scene = opened("w1", "w2")
    scene.puts("w1", "w2")
    scene.machine.drain_worker(scene.machine.workers["w1"], None, scene.now_s)
    scene.end_turn()
    scene.said("w1: DrainWorker", "w2: copy upload:1")
    scene.copies("w2")
    scene.said("w1: DismissWorker")


# --- the end of claims ----------------------------------------------------------------------------


def test_a_released_object_is_forgotten_and_not_copied_any_more() -> None:
    scene = opened("w1", "w2", "w3")
    scene.puts("w1", "w2")
    ref = stored(UPLOAD, place_of("w1"), place_of("w2"))
    scene.says(ReleaseObjects(a_job_spec().id, (UPLOAD,), for_good=True, uploads=(ref,)))
    scene.said("w1: drop upload:1", "w2: drop upload:1")
    assert scene.machine.replication.copies() == {}
    scene.loses("w1")
    scene.said()


def test_a_copy_of_an_object_that_was_released_meanwhile_is_deleted() -> None:
    scene = opened("w1", "w2")
    scene.puts("w1")
    scene.lines()
    scene.says(ReleaseObjects(a_job_spec().id, (UPLOAD,), for_good=True))
    scene.lines()
    scene.copies("w2")
    scene.said("w2: drop upload:1")
    assert not scene.machine.replication


def test_objects_of_an_ended_job_are_not_copied_any_more() -> None:
    scene = opened("w1", "w2", "w3")
    scene.puts("w1", "w2")
    scene.says(CloseJob(a_job_spec().id))
    assert scene.job_of().state is JobState.COMPLETED
    assert scene.machine.replication.copies() == {}
    scene.lines()
    scene.loses("w1")
    scene.said()


def test_an_object_is_lost_only_with_its_last_copy() -> None:
    scene = opened("w1", "w2")
    scene.puts("w1", "w2")
    scene.loses("w1")
    assert not scene.is_lost()
    scene.loses("w2")
    assert scene.is_lost()
    assert scene.machine.replication.copies() == {}


def test_a_kept_object_is_copied_until_it_is_discarded() -> None:
    scene = Scene("w1", "w2", "w3")

    def change(topic: str, **argument: Any) -> None:
        topics.change(scene.machine, topic, argument, scene.now_s)
        scene.end_turn()

    ref = stored(UPLOAD, place_of("w1"), place_of("w2"))
    with pytest.raises(CielError, match="an object has 1 to 8 copies"):
        change("keep", name="words", reference=ref, copies=9)
    change("keep", name="words", reference=ref, copies=2)
    scene.loses("w1")
    scene.said("w3: copy upload:1")
    scene.copies("w3")
    change("discard", object="words")
    scene.said("w2: drop upload:1", "w3: drop upload:1")
    assert scene.machine.replication.copies() == {}


def test_uploads_of_a_job_without_a_client_are_copied() -> None:
    scene = Scene("w1", "w2")
    task = a_task("a", inputs=[UPLOAD])
    added = AddTask(task, (stored(UPLOAD, place_of("w1")),))
    spec = a_job_spec(detached=True)
    scene.machine.submit_job(spec, [added], task.outputs, scene.now_s, copies=2)
    scene.end_turn()
    assert "w2: copy upload:1" in scene.lines()
    with pytest.raises(CielError, match="copies, not 99"):
        scene.machine.submit_job(spec, [added], task.outputs, scene.now_s, copies=99)


# --- restarts -------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_compacted", [False, True])
def test_a_restarted_master_counts_what_workers_list(is_compacted: bool) -> None:
    before = opened("w1", "w2", "w3")
    before.puts("w1", "w2")
    before.loses("w1")
    before.copies("w3")
    records = list(before.machine.journal)
    if is_compacted:
        batch = (before.now_s, records)
        records = [record for _, some in compact(lambda: [batch]) for record in some]
    after = Scene()
    after.now_s = before.now_s
    restoration = Restoration(after.machine)
    for record in records:
        restoration.apply(record, before.now_s)
    assert restoration.skipped == []
    restoration.finish(after.now_s)
    after.end_turn()
    assert after.machine.replication.copies() == {UPLOAD: 2}
    assert not after.machine.has_more
    after.joins(a_worker("w2"))
    after.lists("w2")
    after.said()  # w3 may come back
    after.joins(a_worker("w3"))
    after.worker_says(
        "w3", ObjectsStored((stored(UPLOAD, place_of("w3")),), kept=True), StoreListed()
    )
    lines = after.lines()
    assert "w3: copy upload:1" in lines
    after.copies("w3")
    # w2 has not listed the object, so it has lost it, and makes it again.
    assert "w2: copy upload:1" in [*lines, *after.lines()]
    after.copies("w2")
    assert after.status() == {"wanted": 2, "there": 2, "copying": 0, "why": ""}


def test_a_repeated_request_changes_nothing() -> None:
    scene = opened("w1", "w2", "w3")
    scene.puts("w1", "w2")
    scene.puts("w1", "w2")
    scene.says(WantObjects(a_job_spec().id, ()))
    scene.said()
    assert scene.machine.replication.copies() == {UPLOAD: 2}
    assert scene.job_of(JOB).state is JobState.ACTIVE
