"""Plays events to the worker's state machine, and compares all its orders and reports."""

from __future__ import annotations

from ciel.core.events import (
    AssignTask,
    CancelTask,
    FromWorker,
    InputsLost,
    MeetWorkers,
    Neighbour,
    ObjectsStored,
    RecallTasks,
    TaskFault,
    TaskReported,
)
from ciel.core.ids import ObjectId
from ciel.core.offers.resources import read_offer
from ciel.core.plans import HttpPlan
from ciel.core.refs import Concrete, Fixed, Future, Reference, Stream
from ciel.core.tasks import TaskSpec
from ciel.testing.builders import a_task, stored
from ciel.worker.state.machine import WorkerMachine
from ciel.worker.state.orders import (
    FetchObject,
    Order,
    StartAttempt,
)

HERE, THERE, BEYOND = "here:1", "there:1", "beyond:1"
CANCELLED = TaskFault("CANCELLED", "the task was cancelled")

A, B, C = a_task("a"), a_task("b"), a_task("c")
READS_A, READS_X = a_task("out", inputs=["a"]), a_task("also", inputs=["x"])
A_TO_COME = Future(ObjectId("a"))
X = ObjectId("x")
FIXED = Fixed(ObjectId("f"), HERE)


class Played:
    """A worker's machine with a clock."""

    def __init__(
        self, slots: int = 1, starts_locally: str = "", memory_bytes: int = 0, resources: str = ""
    ) -> None:
        self.machine = WorkerMachine(
            HERE, "this host", slots, starts_locally=frozenset(starts_locally.split()),
            memory_bytes=memory_bytes, resources=[read_offer(text) for text in resources.split()],
        )  # fmt: skip
        self.now_s = 100.0
        self.machine.master_message(
            MeetWorkers((Neighbour(THERE, "that host"), Neighbour(BEYOND, "other host"))), 0.0
        )

    def comes(self, *expected: object) -> None:
        """Expect these orders, then these reports, from all steps since the last call."""
        machine = self.machine
        found: list[object] = [*map(_plain, machine.orders), *machine.reports]
        self.forget()
        assert found == list(expected)
        assert not [*machine.problems()]

    def forget(self) -> None:
        """Take no notice of orders and reports until now."""
        self.machine.take_orders()
        self.machine.discard_reports()

    def assign(self, spec: TaskSpec, *inputs: Reference, attempt: int = 1) -> None:
        self.machine.master_message(AssignTask(spec, attempt, inputs), self.now_s)

    def run(self, spec: TaskSpec) -> None:
        """Assign a task that starts at once."""
        self.assign(spec)
        self.comes(start(spec))

    def cancel(self, spec: TaskSpec, attempt: int = 1) -> None:
        self.machine.master_message(CancelTask(spec.id, attempt), self.now_s)

    def recall(self, spec: TaskSpec) -> None:
        self.machine.master_message(RecallTasks(((spec.id, 1),)), self.now_s)

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
    """Return an order without the field that other tests check."""
    return order._replace(may_run_children=False) if isinstance(order, StartAttempt) else order


def start(spec: TaskSpec, *inputs: Reference, attempt: int = 1, at_most: int = 0) -> StartAttempt:
    """The order to start an attempt."""
    return StartAttempt(spec, attempt, inputs, at_most)


def fetch(object_id: str, *places: str) -> FetchObject:
    """The order to fetch an object from these places."""
    return FetchObject(stored(object_id, *places), tuple([HttpPlan(place) for place in places]))


def report(
    spec: TaskSpec, *published: Reference, fault: TaskFault | None = None, run_s: float = 2.5
) -> TaskReported:
    """The report of an attempt that has ended."""
    return TaskReported(spec.id, 1, published, fault, run_s)


def copied(object_id: str, size_bytes: int | None = 5000, *, kept: bool = False) -> ObjectsStored:
    """The report that this worker has a copy of an object."""
    return ObjectsStored((Concrete(ObjectId(object_id), size_bytes, frozenset((HERE,))),), kept)


def lost(spec: TaskSpec, *losses: tuple[str, str]) -> InputsLost:
    """The report that inputs were not at their locations."""
    return InputsLost(spec.id, 1, tuple([(ObjectId(o), p) for o, p in losses]), "why")


def ends(played: Played, spec: TaskSpec, fault: TaskFault | None = None) -> list[FromWorker]:
    """End an attempt; return the reports that are sent at once."""
    played.machine.ended((spec.id, 1), (), fault, 0.001, played.now_s)
    played.machine.take_orders()
    return played.machine.take_reports(played.now_s)


def growing(object_id: str, *places: str) -> Stream:
    """A reference to an object that grows at these places."""
    return Stream(ObjectId(object_id), frozenset(places))


def spawn(played: Played, child: TaskSpec, *known: Reference) -> None:
    """Create a child of the attempt of A."""
    played.machine.spawned((A.id, 1), child, known, played.now_s)
