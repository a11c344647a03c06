"""What the client knows of calls: those that wait to be sent, the objects that their results are
in, and the futures that stand for them.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from ciel.client.changes import Condition
from ciel.core.failures import size_text
from ciel.core.ids import ObjectId
from ciel.core.refs import Future as Unmade
from ciel.core.refs import Reference, Value, locations_of
from ciel.python.calls import Function
from ciel.python.contents import ERROR, Outcome
from ciel.python.failures import packing_error
from ciel.python.futures import Future
from ciel.python.options import USUAL, Options
from ciel.python.packing import Packed, UnpackedError, unpack
from ciel.python.showing import Shown

if TYPE_CHECKING:
    from ciel.client.results import Results

T = TypeVar("T")


class Tally:
    """How many calls there are of what has one name, and how many are over."""

    __slots__ = ("done", "failed", "submitted")

    def __init__(self) -> None:
        self.submitted = self.done = self.failed = 0


class PackedFunction:
    """A function as it travels, and what is known of its calls. `ref`: the object that holds it, if
    it is large, released in the cluster when no call here names the function any more. `took_s`:
    how long its calls take.
    """

    __slots__ = (
        "__weakref__", "_dropped", "function", "name", "options", "ref", "streams", "tally",
        "took_s", "trial_count",
    )  # fmt: skip

    def __init__(
        self, function: Function, name: str, options: Options, streams: bool, tally: Tally
    ) -> None:
        self.function = function
        self.tally = tally
        self.name = name
        self.options = options
        self.streams = streams
        self.ref: Reference | None = None
        self._dropped: deque[Reference] | None = None
        self.took_s: float | None = None
        self.trial_count = 0  # calls that are under way while nothing is known of them

    def stored_as(self, ref: Reference, dropped: deque[Reference]) -> None:
        """Learn which object holds it; that goes to `dropped` when the function is not needed."""
        self.ref, self._dropped = ref, dropped

    def __del__(self) -> None:
        if self.ref is not None and self._dropped is not None:
            self._dropped.append(self.ref)  # a deque: nothing here may lock

    def note(self, seconds: float) -> None:
        """Take notice of how long a call took."""
        self.took_s = seconds if self.took_s is None else (3 * self.took_s + seconds) / 4


class WaitingCall:
    """A call that is to be sent. `taken`: the futures in its arguments. `is_sent`: it was, or never
    will be. `futures`: weak references to its own; a call whose futures nobody holds is not sent.
    `is_divisible`: a map whose rows may be sent in parts.
    """

    __slots__ = (
        "arguments", "call_s", "function", "futures", "has_cancelled", "is_divisible", "is_held",
        "is_map", "is_sent", "is_usual", "local", "lot", "may_wait", "options", "outside", "place",
        "raw", "rows", "rows_of_map", "size_bytes", "taken",
    )  # fmt: skip

    def __init__(
        self, function: PackedFunction, options: Options, arguments: Packed, taken: list[Any]
    ) -> None:
        self.function = function
        self.options = options
        self.arguments = arguments
        self.taken: Sequence[Any] = taken or ()  # thousands of empty lists cost a collection
        self.is_sent = self.is_held = self.is_divisible = False
        self.is_map = self.raw = self.has_cancelled = False
        self.rows = self.rows_of_map = 1  # how many calls it stands for, and all parts of its map
        self.futures: list[weakref.ref[ClientFuture[Any]]] = []
        self.size_bytes = len(arguments.head)
        self.is_usual = options is USUAL and not function.streams
        self.may_wait = self.is_usual and not arguments.buffers
        self.call_s: float | None = None
        self.local: Sequence[WaitingCall] = ()
        self.outside: frozenset[str] = frozenset()
        self.lot = self.place = -1

    @property
    def streams(self) -> bool:
        """Whether its items go to the output one by one: in a map they are a result."""
        return self.function.streams and not self.is_map

    def is_off(self) -> bool:
        """Tell whether nobody waits for it any more."""
        for known in self.futures:
            future = known()
            if future is not None and not future.is_called_off:
                return False
        return True


class Growth:
    """Tells readers which worker holds an object that a task still writes."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._ref: Reference | None = None

    def note(self, ref: Reference) -> None:
        with self._changed:
            self._ref = ref
            self._changed.notify_all()

    def forget(self, ref: Reference) -> None:
        with self._changed:
            if self._ref is ref:
                self._ref = None

    def wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def wait(self, is_over: Callable[[], bool]) -> Reference | None:
        """Return where it grows, as soon as that is known; None if it is over."""
        with self._changed:
            while self._ref is None and not is_over():
                self._changed.wait()
            return None if is_over() else self._ref


class Lot:
    """An object that holds the outcomes of some calls, or (`raw`) what a program wrote; released in
    the cluster when nobody here can ask for it any more.
    """

    __slots__ = (
        "__weakref__", "_growth", "call", "calls", "content", "functions", "futures",
        "is_counted", "is_stream", "lock", "named", "raw", "ref", "rows",
    )  # fmt: skip

    def __init__(
        self, calls: Results, ref: Reference, *, raw: bool = False, is_stream: bool = False
    ) -> None:
        self.calls = calls
        self.ref = ref
        self.raw = raw
        self.is_stream = is_stream
        self.futures: list[weakref.ref[ClientFuture[Any]]] = []  # that wait for it
        self.call: WaitingCall | None = None  # the only one, if it is divisible
        self.functions: list[PackedFunction] = []
        self.rows = 1  # how many calls each of these stands for
        self.named: list[Lot] = []  # in its content: they stay as long as it does
        self.is_counted = False
        self.content: list[Outcome] | None = None
        self.lock = threading.Lock()
        self._growth = Growth() if is_stream else None
        calls.lots_by_id[ref.id] = self

    @property
    def id(self) -> ObjectId:
        return self.ref.id

    @property
    def is_made(self) -> bool:
        return not isinstance(self.ref, Unmade)

    def count(self, outcomes: Sequence[Outcome] | None = None, *, failed: bool = False) -> None:
        """Count its calls as done or failed, once, by what became of each if that is known."""
        if self.is_counted:
            return
        self.is_counted = True
        place = 0
        for function in self.functions:
            if failed or (outcomes is not None and outcomes[place].kind == ERROR):
                function.tally.failed += self.rows
            else:
                function.tally.done += self.rows
            place += function.options.returns

    def take_futures(self) -> list[ClientFuture[Any]]:
        """Return the futures that wait for it and that somebody holds; none waits any more."""
        known, self.futures = self.futures, []
        return [future for found in known if (future := found()) is not None]

    def grow(self, ref: Reference) -> None:
        """Learn where it can be read while it grows."""
        if self._growth is not None:
            self._growth.note(ref)

    def no_growth(self, ref: Reference) -> None:
        """Learn that it cannot be read there any more."""
        if self._growth is not None:
            self._growth.forget(ref)

    def await_growth(self, is_over: Callable[[], bool]) -> Reference | None:
        """Wait until it grows, and return where; None if it is over before."""
        return None if self._growth is None else self._growth.wait(is_over)

    def end_growth(self) -> None:
        """Have those go on who wait until it grows."""
        if self._growth is not None:
            self._growth.wake()

    def end_trial(self) -> None:
        """Let further calls of its functions be tried, if it tells nothing of them."""
        for function in self.functions:
            function.trial_count = max(0, function.trial_count - 1)

    def __del__(self) -> None:
        if not self.is_counted and self.functions:  # dropped before it was there
            self.end_trial()
            for function in self.functions:
                function.tally.submitted -= self.rows
        self.calls.dropped.append(self.ref)  # a deque: nothing here may lock


class _Later:
    """Stands for a value that is there, and was not read yet."""


LATER = _Later()


_STATES = {
    "PENDING": "waiting",
    "RUNNING": "running",
    "CANCELLED": "cancelled",
    "CANCELLED_AND_NOTIFIED": "cancelled",
    "FINISHED": "done",
}


class ClientFuture(Shown, concurrent.futures.Future[T], Future[T]):
    """A future of a client. `lot` and `place`: where its value will be; None before it is sent.
    `rest`: of a part of a map that was divided, the futures of the parts behind it, once it is
    done.
    """

    rest: Sequence[ClientFuture[Any]] = ()

    is_sought = True
    """False for one that came within a value, as long as nobody has asked for it."""
    is_called_off = False
    """As `cancelled`, which takes a lock: that counts where thousands are arguments."""

    def __init__(
        self, calls: Results, name: str, call: WaitingCall | None = None, place: int = 0
    ) -> None:
        # As in the standard library, but for the condition: one of `threading` takes a microsecond
        # to make, and Ctrl-C may leave it locked.
        self._condition = Condition()  # type: ignore[assignment]  # has what is asked of it
        self._state = "PENDING"
        self._result = self._exception = None
        self._waiters: list[Any] = []
        self._done_callbacks: list[Callable[[Any], object]] = []
        self.name = name
        self.calls = calls
        self._call = call
        self.lot: Lot | None = None
        self.place = place
        self._outcome: Outcome | None = None

    def result(self, timeout: float | None = None) -> T:
        until_s = None if timeout is None else time.monotonic() + timeout
        self._expect(timeout)
        found = super().result(timeout)
        return self._value_until(until_s) if found is LATER else found

    def exception(self, timeout: float | None = None) -> BaseException | None:
        until_s = None if timeout is None else time.monotonic() + timeout
        self._expect(timeout)
        found = super().exception(timeout)
        if found is None and self._result is LATER:
            try:  # asyncio asks here first, and would never hear of what `result` raises
                self._value_until(until_s)
            except TimeoutError:
                if until_s is not None and self._result is LATER:
                    raise
                return None
            except Exception as error:
                return error
        return found

    def _expect(self, timeout: float | None) -> None:
        self.calls.expedite(self)
        if self._state != "FINISHED" and (timeout is None or timeout > 0):
            self.calls.require_done([self])

    def done(self) -> bool:
        if not self.is_sought:
            self.calls.expedite(self)
        return super().done()

    def cancel(self) -> bool:
        if super().done():
            for part in self.rest:
                part.cancel()
            return False
        if not super().cancel():
            return False
        self.is_called_off = True
        self.set_running_or_notify_cancel()
        self.calls.call_off(self)
        return True

    def add_done_callback(self, fn: Callable[[Any], object]) -> None:
        self.calls.expedite(self)
        self.keep()
        super().add_done_callback(fn)

    def keep(self) -> None:
        """Stay until it is done, though nobody else holds it: so its call runs."""
        if not super().done():
            self.calls.kept.add(self)
            super().add_done_callback(self.calls.kept.discard)

    def __await__(self) -> Generator[Any, Any, T]:
        import asyncio

        loop = asyncio.get_running_loop()
        told = loop.create_future()

        def tell() -> None:
            if not told.done():
                told.set_result(None)

        def wake(_: Any) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(tell)

        # Not `asyncio.wrap_future`: that loses causes, and waits for ever where StopIteration came.
        self.add_done_callback(wake)
        try:
            yield from told
        except asyncio.CancelledError:
            self.cancel()
            raise
        if self.cancelled():
            raise asyncio.CancelledError
        return self.result()

    def __iter__(self) -> Iterator[Any]:
        """Yield the items of a task that yields, as they come; or those of the value, once it is
        there.
        """
        self.calls.send(self)
        lot = self.lot
        if lot is not None and lot.is_stream and not super().done():
            self.calls.require_done([self])
            return self.calls.growing_items(lot, self)
        value: Any = self.result()
        return iter(value)

    def __reduce__(self) -> Any:
        return Future.__reduce__(self)

    @property
    def object_id(self) -> str | None:
        """The id of the object that holds the value; None before the call was sent."""
        return None if self.lot is None else self.lot.id

    _title = "Future"

    def _facts(self) -> Iterator[tuple[str, Any]]:
        yield "", self.name
        if self._exception is not None:
            yield "", f"raised {type(self._exception).__name__}"
        else:
            yield "", _STATES[self._state]
        lot = self.lot
        if lot is not None and len(lot.functions) <= 1 and lot.is_made:
            yield "size", size_text(_size_bytes(lot.ref))
            yield "at", " ".join(sorted(locations_of(lot.ref)))

    # --- what the client does ---------------------------------------------------------------------

    @property
    def waiting_call(self) -> WaitingCall | None:
        """The call, as long as it was not sent."""
        return self._call

    @property
    def has_failed(self) -> bool:
        """Whether it is known to have failed; nothing is read for that."""
        return self._exception is not None

    def sent_as(self, lot: Lot, place: int) -> None:
        """Learn where the value will be."""
        self.lot, self.place, self._call = lot, place, None

    def never_sent(self) -> None:
        """Learn that the call will not be sent."""
        self._call = None

    def unsent_error(self) -> BaseException:
        """Return what becomes of whoever needs the value, if the call was never sent."""
        return self._exception or concurrent.futures.CancelledError()

    def settle(self, outcome: Outcome | None) -> None:
        """Be done with a value: that of an outcome, or (None) what its lot holds, unread as yet."""
        self._outcome = outcome
        with contextlib.suppress(concurrent.futures.InvalidStateError):  # it was called off
            self.set_result(LATER)  # type: ignore[arg-type]  # `result` never returns it

    def fail(self, error: BaseException) -> None:
        """Be done, having failed."""
        self._call = None
        with contextlib.suppress(concurrent.futures.InvalidStateError):  # it was called off
            self.set_exception(error)

    def _value_until(self, until_s: float | None) -> T:
        """Return the value; raises TimeoutError when it is not there at that time. Then a thread
        still reads it: its copies may be lost, and its task run again.
        """
        if until_s is None or self._outcome is not None:
            return self._value()
        read: concurrent.futures.Future[T] = concurrent.futures.Future()

        def run() -> None:
            try:
                read.set_result(self._value())
            except BaseException as error:
                read.set_exception(error)

        threading.Thread(target=run, name="ciel-reading", daemon=True).start()
        return read.result(max(0.0, until_s - time.monotonic()))

    def _value(self) -> T:
        with self._condition:
            if self._result is not LATER:
                return self._result  # type: ignore[return-value]  # of a future that is done
            try:
                value: T = self._read()
            except UnpackedError as error:
                raise packing_error(f"the result of {self.name}", error) from None
            self._result = value
            self._outcome = None
            return value

    def _read(self) -> Any:
        lot = self.lot
        assert lot is not None
        if lot.raw:
            return self.calls.read_bytes(lot.ref)
        if lot.is_stream:
            return self.calls.read_items(lot)
        outcome = self._outcome
        if outcome is None:
            outcome = self.calls.outcomes(lot)[self.place]
        return self.calls.value_of(outcome, self.name)


def still_wanted(line: list[WaitingCall]) -> list[WaitingCall]:
    """Return the calls that somebody waits for, if only another call; the others are let go."""
    if not any(call.is_off() for call in line):
        return line
    found: list[WaitingCall] = []
    needed: set[WaitingCall | None] = set()
    for call in reversed(line):  # who takes a result is behind who makes it
        is_off = call.is_off()
        if is_off and call not in needed:
            call.is_sent = True  # nor will it be
            if not call.has_cancelled:  # else it was counted then
                call.function.tally.submitted -= call.rows
            for known in call.futures:
                if (future := known()) is not None:
                    future.never_sent()
            continue
        if is_off and call.has_cancelled:
            call.function.tally.submitted += call.rows  # after all
        found.append(call)
        needed.update([future.waiting_call for future in call.taken])
    found.reverse()
    return found


def fail_unsent(waiting: Iterable[WaitingCall], error: BaseException) -> None:
    """Fail the calls that were not sent."""
    for call in waiting:
        call.is_sent = True  # nor will they be
        for known in call.futures:
            future = known()
            if future is not None and future.lot is None:
                future.fail(error)


def _size_bytes(ref: Reference) -> int | None:
    return len(ref.content) if isinstance(ref, Value) else getattr(ref, "size_bytes", None)


def read_value(outcome: Outcome, given: list[Any]) -> Any:
    """Return the value of an outcome, with futures in their places; raises UnpackedError."""
    try:
        return unpack(outcome.packed.head, outcome.packed.buffers, given)
    except UnpackedError:
        raise
    except (Exception, SystemExit) as error:  # of anybody's class
        text = f"it cannot be unpickled here: {type(error).__name__}: {error}"
        raise UnpackedError(text) from error
