"""A program's end of the conversation when it runs children of its task within itself (see
`ciel.executors.nested`): many calls under way, and now and then a look at who could be helped.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

from ciel.executors.programs.references import decode, encode
from ciel.executors.sdk import ciel_task

SHARE_AFTER_S = 0.01
"""So often whoever runs here gives something away that others could do, and says what it did."""
UNANSWERED_MAX = 300
"""Replies that nobody has asked for yet; so many fit into a pipe."""
TEXT_MAX_CHARACTERS = 64 << 10  # of what is said to people


class Quiet:
    """A `with` block in whose middle no signal is heard; it may lie within another."""

    __slots__ = ("_heard", "depth", "is_due")

    def __init__(self, heard: Callable[[], None]) -> None:
        self._heard = heard
        self.depth = 0
        self.is_due = False  # a signal came meanwhile

    def __enter__(self) -> None:
        self.depth += 1

    def __exit__(self, *error: object) -> None:
        self.depth -= 1
        if self.is_due and not self.depth:
            self._heard()


class Channel(ciel_task.Channel):
    """The two FIFOs. `share` is called from a signal every `SHARE_AFTER_S` while something is to be
    said or shared, but never in the middle of what is `quiet`; it returns whether there is more.
    """

    def __init__(self, write_fifo: str, read_fifo: str) -> None:
        super().__init__(write_fifo, read_fifo)
        self.share: Callable[[], bool] = lambda: False
        self.quiet = Quiet(self._rang)
        self._is_armed = False
        signal.signal(signal.SIGALRM, self._rang)

    def arm(self) -> None:
        """See to it that there will be a signal."""
        if not self._is_armed:
            self._is_armed = True
            signal.setitimer(signal.ITIMER_REAL, SHARE_AFTER_S)

    def _rang(self, *signal: object) -> None:
        quiet = self.quiet
        quiet.is_due = quiet.depth > 0
        if quiet.is_due:
            return
        self._is_armed = False
        with quiet:
            has_more = self.share()
            self.flush()
        if has_more:
            self.arm()

    def call(self, method: str, arguments: dict[str, Any]) -> ciel_task._Answer:
        """Make a call that is replied to; at the latest it is sent with the next signal."""
        return self.ask(method, encode([method, arguments]).encode())

    def ask(self, method: str, payload: bytes) -> ciel_task._Answer:
        """Make a call that is encoded already."""
        with self.quiet:
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
        """Make a call that is not replied to."""
        payload = encode([method, arguments]).encode()
        with self.quiet:
            self.send(payload)
            self.arm()

    def reply(self, answer: ciel_task._Answer) -> Any:
        """Wait for a reply."""
        with self.quiet:
            if answer.payload is None:
                self.flush()
                while answer.payload is None:
                    self.read_answer()
        return decode(answer.payload)[1]

    def next_start(self) -> dict[str, Any] | None:
        """Wait for a task, and return what it is told; None: there will be no more."""
        with self.quiet:
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
            raise ciel_task.TaskError(f"{method!r} came in place of a task")
        return dict(arguments) if method == "start_task" else None


def shown(text: str) -> str:
    """Make a text fit for people: not endless, and nothing in it that is no Unicode."""
    if len(text) > TEXT_MAX_CHARACTERS:
        half = TEXT_MAX_CHARACTERS // 2
        text = f"{text[:half]}\n[...]\n{text[-half:]}"
    return text.encode("utf-8", "backslashreplace").decode()
