"""Talking with a program over two FIFOs: calls come in, answers go out, and whatever can happen to
either end is told once.

Opening one end of a FIFO waits for the other, which no reactor may do. So `from_process` is opened
for reading without waiting; there is no end of it before a writer has come. `to_process` is opened
for both: what is said waits in it, and the program's opening never blocks, in whatever order it
opens. As long as we hold a reading end, the loss of the program's does not show. Ours is let go
once the program has taken what waited, as then it holds its own.

A program that has learned from its environment which other ways there are (`channel_environment`)
may offer one that it has made, by its descriptor. Each side's last word on its FIFO says that what
follows comes by the way; from then on there are only bells on the FIFOs, and the end of either
side. Who knows nothing of this is never told, and its FIFOs are what they always were.

    program                                       worker
    ["channel", {"offer": "/proc/7/fd/5"}]  ──▶   (no answer: it stays as it is)
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
from ciel.net.channels import BYTES, CHANNEL, ROOM, Channels, Way
from ciel.wire.calls import Call, CallReader, encode_call
from ciel.wire.errors import DecodeError
from ciel.wire.limits import CALL_MAX_BYTES

READ_BYTES: Final = 64 * 1024  # the default size of a pipe
WAY_BYTES: Final = 256 * 1024  # more than most ways take at once
READS_PER_TURN: Final = 4  # of a large call; others have their turn, also after every whole call
READS_AT_END: Final = 16  # the largest pipe that a program may ask for by default
WAITING_MAX_BYTES: Final = CALL_MAX_BYTES  # of what a program has not taken yet

log = Logger(__name__)  # compiled, it cannot be found out

_is_descriptor = re.compile(r"/proc/\d{1,9}/fd/\d{1,9}", re.ASCII).fullmatch


def channel_environment(channels: Channels | None) -> Mapping[str, str]:
    """Say to a program which way other than its FIFOs it may offer. Without looking before sleeping
    that would cost both sides more than FIFOs do (docs/adr/0025).
    """
    if channels is None or not channels.spin_us:
        return {}
    return {"CIEL_CHANNEL": f"{channels.kind.name}:{channels.spin_us:g}"}


class ChannelOwner(Protocol):
    """Who is told what a program says. It may close the channel at any time."""

    def calls_came(self, channel: ProgramChannel, calls: list[Call]) -> None:
        """Take what the program said, in its order; some of it may have come together."""

    def channel_broke(self, channel: ProgramChannel, why: str) -> None:
        """Learn, once, that nothing more will come; the channel is closed by then. Every program
        that ends gets here, unless the channel was closed before.
        """


class ProgramChannel:
    """A conversation with one program, which is given `arguments`.

    `directory` exists and is private; it is the caller's, the two FIFOs in it are ours until
    `close`. A program that never opens them is not noticed here. Raises OSError.
    """

    def __init__(
        self, reactor: Any, directory: str, owner: ChannelOwner, channels: Channels | None = None
    ) -> None:
        self._reactor = reactor
        self._channels = channels
        self._way: Way | None = None
        self._has_crossed = False  # the program, too: there is nothing but bells on its FIFO
        self._owner = owner
        self._reader = CallReader()
        self._pipe = -1
        self._paths = tuple(f"{directory}/{name}" for name in ("from_process", "to_process"))
        said, told = self._paths
        self.arguments = ("--write-fifo", said, "--read-fifo", told)
        self.has_spoken = False  # at least one whole call
        self.is_misused = False  # it broke by what the program did with it, and not by its end
        self.left_unread = False  # it was closed before the program had taken all that it was told
        for path in self._paths:
            os.mkfifo(path, 0o600)
        self._pipe = os.open(said, os.O_RDONLY | os.O_NONBLOCK)
        try:
            self._outgoing = _Outgoing(reactor, told, self._deaf)
        except BaseException:
            os.close(self._pipe)
            raise
        reactor.addReader(self)

    def say(self, method: str, args: Any) -> None:
        """Tell the program something; what it does not take now is written when it does. Raises
        EncodeError; nothing is told then. Once the channel is closed, nothing happens.
        """
        self.say_bytes(encode_call(method, args))

    def say_bytes(self, frame: bytes) -> None:
        """Tell the program what `encode_call` made."""
        self._outgoing.write(frame)

    @property
    def has_listened(self) -> bool:
        """Whether the program has taken all that it was told."""
        return self._outgoing.is_taken

    @property
    def will_break(self) -> bool:
        """Of a program that has ended: whether its last words, or the end of them, are still to
        come. Not if it never opened the channel.
        """
        return self._pipe >= 0 and bool(_state(self._pipe) & (select.POLLIN | select.POLLHUP))

    def close(self) -> None:
        """End the conversation; the program sees the end of what it is told. Nobody is told."""
        if self._pipe < 0:
            return
        for path in self._paths:  # first: who opens one now is not to wait for us
            with suppress(OSError):
                os.unlink(path)
        self._reactor.removeReader(self)
        os.close(self._pipe)
        self._pipe = -1
        self.left_unread = not self._outgoing.is_taken
        self._outgoing.close()
        if self._way is not None and self._channels is not None:
            self._channels.remove(self._way)
            self._way.close()

    def _break(self, why: str) -> None:
        if self._pipe < 0:
            return
        if partial := self._reader.partial:
            why += f", in the middle of a call: {partial} came"
        self.close()
        self._owner.channel_broke(self, why)

    def _fail(self, error: object) -> None:
        self.is_misused = True
        self._break(f"this worker failed on what the program said: {error!r}")

    def _deaf(self, why: str, is_misused: bool) -> None:
        """Break, as the program takes nothing more; but its last words count."""
        self.is_misused = is_misused
        try:
            self._take_all()
        finally:
            self._break(why)

    def _take_all(self) -> None:
        """Take what there still is to be read."""
        for _ in range(READS_AT_END):
            data = self._read_way() if self._has_crossed else self._receive()
            self._take(data)
            if len(data) < READ_BYTES:
                return

    def _receive(self) -> bytes:
        """Return what is there; less than READ_BYTES if nothing more is, or there is no channel any
        more.
        """
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
        """Tell the owner what is whole now; return whether anything was."""
        calls = self._feed(data)
        if self._channels is not None and not self._has_crossed:
            calls = [call for call in calls if call.method != CHANNEL or self._cross(call)]
        if not calls:
            return False
        self.has_spoken = True
        self._outgoing.let_go()
        self._owner.calls_came(self, calls)
        if self._pipe >= 0:
            self._feed(b"")  # what came after them may be wrong
        return True

    def _feed(self, data: bytes) -> list[Call]:
        try:
            return self._reader.feed(data)
        except DecodeError as error:
            self.is_misused = True
            self._break(f"the program did not say what it should: {error}")
            return []

    def _end(self) -> None:
        """Break if there is nothing to read because the program is gone. If it has not come yet,
        this was about an earlier descriptor of the same number.
        """
        if _state(self._pipe) & select.POLLHUP:
            if self._has_crossed:
                self._take_all()
            self._break("the program closed its writing end of the channel, or ended")

    # --- another way ------------------------------------------------------------------------------

    def _cross(self, call: Call) -> bool:
        """Take one of the program's words about another way; return whether it is none."""
        match call.args:
            case {"offer": str(path)} if self._channels is not None and self._way is None:
                self._way = self._outgoing.cross(self._channels, path, self._found)
            case {"go": True} if self._channels is not None and self._way is not None:
                self._has_crossed = True
                self._outgoing.has_crossed = True
                self._channels.want(self._way, BYTES | self._outgoing.wants)
            case _:
                return True
        return False

    def _read_way(self) -> bytes:
        if self._pipe < 0 or self._way is None:
            return b""
        try:
            return self._way.read()
        except CielError as error:
            self.is_misused = True
            self._break(f"the program has spoilt its channel: {error}")
            return b""

    def _found(self, what: int) -> None:
        if what & ROOM and what > 0:
            self._outgoing.doWrite()
        try:
            for _ in range(READS_PER_TURN):
                data = self._read_way()
                if self._take(data) or len(data) < READ_BYTES:
                    return
        except Exception as error:  # as the reactor does, and tells us below
            log.failure("a program's channel failed")
            self._fail(error)

    # --- what the reactor calls -------------------------------------------------------------------

    def fileno(self) -> int:
        return self._pipe

    def logPrefix(self) -> str:
        return "program"

    def doRead(self) -> None:
        if self._has_crossed:
            self._receive()  # bells, or the end
            return
        for _ in range(READS_PER_TURN):
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
    """What a program is told. `lost` is called at most once, from the reactor, with the reason why
    it can be told no more, and whether that is its doing while it runs.
    """

    def __init__(self, reactor: Any, path: str, lost: Callable[[str, bool], None]) -> None:
        self._reactor = reactor
        self._lost = lost
        self._waiting = bytearray()
        self._has_written = False
        self._is_full = False
        self._is_refused = False  # nobody is there any more to take it
        self._holds_both_ends = True
        self._channels: Channels | None = None
        self._way: Way | None = None  # once we have crossed to it
        self.has_crossed = False  # the program, too
        self._pipe = os.open(path, os.O_RDWR | os.O_NONBLOCK)

    def write(self, data: bytes) -> None:
        if self._pipe < 0 or self._is_full:
            return
        if not self._waiting:
            data = data[self._write(data) :]
            if not data:
                return
        if len(self._waiting) + len(data) > WAITING_MAX_BYTES:
            # Not at once: the owner may be in the middle of taking calls.
            self._is_full = True
            self._reactor.callLater(0, self._fill_over)
            return
        self._waiting += data
        self._want_room()

    def _write(self, data: bytes | memoryview) -> int:
        """Write what goes in now. What can no longer be read counts as written: the reactor will
        notice that by itself.
        """
        if self._way is not None:
            try:
                return self._way.write(bytes(data[:WAY_BYTES]))
            except CielError:
                return len(data)  # whoever reads it next says what is wrong
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
        """Whether nothing waits to be read any more."""
        if self._pipe < 0 or self._waiting or self._is_refused:
            return False
        if self._way is not None:
            return not self._way.unread_bytes
        unread = array("i", [0])
        ioctl(self._pipe, FIONREAD, unread)
        return not unread[0]

    def let_go(self) -> None:
        """Give up our reading end if the program is known to have its own."""
        if not self._holds_both_ends or not self._has_written or not self.is_taken:
            return
        try:
            pipe = os.open(f"/proc/self/fd/{self._pipe}", os.O_WRONLY | os.O_NONBLOCK)
        except OSError:
            return  # no descriptor is free; there will be another call
        os.close(self._pipe)
        self._pipe = pipe
        self._holds_both_ends = False
        self._reactor.addReader(self)  # nothing can be read there: it is to hear of its loss

    def cross(self, channels: Channels, path: str, found: Callable[[int], object]) -> Way | None:
        """Take a way that the program offers, and have what follows go there; None: we stay."""
        if self._holds_both_ends or self._waiting or not _is_descriptor(path):
            return None
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            return None
        try:
            way = channels.kind.open(descriptor, 1, self._pipe)
        except CielError:
            return None
        finally:
            os.close(descriptor)
        word = encode_call(CHANNEL, {"take": True})
        if self._write(word) != len(word):  # so little is written whole, or not at all
            way.close()
            return None
        channels.add(way, found)
        self._channels, self._way = channels, way
        return way

    @property
    def wants(self) -> int:
        """What is wanted of the way: the program's bells are understood once both have crossed."""
        return ROOM if self._waiting and self.has_crossed else 0

    def _want_room(self) -> None:
        if self._way is None or self._channels is None:
            self._reactor.addWriter(self)
        elif self.has_crossed:
            self._channels.want(self._way, BYTES | self.wants)

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
            text = f"the program does not read what it is told: over {waiting_bytes} bytes wait"
            self._lost(text, True)

    # --- what the reactor calls -------------------------------------------------------------------

    def fileno(self) -> int:
        return self._pipe

    def logPrefix(self) -> str:
        return "program"

    def doRead(self) -> None:
        """Nothing comes this way."""

    def doWrite(self) -> None:
        with memoryview(self._waiting) as waiting:
            count = self._write(waiting)
        del self._waiting[:count]
        if not self._waiting:
            self._reactor.removeWriter(self)
            if self._way is not None:
                self._want_room()

    def connectionLost(self, reason: TwistedFailure) -> None:
        if self._pipe < 0:
            return
        if _state(self._pipe) & select.POLLERR:
            self._lost("the program closed its reading end of the channel, or ended", False)
            return
        # This was about an earlier descriptor of the same number.
        if not self._holds_both_ends:
            self._reactor.addReader(self)
        if self._waiting:
            self._reactor.addWriter(self)


def _state(descriptor: int) -> int:
    """Return what poll says of a descriptor now."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN | select.POLLOUT)
    return next((state for _, state in poll.poll(0)), 0)


def send_descriptor(socket_path: str, fd: int) -> None:
    """Hand a descriptor of ours to the program that listens on a UNIX socket (ciel-interfaces,
    1.9). The caller keeps its own. Never waits; raises OSError, also when the program has too many
    connections to take.
    """
    if "\0" in socket_path:
        raise OSError(EINVAL, "a socket's path has no NUL", socket_path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.setblocking(False)
        connection.connect(socket_path)
        socket.send_fds(connection, [b"FD"], [fd])
