"""Tables of consequences: after every step exactly these orders and reports, and no broken rule."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ciel.core.events import (
    RECALLED,
    AssignTask,
    CancelTask,
    DropObjects,
    FromWorker,
    InputsLost,
    MeetWorkers,
    Neighbour,
    ObjectsStored,
    RecallTasks,
    SpawnTask,
    StreamsOpened,
    TaskFault,
    TaskReported,
)
from ciel.core.ids import ObjectId
from ciel.core.plans import HttpPlan, StreamPlan
from ciel.core.refs import Concrete, Fixed, Future, Reference, Stream, Sweetheart
from ciel.core.tasks import Needs, TaskSpec
from ciel.testing.builders import a_task, failed, inline, stored
from ciel.worker.state.machine import GOING_ON_S, KILL_GRACE_S, REPORT_EVERY_S, WorkerMachine
from ciel.worker.state.orders import (
    AbandonFetch,
    DeleteObjects,
    EndProcesses,
    FetchObject,
    KillAttempt,
    Order,
    RecallAttempt,
    StartAttempt,
)
from ciel.worker.state.slots import AHEAD_MAX

HERE, THERE, BEYOND = "here:1", "there:1", "beyond:1"
CANCELLED = TaskFault("CANCELLED", "it was called off")


class Played:
    """The machine, a clock, and what came of the last step."""

    def __init__(self, slots: int = 1, begins: str = "", memory_bytes: int = 0) -> None:
        begin = frozenset(begins.split())
        self.machine = WorkerMachine(
            HERE, "this host", slots, begins=begin, memory_bytes=memory_bytes
        )
        self.now_s = 100.0
        self.machine.master_said(
            MeetWorkers((Neighbour(THERE, "that host"), Neighbour(BEYOND, "other host"))), 0.0
        )

    def comes(self, *expected: object) -> None:
        """Expect these orders, then these reports, of all steps since the last time."""
        machine = self.machine
        found: list[object] = [*map(_plain, machine.outbox), *machine.reports]
        machine.outbox.clear()
        machine.reports.clear()
        assert found == list(expected)
        assert machine.problems() == []

    def assign(self, spec: TaskSpec, *inputs: Reference, attempt: int = 1) -> None:
        self.machine.master_said(AssignTask(spec, attempt, inputs), self.now_s)

    def run(self, spec: TaskSpec) -> None:
        """Assign a task that starts at once."""
        self.assign(spec)
        self.comes(start(spec))

    def cancel(self, spec: TaskSpec, attempt: int = 1) -> None:
        self.machine.master_said(CancelTask(spec.id, attempt), self.now_s)

    def recall(self, spec: TaskSpec) -> None:
        self.machine.master_said(RecallTasks(((spec.id, 1),)), self.now_s)

    def fetched(self, object_id: str) -> None:
        self.machine.fetched(ObjectId(object_id), self.now_s, 5000)

    def fetch_failed(self, object_id: str, *places: str) -> None:
        self.machine.fetch_failed(ObjectId(object_id), places, "why", self.now_s)

    def ended(self, spec: TaskSpec, *published: Reference, fault: TaskFault | None = None) -> None:
        self.machine.ended((spec.id, 1), published, fault, 2.5, self.now_s)

    def advance(self, delay_s: float) -> None:
        self.now_s += delay_s
        self.machine.tick(self.now_s)


def _plain(order: Order) -> Order:
    """Leave out of an order what has tests of its own."""
    return order._replace(may_run_children=False) if isinstance(order, StartAttempt) else order


def start(spec: TaskSpec, *inputs: Reference, attempt: int = 1, at_most: int = 0) -> StartAttempt:
    return StartAttempt(spec, attempt, inputs, at_most)


def fetch(object_id: str, *places: str) -> FetchObject:
    return FetchObject(stored(object_id, *places), tuple([HttpPlan(place) for place in places]))


def report(
    spec: TaskSpec, *published: Reference, fault: TaskFault | None = None, run_s: float = 2.5
) -> TaskReported:
    return TaskReported(spec.id, 1, published, fault, run_s)


def copied(object_id: str, size_bytes: int | None = 5000, *, kept: bool = False) -> ObjectsStored:
    return ObjectsStored((Concrete(ObjectId(object_id), size_bytes, frozenset((HERE,))),), kept)


def lost(spec: TaskSpec, *losses: tuple[str, str]) -> InputsLost:
    return InputsLost(spec.id, 1, tuple([(ObjectId(o), p) for o, p in losses]), "why")


@pytest.fixture
def played() -> Iterator[Played]:
    played = Played()
    yield played
    played.comes()


A, B, C = a_task("a"), a_task("b"), a_task("c")


# --- slots and order ------------------------------------------------------------------------------


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
    played.assign(small)  # which does not overtake it
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
    played = Played(slots=3, begins="stdinout", memory_bytes=4)
    played.run(A)
    for name, begins in (("one", True), ("two", False)):
        child = a_task(name, parent=A, memory_bytes=3)
        spawn(played, child)
        spawned = SpawnTask(child, (), 1, begun=begins)
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
READS_X = a_task("also", inputs=["x"])


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


def test_a_failed_fetch_ends_all_who_wait_for_it_and_names_the_places(played: Played) -> None:
    x, y = stored("x", THERE, BEYOND), stored("y", THERE)
    played.assign(READS_TWO, x, y)
    played.assign(READS_X, x)
    played.machine.outbox.clear()
    played.fetch_failed("x", THERE, BEYOND)
    losses = (("x", THERE), ("x", BEYOND))
    played.comes(lost(READS_TWO, *losses), lost(READS_X, *losses))
    played.fetched("y")  # nobody waits any more, but the copy is there
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


# --- calling off ----------------------------------------------------------------------------------


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


def test_a_called_off_attempt_that_ends_well_after_all_leaves_no_object(played: Played) -> None:
    played.run(A)
    played.cancel(A)
    played.ended(A, stored("a", HERE))
    played.comes(
        KillAttempt(A.id, 1, force=False),
        DeleteObjects((ObjectId("a"),)),
        report(A, fault=CANCELLED),
    )
    assert played.machine.due_s() is None


def test_a_called_off_attempt_deletes_no_object_that_was_there_before(played: Played) -> None:
    played.run(A)
    played.machine.uploaded(ObjectId("a"), played.now_s)
    played.cancel(A)
    played.ended(A, stored("a", HERE))
    played.comes(KillAttempt(A.id, 1, force=False), report(A, fault=CANCELLED))


def test_a_called_off_attempt_whose_inputs_are_gone_was_called_off(played: Played) -> None:
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
    played.cancel(limited)  # too late to be the reason
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
    played.machine.outbox.clear()
    played.machine.master_lost(played.now_s)
    played.comes(KillAttempt(A.id, 1, force=False))
    played.ended(A)
    played.comes(report(A, fault=CANCELLED))


def test_a_master_that_is_back_hears_what_is_held(played: Played) -> None:
    played.machine.master_joined()
    played.comes()
    played.fetched("x")
    played.comes(copied("x"))
    played.machine.master_lost(played.now_s)
    played.machine.master_joined()
    played.comes(copied("x", kept=True))


def test_what_is_left_from_an_earlier_life_is_offered(played: Played) -> None:
    played.machine.keep({ObjectId("x"): 5000})
    played.machine.master_joined()
    played.comes(copied("x", kept=True))
    played.assign(READS_X, stored("x", HERE))
    played.comes(start(READS_X, stored("x", HERE)))


def test_what_is_left_is_not_read_if_it_was_made_elsewhere_since(played: Played) -> None:
    played.machine.keep({ObjectId("x"): 5000})
    played.machine.master_joined()
    played.comes(copied("x", kept=True))
    played.assign(READS_X, stored("x", THERE))
    played.comes(fetch("x", THERE))
    played.fetched("x")  # it was the same after all
    played.comes(start(READS_X, stored("x", THERE)))


def test_a_large_store_is_told_of_in_parts(played: Played) -> None:
    machine = played.machine
    machine.keep({ObjectId(f"o{number}"): number for number in range(2500)})
    machine.master_joined()
    machine.master_said(DropObjects((ObjectId("o3"), ObjectId("o2000"))), played.now_s)
    played.machine.outbox.clear()
    told = []
    while reports := machine.take_reports(played.now_s):
        (said,) = reports
        assert isinstance(said, ObjectsStored)
        told.append(len(said.refs))
        assert (machine.due_s() is None) == (sum(told) >= 2499)
    assert told == [1000, 1000, 499]


def test_what_was_not_told_before_the_master_was_lost_is_told_to_the_next(played: Played) -> None:
    machine = played.machine
    machine.keep({ObjectId(f"o{number}"): number for number in range(1500)})
    machine.master_joined()
    machine.take_reports(played.now_s)
    machine.master_lost(played.now_s)
    played.comes()
    machine.master_joined()
    told = [*machine.take_reports(played.now_s), *machine.take_reports(played.now_s)]
    assert [len(said.refs) for said in told if isinstance(said, ObjectsStored)] == [1000, 500]


def test_only_what_is_held_is_deleted(played: Played) -> None:
    played.fetched("x")
    played.comes(copied("x"))
    x, y = ObjectId("x"), ObjectId("y")
    played.machine.master_said(DropObjects((x, y)), played.now_s)
    played.comes(DeleteObjects((x,)))
    played.machine.master_said(DropObjects((x, y)), played.now_s)
    played.comes()
    played.machine.master_joined()
    played.comes()


def test_what_is_whole_is_kept_when_it_is_to_be_followed_no_longer(played: Played) -> None:
    played.fetched("x")
    played.comes(copied("x"))
    played.machine.master_said(DropObjects((X,), unless_whole=True), played.now_s)
    played.comes()
    assert X in played.machine.stored


def test_what_was_deleted_is_fetched_when_it_is_needed_again(played: Played) -> None:
    played.machine.uploaded(ObjectId("x"), played.now_s)
    played.machine.master_said(DropObjects((ObjectId("x"),)), played.now_s)
    played.assign(READS_X, stored("x", THERE))
    played.comes(DeleteObjects((ObjectId("x"),)), fetch("x", THERE))


def test_only_workers_that_were_met_are_asked(played: Played) -> None:
    played.machine.master_said(MeetWorkers((Neighbour(BEYOND, "other host"),)), played.now_s)
    x = stored("x", THERE, BEYOND)
    played.assign(READS_X, x)
    played.comes(FetchObject(x, (HttpPlan(BEYOND),)))


# --- children -------------------------------------------------------------------------------------


def test_children_of_a_running_attempt_are_reported_others_are_not(played: Played) -> None:
    child = a_task("child", parent=A)
    known = (inline("k"),)
    played.machine.spawned((A.id, 1), child, known, played.now_s)
    played.comes()
    played.run(A)
    played.machine.spawned((A.id, 1), child, known, played.now_s)
    played.comes(SpawnTask(child, known, 1))
    played.cancel(A)
    played.machine.spawned((A.id, 1), child, known, played.now_s)
    played.comes(KillAttempt(A.id, 1, force=False))


# --- when the master is told ----------------------------------------------------------------------


def ends(played: Played, spec: TaskSpec, fault: TaskFault | None = None) -> list[FromWorker]:
    played.machine.ended((spec.id, 1), (), fault, 0.001, played.now_s)
    played.machine.outbox.clear()
    return played.machine.take_reports(played.now_s)


def busy(played: Played, count: int) -> list[TaskSpec]:
    tasks = [a_task(f"t{number}", ordinal=number) for number in range(count)]
    for task in tasks:
        played.assign(task)
    return tasks


def test_successes_are_told_together_while_there_is_work(played: Played) -> None:
    first, second, third, _, _ = busy(played, 5)
    assert len(ends(played, first)) == 1
    assert ends(played, second) == []
    due_s = played.machine.due_s()
    assert due_s is not None
    assert played.now_s < due_s <= played.now_s + REPORT_EVERY_S
    played.now_s = due_s
    assert len(ends(played, third)) == 2
    assert played.machine.due_s() is None


def test_the_last_success_is_told_at_once(played: Played) -> None:
    first, second, third = busy(played, 3)
    assert len(ends(played, first)) == 1
    assert len(ends(played, second)) == 1  # the third runs, and nothing waits for a slot
    assert len(ends(played, third)) == 1


def test_a_failure_is_told_at_once_with_what_had_to_wait(played: Played) -> None:
    first, second, third, _, _ = busy(played, 5)
    assert len(ends(played, first)) == 1
    assert ends(played, second) == []
    assert len(ends(played, third, TaskFault("RUNTIME_ERROR", "exit status 3"))) == 2


def test_all_is_told_before_an_attempt_begins_that_is_not_the_first(played: Played) -> None:
    """It may be what its last worker died of, and nobody else is to be blamed."""
    first, second = busy(played, 2)
    played.assign(again := a_task("again", ordinal=7), attempt=2)
    played.assign(a_task("last", ordinal=8))
    assert len(ends(played, first)) == 1
    played.machine.ended((second.id, 1), (), None, 0.001, played.now_s)
    assert start(again, attempt=2) in played.machine.outbox
    played.machine.outbox.clear()
    assert len(played.machine.take_reports(played.now_s)) == 1


# --- programs that are prepared ahead -------------------------------------------------------------


def brief(played: Played, count: int = 40, run_s: float = 0.001) -> None:
    """Let so many programs run, and take so long."""
    for number in range(count):
        spec = a_task(f"brief{number}", ordinal=number)
        played.assign(spec)
        played.machine.ended((spec.id, 1), (), None, run_s, played.now_s)
    played.machine.outbox.clear()
    played.machine.reports.clear()


def ordered(played: Played) -> list[tuple[str, int]]:
    """Take the orders to start; the first output of each task, and its `at_most`."""
    orders = [order for order in played.machine.outbox if isinstance(order, StartAttempt)]
    found: list[tuple[str, int]] = [(order.spec.outputs[0], order.at_most) for order in orders]
    played.machine.outbox.clear()
    return found


def test_brief_programs_are_prepared_ahead_and_wait_for_each_other() -> None:
    played = Played(slots=2)
    brief(played)
    busy(played, 30)
    started = ordered(played)
    assert started[:3] == [("t0", 0), ("t1", 0), ("t2", 2)]
    assert len(started) == 2 + AHEAD_MAX
    assert {at_most for _, at_most in started[2:]} == {2}
    ends(played, a_task("t0", ordinal=0))
    assert played.machine.problems() == []


def test_programs_that_take_their_time_are_not() -> None:
    played = Played(slots=2)
    brief(played)
    brief(played, run_s=0.1)
    busy(played, 30)
    assert ordered(played) == [("t0", 0), ("t1", 0)]


@pytest.mark.parametrize(
    "spec, attempt",
    [
        (a_task("x", slots=2), 1),
        (a_task("x", inputs=["in"]), 1),
        (a_task("x")._replace(needs=Needs(timeout_s=5.0)), 1),
        (a_task("x"), 2),
    ],
    ids=["wide", "with inputs", "with a time limit", "once more"],
)
def test_only_plain_programs_are_prepared_ahead(spec: TaskSpec, attempt: int) -> None:
    played = Played(slots=2)
    brief(played)
    busy(played, 2)
    ordered(played)
    played.assign(spec, *[inline(name) for name in spec.inputs], attempt=attempt)
    assert ordered(played) == []
    for number in range(2):
        played.machine.ended((a_task(f"t{number}", ordinal=number).id, 1), (), None, 0.001, 0.0)
    assert ordered(played) == [("x", 0)]


def test_beside_a_wide_program_so_many_run_as_there_are_slots_left() -> None:
    played = Played(slots=4)
    brief(played)
    played.assign(wide := a_task("wide", slots=3))
    busy(played, 3)
    assert ordered(played) == [("wide", 0), ("t0", 0), ("t1", 2), ("t2", 2)]
    played.machine.ended((wide.id, 1), (), None, 0.001, 0.0)
    played.assign(a_task("t3", ordinal=3))
    assert ordered(played) == [("t3", 0)]


# --- what is to be given back ---------------------------------------------------------------------


def test_what_has_not_begun_is_given_back_and_what_runs_goes_on(played: Played) -> None:
    first, second = a_task("a"), a_task("b", ordinal=1)
    third = a_task("c", inputs=["x"])
    played.assign(first)
    played.assign(second)
    played.assign(third, stored("x", THERE))
    played.comes(start(first), fetch("x", THERE))
    keys = tuple((task.id, 1) for task in (first, second, third))
    played.machine.master_said(RecallTasks((*keys, (first.id, 7))), played.now_s)
    fault = TaskFault(RECALLED, "it was given back before it began")
    played.comes(
        RecallAttempt(first.id, 1),
        report(second, fault=fault, run_s=0.0),
        report(third, fault=fault, run_s=0.0),
    )
    played.ended(first)
    played.comes(report(first))


# --- what is sent ahead of its inputs -------------------------------------------------------------

READS_A = a_task("out", inputs=["a"])
GIVEN_BACK = TaskFault(RECALLED, "what it waits for is not made here")
A_TO_COME = Future(ObjectId("a"))
X = ObjectId("x")
GONE = ((X, HERE),)


def given_back(spec: TaskSpec) -> TaskReported:
    return report(spec, fault=GIVEN_BACK, run_s=0.0)


def growing(object_id: str, *places: str) -> Stream:
    return Stream(ObjectId(object_id), frozenset(places))


@pytest.fixture
def two() -> Iterator[Played]:
    """A worker of two slots."""
    played = Played(slots=2)
    yield played
    played.comes()


@pytest.mark.parametrize(
    "content", [inline("a", b"content"), stored("a", HERE)], ids=["small", "large"]
)
def test_a_successor_begins_when_what_it_waits_for_is_made_here(
    played: Played, content: Reference
) -> None:
    played.run(A)
    played.assign(READS_A, A_TO_COME)
    played.comes()
    played.ended(A, content)
    played.comes(start(READS_A, content), report(A, content))
    played.ended(READS_A)
    played.comes(report(READS_A))


def test_a_worker_that_goes_on_tells_after_a_moment(played: Played) -> None:
    """Each report wakes the master, which the next task in a chain has no need of."""

    def tells(number: int) -> int:
        """Return how many reports are told as a task of the chain ends."""
        spec = chain[number]
        made = (inline(f"out{number}"),)
        played.machine.ended((spec.id, 1), made, None, 0.001, played.now_s)
        played.machine.outbox.clear()
        return len(played.machine.take_reports(played.now_s))

    chain = [a_task(f"out{n}", inputs=[f"out{n - 1}"] if n else []) for n in range(4)]
    for number, spec in enumerate(chain):
        played.assign(spec, *[Future(ref) for ref in chain[number - 1].outputs if number])
    assert tells(0) == 1
    assert tells(1) == 0
    due_s = played.machine.due_s()
    assert due_s is not None
    assert played.now_s < due_s <= played.now_s + GOING_ON_S
    played.now_s = due_s
    assert len(played.machine.take_reports(due_s)) == 1
    assert tells(2) == 0
    assert tells(3) == 2  # nothing goes on with that
    assert played.machine.due_s() is None


@pytest.mark.parametrize("content", [inline("a"), stored("a", HERE)], ids=["small", "large"])
def test_a_successor_may_come_after_what_it_was_to_wait_for(
    played: Played, content: Reference
) -> None:
    """Its assignment and the report crossed."""
    played.run(A)
    played.ended(A, content)
    played.comes(report(A, content))
    played.assign(READS_A, A_TO_COME)
    played.comes(start(READS_A, content))
    played.ended(READS_A)
    played.comes(report(READS_A))


def test_a_successor_of_nothing_here_is_given_back(played: Played) -> None:
    played.assign(READS_A, A_TO_COME)
    played.comes(given_back(READS_A))


@pytest.mark.parametrize("fault", [None, TaskFault("RUNTIME_ERROR", "no luck")])
def test_successors_of_what_was_not_made_are_given_back(
    played: Played, fault: TaskFault | None
) -> None:
    """Its maker failed, or handed its output over to another task."""
    played.run(A)
    last = a_task("end", inputs=["out"])
    played.assign(READS_A, A_TO_COME)
    played.assign(last, Future(ObjectId("out")))
    played.comes()
    played.ended(A, fault=fault)
    played.comes(report(A, fault=fault), given_back(READS_A), given_back(last))


def test_successors_of_what_is_called_off_before_it_began_are_given_back(played: Played) -> None:
    played.run(B)
    for call_off in (played.cancel, played.recall):
        played.assign(A)
        played.assign(READS_A, A_TO_COME)
        played.comes()
        call_off(A)
        first, second = played.machine.reports
        assert isinstance(first, TaskReported)
        played.comes(first, given_back(READS_A))
        assert second == given_back(READS_A)
    played.ended(B)
    played.comes(report(B))


def test_successors_of_what_could_not_get_its_inputs_are_given_back(played: Played) -> None:
    played.assign(READS_X, stored("x", THERE))
    last = a_task("end", inputs=["also"])
    played.assign(last, Future(ObjectId("also")))
    played.fetch_failed("x", THERE)
    played.comes(fetch("x", THERE), lost(READS_X, ("x", THERE)), given_back(last))
    played.machine.uploaded(X, played.now_s)
    played.assign(READS_X, stored("x", HERE), attempt=2)
    played.assign(last, Future(ObjectId("also")), attempt=2)
    played.machine.inputs_gone((READS_X.id, 2), GONE, "why", played.now_s)
    played.comes(
        start(READS_X, stored("x", HERE), attempt=2),
        lost(READS_X, ("x", HERE))._replace(attempt=2),
        given_back(last)._replace(attempt=2),
    )


def test_who_lacks_two_things_is_ended_once(played: Played) -> None:
    """What could not be fetched, and what was to be made of it."""
    x = stored("x", THERE)
    both = a_task("both", inputs=["x", "also"])
    played.assign(READS_X, x)
    played.assign(both, x, Future(ObjectId("also")))
    played.comes(fetch("x", THERE))
    played.fetch_failed("x", THERE)
    played.comes(lost(READS_X, ("x", THERE)), given_back(both))


def test_a_successor_waits_for_the_attempt_that_makes_its_input_still(two: Played) -> None:
    """Another one of the same task was called off."""
    two.run(A)
    two.run(B)
    two.assign(A, attempt=2)
    two.assign(READS_A, A_TO_COME)
    two.cancel(A, attempt=2)
    two.comes(report(A, fault=CANCELLED, run_s=0.0)._replace(attempt=2))
    two.ended(A, inline("a"))
    two.comes(start(READS_A, inline("a")), report(A, inline("a")))
    for spec in (B, READS_A):
        two.ended(spec)
        two.comes(report(spec))


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
    two.assign(READS_A, A_TO_COME)  # the master had not heard of it yet
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
    """It is in no store."""
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
    ends = InputsLost(A.id, 1, ((ObjectId("a"), HERE),), "a: its producer ended badly")
    two.comes(
        KillAttempt(READS_A.id, 1, force=False),
        report(A, fault=fault),
        ends._replace(task=queued.id),
    )
    two.ended(READS_A, stored("out", HERE))  # whatever it made of it
    two.comes(DeleteObjects((ObjectId("out"),)), ends._replace(task=READS_A.id))


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
    played.machine.outbox.clear()
    broken = DropObjects((X, ObjectId("y")), unless_whole=True)
    played.machine.master_said(broken, played.now_s)
    assert played.machine.outbox == [AbandonFetch(X)]
    played.machine.outbox.clear()
    played.machine.master_lost(played.now_s)
    assert AbandonFetch(X) in played.machine.outbox
    played.fetch_failed("x", THERE)
    played.machine.outbox.clear()
    played.machine.master_said(DropObjects((X,)), played.now_s)
    assert played.machine.outbox == []


def test_a_copy_that_breaks_off_ends_its_readers(played: Played) -> None:
    x = growing("x", THERE)
    played.assign(READS_X, x)
    played.machine.stream_opened(X, played.now_s)
    played.comes(FetchObject(x, (StreamPlan(THERE),)), start(READS_X, x))
    played.fetch_failed("x", THERE)
    played.comes(KillAttempt(READS_X.id, 1, force=False))
    played.ended(READS_X, fault=TaskFault("RUNTIME_ERROR", "was killed"))
    played.comes(lost(READS_X, ("x", THERE)))


def test_streams_of_an_attempt_that_is_called_off_are_not_told(played: Played) -> None:
    played.run(A)
    played.cancel(A)
    opens(played, A, "a")
    played.ended(A)
    played.comes(KillAttempt(A.id, 1, force=False), report(A, fault=CANCELLED))


# --- what a program that talks leaves -------------------------------------------------------------


def test_a_sweetheart_is_held_like_any_object(played: Played) -> None:
    played.run(A)
    here = frozenset((HERE,))
    made = Sweetheart(ObjectId("a"), HERE, 5000, here)
    played.ended(A, made)
    played.assign(READS_A, made)
    played.comes(start(READS_A, made), report(A, made))
    played.ended(READS_A)
    played.machine.master_said(DropObjects((made.id,)), played.now_s)
    played.comes(DeleteObjects((made.id,)), report(READS_A))


def test_what_a_child_is_told_of_is_held_before_its_maker_has_ended(two: Played) -> None:
    two.run(A)
    extra = Concrete(ObjectId(f"{A.id}:part:0"), 5000, frozenset((HERE,)))
    foreign = stored("foreign", HERE)  # said by a program, and may be anything
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
    played.machine.made_in_vain((X, ObjectId("y"), ObjectId("z")))
    played.comes(DeleteObjects((ObjectId("y"), ObjectId("z"))))
    played.machine.made_in_vain((X,))
    played.comes()


FIXED = Fixed(ObjectId("f"), HERE)
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
        played.machine.master_said(DropObjects((FIXED.id,)), played.now_s)
    played.comes(EndProcesses((FIXED.id,)))


def test_processes_that_wait_end_with_their_master(played: Played) -> None:
    played.run(A)
    played.ended(A, FIXED)
    played.machine.master_lost(played.now_s)
    played.comes(EndProcesses((FIXED.id,)))


def test_a_process_that_waits_for_an_attempt_that_was_called_off_is_ended(played: Played) -> None:
    played.run(A)
    played.cancel(A)
    played.ended(A, FIXED)
    played.comes(
        KillAttempt(A.id, 1, force=False),
        EndProcesses((FIXED.id,)),
        report(A, fault=CANCELLED),
    )
    played.machine.master_said(DropObjects((FIXED.id,)), played.now_s)
    played.comes()


def test_a_process_that_is_gone_is_an_input_that_was_lost(played: Played) -> None:
    played.run(A)
    played.ended(A, FIXED)
    played.assign(GOES_ON, FIXED)
    losses = ((FIXED.id, HERE),)
    played.machine.inputs_gone((GOES_ON.id, 1), losses, "why", played.now_s)
    played.comes(start(GOES_ON, FIXED), report(A, FIXED), lost(GOES_ON, ("f", HERE)))
    played.machine.master_said(DropObjects((FIXED.id,)), played.now_s)
    played.comes()


# --- children that begin where their parents run --------------------------------------------------


def child_of(parent: TaskSpec, *inputs: str, executor: str = "stdinout") -> TaskSpec:
    return a_task("child", inputs=inputs, parent=parent, executor=executor)


def spawn(played: Played, child: TaskSpec, *known: Reference) -> None:
    played.machine.spawned((A.id, 1), child, known, played.now_s)


def test_no_child_begins_twice_on_one_worker() -> None:
    """Its parent may run again here; what the first run of the child made may still be in use."""
    played = Played(slots=2, begins="stdinout")
    for attempt in (1, 2):
        played.assign(A, attempt=attempt)
        played.machine.spawned((A.id, attempt), child_of(A), (), played.now_s)
        begun = [o for o in played.machine.outbox if isinstance(o, StartAttempt) and o.attempt == 0]
        assert len(begun) == (attempt == 1)
        played.machine.outbox.clear()
        for key in list(played.machine.attempts):
            played.machine.ended(key, (), None, 0.001, played.now_s)


def test_a_child_begins_at_once_where_there_is_room() -> None:
    played = Played(slots=2, begins="stdinout")
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
    played = Played(slots, begins="stdinout")
    played.run(A)
    spawn(played, child, *known)
    played.comes(SpawnTask(child, known, 1, False))


def test_no_child_overtakes_what_waits_for_a_slot() -> None:
    played = Played(slots=2, begins="stdinout")
    played.run(A)
    played.assign(a_task("wide", slots=2))
    played.comes()
    spawn(played, child_of(A))
    played.comes(SpawnTask(child_of(A), (), 1, False))


def test_a_child_that_has_begun_is_called_off_like_any_attempt() -> None:
    played = Played(slots=2, begins="stdinout")
    played.run(A)
    spawn(played, child_of(A))
    played.comes(start(child_of(A), attempt=0), SpawnTask(child_of(A), (), 1, True))
    played.cancel(child_of(A), attempt=0)
    played.comes(KillAttempt(child_of(A).id, 0, force=False))
    played.machine.ended((child_of(A).id, 0), (), None, 2.5, played.now_s)
    played.comes(report(child_of(A), fault=CANCELLED)._replace(attempt=0))


def within(played: Played, parent: TaskSpec, attempt: int = 1) -> TaskSpec:
    """Have a program begin a child within its task."""
    child = child_of(parent)
    played.machine.begun_within((parent.id, attempt), child, (), played.now_s)
    return child


def test_a_child_that_runs_within_its_parent_takes_no_slot() -> None:
    played = Played(slots=1, begins="stdinout")
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
    played = Played(slots=1, begins="stdinout")
    played.run(A)
    child = within(played, A)
    played.comes(SpawnTask(child, (), 1, True, True))
    played.cancel(child, attempt=0)
    played.comes(KillAttempt(child.id, 0, force=False))


def test_nothing_begins_within_what_is_called_off() -> None:
    played = Played(slots=1, begins="stdinout")
    played.run(A)
    played.cancel(A)
    child = within(played, A)
    played.comes(KillAttempt(A.id, 1, force=False))
    made = (inline("child"), stored("child:pub:0", HERE))
    played.machine.ended((child.id, 0), made, None, 2.5, played.now_s)
    played.comes(DeleteObjects((ObjectId("child:pub:0"),)))


def test_what_ran_within_what_was_called_off_does_not_begin_here_beside_that() -> None:
    """Its program may not be gone yet when the next attempt creates the same child."""
    played = Played(slots=3, begins="stdinout")
    played.run(A)
    played.cancel(A)
    child = within(played, A)
    played.comes(KillAttempt(A.id, 1, force=False))
    played.assign(A, attempt=2)
    played.machine.outbox.clear()
    played.machine.spawned((A.id, 2), child, (), played.now_s)
    played.comes(SpawnTask(child, (), 2, False))


def test_a_child_that_is_needed_now_is_for_the_master_to_place() -> None:
    played = Played(slots=2, begins="stdinout")
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
    played = Played(begins=begins)
    played.assign(a_task("a")._replace(needs=needs), attempt=attempt)
    (order,) = played.machine.outbox
    assert isinstance(order, StartAttempt)
    assert order.may_run_children is may


def test_no_child_runs_within_what_was_begun_here_before() -> None:
    """Its children may be known already."""
    played = Played(slots=2, begins="stdinout")
    played.run(A)
    child = within(played, A)
    played.machine.ended((child.id, 0), (), TaskFault("RECALLED", ""), 0.0, played.now_s)
    played.machine.outbox.clear()
    played.assign(child)
    (order,) = played.machine.outbox
    assert isinstance(order, StartAttempt)
    assert not order.may_run_children


# --- choices --------------------------------------------------------------------------------------

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
