"""The connection to the worker of a program that runs children of its task inline.

See `ciel.executors.nested`. Many calls may wait for replies. A timer signal interrupts the program,
so that it offers work to other programs.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

from ciel.executors.programs.references import decode, encode
from ciel.executors.sdk import ciel_task

SHARE_AFTER_S = 0.01
"""The interval at which a program offers work to other programs, and sends its calls."""
UNANSWERED_MAX = 300
"""How many replies may be unread: these fit into a pipe."""
TEXT_MAX_CHARACTERS = 64 << 10  # of a message for people


class NoSignals:
    """A `with` block that defers the handler of a signal to its end. Such blocks may be nested."""

    __slots__ = ("_handler", "depth", "is_due")

    def __init__(self, handler: Callable[[], None]) -> None:
        self._handler = handler
        self.depth = 0
        self.is_due = False  # a signal has arrived within the block

    def __enter__(self) -> None:
        self.depth += 1

    def __exit__(self, *error: object) -> None:
        self.depth -= 1
        if self.is_due and not self.depth:
            self._handler()


class Channel(ciel_task.Channel):
    """Two FIFOs, and a timer that shares work.

    While there are calls to send or work to share, a signal calls `share` every `SHARE_AFTER_S`
    seconds, but never within a block of `no_signals`. `share` returns whether there is more work.
    """

    def __init__(self, write_fifo: str, read_fifo: str) -> None:
        super().__init__(write_fifo, read_fifo)
        self.share: Callable[[], bool] = lambda: False
        self.no_signals = NoSignals(self._on_signal)
        self._is_armed = False
        signal.signal(signal.SIGALRM, self._on_signal)

    def arm(self) -> None:
        """Start the timer, unless it is running."""
        if not self._is_armed:
            self._is_armed = True
            signal.setitimer(signal.ITIMER_REAL, SHARE_AFTER_S)

    def _on_signal(self, *signal: object) -> None:
        no_signals = self.no_signals
        no_signals.is_due = no_signals.depth > 0
        if no_signals.is_due:
            return
        self._is_armed = False
        with no_signals:
            has_more = self.share()
            self.flush()
        if has_more:
            self.arm()

    def call(self, method: str, arguments: dict[str, Any]) -> ciel_task._Answer:
        """Send a call that has a reply, at the latest with the next signal."""
        return self.ask(method, encode([method, arguments]).encode())

    def ask(self, method: str, payload: bytes) -> ciel_task._Answer:
        """Send a call that has a reply and is encoded already."""
        with self.no_signals:
            if len(self._unanswered) >= UNANSWERED_MAX:
                self.flush()
                while self._unanswered:
                    self.read_answer()
            self.send(payload)
            answer = ciel_task._Answer(self, method)
            self._unanswered.append(answer)
            self.arm()
            return answer

    def tell(self, method: str, arguments: dict[str, Any]) -> None:
        """Send a call that has no reply."""
        payload = encode([method, arguments]).encode()
        with self.no_signals:
            self.send(payload)
            self.arm()

    def reply(self, answer: ciel_task._Answer) -> Any:
        """Wait for a reply."""
        with self.no_signals:
            if answer.payload is None:
                self.flush()
                while answer.payload is None:
                    self.read_answer()
        return decode(answer.payload)[1]

    def next_start(self) -> dict[str, Any] | None:
        """Wait for a task, and return the arguments of `start_task`; None: no more tasks."""
        with self.no_signals:
            self.flush()
            try:
                while self._unanswered:
                    self.read_answer()
            except ciel_task.WorkerGoneError:
                return None
            payload = self._frame()
        if payload is None:
            return None
        method, arguments = decode(payload)
        if method not in ("start_task", "die"):
            raise ciel_task.TaskError(f"{method!r} was received instead of a task")
        return dict(arguments) if method == "start_task" else None


def printable(text: str) -> str:
    """Return a text that can be printed: shortened if it is long, lone surrogates escaped."""
    if len(text) > TEXT_MAX_CHARACTERS:
        half = TEXT_MAX_CHARACTERS // 2
        text = f"{text[:half]}\n[...]\n{text[-half:]}"
    return text.encode("utf-8", "backslashreplace").decode()
