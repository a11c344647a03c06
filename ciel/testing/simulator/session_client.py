"""A client with a session, as `JobClient` has one: it resumes it, or starts over.

The master confirms durable messages, which the client then does not repeat. So a master that forgot
one of them could never finish the client's job.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from ciel.client.connection.repeating import to_repeat
from ciel.core.events import (
    HEARTBEAT_INTERVAL_S,
    LOST_AFTER_S,
    AddTask,
    Heartbeat,
    Message,
    Received,
    ReleaseObjects,
    StartOver,
    SubmitJob,
    WantObjects,
)
from ciel.core.ids import ObjectId
from ciel.core.jobs import ENDED, JobState
from ciel.core.masters import NO_BALLOT, was_replaced
from ciel.core.refs import Failure, Value
from ciel.master.state.machine import MasterMachine
from ciel.net.control import Peer
from ciel.net.sessions import PeerSession
from ciel.testing.simulator.fake_client import FakeClient
from ciel.testing.simulator.fake_worker import FakeWorker
from ciel.testing.simulator.witness import Violation
from ciel.testing.simulator.workloads import Plan
from ciel.testing.simulator.world import (
    PEER,
    ClientHello,
    Connection,
    Line,
    World,
)
from ciel.wire import messages


class SessionClient(FakeClient):
    """Sends the messages of a plan, each once for each session."""

    def __init__(
        self, world: World[FakeWorker], plan: Plan, dial: Callable[[str], Connection | None]
    ) -> None:
        self._session: PeerSession | None = None
        self._heard_at_s = 0.0
        self._met = NO_BALLOT  # the master of the latest epoch
        world.timeline.after(HEARTBEAT_INTERVAL_S, self._beat)
        super().__init__(world, plan, dial)

    # --- connections ------------------------------------------------------------------------------

    def _connect(self) -> None:
        if self.is_gone or self._connection is not None:
            return
        connection = self._connection = self._dial_again()
        if connection is None:
            self._connect_later()
            return
        if was_replaced(connection.master, self._met):
            self._lost(connection)
            return
        connection.attach(
            PEER,
            lambda message: self._received(connection, message),
            lambda: self._lost(connection),
        )
        self._heard_at_s = self._world.timeline.now_s
        token, line = self.plan.job.id, self._line(connection)
        if self._session is None:
            connection.send(PEER, ClientHello(token, None))
            self._session = PeerSession("master", line, token)
            for message in self._said:  # before the master could be reached
                self._session.send(message)
        else:
            connection.send(PEER, ClientHello(token, self._session.received))

    def _connect_later(self) -> None:
        delay_s = self._world.mean(self._world.options.reconnect_mean_s)
        self._world.timeline.after(delay_s, self._connect)

    def _line(self, connection: Connection) -> Peer:
        is_coded = self._world.options.through_wire
        return cast(Peer, Line(connection, PEER, messages.FROM_CLIENT, is_coded))

    def _lost(self, connection: Connection) -> None:
        """Handle the end of a connection that the master has closed."""
        if connection is self._connection:
            connection.close(PEER)
            self._forget_connection()
            self._connect_later()

    def _forget_connection(self) -> None:
        self._connection = None
        if self._session is not None:
            self._session.peer = None
        if self._away_since_s is None:  # it may have noticed the loss late
            since_s = max(self._heard_at_s, self._found_at_s)
            has_masters = self._world.options.standbys > 0
            self._away_since_s = since_s if has_masters else self._world.timeline.now_s

    def cut(self, *, for_good: bool, away_s: float, silently: bool) -> None:
        connection = self._connection
        super().cut(for_good=for_good, away_s=away_s, silently=silently)
        if connection is not None:
            self._forget_connection()

    def _beat(self) -> None:
        if self._session is not None:
            self._session.confirm()
        silent_s = self._world.timeline.now_s - self._heard_at_s
        if self._world.options.standbys and self._connection is not None:
            if silent_s > LOST_AFTER_S:
                self._lost(self._connection)
        self._world.timeline.after(HEARTBEAT_INTERVAL_S, self._beat)

    # --- messages ---------------------------------------------------------------------------------

    def _received(self, connection: Connection, message: Message) -> None:
        session = self._session
        if connection is not self._connection or session is None:
            return
        if not isinstance(message, StartOver | Heartbeat):  # else it may not know the client's job
            self._reached_master()
        self._met = max(self._met, connection.master)
        self._heard_at_s = self._world.timeline.now_s
        if isinstance(message, Received):
            assert session.take_confirmation(message.total)
            if session.peer is None:
                session.resume(self._line(connection))
        elif isinstance(message, StartOver):
            self._start_over(connection, session)
        elif not isinstance(message, Heartbeat):
            session.count(1)
            self._heard(message)  # it ignores names of masters: it knows all

    def _send(self, message: Message) -> None:
        if self._session is not None:
            self._session.send(message)

    def _start_over(self, connection: Connection, before: PeerSession) -> None:
        """Begin a new session, as `client.connection` does: jobs, unconfirmed messages, wants."""
        session = self._session = PeerSession("master", self._line(connection), before.token)
        session.count(1)
        is_submitted = any(isinstance(message, SubmitJob) for message in self._said)
        if is_submitted and not self._is_over():
            session.send(SubmitJob(self.plan.job))
        for message in to_repeat(before.unconfirmed()):
            if (again := self._without_handed_over(message)) is not None:
                session.send(again)
        if unsettled := tuple([o for o in self._wants() if not self._has(o)]):
            session.send(WantObjects(self.plan.job.id, unsettled))

    def _has(self, object_id: ObjectId) -> bool:
        """Whether a result is there for good. An error is not, if the job was retried since."""
        ref = self.settled.get(object_id)
        return ref is not None and not (isinstance(ref, Failure) and self.plan.truth.is_retried)

    def _without_handed_over(self, message: Message) -> Message | None:
        """Return what to send of an unconfirmed message, which a master may have processed.

        A real client sends all of it: then a task whose result was handed over exists again in the
        master, and stays there.
        """
        match message:
            case AddTask(spec, _) if self.handed_over.keys() >= set(spec.outputs):
                return None
            case WantObjects(job, objects):
                left = tuple([o for o in objects if o not in self.handed_over])
                return WantObjects(job, left) if left else None
        return message

    def _wants(self) -> dict[ObjectId, None]:
        wants: dict[ObjectId, None] = {}
        for message in self._said:
            if isinstance(message, WantObjects):
                wants.update(dict.fromkeys(message.objects))
            elif isinstance(message, ReleaseObjects):
                wants = {o: None for o in wants if o not in message.objects}
        return wants

    def _is_over(self) -> bool:
        is_ended = self.summary is not None and JobState(self.summary.state) in ENDED
        return is_ended and self._wants().keys() <= self.settled.keys()

    def check_promises(self, master: MasterMachine) -> None:
        job_id, truth = self.plan.job.id, self.plan.truth
        if self.is_gone or self._session is None or truth.is_retried:
            return
        unconfirmed = self._session.unconfirmed()
        is_known = any(isinstance(m, SubmitJob) and m not in unconfirmed for m in self._said)
        if is_known and job_id not in master.jobs:
            raise Violation(job_id, "it was acknowledged, and is forgotten")
        for object_id in self._wants().keys() & self.settled.keys():
            ref = self.settled[object_id]
            found = master.graph.objects.reference(object_id)
            if isinstance(ref, Value) and found != ref:
                raise Violation(object_id, f"its client has received {ref}, which became {found}")

    def watch(self) -> None:
        """Subscribe to the job again; it is not over any more."""
        self.summary = None
        super().watch()

    def _has_messages_on_the_way(self) -> bool:
        is_confirmed = self._session is not None and not self._session.unconfirmed()
        is_alive = self._connection is not None and self._connection.is_alive
        return super()._has_messages_on_the_way() or not (is_confirmed and is_alive)
