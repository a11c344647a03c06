"""Tests the recorder of the latest messages, which limits their bytes and batches."""

from __future__ import annotations

import pytest

from ciel.net.flight_recorder import (
    BATCHES_MAX,
    RECEIVED,
    RECORDED_MAX_BYTES,
    SHOWN_MAX_LENGTH,
    Batch,
    FlightRecorder,
    read_record,
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


def test_a_record_is_read_as_it_was_written() -> None:
    recorder = FlightRecorder(lambda: 12.5)
    connections = [recorder.connect("unix:"), recorder.connect("unix:")]
    for connection in connections:
        recorder.add(RECEIVED, connection, bytes(range(256)))
    lines = list(recorder.encoded_lines())
    assert max(map(len, lines)) <= 100
    assert read_record(lines) == (
        0, [Batch(12.5, RECEIVED, f"unix:#{number}", bytes(range(256))) for number in (1, 2)]
    )  # fmt: skip


def test_a_record_says_how_many_batches_it_lacks() -> None:
    recorder = FlightRecorder()
    for _ in range(BATCHES_MAX + 3):
        recorder.add(RECEIVED, "a", b"x")
    dropped_count, batches = read_record(list(recorder.encoded_lines()))
    assert (dropped_count, len(batches)) == (3, BATCHES_MAX)


@pytest.mark.parametrize("lines", [[], ["no base64!"], ["bm90aGluZw=="]])
def test_lines_that_are_not_a_record_are_rejected(lines: list[str]) -> None:
    with pytest.raises(ValueError, match="not a record of messages"):
        read_record(lines)
