"""Operations on the daemon's store, in threads or directly. Errors are returned as values.

The daemon accesses its own store directly; only clients and peers use sockets.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar

from twisted.logger import Logger

from ciel.shm.messages import Code, Ok
from ciel.shm.requests import Place, Refusal, Seen, Slow
from ciel.storage.device_semaphores import DeviceQueueError, QueueEntry
from ciel.storage.devices import device_of
from ciel.storage.errors import (
    CorruptObjectError,
    NoSpaceError,
    ObjectConflictError,
    ObjectNotFoundError,
    StorageError,
)
from ciel.storage.interface import ObjectInfo, ObjectStore, ObjectWriter
from ciel.storage.sharing import PeerObject, copy_in, link

log = Logger()
T = TypeVar("T")

TURN_TIMEOUT_S: Final = 10.0
_CHUNK_BYTES: Final = 1024 * 1024
_CODES: Final = {
    ObjectNotFoundError: Code.NOT_FOUND,
    NoSpaceError: Code.NO_SPACE,
    ObjectConflictError: Code.CONFLICT,
    CorruptObjectError: Code.CORRUPT,
}


DiskTurn = Callable[[str, int], AbstractContextManager[object]]
"""Returns, for a path and a number of bytes to copy, a context that holds the path's disk. Entering
it waits in the calling thread until the jobs of other processes on this disk are done (CIB-40)."""


def do_not_wait(path: str, size_bytes: int) -> AbstractContextManager[object]:
    """Do not wait for the disk."""
    return nullcontext()


def wait_in_queue(path: str, size_bytes: int) -> AbstractContextManager[object]:
    """Wait in the queue that all processes on this host share for the path's disk."""
    device = device_of(path)
    if not device.is_limited:
        return nullcontext()
    try:
        entry = QueueEntry(device.name, 1)
    except DeviceQueueError as error:
        log.warn("using the disk without waiting for other processes: {error}", error=error)
        return nullcontext()
    try:
        entry.wait(TURN_TIMEOUT_S)  # then continue: a stopped process may hold the disk
    except BaseException:
        entry.release()
        raise
    return entry


class Done(NamedTuple):
    """The result of a slow job. `copied_bytes`: None if nothing was added to the store."""

    seen: Seen
    copied_bytes: int | None


@dataclass(slots=True)
class Counts:
    """Counters of a daemon since its start."""

    loads: int = 0
    """Loads that programs have requested. `writes` and `commits` count their other requests."""
    writes: int = 0
    commits: int = 0
    refused: int = 0
    """Requests of programs that failed."""
    lifted: int = 0
    """Objects copied from the store behind into the daemon's store."""
    asked: int = 0
    """Loads sent to peers; a load that is sent to three peers counts three times."""
    found: int = 0
    """Loads that peers answered with a file."""
    served: int = 0
    """Loads of peers that were answered with a file."""
    not_served: int = 0
    linked: int = 0
    """Objects linked from peers; `copied` counts copies."""
    copied: int = 0
    copied_bytes: int = 0


def refusal_of(error: Exception) -> Refusal:
    """Translate an exception of a store into a failure."""
    if not isinstance(error, StorageError | OSError):
        log.failure("a request failed: {error}", error=error)
    code = next((code for kind, code in _CODES.items() if isinstance(error, kind)), Code.FAILED)
    return Refusal(code, str(error) or type(error).__name__)


class Work:
    """Operations on a store, and on the store behind it, if any. Any thread may call them.

    The store behind is on a disk; objects are loaded from it into the daemon's store.
    """

    def __init__(self, store: ObjectStore, behind: ObjectStore | None, disk_turn: DiskTurn) -> None:
        self.store = store
        self.behind = behind
        self._disk_turn = disk_turn
        self._lent: list[ExitStack] = []
        self._lent_before: list[ExitStack] = []
        self.is_cancelled = False

    def look_up(self, name: str, *, for_peer: bool) -> Seen | Place:
        """Look up an object in the daemon's store."""
        if self.store.is_remote(name):
            return Place.REMOTE
        info = self.store.stat(name)
        try:
            known = (info.checksum if info else None) or ""
            return self._seen(name, known, for_peer=for_peer)
        except ObjectNotFoundError:
            return Place.NOWHERE

    def look_up_behind(self, name: str) -> Place:
        """Look up an object in the store behind."""
        is_behind = self.behind is not None and self.behind.stat(name) is not None
        return Place.BEHIND if is_behind else Place.NOWHERE

    def do_slowly(self, kind: Slow, name: str, offer: Ok | None) -> Done:
        """Run a slow job."""
        if kind is Slow.READ:
            self.store.bring_back(name)
            known = self.store.checksum(name)
            return Done(self._seen(name, known, for_peer=True), None)
        if kind is Slow.LIFT:
            info = self._lift(name)
            return Done(self._seen(name, info.checksum or ""), info.size_bytes)
        assert offer is not None
        found = PeerObject(offer.path, offer.size_bytes, offer.checksum)
        if link(self.store, name, found) is not None:
            return Done(self._seen(name, found.checksum), 0)
        # Reserve space before waiting for the disk: to make space, the store may move objects to a
        # disk, and waits for that disk, too.
        writer = self.store.begin(name, size_hint_bytes=found.size_bytes)
        with writer, self._disk_turn(found.path, found.size_bytes):
            copy_in(self.store, name, found, writer=writer, is_cancelled=lambda: self.is_cancelled)
        return Done(self._seen(name, found.checksum), found.size_bytes)

    def _lift(self, name: str) -> ObjectInfo:
        assert self.behind is not None
        recorded = self.behind.stat(name)
        with (
            self.behind.open(name) as reader,
            self.store.begin(name, size_hint_bytes=reader.size_bytes) as writer,
            self._disk_turn(reader.path or "/", reader.size_bytes),
        ):
            buffer = memoryview(bytearray(min(_CHUNK_BYTES, max(reader.size_bytes, 1))))
            offset_bytes = 0
            while count := reader.read_into(buffer, offset_bytes):
                if self.is_cancelled:
                    raise StorageError("the copy was cancelled, because the daemon is stopping")
                writer.write(buffer[:count])
                offset_bytes += count
            return writer.commit(checksum=recorded.checksum if recorded else None)

    def begin(
        self, name: str, size_hint_bytes: int | None, *, is_mapped: bool
    ) -> tuple[ObjectWriter, str]:
        """Open an object for writing; return its writer, and the path for the program."""
        writer = self.store.begin(name, size_hint_bytes=size_hint_bytes)
        path = writer.mapped_path if is_mapped else writer.path
        if path is None:
            writer.abort()
            raise StorageError("this store has no files that a program could write")
        return writer, path

    def commit(self, writer: ObjectWriter, name: str) -> Seen:
        """Commit a write under the name that the commit request has, and end the writer."""
        with writer:
            info = writer.commit()
        if info.object_id != name:
            info = self._rename(info, name)
        return self._seen(name, info.checksum or "")

    def _rename(self, info: ObjectInfo, name: str) -> ObjectInfo:
        """Rename a committed object, by a hard link (CIB-20)."""
        try:
            known = self.store.checksum(info.object_id)
            seen = self._seen(info.object_id, known, for_peer=True)
            return self.store.adopt(name, seen.path, checksum=known, size_bytes=seen.size_bytes)
        finally:
            with suppress(StorageError):
                self.store.delete(info.object_id)

    def _seen(self, name: str, checksum: str, *, for_peer: bool = False) -> Seen:
        with ExitStack() as open_here:
            reader = open_here.enter_context(self.store.open(name))
            path = reader.source if for_peer else reader.path
            if path is None:
                raise StorageError("this store has no paths that other processes can open")
            if path != reader.source:  # a temporary copy, which exists as long as a reader is open
                self._lent.append(open_here.pop_all())
            return Seen(path, reader.size_bytes, checksum)

    @property
    def has_lent(self) -> bool:
        """Whether copies are kept open for clients that received their paths."""
        return bool(self._lent or self._lent_before)

    def take_back(self) -> None:
        """Close the copies that were already open at the previous call."""
        done, self._lent_before, self._lent = self._lent_before, self._lent, []
        for open_here in done:
            open_here.close()


def guarded(call: Callable[[], T]) -> T | Refusal:
    """Return a call's result, or its failure."""
    try:
        return call()
    except Exception as error:  # any error must be reported to the waiting client
        return refusal_of(error)
