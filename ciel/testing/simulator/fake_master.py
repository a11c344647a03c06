"""The master of a simulation: the real state machine, and a service that has no sockets.

It lives from the start of its process to its end. Its `journal` may be read by the next master.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import partial
from typing import Any, cast

from ciel.core.errors import CielError
from ciel.core.events import (
    CLIENT_GRACE_S,
    HEARTBEAT_INTERVAL_S,
    LEAVE,
    Change,
    DropObjects,
    Heartbeat,
    MastersNamed,
    MasterStarted,
    Message,
    Received,
    ReleaseObjects,
    StartOver,
    TaskReported,
)
from ciel.core.masters import NO_BALLOT, Ballot
from ciel.master.journal import Journal, NullJournal
from ciel.master.service import STALL_S
from ciel.master.state import invariants
from ciel.master.state.machine import MasterMachine
from ciel.master.state.queries import topics
from ciel.master.state.restoring import Restoration
from ciel.master.write_ahead import Consequences, WriteAhead
from ciel.net.control import Peer
from ciel.net.sessions import PeerSession
from ciel.testing.simulator.compacting import compact_at_times
from ciel.testing.simulator.disk import FakeDisk, FakeJournal
from ciel.testing.simulator.fake_worker import FakeWorker
from ciel.testing.simulator.invariants import check_master
from ciel.testing.simulator.witness import Violation
from ciel.testing.simulator.world import (
    MASTER,
    ClientHello,
    Connection,
    Hello,
    Line,
    Process,
    Refusal,
    World,
)
from ciel.wire import messages

_Key = tuple[bool, str]  # whether the peer is a worker, and the token of its session


class FakeMaster(Process):
    """Serves connections and sessions, ends the machine's ticks, and sends heartbeats."""

    def __init__(
        self, world: World[FakeWorker], machine: MasterMachine, journal: FakeJournal | None = None,
        followed: Journal | None = None, ballot: Ballot = NO_BALLOT,
    ) -> None:  # fmt: skip
        """`followed`: the journal as far as it is durable at standbys, too. `ballot`: the epoch and
        the URL, if there are several masters.
        """
        super().__init__(world)
        self.machine = machine
        self.ended_at_s = float("inf")
        self.ballot = ballot
        self.on_workers_changed: Callable[[], object] = lambda: None
        """Called when a worker has joined or was lost."""
        self.admits: Callable[[Ballot], bool] = lambda promised: True
        """Returns whether a worker with a promise obeys this master."""
        self.records: list[Message] = []
        """The records of this master, in order; see `restored`."""
        machine.bulk.steps_per_tick = world.options.steps_per_tick
        self._witness = world.witness
        self._journal = journal
        if journal is not None:
            journal.on_durable = lambda: self._live(self.journal_durable)
        self._write_ahead = WriteAhead(followed or journal or NullJournal())
        self._masters: tuple[str, ...] = ()
        self._workers_version = 0
        self.connections: list[Connection] = []
        self._peers: dict[str, Peer | PeerSession] = {}  # by name
        self._sessions: dict[_Key, PeerSession] = {}
        self._returning: dict[str, Line] = {}  # connections that will carry their sessions
        self._client_count = 0
        self._tick_due_s: float | None = None
        self._ticks = 0
        self._journal_read = 0  # how many records of this tick the witness has seen
        self._after(HEARTBEAT_INTERVAL_S, self._beat)
        if journal is not None:
            compact_at_times(world, self, journal)

    # --- life and death ---------------------------------------------------------------------------

    def die(self, *, silently: bool) -> None:
        """End the process. If `silently`, its host does not answer any more."""
        self.is_dead = True
        self.ended_at_s = self._now_s
        if not self._world.options.lying_share:
            self._world.witness.master_died(self.machine)
        if self._journal is not None:
            self._journal.die()
        for connection in self.connections:
            if silently:
                connection.cut(silently=True)
            else:
                connection.close(MASTER)

    def open_connections(self) -> list[Connection]:
        """Return the connections that have not ended here."""
        return [connection for connection in self.connections if connection.is_open(MASTER)]

    @property
    def has_unsent(self) -> bool:
        """Whether messages wait for the end of a tick, or for the journal."""
        machine = self.machine
        return bool(machine.outbox) or self._write_ahead.must_wait(machine.journal)

    @property
    def is_idle(self) -> bool:
        """Whether all messages were sent and acknowledged."""
        return not (self.has_unsent or any(s.unconfirmed() for s in self._sessions.values()))

    def thaw(self) -> float:
        """Continue; the time of the stall does not count as silence of others."""
        late_s = super().thaw()
        if late_s > STALL_S:
            for session in self._sessions.values():
                session.gone_at_s += late_s
            self.machine.was_stalled(late_s)
        return late_s

    def depose(self) -> None:
        """Note that a later master serves: this master may go on, but has no effect."""
        self._witness = deepcopy(self._witness)

    def voters(self) -> dict[str, str]:
        """Return the workers that can vote for masters: addresses by work directory."""
        facts = [node.facts for node in self.machine.workers.values()]
        return {item.spool: item.netloc for item in facts}

    def name_masters(self, urls: tuple[str, ...]) -> None:
        """Tell all clients where a master may be found when this one is gone."""
        self._masters = urls
        for (is_worker, _), session in self._sessions.items():
            if not is_worker:
                session.send(MastersNamed(urls))

    def beat(self) -> None:
        """Let all peers hear from this master."""
        for session in self._sessions.values():
            if session.peer is not None:
                session.peer.send(Heartbeat())

    # --- clients ----------------------------------------------------------------------------------

    def accept_client(self, connection: Connection) -> None:
        """Serve a client. If it has a session, its first message says so."""
        name = connection.name
        self.connections.append(connection)
        line: Any = self._line(connection, messages.TO_CLIENT)
        if not self._world.options.journal:
            self._peers[name] = line

        def receive(message: Message | ClientHello) -> None:
            session = self._session_of(line)
            if isinstance(message, ClientHello):
                self._greet_client(line, message)
            elif session is None:
                self._client_sent(name, message)
            elif isinstance(message, Received):
                assert session.take_confirmation(message.total)
            elif not isinstance(message, Heartbeat):
                self._client_sent(session.name, message)
                self._count(session)
            self._end_tick_soon()

        def hear_end() -> None:
            session = self._session_of(line) or self._stop_returning(line)
            if session is not None:
                session.peer, session.gone_at_s = None, self._now_s
            elif self._peers.pop(name, None) is not None:
                self.machine.client_gone(name, self._now_s)
            self._end_tick_soon()

        self._attach(connection, receive, hear_end)

    def _attach(
        self, connection: Connection, receive: Callable[[Any], None], hear_end: Callable[[], None]
    ) -> None:
        connection.attach(
            MASTER,
            lambda message: self._when_it_runs(receive, message),
            lambda: self._when_it_runs(hear_end),
        )

    def _client_sent(self, name: str, message: Message) -> None:
        before = dict(self.machine.graph.tasks) if isinstance(message, ReleaseObjects) else {}
        self.machine.client_sent(name, message, self._now_s)
        self._witness.handed_over(self.machine, before)

    def _greet_client(self, line: Line, hello: ClientHello) -> None:
        session = self._sessions.get((False, hello.token))
        if session is not None:
            self._resume(session, line, hello.received or 0)
            return
        self._client_count += 1
        session = PeerSession(
            f"client-{self._client_count}", cast(Peer, line), hello.token, confirms_late=True
        )
        self._peers[session.name] = self._sessions[False, hello.token] = session
        self._start_over(session, hello.received)
        if self._masters:
            session.send(MastersNamed(self._masters))

    # --- workers ----------------------------------------------------------------------------------

    def accept_worker(self, connection: Connection) -> None:
        name = connection.name
        self.connections.append(connection)
        line = self._line(connection, messages.TO_WORKER)

        def receive(message: Message | Hello) -> None:
            session = self._session_of(line)
            if isinstance(message, Hello):
                if self.admits(message.promised):
                    self._greet_worker(line, message)
            elif session is None:
                return
            elif isinstance(message, Heartbeat):
                self.machine.worker_heard(name, self._now_s, self._now_s)
            elif isinstance(message, Received):
                assert session.take_confirmation(message.total)
            else:
                self._worker_sent(name, message)
                self._count(session)
            self._end_tick_soon()

        def hear_end() -> None:
            session = self._session_of(line) or self._stop_returning(line)
            if session is not None:
                session.peer = None
                self.machine.worker_cut_off(name, "it ended", self._now_s)
                self._probe(name)
                self._end_tick_soon()

        self._attach(connection, receive, hear_end)

    def _worker_sent(self, name: str, message: Message) -> None:
        if isinstance(message, Change):
            assert message.topic == LEAVE
            self._change_workers(self.machine.worker_lost, name, "it left")
            return
        witness = self._witness
        before = witness.standing(self.machine, message)
        self.machine.worker_sent(name, message, self._now_s)
        witness.reported(self.machine, name, message, before)
        self._show_records()

    def _greet_worker(self, line: Line, hello: Hello) -> None:
        """Let a worker join, resume its session, or start over."""
        session = self._sessions.get((True, hello.token))
        if session is not None:
            self._resume(session, line, hello.received or 0)
            self.machine.worker_heard(session.name, self._now_s, self._now_s)
            return
        name = hello.facts.id
        returns = hello.received is not None
        self._change_workers(partial(self.machine.worker_joined, returns=returns), hello.facts)
        session = PeerSession(name, cast(Peer, line), hello.token, confirms_late=True)
        self._peers[name] = self._sessions[True, hello.token] = session
        self._witness.joined(self.machine, hello.facts)
        self._start_over(session, hello.received)

    def _probe(self, name: str) -> None:
        """Ask a suspected worker's host whether the worker has ended, unless the host is down."""
        self._after(self._world.latency_s(), self._probed, name)

    def _probed(self, name: str) -> None:
        node = self.machine.workers.get(name)
        if node is None or not node.suspicion or not self._world.is_reachable(name):
            return
        if self._world.are_apart(self.ballot.url, name):
            return
        if node.facts.netloc not in self._world.serving:
            lost = partial(self.machine.worker_lost, died=True)
            self._change_workers(lost, name, "it has ended")
            self._end_tick_soon()

    def _change_workers(self, act: Callable[..., None], *arguments: object) -> None:
        """Call a method that may make the machine declare workers dead; close the connections of
        these workers.
        """
        before = dict(self.machine.workers)
        act(*arguments, self._now_s)
        for worker_id, worker in before.items():
            if self.machine.workers.get(worker_id) is not worker:
                self._witness.worker_lost(worker_id, worker.facts.netloc)
                session = cast(PeerSession, self._peers.pop(worker_id))
                del self._sessions[True, session.token]
                session.end()
                line: Any = session.peer
                if line is not None:
                    line.connection.send(MASTER, Refusal())
                    line.connection.close(MASTER)

    # --- sessions ---------------------------------------------------------------------------------

    def _line(self, connection: Connection, allowed: frozenset[type]) -> Line:
        return Line(connection, MASTER, allowed, self._world.options.through_wire)

    def _session_of(self, line: Any) -> PeerSession | None:
        """Return the session that uses a connection now."""
        return next((s for s in self._sessions.values() if s.peer is line), None)

    def _stop_returning(self, line: Line) -> PeerSession | None:
        """Return the session that would use a connection once the journal is durable, but the
        connection has ended.
        """
        for session in self._sessions.values():
            if self._returning.get(session.token) is line:
                del self._returning[session.token]
                return session
        return None

    def _resume(self, session: PeerSession, line: Line, received: int) -> None:
        if not (session.may_be_unknown or session.take_confirmation(received)):
            # A worker has left this connection for another one, whose messages arrived earlier.
            assert self.ballot != NO_BALLOT
            assert (True, session.token) in self._sessions, "a client has impossible counts"
            line.connection.close(MASTER)
            return
        old: Any = session.peer
        session.peer = None
        session.gone_at_s = float("inf")
        if old is not None:  # its old connection has not ended here yet
            old.connection.close(MASTER)

        def go_on() -> None:
            if self._returning.get(session.token) is not line:
                return  # its connection was lost again
            del self._returning[session.token]
            if session.may_be_unknown:
                session.begin_again(cast(Peer, line))
            else:
                is_worker = (True, session.token) in self._sessions
                session.resume(cast(Peer, line), confirms_last=is_worker)

        self._returning[session.token] = line
        self._call_when_durable(go_on)

    def _start_over(self, session: PeerSession, received: int | None) -> None:
        """Tell a peer that its earlier session is not known, if it has had one."""
        if received is not None:
            session.replaces_earlier = True
            session.send(StartOver())

    def _end_client(self, session: PeerSession, grace_s: float) -> None:
        del self._sessions[False, session.token], self._peers[session.name]
        session.end()
        line: Any = session.peer
        if line is not None:
            line.connection.close(MASTER)
        self.machine.client_gone(session.name, self._now_s, grace_s)

    def _count(self, session: PeerSession) -> None:
        session.count(1)
        self._call_when_durable(partial(session.may_confirm, session.received))

    def _call_when_durable(self, call: Callable[[], object]) -> None:
        if self._write_ahead.must_wait(self.machine.journal):
            self._write_ahead.call_after_tick(call)
            self._end_tick_soon()
        else:
            call()

    def _maintain_sessions(self) -> None:
        for (is_worker, _), session in list(self._sessions.items()):
            session.confirm()
            if is_worker and session.peer is not None:
                session.peer.send(Heartbeat())
            elif not is_worker and session.peer is None:
                if self._now_s >= session.gone_at_s + CLIENT_GRACE_S:
                    self._end_client(session, 0.0)
            elif not is_worker and session.peer is not None:
                session.peer.send(Heartbeat())

    # --- ticks and time ---------------------------------------------------------------------------

    def change(self, topic: str, job_id: str) -> str:
        """Make a change that a user requests; return "", or the reason if it is refused.

        The change is durable when this returns: the user believes the answer.
        """
        self._world.note(job_id, f"its user requests: {topic}")
        try:
            topics.change(self.machine, topic, {"job": job_id}, self._now_s)
        except CielError as error:
            return str(error)
        if self._journal is not None:
            self._end_tick()
            self._journal.make_durable()
        else:
            self._end_tick_soon()
        return ""

    def _beat(self) -> None:
        awaited = dict(self.machine.membership.awaited)
        self._change_workers(self.machine.check_timeouts)
        gone = awaited.keys() - self.machine.membership.awaited.keys()
        for worker_id in gone - self.machine.workers.keys():  # the others only list their objects
            self._witness.worker_lost(worker_id, awaited[worker_id])
        self._maintain_sessions()
        for worker_id, worker in self.machine.workers.items():
            if worker.suspicion:
                self._probe(worker_id)
        self._end_tick_soon()
        interval_s = HEARTBEAT_INTERVAL_S
        if self._world.options.journal:  # else each look at the end may meet a heartbeat on its way
            interval_s *= self._world.chance.uniform(0.9, 1.1)
        self._after(interval_s, self._beat)

    def _show_records(self) -> None:
        """Show the witness the new records of this tick."""
        journal = self.machine.journal
        for record in journal[self._journal_read :]:
            self._witness.believed(record)
        self._journal_read = len(journal)

    def _end_tick_soon(self, delay_s: float | None = None) -> None:
        if delay_s is None:
            delay_s = self._world.chance.uniform(0.0, self._world.options.tick_max_s)
        due_s = self._now_s + delay_s
        if self._tick_due_s is None or due_s < self._tick_due_s:
            self._tick_due_s = due_s
            self._world.timeline.at(due_s, self._live, self._tick_due, due_s)

    def _tick_due(self, due_s: float) -> None:
        if due_s == self._tick_due_s:  # else an earlier tick was scheduled
            self._end_tick()

    def _end_tick(self) -> None:
        self._tick_due_s = None
        machine = self.machine
        said_before = len(machine.outbox)
        objects = machine.graph.objects
        listed = {
            worker_id: set(objects.held_at(worker.facts.netloc)) - objects.growing.keys()
            for worker_id, worker in machine.workers.items()
        }
        machine.end_tick(self._now_s)
        self._show_records()
        outbox = machine.take_outbox()
        for peer, message in outbox[said_before:]:
            if isinstance(message, DropObjects) and not message.unless_complete:
                self._witness.released(machine, listed[peer].intersection(message.objects))
        self._write(outbox)
        if self._workers_version != machine.workers_version:
            self._workers_version = machine.workers_version
            self.on_workers_changed()
        self._ticks += 1
        if self._ticks % self._world.options.ticks_per_check == 0:
            check_master(machine, self._witness)
        next_s = machine.due_s()
        if next_s is not None:
            self._end_tick_soon(max(next_s - self._now_s, 0.0))

    def _write(self, outbox: list[tuple[str, Message]]) -> None:
        """Append the records of a tick, and send its messages when they are durable."""
        machine = self.machine
        sent: list[tuple[Peer | PeerSession, Message]] = []
        for name, message in outbox:
            if name in machine.workers:
                self._witness.sent(machine, name, message)
            if (peer := self._peers.get(name)) is not None:
                sent.append((peer, message))
        records, self._journal_read = machine.take_journal(), 0
        self.records += records
        caused = self._write_ahead.end_tick(records, sent, machine.take_ended())
        if caused is not None:
            self._release(caused)

    def journal_durable(self) -> None:
        """Send the messages of ticks whose records have become durable."""
        for caused in self._write_ahead.take_durable():
            self._release(caused)

    def _release(self, caused: Consequences) -> None:
        for peer, message in caused.messages:
            peer.send(message)
        for call in caused.calls:
            call()


def restart(world: World[FakeWorker], machine: MasterMachine, disk: FakeDisk) -> FakeMaster:
    """Start a master that continues from the journal on a disk.

    Raises DamagedJournalError, and AssertionError for records without effect.
    """
    restoration = Restoration(machine)
    done: set[tuple[str, int]] = set()
    for group in disk.groups():
        for record in group.records:
            restoration.apply(record, group.time_s)
            if isinstance(record, TaskReported) and record.fault is None:
                done.add((record.task, record.attempt))
    assert not restoration.skipped or world.options.lying_share, restoration.skipped[:3]
    restoration.finish(world.timeline.now_s)
    world.witness.master_restarted(machine, done)
    for subject, text in invariants.problems(machine):
        if subject not in machine.context.touched:  # else the first tick may end this job
            raise Violation(subject, f"after the restart, {text}")
    journal = FakeJournal(world, disk)
    journal.append([MasterStarted(restoration.epoch + 1, "simulated")])
    return FakeMaster(world, machine, journal)
