"""The process of a replica: it creates the object, and answers calls until the engine ends it.

One thread does all: it reads the connections, runs plain methods one at a time, and sends replies.
If the class has `async` methods, an event loop runs them beside each other in this thread.
"""

from __future__ import annotations

import asyncio
import errno
import inspect
import os
import select
import socket
import time
from collections import deque
from collections.abc import Callable
from types import CoroutineType
from typing import Any, Final

from ciel.access.keys import Key, Role
from ciel.client.services import classes
from ciel.client.services.classes import ServiceInfo
from ciel.client.services.forms import pack_value, unpack_value
from ciel.client.services.inbox import CANCELLED, ERROR, VALUE, Caller, IncomingCall
from ciel.client.services.lookup import task_lookup
from ciel.client.services.outbox import Record
from ciel.execution.environment import SERVICE_HOST
from ciel.python.failures import pack_error, packing_error
from ciel.python.packing import UnpackedError
from ciel.python.task_session import current_task
from ciel.state.here import rows_here
from ciel.version import __version__
from ciel.wire.errors import RemoteProtocolError, WireError
from ciel.wire.limits import HELLO_TIMEOUT_S, RECORD_MAX_BYTES
from ciel.wire.session import Session

READ_BYTES: Final = 256 << 10
UNPROVEN_MAX: Final = 64
"""How many connections may not have proved the key yet; with more, the oldest is closed."""
BACKLOG: Final = 256
TURN_CALLS: Final = 64
"""After so many calls, or `TURN_S`, the replica sends replies and reads again."""
TURN_S: Final = 0.002
CALLER_CALLS: Final = 16
"""How many calls of one caller run before those of another."""
WAITING_MAX: Final = 10_000
"""With more waiting calls of a caller, the replica reads no more of them."""
RUNNING_MAX: Final = 1_000
"""How many `async` calls run at a time."""
UNSENT_MAX_BYTES: Final = 16 << 20
"""With more unsent bytes of replies to a caller, the replica reads no more of its calls."""
ORPHAN_S: Final = 60.0
"""How long replies are kept for a caller that has lost its connection."""
_CHECK_S: Final = 1.0
_FLAGS: Final = int(socket.MSG_NOSIGNAL)


class Peer:
    """One connection."""

    def __init__(self, channel: socket.socket, session: Session) -> None:
        self.channel = channel
        self.session = session
        self.caller: Caller | None = None
        self.opened_s = time.monotonic()
        self.replies: list[Record] = []
        self.unsent = bytearray()
        self.interest = select.EPOLLIN
        self.is_ending = False


class Replica:
    """Serves the methods of an object at a listening socket, to callers that prove the key.

    `instance`: the task and its attempt, which callers must name.
    """

    def __init__(
        self, target: Any, listener: socket.socket, key: Key, cluster_id: str, instance: str
    ) -> None:
        self._target = target
        self._listener = listener
        self._key = key
        self._cluster_id = cluster_id
        self._instance = instance
        self._title = type(target).__qualname__
        self._peers: dict[int, Peer] = {}
        self._by_caller: dict[str, Peer] = {}
        self._callers: dict[str, Caller] = {}
        self._orphans: dict[str, float] = {}  # since when callers have no connection
        self._ready: deque[Caller] = deque()
        self._dirty: dict[int, Peer] = {}  # peers with replies to send
        self._running: dict[tuple[str, int], asyncio.Task[Any]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._turn_soon: Callable[[], object]
        self._is_turn_due = False
        self._epoll = select.epoll()
        listener.setblocking(False)
        self._epoll.register(listener, select.EPOLLIN)

    def run(self) -> None:
        """Answer calls until this process is ended."""
        if _has_async_methods(type(self._target)):
            asyncio.run(self._run_async())
        while True:
            self._turn(0.0 if self._ready else _CHECK_S if self._must_check else -1.0)

    async def _run_async(self) -> None:
        self._loop = loop = asyncio.get_running_loop()

        def turn() -> None:
            self._is_turn_due = False
            self._turn(0.0)
            if self._ready and len(self._running) < RUNNING_MAX:
                turn_soon()

        def turn_soon() -> None:
            if not self._is_turn_due:
                self._is_turn_due = True
                loop.call_soon(turn)

        self._turn_soon = turn_soon
        loop.add_reader(self._epoll.fileno(), turn)
        while True:
            await asyncio.sleep(_CHECK_S)
            self._expire()

    @property
    def _must_check(self) -> bool:
        return bool(self._orphans) or len(self._peers) > len(self._by_caller)

    def _turn(self, wait_s: float) -> None:
        """Read, run some calls, and send their replies."""
        for fd, event in self._epoll.poll(wait_s):
            if fd == self._listener.fileno():
                self._accept()
            elif (peer := self._peers.get(fd)) is not None:
                if event & ~select.EPOLLOUT:
                    self._read(peer)
                if event & select.EPOLLOUT:
                    self._dirty[fd] = peer
        self._run_some()
        for peer in self._dirty.values():
            self._send(peer)
        self._dirty.clear()
        if self._loop is None and self._must_check:
            self._expire()

    # --- connections ------------------------------------------------------------------------------

    def _accept(self) -> None:
        try:
            channel, _ = self._listener.accept()
        except OSError:  # the peer is gone, or there are too many descriptors
            return
        channel.setblocking(False)
        if channel.family != socket.AF_UNIX:
            channel.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        session = Session.acceptor(self._key_for, software=__version__, cluster_id=self._cluster_id)
        unproven = [peer for peer in self._peers.values() if peer.caller is None]
        if len(unproven) >= UNPROVEN_MAX:
            self._close(unproven[0])
        self._peers[channel.fileno()] = Peer(channel, session)
        self._epoll.register(channel, select.EPOLLIN)

    def _key_for(self, role: Role) -> Key | None:
        return self._key if role is Role.SERVICE else None

    def _read(self, peer: Peer) -> None:
        try:
            data = peer.channel.recv(READ_BYTES)
            if not data:
                self._close(peer)
                return
            records = peer.session.receive(data)
            if peer.session.is_open and peer.caller is None:
                self._greet(peer)
            self._take(peer, records)
            if peer.caller is None and (answer := peer.session.data_to_send()):
                peer.unsent += answer
                self._dirty[peer.channel.fileno()] = peer
        except BlockingIOError:
            pass
        except WireError:
            peer.unsent += peer.session.data_to_send()
            peer.is_ending = True
            self._dirty[peer.channel.fileno()] = peer
        except OSError:
            self._close(peer)

    def _greet(self, peer: Peer) -> None:
        """Begin with a peer that has proved the key. Raises RefusedError, RemoteProtocolError."""
        assert peer.session.peer is not None
        about = peer.session.peer.about
        token, instance = about.get("caller"), about.get("instance")
        if instance != self._instance:
            raise peer.session.refuse("another replica listens here now")
        if not isinstance(token, str) or not 16 <= len(token) <= 64:
            raise RemoteProtocolError("a caller of a service has a token")
        caller = self._callers.setdefault(token, Caller(token))
        if (earlier := self._by_caller.get(token)) is not None:
            self._close(earlier)
        self._orphans.pop(token, None)
        peer.caller = caller
        self._by_caller[token] = peer
        peer.replies += caller.greet()
        self._dirty[peer.channel.fileno()] = peer

    def _take(self, peer: Peer, records: list[Any]) -> None:
        caller = peer.caller
        if not records or caller is None:
            return
        had_calls = bool(caller.waiting)
        for record in records:
            if (number := caller.take(record)) is not None:
                if (task := self._running.get((caller.token, number))) is not None:
                    task.cancel()
        if caller.waiting and not had_calls:
            self._ready.append(caller)
        if len(caller.waiting) > WAITING_MAX:
            self._set_interest(peer)

    def _set_interest(self, peer: Peer) -> None:
        """Read from a peer unless too much of it waits; wait for room if replies are unsent."""
        interest = select.EPOLLOUT if peer.unsent else 0
        waits = peer.caller is not None and len(peer.caller.waiting) > WAITING_MAX
        if not waits and len(peer.unsent) < UNSENT_MAX_BYTES:
            interest |= select.EPOLLIN
        if interest != peer.interest:
            peer.interest = interest
            self._epoll.modify(peer.channel, interest)

    def _send(self, peer: Peer) -> None:
        fd = peer.channel.fileno()
        if fd < 0:
            return
        if peer.replies:
            replies, peer.replies = peer.replies, []
            peer.unsent += peer.session.send(replies)
        try:
            if peer.unsent:
                del peer.unsent[: peer.channel.send(peer.unsent, _FLAGS)]
        except BlockingIOError:
            pass
        except OSError:
            self._close(peer)
            return
        if peer.is_ending:
            self._close(peer)
        else:
            self._set_interest(peer)

    def _close(self, peer: Peer) -> None:
        fd = peer.channel.fileno()
        if fd < 0:
            return
        self._peers.pop(fd, None)
        self._epoll.unregister(fd)
        peer.channel.close()
        caller = peer.caller
        if caller is not None and self._by_caller.get(caller.token) is peer:
            del self._by_caller[caller.token]
            self._orphans[caller.token] = time.monotonic()

    def _expire(self) -> None:
        """Close peers that do not prove the key, and forget callers that do not return."""
        now_s = time.monotonic()
        for peer in list(self._peers.values()):
            if peer.caller is None and now_s - peer.opened_s > HELLO_TIMEOUT_S:
                self._close(peer)
        for token, since_s in list(self._orphans.items()):
            if now_s - since_s > ORPHAN_S and self._callers[token].is_idle:
                del self._orphans[token], self._callers[token]

    # --- calls ------------------------------------------------------------------------------------

    def _run_some(self) -> None:
        """Run waiting calls, for a while; callers take turns."""
        ready, left = self._ready, TURN_CALLS
        until_s = time.perf_counter() + TURN_S
        while ready and left > 0:
            caller = ready.popleft()
            for _ in range(min(CALLER_CALLS, left)):
                if not caller.waiting or len(self._running) >= RUNNING_MAX:
                    break
                left -= 1
                self._run_call(caller, caller.start())
                if time.perf_counter() > until_s:
                    left = 0
                    break
            if caller.waiting:
                ready.append(caller)
                if len(self._running) >= RUNNING_MAX:
                    return

    def _run_call(self, caller: Caller, call: IncomingCall) -> None:
        try:
            found = None if call.method[:1] == "_" else getattr(self._target, call.method, None)
            if not callable(found):
                raise AttributeError(f"the service {self._title} has no method {call.method!r:.80}")
            args, kwargs = unpack_value(call.form, call.payload)
            result = found(*args, **kwargs)
            if type(result) is CoroutineType:
                self._start(caller, call, result)
                return
        except BaseException as error:  # a method may raise anything
            self._raised(caller, call, error)
            return
        self._returned(caller, call, result)

    def _start(self, caller: Caller, call: IncomingCall, coroutine: Any) -> None:
        """Let the event loop run a call of an `async` method."""
        if self._loop is None:
            coroutine.close()
            raise TypeError(
                f"{self._title}.{call.method} returns a coroutine, and no method of its class is "
                "declared 'async def'"
            )
        task = self._loop.create_task(coroutine)
        self._running[caller.token, call.number] = task

        def ended(_: Any) -> None:
            del self._running[caller.token, call.number]
            if task.cancelled():
                self._reply(caller, call, CANCELLED, 0, b"")
            elif (error := task.exception()) is not None:
                self._raised(caller, call, error)
            else:
                self._returned(caller, call, task.result())
            self._turn_soon()  # sends the reply, and starts calls that waited

        task.add_done_callback(ended)

    def _returned(self, caller: Caller, call: IncomingCall, value: Any) -> None:
        try:
            form, payload = pack_value(value)
            if len(payload) > RECORD_MAX_BYTES - 200:
                raise UnpackedError(
                    f"it takes {len(payload):,} bytes, and a reply can have {RECORD_MAX_BYTES:,}"
                )
        except BaseException as error:  # a __reduce__ of the user may raise anything
            if isinstance(error, UnpackedError):
                error = packing_error(f"the result of {self._title}.{call.method}", error)
            self._raised(caller, call, error)
            return
        self._reply(caller, call, VALUE, form, payload)

    def _raised(self, caller: Caller, call: IncomingCall, error: BaseException) -> None:
        worker = os.environ.get("CIEL_WORKER", "")
        packed = pack_error(error, 1, worker=worker)
        self._reply(caller, call, ERROR, 0, packed)

    def _reply(
        self, caller: Caller, call: IncomingCall, kind: int, form: int, payload: bytes
    ) -> None:
        record = caller.answer(call.number, kind, form, payload)
        if (peer := self._by_caller.get(caller.token)) is not None:
            peer.replies.append(record)
            self._dirty[peer.channel.fileno()] = peer


def _has_async_methods(cls: type) -> bool:
    return any(
        inspect.iscoroutinefunction(getattr(cls, name, None))
        for name in dir(cls)
        if not name.startswith("_")
    )


def listen(host: str) -> socket.socket:
    """Listen at a free port of a host; at all addresses if the host's name is for others only."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        listener.bind((host, 0))
    except OSError as error:
        if error.errno != errno.EADDRNOTAVAIL:
            listener.close()
            raise
        listener.bind(("::" if family == socket.AF_INET6 else "", 0))
    listener.listen(BACKLOG)
    return listener


def serve(cls: type, args: tuple[Any, ...], kwargs: dict[str, Any], name: str, number: int) -> None:
    """Run a replica: the function of its task. It returns only by an exception."""
    lookup, task = task_lookup(), current_task()
    host = os.environ.get(SERVICE_HOST, "127.0.0.1")
    restarts = task.attempt - 1
    classes.enter(ServiceInfo(name, number, restarts, lambda: rows_here("ciel.services", task.job)))
    try:
        target = cls(*args, **kwargs)
        with listen(host) as listener:
            port = listener.getsockname()[1]
            address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            instance = f"{task.id} {task.attempt}"
            replica = Replica(target, listener, lookup.key, lookup.cluster_id, instance)
            lookup.report(task.id, task.attempt, address)
            replica.run()
    finally:
        classes.leave()
        lookup.close()
