"""Parts of the program behind `swi`: references without a name, values as JSON, and signals."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ciel.core.ids import ObjectId
from ciel.core.refs import REFERENCE_TYPES, Future, Value
from ciel.executors.programs import channel as channel_module
from ciel.executors.programs.channel import Channel, NoSignals, printable
from ciel.executors.programs.references import Promise, decode, encode
from ciel.wire.calls import CallReader

A = Future(ObjectId("a"))

# --- promises -------------------------------------------------------------------------------------


def test_a_promise_is_a_reference_whose_name_is_found_out_once() -> None:
    asked = []

    def find(promise: Promise) -> str:
        asked.append(promise)
        return "a"

    promise = Promise(find)
    assert isinstance(promise, REFERENCE_TYPES)
    assert repr(promise) == "Promise('')"
    assert promise == promise  # which needs no name
    assert asked == []
    assert encode([promise, {"k": promise}]) == encode([A, {"k": A}])
    assert promise == A
    assert hash(promise) == hash(Promise(lambda _: "a"))
    assert asked == [promise]


# --- values ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        None, True, 0, -1.5, "text ü \x00 \u2028", [], {}, [1, [2, {"k": None}]], 10**4000,
        A, {"deep": [{"r": A}]}, [Value.of(ObjectId("v"), b"content")],
    ],
)  # fmt: skip
def test_values_come_back_as_they_were(value: Any) -> None:
    assert decode(encode(value)) == value
    assert decode(encode(value).encode()) == value


def _loop() -> list[Any]:
    loop: list[Any] = []
    loop.append(loop)
    return loop


@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), {"__ref__": ["f2", "a"]}, _loop(), {(1, 2): 3}, b"bytes"]
)
def test_what_has_no_form_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match=r"."):
        encode(value)


@pytest.mark.parametrize(
    "text",
    [
        "", "x", "[1", "NaN", "[Infinity]", '{"__ref__": 5}', '{"__ref__": ["f2", "../x"]}',
        '{"__ref__": ["nope", "a"]}', "[" * 200_000, b"\xff",
    ],
)  # fmt: skip
def test_what_is_no_value_is_refused(text: str | bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode(text)


def test_what_people_read_is_short_and_unicode() -> None:
    assert printable("a\udcff") == "a\\udcff"
    assert len(printable("x" * 1_000_000)) < 70_000


# --- signals --------------------------------------------------------------------------------------


def test_a_signal_within_a_block_is_handled_after_it() -> None:
    heard = []
    block = NoSignals(lambda: heard.append(block.depth))
    with block:
        with block:
            block.is_due = True
        assert heard == []
    assert heard == [0]


@pytest.fixture
def channel(tmp_path: Path) -> Iterator[tuple[Channel, int]]:
    """A program's side of its channel, and our end that reads its calls."""
    said, told = str(tmp_path / "said"), str(tmp_path / "told")
    os.mkfifo(said)
    os.mkfifo(told)
    reads = os.open(said, os.O_RDONLY | os.O_NONBLOCK)
    writes = os.open(told, os.O_RDWR)
    before = signal.getsignal(signal.SIGALRM)
    channel = Channel(said, told)
    yield channel, reads
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)
    for end in (reads, writes, channel._writes, channel._reads):
        os.close(end)


def _said(reads: int) -> list[Any]:
    try:
        return [tuple(call) for call in CallReader().feed(os.read(reads, 1 << 16))]
    except BlockingIOError:
        return []


def test_what_is_said_is_sent_at_the_latest_with_the_next_signal(
    channel: tuple[Channel, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel_module, "SHARE_AFTER_S", 60.0)
    program, reads = channel
    program.tell("log", {"message": "m"})
    assert _said(reads) == []
    signal.raise_signal(signal.SIGALRM)
    _wait_for_a_signal(program)
    assert _said(reads) == [("log", {"message": "m"})]


def test_nothing_is_shared_within_a_block_without_signals(channel: tuple[Channel, int]) -> None:
    program, _ = channel
    shared: list[int] = []

    def share() -> bool:
        shared.append(program.no_signals.depth)
        return False

    program.share = share
    with program.no_signals:
        program.arm()
        until_s = time.monotonic() + 20
        while not program.no_signals.is_due and time.monotonic() < until_s:
            time.sleep(0.001)
        assert shared == []
    assert shared == [1]


def test_there_are_signals_as_long_as_there_is_something_to_share(
    channel: tuple[Channel, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel_module, "SHARE_AFTER_S", 0.001)
    program, _ = channel
    left = [3, 2, 1]
    program.share = lambda: left.pop() != 3
    program.arm()
    for _ in range(3):
        _wait_for_a_signal(program)
    assert left == []
    assert not program._is_armed


def _wait_for_a_signal(program: Channel) -> None:
    before, until_s = program._is_armed, time.monotonic() + 20
    while program._is_armed and before and time.monotonic() < until_s:
        time.sleep(0.001)
