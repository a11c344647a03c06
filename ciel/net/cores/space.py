"""Cores of an image ask each other for space by messages (CIB-52), across kernels, too.

A question is how many bytes a core wants, and the shortest time for which the objects to move were
idle. An answer is how many bytes another core has freed, and for how long its next object was idle.
Kernels have different clocks, so only such spans can travel.
"""

from __future__ import annotations

import queue
import struct
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

from twisted.internet.defer import Deferred, DeferredLock
from twisted.internet.protocol import ClientFactory, Factory, Protocol, connectionDone
from twisted.internet.threads import deferToThreadPool
from twisted.logger import Logger
from twisted.python.failure import Failure

from ciel.net.cores.connections import Cores
from ciel.storage.interface import NEVER_S, Answer, Neighbours

log = Logger()

SERVICE: Final = "space"
ASK_S: Final = 10.0
"""How long a core waits for an answer: the time to move a gibibyte to a slow disk."""

_LOOK_S: Final = 0.2  # how often to see whether this process is leaving
_WORDS: Final = struct.Struct("<Qd")
_NOTHING: Final = Answer(0, NEVER_S)

Free = Callable[[int, float], Answer]
T = TypeVar("T")


def share_space(reactor: Any, cores: Cores, neighbours: Neighbours) -> None:
    """Let a store and the stores of other cores ask each other by messages."""
    if neighbours.free is not None:
        cores.listen(SERVICE, _Answering(reactor, neighbours.free))
        neighbours.ask_by(AskByMessages(reactor, cores))


class AskByMessages:
    """Asks all cores. Any thread but the reactor's may call this; every call ends in `ASK_S`."""

    def __init__(self, reactor: Any, cores: Cores) -> None:
        self._reactor = reactor
        self._cores = cores

    def others(self) -> Sequence[str]:
        """Return the numbers of all other live cores."""
        found: queue.SimpleQueue[Sequence[str]] = queue.SimpleQueue()

        def look() -> None:
            found.put([str(number) for number in self._cores.names().values()])

        return self._answer(look, found, [])

    def question(self, other: str, wanted_bytes: int, before_s: float) -> Answer:
        """Ask one core; a core that does not answer has nothing to move."""
        found: queue.SimpleQueue[Answer] = queue.SimpleQueue()
        asking = _Asking(_packed(wanted_bytes, before_s), found.put)

        def ask() -> None:
            self._cores.connect(int(other), SERVICE, asking)

        return self._answer(ask, found, _NOTHING)

    def _answer(self, act: Callable[[], None], found: queue.SimpleQueue[T], otherwise: T) -> T:
        self._reactor.callFromThread(act)
        until_s = time.monotonic() + ASK_S
        while not self._cores.is_closed and time.monotonic() < until_s:
            with suppress(queue.Empty):
                return found.get(timeout=_LOOK_S)
        return otherwise


class _Asking(ClientFactory):
    """Asks one question, and passes the answer on exactly once."""

    noisy = False

    def __init__(self, question: bytes, answered: Callable[[Answer], object]) -> None:
        self.question = question
        self._answered: Callable[[Answer], object] | None = answered

    def buildProtocol(self, addr: Any) -> Protocol:
        return _Question(self)

    def clientConnectionFailed(self, connector: Any, reason: Failure) -> None:
        self.answer(_NOTHING)

    def answer(self, answer: Answer) -> None:
        answered, self._answered = self._answered, None
        if answered is not None:
            answered(answer)


class _Question(Protocol):
    transport: Any

    def __init__(self, asking: _Asking) -> None:
        self._asking = asking

    def connectionMade(self) -> None:
        self.transport.write(self._asking.question)

    def dataReceived(self, data: bytes) -> None:
        if len(data) == _WORDS.size:
            self._asking.answer(Answer(*_unpacked(data)))
        self.transport.loseConnection()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self._asking.answer(_NOTHING)


class _Answering(Factory):
    """Answers one question at a time, in threads, with what `free` returns."""

    noisy = False

    def __init__(self, reactor: Any, free: Free) -> None:
        self._reactor = reactor
        self._free = free
        self._turns = DeferredLock()

    def answer(self, wanted_bytes: int, before_s: float) -> Deferred[Answer]:
        """Answer when all earlier questions are answered."""

        def free() -> Deferred[Answer]:
            pool = self._reactor.getThreadPool()
            return deferToThreadPool(self._reactor, pool, self._free, wanted_bytes, before_s)

        return self._turns.run(free)

    def buildProtocol(self, addr: Any) -> Protocol:
        return _Answer(self)


class _Answer(Protocol):
    transport: Any

    def __init__(self, answering: _Answering) -> None:
        self._answering = answering

    def dataReceived(self, data: bytes) -> None:
        if len(data) != _WORDS.size:
            self.transport.abortConnection()
            return
        self.transport.pauseProducing()  # a connection is for one question
        done = self._answering.answer(*_unpacked(data))
        done.addCallback(lambda answer: self.transport.write(_packed(*answer)))
        done.addErrback(self._failed)

    def _failed(self, failure: Failure) -> None:
        log.failure("no space can be freed for another core", failure)
        self.transport.abortConnection()


def _packed(size_bytes: int, used_s: float) -> bytes:
    """Return the message for a number of bytes, and for a time of this kernel's clock."""
    return _WORDS.pack(size_bytes, time.monotonic() - used_s)


def _unpacked(data: bytes) -> tuple[int, float]:
    size_bytes, idle_s = _WORDS.unpack(data)
    return size_bytes, time.monotonic() - idle_s
