"""Tests what the master does for memory servers: it orders nothing before that is durable."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from twisted.internet.task import Clock

from ciel.access.keys import Role
from ciel.core.errors import CielError
from ciel.core.events import (
    ExtentsOffered,
    ExtentsPlaced,
    KeepExtents,
    LeaseAsked,
    LeaseGranted,
    MastersNamed,
    Message,
    RolesTaken,
    TakeRoles,
    VolumeCreated,
    VolumeRemoved,
)
from ciel.core.volume_table import VolumeTable
from ciel.master.memory import MemoryServers
from ciel.memory.page_server import EXTENT_BYTES
from ciel.wire.session import Hello


class Disk:
    """A journal that is durable when the test says so; implements `memory.Ledger`."""

    def __init__(self) -> None:
        self.table = VolumeTable()
        self._waiting: list[Message | Callable[[], object]] = []

    def record(self, records: Sequence[Message]) -> None:
        self._waiting += records

    def call_when_durable(self, call: Callable[[], object]) -> None:
        if self._waiting:
            self._waiting.append(call)
        else:
            call()

    def stores(self) -> list[Any]:
        """Make all records durable; return them."""
        waiting, self._waiting = self._waiting, []
        records: list[Any] = [item for item in waiting if not callable(item)]
        for record in records:
            self.table.apply(record)
        for item in waiting:
            if callable(item):
                item()
        return records


class Peer:
    """The connection of a memory server."""

    def __init__(self, server: str) -> None:
        about = {"server": server, "address": f"{server}:1", "extents": 8}
        self.hello = Hello(1, "", Role.MEMORY, "", b"", about)
        self.sent: list[Message] = []
        self.refused = ""
        self.is_closed = False

    def send(self, message: Message) -> None:
        self.sent.append(message)

    def refuse(self, reason: str) -> None:
        self.refused = reason

    def turn_away(self) -> None:
        self.is_closed = True

    def take(self, kind: type) -> list[Any]:
        """Remove and return the messages of a kind."""
        found = [message for message in self.sent if isinstance(message, kind)]
        self.sent = [message for message in self.sent if not isinstance(message, kind)]
        return found


class Master:
    """Memory servers of a master; each carries out its orders as soon as it gets them."""

    def __init__(self, *servers: str, table: VolumeTable | None = None, fence_s: float = 0.4):
        self.disk = Disk()
        self.clock = Clock()
        self.clock.advance(100.0)
        table = VolumeTable() if table is None else table
        self.memory: Any = MemoryServers(self.clock, self.disk, table, fence_s)
        self.disk.table = table
        self.peers = {server: self.joins(server) for server in servers}

    def joins(self, server: str, *offered: tuple[int, int, int]) -> Peer:
        peer = Peer(server)
        self.memory.peer_opened(peer)
        self.memory.peer_said(peer, [ExtentsOffered(offered)])
        return peer

    def passes(self, seconds: float) -> None:
        for _ in range(round(seconds / 0.1)):
            self.clock.advance(0.1)
            for peer in self.peers.values():
                self.memory.peer_said(peer, [LeaseAsked(0)])
            self.settles()

    def settles(self) -> None:
        """Let the disk store everything, and the servers answer, until nothing is left to do."""
        is_busy = True
        while is_busy:
            is_busy = bool(self.disk.stores())
            for peer in self.peers.values():
                for order in peer.take(TakeRoles):
                    is_busy = True
                    self.memory.peer_said(peer, [RolesTaken(order.number)])

    def create(self, name: str = "v") -> Any:
        argument = {"name": name, "size_bytes": EXTENT_BYTES, "replicas": 2}
        return self.memory.change("memory_create", argument)

    def volume(self) -> Any:
        (found,) = self.memory.answer("memory", {})["volumes"]
        return found


def test_roles_leave_the_master_when_the_decision_is_durable() -> None:
    master = Master("a", "b")
    master.disk.stores()
    master.create()
    assert [peer.take(TakeRoles) for peer in master.peers.values()] == [[], []]
    records = master.disk.stores()
    assert [type(record) for record in records] == [VolumeCreated, ExtentsPlaced]
    assert [len(peer.take(TakeRoles)) for peer in master.peers.values()] == [0, 1]  # the backup


def test_an_order_for_a_connection_that_has_ended_never_leaves() -> None:
    master = Master("a", "b")
    master.settles()
    master.create()
    master.memory.peer_closed(master.peers["b"], "it died")
    again = master.joins("b")
    master.disk.stores()
    assert master.peers["b"].take(TakeRoles) == []
    assert again.sent[0] == KeepExtents(())


def test_a_restarted_master_lists_the_same_volumes_and_serves_them_when_servers_return() -> None:
    before = Master("a", "b")
    before.create()
    before.settles()
    assert before.volume()["available"] == 1
    after = Master(table=before.disk.table)
    assert after.volume() == {**before.volume(), "available": 0}
    after.peers = {server: after.joins(server, (1, 0, 1)) for server in ("a", "b")}
    after.passes(1.0)
    assert after.volume() == before.volume()


def test_a_master_that_may_have_been_replaced_grants_no_lease() -> None:
    master = Master("a")
    master.memory.peer_said(master.peers["a"], [LeaseAsked(5)])
    assert master.peers["a"].take(LeaseGranted) == [LeaseGranted(5, 400_000)]
    master.memory.may_lease = lambda: False
    master.memory.peer_said(master.peers["a"], [LeaseAsked(6)])
    assert master.peers["a"].take(LeaseGranted) == []


def test_servers_know_where_another_master_may_be() -> None:
    master = Master("a")
    master.memory.name_masters(("http://a:1", "http://b:1"))
    master.peers["b"] = master.joins("b")
    for peer in master.peers.values():
        assert peer.take(MastersNamed) == [MastersNamed(("http://a:1", "http://b:1"))]


def test_a_server_joins_when_it_has_said_what_it_has() -> None:
    master = Master()
    peer = Peer("a")
    master.memory.peer_opened(peer)
    master.memory.peer_said(peer, [LeaseAsked(1)])
    assert (peer.sent, master.memory.answer("memory", {})["servers"]) == ([], [])
    master.memory.peer_said(peer, [ExtentsOffered(()), ExtentsOffered(())])
    assert [row["server"] for row in master.memory.answer("memory", {})["servers"]] == ["a"]


@pytest.mark.parametrize("about", [{"server": ""}, {"address": "a"}, {"extents": -1}])
def test_a_server_that_describes_itself_wrongly_is_refused(about: dict[str, Any]) -> None:
    master, peer = Master(), Peer("a")
    peer.hello = peer.hello._replace(about={**peer.hello.about, **about})
    master.memory.peer_opened(peer)
    assert peer.refused
    master.memory.peer_said(peer, [ExtentsOffered(())])
    assert master.memory.answer("memory", {})["servers"] == []


# --- volumes of workers ---------------------------------------------------------------------------


def create_for(master: Master, worker: str, name: str, **more: Any) -> Any:
    argument = {"name": name, "size_bytes": EXTENT_BYTES, "replicas": 1, **more}
    return master.memory.change_of_worker(worker, "memory_create", argument)


def test_a_worker_has_volumes_of_its_own_until_it_has_gone() -> None:
    master = Master("a", "b")
    master.settles()
    master.create("of-a-user")
    assert create_for(master, "w1", "one", user="somebody else")["owner"] == "worker w1"
    create_for(master, "w2", "two")
    master.memory.keep_of_workers({"w1", "w2"})
    assert len(master.memory.answer("memory", {})["volumes"]) == 3
    master.memory.keep_of_workers({"w2"})
    left = master.memory.change_of_worker("w2", "memory", {})["volumes"]
    assert [volume["name"] for volume in left] == ["of-a-user", "two"]
    assert [type(record) for record in master.disk.stores()][-1] is VolumeRemoved


def test_a_worker_cannot_change_what_is_not_its_own() -> None:
    master = Master("a", "b")
    master.settles()
    master.create("of-a-user")
    create_for(master, "w1", "one")
    for name in ("of-a-user", "one"):
        with pytest.raises(CielError, match=f"volume '{name}' does not belong to worker w2"):
            master.memory.change_of_worker("w2", "memory_remove", {"name": name})
    with pytest.raises(CielError, match="a worker cannot request the change 'memory_drain'"):
        master.memory.change_of_worker("w2", "memory_drain", {"server": "a"})
    master.memory.change_of_worker("w1", "memory_remove", {"name": "one"})
    assert master.volume()["name"] == "of-a-user"


def test_a_client_cannot_take_the_name_of_a_worker() -> None:
    master = Master("a", "b")
    argument = {"name": "v", "size_bytes": EXTENT_BYTES, "replicas": 1, "user": "worker w1"}
    with pytest.raises(CielError, match="must not begin with 'worker '"):
        master.memory.change("memory_create", argument)
