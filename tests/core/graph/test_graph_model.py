"""Compares the graph with a model that knows only the rules: after each step, the model recomputes
every task's state.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ciel.core.graph.early_outputs import introduce, open_streams
from ciel.core.graph.invariants import validate
from ciel.core.graph.lost_objects import drop, lose_location
from ciel.core.graph.nodes import TaskNode
from ciel.core.graph.task_graph import TaskGraph
from ciel.core.ids import JobId, ObjectId, TaskId
from ciel.core.jobs import Job, JobSpec
from ciel.core.refs import Concrete, Failure, Stream, Value
from ciel.core.tasks import (
    ASSIGNED,
    CANCELLED,
    DEFAULT_NEEDS,
    DONE,
    DORMANT,
    FAILED,
    RUNNABLE,
    WAITING,
    Mentions,
    TaskSpec,
)

WORKERS = ("w1:8001", "w2:8002")


@dataclass
class ModelTask:
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    sees_errors: bool
    any_count: int = 0  # one of the last `any_count` inputs is enough
    status: str = (
        "idle"  # idle, assigned or failed; an idle task may have finished, and can run again
    )

    @property
    def needed(self) -> tuple[str, ...]:
        return self.inputs[: len(self.inputs) - self.any_count]

    @property
    def alternatives(self) -> tuple[str, ...]:
        return self.inputs[len(self.inputs) - self.any_count :]


@dataclass
class Model:
    """Evaluates lazily by brute force: it remembers only facts, and recomputes all else."""

    tasks: dict[str, ModelTask] = field(default_factory=dict)
    producer: dict[str, str] = field(default_factory=dict)
    wanted: set[str] = field(default_factory=set)
    places: dict[str, set[str]] = field(
        default_factory=dict
    )  # the workers that hold an object; {"inline"} for a value
    failed: set[str] = field(default_factory=set)

    def settle(self) -> set[str]:
        """Propagate errors until nothing changes; return the tasks that must be waiting or
        runnable.
        """
        while True:
            active = self._active()
            failing = [name for name in active if self._must_fail(self.tasks[name])]
            if not failing:
                return active
            for name in failing:
                self.fail(name)

    def _must_fail(self, task: ModelTask) -> bool:
        if task.sees_errors:
            return False
        none_left = bool(task.alternatives) and self.failed.issuperset(task.alternatives)
        return none_left or not self.failed.isdisjoint(task.needed)

    def has_choice(self, name: str) -> bool:
        """Return whether a task with any-of inputs has one that it can run with."""
        task = self.tasks[name]
        return not task.any_count or any(
            self.places.get(i) or (task.sees_errors and i in self.failed) for i in task.alternatives
        )

    def fail(self, name: str) -> None:
        self.tasks[name].status = "failed"
        for output in self.tasks[name].outputs:
            if self.producer[output] == name and not self.places.get(output):
                self.failed.add(output)

    def _active(self) -> set[str]:
        active: set[str] = set()
        seen: set[str] = set()
        pending = [o for o in self.wanted if self.is_missing(o)]
        while pending:
            name = self.producer.get(pending.pop())
            if name is None or name in seen:
                continue
            seen.add(name)
            task = self.tasks[name]
            if task.status == "idle":
                active.add(name)
                pending += [i for i in task.inputs if self.is_missing(i)]
            elif task.status == "assigned":
                pending += [i for i in task.alternatives if self.is_missing(i)]
        return active

    def is_missing(self, object_id: str) -> bool:
        return not self.places.get(object_id) and object_id not in self.failed


class GraphAgainstModel(RuleBasedStateMachine):
    """Random growth, demand, completion, failure, loss and release."""

    def __init__(self) -> None:
        super().__init__()
        self.graph = TaskGraph()
        self.job = Job(JobSpec(JobId("job"), "", open=True, detached=False, keep=False), 1, 0.0)
        self.model = Model()
        self.count = 0
        self.reads: dict[str, set[str]] = {}  # unfinished streams that each running task reads

    # --- choosing ---------------------------------------------------------------------------------

    def _pick(self, data: st.DataObject, ids: list[str]) -> str:
        return data.draw(st.sampled_from(sorted(ids)))

    def _in_state(self, *states: object) -> list[str]:
        return [name for name, task in self.graph.tasks.items() if task.state in states]

    def _new_spec(
        self, data: st.DataObject, parent: str, outputs: tuple[str, ...] | None = None
    ) -> TaskSpec:
        self.count += 1
        name = f"t{self.count}"
        known = sorted({*self.model.producer, *self.model.places})
        picked: list[str] = []
        if known:
            picked = data.draw(st.lists(st.sampled_from(known), max_size=3, unique=True))
        inputs = tuple(ObjectId(i) for i in picked)
        made = outputs or tuple(f"{name}.{i}" for i in range(data.draw(st.integers(1, 2))))
        inputs = tuple(i for i in inputs if i not in made and not self._depends_on(i, made))
        return TaskSpec(
            TaskId(name), JobId("job"), parent, self.count, "", "x", inputs,
            tuple(ObjectId(o) for o in made), DEFAULT_NEEDS,
            data.draw(st.booleans()), data.draw(st.sampled_from(Mentions)), "", b"",
            data.draw(st.sampled_from((0, 0, *range(len(inputs) + 1)))),
        )  # fmt: skip

    def _depends_on(self, object_id: str, targets: tuple[str, ...]) -> bool:
        pending, seen = [object_id], set()
        while pending:
            item = pending.pop()
            if item in targets:
                return True
            name = self.model.producer.get(item)
            if name is not None and name not in seen:
                seen.add(name)
                pending += self.model.tasks[name].inputs
        return False

    def _add(self, spec: TaskSpec) -> None:
        self.graph.add(spec, self.job)
        self.model.tasks[spec.id] = ModelTask(
            spec.inputs, spec.outputs, spec.sees_errors, spec.any_count
        )
        for output in spec.outputs:
            self.model.producer[output] = spec.id

    # --- growth and demand ------------------------------------------------------------------------

    @rule(data=st.data())
    def add_task(self, data: st.DataObject) -> None:
        self._add(self._new_spec(data, "job"))

    @rule(data=st.data())
    def add_upload(self, data: st.DataObject) -> None:
        self.count += 1
        object_id, place = f"upload{self.count}", data.draw(st.sampled_from(WORKERS))
        introduce(self.graph, Concrete(ObjectId(object_id), 5000, frozenset((place,))), self.job)
        self.model.places[object_id] = {place}

    @precondition(lambda self: self.model.producer)
    @rule(data=st.data())
    def want(self, data: st.DataObject) -> None:
        object_id = self._pick(data, list(self.model.producer))
        self.graph.want(ObjectId(object_id), self.job)
        self.model.wanted.add(object_id)

    @precondition(lambda self: self.model.wanted)
    @rule(data=st.data())
    def unwant(self, data: st.DataObject) -> None:
        object_id = self._pick(data, list(self.model.wanted))
        self.graph.unwant(ObjectId(object_id), self.job)
        self.model.wanted.discard(object_id)

    # --- running ----------------------------------------------------------------------------------

    @precondition(lambda self: self._in_state(RUNNABLE))
    @rule(data=st.data())
    def assign(self, data: st.DataObject) -> None:
        self._assign(self._pick(data, self._in_state(RUNNABLE)), data)

    def _assign(self, name: str, data: st.DataObject) -> None:
        assert self.graph.is_ready(self.graph.tasks[name])
        self.graph.assign(self.graph.tasks[name], data.draw(st.sampled_from(WORKERS)))
        self.model.tasks[name].status = "assigned"
        growing = self.graph.objects.growing
        self.reads[name] = {i for i in self.graph.tasks[name].spec.needed if i in growing}

    def _running(self, data: st.DataObject) -> tuple[str, TaskNode]:
        name = self._pick(data, self._in_state(ASSIGNED))
        return name, self.graph.tasks[name]

    def _countable(self) -> list[str]:
        """Return the running tasks whose reports would count, because all their inputs are
        complete.
        """
        tasks, reading = self.graph.tasks, self.graph.streams.reading
        return [name for name in self._in_state(ASSIGNED) if tasks[name] not in reading]

    @precondition(lambda self: self._in_state(ASSIGNED))
    @rule(data=st.data())
    def open_streams(self, data: st.DataObject) -> None:
        """Open the outputs of a running task as streams, even if they are there, lost or
        delegated.
        """
        _, task = self._running(data)
        assert task.worker is not None
        place = frozenset((task.worker,))
        open_streams(self.graph, task, [Stream(output, place) for output in task.spec.outputs])

    @precondition(lambda self: self._in_state(ASSIGNED))
    @rule(data=st.data())
    def pipe(self, data: st.DataObject) -> None:
        """Open the missing outputs of a running task, and start a new task that reads one of
        them.
        """
        name, task = self._running(data)
        mine = [o for o in task.spec.outputs if self.model.producer[o] == name]
        growing = [o for o in mine if self.model.is_missing(o)]
        if growing and task.worker is not None:
            place = frozenset((task.worker,))
            open_streams(self.graph, task, [Stream(output, place) for output in growing])
            spec = self._new_spec(data, "job")._replace(inputs=(growing[0],), any_count=0)
            self._add(spec)
            self.graph.want(spec.outputs[0], self.job)
            self.model.wanted.add(spec.outputs[0])
            self._assign(spec.id, data)

    @precondition(lambda self: len(self.model.producer) > 1)
    @rule(data=st.data(), sees_errors=st.booleans())
    def choose(self, data: st.DataObject, sees_errors: bool) -> None:
        """Add a wanted task with any-of inputs, most often missing ones."""
        known = sorted(self.model.producer)
        missing = [o for o in known if self.model.is_missing(o)]
        pool = missing if len(missing) > 1 else known
        picked = data.draw(st.lists(st.sampled_from(pool), min_size=2, max_size=3, unique=True))
        spec = self._new_spec(data, "job")
        inputs = tuple([ObjectId(o) for o in picked])
        self._add(spec._replace(inputs=inputs, any_count=len(inputs), sees_errors=sees_errors))
        self.graph.want(spec.outputs[0], self.job)
        self.model.wanted.add(spec.outputs[0])

    @precondition(lambda self: self._countable())
    @rule(data=st.data(), inline=st.booleans())
    def finish(self, data: st.DataObject, inline: bool) -> None:
        name = self._pick(data, self._countable())
        task = self.graph.tasks[name]
        worker = task.worker
        assert worker is not None
        published: list[Concrete | Value] = []
        for output in task.spec.outputs:
            if self.model.producer[output] != name:
                continue
            # the task does not produce this output, which is an error
            if data.draw(st.integers(0, 9)) == 0:
                if self.model.is_missing(output):
                    self.model.failed.add(output)
                continue
            if inline:
                published.append(Value.of(output, b"content"))
            else:
                published.append(Concrete(output, 5000, frozenset((worker,))))
            if inline:  # a value replaces all earlier states, errors included
                self.model.failed.discard(output)
            if output not in self.model.failed:
                places = self.model.places.setdefault(output, set())
                if "inline" not in places:
                    places.clear() if inline else None
                    places.add("inline" if inline else worker)
        self.model.tasks[name].status = "idle"
        self.graph.finish(task, published)

    @precondition(lambda self: self._in_state(ASSIGNED))
    @rule(data=st.data())
    def spawn_and_delegate(self, data: st.DataObject) -> None:
        name, task = self._running(data)
        mine = tuple(
            o
            for o in task.spec.outputs
            if self.model.producer[o] == name and self.model.is_missing(o)
        )
        hands_over: bool = data.draw(st.booleans())
        delegated = mine if mine and hands_over else None
        self._add(self._new_spec(data, name, delegated))

    @precondition(lambda self: self._in_state(ASSIGNED))
    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        name, task = self._running(data)
        self.model.fail(name)
        self.graph.fail(task, "RUNTIME_EXCEPTION", "exit status 3")

    @precondition(lambda self: self._in_state(ASSIGNED))
    @rule(data=st.data())
    def requeue(self, data: st.DataObject) -> None:
        name, task = self._running(data)
        self.model.tasks[name].status = "idle"
        self.graph.requeue(task)

    # --- loss and release -------------------------------------------------------------------------

    @rule(worker=st.sampled_from(WORKERS))
    def lose_worker(self, worker: str) -> None:
        for name in self._in_state(ASSIGNED):
            task = self.graph.tasks[name]
            if task.worker == worker:
                self.model.tasks[name].status = "idle"
                self.graph.requeue(task)
        for object_id, places in self.model.places.items():
            if worker in places:
                places.discard(worker)
                if not places and self._cannot_be_made(object_id):
                    self.model.failed.add(object_id)
        lose_location(self.graph, worker)

    def _cannot_be_made(self, object_id: str) -> bool:
        name = self.model.producer.get(object_id)
        return name is None or self.model.tasks[name].status == "failed"

    @rule()
    def release(self) -> None:
        """Drop all droppable objects, and check that no task still needs them."""
        retention = self.graph.retention
        droppable, retention.droppable = retention.droppable, []
        for object_id in droppable:
            before = self.graph.objects.reference(object_id)
            drop(self.graph, object_id)
            after = self.graph.objects.reference(object_id)
            if before != after:
                assert object_id not in self.model.wanted
                waiting = [
                    self.model.tasks[name] for name in self._in_state(WAITING, RUNNABLE, ASSIGNED)
                ]
                assert all(object_id not in task.inputs for task in waiting)
                self.model.places[object_id].clear()

    # --- invariants -------------------------------------------------------------------------------

    @invariant()
    def states_agree(self) -> None:
        self._follow_streams()
        for name in self._in_state(WAITING, RUNNABLE):
            if self.graph.tasks[name].state in (WAITING, RUNNABLE):
                self.graph.recheck(self.graph.tasks[name])
        for task in self.graph.unneeded:
            if task.state is ASSIGNED:
                self.model.tasks[task.spec.id].status = "idle"
                self.graph.deactivate(task)
        self.graph.unneeded.clear()
        self.graph.runnable.clear()
        active = self.model.settle()
        for name, task in self.graph.tasks.items():
            expected = self.model.tasks[name]
            assert (task.state is ASSIGNED) == (expected.status == "assigned"), task
            if expected.status == "failed" and task.state is DORMANT:
                self._never_asked(name)
            assert (task.state is FAILED) == (expected.status == "failed"), task
            assert (task.state in (WAITING, RUNNABLE)) == (name in active), task
            assert task.state is not CANCELLED
            if task.state in (WAITING, RUNNABLE):
                lacks = {i for i in expected.needed if self.model.is_missing(i)}
                has_all = lacks <= self.graph.objects.growing.keys()
                assert (task.state is RUNNABLE) == (has_all and self.model.has_choice(name)), task
        for object_id in self.graph.objects.nodes:
            ref = self.graph.objects.reference(ObjectId(object_id))
            assert isinstance(ref, Failure) == (object_id in self.model.failed), ref
            there = isinstance(ref, Value | Concrete)
            assert there == bool(self.model.places.get(object_id)), ref

    def _follow_streams(self) -> None:
        """Requeue tasks whose streams broke."""
        while self.graph.streams.broken_readers:
            task, attempt = self.graph.streams.broken_readers.pop()
            if task.state in (WAITING, RUNNABLE):
                self.graph.recheck(task)
            elif task.state is ASSIGNED and task.attempt == attempt:
                self.model.tasks[task.spec.id].status = "idle"
                self.graph.requeue(task)

    @invariant()
    def who_reads_is_known(self) -> None:
        """Check that every task that reads a growing object is registered as its reader, and that
        the producer of a read object is needed.
        """
        for object_id in self.graph.objects.growing:
            readers = self.graph.streams.readers.get(object_id, {})
            for name in self._in_state(WAITING, RUNNABLE):
                task = self.graph.tasks[name]
                assert (object_id in task.spec.needed) == (task in readers)
            maker = self.graph.objects.nodes[object_id].producer
            assert maker is not None
            assert maker.state is ASSIGNED
            assert self.graph.is_needed(maker) or not readers
        for name in self._in_state(ASSIGNED):
            left = {o for o in self.reads.get(name, ()) if self.model.is_missing(o)}
            assert left <= self.graph.streams.reading.get(self.graph.tasks[name], {}).keys()
            self.reads[name] = left

    def _never_asked(self, name: str) -> None:
        """Reset a task that the model failed but the graph did not: the model fails all tasks at
        once; where a consumer failed first, the graph no longer needs its producer.
        """
        self.model.tasks[name].status = "idle"
        for output in self.model.tasks[name].outputs:
            if self.model.producer[output] == name:
                self.model.failed.discard(output)
                assert output not in self.model.wanted

    @invariant()
    def graph_is_valid(self) -> None:
        validate(self.graph)

    def teardown(self) -> None:
        """Check liveness: when no task fails any more, all wanted objects are produced."""
        for _ in range(10 * len(self.graph.tasks) + 10):
            self.states_agree()
            ready = self._in_state(RUNNABLE)
            if not ready and not self._in_state(ASSIGNED):
                break
            for name in self._countable():
                task = self.graph.tasks[name]
                mine = [o for o in task.spec.outputs if self.model.producer[o] == name]
                self.graph.finish(task, [Value.of(o, b"") for o in mine])
                for output in mine:
                    self.model.failed.discard(output)
                    self.model.places[output] = {"inline"}
                self.model.tasks[name].status = "idle"
            for name in ready:
                if self.graph.is_ready(self.graph.tasks[name]):
                    self.graph.assign(self.graph.tasks[name], WORKERS[0])
                    self.model.tasks[name].status = "assigned"
        for object_id in self.model.wanted:
            assert not self.model.is_missing(object_id)
        assert self.job.unsettled == 0
        assert self.job.counts[DONE] <= len(self.graph.tasks)


GraphAgainstModel.TestCase.settings = settings(
    max_examples=100,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate, Phase.shrink],
)
TestGraphAgainstModel = GraphAgainstModel.TestCase
