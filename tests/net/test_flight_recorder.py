"""The recorder of the latest messages: bounded in bytes and batches, readable."""

from __future__ import annotations

from ciel.net.flight_recorder import (
    BATCHES_MAX,
    RECORDED_MAX_BYTES,
    SHOWN_MAX_LENGTH,
    FlightRecorder,
)


def test_a_line_shows_the_text_of_a_batch() -> None:
    recorder = FlightRecorder(lambda: 12.5)
    recorder.add("<", "10.0.0.1:7", b'\0\0\0\r[["alive",0]]')
    assert list(recorder.lines()) == ['12.500000 < 10.0.0.1:7 [["alive",0]]']


def test_old_batches_give_way_to_large_new_ones() -> None:
    recorder = FlightRecorder()
    recorder.add("<", "a", b"first")
    for number in range(4):
        recorder.add(">", "a", f"large-{number} ".encode() + bytes(RECORDED_MAX_BYTES // 3))
    assert [line.split()[3][:7] for line in recorder.lines()] == ["large-2", "large-3"]


def test_the_number_of_batches_is_bounded() -> None:
    recorder = FlightRecorder()
    for number in range(BATCHES_MAX + 5):
        recorder.add("<", "a", f"[{number}]".encode())
    lines = list(recorder.lines())
    assert len(lines) == BATCHES_MAX
    assert lines[0].endswith("[5]")


def test_a_long_batch_is_cut() -> None:
    recorder = FlightRecorder()
    recorder.add("<", "a", b"x" * 5000)
    (line,) = recorder.lines()
    assert line.endswith("x… 5000 bytes")
    assert len(line) < SHOWN_MAX_LENGTH + 50
