"""A fake master: only a session on a real socket, in a thread."""

import contextlib
import gc
import os
import secrets
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from ciel.access.keys import Key
from ciel.core.events import Heartbeat, Message, Received
from ciel.wire.errors import WireError
from ciel.wire.messages import FROM_CLIENT, decode, encode
from ciel.wire.session import Session

Reply = Callable[[Message], list[Message]]


class Acceptor:
    """Accepts one client at a time, records its messages, and answers with the result of `reply`. A
    client that reconnects continues its session.
    """

    def __init__(self, listener: socket.socket, address: str, key: Key) -> None:
        self.address = address
        self.key = key
        self.cluster_id = "test-cluster"
        self.heard: list[Message] = []
        self.reply: Reply = lambda message: []
        self.peer_ended = threading.Event()
        self.reads = threading.Event()
        self.reads.set()
        self.takes_back = True
        self.forgets = 0
        """How many of the last messages it does not confirm to a client that reconnects."""
        self.sent: list[Message] = []
        self.about: dict[str, Any] = {}
        """The description of itself that it sends."""
        self.hellos: list[dict[str, Any]] = []
        self._listener = listener
        self._channel: socket.socket | None = None
        self._thread = threading.Thread(target=self._accept)
        self._thread.start()

    def say(self, *messages: Message) -> None:
        until_s = time.monotonic() + 10
        while (
            not self._session.is_open
        ):  # the client's side is open first, while its proof is on the way
            assert time.monotonic() < until_s
            time.sleep(0.001)
        assert self._channel is not None
        self.sent += [m for m in messages if not isinstance(m, Heartbeat | Received)]
        self._channel.sendall(self._session.send([encode(message) for message in messages]))

    def drop(self) -> None:
        """Close the connection without a message."""
        assert self._channel is not None
        self._channel.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.reads.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        if self._channel is not None:
            with contextlib.suppress(OSError):
                self._channel.shutdown(socket.SHUT_RDWR)
        self._thread.join()

    def _accept(self) -> None:
        while True:
            try:
                channel, _ = self._listener.accept()
            except OSError:
                return
            with channel, contextlib.suppress(OSError, WireError):
                self._serve(channel)
            self.peer_ended.set()

    def _serve(self, channel: socket.socket) -> None:
        session = Session.acceptor(
            self.key.derive, software="9.9.9", cluster_id=self.cluster_id, about=self.about
        )
        self._channel, self._session = channel, session
        while data := channel.recv(65536):
            was_open = session.is_open
            try:
                records = session.receive(data)
            finally:
                channel.sendall(session.data_to_send())
            if session.peer is not None and not was_open:
                self._welcome(session, session.peer.about)
            for record in records:
                message = decode(record, FROM_CLIENT)
                self.heard.append(message)
                if answers := self.reply(message):
                    self.say(*answers)
            self.reads.wait()

    def _welcome(self, session: Session, about: Mapping[str, Any]) -> None:
        self.hellos.append(dict(about))
        if "received" not in about:
            return
        assert self._channel is not None
        if not self.takes_back:
            session.refuse("nobody knows you")
            self._channel.sendall(session.data_to_send())
            self._channel.shutdown(socket.SHUT_RDWR)
            return
        counted: list[Message] = [m for m in self.heard if not isinstance(m, Heartbeat | Received)]
        if self.forgets:
            self.heard = counted = counted[: -self.forgets]
        again, self.sent = self.sent[about["received"] :], self.sent[: about["received"]]
        self.say(Received(len(counted)), *again)


@pytest.fixture
def key() -> Key:
    return Key.new()


@pytest.fixture
def acceptor(key: Key) -> Iterator[Acceptor]:
    name = f"ciel-test-{secrets.token_hex(8)}"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"\0{name}")
    listener.listen()
    acceptor = Acceptor(listener, f"unix:@{name}", key)
    yield acceptor
    acceptor.close()


@pytest.fixture
def listener() -> Iterator[tuple[socket.socket, str]]:
    """A TCP listener, and its address."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener, f"127.0.0.1:{listener.getsockname()[1]}"


INTERRUPTS = 150


@pytest.fixture
def interrupted() -> Callable[[Callable[[], object], float], int]:
    """Repeat a step while interrupts arrive as with Ctrl-C, one in each interval; return how many
    of them ended a step.
    """

    def take(step: Callable[[], object], each_s: float) -> int:
        done = threading.Event()
        armed = False
        count = 0

        def interrupt() -> None:
            for _ in range(INTERRUPTS):
                time.sleep(each_s)
                os.kill(os.getpid(), signal.SIGUSR1)
            done.set()

        def stop(number: int, frame: object) -> None:
            nonlocal armed
            if armed:  # not while the last interrupt is handled
                armed = False
                raise KeyboardInterrupt

        gc.collect()
        gc.disable()  # an interrupt in a finalizer is lost, and pytest would report it
        former = signal.signal(signal.SIGUSR1, stop)
        thread = threading.Thread(target=interrupt)
        thread.start()
        while not done.is_set():
            try:
                armed = True
                step()
                armed = False
            except KeyboardInterrupt:
                count += 1
        thread.join()
        signal.signal(signal.SIGUSR1, former)
        gc.enable()
        return count

    return take
