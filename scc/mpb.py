"""Message passing between cores that share only memory: the binding of `include/mpb.h`.

Only one thread at a time may use a `Core`, except for `bell`, `sleep` and `ring`. Timeouts are in
seconds; None means as long as the peer is alive. Signals can interrupt every wait.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any, Final, Protocol, Self

from ciel.core.errors import CielError
from ciel.scc.builds import Build, load

ANY: Final = 0xFFFFFFFF
CORES_MAX: Final = 64
SEGMENT: Final = "messages"
SLICE_US: Final = 200_000
"""A wait returns this often, so that Python can handle signals."""


class MpbError(CielError):
    """A call failed. `code` is an error of mpb.h; `core` is the peer, or None."""

    def __init__(self, code: int, text: str, core: int | None = None) -> None:
        self.code = code
        self.core = core
        super().__init__(text if core is None else f"core {core}: {text}")


class CoreGoneError(MpbError):
    """The peer died, detached, or gave up the message."""


class MpbTimeoutError(MpbError):
    """The timeout passed. `may_arrive`: the message is in the buffer, and may still be received."""

    def __init__(self, code: int, text: str, core: int | None, may_arrive: bool) -> None:
        self.may_arrive = may_arrive
        super().__init__(code, text, core)


class MessageSizeError(MpbError):
    """The message is larger than the receive buffer; it can still be received."""

    def __init__(self, code: int, text: str, core: int | None, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        super().__init__(code, f"{text}: it has {size_bytes:,} bytes", core)


def _error(module: Any, code: int, core: int | None = None, size_bytes: int = 0) -> MpbError:
    lib = module.lib
    text = module.ffi.string(lib.mpb_error_text(code)).decode()
    if code == lib.MPB_ERROR_SYSTEM:
        text = f"{text}: {os.strerror(module.ffi.errno)}"
    if code in (lib.MPB_ERROR_PEER, lib.MPB_ERROR_REFUSED):
        return CoreGoneError(code, text, core)
    if code in (lib.MPB_ERROR_TIMEOUT, lib.MPB_ERROR_UNSURE):
        return MpbTimeoutError(code, text, core, code == lib.MPB_ERROR_UNSURE)
    if code == lib.MPB_ERROR_SIZE:
        return MessageSizeError(code, text, core, size_bytes)
    return MpbError(code, text, core)


def segment_bytes(core_count: int) -> int:
    """Return the size of a segment for `core_count` cores. Raises MpbError."""
    module = load("mpb")
    size_bytes: int = module.lib.mpb_segment_bytes(core_count)
    if size_bytes < 0:
        raise _error(module, size_bytes)
    return size_bytes


def make_segment(fd: int, core_count: int) -> None:
    """Turn a file that no process uses yet into a segment. Raises MpbError, OSError."""
    module = load("mpb")
    size_bytes = segment_bytes(core_count)
    os.ftruncate(fd, size_bytes)
    with mmap.mmap(fd, size_bytes) as mapping:
        base = module.ffi.from_buffer(mapping)
        code = module.lib.mpb_format(_memory(module, base, size_bytes, -1), core_count)
        module.ffi.release(base)
    if code < 0:
        raise _error(module, code)


def segment_core(
    directory_fd: int, number: int, core_count: int, at_end: Callable[[], object] = lambda: None
) -> Core:
    """Attach as a core of the segment in a directory, which is created if it is missing.

    The segment has twice as many cores as `core_count`, at most 64: bridges use the upper half.
    Raises MpbError, OSError.
    """
    directory = f"/proc/self/fd/{directory_fd}"
    place = Path(directory, SEGMENT)
    if not place.exists():
        with tempfile.NamedTemporaryFile(dir=directory) as made:
            make_segment(made.fileno(), min(2 * core_count, CORES_MAX))
            os.posix_fallocate(made.fileno(), 0, os.fstat(made.fileno()).st_size)
            with suppress(FileExistsError):  # another process was faster
                os.link(made.name, place)
    return Core(place, number, at_end=at_end)


def _memory(module: Any, base: Any, size_bytes: int, fd: int) -> Any:
    fields = {"base": base, "size_bytes": size_bytes, "fd": fd}
    return module.ffi.new("struct mpb_memory *", fields)


class Request:
    """A pending send or receive; made by a `Core`."""

    __slots__ = ("_kept", "_raw", "_room")

    def __init__(self, raw: Any, kept: Any, room: bytearray) -> None:
        self._raw = raw
        self._kept = kept  # keeps the buffer alive while C may use it
        self._room = room

    @property
    def is_over(self) -> bool:
        return bool(self._raw.status != 1)

    @property
    def core(self) -> int:
        """The peer; after a receive from any core, the sender."""
        return int(self._raw.core)

    @property
    def size_bytes(self) -> int:
        """The size of the message; for a receive, valid once it has started."""
        return int(self._raw.size_bytes)

    @property
    def moved_bytes(self) -> int:
        """The number of bytes transferred so far."""
        return int(self._raw.moved_bytes)

    @property
    def content(self) -> bytes:
        """The received bytes, once the request is complete."""
        return bytes(memoryview(self._room)[: self._raw.size_bytes])


class Segment(Protocol):
    """A segment in memory that other kernels may map: no lock shows which cores are alive.

    `claim` lets no other process attach as a core, or raises MpbError.
    `attached` and `release` follow attaching and detaching. `liveness` returns the addresses of a
    function for `struct mpb_options` and of its argument.
    """

    memory: memoryview
    sleep_max_us: int

    def claim(self, core: int) -> None: ...
    def attached(self, core: int) -> None: ...
    def release(self, core: int) -> None: ...
    def liveness(self) -> tuple[int, int]: ...


class Core:
    """One core of a segment. Raises MpbError, and OSError if the file cannot be used."""

    def __init__(
        self,
        segment: int | Path | Segment,
        number: int,
        *,
        build: Build = "coherent",
        spin_count: int = 0,
        check_ms: int = 0,
        at_end: Callable[[], object] = lambda: None,
    ) -> None:
        """`at_end` is called once, by `close`."""
        self._at_end = at_end
        self._module = load("mpb", build)
        self._ffi: Any = self._module.ffi
        self._lib: Any = self._module.lib
        self._raw: Any = None
        self._pending: set[Request] = set()
        self._fd = -1
        self._claimed: tuple[Segment, int] | None = None
        how = {"spin_count": spin_count, "check_ms": check_ms}
        try:
            if isinstance(segment, int | Path):
                # Open the file again: the lock that shows that this core is alive belongs to the
                # new file description.
                place = f"/proc/self/fd/{segment}" if isinstance(segment, int) else segment
                self._fd = os.open(place, os.O_RDWR | os.O_CLOEXEC)
                self._mapping = mmap.mmap(self._fd, 0)
                self._base = self._ffi.from_buffer(self._mapping)
                self._attach(number, how)
            else:
                segment.claim(number)
                self._claimed = segment, number
                self._base = self._ffi.from_buffer(segment.memory)
                self._attach(number, how | self._liveness(segment))
                segment.attached(number)
        except BaseException:
            self.close()
            raise

    def _liveness(self, segment: Segment) -> dict[str, Any]:
        """Return the options by which other cores of a segment live."""
        types = dict(self._ffi.typeof("struct mpb_options").fields)
        function, argument = segment.liveness()
        return {
            "is_alive": self._ffi.cast(types["is_alive"].type, function),
            "is_alive_argument": self._ffi.cast("void *", argument),
            "sleep_max_us": segment.sleep_max_us,
        }

    def _attach(self, number: int, how: dict[str, Any]) -> None:
        size_bytes = self._lib.mpb_size()
        self._storage = self._ffi.new("char[]", size_bytes + 64)
        start = self._storage + -int(self._ffi.cast("uintptr_t", self._storage)) % 64
        memory = _memory(self._module, self._base, len(self._base), self._fd)
        options = self._ffi.new("struct mpb_options *", how)
        found = self._ffi.new("struct mpb **")
        self._checked(self._lib.mpb_attach(found, start, size_bytes, memory, number, options))
        self._raw = found[0]

    def _checked(self, code: int, core: int | None = None) -> int:
        if code < 0:
            raise _error(self._module, code, core)
        return code

    def close(self) -> None:
        """Detach from the segment; pending requests are cancelled."""
        if self._raw is not None:
            self._lib.mpb_detach(self._raw)
            self._raw = None
        self._pending.clear()
        if hasattr(self, "_base"):
            self._ffi.release(self._base)
        if hasattr(self, "_mapping"):
            self._mapping.close()
        claimed, self._claimed = self._claimed, None
        if claimed is not None:
            claimed[0].release(claimed[1])
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            self._at_end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def number(self) -> int:
        return int(self._lib.mpb_core_of(self._raw))

    @property
    def count(self) -> int:
        """The number of cores of the segment."""
        return int(self._lib.mpb_core_count_of(self._raw))

    def incarnation_of(self, core: int) -> int:
        """Return how often a process attached as that core."""
        return int(self._lib.mpb_incarnation_of(self._raw, core))

    def lives(self, core: int) -> bool:
        return bool(self._lib.mpb_lives(self._raw, core))

    def counters(self) -> dict[str, int]:
        """Return the counters of this core since it attached."""
        counters = self._lib.mpb_counters_of(self._raw)
        return {name: getattr(counters, name) for name in dir(counters)}

    # --- requests ---------------------------------------------------------------------------------

    def isend(self, core: int, content: bytes) -> Request:
        """Start to send; the content must not change until the request is complete."""
        kept = self._ffi.from_buffer(content)
        raw = self._ffi.new("struct mpb_request *")
        self._checked(self._lib.mpb_isend(self._raw, raw, core, kept, len(content)), core)
        return self._posted(Request(raw, kept, bytearray()))

    def irecv(self, room_bytes: int, core: int = ANY) -> Request:
        """Start to receive a message of at most `room_bytes`."""
        room = bytearray(room_bytes)
        raw = self._ffi.new("struct mpb_request *")
        kept = self._ffi.from_buffer(room)
        self._checked(self._lib.mpb_irecv(self._raw, raw, core, kept, room_bytes))
        return self._posted(Request(raw, kept, room))

    def _posted(self, request: Request) -> Request:
        self._pending.add(request)
        return request

    def push(self) -> int:
        """Make progress on all requests; return the number of pending ones."""
        return int(self._lib.mpb_push(self._raw))

    def test(self, request: Request) -> bool:
        """Push, and return whether a request is complete; raises its error."""
        self._lib.mpb_test(self._raw, request._raw)
        return self._is_over(request)

    def _is_over(self, request: Request) -> bool:
        raw = request._raw
        if not request.is_over:
            return False
        self._pending.discard(request)
        if raw.status < 0:
            core = None if raw.core == ANY else raw.core
            raise _error(self._module, raw.status, core, raw.size_bytes)
        return True

    def wait(self, request: Request, timeout_s: float | None = None) -> Request:
        """Wait for a request. After MpbTimeoutError it is still pending."""
        end_s = None if timeout_s is None else monotonic() + timeout_s
        while not request.is_over:
            code = self._lib.mpb_wait(self._raw, request._raw, _slice_us(end_s))
            if code == self._lib.MPB_ERROR_TIMEOUT and _is_past(end_s):
                raise _error(self._module, code, request.core if request.core != ANY else None)
        self._is_over(request)
        return request

    def cancel(self, request: Request) -> bool:
        """Cancel a request as if it had never been posted. Returns False if it is too late, because
        the whole message is in the buffer; then the request stays pending.
        """
        if request.is_over:
            return True
        code = self._lib.mpb_cancel(self._raw, request._raw)
        if code == self._lib.MPB_ERROR_TOO_LATE:
            return False
        self._checked(code)
        self._pending.discard(request)
        return True

    def probe(self, core: int = ANY) -> tuple[int, int] | None:
        """Return the sender and size of a waiting message that no receive is posted for."""
        found, size_bytes = self._ffi.new("uint32_t *"), self._ffi.new("uint64_t *")
        if not self._checked(self._lib.mpb_probe(self._raw, core, found, size_bytes)):
            return None
        return found[0], size_bytes[0]

    # --- calls that wait --------------------------------------------------------------------------

    def send(self, core: int, content: bytes, timeout_s: float | None = None) -> None:
        """Send a message, and wait until it is received."""
        self._finish(self.isend(core, content), timeout_s)

    def recv(
        self, room_bytes: int, core: int = ANY, timeout_s: float | None = None
    ) -> tuple[int, bytes]:
        """Receive a message; return its sender and its content."""
        request = self._finish(self.irecv(room_bytes, core), timeout_s)
        return request.core, request.content

    def exchange(
        self, core: int, content: bytes, room_bytes: int, timeout_s: float | None = None
    ) -> bytes:
        """Send to a core and receive from it at the same time."""
        end_s = None if timeout_s is None else monotonic() + timeout_s
        receive = self.irecv(room_bytes, core)
        try:
            self._finish(self.isend(core, content), timeout_s)
        except BaseException:
            self.cancel(receive)
            raise
        rest_s = None if end_s is None else max(0.0, end_s - monotonic())
        return self._finish(receive, rest_s).content

    def _finish(self, request: Request, timeout_s: float | None) -> Request:
        """Wait for a request, and cancel it on failure."""
        try:
            return self.wait(request, timeout_s)
        except MpbTimeoutError as error:
            if not self.cancel(request):
                code = self._lib.MPB_ERROR_UNSURE
                raise _error(self._module, code, request.core) from error
            if request._raw.status != self._lib.MPB_ERROR_CANCELLED:  # it has just completed
                return self.wait(request)
            raise
        except BaseException:
            self.cancel(request)
            raise

    def barrier(self, cores: Collection[int] | None = None, timeout_s: float | None = None) -> None:
        """Wait until all these cores (None: all) have reached the barrier."""
        mask = 0 if cores is None else sum(1 << core for core in cores)
        self._sliced(timeout_s, lambda us: self._lib.mpb_barrier(self._raw, mask, us))

    def lock(self, number: int, timeout_s: float | None = None) -> bool:
        """Take a lock. Returns True if it was taken over from a dead core."""
        return self._sliced(timeout_s, lambda us: self._lib.mpb_lock(self._raw, number, us)) == 1

    def unlock(self, number: int) -> None:
        self._checked(self._lib.mpb_unlock(self._raw, number))

    def _sliced(self, timeout_s: float | None, call: Any) -> int:
        end_s = None if timeout_s is None else monotonic() + timeout_s
        while True:
            code = call(_slice_us(end_s))
            if code != self._lib.MPB_ERROR_TIMEOUT or _is_past(end_s):
                return self._checked(code)

    # --- the bell ---------------------------------------------------------------------------------

    def bell(self) -> int:
        """Return the bell's value, which changes when there may be something to push."""
        return int(self._lib.mpb_bell(self._raw))

    def sleep(self, seen: int, timeout_s: float | None = None) -> bool:
        """Sleep until the bell's value differs from `seen`; False on timeout."""
        try:
            self._sliced(timeout_s, lambda us: self._lib.mpb_sleep(self._raw, seen, us))
        except MpbTimeoutError:
            return False
        return True

    def ring(self, core: int) -> None:
        """Ring the bell of a core; this core's own bell is allowed."""
        self._lib.mpb_ring(self._raw, core)


def _slice_us(end_s: float | None) -> int:
    if end_s is None:
        return SLICE_US
    return max(0, min(SLICE_US, int((end_s - monotonic()) * 1e6)))


def _is_past(end_s: float | None) -> bool:
    return end_s is not None and monotonic() >= end_s
