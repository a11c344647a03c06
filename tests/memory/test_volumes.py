"""The owner's state of volumes: room, copies, no stale read in simulated clusters (NET-3 to 5)."""

from __future__ import annotations

import pytest

from ciel.core.events import MemoryServerLeft, VolumeRecord
from ciel.core.volume_table import VolumeTable
from ciel.memory.volumes import (
    LEASE_S,
    RETURN_S,
    Connect,
    Dismiss,
    Expel,
    ExtentKey,
    Hold,
    Holding,
    Keep,
    Order,
    Place,
    Role,
    VolumeError,
    Volumes,
)
from ciel_tests.memory import World


class Owner:
    """Volumes, with servers that carry out each order at once."""

    def __init__(self, *servers: str, extents_max: int = 10) -> None:
        self.volumes = Volumes()
        self.now_s = 0.0
        self.extents_max = extents_max
        self.orders: list[Order] = []
        self.records: list[VolumeRecord] = []
        self.offered: dict[str, dict[ExtentKey, int]] = {}  # what each server has
        for server in servers:
            self.joins(server)

    def joins(self, server: str) -> None:
        offered = self.offered.setdefault(server, {})
        self.volumes.join(server, f"{server}:1", self.extents_max, offered, self.now_s)
        self.carries_out()

    def restarts(self, *servers: str, records: list[VolumeRecord] | None = None) -> None:
        """Let another owner continue from the records; these servers return."""
        table = VolumeTable()
        for record in self.records if records is None else records:
            table.apply(record)
        self.volumes = Volumes.restored(table, self.now_s)
        self.orders.clear()
        for server in servers:
            self.joins(server)

    def carries_out(self, *, syncs: bool = True) -> None:
        while orders := self.volumes.take_orders():
            self.records += self.volumes.take_records()
            self.orders += orders
            for order in orders:
                if isinstance(order, Keep):
                    offered = self.offered[order.server]
                    self.offered[order.server] = {
                        key: epoch for key, epoch in offered.items() if key in order.extents
                    }
                if (
                    not isinstance(order, Hold)
                    or not self.volumes.servers[order.server].is_connected
                ):
                    continue
                for held in order.holdings:
                    has = self.offered[order.server]
                    has.pop((held.volume, held.extent), None)
                    if held.role is not Role.NONE:
                        has[held.volume, held.extent] = held.epoch
                self.volumes.told(order.server, order.number, self.now_s)
                for held in order.holdings if syncs else ():
                    for backup in held.joining:
                        self.volumes.synced(
                            order.server, (held.volume, held.extent), held.epoch, backup,
                            self.now_s,
                        )  # fmt: skip
        self.records += self.volumes.take_records()

    def passes(self, seconds: float, *silent: str) -> None:
        for _ in range(round(seconds / 0.1)):
            self.now_s += 0.1
            for server in self.volumes.servers:
                if server not in silent:
                    self.volumes.renew(server, self.now_s)
            self.volumes.tick(self.now_s)
            self.carries_out()

    def goes(self, server: str) -> None:
        self.volumes.gone(server, self.now_s)
        self.carries_out()

    def create(self, name: str = "v", extents: int = 1, replicas: int = 2) -> None:
        self.volumes.create(name, extents, replicas, self.now_s)
        self.carries_out()

    def holders(self, name: str = "v") -> list[list[str]]:
        return [sorted(extent.in_sync) for extent in self.volumes.volumes[name].extents]

    def place(self, name: str = "v") -> Place:
        return self.volumes.places(name)[0]


def test_a_new_volume_tells_its_backups_before_its_primary() -> None:
    owner = Owner("a", "b")
    owner.orders.clear()
    owner.volumes.create("v", 1, 2, 0.0)
    backup = Hold("b", 1, (Holding(1, 0, 1, Role.BACKUP),))
    assert owner.volumes.take_orders() == [backup]
    assert owner.place() == Place(1, "", "")
    owner.volumes.told("b", 1, 0.0)
    primary = Hold("a", 1, (Holding(1, 0, 1, Role.PRIMARY, ("b",)),))
    assert owner.volumes.take_orders() == [Connect("a", "b"), primary]
    owner.volumes.told("a", 1, 0.0)
    assert owner.volumes.take_orders() == []
    assert owner.place() == Place(1, "a:1", "")


@pytest.mark.requirement("NET-3")
def test_extents_are_spread_by_free_memory() -> None:
    owner = Owner("a", "b", "c")
    owner.create(extents=6)
    assert sorted(len(server.held) for server in owner.volumes.servers.values()) == [4, 4, 4]


@pytest.mark.requirement("NET-1", "NET-3")
def test_volumes_never_need_more_than_is_offered() -> None:
    owner = Owner("a", "b", extents_max=3)
    owner.create("v", extents=2)
    with pytest.raises(VolumeError, match="needs 4 MiB on at least 2 servers; 2 MiB are free"):
        owner.create("w", extents=2)
    assert list(owner.volumes.volumes) == ["v"]
    owner.create("w", extents=1)
    owner.volumes.remove("v")
    owner.carries_out()
    owner.create("x", extents=2)


@pytest.mark.parametrize(
    "name, extents, replicas, why",
    [
        ("v", 1, 1, "there is a volume 'v' already"),
        ("w", 0, 1, "at least one extent"),
        ("w", 1, 0, "1 to 4 replicas"),
        ("w", 1, 5, "1 to 4 replicas"),
        ("w", 1, 3, "at least 3 servers"),
    ],
)
def test_an_impossible_volume_is_refused(name: str, extents: int, replicas: int, why: str) -> None:
    owner = Owner("a", "b")
    owner.create()
    with pytest.raises(VolumeError, match=why):
        owner.create(name, extents, replicas)


def test_an_unknown_volume_is_named() -> None:
    owner = Owner()
    with pytest.raises(VolumeError, match="no volume 'v'"):
        owner.volumes.places("v")
    with pytest.raises(VolumeError, match="no volume 'v'"):
        owner.volumes.remove("v")


def test_a_removed_volume_leaves_nothing() -> None:
    owner = Owner("a", "b")
    owner.create(extents=3)
    owner.volumes.remove("v")
    owner.carries_out()
    assert all(not server.held for server in owner.volumes.servers.values())


def test_a_lost_backup_is_replaced() -> None:
    owner = Owner("a", "b", "c")
    owner.create()
    backup = next(s for s in owner.holders()[0] if s != owner.place().address[0])
    owner.goes(backup)
    assert len(owner.holders()[0]) == 2
    assert backup not in owner.holders()[0]


def test_a_backup_takes_over_when_the_lease_of_the_primary_has_ended() -> None:
    owner = Owner("a", "b")
    owner.create()
    owner.passes(1.0)
    before = owner.place()
    first = before.address[0]
    owner.goes(first)
    assert owner.place().address == ""
    owner.passes(LEASE_S - 0.15, first)
    assert owner.place().address == ""
    owner.passes(0.2, first)
    assert owner.place().address not in ("", before.address)
    assert owner.place().epoch > before.epoch


def primary_orders(owner: Owner) -> list[Holding]:
    holdings = [
        held for order in owner.orders if isinstance(order, Hold) for held in order.holdings
    ]
    return [held for held in holdings if held.role is Role.PRIMARY]


def test_two_servers_may_die_one_after_the_other_before_anything_is_copied() -> None:
    owner = Owner("a", "b", "c", extents_max=1)
    owner.create(replicas=3)
    first = owner.place().address[0]
    owner.goes(first)
    owner.passes(LEASE_S + 0.1, first)
    second = owner.place().address[0]
    (third,) = {"a", "b", "c"} - {first, second}
    assert owner.holders() == [sorted([second, third])]
    assert primary_orders(owner)[-1].rejoining == (third,)
    owner.goes(second)
    owner.passes(LEASE_S + 0.1, first, second)
    assert owner.place().address == f"{third}:1"
    assert owner.place().why == ""


def test_a_primary_makes_backups_equal_once() -> None:
    owner = Owner("a", "b", "c")
    owner.create()
    first = owner.place().address[0]
    owner.goes(first)
    owner.passes(LEASE_S + 0.1, first)
    assert primary_orders(owner)[-1].rejoining == ()
    owner.orders.clear()
    owner.restarts(*{"a", "b", "c"} - {first})
    owner.passes(1.0)
    assert [held.rejoining for held in primary_orders(owner)] == [()]


def test_a_primary_that_lacks_its_last_order_makes_backups_equal_after_a_restart() -> None:
    owner = Owner("a", "b", "c", extents_max=1)
    owner.create(replicas=3)
    first = owner.place().address[0]
    owner.volumes.gone(first, owner.now_s)
    owner.volumes.tick(owner.now_s + LEASE_S)  # so that the next primary is decided
    owner.records += owner.volumes.take_records()
    living = sorted({"a", "b", "c"} - {first})
    owner.restarts(*living)
    owner.passes(RETURN_S + 1.0, first)
    second = owner.place().address[0]
    assert primary_orders(owner)[-1].rejoining == tuple({*living} - {second})


def test_an_extent_does_not_wait_for_a_server_that_has_gone_after_an_earlier_order() -> None:
    owner = Owner("a", "b", "c", "d")
    owner.create()
    extent = owner.volumes.volumes["v"].extents[0]
    first = extent.primary
    owner.volumes.drain(first, owner.now_s)
    while extent.primary == first:  # several orders end the role of the drained server
        for order in owner.volumes.take_orders():
            if isinstance(order, Hold):
                owner.volumes.told(order.server, order.number, owner.now_s)
            for held in order.holdings if isinstance(order, Hold) else ():
                for backup in held.joining:
                    owner.volumes.synced(order.server, (1, 0), held.epoch, backup, owner.now_s)
    orders = [o for o in owner.volumes.take_orders() if isinstance(o, Hold) and o.server == first]
    owner.volumes.gone(extent.primary, owner.now_s)  # another decision
    for order in orders:
        owner.volumes.told(first, order.number, owner.now_s)
    owner.volumes.gone(first, owner.now_s)
    owner.carries_out()
    owner.passes(LEASE_S + 0.1)
    assert owner.place().address != ""


def test_a_silent_server_is_expelled() -> None:
    owner = Owner("a", "b")
    owner.create()
    owner.passes(1.0)
    silent = owner.place().address[0]
    owner.passes(1.0, silent)
    assert Expel(silent) in owner.orders
    assert owner.place().address[0] != silent


def test_an_extent_without_servers_waits_for_one_of_its_own() -> None:
    owner = Owner("a", "b", "c")
    owner.create(replicas=1)
    owner.passes(0.5)
    server = owner.holders()[0][0]
    owner.goes(server)
    owner.passes(1.0)
    assert owner.place() == Place(2, "", f"memory server {server} is gone, which has its pages")
    owner.joins(server)
    assert owner.place().address == f"{server}:1"
    assert Keep(server, ((1, 0),)) in owner.orders


def test_a_server_that_is_not_needed_any_more_keeps_nothing_when_it_returns() -> None:
    owner = Owner("a", "b", "c")
    owner.create()
    backup = next(s for s in owner.holders()[0] if s != owner.place().address[0])
    owner.goes(backup)
    owner.joins(backup)
    assert owner.orders[-1] == Keep(backup, ())


@pytest.mark.requirement("NET-4")
def test_a_draining_server_is_dismissed_when_others_have_its_pages() -> None:
    owner = Owner("a", "b", "c")
    owner.create(extents=3)
    owner.volumes.drain("a", owner.now_s)
    owner.carries_out()
    assert owner.holders() == [["b", "c"]] * 3
    assert owner.orders.count(Dismiss("a")) == 1


def test_a_draining_server_stays_while_no_other_has_room() -> None:
    owner = Owner("a", "b")
    owner.create()
    owner.volumes.drain("a", owner.now_s)
    owner.carries_out()
    assert Dismiss("a") not in owner.orders
    owner.joins("c")
    assert owner.holders() == [["b", "c"]]
    assert Dismiss("a") in owner.orders


def test_an_unknown_server_cannot_drain() -> None:
    with pytest.raises(VolumeError, match="no memory server z"):
        Owner().volumes.drain("z", 0.0)


# --- offers that change ---------------------------------------------------------------------------


def held(owner: Owner) -> dict[str, int]:
    return {server.id: len(server.held) for server in owner.volumes.servers.values()}


def offers(owner: Owner, server: str, extents: int, *, is_urgent: bool = False) -> None:
    owner.volumes.offer(server, extents, owner.now_s, is_urgent=is_urgent)
    owner.carries_out()


def test_a_server_that_offers_less_gives_the_rest_to_others() -> None:
    owner = Owner("a", "b", "c")
    owner.create(extents=6)
    offers(owner, "a", 1)
    assert held(owner)["a"] == 1
    assert sum(held(owner).values()) == 12
    assert all(len(holders) == 2 for holders in owner.holders())
    assert all(place.address for place in owner.volumes.places("v"))


def test_a_server_gives_away_what_it_is_no_primary_of_first() -> None:
    owner = Owner("a", "b", "c")
    owner.create(extents=6)
    primaries = {e.key for e in owner.volumes.volumes["v"].extents if e.primary == "a"}
    offers(owner, "a", len(primaries))
    assert owner.volumes.servers["a"].held == primaries


def test_a_server_gets_nothing_beyond_its_lower_offer() -> None:
    owner = Owner("a", "b", "c")
    offers(owner, "a", 1)
    owner.create(extents=8)
    assert held(owner) == {"a": 0, "b": 8, "c": 8}
    with pytest.raises(VolumeError, match="5 MiB are free"):
        owner.create("w", extents=9, replicas=1)


def test_pages_stay_while_no_other_server_has_room() -> None:
    owner = Owner("a", "b", extents_max=4)
    owner.create(extents=4)
    offers(owner, "a", 1)
    assert owner.holders() == [["a", "b"]] * 4
    owner.joins("c")
    assert held(owner) == {"a": 1, "b": 4, "c": 3}


def test_an_urgent_server_gives_copies_up_and_never_the_last() -> None:
    owner = Owner("a", "b", extents_max=4)
    owner.create("v", extents=2, replicas=2)
    owner.create("w", extents=2, replicas=1)
    offers(owner, "a", 0, is_urgent=True)
    assert owner.holders("v") == [["b"]] * 2
    assert [len(holders) for holders in owner.holders("w")] == [1, 1]
    assert all(p.address for name in "vw" for p in owner.volumes.places(name))
    offers(owner, "b", 0, is_urgent=True)
    assert owner.holders("v") == [["b"]] * 2


def test_copies_that_were_given_up_come_back_when_there_is_room() -> None:
    owner = Owner("a", "b", extents_max=4)
    owner.create(extents=2)
    offers(owner, "a", 0, is_urgent=True)
    assert owner.holders() == [["b"]] * 2
    offers(owner, "a", 4)
    assert owner.holders() == [["a", "b"]] * 2


def test_a_server_that_offers_more_again_keeps_what_has_not_moved() -> None:
    owner = Owner("a", "b", extents_max=4)
    owner.create(extents=2)
    offers(owner, "a", 0)
    offers(owner, "a", 4)
    owner.joins("c")
    assert owner.holders() == [["a", "b"]] * 2


def test_a_copy_that_is_being_moved_moves_although_the_offer_has_grown_again() -> None:
    owner = Owner("a", "b", "c", extents_max=4)
    owner.create(extents=1, replicas=1)
    (holders,) = owner.holders()
    owner.volumes.offer(holders[0], 0, owner.now_s)
    owner.volumes.offer(holders[0], 4, owner.now_s)
    owner.carries_out()
    assert len(owner.holders()[0]) == 1
    assert owner.holders() != [holders]


def test_a_server_that_joins_again_with_a_lower_offer_gives_the_rest_away() -> None:
    owner = Owner("a", "b", "c", extents_max=8)
    owner.create(extents=6)
    owner.extents_max = 1
    owner.joins("a")
    owner.passes(1.0)
    assert held(owner)["a"] <= 1
    assert all(len(holders) == 2 for holders in owner.holders())


def test_an_unknown_server_changes_no_offer() -> None:
    owner = Owner("a")
    offers(owner, "z", 1)
    assert list(owner.volumes.servers) == ["a"]


# --- what may not matter --------------------------------------------------------------------------


def test_late_answers_change_nothing() -> None:
    owner = Owner("a", "b", "c")
    owner.create()
    epoch = owner.place().epoch
    owner.volumes.synced("a", (1, 0), epoch, "c", 0.0)
    owner.volumes.synced("a", (9, 9), epoch, "c", 0.0)
    owner.volumes.told("a", 999, 0.0)
    owner.volumes.peer_lost("z", "a", 0.0)
    owner.volumes.gone("z", 0.0)
    assert owner.place().epoch == epoch


def test_a_restarted_owner_has_the_same_volumes_servers_and_copies() -> None:
    owner = Owner("a", "b", "c")
    owner.create(extents=4)
    owner.create("w", extents=2, replicas=1)
    before = owner.holders(), owner.holders("w"), owner.volumes.servers.keys()
    owner.restarts("c", "a", "b")
    assert owner.place() == Place(2, "", "")  # until the leases of the earlier owner have ended
    owner.passes(LEASE_S + 0.2)
    assert (owner.holders(), owner.holders("w"), owner.volumes.servers.keys()) == before
    assert all(place.address for place in owner.volumes.places("v"))
    assert not [order for order in owner.orders if isinstance(order, Hold) and any(
        held.joining for held in order.holdings)]  # fmt: skip
    owner.create("x")
    assert owner.volumes.volumes["x"].number == 3


def test_a_restarted_owner_waits_for_servers_before_it_takes_their_copies_for_lost() -> None:
    owner = Owner("a", "b", "c")
    owner.create()
    here, away = owner.holders()[0]
    owner.restarts(here, *{"a", "b", "c"} - {here, away})
    owner.passes(RETURN_S - 0.3)
    assert owner.holders() == [[here, away]]
    assert owner.place() == Place(1, "", "")
    owner.passes(0.5)
    assert owner.place().address == f"{here}:1"
    assert len(owner.holders()[0]) == 2
    assert away not in owner.holders()[0]
    assert away not in owner.volumes.servers
    assert any(isinstance(record, MemoryServerLeft) for record in owner.records)


def test_a_server_that_returns_too_late_keeps_nothing() -> None:
    owner = Owner("a", "b", "c")
    owner.create()
    here, away = owner.holders()[0]
    owner.restarts(here, *{"a", "b", "c"} - {here, away})
    owner.passes(RETURN_S + 1.0)
    owner.joins(away)
    assert Keep(away, ()) in owner.orders


def test_no_server_is_primary_while_it_could_have_a_lease_of_the_earlier_owner() -> None:
    owner = Owner("a", "b")
    owner.create()
    owner.restarts("a", "b")
    assert [
        held
        for order in owner.orders
        if isinstance(order, Hold)
        for held in order.holdings
        if held.role is Role.PRIMARY
    ] == []
    owner.passes(LEASE_S - 0.15)
    assert owner.place().address == ""
    owner.passes(0.3)
    assert owner.place().address != ""
    assert owner.place().epoch == 2


def test_an_order_that_did_not_leave_before_a_restart_is_given_again() -> None:
    owner = Owner("a", "b")
    owner.volumes.create("v", 1, 2, 0.0)
    owner.records += owner.volumes.take_records()
    owner.restarts("a", "b")
    owner.passes(1.0)
    assert owner.offered == {"a": {(1, 0): 2}, "b": {(1, 0): 2}}
    assert owner.place().address != ""


def test_a_copy_that_was_not_complete_begins_again_after_a_restart() -> None:
    owner = Owner("a", "b", "c")
    owner.create()
    primary = owner.place().address[0]
    (backup,) = set(owner.holders()[0]) - {primary}
    (third,) = {"a", "b", "c"} - {primary, backup}
    owner.volumes.gone(backup, owner.now_s)
    owner.carries_out(syncs=False)
    assert (1, 0) in owner.offered[third]
    owner.restarts(primary, third)
    assert Keep(third, ()) in owner.orders
    assert owner.offered[third] == {}
    owner.passes(RETURN_S + 1.0)
    assert owner.holders() == [sorted([primary, third])]


def test_a_server_without_the_pages_that_it_had_never_serves_them() -> None:
    owner = Owner("a", "b", "c")
    owner.create()
    owner.create("w", replicas=1)
    first, second = owner.holders()[0]
    (only,) = owner.holders("w")[0]
    owner.offered[first].pop((1, 0))  # another master has let it forget them
    owner.offered[only].pop((2, 0))
    owner.restarts("a", "b", "c")
    owner.passes(1.0)
    assert owner.place().address != ""
    joined = [
        order.holdings
        for order in owner.orders
        if isinstance(order, Hold) and any(held.role is Role.JOINING for held in order.holdings)
    ]
    assert len(joined) == 1
    assert second in owner.holders()[0]
    why = f"memory server {only} has lost its pages"
    assert owner.place("w") == Place(2, "", why)


def test_an_epoch_that_a_server_offers_is_never_used_again() -> None:
    owner = Owner("a", "b")
    owner.create()
    owner.offered["b"][1, 0] = 7
    owner.restarts("a", "b")
    owner.passes(1.0)
    assert owner.place().epoch == 8


def test_a_draining_server_still_drains_after_a_restart() -> None:
    owner = Owner("a", "b")
    owner.create()
    owner.volumes.drain("a", owner.now_s)
    owner.carries_out()
    owner.restarts("a", "b")
    owner.passes(1.0)
    assert Dismiss("a") not in owner.orders
    owner.joins("c")
    assert owner.holders() == [["b", "c"]]
    assert Dismiss("a") in owner.orders
    owner.restarts("a", "b", "c")
    assert Dismiss("a") in owner.orders


def test_a_removed_volume_stays_removed_and_servers_forget_its_pages() -> None:
    owner = Owner("a", "b")
    owner.create(extents=2)
    owner.volumes.remove("v")
    owner.records += owner.volumes.take_records()
    owner.volumes.take_orders()  # they are lost with the owner
    owner.restarts("a", "b")
    assert owner.volumes.volumes == {}
    assert owner.offered == {"a": {}, "b": {}}
    owner.create("v")
    assert owner.volumes.volumes["v"].number == 2


def test_a_server_that_has_left_is_forgotten_with_the_last_volume() -> None:
    owner = Owner("a")
    owner.create(replicas=1)
    owner.goes("a")
    assert owner.volumes.servers.keys() == {"a"}
    owner.volumes.remove("v")
    assert not owner.volumes.servers


@pytest.mark.parametrize("seed", range(1, 41))
def test_no_read_is_stale_whatever_happens_to_servers(seed: int) -> None:
    assert World(seed).run() > 500


@pytest.mark.parametrize("seed", range(1, 41))
def test_no_read_is_stale_although_the_owner_is_restarted(seed: int) -> None:
    world = World(seed, restarts=True)
    assert world.run() > 300
    assert world.restarted > 5
