"""Carries TCP connections between kernels that share memory, but no network (CIB-30, CIB-31).

One process of each kernel has a bridge, which is a core of the shared memory. A bridge offers ports
of `127.0.0.1` in its kernel. All other bridges listen at the same ports in their kernels, and carry
the connections. So `127.0.0.1:8100` is the same master in each kernel.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from twisted.internet.error import CannotListenError
from twisted.logger import Logger
from twisted.protocols.portforward import ProxyClientFactory, ProxyFactory, ProxyServer

from ciel.net.cores.connections import Cores
from ciel.storage.interface import MessageCore

log = Logger()

HERE: Final = "127.0.0.1"
AGAIN_S: Final = 2.0
"""How long to wait before listening again at a port that another process uses."""

_NAME: Final = "bridge"


class Bridge:
    """Offers ports, and listens at the ports of other bridges, until `close`. Owns `core`."""

    def __init__(self, reactor: Any, core: MessageCore, ports: Collection[int]) -> None:
        self._reactor = reactor
        self._own = frozenset(ports)
        self._open: dict[int, tuple[int, Any]] = {}  # by port: the core that offers it
        self._due: Any = None
        self._cores = Cores(reactor, core, self._look)
        for port in ports:
            self._cores.listen(_service(port), _Exit(HERE, port))
        self._cores.introduce(" ".join([_NAME, *map(str, sorted(ports))]))

    @property
    def ports(self) -> dict[int, int]:
        """The ports of other kernels at which this bridge listens, and the cores behind them."""
        return {port: core for port, (core, _) in self._open.items()}

    def close(self) -> None:
        """End all connections."""
        if self._due is not None and self._due.active():
            self._due.cancel()
        for _, listening in self._open.values():
            listening.stopListening()
        self._open.clear()
        self._cores.close()

    def _look(self) -> None:
        """Listen at the ports that are offered now, and at no others."""
        offered = self._offered()
        for port, (core, listening) in [*self._open.items()]:
            if offered.get(port) != core:
                log.info("port {port} is gone, with core {core}", port=port, core=core)
                del self._open[port]
                listening.stopListening().addCallback(lambda _: self._look())
        for port, core in offered.items():
            if port not in self._open:
                self._listen(port, core)

    def _offered(self) -> dict[int, int]:
        """Return the ports that other bridges offer, with their cores."""
        found: dict[int, int] = {}
        for name, core in self._cores.names().items():
            kind, *ports = name.split(" ")
            if kind == _NAME:
                found |= {int(port): core for port in ports if int(port) not in self._own}
        return found

    def _listen(self, port: int, core: int) -> None:
        try:
            factory = _Entrance(self._cores, core, port)
            listening = self._reactor.listenTCP(port, factory, interface=HERE)
        except CannotListenError as error:
            log.error("{error}; trying again in {again_s:g} s", error=error, again_s=AGAIN_S)
            if self._due is None or not self._due.active():
                self._due = self._reactor.callLater(AGAIN_S, self._look)
            return
        log.info("port {port} leads to core {core}", port=port, core=core)
        self._open[port] = (core, listening)


class _QuietClientFactory(ProxyClientFactory):
    noisy = False


class _Carrier(ProxyServer):
    """Passes the bytes of an accepted connection on to a second connection."""

    clientProtocolFactory = _QuietClientFactory  # noqa: N815  # Twisted's name


class _Exit(ProxyFactory):
    """Carries each connection of another kernel to a port of this one."""

    noisy = False
    protocol = _Carrier


class _Entrance(ProxyFactory):
    """Carries each connection that it accepts to the same port of another kernel."""

    noisy = False

    def __init__(self, cores: Cores, core: int, port: int) -> None:
        super().__init__(HERE, port)
        self._way = _Way(cores, core)

    def buildProtocol(self, addr: Any) -> Any:
        protocol: Any = _Carrier()
        protocol.factory = self
        protocol.reactor = self._way
        return protocol


class _Way:
    """Takes the place of a reactor for a proxy: it connects to a port of another kernel."""

    def __init__(self, cores: Cores, core: int) -> None:
        self._cores = cores
        self._core = core

    def connectTCP(self, host: str, port: int, factory: Any) -> None:
        self._cores.connect(self._core, _service(port), factory)


def _service(port: int) -> str:
    return f"tcp {port}"
