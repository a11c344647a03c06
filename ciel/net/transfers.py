"""Downloads objects from other workers, by libcurl on the reactor.

The reactor watches the sockets and timers of libcurl, and calls it when they are ready. All
transfers of a process share one pool of connections. A limited number runs at a time, and the rest
is queued. Bytes are written to the sink in small batches as they arrive; no body is kept in memory.

A body without a length is still being produced. It may take any time. So it does not count against
the limit, and the caller decides how long a silence may last. It is complete when its holder sends
the last chunk, never because the connection ends.

    done = transfers.fetch(url, writer, headers=lambda: {"Authorization": ticket()})
    done.addCallbacks(lambda result: writer.commit(), lambda failure: writer.abort())
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, Protocol

import pycurl
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReadWriteDescriptor
from twisted.python.failure import Failure
from zope.interface import implementer

from ciel.net.errors import TransferError
from ciel.net.ticks import DelayedCall
from ciel.net.url_policy import UrlPolicy
from ciel.wire.codec import decode
from ciel.wire.errors import DecodeError

CHECKSUM_HEADER: Final = "Ciel-Checksum"
"""The checksum of the whole object, whichever part of it was requested."""

CONCURRENT_MAX: Final = 16
"""How many transfers run at a time: enough to fill a link from several hosts, few enough to share
it."""

BUFFER_BYTES: Final = 1024 * 1024
BATCH_BYTES: Final = 64 * 1024
"""The size of a batch. libcurl passes on 16 KiB at a time, whatever its buffer size. A sink is
called for a batch, or for fewer bytes at the end of an iteration. A batch of this size is still in
the CPU cache, and its memory comes from the heap instead of the kernel."""

CONNECT_TIMEOUT_S: Final = 5.0
STALL_TIMEOUT_S: Final = 15
_UNANSWERED: Final = frozenset(
    (pycurl.E_COULDNT_CONNECT, pycurl.E_OPERATION_TIMEDOUT, pycurl.E_RECV_ERROR)
)
_ANSWERS: Final = frozenset((errno.ECONNREFUSED, errno.ECONNRESET))  # sent by the host's kernel

STALL_BYTES_PER_S: Final = 1024
"""A transfer slower than this for the stall timeout has failed."""

KEEPALIVE_S: Final = 15
"""The interval of TCP keep-alive probes, which detect that a holder's host lost power."""

_ERROR_TEXT_MAX_BYTES = 4096


class Sink(Protocol):
    """Receives the bytes. An exception of `write` ends the transfer."""

    def write(self, chunk: bytes, /) -> object: ...


class Begun(NamedTuple):
    """The header of a response. `size_bytes`: None if the holder does not know it yet."""

    size_bytes: int | None
    checksum: str | None


class TransferResult(NamedTuple):
    """The result of a successful transfer. `checksum` is the whole object's, if it was sent."""

    status: int
    size_bytes: int
    checksum: str | None


Headers = Mapping[str, str] | Callable[[], Mapping[str, str]]
"""The headers of a request, or a function that returns them when the request is sent, for headers
that expire, such as tickets."""


class Transfers:
    """Downloads over HTTP from other workers, or from URLs that `url_policy` allows.

    Each instance has its own connections. `close` ends all transfers.
    """

    def __init__(
        self,
        reactor: Any,
        *,
        concurrent_max: int = CONCURRENT_MAX,
        url_policy: UrlPolicy | None = None,
    ) -> None:
        self._reactor = reactor
        self._url_policy = url_policy
        self._concurrent_max = concurrent_max
        self._waiting: deque[_Transfer] = deque()
        self._running: dict[pycurl.Curl, _Transfer] = {}
        self._changed: set[_Transfer] = set()  # running transfers for which `settle` is due
        self._spare: list[pycurl.Curl] = []
        self._sockets: dict[int, _Socket] = {}
        self._timer: DelayedCall | None = None
        self._in_curl = False  # within libcurl, which must not be called recursively
        self._is_closed = False
        self._multi = pycurl.CurlMulti()
        self._multi.setopt(pycurl.M_SOCKETFUNCTION, self._watch)
        self._multi.setopt(pycurl.M_TIMERFUNCTION, self._wait)
        self._multi.setopt(pycurl.M_MAXCONNECTS, concurrent_max)

    @property
    def running(self) -> int:
        return len(self._running)

    def fetch(
        self,
        url: str,
        sink: Sink,
        *,
        headers: Headers | None = None,
        offset_bytes: int = 0,
        length_bytes: int | None = None,
        expected_size_bytes: int | None = None,
        begun: Callable[[Begun], object] | None = None,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
        stall_timeout_s: int = STALL_TIMEOUT_S,
    ) -> Deferred[TransferResult]:
        """Write the object at `url` into `sink`, from `offset_bytes` on: `length_bytes`, or the
        rest.

        `expected_size_bytes` is the size of the whole object; another size is an error. The
        transfer calls `begun` with the header of a successful response. The transfer fails with
        `TransferError`, or with an exception of the sink or of `begun`. Cancelling the Deferred
        ends it at once.
        """
        transfer = _Transfer(
            url, sink, headers or {}, offset_bytes, length_bytes, expected_size_bytes
        )
        transfer.begun = begun
        transfer.may_be_endless = self._url_policy is None
        transfer.changed = self._changed.add
        transfer.connect_timeout_s = connect_timeout_s
        transfer.stall_timeout_s = stall_timeout_s
        transfer.done = Deferred(lambda _: self._give_up(transfer))
        if self._is_closed:
            transfer.done.errback(TransferError(url, "this process starts no more transfers"))
        else:
            self._waiting.append(transfer)
            self._schedule()
        return transfer.done

    def close(self) -> None:
        """Fail all transfers and close every socket. Must not be called in a sink."""
        self._is_closed = True
        ended = [*self._running.values(), *self._waiting]
        self._waiting.clear()
        for transfer in ended:
            transfer.error = TransferError(transfer.url, "the transfers of this process have ended")
        for curl in list(self._running):
            self._release(curl)
        for socket in self._sockets.values():
            socket.watch(pycurl.POLL_REMOVE)
        self._sockets.clear()
        self._stop_timer()
        self._multi.close()
        for curl in self._spare:
            curl.close()
        self._spare.clear()
        for transfer in ended:
            transfer.finish()

    # --- calls from libcurl to the reactor --------------------------------------------------------

    def _watch(self, what: int, fd: int, multi: object, data: object) -> None:
        socket = self._sockets.get(fd)
        if what == pycurl.POLL_REMOVE:
            if socket is not None:
                del self._sockets[fd]
                socket.watch(what)
            return
        if socket is None:
            socket = self._sockets[fd] = _Socket(fd, self._reactor, self._act)
        socket.watch(what)

    def _wait(self, timeout_ms: int) -> None:
        self._stop_timer()
        if timeout_ms >= 0 and not self._is_closed:
            self._timer = self._reactor.callLater(
                timeout_ms / 1000, self._act, pycurl.SOCKET_TIMEOUT, 0
            )

    def _stop_timer(self) -> None:
        if self._timer is not None and self._timer.active():
            self._timer.cancel()
        self._timer = None

    # --- calls from the reactor to libcurl --------------------------------------------------------

    def _act(self, fd: int, events: int) -> None:
        if self._is_closed:
            return
        self._in_curl = True
        try:
            self._multi.socket_action(fd, events)
            while self._changed:
                self._changed.pop().settle()
        finally:
            self._in_curl = False
        self._schedule()

    def _schedule(self) -> None:
        """Finish ended transfers, and start waiting ones."""
        if self._in_curl or self._is_closed:
            return
        ended = []
        for transfer in [t for t in self._running.values() if t.is_given_up or t.has_failed]:
            self._release(transfer.curl)
            if not transfer.is_given_up:
                ended.append(transfer)
        left = 1
        while left:
            left, good, bad = self._multi.info_read()
            for curl, code, text in [*((curl, 0, "") for curl in good), *bad]:
                transfer = self._running[curl]
                transfer.determine_result(code, text)
                self._release(curl)
                ended.append(transfer)
        while self._waiting and self._limited_count() < self._concurrent_max:
            self._start(self._waiting.popleft())
        for transfer in ended:  # last, since their callbacks may fetch, cancel or close
            transfer.finish()

    def _limited_count(self) -> int:
        return sum(not transfer.is_endless for transfer in self._running.values())

    def _start(self, transfer: _Transfer) -> None:
        curl = self._spare.pop() if self._spare else pycurl.Curl()
        try:
            transfer.prepare(curl)
            if self._url_policy is not None:
                self._url_policy.prepare(curl, transfer.refuse)
        except Exception:
            self._spare.append(curl)
            transfer.fail(Failure())
            return
        self._running[curl] = transfer
        self._multi.add_handle(curl)

    def _release(self, curl: pycurl.Curl) -> None:
        del self._running[curl]
        self._multi.remove_handle(curl)
        curl.reset()
        self._spare.append(curl)

    def _give_up(self, transfer: _Transfer) -> None:
        transfer.is_given_up = True
        if transfer in self._waiting:
            self._waiting.remove(transfer)
        self._schedule()


class _Transfer:
    """One transfer, from its place in the queue to its result."""

    done: Deferred[TransferResult]
    curl: pycurl.Curl
    begun: Callable[[Begun], object] | None
    may_be_endless: bool
    changed: Callable[[_Transfer], None]
    connect_timeout_s: float
    stall_timeout_s: int

    def __init__(
        self,
        url: str,
        sink: Sink,
        headers: Headers,
        offset_bytes: int,
        length_bytes: int | None,
        whole_bytes: int | None,
    ) -> None:
        self.url = url
        self.error: Exception | None = None
        self.is_given_up = False
        self.has_failed = False  # by an error outside of libcurl's callbacks
        self.is_endless = False  # the holder has sent no length
        self._pieces: list[bytes] = []
        self._pieces_bytes = 0
        self._sink = sink
        self._headers = headers
        self._offset_bytes = offset_bytes
        self._length_bytes = length_bytes
        self._whole_bytes = whole_bytes
        self._expected_bytes = length_bytes
        if length_bytes is None and whole_bytes is not None:
            self._expected_bytes = whole_bytes - offset_bytes
        self._taken_bytes = 0
        self._status = 0
        self._fields: dict[str, str] = {}
        self._checksum: str | None = None
        self._has_begun = False
        self._error_text = b""

    def prepare(self, curl: pycurl.Curl) -> None:
        """Set up a handle. Raise exceptions of `headers`, or pycurl.error for an invalid URL."""
        self.curl = curl
        headers = self._headers() if callable(self._headers) else self._headers
        for option, value in (
            (pycurl.URL, self.url),
            (pycurl.HTTPHEADER, [f"{name}: {value}" for name, value in headers.items()]),
            (pycurl.PROTOCOLS, pycurl.PROTO_HTTP),
            (pycurl.HTTP_VERSION, pycurl.CURL_HTTP_VERSION_1_1),
            (pycurl.PATH_AS_IS, 1),  # a ticket is for the exact path
            (pycurl.FOLLOWLOCATION, 0),
            (pycurl.PROXY, ""),  # not even one from the environment
            (pycurl.NOSIGNAL, 1),
            (pycurl.USERAGENT, "ciel"),
            (pycurl.BUFFERSIZE, BUFFER_BYTES),
            (pycurl.CONNECTTIMEOUT_MS, int(self.connect_timeout_s * 1000)),
            (pycurl.LOW_SPEED_LIMIT, STALL_BYTES_PER_S),
            (pycurl.LOW_SPEED_TIME, self.stall_timeout_s),
            (pycurl.TCP_KEEPALIVE, 1),
            (pycurl.TCP_KEEPIDLE, KEEPALIVE_S),
            (pycurl.TCP_KEEPINTVL, KEEPALIVE_S),
            (pycurl.WRITEFUNCTION, self._receive_body),
            (pycurl.HEADERFUNCTION, self._receive_header),
        ):
            curl.setopt(option, value)
        if self._is_of_part:
            start, length = self._offset_bytes, self._length_bytes
            curl.setopt(pycurl.RANGE, f"{start}-{'' if length is None else start + length - 1}")

    def refuse(self, reason: str) -> None:
        """Make the transfer fail with this reason."""
        self.error = TransferError(self.url, reason)

    def determine_result(self, code: int, text: str) -> None:
        """Determine the result, while the handle still has the details."""
        self._status = self.curl.getinfo(pycurl.RESPONSE_CODE)
        if self.error is not None:
            return
        if self._status not in (0, self._wanted_status):
            self.error = TransferError(self.url, self._refusal(), self._status)
        elif code == pycurl.E_PARTIAL_FILE:
            reason = f"the body ended after {self._taken_bytes} bytes: {text}"
            self.error = TransferError(self.url, reason, self._status)
        elif code == pycurl.E_OPERATION_TIMEDOUT and self._status:
            reason = f"no data came for {self.stall_timeout_s} s, after {self._taken_bytes} bytes"
            self.error = TransferError(self.url, reason, self._status, is_unanswered=True)
        elif code:
            is_unanswered = code in _UNANSWERED and self._os_error() not in _ANSWERS
            self.error = TransferError(
                self.url, text or f"libcurl error {code}", self._status, is_unanswered=is_unanswered
            )
        elif self._expected_bytes is not None and self._taken_bytes != self._expected_bytes:
            reason = f"received {self._taken_bytes} bytes instead of {self._expected_bytes}"
            self.error = TransferError(self.url, reason, self._status)

    def _os_error(self) -> int:
        return int(self.curl.getinfo(pycurl.OS_ERRNO))

    def finish(self) -> None:
        """Fire the Deferred, unless its owner has cancelled it."""
        if self.is_given_up:
            return
        if self.error is not None:
            self.fail(self.error)
        else:
            self.done.callback(TransferResult(self._status, self._taken_bytes, self._checksum))

    def fail(self, error: Exception | Failure) -> None:
        self.done.errback(error)

    @property
    def _is_of_part(self) -> bool:
        return self._offset_bytes > 0 or self._length_bytes is not None

    @property
    def _wanted_status(self) -> int:
        return 206 if self._is_of_part else 200

    def _receive_body(self, data: bytes) -> int | None:
        """Receive a piece of the body; a result other than None makes libcurl end the transfer."""
        if not self._has_begun:
            self._error_text += data[:_ERROR_TEXT_MAX_BYTES]
            return None if len(self._error_text) < _ERROR_TEXT_MAX_BYTES else -1
        if not self._pieces:
            self.changed(self)
        self._pieces.append(data)
        self._pieces_bytes += len(data)
        return None if self._pieces_bytes < BATCH_BYTES or self._pass_on() else -1

    def settle(self) -> None:
        """Do the work that must wait until libcurl has returned."""
        if self.is_endless:
            self.curl.setopt(pycurl.LOW_SPEED_TIME, 0)
        if self.error is None:
            self.has_failed = not self._pass_on()

    def _pass_on(self) -> bool:
        """Write received bytes to the sink; False if it must get no more."""
        if self.is_given_up:
            return False
        if not self._pieces:
            return True
        data = b"".join(self._pieces)
        self._pieces.clear()
        self._pieces_bytes = 0
        self._taken_bytes += len(data)
        try:
            if self._expected_bytes is not None and self._taken_bytes > self._expected_bytes:
                reason = f"more than the {self._expected_bytes} expected bytes were received"
                raise TransferError(self.url, reason, self._status)
            self._sink.write(data)
        except Exception as error:
            self.error = error
        return self.error is None

    def _receive_header(self, line: bytes) -> int | None:
        """Receive a line of the header; a result other than None ends the transfer."""
        if self._has_begun:
            return None  # a trailer; ignore it
        text = line.decode("latin-1").rstrip()
        if text.startswith("HTTP/"):
            self._status = int(text.split(None, 2)[1])
            self._fields.clear()
        elif text:
            name, _, value = text.partition(":")
            self._fields[name.lower()] = value.strip()
        elif self._status == self._wanted_status:
            self._has_begun = True
            try:
                self._begin()
            except Exception as error:
                self.error = error
                return -1
        return None

    def _begin(self) -> None:
        self._checksum = self._fields.get(CHECKSUM_HEADER.lower())
        length = self._fields.get("content-length")
        if self._fields.get("transfer-encoding", "").lower() == "chunked":
            length = None
            if self.may_be_endless:
                self.is_endless = True
                self.changed(self)
        elif length is None:
            reason = "the response has no length, so a truncated body cannot be detected"
            raise TransferError(self.url, reason, self._status)
        if self._length_bytes is not None and self._whole_bytes is not None:
            _, _, whole = self._fields.get("content-range", "").rpartition("/")
            if whole != str(self._whole_bytes):
                reason = f"the object has {whole} bytes, not {self._whole_bytes}"
                raise TransferError(self.url, reason, self._status)
        if self.begun is not None:
            size_bytes = None if length is None else int(length) + self._offset_bytes
            self.begun(Begun(size_bytes, self._checksum))

    def _refusal(self) -> str:
        """Return the error text of the response, if it has the form that our sites send."""
        try:
            answer = decode(self._error_text)
        except DecodeError:
            answer = None
        text = answer.get("error") if isinstance(answer, dict) else None
        return str(text or f"expected {self._wanted_status}")


@implementer(IReadWriteDescriptor)
class _Socket:
    """Adapts a socket of libcurl to the reactor."""

    def __init__(self, fd: int, reactor: Any, act: Callable[[int, int], None]) -> None:
        self._fd = fd
        self._reactor = reactor
        self._act = act

    def fileno(self) -> int:
        return self._fd

    def logPrefix(self) -> str:
        return "transfers"

    def doRead(self) -> None:
        self._act(self._fd, pycurl.CSELECT_IN)

    def doWrite(self) -> None:
        self._act(self._fd, pycurl.CSELECT_OUT)

    def connectionLost(self, reason: Failure) -> None:
        self._act(self._fd, pycurl.CSELECT_ERR)

    def watch(self, what: int) -> None:
        if what & pycurl.POLL_IN:
            self._reactor.addReader(self)
        else:
            self._reactor.removeReader(self)
        if what & pycurl.POLL_OUT:
            self._reactor.addWriter(self)
        else:
            self._reactor.removeWriter(self)
