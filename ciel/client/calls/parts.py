"""Reads parts of results that lie on other hosts (POOL-5)."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from ciel.client.errors import ObjectUnreadableError
from ciel.core.refs import Concrete, Sweetheart
from ciel.python.elsewhere import ObjectElsewhere, Part

_AT_ONCE: Final = 8
_MAP_NORESERVE: Final = 0x4000

Read = Callable[[Concrete | Sweetheart, int, int], Iterator[bytes]]
"""Reads the bytes of an object from an offset on, to an end."""


class _Copy:
    """An object of which parts were copied into private memory."""

    def __init__(self, ref: Concrete | Sweetheart, size_bytes: int) -> None:
        self.ref = ref
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
        self.memory = memoryview(mmap.mmap(-1, size_bytes, flags))


class PartReader:
    """Copies parts of objects, several at the same time.

    `recovered` waits until an object that could not be read can be read, and returns the reference
    to it; or raises the error.
    """

    def __init__(
        self,
        read: Read,
        recovered: Callable[[ObjectUnreadableError, Concrete | Sweetheart], Any],
    ) -> None:
        self._read = read
        self._recovered = recovered

    def source(
        self, ref: Concrete | Sweetheart, size_bytes: int, value: Callable[[], Any]
    ) -> ObjectElsewhere:
        """Return an object whose parts this reader copies; see `ObjectElsewhere`."""
        return ObjectElsewhere(_Copy(ref, size_bytes), size_bytes, self._fetch, value)

    def _fetch(self, wanted: Sequence[tuple[_Copy, Sequence[Part]]]) -> list[memoryview]:
        jobs = [(copy, part) for copy, parts in wanted for part in parts]
        with ThreadPoolExecutor(max(1, min(_AT_ONCE, len(jobs)))) as threads:
            for _ in threads.map(lambda job: self._copy(*job), jobs):
                pass
        return [copy.memory for copy, _ in wanted]

    def _copy(self, copy: _Copy, part: Part) -> None:
        at, end = part[0], part[0] + part[1]
        while at < end:
            try:
                for chunk in self._read(copy.ref, at, end):
                    copy.memory[at : at + len(chunk)] = chunk
                    at += len(chunk)
            except ObjectUnreadableError as error:
                copy.ref = self._recovered(error, copy.ref)
