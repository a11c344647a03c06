"""Scenes with the worker's machine: slots, inputs, ends, and the connection to the master."""

from __future__ import annotations

import pytest

from ciel.core.events import (
    KILL_GRACE_S,
    AssignTask,
    AttemptsKept,
    CancelTask,
    CompareObjects,
    ContentDiffers,
    DropObjects,
    MeetWorkers,
    Message,
    Neighbour,
    ObjectsStored,
    SpawnTask,
    StoreListed,
    TaskFault,
)
from ciel.core.ids import ObjectId
from ciel.core.plans import HttpPlan, LinkPlan
from ciel.core.refs import Concrete
from ciel.testing.builders import a_task, failed, inline, stored
from ciel.worker.state.machine import APART_FROM_BYTES, FETCHES_PER_TICK, PASSED_PER_SLOT
from ciel.worker.state.orders import (
    CompareContents,
    DeleteObjects,
    FetchObject,
    KillAttempt,
)
from ciel_tests.scenes.worker import (
    BEYOND,
    CANCELLED,
    FIXED,
    HERE,
    READS_X,
    THERE,
    A,
    B,
    C,
    Played,
    X,
    copied,
    fetch,
    lost,
    report,
    spawn,
    start,
)

# --- inputs that are read in parts ----------------------------------------------------------------

IN_PARTS = a_task("out", inputs=["x", "y"])._replace(apart_count=1)


def large(object_id: str, *places: str) -> Concrete:
    return Concrete(ObjectId(object_id), APART_FROM_BYTES, frozenset(places))


def test_what_is_read_in_parts_stays_on_its_host(played: Played) -> None:
    inputs = (large("x", THERE), large("y", HERE))
    played.fetched("y")
    played.forget()
    played.assign(IN_PARTS, *inputs)
    played.comes(start(IN_PARTS, *inputs))


def test_other_inputs_are_copied_first(played: Played) -> None:
    inputs = (large("x", THERE), large("y", THERE))
    played.assign(IN_PARTS, *inputs)
    played.comes(FetchObject(inputs[1], (HttpPlan(THERE),)))
    played.fetched("y")
    played.comes(start(IN_PARTS, *inputs), copied("y"))


def test_what_is_small_is_copied_as_a_whole(played: Played) -> None:
    small = large("x", THERE)._replace(size_bytes=APART_FROM_BYTES - 1)
    played.assign(IN_PARTS, small, inline("y"))
    played.comes(FetchObject(small, (HttpPlan(THERE),)))


def test_what_another_worker_of_the_host_has_is_linked(played: Played) -> None:
    played.machine.master_message(MeetWorkers((Neighbour(THERE, "this host"),)), 0.0)
    x = large("x", THERE)
    played.assign(IN_PARTS, x, inline("y"))
    played.comes(FetchObject(x, (LinkPlan(THERE), HttpPlan(THERE))))


def test_what_no_known_worker_has_is_reported(played: Played) -> None:
    x = large("x", "gone:1")
    played.assign(IN_PARTS, x, inline("y"))
    played.comes(FetchObject(x, ()))


# --- slots and order ------------------------------------------------------------------------------


def test_the_first_task_of_a_job_passes_what_was_dispatched_eagerly(played: Played) -> None:
    other = a_task("other", job="2" * 32)
    played.run(A)
    played.assign(B)
    played.assign(C)
    played.assign(other)
    played.comes()
    played.ended(A)
    played.comes(start(other), report(A))


def test_new_jobs_pass_a_task_only_so_often(played: Played) -> None:
    played.run(A)
    played.assign(B)
    new = [a_task("new", job=f"{number:032x}") for number in range(2, 4 + PASSED_PER_SLOT)]
    for spec in new:
        played.assign(spec)
    played.comes()
    order = [*new[: PASSED_PER_SLOT - 1], B]
    for before, spec in zip([A, *order], order, strict=False):
        played.ended(before)
        played.comes(start(spec), report(before))


def test_a_task_without_inputs_starts_at_once_and_is_reported(played: Played) -> None:
    played.run(A)
    played.ended(A, inline("a"))
    played.comes(report(A, inline("a")))


def test_an_assignment_that_is_said_twice_counts_once(played: Played) -> None:
    played.run(A)
    played.assign(A)
    played.comes()


def test_a_second_attempt_is_one_of_its_own(played: Played) -> None:
    played.run(A)
    played.assign(A, attempt=2)
    played.comes()
    played.ended(A, fault=TaskFault("X", ""))
    played.comes(start(A, attempt=2), report(A, fault=TaskFault("X", "")))


def test_a_task_waits_for_a_slot(played: Played) -> None:
    played.run(A)
    played.assign(B)
    played.comes()
    played.ended(A)
    played.comes(start(B), report(A))


def test_the_queue_goes_by_priority_then_by_arrival(played: Played) -> None:
    played.run(A)
    queue = [a_task(f"q{i}", priority=priority) for i, priority in enumerate((0, 5, 0, 5, -1))]
    for spec in queue:
        played.assign(spec)
    played.comes()
    running = A
    for number in (1, 3, 0, 2, 4):
        played.ended(running)
        played.comes(start(queue[number]), report(running))
        running = queue[number]


def test_programs_ask_for_no_more_memory_together_than_there_is() -> None:
    played = Played(slots=4, memory_bytes=4)
    first, large, small = (a_task(n, memory_bytes=m) for n, m in (("f", 2), ("l", 3), ("s", 1)))
    played.assign(first)
    played.comes(start(first))
    played.assign(large)
    played.assign(small)  # it does not overtake the large task
    played.comes()
    played.ended(first)
    played.comes(start(large), start(small), report(first))


def test_who_asks_for_more_memory_than_there_is_runs_alone_among_those_who_ask() -> None:
    played = Played(slots=4, memory_bytes=4)
    huge, small, modest = a_task("h", memory_bytes=9), a_task("s", memory_bytes=1), a_task("m")
    played.assign(huge)
    played.assign(modest)
    played.assign(small)
    played.comes(start(huge), start(modest))
    played.ended(huge)
    played.comes(start(small), report(huge))


def test_a_child_that_asks_for_memory_begins_where_there_is_some() -> None:
    played = Played(slots=3, starts_locally="stdinout", memory_bytes=4)
    played.run(A)
    for name, begins in (("one", True), ("two", False)):
        child = a_task(name, parent=A, memory_bytes=3)
        spawn(played, child)
        spawned = SpawnTask(child, (), 1, started=begins)
        played.comes(*[start(child, attempt=0)] * begins, spawned)


def test_a_task_of_many_slots_is_not_overtaken() -> None:
    played = Played(slots=3)
    wide, narrow = a_task("wide", slots=3), a_task("narrow")
    played.run(A)
    played.assign(wide)
    played.assign(narrow)
    played.comes()
    played.ended(A)
    played.comes(start(wide), report(A))
    played.ended(wide)
    played.comes(start(narrow), report(wide))


def test_what_fits_starts_together() -> None:
    played = Played(slots=3)
    wide = a_task("wide", slots=3)
    played.run(wide)
    for spec in (A, B, C):
        played.assign(spec)
    played.ended(wide)
    played.comes(start(A), start(B), start(C), report(wide))


def test_what_is_cancelled_in_the_queue_is_passed_over(played: Played) -> None:
    played.run(A)
    played.assign(B)
    played.assign(C)
    played.cancel(B)
    played.comes(report(B, fault=CANCELLED, run_s=0.0))
    played.ended(A)
    played.comes(start(C), report(A))


# --- inputs ---------------------------------------------------------------------------------------

READS_TWO = a_task("sum", inputs=["x", "y"])


def test_a_task_waits_for_every_input(played: Played) -> None:
    x, y = stored("x", THERE), stored("y", BEYOND)
    played.assign(READS_TWO, x, y)
    played.comes(fetch("x", THERE), fetch("y", BEYOND))
    played.fetched("y")
    played.comes(copied("y"))
    played.fetched("x")
    played.comes(start(READS_TWO, x, y), copied("x"))


def test_inputs_that_are_inline_failed_or_here_need_no_fetch(played: Played) -> None:
    played.machine.uploaded(ObjectId("z"), played.now_s)
    spec = a_task("out", inputs=["x", "y", "z"], sees_errors=True)
    inputs = (inline("x"), failed("y"), stored("z", THERE))
    played.assign(spec, *inputs)
    played.comes(start(spec, *inputs))


def test_several_wait_for_one_fetch() -> None:
    played = Played(slots=2)
    x, y = stored("x", THERE), inline("y")
    played.assign(READS_TWO, x, y)
    played.comes(fetch("x", THERE))
    played.assign(READS_X, x)
    played.comes()
    played.fetched("x")
    played.comes(start(READS_TWO, x, y), start(READS_X, x), copied("x"))


def test_a_worker_orders_the_fetches_of_many_inputs_over_several_ticks() -> None:
    played = Played()
    machine = played.machine
    inputs = [stored(f"i:{number}", THERE) for number in range(2 * FETCHES_PER_TICK + 1)]
    spec = a_task("reader", inputs=[ref.id for ref in inputs])
    machine.master_message(AssignTask(spec, 1, tuple(inputs)), 0.0)
    assert len(machine.take_orders()) == FETCHES_PER_TICK
    assert machine.due_s() == 0.0
    machine.tick(1.0)
    assert len(machine.take_orders()) == FETCHES_PER_TICK
    machine.tick(2.0)
    assert machine.take_orders() == [FetchObject(inputs[-1], machine.plans_for(inputs[-1]))]
    assert machine.due_s() is None


def test_fetches_that_a_cancelled_attempt_has_not_ordered_yet_are_left_out() -> None:
    played = Played()
    machine = played.machine
    inputs = [stored(f"i:{number}", THERE) for number in range(FETCHES_PER_TICK + 1)]
    spec = a_task("reader", inputs=[ref.id for ref in inputs])
    machine.master_message(AssignTask(spec, 1, tuple(inputs)), 0.0)
    machine.take_orders()
    machine.cancel((spec.id, 1), CANCELLED, 0.0)
    machine.tick(1.0)
    assert machine.take_orders() == []


def test_a_failed_fetch_ends_all_who_wait_for_it_and_names_the_places(played: Played) -> None:
    x, y = stored("x", THERE, BEYOND), stored("y", THERE)
    played.assign(READS_TWO, x, y)
    played.assign(READS_X, x)
    played.machine.take_orders()
    played.fetch_failed("x", THERE, BEYOND)
    losses = (("x", THERE), ("x", BEYOND))
    played.comes(lost(READS_TWO, *losses), lost(READS_X, *losses))
    played.fetched("y")  # no task waits for it any more, but the worker has the copy
    played.comes(copied("y"))


def test_what_failed_is_fetched_anew_for_the_next(played: Played) -> None:
    played.assign(READS_X, stored("x", THERE))
    played.fetch_failed("x", THERE)
    played.comes(fetch("x", THERE), lost(READS_X, ("x", THERE)))
    played.assign(READS_X, stored("x", BEYOND), attempt=2)
    played.comes(fetch("x", BEYOND))
    played.fetched("x")
    played.comes(start(READS_X, stored("x", BEYOND), attempt=2), copied("x"))


def test_who_waits_for_what_is_made_here_meanwhile_goes_on() -> None:
    played = Played(slots=2)
    played.run(A)
    reads_a = a_task("out", inputs=["a"])
    played.assign(reads_a, stored("a", THERE))
    played.comes(fetch("a", THERE))
    made = stored("a", HERE)
    played.ended(A, made)
    played.comes(start(reads_a, stored("a", THERE)), report(A, made))
    played.fetch_failed("a", THERE)
    played.comes()


def test_who_waits_for_what_a_client_uploads_meanwhile_goes_on(played: Played) -> None:
    played.assign(READS_X, stored("x", THERE))
    played.comes(fetch("x", THERE))
    played.machine.uploaded(ObjectId("x"), played.now_s)
    played.comes(start(READS_X, stored("x", THERE)))
    played.fetched("x")
    played.comes()


def test_inputs_that_are_gone_are_lost_here_and_the_slot_is_free(played: Played) -> None:
    x = stored("x", THERE)
    played.machine.uploaded(ObjectId("x"), played.now_s)
    played.assign(READS_X, x)
    played.assign(B)
    played.comes(start(READS_X, x))
    played.machine.inputs_gone((READS_X.id, 1), ((ObjectId("x"), HERE),), "why", played.now_s)
    played.comes(start(B), lost(READS_X, ("x", HERE)))
    played.ended(B)
    played.assign(READS_X, x, attempt=2)
    played.comes(fetch("x", THERE), report(B))


# --- cancelling -----------------------------------------------------------------------------------


def test_cancelled_while_it_fetches(played: Played) -> None:
    played.assign(READS_X, stored("x", THERE))
    played.comes(fetch("x", THERE))
    played.cancel(READS_X)
    played.comes(report(READS_X, fault=CANCELLED, run_s=0.0))
    played.fetched("x")
    played.comes(copied("x"))


def test_cancelled_while_it_runs_is_reported_only_when_nothing_runs(played: Played) -> None:
    played.run(A)
    played.assign(B)
    played.cancel(A)
    played.comes(KillAttempt(A.id, 1, force=False))
    played.cancel(A)
    played.comes()
    played.ended(A, fault=TaskFault("RUNTIME_EXCEPTION", "was killed by SIGTERM"))
    played.comes(start(B), report(A, fault=CANCELLED))


def test_a_program_that_stays_is_killed_by_force_once(played: Played) -> None:
    played.run(A)
    played.cancel(A)
    played.comes(KillAttempt(A.id, 1, force=False))
    assert played.machine.due_s() == played.now_s + KILL_GRACE_S
    played.advance(KILL_GRACE_S / 2)
    played.comes()
    played.advance(KILL_GRACE_S / 2)
    played.comes(KillAttempt(A.id, 1, force=True))
    assert played.machine.due_s() is None
    played.ended(A)
    played.comes(report(A, fault=CANCELLED))


def test_a_cancelled_attempt_that_ends_well_after_all_leaves_no_object(played: Played) -> None:
    played.run(A)
    played.cancel(A)
    played.ended(A, stored("a", HERE))
    played.comes(
        KillAttempt(A.id, 1, force=False),
        DeleteObjects((ObjectId("a"),)),
        report(A, fault=CANCELLED),
    )
    assert played.machine.due_s() is None


def test_a_cancelled_attempt_deletes_no_object_that_was_there_before(played: Played) -> None:
    played.run(A)
    played.machine.uploaded(ObjectId("a"), played.now_s)
    played.cancel(A)
    played.ended(A, stored("a", HERE))
    played.comes(KillAttempt(A.id, 1, force=False), report(A, fault=CANCELLED))


def test_a_cancelled_attempt_whose_inputs_are_gone_was_cancelled(played: Played) -> None:
    played.run(A)
    played.cancel(A)
    played.machine.inputs_gone((A.id, 1), ((ObjectId("x"), HERE),), "why", played.now_s)
    played.comes(KillAttempt(A.id, 1, force=False), report(A, fault=CANCELLED, run_s=0.0))


@pytest.mark.parametrize("attempt", [1, 2])
def test_calling_off_what_is_not_there_comes_to_nothing(played: Played, attempt: int) -> None:
    played.run(A)
    played.ended(A)
    played.comes(report(A))
    played.cancel(A, attempt)
    played.ended(A)
    played.machine.inputs_gone((A.id, 1), (), "", played.now_s)
    played.comes()


# --- time limits ----------------------------------------------------------------------------------


def test_a_time_limit_kills_politely_then_by_force(played: Played) -> None:
    limited = A._replace(needs=A.needs._replace(timeout_s=10.0))
    played.run(limited)
    assert played.machine.due_s() == played.now_s + 10
    played.advance(9.9)
    played.comes()
    played.advance(0.2)
    played.comes(KillAttempt(A.id, 1, force=False))
    assert played.machine.due_s() == played.now_s + KILL_GRACE_S
    played.cancel(limited)  # too late: the reason stays the time limit
    played.comes()
    played.advance(KILL_GRACE_S)
    played.comes(KillAttempt(A.id, 1, force=True))
    played.ended(limited)
    details = "it ran longer than its limit of 10 s"
    played.comes(report(limited, fault=TaskFault("TIMED_OUT", details)))
    assert played.machine.due_s() is None


def test_a_time_limit_begins_when_the_program_does(played: Played) -> None:
    limited = B._replace(needs=B.needs._replace(timeout_s=10.0))
    played.run(A)
    played.assign(limited)
    played.advance(50)
    assert played.machine.due_s() is None
    played.ended(A)
    played.comes(start(limited), report(A))
    assert played.machine.due_s() == played.now_s + 10


def test_a_limit_that_nobody_reached_is_forgotten(played: Played) -> None:
    limited = A._replace(needs=A.needs._replace(timeout_s=10.0))
    played.run(limited)
    played.ended(limited)
    played.comes(report(limited))
    assert played.machine.due_s() is None
    played.advance(20)
    played.comes()


# --- the master -----------------------------------------------------------------------------------


def test_a_lost_master_ends_everything_and_hears_nothing_of_what_did_not_run() -> None:
    played = Played(slots=1)
    played.run(A)
    played.assign(B)
    played.assign(READS_X, stored("x", THERE))
    played.machine.take_orders()
    played.machine.master_lost(played.now_s)
    played.comes(KillAttempt(A.id, 1, force=False))
    played.ended(A)
    played.comes(report(A, fault=CANCELLED))


def test_a_master_that_is_back_hears_what_is_held(played: Played) -> None:
    played.machine.master_reached()
    played.comes(StoreListed())
    played.fetched("x")
    played.comes(copied("x"))
    played.machine.master_lost(played.now_s)
    played.machine.master_reached()
    played.comes(copied("x", kept=True), StoreListed())


def test_what_is_left_from_an_earlier_life_is_offered(played: Played) -> None:
    played.machine.add_retained({ObjectId("x"): 5000})
    played.machine.master_reached()
    played.comes(copied("x", kept=True), StoreListed())
    played.assign(READS_X, stored("x", HERE))
    played.comes(start(READS_X, stored("x", HERE)))


def test_what_is_left_is_not_read_if_it_was_made_elsewhere_since(played: Played) -> None:
    played.machine.add_retained({ObjectId("x"): 5000})
    played.machine.master_reached()
    played.comes(copied("x", kept=True), StoreListed())
    played.assign(READS_X, stored("x", THERE))
    played.comes(fetch("x", THERE))
    played.fetched("x")  # its content turned out to be the same
    played.comes(start(READS_X, stored("x", THERE)))


def test_a_large_store_is_told_of_in_parts(played: Played) -> None:
    machine = played.machine
    machine.add_retained({ObjectId(f"o{number}"): number for number in range(2500)})
    machine.master_reached()
    machine.master_message(DropObjects((ObjectId("o3"), ObjectId("o2000"))), played.now_s)
    played.machine.take_orders()
    told = []
    while reports := machine.take_reports(played.now_s):
        said, *listed = reports
        assert isinstance(said, ObjectsStored)
        told.append(len(said.refs))
        assert listed == [StoreListed()][: sum(told) >= 2499]
        assert (machine.due_s() is None) == (sum(told) >= 2499)
    assert told == [1000, 1000, 499]


def test_what_was_not_told_before_the_master_was_lost_is_told_to_the_next(played: Played) -> None:
    machine = played.machine
    machine.add_retained({ObjectId(f"o{number}"): number for number in range(1500)})
    machine.master_reached()
    machine.take_reports(played.now_s)
    machine.master_lost(played.now_s)
    played.comes()
    machine.master_reached()
    told = [*machine.take_reports(played.now_s), *machine.take_reports(played.now_s)]
    assert [len(said.refs) for said in told if isinstance(said, ObjectsStored)] == [1000, 500]


def test_only_what_is_held_is_deleted(played: Played) -> None:
    played.fetched("x")
    played.comes(copied("x"))
    x, y = ObjectId("x"), ObjectId("y")
    played.machine.master_message(DropObjects((x, y)), played.now_s)
    played.comes(DeleteObjects((x,)))
    played.machine.master_message(DropObjects((x, y)), played.now_s)
    played.comes()
    played.machine.master_reached()
    played.comes(StoreListed())


def test_a_second_result_is_compared_with_the_first_and_deleted(played: Played) -> None:
    played.fetched("x")
    played.comes(copied("x"))
    x, y = stored("x", "w2:8001"), stored("y", "w2:8001")
    played.machine.master_message(CompareObjects((x, y)), played.now_s)
    played.comes(CompareContents((x,)), DeleteObjects((x.id,)))
    played.machine.content_differs(x.id)
    played.comes(ContentDiffers(x.id))


def test_a_restarted_master_hears_of_attempts_that_run_and_of_unconfirmed_ends(
    played: Played,
) -> None:
    played.run(A)
    played.assign(B)
    played.ended(A)
    played.comes(start(B), report(A))
    kept, *again = played.machine.master_restarted([report(A)])
    assert isinstance(kept, AttemptsKept)
    assert again == [report(A)]
    assert set(kept.attempts) == {(A.id, 1), (B.id, 1)}
    assert (kept.within, kept.cancelled) == ((), ())


def test_attempts_that_have_not_started_are_forgotten_with_a_restarted_master(
    played: Played,
) -> None:
    played.run(A)
    played.assign(B)
    played.assign(READS_X, stored("x", THERE))
    played.comes(fetch("x", THERE))
    [kept] = played.machine.master_restarted([])
    assert isinstance(kept, AttemptsKept)
    assert kept.attempts == ((A.id, 1),)
    played.ended(A)
    played.comes(report(A))
    played.fetched("x")
    played.comes(copied("x"))
    played.assign(B)
    played.comes(start(B))


def test_a_restarted_master_does_not_adopt_what_the_earlier_one_cancelled(played: Played) -> None:
    played.run(A)
    played.cancel(A)
    played.comes(KillAttempt(A.id, 1, force=False))
    assert played.machine.master_restarted([]) == [AttemptsKept(((A.id, 1),), (), (A.id,))]
    played.ended(A, fault=CANCELLED)
    end = report(A, fault=CANCELLED)
    played.comes(end)
    kept = AttemptsKept(((A.id, 1),), (), (A.id,))
    assert played.machine.master_restarted([end]) == [kept, end]


def test_a_restarted_master_does_not_adopt_what_was_cancelled_after_its_end(played: Played) -> None:
    """The earlier master has ignored what the attempt reported: SpawnTask, for instance."""
    child = a_task("c", parent=A, ordinal=0)
    end = report(child)._replace(attempt=0)
    played.run(A)
    played.machine.master_message(CancelTask(child.id, 0), played.now_s)
    started: list[Message] = [SpawnTask(child, (), 1, started=True), end]
    kept = AttemptsKept(((A.id, 1), (child.id, 0)), (), (child.id,))
    again = [SpawnTask(child, (), 1), end]
    assert played.machine.master_restarted(started) == [kept, *again]


def test_an_attempt_at_a_task_that_was_spawned_just_before_is_named(played: Played) -> None:
    """The master had recorded the task before it assigned it, and had not confirmed it yet."""
    child = a_task("c", parent=A, ordinal=0)
    played.run(A)
    played.ended(A)
    played.comes(report(A))
    played.run(child)
    spawned: list[Message] = [SpawnTask(child, (), 1)]
    kept = AttemptsKept(((child.id, 1),), (), ())
    assert played.machine.master_restarted(spawned) == [kept, *spawned]


def test_a_child_that_was_started_here_is_named_by_the_message_that_creates_it(
    played: Played,
) -> None:
    child = a_task("c", parent=A, ordinal=0)
    played.run(A)
    started: list[Message] = [
        SpawnTask(child, (), 1, started=True),
        report(child)._replace(attempt=0),
    ]
    kept = AttemptsKept(((A.id, 1),), (), ())
    assert played.machine.master_restarted(started) == [kept, *started]


def test_processes_that_wait_are_listed_with_the_objects(played: Played) -> None:
    played.run(A)
    played.ended(A, FIXED)
    played.comes(report(A, FIXED))
    played.machine.master_restarted([])
    played.machine.master_reached()
    played.comes(ObjectsStored((FIXED,), kept=True), StoreListed())


def test_a_task_whose_latest_attempt_goes_on_was_not_cancelled(played: Played) -> None:
    ends = [report(A, fault=CANCELLED), report(A)._replace(attempt=2)]
    kept = AttemptsKept(((A.id, 1), (A.id, 2)), (), ())
    assert played.machine.master_restarted(ends) == [kept, *ends]


def test_a_child_whose_output_was_deleted_since_was_not_started(played: Played) -> None:
    child = a_task("c", parent=A, ordinal=0)
    end = report(child, stored("c", HERE))._replace(attempt=0)
    started: list[Message] = [SpawnTask(child, (), 1, started=True), end]
    assert played.machine.master_restarted(started)[1:] == [SpawnTask(child, (), 1)]


def test_several_cancelled_attempts_at_a_task_are_named_once(played: Played) -> None:
    ends = [report(A, fault=CANCELLED)._replace(attempt=number) for number in (1, 2)]
    kept = AttemptsKept(((A.id, 1), (A.id, 2)), (), (A.id,))
    assert played.machine.master_restarted(ends) == [kept, *ends]


def test_an_end_whose_output_was_deleted_since_is_not_reported_to_a_restarted_master(
    played: Played,
) -> None:
    played.run(A)
    played.ended(A, stored("a", HERE))
    played.comes(report(A, stored("a", HERE)))
    played.machine.master_message(DropObjects((A.outputs[0],)), played.now_s)
    played.comes(DeleteObjects((A.outputs[0],)))
    again: list[Message] = [report(A, stored("a", HERE)), StoreListed(), AttemptsKept((), (), ())]
    assert played.machine.master_restarted(again) == [AttemptsKept((), (), ())]


def test_what_is_whole_is_kept_when_it_is_to_be_followed_no_longer(played: Played) -> None:
    played.fetched("x")
    played.comes(copied("x"))
    played.machine.master_message(DropObjects((X,), unless_complete=True), played.now_s)
    played.comes()
    assert X in played.machine.stored


def test_what_was_deleted_is_fetched_when_it_is_needed_again(played: Played) -> None:
    played.machine.uploaded(ObjectId("x"), played.now_s)
    played.machine.master_message(DropObjects((ObjectId("x"),)), played.now_s)
    played.assign(READS_X, stored("x", THERE))
    played.comes(DeleteObjects((ObjectId("x"),)), fetch("x", THERE))


def test_only_workers_that_were_met_are_asked(played: Played) -> None:
    only = MeetWorkers((Neighbour(BEYOND, "other host"),), is_complete=True)
    played.machine.master_message(only, played.now_s)
    x = stored("x", THERE, BEYOND)
    played.assign(READS_X, x)
    played.comes(FetchObject(x, (HttpPlan(BEYOND),)))


def test_a_queued_task_fetches_an_input_again_that_the_store_has_dropped(played: Played) -> None:
    """A store that is full drops copies (CIB-52). The task keeps its place in the queue."""
    played.run(A)
    played.assign(READS_X, stored("x", THERE))
    played.fetched("x")
    played.assign(B)
    played.assign(C)
    played.comes(fetch("x", THERE), copied("x"))
    assert not played.machine.is_droppable(X)
    played.machine.dropped(X)
    played.ended(A)
    played.comes(fetch("x", THERE), start(B), report(A))
    played.fetched("x")
    played.ended(B)
    played.comes(start(READS_X, stored("x", THERE)), copied("x"), report(B))
    assert not played.machine.is_droppable(X)
