"""An owner with real page servers in the process of a test."""

from __future__ import annotations

import os
import socket
import struct
import threading
import time

from ciel.memory import page_server, volumes
from ciel.memory.page_server import EXTENT_BYTES, TOKEN_BYTES, PageServer, Synced
from ciel.memory.space import Space
from ciel.memory.volumes import LEASE_S, Connect, Expel, Hold, Keep, Place, Volumes


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
        self._spaces: list[SpaceOfNodes] = []

    def join(self, name: str, extents: int = 8) -> Node:
        with self._lock:
            node = self.nodes[name] = Node(name, extents)
            self.volumes.join(name, name, extents, {}, time.monotonic())
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

    def create(
        self,
        name: str,
        extents: int,
        replicas: int,
        timeout_s: float = 5.0,
        compress: str = "",
        cache_bytes: int = 0,
    ) -> SpaceOfNodes:
        with self._lock:
            self.volumes.create(name, extents, replicas, time.monotonic(), compress=compress)
            self._carry_out()
        return self.open(name, timeout_s, cache_bytes)

    def remove(self, name: str) -> None:
        with self._lock:
            self.volumes.remove(name)
            self._carry_out()

    def open(self, name: str, timeout_s: float = 5.0, cache_bytes: int = 0) -> SpaceOfNodes:
        space = SpaceOfNodes(self, name, timeout_s, cache_bytes)
        self._spaces.append(space)
        return space

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
                node = self.nodes.get(order.server)
                if node is None:
                    continue
                match order:
                    case Connect(peer=peer):
                        self._connect(node, peer, now_s)
                    case Hold(number=number, holdings=holdings):
                        node.pages.hold([self._holding(holding) for holding in holdings])
                        self.volumes.told(node.name, number, now_s)
                    case Expel() | Keep():
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


class SpaceOfNodes(Space):
    """The address space of a volume."""

    def __init__(self, nodes: Nodes, name: str, timeout_s: float, cache_bytes: int) -> None:
        volume = nodes.volumes.volumes[name]
        super().__init__(
            OwnerOfVolume(nodes, name), volume.number, len(volume.extents), volume.replicas,
            timeout_s, volume.compress, cache_bytes,
        )  # fmt: skip
        self._nodes = nodes
        self._name = name

    def remove(self) -> None:
        """Close the space, and remove the volume."""
        self.close()
        self._nodes.remove(self._name)


class OwnerOfVolume:
    """Answers companions (`ciel.memory.companion.Owner`)."""

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
