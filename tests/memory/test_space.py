"""Address spaces over real page servers that die, join and leave (KVB-1, KVB-3, NET-3 to NET-5)."""

from __future__ import annotations

import os
import random
import socket
import struct
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from ciel.memory import page_server, volumes
from ciel.memory.page_server import EXTENT_BYTES, PAGE_BYTES, TOKEN_BYTES, PageServer, Synced
from ciel.memory.space import Attributes, Space, SpaceError
from ciel.memory.volumes import LEASE_S, Connect, Expel, Hold, Moved, Place, Retain, Volumes
from ciel.testing.homes import wait_for


class Node:
    """A page server, and its listening socket."""

    def __init__(self, name: str, extents: int) -> None:
        self.name = name
        self.extents = extents
        self.pages = PageServer(extents * EXTENT_BYTES)
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.pages.listen(self.listening)
        self.is_frozen = False

    def connect(self, session: int) -> socket.socket:
        token = os.urandom(TOKEN_BYTES)
        self.pages.allow(token, 5.0)
        connected = socket.create_connection(self.listening.getsockname(), 5.0)
        connected.sendall(token + struct.pack("<Q", session))
        connected.settimeout(None)
        return connected


class Nodes:
    """An owner with real page servers in this process; one thread plays the control connections."""

    def __init__(self) -> None:
        self.volumes = Volumes()
        self.nodes: dict[str, Node] = {}
        self._lock = threading.RLock()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        self._spaces: list[Space] = []

    def join(self, name: str, extents: int = 8) -> Node:
        with self._lock:
            node = self.nodes[name] = Node(name, extents)
            self.volumes.join(name, name, extents, time.monotonic())
            self._carry_out()
        return node

    def kill(self, name: str) -> None:
        """End a server; the owner notices the end of its connection."""
        with self._lock:
            node = self.nodes.pop(name)
            node.pages.close()
            node.listening.close()
            self.volumes.gone(name, time.monotonic())
            self._carry_out()

    def drain(self, name: str) -> None:
        with self._lock:
            self.volumes.drain(name, time.monotonic())
            self._carry_out()

    def create(self, name: str, extents: int, replicas: int, timeout_s: float = 5.0) -> Space:
        with self._lock:
            self.volumes.create(name, extents, replicas, time.monotonic())
            self._carry_out()
        return self.open(name, timeout_s)

    def open(self, name: str, timeout_s: float = 5.0) -> Space:
        volume = self.volumes.volumes[name]
        owner = _Owner(self, name)
        self._spaces.append(
            Space(owner, volume.number, len(volume.extents), volume.replicas, timeout_s)
        )
        return self._spaces[-1]

    def copies(self, name: str) -> int:
        """Return the smallest number of copies of an extent that is available."""
        with self._lock:
            places = self.volumes.places(name)
            extents = self.volumes.volumes[name].extents
        if not all(place.address for place in places):
            return 0
        return min(len(extent.in_sync) for extent in extents)

    def place(self, name: str, extent: int) -> tuple[Place, int]:
        with self._lock:
            place = self.volumes.places(name)[extent]
            number = self.volumes.servers[place.address].number if place.address else 0
        return place, number

    def named(self, number: int) -> Node | None:
        with self._lock:
            found = [s.id for s in self.volumes.servers.values() if s.number == number]
            return self.nodes.get(found[0]) if found else None

    # --- the thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._is_over.wait(0.02):
            with self._lock:
                now_s = time.monotonic()
                for node in list(self.nodes.values()):
                    if not node.is_frozen:
                        self.volumes.renew(node.name, now_s)
                        node.pages.lease(now_s + LEASE_S)
                        self._events(node, now_s)
                self.volumes.tick(now_s)
                self._carry_out()

    def _events(self, node: Node, now_s: float) -> None:
        for event in node.pages.events():
            peer = next((s.id for s in self.volumes.servers.values() if s.number == event.peer), "")
            if isinstance(event, Synced):
                key = (event.volume, event.extent)
                self.volumes.synced(node.name, key, event.epoch, peer, now_s)
            else:
                self.volumes.peer_lost(node.name, peer, now_s)

    def _carry_out(self) -> None:
        now_s = time.monotonic()
        while orders := self.volumes.take_orders():
            for order in orders:
                node = None if isinstance(order, Moved) else self.nodes.get(order.server)
                if node is None:
                    continue
                match order:
                    case Connect(peer=peer):
                        self._connect(node, peer, now_s)
                    case Hold(number=number, holdings=holdings):
                        node.pages.hold([self._holding(holding) for holding in holdings])
                        self.volumes.told(node.name, number, now_s)
                    case Expel() | Retain():
                        pass

    def _connect(self, node: Node, peer: str, now_s: float) -> None:
        other = self.nodes.get(peer)
        if other is None:
            self.volumes.peer_lost(node.name, peer, now_s)
            return
        token = os.urandom(TOKEN_BYTES)
        other.pages.allow(token, 5.0)
        with socket.create_connection(other.listening.getsockname(), 5.0) as connected:
            node.pages.connect(self.volumes.servers[peer].number, connected, token)

    def _holding(self, holding: volumes.Holding) -> page_server.Holding:
        numbers = {s.id: s.number for s in self.volumes.servers.values()}
        return page_server.Holding(
            holding.volume, holding.extent, holding.epoch, page_server.Role[holding.role.name],
            [numbers[each] for each in holding.backups],
            [numbers[each] for each in holding.joining],
        )  # fmt: skip

    def close(self) -> None:
        for space in self._spaces:
            space.close()
        self._is_over.set()
        self._thread.join()
        for node in self.nodes.values():
            node.pages.close()
            node.listening.close()


class _Owner:
    def __init__(self, nodes: Nodes, volume: str) -> None:
        self._nodes = nodes
        self._volume = volume

    def place(self, extent: int) -> tuple[Place, int]:
        return self._nodes.place(self._volume, extent)

    def connect(self, server: int, session: int) -> socket.socket:
        node = self._nodes.named(server)
        if node is None:
            raise ConnectionRefusedError("the memory server has gone")
        return node.connect(session)


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    nodes = Nodes()
    try:
        yield nodes
    finally:
        nodes.close()


@pytest.fixture
def space(nodes: Nodes) -> Space:
    """The space of a volume "v" of three extents, on two servers."""
    nodes.join("a")
    nodes.join("b")
    return nodes.create("v", 3, 2)


def test_a_space_has_attributes(space: Space) -> None:
    assert space.attributes() == Attributes(3 * EXTENT_BYTES, PAGE_BYTES, 2)


@pytest.mark.parametrize(
    "address, length",
    [
        (0, 0), (0, 1), (5, 10), (PAGE_BYTES - 1, 2), (4090, 3 * PAGE_BYTES),
        (PAGE_BYTES, PAGE_BYTES),
        (EXTENT_BYTES - 7, 14), (EXTENT_BYTES - 7, EXTENT_BYTES + 14), (0, 3 * EXTENT_BYTES),
        (3 * EXTENT_BYTES - 1, 1), (3 * EXTENT_BYTES, 0),
    ],
)  # fmt: skip
def test_bytes_at_any_address_are_written_and_read(space: Space, address: int, length: int) -> None:
    whole = bytearray(os.urandom(3 * EXTENT_BYTES))
    space.write(0, whole)
    content = os.urandom(length)
    space.write(address, content)
    whole[address : address + length] = content
    assert space.read(0, len(whole)) == whole
    assert space.read(address, length) == content
    space.trim(address, length)
    whole[address : address + length] = bytes(length)
    assert space.read(0, len(whole)) == whole


@pytest.mark.parametrize(
    "address, length", [(-1, 1), (0, -1), (3 * EXTENT_BYTES, 1), (0, 3 * EXTENT_BYTES + 1)]
)
def test_what_lies_outside_is_refused(space: Space, address: int, length: int) -> None:
    with pytest.raises(ValueError, match="not within the address space"):
        space.read(address, length)
    with pytest.raises(ValueError, match="not within the address space"):
        space.trim(address, length)


def test_two_spaces_share_a_volume(nodes: Nodes, space: Space) -> None:
    other = nodes.open("v")
    space.write(100, b"hello")
    assert other.read(100, 5) == b"hello"
    other.write(100, b"HELLO")
    assert space.read(100, 5) == b"HELLO"


def test_a_closed_space_says_so(space: Space) -> None:
    space.close()
    with pytest.raises(SpaceError, match="closed"):
        space.read(0, 1)


def test_nothing_is_lost_with_a_server(nodes: Nodes, space: Space) -> None:
    content = os.urandom(3 * EXTENT_BYTES)
    space.write(0, content)
    nodes.kill("a")
    assert space.read(0, len(content)) == content
    nodes.join("c")
    wait_for(lambda: nodes.copies("v") == 2, "the second copies")
    nodes.kill("b")
    assert space.read(0, len(content)) == content


def test_a_server_leaves_and_nobody_notices(nodes: Nodes, space: Space) -> None:
    content = os.urandom(3 * EXTENT_BYTES)
    space.write(0, content)
    nodes.join("c")
    nodes.drain("a")
    wait_for(lambda: "a" not in nodes.volumes.servers or not nodes.volumes.servers["a"].held, "it")
    nodes.kill("a")
    assert space.read(0, len(content)) == content
    wait_for(lambda: nodes.copies("v") == 2, "both copies")


def test_without_a_copy_a_call_fails_in_time_and_names_the_server(nodes: Nodes) -> None:
    nodes.join("only")
    space = nodes.create("v", 1, 1, timeout_s=0.5)
    space.write(0, b"here")
    nodes.kill("only")
    begun_s = time.monotonic()
    with pytest.raises(SpaceError, match="memory server only is gone, which has its pages"):
        space.read(0, 4)
    with pytest.raises(SpaceError, match="only is gone"):
        space.write(0, b"there")
    assert time.monotonic() - begun_s > 0.9


def test_a_primary_that_renews_no_lease_is_replaced(nodes: Nodes, space: Space) -> None:
    """Its connections are open, and it has the pages; but it refuses requests."""
    space.write(0, b"before")
    first, _ = nodes.place("v", 0)
    nodes.nodes[first.address].is_frozen = True
    wait_for(lambda: nodes.place("v", 0)[0].epoch > first.epoch, "another decision")
    assert space.read(0, 6) == b"before"
    space.write(0, b"after!")
    assert space.read(0, 6) == b"after!"
    assert nodes.place("v", 0)[0].address != first.address


def test_calls_from_many_threads_go_on_while_servers_die(nodes: Nodes) -> None:
    """Each thread reads what it has written last; every copy is right at the end."""
    for name in "abc":
        nodes.join(name)
    space = nodes.create("v", 4, 2, timeout_s=10.0)
    is_over, problems = threading.Event(), []
    pages = 4 * EXTENT_BYTES // PAGE_BYTES
    expected: dict[int, bytes] = {}

    def work(number: int) -> None:
        chance = random.Random(number)
        try:
            while not is_over.is_set():
                page = chance.randrange(number, pages, 4)
                if chance.random() < 0.5:
                    content = chance.randbytes(16) * (PAGE_BYTES // 16)
                    space.write(page * PAGE_BYTES, content)
                    expected[page] = content
                elif space.read(page * PAGE_BYTES, PAGE_BYTES) != expected.get(
                    page, bytes(PAGE_BYTES)
                ):
                    problems.append(f"page {page} is stale")
        except SpaceError as error:
            problems.append(str(error))

    threads: list[Any] = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for number in range(4):
        time.sleep(0.3)
        nodes.kill(sorted(nodes.nodes)[0])
        nodes.join(f"n{number}")
        wait_for(lambda: nodes.copies("v") == 2, "all copies", 10.0)
    is_over.set()
    for thread in threads:
        thread.join(20)
    assert problems == []
    assert len(expected) > 100
    for page, content in expected.items():
        assert space.read(page * PAGE_BYTES, PAGE_BYTES) == content
