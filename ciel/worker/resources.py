"""The worker's HTTP side: objects out, with ranges or while they grow; uploads in, straight to the
store.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

from twisted.internet.defer import CancelledError, Deferred
from twisted.logger import Logger
from twisted.web.server import NOT_DONE_YET

from ciel.access.keys import Key, Role
from ciel.core.errors import InvalidIdError
from ciel.core.ids import JobId, ObjectId, check_id
from ciel.core.refs import INLINE_MAX_BYTES, Concrete, Reference, Value
from ciel.launch.limits import open_files_advice
from ciel.net.errors import HttpError
from ciel.net.gate import Gate
from ciel.net.http import Answer, Request, Route, Routes, SecureSite
from ciel.net.transfers import CHECKSUM_HEADER
from ciel.storage.digests import digest_of
from ciel.storage.errors import (
    NoSpaceError,
    ObjectConflictError,
    ObjectNotFoundError,
    StorageError,
)
from ciel.storage.interface import ObjectReader, ObjectStore, ObjectWriter
from ciel.wire.files import FILE_HEADER, file_identity
from ciel.wire.references import to_array
from ciel.worker.disk_jobs import Admit, Ticket, at_once
from ciel.worker.logs import JobLogs
from ciel.worker.sending import GrowingSending, Read, Sending, read_file
from ciel.worker.streaming import Growing, Streams

log = Logger()

Figures = Callable[[], dict[str, dict[str, int]]]

UPLOAD_WAITS_S = 5.0
"""For the disk, at most: clients are not told that they wait, and do not do so for ever."""

_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")  # more digits than that are no offset
_is_offset = re.compile(rb"\d{1,18}").fullmatch


def byte_range(header: str, size_bytes: int) -> tuple[int, int] | None:
    """Return the half-open range that a `Range` header asks for; None for the whole object.

    Several ranges, and what is no range, count as none (RFC 9110, 14.2). Raises HttpError 416 for
    one that lies outside.
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
def _answering() -> Iterator[None]:
    """Turn what a store raises into the answer to a request."""
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
    except StorageError as error:
        reason = f"the store of this worker: {error}{open_files_advice(error)}"
        log.error("{reason}", reason=reason)
        raise HttpError(500, reason) from None


def open_object(store: ObjectStore, request: Request) -> ObjectReader:
    """Open the object that a request names; raises HttpError."""
    with _answering():
        return store.open(check_id(request.params["id"]))


class Data(Route):
    """Objects, to be read: committed ones, and those that still grow, as they grow."""

    needs_role = Role.READ

    def __init__(self, store: ObjectStore, streams: Streams) -> None:
        self._store = store
        self._streams = streams

    def render_GET(self, request: Request) -> Answer:
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

    def render_HEAD(self, request: Request) -> Answer:
        found = self._find(request)
        if isinstance(found, Growing):
            self._describe(request, None)
        else:
            self._describe(request, found.size_bytes)
            if found.source is not None:
                request.setHeader(FILE_HEADER, file_identity(found.source))
            found.close()
        request.write(b"")
        request.finish()
        return NOT_DONE_YET

    def _find(self, request: Request) -> _Whole | Growing:
        object_id = request.params["id"]
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
            with _answering():
                info = self._store.stat(object_id)
        except HttpError:
            reader.close()
            raise
        checksum = info.checksum if info is not None else None
        return _Whole(reader.read, reader.size_bytes, checksum, reader.close, reader.source)

    def _follow(self, request: Request, growing: Growing) -> Answer:
        if request.getHeader("Range"):
            raise HttpError(409, "it is still being made: there is no part of it but the beginning")
        if request.clientproto != b"HTTP/1.1":
            raise HttpError(505, "it is still being made: its end can only be told in HTTP/1.1")
        self._describe(request, None)
        GrowingSending(request, growing, self._streams)
        return NOT_DONE_YET

    def _describe(self, request: Request, length_bytes: int | None) -> None:
        request.setHeader("Content-Type", "application/octet-stream")
        request.setHeader("Accept-Ranges", "none" if length_bytes is None else "bytes")
        if length_bytes is not None:
            request.setHeader("Content-Length", str(length_bytes))


class _Whole(NamedTuple):
    """An object that can be sent at once."""

    read: Read
    size_bytes: int
    checksum: str | None
    close: Callable[[], None]
    source: str | None


class _Arriving:
    """An upload on its way into the store. Its body is left unread until it is admitted."""

    def __init__(self, writer: ObjectWriter, admitted: Deferred[Ticket], channel: Any) -> None:
        self.writer = writer
        self._admitted = admitted
        self._channel: Any = None
        self._ticket: Ticket | None = None
        admitted.addCallbacks(self._begin, lambda failure: failure.trap(CancelledError))
        if self._ticket is None:
            self._channel = channel
            channel.transport.pauseProducing()

    def _begin(self, ticket: Ticket) -> None:
        self._ticket = ticket
        self._resume()

    def _resume(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None and channel.transport is not None:
            channel.transport.resumeProducing()

    def write(self, chunk: bytes) -> None:
        with _answering():
            self.writer.write(chunk)

    def abort(self) -> None:
        self.writer.abort()
        self.leave(is_good=False)

    def leave(self, *, is_good: bool = True) -> None:
        """Let others in."""
        self._admitted.cancel()
        self._resume()
        if self._ticket is not None:
            self._ticket.leave(is_good=is_good)


class Upload(Route):
    """Objects that a client brings; answered by a reference."""

    needs_role = Role.SUBMIT
    body_limit_bytes = None

    def __init__(
        self, store: ObjectStore, uploaded: Callable[[ObjectId], None], admit: Admit
    ) -> None:
        self._store = store
        self._uploaded = uploaded
        self._admit = admit
        self.netloc = ""

    def body_sink(self, request: Request) -> _Arriving:
        length = request.getHeader("Content-Length") or ""
        with _answering():
            object_id = check_id(request.params["id"])
            hint = int(length) if length.isdecimal() else None
            writer = self._store.begin(object_id, size_hint_bytes=hint)
        admitted = self._admit(hint or 0, within_s=UPLOAD_WAITS_S, by_network=True)
        return _Arriving(writer, admitted, request.channel)

    def render_POST(self, request: Request) -> Answer:
        sink: Any = request.sink  # what `body_sink` returned
        try:
            with _answering():
                ref = self._take(ObjectId(request.params["id"]), sink.writer)
        except HttpError:
            sink.abort()
            raise
        sink.leave()
        return request.reply(to_array(ref), 201)

    def _take(self, object_id: ObjectId, writer: ObjectWriter) -> Reference:
        size_bytes = writer.size_bytes
        if size_bytes <= INLINE_MAX_BYTES:
            content = writer.read(0, size_bytes)
            writer.abort()
            return Value.of(object_id, content)
        size_bytes = writer.commit().size_bytes
        self._uploaded(object_id)
        return Concrete(object_id, size_bytes, frozenset((self.netloc,)))


class Log(Route):
    """What a job's programs complained here, from an offset on. With `wait=1` a reader who has all
    of it is answered when there is more, or with nothing after some 20 s.
    """

    needs_role = Role.READ

    def __init__(self, logs: JobLogs) -> None:
        self._logs = logs

    def render_GET(self, request: Request) -> Answer:
        try:
            job = JobId(check_id(request.params["job"]))
        except InvalidIdError as error:
            raise HttpError(400, str(error)) from None
        offset = request.args.get(b"offset", [b"0"])[0]
        if not _is_offset(offset):
            raise HttpError(400, "the offset must be a number of bytes")
        request.setHeader("Content-Type", "text/plain; charset=utf-8")
        chunk = self._logs.read(job, int(offset))
        if chunk or request.args.get(b"wait") != [b"1"]:
            return chunk
        return self._logs.grown(job).addCallback(lambda _: self._logs.read(job, int(offset)))


class Health(Route):
    """Says that the daemon serves, and which it is."""

    needs_role = Role.READ
    worker = ""

    def render_GET(self, request: Request) -> bytes:
        return request.reply({"status": "ok", "worker": self.worker})


class Counters(Route):
    """What a worker has counted since it started, by what it is about."""

    needs_role = Role.READ

    def __init__(self, figures: Figures) -> None:
        self._figures = figures

    def render_GET(self, request: Request) -> bytes:
        return request.reply(self._figures())


class WorkerSite:
    """Everything that a worker serves; `serve_as` tells it who it is, once its address is known."""

    def __init__(
        self,
        reactor: Any,
        key: Key,
        store: ObjectStore,
        uploaded: Callable[[ObjectId], None],
        logs: JobLogs,
        streams: Streams,
        *,
        admit: Admit = at_once,
        figures: Figures = dict,
    ) -> None:
        self._gate = Gate(key.derive)
        self._health = Health()
        self._upload = Upload(store, uploaded, admit)
        self.routes = Routes()
        self.routes.add("/healthz", self._health)
        self.routes.add("/data/{id}", Data(store, streams))
        self.routes.add("/log/{job}", Log(logs))
        self.routes.add("/api/v1/counters", Counters(figures))
        self.routes.add("/control/data/{id}", self._upload)
        self.site: Any = SecureSite(reactor, self.routes, self._gate)

    def serve_as(self, netloc: str, worker: str = "") -> None:
        self._gate.serve_as(netloc)
        self._health.worker = worker
        self._upload.netloc = netloc
