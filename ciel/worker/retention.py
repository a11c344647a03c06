"""Deletes objects from the worker's store, and decides which copies the store may drop."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from twisted.internet.defer import DeferredLock
from twisted.internet.threads import deferToThread
from twisted.logger import Logger

from ciel.core.ids import ObjectId
from ciel.storage.errors import StorageError
from ciel.storage.interface import ObjectStore
from ciel.worker.checksums import Checksums
from ciel.worker.state.machine import WorkerMachine

log = Logger()


class Retention:
    """Decides which objects the store may drop, and deletes those that the master names."""

    def __init__(
        self,
        reactor: Any,
        store: ObjectStore,
        machine: WorkerMachine,
        turn: Callable[[Any, int], AbstractContextManager[None]],
        checksums: Checksums,
    ) -> None:
        """`turn`: lets the store wait until its disk is free; see `DiskJobs.turn`."""
        self._reactor = reactor
        self._store = store
        self._machine = machine
        self._checksums = checksums
        self._copies: set[str] = set()  # of objects that other workers had, and may still have
        self._deleting = DeferredLock()
        store.advise(self._may_drop, self._dropped, turn)

    def copied(self, object_id: ObjectId) -> None:
        """Note that an object came from another worker."""
        self._copies.add(object_id)

    def delete(self, objects: tuple[ObjectId, ...]) -> None:
        """Delete objects, in a thread: to free a large file takes noticeable time.

        Several threads would slow down the reactor's thread, so there is one at a time.
        """
        deleted = self._deleting.run(deferToThread, self._delete, objects)
        deleted.addErrback(lambda failure: log.failure("deletion failed", failure))

    def _delete(self, objects: tuple[ObjectId, ...]) -> None:
        for object_id in objects:
            if self._machine.expects(object_id):
                continue  # the store has a new file of it, or will have one soon
            self._copies.discard(object_id)
            self._checksums.forget(object_id)
            try:
                self._store.delete(object_id)
            except StorageError as error:
                log.warn("{id} could not be deleted: {error}", id=object_id, error=error)

    def _may_drop(self, object_id: str) -> bool:
        """Return whether the store may drop an object. May be called from any thread."""
        return object_id in self._copies and self._machine.is_droppable(object_id)

    def _dropped(self, object_id: str) -> None:
        """Note that the store has dropped an object. May be called from any thread."""
        self._copies.discard(object_id)
        self._checksums.forget(object_id)
        self._reactor.callFromThread(self._machine.dropped, ObjectId(object_id))
