"""Serves FIFOs, each of which transfers one object once, from beginning to end (CIB-23).

    with Fifos(directory) as fifos:
        served = fifos.serve(reader.view())
        subprocess.run(["sort", served.path])
        served.result.result()            # the number of bytes transferred

One thread serves all FIFOs and never blocks on a single one. When a process opens a FIFO, the
thread removes its name, so that no second process can open it and take a part of the bytes. The
service ends when either side closes, and `Fifos.end` ends it earlier. A process that stops early or
is slow delays no other. The thread holds no lock of the memory meanwhile: reading a committed
object needs none. No FIFO is written by a program (ADR 113).
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import secrets
import select
import struct
import threading
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from ciel.storage.errors import StorageError, StoreClosedError

PIPE_BYTES = 2**20
CHUNK_BYTES = 2**18

_IN_OPEN = 0x20
_EVENT = struct.Struct("iIII")
_EVENTS_BYTES = 64 * 1024
_MODE = 0o600
_libc = ctypes.CDLL(None, use_errno=True)


class FifoError(StorageError):
    """A FIFO was not served completely; `reason` says why."""

    def __init__(self, path: str, reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(f"{path}: {reason}")


class Served:
    """One FIFO. `result` is the number of bytes transferred, which is smaller than the content if
    the reader stopped early. It fails with `FifoError`.
    """

    def __init__(self, path: str, content: memoryview) -> None:
        self.path = path
        self.result: Future[int] = Future()
        self.passed_bytes = 0
        self.content: memoryview | None = content
        self.fd = -1
        self.watch = -1

    @property
    def is_opened(self) -> bool:
        """Whether a process has opened it; no other process can open it afterwards."""
        return self.watch < 0

    @property
    def is_over(self) -> bool:
        return self.result.done()


class Fifos:
    """All FIFOs in a directory, which the caller removes, and the thread that serves them."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._by_fd: dict[int, Served] = {}
        self._by_watch: dict[int, Served] = {}
        self._ending: list[Served] = []
        self._is_closed = False
        self._epoll = select.epoll()
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._inotify = _libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._inotify < 0:
            number = ctypes.get_errno()
            os.close(self._bell)
            self._epoll.close()
            raise OSError(number, os.strerror(number))
        for fd in (self._bell, self._inotify):
            self._epoll.register(fd, select.EPOLLIN)
        self._thread = threading.Thread(target=self._serve, name="ciel-fifos", daemon=True)
        self._thread.start()

    def serve(self, content: memoryview) -> Served:
        """Create a FIFO from which a process can read `content` once. The FIFO keeps the content
        until the transfer ends. It waits for its reader until `end` is called.
        """
        path = str(self._directory / f"fifo-{secrets.token_hex(8)}")
        served = Served(path, content)
        with self._lock:
            if self._is_closed:
                raise StoreClosedError("the store")
            os.mkfifo(path, _MODE)
            try:
                # Open both ends, so that the process that opens the FIFO need not wait for us.
                served.fd = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
                with suppress(OSError):  # the total size of all pipes of a user is limited
                    fcntl.fcntl(served.fd, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
                served.watch = _libc.inotify_add_watch(self._inotify, path.encode(), _IN_OPEN)
                if served.watch < 0:
                    raise _cannot_watch(ctypes.get_errno(), path)
            except OSError:
                if served.fd >= 0:
                    os.close(served.fd)
                os.unlink(path)
                raise
            self._by_fd[served.fd] = served
            self._by_watch[served.watch] = served
        return served

    def end(self, served: Served) -> None:
        """Make the thread stop serving a FIFO. The result is the number of bytes transferred by
        then.
        """
        with self._lock:
            if not (self._is_closed or served.is_over):
                self._ending.append(served)
                os.eventfd_write(self._bell, 1)

    def close(self) -> None:
        """Stop serving all FIFOs, and end the thread. A second call does nothing."""
        if self._is_closed or self._pid != os.getpid():
            return
        self._is_closed = True
        os.eventfd_write(self._bell, 1)
        self._thread.join()
        with self._lock:
            for served in list(self._by_fd.values()):
                self._finish(served, StoreClosedError("the store"))
        for fd in (self._bell, self._inotify):
            os.close(fd)
        self._epoll.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # --- the thread -------------------------------------------------------------------------------

    def _serve(self) -> None:
        while not self._is_closed:
            for fd, _ in self._epoll.poll():
                if fd == self._bell:
                    os.eventfd_read(self._bell)
                    self._take_ends()
                elif fd == self._inotify:
                    self._take_opens()
                else:
                    self._transfer_piece(fd)

    def _take_ends(self) -> None:
        with self._lock:
            ending, self._ending = self._ending, []
            for served in ending:
                self._finish(served)

    def _take_opens(self) -> None:
        try:
            events = os.read(self._inotify, _EVENTS_BYTES)
        except BlockingIOError:
            return
        for watch, mask, _, _ in _EVENT.iter_unpack(events):  # these events have no names
            with self._lock:
                served = self._by_watch.get(watch)
                if served is not None and mask & _IN_OPEN:
                    self._begin(served)

    def _begin(self, served: Served) -> None:
        """Start a transfer, because a process has opened the FIFO: remove its name, and keep only
        our own end.
        """
        self._unwatch(served)
        before = served.fd
        try:
            served.fd = os.open(served.path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            self._finish(served, FifoError(served.path, error.strerror or str(error)))
            return
        with suppress(FileNotFoundError):
            os.unlink(served.path)
        del self._by_fd[before]
        self._by_fd[served.fd] = served
        os.close(before)
        self._epoll.register(served.fd, select.EPOLLOUT)

    def _transfer_piece(self, fd: int) -> None:
        """Transfer one piece. The thread holds no lock meanwhile, not even its own."""
        served = self._by_fd.get(fd)
        if served is None:
            return
        try:
            is_over = self._give_piece(served)
        except BlockingIOError:
            return
        except OSError as error:
            with self._lock:
                self._finish(served, FifoError(served.path, error.strerror or str(error)))
            return
        if is_over:
            with self._lock:
                self._finish(served)

    def _give_piece(self, served: Served) -> bool:
        assert served.content is not None
        start = served.passed_bytes
        if start < len(served.content):
            try:
                served.passed_bytes += os.write(
                    served.fd, served.content[start : start + CHUNK_BYTES]
                )
            except BrokenPipeError:
                return True  # the reader has read enough
        return served.passed_bytes >= len(served.content)

    def _unwatch(self, served: Served) -> None:
        if served.watch >= 0:
            _libc.inotify_rm_watch(self._inotify, served.watch)
            del self._by_watch[served.watch]
            served.watch = -1

    def _finish(self, served: Served, error: Exception | None = None) -> None:
        """End the service of a FIFO, for any reason. The caller holds the lock."""
        if served.is_over:
            return
        if served.watch >= 0:
            self._unwatch(served)
            with suppress(FileNotFoundError):
                os.unlink(served.path)
        self._by_fd.pop(served.fd, None)
        os.close(served.fd)  # which removes it from epoll
        served.fd = -1
        served.content = None  # releases the object
        if error is None:
            served.result.set_result(served.passed_bytes)
        else:
            served.result.set_exception(error)


def _cannot_watch(number: int, path: str) -> OSError:
    """Return the error of a FIFO that inotify does not watch; `number`: the errno."""
    text = os.strerror(number)
    if number == errno.ENOSPC:
        text = "this user has as many inotify watches as fs.inotify.max_user_watches allows"
    return OSError(number, f"inotify cannot watch the FIFO: {text}", path)
