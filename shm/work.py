"""What a daemon does to its store, in threads or at once. Everything that goes wrong is a value.

The own store is asked directly; sockets are for others.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar

from twisted.logger import Logger

from ciel.shm.messages import Code, Ok
from ciel.shm.requests import Place, Refusal, Seen, Slow
from ciel.storage.devices import device_of
from ciel.storage.errors import (
    CorruptObjectError,
    NoSpaceError,
    ObjectConflictError,
    ObjectNotFoundError,
    StorageError,
)
from ciel.storage.interface import ObjectInfo, ObjectStore, ObjectWriter
from ciel.storage.sharing import Found, copy_in, link
from ciel.storage.tokens import Claim, TokenError

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


Turn = Callable[[str, int], AbstractContextManager[object]]
"""Waits, in a thread, until the disk that a path lies on is free for so many bytes (CIB-40)."""


def at_once(path: str, size_bytes: int) -> AbstractContextManager[object]:
    """Wait for no disk."""
    return nullcontext()


def in_line(path: str, size_bytes: int) -> AbstractContextManager[object]:
    """Wait for one's turn among all processes of this host that use the disk, one at a time."""
    device = device_of(path)
    if not device.is_limited:
        return nullcontext()
    try:
        claim = Claim(device.name, 1)
    except TokenError as error:
        log.warn("the disk is not waited for: {error}", error=error)
        return nullcontext()
    try:
        claim.wait(TURN_TIMEOUT_S)  # then it goes on all the same: somebody may be stopped
    except BaseException:
        claim.release()
        raise
    return claim


class Done(NamedTuple):
    """Something slow that went well. `copied_bytes`: None if nothing came into the store."""

    seen: Seen
    copied_bytes: int | None


@dataclass(slots=True)
class Counts:
    """What a daemon has done since it started."""

    loads: int = 0
    """Asked for by programs; likewise writes and commits."""
    writes: int = 0
    commits: int = 0
    refused: int = 0
    """Of all these, those that were answered with a failure."""
    lifted: int = 0
    """Copied from behind the store into it."""
    asked: int = 0
    """Loads that siblings were asked for: one for each sibling that was asked."""
    found: int = 0
    """Of these, those that were answered with a file."""
    served: int = 0
    """Loads of siblings that were answered with a file: their one hop ended here."""
    not_served: int = 0
    linked: int = 0
    """Taken in from siblings by a link; likewise by a copy."""
    copied: int = 0
    copied_bytes: int = 0


def refusal_of(error: Exception) -> Refusal:
    """Say in an answer what a store raised."""
    if not isinstance(error, StorageError | OSError):
        log.failure("a request failed: {error}", error=error)
    code = next((code for kind, code in _CODES.items() if isinstance(error, kind)), Code.FAILED)
    return Refusal(code, str(error) or type(error).__name__)


class Work:
    """Works on a store, and on the one behind it, if there is one. Any thread may call."""

    def __init__(self, store: ObjectStore, behind: ObjectStore | None, turn: Turn) -> None:
        self.store = store
        self.behind = behind
        self._turn = turn
        self._lent: list[ExitStack] = []
        self._lent_before: list[ExitStack] = []
        self.is_called_off = False

    def look(self, name: str, *, for_sibling: bool) -> Seen | Place:
        """Look for an object in the own store."""
        info = self.store.stat(name)
        try:
            known = (info.checksum if info else None) or ""
            return self._seen(name, known, for_sibling=for_sibling)
        except ObjectNotFoundError:
            return Place.NOWHERE

    def look_behind(self, name: str) -> Place:
        """Look for an object in the store behind it."""
        is_behind = self.behind is not None and self.behind.stat(name) is not None
        return Place.BEHIND if is_behind else Place.NOWHERE

    def do_slowly(self, kind: Slow, name: str, offer: Ok | None) -> Done:
        """Do what takes long."""
        if kind is Slow.READ:
            known = self.store.checksum(name)
            return Done(self._seen(name, known, for_sibling=True), None)
        if kind is Slow.LIFT:
            info = self._lift(name)
            return Done(self._seen(name, info.checksum or ""), info.size_bytes)
        assert offer is not None
        found = Found(offer.path, offer.size_bytes, offer.checksum)
        if link(self.store, name, found) is not None:
            return Done(self._seen(name, found.checksum), 0)
        # Room first: objects that are moved to a disk to make some wait for their turn, too.
        writer = self.store.begin(name, size_hint_bytes=found.size_bytes)
        with writer, self._turn(found.path, found.size_bytes):
            copy_in(
                self.store, name, found, writer=writer, is_called_off=lambda: self.is_called_off
            )
        return Done(self._seen(name, found.checksum), found.size_bytes)

    def _lift(self, name: str) -> ObjectInfo:
        assert self.behind is not None
        recorded = self.behind.stat(name)
        with (
            self.behind.open(name) as reader,
            self.store.begin(name, size_hint_bytes=reader.size_bytes) as writer,
            self._turn(reader.path or "/", reader.size_bytes),
        ):
            buffer = memoryview(bytearray(min(_CHUNK_BYTES, max(reader.size_bytes, 1))))
            offset_bytes = 0
            while count := reader.read_into(buffer, offset_bytes):
                if self.is_called_off:
                    raise StorageError("called off")
                writer.write(buffer[:count])
                offset_bytes += count
            return writer.commit(checksum=recorded.checksum if recorded else None)

    def commit(self, writer: ObjectWriter, name: str) -> Seen:
        """Commit an object, under the name that is wanted now. Afterwards the writer is done."""
        with writer:
            info = writer.commit()
        if info.object_id != name:
            info = self._rename(info, name)
        return self._seen(name, info.checksum or "")

    def _rename(self, info: ObjectInfo, name: str) -> ObjectInfo:
        """Give a committed object another name, by a hard link (CIB-20)."""
        try:
            known = self.store.checksum(info.object_id)
            seen = self._seen(info.object_id, known, for_sibling=True)
            return self.store.adopt(name, seen.path, checksum=known, size_bytes=seen.size_bytes)
        finally:
            with suppress(StorageError):
                self.store.delete(info.object_id)

    def _seen(self, name: str, checksum: str, *, for_sibling: bool = False) -> Seen:
        with ExitStack() as open_here:
            reader = open_here.enter_context(self.store.open(name))
            path = reader.source if for_sibling else reader.path
            if path is None:
                raise StorageError("this store's objects have no names that others can open")
            if path != reader.source:  # the name of a copy, which goes with its last reader
                self._lent.append(open_here.pop_all())
            return Seen(path, reader.size_bytes, checksum)

    @property
    def has_lent(self) -> bool:
        """Whether copies are kept open for who was told their names."""
        return bool(self._lent or self._lent_before)

    def take_back(self) -> None:
        """Close those that were kept open already when this was called last."""
        done, self._lent_before, self._lent = self._lent_before, self._lent, []
        for open_here in done:
            open_here.close()


def guarded(call: Callable[[], T]) -> T | Refusal:
    """Return what a call returns, or why it could not."""
    try:
        return call()
    except Exception as error:  # whatever it is, somebody waits for an answer
        return refusal_of(error)
