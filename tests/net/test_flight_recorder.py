"""The recorder of the latest messages: bounded in bytes and batches, readable."""

from __future__ import annotations

from ciel.net.flight_recorder import (
    BATCHES_MAX,
    RECORDED_MAX_BYTES,
    SHOWN_MAX_LENGTH,
    FlightRecorder,
)


def test_a_line_shows_a_message_without_its_payload() -> None:
    recorder = FlightRecorder(lambda: 12.5)
    recorder.add("<", "10.0.0.1:7", [(["task", "a"], b"secret"), (["want", ["b"]], b"")], 40)
    assert list(recorder.lines()) == [
        '12.500000 < 10.0.0.1:7 ["task","a"] and 6 bytes',
        '12.500000 < 10.0.0.1:7 ["want",["b"]]',
    ]


def test_old_messages_give_way_to_large_new_ones() -> None:
    recorder = FlightRecorder()
    recorder.add("<", "a", [(["first"], b"")], 10)
    for number in range(4):
        recorder.add(">", "a", [([f"large-{number}"], bytes(RECORDED_MAX_BYTES // 3))], 10)
    shown = [line.split('"')[1] for line in recorder.lines()]
    assert shown == ["large-2", "large-3"]


def test_the_number_of_batches_is_bounded() -> None:
    recorder = FlightRecorder()
    for number in range(BATCHES_MAX + 5):
        recorder.add("<", "a", [([number], b"")], 1)
    lines = list(recorder.lines())
    assert len(lines) == BATCHES_MAX
    assert lines[0].endswith("[5]")


def test_a_long_message_is_cut() -> None:
    recorder = FlightRecorder()
    recorder.add("<", "a", [(["x" * 5000], b"")], 5000)
    (line,) = recorder.lines()
    assert line.endswith("x…")
    assert len(line) < SHOWN_MAX_LENGTH + 50
