"""Calls of functions, from `submit` to the future that is done.

A call is packed in its caller's thread and waits in a list, which is sent when nothing else is
under way, when somebody waits for a result, or a millisecond later by a thread: then what has piled
up travels in bundles (`bundling`). Results come on the connection's thread; what is too large to
ride along is read by whoever asks for it, or by a few threads where the outcome must be known.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from ciel.client import bundling
from ciel.client.arguments import Inputs, in_words
from ciel.client.caller import log_level
from ciel.client.errors import (
    CallbackWaitError,
    ClientClosedError,
    ClientError,
    ForeignFutureError,
)
from ciel.client.forks import forbid, tell_of_forks
from ciel.client.futures import (
    ClientFuture,
    Lot,
    PackedFunction,
    WaitingCall,
    fail_unsent,
    still_wanted,
)
from ciel.client.mapping import Maps
from ciel.client.trace import is_traced
from ciel.core.refs import Future as Unmade
from ciel.core.refs import Reference
from ciel.core.tasks import Mentions
from ciel.python import calls
from ciel.python.contents import VALUE, Outcome
from ciel.python.failures import packing_error
from ciel.python.futures import futures_in
from ciel.python.options import USUAL, Options
from ciel.python.packing import UnpackedError, pack_with_futures
from ciel.wire.references import to_array

if TYPE_CHECKING:
    from ciel.client.api import Client
    from ciel.client.jobs import Job

GATHERING_S: Final = 0.001
"""So long calls may pile up while others are under way."""
HELD_MAX_S: Final = 1.0
"""After so long calls of which nothing is known yet are sent all the same, as slow ones."""
ALONE_MIN_BYTES: Final = 64 << 10
"""Arguments of this size become an object of their own."""


class Calls(Maps):
    """The calls of one client: all are tasks of one job. Usable from any thread."""

    def __init__(self, client: Client, *, locals_wanted: bool = False) -> None:
        super().__init__(client)
        self._locals_wanted = locals_wanted
        self._sending = threading.RLock()  # what is sent goes in the order in which it was called
        self._called_off: deque[Reference] = deque()
        self._held_count = 0  # of the first of those: nothing is known of their functions, ...
        self._held_functions: set[PackedFunction] = set()  # ...which are these
        self._held_s = 0.0  # since when the same ones are held
        self._due = threading.Event()
        self._over = threading.Event()
        self._places: tuple[tuple[str, ...], list[str]] = ((), [])  # and for which sys.path
        tell_of_forks(self)

    def forked(self) -> None:
        """Be a copy in a forked child."""
        forbid(self, silent=("close", "lose"), kept=("dropped",))

    # --- calls go in ------------------------------------------------------------------------------

    def call(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: Options,
    ) -> Any:
        """See `sessions.Session.call`; raises PackingError, ClientError."""
        waiting = self._pack(function, args, kwargs, options)
        if options.returns == 1:
            return self._add_with_future(waiting)
        futures = [
            ClientFuture[Any](self, waiting.function.name, waiting, place)
            for place in range(options.returns)
        ]
        waiting.futures = [weakref.ref(future) for future in futures]
        self._add(waiting)
        return tuple(futures)

    def _add_with_future(self, waiting: WaitingCall, name: str = "") -> ClientFuture[Any]:
        future: ClientFuture[Any] = ClientFuture(self, name or waiting.function.name, waiting)
        waiting.futures = [weakref.ref(future)]
        self._add(waiting)
        return future

    def as_bytes(self, future: Any) -> ClientFuture[bytes]:
        """Return a future of a value as programs read it: bytes as they are, a text in UTF-8."""
        if isinstance(future, ClientFuture) and future.lot is not None and future.lot.raw:
            self._place_of(future)
            return future
        waiting = self._pack(_itself, (future,), {}, USUAL)
        waiting.raw, waiting.is_usual, waiting.may_wait = True, False, False
        return self._add_with_future(waiting, "as bytes")

    def run(self, make: Callable[[Job], Sequence[Unmade]], name: str) -> list[ClientFuture[bytes]]:
        """Have `make` add a program to our job; return a future of each of its outputs."""
        with self._sending:
            job = self._open_job()
            futures = []
            for ref in make(job):
                lot = Lot(self, ref, raw=True)
                futures.append(self._expect(lot, name))
            job.want([future.lot.ref for future in futures if future.lot], self._news)
        return futures

    def put(self, value: Any) -> ClientFuture[Any]:
        """Store a value; raises PackingError, ClientError."""
        if self._ended is not None:
            raise self._ended
        try:
            packed, taken = pack_with_futures(value)
        except UnpackedError as error:
            raise packing_error("the value", error) from None
        named = [self._place_of(future) for future in taken]
        refs = [
            (to_array(lot.ref), future.place, lot.raw)
            for lot, future in zip(named, taken, strict=True)
        ]
        future: ClientFuture[Any] = ClientFuture(self, type(value).__name__)
        lot = Lot(self, self._store([Outcome(VALUE, packed, tuple(refs))], "the value"))
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
    ) -> WaitingCall:
        found = self.functions.find(function, options)
        try:
            packed, taken = pack_with_futures((args, kwargs))
        except UnpackedError as error:
            words = in_words(error, is_map)
            raise packing_error(f"the arguments of {found.name}", words) from None
        for future in taken:
            if getattr(future, "calls", None) is not self:
                self._admit(future)
        found.tally.submitted += 1
        return WaitingCall(found, options, packed, taken)

    def _admit(self, future: Any) -> None:
        """Have a future of another client be known to our master; raises ForeignFutureError."""
        theirs = getattr(future, "calls", None)
        here = self._client.location
        if theirs is None or theirs.location.cluster_id != here.cluster_id:
            raise ForeignFutureError(future, here.url, theirs and theirs.location.url)
        theirs.send(future)
        if future.lot is not None:
            theirs.shared.add(future.lot.id)
        if future.lot is None and not future.done():
            raise CallbackWaitError(f"the sending of {future.name}")

    def _add(self, call: WaitingCall) -> None:
        for future in call.taken:
            if future.is_called_off or (future.calls is not self and future.has_failed):
                call.function.tally.submitted -= call.rows
                fail_unsent([call], future.unsent_error())
                return
        with self._lock:
            if self._ended is not None:
                raise self._ended
            self._waiting.append(call)
            is_first = len(self._waiting) == 1 and not self._lots
        if is_first and not self._client.is_delivering:
            self.flush()
        elif not self._due.is_set():
            self._remind()

    # --- and on -----------------------------------------------------------------------------------

    def expedite(self, future: ClientFuture[Any]) -> None:
        """Somebody waits for a future: send what it needs, if that was not sent."""
        if not future.is_sought and not future.cancelled():
            self._seek(future)
        is_waiting = self._to_want or (
            future.waiting_call
            and (self._held_count < len(self._waiting) or self._may_release_held())
        )
        if (is_waiting or self._to_divide) and not self._client.is_delivering:
            self.flush()

    def send(self, future: ClientFuture[Any]) -> None:
        """Send what a future needs, even if that would be held back."""
        self.expedite(future)
        if future.waiting_call and not self._client.is_delivering:
            self.flush(holds=False)

    def flush(self, *, holds: bool = True) -> None:
        """Send the calls that wait, but for those that are held back, or (`holds` is false) all."""
        try:
            self._flush(holds)
        finally:
            self._stop_called_off()

    def _flush(self, holds: bool) -> None:
        """Send all calls that wait. They leave the line only afterwards: who is interrupted here
        leaves the rest to the next.
        """
        with self._sending:
            self._divide_all()
            with self._lock:
                start = 0 if self._may_release_held() or not holds else self._held_count
                line = self._waiting[start:]
                end = start + len(line)
            held: list[WaitingCall] = []
            waiting = still_wanted(line)
            try:
                self._want_all()
                self._stop_called_off()  # first: what is only dropped may run to its end
                self._release_dropped()
                if waiting:
                    waiting = [call for call in waiting if self._look_around(call)]
                    if holds:
                        waiting, held = bundling.part(waiting, self._slot_count())
                    for bundle in bundling.form(self._as_parts(waiting), self._slot_count()):
                        self._try_to_send(bundle)
            except Exception as error:
                fail_unsent(waiting, error)
                if not isinstance(error, ClientError):
                    raise
            except BaseException:
                with self._lock:
                    self._waiting = [call for call in self._waiting if not call.is_sent]
                    self._held_count = 0
                raise
            with self._lock:
                self._waiting[start:end] = held
                if not self._held_count:
                    self._held_s = time.monotonic()
                self._held_count = start + len(held)
            self._held_functions = {call.function for call in self._waiting[: self._held_count]}

    def _may_release_held(self) -> bool:
        if not self._held_count:
            return False
        most = bundling.TRIALS_PER_SLOT * self._slots[0] // 2
        return time.monotonic() - self._held_s > HELD_MAX_S or any(
            function.took_s is not None or function.trial_count <= most
            for function in self._held_functions
        )

    def _try_to_send(self, bundle: list[WaitingCall]) -> None:
        try:
            self._send(bundle)
        except Exception as error:  # it is for whoever waits for these calls
            fail_unsent(bundle, error)

    def _look_around(self, call: WaitingCall) -> bool:
        """Find out what a call needs that is not there; False if that will never be."""
        call.call_s = call.function.took_s
        if not call.taken:
            return True
        local, outside = [], set()
        for future in call.taken:
            other = future.waiting_call
            if other is not None:
                local.append(other)
            elif future.lot is None:
                fail_unsent([call], future.unsent_error())
                return False
            elif not future.lot.is_made:
                outside.add(str(future.lot.id))
        call.local, call.outside = local, frozenset(outside)
        return True

    def _send(self, bundle: list[WaitingCall]) -> None:
        job = self._open_job()
        lots = bundling.lots_of(bundle)
        inputs = Inputs()
        functions: dict[bytes, int] = {}
        table: list[calls.Function] = []
        written: list[tuple[calls.Call, ...]] = []
        for number, lot in enumerate(lots):
            place = 0
            for call in lot:
                call.lot, call.place = number, place
                place += len(call.futures)
        for lot in lots:
            row = []
            for call in lot:
                function = call.function
                digest = function.function.digest
                if digest not in functions:
                    functions[digest] = len(table)
                    at = -1 if function.ref is None else inputs.number(function.ref)
                    table.append(function.function._replace(input=at))
                row.append(self._written(call, functions[digest], bundle, inputs))
            written.append(tuple(row))
        first = bundle[0]
        sent = calls.Bundle(
            calls.VERSION, self._module_places(), tuple(table), tuple(written),
            first.streams, first.raw, self._locals_wanted, is_traced(self._client),
            self.caller.moved(), log_level(),
        )  # fmt: skip
        packed: bytes | None = calls.pack_bundle(sent)
        if len(packed or b"") > calls.INLINE_MAX_BYTES:
            inputs.number(self._client.upload_content(packed or b"", "calls"), is_for_once=True)
            packed = None
        needs = first.options.needs if len(bundle) == 1 else first.options.needs._replace(retries=1)
        name = first.function.name
        if len(bundle) > 1:
            name = f"{len(bundle)} calls of {name}{'' if len(table) == 1 else ' and others'}"
        outputs = job.add(
            calls.EXECUTOR, calls.arguments_of(packed, inputs.refs, first.options.python),
            n_outputs=len(lots), needs=needs, mentions=Mentions.OWN, name=name,
            sees_errors=len(bundle) > 1 and bool(inputs.refs),
        )  # fmt: skip
        self.dropped.extend(inputs.for_once)
        self._to_want.extend(outputs)
        for ref, calls_of_lot in zip(outputs, lots, strict=True):
            self._await_lot(ref, calls_of_lot)
        self._want_all()

    def _await_lot(self, ref: Unmade, calls_of_lot: Sequence[WaitingCall]) -> None:
        first = calls_of_lot[0]
        lot = Lot(self, ref, raw=first.raw, is_stream=first.streams)
        with self._lock:  # a call is cancelled either before or after this
            for call in calls_of_lot:
                lot.functions.append(call.function)
                lot.rows = call.rows
                if call.is_divisible:
                    lot.call = call
                if call.has_cancelled and call.is_off():
                    call.function.tally.submitted += call.rows  # it is sent after all
                for number, known in enumerate(call.futures):
                    if (future := known()) is not None:
                        future.sent_as(lot, call.place + number)
                        if not future.is_called_off:
                            lot.futures.append(known)
            if not lot.futures and any(call.has_cancelled for call in calls_of_lot):
                self._called_off.append(ref)
            else:
                self._lots[lot.id] = lot
        for call in calls_of_lot:
            call.is_sent = True

    def _written(
        self, call: WaitingCall, function: int, bundle: list[WaitingCall], inputs: Inputs
    ) -> calls.Call:
        uses = tuple([self._use(future, bundle, inputs) for future in call.taken])
        arguments, with_object = call.arguments, -1
        if call.size_bytes > ALONE_MIN_BYTES or (
            arguments.buffers and arguments.size_bytes > ALONE_MIN_BYTES
        ):
            ref = self._store([Outcome(VALUE, arguments)], f"the arguments of {call.function.name}")
            arguments = arguments._replace(head=b"", buffers=())
            with_object = inputs.number(ref, is_for_once=True)
        name, returns = call.function.name, call.options.returns
        limit_s = bundling.PART_S if call.is_divisible else 0.0
        return calls.Call(
            function, arguments, uses, with_object, call.is_map, name, returns, limit_s
        )

    def _use(self, future: Any, bundle: list[WaitingCall], inputs: Inputs) -> calls.Use:
        how, waiting = getattr(future, "how", calls.AS_VALUE), future.waiting_call
        if waiting is not None and waiting.lot >= 0:  # of this bundle: others were sent, or fail
            place = waiting.place + future.place
            return calls.Use(-1, waiting.lot, place, False, how)
        lot = future.lot
        if lot is None:  # it could not be sent
            raise future.unsent_error()
        if lot.is_stream and how == calls.AS_VALUE:
            how = calls.AS_STREAM
        return calls.Use(inputs.number(lot.ref), 0, future.place, lot.raw, how)

    def _module_places(self) -> tuple[str, ...]:
        places, path = self._places
        if path != sys.path:
            places = calls.module_directories()
            self._places = (places, list(sys.path))
        return places

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
            except Exception:  # whoever waits for these calls has it
                continue

    # --- the end ----------------------------------------------------------------------------------

    def call_off(self, future: ClientFuture[Any]) -> None:
        """A future was cancelled: stop what runs for it alone."""
        with self._lock:
            if (call := future.waiting_call) is not None:
                call.has_cancelled = True
                if call.is_off():
                    call.function.tally.submitted -= call.rows
        lot = future.lot
        if call is not None or lot is None or self._job is None:  # `_await_lot` sees to it
            return
        with self._lock:
            known = weakref.ref(future)
            if known in lot.futures:
                lot.futures.remove(known)
            if (
                any(other() is not None for other in lot.futures)
                or self._lots.pop(lot.id, None) is None
            ):
                return  # others wait for it, or it is there
            lot.is_counted = True
            lot.end_trial()
            for function in lot.functions:
                function.tally.submitted -= lot.rows
        lot.end_growth()
        self._called_off.append(lot.ref)
        self._stop_called_off()

    def _stop_called_off(self) -> None:
        """Want no longer what was called off; unless something is being sent, then whoever sends
        does it, as it might be just that.
        """
        while self._called_off and self._sending.acquire(blocking=False):
            try:
                found = [self._called_off.popleft() for _ in range(len(self._called_off))]
                if self._job is not None:
                    # Another future may stand for one of these, and was asked for since.
                    self._job.release([ref for ref in found if ref.id not in self._lots])
            finally:
                self._sending.release()

    def _place_of(self, future: Any) -> Lot:
        """Return what a future's value is or will be in, for who names that; raises what the future
        does if it was cancelled, or never sent.
        """
        seek = self.send if getattr(future, "calls", None) is self else self._admit
        seek(future)
        if future.cancelled() or (future.lot is None and future.done()):
            raise future.unsent_error()
        if future.lot is None:
            raise CallbackWaitError(f"the sending of {future.name}")
        found: Lot = future.lot
        return found

    def _remind(self) -> None:
        if self._thread is None:
            self._start_thread()
        self._due.set()

    def lose(self, error: BaseException) -> None:
        """The connection is gone for good: nothing more will come."""
        with self._lock:
            self._ended = self._ended or error
        self._over.set()
        self._due.set()
        self._lose(error)

    def _lose(self, error: BaseException) -> None:
        super()._lose(error)
        with self._lock:
            waiting, self._waiting = self._waiting, []
            self._held_count = 0
        fail_unsent(waiting, error)
        while self._to_divide:
            with contextlib.suppress(IndexError):  # another thread was as quick
                self._to_divide.popleft()[2].fail(error)

    def close(self) -> None:
        """End: what is not done by now will not be. The job ends well if all is done."""
        is_idle = not (self._lots or self._waiting or self._to_divide)
        if is_idle and self._job is not None and not self._job.has_ended:
            try:
                self._job.close()
            except ClientError:
                pass  # then it has ended otherwise
        self.lose(ClientClosedError())
        self._close_readers()

    # --- as a session -----------------------------------------------------------------------------

    def wait(
        self, futures: Iterable[Any], timeout: float | None, return_when: str
    ) -> tuple[set[Any], set[Any]]:
        listed = set(futures_in(futures))
        for future in listed:
            future.calls.expedite(future)
        if timeout is None or timeout > 0:
            self.require_done(list(listed), return_when)
        # Those that are done are not asked for an exception: that might read a value, and wait.
        over = {future for future in listed if future.done()}
        is_enough = bool(over) and return_when == concurrent.futures.FIRST_COMPLETED
        if return_when == concurrent.futures.FIRST_EXCEPTION:
            is_enough = any(future.has_failed for future in over)
        if is_enough:
            return over, listed - over
        done, waiting = concurrent.futures.wait(listed - over, timeout, return_when)
        return over | done, waiting

    def as_completed(self, futures: Iterable[Any], timeout: float | None) -> Iterator[Any]:
        listed = futures_in(futures)
        for future in listed:
            future.calls.expedite(future)
        if self._client.is_delivering and (timeout is None or timeout > 0):
            return self._done_first(listed)
        return concurrent.futures.as_completed(listed, timeout)

    def _done_first(self, listed: list[Any]) -> Iterator[Any]:
        """Yield those that are done, as nobody can wait here for the others."""
        yield from [future for future in dict.fromkeys(listed) if future.done()]
        self.require_done(listed)


def _itself(value: Any) -> Any:
    return value
