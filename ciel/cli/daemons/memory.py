"""The memory server daemon, `ciel-memory`: lends memory of its host to volumes (NET-1, NET-4)."""

from __future__ import annotations

import argparse
import secrets
import socket
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from twisted.internet.defer import inlineCallbacks
from twisted.internet.task import LoopingCall
from twisted.internet.threads import deferToThread

import ciel
from ciel.access.errors import AccessError
from ciel.access.keys import Key
from ciel.access.keys import Role as KeyRole
from ciel.cli.daemons.addresses import (
    advertised,
    find_reachable_master,
    host_and_port,
    reachable_address,
    with_port,
)
from ciel.cli.daemons.errors import DaemonError
from ciel.cli.daemons.memory_offer import HostWatch, add_pressure
from ciel.cli.daemons.process import log, run, settle_memory
from ciel.cli.parsing.parser import Parser, memory_size
from ciel.core.errors import CielError
from ciel.core.events import (
    AllowToken,
    ConnectServer,
    DismissServer,
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
from ciel.memory import local
from ciel.memory.host import HostMemory, lockable_bytes, locked_bytes
from ciel.memory.page_server import (
    EXTENT_BYTES,
    PAGE_BYTES,
    Figures,
    Holding,
    PageServer,
    Role,
    Synced,
)
from ciel.memory.volumes import RENEWAL_S
from ciel.net.control import ControlPeer, Owner, Peer
from ciel.net.errors import NetError
from ciel.net.ticks import Ticks
from ciel.net.transports import Address, Reconnector, parse_address
from ciel.wire.errors import RefusedError
from ciel.wire.session import Session

TOKEN_FOR_S: Final = 10.0
REPORT_S: Final = 1.0
"""The time between two readings of the host's memory, and reports to the master."""
CONNECT_TIMEOUT_S: Final = 1.0
RETRY_MAX_S: Final = 0.8
"""Less than a second, with the random part: a restarted master waits `RETURN_S` for its servers."""
START_ERRORS = (AccessError, NetError, DaemonError, CielError, OSError)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parse = Parser(
        prog="ciel-memory",
        allow_abbrev=False,
        description="Lend memory of this host to the volumes of a cluster.",
    )
    add = parse.add_argument
    found = "the master (default: CIEL_MASTER, the configuration, `ciel up`)"
    add("--offer", type=memory_size, metavar="SIZE", required=True, help="how much memory to lend")
    add("--lock", action="store_true", help="keep the memory from being swapped out")
    add_pressure(add)
    add("--master", metavar="URL", help=found)
    add("--access", metavar="FILE", help="the master's access file, with its key")
    add(
        "--listen",
        type=host_and_port,
        metavar="HOST:PORT",
        default="127.0.0.1:0",
        help="the address to listen at (default %(default)s; port 0 means any free port)",
    )
    add(
        "--advertise",
        type=reachable_address,
        metavar="HOST:PORT",
        help="the address that other hosts connect to (default: the address of --listen)",
    )
    add("--log", metavar="FILE", help="the log file (default: standard error)")
    add("--embedded", action="store_true", help=argparse.SUPPRESS)
    add("--version", action="version", version=f"ciel {ciel.__version__}")
    return parse


class MemoryServer:
    """A memory server, from finding its master to its end.

    It carries out the orders of the master in their order: a connection to another server is made
    before the roles that need it are taken.
    """

    def __init__(self, reactor: Any, options: argparse.Namespace) -> None:
        self.failure = ""
        self.status = 0
        self.successor: list[str] = []
        self.dump: Callable[[str], Path | None] = lambda reason: None
        self._reactor = reactor
        self._options = options
        self._id = f"memory-{secrets.token_hex(8)}"
        self._closers: list[Callable[[], object]] = []
        self._pages: PageServer | None = None
        self._watch: HostWatch | None = None
        self._peer: Peer | None = None
        self._masters: tuple[str, ...] = ()  # where one may be found when this one is gone
        self._orders: list[Message] = []
        self._is_busy = False
        self._held: dict[tuple[int, int], Holding] = {}
        self._links: set[int] = set()  # the peers that this server is connected to
        self._replaced: Counter[int] = Counter()  # connections whose end is not reported yet

    # --- start and end ----------------------------------------------------------------------------

    def open_alone(self) -> None:
        """Find the master, then open."""
        found, control = find_reachable_master(self._options, "memory server")
        self._open(control, found.cluster_id, found.key)

    def open_embedded(self, line: dict[str, Any]) -> None:
        raise DaemonError("a memory server cannot be embedded")

    def _open(self, control: str, cluster_id: str, key: Key) -> None:
        if self._options.offer < EXTENT_BYTES:
            raise DaemonError(f"--offer must be at least {EXTENT_BYTES >> 20} MiB", status=2)
        try:
            self._pages = PageServer(self._options.offer, is_locked=self._options.lock)
        except OSError as error:
            raise DaemonError(f"{error.strerror}; offer less, or see `ulimit -l`") from None
        self._closers.append(self._pages.close)
        watch = self._watch = HostWatch(
            self._reactor, self._options, self._pages, self._offer_changed
        )
        self._closers.append(watch.close)
        address = with_port(advertised(self._options), self._listen(self._pages))
        nearby = self._listen_locally(self._pages)
        self._reactor.addReader(self)
        self._closers.append(lambda: self._reactor.removeReader(self))
        ticks = Ticks(self._reactor)

        def connect(owner: Owner) -> ControlPeer:
            about = {"server": self._id, "address": address, "local": nearby._asdict(),
                     "extents": watch.offer.extents}  # fmt: skip
            session = Session.initiator(
                key.derive(KeyRole.MEMORY) or key, KeyRole.MEMORY, software=ciel.__version__,
                cluster_id=cluster_id, about=about,
            )  # fmt: skip
            recorder = self._reactor.recorder
            return ControlPeer(self._reactor, ticks, session, owner, recorder=recorder)

        reconnector = Reconnector(self._reactor, control, connect, self, retry_max_s=RETRY_MAX_S)
        reconnector.places.alternatives = lambda: [
            url.removeprefix("http://") for url in self._masters
        ]
        self._closers.append(reconnector.stop)
        self._repeat(self._renew, RENEWAL_S)
        self._repeat(self._report, REPORT_S)
        reconnector.start()
        log.info("memory server {id} at {address}", id=self._id, address=address)
        settle_memory()

    def _repeat(self, call: Callable[[], object], every_s: float) -> None:
        repeated = LoopingCall(call)
        repeated.clock = self._reactor
        repeated.start(every_s)
        self._closers.append(repeated.stop)

    def _listen(self, pages: PageServer) -> Address:
        host, port, _ = parse_address(self._options.listen)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.socket(family)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(128)
        pages.listen(listening)
        self._closers.append(listening.close)
        return Address(host, listening.getsockname()[1], "")

    def _listen_locally(self, pages: PageServer) -> local.LocalAddress:
        """Listen for clients on this host; return the address, which only the master gets."""
        listening, address = local.listen()
        pages.listen(listening)
        self._closers.append(listening.close)
        return address

    def describe(self) -> Any:
        """Return the state for a dump."""
        figures = self._pages.figures()._asdict() if self._pages is not None else {}
        return {"server": self._id, "extents": len(self._held), **figures}

    def summary(self) -> str:
        """Return the state in one line, for the service manager."""
        connected = "no master" if self._peer is None else f"joined {self._peer.address}"
        return f"{len(self._held)} extents, {connected}"

    def terminate(self) -> None:
        self.stop()

    def fail(self, reason: str, status: int = 1) -> None:
        """Shut down because of a failure."""
        self.failure, self.status = reason, status
        log.error("{reason}", reason=reason)
        self._reactor.callLater(0, self.stop)

    def stop(self) -> None:
        """Close everything, in reverse order."""
        while self._closers:
            self._closers.pop()()
        self._pages = None
        if self._reactor.running:
            self._reactor.stop()

    # --- the master -------------------------------------------------------------------------------

    def peer_opened(self, peer: Peer) -> None:
        self._peer = peer
        self._orders.clear()
        self._resign()
        self._say(ExtentsOffered(tuple([(*key, held.epoch) for key, held in self._held.items()])))
        self._renew()
        if self._watch is not None and self._watch.offer.is_urgent:  # the greeting has the rest
            self._offer_changed()

    def _resign(self) -> None:
        """Be primary of nothing until the master says so again.

        It may be another one, which has given the extents to other servers.
        """
        if self._pages is not None:
            primaries = [held for held in self._held.values() if held.role is Role.PRIMARY]
            self._take(
                self._pages,
                [Holding(h.volume, h.extent, h.epoch, Role.BACKUP) for h in primaries],
            )

    def peer_said(self, peer: Peer, messages: list[Message]) -> None:
        for message in messages:
            match message:
                case LeaseGranted(asked_us, duration_us) if self._pages is not None:
                    self._pages.lease((asked_us + duration_us) / 1e6)
                case AllowToken(token) if self._pages is not None:
                    self._allow(self._pages, token)
                case MastersNamed(urls):
                    self._masters = urls
                case DismissServer():
                    log.info("other memory servers have all pages: this one leaves, and ends")
                    self._reactor.callLater(0, self.stop)
                case ConnectServer() | TakeRoles() | KeepExtents():
                    self._orders.append(message)
        self._carry_out()

    def peer_drained(self, peer: Peer) -> None:
        """Do nothing: messages to the master are few."""

    def peer_closed(self, peer: Peer, reason: str) -> None:
        """Stop acting as primary: the master gives the extents to other servers at once."""
        self._peer = None
        if self._pages is not None:
            self._pages.lease(0.0)

    def connection_refused(self, error: RefusedError) -> bool:
        """Treat a refusal as final: another try would have the same wrong key or version."""
        self.fail(f"this memory server was {error}", status=3)
        return False

    def _allow(self, pages: PageServer, token: str) -> None:
        try:
            pages.allow(bytes.fromhex(token), TOKEN_FOR_S)
        except OSError as error:  # the client's connection waits in vain, and it asks again
            log.warn("a connection is not accepted: {error}", error=error)

    def _renew(self) -> None:
        if self._peer is not None:
            self._peer.send(LeaseAsked(int(self._reactor.seconds() * 1e6)))

    def _report(self) -> None:
        if self._watch is None or self._pages is None:
            return
        pages = self._pages.figures()
        host = self._watch.observe(len(self._held), pages.pages_used)
        self._say(MemoryReported(self._figures(pages, host)))

    def _offer_changed(self) -> None:
        if self._watch is not None:
            self._say(OfferChanged(self._watch.offer.extents, self._watch.offer.is_urgent))

    def _figures(self, pages: Figures, host: HostMemory) -> dict[str, int]:
        """Return the numbers that the master shows (`ciel.master.memory_stats.REPORTED`)."""
        offer_bytes = self._options.offer
        counters = {name: value for name, value in pages._asdict().items() if name not in _GAUGES}
        return {
            **counters,
            "used_bytes": pages.pages_used * PAGE_BYTES,
            "locked_bytes": min(locked_bytes(), offer_bytes) if self._options.lock else 0,
            "lockable_bytes": lockable_bytes(offer_bytes),
            "offer_max_bytes": offer_bytes,
            "swap_bytes": host.swap_bytes,
            "stalled_us_per_s": round(host.some_percent * 1e4),
        }

    # --- orders -----------------------------------------------------------------------------------

    def _carry_out(self) -> None:
        while self._orders and not self._is_busy and self._pages is not None:
            order = self._orders.pop(0)
            match order:
                case ConnectServer(peer, address, token):
                    self._is_busy = True
                    connected = self._connect(self._peer, peer, address, token)
                    connected.addErrback(lambda failure: log.failure("not connected", failure))
                    connected.addCallback(self._connected)
                case TakeRoles(number, roles):
                    self._take(self._pages, [_holding(*role) for role in roles])
                    self._say(RolesTaken(number))
                case KeepExtents(extents):
                    others = sorted(self._held.keys() - set(extents))
                    self._take(
                        self._pages, [Holding(*key, _LAST_EPOCH, Role.NONE) for key in others]
                    )

    def _take(self, pages: PageServer, holdings: list[Holding]) -> None:
        pages.hold(holdings)
        for held in holdings:
            if held.role is Role.NONE:
                self._held.pop((held.volume, held.extent), None)
            else:
                self._held[held.volume, held.extent] = held

    @inlineCallbacks
    def _connect(self, master: Peer | None, number: int, address: str, token: str) -> Any:
        """Connect to another server; tell the master if that is impossible."""
        try:
            host, port, _ = parse_address(address)
            connected = yield deferToThread(
                socket.create_connection, (host, port), CONNECT_TIMEOUT_S
            )
            with connected:
                if self._pages is not None and self._peer is master:
                    self._pages.connect(number, connected, bytes.fromhex(token))
                    self._replaced[number] += number in self._links
                    self._links.add(number)
        except OSError as error:
            log.warn("{address} cannot be reached: {error}", address=address, error=error)
            if self._peer is master:
                self._say(PeerServerLost(number))

    def _connected(self, _: Any) -> None:
        self._is_busy = False
        self._carry_out()

    def _say(self, message: Message) -> None:
        if self._peer is not None:
            self._peer.send(message)

    # --- as a reader of the page server's events --------------------------------------------------

    def fileno(self) -> int:
        return -1 if self._pages is None else self._pages.fileno()

    def doRead(self) -> None:  # noqa: N802  # Twisted names it
        """Report the events of the page server."""
        for event in self._pages.events() if self._pages is not None else ():
            if isinstance(event, Synced):
                self._say(ExtentSynced(*event))
            elif self._replaced[event.peer]:
                self._replaced[event.peer] -= 1
            else:
                self._links.discard(event.peer)
                self._say(PeerServerLost(event.peer))

    def connectionLost(self, reason: Any) -> None:  # noqa: N802
        """Do nothing: the descriptor belongs to the page server."""

    def logPrefix(self) -> str:  # noqa: N802
        return "memory"


_GAUGES: Final = frozenset(("pages_offered", "pages_used", "extents"))
_LAST_EPOCH: Final = (1 << 32) - 1


def _holding(
    volume: int, extent: int, epoch: int, role: int, backups: tuple[int, ...],
    joining: tuple[int, ...], rejoining: tuple[int, ...],
) -> Holding:  # fmt: skip
    return Holding(volume, extent, epoch, Role(role), backups, joining, rejoining)


def main() -> int:
    """Run `ciel-memory`."""
    return run("ciel-memory", parser().parse_args(), MemoryServer, START_ERRORS)


if __name__ == "__main__":
    sys.exit(main())
