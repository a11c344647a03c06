# Twisted's names, and Twisted without annotations:
# ruff: noqa: N802
# mypy: allow-untyped-calls

from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
from twisted.internet.error import ConnectionDone
from twisted.internet.task import Clock
from twisted.python.failure import Failure

from ciel.access.keys import Key, Role
from ciel.core.events import (
    HEARTBEAT_INTERVAL_S,
    LOST_AFTER_S,
    Answer,
    Ask,
    CancelTask,
    Change,
    DropObjects,
    Heartbeat,
    InputsLost,
    Message,
)
from ciel.core.ids import ObjectId, TaskId
from ciel.net.control import (
    CLOSE_TIMEOUT_S,
    CONGESTED_BYTES,
    DISCARDED_MAX_BYTES,
    ControlPeer,
)
from ciel.net.ticks import Ticks
from ciel.wire.errors import RefusedError, RemoteProtocolError
from ciel.wire.frames import encode_frames
from ciel.wire.limits import HELLO_TIMEOUT_S, RECORDS_PER_FRAME_MAX
from ciel.wire.session import Session

KEY = Key(bytes(range(32)))


class Wire:
    """One end of a connection in memory. `room_bytes`: how much the peer's socket still accepts."""

    def __init__(self) -> None:
        self.other: Wire
        self.protocol: Any
        self.writes: list[bytes] = []
        self.sent: deque[bytes] = deque()
        self.held = b""
        self.room_bytes = 1 << 40
        self.producer: Any = None
        self.is_paused = self.is_closing = self.is_half_closed = self.is_gone = False

    def getPeer(self) -> Any:
        return None

    def writeSomeData(self, data: bytes) -> int:
        count = min(len(data), self.room_bytes)
        self.room_bytes -= count
        if count:
            self.writes.append(data[:count])
            self.sent.append(data[:count])
        return count

    def write(self, data: bytes) -> None:
        self.held += data

    def registerProducer(self, producer: Any, streaming: bool) -> None:
        assert not streaming
        self.producer = producer
        producer.resumeProducing()

    def unregisterProducer(self) -> None:
        self.producer = None

    def pauseProducing(self) -> None:
        self.is_paused = True

    def resumeProducing(self) -> None:
        self.is_paused = False

    def loseWriteConnection(self) -> None:
        assert self.producer is None
        self.is_closing = True

    def abortConnection(self) -> None:
        self.lose()
        self.other.lose()

    def lose(self) -> None:
        if not self.is_gone:
            self.is_gone = True
            self.protocol.connectionLost(Failure(ConnectionDone()))

    def step(self) -> bool:
        """Do one step of the reactor's work for this end; return False if there was none."""
        if self.is_gone:
            return False
        if self.held and self.room_bytes:
            self.held = self.held[self.writeSomeData(self.held) :]
            if not self.held and self.producer is not None:
                self.producer.resumeProducing()
            return True
        if self.sent and not self.other.is_paused and not self.other.is_gone:
            self.other.protocol.dataReceived(self.sent.popleft())
            return True
        if self.is_closing and not self.is_half_closed and not self.held and not self.sent:
            self.is_half_closed = True
            self.other.lose()  # a peer that closes when it sees our end close
            self.lose()
            return True
        return False


class Owner:
    """Records its calls."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.said: list[list[Message]] = []
        self.on_opened: Callable[[ControlPeer], object] = lambda peer: None
        self.on_said: Callable[[ControlPeer], object] = lambda peer: None

    def peer_opened(self, peer: ControlPeer) -> None:
        self.events.append("opened")
        self.on_opened(peer)

    def peer_said(self, peer: ControlPeer, messages: list[Message]) -> None:
        self.said.append(messages)
        self.on_said(peer)

    def peer_drained(self, peer: ControlPeer) -> None:
        self.events.append("drained")

    def peer_closed(self, peer: ControlPeer, reason: str) -> None:
        self.events.append(reason)


class Line:
    """A client or worker (left) and a master (right), connected in memory, with one clock."""

    def __init__(
        self, role: Role = Role.WORKER, left_key: Key = KEY, right_key: Key = KEY, **options: Any
    ) -> None:
        self.clock = Clock()
        self.ticks = Ticks(self.clock)
        self.owners = (Owner(), Owner())
        sessions = (
            Session.initiator(left_key, role, software="1.0", about={"slots": 2}),
            Session.acceptor(right_key.derive, software="1.0", cluster_id="c1"),
        )
        self.left, self.right = (
            ControlPeer(self.clock, self.ticks, session, owner, **options)
            for session, owner in zip(sessions, self.owners, strict=True)
        )
        self.wires = (Wire(), Wire())
        for wire, other, peer in zip(
            self.wires, self.wires[::-1], (self.left, self.right), strict=True
        ):
            wire.other, wire.protocol = other, peer

    def connect(self) -> "Line":
        for wire in self.wires[::-1]:
            wire.protocol.makeConnection(wire)
        return self.run()

    def run(self, seconds: float = 0.0) -> "Line":
        """Advance the clock, in steps of a quarter second."""
        self._settle()
        while seconds > 0:
            self.clock.advance(0.25)
            self._settle()
            seconds -= 0.25
        return self

    def _settle(self) -> None:
        self.ticks.flush()
        while sum(wire.step() for wire in self.wires):
            self.ticks.flush()

    @property
    def events(self) -> list[list[Any]]:
        return [owner.events for owner in self.owners]


def cancel(number: int) -> CancelTask:
    return CancelTask(TaskId("t"), number)


def lost(details: str) -> InputsLost:
    return InputsLost(TaskId("t"), 1, (), details)


def test_both_ends_open_and_have_each_others_hello() -> None:
    line = Line().connect()
    assert line.events == [["opened"], ["opened"]]
    assert line.right.hello is not None
    assert line.right.hello.role is Role.WORKER
    assert line.right.hello.about == {"slots": 2}
    assert line.left.hello is not None
    assert line.left.hello.cluster_id == "c1"


def test_messages_of_one_tick_are_sent_in_one_write_and_arrive_in_one_call() -> None:
    line = Line().connect()
    line.wires[1].writes.clear()
    messages: list[Message] = [cancel(number) for number in range(64)]
    for message in messages:
        line.right.send(message)
    assert line.wires[1].writes == []
    line.run()
    assert len(line.wires[1].writes) == 1
    assert line.owners[0].said == [messages]


def test_messages_keep_their_order_when_one_tick_fills_several_frames() -> None:
    line = Line().connect()
    messages: list[Message] = [cancel(number) for number in range(2 * RECORDS_PER_FRAME_MAX + 5)]
    for message in messages:
        line.right.send(message)
    line.run()
    assert [message for said in line.owners[0].said for message in said] == messages


@pytest.mark.parametrize("role", [Role.SUBMIT, Role.READ, Role.ADMIN])
def test_each_role_may_query_and_is_answered(role: Role) -> None:
    line = Line(role).connect()
    line.left.send(Ask(1, "status", None))
    line.right.send(Answer(1, {"jobs": {}}, ""))
    line.run()
    assert [owner.said for owner in line.owners] == [
        [[Answer(1, {"jobs": {}}, "")]],
        [[Ask(1, "status", None)]],
    ]


def test_a_wrong_key_is_reported_in_one_line_on_both_sides() -> None:
    line = Line(right_key=Key(bytes(32))).connect()
    reason = (
        "refused: the worker key does not match cluster c1; "
        "if its key was rotated, copy its access file again"
    )
    assert line.events == [[reason], []]
    assert [str(peer.failure) for peer in (line.left, line.right)] == [reason, reason]
    assert line.clock.getDelayedCalls() == []


def test_a_message_that_the_role_may_not_send_ends_the_connection_on_both_sides() -> None:
    line = Line(Role.WORKER).connect()
    line.left.send(Ask(1, "status", None))
    line.run()
    reason = "a record of the kind 'ask' is not expected here"
    assert line.events == [["opened", f"refused: {reason}"], ["opened", reason]]
    assert line.owners[1].said == []


@pytest.mark.parametrize("topic", ["memory_create", "memory_remove", "memory_connect"])
def test_a_reader_opens_creates_and_removes_no_volume(topic: str) -> None:
    line = Line(Role.READ).connect()
    line.left.send(Change(1, topic, {"name": "v", "server": 0}))
    line.run()
    assert line.events[1] == ["opened", "a record of the kind 'change' is not expected here"]
    assert line.owners[1].said == []


def test_garbage_ends_the_connection() -> None:
    line = Line().connect()
    line.right.dataReceived(b"GET / HTTP/1.1\r\n")
    line.run()
    reason = "not a frame: it begins with byte 71"
    assert line.events == [["opened", f"refused: {reason}"], ["opened", reason]]


def test_a_silent_unauthenticated_peer_is_disconnected_in_time_without_a_refusal() -> None:
    line = Line()
    wire = line.wires[1]
    line.right.makeConnection(wire)
    line.left.transport = line.wires[0]
    line.run(HELLO_TIMEOUT_S - 0.25)
    assert wire.writes == []
    line.run(0.25)
    assert wire.writes == []  # a refusal would be final, and the peer may only have stalled
    assert isinstance(line.right.failure, RemoteProtocolError)
    assert not isinstance(line.right.failure, RefusedError)
    assert "no proof of a key within 5 s" in str(line.right.failure)
    assert line.right.is_over
    assert line.events[1] == []  # the owner never heard of this peer


def test_an_outgoing_connection_that_never_opens_is_reported() -> None:
    line = Line()
    line.left.makeConnection(line.wires[0])
    line.wires[0].lose()
    assert line.events == [["the peer closed the connection while we awaited the peer's hello"], []]


def test_silent_peers_keep_each_other_alive() -> None:
    line = Line().connect()
    for wire in line.wires:
        wire.writes.clear()
    line.run(20)
    assert line.events == [["opened"], ["opened"]]
    assert [owner.said for owner in line.owners] == [[], []]
    for wire in line.wires:
        assert len(wire.writes) == 20 / HEARTBEAT_INTERVAL_S


def test_a_peer_that_sends_messages_sends_no_heartbeats() -> None:
    line = Line().connect()
    line.wires[1].writes.clear()
    for number in range(40):
        line.right.send(cancel(number))
        line.run(0.25)
    assert len(line.wires[1].writes) == 40


def test_a_peer_that_falls_silent_is_disconnected() -> None:
    line = Line().connect()
    line.left.pause()  # it still sends heartbeats
    line.run(10)
    assert line.right.is_open
    line.wires[0].room_bytes = 0  # now it sends none
    line.run(LOST_AFTER_S + 1.0)
    assert line.events[1] == ["opened", "the peer has sent nothing for 3.0 s"]


def test_a_peer_is_not_silent_while_reading_is_paused() -> None:
    line = Line().connect()
    line.right.pause()
    line.run(10)
    assert line.right.is_open
    line.right.resume()
    line.run(10)
    assert line.events == [["opened"], ["opened"]]


def test_a_stop_of_this_process_is_not_silence_of_its_peer() -> None:
    line = Line().connect()
    line.wires[0].room_bytes = 0
    line.run(0.7)
    before_s = line.right.silent_s
    line.clock.advance(10)
    assert 0.0 < line.right.silent_s - before_s <= 0.5


def test_the_allowed_silence_can_be_set_for_each_peer() -> None:
    line = Line()
    line.owners[1].on_opened = lambda peer: setattr(peer, "lost_after_s", 30.0)
    line.connect()
    line.wires[0].room_bytes = 0
    line.run(29)
    assert line.right.is_open
    assert 28 <= line.right.silent_s <= 29
    line.run(2)
    assert not line.right.is_open


def test_nothing_is_read_while_paused() -> None:
    line = Line().connect()
    line.left.pause()
    line.right.send(cancel(1))
    line.run()
    assert line.owners[0].said == []
    line.left.resume()
    line.run()
    assert line.owners[0].said == [[cancel(1)]]


def test_congestion_is_detected_and_its_end_is_reported() -> None:
    line = Line().connect()
    line.wires[0].room_bytes = 0
    sent = 0
    while not line.left.is_congested:
        line.left.send(lost("x" * 1000))
        line.run()
        sent += 1
    assert CONGESTED_BYTES < line.left.queued_bytes < CONGESTED_BYTES + 2000
    assert line.events[0] == ["opened"]
    line.wires[0].room_bytes = 1 << 40
    line.run()
    assert line.events[0] == ["opened", "drained"]
    assert line.left.queued_bytes == 0
    assert sum(map(len, line.owners[1].said)) == sent


def test_a_peer_that_does_not_read_is_disconnected_when_too_much_is_queued() -> None:
    line = Line(queued_max_bytes=200_000).connect()
    line.wires[0].room_bytes = 0
    for _ in range(300):
        line.left.send(lost("x" * 1000))
        line.run()
    opened, reason = line.events[0]
    assert opened == "opened"
    assert reason.endswith("bytes wait to be sent, the peer does not read them")
    assert line.left.queued_bytes == 0
    assert line.clock.getDelayedCalls() == []


def test_close_first_sends_queued_messages() -> None:
    line = Line().connect()
    line.wires[0].room_bytes = 10
    line.left.send(lost("x" * 1000))
    line.left.close()
    line.left.send(lost("too late"))
    line.run()
    assert line.events[0] == ["opened"]
    line.wires[0].room_bytes = 1 << 40
    line.run()
    assert line.owners[1].said == [[lost("x" * 1000)]]
    assert line.events == [["opened", "closed by us"], ["opened", "it closed the connection"]]


def test_close_waits_only_a_limited_time_for_a_peer_that_does_not_read() -> None:
    line = Line().connect()
    line.wires[0].room_bytes = 0
    line.left.send(lost("x"))
    line.left.close()
    line.run(CLOSE_TIMEOUT_S)
    assert line.events[0] == ["opened", "closed by us"]


def test_a_refused_peer_may_send_only_a_limited_number_of_bytes() -> None:
    line = Line().connect()
    line.right.refuse("enough")
    for _ in range(DISCARDED_MAX_BYTES // 65536):
        line.right.dataReceived(bytes(65536))
    assert not line.right.is_over
    line.right.dataReceived(b"\0")
    assert line.right.is_over


def test_refuse_sends_the_reason_to_the_peer() -> None:
    line = Line()
    line.owners[1].on_opened = lambda peer: peer.refuse("worker w1 is connected already")
    line.connect()
    reason = "refused: worker w1 is connected already"
    assert line.events == [["opened", reason], ["opened", reason]]


def test_an_exception_in_the_owner_ends_the_connection_and_is_reported_to_it() -> None:
    line = Line().connect()

    def fail(peer: ControlPeer) -> None:
        raise RuntimeError("on purpose")

    line.owners[0].on_said = fail
    line.right.send(cancel(1))
    line.run()
    assert line.events == [
        ["opened", "internal error; see the log"],
        ["opened", "refused: internal error; see the log of the other side"],
    ]
    assert not isinstance(line.left.failure, RefusedError)  # a refusal would be final


def test_a_message_that_cannot_be_encoded_ends_the_connection_with_the_reason() -> None:
    line = Line(Role.SUBMIT).connect()
    line.right.send(DropObjects((ObjectId("x" * 34_000_000),)))
    line.run()
    reason = "a record 'drop' of 34000027 bytes exceeds the limit of 33554432"
    assert line.events == [["opened", f"refused: {reason}"], ["opened", reason]]


def test_nothing_can_be_sent_before_the_proof_or_after_the_end() -> None:
    line = Line()
    line.left.send(Heartbeat())
    line.connect()
    line.left.close()
    line.run()
    for peer in (line.left, line.right):
        peer.send(Heartbeat())
        peer.close()
        peer.pause()
        peer.resume()
    line.run(10)
    assert [len(events) for events in line.events] == [2, 2]
    assert line.clock.getDelayedCalls() == []


def test_messages_in_the_same_segment_as_the_proof_are_received() -> None:
    line = Line()
    line.owners[1].on_opened = lambda peer: peer.send(cancel(1))
    line.owners[0].on_opened = lambda peer: peer.send(lost("at once"))
    line.connect()
    assert [owner.said for owner in line.owners] == [[[cancel(1)]], [[lost("at once")]]]


def test_messages_before_a_malformed_one_are_dropped_with_it() -> None:
    line = Line().connect()
    records = [(["cancel_task", task, 1, 0], b"") for task in ("t", "no id!")]
    frame = encode_frames(records)
    line.left.dataReceived(frame)
    line.run()
    assert line.owners[0].said == []
    assert "a record of the kind 'cancel_task' is malformed" in line.events[0][1]
