import pytest

from ciel.execution.report import (
    COMMAND_MAX_LENGTH,
    STDERR_TAIL_BYTES,
    command_text,
    failure_text,
    no_room_text,
    tail_text,
    visible,
    visible_text,
)
from ciel.storage.errors import NoSpaceError


def test_a_command_is_quoted_as_in_a_shell() -> None:
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
    (b"a\tb\r\n\0\x1b[31mred\x07\xc2\x9b", 17, "a\tb\r\n\ufffdred\ufffd\ufffd"),
    (b"f a line\nlast\n", 100, "(95 bytes omitted)\nlast"),
    (b"one line without an end", 100, "(77 bytes omitted)\none line without an end"),
]


@pytest.mark.parametrize("tail, whole_size_bytes, text", TAILS, ids=str)
def test_the_tail_of_standard_error_is_shown(tail: bytes, whole_size_bytes: int, text: str) -> None:
    assert tail_text(tail, whole_size_bytes) == text


def test_a_tail_is_short_enough_for_a_message() -> None:
    assert STDERR_TAIL_BYTES <= 1 << 16


def test_a_failure_names_command_end_worker_and_standard_error() -> None:
    text = failure_text("ended with exit status 2", "w1", ["ls", "x y"], "one\ntwo")
    assert text == (
        "ls 'x y' ended with exit status 2 on worker w1\n"
        "the end of its standard error:\n  one\n  two"
    )


def test_a_failure_without_standard_error_is_one_line() -> None:
    assert failure_text("failed", "w1", ["ls"], "") == "ls failed on worker w1"


def test_an_output_without_room_names_wanted_and_available_bytes() -> None:
    text = no_room_text("w1", ["seq", "9"], NoSpaceError(20, 10))
    assert text == (
        "seq 9 wrote more than the store of worker w1 has room for: wanted 20 B, 10 B available; "
        "give the worker a larger store, or end jobs whose results it retains"
    )
    assert no_room_text("w1", [], NoSpaceError(20, 10)).startswith("it wrote more")
    text = no_room_text("w1", [], NoSpaceError(20, 0, "all names are in use"))
    assert "w1 has room for: all names are in use; give the worker a larger store" in text


def test_control_characters_are_escaped_and_lines_stay() -> None:
    assert visible("a\x1b[31m\n\x9bä…") == "a\\x1b[31m\\n\\x9bä…"
    assert visible_text("a\x07\tb\n\x1b\n") == "a\\x07\tb\n\\x1b\n"
