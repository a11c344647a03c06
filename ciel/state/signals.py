"""How clients of a base wait for each other: watched values, events and barriers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Final

from ciel.state.batches import Delete, Increment, Put
from ciel.state.errors import KeyMissingError
from ciel.state.interface import Base, Closing
from ciel.state.leases import WAKE_S
from ciel.state.values import Values

_NEVER: Final = object()


class Changes(Closing):
    """The value of a key, as it changes: iterate over it, or call `next`.

    The first value is the present one, None if the key is missing. Values that are replaced soon
    may be left out, but never the latest one.
    """

    def __init__(self, base: Base, key: bytes, values: Values) -> None:
        self._base = base
        self._key = key
        self._values = values
        self._watch = base.watch(key)
        self._last: Any = _NEVER

    def next(self, timeout_s: float | None = None) -> Any:
        """Return the next value; raises TimeoutError."""
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            content = self._base.get(self._key)
            if content != self._last:
                self._last = content
                return None if content is None else self._values.decode(content)
            left_s = WAKE_S if deadline_s is None else deadline_s - time.monotonic()
            if left_s <= 0:
                raise TimeoutError(f"the value has not changed within {timeout_s:g} s")
            self._watch.wait(min(left_s, WAKE_S))

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield self.next()

    def close(self) -> None:
        self._watch.close()


class Event:
    """A flag that clients set and wait for, like `threading.Event`."""

    def __init__(self, base: Base, key: bytes) -> None:
        self._base = base
        self._key = key

    def set(self) -> None:
        self._base.apply([Put(self._key, b"true")])

    def clear(self) -> None:
        try:
            self._base.apply([Delete(self._key)])
        except KeyMissingError:
            pass

    def is_set(self) -> bool:
        return self._base.get(self._key) is not None

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the event is set; return False after the timeout."""
        return _wait_until(self._base, self._key, lambda content: content is not None, timeout_s)


class Barrier:
    """A place where `parties` clients wait until all of them have arrived, again and again."""

    def __init__(self, base: Base, key: bytes, parties: int) -> None:
        if parties < 1:
            raise ValueError("a barrier has at least one party")
        self._base = base
        self._key = key
        self._parties = parties

    def wait(self, timeout_s: float | None = None) -> int:
        """Arrive, and wait for the rest; return the place in which this client has arrived, from 0.

        Raises TimeoutError. Even then the client counts as arrived.
        """
        (arrived,) = self._base.apply([Increment(self._key)])
        number = int(arrived or 0) - 1
        complete = (number // self._parties + 1) * self._parties
        if not _wait_until(
            self._base, self._key, lambda content: int(content or 0) >= complete, timeout_s
        ):
            missing = complete - int(self._base.get(self._key) or 0)
            raise TimeoutError(f"{missing} of {self._parties} have not arrived in {timeout_s:g} s")
        return number % self._parties


def _wait_until(base: Base, key: bytes, is_reached: Any, timeout_s: float | None) -> bool:
    deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
    with base.watch(key) as watch:
        while not is_reached(base.get(key)):
            left_s = WAKE_S if deadline_s is None else deadline_s - time.monotonic()
            if left_s <= 0:
                return False
            watch.wait(min(left_s, WAKE_S))
    return True
