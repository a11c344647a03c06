"""What became of calls: lots that are to come, and the values in them.

News come on the connection's thread. Outcomes that ride along are known at once; what is too large
is read by whoever asks for it, or by a few threads where the outcome itself must be known.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import io
import itertools
import mmap
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from ciel.client.calls.futures import ClientFuture, Lot, WaitingCall, read_value
from ciel.client.errors import (
    CallbackWaitError,
    ClientError,
    JobEndedError,
    ObjectUnreadableError,
    RequestRefusedError,
)
from ciel.client.views.trace import note_calls
from ciel.core.ids import ObjectId, is_output
from ciel.core.refs import INLINE_MAX_BYTES, Failure, Reference, Stream, Value, locations_of
from ciel.core.refs import Future as Unmade
from ciel.python.contents import (
    CUT,
    ERROR,
    ITEM,
    MOVED,
    RETURNED,
    STREAM_MAGIC,
    VALUE,
    Outcome,
    decode,
    encode,
    read_stream,
)
from ciel.python.failures import error_of, packing_error, unpack_error
from ciel.python.packing import UnpackedError, unpack
from ciel.python.sessions import ALL_COMPLETED, FIRST_COMPLETED
from ciel.wire.references import from_array

if TYPE_CHECKING:
    from ciel.access.settings import MasterLocation
    from ciel.client.client import Client
    from ciel.client.jobs.caller_context import Caller
    from ciel.client.jobs.job import Job

EAGER_MAX_BYTES: Final = 64 << 10
"""What a single call has made, and is larger, is read when it is asked for."""
MAPPED_MIN_BYTES: Final = 256 << 10
"""What is larger is not read but mapped, if it is on this host."""
DROPPED_AT_ONCE: Final = 256
DROPPED_MAX_S: Final = 0.5
"""So long after the last ones fewer are let go of as well, when the master is heard: it says
something once a second. What is called lets go of what was dropped by then in any case."""
_READERS = 2


class Results(ABC):
    """The results of one client's calls. Usable from any thread."""

    def __init__(self, client: Client) -> None:
        self.dropped: deque[Reference] = deque()
        """Objects that nobody here can ask for any more."""
        self.lots_by_id: weakref.WeakValueDictionary[ObjectId, Lot] = weakref.WeakValueDictionary()
        """All that somebody here can ask for: an object has one lot, however many values name it,
        or it would be released when the first of several goes."""
        self.shared: set[ObjectId] = set()
        """Of these another client has named some, and its message may come after ours."""
        self._client = client
        self._lock = threading.Lock()
        self._lots: weakref.WeakValueDictionary[ObjectId, Lot] = weakref.WeakValueDictionary()
        """Those that are to come, as long as somebody holds a future of theirs."""
        self.kept: set[ClientFuture[Any]] = set()
        """Futures that are to be done though nobody else may hold them."""
        self._released_s = 0.0  # when something was last let go of
        self._to_want: deque[Reference] = deque()
        self._news: deque[Reference] = deque()
        self._job: Job | None = None
        self.caller: Caller
        """Where the calls run; there once the job is."""
        self._readers: concurrent.futures.ThreadPoolExecutor | None = None
        self._ended: BaseException | None = None

    def _open_job(self) -> Job:
        if self._job is None:
            self.caller = self._client.caller()
            self._job = self._client.job(self._client.name, context=self.caller.context)
            self._client.follow_prints(self._job)
        return self._job

    @property
    def location(self) -> MasterLocation:
        """Where the master is that they are sent to."""
        return self._client.location

    @property
    def job(self) -> Job | None:
        """The job of all calls; None before the first."""
        return self._job

    def take_news(self) -> None:
        """Take in what the connection has brought; no lock of the client is held."""
        while self._news:
            try:
                ref = self._news.popleft()
            except IndexError:  # another thread, which had printed something first, has it
                break
            if type(ref) is Stream:
                if (growing := self._lots.get(ref.id)) is not None:
                    growing.grow(ref)
                continue
            with self._lock:
                lot = self._lots.pop(ref.id, None)
            if lot is not None:
                self._settle(lot, ref)
        if self._may_release_held():
            self._remind()
        job = self._job
        if job is not None and self._lots and (job.has_ended or job.refusal):
            self._lose(_end_of(job))
        if self.dropped:
            is_old = time.monotonic() - self._released_s >= DROPPED_MAX_S
            if is_old or len(self.dropped) >= DROPPED_AT_ONCE:
                self._remind()

    @abstractmethod
    def expedite(self, future: ClientFuture[Any]) -> None:
        """Somebody waits for a future: send what it needs, if that was not sent."""

    def require_done(
        self, futures: Sequence[ClientFuture[Any]], return_when: str = ALL_COMPLETED
    ) -> None:
        """Raise CallbackWaitError if to wait for these futures would hold up the very thread that
        brings their results.
        """
        if not self._client.is_delivering:
            return
        missing = [future for future in futures if not future.done()]
        is_enough = return_when != ALL_COMPLETED and any(
            future.done() and (return_when == FIRST_COMPLETED or future.has_failed)
            for future in futures
        )
        if missing and not is_enough:
            raise CallbackWaitError(f"the result of {missing[0].name}")

    @abstractmethod
    def send(self, future: ClientFuture[Any]) -> None:
        """Send what a future needs, even if that would be held back."""

    @abstractmethod
    def call_off(self, future: ClientFuture[Any]) -> None:
        """A future was cancelled: stop what runs for it alone."""

    @abstractmethod
    def _may_release_held(self) -> bool:
        """Tell whether calls were held back, and something is known now of their functions."""

    @abstractmethod
    def _divide(
        self, call: WaitingCall, start: int, future: ClientFuture[Any], outcome: Outcome
    ) -> None:
        """Have the rows of a map from `start` on be called by further tasks, and then `future` be
        done, with the outcome of those before.
        """

    @abstractmethod
    def _remind(self) -> None:
        """There is something to be told to the master; this thread must not wait for that."""

    def _settle(self, lot: Lot, ref: Reference) -> None:
        self._be_done(lot, ref)
        lot.end_growth()

    def _be_done(self, lot: Lot, ref: Reference) -> None:
        lot.ref = ref
        with self._lock:  # others may join who wait
            futures = lot.take_futures()
        lot.end_trial()
        if isinstance(ref, Failure):
            lot.count(failed=True)
            for future in futures:
                future.fail(error_of(ref))
        elif lot.raw or lot.is_stream:
            lot.count()
            for future in futures:
                future.settle(None)
        elif isinstance(ref, Value):
            self._take(lot, futures, bytearray(ref.content))
        elif lot.call is None and self._is_read_later(lot):
            lot.count()
            for future in futures:
                future.settle(None)
        else:
            if self._readers is None:
                self._readers = concurrent.futures.ThreadPoolExecutor(_READERS, "ciel-results")
            self._readers.submit(self._fetch, lot, futures)

    def _is_read_later(self, lot: Lot) -> bool:
        """Tell whether a lot is large, and read when somebody asks for its value."""
        size_bytes = getattr(lot.ref, "size_bytes", 0) or 0
        return len(lot.functions) == 1 and size_bytes > EAGER_MAX_BYTES

    def _fetch(self, lot: Lot, futures: list[ClientFuture[Any]]) -> None:
        try:
            self._take(lot, futures, self.read(lot.ref))
        except BaseException as error:
            for future in futures:
                future.fail(error)

    def _take(self, lot: Lot, futures: list[ClientFuture[Any]], content: Any) -> None:
        """Have the futures of a lot be done with what it holds."""
        if content[: len(STREAM_MAGIC)] == STREAM_MAGIC:  # of a child that yields
            lot.is_stream = True
            for future in futures:
                future.settle(None)
            return
        try:
            found = decode(content)
        except UnpackedError as error:
            for future in futures:
                future.fail(packing_error(f"the result of {future.name}", error))
            return
        outcomes = found.outcomes
        if found.times is not None:
            note_calls(self._client, lot.id, [each.name for each in lot.functions], found.times)
        rest = outcomes.pop() if outcomes[-1].kind == CUT else None
        call = lot.call
        if rest is not None and call is not None:
            lot.rows = int(rest.packed.head)
        if lot.functions:
            each_s = found.took_s / (len(lot.functions) * lot.rows)
            for function in () if lot.is_counted else set(lot.functions):
                function.note(each_s)
            lot.count(outcomes)
        lot.call, is_read_later = None, self._is_read_later(lot)
        for future in futures:
            outcome = outcomes[future.place]
            if rest is not None and call is not None:
                self._divide(call, lot.rows, future, outcome)
            elif outcome.kind == VALUE:
                future.settle(None if is_read_later else outcome)
            elif outcome.kind == ERROR:
                task = lot.id.partition(":")[0]
                future.fail(unpack_error(outcome.packed.head, f"in task {future.name} ({task})"))
            else:
                self._follow(future, outcome)

    def _follow(self, future: ClientFuture[Any], outcome: Outcome) -> None:
        """Have a future wait for another object, which a task handed its result on to."""
        assert outcome.kind == MOVED
        array, place, raw = unpack(outcome.packed.head)
        future.sent_as(self._lot(from_array(array), raw), place)
        self._seek(future)

    def _lot(self, ref: Reference, raw: bool) -> Lot:
        return self.lots_by_id.get(ref.id) or Lot(self, ref, raw=raw)

    def _expect(self, lot: Lot, name: str, place: int = 0) -> ClientFuture[Any]:
        """Return a future of something that is to come."""
        future: ClientFuture[Any] = ClientFuture(self, name)
        future.sent_as(lot, place)
        lot.futures.append(weakref.ref(future))
        with self._lock:
            self._lots[lot.id] = lot
        return future

    def _seek(self, future: ClientFuture[Any]) -> None:
        """Have a future be done that came within a value, or was handed on, when its object is
        there: perhaps it is already.
        """
        lot = future.lot
        assert lot is not None
        ref = lot.ref
        # What no task makes the master cannot tell of: whoever named it knew all.
        is_known = isinstance(ref, Value | Failure) or not (
            isinstance(ref, Unmade) or is_output(lot.id)
        )
        with self._lock:
            ended = self._ended
            known = weakref.ref(future)
            if known not in lot.futures:
                lot.futures.append(known)
            if not is_known:
                self._lots[lot.id] = lot
                self._to_want.append(ref)
            future.is_sought = True
        if is_known and (ended is None or isinstance(ref, Value | Failure)):
            self._settle(lot, ref)
        elif ended is not None:
            with self._lock:
                self._lots[lot.id] = lot
            self._lose(ended)
        else:
            self._want_all()
            self._settle_wanted(lot)

    def _settle_wanted(self, lot: Lot) -> None:
        """Settle a lot if its object was wanted before: of what became of that we were told then,
        and are not told again.
        """
        known = None if self._job is None else self._job.settled(lot.ref)
        if known is not None:
            with self._lock:
                found = self._lots.pop(lot.id, None)
            if found is not None:
                self._settle(found, known)

    def _want_all(self) -> None:
        """Want what is to be wanted, also by those who were interrupted before they had."""
        if refs := list(self._to_want):
            self._open_job().want(refs, self._news)
            for ref in refs:
                with contextlib.suppress(ValueError):  # another thread was as quick
                    self._to_want.remove(ref)

    def value_of(self, outcome: Outcome, name: str) -> Any:
        """Return the value of an outcome; raises UnpackedError."""
        given = []
        for array, place, raw in outcome.refs:
            future: ClientFuture[Any] = ClientFuture(self, name)
            future.sent_as(self._lot(from_array(array), raw), place)
            future.is_sought = False
            given.append(future)
        return read_value(outcome, given)

    def outcomes(self, lot: Lot) -> list[Outcome]:
        """Return what a lot holds, read once; raises UnpackedError and as `Job.read`."""
        with lot.lock:
            if lot.content is None:
                lot.content = decode(self.read(lot.ref)).outcomes
            return lot.content

    def growing_items(self, lot: Lot, future: ClientFuture[Any]) -> Iterator[Any]:
        """Yield the items of a task that yields, as they come. Where its task is lost and runs
        again, the items that were yielded are left out. Raises what the task raised.
        """
        count = 0
        while (ref := lot.await_growth(future.done)) is not None:
            try:
                with contextlib.closing(self._client.read_growing(ref)) as reading:
                    for number, (kind, head) in enumerate(read_stream(reading.read)):
                        if kind == RETURNED:
                            return
                        if kind != ITEM:
                            raise unpack_error(head)
                        if number >= count:
                            count = number + 1
                            yield unpack(head)
            except (ObjectUnreadableError, UnpackedError):
                lot.no_growth(ref)  # it failed, its worker was lost, or it is whole by now
        items = future.result()
        yield from itertools.islice(items or (), count, None)

    def read_items(self, lot: Lot) -> Any:
        """Return what a task that yields has made: the list of its items, or what it returned if it
        yielded none.
        """
        items: list[Any] = []
        for kind, head in read_stream(io.BytesIO(self.read_bytes(lot.ref)).read):
            if kind == ITEM:
                items.append(unpack(head))
            elif kind == RETURNED:
                return items or unpack(head)
            else:
                raise unpack_error(head)
        return items

    def read_bytes(self, ref: Reference) -> bytes:
        """Return the content of an object; raises as `Job.read`."""
        return self._client.read(ref) if self._job is None else self._job.read(ref)

    def read(self, ref: Reference) -> Any:
        """Return the content of an object in memory of its own, which may be written to; raises as
        `Job.read`.
        """
        size_bytes = getattr(ref, "size_bytes", None)
        if size_bytes is None or size_bytes <= EAGER_MAX_BYTES or self._job is None:
            return bytearray(self.read_bytes(ref))
        while True:
            mapped = self._client.map_object(ref) if size_bytes >= MAPPED_MIN_BYTES else None
            if mapped is not None and len(mapped) == size_bytes:
                return mapped
            memory = mmap.mmap(-1, size_bytes)
            try:
                at = 0
                for chunk in self._client.read_chunks(ref):
                    memory[at : at + len(chunk)] = chunk
                    at += len(chunk)
                return memory
            except ObjectUnreadableError as error:
                ref = self._job.await_copy(error, ref)

    def _store(self, outcomes: list[Outcome], name: str) -> Reference:
        pieces = encode(outcomes)
        size_bytes = sum(memoryview(piece).nbytes for piece in pieces)
        if size_bytes <= INLINE_MAX_BYTES:
            return self._client.upload_content(b"".join(pieces), name)
        return self._client.upload_pieces(pieces, name)

    def _release_dropped(self) -> None:
        if self.dropped:
            self._released_s = time.monotonic()
            dropped = [self.dropped.popleft() for _ in range(len(self.dropped))]
            # Another value may have named one of these since.
            refs = [self._as_released(ref) for ref in dropped if ref.id not in self.lots_by_id]
            if self._job is not None or any(map(locations_of, refs)):
                self._open_job().release(refs, for_good=True)

    def _as_released(self, ref: Reference) -> Reference:
        """Return a reference that says where an object is to be deleted if no task has named it."""
        if ref.id not in self.shared:
            return ref
        self.shared.discard(ref.id)
        return Unmade(ref.id)

    def _lose(self, error: BaseException) -> None:
        """Nothing more will come."""
        with self._lock:
            lots = list(self._lots.values())
            self._lots.clear()
            waiting = [lot.take_futures() for lot in lots]
        for futures in waiting:
            for future in futures:
                future.fail(error)
        for lot in lots:
            lot.end_growth()

    def _close_readers(self) -> None:
        if self._readers is not None:
            self._readers.shutdown(wait=False, cancel_futures=True)


def _end_of(job: Job) -> ClientError:
    """Say why nothing more comes of a job."""
    if job.refusal:
        return RequestRefusedError(job.id, job.refusal)
    summary = job.summary
    assert summary is not None  # by which it has ended
    return JobEndedError(summary.number, summary.state, summary.reason)
