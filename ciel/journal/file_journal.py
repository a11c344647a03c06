"""A journal in files, which a separate thread writes.

The caller appends encoded records, and learns later which of them are durable. The thread writes
everything that waits as one group and calls `fdatasync` once for it. Meanwhile the caller goes on,
so a slow disk delays messages, but does not stop the master.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from ciel.core.events import Message
from ciel.journal.directory import (
    adopt_base,
    cut_tail,
    find_files,
    is_base,
    journal_path,
    lock_directory,
    read_groups,
    sync_directory,
    sync_file,
    unfinished_paths,
)
from ciel.journal.errors import JournalError
from ciel.journal.groups import HEADER, Group, encode_records, seal

ALWAYS, INTERVAL, OFF = "always", "interval", "off"
SYNC_MODES: Final = (ALWAYS, INTERVAL, OFF)
"""When records are made durable: before their consequences leave; once a second; when the
operating system does it. In each mode the records survive the end of the master's process."""
INTERVAL_S: Final = 1.0
GROUP_BYTES: Final = 16 << 20
"""Appends are written together up to about this size."""


class FileJournal:
    """The journal of one master, in a directory that no other process uses meanwhile.

    `call` runs a function soon in the caller's thread. There `on_durable` is called when `durable`
    has grown, and `on_failed` with a reason, once, when nothing more can be written.
    """

    def __init__(
        self,
        directory: Path,
        sync: str,
        call: Callable[[Callable[[], object]], object],
        *,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """Lock the directory, and create it if it is missing. Raises JournalError."""
        self.directory = directory
        self.on_durable: Callable[[], object] = lambda: None
        self.on_failed: Callable[[str], object] = lambda reason: None
        self.followers: list[Callable[[int, bytes], object]] = []
        """Called with each append, before it is stored: its number and the encoded records."""
        self.durable = 0
        """The number of the last append that is durable."""
        self.cut_bytes = 0
        """The size of an incomplete group that `groups` has cut off."""
        self._sync = sync
        self._call = call
        self._wall_clock = wall_clock
        self._fd = -1
        self._lock_fd = lock_directory(directory)
        self.appended = 0
        """The number of the last append."""
        self._written = 0  # the last append that the thread has made durable
        self._number = 0  # of the file that is written
        self.base_bytes = 0
        """The size of the base that this journal began with, or adopted last."""
        self.added_bytes = 0
        """The size of the files after the base."""
        self._waiting: list[bytes] = []
        self._actions: list[Callable[[], object]] = []  # for the thread, after the appends so far
        self._changed = threading.Condition()
        self._is_closing = False
        self._synced_at_s = 0.0
        self._has_unsynced = False
        self._thread = threading.Thread(target=self._run, name="ciel-journal", daemon=True)

    def groups(self) -> Iterator[Group]:
        """Yield the groups of the earlier masters, and then cut off the incomplete end that a crash
        has left. Raises JournalError.

        A master that was killed may have left groups that the disk has not stored yet. They are
        made durable before this master acts on them: a file that loses them later would end before
        the next file begins.
        """
        good_bytes = yield from read_groups(self.directory)
        paths = find_files(self.directory).paths
        if paths:
            self.cut_bytes = cut_tail(paths[-1], good_bytes)
            if self._sync != OFF:
                sync_file(paths[-1])
        for path in paths:
            self._count(path)

    def open(self) -> None:
        """Begin a new file after the existing ones. Raises JournalError."""
        files = find_files(self.directory)
        self._number = files.next_number
        path = journal_path(self.directory, self._number)
        try:
            self._fd = self._create(path)
            for old in (*files.replaced, *unfinished_paths(self.directory)):
                old.unlink(missing_ok=True)
        except OSError as error:
            raise JournalError(path, f"cannot be created: {error.strerror}") from None
        if self._sync != OFF:
            self._thread.start()

    def append(self, records: Sequence[Message]) -> int:
        """Store records; return the number of this append, from 1."""
        return self.append_frames(encode_records(records))

    def append_frames(self, frames: bytes) -> int:
        """Store encoded records; return the number of this append, from 1."""
        if self.followers:
            for follow in self.followers:
                follow(self.appended + 1, frames)
        if self._sync == OFF:
            self._append_now(frames)
            return self.appended
        with self._changed:
            self.appended += 1
            self._waiting.append(frames)
            self._changed.notify()
            return self.appended

    def _append_now(self, frames: bytes) -> None:
        """Write without the thread: nothing waits for the disk.

        Compressing would take the caller as long as encoding the records.
        """
        self.appended += 1
        try:
            self._write(seal(frames, self._wall_clock(), may_compress=False))
        except OSError as error:
            self._report_failure(error)
        else:
            self.durable = self._written = self.appended

    def begin_file(self, done: Callable[[int, int], object]) -> None:
        """Continue in a new file soon, and then call `done` with the number of the file before it
        and of the last append in that file, or with 0 and 0 if that failed: then the journal goes
        on in the same file. All appends before this call are in that file, or in earlier ones.
        """
        if self._sync == OFF:
            self._act(lambda: self._sync_then_begin_file(done))
        else:
            self._act(lambda: self._begin_file(done))

    def adopt_base(self, number: int, done: Callable[[str], object]) -> None:
        """Let the base that was written replace the files up to a number soon, and then call `done`
        with "", or with the reason why that failed.
        """
        self._act(lambda: self._adopt_base(number, done))

    def _act(self, action: Callable[[], object]) -> None:
        if self._sync == OFF:  # the caller writes, so it must not wait for the disk
            threading.Thread(target=action, name="ciel-journal-file", daemon=True).start()
            return
        with self._changed:
            self._actions.append(action)
            self._changed.notify()

    def close(self) -> None:
        """Write what waits, update `durable`, and close the files.

        Functions that the thread has passed to `call` may still be called.
        """
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        if self._fd >= 0:
            if self._sync != OFF:
                self._thread.join()
            os.close(self._fd)
            self._fd = -1
            self.durable = self._written
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1

    # --- the thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._write_some():
                pass
        except OSError as error:
            self._report_failure(error)

    def _report_failure(self, error: OSError) -> None:
        reason = f"the journal {self.directory} cannot be written: {error.strerror}"
        if not self._is_closing:
            self._call(lambda: self.on_failed(reason))

    def _write_some(self) -> bool:
        """Write what waits as one group, and report it; return False at the end."""
        with self._changed:
            while not (self._waiting or self._actions or self._is_closing):
                if not self._changed.wait(INTERVAL_S if self._has_unsynced else None):
                    break
            waiting = self._take_waiting()
            last = self.appended - len(self._waiting)
            is_closing = self._is_closing and not self._waiting
            actions: list[Callable[[], object]] = []
            if not self._waiting:  # else they wait for appends that were made before them
                actions, self._actions = self._actions, []
        if waiting:
            self._write(seal(b"".join(waiting), self._wall_clock()))
        now_s = time.monotonic()
        is_due = self._sync == INTERVAL and now_s >= self._synced_at_s + INTERVAL_S
        if self._has_unsynced and (self._sync == ALWAYS or is_due or is_closing):
            os.fdatasync(self._fd)
            self._has_unsynced, self._synced_at_s = False, now_s
        self._written = last
        if waiting and not is_closing:
            self._call(lambda: self._report(last))
        for action in () if is_closing else actions:
            action()
        return not is_closing

    def _take_waiting(self) -> list[bytes]:
        """Take as many appends as fit into a group, and at least one if there is one."""
        taken, size_bytes = 0, 0
        for frames in self._waiting:
            size_bytes += len(frames)
            if taken and size_bytes > GROUP_BYTES:
                break
            taken += 1
        waiting, self._waiting = self._waiting[:taken], self._waiting[taken:]
        return waiting

    def _sync_then_begin_file(self, done: Callable[[int, int], object]) -> None:
        """Begin a file in the thread of the caller, when little is left to sync."""
        with contextlib.suppress(OSError):  # the journal was closed meanwhile
            os.fdatasync(self._fd)
            self._call(lambda: self._begin_file(done))

    def _begin_file(self, done: Callable[[int, int], object]) -> None:
        before, number, last = self._fd, self._number, self._written
        if before < 0:
            return  # the journal was closed meanwhile
        os.fdatasync(before)  # only the last file may be incomplete after a crash
        try:
            self._fd = self._create(journal_path(self.directory, number + 1))
        except OSError:
            self._call(lambda: done(0, 0))
            return
        self._number = number + 1
        os.close(before)
        self._call(lambda: done(number, last))

    def _adopt_base(self, number: int, done: Callable[[str], object]) -> None:
        reason = ""
        try:
            adopt_base(self.directory, number)
        except (OSError, JournalError) as error:
            reason = str(error)
        self.base_bytes = self.added_bytes = 0
        for path in find_files(self.directory).paths:
            self._count(path)
        self._call(lambda: done(reason))

    def _count(self, path: Path) -> None:
        size_bytes = path.stat().st_size
        if is_base(path):
            self.base_bytes = size_bytes
        else:
            self.added_bytes += size_bytes

    def _report(self, last: int) -> None:
        self.durable = last
        self.on_durable()

    def _write(self, data: bytes) -> None:
        self.added_bytes += len(data)
        left = memoryview(data)
        while left:
            left = left[os.write(self._fd, left) :]
        self._has_unsynced = self._sync != OFF

    def _create(self, path: Path) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        fd = os.open(path, flags, 0o600)
        try:
            os.write(fd, HEADER)
            if self._sync != OFF:
                os.fdatasync(fd)
                sync_directory(self.directory)
        except BaseException:
            os.close(fd)
            with contextlib.suppress(OSError):
                path.unlink()
            raise
        return fd
