"""The calls of one caller to one replica: decides what is sent, sent again, or lost.

A call is sent once to an instance of the replica, in the order of the calls. If only the connection
was lost, the instance says how many calls it has received, and the others are sent again. If the
instance has ended, a sent call may have run: it is lost, unless its caller permits to run it twice.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from ciel.wire.frames import SendableRecord

CALL, CANCEL, REPLY, WELCOME = "call", "cancel", "reply", "welcome"
"""The kinds of records. CALL: number, method, form, the least number that is still open; the
payload is its arguments. CANCEL: number. REPLY: number, kind, form; the payload is the result.
WELCOME, the first record of a replica: the greatest number that it has received."""

Record = tuple[list[Any], bytes]


class OutgoingCall:
    """A call that has no reply yet. `may_repeat`: it may run twice."""

    __slots__ = ("form", "future", "is_sent", "may_repeat", "method", "number", "payload")

    def __init__(
        self, method: str, form: int, payload: bytes, *, may_repeat: bool, future: Any
    ) -> None:
        self.method = method
        self.form = form
        self.payload = payload
        self.may_repeat = may_repeat
        self.future = future
        self.number = 0
        self.is_sent = False


class Outbox:
    """The open calls, in order. Not thread-safe."""

    def __init__(self) -> None:
        self.instance = ""
        """The instance of the replica to which calls were sent last."""
        self.open: dict[int, OutgoingCall] = {}
        self.unsent_bytes = 0
        self._unsent: deque[OutgoingCall] = deque()
        self._cancelled: list[int] = []
        self._count = 0

    @property
    def unsent_count(self) -> int:
        """How many records wait to be sent."""
        return len(self._unsent) + len(self._cancelled)

    def add(self, call: OutgoingCall) -> None:
        """Add a call after all others."""
        self._count += 1
        call.number = self._count
        self.open[call.number] = call
        self._queue(call)

    def _queue(self, call: OutgoingCall) -> None:
        self._unsent.append(call)
        self.unsent_bytes += len(call.payload)

    def take(self, most: int, most_bytes: int) -> list[SendableRecord]:
        """Return the records to send now, and count them as sent."""
        taken: list[SendableRecord] = [([CANCEL, number], b"") for number in self._cancelled]
        self._cancelled.clear()
        if not self._unsent:
            return taken
        least, size_bytes, unsent = next(iter(self.open)), 0, self._unsent
        while unsent and most and size_bytes < most_bytes:
            call = unsent.popleft()
            call.is_sent = True
            most -= 1
            size_bytes += len(call.payload)
            taken.append(([CALL, call.number, call.method, call.form, least], call.payload))
        self.unsent_bytes -= size_bytes
        return taken

    def settle(self, number: object) -> OutgoingCall | None:
        """Remove a call that has a reply; return None if there is no such call, or none any more.

        Only a sent call has a reply.
        """
        call = self.open.get(number) if type(number) is int else None
        if call is None or not call.is_sent:
            return None
        del self.open[call.number]
        return call

    def cancel(self, call: OutgoingCall) -> None:
        """Remove a call whose result nobody wants; the replica drops it if it has not run."""
        if self.open.pop(call.number, None) is None:
            return
        if call.is_sent:
            self._cancelled.append(call.number)
        else:
            self._drop_unsent({call.number})

    def _drop_unsent(self, numbers: set[int]) -> None:
        left = [call for call in self._unsent if call.number not in numbers]
        self._unsent, self.unsent_bytes = deque(), 0
        for call in left:
            self._queue(call)

    def opened(self, instance: str, received: int) -> list[OutgoingCall]:
        """Continue over a new connection with an instance that has received calls up to a number.

        Return the calls that are lost with an earlier instance.
        """
        lost = self.instance_ended() if instance != self.instance else []
        self.instance = instance
        self._resend(after=received)
        return lost

    def instance_ended(self) -> list[OutgoingCall]:
        """Return the calls that are lost because their instance has ended, and remove them."""
        lost = [call for call in self.open.values() if call.is_sent and not call.may_repeat]
        for call in lost:
            del self.open[call.number]
        self.instance = ""
        self._cancelled.clear()
        self._resend(after=0)
        return lost

    def _resend(self, after: int) -> None:
        """Queue all open calls with greater numbers that were sent, before the unsent ones."""
        self._unsent, self.unsent_bytes = deque(), 0
        for call in self.open.values():
            if not call.is_sent or call.number > after:
                call.is_sent = False
                self._queue(call)

    def end(self) -> list[OutgoingCall]:
        """Remove and return all open calls: the service is gone."""
        found = list(self.open.values())
        self.open.clear()
        self._unsent.clear()
        self._cancelled.clear()
        self.unsent_bytes = 0
        return found
