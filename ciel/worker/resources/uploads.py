"""Accepts uploads of objects: in one request, or in chunks."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterator
from typing import Any, Final

from twisted.internet.defer import CancelledError, Deferred

from ciel.access.keys import Role
from ciel.core.ids import UPLOAD_PREFIX, ObjectId, check_id
from ciel.core.refs import INLINE_MAX_BYTES, Concrete, Reference, Value
from ciel.net.errors import HttpError
from ciel.net.http import Answer, Request, Route, Routes
from ciel.net.ticks import DelayedCall
from ciel.storage.interface import ObjectStore, ObjectWriter
from ciel.wire.references import SIZE_MAX_BYTES, to_json
from ciel.worker.disk_jobs import Admit, Permit, at_once
from ciel.worker.resources.data import BlockList, Data, answering

UPLOAD_WAITS_S: Final = 5.0
"""Maximum time that an upload waits for the disk; its client does not learn why it waits."""

PENDING_MAX: Final = 256
"""Chunked uploads at a time; each has an open file."""

IDLE_MAX_S: Final = 60.0
"""An upload without a new chunk for this time is aborted, which frees its space."""

_is_offset = re.compile(r"\d{1,18}").fullmatch


class IncomingUploads:
    """Writes uploads to the store. `netloc`: the location of the objects."""

    def __init__(
        self,
        reactor: Any,
        store: ObjectStore,
        netloc: str,
        uploaded: Callable[[ObjectId], None],
        admit: Admit = at_once,
    ) -> None:
        self.reactor = reactor
        self._netloc = netloc
        self._store = store
        self._uploaded = uploaded
        self._admit = admit
        self._pending: dict[str, PendingUpload] = {}

    def writer(self, object_id: str, size_bytes: int | None) -> ObjectWriter:
        """Return a writer for an object; `size_bytes`: its size, if that is known."""
        with answering():
            return self._store.begin(check_id(object_id), size_hint_bytes=size_bytes)

    def admitted(self, size_bytes: int | None) -> Deferred[Permit]:
        """Wait for the disk, for an upload."""
        return self._admit(size_bytes or 0, within_s=UPLOAD_WAITS_S, by_network=True)

    def finish(self, object_id: str, writer: ObjectWriter) -> Reference:
        """Commit an upload, and return its reference, which contains the content of a small one."""
        known = ObjectId(object_id)
        with answering():
            size_bytes = writer.size_bytes
            if size_bytes <= INLINE_MAX_BYTES:
                content = writer.read(0, size_bytes)
                writer.abort()
                return Value.of(known, content)
            size_bytes = writer.commit().size_bytes
        self._uploaded(known)
        return Concrete(known, size_bytes, frozenset((self._netloc,)))

    # --- in chunks --------------------------------------------------------------------------------

    def begin(self, object_id: str, size_bytes: int | None) -> PendingUpload:
        """Start a chunked upload; raises HttpError, also if it exists."""
        if object_id in self._pending:
            held = self._pending[object_id]
            raise HttpError(
                409,
                f"an upload of {object_id} to this worker is in progress, with {held.size_bytes} "
                "bytes received: continue at that offset, or abort it (DELETE) and start again",
            )
        if len(self._pending) >= PENDING_MAX:
            raise HttpError(503, f"{PENDING_MAX} uploads are in progress here; try again later")
        pending = PendingUpload(self, object_id, self.writer(object_id, size_bytes))
        self._pending[object_id] = pending
        return pending

    def find(self, object_id: str) -> PendingUpload:
        """Return a chunked upload; raises HttpError."""
        with answering():
            check_id(object_id)
        if object_id not in self._pending:
            raise HttpError(404, f"no upload of {object_id} to this worker is in progress")
        return self._pending[object_id]

    def forget(self, pending: PendingUpload) -> None:
        self._pending.pop(pending.object_id, None)

    def __iter__(self) -> Iterator[PendingUpload]:
        return iter(list(self._pending.values()))

    def close(self) -> None:
        """Abort incomplete uploads."""
        for pending in self:
            pending.give_up()


class PendingUpload:
    """A chunked upload that is not complete."""

    def __init__(self, uploads: IncomingUploads, object_id: str, writer: ObjectWriter) -> None:
        self.object_id = object_id
        self.writer = writer
        self._uploads = uploads
        self._is_taking = False
        self._due: DelayedCall | None = None
        self.rest()

    @property
    def size_bytes(self) -> int:
        return self.writer.size_bytes

    def facts(self) -> dict[str, Any]:
        return {"id": self.object_id, "offset": self.size_bytes}

    def take(self, request: Request, offset: str) -> _Chunk:
        """Start to receive the chunk of a request; raises HttpError."""
        self.require_rest()
        if not _is_offset(offset):
            raise HttpError(400, "the offset must be a number of bytes")
        if int(offset) != self.size_bytes:
            raise HttpError(
                409,
                f"{self.size_bytes} bytes of {self.object_id} were received: the next chunk starts "
                f"at that offset, not at {int(offset)}",
            )
        length_bytes = length_of(request)
        self._is_taking = True
        self._stop_waiting()
        return _Chunk(self, self._uploads.admitted(length_bytes), request.channel)

    def require_rest(self) -> None:
        """Raise HttpError while a chunk is being received."""
        if self._is_taking:
            raise HttpError(
                409, f"another chunk of {self.object_id} is being received; wait for its end"
            )

    def rest(self) -> None:
        """Wait for the next chunk for some time."""
        self._is_taking = False
        self._stop_waiting()
        self._due = self._uploads.reactor.callLater(IDLE_MAX_S, self.give_up)

    def commit(self, size_bytes: int) -> Reference:
        """Commit the upload if it has this size; raises HttpError."""
        self.require_rest()
        if size_bytes != self.size_bytes:
            raise HttpError(
                409, f"{self.size_bytes} bytes of {self.object_id} were received, not {size_bytes}"
            )
        try:
            return self._uploads.finish(self.object_id, self.writer)
        finally:
            self.give_up()

    def give_up(self) -> None:
        """Forget the upload, and delete its bytes unless they are committed."""
        self._stop_waiting()
        self._uploads.forget(self)
        self.writer.abort()

    def _stop_waiting(self) -> None:
        if self._due is not None and self._due.active():
            self._due.cancel()
        self._due = None


# --- request bodies -------------------------------------------------------------------------------


def length_of(request: Request) -> int | None:
    """Return the length of a body, if the request has it; raises HttpError."""
    length = request.getHeader("Content-Length") or ""
    if not length.isdecimal():
        return None
    if int(length) > SIZE_MAX_BYTES:
        raise HttpError(400, "Content-Length is larger than any object")
    return int(length)


class _Arriving:
    """A body that is written to the store. It is not read until the disk admits it."""

    def __init__(self, writer: ObjectWriter, admitted: Deferred[Permit], channel: Any) -> None:
        self.writer = writer
        self._admitted = admitted
        self._channel: Any = None
        self._permit: Permit | None = None
        admitted.addCallbacks(self._begin, lambda failure: failure.trap(CancelledError))
        if self._permit is None:
            self._channel = channel
            channel.transport.pauseProducing()

    def _begin(self, permit: Permit) -> None:
        self._permit = permit
        self._resume()

    def _resume(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None and channel.transport is not None:
            channel.transport.resumeProducing()

    def write(self, chunk: bytes) -> None:
        with answering():
            self.writer.write(chunk)

    def abort(self) -> None:
        self.writer.abort()
        self.leave(is_good=False)

    def leave(self, *, is_good: bool = True) -> None:
        """Release the disk."""
        self._admitted.cancel()
        self._resume()
        if self._permit is not None:
            self._permit.release(is_good=is_good)


class _Chunk(_Arriving):
    """One chunk of an upload.

    If it breaks off, the received bytes stay, and the client continues after them.
    """

    def __init__(self, pending: PendingUpload, admitted: Deferred[Permit], channel: Any) -> None:
        self.pending = pending
        self._is_refused = False
        super().__init__(pending.writer, admitted, channel)

    def write(self, chunk: bytes) -> None:
        try:
            super().write(chunk)
        except HttpError:
            self._is_refused = True  # the store has no room, or cannot write
            raise

    def abort(self) -> None:
        if self._is_refused:
            self.pending.give_up()
        else:
            self.pending.rest()
        self.leave(is_good=False)


# --- routes ---------------------------------------------------------------------------------------


class Upload(Route):
    """`/control/data/`: POST uploads an object and returns its reference.

    GET returns objects as `/data/` does. Without an id, POST generates one, and GET lists all
    objects.
    """

    def __init__(self, uploads: IncomingUploads, data: Data | BlockList) -> None:
        self._uploads = uploads
        self._data = data

    def role_for(self, method: str) -> Role:
        return Role.SUBMIT if method == "POST" else Role.READ

    def limit_for(self, method: str) -> int | None:
        return None if method == "POST" else self.body_limit_bytes

    def body_sink(self, request: Request) -> _Arriving | None:
        if request.method != b"POST":
            return None
        size_bytes = length_of(request)
        object_id = request.params.setdefault("id", f"{UPLOAD_PREFIX}{secrets.token_hex(16)}")
        writer = self._uploads.writer(object_id, size_bytes)
        return _Arriving(writer, self._uploads.admitted(size_bytes), request.channel)

    def render_POST(self, request: Request) -> Answer:
        sink: Any = request.sink  # what `body_sink` returned
        try:
            ref = self._uploads.finish(request.params["id"], sink.writer)
        except HttpError:
            sink.abort()
            raise
        sink.leave()
        return request.reply(to_json(ref), 201)

    def render_GET(self, request: Request) -> Answer:
        return self._data.render_GET(request)

    def render_HEAD(self, request: Request) -> Answer:
        return self._data.render_HEAD(request)


class ChunkedUpload(Route):
    """Starts, inspects and aborts a chunked upload."""

    def __init__(self, uploads: IncomingUploads) -> None:
        self._uploads = uploads

    def role_for(self, method: str) -> Role:
        return Role.READ if method in ("GET", "HEAD") else Role.SUBMIT

    def render_POST(self, request: Request) -> Answer:
        size_bytes = None
        if request.content.read(1):
            request.content.seek(0)
            said = request.json()
            if not isinstance(said, dict) or said.keys() - {"size_bytes"}:
                raise HttpError(400, 'the body: expected nothing, or {"size_bytes": NUMBER}')
            size_bytes = said.get("size_bytes")
            if size_bytes is not None:
                size_bytes = whole_size(size_bytes)
        return request.reply(self._uploads.begin(request.params["id"], size_bytes).facts(), 201)

    def render_GET(self, request: Request) -> Answer:
        return request.reply(self._uploads.find(request.params["id"]).facts())

    def render_DELETE(self, request: Request) -> Answer:
        pending = self._uploads.find(request.params["id"])
        pending.require_rest()
        pending.give_up()
        return request.reply({"id": pending.object_id})


class UploadChunk(Route):
    """Takes the next bytes of an upload."""

    body_limit_bytes = None

    def __init__(self, uploads: IncomingUploads) -> None:
        self._uploads = uploads

    def body_sink(self, request: Request) -> _Chunk:
        pending = self._uploads.find(request.params["id"])
        return pending.take(request, request.params["offset"])

    def render_POST(self, request: Request) -> Answer:
        sink: Any = request.sink  # what `body_sink` returned
        sink.leave()
        sink.pending.rest()
        return request.reply(sink.pending.facts())


class UploadCommit(Route):
    """Completes an upload; the body is its size."""

    def __init__(self, uploads: IncomingUploads) -> None:
        self._uploads = uploads

    def render_POST(self, request: Request) -> Answer:
        pending = self._uploads.find(request.params["id"])
        return request.reply(to_json(pending.commit(whole_size(request.json()))), 201)


class UploadList(Route):
    """Lists the chunked uploads in progress."""

    needs_role = Role.READ

    def __init__(self, uploads: IncomingUploads) -> None:
        self._uploads = uploads

    def render_GET(self, request: Request) -> Answer:
        return request.reply([pending.facts() for pending in self._uploads])


def whole_size(value: Any) -> int:
    """Return a size from JSON; raises HttpError."""
    if type(value) is not int or not 0 <= value <= SIZE_MAX_BYTES:
        raise HttpError(400, "the body: the size must be a whole number of bytes")
    return value


def add_uploads(routes: Routes, uploads: IncomingUploads, data: Data, blocks: BlockList) -> None:
    """Add the routes of this module."""
    routes.add("/control/data", Upload(uploads, blocks))
    routes.add("/control/data/{id}", Upload(uploads, data))
    routes.add("/control/upload", UploadList(uploads))
    routes.add("/control/upload/{id}", ChunkedUpload(uploads))
    routes.add("/control/upload/{id}/commit", UploadCommit(uploads))
    routes.add("/control/upload/{id}/{offset}", UploadChunk(uploads))
