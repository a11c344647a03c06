"""Tests that a worker sends frames to interactive programs once in each tick."""

from __future__ import annotations

from typing import Any

from twisted.internet.task import Clock

from ciel.net.ticks import Ticks
from ciel.worker.interactive.outgoing import HOLD_S, Outbox, OutgoingFrames


class Channel:
    """Collects the bytes sent to a program, one item per write."""

    def __init__(self) -> None:
        self.written: list[bytes] = []

    def say_bytes(self, frame: bytes) -> None:
        self.written.append(frame)


class Scene:
    def __init__(self) -> None:
        self.clock = Clock()
        outgoing = OutgoingFrames(self.clock, Ticks(self.clock))
        channel: Any = Channel()
        self.channel = channel
        self.outbox = Outbox(channel, outgoing)


def test_the_frames_of_a_tick_leave_together() -> None:
    scene = Scene()
    scene.outbox.send(b"one")
    scene.outbox.send(b"two")
    assert scene.channel.written == []
    assert scene.outbox.is_unsent
    scene.clock.advance(0)
    assert scene.channel.written == [b"onetwo"]
    assert not scene.outbox.is_unsent


def test_the_last_replies_wait_for_the_next_task() -> None:
    scene = Scene()
    scene.outbox.send(b"last reply")
    scene.outbox.is_urgent = False
    scene.clock.advance(HOLD_S / 2)
    assert scene.channel.written == []
    scene.outbox.is_urgent = True
    scene.outbox.send(b"next task")
    scene.clock.advance(0)
    assert scene.channel.written == [b"last replynext task"]
    scene.clock.advance(HOLD_S)
    assert len(scene.channel.written) == 1


def test_the_last_replies_wait_only_for_a_moment() -> None:
    scene = Scene()
    scene.outbox.is_urgent = False
    scene.outbox.send(b"last reply")
    scene.clock.pump([0, HOLD_S])
    assert scene.channel.written == [b"last reply"]


def test_a_program_that_leaves_gets_everything_at_once() -> None:
    scene = Scene()
    scene.outbox.say("die", {"reason": "why"})
    scene.outbox.flush()
    assert b"die" in scene.channel.written[0]
    scene.clock.advance(0)
    assert len(scene.channel.written) == 1
