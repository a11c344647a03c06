"""Numbers for the batches of a client, so that it may ask again without repeating one (KVB-3)."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from typing import Final, TypeVar

from ciel.state.batches import Request
from ciel.state.errors import UnreachableError

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


def persist(
    call: Callable[[], T],
    lost: type[Exception] | tuple[type[Exception], ...],
    name: str,
    check_open: Callable[[], None],
    timeout_s: float = TIMEOUT_S,
) -> T:
    """Call until the base answers, whose loss is one of some errors; raises UnreachableError.

    `check_open` raises an error if the base was closed.
    """
    deadline_s = time.monotonic() + timeout_s
    pause_s, longest_s = RETRY_S
    while True:
        try:
            return call()
        except lost as error:
            check_open()
            if time.monotonic() > deadline_s:
                why = getattr(error, "strerror", None) or str(error)
                raise UnreachableError(name, why) from None
        threading.Event().wait(pause_s)
        pause_s = min(2 * pause_s, longest_s)
