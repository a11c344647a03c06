"""The connection of this process to one replica of a service, and the futures of its calls.

The thread that waits for a result reads the connection itself, so that a call and its reply need
no other thread. Without such a thread, a thread of the link reads while callbacks or several
futures are waited for. It also connects, and sends calls that are gathered.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import socket
import struct
import threading
import time
from typing import Any, Final

from ciel.access.keys import Role
from ciel.client.connection.dialing import Dialer, Line
from ciel.client.errors import (
    AccessRefusedError,
    ClientClosedError,
    ClientError,
    ForkedError,
    NoMasterError,
    QueryError,
)
from ciel.client.forks import register_fork
from ciel.client.services.classes import ServiceError
from ciel.client.services.futures import ServiceFuture
from ciel.client.services.lookup import Lookup
from ciel.client.services.outbox import REPLY, WELCOME, Outbox, OutgoingCall
from ciel.python.failures import PackingError
from ciel.wire.errors import WireError
from ciel.wire.limits import HELLO_TIMEOUT_S, RECORD_MAX_BYTES

READ_BYTES: Final = 256 << 10
BATCH_CALLS: Final = 64
"""So many calls are sent by the thread that makes them; fewer may wait for the link's thread."""
BATCH_BYTES: Final = 256 << 10
GATHER_S: Final = 0.0005
"""A call that follows the last send sooner than this is sent together with others."""
UNSENT_MAX_BYTES: Final = 64 << 20
"""With more bytes unsent, a call waits."""
CHECK_S: Final = 5.0
"""After this time without a reply the master is asked whether the replica still runs."""
_DIAL_S: Final = HELLO_TIMEOUT_S
_PAUSE_MIN_S, _PAUSE_MAX_S, _PAUSE_GROWTH = 0.01, 0.5, 1.5
_ENDED: Final = frozenset(("done", "failed", "cancelled"))
_FLAGS: Final = int(socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
_CALL_BYTES: Final = 200  # of a record without its arguments, at most


class Link:
    """The calls of this process to one replica. Thread-safe, in the process that opened it.

    `service`: the id of the job. `number`: of the replica. `title`: for messages. `hint`: the
    address and the instance that a handle knows.
    """

    def __init__(
        self, lookup: Lookup, service: str, number: int, title: str, hint: tuple[str, str]
    ) -> None:
        self.title = title
        self.hint = hint
        self._lookup = lookup
        self._service = service
        self._number = number
        self._token = secrets.token_hex(16)
        self._lock = threading.Lock()
        self._reading = threading.Lock()  # held by the thread that reads
        self._room = threading.Condition(self._lock)
        self._outbox = Outbox()
        self._line: Line | None = None
        self._rest = memoryview(b"")  # of a frame that the socket did not accept
        self._sent_s = 0.0
        self._end: BaseException | None = None
        self.call_count = 0
        """How many calls were made, by which handles spread calls over idle replicas."""
        self._is_watched = self._is_woken = self._is_full = False
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._thread: threading.Thread | None = None
        register_fork(self)

    def forked(self) -> None:
        """Make later calls fail; called in a forked child, which shares the connection."""
        self._lock = threading.Lock()
        self._end = ForkedError(os.getppid(), os.getpid())
        if self._line is not None:
            self._line.channel.close()

    @property
    def is_over(self) -> bool:
        """Whether all calls fail from now on."""
        return self._end is not None

    @property
    def open_count(self) -> int:
        """How many calls have no reply yet."""
        return len(self._outbox.open)

    # --- calls ------------------------------------------------------------------------------------

    def call(
        self, method: str, form: int, payload: bytes, *, may_repeat: bool
    ) -> ServiceFuture[Any]:
        """Send a call; return its future. Raises ServiceError, ClientError, PackingError."""
        name = f"{self.title}.{method}"
        if len(payload) + _CALL_BYTES > RECORD_MAX_BYTES:
            raise PackingError(
                f"the arguments of {name} take {len(payload):,} bytes, and a call can have "
                f"{RECORD_MAX_BYTES:,}: let a task store them, and pass a key or a path",
                "UNPACKED",
            )
        future: ServiceFuture[Any] = ServiceFuture(self, name)
        call = OutgoingCall(method, form, payload, may_repeat=may_repeat, future=future)
        future.call = call
        with self._lock:
            while self._outbox.unsent_bytes > UNSENT_MAX_BYTES and self._end is None:
                self._is_full = True
                self._watch()
                self._room.wait(CHECK_S)
            if self._end is not None:
                raise self._end
            outbox = self._outbox
            outbox.add(call)
            self.call_count += 1
            if self._line is not None and not self._rest:
                is_due = len(outbox.open) == 1 or outbox.unsent_count >= BATCH_CALLS
                if is_due or time.monotonic() - self._sent_s > GATHER_S:
                    self._send()
            if outbox.unsent_count or self._rest:
                self._wake()
        return future

    def cancel(self, call: OutgoingCall) -> None:
        """Forget a call whose result nobody wants."""
        with self._lock:
            self._outbox.cancel(call)
            self._wake()

    def _send(self) -> None:
        """Send as much as the socket accepts; requires the lock. The reader meets an error."""
        line = self._line
        if line is None:
            return
        try:
            while self._rest or self._outbox.unsent_count:
                if not self._rest:
                    records = self._outbox.take(BATCH_CALLS, BATCH_BYTES)
                    self._rest = memoryview(line.session.send(records))
                self._rest = self._rest[line.channel.send(self._rest, _FLAGS) :]
                self._sent_s = time.monotonic()
        except OSError:  # it is full, or the connection is lost
            pass
        if self._is_full and self._outbox.unsent_bytes <= UNSENT_MAX_BYTES:
            self._is_full = False
            self._room.notify_all()

    # --- waiting ----------------------------------------------------------------------------------

    def settle(self, future: ServiceFuture[Any], until_s: float | None) -> None:
        """Return when a future is done, or after the time; reads the connection meanwhile."""
        while future._state == "PENDING":
            if self._line is not None and self._reading.acquire(blocking=False):
                try:
                    self._read_for(future, until_s)
                finally:
                    self._reading.release()
                    if self._is_watched:
                        with self._lock:
                            self._wake()
                if until_s is not None and time.monotonic() >= until_s:
                    return
            elif until_s is not None and time.monotonic() >= until_s:
                return
            else:
                self.watch()
                with future._condition:
                    if future._state == "PENDING":
                        change = future._condition.change_lock()  # type: ignore[attr-defined]  # of our class
                    else:
                        return
                left_s = -1.0 if until_s is None else max(0.0, until_s - time.monotonic())
                change.acquire(timeout=left_s)

    def _read_for(self, future: ServiceFuture[Any], until_s: float | None) -> None:
        """Read until a future is done, the connection is lost, or the time is over."""
        while future._state == "PENDING":
            if self._rest or self._outbox.unsent_count:
                with self._lock:
                    self._send()
            line, is_full = self._line, bool(self._rest)
            if line is None:
                return
            left_s = None if until_s is None else max(0.0, until_s - time.monotonic())
            self._read_once(line, left_s, is_full=is_full)
            if left_s == 0.0:
                return

    def watch(self) -> None:
        """Let the link's thread receive replies until all calls have one."""
        with self._lock:
            self._watch()

    def _watch(self) -> None:
        self._is_watched = True
        self._wake()

    def _wake(self) -> None:
        """Wake the link's thread, and start it if it does not run; requires the lock."""
        if self._thread is None and self._end is None:
            self._thread = threading.Thread(target=self._run, name="ciel-service", daemon=True)
            self._thread.start()
        if not self._is_woken and self._wake_fd >= 0:
            self._is_woken = True
            os.eventfd_write(self._wake_fd, 1)

    # --- reading ----------------------------------------------------------------------------------

    def _read_once(self, line: Line, wait_s: float | None, *, is_full: bool) -> None:
        """Wait for replies once, and take them; the caller holds `_reading`.

        `is_full`: wait also until the socket accepts more.
        """
        try:
            if wait_s is None and not is_full:
                data: bytes | None = line.channel.recv(READ_BYTES)  # at most CHECK_S
            else:
                data = self._poll(line, CHECK_S if wait_s is None else wait_s, is_full=is_full)
            if data is None:
                return
            if not data:
                raise ConnectionResetError("it closed the connection")
            self._take(line.session.receive(data))
        except BlockingIOError:
            self._check(line)
        except (OSError, WireError) as error:
            self._lose(line, error)

    def _poll(self, line: Line, wait_s: float, *, is_full: bool) -> bytes | None:
        """Wait for the socket or for `_wake`; return None if nothing was read."""
        poll = select.poll()
        poll.register(line.channel, select.POLLIN | (select.POLLOUT if is_full else 0))
        is_own = threading.current_thread() is self._thread
        if is_own:
            poll.register(self._wake_fd, select.POLLIN)
        found = dict(poll.poll(wait_s * 1000))
        if not found and wait_s >= CHECK_S:
            raise BlockingIOError
        event = found.get(line.channel.fileno(), 0)
        if event & select.POLLOUT:
            with self._lock:
                self._send()
        if event & ~select.POLLOUT:
            return line.channel.recv(READ_BYTES, _FLAGS)
        return None

    def _take(self, records: list[Any]) -> None:
        found = []
        with self._lock:
            for fields, payload in records:
                match fields:
                    case ["reply", number, int(kind), int(form)]:
                        if (call := self._outbox.settle(number)) is not None:
                            found.append((call.future, kind, form, payload))
                    case _:
                        raise WireError(f"{self.title} sent a record that is not a reply")
        for future, kind, form, payload in found:
            future.take_reply(kind, form, payload)

    def _check(self, line: Line) -> None:
        """Lose the connection if the master says that the instance there has ended."""
        try:
            row = self._row()
        except ClientError:
            return  # the master is away: the replica may answer meanwhile
        if row is None or _instance(row) != self._outbox.instance or row["state"] in _ENDED:
            self._lose(line, TimeoutError("its attempt has ended"))

    def _lose(self, line: Line, error: Exception) -> None:
        with self._lock:
            if self._line is line:
                self._line, self._rest = None, memoryview(b"")
                line.channel.close()
                self._watch()  # the thread connects again

    # --- the thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._end is None:
                self._run_once()
        except BaseException as error:  # a bug; callers must not wait for ever
            self.close(ServiceError(f"{self.title}: {type(error).__name__}: {error}"))
            raise
        finally:
            with self._lock:
                self._close_wake()

    def _close_wake(self) -> None:
        fd, self._wake_fd = self._wake_fd, -1
        if fd >= 0:
            os.close(fd)

    def _run_once(self) -> None:
        with self._lock:
            self._is_woken = False
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._wake_fd)
            self._send()
            line, is_full = self._line, bool(self._rest)
            if not self._outbox.open:
                self._is_watched = False
            must_read = self._is_watched
            must_connect = line is None and bool(self._outbox.open)
        if must_connect:
            self._connect()
        elif line is not None and (must_read or is_full) and self._reading.acquire(blocking=False):
            try:
                self._read_once(line, CHECK_S, is_full=is_full)
            finally:
                self._reading.release()
        else:
            poll = select.poll()
            poll.register(self._wake_fd, select.POLLIN)
            if line is not None and is_full:
                poll.register(line.channel, select.POLLOUT)
            poll.poll(CHECK_S * 1000 if self._outbox.open else None)

    def _connect(self) -> None:
        """Connect to the replica, as soon as there is one, or end the link."""
        pause_s, refused = 0.0, ""
        address, instance = self.hint
        while self._end is None and self._outbox.open:
            if not address:
                try:
                    row = self._row()
                except ClientError as error:
                    self.close(error)
                    return
                if row is None or row["state"] in _ENDED:
                    self.close(_ended(self.title, row))
                    return
                address, instance = row["address"] or "", _instance(row)
                if instance != self._outbox.instance and self._outbox.instance:
                    self._fail(self._outbox.instance_ended)
            if address:
                try:
                    self._open(address, instance)
                    return
                except AccessRefusedError as error:
                    if refused == f"{address} {instance}":
                        self.close(ServiceError(f"{self.title}: {error.reason}", is_over=True))
                        return
                    refused = f"{address} {instance}"
                except (NoMasterError, OSError, WireError):
                    pass  # it may have ended: the master will know
            address = ""
            self._pause(pause_s)
            pause_s = min(max(_PAUSE_MIN_S, pause_s * _PAUSE_GROWTH), _PAUSE_MAX_S)

    def _pause(self, pause_s: float) -> None:
        """Wait before the next attempt, or until the link is closed."""
        with self._lock:
            if self._end is None and pause_s:
                self._room.wait(pause_s)

    def _open(self, address: str, instance: str) -> None:
        """Open a connection to an instance of the replica."""
        about = {"caller": self._token, "instance": instance}
        lookup = self._lookup
        dialer = Dialer(address, lookup.key, Role.SERVICE, lookup.cluster_id, about)
        line = dialer.dial(_DIAL_S, 0)
        match line.early[0]:
            case (["welcome", int(received)], _):
                pass
            case _:
                line.channel.close()
                raise WireError(f"{self.title} did not greet with {WELCOME}")
        line.channel.setblocking(True)
        seconds, rest = divmod(CHECK_S, 1)
        limit = struct.pack("ll", int(seconds), int(rest * 1e6))
        line.channel.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        self._fail(lambda: self._outbox.opened(instance, received), line)
        self._take(line.early[1:])

    def _fail(self, change: Any, line: Line | None = None) -> None:
        """Fail the calls that a change of the outbox loses; begin to use a connection."""
        with self._lock:
            if self._end is not None:
                if line is not None:
                    line.channel.close()
                return
            lost: list[OutgoingCall] = change()
            self._line, self._rest = line, memoryview(b"")
            self._send()
        for call in lost:
            call.future.fail(
                ServiceError(
                    f"{call.future.name}: the process of the replica has ended after it had "
                    "received the call, which may have run; call with .options(retry=True) what "
                    "may run twice",
                    may_have_run=True,
                )
            )

    def _row(self) -> dict[str, Any] | None:
        """Return what the master says about the replica; None: it does not know it."""
        try:
            rows = self._lookup.find(self._service)["replicas"]
        except QueryError:  # the job was removed
            return None
        found: dict[str, Any] | None = rows[self._number] if self._number < len(rows) else None
        return found

    def close(self, error: BaseException | None = None) -> None:
        """End the link: all calls fail, now and later."""
        with self._lock:
            if self._end is not None:
                return
            self._end = error or ClientClosedError()
            left = self._outbox.end()
            line, self._line = self._line, None
            if line is not None:
                with contextlib.suppress(OSError):
                    line.channel.shutdown(socket.SHUT_RDWR)  # a thread may be reading
                line.channel.close()
            self._room.notify_all()
            if self._thread is None:
                self._close_wake()
            else:
                self._wake()
        for call in left:
            if isinstance(error, ServiceError):
                text = error.args[0]
                own = ServiceError(text, may_have_run=call.is_sent, is_over=error.is_over)
                call.future.fail(own)
            else:
                call.future.fail(self._end)


def _instance(row: dict[str, Any]) -> str:
    """Return the name of the instance of a replica, which no earlier one had."""
    return f"{row['task']} {row['attempt']}"


def _ended(title: str, row: dict[str, Any] | None) -> ServiceError:
    """Return the error of a replica that has ended for good."""
    if row is None:
        return ServiceError(f"{title} is gone: its cluster does not know it", is_over=True)
    why = row["failure"] or "it was stopped"
    return ServiceError(f"{title} is gone ({row['state']}): {why}", is_over=True)


assert REPLY == "reply"  # the pattern in `_take`, where a name would match anything
