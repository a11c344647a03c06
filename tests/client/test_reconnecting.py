"""A lost connection is opened again, and each message arrives once."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import ciel.client.connection.connection as connection_module
from ciel.client.connection import Connection, open_connection
from ciel.client.connection.connection import ABSENCE_MAX_S
from ciel.client.connection.dialing import Dialer
from ciel.client.errors import (
    ClientClosedError,
    ClientError,
    ConnectionLostError,
    NoMasterError,
    NotAMasterError,
)
from ciel.core.events import Answer, Ask, Heartbeat, Message, Received, WatchJob
from ciel.core.ids import JobId


class Caller:
    """An owner of a connection that records its messages."""

    def __init__(self, acceptor: Any, absence_max_s: float = ABSENCE_MAX_S) -> None:
        self.said: list[str] = []
        self.messages: list[Message] = []
        self.lost: list[ClientError] = []
        self.delivered = threading.Condition()
        self.is_hopeless = False
        self.connection: Connection = open_connection(
            acceptor.address, acceptor.key, self.deliver, self.take_loss,
            is_hopeless=lambda: self.is_hopeless, absence_max_s=absence_max_s,
            on_away=self.said.append,
        )  # fmt: skip

    def deliver(self, messages: list[Message]) -> None:
        with self.delivered:
            self.messages += messages
            self.delivered.notify_all()

    def take_loss(self, error: ClientError) -> None:
        with self.delivered:
            self.lost.append(error)
            self.delivered.notify_all()

    def wait_for(self, condition: Any) -> None:
        with self.delivered:
            assert self.delivered.wait_for(condition, 10)


@pytest.fixture
def caller(acceptor: Any) -> Iterator[Caller]:
    caller = Caller(acceptor)
    yield caller
    caller.is_hopeless = True
    caller.connection.close()


def heard(acceptor: Any) -> list[str]:
    return [message.job for message in acceptor.heard if isinstance(message, WatchJob)]


def say(caller: Caller, *numbers: int) -> None:
    caller.connection.send(*(WatchJob(JobId(f"j{number}")) for number in numbers))


def eventually(condition: Any) -> None:
    until_s = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < until_s
        time.sleep(0.005)


@pytest.mark.parametrize("forgotten", [0, 2, 5])
def test_only_unconfirmed_messages_are_sent_again(
    acceptor: Any, caller: Caller, forgotten: int
) -> None:
    say(caller, 0, 1, 2, 3, 4)
    eventually(lambda: len(heard(acceptor)) == 5)
    acceptor.forgets = forgotten
    acceptor.drop()
    eventually(lambda: len(acceptor.hellos) == 2)
    say(caller, 5)
    eventually(lambda: "j5" in heard(acceptor))
    assert heard(acceptor) == [f"j{number}" for number in range(6)]
    assert caller.lost == []


def test_messages_queued_during_an_outage_are_sent_after_it(
    acceptor: Any, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "_PAUSE_MIN_S", 0.0)
    dial = Dialer.dial
    is_away = threading.Event()
    is_back = threading.Event()

    def dial_later(*arguments: Any) -> Any:
        is_away.set()
        assert is_back.wait(10)
        return dial(*arguments)

    monkeypatch.setattr(Dialer, "dial", dial_later)
    say(caller, 0)
    eventually(lambda: heard(acceptor))
    acceptor.drop()
    assert is_away.wait(10)
    say(caller, *range(1, 1000))
    is_back.set()
    eventually(lambda: len(heard(acceptor)) >= 1000)
    assert heard(acceptor) == [f"j{number}" for number in range(1000)]


def test_a_master_that_was_replaced_does_not_continue_the_session(
    acceptor: Any, caller: Caller
) -> None:
    """It has the session as it was before the other master took over, with other counts."""
    acceptor.about = {"epoch": 2, "url": "http://b:1"}
    acceptor.drop()
    say(caller, 0)
    eventually(lambda: heard(acceptor) == ["j0"])
    acceptor.about = {"epoch": 1, "url": "http://a:1"}
    hellos = len(acceptor.hellos)
    acceptor.drop()
    say(caller, 1)
    eventually(lambda: len(acceptor.hellos) >= hellos + 2)  # the client tries again
    assert heard(acceptor) == ["j0"]
    acceptor.about = {"epoch": 3, "url": "http://a:1"}
    eventually(lambda: heard(acceptor) == ["j0", "j1"])
    assert caller.lost == []


def test_received_messages_are_not_sent_again(acceptor: Any, caller: Caller) -> None:
    acceptor.reply = lambda m: [Answer(m.number, m.number, "")] if isinstance(m, Ask) else []
    for number in range(3):
        caller.connection.send(Ask(number, "x", None))
    caller.wait_for(lambda: len(caller.messages) == 3)
    acceptor.drop()
    eventually(lambda: len(acceptor.hellos) == 2)
    assert acceptor.hellos[1]["received"] == 3
    assert acceptor.hellos[1]["session"] == acceptor.hellos[0]["session"]
    caller.connection.send(Ask(3, "x", None))
    caller.wait_for(lambda: len(caller.messages) == 4)


def test_confirmed_messages_are_dropped(acceptor: Any, caller: Caller) -> None:
    say(caller, *range(300))
    eventually(lambda: len(heard(acceptor)) == 300)
    assert len(caller.connection._kept) == 300
    acceptor.say(Received(299))
    eventually(lambda: len(caller.connection._kept) == 1)


def test_received_messages_are_confirmed_at_intervals(
    acceptor: Any, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    acceptor.say(*(Answer(number, None, "") for number in range(600)))
    eventually(lambda: any(isinstance(m, Received) and m.total >= 256 for m in acceptor.heard))
    monkeypatch.setattr(connection_module, "HEARTBEAT_INTERVAL_S", 0.05)
    acceptor.say(Answer(600, None, ""))
    eventually(lambda: Received(601) in acceptor.heard)
    eventually(lambda: acceptor.heard[-1] == Heartbeat())


def test_a_wrong_confirmation_ends_the_connection(acceptor: Any, caller: Caller) -> None:
    acceptor.say(Received(1))
    caller.wait_for(lambda: caller.lost)
    assert "confirms 1 messages, which is impossible" in str(caller.lost[0])


def test_a_master_that_does_not_know_the_session_is_asked_once(
    acceptor: Any, caller: Caller
) -> None:
    acceptor.takes_back = False
    eventually(lambda: acceptor.hellos)
    acceptor.drop()
    caller.wait_for(lambda: caller.lost)
    assert str(caller.lost[0]).endswith(
        "it closed the connection; it rejected the session: refused: nobody knows you"
    )
    assert len(acceptor.hellos) == 2


def test_a_master_that_does_not_come_back_is_given_up_in_time(acceptor: Any) -> None:
    caller = Caller(acceptor, absence_max_s=0.2)
    acceptor.close()
    caller.wait_for(lambda: caller.lost)
    assert isinstance(caller.lost[0], ConnectionLostError)
    assert str(caller.lost[0]).endswith(
        "it could not be reached again within 0.2 s: nothing listens there"
    )
    with pytest.raises(ConnectionLostError):
        say(caller, 1)


def test_a_program_that_is_no_master_is_given_up_sooner(
    acceptor: Any, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "RECONNECT_S", 0.2)

    def dial(timeout_s: float, received: int | None = None) -> Any:
        raise NotAMasterError(acceptor.address, "another program listens there")

    monkeypatch.setattr(caller.connection._dialer, "dial", dial)
    acceptor.drop()
    caller.wait_for(lambda: caller.lost)
    assert str(caller.lost[0]).endswith(
        "it could not be reached again within 0.2 s: another program listens there"
    )


def test_a_client_reports_once_that_the_master_is_away(
    acceptor: Any, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "ABSENCE_REPORTED_S", 0.1)
    dial, attempts = caller.connection._dialer.dial, [0]

    def dial_later(timeout_s: float, received: int | None = None) -> Any:
        attempts[0] += 1
        if attempts[0] < 8:
            raise NoMasterError(acceptor.address, "nothing listens there")
        return dial(timeout_s, received)

    monkeypatch.setattr(caller.connection._dialer, "dial", dial_later)
    acceptor.drop()
    eventually(lambda: attempts[0] >= 8 and not caller.connection.is_away)
    assert caller.said == [
        f"the master at {acceptor.address} is away (nothing listens there); waiting for it for up "
        "to 60 s"
    ]
    assert caller.lost == []


def test_a_client_does_not_reconnect_to_a_dead_master(acceptor: Any, caller: Caller) -> None:
    caller.is_hopeless = True
    acceptor.drop()
    caller.wait_for(lambda: caller.lost)
    assert str(caller.lost[0]).endswith("it closed the connection")
    assert len(acceptor.hellos) <= 1  # the first attempt may have failed


def test_a_client_stops_reconnecting_when_the_master_has_died(
    acceptor: Any, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    say(caller, 0)
    eventually(lambda: heard(acceptor))

    def dial(timeout_s: float, received: int | None = None) -> Any:
        caller.is_hopeless = True
        raise NoMasterError(acceptor.address, "nothing listens there")

    monkeypatch.setattr(caller.connection._dialer, "dial", dial)
    acceptor.drop()
    caller.wait_for(lambda: caller.lost)
    assert str(caller.lost[0]).endswith("it closed the connection; nothing listens there")


def test_close_does_not_wait_for_an_unreachable_master(acceptor: Any, caller: Caller) -> None:
    say(caller, 0)
    eventually(lambda: heard(acceptor))
    acceptor.say(Received(1))
    eventually(lambda: not caller.connection._kept)
    acceptor.close()
    caller.connection.close()
    assert caller.lost == []
    with pytest.raises(ClientClosedError):
        say(caller, 1)


class Tearing:
    """A socket or a session whose `send` is interrupted once, before or after it has sent."""

    def __init__(self, real: Any, *, is_done: bool) -> None:
        self._real = real
        self._is_done = is_done
        self.was_interrupted = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def send(self, *arguments: Any) -> Any:
        if self.was_interrupted or threading.current_thread() is not threading.main_thread():
            return self._real.send(*arguments)
        self.was_interrupted = True
        if self._is_done:
            self._real.send(*arguments)
        raise KeyboardInterrupt


@pytest.mark.parametrize("part", ["_channel", "_session"])
@pytest.mark.parametrize("is_done", [False, True])
def test_a_send_that_is_interrupted_is_repaired(
    acceptor: Any, caller: Caller, part: str, is_done: bool
) -> None:
    say(caller, 0)
    eventually(lambda: heard(acceptor))
    tearing = Tearing(getattr(caller.connection, part), is_done=is_done)
    setattr(caller.connection, part, tearing)
    with pytest.raises(KeyboardInterrupt):
        say(caller, *range(1, 301))
    assert tearing.was_interrupted
    say(caller, 301)
    eventually(lambda: "j301" in heard(acceptor))
    assert heard(acceptor) == [f"j{number}" for number in range(302)]
    assert caller.lost == []


@pytest.mark.slow
def test_an_interrupt_during_send_corrupts_nothing(
    acceptor: Any, caller: Caller, interrupted: Callable[[Callable[[], object], float], int]
) -> None:
    said = 0

    def step() -> None:
        nonlocal said
        say(caller, *range(said, said + 200))
        said += 200

    count = interrupted(step, 0.003)
    assert count > 5
    caller.connection.send(WatchJob(JobId("end")))
    eventually(lambda: "end" in heard(acceptor))
    numbers = [int(job[1:]) for job in heard(acceptor)[:-1]]
    doubled = sum(a >= b for a, b in itertools.pairwise(numbers))
    assert doubled <= count  # a batch that was queued although `send` was interrupted
    assert {*numbers} >= {*range(said)}
    assert caller.lost == []
