"""Objects that tasks read while they are still being written.

A growing object is the file of an open writer. Its producer may be a program of this worker, which
writes without reporting; then the file is watched, but only while a reader waits. Or it is a copy
of an object that another worker is writing; then the fetcher reports its growth. Readers get a name
that opens for as long as they hold the object, whatever happens to the writer: a commit renames the
file, an abort removes it, and the descriptor that is open here outlives both.

    growing = streams.open("4f2a:out:0", writer.fileno())
    streams.when(growing, 1, lambda growing: print("its first byte is there"))
    writer.commit()
    streams.finish(growing)

Only the reactor's thread may use this module.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import struct
from collections.abc import Callable, Sized
from typing import Any, TypeVar

from twisted.internet.interfaces import IReadDescriptor
from twisted.logger import Logger
from twisted.python.failure import Failure as TwistedFailure
from zope.interface import implementer

from ciel.core.refs import INLINE_MAX_BYTES
from ciel.net.ticks import DelayedCall
from ciel.storage.interface import ObjectReader

T = TypeVar("T")

PACE_S = 0.002
"""Minimum time between two checks of one file: readers are woken no more often, however small the
pieces are that the producer writes.
"""

CHECK_S = 0.1
"""Time between two checks where inotify is not available."""

KEPT_MAX = 64
"""Complete objects too small for the store that are kept for late readers; each takes a descriptor.
"""

log = Logger()

_IN_MODIFY = 0x2
_IN_ONESHOT = 0x8000_0000
_EVENT = struct.Struct("iIII")
_EVENTS_BYTES = 64 * 1024


class Growing:
    """An object that is being written here.

    `broken`: why it will never be complete. `size_bytes`: its size at the last check, and the final
    size once `is_whole`.
    """

    def __init__(self, object_id: str, fd: int, is_reported: bool) -> None:
        self.object_id = object_id
        self.size_bytes = 0
        self.is_whole = False
        self.broken = ""
        self._fd = fd
        self._is_reported = is_reported
        self._holds = 0
        self._waiters: list[Waiter] = []
        self._watch = -1
        self._checked_s = 0.0
        self._due: DelayedCall | None = None

    @property
    def is_over(self) -> bool:
        return self.is_whole or bool(self.broken)

    def fileno(self) -> int:
        """Return a descriptor to read from, at offsets; owned by this object, -1 when forgotten."""
        return self._fd

    def saw(self, size_bytes: int) -> None:
        """Note how far a reader has come: the object is broken if it ends before that."""
        self.size_bytes = max(self.size_bytes, size_bytes)

    def name(self) -> str:
        """Return a path to read. The end of the file need not be the end of the object."""
        return f"/proc/{os.getpid()}/fd/{self._fd}"

    def is_at(self, path: str) -> bool:
        """Whether its file is still the one at a path: a program may have replaced that."""
        try:
            return os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(self._fd))
        except OSError:
            return False


def lasting_path(
    reader: ObjectReader, *, read_once: bool = False, maps_files: bool = False
) -> str | None:
    """Return a path in the store that opens for as long as a task needs the object, or None.

    If the program reads the object once, the path need open only once. Small objects have no such
    path: they are in a store only as copies of streams of other workers, and are deleted once the
    reference contains them, even while tasks read them.
    """
    if reader.size_bytes <= INLINE_MAX_BYTES:
        return None
    if maps_files:
        return reader.mapped_path
    return reader.piped_path if read_once else reader.path


class Waiter:
    """A reader that waits for an object to grow."""

    def __init__(
        self, growing: Growing, at_least_bytes: float, call: Callable[[Growing], object]
    ) -> None:
        self.growing = growing
        self.at_least_bytes = at_least_bytes
        self.call = call

    def cancel(self) -> None:
        """Stop waiting; does nothing if it was called or cancelled before."""
        if self in self.growing._waiters:
            self.growing._waiters.remove(self)


class Hold:
    """A reader: the path of the object opens until the hold is closed."""

    def __init__(self, growing: Growing, streams: Streams) -> None:
        self._growing: Growing | None = growing
        self._streams = streams
        growing._holds += 1
        streams._kept.pop(growing, None)

    def close(self) -> None:
        """Stop reading; more calls do nothing."""
        growing, self._growing = self._growing, None
        if growing is not None:
            growing._holds -= 1
            self._streams._forget_unread(growing)


class Streams:
    """The growing objects of this worker."""

    def __init__(self, reactor: Any) -> None:
        self._reactor = reactor
        self._growing: dict[str, Growing] = {}
        self._replaced: set[Growing] = set()  # over and still read, while another has its id
        self._kept: dict[Growing, None] = {}  # complete and small, the oldest first
        self._watches = _Watches(reactor, self._check_soon)

    def open(self, object_id: str, fd: int, *, is_reported: bool = False) -> Growing:
        """Add an object that tasks may read while it grows; duplicates the descriptor.

        `is_reported`: the writer reports growth by `grew`, and the file is not watched. Raises
        ValueError if the object grows here already, OSError if this process has no free descriptor.
        """
        before = self._growing.get(object_id)
        if before is not None:
            if not before.is_over:
                raise ValueError(f"{object_id} is being written here already")
            self._kept.pop(before, None)
            self._replaced.add(before)
            del self._growing[object_id]
            self._forget_unread(before)
        growing = Growing(object_id, fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 0), is_reported)
        self._growing[object_id] = growing
        return growing

    def get(self, object_id: str) -> Growing | None:
        """Return the object that grows, or has grown, under an id.

        Complete objects are soon found only in the store, unless they are small or held.
        """
        return self._growing.get(object_id)

    def hold(self, growing: Growing) -> Hold:
        """Keep an object readable, and let `get` find it, until the hold is closed."""
        return Hold(growing, self)

    def grew(self, growing: Growing, size_bytes: int) -> None:
        """Check an object that is reported to have grown to a size."""
        if any(waiter.at_least_bytes <= size_bytes for waiter in growing._waiters):
            self._check_soon(growing)

    def finish(self, growing: Growing) -> None:
        """Mark an object as complete and committed, and wake its readers."""
        if not growing.is_over and growing._fd >= 0:
            self.measure(growing)
            growing.is_whole = not growing.broken
        self._end(growing)

    def seal(
        self, growing: Growing, path: str, commit: Callable[[], T], conflicts: Sized
    ) -> tuple[T, str]:
        """Commit a file; return the result, and why readers have read wrong content, if they have.

        `commit` appends to `conflicts` if the store has other content for the object.
        """
        why = "" if growing.is_at(path) else "its producer has put another file in its place"
        known = len(conflicts)
        result = commit()
        if len(conflicts) > known:
            why = "an earlier attempt wrote different content"
        if why:
            self.break_off(growing, f"{growing.object_id}: {why}")
        self.finish(growing)
        return result, growing.broken

    def break_off(self, growing: Growing, reason: str) -> None:
        """Mark an object as broken, and wake its readers."""
        if not growing.is_over:
            growing.broken = reason or "its producer has failed"
        self._end(growing)

    def when(
        self, growing: Growing, at_least_bytes: float, call: Callable[[Growing], object]
    ) -> Waiter:
        """Call once, never immediately, when the object has this size, or is complete or broken."""
        waiter = Waiter(growing, at_least_bytes, call)
        growing._waiters.append(waiter)
        self._kept.pop(growing, None)
        self._check_soon(growing)
        return waiter

    def close(self) -> None:
        """Close everything, without further calls."""
        for growing in (*self._growing.values(), *self._replaced):
            growing._waiters.clear()
            self._close(growing)
        self._growing.clear()
        self._replaced.clear()
        self._kept.clear()
        self._watches.close()

    # --- checking ---------------------------------------------------------------------------------

    def _check_soon(self, growing: Growing, delay_s: float | None = None) -> None:
        if growing._due is None and (growing.is_over or growing._fd >= 0):
            if delay_s is None:
                delay_s = growing._checked_s + PACE_S - self._reactor.seconds()
            growing._due = self._reactor.callLater(
                0 if growing.is_over else max(delay_s, 0), self._check, growing
            )

    def _check(self, growing: Growing) -> None:
        growing._due = None
        growing._checked_s = self._reactor.seconds()
        self._wake(growing)
        is_unneeded = growing._is_reported or growing._due is not None or growing.is_over
        if not growing._waiters or is_unneeded:
            return
        is_watched = self._watches.arm(growing)
        self._wake(growing)  # it may have grown before it was watched
        if not growing._waiters:
            self._watches.disarm(growing)
        elif not is_watched:
            self._check_soon(growing, CHECK_S)

    def _wake(self, growing: Growing) -> None:
        """Call the readers that have waited for the present size."""
        if not growing.is_over:
            self.measure(growing)
        ready = [
            waiter
            for waiter in growing._waiters
            if growing.is_over or waiter.at_least_bytes <= growing.size_bytes
        ]
        for waiter in ready:
            if waiter in growing._waiters:  # else an earlier call has cancelled it
                growing._waiters.remove(waiter)
                try:
                    waiter.call(growing)
                except Exception:
                    log.failure("a reader of {id} failed", id=growing.object_id)
        if growing.is_over:
            self._watches.disarm(growing)
            self._forget_unread(growing)

    def measure(self, growing: Growing) -> None:
        """Update the size of an object.

        A truncated one is broken: readers have seen the bytes that are gone.
        """
        if growing.is_over:
            return
        size_bytes = os.fstat(growing._fd).st_size
        if size_bytes < growing.size_bytes:
            growing.broken = (
                f"its producer cut it from {growing.size_bytes} bytes to {size_bytes} while it "
                "could be read"
            )
        else:
            growing.size_bytes = size_bytes

    # --- ending -----------------------------------------------------------------------------------

    def _end(self, growing: Growing) -> None:
        self._watches.disarm(growing)
        if growing._due is not None:
            growing._due.cancel()
            growing._due = None
        if growing._waiters:
            self._check_soon(growing)
        else:
            self._forget_unread(growing)

    def _forget_unread(self, growing: Growing) -> None:
        """Close an object that is over and has no readers."""
        if not growing.is_over or growing._holds or growing._waiters or growing._fd < 0:
            return
        is_current = self._growing.get(growing.object_id) is growing
        if is_current and growing.is_whole and growing.size_bytes <= INLINE_MAX_BYTES:
            self._kept[growing] = None
            if len(self._kept) <= KEPT_MAX:
                return
            growing = next(iter(self._kept))
            is_current = True
        self._kept.pop(growing, None)
        self._replaced.discard(growing)
        if is_current:
            del self._growing[growing.object_id]
        self._close(growing)

    def _close(self, growing: Growing) -> None:
        self._watches.disarm(growing)
        if growing._due is not None:
            growing._due.cancel()
            growing._due = None
        if growing._fd >= 0:
            os.close(growing._fd)
            growing._fd = -1


@implementer(IReadDescriptor)
class _Watches:
    """Reports the next write to a file, once, by inotify."""

    def __init__(self, reactor: Any, written: Callable[[Growing], None]) -> None:
        self._reactor = reactor
        self._written = written
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = -1
        self._watched: dict[int, Growing] = {}

    def arm(self, growing: Growing) -> bool:
        """Report the next write; False if inotify is not available or has reached its limits."""
        if growing._watch >= 0:
            return True
        if self._fd < 0:
            self._fd = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
            if self._fd < 0:
                return False
            self._reactor.addReader(self)
        path = f"/proc/self/fd/{growing._fd}".encode()
        flags = ctypes.c_uint32(_IN_MODIFY | _IN_ONESHOT)
        watch: int = self._libc.inotify_add_watch(self._fd, path, flags)
        if watch < 0 or watch in self._watched:  # two watches of one file share a number
            return False
        self._watched[watch] = growing
        growing._watch = watch
        return True

    def disarm(self, growing: Growing) -> None:
        if growing._watch >= 0:
            self._libc.inotify_rm_watch(self._fd, growing._watch)
            del self._watched[growing._watch]
            growing._watch = -1

    def close(self) -> None:
        if self._fd >= 0:
            self._reactor.removeReader(self)
            os.close(self._fd)
            self._fd = -1

    def fileno(self) -> int:
        return self._fd

    def logPrefix(self) -> str:
        return "streams"

    def doRead(self) -> None:
        try:
            events = os.read(self._fd, _EVENTS_BYTES)
        except BlockingIOError:
            return
        for watch, _, _, _ in _EVENT.iter_unpack(events):  # events of files carry no names
            growing = self._watched.pop(watch, None)
            if growing is not None:
                growing._watch = -1
                self._written(growing)

    def connectionLost(self, reason: TwistedFailure) -> None:
        """Do nothing: there is no connection."""
