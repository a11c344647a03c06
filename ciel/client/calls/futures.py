"""Implements the futures of a client's calls."""

from __future__ import annotations

import concurrent.futures
import contextlib
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, Protocol, TypeVar

from ciel.access.settings import MasterLocation
from ciel.client.calls.lots import Lot, Lots
from ciel.client.calls.pending import PendingCall
from ciel.client.locks import Condition
from ciel.core.graph.failures import size_text
from ciel.core.refs import Reference, Value, locations_of
from ciel.python.contents import Outcome
from ciel.python.elsewhere import ObjectElsewhere
from ciel.python.failures import packing_error
from ciel.python.futures import Future
from ciel.python.packing import UnpackedError
from ciel.python.showing import Shown

T = TypeVar("T")


class Reader(Protocol):
    """Reads the values of results."""

    def read_bytes(self, ref: Reference) -> bytes: ...

    def read_items(self, lot: Lot) -> Any: ...

    def growing_items(self, lot: Lot, future: ClientFuture[Any]) -> Iterator[Any]: ...

    def outcomes(self, lot: Lot) -> list[Outcome]: ...

    def in_parts(self, lot: Lot, value: Callable[[], Any]) -> ObjectElsewhere | None: ...

    def value_of(self, outcome: Outcome, name: str) -> Any: ...


class Owner(Protocol):
    """The part of the client's calls that futures use."""

    kept: set[ClientFuture[Any]]
    """Futures that are kept alive until they are done, even if the program drops them."""

    @property
    def reader(self) -> Reader: ...

    @property
    def lots(self) -> Lots: ...

    @property
    def location(self) -> MasterLocation:
        """The master that runs the calls."""

    def expedite(self, future: ClientFuture[Any]) -> None:
        """Send the call of a future, and the calls that it needs: a thread waits for the future."""

    def send(self, future: ClientFuture[Any]) -> None:
        """Send the call of a future, and the calls that it needs, even those that are held back."""

    def cancel(self, future: ClientFuture[Any]) -> None:
        """Stop the tasks that run only for a future that was cancelled."""

    def require_done(self, futures: Sequence[ClientFuture[Any]]) -> None:
        """Raise CallbackWaitError if this thread delivers results and a future is not done."""


class _Unread:
    """The type of `UNREAD`: the result of a future whose value exists, but was not read yet."""


UNREAD = _Unread()


_STATES = {
    "PENDING": "waiting",
    "RUNNING": "running",
    "CANCELLED": "cancelled",
    "CANCELLED_AND_NOTIFIED": "cancelled",
    "FINISHED": "done",
}


class ClientFuture(Shown, concurrent.futures.Future[T], Future[T]):
    """A future of a client.

    `lot` and `place`: the object that contains its value or will contain it, and the position in
    that object; `lot` is None until the call is sent. `rest`: if the call is a part of a map that
    was divided, the futures of the following parts, set when this future is done.
    """

    rest: Sequence[ClientFuture[Any]] = ()

    is_requested = True
    """False for a future that arrived inside a value, until the program requests its result."""
    is_cancelled = False
    """As `cancelled()`, but without a lock, which would be too slow for thousands of arguments."""

    def __init__(
        self, calls: Owner, name: str, call: PendingCall | None = None, place: int = 0
    ) -> None:
        # As in the standard library, except for the condition: creating a `threading.Condition`
        # takes a microsecond, and Ctrl-C may leave it locked.
        self._condition = Condition()  # type: ignore[assignment]  # it has the methods that the base class uses
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
        return self._value_until(until_s) if found is UNREAD else found

    def exception(self, timeout: float | None = None) -> BaseException | None:
        until_s = None if timeout is None else time.monotonic() + timeout
        self._expect(timeout)
        found = super().exception(timeout)
        if found is None and self._result is UNREAD:
            try:  # asyncio calls this before `result`, so errors of reading must be returned here
                self._value_until(until_s)
            except TimeoutError:
                if until_s is not None and self._result is UNREAD:
                    raise
                return None
            except Exception as error:
                return error
        return found

    def in_parts(self, timeout: float | None = None) -> T | ObjectElsewhere:
        """Wait for the value and return it; if it is large and on another host, do not read it, but
        return its object.
        """
        until_s = None if timeout is None else time.monotonic() + timeout
        self._expect(timeout)
        found = super().result(timeout)
        if found is UNREAD and self._outcome is None and self.lot is not None:
            elsewhere = self.calls.reader.in_parts(self.lot, self.result)
            if elsewhere is not None:
                return elsewhere
        return self._value_until(until_s) if found is UNREAD else found

    def _expect(self, timeout: float | None) -> None:
        self.calls.expedite(self)
        if self._state != "FINISHED" and (timeout is None or timeout > 0):
            self.calls.require_done([self])

    def done(self) -> bool:
        if not self.is_requested:
            self.calls.expedite(self)
        return super().done()

    def cancel(self) -> bool:
        if super().done():
            for part in self.rest:
                part.cancel()
            return False
        if not super().cancel():
            return False
        self.is_cancelled = True
        self.set_running_or_notify_cancel()
        self.calls.cancel(self)
        return True

    def add_done_callback(self, fn: Callable[[Any], object]) -> None:
        self.calls.expedite(self)
        self.keep()
        super().add_done_callback(fn)

    def keep(self) -> None:
        """Keep this future until it is done, so that its call runs even if the program drops it."""
        if not super().done():
            self.calls.kept.add(self)
            super().add_done_callback(self.calls.kept.discard)

    def __await__(self) -> Generator[Any, Any, T]:
        from ciel.client.awaiting import awaited  # asyncio takes long to import

        return awaited(self)

    def __iter__(self) -> Iterator[Any]:
        """Yield the items of a generator task as they arrive, or the items of any other value."""
        self.calls.send(self)
        lot = self.lot
        if lot is not None and lot.is_stream and not super().done():
            self.calls.require_done([self])
            return self.calls.reader.growing_items(lot, self)
        value: Any = self.result()
        return iter(value)

    def __reduce__(self) -> Any:
        return Future.__reduce__(self)

    @property
    def object_id(self) -> str | None:
        """The id of the object that holds the value; None until the call is sent."""
        return None if self.lot is None else self.lot.id

    _title = "Future"

    def _facts(self) -> Iterator[tuple[str, Any]]:
        yield "", self.name
        if self._exception is not None:
            yield "", f"raised {type(self._exception).__name__}"
        else:
            yield "", _STATES[self._state]
        lot = self.lot
        if lot is not None and len(lot.functions) <= 1 and lot.exists:
            yield "size", size_text(_size_bytes(lot.ref))
            yield "at", " ".join(sorted(locations_of(lot.ref)))

    # --- for the client ---------------------------------------------------------------------------

    @property
    def pending_call(self) -> PendingCall | None:
        """The call; None after it was sent."""
        return self._call

    @property
    def has_failed(self) -> bool:
        """Whether the call has failed, as far as that is known without reading the value."""
        return self._exception is not None

    def sent_as(self, lot: Lot, place: int) -> None:
        """Note that the call was sent, and the lot and the position of its value."""
        self.lot, self.place, self._call = lot, place, None

    def never_sent(self) -> None:
        """Note that the call will not be sent."""
        self._call = None

    def unsent_error(self) -> BaseException:
        """Return the error for calls that need this value, if this call was never sent."""
        return self._exception or concurrent.futures.CancelledError()

    def settle(self, outcome: Outcome | None) -> None:
        """Become done with an outcome; None: with the content of the lot, which is still unread."""
        self._outcome = outcome
        with contextlib.suppress(concurrent.futures.InvalidStateError):  # it was cancelled
            self.set_result(UNREAD)  # type: ignore[arg-type]  # `result` never returns it

    def fail(self, error: BaseException) -> None:
        """Become done with an error."""
        self._call = None
        with contextlib.suppress(concurrent.futures.InvalidStateError):  # it was cancelled
            self.set_exception(error)

    def _value_until(self, until_s: float | None) -> T:
        """Return the value; raises TimeoutError if it was not read until `until_s`.

        In that case a thread continues to read it: the value may have to be recomputed first.
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
            if self._result is not UNREAD:
                return self._result  # type: ignore[return-value]  # of a future that is done
            try:
                value: T = self._read()
            except UnpackedError as error:
                raise packing_error(f"the result of {self.name}", error) from None
            self._result = value
            self._outcome = None
            return value

    def _read(self) -> Any:
        lot, reader = self.lot, self.calls.reader
        assert lot is not None
        if lot.raw:
            return reader.read_bytes(lot.ref)
        if lot.is_stream:
            return reader.read_items(lot)
        outcome = self._outcome
        if outcome is None:
            outcome = reader.outcomes(lot)[self.place]
        return reader.value_of(outcome, self.name)


def _size_bytes(ref: Reference) -> int | None:
    return len(ref.content) if isinstance(ref, Value) else getattr(ref, "size_bytes", None)
