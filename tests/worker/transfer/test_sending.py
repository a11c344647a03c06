"""Tests responses to clients that do not read: how much memory they take, and for how long."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from ciel.worker.transfer import sending
from ciel.worker.transfer.sending import (
    CHUNK_BYTES,
    CHUNK_MIN_BYTES,
    HELD_BYTES,
    STALLED_S,
    Sending,
)

SIZE_BYTES = 1 << 30


class Reader:
    """A request of a client whose connection is full after each piece."""

    def __init__(self, clock: Clock) -> None:
        self.channel = self
        self.callLater = clock.callLater
        self.is_cut = False
        self.pieces: list[int] = []
        self._finished: Deferred[None] = Deferred()
        self.sending = Sending(self, read, 0, SIZE_BYTES, lambda: None)  # type: ignore[arg-type]  # a fake request

    def notifyFinish(self) -> Deferred[None]:  # noqa: N802  # Twisted's names
        return self._finished

    def registerProducer(self, producer: Any, streaming: bool) -> None:  # noqa: N802
        self.producer = producer

    def write(self, data: bytes) -> None:
        if data:
            self.pieces.append(len(data))
            self.producer.pauseProducing()

    def take(self) -> None:
        """Read the buffered piece, which leaves room for another."""
        self.producer.resumeProducing()

    def forceAbortClient(self) -> None:  # noqa: N802
        self.is_cut = True
        self.leave()

    def leave(self) -> None:
        if not self._finished.called:
            self._finished.callback(None)


def read(offset: int, length: int) -> bytes:
    return bytes(length)


@pytest.fixture
def clock() -> Iterator[Clock]:
    before = sending._Sending.under_way
    clock = Clock()
    yield clock
    assert sending._Sending.under_way == before
    assert clock.getDelayedCalls() == []


def test_the_more_readers_the_less_is_held_for_each(clock: Clock) -> None:
    readers = [Reader(clock) for _ in range(2000)]
    assert readers[0].pieces == [CHUNK_BYTES]
    assert readers[-1].pieces == [CHUNK_MIN_BYTES]
    assert sum(sum(reader.pieces) for reader in readers) < 6 * HELD_BYTES
    readers[0].take()
    assert readers[0].pieces == [CHUNK_BYTES, CHUNK_MIN_BYTES]
    for reader in readers[1:]:
        reader.leave()
    readers[0].take()
    assert readers[0].pieces[-1] == CHUNK_BYTES
    readers[0].leave()


def test_who_takes_nothing_for_long_is_cut_off(clock: Clock) -> None:
    reader = Reader(clock)
    clock.advance(STALLED_S - 1)
    assert not reader.is_cut
    clock.advance(1)
    assert reader.is_cut


def test_who_takes_something_now_and_then_is_not(clock: Clock) -> None:
    reader = Reader(clock)
    for _ in range(5):
        clock.advance(STALLED_S - 1)
        reader.take()
    assert not reader.is_cut
    clock.pump([STALLED_S, STALLED_S])
    assert reader.is_cut
