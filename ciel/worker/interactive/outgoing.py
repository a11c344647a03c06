"""When programs are told what they are told: at the end of a turn, as waking one costs more than
all else, and what follows a reply is often its next task.
"""

from __future__ import annotations

from typing import Any, Final

from ciel.net.turns import START, DelayedCall, Turns
from ciel.wire.calls import encode_call
from ciel.worker.interactive.process import Process

HOLD_S: Final = 0.02
"""A program that has ended its task is told later, or with its next one, what its last calls came
to: it can only wait, and is woken once.
"""


class Telling:
    """All that is still to be told."""

    def __init__(self, reactor: Any, turns: Turns) -> None:
        self._reactor = reactor
        self._turns = turns
        self._unsaid: dict[Process, None] = {}
        self._holding: DelayedCall | None = None

    def say(self, process: Process, method: str, args: Any) -> None:
        """Tell a program something when the turn ends."""
        self.say_frame(process, encode_call(method, args))

    def say_frame(self, process: Process, frame: bytes) -> None:
        """The same, for what `encode_call` made."""
        process.unsaid.append(frame)
        self._unsaid[process] = None
        self._turns.at_end(self._speak, START)

    def speak_to(self, process: Process) -> None:
        """Tell a program now what it is still to be told."""
        if process.unsaid:
            frames, process.unsaid = process.unsaid, []
            process.channel.say_bytes(b"".join(frames))

    def _speak(self) -> None:
        processes, self._unsaid = self._unsaid, {}
        for process in processes:
            if process.stack:
                self.speak_to(process)
            else:
                self._unsaid[process] = None
        if self._unsaid and (self._holding is None or not self._holding.active()):
            self._holding = self._reactor.callLater(HOLD_S, self._speak_to_all)

    def _speak_to_all(self) -> None:
        processes, self._unsaid = self._unsaid, {}
        for process in processes:
            self.speak_to(process)
