"""The master of a simulation: the real state machine, and a service that has no sockets."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast

from ciel.core.errors import CielError
from ciel.core.events import (
    HEARTBEAT_INTERVAL_S,
    DropObjects,
    Heartbeat,
    Message,
    Received,
    ReleaseObjects,
)
from ciel.master.state.machine import MasterMachine
from ciel.master.state.queries import topics
from ciel.net.control import Peer
from ciel.net.sessions import PeerSession
from ciel.testing.simulator.fake_worker import FakeWorker
from ciel.testing.simulator.invariants import check_master
from ciel.testing.simulator.world import (
    MASTER,
    Connection,
    Hello,
    Line,
    Refusal,
    World,
    through_wire,
)
from ciel.wire import messages


class FakeMaster:
    """Serves connections, ends the machine's ticks, and sends heartbeats."""

    def __init__(self, world: World[FakeWorker], machine: MasterMachine) -> None:
        self.machine = machine
        machine.bulk.steps_per_tick = world.options.steps_per_tick
        self._world = world
        self._links: dict[str, Connection] = {}  # of clients
        self._sessions: dict[str, PeerSession] = {}  # of workers
        self._tick_due_s: float | None = None
        self._ticks = 0
        self._journal_read = 0
        world.timeline.after(HEARTBEAT_INTERVAL_S, self._beat)

    def accept_client(self, connection: Connection) -> None:
        self._links[connection.name] = connection

        def receive(message: Message) -> None:
            before = dict(self.machine.graph.tasks) if isinstance(message, ReleaseObjects) else {}
            self.machine.client_sent(connection.name, message, self._now_s)
            self._world.witness.handed_over(self.machine, before)
            self._end_tick_soon()

        def hear_end() -> None:
            del self._links[connection.name]
            self.machine.client_gone(connection.name, self._now_s)
            self._end_tick_soon()

        connection.attach(MASTER, receive, hear_end)

    def accept_worker(self, connection: Connection) -> None:
        line = Line(connection, MASTER, messages.TO_WORKER, self._world.options.through_wire)
        peer: Any = line

        def receive(message: Message | Hello) -> None:
            session = self._sessions.get(connection.name)
            if isinstance(message, Hello):
                self._greet(line, message)
            elif session is None or session.peer is not peer:
                return
            elif isinstance(message, Heartbeat):
                self.machine.worker_heard(connection.name, self._now_s, self._now_s)
            elif isinstance(message, Received):
                assert session.take_confirmation(message.total)
            else:
                session.count(1)
                witness = self._world.witness
                before = witness.standing(self.machine, message)
                self.machine.worker_sent(connection.name, message, self._now_s)
                witness.reported(self.machine, connection.name, message, before)
                self._read_journal()
            self._end_tick_soon()

        def hear_end() -> None:
            session = self._sessions.get(connection.name)
            if session is not None and session.peer is peer:
                session.peer = None
                self.machine.worker_cut_off(connection.name, "it ended", self._now_s)
                self._probe(connection.name)
                self._end_tick_soon()

        connection.attach(MASTER, receive, hear_end)

    def _greet(self, line: Line, hello: Hello) -> None:
        """Let a worker join, or resume its session."""
        name, peer = hello.facts.id, cast(Peer, line)
        session = self._sessions.get(name)
        if hello.received is None:
            self._change_workers(self.machine.worker_joined, hello.facts)
            self._sessions[name] = PeerSession(name, peer, hello.token)
        elif session is None or session.token != hello.token:
            line.connection.send(MASTER, Refusal())
            line.connection.close(MASTER)
        else:
            assert session.take_confirmation(hello.received)
            session.resume(peer)
            self.machine.worker_heard(name, self._now_s, self._now_s)

    def _probe(self, name: str) -> None:
        """Ask a suspected worker's host whether the worker has ended, unless the host is down."""
        self._world.timeline.after(self._world.latency_s(), self._probed, name)

    def _probed(self, name: str) -> None:
        node = self.machine.workers.get(name)
        if node is None or not node.suspicion or name in self._world.powerless:
            return
        if node.facts.netloc not in self._world.serving:
            lost = partial(self.machine.worker_lost, died=True)
            self._change_workers(lost, name, "it has ended")
            self._end_tick_soon()

    def _read_journal(self) -> None:
        """Show the witness the new records of the journal."""
        journal = self.machine.journal
        for record in journal[self._journal_read :]:
            self._world.witness.believed(record)
        self._journal_read = len(journal)

    def change(self, topic: str, job_id: str) -> str:
        """Make a change that a user requests; return "", or the reason if it is refused."""
        self._world.note(job_id, f"its user requests: {topic}")
        try:
            topics.change(self.machine, topic, {"job": job_id}, self._now_s)
        except CielError as error:
            return str(error)
        self._end_tick_soon()
        return ""

    @property
    def _now_s(self) -> float:
        return self._world.timeline.now_s

    def _change_workers(self, act: Callable[..., None], *arguments: object) -> None:
        """Call a method that may make the machine declare workers dead; close the connections of
        these workers.
        """
        before = dict(self.machine.workers)
        act(*arguments, self._now_s)
        for worker_id, worker in before.items():
            if self.machine.workers.get(worker_id) is not worker:
                self._world.witness.worker_lost(worker_id, worker.facts.netloc)
                line: Any = self._sessions.pop(worker_id).peer
                if line is not None:
                    line.connection.send(MASTER, Refusal())
                    line.connection.close(MASTER)

    def _beat(self) -> None:
        self._change_workers(self.machine.check_timeouts)
        for worker_id, worker in self.machine.workers.items():
            session = self._sessions[worker_id]
            session.confirm()
            if session.peer is not None:
                session.peer.send(Heartbeat())
            if worker.suspicion:
                self._probe(worker_id)
        self._end_tick_soon()
        self._world.timeline.after(HEARTBEAT_INTERVAL_S, self._beat)

    def _send(self, peer: str, message: Message) -> None:
        if peer in self.machine.workers:
            self._world.witness.sent(self.machine, peer, message)
            self._sessions[peer].send(message)
        elif (link := self._links.get(peer)) is not None:
            if self._world.options.through_wire:
                message = through_wire(message, messages.TO_CLIENT)
            link.send(MASTER, message)

    def _end_tick_soon(self, delay_s: float | None = None) -> None:
        if delay_s is None:
            delay_s = self._world.chance.uniform(0.0, self._world.options.tick_max_s)
        due_s = self._now_s + delay_s
        if self._tick_due_s is None or due_s < self._tick_due_s:
            self._tick_due_s = due_s
            self._world.timeline.at(due_s, self._end_tick, due_s)

    def _end_tick(self, due_s: float) -> None:
        if due_s != self._tick_due_s:
            return  # an earlier tick was scheduled since
        self._tick_due_s = None
        machine = self.machine
        said_before = len(machine.outbox)
        objects = machine.graph.objects
        listed = {
            worker_id: set(objects.held_at(worker.facts.netloc)) - objects.growing.keys()
            for worker_id, worker in machine.workers.items()
        }
        machine.end_tick(self._now_s)
        self._read_journal()
        outbox = machine.take_outbox()
        for peer, message in outbox[said_before:]:
            if isinstance(message, DropObjects) and not message.unless_complete:
                self._world.witness.released(machine, listed[peer].intersection(message.objects))
        for peer, message in outbox:
            self._send(peer, message)
        self._ticks += 1
        if self._ticks % self._world.options.ticks_per_check == 0:
            check_master(machine, self._world.witness)
        next_s = machine.due_s()
        if next_s is not None:
            self._end_tick_soon(max(next_s - self._now_s, 0.0))
