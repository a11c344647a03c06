"""The calls of one client: packs them, sends them, and settles their futures.

The caller's thread packs a call and appends it to the list of pending calls. The list is sent in
bundles (see `bundling`): at once if no call is running, or when a thread waits for a result;
otherwise a millisecond later, by a thread of this module.
"""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from ciel.access.settings import MasterLocation
from ciel.client.calls import bundling, waiting
from ciel.client.calls.arguments import describe
from ciel.client.calls.bundles import BundleWriter
from ciel.client.calls.functions import Functions, PackedFunction
from ciel.client.calls.futures import ClientFuture
from ciel.client.calls.job import JobOfCalls
from ciel.client.calls.lots import Lot, Lots
from ciel.client.calls.maps import Maps, SlotCount
from ciel.client.calls.pending import PendingCall, fail_unsent, find_dependencies, still_needed
from ciel.client.calls.reading import ResultReader
from ciel.client.calls.results import Results
from ciel.client.calls.session import CallJob, OpenJob, Session
from ciel.client.errors import (
    CallbackWaitError,
    ClientClosedError,
    ClientError,
    ForeignFutureError,
)
from ciel.client.forks import forbid, register_fork
from ciel.client.jobs.caller_context import Caller
from ciel.client.locks import Flag
from ciel.client.views.trace import is_traced, note_calls
from ciel.core.refs import Future as FutureReference
from ciel.core.refs import Reference
from ciel.core.tasks import Mentions
from ciel.python import calls
from ciel.python.contents import VALUE, Outcome
from ciel.python.failures import packing_error
from ciel.python.futures import futures_in
from ciel.python.options import USUAL, Options
from ciel.python.packing import UnpackedError, pack_with_futures
from ciel.python.sessions import ALL_COMPLETED, FIRST_COMPLETED
from ciel.wire.references import to_array

GATHERING_S: Final = 0.001
"""How long the thread collects calls before it sends them, while other calls are running."""
HELD_MAX_S: Final = 1.0
"""After this time the client sends the calls that it has held back, each as its own task: it then
assumes that their function is slow."""


class Calls:
    """The calls of one client, which are tasks of one job. Thread-safe.

    The first call uses `find_caller`, which returns the directory and the environment of the calls,
    and `open_job`, which opens their job. `locals_wanted`: remote tracebacks show local variables.
    """

    def __init__(
        self,
        session: Session,
        find_caller: Callable[[], Caller],
        open_job: OpenJob,
        *,
        locals_wanted: bool = False,
    ) -> None:
        self.lots = Lots()
        self.kept: set[ClientFuture[Any]] = set()
        """Futures that are kept alive until they are done, even if the program drops them."""
        self.functions = Functions(session.upload_content, self.lots.dropped)
        self._session = session
        self._job = JobOfCalls(session, find_caller, open_job, self.lots)
        self.reader = ResultReader(session, self._job, self.lots, self)
        self._results = Results(
            self, self._job, self.lots, self.reader, self._divide,
            lambda output, names, times: note_calls(session, output, names, times),
        )  # fmt: skip
        self._slots = SlotCount(session.slot_count)
        self._maps = Maps(self, self.functions, self._pack, self._slots)
        self._writer = BundleWriter(
            session, self._job, lambda: is_traced(session), locals_wanted=locals_wanted
        )
        self._lock = threading.Lock()
        self._sending = threading.RLock()  # calls are sent in the order of `submit`
        self._pending: list[PendingCall] = []
        self._held_count = 0  # how many calls at the start of `_pending` are held back
        self._held_functions: set[PackedFunction] = (
            set()
        )  # the functions of the calls that are held back
        self._held_s = 0.0  # when the calls that are held back changed last
        self._to_divide: deque[tuple[PendingCall, int, ClientFuture[Any], Outcome]] = deque()
        self._cancelled: deque[Reference] = deque()  # objects to release
        self._thread: threading.Thread | None = None
        self._due = Flag()
        self._over = Flag()
        self._ended: BaseException | None = None
        register_fork(self)

    def forked(self) -> None:
        """Make every use raise ForkedError; called in a forked child."""
        forbid(self, silent=("close", "lose"))

    @property
    def location(self) -> MasterLocation:
        """The master that runs the calls."""
        return self._session.location

    @property
    def job(self) -> CallJob | None:
        """The job of all calls; None before the first."""
        return self._job.opened

    # --- submitting -------------------------------------------------------------------------------

    def call(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: Options,
    ) -> Any:
        """See `sessions.Session.call`; raises PackingError, ClientError."""
        pending = self._pack(function, args, kwargs, options)
        if options.returns == 1:
            return self._add_with_future(pending)
        futures = [
            ClientFuture[Any](self, pending.function.name, pending, place)
            for place in range(options.returns)
        ]
        pending.futures = [weakref.ref(future) for future in futures]
        self._add(pending)
        return tuple(futures)

    def map_parts(
        self,
        function: Callable[..., Any],
        rows: Sequence[tuple[Any, ...]],
        options: Options,
        chunksize: int | None,
    ) -> list[ClientFuture[calls.Mapped]]:
        """Create tasks that call a function with each row of arguments; see `Maps.parts`.

        If a task leaves rows to further tasks, the `rest` of its future contains their futures.
        """
        parts = self._maps.parts(function, rows, options, chunksize)
        return [self._add_with_future(part) for part in parts]

    def as_bytes(self, future: Any) -> ClientFuture[bytes]:
        """Return a future of a value as programs read it: bytes unchanged, strings as UTF-8."""
        if isinstance(future, ClientFuture) and future.lot is not None and future.lot.raw:
            self._lot_of(future)
            return future
        pending = self._pack(_itself, (future,), {}, USUAL)
        pending.raw, pending.may_be_bundled, pending.may_wait = True, False, False
        return self._add_with_future(pending, "as bytes")

    def add_alone(
        self, job: CallJob, function: Callable[..., Any], args: tuple[Any, ...], options: Options
    ) -> Reference:
        """Add a call to another job of the client, as a task of its own, and want its result.

        Return the reference to the result. Raises PackingError, ClientError, and the error of a
        future in the arguments that was never sent.
        """
        call = self._pack(function, args, {}, options)
        call.may_be_bundled = call.may_wait = False
        for future in call.taken:
            self._lot_of(future)
        with self._sending:
            self._job.open()
            find_dependencies(call)
            task = self._writer.write([call])
            [output] = job.add(
                calls.EXECUTOR, task.arguments, n_outputs=1, needs=task.needs,
                mentions=Mentions.OWN, name=task.name, sees_errors=False, apart=task.in_parts,
            )  # fmt: skip
            job.want([output], None)
        return output

    def run(
        self, add: Callable[[Any], Sequence[FutureReference]], name: str
    ) -> list[ClientFuture[bytes]]:
        """Call `add`, which adds a program to the job; return a future for each output."""
        with self._sending:
            job = self._job.open()
            futures = [
                self._results.expect(Lot(self.lots, ref, raw=True), name) for ref in add(job)
            ]
            job.want([future.lot.ref for future in futures if future.lot], self._job.settled)
        return futures

    def moved_caller(self) -> tuple[str, dict[str, str | None]]:
        """Return the directory and the variables that the program has changed since its first call.

        See `Caller.moved`. The job must be open.
        """
        return self._job.caller.moved() or ("", {})

    def put(self, value: Any, copies: int | None = None) -> ClientFuture[Any]:
        """Store a value; raises PackingError, ClientError. `copies`: see `Client.put`."""
        if self._ended is not None:
            raise self._ended
        try:
            packed, taken = pack_with_futures(value)
        except UnpackedError as error:
            raise packing_error("the value", error) from None
        named = [self._lot_of(future) for future in taken]
        refs = [
            (to_array(lot.ref), future.place, lot.raw)
            for lot, future in zip(named, taken, strict=True)
        ]
        future: ClientFuture[Any] = ClientFuture(self, type(value).__name__)
        ref = self._job.store([Outcome(VALUE, packed, tuple(refs))], "the value", copies)
        lot = Lot(self.lots, ref)
        lot.named = named
        future.sent_as(lot, 0)
        future.settle(None)
        return future

    def _pack(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: Options,
        *,
        is_map: bool = False,
    ) -> PendingCall:
        found = self.functions.find(function, options)
        try:
            packed, taken = pack_with_futures((args, kwargs))
        except UnpackedError as error:
            raise packing_error(
                f"the arguments of {found.name}", describe(error, is_map=is_map)
            ) from None
        for future in taken:
            if getattr(future, "calls", None) is not self:
                self._ensure_sent(future)
        found.tally.submitted += 1
        return PendingCall(found, options, packed, taken)

    def _ensure_sent(self, future: Any) -> None:
        """Let another client of the same cluster send the call of its future, unless it was sent.

        Raises ForeignFutureError for a future of another cluster, or of a task.
        """
        theirs = getattr(future, "calls", None)
        here = self._session.location
        if theirs is None or theirs.location.cluster_id != here.cluster_id:
            raise ForeignFutureError(future, here.url, theirs and theirs.location.url)
        theirs.send(future)
        if future.lot is not None:
            theirs.lots.share(future.lot.id)
        if future.lot is None and not future.done():
            raise CallbackWaitError(f"the sending of {future.name}")

    def _add_with_future(self, call: PendingCall, name: str = "") -> ClientFuture[Any]:
        future: ClientFuture[Any] = ClientFuture(self, name or call.function.name, call)
        call.futures = [weakref.ref(future)]
        self._add(call)
        return future

    def _add(self, call: PendingCall) -> None:
        for future in call.taken:
            if future.is_cancelled or (future.calls is not self and future.has_failed):
                call.function.tally.submitted -= call.rows
                fail_unsent([call], future.unsent_error())
                return
        with self._lock:
            if self._ended is not None:
                raise self._ended
            self._pending.append(call)
            is_first = len(self._pending) == 1 and not self._results.awaited
        if is_first and not self._session.is_delivering:
            self.flush()
        elif not self._due.is_set():
            self._wake()

    def _lot_of(self, future: Any) -> Lot:
        """Send the call of a future, and return its lot, so that a value can refer to it.

        Raises the error of a future that was cancelled or never sent.
        """
        send = self.send if getattr(future, "calls", None) is self else self._ensure_sent
        send(future)
        if future.cancelled() or (future.lot is None and future.done()):
            raise future.unsent_error()
        if future.lot is None:
            raise CallbackWaitError(f"the sending of {future.name}")
        found: Lot = future.lot
        return found

    # --- sending ----------------------------------------------------------------------------------

    def expedite(self, future: ClientFuture[Any]) -> None:
        """Send the call of a future, and the calls that it needs: a thread waits for the future."""
        if not future.is_requested and not future.cancelled():
            self._results.request(future)
        is_unsent = self._job.to_want or (
            future.pending_call
            and (self._held_count < len(self._pending) or self._may_release_held())
        )
        if (is_unsent or self._to_divide) and not self._session.is_delivering:
            self.flush()

    def send(self, future: ClientFuture[Any]) -> None:
        """Send the call of a future, and the calls that it needs, even those that are held back."""
        self.expedite(future)
        if future.pending_call and not self._session.is_delivering:
            self.flush(holds=False)

    def flush(self, *, holds: bool = True) -> None:
        """Send the pending calls. With `holds`, hold back calls whose time is unknown."""
        try:
            self._flush(holds)
        finally:
            self._release_cancelled()

    def _flush(self, holds: bool) -> None:
        """Send the pending calls, and remove them from the list only afterwards.

        So if this thread is interrupted, the next thread sends the calls that are left.
        """
        with self._sending:
            self._divide_all()
            with self._lock:
                start = 0 if self._may_release_held() or not holds else self._held_count
                unsent = self._pending[start:]
                end = start + len(unsent)
            held: list[PendingCall] = []
            pending = still_needed(unsent)
            try:
                self._job.want_all()
                # First cancelled objects, then dropped ones: the task of a dropped one may run on.
                self._release_cancelled()
                self._job.release_dropped()
                if pending:
                    pending = [call for call in pending if find_dependencies(call)]
                    if holds:
                        pending, held = bundling.hold_back(pending, self._slot_count())
                    pending_parts = self._maps.divide_slow(pending)
                    for bundle in bundling.form(pending_parts, self._slot_count()):
                        self._try_to_send(bundle)
            except Exception as error:
                fail_unsent(pending, error)
                if not isinstance(error, ClientError):
                    raise
            except BaseException:
                with self._lock:
                    self._pending = [call for call in self._pending if not call.is_sent]
                    self._held_count = 0
                raise
            with self._lock:
                self._pending[start:end] = held
                if not self._held_count:
                    self._held_s = time.monotonic()
                self._held_count = start + len(held)
            self._held_functions = {call.function for call in self._pending[: self._held_count]}

    def _slot_count(self) -> int:
        return self._slots.get(may_ask=threading.current_thread() is self._thread)

    def _may_release_held(self) -> bool:
        """Return whether calls are held back although the time of their functions is known now."""
        if not self._held_count:
            return False
        most = bundling.TRIALS_PER_SLOT * self._slots.last // 2
        return time.monotonic() - self._held_s > HELD_MAX_S or any(
            function.took_s is not None or function.trial_count <= most
            for function in self._held_functions
        )

    def _try_to_send(self, bundle: list[PendingCall]) -> None:
        try:
            self._send(bundle)
        except Exception as error:  # the futures of these calls raise it
            fail_unsent(bundle, error)

    def _send(self, bundle: list[PendingCall]) -> None:
        job = self._job.open()
        task = self._writer.write(bundle)
        outputs = job.add(
            calls.EXECUTOR, task.arguments, n_outputs=len(task.lots), needs=task.needs,
            mentions=Mentions.OWN, name=task.name, sees_errors=task.sees_errors,
            apart=task.in_parts,
        )  # fmt: skip
        self.lots.dropped.extend(task.for_once)
        self._job.to_want.extend(outputs)
        for ref, calls_of_lot in zip(outputs, task.lots, strict=True):
            first = calls_of_lot[0]
            lot = Lot(self.lots, ref, raw=first.raw, is_stream=first.streams)
            if not self._results.await_calls(lot, calls_of_lot):
                self._cancelled.append(ref)
            for call in calls_of_lot:
                call.is_sent = True
        self._job.want_all()

    def _divide(
        self, call: PendingCall, start: int, future: ClientFuture[Any], outcome: Outcome
    ) -> None:
        self._to_divide.append((call, start, future, outcome))
        self._wake()  # unpacking runs code of users, which the connection's thread must not do

    def _divide_all(self) -> None:
        while self._to_divide:
            try:
                call, start, future, outcome = self._to_divide.popleft()
            except IndexError:  # another thread was faster
                return
            if not future.cancelled():
                future.rest, parts = self._maps.further_parts(call, start)
                with self._lock:
                    self._pending += parts
            future.settle(outcome)

    # --- the thread -------------------------------------------------------------------------------

    def _wake(self) -> None:
        """Wake the thread that sends pending calls and releases; start it if it does not run."""
        if self._thread is None:
            self._start_thread()
        self._due.set()

    def _start_thread(self) -> None:
        with self._lock:
            if self._thread is not None or self._ended is not None:
                return
            self._thread = threading.Thread(target=self._gather, name="ciel-calls", daemon=True)
        self._thread.start()

    def _gather(self) -> None:
        while True:
            self._due.wait(HELD_MAX_S if self._held_count else None)
            if self._ended is not None:
                return
            self._over.wait(GATHERING_S)
            self._due.clear()
            if self._held_count and time.monotonic() - self._held_s > HELD_MAX_S:
                for function in self._held_functions:
                    function.note(HELD_MAX_S)
            try:
                self.flush()
            except Exception:  # the futures of these calls raise it
                continue

    # --- results and cancellation -----------------------------------------------------------------

    def take_settled(self) -> None:
        """Process the results that the connection has received.

        The connection's thread calls this method after each delivery.
        """
        self._results.take_settled()
        if self._may_release_held():
            self._wake()
        if self._results.awaited and (end := self._job.end) is not None:
            self._fail_all(end)
        if self._job.must_release:
            self._wake()

    def cancel(self, future: ClientFuture[Any]) -> None:
        """Stop the tasks that run only for a future that was cancelled."""
        if (ref := self._results.cancel(future)) is not None:
            self._cancelled.append(ref)
            self._release_cancelled()

    def _release_cancelled(self) -> None:
        """Release the objects of cancelled calls.

        If another thread is sending, leave this to that thread, since it may be sending these
        calls.
        """
        while self._cancelled and self._sending.acquire(blocking=False):
            try:
                refs = [self._cancelled.popleft() for _ in range(len(self._cancelled))]
                if (job := self._job.opened) is not None:
                    # Another future may have requested one of these objects again.
                    job.release([ref for ref in refs if ref.id not in self._results.awaited])
            finally:
                self._sending.release()

    # --- the end ----------------------------------------------------------------------------------

    def lose(self, error: BaseException) -> None:
        """Fail all calls, now and later: the connection is lost for good."""
        with self._lock:
            self._ended = self._ended or error
        self._over.set()
        self._due.set()
        self._results.end(error)
        self._fail_unsent(error)

    def _fail_all(self, error: BaseException) -> None:
        """Fail all calls up to now: the job has ended."""
        self._results.lose(error)
        self._fail_unsent(error)

    def _fail_unsent(self, error: BaseException) -> None:
        with self._lock:
            pending, self._pending = self._pending, []
            self._held_count = 0
        fail_unsent(pending, error)
        while self._to_divide:
            with contextlib.suppress(IndexError):  # another thread was faster
                self._to_divide.popleft()[2].fail(error)

    def close(self) -> None:
        """Fail the unfinished calls. If there are none, the job ends as completed."""
        if not (self._results.awaited or self._pending or self._to_divide):
            self._job.close()
        self.lose(ClientClosedError())
        self._results.close()

    # --- waiting ----------------------------------------------------------------------------------

    def require_done(
        self, futures: Sequence[ClientFuture[Any]], return_when: str = ALL_COMPLETED
    ) -> None:
        """Raise CallbackWaitError if the calling thread delivers results and would have to wait."""
        if not self._session.is_delivering:
            return
        missing = [future for future in futures if not future.done()]
        is_enough = return_when != ALL_COMPLETED and any(
            future.done() and (return_when == FIRST_COMPLETED or future.has_failed)
            for future in futures
        )
        if missing and not is_enough:
            raise CallbackWaitError(f"the result of {missing[0].name}")

    def wait(
        self, futures: Iterable[Any], timeout: float | None, return_when: str
    ) -> tuple[set[Any], set[Any]]:
        """Wait as `concurrent.futures.wait` does."""
        listed = set(futures_in(futures))
        for future in listed:
            future.calls.expedite(future)
        if timeout is None or timeout > 0:
            self.require_done(list(listed), return_when)
        done = waiting.wait(listed, timeout, return_when)
        return done, listed - done

    def as_completed(self, futures: Iterable[Any], timeout: float | None) -> Iterator[Any]:
        """Yield futures as they are done; raises TimeoutError."""
        listed = futures_in(futures)
        for future in listed:
            future.calls.expedite(future)
        if self._session.is_delivering and (timeout is None or timeout > 0):
            return self._done_first(listed)
        return waiting.as_completed(listed, timeout)

    def _done_first(self, listed: list[Any]) -> Iterator[Any]:
        """Yield the futures that are done, for the thread that delivers results.

        That thread must not wait.
        """
        yield from [future for future in dict.fromkeys(listed) if future.done()]
        self.require_done(listed)


def _itself(value: Any) -> Any:
    return value
