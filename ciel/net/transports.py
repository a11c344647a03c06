"""How two processes reach each other: listen, connect, and connect again.

An address is `HOST:PORT`, or `unix:@NAME` for an abstract UNIX socket: Linux keeps those apart from
files, one set per network namespace, and nothing of them is left when their owner is killed. Port 0
means the first free one in 20000-32767, below what the kernel hands out by itself and small enough
for Java programs that read ports as signed 16-bit numbers.
"""

from __future__ import annotations

import errno
import random
import socket
from collections.abc import Callable
from typing import Any, Final, NamedTuple, Protocol

from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.error import ConnectionRefusedError
from twisted.internet.protocol import ClientFactory, Factory, connectionDone
from twisted.internet.protocol import Protocol as TwistedProtocol
from twisted.logger import Logger
from twisted.python.failure import Failure

from ciel.access.addresses import TAKEN, netloc
from ciel.core.events import Message
from ciel.net.control import ControlPeer, Owner
from ciel.net.doorstep import Doorstep
from ciel.net.errors import AddressError, ConnectError, ForeignAddressError, ListenError
from ciel.net.turns import DelayedCall
from ciel.wire.errors import RefusedError
from ciel.wire.frames import looks_like_frame
from ciel.wire.limits import HELLO_TIMEOUT_S

PORTS: Final = range(20000, 32768)
"""Where a free port is looked for."""

BACKLOG: Final = 1024
"""Connections the kernel keeps while a turn lasts; who finds no place tries again in a second."""

CONNECT_TIMEOUT_S: Final = 5.0
PROBE_TIMEOUT_S: Final = 2.0
RETRY_MIN_S: Final = 0.1
RETRY_MAX_S: Final = 5.0

_UNIX_NAME_MAX_LENGTH = 100  # of the 107 that the kernel has room for
_log = Logger(__name__)  # compiled, it cannot be found out


class Address(NamedTuple):
    """A host and port, or the name of an abstract socket (and then an empty host)."""

    host: str
    port: int
    name: str

    def __str__(self) -> str:
        return f"unix:@{self.name}" if self.name else netloc(self.host, self.port)


def parse_address(text: str) -> Address:
    """Read an address; an empty host means all of this machine's. Raise `AddressError`."""
    scheme, _, name = text.partition("unix:@")
    if name and not scheme:
        if len(name) > _UNIX_NAME_MAX_LENGTH or not (name.isascii() and name.isprintable()):
            raise AddressError(text)
        return Address("", 0, name)
    host, colon, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    host = host[1:-1] if bracketed else host
    plain = port.isascii() and port.isdigit() and int(port) <= 65535
    if not (colon and plain) or (":" in host and not bracketed) or "/" in host:
        raise AddressError(text)
    return Address(host, int(port), "")


# --- listening ------------------------------------------------------------------------------------


class Listener:
    """An open door; `address` is where it is, with the port that was found."""

    def __init__(self, address: Address, port: Any) -> None:
        self.address = address
        self._port = port

    def close(self) -> Deferred[None]:
        """Take no more connections; those that are there stay."""
        closed: Deferred[None] = maybeDeferred(self._port.stopListening)
        return closed


def listen(reactor: Any, text: str, factory: Factory[Any]) -> Listener:
    """Have a factory serve an address. Raise `AddressError`, or `ListenError` saying why not."""
    address = parse_address(text)
    sock, address = _bind_unix(address) if address.name else _bind_tcp(address)
    with sock:
        sock.setblocking(False)
        return Listener(address, reactor.adoptStreamPort(sock.fileno(), sock.family, factory))


def _bind_unix(address: Address) -> tuple[socket.socket, Address]:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    return _bound(sock, f"\0{address.name}", address), address


def _bind_tcp(address: Address) -> tuple[socket.socket, Address]:
    try:
        found = socket.getaddrinfo(address.host or "0.0.0.0", 0, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        reason = f"{address.host!a}: {error.strerror}"
        raise ForeignAddressError(str(address), reason) from None
    family, host = min((family, place[0]) for family, _, _, _, place in found)  # IPv4 comes first
    for port in (address.port,) if address.port else PORTS:
        sock = socket.socket(family, socket.SOCK_STREAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections may linger on
        try:
            return _bound(sock, (host, port), address), address._replace(port=port)
        except ListenError as error:
            cause = error.__cause__
            taken = isinstance(cause, OSError) and cause.errno == errno.EADDRINUSE
            if address.port or not taken:
                raise
    reason = f"every port from {PORTS[0]} to {PORTS[-1]} is taken"
    raise ListenError(str(address), reason)


def _bound(sock: socket.socket, place: Any, address: Address) -> socket.socket:
    try:
        sock.bind(place)
        sock.listen(BACKLOG)  # this too may find the address taken: two may bind, one may listen
    except OSError as error:
        sock.close()
        kind = ForeignAddressError if error.errno == errno.EADDRNOTAVAIL else ListenError
        raise kind(str(address), _why_not(error, address)) from error
    return sock


def _why_not(error: OSError, address: Address) -> str:
    if error.errno == errno.EADDRINUSE:
        choice = "name" if address.name else "port (0 finds a free one)"
        return f"{TAKEN}; stop it, or choose another {choice}"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{address.host} is no address of this machine"
    if error.errno == errno.EACCES:
        return "this user may not use that port; choose one from 1024 on"
    return error.strerror or str(error)


# --- who comes in ---------------------------------------------------------------------------------


class ControlFactory(Factory):
    """Accepts control connections, as on an abstract socket. `build` makes an accepting peer."""

    noisy = False

    def __init__(self, build: Callable[[], ControlPeer], doorstep: Doorstep | None = None) -> None:
        self._build = build
        self._doorstep = doorstep or Doorstep()

    def buildProtocol(self, addr: Any) -> Any:
        peer = self._build()
        self._doorstep.let_in(peer)
        return peer


class FrontDoorFactory(Factory):
    """One TCP port for control connections and HTTP, told apart by the first byte."""

    noisy = False

    def __init__(
        self,
        reactor: Any,
        build: Callable[[], ControlPeer],
        site: Factory[Any],
        doorstep: Doorstep | None = None,
    ) -> None:
        self.reactor = reactor
        self.build = build
        self.site = site
        self._doorstep = doorstep or Doorstep()

    def buildProtocol(self, addr: Any) -> FrontDoor:
        door = FrontDoor(self, addr)
        self._doorstep.let_in(door)
        return door


class FrontDoor(TwistedProtocol):
    """Waits for the first byte, then passes everything on to whom it is for."""

    transport: Any

    def __init__(self, house: FrontDoorFactory, addr: Any) -> None:
        self._house = house
        self._addr = addr
        self._inside: Any = None
        self._is_over = False
        self._opened_at_s = 0.0
        self._timer: DelayedCall | None = None

    @property
    def is_unproven(self) -> bool:
        """A peer of the control plane until its proof; HTTP has a doorstep of its own."""
        if self._inside is None:
            return not self._is_over
        return isinstance(self._inside, ControlPeer) and self._inside.is_unproven

    def connectionMade(self) -> None:
        reactor = self._house.reactor
        self._opened_at_s = reactor.seconds()
        self._timer = reactor.callLater(HELLO_TIMEOUT_S, self.turn_away)

    def dataReceived(self, data: bytes) -> None:
        if self._inside is None and not self._is_over:
            self._let_in(data[0])
        if self._inside is not None:
            self._inside.dataReceived(data)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self._is_over = True
        self._stop_timer()
        if self._inside is not None:
            self._inside.connectionLost(reason)

    def _let_in(self, first_byte: int) -> None:
        self._stop_timer()
        if looks_like_frame(first_byte):
            self._inside = self._house.build()
            self._inside.hello_timeout_s -= self._house.reactor.seconds() - self._opened_at_s
        elif bytes((first_byte,)).isalpha():  # ASCII letters only
            self._inside = self._house.site.buildProtocol(self._addr)
        if self._inside is None:
            self.turn_away()
        else:
            self._inside.makeConnection(self.transport)

    def turn_away(self) -> None:
        self._is_over = True
        self.transport.abortConnection()

    def _stop_timer(self) -> None:
        if self._timer is not None and self._timer.active():
            self._timer.cancel()


# --- connecting -----------------------------------------------------------------------------------


class _Dialling(ClientFactory):
    noisy = False

    def __init__(self, build: Callable[[], Any], failed: Callable[[str, bool], object]) -> None:
        self._build = build
        self._failed = failed

    def buildProtocol(self, addr: Any) -> Any:
        return self._build()

    def clientConnectionFailed(self, connector: Any, reason: Failure) -> None:
        cause = getattr(reason.value, "osError", None)
        text = (cause.strerror or "").lower() if isinstance(cause, OSError) else ""
        is_refused = isinstance(reason.value, ConnectionRefusedError)
        self._failed(text or reason.getErrorMessage().rstrip("."), is_refused)


def connect(
    reactor: Any,
    text: str,
    build: Callable[[], Any],
    failed: Callable[[ConnectError], object],
    timeout_s: float = CONNECT_TIMEOUT_S,
) -> Any:
    """Connect what `build` makes; `failed` is called if there is nobody, or nobody in time.

    Returns Twisted's connector, whose `disconnect` calls it off. Raise `AddressError`.
    """
    address = parse_address(text)

    def not_connected(reason: str, is_refused: bool) -> None:
        failed(ConnectError(str(address), reason, is_refused=is_refused))

    factory = _Dialling(build, not_connected)
    if address.name:
        return reactor.connectUNIX(f"\0{address.name}", factory, timeout=timeout_s)
    return reactor.connectTCP(address.host, address.port, factory, timeout=timeout_s)


class _HangUp(TwistedProtocol):
    """A connection that is closed at once."""

    def connectionMade(self) -> None:
        transport: Any = self.transport
        transport.abortConnection()


def probe(reactor: Any, text: str, answered: Callable[[bool], object]) -> None:
    """Find out whether a process listens at `HOST:PORT`. `answered` is called once, with True when
    the host answers that none does; a host that does not answer at all says nothing.
    """

    def connected() -> _HangUp:
        answered(False)
        return _HangUp()

    connect(
        reactor, text, connected, lambda error: answered(error.is_refused), PROBE_TIMEOUT_S
    )  # fmt: skip


class Caller(Owner, Protocol):
    """An owner who keeps calling."""

    def connection_refused(self, error: RefusedError) -> bool:
        """Be told that the other side will not talk to us; True to try again all the same, though a
        wrong key or version does not mend itself.

        Who is refused after both have proved their key is not asked: what is wrong then may pass
        (a peer that says we are still connected soon notices that we are not).
        """
        ...


class Reconnector:
    """Keeps a connection to one address: connects, and when it is over connects again.

    The delay grows from 0.1 s to 5 s while nobody is there, or nobody who stays. `build` is given
    the owner that the peer must have, which is this object: it passes everything on to its
    `caller`, who hears of connections that opened and of refusals only. `stop` leaves an open
    connection alone.
    """

    def __init__(
        self,
        reactor: Any,
        address: str,
        build: Callable[[Owner], ControlPeer],
        caller: Caller,
        *,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self.address = address
        self._reactor = reactor
        self._build = build
        self._caller = caller
        self._chance = chance
        self._delay_s = RETRY_MIN_S
        self._trouble = ""
        self._opened_at_s = 0.0
        self._connector: Any = None
        self._peer: ControlPeer | None = None
        self._timer: DelayedCall | None = None
        self._is_stopped = True

    def start(self) -> None:
        self._is_stopped = False
        self._connect()

    def stop(self) -> None:
        self._is_stopped = True
        if self._timer is not None and self._timer.active():
            self._timer.cancel()
        if self._connector is not None and self._connector.state == "connecting":
            self._connector.stopConnecting()
        if self._peer is not None and self._peer.is_unproven:
            self._peer.close()

    def peer_opened(self, peer: ControlPeer) -> None:
        self._opened_at_s = self._reactor.seconds()
        self._caller.peer_opened(peer)

    def peer_said(self, peer: ControlPeer, messages: list[Message]) -> None:
        self._caller.peer_said(peer, messages)

    def peer_drained(self, peer: ControlPeer) -> None:
        self._caller.peer_drained(peer)

    def peer_closed(self, peer: ControlPeer, reason: str) -> None:
        if peer.hello is not None:
            if self._reactor.seconds() - self._opened_at_s > RETRY_MAX_S:
                self._delay_s = RETRY_MIN_S
                self._trouble = ""
            self._caller.peer_closed(peer, reason)
        if (
            not self._is_stopped
            and isinstance(peer.failure, RefusedError)
            and peer.hello is None
            and not self._caller.connection_refused(peer.failure)
        ):
            self._is_stopped = True
        self._retry(reason)

    def _connect(self) -> None:
        self._connector = connect(
            self._reactor, self.address, self._connected, lambda error: self._retry(error.reason)
        )

    def _connected(self) -> ControlPeer:
        self._peer = self._build(self)
        return self._peer

    def _retry(self, reason: str) -> None:
        self._connector = self._peer = None
        if self._is_stopped:
            return
        if reason != self._trouble:  # said once, not every five seconds
            self._trouble = reason
            _log.warn("no connection to {at}: {why}; trying on", at=self.address, why=reason)
        # Scattered, so that a hundred workers do not come back to a new master in one moment.
        delay_s = self._delay_s * (0.75 + 0.5 * self._chance())
        self._delay_s = min(2 * self._delay_s, RETRY_MAX_S)
        self._timer = self._reactor.callLater(delay_s, self._connect)
