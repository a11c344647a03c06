"""The decisions of a daemon: single steps first, then events in any order."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ciel.shm.messages import Abandon, Code, Commit, Fail, Load, Ok, Request, Response, Write
from ciel.shm.requests import (
    DEADLINE_S,
    REQUESTS_MAX,
    SLOW_MAX,
    WRITES_MAX,
    AbortWrite,
    Answer,
    AskPeers,
    CommitWrite,
    LookUp,
    OpenWrite,
    Order,
    Place,
    Refusal,
    Requests,
    Seen,
    Slow,
    Stage,
    StartSlow,
)

SEEN = Seen("/store/x", 5, "abc")
OFFER = Ok(0, "/other/x", 5, "abc")
NO = Fail(0, Code.NOT_FOUND, "x", "not in this store")


def answers(orders: list[Order]) -> list[Response]:
    return [order.message for order in orders if isinstance(order, Answer)]


class Asked:
    """A machine that has a request of connection `a`, and its orders."""

    def __init__(self, *messages: Request, source: str = "a") -> None:
        self.requests = Requests()
        self.orders: list[Order] = []
        for message in messages:
            self.ask(message, source=source)

    def ask(self, message: Request, source: str = "a", now_s: float = 0.0) -> list[Order]:
        self.requests.asked(source, message, now_s)
        return self.take()

    def take(self) -> list[Order]:
        self.orders = self.requests.take_orders()
        return self.orders

    def tell(self, method: str, *args: Any) -> list[Order]:
        getattr(self.requests, method)(*args)
        return self.take()

    @property
    def serial(self) -> int:
        (serial,) = [order.serial for order in self.orders if isinstance(order, LookUp | AskPeers)]
        return serial


# --- loads ----------------------------------------------------------------------------------------


def test_what_is_in_the_own_store_is_answered_with_its_path() -> None:
    asked = Asked(Load(7, "x"))
    assert asked.orders == [LookUp(asked.serial, "x", False)]
    (answer,) = answers(asked.tell("looked_up", asked.serial, SEEN))
    assert answer == Ok(7, "/store/x", 5, "abc")


def test_a_sibling_is_told_the_checksum_though_the_object_must_be_read_for_it() -> None:
    asked = Asked(Load(7, "x", recursive=False, described=True))
    asked.tell("looked_up", asked.serial, Seen("/store/x", 5, ""))
    assert asked.orders == [StartSlow(Slow.READ, "x", None)]
    assert answers(asked.tell("slow_done", Slow.READ, "x", SEEN)) == [Ok(7, "/store/x", 5, "abc")]


def test_a_program_does_not_wait_for_a_checksum() -> None:
    asked = Asked(Load(7, "x"))
    asked.tell("looked_up", asked.serial, Seen("/store/x", 5, ""))
    assert answers(asked.orders) == [Ok(7, "/store/x", 5, "")]


def test_what_lies_behind_the_store_is_lifted_once_for_all_who_ask() -> None:
    asked = Asked(Load(1, "x"))
    first = asked.serial
    asked.ask(Load(1, "x", recursive=False), source="b")
    second = asked.serial
    assert asked.tell("looked_up", first, Place.BEHIND) == [StartSlow(Slow.LIFT, "x", None)]
    assert asked.tell("looked_up", second, Place.BEHIND) == []
    orders = asked.tell("slow_done", Slow.LIFT, "x", SEEN)
    assert [order.source for order in orders if isinstance(order, Answer)] == ["a", "b"]


def test_what_lies_in_memory_of_other_machines_is_brought_back_in_a_thread() -> None:
    asked = Asked(Load(1, "x"))
    orders = asked.tell("looked_up", asked.serial, Place.REMOTE)
    assert orders == [StartSlow(Slow.READ, "x", None)]
    asked.tell("slow_done", Slow.READ, "x", SEEN)
    assert answers(asked.orders) == [Ok(1, SEEN.path, SEEN.size_bytes, SEEN.checksum)]


@pytest.mark.requirement("CIB-12")
def test_a_non_recursive_request_never_asks_on() -> None:
    asked = Asked(Load(1, "x", recursive=False))
    (answer,) = answers(asked.tell("looked_up", asked.serial, Place.NOWHERE))
    assert answer == Fail(1, Code.NOT_FOUND, "x", "not in this store")


@pytest.mark.requirement("CIB-12", "CIB-13")
def test_a_recursive_request_asks_all_siblings_and_the_first_good_answer_wins() -> None:
    asked = Asked(Load(1, "x"))
    serial = asked.serial
    assert asked.tell("looked_up", serial, Place.NOWHERE) == [AskPeers(serial, "x", DEADLINE_S)]
    assert asked.requests.stages() == [Stage.ASKING]
    asked.tell("asking", serial, ["s1", "s2", "s3"])
    assert asked.tell("peer_answered", serial, "s1", NO) == []
    assert asked.tell("peer_answered", serial, "s2", OFFER) == [StartSlow(Slow.TAKE, "x", OFFER)]
    assert asked.requests.stages() == [Stage.SERVING]
    assert asked.tell("peer_answered", serial, "s3", OFFER) == []
    assert answers(asked.tell("slow_done", Slow.TAKE, "x", SEEN)) == [Ok(1, "/store/x", 5, "abc")]


def test_the_next_offer_is_taken_when_one_has_gone() -> None:
    asked = Asked(Load(1, "x"))
    serial = asked.serial
    asked.tell("looked_up", serial, Place.NOWHERE)
    asked.tell("asking", serial, ["s1", "s2", "s3"])
    asked.tell("peer_answered", serial, "s1", OFFER)
    gone = Refusal(Code.FAILED, "cannot adopt it: missing")
    assert asked.tell("slow_done", Slow.TAKE, "x", gone) == []
    assert asked.requests.stages() == [Stage.ASKING]
    other = Ok(0, "/third/x", 5, "abc")
    assert asked.tell("peer_answered", serial, "s2", other) == [StartSlow(Slow.TAKE, "x", other)]
    asked.tell("peer_answered", serial, "s3", NO)
    (answer,) = answers(asked.tell("slow_done", Slow.TAKE, "x", gone))
    assert isinstance(answer, Fail)
    assert answer.code is Code.NOT_FOUND
    assert answer.reason.count("missing") == 2


def test_no_sibling_has_it_and_each_reason_is_told() -> None:
    asked = Asked(Load(1, "x"))
    serial = asked.serial
    asked.tell("looked_up", serial, Place.NOWHERE)
    asked.tell("asking", serial, ["s1", "s2"])
    asked.tell("peer_answered", serial, "s1", NO)
    gone = Fail(0, Code.FAILED, "x", "it has ended")
    assert answers(asked.tell("peer_answered", serial, "s2", gone)) == [
        Fail(
            1, Code.NOT_FOUND, "x",
            "neither in this store nor in another: s1: not in this store; s2: it has ended",
        )
    ]  # fmt: skip


def test_without_siblings_the_answer_comes_at_once() -> None:
    asked = Asked(Load(1, "x"))
    asked.tell("looked_up", asked.serial, Place.NOWHERE)
    (answer,) = answers(asked.tell("asking", asked.serial, []))
    assert isinstance(answer, Fail)


def test_no_room_is_said_and_no_other_offer_tried() -> None:
    asked = Asked(Load(1, "x"))
    serial = asked.serial
    asked.tell("looked_up", serial, Place.NOWHERE)
    asked.tell("asking", serial, ["s1", "s2"])
    asked.tell("peer_answered", serial, "s1", OFFER)
    asked.tell("peer_answered", serial, "s2", OFFER)
    full = Refusal(Code.NO_SPACE, "no space")
    (answer,) = answers(asked.tell("slow_done", Slow.TAKE, "x", full))
    assert answer == Fail(1, Code.NO_SPACE, "x", "no space")


@pytest.mark.requirement("CIB-13")
def test_slow_loads_queue_while_others_are_answered() -> None:
    asked = Asked()
    started = []
    for number in range(SLOW_MAX + 3):
        asked.ask(Load(number, f"slow{number}"))
        started += asked.tell("looked_up", asked.serial, Place.BEHIND)
    assert len(started) == SLOW_MAX
    asked.ask(Load(99, "quick"))
    assert answers(asked.tell("looked_up", asked.serial, SEEN)) == [Ok(99, "/store/x", 5, "abc")]
    asked.tell("slow_done", Slow.LIFT, "slow0", SEEN)
    assert StartSlow(Slow.LIFT, f"slow{SLOW_MAX}", None) in asked.orders


def test_what_nobody_waits_for_any_more_is_not_begun() -> None:
    asked = Asked()
    for number in range(SLOW_MAX + 1):
        asked.ask(Load(number, f"slow{number}"), source=f"c{number}")
        asked.tell("looked_up", asked.serial, Place.BEHIND)
    asked.tell("gone", f"c{SLOW_MAX}")
    assert not [
        order
        for order in asked.tell("slow_done", Slow.LIFT, "slow0", SEEN)
        if isinstance(order, StartSlow)
    ]


def test_a_request_that_is_not_done_in_time_is_answered_and_its_end_is_ignored() -> None:
    asked = Asked(Load(1, "x", timeout_ms=2000))
    serial = asked.serial
    asked.tell("looked_up", serial, Place.NOWHERE)
    asked.tell("asking", serial, ["s1"])
    assert asked.requests.due_s() == 2.0
    assert asked.tell("tick", 1.9) == []
    (answer,) = answers(asked.tell("tick", 2.0))
    assert isinstance(answer, Fail)
    assert answer.code is Code.TIMEOUT
    assert (
        answer.reason
        == "not done in time; the daemon was still waiting for its peers (s1: no answer)"
    )
    assert asked.tell("peer_answered", serial, "s1", OFFER) == []
    assert asked.requests.due_s() is None


def test_names_that_are_no_ids_are_refused() -> None:
    for name in ("", "../x", "/etc/passwd", "x" * 129, "a+b", "a\udc80", ".", "-x"):
        messages: list[Request] = [Load(1, name), Write(2, name), Commit(3, "/p", name)]
        for message in messages:
            (answer,) = answers(Asked(message).orders)
            assert isinstance(answer, Fail)
            assert answer.code is Code.BAD_NAME


def test_one_connection_has_so_many_requests_and_no_more() -> None:
    asked = Asked(*[Load(number, "x") for number in range(REQUESTS_MAX)])
    (answer,) = answers(asked.ask(Load(99, "x")))
    assert isinstance(answer, Fail)
    assert answer.code is Code.BUSY
    assert answers(asked.ask(Load(1, "x"), source="b")) == []


# --- writes ---------------------------------------------------------------------------------------


def opened(asked: Asked, path: str = "/tmp/1") -> int:
    (write,) = [order.write for order in asked.orders if isinstance(order, OpenWrite)]
    asked.tell("write_opened", write, path)
    return write


@pytest.mark.requirement("CIB-11")
def test_an_object_is_opened_once_however_often_one_attempt_asks() -> None:
    asked = Asked(Write(1, "x", "att1", size_hint_bytes=9))
    (order,) = asked.orders
    assert order == OpenWrite(1, "x", 9)
    assert asked.ask(Write(2, "x", "att1")) == []
    asked.tell("write_opened", 1, "/tmp/1")
    assert answers(asked.orders) == [Ok(1, "/tmp/1"), Ok(2, "/tmp/1")]
    assert answers(asked.ask(Write(3, "x", "att1"), source="b")) == [Ok(3, "/tmp/1")]
    assert asked.requests.open_writes == 1


def test_a_file_may_be_only_mapped() -> None:
    assert Asked(Write(1, "x", is_mapped=True)).orders == [OpenWrite(1, "x", 0, is_mapped=True)]


def test_two_attempts_and_two_connections_without_one_do_not_meet() -> None:
    asked = Asked(Write(1, "x", "att1"))
    assert isinstance(asked.ask(Write(2, "x", "att2"))[0], OpenWrite)
    assert isinstance(asked.ask(Write(3, "x"))[0], OpenWrite)
    assert isinstance(asked.ask(Write(4, "x"), source="b")[0], OpenWrite)


def test_a_commit_is_answered_with_the_objects_path_and_ends_the_write() -> None:
    asked = Asked(Write(1, "x"))
    write = opened(asked)
    assert asked.ask(Commit(2, "/tmp/1", "x")) == [CommitWrite(write, "x")]
    assert asked.ask(Commit(3, "/tmp/1", "x")) == []  # joins
    assert answers(asked.tell("write_committed", write, SEEN)) == [
        Ok(2, "/store/x", 5, "abc"),
        Ok(3, "/store/x", 5, "abc"),
    ]
    assert asked.requests.open_writes == 0
    assert isinstance(asked.ask(Write(4, "x"))[0], OpenWrite)


def test_what_was_committed_cannot_be_again() -> None:
    asked = Asked(Write(1, "x", "att1"))
    write = opened(asked)
    asked.ask(Commit(2, "/tmp/1", "x"))
    assert asked.ask(Write(3, "x", "att1")) == [OpenWrite(3, "x", 0)]  # another file meanwhile
    asked.tell("write_committed", write, SEEN)
    (answer,) = answers(asked.ask(Commit(4, "/tmp/1", "x")))
    assert isinstance(answer, Fail)
    assert answer.code is Code.UNKNOWN_PATH


def test_a_commit_is_refused_to_who_has_not_asked_to_write() -> None:
    asked = Asked(Write(1, "x"))
    opened(asked)
    for source, path in (("b", "/tmp/1"), ("a", "/tmp/2"), ("a", "/etc/passwd")):
        (answer,) = answers(asked.ask(Commit(2, path, "x"), source=source))
        assert isinstance(answer, Fail)
        assert (answer.code, answer.subject) == (Code.UNKNOWN_PATH, path)


def test_what_is_being_committed_is_not_committed_under_another_name() -> None:
    asked = Asked(Write(1, "x"))
    opened(asked)
    asked.ask(Commit(2, "/tmp/1", "x"))
    (answer,) = answers(asked.ask(Commit(3, "/tmp/1", "y")))
    assert isinstance(answer, Fail)
    assert answer.code is Code.CONFLICT


def test_an_abandoned_file_is_discarded_when_no_other_connection_writes_it() -> None:
    asked = Asked(Write(1, "x", "att1"))
    write = opened(asked)
    asked.ask(Write(1, "x", "att1"), source="b")
    assert asked.ask(Abandon(2, "/tmp/1"))[-1] == Answer("a", Abandon(2, "/tmp/1"), Ok(2, "/tmp/1"))
    (answer,) = answers(asked.ask(Abandon(3, "/tmp/1")))
    assert isinstance(answer, Fail)
    assert answer.code is Code.UNKNOWN_PATH
    assert AbortWrite(write) in asked.ask(Abandon(4, "/tmp/1"), source="b")
    assert asked.requests.open_writes == 0


def test_a_file_that_is_being_committed_is_not_abandoned() -> None:
    asked = Asked(Write(1, "x"))
    write = opened(asked)
    asked.ask(Commit(2, "/tmp/1", "x"))
    (answer,) = answers(asked.ask(Abandon(3, "/tmp/1")))
    assert isinstance(answer, Fail)
    assert answer.code is Code.CONFLICT
    assert answers(asked.tell("write_committed", write, SEEN)) == [Ok(2, "/store/x", 5, "abc")]


def test_what_was_not_committed_goes_with_the_last_who_asked_for_it() -> None:
    asked = Asked(Write(1, "x", "att1"))
    write = opened(asked)
    asked.ask(Write(1, "x", "att1"), source="b")
    assert asked.tell("gone", "a") == []
    assert asked.tell("gone", "b") == [AbortWrite(write)]
    assert asked.requests.open_writes == 0
    assert isinstance(asked.ask(Write(1, "x", "att1"), source="c")[0], OpenWrite)


def test_who_goes_while_a_file_is_opened_leaves_none_and_a_commit_is_left_to_its_end() -> None:
    asked = Asked(Write(1, "x"))
    asked.tell("gone", "a")
    assert asked.tell("write_opened", 1, "/tmp/1") == [AbortWrite(1)]
    asked.ask(Write(1, "y"))
    write = opened(asked, "/tmp/2")
    asked.ask(Commit(2, "/tmp/2", "y"))
    assert asked.tell("gone", "a") == []
    assert asked.tell("write_committed", write, SEEN) == []
    assert asked.requests.open_writes == 0


def test_a_store_that_is_full_is_told_to_all_who_asked() -> None:
    asked = Asked(Write(1, "x"), Write(2, "x"))
    asked.tell("write_opened", 1, Refusal(Code.NO_SPACE, "no space"))
    assert answers(asked.orders) == [
        Fail(1, Code.NO_SPACE, "x", "no space"),
        Fail(2, Code.NO_SPACE, "x", "no space"),
    ]
    assert asked.requests.open_writes == 0


def test_one_connection_has_so_many_files_open_and_no_more() -> None:
    asked = Asked()
    for number in range(WRITES_MAX):
        asked.ask(Write(number, f"x{number}"))
        opened(asked, f"/tmp/{number}")
    (answer,) = answers(asked.ask(Write(0, "one-more")))
    assert isinstance(answer, Fail)
    assert answer.code is Code.BUSY


# --- any order of events --------------------------------------------------------------------------

SOURCES = st.sampled_from(["a", "b", "c"])
NAMES = st.sampled_from(["x", "y", "../z"])
SIBLINGS = ["s1", "s2"]
RESULTS = st.sampled_from([SEEN, Refusal(Code.FAILED, "it broke")])


class AnyOrder(RuleBasedStateMachine):
    """Every order is carried out at some time, by whatever end it may have; requests come, time
    passes and connections go in between.
    """

    def __init__(self) -> None:
        super().__init__()
        self.requests = Requests(slow_max=2)
        self.now_s = 0.0
        self.numbers = 0
        self.pending: list[Order] = []
        self.asked_siblings: list[tuple[int, str]] = []
        self.due: Counter[tuple[str, int]] = Counter()
        self.direct: set[int] = set()
        self.paths: dict[int, str] = {}
        self.slow = 0

    def settle(self) -> None:
        for order in self.requests.take_orders():
            match order:
                case Answer(source, request, message):
                    assert request.number == message.number
                    self.due[str(source), message.number] -= 1
                case StartSlow():
                    self.slow += 1
                    assert self.slow <= 2
                    self.pending.append(order)
                case AbortWrite(write):
                    assert write in self.paths
                    del self.paths[write]
                case _:
                    if isinstance(order, LookUp) and order.described:
                        self.direct.add(order.serial)  # as `ask` asks
                    assert not (isinstance(order, AskPeers) and order.serial in self.direct)
                    self.pending.append(order)

    @rule(
        source=SOURCES, name=NAMES, kind=st.sampled_from("lwca"), flag=st.booleans(),
        wait_ms=st.sampled_from([0, 1000]), pick=st.integers(0, 9),
    )  # fmt: skip
    def ask(self, source: str, name: str, kind: str, flag: bool, wait_ms: int, pick: int) -> None:
        self.numbers += 1
        number = self.numbers
        message: Request
        if kind == "l":
            message = Load(number, name, recursive=flag, described=not flag, timeout_ms=wait_ms)
        elif kind == "w":
            message = Write(number, name, "att" if flag else "", timeout_ms=wait_ms)
        else:
            path = [*self.paths.values(), "/none"][pick % (len(self.paths) + 1)]
            commit = Commit(number, path, name, wait_ms)
            message = commit if kind == "c" else Abandon(number, path, wait_ms)
        self.due[source, number] += 1
        self.requests.asked(source, message, self.now_s)
        self.settle()

    @precondition(lambda self: self.pending)
    @rule(pick=st.integers(0, 99), place=st.sampled_from([SEEN, *Place]), result=RESULTS)
    def carry_out(self, pick: int, place: Seen | Place, result: Seen | Refusal) -> None:
        order = self.pending.pop(pick % len(self.pending))
        match order:
            case LookUp(serial):
                self.requests.looked_up(serial, place)
            case AskPeers(serial):
                self.asked_siblings += [(serial, sibling) for sibling in SIBLINGS]
                self.requests.asking(serial, SIBLINGS)
            case StartSlow(kind, name):
                self.slow -= 1
                self.requests.slow_done(kind, name, result)
            case OpenWrite(write):
                if isinstance(result, Seen):
                    self.paths[write] = f"/tmp/{write}"
                    self.requests.write_opened(write, self.paths[write])
                else:
                    self.requests.write_opened(write, result)
            case CommitWrite(write):
                del self.paths[write]
                self.requests.write_committed(write, result)
        self.settle()

    @precondition(lambda self: self.asked_siblings)
    @rule(pick=st.integers(0, 99), answer=st.sampled_from([OFFER, NO]))
    def sibling_answers(self, pick: int, answer: Response) -> None:
        serial, sibling = self.asked_siblings.pop(pick % len(self.asked_siblings))
        self.requests.peer_answered(serial, sibling, answer)
        self.settle()

    @rule(source=SOURCES)
    def connection_goes(self, source: str) -> None:
        self.requests.gone(source)
        for key in [key for key in self.due if key[0] == source]:
            del self.due[key]
        self.settle()

    @rule(passed_s=st.sampled_from([0.5, 1.0, DEADLINE_S]))
    def time_passes(self, passed_s: float) -> None:
        self.now_s += passed_s
        self.requests.tick(self.now_s)
        self.settle()
        due_s = self.requests.due_s()
        assert due_s is None or due_s > self.now_s

    @invariant()
    def nobody_is_answered_twice_and_who_is_not_yet_is_under_way(self) -> None:
        assert all(count in (0, 1) for count in self.due.values())
        assert sum(self.due.values()) == len(self.requests.stages())

    def teardown(self) -> None:
        """In the end everybody has an answer, and nothing is left."""
        while self.pending or self.asked_siblings:
            while self.pending:
                self.carry_out(0, Place.NOWHERE, Refusal(Code.FAILED, "over"))
            while self.asked_siblings:
                self.sibling_answers(0, NO)
        assert not self.requests.stages()
        assert not +self.due
        for source in ("a", "b", "c"):
            self.connection_goes(source)
        assert self.requests.open_writes == 0
        assert not self.paths


AnyOrder.TestCase.settings = settings(max_examples=30, stateful_step_count=40)
TestAnyOrder = AnyOrder.TestCase
