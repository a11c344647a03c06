import http.server
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import pytest

import ciel.client.connection.connection as connection_module
from ciel import __version__
from ciel.access.keys import Key, Role
from ciel.client.connection import Connection, open_connection
from ciel.client.errors import (
    AccessRefusedError,
    ClientClosedError,
    ClientError,
    ConnectionLostError,
    ForkedError,
)
from ciel.core.events import (
    AddTask,
    Answer,
    Ask,
    Heartbeat,
    Message,
    RequestRefused,
    WatchJob,
)
from ciel.core.ids import JobId
from ciel.wire.descriptors import make_task
from ciel.wire.errors import RecordTooLargeError
from ciel.wire.frames import SendableRecord, encode_frames
from ciel.wire.session import Session

JOB = JobId("j")

WITHIN_S = 30.0


class AcceptorLike(Protocol):
    address: str
    key: Key
    heard: list[Message]
    reply: Callable[[Message], list[Message]]
    peer_ended: threading.Event
    reads: threading.Event
    takes_back: bool
    forgets: int
    hellos: list[dict[str, object]]

    def say(self, *messages: Message) -> None: ...
    def drop(self) -> None: ...


class Caller:
    """An owner of a connection that records its messages."""

    def __init__(self, acceptor: AcceptorLike) -> None:
        self.messages: list[Message] = []
        self.lost: list[ClientError] = []
        self.delivered = threading.Condition()
        self.connection: Connection = open_connection(
            acceptor.address, acceptor.key, self.deliver, self.take_loss
        )

    def deliver(self, messages: list[Message]) -> None:
        with self.delivered:
            self.messages += messages
            self.delivered.notify_all()

    def take_loss(self, error: ClientError) -> None:
        with self.delivered:
            self.lost.append(error)
            self.delivered.notify_all()

    def wait_for(self, condition: Callable[[], object]) -> None:
        with self.delivered:
            assert self.delivered.wait_for(condition, WITHIN_S)


@pytest.fixture
def caller(acceptor: AcceptorLike) -> Iterator[Caller]:
    caller = Caller(acceptor)
    yield caller
    acceptor.reads.set()
    caller.connection.close()


def refused(address: str, key: Key, **options: float | str) -> str:
    """Return the message of a connection that fails."""
    with pytest.raises(ClientError) as caught:
        open_connection(address, key, lambda _: None, lambda _: None, **options)  # type: ignore[arg-type]  # options pass through
    return f"{type(caught.value).__name__}: {caught.value}"


def task(job: str, ordinal: int, content: str = "") -> AddTask:
    spec, known = make_task(
        job=JobId(job), parent=job, ordinal=ordinal, executor="x", arguments={"content": content}
    )
    return AddTask(spec, known)


def test_messages_go_both_ways(acceptor: AcceptorLike, caller: Caller) -> None:
    acceptor.reply = lambda message: [Answer(1, "pong", "")] if isinstance(message, Ask) else []
    caller.connection.send(Ask(1, "ping", None))
    caller.wait_for(lambda: caller.messages)
    assert caller.messages == [Answer(1, "pong", "")]


def test_queued_messages_are_sent_before_the_end(acceptor: AcceptorLike, caller: Caller) -> None:
    caller.connection.send(*(WatchJob(JobId(f"j{number}")) for number in range(5000)))
    caller.connection.close()
    assert acceptor.peer_ended.wait(10)
    assert sum(isinstance(message, WatchJob) for message in acceptor.heard) == 5000
    assert caller.lost == []


def test_many_messages_are_sent_in_few_frames(
    acceptor: AcceptorLike, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = []
    send = Session.send

    def counting_send(session: Session, records: Sequence[SendableRecord]) -> bytes:
        sizes.append(len(records))
        return send(session, records)

    monkeypatch.setattr(Session, "send", counting_send)
    for number in range(5000):
        caller.connection.send(WatchJob(JobId(f"j{number}")))
    caller.connection.close()
    assert acceptor.peer_ended.wait(10)
    assert sum(isinstance(message, WatchJob) for message in acceptor.heard) == 5000
    assert sum(sizes) / len(sizes) > 5


@pytest.mark.slow
def test_reads_while_it_cannot_write(
    acceptor: AcceptorLike, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both buffers are full; a side that insisted on writing first would wait for ever."""
    monkeypatch.setattr(connection_module, "_FAREWELL_S", 10.0)
    acceptor.reads.clear()
    caller.connection.send(Heartbeat())  # after this the acceptor reads no more
    content = "x" * 60_000
    for number in range(15):  # 0.9 MB
        caller.connection.send(task("j", number, content))
    acceptor.say(*(RequestRefused(JOB, "y" * 200) for _ in range(20_000)))
    caller.wait_for(lambda: len(caller.messages) == 20_000)
    acceptor.reads.set()
    caller.connection.close()
    assert acceptor.peer_ended.wait(10)
    assert sum(isinstance(message, AddTask) for message in acceptor.heard) == 15


class Later:
    """A clock that is ahead of the real one."""

    ahead_s = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead_s


def test_close_gives_a_slow_master_time_to_read(
    acceptor: AcceptorLike, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Later()
    monkeypatch.setattr(connection_module, "time", clock)
    monkeypatch.setattr(connection_module, "_FAREWELL_S", 9.0)
    acceptor.reads.clear()
    for number in range(20):  # 1.2 MB, more than the buffers of both sides hold
        caller.connection.send(task("j", number, "x" * 60_000))
    clock.ahead_s = 10.0
    closing = threading.Thread(target=caller.connection.close)
    closing.start()
    closing.join(0.05)
    acceptor.reads.set()
    closing.join()
    assert acceptor.peer_ended.wait(10)
    assert sum(isinstance(message, AddTask) for message in acceptor.heard) == 20


def test_a_caller_waits_while_too_much_is_queued(
    acceptor: AcceptorLike, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "_QUEUED_MAX_BYTES", 1 << 20)
    acceptor.reads.clear()
    sent = []

    def send() -> None:
        for number in range(300):
            caller.connection.send(task("j", number, "x" * 60_000))
            sent.append(number)

    sender = threading.Thread(target=send)
    sender.start()
    sender.join(0.5)
    assert sender.is_alive()
    assert len(sent) < 200
    acceptor.reads.set()
    sender.join(10)
    assert len(sent) == 300


def test_an_idle_client_sends_heartbeats(
    acceptor: AcceptorLike, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "HEARTBEAT_INTERVAL_S", 0.05)
    caller.connection.send(Ask(1, "wake", None))
    deadline_s = time.monotonic() + 20
    while Heartbeat() not in acceptor.heard and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert Heartbeat() in acceptor.heard


def test_a_master_that_falls_silent_is_lost(
    acceptor: AcceptorLike, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "SILENT_MAX_S", 0.1)
    monkeypatch.setattr(connection_module, "HEARTBEAT_INTERVAL_S", 0.05)
    acceptor.takes_back = False
    caller = Caller(acceptor)
    caller.wait_for(lambda: caller.lost)
    assert "silent for 0.1 s" in str(caller.lost[0])


def test_a_lost_connection_is_reported_and_ends_sending(
    acceptor: AcceptorLike, caller: Caller
) -> None:
    acceptor.takes_back = False
    acceptor.drop()
    caller.wait_for(lambda: caller.lost)
    assert isinstance(caller.lost[0], ConnectionLostError)
    with pytest.raises(ConnectionLostError, match="closed the connection"):
        caller.connection.send(Heartbeat())


def test_sending_on_a_closed_connection_raises(caller: Caller) -> None:
    caller.connection.close()
    caller.connection.close()
    with pytest.raises(ClientClosedError):
        caller.connection.send(Heartbeat())
    assert caller.lost == []


def test_a_wrong_message_of_the_master_ends_the_connection(
    acceptor: AcceptorLike, caller: Caller
) -> None:
    acceptor.say(WatchJob(JOB))  # only a client may send this
    caller.wait_for(lambda: caller.lost)
    assert "not expected here" in str(caller.lost[0])


def test_a_task_that_fits_no_message_is_refused_and_the_connection_stays(
    acceptor: AcceptorLike, caller: Caller
) -> None:
    with pytest.raises(RecordTooLargeError):
        caller.connection.send(task("j", 0, "x" * (33 << 20)))
    acceptor.reply = lambda message: [Answer(2, None, "")]
    caller.connection.send(Ask(2, "still there?", None))
    caller.wait_for(lambda: caller.messages)


def test_a_forked_child_cannot_use_a_connection(caller: Caller) -> None:
    read_fd, write_fd = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            caller.connection.send(Heartbeat())
        except ForkedError as error:
            os.write(write_fd, str(error).encode())
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    os.close(write_fd)
    text = os.read(read_fd, 1000).decode()
    os.close(read_fd)
    assert text == (
        f"this client was created in process {os.getpid()} and cannot be used in its child {pid}; "
        "create another client in the child"
    )


def test_nothing_listens(key: Key, listener: tuple[socket.socket, str]) -> None:
    listener[0].close()
    assert refused(listener[1], key).endswith(f"no master at {listener[1]}: nothing listens there")
    assert refused("unix:@ciel-nobody", key).startswith("NoMasterError")
    assert "No such file" in refused("unix:/nonexistent/ciel", key)


@pytest.mark.parametrize("address", ["nowhere", "127.0.0.1:http", "127.0.0.1:99999"])
def test_a_wrong_address_is_an_error(key: Key, address: str) -> None:
    assert refused(address, key).startswith("NoMasterError")


def test_another_key_is_refused(acceptor: AcceptorLike) -> None:
    text = refused(acceptor.address, Key.new())
    assert text.startswith("AccessRefusedError")
    assert "the submit key does not match cluster test-cluster" in text


def test_a_role_without_its_key_is_refused_before_anything_is_sent(
    acceptor: AcceptorLike,
) -> None:
    worker_key = acceptor.key.derive(Role.WORKER)
    assert worker_key is not None
    with pytest.raises(AccessRefusedError, match="role worker does not prove the role submit"):
        open_connection(acceptor.address, worker_key, lambda _: None, lambda _: None)


def test_another_cluster_is_refused(acceptor: AcceptorLike) -> None:
    text = refused(acceptor.address, acceptor.key, cluster_id="other")
    assert text.startswith("AccessRefusedError")
    assert "cluster test-cluster, the connecting side looks for other" in text


def test_another_version_is_refused_naming_both(
    key: Key, listener: tuple[socket.socket, str]
) -> None:
    hello = encode_frames([(["hello", 99, "7.0", "submit", "c", "00" * 32, {}], b"")])
    with answering(listener[0], hello):
        text = refused(listener[1], key)
    assert text.startswith("AccessRefusedError")
    assert "protocol 99 (ciel 7.0)" in text
    assert f"protocol 1 (ciel {__version__})" in text


class answering:  # noqa: N801  # reads as a verb
    """Answer the first connection with these bytes, then hold it open."""

    def __init__(self, listener: socket.socket, data: bytes, *, close: bool = False) -> None:
        self._listener = listener
        self._data = data
        self._close = close
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _run(self) -> None:
        channel, _ = self._listener.accept()
        with channel:
            channel.recv(1)
            channel.sendall(self._data)
            if not self._close:
                self._done.wait()


@pytest.mark.parametrize(
    "data, why",
    [
        (b"SSH-2.0-OpenSSH_9.2\r\n", "another program listens there"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "an HTTP server"),
        (b"\0\0\0\x02\0\0\0\x02[]", "another program listens there"),
        (b"\x01\xff\xff\xff\0\0\0\0", "another program listens there"),
    ],
)
def test_another_server_is_recognised(
    key: Key, listener: tuple[socket.socket, str], data: bytes, why: str
) -> None:
    with answering(listener[0], data):
        text = refused(listener[1], key)
    assert text.startswith("NotAMasterError")
    assert why in text


def test_a_peer_that_closes_the_connection_is_not_a_master(
    key: Key, listener: tuple[socket.socket, str]
) -> None:
    with answering(listener[0], b"", close=True):
        text = refused(listener[1], key)
    assert text.startswith("NotAMasterError")
    assert text.endswith("it closed the connection: it is about to end, or it is not a master")


class Quiet(http.server.BaseHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None: ...


def test_a_real_http_server_is_recognised(key: Key) -> None:
    with http.server.HTTPServer(("127.0.0.1", 0), Quiet) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            text = refused(f"127.0.0.1:{server.server_port}", key, timeout_s=1.0)
        finally:
            server.shutdown()
            thread.join()
    assert text.startswith("NotAMasterError")


def test_a_silent_listener_costs_no_more_than_the_time_limit(
    key: Key, listener: tuple[socket.socket, str]
) -> None:
    start_s = time.monotonic()
    text = refused(listener[1], key, timeout_s=0.2)
    assert text.endswith("it does not answer: it hangs, or it is not a master")
    assert time.monotonic() - start_s < 10


def test_messages_in_short_succession_may_be_read_together(
    acceptor: AcceptorLike,
) -> None:
    deliveries: list[int] = []
    caller = Caller(acceptor)
    deliver = caller.deliver

    def count(messages: list[Message]) -> None:
        deliveries.append(len(messages))
        deliver(messages)

    caller.connection._deliver = count
    caller.connection.read_interval_s = 0.5
    acceptor.say(Answer(1, 1, ""))
    caller.wait_for(lambda: caller.messages)
    for number in (2, 3, 4):
        acceptor.say(Answer(number, number, ""))
        time.sleep(0.01)
    caller.wait_for(lambda: len(caller.messages) == 4)
    caller.connection.close()
    assert deliveries[0] == 1
    assert len(deliveries) < 4
