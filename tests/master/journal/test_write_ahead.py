"""Consequences of a tick happen when its records, and all earlier ones, are durable."""

from __future__ import annotations

from collections.abc import Sequence

from ciel.core.events import CloseJob, MasterStarted, Message
from ciel.core.ids import JobId
from ciel.master.write_ahead import WriteAhead

RECORD = CloseJob(JobId("a job"))


class SlowJournal:
    """A journal whose test says which appends are durable."""

    def __init__(self) -> None:
        self.appends: list[Sequence[Message]] = []
        self.durable = 0

    @property
    def appended(self) -> int:
        return len(self.appends)

    def append(self, records: Sequence[Message]) -> int:
        self.appends.append(records)
        return self.appended

    def close(self) -> None:
        pass


def _end_tick(write_ahead: WriteAhead, called: list[str], name: str, records: int) -> None:
    write_ahead.call_after_tick(lambda: called.append(name))
    caused = write_ahead.end_tick([RECORD] * records, [], [])
    for call in caused.calls if caused is not None else ():
        call()


def _carry_out_durable(write_ahead: WriteAhead) -> None:
    for caused in write_ahead.take_durable():
        for call in caused.calls:
            call()


def test_a_tick_without_records_has_its_consequences_at_once() -> None:
    called: list[str] = []
    _end_tick(WriteAhead(SlowJournal()), called, "first", 0)
    assert called == ["first"]


def test_nothing_happens_before_the_start_of_the_master_is_durable() -> None:
    journal, called = SlowJournal(), list[str]()
    journal.append([MasterStarted(2, "test")])
    write_ahead = WriteAhead(journal)
    _end_tick(write_ahead, called, "first", 0)
    assert called == []
    journal.durable = 1
    _carry_out_durable(write_ahead)
    assert called == ["first"]


def test_consequences_wait_for_the_records_of_their_tick() -> None:
    journal, called = SlowJournal(), list[str]()
    write_ahead = WriteAhead(journal)
    _end_tick(write_ahead, called, "first", 1)
    _end_tick(write_ahead, called, "second", 2)
    assert called == []
    journal.durable = 1
    _carry_out_durable(write_ahead)
    assert called == ["first"]
    journal.durable = 2
    _carry_out_durable(write_ahead)
    assert called == ["first", "second"]


def test_a_tick_without_records_does_not_overtake_earlier_ticks() -> None:
    journal, called = SlowJournal(), list[str]()
    write_ahead = WriteAhead(journal)
    _end_tick(write_ahead, called, "first", 1)
    _end_tick(write_ahead, called, "second", 0)
    assert called == []
    journal.durable = 1
    _carry_out_durable(write_ahead)
    assert called == ["first", "second"]


def test_a_call_does_not_overtake_an_earlier_one_of_its_tick() -> None:
    journal, called = SlowJournal(), list[str]()
    write_ahead = WriteAhead(journal)
    write_ahead.end_tick([RECORD], [], [])
    assert write_ahead.must_wait([])
    write_ahead.call_after_tick(lambda: called.append("first"))
    journal.durable = 1
    _carry_out_durable(write_ahead)
    assert write_ahead.must_wait([])
    _end_tick(write_ahead, called, "second", 0)
    assert called == ["first", "second"]
    assert not write_ahead.must_wait([])


def test_records_without_consequences_are_waited_for() -> None:
    journal = SlowJournal()
    write_ahead = WriteAhead(journal)
    assert not write_ahead.must_wait([])
    assert write_ahead.must_wait([RECORD])
    write_ahead.end_tick([RECORD], [], [])
    assert write_ahead.must_wait([])
    journal.durable = 1
    assert not write_ahead.must_wait([])
