"""NBD requests and options that no client should send, as raw bytes and by libnbd.

Each function sends them to an export, whose content is `expected`, and returns how many it has
sent. It raises AssertionError if an answer is not as the NBD protocol says, and changes `expected`
as accepted requests change the volume.
"""

from __future__ import annotations

import errno
import random
import socket
import struct
import subprocess
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NamedTuple, Self

WITHIN_S: Final = 20.0
MIB: Final = 1 << 20

GREETING: Final = struct.Struct(">8s8sH")
CLIENT_FLAGS: Final = 3  # the fixed handshake, without zeros
OPTION: Final = struct.Struct(">8sII")
OPTION_MAGIC: Final = b"IHAVEOPT"
OPTION_REPLY: Final = struct.Struct(">QIII")
EXPORT_NAME, ABORT, LIST, STARTTLS, INFO, GO, META = 1, 2, 3, 5, 6, 7, 10
ACK, OF_INFO = 1, 3
IS_ERROR: Final = 1 << 31
UNSUPPORTED: Final = IS_ERROR + 1

REQUEST: Final = struct.Struct(">IHHQQI")
REQUEST_MAGIC: Final = 0x25609513
REPLY: Final = struct.Struct(">IIQ")
REPLY_MAGIC: Final = 0x67446698
READ, WRITE, DISCONNECT, FLUSH, TRIM, CACHE, ZERO, STATUS = range(8)
FUA, NO_HOLE, DF, REQ_ONE, FAST_ZERO = (1 << n for n in range(5))
FLAGS_OF: Final = {WRITE: FUA, TRIM: FUA, ZERO: FUA | NO_HOLE | FAST_ZERO}
"""The flags that a server must accept with a command. It may accept FUA with any command."""

LONGEST: Final = 32 * MIB  # of a request, as the export says
SKIPPED_MAX: Final = 128 * MIB  # of a refused write, by nbdkit; a longer one ends the connection
OVER_LONG: Final = frozenset((errno.EINVAL, errno.EOVERFLOW, errno.ENOMEM))
"""The errors of a request that is too long, which the protocol leaves open: nbdkit says ENOMEM."""
CLOSED: Final = None
"""Instead of an error: the server closes the connection."""


class Request(NamedTuple):
    """A request of an NBD client."""

    command: int
    offset: int
    length: int
    flags: int = 0

    def prescribed(self, size: int) -> set[int | None]:
        """Return the errors that the NBD protocol permits for an export of a size."""
        is_changing = self.command in (WRITE, ZERO)
        if self.command == DISCONNECT:
            return {CLOSED}
        if self.command > STATUS or self.command == STATUS:  # the latter was not negotiated
            return {errno.EINVAL}
        if self.command == WRITE and self.length > SKIPPED_MAX:
            return {CLOSED}
        found: set[int | None] = set()
        if self.command == FLUSH:
            found |= {0, errno.EINVAL} if self.offset or self.length else {0}
        elif self.offset + self.length > size:
            found |= {errno.ENOSPC if is_changing else errno.EINVAL}
        if self.length == 0 and self.command != FLUSH:
            found |= {0, errno.EINVAL, errno.ENOSPC if is_changing else errno.EINVAL}
        if self.length > LONGEST and self.command in (READ, WRITE):
            found |= {0, *OVER_LONG}
        if self.flags & ~FLAGS_OF.get(self.command, 0):
            found |= {errno.EINVAL} if self.flags & ~FUA else {0, errno.EINVAL}
        if self.command == CACHE:
            found |= {0, errno.EINVAL}  # whether it is possible is the server's affair
        return found or {0}


class Session:
    """A connection of an NBD client that has chosen the export, or with `goes=False` not yet."""

    def __init__(self, path: str, goes: bool = True, flags: int = CLIENT_FLAGS) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(WITHIN_S)
        self._socket.connect(path)
        magic, option_magic, _ = GREETING.unpack(self._take(GREETING.size))
        assert (magic, option_magic) == (b"NBDMAGIC", OPTION_MAGIC)
        self.send(struct.pack(">I", flags))
        if goes:
            reply = self.option(GO, struct.pack(">IH", 0, 0))
            while reply == OF_INFO:
                reply = self.option_reply(GO)
            assert reply == ACK, f"the export is refused: {reply}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def send(self, content: bytes) -> None:
        """Send bytes; the server may close the connection before it has got them all."""
        with suppress(BrokenPipeError, ConnectionResetError):
            self._socket.sendall(content)

    def option(self, number: int, content: bytes, length: int | None = None) -> int | None:
        """Send an option; return the type of the first reply, or CLOSED."""
        length = len(content) if length is None else length
        self.send(OPTION.pack(OPTION_MAGIC, number, length) + content)
        return self.option_reply(number)

    def option_reply(self, number: int) -> int | None:
        """Return the type of the next reply to an option, or CLOSED."""
        try:
            magic, option, kind, length = OPTION_REPLY.unpack(self._take(OPTION_REPLY.size))
            self._take(length)
        except (EOFError, ConnectionResetError):
            return CLOSED
        assert (magic, option) == (0x3E889045565A9, number), "not a reply to the option"
        return int(kind)

    def request(self, request: Request, payload: bytes = b"") -> int | None:
        """Send a request; return the error, 0 for success, or CLOSED."""
        self.send(
            REQUEST.pack(
                REQUEST_MAGIC, request.flags, request.command, 77, request.offset, request.length
            )
        )
        self.send(payload)
        return self.reply(request)[0]

    def reply(self, request: Request) -> tuple[int | None, bytes]:
        """Return the error and the content of the next reply."""
        try:
            magic, error, cookie = REPLY.unpack(self._take(REPLY.size))
        except (EOFError, ConnectionResetError):
            return CLOSED, b""
        assert (magic, cookie) == (REPLY_MAGIC, 77), "not a reply to the request"
        is_read = request.command == READ and error == 0
        return int(error), self._take(request.length) if is_read else b""

    def read(self, offset: int, length: int) -> bytes:
        """Return the content of a range; raise AssertionError unless it is readable."""
        request = Request(READ, offset, length)
        self.send(REQUEST.pack(REQUEST_MAGIC, 0, READ, 77, offset, length))
        error, content = self.reply(request)
        assert error == 0, f"a read of {length} bytes at {offset}: {error}"
        return content

    def is_closed(self) -> bool:
        """Wait until the server closes the connection; return whether it sends nothing before."""
        try:
            return self._socket.recv(1) == b""
        except ConnectionResetError:
            return True

    def _take(self, count: int) -> bytes:
        pieces = bytearray()
        while len(pieces) < count:
            piece = self._socket.recv(count - len(pieces))
            if not piece:
                raise EOFError
            pieces += piece
        return bytes(pieces)


def _sizes(size: int) -> list[Request]:
    """Return requests whose only fault is their length or their place."""
    largest, last = 2**32 - 1, 2**64 - 1
    return [
        *(Request(command, 0, 0) for command in (READ, WRITE, TRIM, ZERO)),
        *(Request(command, 0, largest) for command in (READ, WRITE, TRIM, ZERO)),
        *(Request(command, size, 1) for command in (READ, WRITE, TRIM, ZERO)),
        *(Request(command, size - 5, 10) for command in (READ, WRITE, TRIM, ZERO)),
        *(Request(command, last, 1) for command in (READ, WRITE, TRIM, ZERO)),
        *(Request(command, last - 4095, 8192) for command in (READ, WRITE, TRIM, ZERO)),
        *(Request(command, 2**63, 4096) for command in (READ, WRITE, TRIM, ZERO)),
        *(Request(command, last, largest) for command in (READ, WRITE, TRIM, ZERO)),
        Request(READ, 0, 65 * MIB), Request(WRITE, 0, 65 * MIB), Request(FLUSH, 4096, 4096),
        Request(STATUS, 0, 4096),
    ]  # fmt: skip


def _flags() -> list[Request]:
    """Return requests with flags or commands that are unknown, or not for this command."""
    unknown = [1 << bit for bit in range(5, 16)]
    return [
        *(Request(command, 0, 4096, flag) for flag in unknown for command in (READ, WRITE, TRIM)),
        *(Request(READ, 0, 4096, flag) for flag in (NO_HOLE, DF, REQ_ONE, FAST_ZERO, 0xFFFF)),
        *(Request(WRITE, 0, 4096, flag) for flag in (NO_HOLE, DF, REQ_ONE, FAST_ZERO, 0xFFFF)),
        *(Request(command, 0, 4096) for command in (8, 9, 100, 0x8000, 0xFFFF)),
    ]


def _send(session: Session, request: Request, expected: bytearray, payload: bytes) -> bool:
    """Send a request; whether the connection is still there. Raises AssertionError."""
    error = session.request(request, payload)
    assert error in request.prescribed(len(expected)), f"{request}: {error}"
    end = request.offset + request.length
    if error == 0 and request.command == WRITE:
        expected[request.offset : end] = payload
    elif error == 0 and request.command in (TRIM, ZERO):
        expected[request.offset : end] = bytes(request.length)
    return error is not CLOSED


def faulty_requests(path: str, expected: bytearray, _: int) -> int:
    """Send requests with one fault each; the same connection serves a read afterwards."""
    requests = _sizes(len(expected)) + _flags()
    for request in requests:
        payload = bytes(request.length if request.length <= SKIPPED_MAX else 4096)
        with Session(path) as session:
            if _send(session, request, expected, payload if request.command == WRITE else b""):
                assert session.read(4096, 512) == expected[4096:4608], f"after {request}"
    return len(requests)


def random_requests(path: str, expected: bytearray, count: int) -> int:
    """Send random requests, some of which are valid."""
    size, chance, session = len(expected), random.Random(4), Session(path)
    near = (0, 1, 4095, 4096, size - 1, size - 4096, size, size + 1)
    far = (2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64 - 4096, 2**64 - 1)
    for number in range(count):
        request = Request(
            chance.choice((*range(8), chance.randrange(1 << 16))),
            chance.choice((*near, *far, chance.randrange(size), chance.randrange(2**64))),
            chance.choice((0, 1, 511, 4096, 5000, chance.randrange(MIB), 2**31, 2**32 - 1)),
            chance.choice((0, 0, FUA, 1 << chance.randrange(16), chance.randrange(1 << 16))),
        )
        is_write = request.command == WRITE and request.length <= MIB
        payload = chance.randbytes(request.length) if is_write else b""
        if not _send(session, request, expected, payload) or number % 50 == 0:
            session.close()
            session = Session(path)
    session.close()
    return count


def broken_connections(path: str, expected: bytearray, _: int) -> int:
    """Send bytes that no client sends as a request, and requests that end too early."""
    half = REQUEST.pack(REQUEST_MAGIC, 0, WRITE, 77, 8192, 8192)
    for magic in (0, REPLY_MAGIC, REQUEST_MAGIC ^ 1, 2**32 - 1):
        with Session(path) as session:
            session.send(REQUEST.pack(magic, 0, WRITE, 77, 8192, 4096) + bytes(4096))
            assert session.is_closed(), f"the magic number {magic:#x}"
    endings = (half[:1], half[:27], half, half + bytes(1), half + bytes(5000), half + bytes(8191))
    for ending in endings:
        with Session(path) as session:
            session.send(ending)
        with Session(path) as session:
            assert session.read(8192, 8192) == expected[8192:16384], f"after {len(ending)} bytes"
    return 4 + len(endings)


def strange_options(path: str, expected: bytearray, _: int) -> int:
    """Send options that are unknown, malformed or too long, and break the handshake off."""
    unknown = (0, 4, 11, 99, 0x1234, 2**31, 2**32 - 1)
    for number in unknown:
        with Session(path, goes=False) as session:
            for content in (b"", b"some data"):
                assert session.option(number, content) == UNSUPPORTED, f"option {number}"
            assert session.option(GO, struct.pack(">IH", 0, 0)) in (OF_INFO, ACK)
    malformed = [
        (GO, b""), (GO, b"\0"), (GO, struct.pack(">IH", 2**32 - 1, 0)),
        (GO, struct.pack(">IH", 0, 2**16 - 1)), (INFO, struct.pack(">I", 5) + b"name"),
        (GO, struct.pack(">I", 5000) + b"n" * 5000 + bytes(2)), (LIST, b"data"), (META, b"x"),
        (STARTTLS, b"data"), (99, bytes(60_000)),
    ]  # fmt: skip
    for number, content in malformed:
        with Session(path, goes=False) as session:
            reply = session.option(number, content)
            assert reply is CLOSED or reply & IS_ERROR, f"option {number} {content[:9]!r}: {reply}"
    lengths = (2**20, 2**31, 2**32 - 1)
    for length in lengths:
        with Session(path, goes=False) as session:
            reply = session.option(99, bytes(4096), length)
            assert reply is CLOSED or reply & IS_ERROR, f"an option of {length} bytes: {reply}"
    hellos = (b"", b"\0", b"GET / HTTP/1.1\r\n\r\n", OPTION.pack(b"IHAVEOPX", GO, 6) + bytes(6))
    for hello in hellos:
        with Session(path, goes=False) as session:
            session.send(hello)
            assert not hello[1:] or session.is_closed(), f"{hello!r}"
    with Session(path, goes=False, flags=2**32 - 1) as session:
        assert session.is_closed(), "unknown flags of a client"
    return 2 * len(unknown) + len(malformed) + len(lengths) + len(hellos) + 1


_BY_LIBNBD: Final = """
import random
h.set_strict_mode(0)
size, chance, sent = h.get_size(), random.Random(5), 0
acts = {
    "pread": lambda at, count, flags: h.pread(count, at, flags=flags),
    "pwrite": lambda at, count, flags: h.pwrite(bytes(count), at, flags=flags),
    "trim": lambda at, count, flags: h.trim(count, at, flags=flags),
    "zero": lambda at, count, flags: h.zero(count, at, flags=flags),
    "cache": lambda at, count, flags: h.cache(count, at, flags=flags),
}
places = (size, size + 1, size - 5, 2**63 - 1, 2**63 - 4096)
for name, act in acts.items():
    for at, count, flags in (
        *((at, 4096, 0) for at in places), (0, 0, 0), (size, 0, 0),
        *((0, 4096, 1 << bit) for bit in range(5, 16)),
        *((chance.choice(places), chance.randrange(1, 65536), chance.randrange(1 << 16))
          for _ in range(40)),
    ):
        sent += 1
        try:
            act(at, count, flags)
        except nbd.Error as error:
            assert error.errno in ("EINVAL", "ENOSPC"), (name, at, count, flags, error.string)
        else:
            assert count == 0 or name == "cache", (name, at, count, flags)
        assert len(h.pread(1, 0)) == 1
h.flush()
print(sent)
"""


def requests_by_libnbd(path: str, expected: bytearray, _: int) -> int:
    """Let libnbd send requests that it does not check."""
    done = subprocess.run(
        ["/usr/bin/python3", "-m", "nbd", "-u", f"nbd+unix:///?socket={path}", "-c", _BY_LIBNBD],
        capture_output=True, text=True, timeout=120.0,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return int(done.stdout)


KINDS: Final[dict[str, Callable[[str, bytearray, int], int]]] = {
    "requests with a fault": faulty_requests,
    "random requests": random_requests,
    "requests by libnbd": requests_by_libnbd,
    "broken requests": broken_connections,
    "options and handshakes": strange_options,
}
