"""Connections between cores of a real segment. One thread advances both sides, by a clock of its
own, so that each test decides what happens next.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.error import ConnectionDone, ConnectionLost
from twisted.internet.protocol import ClientFactory, Factory, Protocol, connectionDone
from twisted.internet.task import Clock
from twisted.python.failure import Failure

from ciel.net.cores.connections import ABORT, LOOK_S, OPEN, ROOM_BYTES, Cores
from ciel.scc.mpb import Core, segment_core

pytestmark = pytest.mark.requirement("CIB-31")


class HandClock(Clock):
    """A reactor whose time stands still between two steps of a test."""

    def addReader(self, reader: Any) -> None: ...
    def removeReader(self, reader: Any) -> None: ...

    def callFromThread(self, call: Callable[..., object], *given: Any) -> None:
        self.callLater(0, call, *given)

    def getThreadPool(self) -> HandClock:
        return self

    def callInThreadWithCallback(
        self, answered: Callable[[bool, object], object], call: Callable[..., object], *given: Any
    ) -> None:
        answered(True, call(*given))


class Talker(Protocol):
    """Collects received bytes; sends the same bytes back, if it echoes."""

    transport: Any

    def __init__(self, echoes: bool = False) -> None:
        self.heard = bytearray()
        self.reason: Failure | None = None
        self._echoes = echoes

    def dataReceived(self, data: bytes) -> None:
        self.heard += data
        if self._echoes:
            self.transport.write(data)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self.reason = reason


class Answering(Factory):
    noisy = False

    def __init__(self, echoes: bool = False) -> None:
        self.talkers: list[Talker] = []
        self._echoes = echoes

    def buildProtocol(self, addr: Any) -> Talker:
        self.talkers.append(Talker(self._echoes))
        return self.talkers[-1]


class Calling(ClientFactory):
    """The factory of the calling side, for one connection."""

    noisy = False

    @property
    def transport(self) -> Any:
        return self.talker.transport

    def __init__(self) -> None:
        self.talker = Talker()
        self.failure: Failure | None = None

    def buildProtocol(self, addr: Any) -> Talker:
        return self.talker

    def clientConnectionFailed(self, connector: Any, reason: Failure) -> None:
        self.failure = reason


class Scene:
    """The cores of one segment."""

    def __init__(self, directory: Path) -> None:
        self.clock = HandClock()
        self.directory_fd = os.open(directory, os.O_RDONLY)
        self.cores: list[Cores] = []

    def core(self, number: int) -> Core:
        return segment_core(self.directory_fd, number, 2)

    def join(self, number: int, name: str) -> Cores:
        cores = Cores(self.clock, self.core(number))
        self.cores.append(cores)
        cores.introduce(name)
        return cores

    def until(self, is_done: Callable[[], object], looks: int = 2000) -> None:
        """Let all cores advance until something is true."""
        for _ in range(looks):
            for cores in self.cores:
                cores.advance()
            self.clock.advance(LOOK_S / 2)
            if is_done():
                return
        raise AssertionError("it has not happened")

    def call(self, caller: Cores, number: int, service: str = "echo") -> Calling:
        factory = Calling()
        caller.connect(number, service, factory)
        return factory

    def close(self) -> None:
        for cores in self.cores:
            cores.close()
        os.close(self.directory_fd)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    scene = Scene(tmp_path)
    yield scene
    scene.close()


@pytest.fixture
def pair(scene: Scene) -> tuple[Cores, Cores]:
    """Two cores that know each other."""
    one, other = scene.join(0, "one"), scene.join(1, "other")
    scene.until(lambda: one.names() and other.names())
    return one, other


@pytest.mark.requirement("CIB-14")
def test_cores_know_the_names_of_the_others_that_live(scene: Scene) -> None:
    told: list[int] = []
    one = Cores(scene.clock, scene.core(0), lambda: told.append(1))
    scene.cores.append(one)
    one.introduce("one")
    other, third = scene.join(1, "other"), scene.join(3, "third")
    scene.until(lambda: len(one.names()) == 2 and len(third.names()) == 2)
    assert one.names() == {"other": 1, "third": 3}
    assert other.names() == {"one": 0, "third": 3}
    assert len(told) == 2
    third.close()
    assert one.names() == {"other": 1}
    scene.until(lambda: len(told) == 3)


def test_all_bytes_arrive_in_both_directions_in_their_order(
    scene: Scene, pair: tuple[Cores, Cores]
) -> None:
    one, other = pair
    other.listen("echo", Answering(echoes=True))
    content = random.Random(1).randbytes(500_000)
    calls = [scene.call(one, 1) for _ in range(3)]
    for number, call in enumerate(calls):
        call.transport.write(content[number:])
    scene.until(lambda: all(len(c.talker.heard) >= len(content) - 2 for c in calls))
    assert [bytes(c.talker.heard) for c in calls] == [content[n:] for n in range(3)]


def test_a_reader_that_pauses_delays_only_its_own_connection(
    scene: Scene, pair: tuple[Cores, Cores]
) -> None:
    one, other = pair
    answering = Answering()
    other.listen("echo", answering)
    slow, quick = scene.call(one, 1), scene.call(one, 1)
    scene.until(lambda: len(answering.talkers) == 2)
    first, second = answering.talkers
    first.transport.pauseProducing()
    writer: list[str] = []

    class Producer:
        def pauseProducing(self) -> None:
            writer.append("paused")

        def resumeProducing(self) -> None:
            writer.append("resumed")

        def stopProducing(self) -> None: ...

    slow.transport.registerProducer(Producer(), True)
    slow.transport.write(bytes(3 * ROOM_BYTES))
    quick.transport.write(bytes(3 * ROOM_BYTES))
    scene.until(lambda: len(second.heard) == 3 * ROOM_BYTES)
    assert not first.heard
    assert writer == ["paused"]
    first.transport.resumeProducing()
    scene.until(lambda: len(first.heard) == 3 * ROOM_BYTES)
    scene.until(lambda: writer[-1] == "resumed")


def test_an_end_comes_after_all_bytes_and_an_abort_at_once(
    scene: Scene, pair: tuple[Cores, Cores]
) -> None:
    one, other = pair
    answering = Answering()
    other.listen("echo", answering)
    ending, aborted = scene.call(one, 1), scene.call(one, 1)
    scene.until(lambda: len(answering.talkers) == 2)
    ending.transport.write(bytes(200_000))
    ending.transport.loseConnection()
    aborted.transport.abortConnection()
    scene.until(lambda: all(t.reason for t in answering.talkers) and ending.talker.reason)
    ends, breaks = answering.talkers
    assert len(ends.heard) == 200_000
    assert ends.reason is not None
    assert ends.reason.check(ConnectionDone)
    assert breaks.reason is not None
    assert breaks.reason.check(ConnectionLost)


def test_a_missing_core_and_a_missing_service_are_reported(
    scene: Scene, pair: tuple[Cores, Cores]
) -> None:
    one, _ = pair
    nobody, nothing = scene.call(one, 3), scene.call(one, 1, "nothing")
    scene.until(lambda: nobody.failure and nothing.talker.reason)
    assert "core 3 is not there" in str(nobody.failure)
    assert "does not serve this" in str(nothing.talker.reason)


@pytest.mark.requirement("CIB-14")
def test_a_killed_core_ends_its_connections_and_another_process_may_take_its_place(
    scene: Scene,
) -> None:
    one = scene.join(0, "one")
    ready, says_ready = os.pipe()
    child = os.fork()
    if not child:
        dying = scene.join(1, "dying")
        dying.listen("echo", Answering(echoes=True))
        os.write(says_ready, b"x")
        while True:
            dying.advance()
    try:
        os.read(ready, 1)
        scene.until(one.names, looks=1_000_000)
        call = scene.call(one, 1)
        call.transport.write(b"hello")
        scene.until(lambda: call.talker.heard == b"hello", looks=1_000_000)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(ready)
        os.close(says_ready)
    assert one.names() == {}
    call.transport.write(bytes(10_000))
    scene.until(lambda: call.talker.reason)
    assert "core 1" in str(call.talker.reason)

    heir = scene.join(1, "heir")
    heir.listen("echo", Answering(echoes=True))
    scene.until(lambda: one.names() == {"heir": 1})
    call = scene.call(one, 1)
    call.transport.write(b"again")
    scene.until(lambda: call.talker.heard == b"again")


def test_messages_that_no_version_sends_do_no_harm(scene: Scene) -> None:
    one = scene.join(0, "one")
    one.listen("echo", Answering(echoes=True))
    chance = random.Random(2)
    with scene.core(1) as stranger:
        sent = []
        for length in range(200):
            head = bytes([chance.randrange(8), chance.randrange(3), 0, 0, 0])
            sent.append(stranger.isend(0, (head + chance.randbytes(length))[:length]))
            one.advance()
            stranger.push()
        scene.until(lambda: not stranger.push() or all(request.is_over for request in sent))
    other = scene.join(2, "other")
    scene.until(lambda: other.names() == {"one": 0})
    call = scene.call(other, 0)
    call.transport.write(b"well")
    scene.until(lambda: call.talker.heard == b"well")
    assert (OPEN, ABORT) == (2, 6)  # the random kinds above include all of them


def test_a_core_that_stops_in_the_middle_of_a_message_delays_no_other(scene: Scene) -> None:
    one, other = scene.join(0, "one"), scene.join(2, "other")
    one.listen("echo", Answering(echoes=True))
    scene.until(lambda: one.names() and other.names())
    with scene.core(1) as stopped:
        long = stopped.isend(0, bytes(4000))  # does not fit into the buffer at once
        scene.until(lambda: stopped.push() and long.moved_bytes)
        one.advance()  # receives a part of it
        assert not long.is_over
        call = scene.call(other, 0)
        call.transport.write(bytes(100_000))
        scene.until(lambda: len(call.talker.heard) == 100_000)


def test_two_cores_begin_again_after_a_message_was_lost(scene: Scene) -> None:
    one = scene.join(0, "one")
    with scene.core(1) as stranger:
        stranger.isend(0, b"\x01\0\0\0\0\0\x07\0\0\0stranger")
        receive = stranger.irecv(4096, 0)
        scene.until(lambda: stranger.test(receive) and one.names())
        first = receive.content

        call = scene.call(one, 1)
        call.transport.write(bytes(4000))
        taken = [stranger.irecv(4096, 0) for _ in range(2)]
        assert 0 < taken[1].moved_bytes < taken[1].size_bytes
        stranger.cancel(taken[1])
        scene.until(lambda: call.talker.reason)
        again = stranger.irecv(4096, 0)
        scene.until(lambda: stranger.test(again))
        assert again.content[:1] == first[:1] == b"\x01"
        assert again.content[6:10] != first[6:10]
        assert again.content.endswith(b"one")
