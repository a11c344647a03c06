"""Getting an input into the own store: plans are tried in order, with the reason of each that
failed.

Only registered workers are asked, each request with a ticket of its own; bytes go straight into the
store.
"""

from __future__ import annotations

import time
from io import BytesIO
from typing import Any, Protocol

from twisted.internet.defer import inlineCallbacks
from twisted.internet.threads import deferToThread
from twisted.logger import Logger

from ciel.access.keys import Key, Role
from ciel.access.tickets import make_ticket
from ciel.core.ids import ObjectId
from ciel.core.refs import Concrete, Reference, Sweetheart, locations_of
from ciel.net.errors import TransferError
from ciel.net.transfers import Transfers
from ciel.storage.errors import StorageError
from ciel.storage.interface import ObjectStore
from ciel.wire import codec
from ciel.wire.errors import DecodeError
from ciel.worker.state.machine import FetchObject
from ciel.worker.state.plans import HttpPlan, LinkPlan, Plan

log = Logger()


class PlanFailedError(Exception):
    """One plan did not work; the text says why."""


class FetcherOwner(Protocol):
    """Who is told how a fetch ended, exactly once."""

    def fetched(self, object_id: ObjectId, size_bytes: int) -> None: ...

    def fetch_failed(self, object_id: ObjectId, losses: tuple[str, ...], details: str) -> None: ...


class Fetcher:
    """Tries plans; any number of fetches at a time, bounded by the transfers."""

    def __init__(
        self, transfers: Transfers, store: ObjectStore, key: Key, host: str, owner: FetcherOwner
    ) -> None:
        self._transfers = transfers
        self._store = store
        self._key = key.derive(Role.WORKER) or key
        self._host = host
        self._owner = owner

    def fetch(self, order: FetchObject) -> None:
        """Begin to get an object; the owner is told of the end."""
        self._try_plans(order).addErrback(
            lambda failure: self._gave_up(order, failure.getErrorMessage(), failure)
        )

    def _gave_up(self, order: FetchObject, details: str, failure: Any) -> None:
        log.failure("fetching {id} failed", failure, id=order.ref.id)
        self._owner.fetch_failed(order.ref.id, (), details)

    @inlineCallbacks
    def _try_plans(self, order: FetchObject) -> Any:
        reasons: list[str] = []
        losses: list[str] = []
        for plan in order.plans:
            try:
                size_bytes = yield self._try(plan, order.ref)
            except (PlanFailedError, TransferError, StorageError) as error:
                reasons.append(f"{type(plan).__name__} {plan.netloc}: {error}")
                if isinstance(plan, HttpPlan) and not isinstance(error, StorageError):
                    losses.append(plan.netloc)
                continue
            self._owner.fetched(order.ref.id, size_bytes)
            return
        if not order.plans:
            reasons.append("no registered worker is said to hold it")
            losses += sorted(locations_of(order.ref))
        details = f"{order.ref.id}: " + "; ".join(reasons)
        log.warn("cannot fetch {details}", details=details)
        self._owner.fetch_failed(order.ref.id, tuple(losses), details)

    def _try(self, plan: Plan, ref: Reference) -> Any:
        if isinstance(plan, LinkPlan):
            return self._link(plan.netloc, ref)
        return self._copy(plan.netloc, ref)

    def _fetch(self, netloc: str, target: str, sink: Any, size_bytes: int | None = None) -> Any:
        def headers() -> dict[str, str]:  # made when the request is: a ticket does not keep
            ticket = make_ticket(self._key, "GET", netloc, target, time.time())
            return {"Authorization": ticket}

        return self._transfers.fetch(
            f"http://{netloc}{target}", sink, headers=headers, expected_size_bytes=size_bytes
        )

    @inlineCallbacks
    def _link(self, netloc: str, ref: Reference) -> Any:
        answer = BytesIO()
        yield self._fetch(netloc, f"/control/link/{ref.id}?host={self._host}", answer)
        try:
            where = codec.decode(answer.getvalue())
            path, checksum, size_bytes = where["path"], where["checksum"], where["size_bytes"]
        except (DecodeError, LookupError, TypeError):
            raise PlanFailedError("its answer cannot be read") from None
        info = self._store.adopt(ref.id, path, checksum=checksum, size_bytes=size_bytes)
        return info.size_bytes

    @inlineCallbacks
    def _copy(self, netloc: str, ref: Reference) -> Any:
        size_bytes = ref.size_bytes if isinstance(ref, Concrete | Sweetheart) else None
        with self._store.begin(ref.id, size_hint_bytes=size_bytes) as writer:
            result = yield self._fetch(netloc, f"/data/{ref.id}", writer, size_bytes)
            info = yield deferToThread(writer.commit)
        if result.checksum is not None and info.checksum not in (None, result.checksum):
            self._store.delete(ref.id)
            raise PlanFailedError(f"its bytes do not match the checksum {result.checksum}")
        return info.size_bytes
