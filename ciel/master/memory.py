"""Serves memory servers: their connections, and the owner of the volumes (NET-1, NET-3 to NET-5).

`ciel.memory.volumes` decides; this module writes its records to the master's journal, sends its
orders when these are durable, and answers clients.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from twisted.logger import Logger

from ciel.core.errors import CielError
from ciel.core.events import (
    AllowToken,
    ConnectServer,
    DismissServer,
    ExtentRole,
    ExtentsOffered,
    ExtentSynced,
    KeepExtents,
    LeaseAsked,
    LeaseGranted,
    MastersNamed,
    MemoryReported,
    Message,
    OfferChanged,
    PeerServerLost,
    RolesTaken,
    TakeRoles,
)
from ciel.core.ids import check_id
from ciel.core.volume_table import VolumeTable
from ciel.master.memory_limits import NO_LIMITS, WORKER, Limits, check_user
from ciel.master.memory_stats import (
    Figures,
    families,
    server_facts,
    server_row,
    summary,
    volume_row,
)
from ciel.memory.local import LocalAddress
from ciel.memory.master import PLACES_MAX
from ciel.memory.page_server import EXTENT_BYTES, TOKEN_BYTES
from ciel.memory.volumes import (
    LEASE_S,
    Connect,
    Dismiss,
    Expel,
    Extent,
    Hold,
    Holding,
    Keep,
    Order,
    Role,
    ServerId,
    VolumeError,
    Volumes,
)
from ciel.net.control import ControlPeer
from ciel.net.exposition import Family
from ciel.net.ticks import DelayedCall

log = Logger(__name__)

EXTENTS_MAX: Final = 1 << 24  # of one server: 16 TiB
_ROLES: Final = {Role.NONE: 0, Role.PRIMARY: 1, Role.BACKUP: 2, Role.JOINING: 3}


class Ledger(Protocol):
    """The journal of the master, as `MasterService` offers it."""

    def record(self, records: Sequence[Message]) -> None: ...
    def call_when_durable(self, call: Callable[[], object]) -> None: ...


class _Facts(NamedTuple):
    """The description of itself that a memory server sends when it connects."""

    server: ServerId
    address: str
    extents_max: int
    local: LocalAddress | None


class MemoryServers:
    """The connections of memory servers. Implements the callbacks of their peers."""

    def __init__(
        self, reactor: Any, ledger: Ledger, table: VolumeTable, fence_s: float = LEASE_S,
        limits: Limits = NO_LIMITS,
    ) -> None:  # fmt: skip
        """`table`: what the journal says. `fence_s`: after this time, no server has a lease of an
        earlier master.
        """
        self.may_lease: Callable[[], bool] = lambda: True
        """Whether no other master can have taken over: only then servers get leases."""
        self._reactor = reactor
        self._ledger = ledger
        self._limits = limits
        self._volumes = Volumes.restored(table, self._now_s(), fence_s)
        self._peers: dict[ServerId, ControlPeer] = {}
        self._names: dict[ControlPeer, ServerId] = {}
        self._joining: dict[ControlPeer, _Facts] = {}  # their `offered` has not come yet
        self._reports: dict[ServerId, Figures] = {}
        self._local: dict[ServerId, LocalAddress] = {}
        self._timer: DelayedCall | None = None
        self._masters: tuple[str, ...] = ()
        self._act()

    def close(self) -> None:
        if self._timer is not None and self._timer.active():
            self._timer.cancel()

    # --- connections ------------------------------------------------------------------------------

    def peer_opened(self, peer: ControlPeer) -> None:
        assert peer.hello is not None
        about = peer.hello.about
        try:
            self._joining[peer] = _Facts(
                check_id(about.get("server")), _address(about.get("address")),
                _whole(about.get("extents"), 0, EXTENTS_MAX),
                LocalAddress.parse(about.get("local")),
            )  # fmt: skip
        except CielError as error:
            peer.refuse(str(error))

    def peer_said(self, peer: ControlPeer, messages: list[Message]) -> None:
        for message in messages:
            if isinstance(message, ExtentsOffered):
                self._join(peer, message)
            elif peer in self._names:
                self._said(peer, self._names[peer], message)
        self._act()

    def _join(self, peer: ControlPeer, offered: ExtentsOffered) -> None:
        facts = self._joining.pop(peer, None)
        if facts is None:
            return
        server, address, extents_max, local = facts
        if server in self._peers:
            self._let_go(self._peers[server])
        epochs = {(volume, extent): epoch for volume, extent, epoch in offered.extents}
        try:
            self._volumes.join(server, address, extents_max, epochs, self._now_s())
        except CielError as error:
            peer.refuse(str(error))
            return
        log.info(
            "memory server {id} at {address} offers {mib} MiB, and has {count} extents",
            id=server, address=address, mib=extents_max * (EXTENT_BYTES >> 20), count=len(epochs),
        )  # fmt: skip
        self._peers[server], self._names[peer] = peer, server
        if local is not None:
            self._local[server] = local
        if self._masters:
            peer.send(MastersNamed(self._masters))

    def _said(self, peer: ControlPeer, server: ServerId, message: Message) -> None:
        volumes, now_s = self._volumes, self._now_s()
        match message:
            case LeaseAsked(asked_us):
                volumes.renew(server, now_s)
                if self.may_lease():
                    peer.send(LeaseGranted(asked_us, round(LEASE_S * 1e6)))
            case RolesTaken(number):
                volumes.told(server, number, now_s)
            case ExtentSynced(volume, extent, epoch, number):
                other = self._numbered(number)
                volumes.synced(server, (volume, extent), epoch, other, now_s)
            case MemoryReported(figures):
                self._reports[server] = figures
            case OfferChanged(extents, is_urgent):
                log.info("memory server {id} offers {mib} MiB now", id=server,
                         mib=extents * (EXTENT_BYTES >> 20))  # fmt: skip
                volumes.offer(server, min(extents, EXTENTS_MAX), now_s, is_urgent=is_urgent)
            case PeerServerLost(number):
                volumes.peer_lost(server, self._numbered(number), now_s)

    def peer_drained(self, peer: ControlPeer) -> None:
        """Do nothing: messages to memory servers are few."""

    def peer_closed(self, peer: ControlPeer, reason: str) -> None:
        self._joining.pop(peer, None)
        server = self._names.get(peer)
        if server is not None:
            log.info("memory server {id} has gone: {why}", id=server, why=reason)
            self._forget(peer)
            self._act()

    def name_masters(self, urls: tuple[str, ...]) -> None:
        """Tell all servers where a master may be found when this one is gone."""
        self._masters = urls
        for peer in self._names:
            peer.send(MastersNamed(urls))

    def _let_go(self, peer: ControlPeer) -> None:
        """Close the connection of a server, which may connect again."""
        self._forget(peer)
        peer.turn_away()

    def _forget(self, peer: ControlPeer) -> None:
        server = self._names.pop(peer)
        del self._peers[server]
        self._reports.pop(server, None)
        self._local.pop(server, None)
        self._volumes.gone(server, self._now_s())

    # --- clients ----------------------------------------------------------------------------------

    def answer(self, topic: str, argument: Mapping[str, Any]) -> Any:
        """Answer a query about memory; raises CielError."""
        if topic == "memory":
            return self._described()
        if topic == "memory_stats":
            return self._stats()
        if topic == "memory_places":
            return self._places(_text(argument, "name"), argument)
        raise VolumeError(f"there is no query {topic!r}")

    def families(self) -> list[Family]:
        """Return the metrics of memory servers and volumes."""
        return families(self._volumes, self._reports)

    def summary(self) -> dict[str, int]:
        """Return what `ciel status` shows; empty without memory servers and volumes."""
        return summary(self._volumes)

    def change(self, topic: str, argument: Mapping[str, Any]) -> Any:
        """Carry out a request about memory; raises CielError."""
        requests: dict[str, Callable[[Mapping[str, Any]], Any]] = {
            "memory_create": self._create,
            "memory_remove": self._remove,
            "memory_drain": self._drain,
            "memory_connect": self._connect_client,
        }
        if topic not in requests:
            raise VolumeError(f"there is no request {topic!r}")
        result = requests[topic](argument)
        self._act()
        return result

    def change_of_worker(self, worker: str, topic: str, argument: Mapping[str, Any]) -> Any:
        """Carry out a request of a worker about its own volumes; raises CielError."""
        owner = WORKER + worker
        if topic in ("memory", "memory_places"):
            return self.answer(topic, argument)
        if topic == "memory_create":
            volume = self._create(argument, owner)
            self._act()
            return volume
        if topic == "memory_remove":
            volume_name = _text(argument, "name")
            if self._volumes.named(volume_name).owner != owner:
                raise VolumeError(f"volume {volume_name!r} does not belong to worker {worker}")
        elif topic != "memory_connect":
            raise VolumeError(f"a worker cannot request the change {topic!r:.60}")
        return self.change(topic, argument)

    def keep_of_workers(self, workers: Collection[str]) -> None:
        """Remove the volumes of all workers except these."""
        owners = {WORKER + worker for worker in workers}
        for name, volume in [*self._volumes.volumes.items()]:
            if volume.owner.startswith(WORKER) and volume.owner not in owners:
                log.info("volume {name} is removed: {owner} has gone", name=name,
                         owner=volume.owner)  # fmt: skip
                self._volumes.remove(name)
                self._act()

    def _create(self, argument: Mapping[str, Any], owner: str = "") -> Any:
        """Create a volume for the owner, or for the user that a client says it has."""
        name = check_id(argument.get("name"))
        size_bytes = _whole(argument.get("size_bytes"), 1, EXTENTS_MAX * EXTENT_BYTES)
        replicas = _whole(argument.get("replicas"), 1, 1 << 30)
        extents = -(-size_bytes // EXTENT_BYTES)
        owner = owner or check_user(argument.get("user", ""))
        compress = argument.get("compress") or ""
        if name not in self._volumes.volumes:
            self._limits.check(self._volumes.volumes.values(), owner, extents, replicas)
        self._volumes.create(name, extents, replicas, self._now_s(), owner, compress)
        return self._volume(name)

    def _remove(self, argument: Mapping[str, Any]) -> Any:
        self._volumes.remove(_text(argument, "name"))
        return None

    def _drain(self, argument: Mapping[str, Any]) -> Any:
        self._volumes.drain(_text(argument, "server"), self._now_s())
        return None

    def _connect_client(self, argument: Mapping[str, Any]) -> Any:
        """Let a client connect to a server; return its addresses and the token."""
        server = self._numbered(_whole(argument.get("server"), 0, 1 << 30))
        if server not in self._peers:
            raise VolumeError("the memory server has gone")
        local = self._local.get(server)
        return {
            "address": self._volumes.servers[server].address, "token": self._token(server),
            "local": None if local is None else local._asdict(),
        }  # fmt: skip

    def _described(self) -> Any:
        servers = [server_facts(server) for server in self._volumes.servers.values()]
        return {"servers": servers, "volumes": [self._volume(v) for v in self._volumes.volumes]}

    def _stats(self) -> Any:
        servers = [
            server_row(server, self._reports.get(server.id, {}))
            for server in self._volumes.servers.values()
        ]
        volumes = [
            {**self._volume(name), **volume_row(volume)}
            for name, volume in self._volumes.volumes.items()
        ]
        return {"servers": servers, "volumes": volumes}

    def _volume(self, name: str) -> Any:
        volume, places = self._volumes.named(name), self._volumes.places(name)
        return {
            "name": name, "number": volume.number, "size_bytes": len(places) * EXTENT_BYTES,
            "replicas": volume.replicas, "owner": volume.owner, "compress": volume.compress,
            "copies": min(len(extent.in_sync) for extent in volume.extents),
            "available": sum(bool(place.address) for place in places), "extents": len(places),
            "why": next((place.why for place in places if place.why), ""),
        }  # fmt: skip

    def _places(self, name: str, argument: Mapping[str, Any]) -> list[Any]:
        """Return where some extents are, fewer if the volume ends before."""
        extents = self._volumes.named(name).extents
        first = _whole(argument.get("extent"), 0, len(extents) - 1)
        count = _whole(argument.get("count"), 1, PLACES_MAX)
        return [self._place(extent) for extent in extents[first : first + count]]

    def _place(self, extent: Extent) -> Any:
        place = self._volumes.place(extent)
        here = bool(place.address)
        server = self._volumes.servers[extent.primary].number if here else 0
        return {"epoch": place.epoch, "server": server, "here": here, "why": place.why}

    # --- orders -----------------------------------------------------------------------------------

    def _act(self) -> None:
        """Write the records of the state, carry out its orders, and plan its next tick."""
        while True:
            orders, records = self._volumes.take_orders(), self._volumes.take_records()
            if not orders and not records:
                break
            self._ledger.record(records)
            for order in orders:
                peer = self._peers.get(order.server)
                if peer is not None:
                    self._carry_out(peer, order)
        if self._timer is not None and self._timer.active():
            self._timer.cancel()
        due_s = self._volumes.due_s()
        if due_s is not None:
            delay_s = max(due_s - self._now_s(), 0.0) + 0.001
            self._timer = self._reactor.callLater(delay_s, self._tick)

    def _tick(self) -> None:
        self._volumes.tick(self._now_s())
        self._act()

    def _carry_out(self, peer: ControlPeer, order: Order) -> None:
        match order:
            case Connect(server, other):
                known = self._volumes.servers.get(other)
                if known is not None:
                    token = self._token(other)
                    self._send(peer, server, ConnectServer(known.number, known.address, token))
            case Hold(server, number, holdings):
                roles = tuple([self._role(held) for held in holdings])
                self._send(peer, server, TakeRoles(number, roles))
            case Keep(server, extents):
                self._send(peer, server, KeepExtents(extents))
            case Dismiss(server):
                self._send(peer, server, DismissServer())
            case Expel(server):
                log.info("memory server {id} was silent, and has to join again", id=server)
                self._let_go(peer)

    def _send(self, peer: ControlPeer, server: ServerId, message: Message) -> None:
        """Send an order when the decision about it is durable, if the server is still there."""

        def send() -> None:
            if self._names.get(peer) == server:
                peer.send(message)

        self._ledger.call_when_durable(send)

    def _role(self, held: Holding) -> ExtentRole:
        def numbers(servers: Iterable[ServerId]) -> tuple[int, ...]:
            known = [self._volumes.servers[s] for s in servers if s in self._volumes.servers]
            return tuple([server.number for server in known])

        return ExtentRole(
            held.volume, held.extent, held.epoch, _ROLES[held.role], numbers(held.backups),
            numbers(held.joining), numbers(held.rejoining),
        )  # fmt: skip

    def _token(self, server: ServerId) -> str:
        """Have a server accept a connection; return the token with which it begins."""
        token = secrets.token_hex(TOKEN_BYTES)
        if server in self._peers:
            self._peers[server].send(AllowToken(token))
        return token

    def _numbered(self, number: int) -> ServerId:
        """Return the server of a number; "" if there is none."""
        servers = self._volumes.servers.values()
        return next((server.id for server in servers if server.number == number), "")

    def _now_s(self) -> float:
        now_s: float = self._reactor.seconds()
        return now_s


def _whole(value: Any, least: int, most: int) -> int:
    if type(value) is not int or not least <= value <= most:
        raise VolumeError(f"a whole number from {least} to {most} was expected, not {value!r:.40}")
    return value


def _text(argument: Mapping[str, Any], field: str) -> str:
    value = argument.get(field)
    if not isinstance(value, str):
        raise VolumeError(f"the field {field!r} must be a text")
    return value


def _address(value: Any) -> str:
    if not isinstance(value, str) or not value.isprintable() or ":" not in value:
        raise VolumeError("a memory server must say its address")
    return value
