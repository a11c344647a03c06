"""The sockets of a daemon: one in its block store's directory, for programs, and an abstract one,
for peers. They accept only processes of the same user, up to a maximum number of connections.

The daemon locks the directory of the first socket (`ciel.storage.leases` explains this). So each
store has only one daemon, and a new daemon replaces the socket of a killed one.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from twisted.internet.interfaces import IReadDescriptor
from twisted.internet.protocol import Factory
from twisted.logger import Logger
from zope.interface import implementer

from ciel.shm.credentials import is_same_user
from ciel.shm.errors import AlreadyServedError
from ciel.shm.layout import SHMD_DIRECTORY, SOCKET, path_through
from ciel.storage import leases

log = Logger()

BACKLOG: Final = 512
"""How many connections the kernel queues until the daemon accepts them. When the queue is full, a
non-blocking connect fails."""

REST_S: Final = 1.0
"""How long to accept no connections after descriptors have run out; else the reactor would spin."""

_TRIES: Final = 100  # a daemon that ends may remove the directory before the new one locks it
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class ListeningSocket:
    """The listening socket in a directory. Raises `AlreadyServedError` or OSError."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(0o700, parents=True, exist_ok=True)
        self._parent_fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._fd = -1
        try:
            self._fd = _lock(self._parent_fd, str(directory))
            with contextlib.suppress(FileNotFoundError):
                os.unlink(SOCKET, dir_fd=self._fd)  # of a killed daemon
            self.socket = bound(path_through(self._fd, SOCKET))
        except BaseException:
            self._let_go()
            raise

    def close(self) -> None:
        """Remove the socket; connections stay open."""
        self.socket.close()
        with contextlib.suppress(OSError):  # removed already, or with the whole work directory
            os.unlink(SOCKET, dir_fd=self._fd)
        with contextlib.suppress(OSError):
            os.rmdir(SHMD_DIRECTORY, dir_fd=self._parent_fd)
        self._let_go()

    def _let_go(self) -> None:
        for fd in (self._fd, self._parent_fd):
            if fd >= 0:
                os.close(fd)
        self._fd = self._parent_fd = -1


def _lock(parent_fd: int, directory: str) -> int:
    for _ in range(_TRIES):
        fd = leases.open_private(SHMD_DIRECTORY, parent_fd=parent_fd)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(fd), os.stat(SHMD_DIRECTORY, dir_fd=parent_fd)):
                return fd
        except BlockingIOError:
            os.close(fd)
            raise AlreadyServedError(directory) from None
        except FileNotFoundError:
            pass  # just removed
        os.close(fd)
    raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), directory)


def bound(name: str) -> socket.socket:
    """Return a socket that listens at a path, or at an abstract name, which starts with a zero."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        sock.bind(name)
        sock.listen(BACKLOG)
    except BaseException:
        sock.close()
        raise
    return sock


@implementer(IReadDescriptor)
class Acceptor:
    """Accepts connections at a listening socket, which it owns."""

    def __init__(
        self, reactor: Any, sock: socket.socket, factory: Factory[Any], has_room: Callable[[], bool]
    ) -> None:
        self._reactor = reactor
        self._socket = sock
        self._factory = factory
        self._has_room = has_room
        self._rest: Any = None
        reactor.addReader(self)

    def fileno(self) -> int:
        return self._socket.fileno()

    def logPrefix(self) -> str:
        return "shmd"

    def doRead(self) -> None:
        """Accept all queued connections; close connections of other users or beyond the limit."""
        while True:
            try:
                connection, _ = self._socket.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _EXHAUSTED:
                    log.error("cannot accept connections for a moment: {error}", error=error)
                    self._reactor.removeReader(self)
                    self._rest = self._reactor.callLater(REST_S, self._reactor.addReader, self)
                    return
                continue  # the client has already left
            with connection:
                if not is_same_user(connection):
                    log.warn("rejected a connection: its process belongs to another user")
                elif not self._has_room():
                    log.warn("rejected a connection: the daemon already has too many")
                else:
                    connection.setblocking(False)
                    fd = connection.fileno()
                    self._reactor.adoptStreamConnection(fd, socket.AF_UNIX, self._factory)

    def connectionLost(self, reason: Any) -> None:
        """Handle a read error that the reactor reports."""
        self.close()

    def close(self) -> None:
        """Stop accepting connections. A second call does nothing."""
        if self._rest is not None and self._rest.active():
            self._rest.cancel()
        if self._socket.fileno() >= 0:
            self._reactor.removeReader(self)
            self._socket.close()
