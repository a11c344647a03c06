"""Tests the decisions of both ends of a call: order, what is sent again, and what is lost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ciel.client.services.inbox import VALUE, Caller
from ciel.client.services.outbox import Outbox, OutgoingCall
from ciel.wire.errors import RemoteProtocolError

ALL = 1 << 30


def add(box: Outbox, *, may_repeat: bool = False) -> OutgoingCall:
    call = OutgoingCall("m", 0, b"x", may_repeat=may_repeat, future=None)
    box.add(call)
    return call


def numbers(box: Outbox, most: int = ALL) -> list[int]:
    return [fields[1] for fields, _ in box.take(most, ALL) if fields[0] == "call"]


def test_calls_are_sent_once_in_their_order() -> None:
    box = Outbox()
    for _ in range(3):
        add(box)
    assert numbers(box, 2) == [1, 2]
    add(box)
    assert numbers(box) == [3, 4]
    assert numbers(box) == []


def test_after_a_reconnection_only_calls_that_did_not_arrive_are_sent_again() -> None:
    box = Outbox()
    assert box.opened("a", 0) == []
    for _ in range(4):
        add(box)
    numbers(box, 3)
    assert box.opened("a", 2) == []
    assert numbers(box) == [3, 4]


def test_a_sent_call_is_lost_with_its_instance_and_an_unsent_one_is_not() -> None:
    box = Outbox()
    box.opened("a", 0)
    sent, repeated = add(box), add(box, may_repeat=True)
    numbers(box)
    unsent = add(box)
    assert box.opened("b", 0) == [sent]
    assert numbers(box) == [repeated.number, unsent.number]
    assert box.settle(sent.number) is None
    assert box.settle(unsent.number) is unsent


def test_a_reply_to_a_call_that_was_not_sent_is_ignored() -> None:
    box = Outbox()
    call = add(box)
    assert [box.settle(number) for number in (call.number, 7, "1", None, True)] == [None] * 5
    assert numbers(box) == [1]


def test_a_cancelled_call_is_taken_back_or_stopped() -> None:
    box = Outbox()
    sent = add(box)
    numbers(box)
    unsent = add(box)
    box.cancel(unsent)
    box.cancel(sent)
    assert box.take(ALL, ALL) == [(["cancel", sent.number], b"")]
    assert box.open == {}
    assert box.unsent_bytes == 0


def record(number: int, least: int = 0) -> tuple[list[object], bytes]:
    return ["call", number, "m", 0, least], b"x"


def test_a_call_that_is_sent_twice_runs_once() -> None:
    caller = Caller("token")
    for number in (1, 2, 2, 1, 3):
        caller.take(record(number))
    assert [call.number for call in caller.waiting] == [1, 2, 3]


def test_a_reply_is_kept_until_the_caller_has_it() -> None:
    caller = Caller("token")
    for number in (1, 2, 3):
        caller.take(record(number))
    for _ in range(3):
        caller.answer(caller.start().number, VALUE, 0, b"y")
    caller.take(record(4, least=3))
    assert [fields[:2] for fields, _ in caller.greet()] == [["welcome", 4], ["reply", 3]]
    caller.take(record(5, least=1 << 60))  # no loop over all numbers
    assert len(caller.greet()) == 1


def test_a_cancelled_call_that_waits_does_not_run_and_a_running_one_is_named() -> None:
    caller = Caller("token")
    caller.take(record(1))
    caller.take(record(2))
    running = caller.start()
    assert caller.take((["cancel", 2], b"")) is None
    assert caller.take((["cancel", running.number], b"")) == running.number
    assert not caller.waiting


@pytest.mark.parametrize(
    "fields", [["call"], ["call", "1", "m", 0, 0], ["reply", 1, 0, 0], ["cancel", None], ["x", 1]]
)
def test_a_record_that_no_caller_sends_is_refused(fields: list[object]) -> None:
    with pytest.raises(RemoteProtocolError):
        Caller("token").take((fields, b""))


@given(st.lists(st.sampled_from(["add", "send", "run", "reply", "cut", "die"]), max_size=60))
def test_no_call_runs_twice_or_out_of_order_whatever_breaks(steps: list[str]) -> None:
    box, caller, life = Outbox(), Caller("token"), 1
    box.opened("1", 0)
    ran: list[int] = []
    lost: list[int] = []
    replies: list[int] = []
    wire: list[tuple[list[object], bytes]] = []
    for step in [*steps, "cut", *["send", "run", "reply"] * 60]:
        if step == "add":
            add(box)
        elif step == "send":
            for sent in box.take(2, ALL):
                caller.take((list(sent[0]), bytes(sent[1])))
        elif step == "run" and caller.waiting:
            call = caller.start()
            ran.append(call.number)
            wire.append(caller.answer(call.number, VALUE, 0, b""))
        elif step == "reply" and wire:
            if (settled := box.settle(wire.pop(0)[0][1])) is not None:
                replies.append(settled.number)
        elif step in ("cut", "die"):
            wire.clear()
            if step == "die":
                life += 1
                caller = Caller("token")
            greeting = caller.greet()
            received = greeting[0][0][1]
            assert isinstance(received, int)
            lost += [call.number for call in box.opened(str(life), received)]
            wire += greeting[1:]
    assert ran == sorted(set(ran))
    assert not box.open
    assert sorted(replies + lost) == list(range(1, steps.count("add") + 1))
