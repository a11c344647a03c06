"""Decides which servers keep the pages of volumes: the owner's state, without clock or sockets.

A volume has extents. Of each extent, `in_sync` servers have all completed writes, so any of them
may become the primary; `joining` servers are getting the pages. The rules against
stale reads are those of docs/protocol/memory.md. This module keeps them as follows:

- A server leaves `in_sync` when that is decided, not when the primary knows. Until then, the
  primary completes no write without it.
- A decision about an extent is carried out in stages: what must not act any more is fenced, then
  joining servers forget their pages, then the primary takes over. Another event starts a new
  decision, with a higher epoch.
- `in_sync` never becomes empty. If all of them have gone, the extent is unavailable until one of
  them comes back. A server that was started again is another one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from typing import Final, NamedTuple

from ciel.core.errors import CielError

LEASE_S: Final = 0.4
"""How long a server may act as primary after it has asked for its lease."""
RENEWAL_S: Final = 0.1
SERVERS_MAX: Final = 64
REPLICAS_MAX: Final = 4
SYNCS_MAX: Final = 64
"""The number of extents that get a further copy at a time."""

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
    """The role of a server for an extent. Of a primary: its backups."""

    volume: int
    extent: int
    epoch: int
    role: Role
    backups: tuple[ServerId, ...] = ()
    joining: tuple[ServerId, ...] = ()


class Connect(NamedTuple):
    """Connect a server to another one, before it carries out the next order."""

    server: ServerId
    peer: ServerId


class Hold(NamedTuple):
    """Give a server roles; it answers with the number (`told`)."""

    server: ServerId
    number: int
    holdings: tuple[Holding, ...]


class Retain(NamedTuple):
    """A server that has joined may keep these extents, and no others."""

    server: ServerId
    extents: tuple[ExtentKey, ...]


class Dismiss(NamedTuple):
    """A server that drains holds nothing any more."""

    server: ServerId


class Expel(NamedTuple):
    """A server was silent, so it counts as gone: it has to join again."""

    server: ServerId


Order = Connect | Hold | Retain | Dismiss | Expel


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
        self.is_here = True
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
    FENCING = "fencing"  # an earlier primary may still act
    FOLLOWERS = "followers"  # joining servers forget their pages
    PRIMARY = "primary"  # the primary takes over
    UNAVAILABLE = "unavailable"

    __hash__ = object.__hash__


class Extent:
    """One extent of a volume."""

    __slots__ = (
        "epoch", "fenced_until_s", "in_sync", "joining", "key", "leaving", "primary", "serving",
        "stage", "waits",
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

    @property
    def holders(self) -> set[ServerId]:
        return self.in_sync | self.joining


class Volume:
    """A volume. `replicas`: of each page, at all times if there are enough servers.

    `owner`: the user who has created it, as the client says; "" if it does not.
    """

    def __init__(self, number: int, name: str, replicas: int, owner: str = "") -> None:
        self.number = number
        self.name = name
        self.replicas = replicas
        self.owner = owner
        self.extents: list[Extent] = []


class Volumes:
    """All volumes and servers.

    The caller carries out `take_orders` after each call, in their order for each server. It calls
    `tick` at `due_s`.
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
        self._short: dict[
            Extent, None
        ] = {}  # with fewer copies than wanted, or on a server to drain
        self._crowded: dict[Extent, None] = {}  # of these, those for which no server has room
        self._syncing: set[Extent] = set()
        self._next_volume = 1

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

    def join(self, server_id: ServerId, address: str, extents_max: int, now_s: float) -> None:
        """Add a new server, or one that returns; raises VolumeError if there are too many."""
        self.gone(server_id, now_s)
        server = self.servers.get(server_id)
        if server is None:
            taken = {other.number for other in self.servers.values()}
            number = next((n for n in range(SERVERS_MAX) if n not in taken), None)
            if number is None:
                raise VolumeError(f"at most {SERVERS_MAX} memory servers can join")
            server = self.servers[server_id] = Server(server_id, number, address, extents_max)
        server.address, server.is_here = address, True
        server.lease_until_s = now_s + LEASE_S
        self._orders.append(Retain(server_id, tuple(sorted(server.held))))
        for key in sorted(server.held):
            self._decide(self._extent(key), now_s)
        self.offer(server_id, extents_max, now_s)

    def offer(
        self, server_id: ServerId, extents_max: int, now_s: float, *, is_urgent: bool = False
    ) -> None:
        """Change how much a server offers. If it holds more, other servers get the rest.

        `is_urgent`: for which no other server has room, the server gives it up nevertheless, if
        another one has all its pages.
        """
        server = self.servers.get(server_id)
        if server is None or not server.is_here:
            return
        server.extents_max, server.is_urgent = extents_max, is_urgent
        server.surplus = self._surplus(server)
        self._short |= dict.fromkeys(self._extent(key) for key in server.surplus)
        self._has_room()
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
        """Renew a server's lease, from the moment at which it has asked."""
        server = self.servers.get(server_id)
        if server is not None and server.is_here:
            server.lease_until_s = now_s + LEASE_S

    def gone(self, server_id: ServerId, now_s: float) -> None:
        """Note that a server has left, died, or was silent for longer than its lease."""
        server = self.servers.get(server_id)
        if server is None or not server.is_here:
            return
        server.is_here = False
        self._links = {link for link in self._links if server_id not in link}
        self._told = {key: told for key, told in self._told.items() if key[0] != server_id}
        self._holdings.pop(server_id, None)
        for key in sorted(server.held):
            extent = self._extent(key)
            if server_id in extent.leaving:
                self._has_left(extent, server)
            if server_id in extent.holders or server_id in extent.waits:
                self._decide(extent, now_s)
        if not server.held:
            del self.servers[server_id]
        self._repair(now_s)

    def drain(self, server_id: ServerId, now_s: float) -> None:
        """Move everything away from a server; then dismiss it. Raises VolumeError."""
        server = self.servers.get(server_id)
        if server is None or not server.is_here:
            raise VolumeError(f"there is no memory server {server_id}")
        server.is_draining = True
        self._short |= dict.fromkeys(self._extent(key) for key in server.held)
        if not server.held:
            self._orders.append(Dismiss(server_id))
        self._repair(now_s)

    # --- volumes ----------------------------------------------------------------------------------

    def create(
        self, name: str, extents: int, replicas: int, now_s: float, owner: str = ""
    ) -> Volume:
        """Reserve memory for a volume; raises VolumeError."""
        if name in self.volumes:
            raise VolumeError(f"there is a volume {name!r} already")
        if not 1 <= replicas <= REPLICAS_MAX:
            raise VolumeError(f"a volume has 1 to {REPLICAS_MAX} replicas, not {replicas}")
        if extents < 1:
            raise VolumeError("a volume has at least one extent")
        volume = Volume(self._next_volume, name, replicas, owner)
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
        for extent in volume.extents:
            self._short.pop(extent, None)
            self._crowded.pop(extent, None)
            self._fencing.pop(extent, None)
            self._syncing.discard(extent)
            extent.epoch += 1
            for server in self.servers.values():
                if extent.key in server.held:
                    server.forget(extent.key)
                    self._hold(server.id, Holding(*extent.key, extent.epoch, Role.NONE))
        self._has_room()
        del self._by_number[volume.number]
        for server in self.servers.values():
            if server.is_draining and server.is_here and not server.held:
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
            return Place(extent.epoch, "", f"memory server {gone} is gone, which has its pages")
        return Place(extent.epoch, "", "")

    # --- answers of servers -----------------------------------------------------------------------

    def told(self, server_id: ServerId, number: int, now_s: float) -> None:
        """A server has carried out an order to hold."""
        for extent, epoch, role in self._told.pop((server_id, number), ()):
            if role is Role.NONE and server_id in extent.leaving:
                self._has_left(extent, self.servers[server_id])
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
            if extent.primary == primary and backup in extent.holders:
                self._without(extent, backup)
                self._decide(extent, now_s)
        self._repair(now_s)

    # --- time -------------------------------------------------------------------------------------

    def due_s(self) -> float | None:
        """Return when `tick` has to be called next."""
        times = [server.lease_until_s for server in self.servers.values() if server.is_here]
        times += [extent.fenced_until_s for extent in self._fencing]
        return min(times, default=None)

    def tick(self, now_s: float) -> None:
        """Continue decisions whose time has come; a server without a lease counts as gone."""
        for server in list(self.servers.values()):
            if server.is_here and server.lease_until_s < now_s:
                self._orders.append(Expel(server.id))
                self.gone(server.id, now_s)
        for extent in [e for e in self._fencing if e.fenced_until_s <= now_s]:
            self._fencing.pop(extent, None)
            extent.serving = None
            self._next_stage(extent, now_s)

    # --- decisions --------------------------------------------------------------------------------

    def _decide(self, extent: Extent, now_s: float) -> None:
        """Begin a new decision about an extent, from the present knowledge."""
        here = [s for s in sorted(extent.in_sync) if self._is_here(s)]
        untold = extent.waits - {extent.primary} - extent.leaving
        for server_id in [s for s in sorted(extent.joining) if not self._is_here(s)]:
            self._without(extent, server_id)
        if not here:
            extent.epoch += 1
            extent.stage = _Stage.UNAVAILABLE
            extent.waits = set()
            return
        if extent.primary in here:
            for server_id in sorted(extent.in_sync - set(here)):
                self._without(extent, server_id)
        else:
            extent.primary = min(here, key=self._burden)
            untold |= self._join_again(extent)
        self._begin(extent, untold & extent.holders, now_s)

    def _join_again(self, extent: Extent) -> set[ServerId]:
        """Let all but the primary get all pages again; return those servers.

        A write may have reached one of them, and not another.
        """
        others = extent.in_sync - {extent.primary}
        extent.in_sync = {extent.primary}
        for server_id in sorted(others):
            if self._is_here(server_id):
                extent.joining.add(server_id)
            else:
                self.servers[server_id].forget(extent.key)
        self._short[extent] = None
        return set(extent.joining)

    def _without(self, extent: Extent, server_id: ServerId) -> None:
        """Take an extent away from a server, whose pages it does not need."""
        extent.in_sync.discard(server_id)
        extent.joining.discard(server_id)
        if not extent.joining:
            self._syncing.discard(extent)
        self._short[extent] = None
        server = self.servers[server_id]
        if server.is_here:
            extent.leaving.add(server_id)
            self._hold(server_id, Holding(*extent.key, extent.epoch + 1, Role.NONE))
        else:  # when it returns, `Retain` names the rest
            server.forget(extent.key)

    def _has_left(self, extent: Extent, server: Server) -> None:
        extent.leaving.discard(server.id)
        if server.id not in extent.holders:
            server.forget(extent.key)
            self._has_room()
        if server.is_draining and not server.held and server.is_here:
            self._orders.append(Dismiss(server.id))

    def _has_room(self) -> None:
        """A server may have room now."""
        self._short |= self._crowded
        self._crowded.clear()

    def _begin(self, extent: Extent, new: Iterable[ServerId], now_s: float) -> None:
        """Begin a decision: `new` servers get a role before the primary does."""
        extent.epoch += 1
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
        """Wait until an earlier primary cannot act any more: it says so, or its lease has ended."""
        earlier = extent.serving
        if earlier is None or earlier == extent.primary:
            return
        server = self.servers.get(earlier)
        if server is not None and server.is_here:
            self._hold(earlier, Holding(*extent.key, extent.epoch, Role.NONE))
            extent.waits.add(earlier)
            extent.leaving.add(earlier)
            server.held.add(extent.key)
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
            extent.stage = _Stage.READY
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
        self._hold(
            extent.primary, Holding(*extent.key, extent.epoch, Role.PRIMARY, backups, joining)
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
            extent.primary = min(sorted(extent.in_sync), key=self._burden)
            untold = self._join_again(extent)
        self._begin(extent, untold, now_s)

    def _burden(self, server_id: ServerId) -> tuple[bool, int]:
        """Return a number that is smaller for a better primary."""
        server = self.servers[server_id]
        return server.is_draining or server.free < 0, -server.free

    def _is_here(self, server_id: ServerId) -> bool:
        server = self.servers.get(server_id)
        return server is not None and server.is_here

    def _usable(self) -> Iterator[Server]:
        return (s for s in self.servers.values() if s.is_here and not s.is_draining)

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
