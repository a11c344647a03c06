from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from ciel.launchers.interface import Allocation, Phase, WorkerSize
from ciel.launchers.scaling import (
    FAILURES_MAX,
    PAUSE_FIRST_S,
    SETTLE_S,
    Cancel,
    Command,
    Limits,
    Member,
    Nothing,
    Release,
    Request,
    Scaling,
    Seen,
    Waiting,
)

ONE_SLOT = WorkerSize(1)


def decide(
    scaling: Scaling,
    now_s: float,
    waiting: Sequence[Waiting] = (),
    members: Sequence[Member] = (),
    allocations: Sequence[Allocation] = (),
    size: WorkerSize = ONE_SLOT,
) -> Command:
    """Return the only command of one decision."""
    (command,) = scaling.decide(Seen(waiting, members, allocations, size), now_s)
    if isinstance(command, Request):
        scaling.requested([f"{now_s:g}_{number}" for number in range(command.workers)])
    return command


def asked(command: Command) -> int:
    """Return how many workers a command asks for."""
    assert isinstance(command, Request), command
    return command.workers


def test_without_waiting_tasks_it_asks_for_nothing() -> None:
    assert decide(Scaling(Limits(0, 4)), 0.0) == Nothing("no task waits")


def test_it_asks_for_a_worker_for_each_slot_that_tasks_wait_for() -> None:
    assert asked(decide(Scaling(Limits(0, 40)), 0.0, [Waiting(3, 2)], size=WorkerSize(2))) == 3


def test_it_asks_by_memory_if_that_needs_more_workers() -> None:
    waiting = [Waiting(3, 1, 6 << 30)]
    assert asked(decide(Scaling(Limits(0, 9)), 0.0, waiting, size=WorkerSize(8, 8 << 30))) == 3


def test_it_asks_for_no_more_than_the_maximum_and_the_backlog() -> None:
    assert asked(decide(Scaling(Limits(0, 5)), 0.0, [Waiting(99)])) == 5
    scaling = Scaling(Limits(0, 50, backlog_max=3))
    assert asked(decide(scaling, 0.0, [Waiting(99)])) == 3
    assert "--backlog" in decide(scaling, 1.0, [Waiting(99)]).why


def test_workers_that_are_there_and_on_their_way_count_towards_the_maximum() -> None:
    scaling = Scaling(Limits(0, 5))
    busy = [Member("a", "1_1", 1, is_busy=True), Member("b", "1_2", 1, is_busy=True)]
    found = [Allocation(name, Phase.RUNNING) for name in ("1_1", "1_2", "1_3")]
    assert asked(decide(scaling, 0.0, [Waiting(99)], busy, found)) == 2


def test_it_does_not_ask_twice_for_the_same_tasks() -> None:
    scaling = Scaling(Limits(0, 40))
    assert asked(decide(scaling, 0.0, [Waiting(2)])) == 2
    assert "on their way" in decide(scaling, 1.0, [Waiting(2)]).why


def test_allocations_of_an_earlier_process_count_as_asked_for() -> None:
    found = [Allocation("7_1", Phase.QUEUED), Allocation("7_2", Phase.RUNNING)]
    command = decide(Scaling(Limits(0, 40)), 0.0, [Waiting(2)], allocations=found)
    assert isinstance(command, Nothing)


def test_short_tasks_do_not_count_one_by_one() -> None:
    waiting = [Waiting(100, typical_s=0.1)]
    command = decide(Scaling(Limits(0, 40)), 0.0, waiting)
    assert asked(command) == 1
    assert "with 10 s of work" in command.why


def test_of_unknown_workers_it_asks_for_one_and_learns_from_it() -> None:
    scaling = Scaling(Limits(0, 40))
    unknown = WorkerSize()
    assert asked(decide(scaling, 0.0, [Waiting(64)], size=unknown)) == 1
    assert "first worker" in decide(scaling, 1.0, [Waiting(64)], size=unknown).why
    first = [Member("w", "0_0", 16, is_busy=True)]
    running = [Allocation("0_0", Phase.RUNNING)]
    assert asked(decide(scaling, 2.0, [Waiting(48)], first, running, unknown)) == 3


def test_tasks_that_fit_no_worker_are_not_asked_for() -> None:
    limits = Limits(0, 9, time_limit_s=60)
    for group, why in (
        (Waiting(2, 8), "needs 8 slots, and a worker has 4"),
        (Waiting(2, 1, 9 << 30), "needs 9 GiB of memory"),
        (Waiting(2, typical_s=90.0), "takes 90 s, and an allocation ends after 60 s"),
    ):
        command = decide(Scaling(limits), 0.0, [group], size=WorkerSize(4, 8 << 30))
        assert isinstance(command, Nothing)
        assert why in command.why


def test_queued_allocations_without_use_are_cancelled_after_a_while() -> None:
    scaling = Scaling(Limits(0, 9))
    queued = [Allocation("1_1", Phase.QUEUED), Allocation("1_2", Phase.QUEUED)]
    assert isinstance(decide(scaling, 0.0, [], (), queued), Nothing)
    command = decide(scaling, SETTLE_S, [], (), queued)
    assert isinstance(command, Cancel)
    assert command.ids == ("1_1", "1_2")


def test_an_idle_worker_is_released_and_a_busy_one_is_not() -> None:
    scaling = Scaling(Limits(0, 9, idle_s=30))
    members = [Member("a", "1_1", 1), Member("b", "1_2", 1, is_busy=True)]
    running = [Allocation("1_1", Phase.RUNNING), Allocation("1_2", Phase.RUNNING)]
    assert isinstance(decide(scaling, 0.0, [], members, running), Nothing)
    assert isinstance(decide(scaling, 29.0, [], members, running), Nothing)
    assert decide(scaling, 30.0, [], members, running) == Release(("a",), "idle for 30 s")


def test_a_worker_that_worked_meanwhile_was_not_idle() -> None:
    scaling = Scaling(Limits(0, 9, idle_s=30))
    idle, running = Member("a", "1_1", 1), [Allocation("1_1", Phase.RUNNING)]
    decide(scaling, 0.0, [], [idle], running)
    decide(scaling, 20.0, [], [idle._replace(is_busy=True)], running)
    assert isinstance(decide(scaling, 40.0, [], [idle], running), Nothing)


def test_the_minimum_of_workers_stays_and_is_asked_for_without_tasks() -> None:
    scaling = Scaling(Limits(1, 9, idle_s=1))
    assert asked(decide(scaling, 0.0)) == 1
    member, running = [Member("a", "0_0", 1)], [Allocation("0_0", Phase.RUNNING)]
    decide(scaling, 1.0, [], member, running)
    assert isinstance(decide(scaling, 9.0, [], member, running), Nothing)


def test_the_last_worker_leaves_only_without_objects() -> None:
    running = [Allocation("1_1", Phase.RUNNING)]
    for has_objects in (False, True):
        scaling = Scaling(Limits(0, 9, idle_s=1))
        last = [Member("a", "1_1", 1, has_objects=has_objects)]
        decide(scaling, 0.0, [], last, running)
        command = decide(scaling, 1.0, [], last, running)
        if has_objects:
            assert isinstance(command, Nothing)
            assert "has objects" in command.why
        else:
            assert command == Cancel(("1_1",), "idle for 1 s, without objects")


def fail_once(scaling: Scaling, now_s: float) -> None:
    """Let a requested allocation end before its worker has joined."""
    command = decide(scaling, now_s, [Waiting(1)])
    assert isinstance(command, Request), command
    ended = [Allocation(f"{now_s:g}_0", Phase.ENDED, "has ended as FAILED")]
    scaling.decide(Seen([], [], ended, ONE_SLOT), now_s + 0.5)


def test_after_failures_in_a_row_it_pauses_longer_and_longer() -> None:
    scaling = Scaling(Limits(0, 9))
    for number in range(FAILURES_MAX):
        fail_once(scaling, float(number))
    paused_s = FAILURES_MAX - 0.5
    command = decide(scaling, paused_s, [Waiting(1)])
    assert isinstance(command, Nothing)
    assert "the last 3 allocations have failed" in command.why
    assert "has ended as FAILED" in command.why
    again_s = paused_s + PAUSE_FIRST_S
    fail_once(scaling, again_s)
    assert scaling.paused_until_s == again_s + 0.5 + 2 * PAUSE_FIRST_S


def test_a_worker_that_joins_ends_the_pause() -> None:
    scaling = Scaling(Limits(0, 9))
    for _ in range(FAILURES_MAX):
        scaling.request_failed("sbatch: invalid partition", 0.0)
    assert isinstance(decide(scaling, 1.0, [Waiting(1)]), Nothing)
    joined = [Member("a", "5_1", 1, is_busy=True)]
    running = [Allocation("5_1", Phase.RUNNING)]
    assert asked(decide(scaling, 2.0, [Waiting(1)], joined, running)) == 1


def test_cancelled_allocations_and_ends_after_work_are_no_failures() -> None:
    scaling = Scaling(Limits(0, 9))
    queued = [Allocation("1_1", Phase.QUEUED)]
    decide(scaling, 0.0, [], (), queued)
    assert isinstance(decide(scaling, SETTLE_S, [], (), queued), Cancel)
    joined = [Member("a", "2_1", 1, is_busy=True)]
    decide(scaling, 6.0, [], joined, [Allocation("2_1", Phase.RUNNING)])
    ended = [Allocation("1_1", Phase.ENDED), Allocation("2_1", Phase.ENDED, "has ended as TIMEOUT")]
    decide(scaling, 7.0, [], (), ended)
    assert scaling.failures == 0


def test_old_allocations_that_have_ended_before_are_no_failures() -> None:
    scaling = Scaling(Limits(0, 9))
    decide(scaling, 0.0, [], (), [Allocation("1_1", Phase.ENDED, "has ended as FAILED")])
    assert scaling.failures == 0


# --- any history ----------------------------------------------------------------------------------

EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["tasks", "start", "join", "end", "idle", "time"]), st.integers(0, 12)
    ),
    max_size=40,
)  # fmt: skip


class World:
    """A resource manager and a master that events change, and a scaling that they drive."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.scaling = Scaling(limits)
        self.now_s = 0.0
        self.waiting = 0
        self.phases: dict[str, Phase] = {}
        self.members: dict[str, Member] = {}
        self.count = 0

    def event(self, kind: str, number: int) -> None:
        queued = [name for name, phase in self.phases.items() if phase is Phase.QUEUED]
        running = [name for name, phase in self.phases.items() if phase is Phase.RUNNING]
        if kind == "tasks":
            self.waiting = number
        elif kind == "start" and queued:
            self.phases[queued[number % len(queued)]] = Phase.RUNNING
        elif kind == "join" and running:
            name = running[number % len(running)]
            self.members[name] = Member(f"w-{name}", name, 2, is_busy=True)
        elif kind == "end" and running:
            name = running[number % len(running)]
            self.phases[name] = Phase.ENDED
            self.members.pop(name, None)
        elif kind == "idle":
            self.members = {n: m._replace(is_busy=number > 6) for n, m in self.members.items()}
        self.now_s += number if kind == "time" else 0.5

    def step(self) -> list[Command]:
        allocations = [Allocation(name, phase) for name, phase in self.phases.items()]
        waiting = [Waiting(self.waiting)] if self.waiting else []
        seen = Seen(waiting, list(self.members.values()), allocations)
        commands = self.scaling.decide(seen, self.now_s)
        for command in commands:
            assert command.why
            if isinstance(command, Request):
                ids = [f"{self.count + number}" for number in range(command.workers)]
                self.count += len(ids)
                self.phases.update(dict.fromkeys(ids, Phase.QUEUED))
                self.scaling.requested(ids)
            elif isinstance(command, Cancel):
                for name in command.ids:
                    assert not (name in self.members and self.members[name].is_busy)
                    self.phases[name] = Phase.ENDED
                    self.members.pop(name, None)
            elif isinstance(command, Release):
                for worker in command.workers:
                    name = worker.removeprefix("w-")
                    assert not self.members[name].is_busy
                    self.members[name] = self.members[name]._replace(is_draining=True)
        return commands

    def alive(self, *phases: Phase) -> int:
        return sum(phase in phases for phase in self.phases.values())


@given(EVENTS, st.integers(0, 2), st.integers(1, 6), st.integers(2, 4))
def test_no_history_breaks_a_limit(
    events: list[tuple[str, int]], least: int, most: int, backlog: int
) -> None:
    world = World(Limits(min(least, most), most, backlog, idle_s=5.0))
    for kind, number in events:
        world.event(kind, number)
        before = world.alive(Phase.QUEUED, Phase.RUNNING)
        commands = world.step()
        requested = sum(c.workers for c in commands if isinstance(c, Request))
        if requested:
            assert before + requested <= most
            assert world.alive(Phase.QUEUED) <= backlog
            assert world.waiting or before < world.limits.workers_min
            assert world.now_s >= world.scaling.paused_until_s


@given(EVENTS, st.integers(1, 6))
def test_after_any_history_waiting_tasks_get_a_worker_and_idle_workers_leave(
    events: list[tuple[str, int]], most: int
) -> None:
    world = World(Limits(0, most, 4, idle_s=5.0))
    for kind, number in events:
        world.event(kind, number)
        world.step()
    world.event("tasks", 5)
    for name, phase in world.phases.items():  # what runs ends, so that new ones have to come
        if phase is Phase.RUNNING:
            world.phases[name] = Phase.ENDED
    world.members.clear()
    for _ in range(2):  # the first step may find failures, and pause
        world.event("time", 10_000)
        world.step()
    assert world.alive(Phase.QUEUED)
    while world.alive(Phase.QUEUED):
        world.event("start", 0)
    for name, phase in world.phases.items():
        if phase is Phase.RUNNING:
            world.members[name] = Member(f"w-{name}", name, 2)
    world.event("tasks", 0)
    for _ in range(4):
        world.event("time", 12)
        world.step()
        leaving = [name for name, member in world.members.items() if member.is_draining]
        for name in leaving:
            world.phases[name] = Phase.ENDED
            del world.members[name]
    assert not world.members
