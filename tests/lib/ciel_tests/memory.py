"""Simulates memory servers, their owner and clients on an imaginary network.

Servers die, freeze, leave, come back, offer less and lose their network; messages take random
times. The owner is restarted with the records that had become durable. Each page has one writer and
several readers, so a stale read can be recognised: a read must return at least the last version
whose write had ended, or that another read had returned, before it began.
"""

from __future__ import annotations

import heapq
import random
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any

from ciel.core.events import VolumeRecord
from ciel.core.volume_table import VolumeTable
from ciel.memory.volumes import (
    LEASE_S,
    RENEWAL_S,
    Connect,
    Dismiss,
    Expel,
    ExtentKey,
    Hold,
    Holding,
    Keep,
    Order,
    Role,
    Volumes,
)

PAGES = 4  # of an extent
SCENARIO = "volumes"
VOLUMES = 2
EXTENTS = 3  # of a volume
OFFER = 2 * EXTENTS
REQUEST_TIMEOUT_S = 0.7
FAULTS_FOR_S = 20.0
HEALED_FOR_S = 10.0
TROUBLE_MAX_S = 6.0
"""How long a server is frozen or cut off: it has to be well again before the end."""


class ViolationError(AssertionError):
    """A rule was broken."""


@dataclass
class Write:
    """A write at its primary that waits for its backups."""

    page: int
    version: int
    session: int
    id: int
    waits: set[str]
    reply: Callable[[str], None]


@dataclass
class Held:
    """An extent at a server."""

    epoch: int
    role: Role
    backups: tuple[str, ...] = ()
    pages: dict[int, int] = field(default_factory=dict)
    pending: list[Write] = field(default_factory=list)
    unequal: set[str] = field(default_factory=set)
    """Backups of this primary that it has not made equal to itself yet."""
    waiting: list[tuple[int | None, Callable[[Any], None]]] = field(default_factory=list)
    """Requests that wait for that: reads of a page, and repeated writes (None)."""
    copy: object = field(default_factory=object)
    """Another one when completed requests may have been undone, so that they are forgotten."""
    equal_from: int = 0
    """The epoch in which it began to get the pages, or to be made equal."""


class Server:
    """A memory server: the rules of the server in C, without bytes."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.held: dict[ExtentKey, Held] = {}
        self.last: dict[int, tuple[int, object]] = {}  # of each session: id, and the copy
        self.lease_until_s = -1.0
        self.is_dead = False
        self.frozen_until_s = 0.0
        self.cut_until_s = 0.0  # from the owner and from servers; clients reach it
        self.is_joined = False
        self.session = 0  # the number of its connection to the owner
        self.links: dict[str, int] = {}  # the number of each connection to a peer
        self.renews()

    def is_cut(self) -> bool:
        return self.is_dead or self.world.now_s < self.cut_until_s

    # --- the owner --------------------------------------------------------------------------------

    def renews(self) -> None:
        """Ask for the lease now and then, and join again after the owner has given it up."""
        if self.is_dead:
            return
        self.world.after(RENEWAL_S, self.renews)
        if self.world.now_s < self.frozen_until_s or self.is_cut():
            return
        asked_s = self.world.now_s
        if self.is_joined:
            self.world.to_owner(self, "renew", asked_s)
        else:
            self.joins()

    def joins(self) -> None:
        """Connect to the owner, unless there is a connection or none is possible."""
        if self.is_joined or self.world.now_s < self.frozen_until_s or self.is_cut():
            return
        self.is_joined = True
        self.session += 1
        self._resign()
        offered = {key: held.epoch for key, held in self.held.items()}
        self.world.to_owner(self, "join", offered)

    def _resign(self) -> None:
        """Be primary of nothing until the owner says so again."""
        for held in self.held.values():
            if held.role is Role.PRIMARY:
                held.role = Role.BACKUP
                self._refuse(held)

    def _refuse(self, held: Held) -> None:
        for write in held.pending:
            write.reply("stale")
        for _, reply in held.waiting:
            reply("stale")
        held.pending.clear()
        held.waiting.clear()

    def leased(self, until_s: float) -> None:
        self.lease_until_s = max(self.lease_until_s, until_s)

    def ordered(self, order: Order) -> None:
        match order:
            case Keep(extents=extents):
                for key in set(self.held) - set(extents):
                    self._drop(key)
            case Connect(peer=peer):
                self.links[peer] = next(self.world.numbers)
                if self.world.is_separate(self, self.world.servers[peer]):
                    self._lost(peer)
            case Hold(number=number, holdings=holdings):
                for holding in holdings:
                    self._hold(holding)
                self.world.to_owner(self, "told", number)
            case Expel() | Dismiss():
                self.lease_until_s = -1.0
                self.is_joined = False
                if isinstance(order, Dismiss):
                    self.is_dead = True
                    self.world.after(0.01, self.world.notice, self)

    def _drop(self, key: ExtentKey) -> None:
        self._refuse(self.held.pop(key))

    def _hold(self, holding: Holding) -> None:
        key = (holding.volume, holding.extent)
        held = self.held.get(key)
        if held is not None and holding.epoch < held.epoch:
            return
        if held is not None and holding.role in (Role.NONE, Role.JOINING):
            self._drop(key)
            held = None
        if holding.role is Role.NONE:
            return
        if held is None:
            held = self.held[key] = Held(holding.epoch, holding.role, equal_from=holding.epoch)
        held.epoch, held.role, held.backups = holding.epoch, holding.role, holding.backups
        if held.role is not Role.PRIMARY:
            held.unequal.clear()
            self._refuse(held)
            return
        held.unequal = (held.unequal | set(holding.rejoining)) & set(holding.backups)
        self._answer(held)
        remaining = set(holding.backups) - set(holding.joining)
        for write in held.pending:
            write.waits &= remaining
        self._complete(held)
        for peer in sorted({*holding.joining, *held.unequal}):
            self._sync(key, holding.epoch, peer, list(held.pending), 0)

    def _answer(self, held: Held) -> None:
        """Answer the requests that wait for equal backups, unless some are not equal yet."""
        while held.waiting and not held.unequal:
            page, reply = held.waiting.pop(0)
            if self.world.now_s >= self.lease_until_s:  # it may have ended meanwhile
                reply("stale")
            else:
                reply("done" if page is None else held.pages.get(page, 0))

    # --- clients ----------------------------------------------------------------------------------

    def _primary(self, key: ExtentKey, epoch: int) -> Held | None:
        held = self.held.get(key)
        if held is None or held.role is not Role.PRIMARY or held.epoch != epoch:
            return None
        return held if self.world.now_s < self.lease_until_s else None

    def read(self, key: ExtentKey, epoch: int, page: int, reply: Callable[[Any], None]) -> None:
        held = self._primary(key, epoch)
        if held is None:
            reply("stale")
        else:
            held.waiting.append((page, reply))
            self._answer(held)

    def write(
        self, key: ExtentKey, epoch: int, page: int, version: int, session: int, id: int,
        reply: Callable[[str], None],
    ) -> None:  # fmt: skip
        held = self._primary(key, epoch)
        if held is None:
            reply("stale")
            return
        last_id, at = self.last.get(session, (0, None))
        if id < last_id or (id == last_id and at is held.copy):
            held.waiting.append((None, reply))
            self._answer(held)
            return
        for write in held.pending:
            if (write.session, write.id) == (session, id):
                write.reply = reply
                return
        write = Write(page, version, session, id, set(held.backups), reply)
        held.pending.append(write)
        for peer in held.backups:
            self._forward(key, held.epoch, write, peer)
        self._complete(held)

    def _complete(self, held: Held) -> None:
        while held.pending and not held.pending[0].waits:
            write = held.pending.pop(0)
            held.pages[write.page] = write.version
            self._applied(write.session, write.id, held)
            write.reply("done")

    def _applied(self, session: int, id: int, held: Held) -> None:
        if id >= self.last.get(session, (0, None))[0]:
            self.last[session] = (id, held.copy)

    # --- peers ------------------------------------------------------------------------------------

    def _forward(self, key: ExtentKey, epoch: int, write: Write, peer: str) -> None:
        def acknowledged(answer: str) -> None:
            if answer != "done":
                self._lost(peer)
                return
            write.waits.discard(peer)
            if (held := self.held.get(key)) is not None:
                self._complete(held)

        content = {write.page: write.version}
        self.world.to_peer(
            self, peer, "follow", key, epoch, content, (write.session, write.id),
            reply=acknowledged,
        )  # fmt: skip

    def follow(
        self, key: ExtentKey, epoch: int, pages: dict[int, int], request: tuple[int, int] | None,
        reply: Callable[[str], None],
    ) -> None:  # fmt: skip
        held = self.held.get(key)
        if held is None or epoch < held.epoch or held.role is Role.PRIMARY:
            reply("stale")
            return
        held.epoch = epoch
        held.pages |= pages
        if request is None and epoch > held.equal_from:
            held.equal_from, held.copy = epoch, object()
        if request is not None:
            self._applied(*request, held)
        reply("done")

    def _sync(self, key: ExtentKey, epoch: int, peer: str, earlier: list[Write], page: int) -> None:
        """Send the next page of an extent to a joining peer."""
        held = self.held.get(key)
        if self.is_dead or held is None or held.role is not Role.PRIMARY or held.epoch != epoch:
            return
        if any(write in held.pending for write in earlier):  # they were not forwarded to it
            self.world.after(0.01, self._sync, key, epoch, peer, earlier, page)
            return
        if page == PAGES:
            held.unequal.discard(peer)
            self._answer(held)
            self.world.to_owner(self, "synced", key, epoch, peer)
            return
        pages = {} if any(w.page == page for w in held.pending) else {page: held.pages.get(page, 0)}

        def sent(answer: str) -> None:
            if answer == "done":
                self._sync(key, epoch, peer, earlier, page + 1)
            else:
                self._lost(peer)

        self.world.to_peer(self, peer, "follow", key, epoch, pages, None, reply=sent)

    def _lost(self, peer: str) -> None:
        if self.links.pop(peer, None) is not None:
            self.world.to_owner(self, "peer_lost", peer)


class Client:
    """Reads and writes pages, one request at a time; it writes only its own pages."""

    def __init__(self, world: World, number: int, pages: list[tuple[ExtentKey, int]]) -> None:
        self.world = world
        self.number = number
        self.own = pages
        self.places: dict[ExtentKey, tuple[int, str]] = {}  # epoch and server, as it knows them
        self.id = 0
        self.attempt = 0
        self.done = 0
        self.begin()

    def begin(self) -> None:
        if self.world.is_over:
            return
        chance = self.world.chance
        self.attempt += 1
        if chance.random() < 0.1:  # as a client that has just been started
            self.places.clear()
        if chance.random() < 0.5 and self.own:
            key, page = chance.choice(self.own)
            self.id += 1
            self.world.written[key, page] = self.world.written.get((key, page), 0) + 1
            self._try_write(key, page, self.world.written[key, page], self.attempt)
        else:
            recent = self.world.recent if chance.random() < 0.5 else None
            key, page = chance.choice(recent or self.world.all_pages)
            self._try_read(key, page, self.world.least.get((key, page), 0), self.attempt)

    def _try_write(self, key: ExtentKey, page: int, version: int, attempt: int) -> None:
        def replied(answer: str) -> None:
            if attempt != self.attempt:
                return
            if answer == "done":
                self.world.raise_least(key, page, version)
                self.world.recent.append((key, page))
                self._over()
            else:
                self.world.after(0.02, self._again, self._try_write, key, page, version, attempt)

        self._request(key, attempt, "write", page, version, self.number, self.id, reply=replied)
        self._later(self._try_write, key, page, version, attempt)

    def _try_read(self, key: ExtentKey, page: int, least: int, attempt: int) -> None:
        def replied(answer: Any) -> None:
            if attempt != self.attempt:
                return
            if answer == "stale":
                self.world.after(0.02, self._again, self._try_read, key, page, least, attempt)
                return
            if not least <= answer <= self.world.written.get((key, page), 0):
                raise ViolationError(f"{key} page {page}: read {answer}, but {least} was there")
            self.world.raise_least(key, page, answer)
            self._over()

        self._request(key, attempt, "read", page, reply=replied)
        self._later(self._try_read, key, page, least, attempt)

    def _again(self, try_: Callable[..., None], *arguments: Any) -> None:
        """Ask the owner where the extent is, and try again."""
        if arguments[-1] == self.attempt:
            self.attempt += 1
            key, again = arguments[0], partial(try_, *arguments[:-1], self.attempt)

            def learned(epoch: int, server: str) -> None:
                self.places[key] = (epoch, server)
                again()

            self.world.ask_place(key, learned)

    def _later(self, try_: Callable[..., None], *arguments: Any) -> None:
        self.world.after(REQUEST_TIMEOUT_S, self._again, try_, *arguments)

    def _request(
        self, key: ExtentKey, attempt: int, method: str, *arguments: Any, reply: Callable[..., None]
    ) -> None:
        epoch, name = self.places.get(key, (0, ""))
        if name:
            server = self.world.servers[name]
            self.world.to_server(server, method, key, epoch, *arguments, reply=reply)
        else:
            reply("stale")

    def _over(self) -> None:
        self.done += 1
        self.attempt += 1
        self.world.after(self.world.chance.expovariate(50.0), self.begin)


class World:
    """The network, the clock, the owner's state, and the faults. `run` raises ViolationError."""

    def __init__(
        self, seed: int, servers: int = 4, clients: int = 3, *, restarts: bool = False
    ) -> None:
        """`restarts`: the owner ends now and then, and continues from its journal."""
        self.chance = random.Random(seed)
        self.restarts = restarts
        self.restarted = 0
        self.is_down = False
        self.durable = VolumeTable()
        self.recorded = VolumeTable()  # also of records that are not durable
        self.waiting: deque[tuple[list[VolumeRecord], list[tuple[Order, int]]]] = deque()
        self.now_s = 0.0
        self.numbers = count(1)
        self.volumes = Volumes()
        self.servers: dict[str, Server] = {}
        self.written: dict[tuple[ExtentKey, int], int] = {}
        self.least: dict[tuple[ExtentKey, int], int] = {}
        self.all_pages: list[tuple[ExtentKey, int]] = []
        self.recent: deque[tuple[ExtentKey, int]] = deque(maxlen=3)  # the last ones written
        self.is_over = False
        self.is_calm = False
        self._events: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._channels: dict[Any, float] = {}  # the time of the last message, by direction
        self._queues: dict[Any, deque[Callable[[], None]]] = {}  # by direction
        self._tick_s: float | None = None
        self._clients = clients
        for _ in range(servers):
            self.new_server()

    # --- time and messages ------------------------------------------------------------------------

    def after(self, delay_s: float, call: Callable[..., object], *arguments: Any) -> None:
        self._at(self.now_s + delay_s, call, *arguments)

    def _at(self, at_s: float, call: Callable[..., object], *arguments: object) -> None:
        heapq.heappush(self._events, (at_s, next(self.numbers), call, arguments))

    def _in_order(self, channel: Any, call: Callable[..., object], *arguments: Any) -> None:
        """Deliver a message after earlier ones of its channel."""
        at_s = max(self.now_s + self.chance.expovariate(500.0), self._channels.get(channel, 0.0))
        self._channels[channel] = at_s
        self._at(at_s, call, *arguments)  # not after a difference, which may be rounded down

    def to_owner(self, server: Server, what: str, *arguments: Any) -> None:
        session = server.session

        def arrives() -> None:
            if server.is_dead or server.session != session or self.is_down:
                return
            if what != "join" and not self._knows(server):
                self._to_joined(server, "ordered", Expel(server.name))
                return
            volumes = self.volumes
            match what:
                case "join":
                    volumes.join(server.name, server.name, OFFER, arguments[0], self.now_s)
                    self.to_server(server, "leased", self.now_s)
                case "renew":
                    volumes.renew(server.name, self.now_s)
                    self._to_joined(server, "leased", arguments[0] + LEASE_S)
                case "told":
                    volumes.told(server.name, arguments[0], self.now_s)
                case "synced":
                    key, epoch, backup = arguments
                    volumes.synced(server.name, key, epoch, backup, self.now_s)
                case "peer_lost":
                    volumes.peer_lost(server.name, arguments[0], self.now_s)
            self.acts()

        self._send((server.name, "owner"), server, arrives)

    def _knows(self, server: Server) -> bool:
        known = self.volumes.servers.get(server.name)
        return known is not None and known.is_connected

    def _to_joined(self, server: Server, method: str, *arguments: Any) -> None:
        session = server.session

        def arrives() -> None:
            if server.is_dead or not server.is_joined or server.session != session:
                return
            self._when_awake(server, getattr(server, method), *arguments)

        self._send(("owner", server.name), server, arrives)

    def _send(self, channel: Any, server: Server, arrives: Callable[[], None]) -> None:
        """Deliver a message after earlier ones, when the network of a server is there."""
        self._queues.setdefault(channel, deque()).append(arrives)
        self._in_order(channel, self._deliver, channel, server)

    def _deliver(self, channel: Any, server: Server) -> None:
        if server.is_cut() and not server.is_dead:
            self._at(server.cut_until_s + 0.001, self._deliver, channel, server)
        else:
            self._queues[channel].popleft()()

    def _when_awake(self, server: Server, call: Callable[..., object], *arguments: Any) -> None:
        if server.is_dead:
            return
        if self.now_s < server.frozen_until_s:
            self.after(
                server.frozen_until_s - self.now_s, self._when_awake, server, call, *arguments
            )
        else:
            call(*arguments)

    def to_server(
        self, server: Server, method: str, *arguments: Any,
        reply: Callable[[Any], None] | None = None,
    ) -> None:  # fmt: skip
        """Send a request of a client; clients reach servers that nobody else reaches."""

        def arrives() -> None:
            if reply is None:
                self._when_awake(server, getattr(server, method), *arguments)
            else:
                self._when_awake(server, getattr(server, method), *arguments, answers)

        def answers(answer: Any) -> None:
            assert reply is not None
            self.after(self.chance.expovariate(500.0), reply, answer)

        self.after(self.chance.expovariate(500.0), arrives)

    def is_separate(self, one: Server, other: Server) -> bool:
        return one.is_cut() or other.is_cut()

    def to_peer(
        self, server: Server, peer: str, method: str, *arguments: Any,
        reply: Callable[[str], None],
    ) -> None:  # fmt: skip
        """Send a frame to a peer, over the present connection to it."""
        other, link = self.servers[peer], server.links.get(peer)

        def arrives() -> None:
            if server.links.get(peer) != link or link is None:
                return
            if self.is_separate(server, other):
                self.after(0.05, broken)
            else:
                self._when_awake(other, getattr(other, method), *arguments, answers)

        def answers(answer: str) -> None:
            self._in_order((peer, server.name, link), answered, answer)

        def answered(answer: str) -> None:
            if server.links.get(peer) != link or server.is_dead:
                return
            if self.is_separate(server, other):
                self.after(0.05, broken)
            else:
                self._when_awake(server, reply, answer)

        def broken() -> None:
            if server.links.get(peer) == link and not server.is_dead:
                server._lost(peer)

        if link is not None:
            self._in_order((server.name, peer, link), arrives)

    def raise_least(self, key: ExtentKey, page: int, version: int) -> None:
        """Note that a read which begins from now on must return at least this version."""
        self.least[key, page] = max(self.least.get((key, page), 0), version)

    # --- the owner --------------------------------------------------------------------------------

    def acts(self) -> None:
        """Write the owner's records; its orders are carried out when they are durable."""
        orders, records = self.volumes.take_orders(), self.volumes.take_records()
        for record in records:
            self.recorded.apply(record)
        if records or self.waiting:
            self.waiting.append((records, [(o, self._session_of(o)) for o in orders]))
            self._in_order("journal", self._stored, self.restarted)
            self._may_restart(0.15)  # before or soon after the records are durable
        else:
            for order in orders:
                self._carry_out(order, self._session_of(order))
        due_s = self.volumes.due_s()
        if due_s is not None and due_s != self._tick_s:
            self._tick_s = due_s
            self.after(max(due_s - self.now_s, 0.0) + 1e-6, self._tick, due_s)
        for text in self.problems():
            raise ViolationError(text)

    def _stored(self, restarted: int) -> None:
        """Note that the oldest records which were not durable are durable now."""
        if restarted == self.restarted:
            records, orders = self.waiting.popleft()
            for record in records:
                self.durable.apply(record)
            for order, session in orders:
                self._carry_out(order, session)

    def _session_of(self, order: Order) -> int:
        return self.servers[order.server].session

    def _carry_out(self, order: Order, session: int) -> None:
        if self.servers[order.server].session == session:
            self._to_joined(self.servers[order.server], "ordered", order)

    def _tick(self, due_s: float) -> None:
        if due_s != self._tick_s:
            return  # another one was scheduled since
        self._tick_s = None
        if not self.is_down:
            self.volumes.tick(self.now_s)
            self.acts()

    def _may_restart(self, probability: float) -> None:
        if self.restarts and not self.is_calm and self.chance.random() < probability:
            delay_s = self.chance.expovariate(100.0)
            self.after(delay_s, self.restart_owner, self.restarted)

    def restart_owner(self, restarted: int) -> None:
        """End the owner; another one continues later, from the records that were durable."""
        if restarted != self.restarted or len(self.durable.volumes) < VOLUMES:
            return  # clients know volumes only when these are durable
        self.restarted += 1
        self.is_down = True
        stored = self.chance.randrange(len(self.waiting) + 1)  # nobody knew of them yet
        for records, _ in list(self.waiting)[:stored]:
            for record in records:
                self.durable.apply(record)
        self.waiting.clear()
        self.recorded = VolumeTable()
        for record in self.durable.records():  # as a compaction does
            self.recorded.apply(record)
        for server in self.servers.values():
            self.after(self.chance.expovariate(20.0), self._closed, server, server.session)
        self.after(self.chance.expovariate(self.chance.choice([2.0, 100.0])), self._starts)

    def _starts(self) -> None:
        self.is_down = False
        self.volumes = Volumes.restored(self.durable, self.now_s)
        self._tick_s = None
        for server in self.servers.values():
            self.after(self.chance.expovariate(100.0), server.joins)
        self.acts()

    def _closed(self, server: Server, session: int) -> None:
        if server.session == session:
            server.is_joined = False

    def ask_place(self, key: ExtentKey, learned: Callable[[int, str], object]) -> None:
        """Call a function with the epoch and the server of an extent, as they are now."""
        name = next(n for n, each in self.volumes.volumes.items() if each.number == key[0])
        place = self.volumes.places(name)[key[1]]
        self.after(self.chance.expovariate(500.0), learned, place.epoch, place.address)

    def problems(self) -> list[str]:
        """Return broken rules of the owner's state."""
        found = []
        for volume in self.volumes.volumes.values():
            for extent in volume.extents:
                if not extent.in_sync:
                    found.append(f"{extent.key} has no server in sync")
                if extent.primary not in extent.in_sync and extent.stage.value != "unavailable":
                    found.append(f"the primary of {extent.key} is not in sync")
                for each in extent.holders:
                    known = self.volumes.servers.get(each)
                    if known is None or extent.key not in known.held:
                        found.append(f"{each} does not hold {extent.key}")
        for server in self.volumes.servers.values():
            kept = [k for k in server.held if server.id in self.volumes._extent(k).holders]
            is_over = server.is_connected and len(kept) - len(server.surplus) > server.extents_max
            if is_over or len(server.held) > OFFER:
                found.append(f"{server.id} holds more than it offers")
        return [*found, *self._not_recorded()]

    def _not_recorded(self) -> list[str]:
        """Return what a restarted owner would not know, if all records were durable."""
        table = self.recorded
        servers = {(s.number, s.id, s.is_draining) for s in self.volumes.servers.values()}
        found = [] if servers == {
            (s.number, s.server, s.is_draining) for s in table.servers.values()
        } else ["the records name other servers"]  # fmt: skip
        names = {seen.number: seen.server for seen in table.servers.values()}
        for volume in self.volumes.volumes.values():
            for extent in volume.extents:
                placed = table.extents[volume.number][extent.key[1]]
                recorded = {names[number] for number in placed.in_sync}
                if (placed.epoch, recorded) != (extent.epoch, extent.in_sync):
                    found.append(f"{extent.key} is recorded as {placed}")
        return found

    # --- faults -----------------------------------------------------------------------------------

    def new_server(self) -> Server:
        name = f"s{len(self.servers)}"
        self.servers[name] = Server(self, name)
        return self.servers[name]

    def has_last_copy(self, server: Server) -> bool:
        """Whether pages may be lost with a server, since nothing is well that has the same."""
        for volume in self.volumes.volumes.values():
            for extent in volume.extents:
                others = [self.servers[s] for s in extent.in_sync if s != server.name]
                if server.name in extent.in_sync and not any(map(self.is_well, others)):
                    return True
        return False

    def is_well(self, server: Server) -> bool:
        """Whether nothing has happened to a server for some time."""
        troubled_until_s = max(server.frozen_until_s, server.cut_until_s)
        return self._knows(server) and not server.is_dead and troubled_until_s + 1.0 < self.now_s

    def fault(self) -> None:
        """Do something to a server, and again later."""
        if self.now_s > FAULTS_FOR_S and self.is_down:
            self.after(0.1, self.fault)
            return
        if self.now_s > FAULTS_FOR_S:
            self.is_calm = True
            for server in self.servers.values():
                self.volumes.offer(server.name, OFFER, self.now_s)
            self.acts()
            return
        self.after(self.chance.expovariate(1.5), self.fault)
        living = [server for server in self.servers.values() if not server.is_dead]
        server, chance = self.chance.choice(living), self.chance.random()
        if any(self._knows(each) for each in self.servers.values() if each.is_dead):
            return  # the owner does not know yet that a server has died
        if self.is_down or self.waiting:
            return  # a restarted owner may not know which servers have the last copy
        if chance < 0.3 and len(living) > 2 and not self.has_last_copy(server):
            server.is_dead = True
            self.after(self.chance.expovariate(100.0), self.notice, server)
            if len(living) < 5:
                self.after(self.chance.expovariate(2.0), self.new_server)
        elif chance < 0.5:
            until_s = self.now_s + min(self.chance.expovariate(1.0), TROUBLE_MAX_S)
            server.frozen_until_s = max(until_s, server.frozen_until_s)
        elif chance < 0.8:
            until_s = self.now_s + min(self.chance.expovariate(1.0), TROUBLE_MAX_S)
            server.cut_until_s = max(until_s, server.cut_until_s)
            if self.chance.random() < 0.5:  # its connection breaks, instead of being silent
                self.after(self.chance.expovariate(20.0), self.notice, server)
        elif chance < 0.9 and self._knows(server):
            extents, is_urgent = self.chance.randrange(OFFER + 1), self.chance.random() < 0.5
            self.volumes.offer(server.name, extents, self.now_s, is_urgent=is_urgent)
            self.acts()
        elif len(living) > 3 and self._knows(server):
            self.volumes.drain(server.name, self.now_s)
            self.acts()
            self.new_server()

    def notice(self, server: Server) -> None:
        """Both sides see that the connection of a server to the owner has ended."""
        if self._knows(server) and not self.is_down:
            self.volumes.gone(server.name, self.now_s)
            self.acts()
            self._may_restart(0.5)
        server.is_joined = False

    def run(self) -> int:
        """Run until everything has healed; return the number of requests that were answered."""
        self.after(0.5, self._create)
        self.after(1.0, self.fault)
        end_s = FAULTS_FOR_S + HEALED_FOR_S
        while self._events and self.now_s < end_s:
            self.now_s, _, call, arguments = heapq.heappop(self._events)
            call(*arguments)
        self.is_over = True
        self._check_end()
        return sum(client.done for client in self.clients)

    def _create(self) -> None:
        for name, replicas in (("two", 2), ("three", 3)):
            volume = self.volumes.create(name, EXTENTS, replicas, self.now_s)
            self.all_pages += [
                ((volume.number, extent), page)
                for extent in range(EXTENTS)
                for page in range(PAGES)
            ]
        own = [self.all_pages[n :: self._clients] for n in range(self._clients)]
        self.clients = [Client(self, number + 1, pages) for number, pages in enumerate(own)]
        self.acts()

    def _check_end(self) -> None:
        """After the last fault, everything is available and has all its copies again."""
        usable = [s for s in self.volumes.servers.values() if s.is_connected and not s.is_draining]
        for name, volume in self.volumes.volumes.items():
            for extent, place in zip(volume.extents, self.volumes.places(name), strict=True):
                if not place.address:
                    raise ViolationError(f"{extent.key} is unavailable: {extent.stage} {place.why}")
                has_room = any(s.free and s.id not in extent.holders for s in usable)
                if len(extent.in_sync) < volume.replicas and has_room:
                    raise ViolationError(f"{extent.key} has {len(extent.in_sync)} copies")


def simulate(seed: int) -> int:
    """Run one simulation; the owner is restarted in those with even seeds. See `World.run`."""
    return World(seed, restarts=seed % 2 == 0).run()


def main() -> int:
    """Run the seeds `A-B` of the command line; return an exit status."""
    first, last = map(int, sys.argv[1].split("-"))
    begun_s, answered, failed = time.monotonic(), 0, 0
    for seed in range(first, last + 1):
        try:
            answered += simulate(seed)
        except Exception as error:  # also of the owner
            failed += 1
            print(f"seed {seed}: {type(error).__name__}: {error}", flush=True)
    took_s = time.monotonic() - begun_s
    count = last - first + 1
    print(f"{count} seeds in {took_s:.0f} s, {failed} failed; {answered} requests were answered")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
