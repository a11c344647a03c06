"""Compares second results of tasks with the results that count.

A task that ran twice has two results. The master keeps the first, and tells the second worker where
it is. If their checksums differ, the task is not deterministic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import xxhash
from twisted.internet.defer import Deferred, gatherResults, inlineCallbacks
from twisted.internet.threads import deferToThread
from twisted.logger import Logger

from ciel.core.ids import ObjectId
from ciel.core.refs import Concrete
from ciel.net.errors import TransferError
from ciel.storage.errors import StorageError
from ciel.storage.interface import ObjectReader, ObjectStore

log = Logger()

_CHUNK_BYTES = 1 << 20


class Comparisons:
    """Compares objects of this worker's store with copies at other workers.

    `ask` sends a request to another worker; see `Fetcher.ask`. `differs` is called with each object
    whose content differs.
    """

    def __init__(
        self,
        store: ObjectStore,
        ask: Callable[..., Deferred[Any]],
        differs: Callable[[ObjectId], None],
    ) -> None:
        self._store = store
        self._ask = ask
        self._differs = differs

    def compare(self, refs: Iterable[Concrete]) -> Deferred[Any]:
        """Compare objects; they may be deleted at once. An object that cannot be read is left out.

        `refs`: where the objects are whose content counts. Returns what fires at the end.
        """
        comparisons = []
        for ref in refs:
            try:
                reader = self._store.open(ref.id)
            except StorageError as error:
                log.debug("{id} is not compared: {error}", id=ref.id, error=error)
                continue
            compared = self._compare(ref, reader)
            compared.addErrback(lambda failure: log.failure("a comparison failed", failure))
            comparisons.append(compared)
        return gatherResults(comparisons)

    @inlineCallbacks
    def _compare(self, ref: Concrete, reader: ObjectReader) -> Any:
        checksum = yield deferToThread(_checksum, reader)
        for netloc in sorted(ref.locations):
            try:
                # Each answer contains the checksum of the whole object, if it is known there.
                result = yield self._ask(netloc, f"/data/{ref.id}", _Nowhere(), length_bytes=1)
            except TransferError as error:
                log.debug("{id} is not compared: {error}", id=ref.id, error=error)
                continue
            if result.checksum is not None:
                if result.checksum != checksum:
                    log.warn(
                        "a task is not deterministic: at {netloc}, {id} has other content",
                        netloc=netloc, id=ref.id,
                    )  # fmt: skip
                    self._differs(ref.id)
                return


class _Nowhere:
    def write(self, chunk: bytes) -> None:
        pass


def _checksum(reader: ObjectReader) -> str:
    """Return the checksum of an object, and close it. Called in a thread."""
    digest, offset_bytes = xxhash.xxh3_64(), 0
    with reader:
        while chunk := reader.read(offset_bytes, _CHUNK_BYTES):
            digest.update(chunk)
            offset_bytes += len(chunk)
    return str(digest.hexdigest())
