"""Serves objects over HTTP: complete ones with ranges, and growing ones while they grow."""

from __future__ import annotations

import errno
import re
import struct
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, BinaryIO, Final, NamedTuple, cast

from twisted.internet.threads import deferToThread
from twisted.logger import Logger
from twisted.web.server import NOT_DONE_YET

from ciel.access.keys import Role
from ciel.core.errors import CielError, InvalidIdError
from ciel.core.ids import ObjectId, check_id
from ciel.core.refs import Concrete
from ciel.launch.limits import open_files_advice
from ciel.net.errors import HttpError
from ciel.net.http import Answer, Request, Route
from ciel.net.transfers import CHECKSUM_HEADER
from ciel.storage.digests import digest_of
from ciel.storage.errors import (
    NoSpaceError,
    ObjectConflictError,
    ObjectNotFoundError,
    StorageError,
    StoreSystemError,
)
from ciel.storage.interface import ObjectReader, ObjectStore
from ciel.wire.files import FILE_HEADER, file_identity
from ciel.worker.checksums import Checksums
from ciel.worker.streams.growing import Growing, Streams
from ciel.worker.transfer.sending import GrowingSending, Read, Sending, read_file

log = Logger()

PRODUCER_PREFIX: Final = ".producer:"
"""The original CIEL's prefix for the file of an object that is still being written."""

LEFT_OUT_HEADER: Final = "Ciel-Left-Out"

VERIFIED_MAX_BYTES: Final = 1 << 30
"""Larger objects are sent at once: to read one from a slow disk takes longer than the receiver
waits for the first byte."""

_BLOCK = struct.Struct(">120pQ")
_BLOCK_NAME_MAX_BYTES = 119

_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")  # more digits than that are not an offset


def byte_range(header: str, size_bytes: int) -> tuple[int, int] | None:
    """Return the half-open range that a `Range` header requests; None for the whole object.

    Several ranges, and invalid ones, count as none (RFC 9110, 14.2). Raises HttpError 416 for a
    range outside of the object.
    """
    match = _RANGE.fullmatch(header.strip())
    if match is None or match.groups() == ("", ""):
        return None
    first, last = match.groups()
    if not first:
        start, end = max(size_bytes - int(last), 0), size_bytes
    elif last and int(last) < int(first):
        return None
    else:
        start = int(first)
        end = min(int(last) + 1, size_bytes) if last else size_bytes
    if start >= size_bytes or end <= start:
        raise HttpError(
            416, "the range is not within the object", Content_Range=f"bytes */{size_bytes}"
        )
    return start, end


@contextmanager
def answering() -> Iterator[None]:
    """Turn errors of a store into HTTP errors."""
    try:
        yield
    except InvalidIdError as error:
        raise HttpError(400, str(error)) from None
    except ObjectNotFoundError:
        raise HttpError(404, "no such object here") from None
    except ObjectConflictError as error:
        raise HttpError(409, str(error)) from None
    except NoSpaceError as error:
        raise HttpError(507, str(error)) from None
    except StoreSystemError as error:
        if error.error_number == errno.EFBIG:
            raise HttpError(400, "no file in the store of this worker can be so large") from None
        raise _failed(error) from None
    except StorageError as error:
        raise _failed(error) from None


def _failed(error: StorageError) -> HttpError:
    reason = f"the store of this worker: {error}{open_files_advice(error)}"
    log.error("{reason}", reason=reason)
    return HttpError(500, reason)


def open_object(store: ObjectStore, request: Request) -> ObjectReader:
    """Open the object of a request; raises HttpError."""
    with answering():
        return store.open(check_id(request.params["id"]))


class Data(Route):
    """Returns objects: committed ones, and growing ones while they grow."""

    needs_role = Role.READ

    def __init__(self, store: ObjectStore, streams: Streams, checksums: Checksums) -> None:
        self._store = store
        self._streams = streams
        self._checksums = checksums

    def render_GET(self, request: Request) -> Answer:
        return self._verified(request, self._get)

    def render_HEAD(self, request: Request) -> Answer:
        return self._verified(request, self._head)

    def _verified(self, request: Request, answer: Callable[[Request], Answer]) -> Answer:
        """Answer a request once its object, if it is here, is verified.

        Workers compare received bytes with `Ciel-Checksum` themselves.
        """
        try:
            info = self._store.stat(check_id(request.params["id"]))
        except CielError:
            info = None  # `answer` says why
        is_sent = request.method == b"GET" and info is not None
        is_large = is_sent and info is not None and info.size_bytes > VERIFIED_MAX_BYTES
        if info is None or (is_large and self._store.expect(info.object_id)):
            return answer(request)
        ref = Concrete(ObjectId(info.object_id), info.size_bytes, frozenset())
        waiting = self._checksums.verify((ref,))
        if waiting is None or waiting.called:
            return answer(request)
        return cast(Answer, waiting.addCallback(lambda _: answer(request)))

    def _get(self, request: Request) -> Answer:
        found = self._find(request)
        if isinstance(found, Growing):
            return self._follow(request, found)
        try:
            span = byte_range(request.getHeader("Range") or "", found.size_bytes)
        except HttpError:
            found.close()
            raise
        start, end = span or (0, found.size_bytes)
        if span is not None:
            request.setResponseCode(206)
            request.setHeader("Content-Range", f"bytes {start}-{end - 1}/{found.size_bytes}")
        self._describe(request, end - start)
        if found.checksum is not None:
            request.setHeader(CHECKSUM_HEADER, found.checksum)
        if start == end:
            found.close()
            return b""
        Sending(request, found.read, start, end, found.close)
        return NOT_DONE_YET

    def _head(self, request: Request) -> Answer:
        found = self._find(request)
        if isinstance(found, Growing):
            self._describe(request, None)
        else:
            self._describe(request, found.size_bytes)
            if found.source is not None:
                request.setHeader(FILE_HEADER, found.place or file_identity(found.source))
            found.close()
        request.write(b"")
        request.finish()
        return NOT_DONE_YET

    def _find(self, request: Request) -> _Whole | Growing:
        object_id = request.params["id"]
        if object_id.startswith(PRODUCER_PREFIX):
            return self._so_far(request, object_id.removeprefix(PRODUCER_PREFIX))
        growing = self._streams.get(object_id)
        try:
            reader = open_object(self._store, request)
        except HttpError:
            if growing is None or growing.broken:
                raise
            if not growing.is_whole:
                return growing
            hold, fd = self._streams.hold(growing), growing.fileno()
            read = partial(read_file, fd)
            return _Whole(read, growing.size_bytes, digest_of(fd), hold.close, None)
        try:
            with answering():
                info = self._store.stat(object_id)
        except HttpError:
            reader.close()
            raise
        checksum = info.checksum if info is not None else None
        return _Whole(
            reader.read, reader.size_bytes, checksum, reader.close, reader.source, reader.place
        )

    def _so_far(self, request: Request, object_id: str) -> _Whole | Growing:
        """Find the present content of a growing object; clients request the rest later."""
        request.params["id"] = object_id
        growing = self._streams.get(object_id)
        if growing is None or growing.is_over:
            return self._find(request)
        self._streams.measure(growing)
        hold = self._streams.hold(growing)
        read = partial(read_file, growing.fileno())
        return _Whole(read, growing.size_bytes, None, hold.close, None)

    def _follow(self, request: Request, growing: Growing) -> Answer:
        if request.getHeader("Range"):
            raise HttpError(409, "the object is still being written: request it without a Range")
        if request.clientproto != b"HTTP/1.1":
            raise HttpError(505, "the object is still being written: request it by HTTP/1.1")
        self._describe(request, None)
        GrowingSending(request, growing, self._streams)
        return NOT_DONE_YET

    def _describe(self, request: Request, length_bytes: int | None) -> None:
        request.setHeader("Content-Type", "application/octet-stream")
        request.setHeader("Accept-Ranges", "none" if length_bytes is None else "bytes")
        if length_bytes is not None:
            request.setHeader("Content-Length", str(length_bytes))


class BlockList(Route):
    """Lists the objects of the store in the original CIEL's format: 128 bytes for each object.

    These are a length byte, the name, padding up to 120 bytes, and the size (big-endian). Objects
    with longer names are omitted; the header `Ciel-Left-Out` contains their number.
    """

    needs_role = Role.READ

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def render_GET(self, request: Request) -> Any:
        return deferToThread(answering()(self._list)).addCallback(self._send, request)

    def render_HEAD(self, request: Request) -> Any:
        return self.render_GET(request)

    def _list(self) -> tuple[BinaryIO, int]:
        """Write the list to an unnamed file, as it may be long."""
        left_out = 0
        file: Any = tempfile.TemporaryFile()  # noqa: SIM115  # closed once it is sent
        try:
            for object_id in self._store:
                info = self._store.stat(object_id)
                name = object_id.encode()
                if len(name) > _BLOCK_NAME_MAX_BYTES:
                    left_out += 1
                elif info is not None:
                    file.write(_BLOCK.pack(name, info.size_bytes))
            file.flush()
        except BaseException:
            file.close()
            raise
        return file, left_out

    def _send(self, found: tuple[BinaryIO, int], request: Request) -> Answer:
        file, left_out = found
        size_bytes = file.tell()
        request.setHeader("Content-Type", "application/octet-stream")
        request.setHeader("Content-Length", str(size_bytes))
        request.setHeader(LEFT_OUT_HEADER, str(left_out))
        if request.method == b"HEAD":
            file.close()
            request.write(b"")
            request.finish()
        elif not size_bytes:
            file.close()
            return b""
        else:
            Sending(request, partial(read_file, file.fileno()), 0, size_bytes, file.close)
        return NOT_DONE_YET


class _Whole(NamedTuple):
    """An object with a known size, ready to send."""

    read: Read
    size_bytes: int
    checksum: str | None
    close: Callable[[], None]
    source: str | None
    place: str | None = None
