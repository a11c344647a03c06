"""Copies parts of objects of other hosts into files of attempts (POOL-5)."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from twisted.internet.defer import Deferred, FirstError, gatherResults, inlineCallbacks
from twisted.logger import Logger

from ciel.core.plans import HttpPlan, Plan
from ciel.core.refs import Concrete, Reference, Sweetheart
from ciel.net.errors import TransferError
from ciel.worker.disk_jobs import Admit
from ciel.worker.transfer.peer_stores import FetchCounts

log = Logger()


class Part(NamedTuple):
    """A part of an object."""

    offset_bytes: int
    size_bytes: int


class PartCopies:
    """Copies parts of objects by HTTP, all parts of one object at the same time.

    `ask` sends a request to another worker; see `Fetcher.ask`.
    """

    def __init__(
        self, ask: Callable[..., Deferred[Any]], admit: Admit, counts: FetchCounts
    ) -> None:
        self._ask = ask
        self._admit = admit
        self._counts = counts

    @inlineCallbacks
    def copy(self, ref: Reference, plans: Sequence[Plan], parts: Sequence[Part], fd: int) -> Any:
        """Write parts of an object where they belong in a file; return whether all are there.

        Tries each worker that has the object, until one sends the parts. If no worker does, the
        caller fetches the object as a whole, and reports the workers that lack it. Once the
        Deferred is cancelled, the file is not changed any more.
        """
        size_bytes = sum(part.size_bytes for part in parts)
        permit = yield self._admit(size_bytes, by_network=True)
        try:
            for plan in plans:
                if not isinstance(plan, HttpPlan):
                    return False
                copies = [self._copy_part(plan.netloc, ref, part, fd) for part in parts]
                try:
                    yield gatherResults(copies, consumeErrors=True)
                except FirstError as error:
                    for copy in copies:
                        copy.cancel()
                    failure = error.subFailure
                    if not isinstance(failure.value, TransferError | OSError):
                        failure.raiseException()
                    log.info(
                        "parts of {id} cannot be copied from {netloc}: {why}",
                        id=ref.id, netloc=plan.netloc, why=failure.getErrorMessage(),
                    )  # fmt: skip
                    continue
                self._counts.parts += len(parts)
                self._counts.part_bytes += size_bytes
                return True
            return False
        finally:
            permit.release()

    def _copy_part(self, netloc: str, ref: Reference, part: Part, fd: int) -> Deferred[Any]:
        whole_bytes = ref.size_bytes if isinstance(ref, Concrete | Sweetheart) else None
        sink = _Sink(fd, part.offset_bytes)
        return self._ask(
            netloc, f"/data/{ref.id}", sink, offset_bytes=part.offset_bytes,
            length_bytes=part.size_bytes, expected_size_bytes=whole_bytes,
        )  # fmt: skip


class _Sink:
    """Writes to a file from an offset on."""

    def __init__(self, fd: int, offset_bytes: int) -> None:
        self._fd = fd
        self._offset_bytes = offset_bytes

    def write(self, chunk: bytes) -> None:
        view = memoryview(chunk)
        while view:
            count = os.pwrite(self._fd, view, self._offset_bytes)
            self._offset_bytes += count
            view = view[count:]
