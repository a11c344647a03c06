"""Bytes to and from workers: read an object from whoever holds it, bring a file to a worker, read
what a job's programs complained there.

Over HTTP, each request with a ticket of its own. `http.client` is loaded when first needed, since
most results are small and came inside their reference.
"""

from __future__ import annotations

import bisect
import contextlib
import io
import mmap
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import IO, TYPE_CHECKING, Any, Final

from ciel.access.keys import Key, Role
from ciel.access.tickets import make_ticket
from ciel.client.errors import (
    LogUnreadableError,
    ObjectUnreadableError,
    OutputGoneError,
    TaskFailedError,
    UploadError,
)
from ciel.core.errors import CielError
from ciel.core.ids import UPLOAD_PREFIX, ObjectId
from ciel.core.refs import (
    INLINE_MAX_BYTES,
    Concrete,
    Failure,
    Reference,
    Sweetheart,
    Value,
    locations_of,
    merge,
)
from ciel.wire import codec
from ciel.wire.errors import WireError
from ciel.wire.files import FILE_HEADER, open_identified
from ciel.wire.references import from_json

if TYPE_CHECKING:
    from http.client import HTTPConnection, HTTPResponse

CHUNK_BYTES: Final = 1 << 20
REPLICAS: Final = 2
"""Of an upload, which has no lineage: no task can make it again."""
_STALLED_S = 30.0  # without a byte, a holder is given up
_KEPT_MAX = 4  # for each worker
_ANSWER_MAX_BYTES = 64 << 10


class _BadAnswer(Exception):
    """A worker answered, but not with what was asked for."""


class _ShrunkError(OSError):
    """A file ended before what was promised of it: no worker is to blame."""


_KEEP_ALIVE: Final = {socket.TCP_KEEPIDLE: 20, socket.TCP_KEEPINTVL: 5, socket.TCP_KEEPCNT: 4}


class Exactly:
    """So many bytes of a file from `origin` on: it may grow, or become shorter, as it is sent."""

    def __init__(self, file: IO[bytes], origin: int, size_bytes: int) -> None:
        file.seek(origin)
        self._file = file
        self._missing_bytes = size_bytes

    def read(self, size_bytes: int = CHUNK_BYTES, /) -> bytes:
        """As of a file; raises _ShrunkError if it ends before."""
        chunk = self._file.read(min(size_bytes, self._missing_bytes))
        if not chunk and self._missing_bytes:
            raise _ShrunkError("it became shorter while it was sent")
        self._missing_bytes -= len(chunk)
        return chunk


class Connections:
    """Connections to workers that are kept from one request to the next: to open one costs more
    than a small object does. Usable from any thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: dict[str, list[HTTPConnection]] = {}
        self._is_closed = False

    def ask(
        self,
        netloc: str,
        method: str,
        target: str,
        headers: Callable[[], dict[str, str]],
        body: Callable[[], Exactly | None] = lambda: None,
    ) -> tuple[HTTPConnection, HTTPResponse]:
        """Send a request; return the connection, and the answer, of which nothing was read. One
        that was kept may be closed by now: then the next is tried, with new headers and body.
        """
        from http.client import HTTPException

        while True:
            with self._lock:
                idle = self._idle.get(netloc)
                kept = idle.pop() if idle else None
            connection = kept or _connect(netloc)
            try:
                # Whoever does not want the body says why, and hangs up while it is sent.
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    connection.request(method, target, body(), headers())
                return connection, connection.getresponse()
            except (OSError, HTTPException):
                connection.close()
                if kept is None:
                    raise

    def done(self, netloc: str, connection: HTTPConnection, answer: HTTPResponse) -> None:
        """Keep a connection whose answer was read to its end; close any other."""
        if answer.isclosed() and not answer.will_close:
            with self._lock:
                idle = self._idle.setdefault(netloc, [])
                if not self._is_closed and len(idle) < _KEPT_MAX:
                    idle.append(connection)
                    return
        answer.close()
        connection.close()

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, {}
        for connections in idle.values():
            for connection in connections:
                connection.close()


def read_object(ref: Reference, key: Key, connections: Connections) -> Iterator[bytes]:
    """Yield an object's content in chunks of at most 1 MiB.

    Holders are tried one after the other; the next goes on where the last one broke off. Raises
    TaskFailedError for a `Failure` and ObjectUnreadableError when no holder is left.
    """
    if isinstance(ref, Value):
        yield ref.content
        return
    if isinstance(ref, Failure):
        raise TaskFailedError(ref)
    start = 0
    reasons: list[tuple[str, str]] = []
    for location in _in_order(ref):
        try:
            for chunk in _download(location, ref, start, key, connections):
                start += len(chunk)
                yield chunk
            return
        except Exception as error:
            if not _is_remote(error):
                raise
            reasons.append((location, _text(error)))
    raise ObjectUnreadableError(ref.id, reasons)


def map_object(ref: Reference, key: Key, connections: Connections) -> mmap.mmap | None:
    """Return an object that a worker of this host holds, mapped: what is written to it nobody else
    sees. None if there is none, or it is no file.
    """
    for location in _in_order(ref):
        try:
            found = open_identified(_identity(location, ref.id, key, connections))
        except Exception as error:
            if not _is_remote(error):
                raise
            continue  # reading it will tell
        if found is not None:
            try:
                if _known_bytes(ref) not in (None, os.fstat(found).st_size):
                    continue  # as above
                return mmap.mmap(found, 0, access=mmap.ACCESS_COPY)
            except (OSError, ValueError):  # a file system without mappings, an empty file
                continue
            finally:
                os.close(found)
    return None


def _identity(netloc: str, object_id: str, key: Key, connections: Connections) -> str:
    target = f"/data/{object_id}"

    def headers() -> dict[str, str]:
        return {"Authorization": _ticket(key, "HEAD", netloc, target)}

    connection, answer = connections.ask(netloc, "HEAD", target, headers)
    answer.read()
    connections.done(netloc, connection, answer)
    return (answer.getheader(FILE_HEADER) or "") if answer.status == 200 else ""


def upload_id() -> ObjectId:
    """Name an object that no task makes."""
    return ObjectId(f"{UPLOAD_PREFIX}{secrets.token_hex(16)}")


def upload_file(
    file: IO[bytes],
    name: str,
    netlocs: Sequence[str],
    key: Key,
    connections: Connections,
    copies: int = REPLICAS,
) -> Reference:
    """Bring what `file` holds from here on to the first workers that take it, so many as there
    shall be `copies` (or all of them); return it.

    Content of less than 1,024 bytes goes nowhere, it rides in the reference. Raises UploadError.
    """
    object_id = upload_id()
    start = file.read(INLINE_MAX_BYTES + 1)
    if len(start) <= INLINE_MAX_BYTES:
        return Value.of(object_id, start)
    if not file.seekable():
        raise UploadError(name, "it is no regular file, and larger than 1,023 bytes")
    origin = file.tell() - len(start)
    size_bytes = file.seek(0, os.SEEK_END) - origin
    found: Reference | None = None
    reasons = []
    for netloc in netlocs:
        try:
            ref = _upload(netloc, object_id, (file, origin, size_bytes), key, connections)
        except _ShrunkError as error:
            raise UploadError(name, str(error)) from None
        except Exception as error:
            if not _is_remote(error):
                raise
            reasons.append(f"{netloc}: {_text(error)}")
            continue
        found = ref if found is None else merge(found, ref)
        if len(locations_of(found)) >= min(copies, len(netlocs)):
            break
    if found is None:
        raise UploadError(name, "; ".join(reasons) or "the cluster has no worker")
    return found


class Pieces(io.RawIOBase):
    """Buffers one after the other, read as a file; nothing is joined."""

    def __init__(self, pieces: Sequence[Any]) -> None:
        self._pieces = [memoryview(piece).cast("B") for piece in pieces if memoryview(piece).nbytes]
        self._starts = [0]
        for piece in self._pieces:
            self._starts.append(self._starts[-1] + piece.nbytes)
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._starts[-1]}[whence]
        self._position = base + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: Any) -> int:
        with memoryview(buffer).cast("B") as room:
            number = bisect.bisect_right(self._starts, self._position) - 1
            if number >= len(self._pieces):
                return 0
            start = self._position - self._starts[number]
            part = self._pieces[number][start : start + len(room)]
            room[: len(part)] = part
        self._position += len(part)
        return len(part)


class GrowingReader:
    """Reads an object that a task still writes; `read` waits for the missing bytes."""

    def __init__(self, ref: Reference, key: Key) -> None:
        """Ask one of its holders; raises ObjectUnreadableError."""
        self._id = ref.id
        self._netloc = _in_order(ref)[0]
        self._buffer = bytearray()
        target = f"/data/{ref.id}"
        try:
            self._connection = _connect(self._netloc)
            self._connection.connect()
            _keep_alive(self._connection.sock)
            headers = {"Authorization": _ticket(key, "GET", self._netloc, target)}
            self._connection.request("GET", target, headers=headers)
            self._answer = self._connection.getresponse()
            if self._answer.status != 200:
                raise _refusal(self._answer)
        except Exception as error:
            self.close()
            self._fail(error)

    def read(self, size_bytes: int) -> bytes:
        """Return so many bytes; fewer only at the end. Raises ObjectUnreadableError."""
        while len(self._buffer) < size_bytes and (piece := self.read_some()):
            self._buffer += piece
        found = bytes(self._buffer[:size_bytes])
        del self._buffer[:size_bytes]
        return found

    def read_some(self) -> bytes:
        """Wait for more bytes; return none at the end. Raises ObjectUnreadableError."""
        try:
            return self._answer.read1(CHUNK_BYTES)
        except Exception as error:
            self._fail(error)
            raise

    def _fail(self, error: Exception) -> None:
        if not _is_remote(error):
            raise error
        raise ObjectUnreadableError(self._id, [(self._netloc, _text(error))]) from None

    def close(self) -> None:
        self._connection.close()


def _keep_alive(connection: socket.socket) -> None:
    """Let reads wait without a limit, as long as the other host answers."""
    connection.settimeout(None)
    for option, value in _KEEP_ALIVE.items():
        connection.setsockopt(socket.IPPROTO_TCP, option, value)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def read_kept(netloc: str, name: str, key: Key) -> Iterator[bytes]:
    """Yield what a failed program had printed, which a worker keeps under that name. Raises
    OutputGoneError.
    """
    offset = 0
    while True:
        target = f"/kept/{name}?offset={offset}"
        headers = {"Authorization": _ticket(key, "GET", netloc, target)}
        try:
            with contextlib.closing(_connect(netloc)) as connection:
                connection.request("GET", target, headers=headers)
                answer = connection.getresponse()
                if answer.status != 200:
                    raise _refusal(answer)
                content = answer.read()
        except Exception as error:
            if not _is_remote(error):
                raise
            raise OutputGoneError(netloc, _text(error)) from None
        if not content:
            return
        offset += len(content)
        yield content


class LogReader:
    """Reads what a job's programs complained on one worker, each time from where it stopped."""

    def __init__(
        self,
        netloc: str,
        worker: str,
        job_id: str,
        key: Key,
        *,
        offset: int = 0,
        timeout_s: float = _STALLED_S,
    ) -> None:
        self.netloc = netloc
        self.worker = worker
        self._job_id = job_id
        self._key = key
        self._offset = offset
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._waiting: HTTPConnection | None = None
        self.interrupted = False

    def read(self, *, wait: bool = False) -> bytes:
        """Return what there is more; nothing at the end. With `wait` there is an end only when it
        has not come for some 20 s, or upon `interrupt`. Raises LogUnreadableError.
        """
        target = f"/log/{self._job_id}?offset={self._offset}{'&wait=1' if wait else ''}"
        headers = {"Authorization": _ticket(self._key, "GET", self.netloc, target)}
        try:
            with contextlib.closing(_connect(self.netloc, self._timeout_s)) as connection:
                connection.connect()
                with self._lock:
                    if wait and self.interrupted:
                        return b""
                    self._waiting = connection if wait else None
                connection.request("GET", target, headers=headers)
                answer = connection.getresponse()
                if answer.status != 200:
                    raise _refusal(answer)
                content = answer.read()
        except Exception as error:
            if not _is_remote(error):
                raise
            if wait and self.interrupted:
                return b""
            raise LogUnreadableError(self.netloc, _text(error)) from None
        finally:
            with self._lock:
                self._waiting = None
        self._offset += len(content)
        return content

    def interrupt(self) -> None:
        """Have a `read` in another thread wait no longer, nor any that comes."""
        with self._lock:
            self.interrupted = True
            if self._waiting is not None and self._waiting.sock is not None:
                with contextlib.suppress(OSError):  # the worker was quicker
                    self._waiting.sock.shutdown(socket.SHUT_RDWR)


def _in_order(ref: Reference) -> list[str]:
    """Return where to ask, the preferred holder first."""
    places = sorted(locations_of(ref))
    if isinstance(ref, Sweetheart):
        places.sort(key=lambda place: place != ref.preferred)
    return places


def _known_bytes(ref: Reference) -> int | None:
    return ref.size_bytes if isinstance(ref, Concrete | Sweetheart) else None


def _download(
    netloc: str, ref: Reference, start: int, key: Key, connections: Connections
) -> Iterator[bytes]:
    target = f"/data/{ref.id}"
    known_bytes = _known_bytes(ref)

    def headers() -> dict[str, str]:
        said = {"Authorization": _ticket(key, "GET", netloc, target)}
        return said | {"Range": f"bytes={start}-"} if start else said

    connection, answer = connections.ask(netloc, "GET", target, headers)
    try:
        if answer.status != (206 if start else 200):
            raise _refusal(answer)
        missing_bytes = answer.length
        found_bytes = known_bytes if missing_bytes is None else start + missing_bytes
        if known_bytes not in (None, found_bytes):
            raise _BadAnswer(f"it has {found_bytes} bytes, not {known_bytes}")
        while chunk := answer.read(CHUNK_BYTES):
            if missing_bytes is not None:
                missing_bytes -= len(chunk)
            yield chunk
        if missing_bytes:
            raise _BadAnswer(f"it broke off, {missing_bytes} bytes before the end")
    finally:
        connections.done(netloc, connection, answer)


def _upload(
    netloc: str,
    object_id: str,
    content: tuple[IO[bytes], int, int],
    key: Key,
    connections: Connections,
) -> Reference:
    target = f"/control/data/{object_id}"

    def headers() -> dict[str, str]:
        return {
            "Authorization": _ticket(key, "POST", netloc, target),
            "Content-Length": str(content[2]),
            "Content-Type": "application/octet-stream",
        }

    connection, answer = connections.ask(netloc, "POST", target, headers, lambda: Exactly(*content))
    try:
        if answer.status != 201:
            raise _refusal(answer)
        body = answer.read(_ANSWER_MAX_BYTES)
    finally:
        connections.done(netloc, connection, answer)
    ref = from_json(codec.decode(body))
    if not isinstance(ref, Concrete | Sweetheart | Value) or ref.id != object_id:
        raise _BadAnswer("it answered with another object")
    return ref


def _refusal(answer: HTTPResponse) -> _BadAnswer:
    """Return what a worker said instead of doing what it was asked."""
    said = ""
    with contextlib.suppress(WireError, AttributeError):
        said = codec.decode(answer.read(_ANSWER_MAX_BYTES)).get("error", "")
    words = f": {said}" if said else ""
    return _BadAnswer(f"it answered {answer.status} {answer.reason}{words}")


def _connect(netloc: str, timeout_s: float = _STALLED_S) -> HTTPConnection:
    from http.client import HTTPConnection

    return HTTPConnection(netloc, timeout=timeout_s, blocksize=CHUNK_BYTES)


def _ticket(key: Key, method: str, netloc: str, target: str) -> str:
    role_key = key.derive(Role.SUBMIT)
    assert role_key is not None  # a client holds the cluster's key or that for submitting
    return make_ticket(role_key, method, netloc, target, time.time())


def _is_remote(error: Exception) -> bool:
    """Say whether an error is the fault of the other side, so that the next may be asked."""
    from http.client import HTTPException

    return isinstance(error, _BadAnswer | OSError | HTTPException | WireError | CielError)


def _text(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return str(error) or type(error).__name__
