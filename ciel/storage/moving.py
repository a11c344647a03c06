"""Who moves objects between two levels of a store: a thread of its own, which keeps some room free
above, makes more for writers that wait, and loads back what is read below.

An object goes down by being copied, committed below, and then deleted above: at no moment is it in
neither, whoever dies. It is not deleted above while somebody has it open. All else that is done to
an object that moves calls the move off, and waits for that: one piece of it at most.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress

from ciel.storage.errors import (
    CorruptObjectError,
    ObjectConflictError,
    ObjectNotFoundError,
    StorageError,
)
from ciel.storage.eviction import Scene, Step, Way, steps_to_free
from ciel.storage.interface import ObjectReader, ObjectStore
from ciel.storage.space import occupied_bytes

PIECE_BYTES = 1 << 20
LOW_SHARE, ROOM_SHARE = 16, 8
"""When less than a sixteenth is free, an eighth is made free: some room for those to come, so that
they need not wait, and no more, as what is in memory is there to be used."""
TRY_AGAIN_S = 1.0
"""After the level below had no room, or failed."""


class Mover:
    """What is known of the objects of two levels, and the thread that moves them.

    `in_use` counts who has an object open; such a hold is taken before the object is looked for.
    """

    def __init__(self, upper: ObjectStore, lower: ObjectStore) -> None:
        self._upper = upper
        self._lower = lower
        self._lock = threading.Condition()
        self._above: dict[str, int] = {}  # sizes, what was used longest ago first
        self._both: set[str] = set()  # of these, what lies below, too
        self._in_use: dict[str, int] = {}
        self._stays: set[str] = set()  # what could not be moved: it is damaged, or made otherwise
        self._moving: dict[str, bool] = {}  # whether it was called off
        self._to_load: deque[str] = deque()
        self._wants: dict[object, int] = {}  # bytes that writers lack
        self._lacked_bytes = 0  # by one who is gone; some are to be there for the next
        self._changes = 0  # counts what may have made room
        self._requests = 0  # counts those of the thread
        self._below_failed = False
        self._thread: threading.Thread | None = None
        self._closed = False
        self.can_be_had_again: Callable[[str], bool] = lambda object_id: False
        self.dropped: Callable[[str], None] = lambda object_id: None
        self.turn: Callable[[int], AbstractContextManager[None]] = lambda size_bytes: nullcontext()
        self.evicted = self.evicted_bytes = self.dropped_count = self.promoted = self.waited = 0
        self._find_objects()

    def _find_objects(self) -> None:
        below = frozenset(self._lower)
        for object_id in self._upper:
            info = self._upper.stat(object_id)
            if info is not None:
                self._above[object_id] = occupied_bytes(info.size_bytes)
                if object_id in below:
                    self._both.add(object_id)

    @property
    def both_count(self) -> int:
        """How many objects lie in both levels."""
        return len(self._both)

    def close(self) -> None:
        """End the thread; what moves is left where it was."""
        with self._lock:
            self._closed = True
            self._lock.notify_all()
            thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()

    # --- what others do to objects ----------------------------------------------------------------

    def hold(self, object_id: str) -> None:
        """Keep an object from leaving where it is, until it is let go as often."""
        with self._lock:
            self._in_use[object_id] = self._in_use.get(object_id, 0) + 1

    def let_go(self, object_id: str) -> None:
        with self._lock:
            count = self._in_use[object_id] - 1
            if count:
                self._in_use[object_id] = count
            else:
                del self._in_use[object_id]
            self._changed()

    @contextmanager
    def alone_with(self, object_id: str) -> Iterator[None]:
        """Hold an object that does not move: if it does, that is called off."""
        self.hold(object_id)
        try:
            with self._lock:
                while object_id in self._moving:
                    self._moving[object_id] = True
                    self._lock.wait()
            yield
        finally:
            self.let_go(object_id)

    def used(self, object_id: str, size_bytes: int) -> None:
        """Note that an object lies above and was used just now."""
        with self._lock:
            self._above.pop(object_id, None)
            self._above[object_id] = occupied_bytes(size_bytes)

    def gone(self, object_id: str) -> None:
        """Note that an object was deleted in both levels."""
        with self._lock:
            self._above.pop(object_id, None)
            self._both.discard(object_id)
            self._stays.discard(object_id)
            self._changed()

    def read_below(self, object_id: str) -> None:
        """An object is read that lies below only: load it back, if there is room."""
        with self._lock:
            if object_id not in self._moving and object_id not in self._to_load:
                self._to_load.append(object_id)
                self._wake()

    # --- room -------------------------------------------------------------------------------------

    @property
    def changes(self) -> int:
        """A count; look at it before a step that may find no room, then `await_change` of it."""
        return self._changes

    def want(self, writer: object, short_bytes: int) -> None:
        """Somebody lacks that much."""
        with self._lock:
            self.waited += writer not in self._wants
            self._wants[writer] = short_bytes
            self._wake()

    def want_no_more(self, writer: object) -> None:
        with self._lock:
            self._wants.pop(writer, None)

    def lacked(self, short_bytes: int) -> None:
        """Somebody has given up for want of so much, or more."""
        with self._lock:
            self._lacked_bytes = max(self._lacked_bytes, short_bytes)
            self._wake()

    def await_change(self, seen: int, timeout_s: float) -> bool:
        """Wait until there may be more room than at that count; False if it took too long."""
        with self._lock:
            return self._lock.wait_for(lambda: self._changes != seen or self._closed, timeout_s)

    def is_hopeful(self, own: str | None = None) -> bool:
        """Whether there will be room soon: something moves, or can be moved; or later, for who
        waits with an object of its `own`: another is in use.
        """
        with self._lock:
            is_used = own is not None and any(object_id != own for object_id in self._in_use)
            return (
                bool(self._moving)
                or is_used
                or next(steps_to_free(1, self._scene()), None) is not None
            )

    def free_bytes(self) -> int | None:
        """Return how much is free above; None if nobody knows a limit."""
        usage = self._upper.usage()
        if usage.capacity_bytes is None:
            return None
        return usage.capacity_bytes - usage.used_bytes - usage.reserved_bytes

    def look(self) -> None:
        """Have room made if little is free."""
        if self._goal_bytes() > 0:
            with self._lock:
                self._wake()

    def _goal_bytes(self) -> int:
        """Return how much is to be made free."""
        with self._lock:
            wanted_bytes = max(self._lacked_bytes, *self._wants.values(), 0)
        usage = self._upper.usage()
        if usage.capacity_bytes is None:
            return wanted_bytes
        free_bytes = usage.capacity_bytes - usage.used_bytes - usage.reserved_bytes
        if free_bytes >= usage.capacity_bytes // LOW_SHARE:
            return wanted_bytes
        return max(wanted_bytes, usage.capacity_bytes // ROOM_SHARE - free_bytes)

    def _scene(self) -> Scene:
        room_bytes: int | None = 0
        if not self._below_failed:
            usage = self._lower.usage()
            if usage.capacity_bytes is None:
                room_bytes = None
            else:
                room_bytes = usage.capacity_bytes - usage.used_bytes - usage.reserved_bytes
        stays = self._in_use.keys() | self._stays
        return Scene(dict(self._above), stays, self._both, room_bytes, self.can_be_had_again)

    # --- the thread -------------------------------------------------------------------------------

    def _changed(self) -> None:
        self._changes += 1
        if self._thread is not None or self._wants:
            self._lock.notify_all()

    def _wake(self) -> None:
        self._requests += 1
        if self._thread is None and not self._closed:
            self._thread = threading.Thread(target=self._run, name="ciel-tiers", daemon=True)
            self._thread.start()
        self._lock.notify_all()

    def _run(self) -> None:
        while not self._closed:
            seen = self._changes, self._requests
            try:
                did = self._make_room() or self._load_one()
            except StorageError:
                did = False  # of looking how full a level is; asked again when something changes
            if did:
                continue
            with self._lock:
                patience_s = TRY_AGAIN_S if self._below_failed else None
                if not self._closed and (self._changes, self._requests) == seen:
                    self._lock.wait(patience_s)
                self._below_failed = False

    def _make_room(self) -> bool:
        """Carry out what there is to be done to have the room that is wanted; whether any of it
        could be.
        """
        goal_bytes = self._goal_bytes()
        if goal_bytes <= 0:
            return False
        with self._lock:
            steps = list(steps_to_free(goal_bytes, self._scene()))
            self._lacked_bytes = 0
        did = False
        for step in steps:
            if self._closed or self._below_failed:
                break
            # Before it is said to move: who has a move called off must not wait for a disk.
            with self.turn(step.size_bytes) if step.way is Way.MOVE else nullcontext():
                did = self._carry_out(step) or did
        return did

    def _carry_out(self, step: Step) -> bool:
        object_id = step.object_id
        with self._lock:
            is_held = object_id in self._in_use or object_id in self._moving
            if is_held or object_id not in self._above:
                return False
            self._moving[object_id] = False
        try:
            is_gone = self._leave(step)
        except ObjectNotFoundError:
            self.gone(object_id)
            is_gone = False
        except (CorruptObjectError, ObjectConflictError):
            self._stays.add(object_id)  # readers will find out, or have it as it was made first
            is_gone = False
        except StorageError:  # no space there, or worse
            self._below_failed = True
            is_gone = False
        finally:
            self._end_move(object_id)
        if is_gone and step.way is Way.DROP:
            self.dropped(object_id)
        return is_gone

    def _leave(self, step: Step) -> bool:
        """Have an object leave; whether it has."""
        object_id = step.object_id
        with self._upper.open(object_id) as reader:
            if step.way is Way.MOVE and not self._copy(reader, self._upper, self._lower):
                return False
            with self._lock:
                if self._moving[object_id]:
                    return False
                if step.way is Way.MOVE:
                    self._both.add(object_id)
                if object_id in self._in_use:
                    return False
                if step.way is Way.DROP:
                    self.dropped_count += 1
                else:
                    self.evicted += 1
                    self.evicted_bytes += step.size_bytes
                # Quick, however large it is: its pages are given back when our reader closes.
                self._upper.delete(object_id)
                self._above.pop(object_id, None)
                self._both.discard(object_id)
        return True

    def _copy(self, reader: ObjectReader, source: ObjectStore, target: ObjectStore) -> bool:
        """Copy an object into the other level, and commit it there; whether it was."""
        object_id = reader.object_id
        info = source.stat(object_id)
        expected = None if info is None else info.checksum
        buffer = memoryview(bytearray(min(PIECE_BYTES, max(reader.size_bytes, 1))))
        with target.begin(object_id, size_hint_bytes=reader.size_bytes) as writer:
            offset_bytes = 0
            while count := reader.read_into(buffer, offset_bytes):
                if self._closed or self._moving[object_id]:
                    return False
                writer.write(buffer[:count])
                offset_bytes += count
            writer.commit(checksum=expected)
        return True

    def _load_one(self) -> bool:
        """Load one object back; whether there was any to be loaded."""
        with self._lock:
            if not self._to_load:
                return False
            object_id = self._to_load.popleft()
        with suppress(StorageError), self._lower.open(object_id) as reader:
            if self._has_room_for(reader.size_bytes):
                with self.turn(reader.size_bytes):
                    self._load(reader)
        return True  # what could not be stays where it is, and can be read there

    def _load(self, reader: ObjectReader) -> None:
        object_id = reader.object_id
        with self._lock:
            if object_id in self._above or object_id in self._moving:
                return
            self._moving[object_id] = False
        try:
            if self._copy(reader, self._lower, self._upper):
                with self._lock:
                    self._above[object_id] = occupied_bytes(reader.size_bytes)
                    self._both.add(object_id)
                    self.promoted += 1
        finally:
            self._end_move(object_id)

    def _has_room_for(self, size_bytes: int) -> bool:
        usage = self._upper.usage()
        if usage.capacity_bytes is None:
            return True
        taken_bytes = usage.used_bytes + usage.reserved_bytes + occupied_bytes(size_bytes)
        return taken_bytes <= usage.capacity_bytes - usage.capacity_bytes // ROOM_SHARE

    def _end_move(self, object_id: str) -> None:
        with self._lock:
            del self._moving[object_id]
            self._changes += 1
            self._lock.notify_all()


class Dropper(Mover):
    """Who makes room where nothing may move down: what can be had again goes, for who wants room,
    and in the thread of whom that is, as it takes no disk and no time. So nobody waits for long.
    """

    def want(self, writer: object, short_bytes: int) -> None:
        super().want(writer, short_bytes)
        with self._lock:
            steps = list(steps_to_free(max(short_bytes, 1), self._scene()))
        for step in steps:
            if step.way is Way.DROP:
                self._carry_out(step)

    def is_hopeful(self, own: str | None = None) -> bool:
        return bool(self._moving)  # in another thread; all else that can leave has left

    def _wake(self) -> None:
        pass
