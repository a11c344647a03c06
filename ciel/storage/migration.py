"""Moves objects between two levels of a store: migration in a background thread.

The thread keeps some space free in the upper level, and frees more for waiting writers. When an
object is read from the lower level, the thread loads it back into the upper one.

To move an object down, the thread copies it, commits the copy below, and then deletes the object
above. So at least one level has the object at any time, whenever the process dies. The thread does
not delete an object that is open. Any other operation on a moving object cancels the move, and
waits until the thread has noticed that; the thread checks after each piece that it copies.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial

from ciel.storage.errors import (
    CorruptObjectError,
    ObjectConflictError,
    ObjectNotFoundError,
    StorageError,
)
from ciel.storage.eviction import Scene, Step, Way, steps_to_free
from ciel.storage.interface import (
    NEVER_S,
    Answer,
    Neighbours,
    ObjectReader,
    ObjectStore,
    ObjectWriter,
)
from ciel.storage.space import occupied_bytes

PIECE_BYTES = 4 << 20  # an object that moves can be used again after so many bytes
LOW_SHARE, ROOM_SHARE = 16, 8
"""When less than a sixteenth of the upper level is free, the thread frees up to an eighth, so that
new writers need not wait. It frees no more, since objects in memory are faster to read."""
TRY_AGAIN_S = 1.0
"""How long the thread pauses after the level below had no space, or failed."""
ASK_AGAIN_S = 0.1
"""How long neighbours that could free nothing are not asked again."""
EXPECTED_S = 5.0
"""How long an object stays for a reader that has not opened it: programs start within this time,
and some never open an input that they have seen before."""

Begin = Callable[[int], ObjectWriter]
"""Starts an object of some size."""


class Migrator:
    """Tracks the objects of two levels, and moves them in a thread.

    `_in_use` counts the users of each object. A user calls `hold` before it looks the object up.
    """

    def __init__(
        self, upper: ObjectStore, lower: ObjectStore, neighbours: Neighbours | None = None
    ) -> None:
        """`neighbours`: other stores that share the space of the upper level."""
        self._upper = upper
        self._lower = lower
        self._neighbours = neighbours
        self._lock = threading.Condition()
        self._stepping = threading.Lock()  # held by a thread that evicts an object
        self._above: dict[str, int] = {}  # sizes, least recently used first
        self._used_s: dict[str, float] = {}  # when each of them was used last, if that is known
        self._both: set[str] = set()  # objects above that are also below
        self._in_use: dict[str, int] = {}
        self._unmovable: set[str] = set()  # damaged, or the level below has other content
        self._moving: dict[str, bool] = {}  # whether the move was cancelled
        self._to_load: deque[str] = deque()
        self._to_settle: deque[str] = deque()
        self._expected: dict[str, list[float]] = {}  # until when, for each expected user
        self._wants: dict[object, int] = {}  # bytes that waiting writers lack
        self._unmet_bytes = 0  # that a writer lacked which gave up; freed for the next writer
        self._changes = 0  # counts events that may have freed space
        self._requests = 0  # counts wake-ups of the thread
        self._below_failed = False
        self._ask_from_s = 0.0  # until then the neighbours can probably free nothing
        self._thread: threading.Thread | None = None
        self._is_resting = False  # the thread has nothing to do
        self._closed = False
        self.can_be_had_again: Callable[[str], bool] = lambda object_id: False
        self.dropped: Callable[[str], None] = lambda object_id: None
        self.turn: Callable[[int], AbstractContextManager[None]] = lambda size_bytes: nullcontext()
        self.evicted = self.evicted_bytes = self.dropped_count = self.promoted = self.waited = 0
        self._find_objects()
        if neighbours is not None:
            neighbours.serve(self.free_for_neighbour)

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
        """How many objects both levels have."""
        return len(self._both)

    def close(self) -> None:
        """Stop the thread; a moving object stays where it was."""
        with self._lock:
            self._closed = True  # which also ends an answer to a neighbour
            self._lock.notify_all()
        if self._neighbours is not None:
            self._neighbours.close()
        with self._lock:
            self._lock.notify_all()
            thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()

    # --- users of objects -------------------------------------------------------------------------

    def hold(self, object_id: str) -> None:
        """Keep an object in its level, until `release` is called as often as this."""
        with self._lock:
            self._in_use[object_id] = self._in_use.get(object_id, 0) + 1

    def release(self, object_id: str) -> None:
        with self._lock:
            count = self._in_use[object_id] - 1
            if count:
                self._in_use[object_id] = count
            else:
                del self._in_use[object_id]
            self._changed()

    @contextmanager
    def exclusive(self, object_id: str) -> Iterator[None]:
        """Hold an object while it does not move; a move in progress is cancelled first."""
        self.hold(object_id)
        try:
            with self._lock:
                while object_id in self._moving:
                    self._moving[object_id] = True
                    self._lock.wait()
            yield
        finally:
            self.release(object_id)

    def used(self, object_id: str, size_bytes: int) -> None:
        """Record that an object is in the upper level and was used just now."""
        with self._lock:
            self._above.pop(object_id, None)
            self._above[object_id] = occupied_bytes(size_bytes)
            self._used_s[object_id] = time.monotonic()

    def gone(self, object_id: str) -> None:
        """Record that an object was deleted in both levels."""
        with self._lock:
            self._left_upper(object_id)
            self._unmovable.discard(object_id)
            self._changed()

    def _left_upper(self, object_id: str) -> None:
        self._above.pop(object_id, None)
        self._used_s.pop(object_id, None)
        self._both.discard(object_id)

    def read_below(self, object_id: str) -> None:
        """Request to load an object back, if there is space, since a reader opened it in the lower
        level.
        """
        with self._lock:
            # Also while it moves: the end of its eviction may not be recorded yet.
            if object_id not in self._to_load:
                self._to_load.append(object_id)
                self._wake()

    def written_below(self, object_id: str) -> None:
        """Request to settle an object in the lower level, which a writer has committed there."""
        with self._lock:
            self._to_settle.append(object_id)
            self._wake()

    # --- space ------------------------------------------------------------------------------------

    @property
    def changes(self) -> int:
        """The count for `await_change`; read it before a step that may find no space."""
        return self._changes

    def want(self, writer: object, short_bytes: int) -> None:
        """Request that so many bytes are freed for a writer."""
        with self._lock:
            self.waited += writer not in self._wants
            self._wants[writer] = short_bytes
            self._wake()

    def want_no_more(self, writer: object) -> None:
        with self._lock:
            self._wants.pop(writer, None)

    def note_shortage(self, short_bytes: int) -> None:
        """Record that a writer gave up because it lacked so many bytes, or more."""
        with self._lock:
            self._unmet_bytes = max(self._unmet_bytes, short_bytes)
            self._wake()

    def await_change(self, seen: int, timeout_s: float) -> bool:
        """Wait until there may be more space than at the count `seen`; False after the timeout."""
        with self._lock:
            return self._lock.wait_for(lambda: self._changes != seen or self._closed, timeout_s)

    def expects_space(self, own: str | None = None) -> bool:
        """Whether waiting for space makes sense: an object is moving or can be moved. If `own`, the
        object of the waiting writer, is given: or another object is in use, and may move later.
        """
        with self._lock:
            is_used = own is not None and any(object_id != own for object_id in self._in_use)
            return (
                bool(self._moving)
                or is_used
                or self._may_ask
                or next(steps_to_free(1, self._eviction_scene()), None) is not None
            )

    def free_bytes(self) -> int | None:
        """Return the free bytes of the upper level; None if it has no known limit."""
        usage = self._upper.usage()
        if usage.capacity_bytes is None:
            return None
        return usage.capacity_bytes - usage.used_bytes - usage.reserved_bytes

    def free_if_short(self) -> None:
        """Start to free space if little is free."""
        if self._goal_bytes() > 0:
            with self._lock:
                self._wake()

    def _goal_bytes(self) -> int:
        """Return how many bytes to free."""
        with self._lock:
            wanted_bytes = max(self._unmet_bytes, *self._wants.values(), 0)
        usage = self._upper.usage()
        if usage.capacity_bytes is None:
            return wanted_bytes
        free_bytes = usage.capacity_bytes - usage.used_bytes - usage.reserved_bytes
        if free_bytes >= usage.capacity_bytes // LOW_SHARE:
            return wanted_bytes
        return max(wanted_bytes, usage.capacity_bytes // ROOM_SHARE - free_bytes)

    def _eviction_scene(self) -> Scene:
        room_bytes: int | None = 0
        if not self._below_failed:
            usage = self._lower.usage()
            if usage.capacity_bytes is None:
                room_bytes = None
            else:
                room_bytes = usage.capacity_bytes - usage.used_bytes - usage.reserved_bytes
        stays = self._in_use.keys() | self._unmovable | self._moving.keys()
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
                did = self._make_room() or self._load_one() or self._settle_one()
            except StorageError:
                did = False  # a level did not report its usage; the thread retries after a change
            except Exception:  # a bug must not stop the thread, or writers wait for it in vain
                threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), self._thread)))
                did, self._below_failed = False, True
            if did:
                continue
            with self._lock:
                patience_s = TRY_AGAIN_S if self._below_failed else None
                if not self._closed and (self._changes, self._requests) == seen:
                    self._is_resting = True
                    self._lock.wait(patience_s)
                    self._is_resting = False
                self._below_failed = False

    def _make_room(self) -> bool:
        """Evict objects to free the wanted space; True if any eviction succeeded."""
        goal_bytes = self._goal_bytes()
        if goal_bytes <= 0:
            return False
        self._end_expectations()
        with self._lock:
            steps = list(steps_to_free(goal_bytes, self._eviction_scene()))
            self._unmet_bytes = 0
        planned_s = time.monotonic()
        did, left_bytes = False, goal_bytes
        next_s = NEVER_S if self._neighbours is None else 0.0  # when they used their next object
        for step in steps:
            used_s = self._used_s.get(step.object_id, 0.0)
            if step.way is Way.MOVE and next_s < used_s < planned_s:
                freed_bytes, next_s = self._ask(left_bytes, used_s)
                did, left_bytes = did or freed_bytes > 0, left_bytes - freed_bytes
            if self._closed or self._below_failed or left_bytes <= 0:
                break
            if self._has_freed(step, planned_s):
                did, left_bytes = True, left_bytes - step.size_bytes
            elif not self._below_failed:
                return True  # it was used meanwhile, so another one may be the next
        if left_bytes > 0 and next_s < NEVER_S and self._may_ask and not self._closed:
            freed_bytes, _ = self._ask(left_bytes, NEVER_S)
            did = did or freed_bytes > 0
            if not did:
                self._note_vain_question()
        return did

    @property
    def _may_ask(self) -> bool:
        """Whether the neighbours may be able to free space."""
        return self._neighbours is not None and time.monotonic() >= self._ask_from_s

    def _ask(self, wanted_bytes: int, before_s: float) -> Answer:
        assert self._neighbours is not None
        return self._neighbours.ask(wanted_bytes, before_s)

    def _note_vain_question(self) -> None:
        """Let writers that wait for the neighbours give up."""
        with self._lock:
            self._ask_from_s = time.monotonic() + ASK_AGAIN_S
            self._changes += 1
            self._lock.notify_all()

    def _has_freed(self, step: Step, before_s: float) -> bool:
        """Carry out a step, unless another thread does it, or the object was used at some time or
        later. Return whether its space is free.
        """
        # Wait for the disk before the object counts as moving: a user that cancels the move must
        # not wait for the disk, too.
        with self._stepping, self.turn(step.size_bytes) if step.way is Way.MOVE else nullcontext():
            if self._used_s.get(step.object_id, 0.0) >= before_s:
                return False
            return self._carry_out(step) or step.object_id not in self._above

    def free_for_neighbour(self, wanted_bytes: int, before_s: float) -> Answer:
        """Free up to this much for another store, of objects that were last used before some time.
        Any thread may call this.
        """
        self._end_expectations()
        with self._lock:
            scene = self._eviction_scene()
            used = [(o, self._used_s.get(o, 0.0)) for o in self._above if o not in scene.in_use]
            older = {o: self._above[o] for o, used_s in used if used_s < before_s}
        freed_bytes = 0
        for step in steps_to_free(wanted_bytes, scene._replace(sizes=older)):
            if self._closed or self._below_failed:
                break
            freed_bytes += step.size_bytes if self._has_freed(step, before_s) else 0
        with self._lock:
            left = [used_s for object_id, used_s in used if object_id in self._above]
        return Answer(freed_bytes, min(left, default=NEVER_S))

    def _carry_out(self, step: Step) -> bool:
        object_id = step.object_id
        with self._lock:
            is_held = object_id in self._in_use or object_id in self._moving
            if is_held or object_id not in self._above:
                return False
            self._moving[object_id] = False
        try:
            is_gone = self._evict(step)
        except ObjectNotFoundError:
            self.gone(object_id)
            is_gone = False
        except (CorruptObjectError, ObjectConflictError):
            self._unmovable.add(object_id)  # readers notice the damage, or read the first version
            is_gone = False
        except StorageError:  # no space in the lower level, or another failure
            self._below_failed = True
            is_gone = False
        finally:
            self._end_move(object_id)
        if is_gone and step.way is Way.DROP:
            self.dropped(object_id)
        return is_gone

    def _evict(self, step: Step) -> bool:
        """Evict an object from the upper level; True if it was evicted."""
        object_id, began_s = step.object_id, time.monotonic()
        below = partial(self._lower.begin_moved, object_id)
        with self._upper.open(object_id) as reader:
            if step.way is Way.MOVE and not self._copy(reader, self._upper, below):
                return False
            with self._lock:
                if self._moving[object_id]:
                    return False
                if step.way is Way.MOVE:
                    self._both.add(object_id)
                if object_id in self._in_use or self._used_s.get(object_id, 0.0) >= began_s:
                    return False
                if step.way is Way.DROP:
                    self.dropped_count += 1
                else:
                    self.evicted += 1
                    self.evicted_bytes += step.size_bytes
                # Fast for any size: the pages are freed when our reader closes.
                self._upper.delete(object_id)
                self._left_upper(object_id)
        return True

    def _copy(self, reader: ObjectReader, source: ObjectStore, begin: Begin) -> bool:
        """Copy an object into the other level and commit it there; False if cancelled. `begin`
        starts it there.
        """
        object_id = reader.object_id
        info = source.stat(object_id)
        expected = None if info is None else info.checksum
        buffer = memoryview(bytearray(min(PIECE_BYTES, max(reader.size_bytes, 1))))
        with self._upper.counted_io(), begin(reader.size_bytes) as writer:
            offset_bytes = 0
            while count := reader.read_into(buffer, offset_bytes):
                if self._closed or self._moving[object_id]:
                    return False
                writer.write(buffer[:count])
                offset_bytes += count
            writer.commit(checksum=expected)
        return True

    def _load_one(self) -> bool:
        """Load one object back, if possible; False if none was requested."""
        with self._lock:
            if not self._to_load:
                return False
            object_id = self._to_load.popleft()
        with suppress(StorageError):
            info = self._lower.stat(object_id)
            if info is not None and self._has_room_for(info.size_bytes):
                with self.turn(info.size_bytes):
                    self._load(object_id)
        return True  # an object that could not be loaded stays readable in the lower level

    def _load(self, object_id: str) -> None:
        with self._lock:
            if object_id in self._above or object_id in self._moving:
                return
            self._moving[object_id] = False
        try:
            # Opened only now: `delete` waits for the end of a move, so it does not come between.
            with self._lower.open(object_id) as reader:
                self._copy_up(reader, partial(self._upper.begin_moved, object_id))
        finally:
            self._end_move(object_id)

    def _copy_up(self, reader: ObjectReader, begin: Begin) -> None:
        if self._copy(reader, self._lower, begin):
            with self._lock:
                self._above[reader.object_id] = occupied_bytes(reader.size_bytes)
                self._used_s[reader.object_id] = time.monotonic()
                self._both.add(reader.object_id)
                self.promoted += 1

    def bring_back(self, object_id: str, begin: Begin) -> None:
        """Load an object that is only in the lower level, and keep it for whoever opens it soon.

        `begin` starts it in the upper level, and may wait for space.
        """
        info = self._lower.stat(object_id)
        if info is None:
            raise ObjectNotFoundError(object_id)
        with begin(info.size_bytes) as writer:
            with self._lock:
                while object_id in self._moving:
                    self._lock.wait()
                if object_id in self._above:
                    self.expect(object_id)
                    return
                self._moving[object_id] = False
            try:
                with self._lower.open(object_id) as reader:
                    self._copy_up(reader, lambda size_bytes: writer)
                self.expect(object_id)
            finally:
                self._end_move(object_id)

    def expect(self, object_id: str) -> bool:
        """Keep an object in its level until `opened`, or for EXPECTED_S. False if it is remote."""
        with self._lock:
            if object_id not in self._above:
                if self._lower.is_remote(object_id):
                    return False
                if self._lower.stat(object_id) is None:
                    return True
            self.hold(object_id)
            self._expected.setdefault(object_id, []).append(time.monotonic() + EXPECTED_S)
        return True

    def opened(self, object_id: str) -> None:
        """Note that one of the users who were expected to open an object has opened it."""
        if object_id in self._expected:
            with self._lock:
                self._end_expectation(object_id)

    def _end_expectation(self, object_id: str) -> None:
        if waiting := self._expected.get(object_id):
            waiting.pop(0)
            if not waiting:
                del self._expected[object_id]
            self.release(object_id)

    def _end_expectations(self) -> None:
        """Let objects move that nobody has opened for long."""
        now_s = time.monotonic()
        with self._lock:
            expected = [(o, until_s) for o, each in self._expected.items() for until_s in each]
            for object_id, until_s in expected:
                if until_s < now_s:
                    self._end_expectation(object_id)

    def _settle_one(self) -> bool:
        """Settle one object that nobody uses; False if there is none."""
        with self._lock:
            used = self._in_use.keys() | self._moving.keys()
            object_id = next((each for each in self._to_settle if each not in used), None)
            if object_id is None:
                return False
            self._to_settle.remove(object_id)
            self._moving[object_id] = False

        def may_go_on() -> bool:
            is_used = self._moving[object_id] or object_id in self._in_use
            return not (self._closed or is_used)

        try:
            with suppress(StorageError):
                is_settled = self._lower.settle(object_id, self._lock, may_go_on)
                with self._lock:
                    if not is_settled and not may_go_on():
                        self._to_settle.append(object_id)  # again, after its last user
        finally:
            self._end_move(object_id)
        return True

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


class Dropper(Migrator):
    """A migrator for a level with no level below. It drops objects that can be fetched again. This
    is fast, so it happens in the thread of the writer that needs space, and no writer waits long.
    """

    def want(self, writer: object, short_bytes: int) -> None:
        super().want(writer, short_bytes)
        with self._lock:
            steps = list(steps_to_free(max(short_bytes, 1), self._eviction_scene()))
        for step in steps:
            if step.way is Way.DROP:
                self._carry_out(step)

    def expects_space(self, own: str | None = None) -> bool:
        return bool(self._moving)  # in another thread; `want` has dropped all that it can

    def _wake(self) -> None:
        pass
