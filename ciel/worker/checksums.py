"""Computes the checksums of new objects, and verifies objects before they are read; see ADR 78.

An object that the store has moved to another machine is brought back first. Threads do all this,
except for small objects that are here. A new object can be read before its checksum is known: until
then it is not verified. An object whose content has changed is deleted and reported, so that its
readers find it missing, and its task runs again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

from twisted.internet.defer import Deferred, gatherResults, maybeDeferred
from twisted.logger import Logger

from ciel.core.ids import ObjectId
from ciel.core.refs import Concrete, Reference, Sweetheart
from ciel.storage.errors import CorruptObjectError, StorageError
from ciel.storage.interface import ObjectStore, Verify
from ciel.worker.disk_jobs import in_daemon_thread

log = Logger(__name__)  # compiled code cannot determine its own module

SMALL_BYTES: Final = 64 << 10
"""So many bytes are verified in the reactor's thread: 20 us, less than another thread costs."""

_STORED: Final = (Concrete, Sweetheart)

Damaged = frozenset[ObjectId]


class Damage(NamedTuple):
    """An object that was deleted because its content had changed. `place`: its file."""

    object_id: ObjectId
    place: str
    error: CorruptObjectError


class Checksums:
    """The checksums of one worker's objects, and which of the objects were verified."""

    def __init__(self, reactor: Any, store: ObjectStore, verify: Verify) -> None:
        self.damaged: Callable[[ObjectId], None] = lambda object_id: None
        """Called in the reactor's thread after a damaged object was deleted."""
        self._reactor = reactor
        self._store = store
        self._verify = verify
        self._verified: set[str] = set()
        self._new: deque[str] = deque()
        self._is_computing = False
        self._pending: dict[str, list[Deferred[Damaged]]] = {}  # the waiters of objects in a thread

    # --- new objects ------------------------------------------------------------------------------

    def committed(self, refs: Iterable[Reference]) -> None:
        """Have the checksums of new objects computed."""
        if self._verify is not Verify.NEVER:
            self._new.extend([ref.id for ref in refs if isinstance(ref, _STORED)])
            self._compute_soon()

    def _compute_soon(self) -> None:
        if self._new and not self._is_computing:
            self._is_computing = True
            computed = in_daemon_thread(self._reactor, self._compute)
            computed.addErrback(lambda failure: log.failure("checksums failed", failure))
            computed.addCallback(self._computed)

    def _compute(self) -> None:
        """Compute all checksums, the oldest object's first. Called in a thread."""
        while self._new:
            object_id = self._new.popleft()
            self._verified.discard(object_id)
            try:
                self._store.checksum(object_id)
            except (StorageError, OSError) as error:  # it was deleted meanwhile, or is unreadable
                log.debug("no checksum of {id}: {error}", id=object_id, error=error)

    def _computed(self, _: None) -> None:
        self._is_computing = False
        self._compute_soon()  # others may have come when the thread had ended its work

    def forget(self, object_id: str) -> None:
        """Forget an object that was deleted. Any thread may call this."""
        self._verified.discard(object_id)

    # --- readers ----------------------------------------------------------------------------------

    def verify(
        self, refs: Iterable[Reference], *, are_opened: bool = True
    ) -> Deferred[Damaged] | None:
        """Verify the objects that are stored here, and delete the damaged ones.

        Returns what fires with the damaged objects; None if nothing has to be verified.
        `are_opened`: the caller opens the objects then, so they stay until it has.
        """
        is_here = self._store.expect if are_opened else self._is_here
        unverified = [
            ref for ref in refs if isinstance(ref, _STORED) and self._is_due(ref.id, is_here)
        ]
        if not unverified:
            return None
        own = [ref for ref in unverified if ref.id not in self._pending]
        waits = [self._wait(ref.id) for ref in unverified if ref.id in self._pending]
        if own:
            waits.append(self._verify_all(own))
        return gatherResults(waits).addCallback(lambda found: frozenset().union(*found))

    def _is_here(self, object_id: str) -> bool:
        return not self._store.is_remote(object_id)

    def _is_due(self, object_id: str, is_here: Callable[[str], bool]) -> bool:
        is_new = self._verify is not Verify.NEVER and object_id not in self._verified
        return not is_here(object_id) or is_new

    def _verify_all(self, refs: Sequence[Concrete | Sweetheart]) -> Deferred[Damaged]:
        objects = [ref.id for ref in refs]
        self._pending |= {object_id: [] for object_id in objects}
        done = self._wait(objects[0])
        sizes = [SMALL_BYTES + 1 if ref.size_bytes is None else ref.size_bytes for ref in refs]
        is_any_remote = any(map(self._store.is_remote, objects))
        if sum(sizes) <= SMALL_BYTES and not is_any_remote:
            checked = maybeDeferred(self._check_all, objects)
        else:
            checked = in_daemon_thread(self._reactor, self._check_all, objects)
        checked.addErrback(lambda failure: log.failure("objects could not be verified", failure))
        checked.addCallback(self._checked, objects)
        return done

    def _wait(self, object_id: str) -> Deferred[Damaged]:
        waiter: Deferred[Damaged] = Deferred()
        self._pending[object_id].append(waiter)
        return waiter

    def _check_all(self, objects: Sequence[ObjectId]) -> list[Damage]:
        """Verify objects and delete the damaged ones. Any thread may call this."""
        found = [self._check(object_id) for object_id in objects]
        return [damage for damage in found if damage is not None]

    def _check(self, object_id: ObjectId) -> Damage | None:
        store = self._store
        try:
            store.bring_back(object_id)
            if self._verify is Verify.NEVER or object_id in self._verified:
                return None  # copies between the levels are compared with the checksum
            info = store.stat(object_id)
            if info is None or info.checksum is None:
                return None  # it is not here, or so new that its checksum is not known yet
            store.verify(object_id)
        except CorruptObjectError as error:
            place = self._place_of(object_id)
            store.delete(object_id)
            return Damage(object_id, place, error)
        except StorageError:
            return None  # it cannot be opened: its reader reports why
        if self._verify is Verify.FIRST:
            self._verified.add(object_id)
        return None

    def _place_of(self, object_id: ObjectId) -> str:
        """Return the file of an object. To open an object is to use it, so others stay unopened."""
        try:
            with self._store.open(object_id) as reader:
                return reader.source or "the store"
        except StorageError:
            return "the store"

    def _checked(self, damages: list[Damage] | None, objects: Sequence[ObjectId]) -> None:
        for object_id, place, error in damages or ():
            text = "{place} is damaged: {error}; the worker has deleted it, so it is recomputed"
            log.error(text, place=place, error=error)
            self.damaged(object_id)
        damaged = frozenset([damage.object_id for damage in damages or ()])
        for object_id in objects:
            for waiter in self._pending.pop(object_id, ()):
                waiter.callback(damaged)
