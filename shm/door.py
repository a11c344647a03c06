"""Where a daemon listens: a socket in its block store's directory, for programs, and an abstract
one, for siblings. Only processes of the same user come in, and so many at a time.

The directory of the first is locked for as long as the daemon lives (`ciel.storage.leases` says
why): there is one daemon, and what a killed one left is replaced by the next.
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
"""Connections that the kernel keeps while a turn lasts: whoever comes when they are that many is
turned away, if it may not wait."""

REST_S: Final = 1.0
"""How long nobody is let in when there are no descriptors left: else we would spin."""

_TRIES: Final = 100  # a daemon that ends may remove the directory between our opening and locking
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Door:
    """An open door in a directory. Raises `AlreadyServedError`, or OSError, if it cannot open."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(0o700, parents=True, exist_ok=True)
        self._parent_fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._fd = -1
        try:
            self._fd = _lock(self._parent_fd, str(directory))
            with contextlib.suppress(FileNotFoundError):
                os.unlink(SOCKET, dir_fd=self._fd)  # of one that was killed
            self.socket = bound(path_through(self._fd, SOCKET))
        except BaseException:
            self._let_go()
            raise

    def close(self) -> None:
        """Leave nothing; who is connected stays so."""
        self.socket.close()
        with contextlib.suppress(OSError):  # somebody removed it, or the whole spool
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
            pass  # removed just now
        os.close(fd)
    raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), directory)


def bound(name: str) -> socket.socket:
    """Listen at a path, or at an abstract name that begins with a zero."""
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
class Porter:
    """Lets connections in at a listening socket, of which it takes care from now on."""

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
        """Let in who is there, as far as may be."""
        while True:
            try:
                connection, _ = self._socket.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _EXHAUSTED:
                    log.error("nobody is let in for a moment: {error}", error=error)
                    self._reactor.removeReader(self)
                    self._rest = self._reactor.callLater(REST_S, self._reactor.addReader, self)
                    return
                continue  # it has gone already
            with connection:
                if not is_same_user(connection):
                    log.warn("a process of another user was refused")
                elif not self._has_room():
                    log.warn("a connection was refused: there are too many")
                else:
                    connection.setblocking(False)
                    fd = connection.fileno()
                    self._reactor.adoptStreamConnection(fd, socket.AF_UNIX, self._factory)

    def connectionLost(self, reason: Any) -> None:
        """Be told by a reactor that could not read."""
        self.close()

    def close(self) -> None:
        """Let nobody in any more; closing twice is closing once."""
        if self._rest is not None and self._rest.active():
            self._rest.cancel()
        if self._socket.fileno() >= 0:
            self._reactor.removeReader(self)
            self._socket.close()
