"""A linear address space over the memory of other machines (KVB-1), for Python.

It binds the library `page_client.c`. Any thread may read and write; each call that runs has a
session of its own.
"""

from __future__ import annotations

import ctypes
import socket
import threading
from collections.abc import Callable
from functools import cache
from typing import Any, Final, NamedTuple

import cffi

from ciel.core.errors import CielError
from ciel.memory.companion import Companion, Owner
from ciel.memory.page_server import EXTENT_BYTES, LIBRARY, PAGE_BYTES

TIMEOUT_S: Final = 2.0
PACKAGES: Final = {"lz4": "liblz4-1", "zstd": "libzstd1"}
"""Debian's package of each codec's library."""
_FFI: Final = cffi.FFI()  # finds the memory of buffers that must not be changed


class SpaceError(CielError, OSError):
    """Remote memory could not be read or written; the message says why."""


class Attributes(NamedTuple):
    """The size of an address space, and of the pages that a write replaces as a whole."""

    size_bytes: int
    page_bytes: int
    replicas: int


class _Options(ctypes.Structure):
    _fields_ = (
        ("codec", ctypes.c_int),
        ("cache_pages", ctypes.c_uint32),
        ("timeout_s", ctypes.c_double),
    )


class Space:
    """The address space of a volume; any thread may use it.

    Each whole page of a write is replaced at once. A read returns the last write that had ended
    before the read began, or a later one. A write of a part of a page reads the rest of it first:
    two such writes to one page must not run at once.
    """

    def __init__(
        self,
        owner: Owner,
        volume: int,
        extents: int,
        replicas: int,
        timeout_s: float = TIMEOUT_S,
        compress: str = "",
        cache_bytes: int = 0,
    ) -> None:
        """Open the volume with this number; raises SpaceError.

        `timeout_s`: calls raise SpaceError if servers do not answer for so long. `compress`: the
        codec of the volume, for which this host needs a library. `cache_bytes`: keep pages of so
        many bytes. Then reads do not notice the writes of other clients.
        """
        self._attributes = Attributes(extents * EXTENT_BYTES, PAGE_BYTES, replicas)
        self._library = _library()
        codec = self._library.page_codec(compress.encode())
        if codec < 0:
            package = PACKAGES.get(compress, "unknown")
            raise SpaceError(f"the library of {compress} is not here (Debian: {package})")
        own, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._companion = Companion(owner, own)
        self._volume = self._library.page_volume_open(
            theirs.detach(), volume, extents, _Options(codec, cache_bytes // PAGE_BYTES, timeout_s)
        )
        self._sessions: list[Any] = []
        self._free: list[Any] = []
        self._lock = threading.Lock()

    def attributes(self) -> Attributes:
        return self._attributes

    def read(self, address: int, length: int) -> bytes:
        """Return bytes; raises SpaceError, and ValueError if they lie outside."""
        self._check(address, length)
        content = _new_bytes(length)
        self._call(self._library.page_session_read, content, length, address)
        return content

    def read_into(self, address: int, buffer: memoryview) -> None:
        """Fill a writable buffer; raises as `read` does."""
        self._check(address, buffer.nbytes)
        if buffer.nbytes:
            content = (ctypes.c_char * buffer.nbytes).from_buffer(buffer)
            self._call(self._library.page_session_read, content, buffer.nbytes, address)

    def write(self, address: int, content: bytes | bytearray | memoryview) -> None:
        """Write bytes; raises SpaceError, and ValueError if they lie outside."""
        with memoryview(content) as view, _FFI.from_buffer(view) as held:
            self._check(address, view.nbytes)
            start = int(_FFI.cast("uintptr_t", held))
            self._call(self._library.page_session_write, start, view.nbytes, address)

    def trim(self, address: int, length: int) -> None:
        """Set bytes to zero, and free the pages that lie within them; raises as `write` does."""
        self._check(address, length)
        self._call(self._library.page_session_trim, length, address)

    def close(self) -> None:
        """Close all connections. No call may be running."""
        with self._lock:
            for session in self._sessions:
                self._library.page_session_close(session)
            self._sessions.clear()
            self._free.clear()
            if self._volume:
                self._library.page_volume_close(self._volume)
                self._volume = None
        self._companion.join()

    def _check(self, address: int, length: int) -> None:
        if address < 0 or length < 0 or address + length > self._attributes.size_bytes:
            raise ValueError(
                f"bytes {address} to {address + length} are not within the address space of "
                f"{self._attributes.size_bytes} bytes"
            )

    def _call(self, function: Callable[..., int], *arguments: Any) -> None:
        session = self._take()
        try:
            if function(session, *arguments):
                raise SpaceError(self._library.page_session_why(session).decode(errors="replace"))
        finally:
            self._free.append(session)

    def _take(self) -> Any:
        """Return a session that no other thread uses."""
        with self._lock:
            if not self._volume:
                raise SpaceError("the address space is closed")
            if self._free:
                return self._free.pop()
            session = self._library.page_session_open(self._volume)
            if not session:
                raise MemoryError("there is no memory for another session")
            self._sessions.append(session)
            return session


def _new_bytes(length: int) -> bytes:
    """Return bytes for the library to fill, before any other code sees them: no copy is needed."""
    made: bytes = _make_bytes()(None, length)
    return made


@cache
def _make_bytes() -> Any:
    function = ctypes.pythonapi.PyBytes_FromStringAndSize
    function.restype = ctypes.py_object
    function.argtypes = (ctypes.c_void_p, ctypes.c_ssize_t)
    return function


@cache
def _library() -> Any:
    library = ctypes.CDLL(str(LIBRARY))
    handle, size = ctypes.c_void_p, ctypes.c_uint64
    signatures: dict[str, tuple[Any, tuple[Any, ...]]] = {
        "page_codec": (ctypes.c_int, (ctypes.c_char_p,)),
        "page_volume_open": (
            handle,
            (ctypes.c_int, size, ctypes.c_uint32, _Options),
        ),
        "page_volume_close": (None, (handle,)),
        "page_session_open": (handle, (handle,)),
        "page_session_close": (None, (handle,)),
        "page_session_read": (ctypes.c_int, (handle, handle, size, size)),
        "page_session_write": (ctypes.c_int, (handle, handle, size, size)),
        "page_session_trim": (ctypes.c_int, (handle, size, size)),
        "page_session_why": (ctypes.c_char_p, (handle,)),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library
