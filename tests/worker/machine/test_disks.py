"""Attempts that are bound by I/O: they wait for a permit of their disk, mostly without a slot."""

from __future__ import annotations

import pytest

from ciel.core.events import TaskFault, TaskReported
from ciel.core.tasks import TaskSpec
from ciel.testing.builders import a_task, stored
from ciel.worker.state.machine import PATIENCE_S
from ciel.worker.state.orders import AskForDisk, LeaveDisk
from ciel_tests.scenes.worker import (
    CANCELLED,
    HERE,
    READS_A,
    A,
    B,
    C,
    Played,
    copied,
    fetch,
    report,
    start,
)

pytestmark = pytest.mark.requirement("CIB-42")


def bound(name: str, *, inputs: tuple[str, ...] = (), io: str = "/data") -> TaskSpec:
    spec = a_task(name, inputs=inputs)
    return spec._replace(needs=spec.needs._replace(io=io))


D, E, F = bound("d"), bound("e"), bound("f")


def ask(spec: TaskSpec, size_bytes: int = 0) -> AskForDisk:
    return AskForDisk(spec.id, 1, spec.needs.io, size_bytes)


def leave(spec: TaskSpec) -> LeaveDisk:
    return LeaveDisk(spec.id, 1)


def admit(played: Played, spec: TaskSpec) -> None:
    played.machine.disk_admitted((spec.id, 1), played.now_s)


def runs(played: Played, spec: TaskSpec) -> None:
    played.assign(spec)
    played.comes(ask(spec))
    admit(played, spec)
    played.comes(start(spec))


def test_a_task_starts_when_its_disk_admits_it(played: Played) -> None:
    played.assign(D)
    played.comes(ask(D))
    admit(played, D)
    played.comes(start(D))
    played.ended(D)
    played.comes(leave(D), report(D))


def test_the_size_of_the_inputs_is_known_to_the_queue_of_the_disk(played: Played) -> None:
    reader = bound("r", inputs=("x",))
    played.assign(reader, stored("x", HERE, size_bytes=700))
    played.comes(fetch("x", HERE)._replace(ref=stored("x", HERE, size_bytes=700), plans=()))
    played.fetched("x")
    played.comes(ask(reader, 700), copied("x"))


def test_others_use_the_slot_while_a_task_waits_for_its_disk(played: Played) -> None:
    played.assign(D)
    played.assign(A)
    played.comes(ask(D))
    assert played.machine.due_s() == played.now_s + PATIENCE_S
    played.advance(PATIENCE_S)
    played.comes(start(A))
    admit(played, D)
    played.comes()  # A has the slot
    played.assign(B)
    played.ended(A)
    played.comes(start(D), report(A))  # before B, since the disk waits for it


def test_a_task_that_waited_for_long_starts_at_once_if_a_slot_is_free(played: Played) -> None:
    played.assign(D)
    played.advance(PATIENCE_S)
    admit(played, D)
    played.comes(ask(D), start(D))


def test_while_a_disk_is_busy_further_tasks_keep_no_slot(played: Played) -> None:
    played.assign(D)
    played.advance(PATIENCE_S)
    played.assign(E)
    played.assign(A)
    played.comes(ask(D), ask(E), start(A))


def test_the_slot_of_a_task_passes_to_the_next_one_at_its_disk(two: Played) -> None:
    runs(two, D)
    two.assign(E)
    two.advance(PATIENCE_S)
    two.assign(A)
    two.assign(B)
    two.comes(ask(E), start(A))
    two.ended(D)
    two.comes(leave(D), report(D))  # B does not start yet
    admit(two, E)
    two.comes(start(E))


def test_the_slot_passes_to_others_if_another_process_has_the_disk(two: Played) -> None:
    runs(two, D)
    two.assign(E)
    two.advance(PATIENCE_S)
    two.assign(A)
    two.assign(B)
    two.ended(D)
    two.forget()
    two.advance(PATIENCE_S)
    two.comes(start(B))


def test_tasks_at_other_disks_do_not_wait_for_each_other(two: Played) -> None:
    other = bound("o", io="/other")
    two.assign(D)
    two.assign(other)
    two.comes(ask(D), ask(other))
    admit(two, other)
    admit(two, D)
    two.comes(start(other), start(D))


def test_a_task_that_is_cancelled_while_it_waits_frees_its_slot(played: Played) -> None:
    played.assign(D)
    played.assign(A)
    played.cancel(D)
    played.comes(ask(D), leave(D), report(D, fault=CANCELLED, run_s=0.0))
    assert played.machine.due_s() == 0.0
    played.advance(0.0)
    played.comes(start(A))
    admit(played, D)  # it crossed the order to leave
    played.comes()


def test_a_task_that_waits_is_recalled(played: Played) -> None:
    played.assign(D)
    played.advance(PATIENCE_S)
    played.recall(D)
    fault = TaskFault("RECALLED", "it was returned to the master before it started")
    played.comes(ask(D), leave(D), TaskReported(D.id, 1, (), fault, 0.0))


def test_a_task_that_waits_for_its_child_gives_its_disk_back(played: Played) -> None:
    runs(played, D)
    played.machine.spawned((D.id, 1), C, (), played.now_s, wanted=True)
    assert played.machine.take_orders() == [leave(D)]
    played.forget()
    played.ended(D)
    played.comes(report(D))


def test_a_master_that_restarts_assigns_waiting_tasks_again(played: Played) -> None:
    played.assign(D)
    played.assign(E)
    played.comes(ask(D))
    played.machine.master_restarted([])
    assert played.machine.take_orders() == [leave(D)]
    assert played.machine.slots_free == 1


def test_a_worker_that_leaves_its_master_gives_all_permits_back(two: Played) -> None:
    runs(two, D)
    two.assign(E)
    two.machine.master_lost(two.now_s)
    orders = two.machine.take_orders()
    assert leave(E) in orders
    two.ended(D)
    assert leave(D) in two.machine.take_orders()
    two.forget()


def test_the_inputs_of_a_task_that_waits_stay(played: Played) -> None:
    reader = READS_A._replace(needs=READS_A.needs._replace(io="/data"))
    played.assign(reader, stored("a", HERE))
    played.fetched("a")
    played.advance(PATIENCE_S)
    assert played.machine.is_read_next("a")
    assert not played.machine.is_droppable("a")
    played.forget()


def test_programs_of_such_tasks_are_not_launched_ahead(played: Played) -> None:
    for number in range(20):
        brief = a_task(f"brief{number}")
        played.assign(brief)
        played.machine.ended((brief.id, 1), (), None, 0.0001, played.now_s)
    played.forget()
    played.run(A)
    played.assign(D)
    played.comes()
    played.assign(B)
    played.comes()  # it does not overtake D
