# Twisted's names:
# ruff: noqa: N802

import itertools
import resource
import secrets
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport

from ciel.access.keys import Key, Role
from ciel.core.events import Answer, Ask, Message
from ciel.net.control import ControlPeer
from ciel.net.control import Owner as OwnerProtocol
from ciel.net.errors import AddressError, ListenError
from ciel.net.ticks import Ticks
from ciel.net.transports import (
    PORTS,
    RETRY_MAX_S,
    Address,
    ControlFactory,
    FrontDoorFactory,
    Listener,
    Reconnector,
    listen,
    parse_address,
    probe,
)
from ciel.net.unauthenticated import UnauthenticatedConnections
from ciel.wire.errors import RefusedError
from ciel.wire.session import Session

KEY = Key(bytes(range(32)))
OTHER_KEY = Key(bytes(32))


class Owner:
    """Answers every query, and notifies the waiting test of each event."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.told: list[Any] = []
        self.peers: list[ControlPeer] = []
        self.tries_on = False

    def tell(self, what: Any) -> None:
        with self.changed:
            self.told.append(what)
            self.changed.notify_all()

    def await_told(self, count: int) -> list[Any]:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.told) >= count, 10), self.told
            return self.told

    def peer_opened(self, peer: ControlPeer) -> None:
        self.peers.append(peer)
        self.tell("opened")

    def peer_said(self, peer: ControlPeer, messages: list[Message]) -> None:
        for message in messages:
            if isinstance(message, Ask):
                peer.send(Answer(message.number, message.argument, ""))
        self.tell(messages)

    def peer_drained(self, peer: ControlPeer) -> None:
        self.tell("drained")

    def peer_closed(self, peer: ControlPeer, reason: str) -> None:
        self.tell(reason)

    def connection_refused(self, error: RefusedError) -> bool:
        self.tell(error)
        return self.tries_on


class HttpStandIn(Protocol):
    transport: Any

    def dataReceived(self, data: bytes) -> None:
        self.transport.write(b"HTTP got " + data)
        self.transport.loseConnection()


class House:
    """A master's listeners and the peers that connect to them, in the reactor's thread."""

    def __init__(self, in_reactor: Any) -> None:
        self.run = in_reactor
        self.reactor = in_reactor.reactor
        self.ticks = Ticks(self.reactor)
        self.owner = Owner()
        self.callers: list[Reconnector] = []
        self.listeners: list[Listener] = []

    def accept(self) -> ControlPeer:
        session = Session.acceptor(KEY.derive, software="1.0", cluster_id="c1")
        return ControlPeer(self.reactor, self.ticks, session, self.owner)

    def open_front_door(self, address: str = "127.0.0.1:0", places: int = 128) -> Address:
        site = Factory.forProtocol(HttpStandIn)
        site.noisy = False
        return self.listen(
            address,
            FrontDoorFactory(self.reactor, self.accept, site, UnauthenticatedConnections(places)),
        )

    def listen(self, address: str, factory: Any) -> Address:
        listener: Listener = self.run(listen, self.reactor, address, factory)
        self.listeners.append(listener)
        return listener.address

    def call(self, address: str, key: Key = KEY, *, tries_on: bool = False) -> Owner:
        caller = Owner()
        caller.tries_on = tries_on

        def build(owner: OwnerProtocol) -> ControlPeer:
            session = Session.initiator(key, Role.SUBMIT, software="1.0")
            return ControlPeer(self.reactor, self.ticks, session, owner)

        reconnector = Reconnector(self.reactor, address, build, caller)
        self.callers.append(reconnector)
        self.run(reconnector.start)
        return caller

    def close_doors(self) -> None:
        while self.listeners:
            self.run(self.listeners.pop().close)

    def leave(self) -> None:
        self.close_doors()
        for caller in self.callers:
            self.run(caller.stop)
            known: Any = caller._caller
            for peer in known.peers:
                self.run(peer.close)
            if known.peers:
                known.await_told(2)
        for peer in self.owner.peers:
            self.run(peer.close)
        with self.owner.changed:
            self.owner.changed.wait_for(lambda: all(p.is_over for p in self.owner.peers), 10)


@pytest.fixture
def house(in_reactor: Any) -> Iterator[House]:
    house = House(in_reactor)
    yield house
    house.leave()


def unix_name() -> str:
    return f"unix:@ciel-test-{secrets.token_hex(8)}"


def talk(address: Address, said: bytes) -> bytes:
    """Send bytes to a listener, and return all that it answers until it closes."""
    with socket.create_connection((address.host, address.port), 10) as sock:
        sock.sendall(said)
        answer = b""
        try:
            while piece := sock.recv(65536):
                answer += piece
        except ConnectionResetError:
            pass
        return answer


@pytest.mark.parametrize(
    "text",
    ["127.0.0.1:8000", "localhost:0", "[::1]:20000", ":8000", "unix:@ciel-4f2a-77"],
)
def test_addresses_are_parsed_and_printed(text: str) -> None:
    assert str(parse_address(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        *("", "host", "host:", "host:x", "host:70000", "host:²", "::1:80", "http://h:80"),
        *("unix:/tmp/s", "unix:@", "unix:@" + "x" * 101, "unix:@a\nb"),
    ],
)
def test_an_invalid_address_is_refused(text: str) -> None:
    with pytest.raises(AddressError, match="is not an address"):
        parse_address(text)


@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_a_query_is_answered_over_a_real_connection(house: House, kind: str) -> None:
    if kind == "tcp":
        address = house.open_front_door()
    else:
        address = house.listen(unix_name(), ControlFactory(house.accept))
    caller = house.call(str(address))
    caller.await_told(1)
    house.run(caller.peers[0].send, Ask(7, "status", "x" * 500_000))
    assert caller.await_told(2) == ["opened", [Answer(7, "x" * 500_000, "")]]


def test_port_zero_is_a_free_one(house: House) -> None:
    first, second = house.open_front_door(), house.open_front_door()
    assert PORTS[0] <= first.port <= PORTS[-1]
    assert PORTS[0] <= second.port <= PORTS[-1]
    assert first.port != second.port


def test_a_taken_port_is_reported_in_one_sentence(house: House) -> None:
    address = str(house.open_front_door())
    with pytest.raises(ListenError, match=f"^cannot listen on {address}: another program already"):
        house.open_front_door(address)


def test_a_taken_name_is_reported_in_one_sentence(house: House) -> None:
    name = unix_name()
    house.listen(name, ControlFactory(house.accept))
    with pytest.raises(ListenError, match=r"stop it, or choose another name$"):
        house.listen(name, ControlFactory(house.accept))


@pytest.mark.parametrize(
    "address, reason",
    [
        ("192.0.2.1:0", "192.0.2.1 is not an address of this machine"),
        ("no.such.host.invalid:0", "'no.such.host.invalid': "),
    ],
)
def test_an_address_of_another_machine_is_reported(house: House, address: str, reason: str) -> None:
    with pytest.raises(ListenError, match=f"cannot listen on {address}: {reason}"):
        house.open_front_door(address)


def test_a_connection_that_starts_with_a_letter_is_http(house: House) -> None:
    assert talk(house.open_front_door(), b"GET / HTTP/1.1\r\n") == b"HTTP got GET / HTTP/1.1\r\n"


def test_a_connection_that_starts_with_a_frame_is_the_control_plane(house: House) -> None:
    answer = talk(house.open_front_door(), b"\0\0\0\2\0\0\0\2[]")
    assert b'"refused","a frame holds 1 to' in answer


@pytest.mark.parametrize("first", [b"\x16\x03\x01", b"\x02", b"\xc3\xa9", b" GET", b"\n"])
def test_any_other_connection_is_closed_without_an_answer(house: House, first: bytes) -> None:
    assert talk(house.open_front_door(), first) == b""


def test_a_new_connection_replaces_the_oldest_unauthenticated_one(house: House) -> None:
    address = house.open_front_door(places=2)
    place = (address.host, address.port)
    eldest, younger = (socket.create_connection(place, 10) for _ in range(2))
    with eldest, younger:
        assert talk(address, b"GET") == b"HTTP got GET"
        with pytest.raises(ConnectionResetError):
            eldest.recv(1)
        younger.sendall(b"GET")
        assert younger.recv(100) == b"HTTP got GET"


def test_a_flood_of_unauthenticated_connections_does_not_block_peers(house: House) -> None:
    address = house.open_front_door(places=2)
    silent = [socket.create_connection((address.host, address.port), 10) for _ in range(20)]
    caller = house.call(str(address))
    assert caller.await_told(1) == ["opened"]
    for connection in silent:
        connection.close()


def test_the_limit_of_open_files_limits_unauthenticated_connections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Someone:
        is_unproven = True
        has_gone = False

        def turn_away(self) -> None:
            self.has_gone = True

    monkeypatch.setattr(resource, "getrlimit", lambda _: (64, 64))
    unauthenticated, people = UnauthenticatedConnections(), [Someone() for _ in range(10)]
    for someone in people:
        unauthenticated.let_in(someone)
    assert [someone.has_gone for someone in people] == [True] * 2 + [False] * 8


def test_authenticated_peers_do_not_count_as_unauthenticated(house: House) -> None:
    address = house.open_front_door(places=1)
    callers = []
    for _ in range(3):
        callers.append(house.call(str(address)))
        callers[-1].await_told(1)
    assert [caller.told for caller in callers] == [["opened"]] * 3


def test_a_silent_connection_is_timed_out() -> None:
    clock: Any = Clock()
    aborted: list[bool] = []

    class Wire:
        def abortConnection(self) -> None:
            aborted.append(True)

    door = FrontDoorFactory(clock, lambda: None, Factory()).buildProtocol(None)  # type: ignore[arg-type, return-value]  # never called
    assert door is not None
    wire: Any = Wire()
    door.makeConnection(wire)
    clock.advance(4.9)
    assert not aborted
    clock.advance(0.2)
    assert aborted


def test_a_late_first_byte_leaves_less_time_for_the_proof() -> None:
    clock: Any = Clock()
    session = Session.acceptor(KEY.derive, software="1.0", cluster_id="c1")
    peer = ControlPeer(clock, Ticks(clock), session, Owner())
    door = FrontDoorFactory(clock, lambda: peer, Factory()).buildProtocol(None)
    assert door is not None
    wire = StringTransport()
    wire.loseWriteConnection = wire.loseConnection  # type: ignore[attr-defined]  # it has none
    door.makeConnection(wire)
    clock.advance(4.0)
    door.dataReceived(b"\0")
    clock.advance(0.9)
    assert not wire.disconnecting
    clock.advance(0.2)
    assert wire.disconnecting


def test_a_client_reconnects_when_the_master_is_back(house: House) -> None:
    name = unix_name()
    caller = house.call(name)
    house.listen(name, ControlFactory(house.accept))
    caller.await_told(1)
    house.owner.await_told(1)
    house.run(house.owner.peers[0].close)
    assert caller.await_told(3) == ["opened", "it closed the connection", "opened"]


def test_a_wrong_key_is_final_unless_the_caller_retries(house: House) -> None:
    address = str(house.open_front_door())
    caller = house.call(address, OTHER_KEY)
    assert "the submit key does not match cluster c1" in str(caller.await_told(1)[0])
    caller = house.call(address, OTHER_KEY, tries_on=True)
    assert len({str(error) for error in caller.await_told(2)}) == 1


def test_a_client_refused_after_the_proof_retries_by_itself(house: House) -> None:
    name = unix_name()
    house.listen(name, ControlFactory(house.accept))
    caller = house.call(name)
    caller.await_told(1)
    house.owner.await_told(1)
    house.run(house.owner.peers[0].refuse, "not now")
    assert caller.await_told(3) == ["opened", "refused: not now", "opened"]


class Lonely(Clock):
    """A reactor where no process listens."""

    def __init__(self) -> None:
        super().__init__()
        self.tries: list[float] = []

    def connectUNIX(self, path: str, factory: Any, timeout: float) -> Any:
        self.tries.append(self.seconds())
        failure: Any = type("Failure", (), {"value": OSError(), "getErrorMessage": lambda _: "no"})
        self.callLater(0, factory.clientConnectionFailed, None, failure())


def test_the_delay_between_connection_attempts_grows_to_its_limit() -> None:
    reactor: Any = Lonely()
    owner = Owner()
    reconnector = Reconnector(reactor, "unix:@x", lambda _: None, owner, chance=lambda: 0.5)  # type: ignore[arg-type, return-value]  # never connected
    reconnector.start()
    for _ in range(1000):
        reactor.advance(0.05)
    gaps = [b - a for a, b in itertools.pairwise(reactor.tries)]
    assert gaps[:5] == pytest.approx([0.1, 0.12, 0.14, 0.17, 0.21], abs=0.06)
    assert max(gaps) == pytest.approx(RETRY_MAX_S, abs=0.11)
    reconnector.stop()
    reactor.advance(0.1)
    assert reactor.getDelayedCalls() == []
    assert owner.told == []


@pytest.mark.parametrize(
    "stays_s, gaps_s",
    [(0.0, [0.1, 0.12, 0.14]), (2.0, [0.1, 0.1, 0.1]), (60.0, [0.1, 0.1, 0.1])],
)
def test_the_delay_also_grows_if_connections_do_not_stay_open(
    stays_s: float, gaps_s: list[float]
) -> None:
    class Fickle(Clock):
        """A reactor where each connection opens, and is closed after a while."""

        def connectUNIX(self, path: str, factory: Any, timeout: float) -> Any:
            peer = factory.buildProtocol(None)
            reconnector.peer_opened(peer)
            opened_at_s.append(self.seconds())
            self.callLater(stays_s, reconnector.peer_closed, peer, "it left")

    class Peer:
        hello, failure, is_unproven = "who it is", None, False

    opened_at_s: list[float] = []
    reactor: Any = Fickle()
    reconnector = Reconnector(reactor, "unix:@x", lambda _: Peer(), Owner(), chance=lambda: 0.5)  # type: ignore[arg-type, return-value]  # a minimal peer
    reconnector.start()
    while len(opened_at_s) < 4:
        reactor.advance(0.01)
    reconnector.stop()
    gaps = [b - a - stays_s for a, b in itertools.pairwise(opened_at_s)]
    assert gaps == pytest.approx(gaps_s, abs=0.03)


def test_probing_an_address_shows_whether_a_process_listens(in_reactor: Any) -> None:
    reactor = in_reactor.reactor
    answers: list[bool] = []
    answered = threading.Semaphore(0)

    def note(is_refused: bool) -> None:
        answers.append(is_refused)
        answered.release()

    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        in_reactor(probe, reactor, address, note)
        assert answered.acquire(timeout=10)
    in_reactor(probe, reactor, address, note)
    assert answered.acquire(timeout=10)
    assert answers == [False, True]
