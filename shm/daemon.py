"""The shared memory daemon (SHMD): lets programs and other daemons use a store (CIB-10 to CIB-14).

Its clients are programs that no worker started, and its peers: the daemons of the stores of the
same group on this host. It requests missing objects from these peers.

A daemon runs inside a worker, on the same reactor and store, or as a separate process (`__main__`).
`requests` makes the decisions, `work` accesses the store, mostly in threads, and this module
connects the two.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.protocol import Factory
from twisted.internet.threads import deferToThread
from twisted.logger import Logger

from ciel.shm.connection import Connection
from ciel.shm.door import Acceptor, ListeningSocket, bound
from ciel.shm.errors import MessageError
from ciel.shm.layout import member_of_worker
from ciel.shm.messages import (
    Abandon,
    Code,
    Commit,
    Fail,
    Load,
    Message,
    Ok,
    Request,
    Response,
    Write,
)
from ciel.shm.peers import SERVICE, Cores, Peers
from ciel.shm.requests import (
    AbortWrite,
    Answer,
    AskPeers,
    CommitWrite,
    LookUp,
    OpenWrite,
    Order,
    Place,
    Refusal,
    Requests,
    Seen,
    Slow,
    StartSlow,
)
from ciel.shm.work import Counts, DiskTurn, Done, Work, do_not_wait, guarded
from ciel.storage.errors import ObjectNotFoundError
from ciel.storage.interface import ObjectStore, ObjectWriter
from ciel.storage.sharing import PeerObject, PeerStoreError

log = Logger()
T = TypeVar("T")

CONNECTIONS_MAX: Final = 256
"""How many programs and peers may be connected at a time; each takes a descriptor."""

ASK_TIMEOUT_S: Final = 60.0
"""Timeout for a peer's answer; the peer may have to read a large object for its checksum."""

LENT_S: Final = 5.0
"""After it has sent the path of a copy, the daemon keeps the copy open for this time at least, and
twice this time at most, so that the client can open it."""


def neighbour(
    reactor: Any,
    store: ObjectStore,
    directory: Path,
    *,
    cluster_id: str,
    netloc: str,
    kept: Callable[[str], object],
    turn: DiskTurn = do_not_wait,
    cores: Cores | None = None,
) -> Daemon:
    """Open the daemon of a worker's store (entry point `ciel.neighbours`).

    The daemon calls `kept` with the id of each object that it has added to the store, so that the
    worker retains and reports the object. `turn`: see `work.DiskTurn`. `cores`: the cores of the
    store's memory, if it has messages.
    """
    return Daemon(
        reactor, store, directory, group=cluster_id, member=member_of_worker(netloc), added=kept,
        disk_turn=turn, cores=cores,
    )  # fmt: skip


class Daemon:
    """Serves a block store from its construction until `close`.

    `behind` is a store on a disk from which the daemon loads objects into its own store. The daemon
    calls `added` with the id of each object that it has added to its store. `disk_turn`: see
    `work.DiskTurn`. The constructor raises `AlreadyServedError` or OSError.
    """

    def __init__(
        self,
        reactor: Any,
        store: ObjectStore,
        directory: Path,
        *,
        group: str,
        member: str,
        behind: ObjectStore | None = None,
        added: Callable[[str], object] = lambda object_id: None,
        disk_turn: DiskTurn = do_not_wait,
        cores: Cores | None = None,
    ) -> None:
        self.counts = Counts()
        self._reactor = reactor
        self._added = added
        self._work = Work(store, behind, disk_turn)
        self._requests = Requests()
        self._connections: set[Connection] = set()
        self._writers: dict[int, ObjectWriter] = {}
        self._due: Any = None
        self._taking_back: Any = None
        self._is_acting = False
        self._is_closed = False
        factory: Any = _Serving(self)
        self._listening = ListeningSocket(directory)
        self._acceptors = [Acceptor(reactor, self._listening.socket, factory, self._has_room)]
        if cores is not None:
            cores.listen(SERVICE, factory)
        self._peers = Peers(reactor, group, member, cores)
        try:
            sock = bound(f"\0{self._peers.prefix}{member}")
            self._acceptors.append(Acceptor(reactor, sock, factory, self._has_room))
        except OSError as error:
            log.error("peer stores cannot connect to this store: {error}", error=error)

    def ask(self, netloc: str, object_id: str) -> Deferred[PeerObject]:
        """Ask the daemon of another worker on this host for an object. The peer does not forward
        the request. Fails with `ObjectNotFoundError`, or with `PeerStoreError` if the peer cannot
        be reached or fails.
        """
        self.counts.asked += 1

        def answered(answer: Response) -> PeerObject:
            if isinstance(answer, Ok):
                self.counts.found += 1
                return PeerObject(answer.path, answer.size_bytes, answer.checksum)
            if answer.code is Code.NOT_FOUND:
                raise ObjectNotFoundError(object_id)
            raise PeerStoreError(netloc, answer.reason)

        return self._ask(member_of_worker(netloc), object_id, ASK_TIMEOUT_S).addCallback(answered)

    def _ask(self, peer: str, name: str, timeout_s: float) -> Deferred[Response]:
        """Ask a peer for an object that this store can adopt. If the peer answers with a place in
        memory that this store does not share, ask again for a file.
        """

        def answered(answer: Response) -> Response | Deferred[Response]:
            if isinstance(answer, Fail) or answer.path.startswith(self._work.store.sources):
                return answer
            as_file = self._peers.ask(peer, name, timeout_s, as_file=True)
            return as_file.addCallback(described, answer)

        def described(answer: Response, first: Ok) -> Response:
            return replace(first, path=answer.path) if isinstance(answer, Ok) else answer

        return self._peers.ask(peer, name, timeout_s).addCallback(answered)

    def figures(self) -> dict[str, int]:
        """Return the counters, and how many connections, pending requests and writes there are."""
        return asdict(self.counts) | {
            "connections": len(self._connections),
            "requests_under_way": len(self._requests.stages()),
            "open_writes": self._requests.open_writes,
        }

    def close(self) -> None:
        """Stop serving, and abort the open writes of clients.

        Threads that copy an object stop soon; other running threads complete their call.
        """
        if self._is_closed:
            return
        self._is_closed = self._work.is_cancelled = True
        for acceptor in self._acceptors:
            acceptor.close()
        self._listening.close()
        self._peers.close()
        for connection in [*self._connections]:
            connection.end("the daemon is stopping")
        for due in (self._due, self._taking_back):
            if due is not None and due.active():
                due.cancel()
        for _ in range(2):  # the first call only marks the newest copies
            self._work.take_back()
        for writer in self._writers.values():
            writer.abort()
        self._writers.clear()

    def _has_room(self) -> bool:
        return len(self._connections) < CONNECTIONS_MAX

    # --- ConnectionOwner --------------------------------------------------------------------------

    def connection_opened(self, connection: Connection) -> None:
        self._connections.add(connection)

    def connection_said(self, connection: Connection, message: Message) -> None:
        match message:
            case Load():
                self.counts.loads += message.recursive  # only peers send other loads
            case Write():
                self.counts.writes += 1
            case Commit():
                self.counts.commits += 1
            case Abandon():
                pass
            case _:
                raise MessageError("a client sent an answer")
        self._requests.asked(connection, message, self._reactor.seconds())
        self._act()

    def connection_lost(self, connection: Connection, reason: str) -> None:
        self._connections.discard(connection)
        self._requests.gone(connection)
        self._act()

    # --- executing orders -------------------------------------------------------------------------

    def _act(self) -> None:
        """Execute orders until there are none; an order that completes at once may add more."""
        if self._is_acting or self._is_closed:
            return
        self._is_acting = True
        try:
            while orders := self._requests.take_orders():
                for order in orders:
                    self._carry_out(order)
        finally:
            self._is_acting = False
        self._schedule()

    def _carry_out(self, order: Order) -> None:
        work = self._work
        match order:
            case Answer(source, request, message):
                self._count(request, message)
                assert isinstance(source, Connection)
                source.send(message)
            case LookUp(serial, name, described):
                looked_up = partial(self._looked_up, serial, name)
                look_up = partial(work.look_up, name, for_peer=described)
                self._do(look_up, looked_up, in_thread=work.store.capabilities.may_block)
            case AskPeers():
                self._ask_peers(order)
            case StartSlow(kind, name, offer):
                slow_done = partial(self._slow_done, kind, name)
                self._do(lambda: work.do_slowly(kind, name, offer), slow_done)
            case OpenWrite(write, name, size_hint_bytes, is_mapped):
                opened = partial(self._opened, write)
                begin = partial(work.begin, name, size_hint_bytes or None, is_mapped=is_mapped)
                self._do(begin, opened, in_thread=work.store.capabilities.may_block)
            case CommitWrite(write, name):
                writer = self._writers.pop(write)
                committed = partial(self._committed, write, name)
                self._do(lambda: work.commit(writer, name), committed)
            case AbortWrite(write):
                self._do(self._writers.pop(write).abort, lambda _: None)

    def _do(
        self,
        call: Callable[[], T],
        then: Callable[[T | Refusal], object],
        *,
        in_thread: bool = True,
    ) -> None:
        """Call a function, in a thread or directly, and pass its result to `then`."""

        def done(result: T | Refusal) -> None:
            if not self._is_closed:
                then(result)
                self._act()
            elif isinstance(result, tuple) and isinstance(result[0], ObjectWriter):
                result[0].abort()

        run: Any = deferToThread if in_thread else maybeDeferred
        run(guarded, call).addCallback(done).addErrback(
            lambda failure: log.failure("a request failed with an unexpected error", failure)
        )

    def _looked_up(self, serial: int, name: str, found: Seen | Place | Refusal) -> None:
        if found is Place.NOWHERE and self._work.behind is not None:
            looked_up = partial(self._requests.looked_up, serial)
            self._do(lambda: self._work.look_up_behind(name), looked_up)
        else:
            self._requests.looked_up(serial, found)

    def _ask_peers(self, order: AskPeers) -> None:
        names = self._peers.names()
        timeout_s = max(order.deadline_s - self._reactor.seconds(), 0.001)
        self._requests.asking(order.serial, names)
        for peer in names:
            self.counts.asked += 1
            self._ask(peer, order.name, timeout_s).addErrback(
                lambda failure: Fail(0, Code.FAILED, "", failure.getErrorMessage())
            ).addCallback(self._peer_answered, order.serial, peer)

    def _peer_answered(self, answer: Response, serial: int, peer: str) -> None:
        self.counts.found += isinstance(answer, Ok)
        self._requests.peer_answered(serial, peer, answer)
        self._act()

    def _slow_done(self, kind: Slow, name: str, result: Done | Refusal) -> None:
        if isinstance(result, Refusal):
            self._requests.slow_done(kind, name, result)
            return
        if result.copied_bytes is not None:
            self._count_taken(kind, result.copied_bytes)
            self._added(name)
        self._requests.slow_done(kind, name, result.seen)

    def _opened(self, write: int, begun: tuple[ObjectWriter, str] | Refusal) -> None:
        if isinstance(begun, Refusal):
            self._requests.write_opened(write, begun)
            return
        self._writers[write], path = begun
        self._requests.write_opened(write, path)

    def _committed(self, write: int, name: str, seen: Seen | Refusal) -> None:
        if isinstance(seen, Seen):
            self._added(name)
        self._requests.write_committed(write, seen)

    def _count(self, request: Request, answer: Response) -> None:
        is_good = isinstance(answer, Ok)
        if isinstance(request, Load) and not request.recursive:
            self.counts.served += is_good
            self.counts.not_served += not is_good
        else:
            self.counts.refused += not is_good

    def _count_taken(self, kind: Slow, copied_bytes: int) -> None:
        if kind is Slow.LIFT:
            self.counts.lifted += 1
        elif copied_bytes:
            self.counts.copied += 1
            self.counts.copied_bytes += copied_bytes
        else:
            self.counts.linked += 1

    # --- the clock --------------------------------------------------------------------------------

    def _schedule(self) -> None:
        due_s = self._requests.due_s()
        if self._due is not None and self._due.active():
            self._due.cancel()
        if due_s is not None:
            delay_s = max(due_s - self._reactor.seconds(), 0.0)
            self._due = self._reactor.callLater(delay_s, self._tick)
        if self._taking_back is None and self._work.has_lent:
            self._taking_back = self._reactor.callLater(LENT_S, self._take_back)

    def _take_back(self) -> None:
        self._taking_back = None
        self._work.take_back()
        self._schedule()

    def _tick(self) -> None:
        self._requests.tick(self._reactor.seconds())
        self._act()


class _Serving(Factory):
    noisy = False

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon

    def buildProtocol(self, addr: Any) -> Connection:
        return Connection(self._daemon)
