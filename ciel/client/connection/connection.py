"""A connection to the master: a session with a blocking API, which one thread serves.

Only that thread reads. It reads even while it cannot write, so that two full buffers never wait for
each other. It sends queued messages, many in a frame, and heartbeats. A caller that queues many
messages also sends them itself, as far as that does not block: the thread would need the
interpreter's lock to send them, and a busy caller releases this lock only every 5 ms.

If the connection is lost, the thread connects again, and the session continues. Both sides keep
messages until the other side has confirmed them, and send unconfirmed messages again. So each
message arrives exactly once. The client repairs a connection in the same way if Ctrl-C has
interrupted a thread while it was sending (see `_sending`).
"""

from __future__ import annotations

import contextlib
import math
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
from ciel.client.connection.repeating import to_repeat
from ciel.client.errors import (
    AccessRefusedError,
    ClientClosedError,
    ClientError,
    ConnectionLostError,
    ForkedError,
    NoMasterError,
    NotAMasterError,
)
from ciel.client.forks import register_fork
from ciel.client.locks import ForkSafeCondition
from ciel.core.events import (
    CLIENT_GRACE_S,
    HEARTBEAT_INTERVAL_S,
    LOST_AFTER_S,
    Heartbeat,
    MastersNamed,
    Message,
    Received,
    ReleaseObjects,
    StartOver,
    WantObjects,
)
from ciel.wire import codec
from ciel.wire.errors import WireError
from ciel.wire.frames import Record, encode_frames, estimate_sizes
from ciel.wire.limits import HELLO_TIMEOUT_S
from ciel.wire.messages import FROM_CLIENT, TO_CLIENT, decode_all, encode, encode_all, kind_of
from ciel.wire.session_counter import SessionCounter

SILENT_MAX_S: Final = 15.0
"""After this time without a message the client considers the connection lost. It is five times the
limit of other peers, since the job itself may keep this host busy. If another master may take over,
the limit is `LOST_AFTER_S`."""

RECONNECT_S = CLIENT_GRACE_S
"""How long the client tries to reconnect if another program answers: then the master may run, and
cancels the client's jobs after this time."""
ABSENCE_MAX_S = 60.0
"""How long the client tries to reconnect while no master answers: it may be started again with its
journal, or the network may be down. `CIEL_RECONNECT_S` sets another time."""
ABSENCE_REPORTED_S = 1.0
"""After this time the client reports that the master is away."""

_QUEUED_MAX_BYTES = 1 << 20  # thousands of tasks: the garbage collector visits all of them
_FRAME_BYTES = 256 << 10  # the approximate limit: while the master reads a frame, other peers wait
_FRAME_RECORDS = 1024
_SEND_RECORDS = 128  # if this many records are queued, the caller sends them
_TRIAL_BYTES = 1 << 20  # a larger message is encoded before it is queued: it may be too large
_FAREWELL_S = 2.0
_CONFIRM_EVERY = 256  # received messages; fewer are confirmed by the next heartbeat
_DIAL_S = 2.0  # for one attempt to reconnect: `close` waits for it
_PAUSE_MIN_S, _PAUSE_MAX_S = 0.02, 0.5  # between attempts
_PAUSE_GROWTH = 1.25  # so a pause is at most a fifth of the time that the master was away

Deliver = Callable[[list[Message]], None]
StartAgain = Callable[[], tuple[Sequence[Message], Sequence[Message]]]
"""Returns the messages that a master needs which does not know this client: those to send before
the unconfirmed ones, and those to send after them."""
OnLost = Callable[[ClientError], None]
Queued = tuple[Record, int]


class Connection:
    """An open session. Thread-safe, in the process that opened it.

    Its thread calls `deliver` with received messages, and `on_lost` at most once. For a heartbeat,
    which arrives each second if nothing else does, the list is empty. `is_hopeless` returns, after
    the connection was lost, whether the master has ended for good; otherwise the client tries to
    reconnect for `absence_max_s`. It calls `on_away` with a sentence when that takes long.
    """

    def __init__(
        self,
        dialer: Dialer,
        line: Line,
        is_hopeless: Callable[[], bool],
        start_again: StartAgain,
        *,
        absence_max_s: float = ABSENCE_MAX_S,
        on_away: Callable[[str], object] = lambda text: None,
    ) -> None:
        """Serve an open session; use `open_connection`."""
        self.address = dialer.address
        self.is_away = False
        """Whether the connection was lost, and is being opened again."""
        self._absence_max_s = absence_max_s
        self._on_away = on_away
        self.read_interval_s = 0.0
        """How long the thread may leave messages unread; waking for each message takes 0.1 ms."""
        self._start_again = start_again
        self._dialer = dialer
        self._channel, self._session, self._early = line
        self._is_hopeless = is_hopeless
        self._pid = os.getpid()
        self._changed = ForkSafeCondition()
        self._queue: deque[Queued] = deque()  # with the estimated size on the wire
        self._queued_bytes = 0
        self._kept: deque[Queued] = deque()  # sent and not confirmed
        self._sending: list[Queued] | None = None
        """The records that a thread is moving from `_queue` to `_kept` and sending. If it is not
        None while the lock is free, nothing can be sent: either the connection is lost, or the
        thread was interrupted, and it is unknown how much it has sent."""
        self._unsent = memoryview(b"")  # the rest of a frame that the socket did not accept
        self._moved_s = time.monotonic()  # the time of the last send
        self._counter = SessionCounter()
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._closing = False
        self._ended: ClientError | None = None
        self._thread = threading.Thread(target=self._run, name="ciel-connection", daemon=True)
        register_fork(self)

    def start(self, deliver: Deliver, on_lost: OnLost) -> None:
        """Start the thread."""
        self._deliver = deliver
        self._on_lost = on_lost
        self._thread.start()

    def send(self, *messages: Message) -> None:
        """Queue messages; waits while the queue is full.

        Raises ConnectionLostError, ClientClosedError, ForkedError, and EncodeError or
        RecordTooLargeError for a message that cannot be sent; in that case none is sent.
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
                    if not self._queue or self._sending is not None:
                        self._wake()
                    self._queue.extend(zip(records, sizes, strict=True))
                    self._queued_bytes += size_bytes
                    if len(self._queue) >= _SEND_RECORDS and self._sending is None:
                        self._push()
                    return
                room = self._changed.change_lock()
            room.acquire()

    def close(self) -> None:
        """Send queued messages, for two seconds at most, and close the connection."""
        if os.getpid() != self._pid:
            return  # a forked child has no such thread, and its parent uses the socket
        with self._changed:
            self._closing = True
            self._moved_s = time.monotonic()  # a master that does not read gets two seconds
            self._wake()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()

    def forked(self) -> None:
        """Close the socket of this copy in a forked child.

        Otherwise the master would not notice the end of the parent.
        """
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
        """Wake the thread; the caller holds the lock, under which the descriptor is closed."""
        if self._wake_fd >= 0:
            os.eventfd_write(self._wake_fd, 1)

    # --- the thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        # A signal that this thread receives would not interrupt the main thread.
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
        except BaseException as error:  # a bug; callers must not wait for ever
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
        """Serve until `close`, and return True; reconnect after a loss, and return False."""
        try:
            self._serve()
            return True
        except OSError as error:
            loss = ConnectionLostError(self.address, error.strerror or str(error))
        except ConnectionLostError as error:
            loss = error
        with self._changed:
            self._sending = self._sending or []
            self._channel.close()
        if not self._dialer.can_resume:
            raise loss
        self._reconnect(loss)
        return False

    def _serve(self) -> None:
        """Send and receive until `close` was called and all is sent, or the connection is lost."""
        early, self._early = self._early, []
        self._hand_over(early)
        poll = select.poll()
        poll.register(self._wake_fd, select.POLLIN)
        heard_s = time.monotonic()
        read_bytes = 0
        while True:
            with self._changed:
                if self._sending is not None:
                    reason = "a thread of this program was interrupted while it sent"
                    raise ConnectionLostError(self.address, reason)
                self._push(*self._due_control())
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
            silent_max_s = LOST_AFTER_S if self._dialer.has_others else SILENT_MAX_S
            if time.monotonic() - heard_s > silent_max_s:
                self._dialer.leave_address()
                raise ConnectionLostError(self.address, f"it was silent for {silent_max_s:g} s")
            if self._closing and time.monotonic() - self._moved_s > _FAREWELL_S:
                return

    def _wait_s(self, unsent: bool) -> float:
        """Return the longest time to wait for the socket."""
        if unsent:
            return _FAREWELL_S if self._closing else HEARTBEAT_INTERVAL_S
        if self._queue:
            return 0.0
        return max(0.0, self._moved_s + HEARTBEAT_INTERVAL_S - time.monotonic())

    def _due_control(self) -> list[Record]:
        """Return a confirmation of received messages, or a heartbeat, if one of them is due.

        Neither counts as a message.
        """
        if self._unsent:
            return []
        unconfirmed = self._counter.unreported if self._dialer.can_resume else 0
        is_idle = not self._queue and time.monotonic() - self._moved_s >= HEARTBEAT_INTERVAL_S
        if unconfirmed >= _CONFIRM_EVERY or (unconfirmed and is_idle):
            return [encode(Received(self._counter.report()))]
        return [encode(Heartbeat())] if is_idle else []

    def _push(self, *control: Record) -> None:
        """Send a frame of queued records, as far as the socket accepts it; requires the lock.

        `control` records are sent first, if no frame is unfinished. Raises OSError only in the
        connection's thread; if another thread calls this method, that thread ignores the error, and
        the connection's thread will meet it, too.
        """
        self._sending = []
        if not self._unsent:
            batch: list[Queued] = []
            size_bytes = 0
            for item in self._queue:
                if len(batch) == _FRAME_RECORDS or size_bytes >= _FRAME_BYTES:
                    break
                batch.append(item)
                size_bytes += item[1]
            if not batch and not control:
                self._sending = None
                return
            self._sending = batch
            if self._dialer.can_resume:
                self._kept.extend(batch)
            for _ in batch:
                self._queue.popleft()
            self._queued_bytes = self._queued_bytes - size_bytes if self._queue else 0
            self._changed.notify_all()
            self._unsent = memoryview(self._session.send([*control, *[item[0] for item in batch]]))
        try:
            sent_bytes = self._channel.send(self._unsent, socket.MSG_NOSIGNAL)
            self._unsent = self._unsent[sent_bytes:]
            self._moved_s = time.monotonic()
        except BlockingIOError:
            pass
        except OSError:
            if threading.current_thread() is self._thread:
                raise
        self._sending = None

    def _read(self) -> int:
        """Read and deliver messages; return the number of bytes."""
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
            elif type(message) is MastersNamed:
                self._counter.received += 1
                self._dialer.name([url.removeprefix("http://") for url in message.urls])
            else:
                messages.append(message)
        self._counter.received += len(messages)
        self._deliver(messages)

    def _take_confirmation(self, count: int) -> None:
        with self._changed:
            if self._sending is not None:
                return  # the next connection starts with a confirmation
            if not self._counter.take_confirmation(count, self._kept):
                raise WireError(f"it confirms {count} messages, which is impossible")

    def _say_farewell(self) -> None:
        """Shut down the sending side, and read until the master closes the connection.

        Closing a socket with unread data would discard data that the master has not read.
        """
        with contextlib.suppress(OSError):
            self._channel.shutdown(socket.SHUT_WR)
            self._channel.setblocking(True)
            deadline_s = time.monotonic() + _FAREWELL_S
            while (remaining_s := deadline_s - time.monotonic()) > 0:
                self._channel.settimeout(remaining_s)
                if not self._channel.recv(READ_BYTES):
                    return

    # --- reconnecting -----------------------------------------------------------------------------

    def _reconnect(self, loss: ConnectionLostError) -> None:
        """Continue the session over another connection.

        Raises `loss`, with the reason, if that does not succeed in time, and ClientClosedError.
        """
        started_s = time.monotonic()
        answered_s: float | None = None  # since when another program answers
        pause_s, reason, is_reported = _PAUSE_MIN_S, "", False
        self.is_away = True
        while not self._is_hopeless():
            self._require_use()
            now_s, since_s, patience_s = time.monotonic(), started_s, self._absence_max_s
            if answered_s is not None:
                since_s, patience_s = answered_s, min(RECONNECT_S, patience_s)
            left_s = since_s + patience_s - now_s
            if reason and not is_reported and now_s - started_s >= ABSENCE_REPORTED_S:
                is_reported = True
                self._on_away(absence_text(self.address, reason, patience_s))
            if left_s <= 0:
                reason = f"; it could not be reached again within {patience_s:g} s: {reason}"
                break
            try:
                line = self._dialer.dial_any(
                    min(_DIAL_S, max(left_s, _PAUSE_MAX_S)), self._counter.received
                )
                self.address = self._dialer.address
            except AccessRefusedError as error:
                reason = f"; it rejected the session: {error.reason}"
                break
            except NoMasterError as error:
                reason = error.reason
                if not isinstance(error, NotAMasterError) or error.is_silent:
                    answered_s = None
                elif answered_s is None:
                    answered_s = time.monotonic()
                self._pause(pause_s)
                pause_s = min(_PAUSE_GROWTH * pause_s, _PAUSE_MAX_S)
            else:
                self._resume(line)
                self.is_away = False
                return
        else:
            reason = reason and f"; {reason}"
        raise ConnectionLostError(self.address, f"{loss.reason}{reason}")

    def _require_use(self) -> None:
        """Raise ClientClosedError if the connection is closed and has nothing to send."""
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
        """Continue over another connection: send all messages that the master does not confirm."""
        [first] = decode_all([line.early[0]], TO_CLIENT)
        before: Sequence[Message] = ()
        after: Sequence[Message] = ()
        if isinstance(first, StartOver):
            before, after = self._start_again()
        with self._changed:
            interrupted, self._sending = self._sending, None
            ids = {id(item) for item in interrupted or ()}
            while self._kept and id(self._kept[-1]) in ids:
                self._kept.pop()
            while self._queue and id(self._queue[0]) in ids:
                self._queue.popleft()
            self._kept.extend(interrupted or ())  # now each is in exactly one of the lists
            line.early.pop(0)
            if isinstance(first, Received):
                self._take_confirmation(first.total)
            else:
                self._counter = SessionCounter()
                self._counter.received = 1
            self._queue.extendleft(reversed(self._kept))
            if isinstance(first, StartOver):
                _take_back_releases(self._queue)
                self._queue.extendleft(reversed(_queued(before)))
                self._queue.extend(_queued(after))
            self._queued_bytes = sum(size_bytes for _, size_bytes in self._queue)
            self._kept.clear()
            self._channel, self._session, self._early = line
            self._unsent = memoryview(b"")
            if isinstance(first, Received):
                self._counter.report()  # the dialer has sent it
            self._moved_s = time.monotonic()


def absence_text(address: str, reason: str, patience_s: float) -> str:
    """Describe for users that the client waits for a master."""
    limit = "" if math.isinf(patience_s) else f" for up to {patience_s:g} s"
    return f"the master at {address} is away ({reason}); waiting for it{limit}"


def _queued(messages: Sequence[Message]) -> list[Queued]:
    records = encode_all(messages)
    return list(zip(records, estimate_sizes(records), strict=True))


def _take_back_releases(queue: deque[Queued]) -> None:
    """Change the queued releases as `to_repeat` says."""
    kinds = (kind_of(WantObjects), kind_of(ReleaseObjects))
    places = [place for place, (record, _) in enumerate(queue) if record[0][0] in kinds]
    records = [queue[place][0] for place in places]
    plain = [(codec.decode(codec.encode(fields)), payload) for fields, payload in records]
    again = _queued(to_repeat(decode_all(plain, FROM_CLIENT)))
    for place, item in zip(places, again, strict=True):
        queue[place] = item


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
    start_again: StartAgain = lambda: ((), ()),
    absence_max_s: float = ABSENCE_MAX_S,
    on_away: Callable[[str], object] = lambda text: None,
) -> Connection:
    """Connect to `HOST:PORT`, `unix:@NAME` or `unix:PATH`, and prove the key.

    Returns or raises within about `timeout_s`: NoMasterError, NotAMasterError, AccessRefusedError.
    """
    dialer = Dialer(address, key, role, cluster_id, about)
    connection = Connection(
        dialer, dialer.dial(timeout_s), is_hopeless, start_again,
        absence_max_s=absence_max_s, on_away=on_away,
    )  # fmt: skip
    try:
        connection.start(deliver, on_lost)
    except BaseException:
        connection.close()
        raise
    return connection
