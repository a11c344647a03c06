"""The channel to an interactive program, over two FIFOs.

It receives calls, sends replies, and reports once that it has broken.

Opening one end of a FIFO blocks until both ends are open, which a reactor must not do. So the
worker opens `from_process` for reading without blocking; it has no end of file before a writer has
opened it. The worker opens `to_process` for both reading and writing: frames wait in it, and the
program's open never blocks, in whatever order it opens the FIFOs. While the worker has a reading
end, it does not notice the loss of the program's. It closes its own once the program has read the
waiting frames, and so has opened the FIFO.

A program that finds another transport in its environment (`channel_environment`), which is a
`ciel.net.channels.Channel`, may create one and offer its descriptor. Each side sends a last call by
its FIFO, which says that its next frames come by the new transport. From then on the FIFOs carry
only wake-ups, and show the end of either side. A program that does not know of this uses its FIFOs
only.

    program                                       worker
    ["channel", {"offer": "/proc/7/fd/5"}]  ──▶   (no answer: the FIFOs stay in use)
                                            ◀──   ["channel", {"take": true}]
    ["channel", {"go": true}]               ──▶
"""

from __future__ import annotations

import os
import re
import select
import socket
from array import array
from collections.abc import Callable, Mapping
from contextlib import suppress
from errno import EINVAL
from fcntl import ioctl
from termios import FIONREAD
from typing import Any, Final, Protocol

from twisted.internet.error import ConnectionDone, ConnectionLost
from twisted.logger import Logger
from twisted.python.failure import Failure as TwistedFailure

from ciel.core.errors import CielError
from ciel.net.channels import BYTES, CHANNEL, ROOM, Channel, Channels
from ciel.wire.calls import Call, CallReader, encode_call
from ciel.wire.errors import DecodeError
from ciel.wire.limits import CALL_MAX_BYTES

READ_BYTES: Final = 64 * 1024  # the default size of a pipe
TRANSPORT_BYTES: Final = 256 * 1024  # more than most transports take at once
READS_PER_TICK: Final = 4  # of a large call, before other channels are served
READS_AT_END: Final = 16  # the largest pipe that a program may ask for by default
WAITING_MAX_BYTES: Final = CALL_MAX_BYTES  # that a program has not read yet

log = Logger(__name__)  # compiled code cannot determine its own module

_is_descriptor = re.compile(r"/proc/\d{1,9}/fd/\d{1,9}", re.ASCII).fullmatch


def channel_environment(channels: Channels | None) -> Mapping[str, str]:
    """Return the variable that names the transport that a program may offer.

    Unless both sides poll before they sleep, another transport costs more than FIFOs do
    (docs/adr/0025).
    """
    if channels is None or channels.kind is None or not channels.spin_us:
        return {}
    return {"CIEL_CHANNEL": f"{channels.kind.name}:{channels.spin_us:g}"}


class ChannelOwner(Protocol):
    """Receives the calls of a program. It may close the channel at any time."""

    def calls_came(self, channel: ProgramChannel, calls: list[Call]) -> None:
        """Take calls, in order; several may have come together."""

    def channel_broke(self, channel: ProgramChannel, why: str) -> None:
        """The channel has broken, and is closed: no more calls come.

        This is called once, also when the program ends, unless the channel was closed before.
        """


class ProgramChannel:
    """A channel to one program, which gets `arguments`.

    `directory` exists, is private and belongs to the caller. `close` removes the two FIFOs in it.
    The channel does not notice a program that never opens them. Raises OSError.
    """

    def __init__(
        self, reactor: Any, directory: str, owner: ChannelOwner, channels: Channels | None = None
    ) -> None:
        self._reactor = reactor
        self._channels = channels
        self._transport: Channel | None = None
        self._has_switched = False  # the program sends by the transport, too
        self._owner = owner
        self._reader = CallReader()
        self._pipe = -1
        self._paths = tuple(f"{directory}/{name}" for name in ("from_process", "to_process"))
        from_process, to_process = self._paths
        self.arguments = ("--write-fifo", from_process, "--read-fifo", to_process)
        self.has_spoken = False  # at least one whole call
        self.is_misused = False  # the program has broken the protocol, and not just ended
        self.left_unread = False  # it was closed before the program had read everything
        for path in self._paths:
            os.mkfifo(path, 0o600)
        self._pipe = os.open(from_process, os.O_RDONLY | os.O_NONBLOCK)
        try:
            self._outgoing = _Outgoing(reactor, to_process, self._reader_lost)
        except BaseException:
            os.close(self._pipe)
            raise
        reactor.addReader(self)

    def say(self, method: str, args: Any) -> None:
        """Send the program a call, which is queued until the program reads.

        Raises EncodeError, and sends nothing then. Does nothing once the channel is closed.
        """
        self.say_bytes(encode_call(method, args))

    def say_bytes(self, frame: bytes) -> None:
        """Send a frame that `encode_call` returned."""
        self._outgoing.write(frame)

    @property
    def has_listened(self) -> bool:
        """Whether the program has read everything."""
        return self._outgoing.is_taken

    @property
    def will_break(self) -> bool:
        """Whether an ended program's last calls, or the end of file, are still unread.

        False if the program never opened the channel.
        """
        return self._pipe >= 0 and bool(_state(self._pipe) & (select.POLLIN | select.POLLHUP))

    def close(self) -> None:
        """Close the channel, without a report; the program sees an end of file."""
        if self._pipe < 0:
            return
        for path in self._paths:  # first: a program that opens one later must not wait for this end
            with suppress(OSError):
                os.unlink(path)
        self._reactor.removeReader(self)
        os.close(self._pipe)
        self._pipe = -1
        self.left_unread = not self._outgoing.is_taken
        self._outgoing.close()
        if self._transport is not None and self._channels is not None:
            self._channels.remove(self._transport)
            self._transport.close()

    def _break(self, why: str) -> None:
        if self._pipe < 0:
            return
        if partial := self._reader.partial:
            why += f", in the middle of a call: only {partial} were received"
        self.close()
        self._owner.channel_broke(self, why)

    def _fail(self, error: object) -> None:
        self.is_misused = True
        self._break(f"this worker failed to process the program's call: {error!r}")

    def _reader_lost(self, why: str, is_misused: bool) -> None:
        """Take the last calls, then break the channel: the program reads nothing more."""
        self.is_misused = is_misused
        try:
            self._take_all()
        finally:
            self._break(why)

    def _take_all(self) -> None:
        """Take the bytes that are still unread."""
        for _ in range(READS_AT_END):
            data = self._read_transport() if self._has_switched else self._receive()
            self._take(data)
            if len(data) < READ_BYTES:
                return

    def _receive(self) -> bytes:
        """Return unread bytes; fewer than READ_BYTES if these are all, or if it is closed."""
        if self._pipe < 0:
            return b""
        try:
            data = os.read(self._pipe, READ_BYTES)
        except BlockingIOError:
            return b""
        if not data:
            self._end()
        return data

    def _take(self, data: bytes) -> bool:
        """Give the owner the calls that are complete; return whether there are any."""
        calls = self._feed(data)
        if self._channels is not None and not self._has_switched:
            calls = [call for call in calls if call.method != CHANNEL or self._negotiate(call)]
        if not calls:
            return False
        self.has_spoken = True
        self._outgoing.let_go()
        self._owner.calls_came(self, calls)
        if self._pipe >= 0:
            self._feed(b"")  # bytes after them may be invalid
        return True

    def _feed(self, data: bytes) -> list[Call]:
        try:
            return self._reader.feed(data)
        except DecodeError as error:
            self.is_misused = True
            self._break(f"the program sent an invalid call: {error}")
            return []

    def _end(self) -> None:
        """Break the channel if the program has closed it.

        If the program has not opened it yet, the event concerned an earlier descriptor of the same
        number.
        """
        if _state(self._pipe) & select.POLLHUP:
            if self._has_switched:
                self._take_all()
            self._break("the program closed the FIFO that it writes to, or ended")

    # --- another transport ------------------------------------------------------------------------

    def _negotiate(self, call: Call) -> bool:
        """Process a call that negotiates another transport; return True for any other call."""
        match call.args:
            case {"offer": str(path)} if self._channels is not None and self._transport is None:
                self._transport = self._outgoing.switch(self._channels, path, self._found)
            case {"go": True} if self._channels is not None and self._transport is not None:
                self._has_switched = True
                self._outgoing.has_switched = True
                self._channels.want(self._transport, BYTES | self._outgoing.wants)
            case _:
                return True
        return False

    def _read_transport(self) -> bytes:
        if self._pipe < 0 or self._transport is None:
            return b""
        try:
            return self._transport.read()
        except CielError as error:
            self.is_misused = True
            self._break(f"the program has damaged its channel: {error}")
            return b""

    def _found(self, what: int) -> None:
        if what & ROOM and what > 0:
            self._outgoing.doWrite()
        try:
            for _ in range(READS_PER_TICK):
                data = self._read_transport()
                if self._take(data) or len(data) < READ_BYTES:
                    return
        except Exception as error:  # the reactor calls `connectionLost` for that
            log.failure("a program's channel failed")
            self._fail(error)

    # --- what the reactor calls -------------------------------------------------------------------

    def fileno(self) -> int:
        return self._pipe

    def logPrefix(self) -> str:
        return "program"

    def doRead(self) -> None:
        if self._has_switched:
            self._receive()  # wake-ups, or the end
            return
        for _ in range(READS_PER_TICK):
            data = self._receive()
            if self._take(data) or len(data) < READ_BYTES:
                return

    def connectionLost(self, reason: TwistedFailure) -> None:
        if self._pipe < 0:
            return
        if not isinstance(reason.value, ConnectionDone | ConnectionLost):
            self._fail(reason.value)
            return
        self.doRead()
        if self._pipe >= 0:
            self._reactor.addReader(self)


class _Outgoing:
    """The frames for a program.

    `lost` is called at most once, from the reactor, with the reason why the program cannot get
    more, and whether the program has broken the protocol.
    """

    def __init__(self, reactor: Any, path: str, lost: Callable[[str, bool], None]) -> None:
        self._reactor = reactor
        self._lost = lost
        self._waiting = bytearray()
        self._has_written = False
        self._is_full = False
        self._is_refused = False  # the reader is gone
        self._holds_both_ends = True
        self._channels: Channels | None = None
        self._transport: Channel | None = None  # once frames are sent by it
        self.has_switched = False  # the program sends by it, too
        self._pipe = os.open(path, os.O_RDWR | os.O_NONBLOCK)

    def write(self, data: bytes) -> None:
        if self._pipe < 0 or self._is_full:
            return
        if not self._waiting:
            data = data[self._write(data) :]
            if not data:
                return
        if len(self._waiting) + len(data) > WAITING_MAX_BYTES:
            # Not now: the owner may be in the middle of taking calls.
            self._is_full = True
            self._reactor.callLater(0, self._fill_over)
            return
        self._waiting += data
        self._want_room()

    def _write(self, data: bytes | memoryview) -> int:
        """Write as much as possible now; return the number of bytes.

        Bytes without a reader count as written, since the reactor reports the loss of the reader.
        """
        if self._transport is not None:
            try:
                return self._transport.write(bytes(data[:TRANSPORT_BYTES]))
            except CielError:
                return len(data)  # the next read reports the error
        try:
            count = os.write(self._pipe, data)
        except BlockingIOError:
            return 0
        except BrokenPipeError:
            self._is_refused = True
            return len(data)
        self._has_written |= count > 0
        return count

    @property
    def is_taken(self) -> bool:
        """Whether the program has read everything."""
        if self._pipe < 0 or self._waiting or self._is_refused:
            return False
        if self._transport is not None:
            return not self._transport.unread_bytes
        unread = array("i", [0])
        ioctl(self._pipe, FIONREAD, unread)
        return not unread[0]

    def let_go(self) -> None:
        """Close the reading end of this side once the program has its own."""
        if not self._holds_both_ends or not self._has_written or not self.is_taken:
            return
        try:
            pipe = os.open(f"/proc/self/fd/{self._pipe}", os.O_WRONLY | os.O_NONBLOCK)
        except OSError:
            return  # no descriptor is free; try again after the next call
        os.close(self._pipe)
        self._pipe = pipe
        self._holds_both_ends = False
        self._reactor.addReader(self)  # to notice its loss; nothing can be read there

    def switch(
        self, channels: Channels, path: str, found: Callable[[int], object]
    ) -> Channel | None:
        """Take a transport that the program offers, for the next frames; None: keep the FIFO."""
        if self._holds_both_ends or self._waiting or not _is_descriptor(path):
            return None
        if (kind := channels.kind) is None:
            return None
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            return None
        try:
            transport = kind.open(descriptor, 1, self._pipe)
        except CielError:
            return None
        finally:
            os.close(descriptor)
        word = encode_call(CHANNEL, {"take": True})
        if self._write(word) != len(word):  # one so small is written whole or not at all
            transport.close()
            return None
        channels.add(transport, found)
        self._channels, self._transport = channels, transport
        return transport

    @property
    def wants(self) -> int:
        """The events of the transport to wait for; none until both sides use it."""
        return ROOM if self._waiting and self.has_switched else 0

    def _want_room(self) -> None:
        if self._transport is None or self._channels is None:
            self._reactor.addWriter(self)
        elif self.has_switched:
            self._channels.want(self._transport, BYTES | self.wants)

    def close(self) -> None:
        if self._pipe >= 0:
            self._reactor.removeReader(self)
            self._reactor.removeWriter(self)
            os.close(self._pipe)
            self._pipe = -1
            self._waiting.clear()

    def _fill_over(self) -> None:
        if self._pipe >= 0:
            waiting_bytes = len(self._waiting)
            text = f"the program does not read its messages; over {waiting_bytes} bytes are unread"
            self._lost(text, True)

    # --- what the reactor calls -------------------------------------------------------------------

    def fileno(self) -> int:
        return self._pipe

    def logPrefix(self) -> str:
        return "program"

    def doRead(self) -> None:
        """Nothing can be read."""

    def doWrite(self) -> None:
        with memoryview(self._waiting) as waiting:
            count = self._write(waiting)
        del self._waiting[:count]
        if not self._waiting:
            self._reactor.removeWriter(self)
            if self._transport is not None:
                self._want_room()

    def connectionLost(self, reason: TwistedFailure) -> None:
        if self._pipe < 0:
            return
        if _state(self._pipe) & select.POLLERR:
            self._lost("the program closed the FIFO that it reads from, or ended", False)
            return
        # The event concerned an earlier descriptor of the same number.
        if not self._holds_both_ends:
            self._reactor.addReader(self)
        if self._waiting:
            self._reactor.addWriter(self)


def _state(descriptor: int) -> int:
    """Return the present poll state of a descriptor."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN | select.POLLOUT)
    return next((state for _, state in poll.poll(0)), 0)


def send_descriptor(socket_path: str, fd: int) -> None:
    """Pass a descriptor to the program that listens on a UNIX socket, as the original CIEL did.

    Never blocks; raises OSError, also if the program has too many pending connections.
    """
    if "\0" in socket_path:
        raise OSError(EINVAL, "the path of a UNIX socket must not contain a NUL", socket_path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.setblocking(False)
        connection.connect(socket_path)
        socket.send_fds(connection, [b"FD"], [fd])
