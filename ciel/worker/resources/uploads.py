"""Objects that clients bring: in one request, or in chunks."""

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
from ciel.net.turns import DelayedCall
from ciel.storage.interface import ObjectStore, ObjectWriter
from ciel.wire.references import SIZE_MAX_BYTES, to_json
from ciel.worker.disk_jobs import Admit, Ticket, at_once
from ciel.worker.resources.data import BlockList, Data, answering

UPLOAD_WAITS_S: Final = 5.0
"""For the disk, at most: clients are not told that they wait, and do not do so for ever."""

PENDING_MAX: Final = 256
"""Uploads in chunks at one time; each has a file open."""

IDLE_MAX_S: Final = 60.0
"""An upload of which no chunk came for so long is given up, and its space with it."""

_is_offset = re.compile(r"\d{1,18}").fullmatch


class IncomingUploads:
    """What clients bring, on its way into the store. `netloc` is where others then find it."""

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
        """Begin to write an object of, perhaps, so many bytes."""
        with answering():
            return self._store.begin(check_id(object_id), size_hint_bytes=size_bytes)

    def admitted(self, size_bytes: int | None) -> Deferred[Ticket]:
        """Wait for the disk, on behalf of somebody who sends."""
        return self._admit(size_bytes or 0, within_s=UPLOAD_WAITS_S, by_network=True)

    def finish(self, object_id: str, writer: ObjectWriter) -> Reference:
        """Commit what was written, and return what it is known as. What is small is kept nowhere:
        it is in its reference.
        """
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
        """Begin an upload in chunks; raises HttpError, also if it has begun already."""
        if object_id in self._pending:
            held = self._pending[object_id]
            raise HttpError(
                409,
                f"an upload of {object_id} is under way here, {held.size_bytes} bytes of it have "
                f"come: go on from there, or give it up (DELETE) and begin again",
            )
        if len(self._pending) >= PENDING_MAX:
            raise HttpError(503, f"{PENDING_MAX} uploads are under way here already")
        pending = PendingUpload(self, object_id, self.writer(object_id, size_bytes))
        self._pending[object_id] = pending
        return pending

    def find(self, object_id: str) -> PendingUpload:
        """Return an upload that has begun; raises HttpError."""
        with answering():
            check_id(object_id)
        if object_id not in self._pending:
            raise HttpError(404, f"no upload of {object_id} is under way here")
        return self._pending[object_id]

    def forget(self, pending: PendingUpload) -> None:
        self._pending.pop(pending.object_id, None)

    def __iter__(self) -> Iterator[PendingUpload]:
        return iter(list(self._pending.values()))

    def close(self) -> None:
        """Give up what has not come to its end."""
        for pending in self:
            pending.give_up()


class PendingUpload:
    """An upload in chunks: what has come of it so far."""

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
        """Begin to take the chunk that a request brings; raises HttpError."""
        self.require_rest()
        if not _is_offset(offset):
            raise HttpError(400, "the offset must be a number of bytes")
        if int(offset) != self.size_bytes:
            raise HttpError(
                409,
                f"{self.size_bytes} bytes of {self.object_id} have come: the next chunk begins "
                f"there, not at {int(offset)}",
            )
        length_bytes = length_of(request)
        self._is_taking = True
        self._stop_waiting()
        return _Chunk(self, self._uploads.admitted(length_bytes), request.channel)

    def require_rest(self) -> None:
        """Raise HttpError while a chunk is on its way."""
        if self._is_taking:
            raise HttpError(409, f"another chunk of {self.object_id} is on its way")

    def rest(self) -> None:
        """Wait for the next chunk, for some time."""
        self._is_taking = False
        self._stop_waiting()
        self._due = self._uploads.reactor.callLater(IDLE_MAX_S, self.give_up)

    def commit(self, size_bytes: int) -> Reference:
        """Make it an object, if that is how much has come; raises HttpError."""
        self.require_rest()
        if size_bytes != self.size_bytes:
            raise HttpError(
                409, f"{self.size_bytes} bytes of {self.object_id} have come, not {size_bytes}"
            )
        try:
            return self._uploads.finish(self.object_id, self.writer)
        finally:
            self.give_up()

    def give_up(self) -> None:
        """Forget it, and what has come of it if that is no object by now."""
        self._stop_waiting()
        self._uploads.forget(self)
        self.writer.abort()

    def _stop_waiting(self) -> None:
        if self._due is not None and self._due.active():
            self._due.cancel()
        self._due = None


# --- bodies on their way --------------------------------------------------------------------------


def length_of(request: Request) -> int | None:
    """Return how long a body will be, if its sender says so; raises HttpError."""
    length = request.getHeader("Content-Length") or ""
    if not length.isdecimal():
        return None
    if int(length) > SIZE_MAX_BYTES:
        raise HttpError(400, "no object can be as long as Content-Length says")
    return int(length)


class _Arriving:
    """A body on its way into the store. It is left unread until it is admitted."""

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
        with answering():
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


class _Chunk(_Arriving):
    """One chunk of an upload. What has come of it stays if it breaks off: who sent it goes on from
    there.
    """

    def __init__(self, pending: PendingUpload, admitted: Deferred[Ticket], channel: Any) -> None:
        self.pending = pending
        self._is_refused = False
        super().__init__(pending.writer, admitted, channel)

    def write(self, chunk: bytes) -> None:
        try:
            super().write(chunk)
        except HttpError:
            self._is_refused = True  # the store has no room for it, or can write no more
            raise

    def abort(self) -> None:
        if self._is_refused:
            self.pending.give_up()
        else:
            self.pending.rest()
        self.leave(is_good=False)


# --- routes ---------------------------------------------------------------------------------------


class Upload(Route):
    """Objects by the way of `/control/data/`: brought by POST, answered by a reference; and read as
    at `/data/`. Without an id, a new one is made, and what is read is a list of all.
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
    """An upload in chunks: begun, looked at, given up."""

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
    """The next bytes of an upload."""

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
    """The end of an upload; the body says how long all of it is."""

    def __init__(self, uploads: IncomingUploads) -> None:
        self._uploads = uploads

    def render_POST(self, request: Request) -> Answer:
        pending = self._uploads.find(request.params["id"])
        return request.reply(to_json(pending.commit(whole_size(request.json()))), 201)


class UploadList(Route):
    """The uploads in chunks that are under way."""

    needs_role = Role.READ

    def __init__(self, uploads: IncomingUploads) -> None:
        self._uploads = uploads

    def render_GET(self, request: Request) -> Answer:
        return request.reply([pending.facts() for pending in self._uploads])


def whole_size(value: Any) -> int:
    """Return a size that somebody has said in JSON; raises HttpError."""
    if type(value) is not int or not 0 <= value <= SIZE_MAX_BYTES:
        raise HttpError(400, "the body: the size must be a whole number of bytes")
    return value


def add_uploads(routes: Routes, uploads: IncomingUploads, data: Data, blocks: BlockList) -> None:
    """Serve all ways to bring an object."""
    routes.add("/control/data", Upload(uploads, blocks))
    routes.add("/control/data/{id}", Upload(uploads, data))
    routes.add("/control/upload", UploadList(uploads))
    routes.add("/control/upload/{id}", ChunkedUpload(uploads))
    routes.add("/control/upload/{id}/commit", UploadCommit(uploads))
    routes.add("/control/upload/{id}/{offset}", UploadChunk(uploads))
