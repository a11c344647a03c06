"""Collects the frames for interactive programs, and sends them at the end of each tick.

Waking a program costs more than everything else, and the next task often follows a reply.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

from ciel.net.ticks import START, DelayedCall, Ticks
from ciel.wire.calls import encode_call

HOLD_S: Final = 0.02
"""A program that has completed its task gets the last replies with its next task, or after this
time. So it is woken once.
"""


class FrameSink(Protocol):
    """Sends frames; a `ProgramChannel` does."""

    def say_bytes(self, frame: bytes) -> None: ...


class Outbox:
    """The frames for one program."""

    def __init__(self, channel: FrameSink, outgoing: OutgoingFrames) -> None:
        self.is_urgent = True  # the program has a task; False: it waits for its next one
        self._channel = channel
        self._outgoing = outgoing
        self._frames: list[bytes] = []

    @property
    def is_unsent(self) -> bool:
        """Whether there are frames that were not sent."""
        return bool(self._frames)

    def say(self, method: str, args: Any) -> None:
        """Send the program a call when the tick ends."""
        self.send(encode_call(method, args))

    def send(self, frame: bytes) -> None:
        """Send what `encode_call` returned when the tick ends."""
        self._frames.append(frame)
        self._outgoing.add(self)

    def flush(self) -> None:
        """Send everything now."""
        if self._frames:
            frames, self._frames = self._frames, []
            self._channel.say_bytes(b"".join(frames))


class OutgoingFrames:
    """The outboxes that are not empty."""

    def __init__(self, reactor: Any, ticks: Ticks) -> None:
        self._reactor = reactor
        self._ticks = ticks
        self._outboxes: dict[Outbox, None] = {}
        self._held: DelayedCall | None = None

    def add(self, outbox: Outbox) -> None:
        self._outboxes[outbox] = None
        self._ticks.at_end(self._flush, START)

    def _flush(self) -> None:
        outboxes, self._outboxes = self._outboxes, {}
        for outbox in outboxes:
            if outbox.is_urgent:
                outbox.flush()
            else:
                self._outboxes[outbox] = None
        if self._outboxes and (self._held is None or not self._held.active()):
            self._held = self._reactor.callLater(HOLD_S, self._flush_all)

    def _flush_all(self) -> None:
        outboxes, self._outboxes = self._outboxes, {}
        for outbox in outboxes:
            outbox.flush()
