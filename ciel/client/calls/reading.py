"""Reads values from the objects that calls have produced."""

from __future__ import annotations

import contextlib
import io
import itertools
import mmap
from collections.abc import Callable, Iterator
from typing import Any, Final

from ciel.client.calls.futures import ClientFuture, Owner
from ciel.client.calls.job import JobOfCalls
from ciel.client.calls.lots import Lot, Lots
from ciel.client.calls.parts import PartReader
from ciel.client.calls.session import Session
from ciel.client.errors import ObjectUnreadableError
from ciel.core.refs import Concrete, Reference, Sweetheart
from ciel.python.contents import ITEM, RETURNED, Outcome, decode, read_stream
from ciel.python.elsewhere import ObjectElsewhere
from ciel.python.failures import unpack_error
from ciel.python.packing import UnpackedError, unpack
from ciel.wire.references import from_array

EAGER_MAX_BYTES: Final = 64 << 10
"""A larger result of a single call is read only when the program requests it."""
MAPPED_MIN_BYTES: Final = 256 << 10
"""An object of at least this size is mapped instead of copied if a worker on this host has it."""


class ResultReader:
    """Reads the results of one client's calls. Thread-safe."""

    def __init__(self, session: Session, job: JobOfCalls, lots: Lots, owner: Owner) -> None:
        self._session = session
        self._job = job
        self._lots = lots
        self._owner = owner
        self._parts = PartReader(session.read_chunks, self._recovered)

    def value_of(self, outcome: Outcome, name: str) -> Any:
        """Return the value of an outcome, with futures for its references; raises UnpackedError."""
        given = []
        for array, place, raw in outcome.refs:
            future: ClientFuture[Any] = ClientFuture(self._owner, name)
            future.sent_as(self._lots.find(from_array(array), raw=raw), place)
            future.is_requested = False
            given.append(future)
        try:
            return unpack(outcome.packed.head, outcome.packed.buffers, given)
        except UnpackedError:
            raise
        except (Exception, SystemExit) as error:  # a user's class may raise anything
            text = f"it cannot be unpickled here: {type(error).__name__}: {error}"
            raise UnpackedError(text) from error

    def outcomes(self, lot: Lot) -> list[Outcome]:
        """Return the content of a lot; the first call reads it.

        Raises UnpackedError, and the errors of `Job.read`.
        """
        with lot.lock:
            if lot.content is None:
                lot.content = decode(self.read(lot.ref)).outcomes
            return lot.content

    def in_parts(self, lot: Lot, value: Callable[[], Any]) -> ObjectElsewhere | None:
        """Return a large object that no worker on this host has; None if it is to be read.

        `value` reads the only result in it.
        """
        ref = lot.ref
        if lot.raw or lot.is_stream or not isinstance(ref, Concrete | Sweetheart):
            return None
        if (ref.size_bytes or 0) < MAPPED_MIN_BYTES:
            return None
        with lot.lock:
            if lot.content is not None:
                return None
            mapped = self._session.map_object(ref)
            if mapped is None:
                return self._parts.source(ref, ref.size_bytes or 0, value)
            lot.content = decode(memoryview(mapped)).outcomes
        return None

    def _recovered(self, error: ObjectUnreadableError, ref: Reference) -> Reference:
        job = self._job.opened
        if job is None:
            raise error
        return job.await_copy(error, ref)

    def growing_items(self, lot: Lot, future: ClientFuture[Any]) -> Iterator[Any]:
        """Yield the items of a generator task as they arrive; raises the exception of the task.

        If the task is lost and runs again, skip the items that were yielded before.
        """
        count = 0
        while (ref := lot.await_growth(future.done)) is not None:
            try:
                with contextlib.closing(self._session.read_growing(ref)) as reading:
                    for number, (kind, head) in enumerate(read_stream(reading.read)):
                        if kind == RETURNED:
                            return
                        if kind != ITEM:
                            raise unpack_error(head)
                        if number >= count:
                            count = number + 1
                            yield unpack(head)
            except (ObjectUnreadableError, UnpackedError):
                lot.no_growth(ref)  # the task failed, its worker was lost, or it is complete by now
        items = future.result()
        yield from itertools.islice(items or (), count, None)

    def read_items(self, lot: Lot) -> Any:
        """Return the items of a generator task as a list, or its return value if it has none."""
        items: list[Any] = []
        for kind, head in read_stream(io.BytesIO(self.read_bytes(lot.ref)).read):
            if kind == ITEM:
                items.append(unpack(head))
            elif kind == RETURNED:
                return items or unpack(head)
            else:
                raise unpack_error(head)
        return items

    def read_bytes(self, ref: Reference) -> bytes:
        """Return the content of an object; raises the errors of `Job.read`."""
        job = self._job.opened
        return self._session.read(ref) if job is None else job.read(ref)

    def read(self, ref: Reference) -> Any:
        """Return the content of an object in private, writable memory.

        Raises the errors of `Job.read`.
        """
        job = self._job.opened
        size_bytes = getattr(ref, "size_bytes", None)
        if size_bytes is None or size_bytes <= EAGER_MAX_BYTES or job is None:
            return bytearray(self.read_bytes(ref))
        while True:
            mapped = self._session.map_object(ref) if size_bytes >= MAPPED_MIN_BYTES else None
            if mapped is not None and len(mapped) == size_bytes:
                return mapped
            memory = mmap.mmap(-1, size_bytes)
            try:
                at = 0
                for chunk in self._session.read_chunks(ref):
                    memory[at : at + len(chunk)] = chunk
                    at += len(chunk)
                return memory
            except ObjectUnreadableError as error:
                ref = job.await_copy(error, ref)
