"""The futures of calls to services."""

from __future__ import annotations

import concurrent.futures
import contextlib
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, Protocol, TypeVar

from ciel.client.locks import Condition
from ciel.client.services.forms import unpack_value
from ciel.client.services.inbox import ERROR
from ciel.client.services.outbox import OutgoingCall
from ciel.python.failures import packing_error, unpack_error
from ciel.python.futures import Future
from ciel.python.packing import UnpackedError
from ciel.python.showing import Shown

T = TypeVar("T")


class Owner(Protocol):
    """The part of a link that futures use."""

    def settle(self, future: ServiceFuture[Any], until_s: float | None) -> None:
        """Return when the future is done, or after the time."""

    def watch(self) -> None:
        """Let a thread receive replies until all calls have one."""

    def cancel(self, call: OutgoingCall) -> None:
        """Forget a call whose result nobody wants."""


class _Unread:
    """The type of `UNREAD`: the result of a future whose reply has come, but is packed."""


UNREAD: Any = _Unread()


class ServiceFuture(Shown, concurrent.futures.Future[T], Future[T]):
    """The future of a call to a service.

    It is also accepted as an argument of tasks and of other calls, which then wait for it.
    """

    rest: Sequence[Any] = ()
    is_cancelled = False
    _title = "Future"

    def __init__(self, link: Owner, name: str) -> None:
        # As in `ClientFuture`: the condition of the standard library takes a microsecond.
        self._condition = Condition()  # type: ignore[assignment]  # it has the methods that the base class uses
        self._state = "PENDING"
        self._result = self._exception = None
        self._waiters: list[Any] = []
        self._done_callbacks: list[Callable[[Any], object]] = []
        self._link = link
        self.name = name
        self.call: OutgoingCall | None = None
        self._reply: tuple[int, int, bytes] = (0, 0, b"")

    def result(self, timeout: float | None = None) -> T:
        if self._state == "PENDING":
            until_s = None if timeout is None else time.monotonic() + timeout
            self._link.settle(self, until_s)
        found = super().result(0)
        return self._value() if found is UNREAD else found

    def exception(self, timeout: float | None = None) -> BaseException | None:
        try:
            self.result(timeout)
        except (TimeoutError, concurrent.futures.CancelledError):
            if not super().done() or self.is_cancelled:
                raise
        except BaseException:  # the exception that it returns
            pass
        return self._exception

    def done(self) -> bool:
        if self._state == "PENDING":
            self._link.settle(self, 0.0)
        return super().done()

    def cancel(self) -> bool:
        if not super().cancel():
            return False
        self.is_cancelled = True
        self.set_running_or_notify_cancel()
        if self.call is not None:
            self._link.cancel(self.call)
        return True

    def add_done_callback(self, fn: Callable[[Any], object]) -> None:
        super().add_done_callback(fn)
        self._link.watch()

    def keep(self) -> None:
        """Do nothing: a call to a service runs even if the program drops its future."""

    def __await__(self) -> Generator[Any, Any, T]:
        from ciel.client.awaiting import awaited  # asyncio takes long to import

        return awaited(self)

    def __iter__(self) -> Iterator[Any]:
        value: Any = self.result()
        return iter(value)

    def __reduce__(self) -> Any:
        return _itself, (self.result(),)

    def _facts(self) -> Iterator[tuple[str, Any]]:
        yield "", self.name
        yield "", "done" if super().done() else "waiting"

    # --- for the client ---------------------------------------------------------------------------

    @property
    def calls(self) -> ServiceFuture[T]:
        """What `Calls.wait` asks to expedite a future and to read it."""
        return self

    def expedite(self, _: Any) -> None:
        """Let a thread receive the reply, since a thread waits for it."""
        self._link.watch()

    @property
    def has_failed(self) -> bool:
        """Whether the call has failed, as far as that is known without unpacking the reply."""
        return self._exception is not None or self._reply[0] == ERROR

    def take_reply(self, kind: int, form: int, payload: bytes) -> None:
        """Become done with a reply, which is still packed."""
        self._reply = kind, form, payload
        with contextlib.suppress(concurrent.futures.InvalidStateError):  # it was cancelled
            self.set_result(UNREAD)

    def fail(self, error: BaseException) -> None:
        """Become done with an error."""
        with contextlib.suppress(concurrent.futures.InvalidStateError):  # it was cancelled
            self.set_exception(error)

    def _value(self) -> T:
        with self._condition:
            if self._result is not UNREAD:
                return self._result  # type: ignore[return-value]  # of a future that is done
            if self._exception is not None:
                raise self._exception
            kind, form, payload = self._reply
            try:
                if kind == ERROR:
                    raise unpack_error(payload, f"in the call {self.name}")
                value: T = unpack_value(form, payload)
            except UnpackedError as error:
                self._exception = packing_error(f"the result of {self.name}", error)
                raise self._exception from None
            except BaseException as error:
                self._exception = error
                raise
            self._result, self._reply = value, (kind, form, b"")
            return value


def _itself(value: Any) -> Any:
    return value
