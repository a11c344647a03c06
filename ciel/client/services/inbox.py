"""The callers of one replica: which of their calls wait, and which replies they have not confirmed.

A replica keeps a reply until its caller has it, so that a caller whose connection was lost gets it
over the next connection. No call runs twice in one instance.
"""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

from ciel.client.services.outbox import REPLY, WELCOME, Record
from ciel.wire.errors import RemoteProtocolError

VALUE, ERROR, CANCELLED = 0, 1, 2
"""The kinds of replies: a result, an exception, and the end of a cancelled call."""


class IncomingCall(NamedTuple):
    """A call that waits until the replica runs it."""

    number: int
    method: str
    form: int
    payload: bytes


class Caller:
    """The calls of one caller to one instance of a replica."""

    def __init__(self, token: str) -> None:
        self.token = token
        self.waiting: deque[IncomingCall] = deque()
        self._received = 0
        self._least = 0  # the caller has the replies to all calls with lower numbers
        self._running: set[int] = set()
        self._replies: dict[int, Record] = {}  # that the caller may not have

    @property
    def is_idle(self) -> bool:
        """Whether no call of this caller waits or runs."""
        return not self.waiting and not self._running

    def greet(self) -> list[Record]:
        """Return the records that a new connection starts with."""
        return [([WELCOME, self._received], b""), *self._replies.values()]

    def take(self, record: tuple[list[Any], bytes]) -> int | None:
        """Take a record of the caller; return the number of a running call to stop, if any.

        Raises RemoteProtocolError for a record that no caller sends.
        """
        fields, payload = record
        match fields:
            case ["call", int(number), str(method), int(form), int(least)]:
                if least != self._least:
                    self._confirmed(least)
                if number > self._received:  # else it was sent again, and is here already
                    self._received = number
                    self.waiting.append(IncomingCall(number, method, form, payload))
                return None
            case ["cancel", int(number)]:
                return self._cancel(number)
        raise RemoteProtocolError("a caller of a service sent a record that is not a call")

    def _confirmed(self, least: int) -> None:
        """Forget the replies to calls with lower numbers than this one."""
        if 0 <= least - self._least <= len(self._replies):
            for number in range(self._least, least):
                self._replies.pop(number, None)
        else:
            self._replies = {n: reply for n, reply in self._replies.items() if n >= least}
        self._least = least

    def _cancel(self, number: int) -> int | None:
        self._replies.pop(number, None)
        for call in self.waiting:
            if call.number == number:
                self.waiting.remove(call)
                return None
        return number if number in self._running else None

    def start(self) -> IncomingCall:
        """Return the next call, which runs from now on."""
        call = self.waiting.popleft()
        self._running.add(call.number)
        return call

    def answer(self, number: int, kind: int, form: int, payload: bytes) -> Record:
        """Return the reply to a call that has ended."""
        record: Record = ([REPLY, number, kind, form], payload)
        self._running.discard(number)
        self._replies[number] = record
        return record
