"""The daemon's messages: whatever is sent comes back, and whatever else comes is one error."""

import os
import struct
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ciel.shm.errors import MessageError
from ciel.shm.messages import (
    FRAME_MAX_BYTES,
    NAME_MAX_BYTES,
    PATH_MAX_BYTES,
    REASON_MAX_BYTES,
    TIMEOUT_MAX_MS,
    Abandon,
    Code,
    Commit,
    Decoder,
    Fail,
    Load,
    Message,
    Ok,
    Write,
    decode,
    encode,
)


def texts(max_bytes: int) -> st.SearchStrategy[str]:
    """Whatever can be a file's name: any bytes but zero."""
    return st.binary(max_size=max_bytes).map(lambda raw: os.fsdecode(raw.replace(b"\0", b"1")))


numbers = st.integers(0, 2**64 - 1)
timeouts = st.integers(0, TIMEOUT_MAX_MS)
names = texts(NAME_MAX_BYTES)
paths = texts(PATH_MAX_BYTES)
messages: st.SearchStrategy[Message] = st.one_of(
    st.builds(Load, numbers, names, st.booleans(), st.booleans(), timeouts),
    st.builds(Write, numbers, names, names, numbers, timeouts),
    st.builds(Commit, numbers, paths, names, timeouts),
    st.builds(Abandon, numbers, paths, timeouts),
    st.builds(Ok, numbers, paths, numbers, names),
    st.builds(Fail, numbers, st.sampled_from(Code), paths, texts(REASON_MAX_BYTES)),
)
LOAD = encode(Load(7, "a:out:0"))


@given(st.lists(messages, max_size=5), st.lists(st.integers(1, 200), max_size=20))
def test_a_stream_of_frames_comes_whole_however_it_is_cut(
    sent: list[Message], cuts: list[int]
) -> None:
    stream = b"".join(encode(message) for message in sent)
    decoder, got = Decoder(), list[Message]()
    for cut in cuts:
        got += decoder.feed(stream[:cut])
        stream = stream[cut:]
    got += decoder.feed(stream)
    assert got == sent


@given(st.binary(max_size=300))
def test_any_bytes_are_messages_or_one_error(raw: bytes) -> None:
    try:
        Decoder().feed(raw)
    except MessageError:
        pass


@given(messages, st.data())
def test_a_damaged_frame_is_another_message_or_one_error(
    message: Message, data: st.DataObject
) -> None:
    body = bytearray(encode(message)[4:])
    for _ in range(data.draw(st.integers(1, 3))):
        body[data.draw(st.integers(0, min(len(body) - 1, 40)))] = data.draw(st.integers(0, 255))
    try:
        again = decode(bytes(body))
    except MessageError:
        return
    assert encode(again)[4:] == bytes(body)


@pytest.mark.parametrize("cut", range(len(LOAD) - 4))
def test_a_frame_that_ends_anywhere_is_an_error(cut: int) -> None:
    with pytest.raises(MessageError):
        decode(LOAD[4 : 4 + cut])


@pytest.mark.parametrize(
    "body, words",
    [
        (LOAD[4:] + b"x", "too many"),
        (b"\2" + LOAD[5:], "version 2"),
        (b"\1\7" + LOAD[6:], "no kind 7"),
        (b"\1\1\0\4" + LOAD[8:], "no flags"),
        (b"\1\2\0\2" + encode(Write(1, "a"))[8:], "no flags"),
        (encode(Load(1, "a"))[4:-1] + b"\0", "zero"),
        (encode(Fail(1, Code.BUSY, "", ""))[4:-6] + b"\0\0" + b"\0\0\0\0", "no code"),
        (encode(Load(1, ""))[4:16] + struct.pack(">IH", TIMEOUT_MAX_MS + 1, 0), "timeout"),
        (encode(Abandon(1, ""))[4:16] + struct.pack(">IH", TIMEOUT_MAX_MS + 1, 0), "timeout"),
    ],
)
def test_what_is_wrong_with_a_frame_is_said(body: bytes, words: str) -> None:
    with pytest.raises(MessageError, match=words):
        decode(body)


@pytest.mark.parametrize(
    "message",
    [
        Load(1, "x" * (NAME_MAX_BYTES + 1)),
        Load(1, "a\0b"),
        Load(-1, "a"),
        Load(1, "a", timeout_ms=TIMEOUT_MAX_MS + 1),
        Write(1, "a", size_hint_bytes=2**64),
        Commit(1, "/" + "p" * PATH_MAX_BYTES, "a"),
        Ok(1, "\ud800"),
    ],
)
def test_what_no_frame_can_hold_is_not_sent(message: Message) -> None:
    with pytest.raises(MessageError):
        encode(message)


def test_a_long_reason_is_cut_and_not_refused() -> None:
    fail = decode(encode(Fail(1, Code.FAILED, "/" + "p" * 5000, "é" * 5000))[4:])
    assert isinstance(fail, Fail)
    assert fail.reason == "é" * (REASON_MAX_BYTES // 2)
    assert len(fail.subject) == PATH_MAX_BYTES
    odd = decode(encode(Fail(1, Code.FAILED, "a\0\ud800", "\ud800"))[4:])
    assert odd == Fail(1, Code.FAILED, "a??", "?")


def test_the_largest_frame_is_allowed_and_no_larger_one_is_held() -> None:
    largest = encode(Commit(1, "p" * PATH_MAX_BYTES, "n" * NAME_MAX_BYTES))
    assert len(largest) < FRAME_MAX_BYTES
    assert len(Decoder().feed(largest)) == 1
    tracemalloc.start()
    try:
        with pytest.raises(MessageError, match="4294967295 bytes"):
            Decoder().feed(b"\xff\xff\xff\xff")
        assert tracemalloc.get_traced_memory()[1] < 64 * 1024
    finally:
        tracemalloc.stop()
