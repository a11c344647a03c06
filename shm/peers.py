"""The peers: the other daemons of the group on this host, and requests to them (CIB-12, CIB-14).

The list of peers is read from the kernel whenever it is needed: a daemon is present if a socket
listens at its abstract name. So the list is never stale, and contains no daemon that has died. The
daemons of cores that share memory find each other by messages there (`Cores`), also if they have
kernels of their own.

Requests to peers are never recursive, so a peer does not forward them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol

from twisted.internet.defer import Deferred
from twisted.internet.protocol import ClientFactory
from twisted.python.failure import Failure

from ciel.shm.connection import Connection
from ciel.shm.credentials import core_prefix, own_prefix
from ciel.shm.errors import MessageError
from ciel.shm.messages import TIMEOUT_MAX_MS, Code, Fail, Load, Message, Response
from ciel.shm.requests import REQUESTS_MAX
from ciel.storage.sharing import PeerStoreError

SERVICE: Final = "shmd"
"""The service of daemons whose stores share memory."""

CONNECT_TIMEOUT_S: Final = 5.0
IN_FLIGHT_MAX: Final = REQUESTS_MAX // 2
"""How many requests one peer gets at a time; further ones wait here, where they cost less."""


def listed(prefix: str) -> set[str]:
    """Return the names of a group's present members, without the prefix."""
    mark = f" @{prefix}"
    with open("/proc/net/unix", encoding="utf-8", errors="replace") as table:
        return {line.rstrip("\n").partition(mark)[2] for line in table if mark in line}


class Cores(Protocol):
    """Connections to other cores of this store's memory, by name."""

    def introduce(self, name: str) -> None: ...
    def names(self) -> dict[str, int]: ...
    def listen(self, service: str, factory: Any, /) -> None: ...
    def connect(self, number: int, service: str, factory: Any, /) -> None: ...
    def close(self) -> None: ...


class Peers:
    """Sends requests to peers, over one persistent connection each. `close` ends all of them.

    `Peers` sends messages to a core of the same memory, and uses a socket for any other peer.
    """

    def __init__(self, reactor: Any, group: str, member: str, cores: Cores | None = None) -> None:
        self.prefix = own_prefix(group)
        self.member = member
        self._of_cores = core_prefix(group)
        self._cores = cores
        if cores is not None:
            cores.introduce(self._of_cores + member)
        self._reactor = reactor
        self._connections: dict[str, _PeerConnection] = {}
        self._is_closed = False

    def names(self) -> list[str]:
        """Return the present peers."""
        return sorted((listed(self.prefix) | self._by_core().keys()) - {self.member})

    def _by_core(self) -> dict[str, int]:
        """Return the numbers of the peers that are cores of this store's memory."""
        names = self._cores.names() if self._cores is not None else {}
        prefix = self._of_cores
        return {n.removeprefix(prefix): core for n, core in names.items() if n.startswith(prefix)}

    def ask(
        self, peer: str, name: str, timeout_s: float, *, as_file: bool = False
    ) -> Deferred[Response]:
        """Ask a peer for an object; with `as_file`, for a path that any process can open. Fails
        with `PeerStoreError` if the peer does not answer.

        If the connection ends meanwhile, ask once more: a new daemon may have the peer's name.
        """
        done: Deferred[Response] = self._ask_once(peer, name, timeout_s, as_file)
        until_s = self._reactor.seconds() + timeout_s

        def again(failure: Any) -> Any:
            left_s = until_s - self._reactor.seconds()
            if failure.check(_ConnectionLostError) is None or self._is_closed or left_s <= 0:
                return failure
            return self._ask_once(peer, name, left_s, as_file)

        return done.addErrback(again)

    def _ask_once(
        self, peer: str, name: str, timeout_s: float, as_file: bool
    ) -> Deferred[Response]:
        link = self._connections.get(peer)
        if link is None:
            link = self._connections[peer] = _PeerConnection(self._reactor, peer, self._over)
            core = self._by_core().get(peer)
            if core is None or self._cores is None:
                link.connect(f"\0{self.prefix}{peer}")
            else:
                link.connect_core(self._cores, core)
        return link.ask(name, timeout_s, as_file)

    def _over(self, link: _PeerConnection) -> None:
        if self._connections.get(link.peer) is link:
            del self._connections[link.peer]

    def close(self) -> None:
        """End the connections; pending requests fail."""
        self._is_closed = True
        for link in [*self._connections.values()]:
            link.close()


class _ConnectionLostError(PeerStoreError):
    """An open connection ended before the answer arrived."""


class _PeerConnection:
    """A connection to a peer, and its pending requests."""

    def __init__(self, reactor: Any, peer: str, over: Callable[[_PeerConnection], None]) -> None:
        self.peer = peer
        self._reactor = reactor
        self._over = over
        self._connection: Connection | None = None
        self._connector: Any = None
        self._unsent: deque[Load] = deque()
        self._in_flight: set[int] = set()
        self._asked: dict[int, tuple[Deferred[Response], Any]] = {}
        self._number = 0

    def connect(self, name: str) -> None:
        factory = _PeerConnectionFactory(self)
        self._connector = self._reactor.connectUNIX(name, factory, timeout=CONNECT_TIMEOUT_S)

    def connect_core(self, cores: Cores, number: int) -> None:
        cores.connect(number, SERVICE, _PeerConnectionFactory(self))

    def ask(self, name: str, timeout_s: float, as_file: bool) -> Deferred[Response]:
        self._number += 1
        timeout_ms = min(max(int(timeout_s * 1000), 1), TIMEOUT_MAX_MS)
        load = Load(
            self._number, name, recursive=False, described=not as_file, timeout_ms=timeout_ms
        )
        done: Deferred[Response] = Deferred()
        due = self._reactor.callLater(timeout_s, self._silent, load)
        self._asked[load.number] = (done, due)
        self._unsent.append(load)
        self._send()
        return done

    def _send(self) -> None:
        while self._connection and self._unsent and len(self._in_flight) < IN_FLIGHT_MAX:
            load = self._unsent.popleft()
            if load.number in self._asked:  # otherwise it has timed out
                self._in_flight.add(load.number)
                self._connection.send(load)

    def _silent(self, load: Load) -> None:
        done, _ = self._asked.pop(load.number)
        reason = "the peer has not answered in time"
        done.callback(Fail(load.number, Code.TIMEOUT, load.name, reason))

    # --- ConnectionOwner --------------------------------------------------------------------------

    def connection_opened(self, connection: Connection) -> None:
        self._connection = connection
        self._send()

    def connection_said(self, connection: Connection, message: Message) -> None:
        if not isinstance(message, Response):
            raise MessageError("a peer sent a request instead of an answer")
        self._in_flight.discard(message.number)
        self._send()
        asked = self._asked.pop(message.number, None)
        if asked is not None:  # otherwise the request has timed out
            done, due = asked
            due.cancel()
            done.callback(message)

    def connection_lost(self, connection: Connection, reason: str) -> None:
        self.failed(_ConnectionLostError(self.peer, reason))

    def failed(self, error: PeerStoreError) -> None:
        """Fail all pending requests."""
        self._over(self)
        asked, self._asked = self._asked, {}
        for done, due in asked.values():
            due.cancel()
            done.errback(error)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.end("this daemon is stopping")
        elif self._connector is not None:
            self._connector.disconnect()
        self.failed(PeerStoreError(self.peer, "this daemon is stopping"))


class _PeerConnectionFactory(ClientFactory):
    """Opens the connection to a peer, or reports why that failed."""

    noisy = False

    def __init__(self, link: _PeerConnection) -> None:
        self._link = link
        self._connection: Connection | None = None

    def buildProtocol(self, addr: Any) -> Connection:
        self._connection = Connection(self._link)
        return self._connection

    def clientConnectionFailed(self, connector: Any, reason: Failure) -> None:
        text = f"it cannot be reached: {reason.getErrorMessage()}"
        self._link.failed(PeerStoreError(self._link.peer, text))

    def clientConnectionLost(self, connector: Any, reason: Failure) -> None:
        if self._connection is not None and self._connection.refusal:
            self._link.failed(PeerStoreError(self._link.peer, self._connection.refusal))
