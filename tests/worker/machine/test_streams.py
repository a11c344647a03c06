"""Scenes with the worker's machine: streams, and processes that wait in the middle of a task."""

from __future__ import annotations

import pytest

from ciel.core.events import (
    DropObjects,
    InputsLost,
    SpawnTask,
    StreamsOpened,
    TaskFault,
)
from ciel.core.ids import ObjectId
from ciel.core.plans import StreamPlan
from ciel.core.refs import Concrete, Sweetheart
from ciel.core.tasks import TaskSpec
from ciel.testing.builders import a_task, inline, stored
from ciel.worker.state.orders import (
    AbandonFetch,
    DeleteObjects,
    EndProcesses,
    FetchObject,
    KillAttempt,
)
from ciel_tests.scenes.worker import (
    A_TO_COME,
    CANCELLED,
    FIXED,
    HERE,
    READS_A,
    READS_X,
    THERE,
    A,
    Played,
    X,
    copied,
    fetch,
    growing,
    lost,
    report,
    start,
)

# --- streams --------------------------------------------------------------------------------------


def opens(played: Played, spec: TaskSpec, *objects: str) -> StreamsOpened:
    ids = tuple([ObjectId(object_id) for object_id in objects])
    played.machine.streams_opened((spec.id, 1), ids, played.now_s)
    return StreamsOpened(spec.id, 1, tuple([growing(object_id, HERE) for object_id in objects]))


def test_what_grows_is_told_and_read_without_a_fetch(two: Played) -> None:
    two.run(A)
    two.comes(*[opens(two, A, "a")])
    two.assign(READS_A, growing("a", HERE))
    two.comes(start(READS_A, growing("a", HERE)))
    two.ended(A, stored("a", HERE))
    two.ended(READS_A)
    two.comes(report(A, stored("a", HERE)), report(READS_A))


def test_a_successor_that_comes_late_reads_along(two: Played) -> None:
    two.run(A)
    two.comes(opens(two, A, "a"))
    two.assign(READS_A, A_TO_COME)  # the master did not know the stream yet
    two.comes(start(READS_A, growing("a", HERE)))


def test_a_successor_reads_along(two: Played) -> None:
    two.run(A)
    two.assign(READS_A, A_TO_COME)
    two.comes()
    told = opens(two, A, "a")
    two.comes(start(READS_A, growing("a", HERE)), told)
    two.ended(A, inline("a"))
    two.ended(READS_A)
    two.comes(report(A, inline("a")), report(READS_A))


def test_what_is_small_is_given_to_readers_that_begin_after_its_end(played: Played) -> None:
    """A small object is in no store, so the worker passes its value."""
    played.run(A)
    told = opens(played, A, "a")
    played.assign(READS_A, growing("a", HERE))
    played.comes(told)
    played.ended(A, inline("a"))
    played.comes(start(READS_A, inline("a")), report(A, inline("a")))
    played.ended(READS_A)
    late = a_task("late", inputs=["a"])
    played.assign(late, growing("a", HERE))
    played.comes(start(late, inline("a")), report(READS_A))
    played.ended(late)
    played.comes(report(late))


@pytest.mark.parametrize("fault", [None, TaskFault("RUNTIME_ERROR", "no luck")])
def test_readers_of_what_ended_badly_end_before_it_is_made_again(
    two: Played, fault: TaskFault | None
) -> None:
    two.run(A)
    queued = a_task("queued", inputs=["a"])
    told = opens(two, A, "a")
    two.assign(READS_A, growing("a", HERE))
    two.assign(queued, growing("a", HERE))
    two.comes(start(READS_A, growing("a", HERE)), told)
    two.ended(A, fault=fault)
    ends = InputsLost(A.id, 1, ((ObjectId("a"), HERE),), "a: its producer has failed")
    two.comes(
        KillAttempt(READS_A.id, 1, force=False),
        report(A, fault=fault),
        ends._replace(task=queued.id),
    )
    two.ended(READS_A, stored("out", HERE))  # its output is not valid
    two.comes(DeleteObjects((ObjectId("out"),)), ends._replace(task=READS_A.id))


def test_what_is_being_ended_is_read_no_more_though_it_is_made_again_here(two: Played) -> None:
    two.run(A)
    told = opens(two, A, "a")
    two.cancel(A)
    two.assign(A, attempt=2)
    two.assign(READS_A, A_TO_COME)
    two.comes(KillAttempt(A.id, 1, force=False), start(A, attempt=2), told)
    two.machine.ended((A.id, 2), (stored("a", HERE),), None, 2.5, two.now_s)
    made = report(A, stored("a", HERE))._replace(attempt=2)
    two.comes(start(READS_A, stored("a", HERE)), made)


def test_who_fetches_a_whole_object_does_not_read_it_as_it_is_made_again_here(two: Played) -> None:
    two.assign(READS_A, stored("a", THERE))
    two.comes(fetch("a", THERE))
    two.run(A)
    two.comes(opens(two, A, "a"))
    two.fetched("a")
    two.comes(start(READS_A, stored("a", THERE)), copied("a"))


def test_a_reader_that_found_out_by_itself_is_told_of_once(two: Played) -> None:
    two.run(A)
    told = opens(two, A, "a")
    two.assign(READS_A, growing("a", HERE))
    two.comes(start(READS_A, growing("a", HERE)), told)
    losses = ((ObjectId("a"), HERE),)
    two.machine.stream_broken(ObjectId("a"), "broken", two.now_s)
    two.comes(KillAttempt(READS_A.id, 1, force=False))
    two.machine.inputs_gone((READS_A.id, 1), losses, "it broke", two.now_s)
    two.comes(InputsLost(READS_A.id, 1, losses, "broken"))
    two.machine.stream_broken(ObjectId("a"), "broken", two.now_s)
    two.ended(A, stored("a", HERE))
    two.comes(report(A, stored("a", HERE)))


def test_an_output_that_was_taken_back_may_grow_again(two: Played) -> None:
    two.run(A)
    first = opens(two, A, "a")
    two.machine.stream_broken(ObjectId("a"), "taken back", two.now_s)
    two.comes(first, opens(two, A, "a"))
    two.assign(READS_A, growing("a", HERE))
    two.comes(start(READS_A, growing("a", HERE)))
    two.ended(A, stored("a", HERE))
    two.ended(READS_A)
    two.comes(report(A, stored("a", HERE)), report(READS_A))


def test_what_grows_elsewhere_is_read_as_soon_as_it_grows_here(played: Played) -> None:
    x = growing("x", THERE)
    played.assign(READS_X, x)
    played.comes(FetchObject(x, (StreamPlan(THERE),)))
    played.machine.stream_opened(X, played.now_s)
    played.comes(start(READS_X, x))
    played.fetched("x")
    played.comes(copied("x"))
    played.ended(READS_X)
    played.comes(report(READS_X))


def test_what_broke_elsewhere_is_not_followed_any_more(played: Played) -> None:
    played.assign(READS_X, growing("x", THERE))
    played.machine.stream_opened(X, played.now_s)
    played.machine.take_orders()
    broken = DropObjects((X, ObjectId("y")), unless_complete=True)
    played.machine.master_message(broken, played.now_s)
    assert played.machine.orders == [AbandonFetch(X)]
    played.machine.take_orders()
    played.machine.master_lost(played.now_s)
    assert AbandonFetch(X) in played.machine.orders
    played.fetch_failed("x", THERE)
    played.machine.take_orders()
    played.machine.master_message(DropObjects((X,)), played.now_s)
    assert played.machine.orders == []


def test_a_copy_that_breaks_off_ends_its_readers(played: Played) -> None:
    x = growing("x", THERE)
    played.assign(READS_X, x)
    played.machine.stream_opened(X, played.now_s)
    played.comes(FetchObject(x, (StreamPlan(THERE),)), start(READS_X, x))
    played.fetch_failed("x", THERE)
    played.comes(KillAttempt(READS_X.id, 1, force=False))
    played.ended(READS_X, fault=TaskFault("RUNTIME_ERROR", "was killed"))
    played.comes(lost(READS_X, ("x", THERE)))


def test_streams_of_an_attempt_that_is_cancelled_are_not_told(played: Played) -> None:
    played.run(A)
    played.cancel(A)
    opens(played, A, "a")
    played.ended(A)
    played.comes(KillAttempt(A.id, 1, force=False), report(A, fault=CANCELLED))


# --- objects and processes that interactive programs leave ----------------------------------------


def test_a_sweetheart_is_held_like_any_object(played: Played) -> None:
    played.run(A)
    here = frozenset((HERE,))
    made = Sweetheart(ObjectId("a"), HERE, 5000, here)
    played.ended(A, made)
    played.assign(READS_A, made)
    played.comes(start(READS_A, made), report(A, made))
    played.ended(READS_A)
    played.machine.master_message(DropObjects((made.id,)), played.now_s)
    played.comes(DeleteObjects((made.id,)), report(READS_A))


def test_what_a_child_is_told_of_is_held_before_its_maker_has_ended(two: Played) -> None:
    two.run(A)
    extra = Concrete(ObjectId(f"{A.id}:part:0"), 5000, frozenset((HERE,)))
    foreign = stored("foreign", HERE)  # only a program claims that it exists
    child = a_task("child", inputs=[extra.id], parent=A)
    two.machine.spawned((A.id, 1), child, (extra, foreign), two.now_s)
    two.assign(child, extra)
    two.comes(start(child, extra), SpawnTask(child, (extra, foreign), 1))
    assert list(two.machine.stored) == [extra.id]
    two.ended(child)
    two.ended(A, extra)
    two.comes(report(child), report(A, extra))


def test_what_was_made_in_vain_is_deleted_unless_it_is_known(played: Played) -> None:
    played.machine.uploaded(X, played.now_s)
    played.machine.outputs_discarded((X, ObjectId("y"), ObjectId("z")))
    played.comes(DeleteObjects((ObjectId("y"), ObjectId("z"))))
    played.machine.outputs_discarded((X,))
    played.comes()


GOES_ON = a_task("goes on", inputs=["f"])


def test_a_process_that_waits_is_gone_on_with(played: Played) -> None:
    played.run(A)
    played.ended(A, FIXED)
    played.assign(GOES_ON, FIXED)
    played.comes(start(GOES_ON, FIXED), report(A, FIXED))
    played.ended(GOES_ON)
    played.comes(report(GOES_ON))


def test_a_process_that_nobody_goes_on_with_is_ended_once(played: Played) -> None:
    played.run(A)
    played.ended(A, FIXED)
    played.comes(report(A, FIXED))
    for _ in range(2):
        played.machine.master_message(DropObjects((FIXED.id,)), played.now_s)
    played.comes(EndProcesses((FIXED.id,)))


def test_processes_that_wait_end_with_their_master(played: Played) -> None:
    played.run(A)
    played.ended(A, FIXED)
    played.machine.master_lost(played.now_s)
    played.comes(EndProcesses((FIXED.id,)))


def test_a_process_that_waits_for_an_attempt_that_was_cancelled_is_ended(played: Played) -> None:
    played.run(A)
    played.cancel(A)
    played.ended(A, FIXED)
    played.comes(
        KillAttempt(A.id, 1, force=False),
        EndProcesses((FIXED.id,)),
        report(A, fault=CANCELLED),
    )
    played.machine.master_message(DropObjects((FIXED.id,)), played.now_s)
    played.comes()


def test_a_process_that_is_gone_is_an_input_that_was_lost(played: Played) -> None:
    played.run(A)
    played.ended(A, FIXED)
    played.assign(GOES_ON, FIXED)
    losses = ((FIXED.id, HERE),)
    played.machine.inputs_gone((GOES_ON.id, 1), losses, "why", played.now_s)
    played.comes(start(GOES_ON, FIXED), report(A, FIXED), lost(GOES_ON, ("f", HERE)))
    played.machine.master_message(DropObjects((FIXED.id,)), played.now_s)
    played.comes()
