import pytest

from ciel.execution.report import (
    COMMAND_MAX_LENGTH,
    STDERR_TAIL_BYTES,
    command_text,
    failure_text,
    tail_text,
)


def test_a_command_reads_as_one_would_type_it() -> None:
    assert command_text(["grep", "-e", "a b", "$HOME"]) == "grep -e 'a b' '$HOME'"


@pytest.mark.parametrize("length", [COMMAND_MAX_LENGTH, COMMAND_MAX_LENGTH + 1, 100_000])
def test_a_long_command_is_cut(length: int) -> None:
    text = command_text(["x" * length])
    assert len(text) == COMMAND_MAX_LENGTH
    assert text.endswith("...") == (length > COMMAND_MAX_LENGTH)


TAILS = [
    (b"", 0, ""),
    (b"one\ntwo\n", 8, "one\ntwo"),
    (b"no end of line", 14, "no end of line"),
    (b"\xff\n", 2, "\ufffd"),
    (b"f a line\nlast\n", 100, "(95 bytes before)\nlast"),
    (b"one line without an end", 100, "(77 bytes before)\none line without an end"),
]


@pytest.mark.parametrize("tail, whole_size_bytes, text", TAILS, ids=str)
def test_the_end_of_a_text(tail: bytes, whole_size_bytes: int, text: str) -> None:
    assert tail_text(tail, whole_size_bytes) == text


def test_a_tail_is_short_enough_for_a_message() -> None:
    assert STDERR_TAIL_BYTES <= 1 << 16


def test_a_failure_tells_command_end_worker_and_complaint() -> None:
    text = failure_text("ended with exit status 2", "w1", ["ls", "x y"], "one\ntwo")
    assert text == (
        "ls 'x y' ended with exit status 2 on worker w1\nits standard error ends:\n  one\n  two"
    )


def test_a_silent_failure_tells_no_complaint() -> None:
    assert failure_text("failed", "w1", ["ls"], "") == "ls failed on worker w1"
