"""A connection to the master: a session over a blocking API, served by one thread.

That thread alone reads. It takes whatever comes, even while nothing can be written, so that two
full buffers never wait for each other; it sends what callers have queued, many messages to a frame;
and it keeps the connection alive when there is nothing to say. A caller who queues much sends it
himself, as far as that does not block: handing it over costs a switch of the interpreter's lock,
which a busy caller gives up only every five milliseconds.

A connection that is lost is opened again, and the session goes on: both sides keep what they said
until the other has confirmed it, and say the rest again. So every message arrives once, and nobody
above notices but by the time it takes. The same mends what Ctrl-C has torn (see `_torn`).
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from ciel.access.keys import Key, Role
from ciel.client.connection.dialing import READ_BYTES, Dialer, Line
from ciel.client.errors import (
    AccessRefusedError,
    ClientClosedError,
    ClientError,
    ConnectionLostError,
    ForkedError,
    NoMasterError,
)
from ciel.client.forks import tell_of_forks
from ciel.client.locks import Changes
from ciel.core.events import (
    CLIENT_GRACE_S,
    HEARTBEAT_INTERVAL_S,
    Heartbeat,
    Message,
    Received,
)
from ciel.wire.errors import WireError
from ciel.wire.frames import Record, encode_frames, estimate_sizes
from ciel.wire.limits import HELLO_TIMEOUT_S
from ciel.wire.messages import TO_CLIENT, decode_all, encode, encode_all

SILENT_MAX_S: Final = 15.0
"""A master silent for so long is taken for gone; five times what peers allow each other, since
this computer may be busy with the very job."""

RECONNECT_S = CLIENT_GRACE_S
"""So long a lost master is sought; after that it has given our jobs up."""
OUTAGE_MAX_S = 60.0
"""So long one is sought from which nothing comes, not even a refusal: it hears nothing from us
either, and keeps our jobs for as long."""

_QUEUED_MAX_BYTES = 1 << 20  # thousands of tasks: the collector looks through all that waits
_FRAME_BYTES = 256 << 10  # about, in one frame: while the master takes it in, it serves nobody else
_FRAME_RECORDS = 1024
_SEND_RECORDS = 128  # so many queued are sent by who queued them
_TRIAL_BYTES = 1 << 20  # a message of this size is tried before it is queued: it may not fit
_FAREWELL_S = 2.0
_CONFIRM_EVERY = 256  # messages that came; fewer are confirmed by the next life sign
_DIAL_S = 2.0  # that one attempt to come back may take: a close waits for it
_PAUSE_MIN_S, _PAUSE_MAX_S = 0.02, 0.5  # between attempts

Deliver = Callable[[list[Message]], None]
OnLost = Callable[[ClientError], None]
Queued = tuple[Record, int]


class Connection:
    """An open session. `deliver` and `on_lost` are called by its thread, the latter once at most.
    A sign of life, which comes once a second if nothing else does, is delivered as no messages.

    Usable from any thread of the process that opened it. `is_hopeless` says, when the connection is
    lost, that the master will not come back.
    """

    def __init__(self, dialer: Dialer, line: Line, is_hopeless: Callable[[], bool]) -> None:
        """Take over an open session; use `open_connection`."""
        self.address = dialer.address
        self.read_interval_s = 0.0
        """So long what comes may be left to pile up; waking up for each message costs 0.1 ms."""
        self._dialer = dialer
        self._channel, self._session, self._early = line
        self._is_hopeless = is_hopeless
        self._pid = os.getpid()
        self._changed = Changes()
        self._queue: deque[Queued] = deque()  # with about its size on the wire
        self._queued_bytes = 0
        self._kept: deque[Queued] = deque()  # sent, and not confirmed yet
        self._torn: list[Queued] | None = None
        """What is being moved from `_queue` to `_kept` and sent. While the lock is free it is None,
        or else nothing can be sent: the connection is lost, or a sender was interrupted, and nobody
        knows how much went out."""
        self._unsent = memoryview(b"")  # of a frame that the socket did not take whole
        self._moved_s = time.monotonic()  # when something was last sent
        self._confirmed = 0  # of our messages, by the master
        self._received = 0
        self._told = 0  # of these, to the master
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._closing = False
        self._ended: ClientError | None = None
        self._thread = threading.Thread(target=self._run, name="ciel-connection", daemon=True)
        tell_of_forks(self)

    def start(self, deliver: Deliver, on_lost: OnLost) -> None:
        """Start the thread."""
        self._deliver = deliver
        self._on_lost = on_lost
        self._thread.start()

    def send(self, *messages: Message) -> None:
        """Queue messages; waits while too much is queued already.

        Raises ConnectionLostError, ClientClosedError, ForkedError, and EncodeError or
        RecordTooLargeError for a message that cannot be sent (then none of them is).
        """
        records = encode_all(messages)
        sizes = estimate_sizes(records)
        size_bytes = sum(sizes)
        if size_bytes > _TRIAL_BYTES:
            encode_frames(records)
        while True:
            with self._changed:
                self._require_open()
                if self._queued_bytes < _QUEUED_MAX_BYTES:
                    if not self._queue or self._torn is not None:
                        self._wake()
                    self._queue.extend(zip(records, sizes, strict=True))
                    self._queued_bytes += size_bytes
                    if len(self._queue) >= _SEND_RECORDS and self._torn is None:
                        self._push()
                    return
                room = self._changed.news()
            room.acquire()

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

    def forked(self) -> None:
        """Be a copy in a forked child: the master must see the end of the parent's connection."""
        self._ended = ForkedError(self._pid, os.getpid())
        self._channel.close()
        if self._wake_fd >= 0:
            os.close(self._wake_fd)
            self._wake_fd = -1

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
            while not self._is_served():
                pass
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

    def _is_served(self) -> bool:
        """Serve until told to close and all is sent, or the connection is lost and had again; then
        return False.
        """
        try:
            self._serve()
            return True
        except OSError as error:
            loss = ConnectionLostError(self.address, error.strerror or str(error))
        except ConnectionLostError as error:
            loss = error
        with self._changed:
            self._torn = self._torn or []
            self._channel.close()
        if not self._dialer.can_resume:
            raise loss
        self._come_back(loss)
        return False

    def _serve(self) -> None:
        """Carry messages until told to close and all is sent, or the connection is lost."""
        early, self._early = self._early, []
        self._hand_over(early)
        poll = select.poll()
        poll.register(self._wake_fd, select.POLLIN)
        heard_s = time.monotonic()
        read_bytes = 0
        while True:
            with self._changed:
                if self._torn is not None:
                    reason = "a thread of this program was interrupted while it sent"
                    raise ConnectionLostError(self.address, reason)
                self._push(*self._signs())
                unsent = bool(self._unsent)
                if self._closing and not unsent and not self._queue:
                    return
            pause_s = heard_s + self.read_interval_s - time.monotonic()
            if pause_s > 0 and read_bytes < READ_BYTES:
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

    def _signs(self) -> list[Record]:
        """Return what is to be said of ourselves now, which is not counted: that so much came, or
        only that we live.
        """
        if self._unsent:
            return []
        unconfirmed = self._received - self._told if self._dialer.can_resume else 0
        is_idle = not self._queue and time.monotonic() - self._moved_s >= HEARTBEAT_INTERVAL_S
        if unconfirmed >= _CONFIRM_EVERY or (unconfirmed and is_idle):
            self._told = self._received
            return [encode(Received(self._received))]
        return [encode(Heartbeat())] if is_idle else []

    def _push(self, *signs: Record) -> None:
        """Send a frame of what is queued, as far as the socket takes it; the caller holds the lock.

        `signs` are for when nothing is unsent. Raises OSError in the thread; a caller leaves it to
        the thread to find out.
        """
        self._torn = []
        if not self._unsent:
            batch: list[Queued] = []
            size_bytes = 0
            for item in self._queue:
                if len(batch) == _FRAME_RECORDS or size_bytes >= _FRAME_BYTES:
                    break
                batch.append(item)
                size_bytes += item[1]
            if not batch and not signs:
                self._torn = None
                return
            self._torn = batch
            if self._dialer.can_resume:
                self._kept.extend(batch)
            for _ in batch:
                self._queue.popleft()
            self._queued_bytes = self._queued_bytes - size_bytes if self._queue else 0
            self._changed.notify_all()
            self._unsent = memoryview(self._session.send([*signs, *[item[0] for item in batch]]))
        try:
            sent_bytes = self._channel.send(self._unsent, socket.MSG_NOSIGNAL)
            self._unsent = self._unsent[sent_bytes:]
            self._moved_s = time.monotonic()
        except BlockingIOError:
            pass
        except OSError:
            if threading.current_thread() is self._thread:
                raise
        self._torn = None

    def _read(self) -> int:
        """Take what has come and hand it over; return how many bytes that were."""
        try:
            data = self._channel.recv(READ_BYTES)
        except BlockingIOError:
            return 0
        if not data:
            raise ConnectionLostError(self.address, "it closed the connection")
        self._hand_over(self._session.receive(data))
        return len(data)

    def _hand_over(self, records: Sequence[Record]) -> None:
        messages = []
        for message in decode_all(records, TO_CLIENT):
            if type(message) is Received:
                self._take_confirmation(message.total)
            else:
                messages.append(message)
        self._received += len(messages)
        self._deliver(messages)

    def _take_confirmation(self, count: int) -> None:
        with self._changed:
            if self._torn is not None:
                return  # it will be said again
            if not self._confirmed <= count <= self._confirmed + len(self._kept):
                raise WireError(f"it says that it received {count} messages, which cannot be")
            for _ in range(count - self._confirmed):
                self._kept.popleft()
            self._confirmed = count

    def _say_farewell(self) -> None:
        """End our side, and wait for the peer's: a close with unread data would cut off ours."""
        with contextlib.suppress(OSError):
            self._channel.shutdown(socket.SHUT_WR)
            self._channel.setblocking(True)
            deadline_s = time.monotonic() + _FAREWELL_S
            while (remaining_s := deadline_s - time.monotonic()) > 0:
                self._channel.settimeout(remaining_s)
                if not self._channel.recv(READ_BYTES):
                    return

    # --- when the connection is lost --------------------------------------------------------------

    def _come_back(self, loss: ConnectionLostError) -> None:
        """Go on over another connection. Raises `loss`, saying why there is none, when that cannot
        be done in time, and ClientClosedError.
        """
        begun_s, patience_s = time.monotonic(), RECONNECT_S
        pause_s, reason = _PAUSE_MIN_S, ""
        while not self._is_hopeless():
            self._require_use()
            left_s = begun_s + patience_s - time.monotonic()
            if left_s <= 0:
                reason = f"; it could not be reached again within {patience_s:g} s: {reason}"
                break
            try:
                line = self._dialer.dial(min(_DIAL_S, max(left_s, _PAUSE_MAX_S)), self._received)
            except AccessRefusedError as error:
                reason = f"; it does not take us back: {error.reason}"
                break
            except NoMasterError as error:
                reason = error.reason
                patience_s = OUTAGE_MAX_S if error.is_silent else RECONNECT_S
                self._pause(pause_s)
                pause_s = min(2 * pause_s, _PAUSE_MAX_S)
            else:
                self._resume(line)
                return
        else:
            reason = reason and f"; {reason}"
        raise ConnectionLostError(self.address, f"{loss.reason}{reason}")

    def _require_use(self) -> None:
        """Raise ClientClosedError if nobody needs the connection any more."""
        with self._changed:
            is_late = time.monotonic() - self._moved_s > _FAREWELL_S
            if self._closing and (is_late or not (self._queue or self._kept)):
                raise ClientClosedError

    def _pause(self, pause_s: float) -> None:
        """Wait before another attempt."""
        until_s = time.monotonic() + pause_s
        poll = select.poll()
        poll.register(self._wake_fd, select.POLLIN)
        while (left_s := until_s - time.monotonic()) > 0:
            if poll.poll(left_s * 1000):
                os.eventfd_read(self._wake_fd)
            self._require_use()

    def _resume(self, line: Line) -> None:
        """Say all again that the master does not confirm, over another connection."""
        with self._changed:
            torn, self._torn = self._torn, None
            ids = {id(item) for item in torn or ()}
            while self._kept and id(self._kept[-1]) in ids:
                self._kept.pop()
            while self._queue and id(self._queue[0]) in ids:
                self._queue.popleft()
            self._kept.extend(torn or ())  # now each is in one of the lists
            self._hand_over([line.early.pop(0)])  # how much of ours it has
            self._queue.extendleft(reversed(self._kept))
            self._queued_bytes = sum(size_bytes for _, size_bytes in self._queue)
            self._kept.clear()
            self._channel, self._session, self._early = line
            self._unsent = memoryview(b"")
            self._told = self._received
            self._moved_s = time.monotonic()


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
    is_hopeless: Callable[[], bool] = lambda: False,
) -> Connection:
    """Connect to `HOST:PORT`, `unix:@NAME` or `unix:PATH`, and prove our key.

    Raises NoMasterError, NotAMasterError, AccessRefusedError; within about `timeout_s`.
    """
    dialer = Dialer(address, key, role, cluster_id, about)
    connection = Connection(dialer, dialer.dial(timeout_s), is_hopeless)
    try:
        connection.start(deliver, on_lost)
    except BaseException:
        connection.close()
        raise
    return connection
