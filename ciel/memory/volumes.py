"""Decides which servers keep the pages of volumes: the owner's state, without clock or sockets.

The owner is the master. A volume has extents. Each server in `in_sync` of an extent has all its
completed writes, so any of them may become the primary; servers in `joining` are getting the pages.
docs/protocol/memory.md has the rules against stale reads. This module keeps them as follows:

- A server leaves `in_sync` when that is decided, not when the primary knows. Until the primary
  knows of the decision, it completes no write without this server.
- A decision about an extent is carried out in stages. First the backups take their roles, and
  joining servers forget their pages; the earlier primary is told to stop, if it is connected. If it
  has gone, its lease has to end. Then the new primary takes over. Another event starts a new
  decision, with a higher epoch.
- A write that was not completed may have reached some backups and not others. So a new primary
  makes its backups equal to itself before it answers reads; meanwhile they keep their pages.
- `in_sync` never becomes empty. If all of them have gone, the extent is unavailable until one of
  them comes back. A server process that was started again has another id and no pages.

An owner that is restarted continues from its records (`take_records`). They are durable before the
orders that depend on them leave, so the records are never behind what servers were ordered. Then no
server acts as primary until the leases of the earlier owner have ended, and a server that returns
is primary of nothing until it gets a new order. The owner waits for its servers before it takes
their copies for lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from math import inf
from typing import Final, NamedTuple

from ciel.core.errors import CielError
from ciel.core.events import (
    ExtentPlaced,
    MemoryServerLeft,
    MemoryServerSeen,
    VolumeCreated,
    VolumeRecord,
    VolumeRemoved,
)
from ciel.core.volume_table import VolumeTable, placed_records

LEASE_S: Final = 0.4
"""How long a server may act as primary after it has asked for its lease."""
RENEWAL_S: Final = 0.1
RETURN_S: Final = 3.0
"""How long a restarted owner waits for its servers: they try to reconnect each second at least."""
SERVERS_MAX: Final = 64
REPLICAS_MAX: Final = 4
CODECS: Final = ("", "lz4", "zstd")
SYNCS_MAX: Final = 64
"""The greatest number of extents that get a further copy at the same time."""

ServerId = str
ExtentKey = tuple[int, int]
"""The numbers of a volume and of one of its extents."""


class VolumeError(CielError):
    """A request about a volume cannot be met; the message says why."""


class Role(Enum):
    """The role of a server for an extent."""

    NONE = "none"
    PRIMARY = "primary"
    BACKUP = "backup"
    JOINING = "joining"


class Holding(NamedTuple):
    """The role of a server for an extent.

    Of a primary: its `backups`. `joining`: they are getting the pages. `rejoining`: the primary
    makes them equal to itself before it answers reads.
    """

    volume: int
    extent: int
    epoch: int
    role: Role
    backups: tuple[ServerId, ...] = ()
    joining: tuple[ServerId, ...] = ()
    rejoining: tuple[ServerId, ...] = ()


class Connect(NamedTuple):
    """Connect a server to another one, before it carries out the next order."""

    server: ServerId
    peer: ServerId


class Hold(NamedTuple):
    """Give a server roles; it answers with the number (`told`)."""

    server: ServerId
    number: int
    holdings: tuple[Holding, ...]


class Keep(NamedTuple):
    """A server that has joined may keep these extents, and no others."""

    server: ServerId
    extents: tuple[ExtentKey, ...]


class Dismiss(NamedTuple):
    """A server that drains holds nothing any more."""

    server: ServerId


class Expel(NamedTuple):
    """A server was silent, so it counts as gone: it has to join again."""

    server: ServerId


Order = Connect | Hold | Keep | Dismiss | Expel


class Place(NamedTuple):
    """The place of an extent: its primary's address, "" without a primary.

    `why`: the reason for which the extent is unavailable until a server comes back; "" if it is
    available, or will be soon.
    """

    epoch: int
    address: str
    why: str


class Server:
    """A memory server. `number`: below SERVERS_MAX, for the frames between servers."""

    def __init__(self, server_id: ServerId, number: int, address: str, extents_max: int) -> None:
        self.id = server_id
        self.number = number
        self.address = address
        self.extents_max = extents_max
        self.held: set[ExtentKey] = set()  # and extents that it has to forget
        self.is_connected = True
        self.is_draining = False
        self.surplus: set[ExtentKey] = set()  # of `held`: more than it offers, so others get them
        self.is_urgent = False  # it gives copies up for which no other server has room
        self.lease_until_s = 0.0

    @property
    def free(self) -> int:
        return self.extents_max - len(self.held)

    def forget(self, key: ExtentKey) -> None:
        self.held.discard(key)
        self.surplus.discard(key)

    def gives_away(self, key: ExtentKey) -> bool:
        return self.is_draining or key in self.surplus


class _Stage(Enum):
    READY = "ready"
    FOLLOWERS = "followers"  # backups take their roles, and the earlier primary stops
    FENCING = "fencing"  # an earlier primary that is gone may still have a lease
    PRIMARY = "primary"  # the primary takes over
    UNAVAILABLE = "unavailable"
    RETURNING = "returning"  # a restarted owner waits for its servers

    __hash__ = object.__hash__


class Extent:
    """One extent of a volume."""

    __slots__ = (
        "epoch", "fenced_until_s", "in_sync", "is_lost", "is_unequal", "is_used", "joining", "key",
        "leaving", "primary", "serving", "stage", "waits",
    )  # fmt: skip

    def __init__(self, key: ExtentKey, servers: Sequence[ServerId]) -> None:
        self.key = key
        self.epoch = 0
        self.primary = servers[0]
        self.in_sync = set(servers)
        self.joining: set[ServerId] = set()
        self.leaving: set[ServerId] = set()  # they have to forget it
        self.stage = _Stage.READY
        self.serving: ServerId | None = None  # may act as primary now, unless its lease has ended
        self.fenced_until_s = 0.0
        self.waits: set[ServerId] = set()  # for the answers of these servers
        self.is_used = False  # a primary has served it: its servers have pages
        self.is_unequal = False  # the primary does not know that it has to make backups equal
        self.is_lost = False  # its last server has returned without its pages

    @property
    def holders(self) -> set[ServerId]:
        return self.in_sync | self.joining


class Volume:
    """A volume. `replicas`: of each page, at all times if there are enough servers.

    `owner`: the user who has created it, as the client says; "" if it does not. `compress`: one of
    `CODECS`, by which its clients compress pages.
    """

    def __init__(
        self, number: int, name: str, replicas: int, owner: str = "", compress: str = ""
    ) -> None:
        self.number = number
        self.name = name
        self.replicas = replicas
        self.owner = owner
        self.compress = compress
        self.extents: list[Extent] = []


class Volumes:
    """All volumes and servers.

    After each call, the caller takes the records and the orders. It carries out the orders, in
    their order, when these records and all earlier ones are durable. It calls `tick` at `due_s`.
    """

    def __init__(self) -> None:
        self.servers: dict[ServerId, Server] = {}
        self.volumes: dict[str, Volume] = {}
        self._by_number: dict[int, Volume] = {}
        self._orders: list[Order] = []
        self._holdings: dict[ServerId, list[Holding]] = {}  # of the present call
        self._told: dict[tuple[ServerId, int], list[tuple[Extent, int, Role]]] = {}
        self._numbers: dict[ServerId, int] = {}  # of the last order to hold
        self._links: set[tuple[ServerId, ServerId]] = set()
        self._fencing: dict[Extent, None] = {}
        self._short: dict[Extent, None] = {}
        """They have fewer copies than wanted, or a copy on a server that gives it away."""
        self._crowded: dict[Extent, None] = {}  # they need a copy, and no server has room
        self._syncing: set[Extent] = set()
        self._next_volume = 1
        self._records: list[VolumeRecord] = []
        self._changed: dict[Extent, None] = {}  # since the last call of `take_records`
        self._seen: dict[ServerId, MemoryServerSeen] = {}  # as the records describe the servers
        self._started_s = 0.0
        self._awaited: set[ServerId] = set()  # servers of the earlier owner
        self._return_until_s = 0.0
        self._fenced_until_s = 0.0  # until then, a server may have a lease of the earlier owner

    @classmethod
    def restored(cls, table: VolumeTable, now_s: float, fence_s: float = LEASE_S) -> Volumes:
        """Return the state that a journal describes; its servers have `RETURN_S` to return.

        `fence_s`: after this time, all leases of the earlier owner have ended.
        """
        volumes = cls()
        volumes._started_s = now_s
        volumes._return_until_s, volumes._fenced_until_s = now_s + RETURN_S, now_s + fence_s
        volumes._next_volume = table.last_volume + 1
        for seen in table.servers.values():
            server = Server(seen.server, seen.number, seen.address, seen.extents)
            server.is_connected, server.is_draining = False, seen.is_draining
            volumes.servers[server.id], volumes._seen[server.id] = server, seen
        volumes._awaited = set(volumes.servers)
        for created in table.volumes.values():
            number, owner, compress = created.number, created.owner, created.compress
            volume = Volume(number, created.name, created.replicas, owner, compress)
            volumes.volumes[created.name] = volumes._by_number[created.number] = volume
            for number in range(created.extents):
                placed = table.extents[created.number][number]
                volume.extents.append(volumes._returning(created.number, placed, table))
        return volumes

    def _returning(self, volume: int, placed: ExtentPlaced, table: VolumeTable) -> Extent:
        """Return an extent that waits for its servers.

        Joining servers are not among them: they lack pages, and forget them when they return.
        """
        in_sync = [table.servers[number].server for number in placed.in_sync]
        extent = Extent((volume, placed.extent), in_sync)
        primary = table.servers.get(placed.primary)
        extent.primary = "" if primary is None else primary.server
        extent.epoch, extent.is_used = placed.epoch, placed.is_used
        extent.stage, extent.fenced_until_s = _Stage.RETURNING, inf
        for server_id in in_sync:
            self.servers[server_id].held.add(extent.key)
        return extent

    def take_records(self) -> list[VolumeRecord]:
        """Return and remove the records for the journal."""
        placed: dict[int, list[ExtentPlaced]] = {}
        for extent in self._changed:
            if self._exists(extent.key):
                placed.setdefault(extent.key[0], []).append(self._placed(extent))
        self._changed.clear()
        records, self._records = self._records, []
        for volume, extents in placed.items():
            records += placed_records(volume, extents)
        return records

    def _placed(self, extent: Extent) -> ExtentPlaced:
        primary = self.servers.get(extent.primary)
        return ExtentPlaced(
            extent.key[1],
            extent.epoch,
            extent.is_used,
            SERVERS_MAX if primary is None else primary.number,
            tuple(sorted(self.servers[each].number for each in extent.in_sync)),
        )

    def take_orders(self) -> list[Order]:
        """Return and remove the orders."""
        for server_id, holdings in self._holdings.items():
            number = self._numbers[server_id] = self._numbers.get(server_id, 0) + 1
            self._told[server_id, number] = [
                (self._extent((held.volume, held.extent)), held.epoch, held.role)
                for held in holdings
                if self._exists((held.volume, held.extent))
            ]
            self._orders.append(Hold(server_id, number, tuple(holdings)))
        self._holdings.clear()
        orders, self._orders = self._orders, []
        return orders

    # --- servers ----------------------------------------------------------------------------------

    def join(
        self,
        server_id: ServerId,
        address: str,
        extents_max: int,
        offered: Mapping[ExtentKey, int],
        now_s: float,
    ) -> None:
        """Add a server that is new or returns; raises VolumeError if there are too many.

        `offered`: the extents that it has, with their epochs.
        """
        self.gone(server_id, now_s)
        server = self.servers.get(server_id)
        if server is None:
            taken = {other.number for other in self.servers.values()}
            number = next((n for n in range(SERVERS_MAX) if n not in taken), None)
            if number is None:
                raise VolumeError(f"at most {SERVERS_MAX} memory servers can join")
            server = self.servers[server_id] = Server(server_id, number, address, extents_max)
        server.address, server.is_connected = address, True
        server.lease_until_s = now_s + LEASE_S
        self._orders.append(Keep(server_id, tuple(sorted(server.held))))
        self._awaited.discard(server_id)
        if not self._awaited:
            self._end_fence(now_s)
        for key in sorted(server.held):
            extent = self._extent(key)
            if extent.stage is _Stage.RETURNING and server_id == extent.primary:
                extent.is_unequal = offered.get(key, 0) < extent.epoch  # it lacks the last order
            if offered.get(key, 0) > extent.epoch:  # the journal has lost durable records
                extent.epoch = offered[key]
                self._changed[extent] = None
            if extent.is_used and key not in offered and server_id in extent.in_sync:
                self._lacks(extent, server_id)
            self._decide(extent, now_s)
        if server.is_draining and not server.held:
            self._orders.append(Dismiss(server_id))
        self.offer(server_id, extents_max, now_s)

    def _see(self, server: Server) -> None:
        """Record a server, if it has changed."""
        seen = MemoryServerSeen(
            server.id, server.number, server.address, server.extents_max, server.is_draining
        )
        if self._seen.get(server.id) != seen:
            self._seen[server.id] = seen
            self._records.append(seen)

    def _end_fence(self, now_s: float) -> None:
        """Wait no longer: no server that is away has a lease of the earlier owner."""
        until_s = max(now_s, self._started_s + LEASE_S)  # it may have left before it was recorded
        self._fenced_until_s = min(self._fenced_until_s, until_s)
        for extent in self._fencing:
            if extent.serving is None:
                extent.fenced_until_s = min(extent.fenced_until_s, self._fenced_until_s)

    def _lacks(self, extent: Extent, server_id: ServerId) -> None:
        """Note that a server has returned without pages that it had."""
        if len(extent.in_sync) > 1:
            self._without(extent, server_id)
        else:
            extent.is_lost = True

    def offer(
        self, server_id: ServerId, extents_max: int, now_s: float, *, is_urgent: bool = False
    ) -> None:
        """Change how much a server offers. If it holds more, other servers get the rest.

        `is_urgent`: for which no other server has room, the server gives it up nevertheless, if
        another one has all its pages.
        """
        server = self.servers.get(server_id)
        if server is None or not server.is_connected:
            return
        server.extents_max, server.is_urgent = extents_max, is_urgent
        self._see(server)
        server.surplus = self._surplus(server)
        self._short |= dict.fromkeys(self._extent(key) for key in server.surplus)
        self._try_crowded_again()
        self._repair(now_s)

    def _surplus(self, server: Server) -> set[ExtentKey]:
        """Return the extents that a server gives away, since it holds more than it offers.

        An extent that another server has copied, or is copying now, is among them.
        """
        held = {k: e for k in server.held if server.id in (e := self._extent(k)).holders}
        going = {
            key
            for key in server.surplus & held.keys()
            if held[key].joining or len(held[key].in_sync) > self._by_number[key[0]].replicas
        }

        def cost(key: ExtentKey) -> tuple[bool, bool, bool, ExtentKey]:
            extent = held[key]
            is_new = server.id in extent.joining
            return key not in going, is_new, extent.primary == server.id, key

        count = max(len(held) - server.extents_max, len(going))
        return set(sorted(held, key=cost)[:count])

    def renew(self, server_id: ServerId, now_s: float) -> None:
        """Note that a server asks for its lease again: it may act as primary until its end.

        The server counts from the moment at which it asked, so its lease ends first there.
        """
        server = self.servers.get(server_id)
        if server is not None and server.is_connected:
            server.lease_until_s = now_s + LEASE_S

    def gone(self, server_id: ServerId, now_s: float) -> None:
        """Note that a server has left, died, or was silent for longer than its lease."""
        server = self.servers.get(server_id)
        if server is None or not server.is_connected:
            return
        server.is_connected = False
        self._links = {link for link in self._links if server_id not in link}
        self._told = {key: told for key, told in self._told.items() if key[0] != server_id}
        self._holdings.pop(server_id, None)
        for key in sorted(server.held):
            extent = self._extent(key)
            if server_id in extent.leaving:
                self._note_left(extent, server)
            if server_id in extent.holders or server_id in extent.waits:
                self._decide(extent, now_s)
        self._forget_if_empty(server)
        self._repair(now_s)

    def _forget_if_empty(self, server: Server) -> None:
        """Forget a server that has left, and has no pages."""
        if not server.held and not server.is_connected and server.id not in self._awaited:
            del self.servers[server.id]
            if self._seen.pop(server.id, None) is not None:
                self._records.append(MemoryServerLeft(server.number))

    def drain(self, server_id: ServerId, now_s: float) -> None:
        """Move everything away from a server; then dismiss it. Raises VolumeError."""
        server = self.servers.get(server_id)
        if server is None or not server.is_connected:
            raise VolumeError(f"there is no memory server {server_id}")
        server.is_draining = True
        self._see(server)
        self._short |= dict.fromkeys(self._extent(key) for key in server.held)
        if not server.held:
            self._orders.append(Dismiss(server_id))
        self._repair(now_s)

    # --- volumes ----------------------------------------------------------------------------------

    def create(
        self,
        name: str,
        extents: int,
        replicas: int,
        now_s: float,
        owner: str = "",
        compress: str = "",
    ) -> Volume:
        """Reserve memory for a volume; raises VolumeError."""
        if name in self.volumes:
            raise VolumeError(f"there is a volume {name!r} already")
        if not 1 <= replicas <= REPLICAS_MAX:
            raise VolumeError(f"a volume has 1 to {REPLICAS_MAX} replicas, not {replicas}")
        if extents < 1:
            raise VolumeError("a volume has at least one extent")
        if compress not in CODECS:
            raise VolumeError(f"pages are compressed by lz4 or zstd, not by {compress!r:.40}")
        volume = Volume(self._next_volume, name, replicas, owner, compress)
        free = {server.id: server.free for server in self._usable()}
        placed = []
        for _ in range(extents):
            chosen = sorted(free, key=lambda each: -free[each])[:replicas]
            if len(chosen) < replicas or min(free[each] for each in chosen) < 1:
                raise VolumeError(self._no_room(extents, replicas))
            for each in chosen:
                free[each] -= 1
            placed.append(chosen)
        self._next_volume += 1
        self.volumes[name] = self._by_number[volume.number] = volume
        created = VolumeCreated(volume.number, name, extents, replicas, owner, compress)
        self._records.append(created)
        for number, chosen in enumerate(placed):
            extent = Extent((volume.number, number), chosen)
            volume.extents.append(extent)
            for each in chosen:
                self.servers[each].held.add(extent.key)
            self._begin(extent, extent.in_sync, now_s)
        return volume

    def remove(self, name: str) -> None:
        """Remove a volume and its pages; raises VolumeError."""
        volume = self.named(name)
        del self.volumes[name]
        self._records.append(VolumeRemoved(volume.number))
        for extent in volume.extents:
            self._short.pop(extent, None)
            self._crowded.pop(extent, None)
            self._fencing.pop(extent, None)
            self._syncing.discard(extent)
            extent.epoch += 1
            for server in self.servers.values():
                if extent.key in server.held:
                    server.forget(extent.key)
                    if server.is_connected:  # else `Keep` names the rest when it returns
                        self._hold(server.id, Holding(*extent.key, extent.epoch, Role.NONE))
        for server in list(self.servers.values()):
            self._forget_if_empty(server)
        self._try_crowded_again()
        del self._by_number[volume.number]
        for server in self.servers.values():
            if server.is_draining and server.is_connected and not server.held:
                self._orders.append(Dismiss(server.id))

    def named(self, name: str) -> Volume:
        """Return a volume; raises VolumeError."""
        volume = self.volumes.get(name)
        if volume is None:
            raise VolumeError(f"there is no volume {name!r}")
        return volume

    def places(self, name: str) -> list[Place]:
        """Return where the extents of a volume are; raises VolumeError."""
        return [self.place(extent) for extent in self.named(name).extents]

    def place(self, extent: Extent) -> Place:
        """Return where an extent is."""
        if extent.stage is _Stage.READY:
            return Place(extent.epoch, self.servers[extent.primary].address, "")
        if extent.stage is _Stage.UNAVAILABLE:
            gone = ", ".join(sorted(extent.in_sync))
            if extent.is_lost:
                return Place(extent.epoch, "", f"memory server {gone} has lost its pages")
            return Place(extent.epoch, "", f"memory server {gone} is gone, which has its pages")
        return Place(extent.epoch, "", "")

    # --- answers of servers -----------------------------------------------------------------------

    def told(self, server_id: ServerId, number: int, now_s: float) -> None:
        """A server has carried out an order to hold."""
        for extent, epoch, role in self._told.pop((server_id, number), ()):
            is_awaited = extent.epoch > epoch and server_id in extent.waits  # for a later order
            if role is Role.NONE and server_id in extent.leaving and not is_awaited:
                self._note_left(extent, self.servers[server_id])
            if role is Role.NONE and server_id == extent.serving:
                extent.serving = None
            if extent.epoch == epoch and server_id in extent.waits:  # else it is superseded
                extent.waits.discard(server_id)
                self._next_stage(extent, now_s)
        self._repair(now_s)

    def synced(
        self, primary: ServerId, key: ExtentKey, epoch: int, backup: ServerId, now_s: float
    ) -> None:
        """A primary reports that a joining backup has all pages."""
        if not self._exists(key):
            return
        extent = self._extent(key)
        if extent.epoch == epoch and extent.primary == primary and backup in extent.joining:
            extent.joining.discard(backup)
            extent.in_sync.add(backup)
            self._changed[extent] = None
            if not extent.joining:
                self._syncing.discard(extent)
            self._short[extent] = None
            self._repair(now_s)

    def peer_lost(self, primary: ServerId, backup: ServerId, now_s: float) -> None:
        """A primary reports that its connection to a backup has ended."""
        self._links.discard((primary, backup))
        server = self.servers.get(primary)
        for key in list(server.held) if server is not None else ():
            extent = self._extent(key)
            if extent.stage is _Stage.RETURNING:
                continue  # it was a connection of the earlier owner's time
            if extent.primary == primary and backup in extent.holders:
                self._without(extent, backup)
                self._decide(extent, now_s)
        self._repair(now_s)

    # --- time -------------------------------------------------------------------------------------

    def due_s(self) -> float | None:
        """Return when `tick` has to be called next."""
        times = [server.lease_until_s for server in self.servers.values() if server.is_connected]
        times += [extent.fenced_until_s for extent in self._fencing]
        times += [self._return_until_s] if self._awaited else []
        return min(times, default=None)

    def tick(self, now_s: float) -> None:
        """Continue decisions that waited for the end of a lease; a server without one has gone."""
        for server in list(self.servers.values()):
            if server.is_connected and server.lease_until_s < now_s:
                self._orders.append(Expel(server.id))
                self.gone(server.id, now_s)
        for extent in [e for e in self._fencing if e.fenced_until_s <= now_s]:
            self._fencing.pop(extent, None)
            extent.serving = None
            self._next_stage(extent, now_s)
        if self._awaited and now_s >= self._return_until_s:
            self._end_return(now_s)

    def _end_return(self, now_s: float) -> None:
        """Continue without the servers of the earlier owner that have not returned."""
        missing, self._awaited = sorted(self._awaited), set()
        for volume in self._by_number.values():
            for extent in volume.extents:
                if extent.stage is _Stage.RETURNING:
                    self._decide(extent, now_s)
        for server_id in missing:
            self._forget_if_empty(self.servers[server_id])
        self._repair(now_s)

    # --- decisions --------------------------------------------------------------------------------

    def _decide(self, extent: Extent, now_s: float) -> None:
        """Begin a new decision about an extent, from the present knowledge."""
        untold = extent.waits - {extent.primary} - extent.leaving
        if extent.stage is _Stage.RETURNING:
            if self._awaited & extent.in_sync:
                return
            untold = set(extent.in_sync)  # an order of the earlier owner may not have left
        here = [s for s in sorted(extent.in_sync) if self._is_connected(s) and not extent.is_lost]
        for server_id in [s for s in sorted(extent.joining) if not self._is_connected(s)]:
            self._without(extent, server_id)
        if not here:
            extent.epoch += 1
            self._changed[extent] = None
            extent.stage = _Stage.UNAVAILABLE
            extent.waits = set()
            return
        if extent.primary in here:
            for server_id in sorted(extent.in_sync - set(here)):
                self._without(extent, server_id)
        else:
            untold |= self._take_over(extent, min(here, key=self._burden))
        self._begin(extent, untold & extent.holders, now_s)

    def _take_over(self, extent: Extent, primary: ServerId) -> set[ServerId]:
        """Let a server be the primary from now on; return the other holders.

        A write may have reached one of them, and not another.
        """
        extent.primary, extent.is_unequal = primary, True
        for server_id in [s for s in sorted(extent.in_sync) if not self._is_connected(s)]:
            self._without(extent, server_id)
        return extent.holders - {primary}

    def _without(self, extent: Extent, server_id: ServerId) -> None:
        """Take an extent away from a server, whose pages it does not need."""
        extent.in_sync.discard(server_id)
        extent.joining.discard(server_id)
        self._changed[extent] = None
        if not extent.joining:
            self._syncing.discard(extent)
        self._short[extent] = None
        server = self.servers[server_id]
        if server.is_connected:
            extent.leaving.add(server_id)
            self._hold(server_id, Holding(*extent.key, extent.epoch + 1, Role.NONE))
        else:  # when it returns, `Keep` names the rest
            server.forget(extent.key)

    def _note_left(self, extent: Extent, server: Server) -> None:
        extent.leaving.discard(server.id)
        if server.id not in extent.holders:
            server.forget(extent.key)
            self._try_crowded_again()
        if server.is_draining and not server.held and server.is_connected:
            self._orders.append(Dismiss(server.id))

    def _try_crowded_again(self) -> None:
        """A server may have room now."""
        self._short |= self._crowded
        self._crowded.clear()

    def _begin(self, extent: Extent, new: Iterable[ServerId], now_s: float) -> None:
        """Begin a decision: `new` servers get a role before the primary does."""
        extent.epoch += 1
        self._changed[extent] = None
        self._fencing.pop(extent, None)
        extent.waits = set()
        for server_id in sorted(set(new) - {extent.primary}):
            role = Role.JOINING if server_id in extent.joining else Role.BACKUP
            self._hold(server_id, Holding(*extent.key, extent.epoch, role))
            extent.waits.add(server_id)
        self._fence(extent, now_s)
        extent.stage = _Stage.FOLLOWERS
        self._next_stage(extent, now_s)

    def _fence(self, extent: Extent, now_s: float) -> None:
        """Let a decision wait until the earlier primary has confirmed its end, or has no lease."""
        earlier = extent.serving
        if earlier == extent.primary:
            return
        server = None if earlier is None else self.servers.get(earlier)
        if earlier is None:  # nobody, or a server that has its role from the earlier owner
            extent.fenced_until_s = min(extent.fenced_until_s, self._fenced_until_s)
        elif server is not None and server.is_connected:
            self._hold(earlier, Holding(*extent.key, extent.epoch, Role.NONE))
            extent.waits.add(earlier)
            extent.leaving.add(earlier)
            server.held.add(extent.key)
            return
        else:
            extent.fenced_until_s = now_s + LEASE_S if server is None else server.lease_until_s
        if extent.fenced_until_s > now_s:
            self._fencing[extent] = None

    def _next_stage(self, extent: Extent, now_s: float) -> None:
        if extent.waits or extent.stage is _Stage.UNAVAILABLE:
            return
        if extent in self._fencing:
            extent.stage = _Stage.FENCING
            return
        if extent.stage is _Stage.PRIMARY:
            extent.stage, extent.is_unequal = _Stage.READY, False
            if not extent.is_used:
                extent.is_used = True
                self._changed[extent] = None
            self._short[extent] = None
            return
        extent.stage = _Stage.PRIMARY
        extent.serving = extent.primary
        backups = tuple(sorted(extent.holders - {extent.primary}))
        for backup in backups:
            if (extent.primary, backup) not in self._links:
                self._links.add((extent.primary, backup))
                self._orders.append(Connect(extent.primary, backup))
        joining = tuple(sorted(extent.joining))
        rejoining = extent.in_sync - {extent.primary} if extent.is_unequal else ()
        self._hold(
            extent.primary,
            Holding(
                *extent.key, extent.epoch, Role.PRIMARY, backups, joining, tuple(sorted(rejoining))
            ),
        )
        extent.waits = {extent.primary}

    def _hold(self, server_id: ServerId, holding: Holding) -> None:
        self._holdings.setdefault(server_id, []).append(holding)

    # --- copies -----------------------------------------------------------------------------------

    def _repair(self, now_s: float) -> None:
        """Give extents the copies that they lack, and move them away from draining servers."""
        for extent in list(self._short):
            if extent.stage is _Stage.UNAVAILABLE or not self._exists(extent.key):
                del self._short[extent]
            elif extent.stage is _Stage.READY and not extent.joining:
                if len(self._syncing) >= SYNCS_MAX:
                    return
                del self._short[extent]
                self._repair_one(extent, now_s)

    def _repair_one(self, extent: Extent, now_s: float) -> None:
        replicas = self._by_number[extent.key[0]].replicas
        leaving = {s for s in extent.in_sync if self.servers[s].gives_away(extent.key)}
        staying = extent.in_sync - leaving
        if len(staying) < replicas:
            usable = [s for s in self._usable() if s.free > 0 and s.id not in extent.holders]
            if not usable:
                self._crowded[extent] = None
                urgent = {s for s in leaving if self.servers[s].is_urgent}
                if staying and urgent:
                    self._leave(extent, min(urgent), now_s)
                return
            chosen = max(usable, key=lambda server: server.free)
            chosen.held.add(extent.key)
            extent.joining.add(chosen.id)
            self._syncing.add(extent)
            self._begin(extent, {chosen.id}, now_s)
            return
        if leaving:  # each in turn
            self._leave(extent, min(leaving), now_s)

    def _leave(self, extent: Extent, server_id: ServerId, now_s: float) -> None:
        """Take an extent away from a server that gives it away."""
        self._without(extent, server_id)
        untold: set[ServerId] = set()
        if extent.primary == server_id:
            untold = self._take_over(extent, min(sorted(extent.in_sync), key=self._burden))
        self._begin(extent, untold, now_s)

    def _burden(self, server_id: ServerId) -> tuple[bool, int]:
        """Return a number that is smaller for a better primary."""
        server = self.servers[server_id]
        return server.is_draining or server.free < 0, -server.free

    def _is_connected(self, server_id: ServerId) -> bool:
        server = self.servers.get(server_id)
        return server is not None and server.is_connected

    def _usable(self) -> Iterator[Server]:
        return (s for s in self.servers.values() if s.is_connected and not s.is_draining)

    def _no_room(self, extents: int, replicas: int) -> str:
        free = sum(max(server.free, 0) for server in self._usable())
        return (
            f"the volume needs {extents * replicas} MiB on at least {replicas} servers; "
            f"{free} MiB are free"
        )

    def _exists(self, key: ExtentKey) -> bool:
        return key[0] in self._by_number

    def _extent(self, key: ExtentKey) -> Extent:
        return self._by_number[key[0]].extents[key[1]]
