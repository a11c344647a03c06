"""A task graph that a test changes step by step."""

from __future__ import annotations

from collections.abc import Iterable

from ciel.core.graph.early_outputs import introduce, open_streams
from ciel.core.graph.invariants import validate
from ciel.core.graph.lost_objects import drop, lose
from ciel.core.graph.nodes import TaskNode
from ciel.core.graph.task_graph import TaskGraph
from ciel.core.ids import ObjectId
from ciel.core.jobs import Job
from ciel.core.refs import Failure, Reference, Stream
from ciel.core.tasks import TaskSpec, TaskState
from ciel.testing.builders import a_job, stored

W1, W2 = "w1:8001", "w2:8001"


class Scene:
    """A graph with one job. A task has the name of its first output."""

    def __init__(self, *tasks: TaskSpec, wanted: Iterable[str] = ()) -> None:
        self.graph = TaskGraph()
        self.job = a_job()
        self.add(*tasks)
        self.want(*wanted)

    def add(self, *tasks: TaskSpec, job: Job | None = None) -> None:
        for task in tasks:
            self.graph.add(task, job or self.job)
        validate(self.graph)

    def want(self, *names: str) -> None:
        for name in names:
            self.graph.want(ObjectId(name), self.job)
        validate(self.graph)

    def unwant(self, *names: str) -> None:
        for name in names:
            self.graph.unwant(ObjectId(name), self.job)
        validate(self.graph)

    def upload(self, ref: Reference) -> None:
        introduce(self.graph, ref, self.job)

    def node(self, spec: TaskSpec) -> TaskNode:
        return self.graph.tasks[spec.id]

    def state(self, spec: TaskSpec) -> TaskState:
        return self.node(spec).state

    def start(self, spec: TaskSpec, place: str = W1) -> int:
        assert self.graph.is_ready(self.node(spec))
        return self.graph.assign(self.node(spec), place)

    def finish(self, spec: TaskSpec, *published: Reference) -> None:
        self.graph.finish(self.node(spec), published)
        validate(self.graph)

    def run(self, *specs: TaskSpec, place: str = W1) -> None:
        """Run tasks that produce all their outputs, and store these where they run."""
        for spec in specs:
            self.start(spec, place)
            self.finish(spec, *[stored(output, place) for output in spec.outputs])

    def fail(self, spec: TaskSpec, details: str = "no luck") -> None:
        self.graph.fail(self.node(spec), "RUNTIME_EXCEPTION", details)
        validate(self.graph)

    def lose(self, name: str, place: str = W1) -> bool:
        lost = lose(self.graph, ObjectId(name), place)
        validate(self.graph)
        return lost

    def stream(self, spec: TaskSpec, *names: str, place: str = W1) -> None:
        """Open outputs of a running task as streams."""
        refs = [Stream(ObjectId(name), frozenset((place,))) for name in names]
        open_streams(self.graph, self.node(spec), refs)
        validate(self.graph)

    def follow(self) -> list[str]:
        """Stop the readers of broken streams, as the master does; return the running ones, in
        order.
        """
        graph = self.graph
        stopped: list[str] = []
        while graph.streams.broken_readers:
            task, attempt = graph.streams.broken_readers.pop()
            if task.state is TaskState.RUNNABLE or task.state is TaskState.WAITING:
                graph.recheck(task)
            elif task.state is TaskState.ASSIGNED and task.attempt == attempt:
                stopped.append(task.spec.outputs[0])
                graph.requeue(task)
        validate(graph)
        return stopped

    def drop_all(self) -> dict[str, list[str]]:
        """Drop all droppable objects; return where their copies are."""
        retention = self.graph.retention
        droppable, retention.droppable = retention.droppable, []
        places = {name: sorted(drop(self.graph, name)) for name in droppable}
        validate(self.graph)
        return {name: held for name, held in places.items() if held}

    def ref(self, name: str) -> Reference:
        return self.graph.objects.reference(ObjectId(name))

    def error(self, name: str) -> Failure:
        ref = self.ref(name)
        assert isinstance(ref, Failure)
        return ref

    def said(
        self,
        runnable: Iterable[str] = (),
        settled: Iterable[str] = (),
        unneeded: Iterable[str] = (),
        droppable: Iterable[str] = (),
    ) -> None:
        """Check that the four outboxes contain exactly this, and empty them."""
        graph = self.graph
        assert [task.spec.outputs[0] for task in graph.runnable] == list(runnable)
        assert graph.settled == list(settled)
        assert [task.spec.outputs[0] for task in graph.unneeded] == list(unneeded)
        assert graph.retention.droppable == list(droppable)
        for box in (graph.runnable, graph.settled, graph.unneeded, graph.retention.droppable):
            box.clear()


LONG = 20_000
