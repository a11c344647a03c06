"""Tests control connections over rings and over messages between cores: both deliver the same
messages as sockets, and end in the same ways.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ciel.access.keys import Key, Role
from ciel.core.events import Answer, Ask, Message
from ciel.net.channels import Channels, ChannelTransport
from ciel.net.control import CONGESTED_BYTES, ControlPeer
from ciel.net.ticks import Ticks
from ciel.net.transports import ControlFactory, Listener, connect, listen
from ciel.scc.channels import CAPACITY_BYTES, RingKind
from ciel.scc.mpb_channels import MpbKind
from ciel.scc.ring import Ring, RingError, make_segment
from ciel.testing.homes import descriptors_of, wait_for
from ciel.wire.frames import encode_frames
from ciel.wire.messages import encode
from ciel.wire.session import Session
from ciel_tests.clusters.peers import frame, shake_hands

KEY = Key(bytes(range(32)))
QUESTION = encode_frames([encode(Ask(1, "status", "x"))])


class Owner:
    """Answers queries, and records the messages that it received."""

    def __init__(self) -> None:
        self.peers: list[ControlPeer] = []
        self.said: list[Message] = []
        self.closed: list[str] = []
        self.drained = threading.Event()

    def peer_opened(self, peer: ControlPeer) -> None:
        self.peers.append(peer)

    def peer_said(self, peer: ControlPeer, messages: list[Message]) -> None:
        self.said += messages
        for message in messages:
            if type(message) is Ask:
                peer.send(Answer(message.number, message.argument, ""))

    def peer_drained(self, peer: ControlPeer) -> None:
        self.drained.set()

    def peer_closed(self, peer: ControlPeer, reason: str) -> None:
        self.closed.append(reason)


class House:
    """Both sides of control connections, in one reactor."""

    def __init__(self, in_reactor: Any, kind: RingKind | MpbKind) -> None:
        self.run = in_reactor
        self.reactor = in_reactor.reactor
        self.iterate = self.reactor.doIteration
        self.ticks = Ticks(self.reactor)
        self.kind: Any = kind
        self.channels = Channels(self.reactor, self.kind)
        self.accepting, self.calling = Owner(), Owner()
        self.name = f"unix:@ciel-test-{secrets.token_hex(8)}"
        factory = ControlFactory(self.accept)
        self.listener: Listener = self.run(listen, self.reactor, self.name, factory)

    def accept(self) -> ControlPeer:
        session = Session.acceptor(KEY.derive, software="1.0", cluster_id="c1")
        return ControlPeer(
            self.reactor, self.ticks, session, self.accepting, channels=self.channels
        )

    def session(self, *channels: str) -> Session:
        about = {"channels": list(channels)}
        return Session.initiator(KEY, Role.SUBMIT, software="1.0", about=about)

    def call(self, *channels: str, mine: Channels | None = None) -> ControlPeer:
        """Connect a peer whose hello names these channels; return it once it is open."""

        def build() -> ControlPeer:
            return ControlPeer(
                self.reactor, self.ticks, self.session(*channels), self.calling, channels=mine
            )

        self.run(connect, self.reactor, self.name, build, lambda error: None)
        wait_for(lambda: self.calling.peers and self.accepting.peers, "open peers")
        return self.calling.peers[0]

    def call_by_channel(self) -> ControlPeer:
        peer = self.call(self.kind.name, mine=self.channels)
        wait_for(lambda: len(self.kind.lookout) == 2 and self.both_switched(), "a switch")
        return peer

    def both_switched(self) -> bool:
        peers = self.calling.peers + self.accepting.peers
        return all(type(p.transport) is ChannelTransport and p._negotiation is None for p in peers)

    def raw(self, *channels: str) -> socket.socket:
        """Connect by hand, up to the proof."""
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(10)
        connection.connect("\0" + self.name.removeprefix("unix:@"))
        shake_hands(connection, self.session(*channels))
        return connection

    def leave(self) -> None:
        self.run(self.listener.close)
        for peer in (*self.calling.peers, *self.accepting.peers):
            self.run(peer.close)
        wait_for(lambda: all(p.is_over for p in self.accepting.peers), "the end of all")
        wait_for(lambda: all(p.is_over for p in self.calling.peers), "the end of all")
        assert not len(self.kind.lookout)
        self.run(self.channels.close)
        assert self.reactor.doIteration == self.iterate


KINDS: dict[str, Callable[[], Any]] = {
    "sleeping": lambda: RingKind(0),
    "looking": lambda: RingKind(100),
    "messages": MpbKind,
}


@pytest.fixture(params=KINDS)
def house(in_reactor: Any, request: pytest.FixtureRequest) -> Iterator[House]:
    house = House(in_reactor, KINDS[request.param]())
    yield house
    house.leave()
    wait_for(lambda: not segments(), "all segments to be let go")


only_rings = pytest.mark.parametrize("house", ["sleeping", "looking"], indirect=True)


def segments() -> list[str]:
    """Name the segments that this process has mapped, or holds a descriptor of."""
    found = Path("/proc/self/maps").read_text().splitlines()
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # just closed
            found.append(str(entry.readlink()))
    return [line for line in found if re.search("memfd:ciel-(ring|mpb)", line)]


def ask(house: House, peer: ControlPeer, number: int, argument: Any) -> None:
    house.run(peer.send, Ask(number, "status", argument))


def offered(connection: socket.socket) -> int:
    """Take the offer of a channel; return its descriptor."""
    data, descriptors, _, _ = socket.recv_fds(connection, 65536, 4)
    while b'"offer","' not in data:
        data += connection.recv(65536)
    assert len(descriptors) == 1
    return descriptors[0]


# --- over and on ----------------------------------------------------------------------------------


@pytest.mark.requirement("CIB-32")
def test_messages_go_on_by_the_channel_in_their_order(house: House) -> None:
    peer = house.call(house.kind.name, mine=house.channels)
    for number in range(300):  # the first of them before the switch is over
        ask(house, peer, number, "x" * (number % 50))
    wait_for(lambda: len(house.calling.said) == 300, "300 answers")
    assert [message.number for message in house.calling.said] == list(range(300))  # type: ignore[union-attr]  # all are answers
    assert house.both_switched()


def test_what_is_larger_than_the_channel_goes_through(house: House) -> None:
    peer = house.call_by_channel()
    for number in range(3):
        ask(house, peer, number, "x" * (5 * CAPACITY_BYTES))
    wait_for(lambda: len(house.calling.said) == 3, "the answers")
    assert house.calling.said == [Answer(n, "x" * (5 * CAPACITY_BYTES), "") for n in range(3)]


def test_who_knows_no_channel_stays_on_the_socket(house: House) -> None:
    peer = house.call()
    ask(house, peer, 1, "x")
    wait_for(lambda: house.calling.said, "the answer")
    assert not len(house.kind.lookout)
    assert type(peer.transport) is not ChannelTransport


def test_who_cannot_open_the_channel_stays_on_the_socket(house: House) -> None:
    class Poor:
        name = house.kind.name
        lookout = RingKind(0).lookout

        def make(self) -> int:
            raise NotImplementedError

        def open(self, descriptor: int, side: int, bell_fd: int) -> Ring:
            raise RingError(-2)

    poor = Channels(house.reactor, Poor())
    peer = house.call(house.kind.name, mine=poor)
    ask(house, peer, 1, "x")
    wait_for(lambda: house.calling.said, "the answer")
    wait_for(lambda: not len(house.kind.lookout), "the channel to be given up")
    assert type(house.accepting.peers[0].transport) is not ChannelTransport


def test_a_peer_that_pauses_is_not_read_from_and_congests_the_other(house: House) -> None:
    peer = house.call_by_channel()
    other = house.accepting.peers[0]
    house.run(other.pause)
    count = CONGESTED_BYTES // CAPACITY_BYTES + 2  # one of them is in the ring
    for number in range(count):
        ask(house, peer, number, "x" * CAPACITY_BYTES)
    assert house.run(lambda: peer.is_congested)
    assert not house.accepting.said
    house.run(other.resume)
    wait_for(lambda: len(house.calling.said) == count, "all answers")
    assert house.calling.drained.is_set()


# --- ends -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("who", ["calling", "accepting"])
def test_last_words_arrive_before_the_end(house: House, who: str) -> None:
    house.call_by_channel()
    leaving: Owner = getattr(house, who)
    staying = house.accepting if who == "calling" else house.calling
    peer = leaving.peers[0]

    def leave() -> None:
        for number in range(3):
            peer.send(
                Ask(number, "status", "y" * CAPACITY_BYTES)
                if who == "calling"
                else Answer(number, "y" * CAPACITY_BYTES, "")
            )
        peer.close()

    house.run(leave)
    wait_for(lambda: leaving.closed and staying.closed, "the end on both sides")
    assert len(staying.said) == 3
    assert staying.closed == ["it closed the connection"]


def test_a_refusal_after_the_switch_is_heard(house: House) -> None:
    house.call_by_channel()
    house.run(house.accepting.peers[0].refuse, "another worker joined in its name")
    wait_for(lambda: house.calling.closed, "the end")
    assert house.calling.closed == ["refused: another worker joined in its name"]


def test_what_the_dead_have_said_is_heard_and_then_their_end(house: House) -> None:
    connection = house.raw(house.kind.name)
    descriptor = offered(connection)
    channel = house.kind.open(descriptor, 1, connection.fileno())
    os.close(descriptor)
    connection.sendall(frame([["channel", "take", 0]]))
    wait_for(lambda: channel.write(QUESTION * 5) > 0, "room")
    channel.close()
    connection.close()
    wait_for(lambda: house.accepting.closed, "its end")
    assert len(house.accepting.said) == 5
    assert len(house.accepting.closed) == 1


def test_a_paused_connection_still_reads_what_its_peer_wrote_before_its_end(house: House) -> None:
    peer = house.call_by_channel()
    other = house.accepting.peers[0]

    def ask_and_end() -> None:
        other.pause()
        peer.send(Ask(1, "status", "x"))
        peer.close()

    house.run(ask_and_end)
    wait_for(lambda: house.accepting.closed, "its end")
    assert [message.number for message in house.accepting.said] == [1]  # type: ignore[union-attr]  # it is a query


def test_a_peer_that_dies_before_it_takes_the_offer_leaves_nothing(house: House) -> None:
    with house.raw(house.kind.name) as connection:
        os.close(offered(connection))
    wait_for(lambda: house.accepting.closed, "its end")
    assert not len(house.kind.lookout)


# --- bad peers ------------------------------------------------------------------------------------


@only_rings
def test_a_peer_that_spoils_the_memory_is_dropped(house: House) -> None:
    with house.raw(house.kind.name) as connection:
        descriptor = offered(connection)
        connection.sendall(frame([["channel", "take", 0]]))
        while b'"go"' not in connection.recv(65536):
            pass
        os.pwrite(descriptor, struct.pack("=Q", 1 << 60), 384)  # the tail of side 1
        os.close(descriptor)
        with contextlib.suppress(ConnectionError):  # it did not, and has hung up
            connection.sendall(b"\0")  # ring, in case it sleeps
        wait_for(lambda: house.accepting.closed, "its end")


@pytest.mark.parametrize(
    "record",
    [["channel", "go"], ["channel", "offer", "ring"], ["channel"], ["channel", "take", "it"]],
    ids=json.dumps,
)
def test_words_that_make_no_sense_end_the_connection(house: House, record: list[str]) -> None:
    with house.raw(house.kind.name) as connection:
        os.close(offered(connection))
        connection.sendall(frame([[*record, 0]]))
        data = b""
        while piece := connection.recv(65536):
            data += piece
    assert b"malformed channel" in data
    wait_for(lambda: house.accepting.closed, "its end")


def test_to_take_what_nobody_has_offered_ends_the_connection(house: House) -> None:
    with house.raw() as connection:
        connection.sendall(frame([["channel", "take", 0]]))
        data = b""
        while piece := connection.recv(65536):
            data += piece
    assert b"refused" in data


def test_descriptors_that_nobody_asked_for_are_closed(house: House) -> None:
    with house.raw(house.kind.name) as connection:
        os.close(offered(connection))
        before = descriptors_of(os.getpid())
        segment = make_segment()
        socket.send_fds(connection, [QUESTION], [segment] * 50)
        os.close(segment)
        wait_for(lambda: house.accepting.said, "the question")
        assert descriptors_of(os.getpid()) == before


@only_rings
def test_bells_in_plenty_change_nothing(house: House) -> None:
    peer = house.call_by_channel()
    other = house.accepting.peers[0]
    house.run(lambda: peer.transport._socket.write(bytes(100_000)))
    ask(house, peer, 1, "x")
    wait_for(lambda: house.calling.said, "the answer")
    assert house.run(lambda: other.is_open)
    assert house.run(lambda: other.transport._channel.readable_bytes) == 0
