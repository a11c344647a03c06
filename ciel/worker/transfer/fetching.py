"""Fetches objects into the worker's store: tries plans in order, and collects why each failed.

It sends requests only to registered workers, each with its own ticket, and writes the bytes
straight into the store. An object that is still being written at its holder grows here with it, and
tasks can read it meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from io import BytesIO
from typing import Any, Protocol

from twisted.internet.defer import CancelledError, Deferred, inlineCallbacks
from twisted.internet.task import deferLater
from twisted.internet.threads import deferToThread
from twisted.logger import Logger
from twisted.python.failure import Failure as TwistedFailure

from ciel.access.keys import Key, Role
from ciel.access.tickets import make_ticket
from ciel.core.ids import ObjectId
from ciel.core.plans import HttpPlan, LinkPlan, Plan, StreamPlan
from ciel.core.refs import Concrete, Reference, Sweetheart, locations_of
from ciel.net.errors import TransferError
from ciel.net.ticks import DelayedCall
from ciel.net.transfers import STALL_TIMEOUT_S, Begun, Transfers
from ciel.storage.errors import CorruptObjectError, ObjectConflictError, StorageError
from ciel.storage.interface import ObjectInfo, ObjectStore, ObjectWriter
from ciel.storage.sharing import PeerObject, copy_in, link
from ciel.worker.attempts.faults import is_full
from ciel.worker.checksums import Checksums
from ciel.worker.disk_jobs import Admit, Permit, at_once
from ciel.worker.state.orders import FetchObject
from ciel.worker.streams.growing import Growing, Streams
from ciel.worker.transfer.comparing import Comparisons
from ciel.worker.transfer.parts import PartCopies
from ciel.worker.transfer.peer_stores import FetchCounts, PeerStores

log = Logger()


Enter = Callable[[str, int], Deferred[Permit]]

AGAIN_AFTER_S = 1.0
"""Time between two attempts to fetch an object from a host that does not answer."""

_WAYS = {LinkPlan: "by a link", HttpPlan: "by HTTP", StreamPlan: "as it grows"}


class PlanFailedError(Exception):
    """A plan failed; the text says why.

    `is_loss`: the object is not there. `is_final`: other plans are useless, since tasks have read
    the incomplete copy. `is_unanswered`: the host of the object did not answer, or this one is
    disconnected. `lacks_room`: this worker's store has no space. `is_stale`: this worker's store
    has the object with other content.
    """

    def __init__(
        self,
        reason: str,
        *,
        is_loss: bool = False,
        is_final: bool = False,
        is_unanswered: bool = False,
        lacks_room: bool = False,
        is_stale: bool = False,
    ) -> None:
        super().__init__(reason)
        self.is_loss = is_loss
        self.is_final = is_final
        self.is_unanswered = is_unanswered
        self.lacks_room = lacks_room
        self.is_stale = is_stale


class FetcherOwner(Protocol):
    """Receives reports of fetches.

    A fetch reports at most once that an object can be read while it is copied, and then exactly
    once how the fetch has ended.
    """

    def stream_opened(self, object_id: ObjectId) -> None: ...

    def fetched(self, object_id: ObjectId, size_bytes: int) -> None: ...

    def fetch_failed(
        self,
        object_id: ObjectId,
        losses: tuple[str, ...],
        details: str,
        *,
        unreached: tuple[str, ...] = (),
        lacks_room: bool = False,
    ) -> None:
        """`unreached`: the locations, of `losses`, that did not answer. `lacks_room`: the object
        exists, but this worker's store has no space for it.
        """
        ...

    def copied(self, netloc: str, size_bytes: int, run_s: float) -> None:
        """A worker has sent so many bytes in some time."""
        ...

    def content_differs(self, object_id: ObjectId) -> None:
        """A second result of a task, which the store had, differs from the first."""
        ...

    def plans_again(self, ref: Reference, since_s: float) -> tuple[Plan, ...]:
        """Return plans for an object whose holders have not answered; none to give it up.

        `since_s`: the time of the reactor's clock since which they have not answered.
        """
        ...


class Fetcher:
    """Fetches any number of objects at a time; `transfers` limits how many are copied at once."""

    def __init__(
        self,
        reactor: Any,
        transfers: Transfers,
        store: ObjectStore,
        streams: Streams,
        key: Key,
        owner: FetcherOwner,
        *,
        checksums: Checksums,
        admit: Admit = at_once,
        enter: Enter | None = None,
        peer_stores: PeerStores | None = None,
    ) -> None:
        """Create a fetcher without fetches.

        `admit`: lets a copy wait until the disk of the store is free. `enter`: lets a copy wait
        until the disk of a file is free.
        """
        self.counts = FetchCounts()
        self.reactor = reactor
        self.streams = streams
        self.owner = owner
        self._transfers = transfers
        self._store = store
        self._key = key.derive(Role.WORKER) or key
        self._checksums = checksums
        self._admit = admit
        self._enter = enter
        self._peer_stores = peer_stores
        self._followed: dict[ObjectId, _Copy] = {}  # copies in progress
        self.parts = PartCopies(self.ask, admit, self.counts)
        self.comparisons = Comparisons(store, self.ask, owner.content_differs)

    def fetch(self, order: FetchObject) -> None:
        """Start to fetch an object; the owner receives the result."""
        self._try_plans(order).addErrback(
            lambda failure: self._gave_up(order, failure.getErrorMessage(), failure)
        )

    def counted(self) -> dict[str, dict[str, int]]:
        """Return counters, by subject."""
        shmd = self._peer_stores.figures() if self._peer_stores else {}
        return {"fetches": asdict(self.counts), "shmd": shmd}

    def abandon(self, object_id: ObjectId) -> None:
        """End the copy of an object that broke at its source."""
        copy = self._followed.get(object_id)
        if copy is not None:
            copy.end("its producer has failed")

    def _gave_up(self, order: FetchObject, details: str, failure: Any) -> None:
        log.failure("fetching {id} failed", failure, id=order.ref.id)
        self.owner.fetch_failed(order.ref.id, (), details)

    @inlineCallbacks
    def _try_plans(self, order: FetchObject) -> Any:
        if (found := self._discovered(order.ref)) is not None:
            self.counts.discovered += 1
            self.owner.fetched(order.ref.id, found.size_bytes)
            return
        reasons: list[str] = []
        losses: list[str] = []
        unreached: list[str] = []
        plans, begun_s, lacks_room = order.plans, self.reactor.seconds(), False
        while plans:
            reasons.clear()
            losses.clear()
            unreached.clear()
            is_final = lacks_room = False
            for plan in plans:
                try:
                    size_bytes = yield self._try(plan, order.ref)
                except PlanFailedError as error:
                    reasons.append(f"{plan.netloc} ({_WAYS[type(plan)]}): {error}")
                    lacks_room |= error.lacks_room
                    if error.is_loss:
                        losses.append(plan.netloc)
                    if error.is_unanswered:
                        unreached.append(plan.netloc)
                    if is_final := error.is_final:
                        break
                    continue
                self.owner.fetched(order.ref.id, size_bytes)
                return
            may_retry = unreached and not is_final
            plans = self.owner.plans_again(order.ref, begun_s) if may_retry else ()
            if plans:
                yield deferLater(self.reactor, AGAIN_AFTER_S, lambda: None)
        if not order.plans:
            reasons.append("no registered worker has it")
            losses += sorted(locations_of(order.ref))
        details = f"{order.ref.id}: " + "; ".join(reasons)
        log.warn("cannot fetch {details}", details=details)
        self.owner.fetch_failed(
            order.ref.id, tuple(losses), details, unreached=tuple(unreached), lacks_room=lacks_room
        )

    def _discovered(self, ref: Reference) -> ObjectInfo | None:
        """Look for the object in memory that is shared with other workers, without a request."""
        try:
            found = self._store.discover(ref.id)
            size_bytes = ref.size_bytes if isinstance(ref, Concrete | Sweetheart) else None
            if found is None or size_bytes in (None, found.size_bytes):
                return found
            self._store.delete(ref.id)  # it has other content: fetch it
        except StorageError as error:
            log.warn("looking for {id}: {error}", id=ref.id, error=error)
        return None

    @inlineCallbacks
    def _try(self, plan: Plan, ref: Reference) -> Any:
        """Follow a plan; replace a stale copy in this worker's store.

        A copy is stale if its producer is not deterministic, and ran again because the master
        considered this worker's copy lost.
        """
        follow = self._link if isinstance(plan, LinkPlan) else self._copy
        try:
            return (yield follow(plan.netloc, ref))
        except PlanFailedError as error:
            if not error.is_stale or error.is_final:
                raise
            log.warn(
                "a task is not deterministic, so its output here is replaced: {error}", error=error
            )
        try:
            yield deferToThread(self._store.delete, ref.id)
        except StorageError as error:
            raise PlanFailedError(str(error)) from None
        return (yield follow(plan.netloc, ref))

    def forget(self, object_id: ObjectId) -> None:
        """Forget a copy that has ended."""
        self._followed.pop(object_id, None)

    def ask(self, netloc: str, target: str, sink: Any, **options: Any) -> Deferred[Any]:
        """Send another worker a request with a ticket, and write the response to `sink`."""

        def headers() -> dict[str, str]:  # when the request is sent: tickets expire
            ticket = make_ticket(self._key, "GET", netloc, target, time.time())
            return {"Authorization": ticket}

        return self._transfers.fetch(f"http://{netloc}{target}", sink, headers=headers, **options)

    @inlineCallbacks
    def _link(self, netloc: str, ref: Reference) -> Any:
        if self._peer_stores is None:
            raise PlanFailedError("this worker has no peer stores")
        self.counts.asked += 1
        begun_s = time.monotonic()
        try:
            found = yield self._peer_stores.ask(netloc, ref.id)
            expected = ref.size_bytes if isinstance(ref, Concrete | Sweetheart) else None
            if expected not in (None, found.size_bytes):
                raise PlanFailedError(f"it has {found.size_bytes} bytes, not {expected}")
            if (yield deferToThread(link, self._store, ref.id, found)) is not None:
                self.counts.linked += 1
                yield from self._verify_link(ref.id, found)
            else:
                yield self._copy_file(ref.id, found)
        except (StorageError, CancelledError, PlanFailedError) as error:
            self.counts.link_failed += 1
            reason = str(error) or "this worker is shutting down"
            is_stale = isinstance(error, ObjectConflictError)
            raise PlanFailedError(reason, lacks_room=is_full(error), is_stale=is_stale) from None
        self.owner.copied(netloc, found.size_bytes, time.monotonic() - begun_s)
        return found.size_bytes

    def _verify_link(self, object_id: ObjectId, found: PeerObject) -> Iterator[Any]:
        """Verify an object that this store shares with a peer store; raises PlanFailedError.

        If it is damaged, the request by HTTP that follows makes the peer notice the damage, too.
        """
        ref = Concrete(object_id, found.size_bytes, frozenset())
        damaged = yield self._checksums.verify((ref,), are_opened=False)
        if object_id in (damaged or ()):
            raise PlanFailedError("its file is damaged")

    @inlineCallbacks
    def _copy_file(self, object_id: ObjectId, found: PeerObject) -> Any:
        """Copy a file of this host that cannot be linked.

        The copy waits for the disk that it is written to, or else for the disk that it is read
        from: a wait for both could be a deadlock. Before that it waits for space in the store:
        objects that the store moves to a disk to free space wait for that disk, too.
        """
        begun = deferToThread(self._store.begin, object_id, size_hint_bytes=found.size_bytes)
        with (yield begun) as writer:
            if self._store.capabilities.may_block or self._enter is None:
                permit = yield self._admit(found.size_bytes)
            else:
                permit = yield self._enter(found.path, found.size_bytes)
            try:
                yield deferToThread(copy_in, self._store, object_id, found, writer=writer)
            finally:
                permit.release()
        self.counts.copied += 1
        self.counts.copied_bytes += found.size_bytes

    @inlineCallbacks
    def _copy(self, netloc: str, ref: Reference) -> Any:
        size_bytes = ref.size_bytes if isinstance(ref, Concrete | Sweetheart) else None
        try:
            permit = yield self._admit(size_bytes or 0, by_network=True)
        except CancelledError:
            raise PlanFailedError("this worker is shutting down") from None
        try:
            return (yield self._copy_now(netloc, ref, size_bytes))
        finally:
            permit.release()

    @inlineCallbacks
    def _copy_now(self, netloc: str, ref: Reference, size_bytes: int | None) -> Any:
        try:
            writer = self._store.begin(ref.id, size_hint_bytes=size_bytes)
        except StorageError as error:
            raise PlanFailedError(str(error), lacks_room=is_full(error)) from None
        begun_s = time.monotonic()
        with writer, _Copy(self, netloc, ref.id, writer) as copy:
            self._followed[ref.id] = copy
            target = f"/data/{ref.id}"
            copy.done = self.ask(
                netloc, target, copy, expected_size_bytes=size_bytes, begun=copy.begun
            )
            result = yield copy.done
            info = yield deferToThread(writer.commit, checksum=result.checksum)
        self.counts.http += 1
        if size_bytes is not None:  # else the copy may have waited for the producer
            self.owner.copied(netloc, info.size_bytes, time.monotonic() - begun_s)
        return info.size_bytes


class _Copy:
    """A copy in progress, as a context manager.

    Its readers depend on how it ends: it succeeds only once the object is committed.
    """

    done: Deferred[Any]

    def __init__(
        self, fetcher: Fetcher, netloc: str, object_id: ObjectId, writer: ObjectWriter
    ) -> None:
        self._fetcher = fetcher
        self._netloc = netloc
        self._object_id = object_id
        self._writer = writer
        self._growing: Growing | None = None
        self._due: DelayedCall | None = None
        self._asked: Deferred[Any] | None = None
        self._seen_bytes = 0
        self._why = ""  # why this worker has ended it, if it has
        self._is_silent = False  # the source has stopped to answer

    def begun(self, begun: Begun) -> None:
        """The response has started. Without a size, the object is still growing at its source."""
        if begun.size_bytes is not None:
            return
        self._watch()
        fetcher, fd = self._fetcher, self._writer.fileno(to_write=False)
        try:
            self._growing = fetcher.streams.open(self._object_id, fd, is_reported=True)
        except ValueError:
            return  # a cancelled attempt still writes it here: it can be read once it is complete
        fetcher.owner.stream_opened(self._object_id)

    def write(self, chunk: bytes) -> None:
        self._writer.write(chunk)
        self._fetcher.counts.http_bytes += len(chunk)
        if self._growing is not None:
            self._fetcher.streams.grew(self._growing, self._writer.size_bytes)

    def __enter__(self) -> _Copy:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._fetcher.forget(self._object_id)
        if self._due is not None:
            self._due.cancel()
            self._due = None
        if self._asked is not None:
            self._asked.cancel()
        growing, streams = self._growing, self._fetcher.streams
        if error is None:
            if growing is not None:
                streams.finish(growing)
            return
        is_loss = isinstance(error, TransferError | CancelledError | CorruptObjectError)
        reason = self._why or str(error)
        if growing is not None:
            streams.break_off(growing, f"{self._object_id} from {self._netloc}: {reason}")
        if is_loss or isinstance(error, StorageError | OSError):
            is_final = growing is not None
            is_unanswered = isinstance(error, TransferError) and error.is_unanswered
            is_unanswered |= self._is_silent
            raise PlanFailedError(
                reason,
                is_loss=is_loss,
                is_final=is_final,
                is_unanswered=is_unanswered,
                lacks_room=is_full(error),
                is_stale=isinstance(error, ObjectConflictError),
            ) from None

    # --- a source that is silent ------------------------------------------------------------------

    def _watch(self) -> None:
        self._asked = None
        self._due = self._fetcher.reactor.callLater(STALL_TIMEOUT_S, self._check_progress)

    def _check_progress(self) -> None:
        """Check that the source is alive if nothing came; its producer may take any time."""
        self._due = None
        seen_bytes, self._seen_bytes = self._seen_bytes, self._writer.size_bytes
        if seen_bytes != self._seen_bytes:
            self._watch()
            return
        self._asked = self._fetcher.ask(self._netloc, "/healthz", BytesIO())
        self._asked.addCallbacks(lambda _: self._watch(), self._gone)

    def _gone(self, failure: TwistedFailure) -> None:
        self._asked = None
        if not isinstance(failure.value, CancelledError):
            self._is_silent = True
            self.end(f"its worker was silent, and does not answer: {failure.getErrorMessage()}")

    def end(self, why: str) -> None:
        """End the copy before it is complete."""
        self._why = why
        self.done.cancel()
