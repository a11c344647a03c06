"""The common part of clients of servers: batches have numbers, and clients ask again (KVB-3)."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from typing import ClassVar, Final, TypeVar

from ciel.state.batches import Request
from ciel.state.errors import BaseClosedError, UnreachableError
from ciel.state.interface import Base

T = TypeVar("T")
TIMEOUT_S: Final = 30.0
"""How long a client tries to reach a base again before an operation fails."""
RETRY_S: Final = (0.005, 0.1)
"""The first pause between two tries, and the longest; each is twice as long as the one before."""


class Numbers(threading.local):
    """The numbers of each thread: a thread has one batch under way at a time."""

    def __init__(self) -> None:
        self._client = secrets.token_bytes(12)
        self._number = 0

    def next(self) -> Request:
        self._number += 1
        return Request(self._client, self._number)


class ServerBase(Base):
    """The client of a base in a server. `lost`: the errors that mean that it cannot be reached."""

    lost: ClassVar[tuple[type[Exception], ...]]

    def __init__(self, name: str, timeout_s: float) -> None:
        self.name = name
        self._timeout_s = timeout_s
        self._numbers = Numbers()
        self._is_closed = False

    def close(self) -> None:
        self._is_closed = True

    def check_open(self) -> None:
        """Raise BaseClosedError if this client is closed."""
        if self._is_closed:
            raise BaseClosedError(self.name)

    def persist(self, call: Callable[[], T]) -> T:
        """Call until the base answers; raises UnreachableError after the timeout."""
        self.check_open()
        deadline_s = time.monotonic() + self._timeout_s
        pause_s, longest_s = RETRY_S
        while True:
            try:
                return call()
            except self.lost as error:
                self.check_open()
                if time.monotonic() > deadline_s:
                    why = getattr(error, "strerror", None) or str(error)
                    raise UnreachableError(self.name, why) from None
            threading.Event().wait(pause_s)
            pause_s = min(2 * pause_s, longest_s)
