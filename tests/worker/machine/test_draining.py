"""Scenes with the worker's machine: it copies objects by order of the master, and is drained."""

from __future__ import annotations

import pytest

from ciel.core.events import (
    CopyObjects,
    DismissWorker,
    DrainWorker,
    DropObjects,
    NotCopied,
    SpawnTask,
    WorkersUnreached,
)
from ciel.core.ids import ObjectId
from ciel.testing.builders import a_task, stored
from ciel.worker.state.orders import DeleteObjects, LeaveMaster
from ciel.worker.state.uploads import NEW_FOR_S
from ciel_tests.scenes.worker import (
    BEYOND,
    HERE,
    READS_X,
    THERE,
    A,
    Played,
    X,
    copied,
    fetch,
    lost,
    spawn,
)


def order_copy(played: Played, *places: str) -> None:
    played.machine.master_message(CopyObjects((stored("x", *places),)), played.now_s)


def drain(played: Played, timeout_s: float | None = None) -> None:
    played.machine.master_message(DrainWorker(timeout_s), played.now_s)


def test_it_copies_an_object_that_it_does_not_have(played: Played) -> None:
    order_copy(played, THERE)
    played.comes(fetch("x", THERE))
    played.fetched("x")
    played.comes(copied("x"))


def test_it_reports_an_object_that_it_has(played: Played) -> None:
    played.machine.fetched(X, played.now_s, 5000)
    played.comes(copied("x"))
    order_copy(played, THERE, HERE)
    played.comes(copied("x"))


def test_it_reports_an_object_that_arrives_otherwise_during_the_copy(played: Played) -> None:
    order_copy(played, THERE)
    played.comes(fetch("x", THERE))
    played.machine.uploaded(X, played.now_s)
    played.fetched("x")
    played.comes(copied("x"))


def test_it_does_not_drop_a_copy_that_it_is_entrusted_with(played: Played) -> None:
    played.machine.fetched(X, played.now_s, 5000)
    assert played.machine.is_droppable(X)
    order_copy(played, THERE, HERE)
    assert not played.machine.is_droppable(X)
    played.machine.master_message(DropObjects((X,)), played.now_s)
    played.comes(DeleteObjects((X,)), copied("x"), copied("x"))
    assert X not in played.machine.stored
    assert played.machine.is_droppable(X)


@pytest.mark.parametrize("lacks_room", [False, True])
def test_it_says_why_it_could_not_copy_an_object(played: Played, lacks_room: bool) -> None:
    played.assign(READS_X, stored("x", THERE))
    played.comes(fetch("x", THERE))
    order_copy(played, THERE)
    played.machine.fetch_failed(X, (THERE,), "why", played.now_s, lacks_room=lacks_room)
    ended = lost(READS_X, ("x", THERE))._replace(lacks_room=lacks_room)
    played.comes(NotCopied(X, (THERE,), "why", lacks_room), ended)
    assert played.machine.is_droppable(X)


def test_it_says_which_holders_did_not_answer_and_may_have_the_object(played: Played) -> None:
    played.assign(READS_X, stored("x", BEYOND, THERE))
    played.comes(fetch("x", BEYOND, THERE))
    order_copy(played, BEYOND, THERE)
    places = (BEYOND, THERE)
    played.machine.fetch_failed(X, places, "why", played.now_s, unreached=(THERE,))
    played.comes(
        WorkersUnreached((THERE,)),
        NotCopied(X, (BEYOND,), "why", False),
        lost(READS_X, ("x", BEYOND), ("x", THERE)),
    )


def test_a_worker_that_drains_starts_no_children() -> None:
    played = Played(slots=2, starts_locally="stdinout")
    played.run(A)
    child = a_task("child", parent=A)
    drain(played)
    spawn(played, child)
    played.comes(SpawnTask(child, (), 1, False))


def test_a_worker_that_drains_reports_uploads_that_no_job_may_have_named(played: Played) -> None:
    old, new, newer = ObjectId("old"), ObjectId("new"), ObjectId("newer")
    played.machine.uploaded(old, played.now_s)
    played.now_s += NEW_FOR_S
    played.machine.uploaded(new, played.now_s)
    drain(played)
    played.comes(copied("new", None, kept=True))
    played.machine.uploaded(newer, played.now_s)
    played.comes(copied("newer", None, kept=True))


def test_it_knows_how_long_its_tasks_may_still_run(played: Played) -> None:
    assert not played.machine.is_draining
    drain(played, 10.0)
    played.now_s += 4
    assert played.machine.is_draining
    assert played.machine.drain_left_s(played.now_s) == 6.0
    assert played.machine.drain_left_s(played.now_s + 60) == 0.0
    drain(played, None)
    assert played.machine.drain_left_s(played.now_s) is None


def test_it_leaves_when_it_is_dismissed(played: Played) -> None:
    played.machine.master_message(DismissWorker(), played.now_s)
    played.comes(LeaveMaster())
