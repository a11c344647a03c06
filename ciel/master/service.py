"""The master's edge: connections and the clock on one side, the machine on the other.

Every message goes to the machine at once; what follows from a turn's messages leaves at the turn's
end, after the journal has it. Nothing is decided here.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

from twisted.internet.task import LoopingCall
from twisted.logger import Logger

from ciel.access.addresses import netloc as netloc_of
from ciel.access.addresses import parse_url
from ciel.access.keys import Role
from ciel.core.errors import CielError
from ciel.core.events import CLIENT_GRACE_S, Answer, Ask, Change, Heartbeat, Message, Received
from ciel.core.ids import ID_MAX_LENGTH, check_id
from ciel.core.tasks import MEMORY_MAX_BYTES, SLOTS_MAX
from ciel.master import attaching
from ciel.master.journal import Journal
from ciel.master.sessions import ClientSession
from ciel.master.state import answers
from ciel.master.state.machine import MasterMachine
from ciel.master.state.workers import WorkerFacts
from ciel.master.waiters import Waiters
from ciel.net.control import Peer
from ciel.net.turns import DelayedCall, Turns
from ciel.wire.errors import WireError
from ciel.wire.references import from_json, to_json

TICK_S = 0.5
CLIENT_LOST_AFTER_S = 30.0
FREEZE_EVERY_TASKS = 50_000
WORKERS = ":workers"
"""What waits for a worker to come or go waits for that; no id begins so."""

T = TypeVar("T")
log = Logger(__name__)  # compiled, it cannot be found out


class MasterService:
    """Owns the control connections of one master."""

    def __init__(
        self,
        reactor: Any,
        turns: Turns,
        journal: Journal,
        about: dict[str, Any],
        machine: MasterMachine,
    ) -> None:
        self.machine = machine
        self._reactor = reactor
        self._turns = turns
        self._journal = journal
        self._about = about  # what status tells besides the machine's own facts
        self._started_at_s = time.time()
        self.epoch_s = machine.epoch_s = self._started_at_s - reactor.seconds()
        """What makes a time of this master's clock one since the epoch."""
        self.waiters = Waiters(reactor)  # for a job's end by its id, and for `WORKERS`
        self._workers_version = 0
        self._names: dict[Peer, str] = {}
        self._peers: dict[str, Peer | ClientSession] = {}
        self._sessions: dict[str, ClientSession] = {}  # by the names that clients gave them
        self._client_count = 0
        self._frozen_tasks = 0
        self._due: DelayedCall | None = None
        self._due_s = 0.0
        self._ticks = LoopingCall(self._tick)
        self._ticks.clock = reactor
        self._ticks.start(TICK_S, now=False)

    def close(self) -> None:
        """Stop deciding and close all connections."""
        if self._ticks.running:
            self._ticks.stop()
        if self._due is not None and self._due.active():
            self._due.cancel()
        for peer in list(self._names):
            peer.close()
        self._journal.close()

    # --- connections ------------------------------------------------------------------------------

    def peer_opened(self, peer: Peer) -> None:
        assert peer.hello is not None
        if peer.hello.role is Role.WORKER:
            try:
                facts = worker_facts(peer.hello.about)._replace(software=peer.hello.software)
            except (CielError, ValueError) as error:
                peer.refuse(f"this worker does not say who it is: {error}")
                return
            self._admit(peer, facts.id)
            self.machine.worker_joined(facts, self._reactor.seconds())
            log.info(
                "worker {worker} at {netloc} joined, {slots} slots",
                worker=facts.id, netloc=facts.netloc, slots=facts.slots,
            )  # fmt: skip
        else:
            self._admit_client(peer, peer.hello.about)
        self._turns.at_end(self._end_turn)

    def _admit(self, peer: Peer, name: str) -> None:
        former = self._peers.get(name)
        self._names[peer] = name
        self._peers[name] = peer
        if former is not None and not isinstance(former, ClientSession):
            del self._names[former]
            former.refuse(f"another worker joined as {name}")

    def _admit_client(self, peer: Peer, about: Mapping[str, Any]) -> None:
        """Let a client in, or go on with one that has lost its connection."""
        token, received = about.get("session"), about.get("received")
        if not isinstance(token, str):
            self._client_count += 1
            self._admit(peer, f"client-{self._client_count}")
            return
        session = self._sessions.get(token)
        if received is None and session is None:
            self._client_count += 1
            name = f"client-{self._client_count}"
            self._names[peer] = name
            self._peers[name] = self._sessions[token] = ClientSession(name, peer)
        elif session is None:
            peer.refuse(
                "it does not know this client: that was away for too long, or the master is "
                "another one since"
            )
        elif type(received) is not int or not session.take_confirmation(received):
            peer.refuse("this client goes on with a session otherwise than it was")
        elif not session.can_resume:
            peer.refuse("this client was too far behind")
        else:
            if session.peer is not None:  # whose end we have not noticed
                del self._names[session.peer]
                session.peer.turn_away()
            self._names[peer] = session.name
            session.resume(peer)
            log.info("{client} is back", client=session.name)

    def peer_said(self, peer: Peer, messages: list[Message]) -> None:
        name = self._names.get(peer)
        if name is None or peer.hello is None:
            return
        now_s = self._reactor.seconds()
        from_worker = peer.hello.role is Role.WORKER
        say: Callable[[str, Message, float], None] = (
            self.machine.worker_said if from_worker else self.machine.client_said
        )
        session = self._peers[name]
        counted = len(messages)
        for message in messages:
            if type(message) is Ask or type(message) is Change:
                self._answer(session, message, name if from_worker else "")
            elif type(message) is Received:
                counted -= 1
                if isinstance(session, ClientSession):
                    if not session.take_confirmation(message.total):
                        peer.refuse("this client confirms what was not said")
                        return
            else:
                say(name, message, now_s)
        if isinstance(session, ClientSession):
            session.count(counted)
        self._turns.at_end(self._end_turn)

    def peer_drained(self, peer: Peer) -> None:
        """Nothing waits here for a peer to take more: the outbox is emptied every turn."""

    def peer_closed(self, peer: Peer, reason: str) -> None:
        name = self._names.pop(peer, None)
        if name is None:
            return
        now_s = self._reactor.seconds()
        session = self._peers[name]
        if isinstance(session, ClientSession):
            session.peer, session.gone_at_s = None, now_s
            return
        del self._peers[name]
        if peer.hello is not None and peer.hello.role is Role.WORKER:
            log.info("worker {worker} is gone: {reason}", worker=name, reason=reason)
            self.machine.worker_lost(name, reason, now_s)
        else:
            self.machine.client_gone(name, now_s)
        self._turns.at_end(self._end_turn)

    def _answer(self, peer: Peer | ClientSession, ask: Ask | Change, worker: str) -> None:
        find = self.change if type(ask) is Change else self.answer
        if worker:
            find = partial(attaching.change, self.machine, worker, now_s=self._reactor.seconds())
        try:
            peer.send(Answer(ask.number, find(ask.topic, ask.argument), ""))
        except CielError as error:
            peer.send(Answer(ask.number, None, str(error)))

    def answer(self, topic: str, argument: Any) -> Any:
        """Answer a question with a JSON value; raises UnknownQuestionError."""
        value = answers.answer(self.machine, topic, argument, self._reactor.seconds())
        if topic == "status":
            # Times of jobs are on this master's own clock, which only it can read.
            now_s = self._reactor.seconds()
            value = {**self._about, "started_at_s": self._started_at_s, "now_s": now_s,
                     "epoch_s": self.epoch_s, **value}  # fmt: skip
        return to_json(value)

    def change(self, topic: str, argument: Any) -> Any:
        """Change something and return what there is to say about it; raises CielError."""
        try:
            read = from_json(argument)  # with the references in it
        except WireError as error:
            raise answers.UnknownQuestionError(str(error)) from None
        return answers.change(self.machine, topic, read, self._reactor.seconds())

    # --- without a connection ---------------------------------------------------------------------

    def now_s(self) -> float:
        """Tell the time of the machine's clock."""
        return float(self._reactor.seconds())

    def netlocs(self) -> set[str]:
        """Name where the workers that are there serve."""
        return {node.facts.netloc for node in self.machine.workers.values()}

    def act(self, do: Callable[[MasterMachine, float], T]) -> T:
        """Have somebody who has no connection do something to the machine; raises what that does.
        What follows from it leaves at the end of the turn.
        """
        self._turns.at_end(self._end_turn)
        return do(self.machine, self.now_s())

    def lose_workers(self, reason: str) -> None:
        """Take all workers for lost. Those that live join anew."""
        for worker in list(self.machine.workers):
            self.machine.worker_lost(worker, reason, self.now_s())
        self._turns.at_end(self._end_turn)
        self._hang_up_on_lost(reason)

    # --- turns and time ---------------------------------------------------------------------------

    def _end_turn(self) -> None:
        machine = self.machine
        machine.end_turn(self._reactor.seconds())
        if machine.journal:
            records, machine.journal = machine.journal, []
            self._journal.append(records)
        if machine.outbox:
            outbox, machine.outbox = machine.outbox, []
            peers = self._peers
            for name, message in outbox:
                peer = peers.get(name)
                if peer is not None:
                    peer.send(message)
        if machine.ended:
            ended, machine.ended = machine.ended, []
            for job in ended:
                self.waiters.tell(job.spec.id)
        if self._workers_version != machine.workers_version:
            self._workers_version = machine.workers_version
            self.waiters.tell(WORKERS)
        self._schedule(machine.due_s())

    def _schedule(self, due_s: float | None) -> None:
        if self._due is not None and self._due.active():
            if due_s is not None and self._due_s <= due_s:
                return  # it comes back here anyway
            self._due.cancel()
        if due_s is not None:
            self._due_s = due_s
            delay_s = max(due_s - self._reactor.seconds(), 0.0)
            self._due = self._reactor.callLater(delay_s, self._end_turn)

    def _tick(self) -> None:
        now_s = self._reactor.seconds()
        for peer, name in self._names.items():
            if peer.hello is not None and peer.hello.role is Role.WORKER:
                self.machine.worker_said(name, Heartbeat(), now_s - peer.silent_s)
        self._tend_sessions(now_s)
        self._spare_collector()
        self.machine.tick(now_s)
        self._hang_up_on_lost("was silent for too long")
        self._end_turn()

    def _tend_sessions(self, now_s: float) -> None:
        """Confirm what came, and give up clients that did not come back."""
        for token, session in list(self._sessions.items()):
            if session.peer is not None:
                session.confirm()
            elif now_s >= session.gone_at_s + CLIENT_GRACE_S or not session.can_resume:
                del self._sessions[token], self._peers[session.name]
                self.machine.client_gone(session.name, now_s, grace_s=0.0)

    def _spare_collector(self) -> None:
        """Keep a large graph from being searched for cycles: it has none, and is here to stay."""
        task_count = len(self.machine.graph.tasks)
        if task_count >= self._frozen_tasks + FREEZE_EVERY_TASKS:
            self._frozen_tasks = task_count
            gc.freeze()

    def _hang_up_on_lost(self, reason: str) -> None:
        """Close the connections of workers that were taken for lost: one that lives joins anew."""
        for peer, name in list(self._names.items()):
            is_worker = peer.hello is not None and peer.hello.role is Role.WORKER
            if is_worker and name not in self.machine.workers:
                log.warn("worker {worker} {reason}", worker=name, reason=reason)
                del self._names[peer], self._peers[name]
                peer.close()


def _is_netloc(text: str) -> bool:
    try:
        _, host, port = parse_url(text)
    except ValueError:
        return False
    return text == netloc_of(host, port)


def worker_facts(about: Mapping[str, Any]) -> WorkerFacts:
    """Read what a worker says of itself; raises ValueError or InvalidIdError."""
    worker, netloc, host = about.get("worker"), about.get("netloc"), about.get("host")
    slots, executors = about.get("slots"), about.get("executors")
    check_id(worker)
    if not isinstance(netloc, str) or not _is_netloc(netloc):
        raise ValueError("its address must be HOST:PORT")
    if not isinstance(host, str) or not host.isprintable() or len(host) > ID_MAX_LENGTH:
        raise ValueError("its host must be a text")
    if type(slots) is not int or not 1 <= slots <= SLOTS_MAX:
        raise ValueError(f"its slots must be 1 to {SLOTS_MAX}")
    if not isinstance(executors, list) or not all(isinstance(item, str) for item in executors):
        raise ValueError("its executors must be a list of names")
    lacking = about.get("lacking", {})
    if not isinstance(lacking, dict) or not all(isinstance(why, str) for why in lacking.values()):
        raise ValueError("what it lacks must be an object of executors and reasons")
    memory_bytes = about.get("memory_bytes", 0)
    if type(memory_bytes) is not int or not 0 <= memory_bytes <= MEMORY_MAX_BYTES:
        raise ValueError(f"its memory_bytes must be 0 to {MEMORY_MAX_BYTES}")
    hostname = about.get("hostname", "")
    if not isinstance(hostname, str) or len(hostname) > ID_MAX_LENGTH:
        raise ValueError("the name of its host must be a text")
    return WorkerFacts(
        str(worker), netloc, host, slots, frozenset(executors), lacking,
        memory_bytes=memory_bytes, hostname=hostname,
    )  # fmt: skip
