"""Redirects requests for the content of objects to workers, with status 307.

The master itself has only content that is inline in a reference.
"""

from __future__ import annotations

import itertools
import time
from typing import Any, ClassVar, Final
from urllib.parse import quote

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure as Failed

from ciel.access.keys import Key, Role
from ciel.access.tickets import make_ticket
from ciel.core.ids import check_id
from ciel.core.refs import Failure, Reference, Value, locations_of
from ciel.master.resources.resource import Resource, with_http_errors
from ciel.master.service import MasterService
from ciel.net.errors import HttpError, TransferError
from ciel.net.http import BodySink, Request
from ciel.net.transfers import TransferResult, Transfers

CONTENT_MAX_BYTES: Final = 1 << 20
"""The maximum size of arguments that the master fetches, equal to the limit of a request body."""
OCTETS: Final = "application/octet-stream"


class Data(Resource):
    """The content of an object if it is inline; otherwise a redirect to a worker that holds it."""

    def render_GET(self, request: Request) -> bytes:
        ref = self.reference(request)
        if isinstance(ref, Value):
            request.setHeader("Content-Type", OCTETS)
            try:
                return ref.content
            except ValueError:
                raise HttpError(409, f"the content of {ref.id} is not base64") from None
        if isinstance(ref, Failure):
            raise HttpError(409, f"{ref.id} could not be produced: {ref.reason}: {ref.text}")
        places = self.service.netlocs() & locations_of(ref)
        if not places:
            raise HttpError(404, f"no connected worker has {ref.id}")
        raise _elsewhere(min(places), f"/data/{quote(ref.id, safe=':')}", "a worker holds it")


class Uploads(Resource):
    """Redirects uploads to the workers, round-robin."""

    _round_robin: ClassVar[itertools.count[int]] = itertools.count()

    def limit_for(self, method: str) -> int | None:
        return None if method == "POST" else super().limit_for(method)  # no upload is read

    def body_sink(self, request: Request) -> BodySink | None:
        if request.method == b"POST":
            raise self._to_worker(request)
        return None

    def render_POST(self, request: Request) -> bytes:
        raise self._to_worker(request)

    def _to_worker(self, request: Request) -> HttpError:
        name = request.params.get("id")
        if name is not None:
            with_http_errors(lambda: check_id(name))
        workers = sorted(self.service.netlocs())
        if not workers:
            return HttpError(503, "no worker is connected to store it; start one with ciel-worker")
        chosen = workers[next(self._round_robin) % len(workers)]
        target = "/control/data/" if name is None else f"/control/data/{quote(name, safe=':')}"
        return _elsewhere(chosen, target, "send the object to that worker")


class DataByRoute(Uploads, Data):
    """`/control/data/ID`: content and uploads."""


class BlockList(Uploads):
    """`/control/data/`: uploads, and the list of the master's blocks, which is empty."""

    def render_GET(self, request: Request) -> bytes:
        request.setHeader("Content-Type", OCTETS)
        return b""


def _elsewhere(netloc: str, target: str, reason: str) -> HttpError:
    return HttpError(307, reason, Location=f"http://{netloc}{target}")


class _Buffer:
    """Collects content up to `CONTENT_MAX_BYTES`."""

    def __init__(self) -> None:
        self.content = bytearray()

    def write(self, chunk: bytes) -> None:
        self.content += chunk
        if len(self.content) > CONTENT_MAX_BYTES:
            raise HttpError(413, f"the private data may have at most {CONTENT_MAX_BYTES} bytes")


class Contents:
    """Fetches content that the master itself has to read: the private data of a root task."""

    def __init__(self, reactor: Any, key: Key, service: MasterService) -> None:
        self._transfers = Transfers(reactor, concurrent_max=4)
        self._key = key.derive(Role.WORKER) or key
        self._service = service

    def fetch(self, ref: Reference) -> Deferred[bytes]:
        """Fetch an object from a connected worker; fails with HttpError."""
        places = self._service.netlocs() & locations_of(ref)
        if not places:
            raise HttpError(404, f"no connected worker has {ref.id}")
        netloc, target = min(places), f"/data/{quote(ref.id, safe=':')}"
        sink = _Buffer()

        def headers() -> dict[str, str]:
            ticket = make_ticket(self._key, "GET", netloc, target, time.time())
            return {"Authorization": ticket}

        def done(result: TransferResult) -> bytes:
            return bytes(sink.content)

        def failed(failure: Failed) -> bytes:
            failure.trap(TransferError)
            raise HttpError(502, f"{ref.id} could not be read: {failure.value}")

        fetched = self._transfers.fetch(f"http://{netloc}{target}", sink, headers=headers)
        return fetched.addCallbacks(done, failed)
