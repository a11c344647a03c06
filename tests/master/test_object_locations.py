"""Tests objects that users put into the cluster, and queries about any object."""

from __future__ import annotations

from typing import Any

import pytest

from ciel.core.events import AddTask, CloseJob, DropObjects, SubmitJob, TaskReported, WantObjects
from ciel.core.graph.invariants import validate
from ciel.core.ids import ObjectId
from ciel.core.refs import Reference, Sweetheart
from ciel.master.state.machine import MasterMachine
from ciel.master.state.queries import object_locations, topics
from ciel.master.state.queries.object_locations import CannotKeepError, UnknownObjectError
from ciel.testing.builders import (
    JOB,
    a_job_spec,
    a_task,
    a_worker,
    failed,
    inline,
    place_of,
    stored,
)

UPLOAD = "upload:" + "1" * 32
OTHER = "upload:" + "2" * 32


class Scene:
    """A machine with two workers, and its clock."""

    def __init__(self) -> None:
        self.machine = MasterMachine()
        self.now_s = 0.0
        for worker in ("w1", "w2"):
            self.machine.worker_joined(a_worker(worker), self.now_s)

    def step(self) -> list[tuple[str, tuple[str, ...]]]:
        """End an event-loop iteration; return which objects were to be deleted on which worker."""
        self.machine.end_tick(self.now_s)
        outbox = self.machine.take_outbox()
        validate(self.machine.graph)
        return [(to, tuple(m.objects)) for to, m in outbox if isinstance(m, DropObjects)]

    def keep(self, ref: Reference, name: str = "words") -> Any:
        self.now_s += 1
        return self.change("keep", name=name, reference=ref)

    def change(self, topic: str, **argument: Any) -> Any:
        return topics.change(self.machine, topic, argument, self.now_s)

    def ask(self, topic: str, **argument: Any) -> Any:
        return topics.answer(self.machine, topic, argument, self.now_s)

    def read_by_job(self, object_id: str) -> None:
        """Run a job with a task that reads an object, to its end."""
        task = a_task("result", inputs=[object_id])
        for message in (
            SubmitJob(a_job_spec()), AddTask(task, ()), WantObjects(task.job, task.outputs),
            CloseJob(task.job),
        ):  # fmt: skip
            self.machine.client_sent("c", message, self.now_s)
        self.step()
        (worker,) = {t.worker for t in self.machine.graph.tasks.values()}
        assert worker is not None
        made = TaskReported(task.id, 1, (inline("result"),), None, 0.1)
        self.machine.worker_sent(worker, made, self.now_s)
        self.step()


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_an_uploaded_object_is_shown_with_its_name_and_age(scene: Scene) -> None:
    scene.keep(stored(UPLOAD, place_of("w1"), place_of("w2")))
    scene.now_s += 2
    told = scene.ask("object", object="words")
    assert told.pop("reference").id == UPLOAD
    assert told == {
        "object": UPLOAD, "state": "there", "size_bytes": 5000,
        "at": [place_of("w1"), place_of("w2")], "made_by": None, "job": None, "wanted_by": [],
        "copies": None, "name": "words", "age_s": 2.0,
    }  # fmt: skip


def test_a_discarded_object_without_readers_is_deleted(scene: Scene) -> None:
    scene.keep(stored(UPLOAD, place_of("w1"), place_of("w2")))
    assert scene.change("discard", object=UPLOAD) == {"object": UPLOAD, "read_by": []}
    assert scene.step() == [("w1", (UPLOAD,)), ("w2", (UPLOAD,))]
    with pytest.raises(UnknownObjectError):
        scene.ask("object", object=UPLOAD)


def test_removing_a_job_leaves_the_kept_objects_that_it_read(scene: Scene) -> None:
    scene.keep(stored(UPLOAD, place_of("w1")))
    scene.read_by_job(UPLOAD)
    scene.change("remove", job=JOB)
    assert scene.step() == []
    assert scene.ask("object", object=UPLOAD)["state"] == "there"


def test_a_discarded_object_stays_until_the_jobs_that_read_it_are_removed(scene: Scene) -> None:
    scene.keep(stored(UPLOAD, place_of("w1")))
    scene.read_by_job(UPLOAD)
    assert scene.change("discard", object=UPLOAD)["read_by"] == [1]
    assert scene.step() == []
    assert scene.ask("object", object=UPLOAD)["name"] is None
    scene.change("remove", job=JOB)
    assert scene.step() == [("w1", (UPLOAD,))]


def test_a_kept_object_that_is_lost_has_failed_and_can_be_discarded(scene: Scene) -> None:
    scene.keep(stored(UPLOAD, place_of("w1")))
    scene.machine.worker_lost("w1", "it was killed", scene.now_s)
    scene.step()
    assert scene.ask("object", object="last")["state"] == "failed"
    scene.change("discard", object="last")
    assert scene.step() == []
    assert not scene.machine.kept


def test_workers_that_are_gone_do_not_count_as_locations(scene: Scene) -> None:
    places = frozenset((place_of("w2"), place_of("gone")))
    scene.keep(Sweetheart(ObjectId(UPLOAD), place_of("gone"), 5000, places))
    assert scene.ask("object", object=UPLOAD)["at"] == [place_of("w2")]
    with pytest.raises(CannotKeepError, match="put it again"):
        scene.keep(stored(OTHER, place_of("gone")))


@pytest.mark.parametrize(
    "name, reference",
    [
        ("x", stored("mine", place_of("w1"))),
        ("last", stored(UPLOAD, place_of("w1"))),
        ("x", failed(UPLOAD)),
        ("x", None),
        ("x" * 201, stored(UPLOAD, place_of("w1"))),
        (7, stored(UPLOAD, place_of("w1"))),
        ("x", inline(UPLOAD, b"1" * 1025)),
    ],
)
def test_only_an_upload_with_a_valid_name_can_be_kept(
    scene: Scene, name: Any, reference: Any
) -> None:
    with pytest.raises(CannotKeepError):
        scene.change("keep", name=name, reference=reference)
    assert not scene.machine.kept
    assert not scene.machine.graph.objects.nodes


def test_an_upload_of_a_job_cannot_be_kept(scene: Scene) -> None:
    upload = stored(UPLOAD, place_of("w1"))
    task = a_task("result", inputs=[UPLOAD])
    scene.machine.client_sent("c", SubmitJob(a_job_spec()), 0.0)
    scene.machine.client_sent("c", AddTask(task, (upload,)), 0.0)
    with pytest.raises(CannotKeepError, match="exists already"):
        scene.keep(upload)


def test_the_output_of_a_task_cannot_be_discarded(scene: Scene) -> None:
    scene.keep(inline(UPLOAD))
    scene.read_by_job(UPLOAD)
    with pytest.raises(CannotKeepError, match="deleted with the job"):
        scene.change("discard", object="result")


def test_a_name_that_two_objects_have_is_refused(scene: Scene) -> None:
    for object_id in (UPLOAD, OTHER):
        scene.keep(inline(object_id))
    with pytest.raises(UnknownObjectError, match="2 objects are called words"):
        scene.ask("object", object="words")
    assert scene.ask("object", object="last")["object"] == OTHER


def test_last_selects_the_newest_upload_even_if_an_object_has_that_id(scene: Scene) -> None:
    scene.machine.graph.objects.ensure(ObjectId("last"))
    scene.keep(inline(UPLOAD))
    assert scene.ask("object", object="last")["object"] == UPLOAD


@pytest.mark.parametrize("selector", ["nothing", None, 7, ["x"], "x" * 1000, "last"])
def test_the_error_for_an_unknown_object_is_short(scene: Scene, selector: Any) -> None:
    with pytest.raises(UnknownObjectError) as error:
        scene.ask("object", object=selector)
    assert len(str(error.value)) < 300


@pytest.mark.parametrize("first", [10**30, 2, True, -1, "1", None])
@pytest.mark.parametrize("topic", ["objects", "results"])
def test_a_page_can_start_at_any_position(scene: Scene, topic: str, first: Any) -> None:
    scene.keep(inline(UPLOAD))
    scene.read_by_job(UPLOAD)
    page = scene.ask(topic, first=first, job=JOB)
    assert len(page[topic]) <= 2
    assert page["next"] is None


def test_objects_are_listed_page_by_page(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_locations, "LISTED_MAX", 2)
    names = [f"upload:{number:032}" for number in range(5)]
    for name in names:
        scene.keep(inline(name))
    scene.read_by_job(names[0])
    for kept, expected in ((True, names), (False, [*names, "result"])):
        told, first = [], 0
        while first is not None:
            page = scene.ask("objects", first=first, kept=kept)
            assert len(page["objects"]) <= 2
            told += [row["object"] for row in page["objects"]]
            first = page["next"]
        assert told == expected
