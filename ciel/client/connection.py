"""A connection to the master: a session over a blocking API, served by one thread.

That thread alone reads. It takes whatever comes, even while nothing can be written, so that two
full buffers never wait for each other; it sends what callers have queued, many messages to a frame;
and it keeps the connection alive when there is nothing to say. A caller who queues much sends it
himself, as far as that does not block: handing it over costs a switch of the interpreter's lock,
which a busy caller gives up only every five milliseconds.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from ciel import __version__
from ciel.access.keys import Key, Role
from ciel.client.errors import (
    AccessRefusedError,
    ClientClosedError,
    ClientError,
    ConnectionLostError,
    ForkedError,
    NoMasterError,
    NotAMasterError,
)
from ciel.core.events import HEARTBEAT_INTERVAL_S, Heartbeat, Message
from ciel.wire.errors import RefusedError, RemoteProtocolError, WireError
from ciel.wire.frames import Record, encode_frames
from ciel.wire.limits import HELLO_TIMEOUT_S
from ciel.wire.messages import TO_CLIENT, decode, encode
from ciel.wire.session import Session

SILENT_MAX_S: Final = 15.0
"""A master silent for so long is taken for gone; five times what peers allow each other, since
this computer may be busy with the very job."""

_QUEUED_MAX_BYTES = 8 << 20
_FRAME_BYTES = 1 << 20  # of payload in one frame: heartbeats and cancels need not wait for more
_FRAME_RECORDS = 1024
_SEND_RECORDS = 128  # so many queued are sent by who queued them
_READ_BYTES = 256 << 10
_RECORD_BYTES = 300  # of a typical record, its payload apart
_TRIAL_BYTES = 1 << 20  # a message of this size is tried before it is queued: it may not fit
_FAREWELL_S = 2.0

Deliver = Callable[[list[Message]], None]
OnLost = Callable[[ClientError], None]


class Connection:
    """An open session. `deliver` and `on_lost` are called by its thread, the latter once at most.

    Usable from any thread of the process that opened it.
    """

    def __init__(self, address: str, channel: socket.socket, session: Session) -> None:
        """Take over an open session; use `open_connection`."""
        self.address = address
        self.read_interval_s = 0.0
        """So long what comes may be left to pile up; waking up for each message costs 0.1 ms."""
        self._channel = channel
        self._session = session
        self._pid = os.getpid()
        self._changed = threading.Condition()
        self._queue: deque[tuple[Record, int]] = deque()  # with about its size on the wire
        self._queued_bytes = 0
        self._unsent = memoryview(b"")  # of a frame that the socket did not take whole
        self._moved_s = time.monotonic()  # when something was last sent
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._closing = False
        self._ended: ClientError | None = None
        self._thread = threading.Thread(target=self._run, name="ciel-connection", daemon=True)

    def start(self, deliver: Deliver, on_lost: OnLost, early: Sequence[Record] = ()) -> None:
        """Start the thread; `early` records came with the last of the handshake."""
        self._deliver = deliver
        self._on_lost = on_lost
        self._early = early
        self._thread.start()

    def send(self, *messages: Message) -> None:
        """Queue messages; waits while too much is queued already.

        Raises ConnectionLostError, ClientClosedError, ForkedError, and EncodeError or
        RecordTooLargeError for a message that cannot be sent (then none of them is).
        """
        if os.getpid() != self._pid:
            raise ForkedError(self._pid, os.getpid())
        records = [encode(message) for message in messages]
        sizes = [_estimate(record) for record in records]
        size_bytes = sum(sizes)
        if size_bytes > _TRIAL_BYTES:
            encode_frames(records)
        with self._changed:
            self._changed.wait_for(lambda: self._queued_bytes < _QUEUED_MAX_BYTES or self._ended)
            self._require_open()
            if not self._queue:
                self._wake()
            self._queue.extend(zip(records, sizes, strict=True))
            self._queued_bytes += size_bytes
            if len(self._queue) >= _SEND_RECORDS:
                self._push()

    def close(self) -> None:
        """Send what is queued (briefly: a master that does not read is left), then hang up."""
        if os.getpid() != self._pid:
            return  # a forked child has no thread to stop, and the socket is its parent's
        with self._changed:
            self._closing = True
            self._moved_s = time.monotonic()  # a master that did not read until now may begin to
            self._wake()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()

    def _require_open(self) -> None:
        if self._ended is not None:
            raise self._ended
        if self._closing:
            raise ClientClosedError

    def _wake(self) -> None:
        """Make the thread look; the caller holds the lock, under which the descriptor is closed."""
        if self._wake_fd >= 0:
            os.eventfd_write(self._wake_fd, 1)

    # --- the thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        # Signals are the main thread's: one taken here would not end its waiting.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        end: ClientError = ClientClosedError()
        try:
            self._serve()
            self._say_farewell()
        except ClientError as error:
            end = error
        except (OSError, WireError) as error:
            end = ConnectionLostError(self.address, str(error))
        except BaseException as error:  # a bug of ours must not leave callers waiting
            end = ConnectionLostError(self.address, f"{type(error).__name__}: {error}")
            raise
        finally:
            with self._changed:
                self._ended = end
                self._changed.notify_all()
                os.close(self._wake_fd)
                self._wake_fd = -1
            self._channel.close()
            if not isinstance(end, ClientClosedError):
                self._on_lost(end)

    def _serve(self) -> None:
        """Carry messages until told to close and all is sent, or the connection is lost."""
        self._hand_over(self._early)
        poll = select.poll()
        poll.register(self._wake_fd, select.POLLIN)
        heard_s = time.monotonic()
        read_bytes = 0
        while True:
            with self._changed:
                self._push()
                unsent = bool(self._unsent)
                if not unsent and not self._queue:
                    if self._closing:
                        return
                    if time.monotonic() - self._moved_s >= HEARTBEAT_INTERVAL_S:
                        self._queue.append((encode(Heartbeat()), 0))
                        self._push()
            pause_s = heard_s + self.read_interval_s - time.monotonic()
            if pause_s > 0 and read_bytes < _READ_BYTES:
                poll.register(self._channel, select.POLLOUT if unsent else 0)
                wait_s = min(pause_s, self._wait_s(unsent))
            else:
                poll.register(self._channel, select.POLLIN | (select.POLLOUT if unsent else 0))
                wait_s = self._wait_s(unsent)
            for fd, _ in poll.poll(wait_s * 1000):
                if fd == self._wake_fd:
                    os.eventfd_read(self._wake_fd)
                elif size_bytes := self._read():
                    heard_s = time.monotonic()
                    read_bytes = size_bytes
            if time.monotonic() - heard_s > SILENT_MAX_S:
                raise ConnectionLostError(self.address, f"it was silent for {SILENT_MAX_S:g} s")
            if self._closing and time.monotonic() - self._moved_s > _FAREWELL_S:
                return

    def _wait_s(self, unsent: bool) -> float:
        """Return how long nothing need be done unless something comes, or can be written."""
        if unsent:
            return _FAREWELL_S if self._closing else HEARTBEAT_INTERVAL_S
        if self._queue:
            return 0.0
        return max(0.0, self._moved_s + HEARTBEAT_INTERVAL_S - time.monotonic())

    def _push(self) -> None:
        """Send a frame of what is queued, as far as the socket takes it; the caller holds the lock.

        Raises OSError in the thread; a caller leaves it to the thread to find out.
        """
        if not self._unsent:
            batch: list[Record] = []
            size_bytes = 0
            while self._queue and len(batch) < _FRAME_RECORDS and size_bytes < _FRAME_BYTES:
                record, record_bytes = self._queue.popleft()
                batch.append(record)
                size_bytes += record_bytes
            if not batch:
                return
            self._queued_bytes -= size_bytes
            self._changed.notify_all()
            self._unsent = memoryview(self._session.send(batch))
        try:
            sent_bytes = self._channel.send(self._unsent, socket.MSG_NOSIGNAL)
        except BlockingIOError:
            return
        except OSError:
            if threading.current_thread() is not self._thread:
                return
            raise
        self._unsent = self._unsent[sent_bytes:]
        self._moved_s = time.monotonic()

    def _read(self) -> int:
        """Take what has come and hand it over; return how many bytes that were."""
        try:
            data = self._channel.recv(_READ_BYTES)
        except BlockingIOError:
            return 0
        if not data:
            self._session.receive_eof()
            raise ConnectionLostError(self.address, "it closed the connection")
        self._hand_over(self._session.receive(data))
        return len(data)

    def _hand_over(self, records: Sequence[Record]) -> None:
        if records:
            self._deliver([decode(record, TO_CLIENT) for record in records])

    def _say_farewell(self) -> None:
        """End our side, and wait for the peer's: a close with unread data would cut off ours."""
        with contextlib.suppress(OSError):
            self._channel.shutdown(socket.SHUT_WR)
            self._channel.setblocking(True)
            deadline_s = time.monotonic() + _FAREWELL_S
            while (remaining_s := deadline_s - time.monotonic()) > 0:
                self._channel.settimeout(remaining_s)
                if not self._channel.recv(_READ_BYTES):
                    return


def open_connection(
    address: str,
    key: Key,
    deliver: Deliver,
    on_lost: OnLost,
    *,
    role: Role = Role.SUBMIT,
    cluster_id: str = "",
    about: Mapping[str, Any] | None = None,
    timeout_s: float = HELLO_TIMEOUT_S,
) -> Connection:
    """Connect to `HOST:PORT`, `unix:@NAME` or `unix:PATH`, and prove our key.

    Raises NoMasterError, NotAMasterError, AccessRefusedError; within about `timeout_s`.
    """
    deadline_s = time.monotonic() + timeout_s
    channel = _dial(address, timeout_s)
    with contextlib.ExitStack() as undo:
        undo.callback(channel.close)
        session = Session.initiator(
            key, role, software=__version__, cluster_id=cluster_id, about=about
        )
        early = _greet(address, channel, session, deadline_s)
        channel.setblocking(False)
        connection = Connection(address, channel, session)
        undo.pop_all()
    connection.start(deliver, on_lost, early)
    return connection


def _dial(address: str, timeout_s: float) -> socket.socket:
    try:
        if address.startswith("unix:"):
            name = address.removeprefix("unix:")
            channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            # Not settimeout: without blocking, a full backlog is an error at once.
            seconds, rest = divmod(timeout_s, 1)
            limit = struct.pack("ll", int(seconds), int(rest * 1e6))
            channel.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
            try:
                channel.connect("\0" + name[1:] if name.startswith("@") else name)
            except OSError:
                channel.close()
                raise
            return channel
        host, _, port = address.rpartition(":")
        channel = socket.create_connection((host.strip("[]"), int(port)), timeout_s)
        channel.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return channel
    except ConnectionRefusedError:
        raise NoMasterError(address, "nothing listens there") from None
    except (TimeoutError, BlockingIOError):
        raise NoMasterError(address, f"no answer within {timeout_s:g} s") from None
    except OSError as error:
        raise NoMasterError(address, error.strerror or str(error)) from None
    except (ValueError, OverflowError):
        raise NoMasterError(address, "that is no address; expected HOST:PORT") from None


def _greet(
    address: str, channel: socket.socket, session: Session, deadline_s: float
) -> list[Record]:
    """Go through the handshake; return the records that came right behind it."""
    early: list[Record] = []
    seen = b""
    try:
        _write_by(channel, session.data_to_send(), deadline_s)
        while not session.is_open:
            channel.settimeout(max(0.001, deadline_s - time.monotonic()))
            data = channel.recv(_READ_BYTES)
            if not data:
                raise ConnectionResetError
            seen = seen or data
            early = session.receive(data)
            _write_by(channel, session.data_to_send(), deadline_s)
        return early
    except RefusedError as error:
        with contextlib.suppress(OSError):  # so that the master can log it, too
            _write_by(channel, session.data_to_send(), deadline_s)
        raise AccessRefusedError(address, error.reason) from None
    except RemoteProtocolError as error:
        what = "an HTTP server" if seen.startswith(b"HTTP/") else error.reason
        raise NotAMasterError(address, f"something else listens there ({what})") from None
    except TimeoutError:
        raise NotAMasterError(address, "it does not answer; it hangs, or is no master") from None
    except (ConnectionResetError, BrokenPipeError):
        raise NotAMasterError(address, "it hung up; it is about to end, or no master") from None
    except OSError as error:
        raise NotAMasterError(address, error.strerror or str(error)) from None


def _write_by(channel: socket.socket, data: bytes, deadline_s: float) -> None:
    channel.settimeout(max(0.001, deadline_s - time.monotonic()))
    channel.sendall(data)


def _estimate(record: Record) -> int:
    """Return about how many bytes a record takes on the wire."""
    fields, payload = record
    size_bytes = _RECORD_BYTES + len(payload)
    for field in fields:
        if type(field) is tuple or type(field) is list:
            size_bytes += 40 * len(field)
    return size_bytes
