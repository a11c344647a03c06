"""Listens, connects and reconnects over TCP and abstract UNIX sockets.

An address is `HOST:PORT`, or `unix:@NAME` for an abstract UNIX socket. Such sockets are not files,
each network namespace has its own, and they disappear when their owner is killed. Port 0 means a
free port in 20000-32767, from a random one on: a daemon that is started again finds its port free,
although others were started meanwhile. These ports are below the kernel's ephemeral ports, and
small enough for Java programs that read ports as signed 16-bit numbers.
"""

from __future__ import annotations

import errno
import os
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
from ciel.net.errors import AddressError, ConnectError, ForeignAddressError, ListenError
from ciel.net.places import Places
from ciel.net.ticks import DelayedCall
from ciel.net.unauthenticated import UnauthenticatedConnections
from ciel.wire.errors import RefusedError
from ciel.wire.frames import looks_like_frame
from ciel.wire.limits import HELLO_TIMEOUT_S

PORTS: Final = range(20000, 32768)
"""The ports among which a free one is chosen."""

BACKLOG: Final = 1024
"""How many new connections the kernel queues during a tick. Further clients retry after a
second."""

CONNECT_TIMEOUT_S: Final = 5.0
PROBE_TIMEOUT_S: Final = 2.0
RETRY_MIN_S: Final = 0.1
RETRY_MAX_S: Final = 5.0
RETRY_FACTOR: Final = 1.2
"""The delay grows slowly, so that the first seconds of an absence are hardly prolonged."""
STEADY_S: Final = 1.0
"""A connection that lasts for this time was not turned away."""

_UNIX_NAME_MAX_LENGTH = 100  # the kernel allows 107
_log = Logger(__name__)  # explicit, since Twisted cannot find the name of a compiled module


class Address(NamedTuple):
    """A host and port, or the name of an abstract socket, with an empty host."""

    host: str
    port: int
    name: str

    def __str__(self) -> str:
        return f"unix:@{self.name}" if self.name else netloc(self.host, self.port)


def parse_address(text: str) -> Address:
    """Parse an address; an empty host means all addresses of this host. Raise `AddressError`."""
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
    """A listening socket; `address` contains the actual port."""

    def __init__(self, address: Address, port: Any) -> None:
        self.address = address
        self._port = port

    def allow_reservation(self) -> None:
        """Let another process of this user bind the same port without listening.

        That process keeps the port for the next process that listens with `is_reserved`.
        """
        self._port.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)

    def pass_on(self) -> int:
        """Return a descriptor of the socket that a program has which replaces this one by `exec`.

        Connections wait in the socket until that program listens with it.
        """
        fd = os.dup(self._port.fileno())
        os.set_inheritable(fd, True)
        return fd

    def close(self) -> Deferred[None]:
        """Stop accepting connections; established ones stay open."""
        closed: Deferred[None] = maybeDeferred(self._port.stopListening)
        return closed


def listen(
    reactor: Any, text: str, factory: Factory[Any], *, is_reserved: bool = False
) -> Listener:
    """Serve an address with a factory. Raise `AddressError`, or `ListenError` with the reason.

    `is_reserved`: another process of this user keeps the port; see `Listener.allow_reservation`.
    """
    address = parse_address(text)
    sock, address = _bind_unix(address) if address.name else _bind_tcp(address, is_reserved)
    with sock:
        sock.setblocking(False)
        return Listener(address, reactor.adoptStreamPort(sock.fileno(), sock.family, factory))


class Reserved:
    """An address that a daemon listens at later: nobody else can, and connections are refused."""

    def __init__(self, sock: socket.socket, address: Address) -> None:
        self._sock = sock
        self.address = address

    @classmethod
    def bind(cls, text: str, *, is_reserved: bool = False) -> Reserved:
        """Bind a TCP address. Raise `AddressError`, or `ListenError` with the reason.

        `is_reserved`: another process of this user keeps the port; see
        `Listener.allow_reservation`.
        """
        return cls(*_bind_tcp(parse_address(text), is_reserved, backlog=None))

    @classmethod
    def inherit(cls, fd: int) -> Reserved:
        """Take over a socket that listens already, see `Listener.pass_on`. Raise `ListenError`."""
        try:
            sock = socket.socket(fileno=fd)
            host, port = sock.getsockname()[:2]
        except OSError as error:
            raise ListenError(f"descriptor {fd}", str(error.strerror)) from error
        return cls(sock, Address(host, port, ""))

    def listen(self, reactor: Any, factory: Factory[Any]) -> Listener:
        """Serve the address with a factory. Raise `ListenError`."""
        with self._sock as sock:
            try:
                sock.listen(BACKLOG)
            except OSError as error:
                raise ListenError(str(self.address), _failure_text(error, self.address)) from error
            sock.setblocking(False)
            adopted = reactor.adoptStreamPort(sock.fileno(), sock.family, factory)
        return Listener(self.address, adopted)

    def close(self) -> None:
        """Give the address up."""
        self._sock.close()


def _bind_unix(address: Address) -> tuple[socket.socket, Address]:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    return _bound(sock, f"\0{address.name}", address), address


def _bind_tcp(
    address: Address, is_reserved: bool, backlog: int | None = BACKLOG
) -> tuple[socket.socket, Address]:
    """Bind a socket; it listens unless `backlog` is None."""
    try:
        found = socket.getaddrinfo(address.host or "0.0.0.0", 0, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        reason = f"{address.host!a}: {error.strerror}"
        raise ForeignAddressError(str(address), reason) from None
    family, host = min((family, place[0]) for family, _, _, _, place in found)  # IPv4 comes first
    first = random.randrange(len(PORTS))
    for port in (address.port,) if address.port else (*PORTS[first:], *PORTS[:first]):
        sock = socket.socket(family, socket.SOCK_STREAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections may linger on
        if is_reserved:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            return _bound(sock, (host, port), address, backlog), address._replace(port=port)
        except ListenError as error:
            cause = error.__cause__
            taken = isinstance(cause, OSError) and cause.errno == errno.EADDRINUSE
            if address.port or not taken:
                raise
    reason = f"every port from {PORTS[0]} to {PORTS[-1]} is taken"
    raise ListenError(str(address), reason)


def _bound(
    sock: socket.socket, place: Any, address: Address, backlog: int | None = BACKLOG
) -> socket.socket:
    try:
        sock.bind(place)
        if backlog is not None:
            sock.listen(backlog)  # may fail as well: two sockets can bind, only one can listen
    except OSError as error:
        sock.close()
        kind = ForeignAddressError if error.errno == errno.EADDRNOTAVAIL else ListenError
        raise kind(str(address), _failure_text(error, address)) from error
    return sock


def _failure_text(error: OSError, address: Address) -> str:
    if error.errno == errno.EADDRINUSE:
        choice = "name" if address.name else "port (0 finds a free one)"
        return f"{TAKEN}; stop it, or choose another {choice}"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{address.host} is not an address of this machine"
    if error.errno == errno.EACCES:
        return "this user may not use that port; choose one from 1024 on"
    return error.strerror or str(error)


# --- accepting ------------------------------------------------------------------------------------


class ControlFactory(Factory):
    """Accepts control connections on an abstract socket. `build` makes the accepting peer."""

    noisy = False

    def __init__(
        self,
        build: Callable[[], ControlPeer],
        unauthenticated: UnauthenticatedConnections | None = None,
    ) -> None:
        self._build = build
        self._unauthenticated = unauthenticated or UnauthenticatedConnections()

    def buildProtocol(self, addr: Any) -> Any:
        peer = self._build()
        self._unauthenticated.let_in(peer)
        return peer


class FrontDoorFactory(Factory):
    """Serves control connections and HTTP on one TCP port, distinguished by the first byte."""

    noisy = False

    def __init__(
        self,
        reactor: Any,
        build: Callable[[], ControlPeer],
        site: Factory[Any],
        unauthenticated: UnauthenticatedConnections | None = None,
    ) -> None:
        self.reactor = reactor
        self.build = build
        self.site = site
        self._unauthenticated = unauthenticated or UnauthenticatedConnections()

    def buildProtocol(self, addr: Any) -> FirstByteProtocol:
        protocol = FirstByteProtocol(self, addr)
        self._unauthenticated.let_in(protocol)
        return protocol


class FirstByteProtocol(TwistedProtocol):
    """Waits for the first byte, then passes all data to a control peer or the HTTP site."""

    transport: Any

    def __init__(self, factory: FrontDoorFactory, addr: Any) -> None:
        self._factory = factory
        self._addr = addr
        self._protocol: Any = None
        self._is_over = False
        self._opened_at_s = 0.0
        self._timer: DelayedCall | None = None

    @property
    def is_unproven(self) -> bool:
        """Whether it is a control connection without proof; the HTTP site counts its own."""
        if self._protocol is None:
            return not self._is_over
        return isinstance(self._protocol, ControlPeer) and self._protocol.is_unproven

    def connectionMade(self) -> None:
        reactor = self._factory.reactor
        self._opened_at_s = reactor.seconds()
        self._timer = reactor.callLater(HELLO_TIMEOUT_S, self.turn_away)

    def dataReceived(self, data: bytes) -> None:
        if self._protocol is None and not self._is_over:
            self._choose_protocol(data[0])
        if self._protocol is not None:
            self._protocol.dataReceived(data)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self._is_over = True
        self._stop_timer()
        if self._protocol is not None:
            self._protocol.connectionLost(reason)

    def _choose_protocol(self, first_byte: int) -> None:
        self._stop_timer()
        if looks_like_frame(first_byte):
            self._protocol = self._factory.build()
            self._protocol.hello_timeout_s -= self._factory.reactor.seconds() - self._opened_at_s
        elif bytes((first_byte,)).isalpha():  # ASCII letters only
            self._protocol = self._factory.site.buildProtocol(self._addr)
        if self._protocol is None:
            self.turn_away()
        else:
            self._protocol.makeConnection(self.transport)

    def turn_away(self) -> None:
        self._is_over = True
        self.transport.abortConnection()

    def _stop_timer(self) -> None:
        if self._timer is not None and self._timer.active():
            self._timer.cancel()


# --- connecting -----------------------------------------------------------------------------------


class _ConnectingFactory(ClientFactory):
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
    """Connect to an address with the protocol that `build` makes; call `failed` on failure.

    Returns Twisted's connector, whose `disconnect` cancels the attempt. Raises `AddressError`.
    """
    address = parse_address(text)

    def not_connected(reason: str, is_refused: bool) -> None:
        failed(ConnectError(str(address), reason, is_refused=is_refused))

    factory = _ConnectingFactory(build, not_connected)
    if address.name:
        return reactor.connectUNIX(f"\0{address.name}", factory, timeout=timeout_s)
    return reactor.connectTCP(address.host, address.port, factory, timeout=timeout_s)


class _HangUp(TwistedProtocol):
    """A protocol that closes its connection at once."""

    def connectionMade(self) -> None:
        transport: Any = self.transport
        transport.abortConnection()


def probe(reactor: Any, text: str, answered: Callable[[bool], object]) -> None:
    """Check whether no process listens at `HOST:PORT`.

    `answered` is called once: with True if the host refuses the connection, with False if it
    accepts it or does not respond.
    """

    def connected() -> _HangUp:
        answered(False)
        return _HangUp()

    connect(
        reactor, text, connected, lambda error: answered(error.is_refused), PROBE_TIMEOUT_S
    )  # fmt: skip


class Caller(Owner, Protocol):
    """The owner of a `Reconnector`."""

    def connection_refused(self, error: RefusedError) -> bool:
        """Handle that the peer refused the connection before both had proved a key.

        Return True to retry all the same, though a wrong key or version usually persists.

        This is not called for a refusal after both proofs, whose reason may disappear: for example,
        the master may still consider this worker connected.
        """
        ...


class Reconnector:
    """Keeps a connection to one address, and reconnects when it has ended.

    The delay grows from 0.1 s to `retry_max_s` while connections fail, or end within a second.
    `build` gets the owner for the new peer, which is this object. It passes events of opened
    connections, and refusals, on to its `caller`. `stop` does not close an open connection.
    """

    def __init__(
        self,
        reactor: Any,
        address: str,
        build: Callable[[Owner], ControlPeer],
        caller: Caller,
        *,
        chance: Callable[[], float] = random.random,
        retry_max_s: float = RETRY_MAX_S,
    ) -> None:
        self.places = Places(address)
        """Where to connect next."""
        self._reactor = reactor
        self._build = build
        self._caller = caller
        self._chance = chance
        self._retry_max_s = retry_max_s
        self._delay_s = RETRY_MIN_S
        self._logged_reason = ""
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

    def redirect(self, address: str) -> None:
        """Connect to another address from now on; an open connection is not closed.

        For a while, the alternatives are not tried.
        """
        self.places.redirect(address, self._reactor.seconds())
        self._delay_s = RETRY_MIN_S
        if self._timer is not None and self._timer.active():
            self._timer.reset(RETRY_MIN_S)

    def peer_opened(self, peer: ControlPeer) -> None:
        self._opened_at_s = self._reactor.seconds()
        self._caller.peer_opened(peer)

    def peer_said(self, peer: ControlPeer, messages: list[Message]) -> None:
        self._caller.peer_said(peer, messages)

    def peer_drained(self, peer: ControlPeer) -> None:
        self._caller.peer_drained(peer)

    def peer_closed(self, peer: ControlPeer, reason: str) -> None:
        if peer.hello is not None:
            if self._reactor.seconds() - self._opened_at_s > STEADY_S:
                self._delay_s = RETRY_MIN_S
                self._logged_reason = ""
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
            self._reactor,
            self.places.address,
            self._connected,
            lambda error: self._retry(error.reason),
        )

    def _connected(self) -> ControlPeer:
        self._peer = self._build(self)
        return self._peer

    def _retry(self, reason: str) -> None:
        self._connector = self._peer = None
        if self._is_stopped:
            return
        if reason != self._logged_reason:  # log once, not every five seconds
            self._logged_reason = reason
            _log.warn("no connection to {at}: {why}; retrying", at=self.places.address, why=reason)
        # Random delays, so that a hundred workers do not reconnect to a new master at once.
        self.places.failed(self._reactor.seconds())
        delay_s = self._delay_s * (0.75 + 0.5 * self._chance())
        self._delay_s = min(RETRY_FACTOR * self._delay_s, self._retry_max_s)
        self._timer = self._reactor.callLater(delay_s, self._connect)
