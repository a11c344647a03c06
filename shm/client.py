"""Blocking client of a block store's daemon, for programs; needs no reactor.

    with ShmdClient(directory) as client:
        path = client.write("4f2a:out:0")
        ...                                   # write the file there
        client.commit(path, "4f2a:out:0")
        with open(client.load("4f2a:out:0"), "rb") as file: ...

A file that is being written belongs to the connection: the daemon deletes it if the connection ends
before the commit. So the memory of a program that has died is freed by its owner (POOL-4).
"""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from dataclasses import replace
from typing import Final, Self

from ciel.shm.credentials import is_same_user
from ciel.shm.errors import (
    DaemonGoneError,
    MessageError,
    RequestFailedError,
    RequestTimeoutError,
)
from ciel.shm.layout import SHMD_DIRECTORY, SOCKET, path_through
from ciel.shm.messages import (
    TIMEOUT_MAX_MS,
    Abandon,
    Code,
    Commit,
    Decoder,
    Fail,
    Load,
    Ok,
    Request,
    Write,
    encode,
)

TIMEOUT_S: Final = 30.0

_ANSWER_SLACK_S: Final = 0.5  # the daemon itself reports a timeout, if it can
_READ_BYTES: Final = 64 * 1024
_TIME = struct.Struct("@ll")  # seconds and microseconds
_ENDED: Final = (
    "it ended the connection before it answered; it may have stopped, or have too many connections"
)


class _ConnectionLostError(Exception):
    """The connection ended before the answer arrived."""


class ShmdClient:
    """A connection to the daemon of a block store, opened when it is needed. Several threads may
    share it; it serves one request at a time.
    """

    def __init__(
        self, directory: str | os.PathLike[str], *, attempt: str = "", timeout_s: float = TIMEOUT_S
    ) -> None:
        """`directory`: of the store. `attempt` is the id of the task attempt that writes.
        Connections with the same attempt get the same file for the same name.
        """
        self._directory = os.fspath(directory)
        self._abstract_name = ""  # without the zero byte; else the socket is in the directory
        self._attempt = attempt
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._number = 0
        self._socket: socket.socket | None = None
        self._decoder = Decoder()

    @classmethod
    def at_socket(cls, abstract_name: str, *, timeout_s: float = TIMEOUT_S) -> Self:
        """Return a client of the daemon that listens at an abstract name."""
        client = cls(f"@{abstract_name}", timeout_s=timeout_s)
        client._abstract_name = abstract_name
        return client

    def load(self, name: str, *, recursive: bool = True, timeout_s: float | None = None) -> str:
        """Return the path of an object, to read it. The daemon may have to copy the object first.

        Without `recursive`, the daemon does not ask its peers. The path is valid until the object
        is deleted. If you cannot open it, load the object again.
        """
        load = Load(0, name, recursive=recursive)
        return self._ask(load, timeout_s, is_retried=True)

    def write(
        self,
        name: str,
        *,
        size_hint_bytes: int = 0,
        timeout_s: float | None = None,
        is_mapped: bool = False,
    ) -> str:
        """Return the path of a file to write an object to; a second call returns the same path.

        `is_mapped`: see `ObjectWriter.mapped_path`.
        """
        write = Write(0, name, self._attempt, size_hint_bytes, is_mapped=is_mapped)
        return self._ask(write, timeout_s, is_retried=True)

    def commit(self, path: str, name: str, *, timeout_s: float | None = None) -> str:
        """Commit the file at a path as an object of that name, and return the object's path.

        After `DaemonGoneError` it is unknown whether the daemon committed the object; if it did,
        `load` succeeds.
        """
        return self._ask(Commit(0, path, name), timeout_s, is_retried=False)

    def abandon(self, path: str, *, timeout_s: float | None = None) -> None:
        """Discard a file that is not committed. It stays while another connection writes it."""
        self._ask(Abandon(0, path), timeout_s, is_retried=False)

    def close(self) -> None:
        """Close the connection and discard its open writes; the next request opens a new one."""
        with self._lock:
            self._hang_up()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # --- one request ------------------------------------------------------------------------------

    def _ask(self, request: Request, timeout_s: float | None, *, is_retried: bool) -> str:
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        timeout_ms = min(max(int(timeout_s * 1000), 1), TIMEOUT_MAX_MS)
        encode(_numbered(request, 0, timeout_ms))  # raises errors of the caller before connecting
        with self._lock:
            until_s = time.monotonic() + timeout_s
            try:
                try:
                    answer = self._ask_once(request, timeout_ms, until_s)
                except _ConnectionLostError:
                    if not is_retried:
                        raise
                    answer = self._ask_once(request, timeout_ms, until_s)
            except TimeoutError:
                self._hang_up()  # a late answer must not be mistaken for the next request's answer
                reason = "it may be stopped, or its disk may be slow"
                raise RequestTimeoutError(self._directory, timeout_s, reason) from None
            except (_ConnectionLostError, OSError, MessageError) as error:
                self._hang_up()
                raise DaemonGoneError(self._directory, _reason(error)) from error
            except BaseException:
                self._hang_up()
                raise
        if isinstance(answer, Fail):
            if answer.code is Code.TIMEOUT:
                raise RequestTimeoutError(self._directory, timeout_s, answer.reason)
            raise RequestFailedError(answer.subject, answer.code, answer.reason)
        return answer.path

    def _ask_once(self, request: Request, timeout_ms: int, until_s: float) -> Ok | Fail:
        self._number += 1
        raw = encode(_numbered(request, self._number, timeout_ms))
        sock = self._connected(until_s)
        try:
            sock.settimeout(_left_s(until_s))
            sock.sendall(raw)
            while True:
                sock.settimeout(_left_s(until_s + _ANSWER_SLACK_S))
                chunk = sock.recv(_READ_BYTES)
                if not chunk:
                    raise _ConnectionLostError(_ENDED)
                for message in self._decoder.feed(chunk):
                    if isinstance(message, Ok | Fail) and message.number == self._number:
                        return message
        except TimeoutError:
            raise
        except OSError as error:
            self._hang_up()
            raise _ConnectionLostError(_ENDED) from error
        except _ConnectionLostError:
            self._hang_up()
            raise

    def _connected(self, until_s: float) -> socket.socket:
        if self._socket is not None:
            return self._socket
        directory_fd = -1
        address = f"\0{self._abstract_name}"
        if not self._abstract_name:
            directory = os.path.join(self._directory, SHMD_DIRECTORY)
            directory_fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            address = path_through(directory_fd, SOCKET)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # A non-blocking connect would fail at once if the daemon is busy.
            left_s = _left_s(until_s)
            left = _TIME.pack(int(left_s), int(left_s % 1 * 1e6) or 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, left)
            sock.connect(address)
            if not is_same_user(sock):
                raise PermissionError(0, "it belongs to another user")
        except BlockingIOError:
            sock.close()
            raise TimeoutError from None
        except BaseException:
            sock.close()
            raise
        finally:
            if directory_fd >= 0:
                os.close(directory_fd)
        self._socket, self._decoder = sock, Decoder()
        return sock

    def _hang_up(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _numbered(request: Request, number: int, timeout_ms: int) -> Request:
    match request:
        case Load(_, name, recursive, described):
            return Load(number, name, recursive, described, timeout_ms)
        case Write():
            return replace(request, number=number, timeout_ms=timeout_ms)
        case Commit(_, path, name):
            return Commit(number, path, name, timeout_ms)
        case Abandon(_, path):
            return Abandon(number, path, timeout_ms)


def _left_s(until_s: float) -> float:
    left_s = until_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError
    return left_s


def _reason(error: Exception) -> str:
    if isinstance(error, FileNotFoundError | ConnectionRefusedError | NotADirectoryError):
        return "no daemon serves this block store"
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return str(error)
