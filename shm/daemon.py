"""SHMD: the daemon of a block store (CIB-10 to CIB-14). It serves programs that have no worker, and
its siblings on this host; it asks those siblings for what is not here.

It lives on somebody's reactor: that of a worker, which works on the same store directly, or its own
(`__main__`). `requests` decides, `work` acts on the store, mostly in threads, and this is what lies
between.
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
from ciel.shm.door import Door, Porter, bound
from ciel.shm.errors import MessageError
from ciel.shm.layout import member_of_worker
from ciel.shm.messages import Code, Commit, Fail, Load, Message, Ok, Request, Response, Write
from ciel.shm.peers import Siblings
from ciel.shm.requests import (
    AbortWrite,
    Answer,
    AskSiblings,
    CommitWrite,
    Look,
    OpenWrite,
    Order,
    Place,
    Refusal,
    Requests,
    Seen,
    Slow,
    StartSlow,
)
from ciel.shm.work import Counts, Done, Turn, Work, at_once, guarded
from ciel.storage.errors import ObjectNotFoundError
from ciel.storage.interface import ObjectStore, ObjectWriter
from ciel.storage.sharing import Found, NeighbourError

log = Logger()
T = TypeVar("T")

CONNECTIONS_MAX: Final = 256
"""Programs and siblings at one time; each takes a descriptor and little else."""

ASK_TIMEOUT_S: Final = 60.0
"""For a sibling to answer, which may have to read a large object for its checksum."""


LENT_S: Final = 5.0
"""At least so long, and at most twice, somebody who was told the name of a copy may take to open
it."""


def neighbour(
    reactor: Any,
    store: ObjectStore,
    directory: Path,
    *,
    cluster_id: str,
    netloc: str,
    kept: Callable[[str], object],
    turn: Turn = at_once,
) -> Daemon:
    """Open the daemon of a worker's store (entry point `ciel.neighbours`). `kept` is called with
    each object that somebody else than the worker has put into the store, `turn` has a thread wait
    for a disk.
    """
    return Daemon(
        reactor, store, directory, group=cluster_id, member=member_of_worker(netloc), kept=kept,
        turn=turn,
    )  # fmt: skip


class Daemon:
    """Serves from the moment it is made. Raises `AlreadyServedError`, or OSError."""

    def __init__(
        self,
        reactor: Any,
        store: ObjectStore,
        directory: Path,
        *,
        group: str,
        member: str,
        behind: ObjectStore | None = None,
        kept: Callable[[str], object] = lambda object_id: None,
        turn: Turn = at_once,
    ) -> None:
        self.counts = Counts()
        self._reactor = reactor
        self._kept = kept
        self._work = Work(store, behind, turn)
        self._requests = Requests()
        self._connections: set[Connection] = set()
        self._writers: dict[int, ObjectWriter] = {}
        self._due: Any = None
        self._taking_back: Any = None
        self._is_acting = False
        self._is_closed = False
        factory: Any = _Serving(self)
        self._door = Door(directory)
        self._porters = [Porter(reactor, self._door.socket, factory, self._has_room)]
        self._siblings = Siblings(reactor, group, member)
        try:
            sock = bound(f"\0{self._siblings.prefix}{member}")
            self._porters.append(Porter(reactor, sock, factory, self._has_room))
        except OSError as error:
            log.error("siblings will not find this store: {error}", error=error)

    def ask(self, netloc: str, object_id: str) -> Deferred[Found]:
        """Ask the daemon of another worker on this host for an object: one hop, no server. Fails
        with `ObjectNotFoundError`, or with `NeighbourError` when it cannot be asked.
        """
        self.counts.asked += 1

        def told(answer: Response) -> Found:
            if isinstance(answer, Ok):
                self.counts.found += 1
                return Found(answer.path, answer.size_bytes, answer.checksum)
            if answer.code is Code.NOT_FOUND:
                raise ObjectNotFoundError(object_id)
            raise NeighbourError(netloc, answer.reason)

        return self._ask(member_of_worker(netloc), object_id, ASK_TIMEOUT_S).addCallback(told)

    def _ask(self, sibling: str, name: str, timeout_s: float) -> Deferred[Response]:
        """Ask a sibling for what we can take in: where its objects lie in memory that is not shared
        with us, once more, for a file.
        """

        def told(answer: Response) -> Response | Deferred[Response]:
            if isinstance(answer, Fail) or answer.path.startswith(self._work.store.sources):
                return answer
            as_file = self._siblings.ask(sibling, name, timeout_s, as_file=True)
            return as_file.addCallback(described, answer)

        def described(answer: Response, first: Ok) -> Response:
            return replace(first, path=answer.path) if isinstance(answer, Ok) else answer

        return self._siblings.ask(sibling, name, timeout_s).addCallback(told)

    def figures(self) -> dict[str, int]:
        """Return the counts, and what is under way."""
        return asdict(self.counts) | {
            "connections": len(self._connections),
            "requests_under_way": len(self._requests.stages()),
            "open_writes": self._requests.open_writes,
        }

    def close(self) -> None:
        """Serve no more. What is being written by others is aborted; threads end by themselves."""
        if self._is_closed:
            return
        self._is_closed = self._work.is_called_off = True
        for porter in self._porters:
            porter.close()
        self._door.close()
        self._siblings.close()
        for connection in [*self._connections]:
            connection.end("the daemon ends")
        for due in (self._due, self._taking_back):
            if due is not None and due.active():
                due.cancel()
        for _ in range(2):
            self._work.take_back()
        for writer in self._writers.values():
            writer.abort()
        self._writers.clear()

    def _has_room(self) -> bool:
        return len(self._connections) < CONNECTIONS_MAX

    # --- as the owner of connections --------------------------------------------------------------

    def connection_opened(self, connection: Connection) -> None:
        self._connections.add(connection)

    def connection_said(self, connection: Connection, message: Message) -> None:
        match message:
            case Load():
                self.counts.loads += message.recursive
            case Write():
                self.counts.writes += 1
            case Commit():
                self.counts.commits += 1
            case _:
                raise MessageError("who asks has answered")
        self._requests.asked(connection, message, self._reactor.seconds())
        self._act()

    def connection_lost(self, connection: Connection, reason: str) -> None:
        self._connections.discard(connection)
        self._requests.gone(connection)
        self._act()

    # --- carrying out orders ----------------------------------------------------------------------

    def _act(self) -> None:
        """Carry out orders until there are none; what is done at once gives rise to others."""
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
            case Look(serial, name, described):
                looked = partial(self._looked, serial, name)
                waits = work.store.capabilities.may_block
                self._do(lambda: work.look(name, for_sibling=described), looked, in_thread=waits)
            case AskSiblings():
                self._ask_siblings(order)
            case StartSlow(kind, name, offer):
                slow_done = partial(self._slow_done, kind, name)
                self._do(lambda: work.do_slowly(kind, name, offer), slow_done)
            case OpenWrite(write, name, size_hint_bytes):
                hint = size_hint_bytes or None
                opened = partial(self._opened, write)
                self._do(lambda: work.store.begin(name, size_hint_bytes=hint), opened)
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
        """Do something to the store, in a thread or at once, and go on with what came of it."""

        def done(result: T | Refusal) -> None:
            if not self._is_closed:
                then(result)
                self._act()
            elif isinstance(result, ObjectWriter):
                result.abort()

        run: Any = deferToThread if in_thread else maybeDeferred
        run(guarded, call).addCallback(done).addErrback(
            lambda failure: log.failure("carrying out a request failed", failure)
        )

    def _looked(self, serial: int, name: str, found: Seen | Place | Refusal) -> None:
        if found is Place.NOWHERE and self._work.behind is not None:
            looked = partial(self._requests.looked, serial)
            self._do(lambda: self._work.look_behind(name), looked)
        else:
            self._requests.looked(serial, found)

    def _ask_siblings(self, order: AskSiblings) -> None:
        names = self._siblings.names()
        timeout_s = max(order.deadline_s - self._reactor.seconds(), 0.001)
        self._requests.asking(order.serial, names)
        for sibling in names:
            self.counts.asked += 1
            self._ask(sibling, order.name, timeout_s).addErrback(
                lambda failure: Fail(0, Code.FAILED, "", failure.getErrorMessage())
            ).addCallback(self._told, order.serial, sibling)

    def _told(self, answer: Response, serial: int, sibling: str) -> None:
        self.counts.found += isinstance(answer, Ok)
        self._requests.told(serial, sibling, answer)
        self._act()

    def _slow_done(self, kind: Slow, name: str, result: Done | Refusal) -> None:
        if isinstance(result, Refusal):
            self._requests.slow_done(kind, name, result)
            return
        if result.copied_bytes is not None:
            self._count_taken(kind, result.copied_bytes)
            self._kept(name)
        self._requests.slow_done(kind, name, result.seen)

    def _opened(self, write: int, writer: ObjectWriter | Refusal) -> None:
        if isinstance(writer, Refusal):
            self._requests.write_opened(write, writer)
        elif (path := writer.path) is None:
            writer.abort()
            reason = "this store's objects have no names to write to"
            self._requests.write_opened(write, Refusal(Code.FAILED, reason))
        else:
            self._writers[write] = writer
            self._requests.write_opened(write, path)

    def _committed(self, write: int, name: str, seen: Seen | Refusal) -> None:
        if isinstance(seen, Seen):
            self._kept(name)
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
