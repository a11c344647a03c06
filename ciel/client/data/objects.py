"""Reads objects from the workers that hold them."""

from __future__ import annotations

import mmap
import os
import socket
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from ciel import plugins
from ciel.access.keys import Key
from ciel.client.data.pieces import CHUNK_BYTES
from ciel.client.data.worker_http import (
    BadAnswerError,
    Connections,
    authorization,
    connect,
    is_remote,
    refusal,
    text_of,
)
from ciel.client.errors import ObjectUnreadableError, TaskFailedError
from ciel.core.refs import Concrete, Failure, Reference, Sweetheart, Value, locations_of
from ciel.storage.errors import StorageError
from ciel.wire.files import FILE_HEADER, open_identified, scheme_of

if TYPE_CHECKING:
    from http.client import HTTPResponse

_KEEP_ALIVE: Final = {socket.TCP_KEEPIDLE: 20, socket.TCP_KEEPINTVL: 5, socket.TCP_KEEPCNT: 4}


def read_object(
    ref: Reference, key: Key, connections: Connections, start: int = 0, end: int | None = None
) -> Iterator[bytes]:
    """Yield an object's content from an offset on, to an end, in chunks of at most 1 MiB.

    If reading from a worker fails, continue after the last chunk with the next worker. Raises
    TaskFailedError for a `Failure`, and ObjectUnreadableError if reading fails from all workers.
    """
    if isinstance(ref, Value):
        yield ref.content[start:end]
        return
    if isinstance(ref, Failure):
        raise TaskFailedError(ref)
    reasons: list[tuple[str, str]] = []
    for location in _in_order(ref):
        try:
            for chunk in _download(location, ref, start, end, key, connections):
                start += len(chunk)
                yield chunk
            return
        except Exception as error:
            if not is_remote(error):
                raise
            reasons.append((location, text_of(error)))
    raise ObjectUnreadableError(ref.id, reasons)


def map_object(ref: Reference, key: Key, connections: Connections) -> memoryview | None:
    """Return a private mapping of an object that a worker on this host holds in a file or in place.

    Return None if no worker does.
    """
    for location in _in_order(ref):
        try:
            identity = _identity(location, ref.id, key, connections)
        except Exception as error:
            if not is_remote(error):
                raise
            continue  # reading the object reports the error
        scheme = scheme_of(identity)
        found = _map_file(identity) if scheme is None else _map_place(scheme, identity)
        if found is not None and _known_bytes(ref) in (None, found.nbytes):  # else as above
            return found
    return None


def _map_file(identity: str) -> memoryview | None:
    found = open_identified(identity)
    if found is None:
        return None
    try:
        return memoryview(mmap.mmap(found, 0, access=mmap.ACCESS_COPY))
    except (OSError, ValueError):  # a file system without mappings, an empty file
        return None
    finally:
        os.close(found)


def _map_place(scheme: str, place: str) -> memoryview | None:
    try:
        found: memoryview = plugins.load("ciel.places", scheme).open_private(place)
    except (plugins.PluginError, StorageError):
        return None
    return found


class GrowingReader:
    """Reads an object that a task still writes; `read` waits for the missing bytes."""

    def __init__(self, ref: Reference, key: Key) -> None:
        """Connect to one of its workers; raises ObjectUnreadableError."""
        self._id = ref.id
        self._netloc = _in_order(ref)[0]
        self._buffer = bytearray()
        target = f"/data/{ref.id}"
        try:
            self._connection = connect(self._netloc)
            self._connection.connect()
            _keep_alive(self._connection.sock)
            headers = authorization(key, "GET", self._netloc, target)
            self._connection.request("GET", target, headers=headers)
            self._answer = self._connection.getresponse()
            if self._answer.status != 200:
                raise refusal(self._answer)
        except Exception as error:
            self.close()
            self._fail(error)

    def read(self, size_bytes: int) -> bytes:
        """Return `size_bytes` bytes; fewer only at the end. Raises ObjectUnreadableError."""
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
        if not is_remote(error):
            raise error
        raise ObjectUnreadableError(self._id, [(self._netloc, text_of(error))]) from None

    def close(self) -> None:
        self._connection.close()


def _keep_alive(connection: socket.socket) -> None:
    """Let reads wait without a limit, as long as the worker's host answers."""
    connection.settimeout(None)
    for option, value in _KEEP_ALIVE.items():
        connection.setsockopt(socket.IPPROTO_TCP, option, value)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def _in_order(ref: Reference) -> list[str]:
    """Return the workers of an object, the preferred one first."""
    places = sorted(locations_of(ref))
    if isinstance(ref, Sweetheart):
        places.sort(key=lambda place: place != ref.preferred)
    return places


def _known_bytes(ref: Reference) -> int | None:
    return ref.size_bytes if isinstance(ref, Concrete | Sweetheart) else None


def _identity(netloc: str, object_id: str, key: Key, connections: Connections) -> str:
    """Return the identity of an object's file on its worker's host; empty if it has no file."""
    target = f"/data/{object_id}"
    connection, answer = connections.request(
        netloc, "HEAD", target, lambda: authorization(key, "HEAD", netloc, target)
    )
    answer.read()
    connections.release(netloc, connection, answer)
    return (answer.getheader(FILE_HEADER) or "") if answer.status == 200 else ""


def _require_size(answer: HTTPResponse, known_bytes: int | None) -> None:
    """Raise BadAnswerError if the answer is about an object of another size."""
    _, _, whole = (answer.getheader("Content-Range") or "").rpartition("/")
    length = answer.length if answer.status == 200 else None
    found_bytes = int(whole) if whole.isdecimal() else length
    if None not in (known_bytes, found_bytes) and found_bytes != known_bytes:
        raise BadAnswerError(f"it has {found_bytes} bytes, not {known_bytes}")


def _download(
    netloc: str,
    ref: Reference,
    start: int,
    end: int | None,
    key: Key,
    connections: Connections,
) -> Iterator[bytes]:
    target = f"/data/{ref.id}"
    is_part = start > 0 or end is not None
    last = "" if end is None else str(end - 1)

    def headers() -> dict[str, str]:
        ticket = authorization(key, "GET", netloc, target)
        return ticket | {"Range": f"bytes={start}-{last}"} if is_part else ticket

    connection, answer = connections.request(netloc, "GET", target, headers)
    try:
        if answer.status != (206 if is_part else 200):
            raise refusal(answer)
        missing_bytes = answer.length
        _require_size(answer, _known_bytes(ref))
        while chunk := answer.read(CHUNK_BYTES):
            if missing_bytes is not None:
                missing_bytes -= len(chunk)
            yield chunk
        if missing_bytes:
            raise BadAnswerError(f"the answer ended {missing_bytes} bytes too early")
    finally:
        connections.release(netloc, connection, answer)
