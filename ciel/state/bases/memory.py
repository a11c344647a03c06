"""A base in the memory of this process, for tests and for programs of one process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from urllib.parse import SplitResult

from ciel.access.keys import Key
from ciel.state.batches import Overlay, Request, Result, Row, Step, carry_out_once, check
from ciel.state.errors import BaseClosedError
from ciel.state.interface import Base, Capabilities, Snapshot, Watch, end_of_scan


class MemoryBase(Base):
    """A dictionary with a lock. A scan sorts all keys, so that this is for small bases."""

    name = "the base in memory"
    capabilities = Capabilities(is_durable=False, is_shared=False)

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._values: dict[bytes, bytes] = {}
        self._ends_s: dict[bytes, float] = {}
        self._changes: dict[bytes, int] = {}  # when each key was changed last, as a batch's number
        self._batch = 0
        self._is_closed = False

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def read(self, keys: Sequence[bytes]) -> list[bytes | None]:
        with self._now():
            return [self._values.get(key) for key in keys]

    def apply(self, steps: Sequence[Step], request: Request | None = None) -> list[Result]:
        check(steps)
        with self._now():
            view = Overlay(self._values.get, lambda first, last: _rows(self._values, first, last))
            results = carry_out_once(steps, view, request)
            self._batch += 1
            for key, new in view.writes.items():
                self._write(key, new)
            self._changed.notify_all()
        return results

    def scan(self, first: bytes = b"", last: bytes | None = None) -> Iterator[Row]:
        with self._now():
            keys = [key for key, _ in _rows(self._values, first, end_of_scan(last))]
        for key in keys:
            value = self.get(key)
            if value is not None:
                yield key, value

    def snapshot(self) -> Snapshot:
        with self._now():
            return _Copy(dict(self._values))

    def watch(self, prefix: bytes) -> Watch:
        with self._now():
            return _MemoryWatch(self, prefix, self._batch)

    def changed_since(self, prefix: bytes, batch: int, timeout_s: float | None) -> int:
        """Wait for a change of a key with a prefix after a batch; return the latest batch's number,
        or 0 after the timeout.
        """

        def is_changed() -> bool:
            return self._is_closed or any(
                number > batch for key, number in self._changes.items() if key.startswith(prefix)
            )

        with self._changed:
            if not self._changed.wait_for(is_changed, timeout_s):
                return 0
            self._check_open()
            return self._batch

    def _write(self, key: bytes, new: tuple[bytes, float | None] | None) -> None:
        self._changes[key] = self._batch
        if new is None:
            self._values.pop(key, None)
            self._ends_s.pop(key, None)
            return
        self._values[key], ttl_s = new
        if ttl_s is None:
            self._ends_s.pop(key, None)
        elif ttl_s != Overlay.KEPT:
            self._ends_s[key] = self._clock() + ttl_s

    @contextmanager
    def _now(self) -> Iterator[None]:
        """Hold the lock, without the keys whose lifetime has ended."""
        with self._changed:
            self._check_open()
            now_s = self._clock()
            for key in [key for key, end_s in self._ends_s.items() if end_s <= now_s]:
                del self._values[key], self._ends_s[key]
                self._batch += 1
                self._changes[key] = self._batch
            yield

    def _check_open(self) -> None:
        if self._is_closed:
            raise BaseClosedError(self.name)


def open_memory(url: SplitResult, key: Key | None) -> Base:
    """Open `memory:`, a new base of this process."""
    return MemoryBase()


class _Copy(Snapshot):
    def __init__(self, values: dict[bytes, bytes]) -> None:
        self._values = values

    def get(self, key: bytes) -> bytes | None:
        return self._values.get(key)

    def rows(self, first: bytes = b"", last: bytes | None = None) -> Iterator[Row]:
        return iter(_rows(self._values, first, end_of_scan(last)))


class _MemoryWatch(Watch):
    def __init__(self, base: MemoryBase, prefix: bytes, batch: int) -> None:
        self._base = base
        self._prefix = prefix
        self._batch = batch

    def wait(self, timeout_s: float | None = None) -> bool:
        changed = self._base.changed_since(self._prefix, self._batch, timeout_s)
        self._batch = changed or self._batch
        return bool(changed)


def _rows(values: dict[bytes, bytes], first: bytes, last: bytes | None) -> list[Row]:
    return sorted(
        row for row in values.items() if first <= row[0] and (last is None or row[0] < last)
    )
