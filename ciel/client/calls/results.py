"""Settles futures when the objects with their results arrive.

Results arrive on the connection's thread. The message itself contains a short result. A longer
result is read when the program requests its value. If only the content shows whether the call has
failed, one of a few reader threads reads it at once.
"""

from __future__ import annotations

import concurrent.futures
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from ciel.client.calls.futures import ClientFuture, Owner
from ciel.client.calls.job import JobOfCalls
from ciel.client.calls.lots import Lot, Lots
from ciel.client.calls.pending import PendingCall
from ciel.client.calls.reading import EAGER_MAX_BYTES, ResultReader
from ciel.core.ids import ObjectId, is_output
from ciel.core.refs import Failure, Future, Reference, Stream, Value
from ciel.python.contents import CUT, ERROR, MOVED, STREAM_MAGIC, VALUE, Outcome, Times, decode
from ciel.python.failures import error_of, packing_error, unpack_error
from ciel.python.packing import UnpackedError, unpack
from ciel.wire.references import from_array

_READERS = 2

Divide = Callable[[PendingCall, int, ClientFuture[Any], Outcome], None]
"""Creates further tasks for the rows of a map from a given row on, and then settles a future with
the outcome of the earlier rows."""
NoteTimes = Callable[[str, list[str], Times], None]
"""Takes an output's id, the names of its functions, and the times of its calls."""


class Results:
    """The results of one client's calls that have not arrived yet. Thread-safe."""

    def __init__(
        self,
        owner: Owner,
        job: JobOfCalls,
        lots: Lots,
        reader: ResultReader,
        divide: Divide,
        note_times: NoteTimes,
    ) -> None:
        self.awaited: weakref.WeakValueDictionary[ObjectId, Lot] = weakref.WeakValueDictionary()
        """Lots that have not arrived, as long as the program holds one of their futures."""
        self._owner = owner
        self._job = job
        self._lots = lots
        self._reader = reader
        self._divide = divide
        self._note_times = note_times
        self._lock = threading.Lock()
        self._threads: concurrent.futures.ThreadPoolExecutor | None = None
        self._ended: BaseException | None = None

    # --- waiting ----------------------------------------------------------------------------------

    def expect(self, lot: Lot, name: str) -> ClientFuture[Any]:
        """Return a future of a lot that has not arrived."""
        future: ClientFuture[Any] = ClientFuture(self._owner, name)
        future.sent_as(lot, 0)
        lot.futures.append(weakref.ref(future))
        with self._lock:
            self.awaited[lot.id] = lot
        return future

    def await_calls(self, lot: Lot, calls: Sequence[PendingCall]) -> bool:
        """Await the results of calls that were just sent.

        Return False if all of them were cancelled meanwhile.
        """
        with self._lock:  # a call is cancelled either before or after this
            for call in calls:
                lot.functions.append(call.function)
                lot.rows = call.rows
                if call.is_divisible:
                    lot.call = call
                if call.has_cancelled and call.is_dropped():
                    call.function.tally.submitted += call.rows  # it was sent after all
                for number, known in enumerate(call.futures):
                    if (future := known()) is not None:
                        future.sent_as(lot, call.place + number)
                        if not future.is_cancelled:
                            lot.futures.append(known)
            if not lot.futures and any(call.has_cancelled for call in calls):
                return False
            self.awaited[lot.id] = lot
            return True

    def cancel(self, future: ClientFuture[Any]) -> Reference | None:
        """Note that a future was cancelled; return its object if no other future waits for it."""
        with self._lock:
            if (call := future.pending_call) is not None:
                call.has_cancelled = True
                if call.is_dropped():
                    call.function.tally.submitted -= call.rows
        lot = future.lot
        if call is not None or lot is None or self._job.opened is None:
            return None  # `await_calls` handles a call that is about to be sent
        with self._lock:
            known = weakref.ref(future)
            if known in lot.futures:
                lot.futures.remove(known)
            if any(other() is not None for other in lot.futures):
                return None
            if self.awaited.pop(lot.id, None) is None:
                return None  # it has arrived
            lot.uncount()
        lot.end_growth()
        return lot.ref

    def request(self, future: ClientFuture[Any]) -> None:
        """Settle a future when its object exists.

        The future has arrived inside a value, or a task has delegated its result to another task.
        """
        lot = future.lot
        assert lot is not None
        ref = lot.ref
        # The master does not know an object that no task produces; its reference has its location.
        is_known = isinstance(ref, Value | Failure) or not (
            isinstance(ref, Future) or is_output(lot.id)
        )
        with self._lock:
            ended = self._ended
            known = weakref.ref(future)
            if known not in lot.futures:
                lot.futures.append(known)
            if not is_known:
                self.awaited[lot.id] = lot
                self._job.to_want.append(ref)
            future.is_requested = True
        if is_known and (ended is None or isinstance(ref, Value | Failure)):
            self._settle(lot, ref)
        elif ended is not None:
            with self._lock:
                self.awaited[lot.id] = lot
            self.lose(ended)
        else:
            self._job.want_all()
            self._settle_wanted(lot)

    def _settle_wanted(self, lot: Lot) -> None:
        """Settle a lot if the job knows its object already.

        The master sends only one message about each object, so no other message would follow.
        """
        job = self._job.opened
        settled = None if job is None else job.settled(lot.ref)
        if settled is not None:
            with self._lock:
                found = self.awaited.pop(lot.id, None)
            if found is not None:
                self._settle(found, settled)

    # --- arrival ----------------------------------------------------------------------------------

    def take_settled(self) -> None:
        """Process the results that the connection has received. The caller must hold no lock."""
        arrived = self._job.settled
        while arrived:
            try:
                ref = arrived.popleft()
            except IndexError:  # the thread that forwards output was faster
                break
            if type(ref) is Stream:
                if (growing := self.awaited.get(ref.id)) is not None:
                    growing.grow(ref)
                continue
            with self._lock:
                lot = self.awaited.pop(ref.id, None)
            if lot is not None:
                self._settle(lot, ref)

    def _settle(self, lot: Lot, ref: Reference) -> None:
        lot.ref = ref
        with self._lock:  # another thread may add a future
            futures = lot.take_futures()
        lot.end_trial()
        if isinstance(ref, Failure):
            lot.count(failed=True)
            for future in futures:
                future.fail(error_of(ref))
        elif isinstance(ref, Value) and not (lot.raw or lot.is_stream):
            self._take(lot, futures, bytearray(ref.content))
        elif lot.raw or lot.is_stream or (lot.call is None and _is_read_later(lot)):
            lot.count()
            for future in futures:
                future.settle(None)
        else:
            if self._threads is None:
                self._threads = concurrent.futures.ThreadPoolExecutor(_READERS, "ciel-results")
            self._threads.submit(self._fetch, lot, futures)
        lot.end_growth()

    def _fetch(self, lot: Lot, futures: list[ClientFuture[Any]]) -> None:
        try:
            self._take(lot, futures, self._reader.read(lot.ref))
        except BaseException as error:
            for future in futures:
                future.fail(error)

    def _take(self, lot: Lot, futures: list[ClientFuture[Any]], content: Any) -> None:
        """Settle the futures of a lot with its content."""
        if content[: len(STREAM_MAGIC)] == STREAM_MAGIC:  # a child of the task is a generator
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
            self._note_times(lot.id, [each.name for each in lot.functions], found.times)
        cut = outcomes.pop() if outcomes[-1].kind == CUT else None
        call = lot.call
        if cut is not None and call is not None:
            lot.rows = int(cut.packed.head)
        if lot.functions:
            each_s = found.took_s / (len(lot.functions) * lot.rows)
            for function in () if lot.is_counted else set(lot.functions):
                function.note(each_s)
            lot.count(outcomes)
        lot.call, is_read_later = None, _is_read_later(lot)
        for future in futures:
            outcome = outcomes[future.place]
            if cut is not None and call is not None:
                self._divide(call, lot.rows, future, outcome)
            elif outcome.kind == VALUE:
                future.settle(None if is_read_later else outcome)
            elif outcome.kind == ERROR:
                task = lot.id.partition(":")[0]
                future.fail(unpack_error(outcome.packed.head, f"in task {future.name} ({task})"))
            else:
                self._follow(future, outcome)

    def _follow(self, future: ClientFuture[Any], outcome: Outcome) -> None:
        """Wait for the object of another task, to which a task has delegated its result."""
        assert outcome.kind == MOVED
        array, place, raw = unpack(outcome.packed.head)
        future.sent_as(self._lots.find(from_array(array), raw=raw), place)
        self.request(future)

    # --- the end ----------------------------------------------------------------------------------

    def end(self, error: BaseException) -> None:
        """Fail all awaited results, now and later: the connection is lost or closed."""
        with self._lock:
            self._ended = self._ended or error
        self.lose(error)

    def lose(self, error: BaseException) -> None:
        """Fail all futures that wait."""
        with self._lock:
            lots = list(self.awaited.values())
            self.awaited.clear()
            waiting = [lot.take_futures() for lot in lots]
        for futures in waiting:
            for future in futures:
                future.fail(error)
        for lot in lots:
            lot.end_growth()

    def close(self) -> None:
        """Stop the threads that read results."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)


def _is_read_later(lot: Lot) -> bool:
    """Whether a lot is so large that it is read only when the program requests its value."""
    size_bytes = getattr(lot.ref, "size_bytes", 0) or 0
    return len(lot.functions) == 1 and size_bytes > EAGER_MAX_BYTES
