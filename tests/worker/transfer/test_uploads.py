"""Tests uploads and pins: the decisions of the machine, and the file that stores pins."""

from __future__ import annotations

from pathlib import Path

import pytest

from ciel.core.events import AssignTask, DropObjects, TaskFault, TaskReported
from ciel.core.ids import ObjectId
from ciel.testing.builders import a_task, stored
from ciel.worker.pins import Pins
from ciel.worker.state.machine import WorkerMachine
from ciel.worker.state.orders import DeleteObjects, FetchObject, KillAttempt, StartAttempt
from ciel.worker.state.uploads import NEW_FOR_S, Uploads

HERE, THERE = "here:1", "there:1"
X, Y = ObjectId("x"), ObjectId("y")


@pytest.fixture
def machine() -> WorkerMachine:
    return WorkerMachine(HERE, "this host", 1)


def deleted(machine: WorkerMachine) -> list[ObjectId]:
    return [
        o
        for order in machine.take_orders()
        if isinstance(order, DeleteObjects)
        for o in order.objects
    ]


def test_what_was_uploaded_long_ago_is_told_apart_from_what_is_new(machine: WorkerMachine) -> None:
    machine.uploaded(X, 0.0)
    machine.uploaded(Y, 10.0)
    assert machine.uploads.old(NEW_FOR_S - 1) == []
    assert machine.uploads.old(NEW_FOR_S) == [X]
    machine.uploaded(X, NEW_FOR_S)  # a second upload of the same object
    assert machine.uploads.old(NEW_FOR_S + 10) == [Y]
    assert machine.uploads.old(NEW_FOR_S + 10, older_than_s=0) == [Y, X]


def test_what_is_deleted_was_never_uploaded(machine: WorkerMachine) -> None:
    machine.uploaded(X, 0.0)
    machine.master_message(DropObjects((X,)), 1.0)
    assert (deleted(machine), machine.uploads.old(NEW_FOR_S)) == ([X], [])


def test_what_is_left_from_an_earlier_life_was_uploaded_if_no_task_made_it(
    machine: WorkerMachine,
) -> None:
    machine.uploads.found((X, ObjectId(f"{'0' * 32}:out:0")), 0.0)
    assert machine.uploads.old(NEW_FOR_S) == [X]


def test_what_is_pinned_stays_whoever_wants_it_gone(machine: WorkerMachine) -> None:
    for object_id in (X, Y):
        machine.uploaded(object_id, 0.0)
    machine.uploads.pin(X)
    assert machine.uploads.old(NEW_FOR_S) == [Y]
    machine.master_message(DropObjects((X, Y)), 1.0)
    assert (deleted(machine), list(machine.stored)) == ([Y], [X])
    machine.uploads.unpin(X)
    assert machine.uploads.old(1 + NEW_FOR_S) == [X]


def test_what_is_pinned_is_not_read_in_place_of_what_was_made_since(machine: WorkerMachine) -> None:
    machine.uploaded(X, 0.0)
    machine.uploads.pin(X)
    machine.master_message(DropObjects((X,)), 1.0)
    reader = a_task("a", inputs=["x"])
    machine.master_message(AssignTask(reader, 1, (stored("x", THERE),)), 2.0)
    assert [type(order) for order in machine.orders] == [FetchObject]


def test_an_attempt_that_is_cancelled_for_a_reason_is_reported_with_it(
    machine: WorkerMachine,
) -> None:
    running, queued = a_task("a"), a_task("b")
    fault = TaskFault("ABORTED", "why")
    for spec in (running, queued):
        machine.master_message(AssignTask(spec, 1, ()), 0.0)
    for spec in (queued, running):
        machine.cancel((spec.id, 1), fault, 1.0)
    assert [type(order) for order in machine.orders] == [StartAttempt, KillAttempt]
    machine.ended((running.id, 1), (), TaskFault("RUNTIME_EXCEPTION", "killed"), 1.0, 1.1)
    assert machine.reports == [
        TaskReported(queued.id, 1, (), fault, 0.0),
        TaskReported(running.id, 1, (), fault, 1.0),
    ]
    assert not [*machine.problems()]


# --- pins -----------------------------------------------------------------------------------------


def test_pins_are_there_again_if_their_objects_are(tmp_path: Path) -> None:
    pins = Pins(tmp_path / "pins", Uploads(), ())
    for name in ("x", "y", "z", "y"):
        pins.add(ObjectId(name))
    assert pins.remove(ObjectId("z"))
    assert not pins.remove(ObjectId("z"))
    uploads = Uploads()
    again = Pins(tmp_path / "pins", uploads, {X, ObjectId("z")})
    assert again.ids == list(uploads.pinned) == [X]


def test_a_torn_line_and_what_is_no_id_are_no_pins(tmp_path: Path) -> None:
    (tmp_path / "pins").write_bytes(b"x\n../y\n\n\xff\ny\nxyz")
    ids = {X, Y, ObjectId("xyz"), ObjectId("xy")}
    assert Pins(tmp_path / "pins", Uploads(), ids).ids == [X, Y]


def test_a_pin_that_cannot_be_written_is_none(tmp_path: Path) -> None:
    pins = Pins(tmp_path / "absent" / "pins", Uploads(), ())
    with pytest.raises(OSError, match="No such file"):
        pins.add(X)
    assert pins.ids == []
