"""Connects the state machine of the master to its connections and its clock.

The service passes every message to the machine at once. At the end of each tick it writes the
records of the tick to the journal, and then sends the machine's messages. It decides nothing.
"""

from __future__ import annotations

import ctypes
import gc
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Final, Protocol, TypeVar

from twisted.internet.defer import Deferred
from twisted.internet.task import LoopingCall
from twisted.logger import Logger

from ciel.access.addresses import netloc as netloc_of
from ciel.access.addresses import parse_url
from ciel.access.keys import Role
from ciel.core.errors import CielError
from ciel.core.events import (
    CLIENT_GRACE_S,
    LEAVE,
    Answer,
    Ask,
    Change,
    Heartbeat,
    MastersNamed,
    Message,
    Received,
    StartOver,
)
from ciel.core.ids import ID_MAX_LENGTH, check_id
from ciel.core.offers.labels import LABELS_MAX, wrong_label
from ciel.core.offers.resources import INDICES_MAX, RESOURCES_MAX, Offer, offer_of, wrong_amounts
from ciel.core.tasks import (
    ISOLATIONS,
    MECHANISMS,
    MEMORY_MAX_BYTES,
    SLOTS_MAX,
    TIMEOUT_MAX_S,
    Isolation,
)
from ciel.core.transports import End, read_end
from ciel.master import attaching
from ciel.master.journal import Journal
from ciel.master.state.invariants import problems
from ciel.master.state.machine import MasterMachine
from ciel.master.state.queries import topics, transports
from ciel.master.state.workers import WorkerFacts
from ciel.master.waiters import Waiters
from ciel.master.write_ahead import Consequences, WriteAhead
from ciel.net.control import Peer
from ciel.net.exposition import Family
from ciel.net.sessions import PeerSession
from ciel.net.ticks import DelayedCall, Ticks
from ciel.net.transports import probe
from ciel.wire.errors import WireError
from ciel.wire.references import from_json, to_json

CHECK_INTERVAL_S = 0.25
CLIENT_LOST_AFTER_S = 60.0
"""After this time without a message, the master closes the connection of a client: the client may
be stopped, or its network may be down."""
STALL_S = 1.0
"""If the periodic check is late by this time, this process was stopped or starved, not its
peers."""
PROBES_MAX = 100
"""The number of workers that are probed at a time."""
FREEZE_EVERY_TASKS = 50_000
FREEZE_EVERY_SLICES = 20
TRIM_FROM_SLICES = 100
"""After so many slices, which process 100,000 tasks, about 100 MB may be free."""
COLLECTED_MAX_TASKS = 10_000
"""Up to this number of tasks, a garbage collection stops the master for 20 ms at most."""
ANSWERS_MAX_S = 0.01
"""The time per tick in which queries are answered; other queries wait for the next tick."""
QUERIES_MAX = 64
"""The service stops reading from a client that has so many unanswered queries."""
WORKERS = ":workers"
"""The name of the event that a worker joined or was lost; no id starts with a colon."""

T = TypeVar("T")
ProbeAddress = Callable[[Any, str, Callable[[bool], object]], None]
log = Logger(__name__)  # explicit, since Twisted cannot find the name of a compiled module


class MemoryQueries(Protocol):
    """Answers queries about memory servers, as `MemoryServers` does.

    `answer` and `change` raise CielError.
    """

    def answer(self, topic: str, argument: Mapping[str, Any]) -> Any: ...
    def change(self, topic: str, argument: Mapping[str, Any]) -> Any: ...
    def change_of_worker(self, worker: str, topic: str, argument: Mapping[str, Any]) -> Any: ...
    def keep_of_workers(self, workers: Collection[str]) -> None: ...
    def families(self) -> list[Family]: ...
    def summary(self) -> dict[str, int]: ...


class MasterService:
    """Owns the control connections of one master."""

    def __init__(
        self,
        reactor: Any,
        ticks: Ticks,
        journal: Journal,
        about: dict[str, Any],
        machine: MasterMachine,
        *,
        probe_address: ProbeAddress = probe,
        is_restored: bool = False,
    ) -> None:
        """`is_restored`: the machine has the jobs of an earlier master; its clients may return."""
        self.machine = machine
        self._is_restored = is_restored
        self._probe_address = probe_address
        self._reactor = reactor
        self._ticks = ticks
        self._journal = journal
        self._about = about  # facts for `status` that the machine does not know
        self._started_at_s = time.time()
        self.epoch_s = machine.epoch_s = machine.epoch_s or self._started_at_s - reactor.seconds()
        """A time of this master's clock plus this is the time since the epoch."""
        self.waiters = Waiters(reactor)  # events: a job's end (by its id), and `WORKERS`
        self._workers_version = 0
        self._names: dict[Peer, str] = {}
        self._peers: dict[str, Peer | PeerSession] = {}
        self._sessions: dict[tuple[bool, str], PeerSession] = {}
        """The key says whether the peer is a worker, and contains the peer's session token."""
        self._probed: set[str] = set()  # workers that are being probed
        self.on_workers_changed: Callable[[], object] = lambda: None
        """Called when a worker has joined or was lost."""
        self._masters: tuple[str, ...] = ()
        self.kv_url = ""
        """The URL of the cluster's key-value base; empty if it has none."""
        self.own_end = End()
        """How the table of transports sees this master."""
        self.memory: MemoryQueries | None = None
        """Answers queries about memory servers, and carries out requests."""
        self.on_inconsistent: Callable[[str], object] = _raise
        """Called with a reason when the tables of the machine contradict each other."""
        self._bug_seen = ""  # the first unexpected error of this tick
        self._checked_at_s = reactor.seconds()
        self._client_count = 0
        self._queries: dict[Peer, deque[Ask | Change]] = {}  # unanswered ones
        self._answered_s = 0.0  # the time that answers took in this tick
        self._outgoing: list[tuple[Peer | PeerSession, Message]] = []  # answers of this tick
        self._write_ahead = WriteAhead(journal)
        self._frozen_tasks = 0
        self._slices = 0  # consecutive ticks that left work for the next one
        self._due: DelayedCall | None = None
        self._due_s = 0.0
        self._timer = LoopingCall(self._on_timer)
        self._timer.clock = reactor
        self._timer.start(CHECK_INTERVAL_S, now=False)

    def close(self) -> None:
        """Stop the timers and close all connections."""
        if self._timer.running:
            self._timer.stop()
        if self._due is not None and self._due.active():
            self._due.cancel()
        self._journal.close()
        self.journal_durable()
        for peer in list(self._names):
            peer.close()

    # --- connections ------------------------------------------------------------------------------

    def peer_opened(self, peer: Peer) -> None:
        assert peer.hello is not None
        about, is_worker = peer.hello.about, peer.hello.role is Role.WORKER
        token, received = about.get("session"), about.get("received")
        if isinstance(token, str) and (
            received is not None or (is_worker, token) in self._sessions
        ):
            self._resume(peer, self._sessions.get((is_worker, token)), received)
        elif is_worker:
            self._admit_worker(peer, str(token or ""))
        else:
            self._admit_client(peer, token if isinstance(token, str) else None)
            self._name_masters(self._names[peer])
        self._ticks.at_end(self._end_tick)

    def name_masters(self, urls: tuple[str, ...]) -> None:
        """Tell all clients where a master may be found when this one is gone."""
        self._masters = self._about["masters"] = urls
        for name in list(self._peers):
            self._name_masters(name)

    def _name_masters(self, name: str) -> None:
        session = self._peers[name]
        is_client = isinstance(session, PeerSession) and (False, session.token) in self._sessions
        if self._masters and is_client:
            session.send(MastersNamed(self._masters))

    def beat(self) -> None:
        """Let all peers hear from this master."""
        for peer in self._names:
            peer.send(Heartbeat())

    def _admit_worker(self, peer: Peer, token: str, *, returns: bool = False) -> None:
        """Let a worker join for which the master has no session. `returns`: it starts over."""
        assert peer.hello is not None
        try:
            facts = worker_facts(peer.hello.about)._replace(software=peer.hello.software)
        except (CielError, ValueError) as error:
            peer.refuse(f"the description of this worker is invalid: {error}")
            return
        self._end_session(facts.id, f"another worker joined as {facts.id}")
        self._names[peer] = facts.id
        session = PeerSession(facts.id, peer, token or facts.id, confirms_late=True)
        self._peers[facts.id] = self._sessions[True, session.token] = session
        self.machine.worker_joined(facts, self._reactor.seconds(), returns=returns)
        log.info(
            "worker {worker} at {netloc} joined, {slots} slots",
            worker=facts.id, netloc=facts.netloc, slots=facts.slots,
        )  # fmt: skip

    def _resume(self, peer: Peer, session: PeerSession | None, received: Any) -> None:
        """Resume a session whose peer has lost its connection."""
        assert peer.hello is not None
        who = "worker" if peer.hello.role is Role.WORKER else "client"
        if session is None and (peer.hello.role is Role.WORKER or self._is_restored):
            self._start_over(peer)
        elif session is None:
            peer.refuse(
                f"the master does not know this {who}: it was disconnected for too long, or the "
                "master was restarted without a journal"
            )
        elif session.may_be_unknown:
            self._replace_connection(session, peer)
            self.call_when_durable(partial(self._continue, session, peer))
        elif type(received) is not int or not session.take_confirmation(received):
            peer.refuse(f"this {who} resumed its session with impossible counts")
        elif not session.can_resume:
            peer.refuse(f"this {who} read too slowly: too many messages waited for it")
        else:
            self._replace_connection(session, peer)
            self.call_when_durable(partial(self._continue, session, peer))
            now_s = self._reactor.seconds()
            self.machine.worker_heard(session.name, now_s, now_s)  # ignored for clients
            log.info("{name} has reconnected", name=session.name)

    def _replace_connection(self, session: PeerSession, peer: Peer) -> None:
        """Give a session another connection, which carries it when `_continue` is called."""
        if session.peer is not None:  # its old connection has not ended here yet
            del self._names[session.peer]
            session.peer.turn_away()
            session.peer = None
        session.gone_at_s = float("inf")  # until `_continue`, or the end of this connection
        self._names[peer] = session.name

    def _start_over(self, peer: Peer) -> None:
        """Begin a new session with a peer whose session this master does not know.

        The master has restarted, or the peer was disconnected for too long.
        """
        assert peer.hello is not None
        token = str(peer.hello.about["session"])
        if peer.hello.role is Role.WORKER:
            self._admit_worker(peer, token, returns=True)
        else:
            self._admit_client(peer, token)
        session = self._peers.get(self._names.get(peer, ""))
        if isinstance(session, PeerSession):
            session.replaces_earlier = True
            session.send(StartOver())
            self._name_masters(session.name)

    def _admit_client(self, peer: Peer, token: str | None) -> None:
        self._client_count += 1
        name = f"client-{self._client_count}"
        self._names[peer] = name
        self._peers[name] = peer
        if token is not None:
            session = PeerSession(name, peer, token, confirms_late=True)
            self._peers[name] = self._sessions[False, token] = session

    def _continue(self, session: PeerSession, peer: Peer) -> None:
        """Resume a session; this confirms all messages that it has received."""
        if self._names.get(peer) != session.name:
            return  # the connection was lost again
        if session.may_be_unknown:
            session.begin_again(peer)
        else:
            is_worker = (True, session.token) in self._sessions
            session.resume(peer, confirms_last=is_worker)

    def _end_session(self, name: str, reason: str) -> None:
        """Forget the session of a worker, and close its connection, if it has one."""
        session = self._peers.pop(name, None)
        if isinstance(session, PeerSession):
            del self._sessions[True, session.token]
            session.end()
            if session.peer is not None:
                del self._names[session.peer]
                session.peer.refuse(reason)

    def peer_said(self, peer: Peer, messages: list[Message]) -> None:
        name = self._names.get(peer)
        if name is None or peer.hello is None:
            return
        now_s = self._reactor.seconds()
        from_worker = peer.hello.role is Role.WORKER
        say: Callable[[str, Message, float], None] = (
            self.machine.worker_sent if from_worker else self.machine.client_sent
        )
        session = self._peers[name]
        counted = len(messages)
        for message in messages:
            if peer.hello.role is Role.SERVICE and not _may_send(message):
                peer.refuse("a key for services may ask only about services")
                return
            if type(message) is Ask or type(message) is Change:
                self._take_query(peer, session, message, name if from_worker else "")
            elif type(message) is Received:
                counted -= 1
                if isinstance(session, PeerSession):
                    if not session.take_confirmation(message.total):
                        peer.refuse("it confirms messages that were not sent")
                        return
            else:
                try:
                    say(name, message, now_s)
                except Exception as error:
                    self._note_bug(f"a message {type(message).__name__} of {name}", error)
                    try:
                        self._drop_sender(name, message, from_worker)
                    except Exception as another:  # if the tables disagree, this is likely
                        self._note_bug(f"the rejection of {name}", another)
        if isinstance(session, PeerSession):
            session.count(counted)
            self.call_when_durable(partial(session.may_confirm, session.received))
        self._ticks.at_end(self._end_tick)

    def _drop_sender(self, name: str, message: Message, from_worker: bool) -> None:
        """Handle the sender of a message that raised an unexpected error.

        Reject the message of a client. Declare a worker dead, so that its tasks run again instead
        of waiting for ever.
        """
        reason = (
            "the master failed to process a message because of a bug in ciel; see the master's log"
        )
        if not from_worker:
            self.machine.refuse(name, message, reason)
        elif name in self.machine.workers:
            self.machine.worker_lost(name, reason, self._reactor.seconds())
            self._ticks.at_end(partial(self._end_lost_sessions, reason))

    def peer_drained(self, peer: Peer) -> None:
        """Send a client the messages and answers that waited until it had read earlier ones."""
        session = self._peers.get(self._names.get(peer, ""))
        if isinstance(session, PeerSession):
            session.hand_on()
        if peer in self._queries:
            self._ticks.at_end(self._end_tick)

    def peer_closed(self, peer: Peer, reason: str) -> None:
        name = self._names.pop(peer, None)
        self._queries.pop(peer, None)
        if name is None:
            return
        now_s = self._reactor.seconds()
        session = self._peers[name]
        if not isinstance(session, PeerSession):
            del self._peers[name]
            self.machine.client_gone(name, now_s)
        else:
            session.peer, session.gone_at_s = None, now_s
            if name in self.machine.workers:
                log.info("worker {worker} has no connection: {reason}", worker=name, reason=reason)
                self.machine.worker_cut_off(name, reason, now_s)
                self._probe(name)
        self._ticks.at_end(self._end_tick)

    def _probe(self, name: str) -> None:
        """Check whether a silent worker still listens at its address.

        If its host refuses the connection, the worker has ended, and is declared dead at once.
        """
        if name in self._probed or len(self._probed) >= PROBES_MAX:
            return

        def answered(is_refused: bool) -> None:
            self._probed.discard(name)
            node = self.machine.workers.get(name)
            if is_refused and node is not None and node.suspicion:
                reason = f"it has ended: nothing listens at {node.facts.netloc}"
                self.machine.worker_lost(name, reason, self._reactor.seconds(), died=True)
                self._ticks.at_end(self._end_tick)
                self._end_lost_sessions(reason)

        self._probed.add(name)
        self._probe_address(self._reactor, self.machine.workers[name].facts.netloc, answered)

    def _take_query(
        self, peer: Peer, session: Peer | PeerSession, ask: Ask | Change, worker: str
    ) -> None:
        """Answer a query at once, or queue it.

        Queue it if the answers of this tick took too long, or if the client has not read earlier
        messages. An answer can be a thousand times longer than a query.
        """
        waiting = self._queries.get(peer)
        is_free = waiting is None and self._answered_s < ANSWERS_MAX_S
        if worker or (is_free and not session.is_congested):
            started_s = time.monotonic()
            self._answer(session, ask, worker)
            self._answered_s += time.monotonic() - started_s
            return
        if waiting is None:
            waiting = self._queries[peer] = deque()
        waiting.append(ask)
        if len(waiting) > QUERIES_MAX:
            peer.pause()

    def _answer_some(self) -> None:
        """Answer one query of each client that reads, until the time for answers is used up."""
        for peer in list(self._queries):
            if self._answered_s >= ANSWERS_MAX_S:
                break
            session = self._peers[self._names[peer]]
            waiting = self._queries.pop(peer)
            if not session.is_congested:
                ask = waiting.popleft()
                if len(waiting) <= QUERIES_MAX:
                    peer.resume()
                started_s = time.monotonic()
                self._answer(session, ask, "")
                self._answered_s += time.monotonic() - started_s
            if waiting:
                self._queries[peer] = waiting  # at the end, so that clients take turns

    def _can_answer(self) -> bool:
        """Whether a client that reads waits for an answer."""
        return any(not self._peers[self._names[peer]].is_congested for peer in self._queries)

    def _answer(self, peer: Peer | PeerSession, ask: Ask | Change, worker: str) -> None:
        if worker and ask.topic == LEAVE:
            self.machine.worker_lost(worker, "it left", self._reactor.seconds())
            self._end_lost_sessions("it left")
            return
        find = self.change if type(ask) is Change else self.answer
        if worker and self.memory is not None and ask.topic.startswith("memory"):
            ask = ask._replace(argument=ask.argument if isinstance(ask.argument, dict) else {})
            find = partial(self.memory.change_of_worker, worker)
        elif worker:
            find = partial(attaching.change, self.machine, worker, now_s=self._reactor.seconds())
        try:
            reply = Answer(ask.number, find(ask.topic, ask.argument), "")
        except CielError as error:
            reply = Answer(ask.number, None, str(error))
        self._outgoing.append((peer, reply))
        self._ticks.at_end(self._end_tick)

    def answer(self, topic: str, argument: Any) -> Any:
        """Answer a query with a JSON value; raises CielError."""
        if topic == "kv":
            return {"url": self.kv_url}
        if self.memory is not None and topic.startswith("memory"):
            return self.memory.answer(topic, argument if isinstance(argument, dict) else {})
        if topic == "transports":
            return transports.describe(self.machine, self.own_end, self._carriers())
        value = topics.answer(self.machine, topic, argument, self._reactor.seconds())
        if topic == "status":
            # Times of jobs are read from this master's clock, so clients need its current time.
            now_s = self._reactor.seconds()
            value = {**self._about, "started_at_s": self._started_at_s, "now_s": now_s,
                     "epoch_s": self.epoch_s, **value}  # fmt: skip
            if self.memory is not None and (summary := self.memory.summary()):
                value["memory"] = summary
        return to_json(value)

    def _carriers(self) -> dict[str, str]:
        """Return what carries the messages of each connected worker."""
        peers = {name: session.peer for name, session in self._peers.items()
                 if isinstance(session, PeerSession)}  # fmt: skip
        return {name: peer.carrier for name, peer in peers.items() if peer is not None}

    def change(self, topic: str, argument: Any) -> Any:
        """Carry out a change and return its result; raises CielError."""
        if self.memory is not None and topic.startswith("memory"):
            return self.memory.change(topic, argument if isinstance(argument, dict) else {})
        try:
            read = from_json(argument)  # decodes the references in it
        except WireError as error:
            raise topics.UnknownQueryError(str(error)) from None
        return topics.change(self.machine, topic, read, self._reactor.seconds())

    # --- without a connection ---------------------------------------------------------------------

    def now_s(self) -> float:
        """Return the time of the machine's clock."""
        return float(self._reactor.seconds())

    def voters(self) -> dict[str, str]:
        """Return the workers that can vote for masters: addresses by work directory."""
        facts = [node.facts for node in self.machine.workers.values()]
        return {item.spool: item.netloc for item in facts if item.spool}

    def netlocs(self) -> set[str]:
        """Return the addresses of all workers."""
        return {node.facts.netloc for node in self.machine.workers.values()}

    def act(self, do: Callable[[MasterMachine, float], T]) -> T:
        """Run a function on the machine for an HTTP request; its errors propagate.

        The messages that it causes are sent at the end of the tick.
        """
        self._ticks.at_end(self._end_tick)
        try:
            return do(self.machine, self.now_s())
        except CielError:
            raise  # the machine has not changed
        except Exception as error:
            self._note_bug("a request", error)
            raise

    def lose_workers(self, reason: str) -> None:
        """Declare all workers dead. Workers that still run join again."""
        for worker in list(self.machine.workers):
            self.machine.worker_lost(worker, reason, self.now_s())
        self._ticks.at_end(self._end_tick)
        self._end_lost_sessions(reason)

    # --- ticks and time ---------------------------------------------------------------------------

    def _end_tick(self) -> None:
        machine = self.machine
        if self._queries:
            self._answer_some()
        self._answered_s = 0.0
        try:
            machine.end_tick(self._reactor.seconds())
        except Exception as error:
            self._note_bug("the end of a tick", error)
        if self._bug_seen:
            self._check_invariants()
        if self._slices or machine.has_more:
            self._manage_memory()
        messages, self._outgoing = self._outgoing, []
        peers = self._peers
        for name, message in machine.take_outbox() if machine.outbox else ():
            peer = peers.get(name)
            if peer is not None:
                messages.append((peer, message))
        caused = self._write_ahead.end_tick(machine.take_journal(), messages, machine.take_ended())
        if caused is not None:
            self._release(caused)
        if self._workers_version != machine.workers_version:
            self._workers_version = machine.workers_version
            self.waiters.notify(WORKERS)
            self.on_workers_changed()
        can_answer = bool(self._queries) and self._can_answer()
        self._schedule(self._reactor.seconds() if can_answer else machine.due_s())

    def journal_durable(self) -> None:
        """Send the messages of ticks whose records have become durable."""
        for caused in self._write_ahead.take_durable():
            self._release(caused)

    def _release(self, caused: Consequences) -> None:
        """Carry out what a tick has caused."""
        for peer, message in caused.messages:
            peer.send(message)
        for job in caused.ended:
            self.waiters.notify(job.spec.id)
        for call in caused.calls:
            call()

    def call_when_durable(self, call: Callable[[], object]) -> None:
        """Call a function when everything that has happened so far is durable."""
        if self._write_ahead.must_wait(self.machine.journal):
            self._write_ahead.call_after_tick(call)
            self._ticks.at_end(self._end_tick)
        else:
            call()

    def record(self, records: Sequence[Message]) -> None:
        """Write records at the end of this tick, before what depends on them leaves."""
        self.machine.journal.extend(records)
        self._ticks.at_end(self._end_tick)

    def when_durable(self) -> Deferred[None]:
        """Return a Deferred that fires when everything that has happened so far is durable."""
        done: Deferred[None] = Deferred()
        self.call_when_durable(lambda: done.callback(None))
        return done

    def _note_bug(self, what: str, error: Exception) -> None:
        """Note that the machine raised an unexpected error: its tables may be partly changed."""
        log.failure("{what} failed in the master because of a bug in ciel", what=what)
        self._bug_seen = self._bug_seen or f"{what}: {type(error).__name__}: {error}"
        self._ticks.at_end(self._end_tick)

    def _check_invariants(self) -> None:
        """Stop this master if its tables contradict each other; continue if they agree."""
        bug_seen, self._bug_seen = self._bug_seen, ""
        for subject, text in problems(self.machine):
            self.on_inconsistent(
                f"{bug_seen}. Because of this bug in ciel, the tables of this master contradict "
                f"each other ({subject}: {text}). It stops, since it could give wrong answers"
            )
            return
        log.warn("the tables of this master still agree with each other; it continues")

    def _schedule(self, due_s: float | None) -> None:
        if self._due is not None and self._due.active():
            if due_s is not None and self._due_s <= due_s:
                return  # the earlier call will schedule the next one
            self._due.cancel()
        if due_s is not None:
            self._due_s = due_s
            delay_s = max(due_s - self._reactor.seconds(), 0.0)
            self._due = self._reactor.callLater(delay_s, self._end_tick)

    def _on_timer(self) -> None:
        try:
            self._check_peers()
        except Exception as error:  # an error would stop the LoopingCall
            self._note_bug("the periodic check", error)

    def _check_peers(self) -> None:
        now_s = self._reactor.seconds()
        late_s = now_s - self._checked_at_s - CHECK_INTERVAL_S
        self._checked_at_s = now_s
        if late_s > STALL_S:
            self._was_stalled(late_s)
        for peer, name in self._names.items():
            if peer.hello is not None and peer.hello.role is Role.WORKER:
                self.machine.worker_heard(name, now_s - peer.silent_s, now_s)
        self._maintain_sessions(now_s)
        self._freeze_graph()
        self.machine.check_timeouts(now_s)
        for name, node in list(self.machine.workers.items()):
            if node.suspicion:
                self._probe(name)
        self._end_lost_sessions("it was silent for too long")
        if self.memory is not None:
            awaited = self.machine.membership.awaited
            self.memory.keep_of_workers({*self.machine.workers, *awaited})
        self._end_tick()

    def _was_stalled(self, late_s: float) -> None:
        """Extend the grace periods of disconnected peers by the time of a stall."""
        log.warn("this process was stopped or starved for {late_s:.1f} s", late_s=late_s)
        for session in self._sessions.values():
            session.gone_at_s += late_s
        self.machine.was_stalled(late_s)

    def _maintain_sessions(self, now_s: float) -> None:
        """Confirm received messages; drop peers that read too slowly or did not reconnect."""
        for (is_worker, token), session in list(self._sessions.items()):
            if session.peer is not None:
                session.confirm()
            elif is_worker and not session.can_resume:
                reason = "it read too slowly: too many messages waited for it"
                self.machine.worker_lost(session.name, reason, now_s)
            elif not is_worker and (
                now_s >= session.gone_at_s + CLIENT_GRACE_S or not session.can_resume
            ):
                del self._sessions[False, token], self._peers[session.name]
                session.end()
                self.machine.client_gone(session.name, now_s, grace_s=0.0)

    def _manage_memory(self) -> None:
        """Tune garbage collection while operations run in slices, and free memory after them.

        The objects that these operations create have no cycles, so they are excluded from garbage
        collection. When the operations have ended, free memory is returned to the system: after a
        large job it is fragmented.
        """
        if self.machine.has_more:
            self._slices += 1
            if self._slices % FREEZE_EVERY_SLICES == 0:
                gc.freeze()
        else:
            if self._slices >= TRIM_FROM_SLICES:
                self._release_memory()
            self._slices = 0

    def _release_memory(self) -> None:
        graph = self.machine.graph
        if len(graph.tasks) <= COLLECTED_MAX_TASKS:  # the frozen objects may hold cycles, too
            gc.unfreeze()
            gc.collect()
            self._frozen_tasks = 0
        for table in (graph.tasks, graph.objects.nodes):
            if not table:
                table.clear()  # an empty dictionary keeps its largest size until it is cleared
        trim_memory()

    def _freeze_graph(self) -> None:
        """Exclude a large graph from garbage collection: it has no cycles, and lives long."""
        task_count = len(self.machine.graph.tasks)
        if task_count >= self._frozen_tasks + FREEZE_EVERY_TASKS:
            self._frozen_tasks = task_count
            gc.freeze()

    def _end_lost_sessions(self, reason: str) -> None:
        """End the sessions of workers that were declared dead. Running workers join again."""
        for (is_worker, _), session in list(self._sessions.items()):
            if is_worker and session.name not in self.machine.workers:
                log.warn("worker {worker} is lost: {reason}", worker=session.name, reason=reason)
                self._end_session(session.name, f"this worker was declared dead: {reason}")


def _raise(reason: str) -> None:
    raise RuntimeError(reason)


def _may_send(message: Message) -> bool:
    """Whether a replica of a service, or a task that calls one, may send a message."""
    return not isinstance(message, Ask) or message.topic == "service"


def trim_memory() -> None:
    """Make the C library return free memory to the system, if it supports that."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _is_netloc(text: str) -> bool:
    try:
        _, host, port = parse_url(text)
    except ValueError:
        return False
    return text == netloc_of(host, port)


LACKING_MAX_LENGTH: Final = 1000
_PRINTABLE: Final = f"a string of at most {ID_MAX_LENGTH} printable characters"


PLACES_MAX: Final = 8
"""Stores have two levels."""


def _are_places(value: Any) -> bool:
    return (
        type(value) is list
        and len(value) <= PLACES_MAX
        and all(isinstance(place, str) and _is_name(place) for place in value)
    )


def _read_offers(value: Any) -> tuple[Offer, ...]:
    """Read the resources of a worker; raises TypeError or ValueError."""
    found = []
    for name, amount, indices in value:
        if not isinstance(name, str) or type(amount) is not int or wrong_amounts(((name, amount),)):
            raise ValueError
        texts = [index for index in indices if isinstance(index, str) and index.isprintable()]
        if len(texts) != len(indices) or len(indices) > INDICES_MAX:
            raise ValueError
        offer = offer_of(name, texts) if texts else Offer(name, amount)
        if offer.amount != amount:
            raise ValueError
        found.append(offer)
    if len({offer.name for offer in found}) != len(found) or len(found) > RESOURCES_MAX:
        raise ValueError
    return tuple(found)


def _is_name(text: str) -> bool:
    return text.isprintable() and len(text) <= ID_MAX_LENGTH


def _are_seconds(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value <= TIMEOUT_MAX_S


def worker_facts(about: Mapping[str, Any]) -> WorkerFacts:
    """Read a worker's description of itself; raises ValueError or InvalidIdError."""
    worker, netloc, host = about.get("worker"), about.get("netloc"), about.get("host")
    slots, executors = about.get("slots"), about.get("executors")
    check_id(worker)
    if not isinstance(netloc, str) or not _is_netloc(netloc):
        raise ValueError("its address must be HOST:PORT")
    if not isinstance(host, str) or not _is_name(host):
        raise ValueError(f"its host must be {_PRINTABLE}")
    if type(slots) is not int or not 1 <= slots <= SLOTS_MAX:
        raise ValueError(f"its slots must be 1 to {SLOTS_MAX}")
    if not isinstance(executors, list) or not all(isinstance(item, str) for item in executors):
        raise ValueError("its executors must be a list of names")
    lacking = about.get("lacking", {})
    if not isinstance(lacking, dict) or not all(isinstance(why, str) for why in lacking.values()):
        raise ValueError(
            "lacking must map the names of the executors that it cannot offer to the reasons"
        )
    memory_bytes = about.get("memory_bytes", 0)
    if type(memory_bytes) is not int or not 0 <= memory_bytes <= MEMORY_MAX_BYTES:
        raise ValueError(f"its memory_bytes must be 0 to {MEMORY_MAX_BYTES}")
    hostname = about.get("hostname", "")
    if not isinstance(hostname, str) or len(hostname) > ID_MAX_LENGTH:
        raise ValueError(f"its hostname must be a string of at most {ID_MAX_LENGTH} characters")
    spool = about.get("spool", "")
    if not isinstance(spool, str) or not _is_name(spool):
        raise ValueError(f"its work directory (spool) must be {_PRINTABLE}")
    keeps_objects = about.get("keeps_objects", False)
    if type(keeps_objects) is not bool:
        raise ValueError("keeps_objects must be true or false")
    is_draining, drain_within_s = about.get("draining", False), about.get("drain_within_s")
    if type(is_draining) is not bool or not (
        drain_within_s is None or type(drain_within_s) in (int, float)
    ):
        raise ValueError("it must say by true or false whether it drains, and for how many seconds")
    life_left_s, drain_grace_s = about.get("life_left_s"), about.get("drain_grace_s", 0.0)
    if not (life_left_s is None or _are_seconds(life_left_s)) or not _are_seconds(drain_grace_s):
        raise ValueError("it must say for how many seconds it lives, and how long it drains")
    user, places = about.get("user"), about.get("places")
    if user is not None and type(user) is not int:
        raise ValueError("its user must be a number")
    if places is not None and not _are_places(places):
        raise ValueError(f"its places must be at most {PLACES_MAX} strings, each {_PRINTABLE}")
    try:
        offers, labels = _read_offers(about.get("resources", [])), about.get("labels", {})
    except (TypeError, ValueError):
        raise ValueError("its resources must be names with amounts, and lists of indices") from None
    if (
        type(labels) is not dict
        or len(labels) > LABELS_MAX
        or not all(type(value) is str and not wrong_label(n, value) for n, value in labels.items())
    ):
        raise ValueError(f"its labels must be at most {LABELS_MAX} names with values")
    allocation = about.get("allocation", "")
    if not isinstance(allocation, str) or not _is_name(allocation):
        raise ValueError(f"its allocation must be {_PRINTABLE}")
    return WorkerFacts(
        str(worker), netloc, host, slots, frozenset(executors), lacking,
        memory_bytes=memory_bytes, hostname=hostname, spool=spool, keeps_objects=keeps_objects,
        is_draining=is_draining, drain_within_s=drain_within_s, end=read_end(about),
        user=user, places=None if places is None else tuple(places), resources=offers,
        labels=labels, allocation=allocation, life_left_s=life_left_s, drain_grace_s=drain_grace_s,
        isolation=_isolation(about.get("isolation")),
    )  # fmt: skip


def _isolation(value: Any) -> Isolation:
    """Read how far a worker can isolate programs; raises ValueError. `value`: None if it is old."""
    if value is None:
        return Isolation(lacking=dict.fromkeys(MECHANISMS, "its version of ciel is too old"))
    least, lacking = (value.get("least"), value.get("lacking")) if type(value) is dict else (0, 0)
    if least not in ISOLATIONS or not isinstance(lacking, dict):
        raise ValueError("its isolation must have a least level, and what it lacks")
    if not all(type(why) is str and len(why) <= LACKING_MAX_LENGTH for why in lacking.values()):
        raise ValueError("its isolation must map what it lacks to the reasons")
    return Isolation(least, {name: lacking[name] for name in MECHANISMS if name in lacking})
