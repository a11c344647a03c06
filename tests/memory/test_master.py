"""The master's side of memory servers: requests of clients, and messages of servers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
from twisted.internet.task import Clock

from ciel.core.events import (
    ExtentsOffered,
    MemoryReported,
    Message,
    OfferChanged,
    RolesTaken,
    TakeRoles,
)
from ciel.core.volume_table import VolumeTable
from ciel.master.memory import MemoryServers
from ciel.master.memory_limits import NO_LIMITS, Limits
from ciel.memory.master import PLACES_MAX, VolumeOwner
from ciel.memory.volumes import VolumeError
from ciel.net.control import ControlPeer

MIB = 1 << 20


class Durable:
    """A journal that stores records at once."""

    def record(self, records: Sequence[Message]) -> None: ...

    def call_when_durable(self, call: Callable[[], object]) -> None:
        call()


class Lender:
    """A memory server that takes each role at once."""

    def __init__(self, servers: MemoryServers, name: str, extents: int = 8) -> None:
        self.servers = servers
        about = {"server": name, "address": f"{name}:1", "extents": extents}
        self.hello = SimpleNamespace(about=about)
        self.got: list[Message] = []
        servers.peer_opened(self.peer())
        self.says(ExtentsOffered(()))

    def peer(self) -> ControlPeer:
        return cast(ControlPeer, self)

    def says(self, *messages: Message) -> None:
        self.servers.peer_said(self.peer(), list(messages))

    def send(self, message: Message) -> None:
        self.got.append(message)

    def carries_out(self) -> None:
        got, self.got = self.got, []
        for message in got:
            if isinstance(message, TakeRoles):
                self.says(RolesTaken(message.number))


def create(servers: MemoryServers, name: str, mib: int = 1, **more: Any) -> Any:
    argument = {"name": name, "size_bytes": mib * MIB, "replicas": 1, **more}
    return servers.change("memory_create", argument)


def master(limits: Limits = NO_LIMITS) -> tuple[MemoryServers, Lender]:
    servers = MemoryServers(Clock(), Durable(), VolumeTable(), limits=limits)
    return servers, Lender(servers, "a")


def test_volumes_are_limited_and_counted_for_their_user() -> None:
    servers, _ = master(Limits(3, 4 * MIB))
    assert create(servers, "v", 3, user="ann")["owner"] == "ann"
    with pytest.raises(VolumeError, match="of user 'ann' have 3 MiB"):
        create(servers, "w", 2, user="ann")
    create(servers, "w", 2, user="bob")
    create(servers, "x", 1, user="ann")
    with pytest.raises(VolumeError, match="there are 3 volumes"):
        create(servers, "y")
    with pytest.raises(VolumeError, match="there is a volume 'v' already"):
        create(servers, "v")
    servers.change("memory_remove", {"name": "v"})
    create(servers, "y", 2, user="ann")


def test_a_volume_of_a_client_that_names_no_user_has_no_owner() -> None:
    servers, _ = master()
    assert create(servers, "v")["owner"] == ""


def test_a_lower_offer_is_shown_and_no_volume_exceeds_it() -> None:
    servers, lender = master()
    create(servers, "v", 2)
    lender.carries_out()
    lender.says(OfferChanged(1, False), MemoryReported({"offer_max_bytes": 8 * MIB}))
    (row,) = servers.answer("memory_stats", {})["servers"]
    assert (row["offered_bytes"], row["offer_max_bytes"]) == (MIB, 8 * MIB)
    assert row["reserved_bytes"] == 2 * MIB
    with pytest.raises(VolumeError, match="0 MiB are free"):
        create(servers, "w")


def test_the_pages_of_a_lower_offer_move_to_another_server() -> None:
    servers, first = master()
    create(servers, "v", 2)
    second = Lender(servers, "b")
    for _ in range(9):
        first.carries_out()
        second.carries_out()
    first.says(OfferChanged(1, False))
    for _ in range(9):
        first.carries_out()
        second.carries_out()
    found = servers.answer("memory_stats", {})
    assert [row["reserved_bytes"] for row in found["servers"]] == [2 * MIB, MIB]
    assert found["volumes"][0]["copying"] == 1


def test_a_query_tells_where_several_extents_are_and_a_repeated_one_where_one_is() -> None:
    servers, lender = master()
    create(servers, "v", 3)
    asked: list[Any] = []

    def ask(topic: str, argument: Any = None) -> Any:
        asked.append((argument["extent"], argument["count"]))
        return servers.answer(topic, argument)

    owner = VolumeOwner(cast(Any, SimpleNamespace(ask=ask)), "v")
    assert [owner.place(extent)[0].address for extent in (0, 1)] == ["", ""]
    lender.carries_out()
    assert [owner.place(extent)[0].address for extent in (0, 1)] == ["here", "here"]
    assert owner.place(2)[0].address == ""  # as the first answer said
    assert owner.place(2)[0].address == "here"
    assert asked == [(0, PLACES_MAX), (0, 1), (1, 1), (2, 1)]


@pytest.mark.parametrize("wanted", [{"extent": 3, "count": 1}, {"extent": 0, "count": 257}, {}])
def test_a_query_for_places_has_limits(wanted: dict[str, int]) -> None:
    servers, _ = master()
    create(servers, "v", 3)
    with pytest.raises(VolumeError, match="a whole number from"):
        servers.answer("memory_places", {"name": "v", **wanted})


def test_a_server_that_joins_may_offer_nothing() -> None:
    servers, _ = master()
    Lender(servers, "b", 0)
    assert [row["offered_bytes"] for row in servers.answer("memory", {})["servers"]] == [8 * MIB, 0]
