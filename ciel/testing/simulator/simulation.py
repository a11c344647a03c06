"""One run of a simulated cluster, from a seed.

Each run has two phases, as in FoundationDB and TigerBeetle. While faults happen, the engine must do
nothing wrong (safety): `invariants` are checked after the master's event-loop iterations. After the
last fault, all jobs must end with the right results (liveness), and no state may be left over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from typing import NamedTuple

from ciel.core.errors import CielError
from ciel.core.graph.invariants import differing_children
from ciel.core.ids import ObjectId
from ciel.core.jobs import Job, JobState
from ciel.core.refs import Concrete, Failure, Reference, Value
from ciel.core.tasks import TaskSpec
from ciel.master.state.machine import MasterMachine
from ciel.master.state.subscriptions import CLIENT_GRACE_S
from ciel.testing.simulator.cluster import Cluster
from ciel.testing.simulator.fake_client import FakeClient
from ciel.testing.simulator.fake_master import FakeMaster
from ciel.testing.simulator.fake_user import FakeUser
from ciel.testing.simulator.faults import Faults
from ciel.testing.simulator.invariants import Problems, check_master, kept_after_all, unrest
from ciel.testing.simulator.options import Options, options_for
from ciel.testing.simulator.witness import Violation

REST_S = 2.0  # between checks whether all work has ended
HISTORY_LINES_MAX = 80
LINE_LENGTH_MAX = 400


class Result(NamedTuple):
    """The counts of one successful simulation."""

    tasks: int
    runs: int
    excused: int
    handed_over: int
    retried: int
    removed: int
    simulated_s: float
    restarts: int  # of the master


class Simulation:
    """The simulation of one cluster with one seed."""

    def __init__(
        self,
        seed: int,
        options: Options,
        make_master: Callable[..., MasterMachine] = MasterMachine,
        without: Set[int] = frozenset(),
    ) -> None:
        """`without`: the numbers of faults that do not happen."""
        self.options = options
        self.cluster = Cluster(seed, options, make_master, without)
        self.world = self.cluster.world
        self.clients = self.cluster.clients
        self.user = FakeUser(
            self.world, lambda: self.master, self.clients, self._is_excused_or_right
        )
        self.faults = Faults(self.cluster)

    @property
    def master(self) -> FakeMaster:
        """The master that has started last."""
        return self.cluster.master

    # --- the run ----------------------------------------------------------------------------------

    def run(self) -> Result:
        """Run until all work has ended; raises Violation, and errors of the machines."""
        timeline = self.world.timeline
        while timeline.now_s < self.faults.calm_at_s and not self.faults.has_refused:
            timeline.step()
        if self.options.lying_share:
            return self._end_without_promises()
        deadline_s = self.faults.calm_at_s + self.options.liveness_s
        while (problem := next(self._unrest(), None)) is not None:
            if timeline.now_s > deadline_s:
                subject, text = problem
                raise Violation(subject, f"{self.options.liveness_s:g} s after all faults, {text}")
            check_at_s = timeline.now_s + REST_S
            while timeline.now_s < check_at_s:
                timeline.step()
        check_master(self.master.machine, self.world.witness)
        if self.options.nothing_runs_twice:
            if lost := self.master.machine.membership.lost_count:
                raise Violation("workers", f"{lost} were declared dead, and none has died")
        if self.options.nothing_runs_twice or self.options.nothing_recomputed:
            for again in self.world.witness.remade:
                raise Violation(again, f"{again} was recomputed, and no object was lost")
        if self.options.repeats_only_lost:
            for task, count in self.world.witness.repeats().items():
                raise Violation(task, f"it has run {count} times more than its workers were lost")
        excused = sum([self._is_excused_or_right(client) for client in self.clients])
        return self._result(excused)

    def _end_without_promises(self) -> Result:
        """End a run whose disk has lied: acknowledged work may be lost, but no result is wrong."""
        until_s = self.world.timeline.now_s + REST_S * 5
        while self.world.timeline.now_s < until_s and not self.faults.has_refused:
            self.world.timeline.step()
        # The result of a task may contain an error that such a disk has caused.
        for client in () if self.options.sees_errors_share else self.clients:
            for object_id, ref in (client.settled | client.handed_over).items():
                if not isinstance(ref, Failure):
                    self._check_reference(client, object_id, ref)
        return self._result(0)

    def _result(self, excused: int) -> Result:
        return Result(
            tasks=len(self.master.machine.graph.tasks),
            runs=self.world.witness.runs,
            excused=excused,
            handed_over=sum([len(client.handed_over) for client in self.clients]),
            retried=self.user.retried,
            removed=len(self.user.removed),
            simulated_s=self.world.timeline.now_s,
            restarts=self.world.witness.restarts,
        )

    def _unrest(self) -> Problems:
        for client in self.clients:
            yield from client.unrest()
        yield from self.user.unrest()
        yield from self.cluster.unrest()
        if not self.master.is_idle:
            yield "master", "not all its messages are acknowledged"
        yield from unrest(self.master.machine, self.cluster.workers, self.world.witness)

    def _is_excused_or_right(self, client: FakeClient) -> bool:
        """Check the state and the results of a job. Return whether a fault that the engine cannot
        survive excuses wrong results.
        """
        plan, machine = client.plan, self.master.machine
        if self.options.lying_share:
            return True  # acknowledged work may be lost
        if plan.job.id in self.user.removed:
            return self.user.removed[plan.job.id]
        job = machine.jobs.get(plan.job.id)
        if job is None:
            if not client.is_gone:
                raise Violation(plan.job.id, "it was never created")
            return False
        if self.world.witness.is_excused(machine, job):
            return True
        self._check_sameness(job)
        self._check_state(client, job)
        for object_id, ref in client.handed_over.items():
            has_changed = plan.truth.is_retried or job.state is JobState.CANCELLED
            if not (has_changed and isinstance(ref, Failure)):
                self._check_reference(client, object_id, ref)
        # The last messages of a client that left for good may be lost.
        known = set() if client.is_gone else client.handed_over.keys()
        for object_id in kept_after_all(machine, known):
            text = "it was handed over, no task needs it, and the master still knows it"
            raise Violation(object_id, text)
        if job.state in (JobState.COMPLETED, JobState.FAILED):
            for object_id in job.wanted:
                self._check_object(client, object_id)
        return False

    def _check_sameness(self, job: Job) -> None:
        graph = self.master.machine.graph
        for parent, ordinal in differing_children(graph):
            if parent.job is job:
                text = f"two attempts spawned different tasks as child {ordinal}"
                raise Violation(parent.spec.id, text)
        for object_id in self.world.witness.ambiguous:
            node = graph.objects.get(object_id)  # it may have been removed with its job
            if node is not None and node.producer is not None and node.producer.job is job:
                raise Violation(object_id, "it was recomputed with different content")

    def _check_state(self, client: FakeClient, job: Job) -> None:
        plan = client.plan
        fails = any(plan.truth.makes_job_fail(object_id) for object_id in job.wanted)
        expected = {JobState.FAILED if fails else JobState.COMPLETED}
        if any(plan.truth.makes_job_fail(object_id) for object_id in client.handed_over):
            expected.add(JobState.FAILED)  # if they were handed over after the end of the job
        if (
            job.spec.id in self.user.revived
        ):  # the job may have been cancelled before it had all its tasks
            expected.add(JobState.FAILED)
        if plan.is_cancelled or client.is_gone or client.away_max_s >= CLIENT_GRACE_S:
            expected.add(JobState.CANCELLED)
        for predecessor in job.spec.after:
            earlier = self.master.machine.jobs[predecessor.job]
            if not predecessor.in_any_way and earlier.state is not JobState.COMPLETED:
                expected = {JobState.CANCELLED}
        if job.state not in expected:
            raise Violation(job.spec.id, f"it is {job.state} ({job.reason}), not {expected}")
        if not client.is_gone:
            believed = client.summary and client.summary.state
            if believed != job.state.value:
                raise Violation(
                    job.spec.id, f"its client believes that it is {believed}, it is {job.state}"
                )
            expected_wants = set(plan.wanted) - client.handed_over.keys()
            is_whole = job.state is not JobState.CANCELLED and job.spec.id not in self.user.revived
            if is_whole and set(job.wanted) != expected_wants:
                raise Violation(job.spec.id, "it does not want the objects that its client wants")

    def _check_object(self, client: FakeClient, object_id: ObjectId) -> None:
        known = [self.master.machine.graph.objects.reference(object_id)]
        if not client.is_gone:
            if object_id not in client.settled:
                raise Violation(object_id, "its client has received no report of it")
            known.append(client.settled[object_id])
        for ref in known:
            self._check_reference(client, object_id, ref)

    def _check_reference(self, client: FakeClient, object_id: ObjectId, ref: Reference) -> None:
        value = client.plan.truth.value(object_id)
        found: bytes | None = None
        if isinstance(ref, Value):
            found = ref.content
        elif isinstance(ref, Concrete):
            found = self.world.witness.content_of(object_id)
        elif not isinstance(ref, Failure):
            raise Violation(object_id, f"it is {ref}, and its job has ended")
        if found != value:
            raise Violation(object_id, f"it is {found!r} ({ref}), it should be {value!r}")

    def history_of(self, subject: str) -> list[str]:
        """Return all messages about a task, an object or a peer (or about all), oldest first."""
        graph = self.master.machine.graph
        node = graph.objects.get(subject)
        names = {subject}
        if node is not None and node.producer is not None:
            names.add(node.producer.spec.id)
        if subject in graph.tasks:
            names.update(graph.tasks[subject].spec.outputs)
        lines = []
        for at_s, who, what in self.world.log:
            if isinstance(what, str) or any(name in repr(what) for name in names):
                lines.append(f"{at_s:9.4f} {who}: {_brief(what)}")
        tasks = [graph.tasks[name] for name in names if name in graph.tasks]
        return [*lines[-HISTORY_LINES_MAX:], *map(repr, tasks)]


def _brief(what: object) -> str:
    """Return a message in one line; for a task, only its id, inputs and outputs."""
    text = str(what)
    spec = getattr(what, "spec", None)
    if isinstance(spec, TaskSpec):
        rest = getattr(what, "attempt", ""), getattr(what, "known", ()), getattr(what, "inputs", ())
        text = f"{type(what).__name__} {spec.id} {rest} {spec.mentions} makes {spec.outputs}"
    return text[:LINE_LENGTH_MAX]


class SimulationError(Exception):
    """A seed failed. The message contains the history, the faults that happened, the error, and the
    command for a replay. `without`: the faults that did not happen, by number.
    """

    def __init__(
        self,
        seed: int,
        scenario: str,
        error: Exception,
        history: list[str],
        faults: Sequence[str] = (),
        without: Set[int] = frozenset(),
    ) -> None:
        self.seed = seed
        self.scenario = scenario
        self.error = error
        self.fault_count = len(faults)
        self.without = without
        replay = f"python -m ciel.testing.simulator --scenario {scenario} --seeds {seed}-{seed}"
        if without:
            replay += f" --without {','.join(map(str, sorted(without)))}"
        left = [text for number, text in enumerate(faults) if number not in without]
        what = f"seed {seed}: {type(error).__name__}: {error}"
        super().__init__("\n".join([*history, *left, what, f"replay: {replay}"]))


def simulate(
    seed: int,
    scenario: str = "any",
    make_master: Callable[..., MasterMachine] = MasterMachine,
    without: Set[int] = frozenset(),
) -> Result:
    """Run one seed of a scenario; raises SimulationError."""
    simulation = Simulation(seed, options_for(scenario, seed), make_master, without)
    subject, found = "", Exception()
    try:
        return simulation.run()
    except Violation as error:
        subject, found = error.subject, error
    except (CielError, LookupError, AssertionError, TypeError, ValueError, AttributeError) as error:
        found = error
    history, faults = simulation.history_of(subject), simulation.world.faults
    raise SimulationError(seed, scenario, found, history, faults, without) from found
