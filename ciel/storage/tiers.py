"""Combines a small fast store and a large slow one, such as memory over a disk, into one store.

    store = TieredStore(memory, disk)

New objects start in the upper level, and readers find them in either level. When the upper level is
nearly full, the store drops objects that can be fetched again, then moves the least recently used
objects down (`migration`, `eviction`). When an object is read from the lower level, the store loads
it back if there is space. Open objects stay where they are.

A writer that finds no space requests some, and waits for it up to `wait_s`. The thread that opened
the store must not wait, because it runs a reactor. In that thread a writer may exceed the capacity
by a limited amount while space is being freed; if that fails, it commits to the lower level. A new
writer starts in the lower level. If all of this fails, `NoSpaceError` has the requested and the
available bytes.

Only one process may use the store, since a second one would move objects that the first one reads.
See docs/adr/0027.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, suppress
from functools import partial
from typing import TypeVar

import xxhash

from ciel.core.ids import check_id
from ciel.storage.errors import (
    ANOTHER_FILE_SYSTEM,
    CannotAdoptError,
    CorruptObjectError,
    NoSpaceError,
    ObjectConflictError,
    ObjectNotFoundError,
)
from ciel.storage.interface import (
    DISK,
    MEMORY,
    Capabilities,
    Chunk,
    DiskLimit,
    MessageCore,
    Neighbours,
    ObjectInfo,
    ObjectReader,
    ObjectStore,
    ObjectWriter,
    Problem,
    StoreLevel,
    StoreUsage,
)
from ciel.storage.migration import PIECE_BYTES, Migrator
from ciel.storage.remote.memory import Lender

T = TypeVar("T")

WAIT_S = 10.0
"""How long a writer waits for space: the time to move a gibibyte to a slow disk."""
OVERRUN_MIN_BYTES, OVERRUN_SHARE = 256 << 20, 4
"""How far a writer may exceed the capacity while space is being freed: by so many bytes, or by this
share of the capacity if that is more. It must cover what a program writes between two calls of
`account`."""


class TieredReader(ObjectReader):
    """An open object of either level. It does not move while it is open."""

    def __init__(self, reader: ObjectReader, mover: Migrator, reading: set[int]) -> None:
        self.object_id = reader.object_id
        self.size_bytes = reader.size_bytes
        self._reader = reader
        self.fingerprint = reader.fingerprint  # type: ignore[method-assign]  # without a wrapper
        self._mover: Migrator | None = mover
        self._reading = reading
        reading.add(id(self))

    @property
    def path(self) -> str | None:
        return self._reader.path

    @property
    def mapped_path(self) -> str | None:
        return self._reader.mapped_path

    @property
    def place(self) -> str | None:
        return self._reader.place

    @property
    def piped_path(self) -> str | None:
        return self._reader.piped_path

    @property
    def source(self) -> str | None:
        return self._reader.source

    def fileno(self) -> int:
        return self._reader.fileno()

    def read_into(self, buffer: bytearray | memoryview, offset_bytes: int) -> int:
        return self._reader.read_into(buffer, offset_bytes)

    def read(self, offset_bytes: int, length_bytes: int) -> bytes:
        return self._reader.read(offset_bytes, length_bytes)

    def view(self) -> memoryview:
        return self._reader.view()

    def close(self) -> None:
        self._reader.close()
        mover, self._mover = self._mover, None
        if mover is not None:
            self._reading.discard(id(self))
            mover.release(self.object_id)

    def __del__(self) -> None:
        self.close()


class TieredWriter(ObjectWriter):
    """Writes an object into one of the levels."""

    def __init__(self, writer: ObjectWriter, tiers: TieredStore, *, is_above: bool) -> None:
        self.object_id = writer.object_id
        self._writer = writer
        self._tiers = tiers
        self._is_above = is_above
        self._short_since_s: float | None = None
        self._overrun_failed = False
        """Whether this thread, which may not wait for space, has tried to exceed the capacity, and
        the object still does not fit."""
        self._is_finished = False
        self._counting = ExitStack()  # of a spill
        if not is_above:
            self._counting.enter_context(tiers.counted_io())
        tiers.writing[is_above].add(id(self))

    @property
    def path(self) -> str | None:
        return self._with_file(lambda: self._writer.path)

    @property
    def mapped_path(self) -> str | None:
        return self._with_file(lambda: self._writer.mapped_path)

    def fileno(self, *, to_write: bool = True) -> int:
        return self._with_file(lambda: self._writer.fileno(to_write=to_write))

    def _with_file(self, give: Callable[[], T]) -> T:
        """Call `give`, which makes the writer create a file. If the upper level has no space for
        the file, and nothing was written yet, start the object in the lower level.
        """
        try:
            return give()
        except NoSpaceError as error:
            if not self._is_above or self.size_bytes:
                raise
            lower = self._tiers.begin_lower(self.object_id, error.wanted_bytes, error)
        self._writer.abort()
        self._tiers.writing[True].discard(id(self))
        self._writer, self._is_above = lower, False
        self._counting.enter_context(self._tiers.counted_io())
        self._tiers.writing[False].add(id(self))
        return give()

    @property
    def size_bytes(self) -> int:
        return self._writer.size_bytes

    def write(self, chunk: Chunk) -> None:
        self._with_space(lambda: self._writer.write(chunk))

    def view(self, size_bytes: int) -> memoryview:
        return self._with_space(lambda: self._writer.view(size_bytes))

    def account(self) -> None:
        self._with_space(self._writer.account)
        self._tiers.mover.free_if_short()

    @property
    def may_be_short(self) -> bool:
        return self._writer.may_be_short

    def read(self, offset_bytes: int, length_bytes: int) -> bytes:
        return self._writer.read(offset_bytes, length_bytes)

    def take(self, max_bytes: int, *, is_alone: bool = False) -> bytes | None:
        content = self._writer.take(max_bytes, is_alone=is_alone)
        if content is not None:
            self._end()
        return content

    def commit(self, *, checksum: str | None = None) -> ObjectInfo:
        with self._tiers.mover.exclusive(self.object_id):
            is_below = not self._is_above
            kept = None if self._is_finished else self._kept_instead()
            if kept is not None:
                self.abort()
                return kept
            try:
                info = self._with_space(
                    lambda: self._writer.commit(checksum=checksum), goes_on=False
                )
            except ObjectConflictError:
                self.abort()
                raise
            except NoSpaceError as error:
                if not self._overrun_failed:
                    raise
                info, is_below = self._commit_below(checksum, error), True
            else:
                if self._is_above:
                    self._tiers.mover.used(self.object_id, info.size_bytes)
        self._end()
        if is_below and self._tiers.settles:
            self._tiers.mover.written_below(self.object_id)
        self._tiers.mover.free_if_short()
        return info

    def abort(self) -> None:
        if not self._is_finished and self._is_above and self._writer.may_be_short:
            self._tiers.mover.note_shortage(self._writer.size_bytes)
        self._writer.abort()
        self._end()

    def __del__(self) -> None:
        self.abort()

    def _end(self) -> None:
        if not self._is_finished:
            self._is_finished = True
            self._counting.close()
            tiers = self._tiers
            tiers.writing[self._is_above].discard(id(self))
            tiers.mover.want_no_more(self)
            tiers.mover.release(self.object_id)

    def _kept_instead(self) -> ObjectInfo | None:
        try:
            return self._tiers.kept_in(not self._is_above, self.object_id, self._digest)
        except ObjectConflictError:
            self.abort()
            raise

    def _commit_below(self, checksum: str | None, error: NoSpaceError) -> ObjectInfo:
        """Commit a complete object to the lower level, since the upper one has no space in time."""
        try:
            with (
                self._tiers.counted_io(),
                self._tiers.begin_lower(self.object_id, error.wanted_bytes, error) as writer,
            ):
                for piece in self._pieces():
                    writer.write(piece)
                info = writer.commit(checksum=checksum)
        except ObjectConflictError:
            self.abort()
            raise
        self._writer.abort()
        return info

    def _digest(self) -> str:
        digest = xxhash.xxh3_64()
        for piece in self._pieces():
            digest.update(piece)
        return str(digest.hexdigest())

    def _pieces(self) -> Iterator[bytes]:
        offset_bytes = 0
        while piece := self._writer.read(offset_bytes, PIECE_BYTES):
            yield piece
            offset_bytes += len(piece)

    # --- space ------------------------------------------------------------------------------------

    def _with_space(self, step: Callable[[], T], *, goes_on: bool = True) -> T:
        """Call `step`, and retry it after `NoSpaceError` while space may become free. `goes_on`:
        the writer may write more after this step.
        """
        mover = self._tiers.mover
        while True:
            seen = mover.changes
            try:
                done = step()
            except NoSpaceError as error:
                self._handle_no_space(error, seen)
                continue
            if self._writer.may_overrun:
                self._writer.may_overrun = False
            elif self._short_since_s is not None and goes_on:
                self._recheck_shortage()
            return done

    def _recheck_shortage(self) -> None:
        """After a step that lacked space has succeeded, withdraw the request for space, unless the
        level is still beyond its capacity.
        """
        free_bytes = self._tiers.mover.free_bytes()
        if free_bytes is None or free_bytes >= 0:
            self._short_since_s = None
            self._tiers.mover.want_no_more(self)
        elif not self._tiers.may_wait:
            size_bytes = self.size_bytes
            error = NoSpaceError(size_bytes, max(size_bytes + free_bytes, 0))
            self._handle_no_space(error, self._tiers.mover.changes)
            self._writer.may_overrun = False

    def _handle_no_space(self, error: NoSpaceError, seen: int) -> None:
        """Handle `error` of a step: return if the step may be retried, else raise the error.

        `seen`: `mover.changes` before the step.
        """
        tiers, now_s = self._tiers, time.monotonic()
        has_overrun, self._writer.may_overrun = self._writer.may_overrun, False
        capacity_bytes = tiers.capacity_bytes
        if not self._is_above or has_overrun:
            self._overrun_failed = has_overrun
            raise error
        if capacity_bytes is not None and error.wanted_bytes > capacity_bytes:
            raise error
        if self._short_since_s is None:
            self._short_since_s = now_s
        left_s = self._short_since_s + tiers.wait_s - now_s
        short_bytes = error.wanted_bytes - error.available_bytes
        tiers.mover.want(self, short_bytes)
        mover = tiers.mover
        # In this order: a move that ends between the two checks changes the count.
        may_retry = mover.expects_space(self.object_id) or mover.changes != seen
        if left_s <= 0 or not may_retry:
            raise error
        if tiers.may_wait:
            if not tiers.mover.await_change(seen, left_s):
                raise error
        elif short_bytes <= tiers.overrun_bytes:
            self._writer.may_overrun = True
        else:
            raise error


class TieredStore(ObjectStore):
    """Two stores as one; `close` closes both."""

    mover_type = Migrator

    def __init__(
        self, upper: ObjectStore, lower: ObjectStore, *, place: str = "", wait_s: float = WAIT_S
    ) -> None:
        """`place`: a path on the device of the lower store, if moves must take turns with other
        users of that device.
        """
        one, other = upper.capabilities, lower.capabilities
        self.capabilities = Capabilities(
            mappable=one.mappable and other.mappable,
            nameable=one.nameable and other.nameable,
            streaming=one.streaming and other.streaming,
            shared_between_processes=False,
            bounded=one.bounded or other.bounded,
            may_block=one.may_block,  # slow operations run in the mover's thread
        )
        self.sources, self.about = upper.sources, upper.about
        self.directories = upper.directories + lower.directories
        self.places = upper.places + lower.places
        self.levels_by_place = (lower, upper)  # indexed by `is_above`
        self.wait_s = wait_s
        self.reading: tuple[set[int], set[int]] = (set(), set())
        self.writing: tuple[set[int], set[int]] = (set(), set())
        self._upper, self._lower = upper, lower
        self.mover = self.mover_type(upper, lower, upper.neighbours())
        self.overrun_bytes = max(OVERRUN_MIN_BYTES, (self.capacity_bytes or 0) // OVERRUN_SHARE)
        self._place, self._opener_thread, self._spilled = place, threading.get_ident(), 0
        self.settles = False
        """Whether the lower level moves objects further (`ObjectStore.settle`)."""

    @property
    def capacity_bytes(self) -> int | None:
        """The capacity of the upper level; it varies with other users of the device."""
        return self._upper.usage().capacity_bytes

    @property
    def may_wait(self) -> bool:
        """Whether the current thread may wait: any thread except the one that opened the store."""
        return threading.get_ident() != self._opener_thread

    def begin(self, object_id: str, *, size_hint_bytes: int | None = None) -> TieredWriter:
        return self.begin_in(MEMORY, object_id, size_hint_bytes=size_hint_bytes)

    def begin_in(
        self, level: str, object_id: str, *, size_hint_bytes: int | None = None
    ) -> TieredWriter:
        check_id(object_id)
        self.mover.hold(object_id)
        try:
            if level == DISK or not self._may_begin_above():
                try:
                    writer = self._lower.begin(object_id, size_hint_bytes=size_hint_bytes)
                    self._spilled += level != DISK
                    return TieredWriter(writer, self, is_above=False)
                except NoSpaceError:
                    if level == DISK:
                        raise
                    # Otherwise try the upper level: moves in progress may have reserved the space
                    # below, and not freed any above yet.
            try:
                writer = self._begin_above(object_id, size_hint_bytes)
                return TieredWriter(writer, self, is_above=True)
            except NoSpaceError as error:
                writer = self.begin_lower(object_id, size_hint_bytes, error)
                return TieredWriter(writer, self, is_above=False)
        except BaseException:
            self.mover.release(object_id)
            raise
        finally:
            self.mover.free_if_short()

    def _may_begin_above(self) -> bool:
        """Whether the upper level has any free space, even for objects of unknown size."""
        free_bytes = self.mover.free_bytes()
        return free_bytes is None or free_bytes > 0

    def _begin_above(self, object_id: str, size_hint_bytes: int | None) -> ObjectWriter:
        """Start in the upper level; wait for space if this thread may wait."""
        mover, me = self.mover, object()
        end_s = time.monotonic() + self.wait_s
        try:
            while True:
                seen = mover.changes
                try:
                    return self._upper.begin(object_id, size_hint_bytes=size_hint_bytes)
                except NoSpaceError as error:
                    if not self.may_wait or error.wanted_bytes > (self.capacity_bytes or 0):
                        raise
                    mover.want(me, error.wanted_bytes - error.available_bytes)
                    left_s = end_s - time.monotonic()
                    # In this order: a move that ends between the two checks changes the count.
                    may_be = mover.expects_space() or mover.changes != seen
                    if left_s <= 0 or not may_be or not mover.await_change(seen, left_s):
                        raise
        finally:
            mover.want_no_more(me)

    def begin_lower(
        self, object_id: str, size_hint_bytes: int | None, error: NoSpaceError
    ) -> ObjectWriter:
        """Start an object in the lower level after `error` of the upper one."""
        try:
            writer = self._lower.begin(object_id, size_hint_bytes=size_hint_bytes)
        except NoSpaceError as below:
            available_bytes = max(error.available_bytes, below.available_bytes)
            raise NoSpaceError(error.wanted_bytes, available_bytes, error.lacking) from None
        self._spilled += 1
        return writer

    def open(self, object_id: str) -> TieredReader:
        check_id(object_id)
        mover, is_above = self.mover, True
        mover.hold(object_id)
        try:
            try:
                reader = self._upper.open(object_id)
            except ObjectNotFoundError:
                reader, is_above = self._lower.open(object_id), False
        except BaseException:
            mover.release(object_id)
            raise
        if is_above:
            mover.used(object_id, reader.size_bytes)
        else:
            mover.read_below(object_id)
        mover.opened(object_id)
        return TieredReader(reader, mover, self.reading[is_above])

    def is_remote(self, object_id: str) -> bool:
        return self._lower.is_remote(object_id) and self._upper.stat(object_id) is None

    def bring_back(self, object_id: str) -> None:
        if self._lower.is_remote(check_id(object_id)):
            try:
                self.mover.bring_back(object_id, partial(self._begin_above, object_id))
            except NoSpaceError:
                self._lower.bring_back(object_id)
                self.mover.expect(object_id)

    def expect(self, object_id: str) -> bool:
        return not self.settles or self.mover.expect(object_id)

    def disk_limit(self) -> DiskLimit | None:
        return self._upper.disk_limit()

    def use_memory(self, lender: Lender) -> bool:
        self.settles = self._lower.use_memory(lender)
        return self.settles

    def _query(self, ask: Callable[[ObjectStore], T]) -> T:
        """Query the level that has the object; a moving object is in both until one deletes it."""
        try:
            return ask(self._upper)
        except ObjectNotFoundError:
            return ask(self._lower)

    def stat(self, object_id: str) -> ObjectInfo | None:
        return self._upper.stat(object_id) or self._lower.stat(object_id)

    def checksum(self, object_id: str) -> str:
        return self._query(lambda store: store.checksum(object_id))

    def verify(self, object_id: str) -> ObjectInfo:
        return self._query(lambda store: store.verify(object_id))

    def adopt(self, object_id: str, path: str, *, checksum: str, size_bytes: int) -> ObjectInfo:
        """Take an object over into the level whose file system has its file."""
        check_id(object_id)
        with self.mover.exclusive(object_id):
            kept = self.kept_in(False, object_id, lambda: checksum)
            if kept is not None:
                return kept
            try:
                info = self._upper.adopt(object_id, path, checksum=checksum, size_bytes=size_bytes)
            except CannotAdoptError as error:
                if error.reason != ANOTHER_FILE_SYSTEM:
                    raise
                with suppress(NoSpaceError):
                    return self._lower.adopt(
                        object_id, path, checksum=checksum, size_bytes=size_bytes
                    )
                raise
            self.mover.used(object_id, size_bytes)
        self.mover.free_if_short()
        return info

    def discover(self, object_id: str) -> ObjectInfo | None:
        with self.mover.exclusive(check_id(object_id)):
            if (found := self._upper.discover(object_id)) is not None:
                self.mover.used(object_id, found.size_bytes)
                return found
            return self._lower.discover(object_id)

    def kept_in(
        self, is_above: bool, object_id: str, digest: Callable[[], str]
    ) -> ObjectInfo | None:
        """Return the object if a level has it already, and it equals the content that is to be
        committed to the other level: the first commit wins in either level. Raises
        `ObjectConflictError` if they differ. A damaged object is deleted, and None returned.
        """
        store = self.levels_by_place[is_above]
        if (kept := store.stat(object_id)) is None:
            return None
        try:
            if not store.is_remote(object_id):  # its pages have checksums, and may be slow to read
                kept = store.verify(object_id)
        except CorruptObjectError:
            self.delete(object_id)
            return None
        if kept.checksum != (refused := digest()):
            raise ObjectConflictError(object_id, str(kept.checksum), refused)
        return kept

    def delete(self, object_id: str) -> bool:
        check_id(object_id)
        with self.mover.exclusive(object_id):
            was_above = self._upper.delete(object_id)
            was_below = self._lower.delete(object_id)
            self.mover.gone(object_id)
        return was_above or was_below

    def __iter__(self) -> Iterator[str]:
        above = list(self._upper)
        known = frozenset(above)
        yield from above
        yield from (object_id for object_id in self._lower if object_id not in known)

    def usage(self) -> StoreUsage:
        one, other = self._upper.usage(), self._lower.usage()
        capacity_bytes = None
        if one.capacity_bytes is not None and other.capacity_bytes is not None:
            capacity_bytes = one.capacity_bytes + other.capacity_bytes
        return StoreUsage(
            capacity_bytes,
            one.used_bytes + other.used_bytes,
            one.reserved_bytes + other.reserved_bytes,
            one.object_count + other.object_count - self.mover.both_count,
        )

    def levels(self) -> tuple[StoreLevel, ...]:
        mover = self.mover
        (upper,), (lower, *others) = self._upper.levels(), self._lower.levels()
        return (
            upper._replace(
                readers=len(self.reading[True]), writers=len(self.writing[True]),
                evicted=mover.evicted, evicted_bytes=mover.evicted_bytes,
                dropped=mover.dropped_count, promoted=mover.promoted, waited=mover.waited,
            ),
            lower._replace(
                readers=len(self.reading[False]), writers=len(self.writing[False]),
                spilled=self._spilled,
            ),
            *others,
        )  # fmt: skip

    def advise(
        self,
        can_be_had_again: Callable[[str], bool],
        dropped: Callable[[str], None],
        turn: Callable[[str, int], AbstractContextManager[None]],
    ) -> None:
        self.mover.can_be_had_again = can_be_had_again
        self.mover.dropped = dropped
        if self._place:
            self.mover.turn = partial(turn, self._place)

    def check(self) -> list[Problem]:
        return self._upper.check() + self._lower.check()

    def counted_io(self) -> AbstractContextManager[None]:
        return self._upper.counted_io()

    def claim(self) -> None:
        self._upper.claim()
        self._lower.claim()

    def neighbours(self) -> Neighbours | None:
        return self._upper.neighbours()

    def message_core(self) -> MessageCore | None:
        return self._upper.message_core()

    def gone(self) -> str:
        return self._upper.gone() or self._lower.gone()

    def close(self) -> None:
        self.mover.close()
        self._upper.close()
        self._lower.close()
