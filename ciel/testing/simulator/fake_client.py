"""A client of a simulation: sends the messages of its plan, and records the answers.

It hands over results that its plan does not name again: the master may then forget them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ciel.core.events import (
    AddTask,
    CancelJob,
    CloseJob,
    JobChanged,
    Message,
    ObjectSettled,
    ReleaseObjects,
    ReplicateObjects,
    RequestRefused,
    SubmitJob,
    WantObjects,
    WatchJob,
)
from ciel.core.ids import ObjectId
from ciel.core.jobs import JobSummary
from ciel.core.refs import Concrete, Reference, Stream, Value, locations_of
from ciel.master.state.machine import MasterMachine
from ciel.testing.simulator.fake_worker import FakeWorker
from ciel.testing.simulator.witness import Violation
from ciel.testing.simulator.workloads import Plan
from ciel.testing.simulator.world import MASTER, PEER, Connection, World, size_of, through_wire
from ciel.wire import messages

CLIENT_SILENT_S = 30.0
"""After this time without a message, the master closes a client's connection."""

Problems = Iterator[tuple[str, str]]
POLL_S = 0.1  # how often a client checks whether a predecessor of its job was submitted
USE_MEAN_S = 0.3  # how long the client uses a result
COPIES = 2
"""How many copies of a replicated upload are to exist."""


class FakeClient:
    """Sends the messages of a plan. After a lost connection, it reconnects and repeats them."""

    def __init__(
        self, world: World[FakeWorker], plan: Plan, dial: Callable[[str], Connection | None]
    ) -> None:
        self.plan = plan
        self.settled: dict[ObjectId, Reference] = {}
        self.handed_over: dict[ObjectId, Reference] = {}
        self.summary: JobSummary | None = None
        self.is_gone = False  # for good
        self.away_max_s = 0.0  # longest time from a lost connection to an answer on the next one
        self._world = world
        self._dial = dial
        self._away_since_s: float | None = None
        self._found_at_s = 0.0  # when the last master has started
        self._lives = 0
        self._said: list[Message] = []
        self._steps_said = 0
        self._last_named = {o: i for i, step in enumerate(plan.steps) for o in _named(step.message)}
        self._used: set[ObjectId] = set()  # and not handed over yet
        self._uploads: dict[ObjectId, Reference] = {}
        self._connection: Connection | None = None
        self._connect()
        self._play(0)

    def _connect(self) -> None:
        if self.is_gone:
            return
        connection = self._dial_again()
        assert connection is not None
        self._connection = connection
        connection.attach(PEER, self._heard, lambda: None)
        if self._said:
            for message in self._all_said():
                self._send(message)

    def _dial_again(self) -> Connection | None:
        self._lives += 1
        return self._dial(f"{self.plan.job.id}.client{self._lives}")

    def _all_said(self) -> Iterator[Message]:
        """Yield the messages that bring a master to the current state, whichever of them it has
        missed. They omit the tasks whose results were handed over: the master has received these,
        or has forgotten them.
        """
        job, wants = self.plan.job.id, {}
        for message in self._said:
            match message:
                case WantObjects(_, objects):
                    wants.update(dict.fromkeys(objects, True))
                case ReleaseObjects(_, objects):
                    wants.update(dict.fromkeys(objects, False))
                case AddTask(spec, _) if self.handed_over.keys() >= set(spec.outputs):
                    pass
                case SubmitJob() | AddTask() | ReplicateObjects():
                    yield message
        released = [o for o, is_wanted in wants.items() if not is_wanted]
        for for_good in (False, True):
            if some := tuple(o for o in released if (o in self.handed_over) is for_good):
                yield ReleaseObjects(job, some, for_good)
        if wanted := tuple(o for o, is_wanted in wants.items() if is_wanted):
            yield WantObjects(job, wanted)
        yield from [m for m in self._said if isinstance(m, CloseJob | CancelJob)]
        yield WatchJob(job)

    def cut(self, *, for_good: bool, away_s: float, silently: bool) -> None:
        """Lose the connection; if `silently`, the master notices that only after a timeout."""
        if self._connection is None:
            return
        timeline = self._world.timeline
        self._connection.cut(silently=True)
        silent_s = CLIENT_SILENT_S if silently else self._world.latency_s()
        timeline.after(silent_s, self._connection.end, MASTER)
        self._connection = None
        self.is_gone = self.is_gone or for_good
        if not self.is_gone:
            if self._away_since_s is None:  # else it was cut again before the master noticed
                self._away_since_s = timeline.now_s
            timeline.after(away_s, self._connect)

    def _play(self, index: int) -> None:
        if index < len(self.plan.steps):
            step = self.plan.steps[index]
            self._world.timeline.after(step.delay_s, self._say, step.message, index)

    def _say(self, message: Message, index: int) -> None:
        if self.is_gone:
            return
        if isinstance(message, SubmitJob) and not self._world.submitted.issuperset(
            predecessor.job for predecessor in message.spec.after
        ):
            self._world.timeline.after(POLL_S, self._say, message, index)
            return
        self._steps_said += 1
        if isinstance(message, AddTask):
            inputs = message.spec.inputs
            new = [o for o in inputs if o in self.plan.replicated and o not in self._uploads]
            known = [self._upload(o) for o in inputs if o in self.plan.uploads]
            message = message._replace(known=tuple(known))
            stored = tuple([self._uploads[o] for o in new if locations_of(self._uploads[o])])
            if stored:
                replicate = ReplicateObjects(self.plan.job.id, COPIES, stored)
                self._said.append(replicate)
                self._send(replicate)
        self._said.append(message)
        self._send(message)
        self._play(index + 1)

    def _send(self, message: Message) -> None:
        if self._connection is not None:
            if self._world.options.through_wire:
                message = through_wire(message, messages.FROM_CLIENT)
            self._connection.send(PEER, message)

    def _upload(self, object_id: ObjectId) -> Reference:
        if object_id not in self._uploads:
            world, content = self._world, self.plan.uploads[object_id]
            world.witness.made(object_id, content)
            serving = [w for w in world.serving.values() if w.has_met_master and not w.is_frozen]
            ref: Reference = Value.of(object_id, content)
            if serving and world.chance.random() >= world.options.upload_inline_share:
                holders = [world.chance.choice(serving)]
                if object_id in self.plan.replicated and world.chance.random() < 0.7:
                    holders = world.chance.sample(serving, min(COPIES, len(serving)))
                for holder in holders:
                    holder.store[object_id] = content
                    holder.machine.uploaded(object_id, world.timeline.now_s)
                places = frozenset(holder.facts.netloc for holder in holders)
                world.witness.upload_places[object_id] = places
                ref = Concrete(object_id, size_of(object_id, world.options), places)
            self._uploads[object_id] = ref
        return self._uploads[object_id]

    def _reached_master(self) -> None:
        if self._away_since_s is not None:
            away_s = self._world.timeline.now_s - self._away_since_s
            self.away_max_s, self._away_since_s = max(self.away_max_s, away_s), None

    def _heard(self, message: Message) -> None:
        self._reached_master()
        match message:
            case ObjectSettled(_, Stream()):
                pass  # this client does not read growing objects
            case ObjectSettled(_, ref) if ref.id not in self.handed_over:
                self._check_sameness(self.settled.get(ref.id), ref)
                self.settled[ref.id] = ref
                share = self._world.options.hand_over_share
                if share and self._world.chance.random() < share:
                    self._world.timeline.after(self._world.mean(USE_MEAN_S), self._use, ref.id)
            case JobChanged(summary):
                self.summary = summary
                self._world.submitted.add(summary.id)
            case RequestRefused(job, reason):
                raise Violation(job, f"the master refused a client's request: {reason}")

    def _check_sameness(self, before: Reference | None, ref: Reference) -> None:
        """G1: an object has one value for ever."""
        is_new = isinstance(before, Value) and isinstance(ref, Value) and before != ref
        if is_new and not self.plan.truth.is_retried:
            raise Violation(ref.id, f"its client has received {before}, and then {ref}")

    def _use(self, object_id: ObjectId) -> None:
        """Record that a result was used. Hand over all used results that the plan does not name
        again.
        """
        self._used.add(object_id)
        done = {o for o in self._used if self._last_named[o] < self._steps_said}
        self._used -= done
        ready = tuple(sorted(done & self.settled.keys()))
        if ready and not self.is_gone:
            self.handed_over |= {object_id: self.settled.pop(object_id) for object_id in ready}
            message = ReleaseObjects(self.plan.job.id, ready, for_good=True)
            self._said.append(message)
            self._send(message)

    def check_promises(self, master: MasterMachine) -> None:
        """Check that a restarted master has all that an earlier one has told this client."""

    def finds_master(self, before_until_s: float) -> None:
        """Note that a master serves, and until when the one before it did: the time between them
        does not count as absence of this client.
        """
        self._found_at_s = self._world.timeline.now_s
        if self._away_since_s is not None:
            now_s = self._world.timeline.now_s
            away_s = min(now_s, before_until_s) - self._away_since_s
            self.away_max_s, self._away_since_s = max(self.away_max_s, away_s), now_s

    def watch(self) -> None:
        """Subscribe to the job again, after a retry of the ended job."""
        if self._said:
            self._send(WatchJob(self.plan.job.id))

    def leave(self) -> None:
        """Send no more messages about the job, because it was removed."""
        self.is_gone = True

    def _has_messages_on_the_way(self) -> bool:
        return self._connection is not None and self._connection.on_the_way > 0

    def unrest(self) -> Problems:
        """Yield a problem for each message that is not sent or not received yet."""
        if self.is_gone:
            return
        if self._connection is None or self._steps_said < len(self.plan.steps):
            yield self.plan.job.id, "its client has not sent all messages"
        elif self._has_messages_on_the_way():
            yield self.plan.job.id, "a message to or from its client has not arrived"


def _named(message: Message) -> tuple[ObjectId, ...]:
    """Return the objects that a message names."""
    match message:
        case AddTask(spec, _):
            return (*spec.inputs, *spec.outputs)
        case WantObjects(_, objects):
            return objects
    return ()
