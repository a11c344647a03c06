"""A base that a `ciel-kv` serves.

A batch has a number, so a client that has lost the connection asks again on another one, and the
base does not carry it out twice (KVB-3).
"""

from __future__ import annotations

import secrets
import select
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeVar
from urllib.parse import SplitResult

from ciel.access.keys import Key, Role, Side, matches, proof
from ciel.state.bases.of_server import TIMEOUT_S, ServerBase
from ciel.state.bases.replies import Pushed, Replies, ReplyError, pack_command
from ciel.state.bases.wire import REASONS, pack_steps
from ciel.state.batches import Request, Result, Row, Step, check
from ciel.state.errors import (
    BaseFullError,
    BaseUrlError,
    DeniedError,
    KvError,
    LimitError,
    RefusedError,
    StaleRequestError,
    UnreachableError,
)
from ciel.state.interface import Base, Capabilities, Snapshot, Watch, end_of_scan

T = TypeVar("T")
REPLY_S: Final = 30.0
"""How long a client waits for a reply before it tries another connection."""
_ROWS: Final = b"1000"
"""How many rows a scan asks for at a time."""
_DENIED: Final = frozenset(("WRONGPASS", "NOAUTH", "NOPERM"))


class Link:
    """A connection, which one thread uses at a time."""

    def __init__(self, connect: Callable[[], socket.socket]) -> None:
        self._connect = connect
        self._socket: socket.socket | None = None
        self._replies: Replies | None = None

    def ask(self, *parts: bytes) -> Any:
        """Send a command, and return the reply; raises OSError, ReplyError and DeniedError."""
        if self._replies is None or self._socket is None:
            self.open()
        assert self._replies is not None
        assert self._socket is not None
        try:
            self._socket.sendall(pack_command(list(parts)))
            return self._replies.next()
        except OSError:
            self.close()
            raise

    def open(self) -> tuple[socket.socket, Replies]:
        """Connect; raises OSError and DeniedError."""
        self._socket = self._connect()
        self._replies = Replies(self._socket)
        return self._socket, self._replies

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket = self._replies = None


class RemoteBase(ServerBase):
    """The client of a `ciel-kv`."""

    capabilities = Capabilities()
    lost = (OSError,)

    def __init__(self, host: str, port: int, key: Key, timeout_s: float = TIMEOUT_S) -> None:
        super().__init__(f"the base at {host}:{port}", timeout_s)
        self._address = host, port
        self._key = key.derive(Role.KV) or key
        self._idle: list[Link] = []

    def close(self) -> None:
        super().close()
        while self._idle:
            self._idle.pop().close()

    def read(self, keys: Sequence[bytes]) -> list[bytes | None]:
        found: list[bytes | None] = self._ask(b"MGET", *keys) if keys else []
        return found

    def get(self, key: bytes) -> bytes | None:
        found: bytes | None = self._ask(b"GET", key)
        return found

    def apply(self, steps: Sequence[Step], request: Request | None = None) -> list[Result]:
        check(steps)
        packed = pack_steps(steps)

        own = request or self._numbers.next()
        head = (b"CIEL.BATCH", own.client, b"%d" % own.number, b"%d" % own.keep_s)
        with self._link() as held:
            try:
                results: list[Result] = self.persist(lambda: held.link.ask(*head, *packed))
                return results
            except ReplyError as error:
                raise self.translated(error, steps, own) from None

    def scan(self, first: bytes = b"", last: bytes | None = None) -> Iterator[Row]:
        return _pages(
            lambda start: self._ask(b"CIEL.RANGE", start, end_of_scan(last), _ROWS), first
        )

    def snapshot(self) -> Snapshot:
        held = self._link()
        try:
            number = self.persist(lambda: held.link.ask(b"CIEL.SNAPSHOT"))
        except ReplyError as error:
            held.release()
            raise self.translated(error) from None
        return _RemoteSnapshot(self, held, b"%d" % number)

    def watch(self, prefix: bytes) -> Watch:
        self.check_open()
        return _RemoteWatch(self, Link(self._connect), prefix)

    # --- connections ------------------------------------------------------------------------------

    def _ask(self, *parts: bytes) -> Any:
        with self._link() as held:
            try:
                return self.persist(lambda: held.link.ask(*parts))
            except ReplyError as error:
                raise self.translated(error) from None

    def _link(self) -> HeldLink:
        self.check_open()
        try:
            link = self._idle.pop()
        except IndexError:
            link = Link(self._connect)
        return HeldLink(self, link)

    def take_back(self, link: Link) -> None:
        """Keep a connection for the next operation."""
        if self._is_closed:
            link.close()
        else:
            self._idle.append(link)

    def _connect(self) -> socket.socket:
        connected = socket.create_connection(self._address, REPLY_S)
        try:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._authenticate(connected)
        except BaseException:
            connected.close()
            raise
        return connected

    def _authenticate(self, connected: socket.socket) -> None:
        """Prove the key to the base, and let it prove the key; raises OSError and DeniedError."""
        key, nonce, replies = self._key, secrets.token_bytes(32), Replies(connected)
        try:
            connected.sendall(pack_command([b"CIEL.AUTH", key.role.encode(), nonce]))
            theirs, answer = replies.next()
            if not matches(proof(key, key.role, Side.ACCEPTOR, nonce, theirs), answer):
                raise DeniedError(f"{self.name} does not have the key of this cluster")
            own = proof(key, key.role, Side.INITIATOR, nonce, theirs)
            connected.sendall(pack_command([b"CIEL.PROVE", own]))
            replies.next()
        except ReplyError as error:
            raise DeniedError(f"{self.name}: {error.text}") from None

    def translated(
        self, error: ReplyError, steps: Sequence[Step] = (), request: Request | None = None
    ) -> KvError:
        """Return an error of the server as one of this interface."""
        if error.code == "REFUSED":
            word, _, place = error.text.partition(" ")
            step: Any = steps[int(place)]
            key = getattr(step, "key", None) or step.first
            refused: RefusedError = REASONS[word](key, int(place))
            return refused
        if error.code == "STALE" and request is not None:
            return StaleRequestError(request.number, int(error.text))
        if error.code in _DENIED:
            return DeniedError(f"{self.name}: {error.text}")
        if error.code == "OOM":
            return BaseFullError(self.name, error.text.removeprefix("the base is full: "))
        if error.code == "LIMIT":
            return LimitError(f"{self.name}: {error.text}")
        return KvError(f"{self.name}: {error}")


class HeldLink:
    """A connection that one operation uses, in a `with`."""

    def __init__(self, base: RemoteBase, link: Link) -> None:
        self._base = base
        self.link = link

    def release(self) -> None:
        self._base.take_back(self.link)

    def __enter__(self) -> HeldLink:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class _RemoteSnapshot(Snapshot):
    """A snapshot belongs to a connection, and ends with it."""

    def __init__(self, base: RemoteBase, held: HeldLink, number: bytes) -> None:
        self._base = base
        self._held: HeldLink | None = held
        self._number = number

    def get(self, key: bytes) -> bytes | None:
        found: bytes | None = self._ask(b"CIEL.GET", self._number, key)[0]
        return found

    def rows(self, first: bytes = b"", last: bytes | None = None) -> Iterator[Row]:
        end = end_of_scan(last)
        return _pages(lambda start: self._ask(b"CIEL.ROWS", self._number, start, end, _ROWS), first)

    def close(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            try:
                held.link.ask(b"CIEL.DROP", self._number)
            except (OSError, KvError):
                pass  # then it has ended already
            held.release()

    def _ask(self, *parts: bytes) -> Any:
        if self._held is None:
            raise KvError("the snapshot is closed")
        try:
            return self._held.link.ask(*parts)
        except OSError as error:
            why = f"its connection was lost ({error.strerror or error}), and the snapshot with it"
            raise UnreachableError(self._base.name, why, False) from None
        except ReplyError as error:
            raise self._base.translated(error) from None


class _RemoteWatch(Watch):
    """A separate connection, on which the base reports changes."""

    def __init__(self, base: RemoteBase, link: Link, prefix: bytes) -> None:
        self._base = base
        self._link = link
        self._prefix = prefix
        self._open()

    def wait(self, timeout_s: float | None = None) -> bool:
        try:
            if not self._replies.has_more:
                poll = select.poll()
                poll.register(self._socket, select.POLLIN)
                if not poll.poll(None if timeout_s is None else timeout_s * 1000):
                    return False
            return isinstance(self._replies.next(), Pushed)
        except (OSError, ValueError):
            self._link.close()
            self._open()
            return True  # changes meanwhile were not reported

    def close(self) -> None:
        self._link.close()

    def _open(self) -> None:
        def begin() -> None:
            self._socket, self._replies = self._link.open()
            self._link.ask(b"HELLO", b"3")
            self._link.ask(b"CIEL.WATCH", self._prefix)

        self._base.persist(begin)


def _pages(ask: Callable[[bytes], list[Any]], first: bytes) -> Iterator[Row]:
    """Yield rows. `ask` returns one page."""
    while True:
        is_end, *parts = ask(first)
        yield from zip(parts[::2], parts[1::2], strict=True)
        if is_end:
            return
        first = parts[-2] + b"\0"


def open_remote(url: SplitResult, key: Key | None) -> Base:
    """Open `ciel-kv://HOST:PORT`; raises KvError."""
    if not url.hostname or not url.port:
        raise BaseUrlError(f"{url.geturl()} names no base: ciel-kv://HOST:PORT")
    if key is None:
        raise DeniedError(f"{url.geturl()} needs the key of its cluster")
    return RemoteBase(url.hostname, url.port, key)
