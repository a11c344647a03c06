from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ciel.state.bases.replies import pack_command
from ciel.state.server.errors import FramingError
from ciel.state.server.resp import (
    KNOWN,
    NULL_ARRAY,
    OK,
    UNKNOWN,
    CommandReader,
    Failure,
    Push,
    Simple,
    encode,
)

commands = st.lists(st.lists(st.binary(max_size=20), min_size=1, max_size=5), max_size=6)


@given(commands, st.data())
def test_commands_are_read_however_they_are_cut(
    sent: list[list[bytes]], data: st.DataObject
) -> None:
    stream = b"".join(map(pack_command, sent))
    reader, at = CommandReader(KNOWN), 0
    found: list[list[bytes]] = []
    while at < len(stream):
        size = data.draw(st.integers(1, len(stream) - at))
        found += reader.feed(stream[at : at + size])
        at += size
    assert found == sent


@given(st.lists(st.binary(max_size=60)))
def test_any_bytes_are_commands_or_one_error(parts: list[bytes]) -> None:
    reader = CommandReader()
    try:
        for part in parts:
            assert all(command for command in reader.feed(part))
    except FramingError:
        pass


def test_a_line_of_words_is_a_command() -> None:
    reader = CommandReader()
    assert list(reader.feed(b"PING\r\nSET a")) == [[b"PING"]]
    assert list(reader.feed(b" 1\n\r\n*0\r\n*-1\r\nGET a\r\n")) == [
        [b"SET", b"a", b"1"],
        [b"GET", b"a"],
    ]


def test_a_large_command_is_read_in_linear_time() -> None:
    count = 100_000
    stream = pack_command([b"MSET", *[b"x"] * count])
    reader = CommandReader(KNOWN)
    found: list[list[bytes]] = []
    for at in range(0, len(stream), 1000):
        found += reader.feed(stream[at : at + 1000])
    assert len(found[0]) == count + 1


@pytest.mark.parametrize(
    "stream",
    [
        b"*1\r\nGET\r\n",
        b"*x\r\n",
        b"*99999999999999\r\n",
        b"*1\r\n$-1\r\n",
        b"*1\r\n$x\r\n",
        b"*1\r\n$3\r\nGETxx",
        b"*1\r\n" + b"$" * 100,
        b"*11\r\n",
        b"*1\r\n$20000\r\n",
        b"x" * 70_000,
        b"x" * 70_000 + b"\r\n",
    ],
)
def test_malformed_commands_are_refused(stream: bytes) -> None:
    with pytest.raises(FramingError):
        list(CommandReader(UNKNOWN).feed(stream))


@pytest.mark.parametrize(
    "reply, two, three",
    [
        (b"a\r\n", b"$3\r\na\r\n\r\n", None),
        (5, b":5\r\n", None),
        (None, b"$-1\r\n", b"_\r\n"),
        (NULL_ARRAY, b"*-1\r\n", b"_\r\n"),
        (OK, b"+OK\r\n", None),
        (Simple(b"PONG"), b"+PONG\r\n", None),
        (1.5, b"$3\r\n1.5\r\n", b",1.5\r\n"),
        (2.0, b"$1\r\n2\r\n", b",2\r\n"),
        ([1, [None]], b"*2\r\n:1\r\n*1\r\n$-1\r\n", b"*2\r\n:1\r\n*1\r\n_\r\n"),
        ({b"a": 1}, b"*2\r\n$1\r\na\r\n:1\r\n", b"%1\r\n$1\r\na\r\n:1\r\n"),
        (Failure("ERR", "a\r\nb"), b"-ERR a  b\r\n", None),
        (Push([b"a"]), b"*1\r\n$1\r\na\r\n", b">1\r\n$1\r\na\r\n"),
    ],
)  # fmt: skip
def test_replies(reply: Any, two: bytes, three: bytes | None) -> None:
    assert encode(reply, 2) == two
    assert encode(reply, 3) == (three or two)


def test_limits_may_change_between_two_commands() -> None:
    reader = CommandReader(UNKNOWN)
    stream = pack_command([b"AUTH", b"x"]) + pack_command([b"MSET", *[b"x"] * 20])
    found = []
    for command in reader.feed(stream):
        found.append(command)
        reader.limits = KNOWN
    assert [len(command) for command in found] == [2, 21]
