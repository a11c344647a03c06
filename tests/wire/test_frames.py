import json
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ciel.wire.errors import (
    EncodeError,
    FrameTooLargeError,
    LocalProtocolError,
    RecordTooLargeError,
    RemoteProtocolError,
)
from ciel.wire.frames import FrameReader, Record, encode_frames, looks_like_frame
from ciel.wire.limits import (
    FRAME_MAX_BYTES,
    HEADER_MAX_BYTES,
    RECORD_MAX_BYTES,
    RECORDS_PER_FRAME_MAX,
)

fields = st.lists(st.none() | st.integers() | st.text() | st.lists(st.text()), max_size=4)
records = st.lists(
    st.tuples(st.builds(lambda kind, rest: [kind, *rest], st.text(), fields), st.binary()),
    min_size=1,
    max_size=8,
)


def read_all(reader: FrameReader, data: bytes) -> list[Record]:
    reader.feed(data)
    found = []
    while (frame := reader.next_frame()) is not None:
        found += frame
    return found


def frame(header: Any, payloads: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack(">II", len(text) + len(payloads), len(text)) + text + payloads


def test_the_layout_is_as_documented() -> None:
    header = b'[["task",7,2],["beat",0]]'
    expected = b"\0\0\0\x1b\0\0\0\x19" + header + b"ab"
    assert encode_frames([(["task", 7], b"ab"), (["beat"], b"")]) == expected


@given(st.lists(records, max_size=4), st.lists(st.integers(1, 40), max_size=30))
def test_records_survive_any_cutting_of_the_stream(
    batches: list[list[Record]], cuts: list[int]
) -> None:
    stream = b"".join(encode_frames(batch) for batch in batches)
    reader, found, at = FrameReader(), [], 0
    for cut in cuts:
        found += read_all(reader, stream[at : at + cut])
        at += cut
    found += read_all(reader, stream[at:])
    assert found == [record for batch in batches for record in batch]
    assert reader.is_between_frames
    assert reader.taken_bytes == len(stream)


def test_a_stream_may_arrive_one_byte_at_a_time() -> None:
    sent = [(["task", "é"], b"x" * 300), (["beat"], b"")]
    reader, found = FrameReader(), []
    for byte in encode_frames(sent):
        found += read_all(reader, bytes([byte]))
    assert found == sent


def test_frames_are_returned_one_by_one() -> None:
    reader = FrameReader()
    reader.feed(encode_frames([(["a"], b"")]) + encode_frames([(["b"], b"")]))
    assert reader.next_frame() == [(["a"], b"")]
    assert reader.next_frame() == [(["b"], b"")]
    assert reader.next_frame() is None


def test_a_payload_may_be_any_buffer_and_the_record_is_not_changed() -> None:
    fields = ("task", 1)
    data = encode_frames([(fields, memoryview(b"abc")[1:])])
    assert read_all(FrameReader(), data) == [(["task", 1], b"bc")]


def test_encoding_no_records_gives_no_bytes() -> None:
    assert encode_frames([]) == b""


def test_large_frame_arrives_whole_from_small_pieces() -> None:
    sent = [(["data"], bytes(8 * 1024 * 1024))]
    data = encode_frames(sent)
    reader, found = FrameReader(), []
    for start in range(0, len(data), 1024):
        found += read_all(reader, data[start : start + 1024])
    assert found == sent


def test_batch_over_the_count_is_cut_into_frames() -> None:
    sent = [(["r", i], b"") for i in range(RECORDS_PER_FRAME_MAX * 2 + 1)]
    reader = FrameReader()
    reader.feed(encode_frames(sent))
    sizes = [len(found) for found in iter(reader.next_frame, None)]
    assert sizes == [RECORDS_PER_FRAME_MAX, RECORDS_PER_FRAME_MAX, 1]


def test_batch_over_the_size_is_cut_into_frames_in_order() -> None:
    sent = [(["r", i], bytes(3 * 1024 * 1024)) for i in range(12)]
    assert read_all(FrameReader(), encode_frames(sent)) == sent


def test_headers_over_the_size_are_cut_into_frames_in_order() -> None:
    sent = [(["r", i, "x" * (3 * 1024 * 1024)], b"") for i in range(6)]
    assert read_all(FrameReader(), encode_frames(sent)) == sent


def test_largest_record_passes_and_one_byte_more_is_refused_before_sending() -> None:
    overhead = len(encode_frames([(["r"], bytes(10_000_000))])) - 10_000_000
    largest = bytes(RECORD_MAX_BYTES - overhead)
    sent = [(["before"], b""), (["r"], largest), (["after"], b"")]
    assert read_all(FrameReader(), encode_frames(sent)) == sent
    with pytest.raises(RecordTooLargeError) as caught:
        encode_frames([(["ok"], b""), (["r"], largest + b"x")])
    assert caught.value.size_bytes == RECORD_MAX_BYTES + 1
    assert caught.value.kind == "r"
    assert isinstance(caught.value, LocalProtocolError)


def test_a_record_with_a_large_header_is_sent_in_parts() -> None:
    sent = [(["before"], b""), (["r", "x" * HEADER_MAX_BYTES], b"payload"), (["after"], b"")]
    data = encode_frames(sent)
    reader, found = FrameReader(), []
    for start in range(0, len(data), 1 << 20):
        found += read_all(reader, data[start : start + (1 << 20)])
        assert reader.is_between_frames == (start + (1 << 20) >= len(data))
    assert found == sent


def a_part(left_bytes: Any, content: bytes) -> bytes:
    return frame([["part", left_bytes, len(content)]], content)


@pytest.mark.parametrize(
    "data, why",
    [
        (a_part(10, b"abc") + encode_frames([(["r"], b"")]), "interrupted"),
        (a_part(10, b"abc") + a_part(8, b"abc"), "not the next"),
        (a_part(10, b"abc") + a_part(-2, b"abc"), "not the next"),
        (a_part(-1, b"abc"), "exceeds"),
        (a_part("1", b"abc"), "number of bytes that follow"),
        (a_part(0, b""), "number of bytes that follow"),
        (frame([["part", 1, 1], ["r", 0]], b"x"), "number of bytes that follow"),
        (frame([["part", 1]], b"x"), "number of bytes that follow"),
        (a_part(0, b"abc"), "do not form a frame"),
        (a_part(0, encode_frames([(["r"], b"")]) + b"x"), "do not form a frame"),
        (a_part(0, a_part(0, encode_frames([(["r"], b"")]))), "contain another part"),
    ],
)
def test_parts_that_form_no_record_are_refused(data: bytes, why: str) -> None:
    with pytest.raises(RemoteProtocolError, match=why):
        read_all(FrameReader(), data)


@pytest.mark.parametrize("limit_bytes", [4096, FRAME_MAX_BYTES])
def test_a_record_in_parts_is_refused_with_its_first_part_if_it_is_too_large(
    limit_bytes: int,
) -> None:
    most_bytes = limit_bytes if limit_bytes < FRAME_MAX_BYTES else RECORD_MAX_BYTES
    assert read_all(FrameReader(limit_bytes), a_part(most_bytes - 3, b"abc")) == []
    with pytest.raises(FrameTooLargeError) as caught:
        read_all(FrameReader(limit_bytes), a_part(most_bytes - 2, b"abc"))
    assert (caught.value.size_bytes, caught.value.limit_bytes) == (most_bytes + 1, most_bytes)


def test_record_without_json_form_is_refused_before_sending() -> None:
    with pytest.raises(EncodeError):
        encode_frames([(["r", b"bytes"], b"")])


@pytest.mark.parametrize("limit_bytes", [100, 4096, FRAME_MAX_BYTES])
def test_a_frame_beyond_the_limit_is_refused_from_its_first_eight_bytes(limit_bytes: int) -> None:
    reader = FrameReader(limit_bytes)
    reader.feed(struct.pack(">II", limit_bytes - 8 + 1, 2))
    with pytest.raises(FrameTooLargeError) as caught:
        reader.next_frame()
    assert (caught.value.size_bytes, caught.value.limit_bytes) == (limit_bytes + 1, limit_bytes)


def test_frame_of_the_limit_is_accepted() -> None:
    data = encode_frames([(["r"], bytes(50))])
    assert read_all(FrameReader(len(data)), data)
    with pytest.raises(FrameTooLargeError):
        read_all(FrameReader(len(data) - 1), data)


def test_a_header_beyond_the_limit_is_refused_from_its_first_eight_bytes() -> None:
    reader = FrameReader()
    reader.feed(struct.pack(">II", FRAME_MAX_BYTES - 8, HEADER_MAX_BYTES + 1))
    with pytest.raises(FrameTooLargeError, match="header"):
        reader.next_frame()


def test_header_longer_than_its_frame_is_refused_from_its_first_eight_bytes() -> None:
    reader = FrameReader()
    reader.feed(struct.pack(">II", 100, 101))
    with pytest.raises(RemoteProtocolError, match="header is longer"):
        reader.next_frame()


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n",
        b"P",
        b"\x16\x03\x01",
        b"\x02",
        b"\xff" * 8,
        b"\0\0\0\x01\0\0\0\x02[]",
        struct.pack(">II", 0, 0),
        struct.pack(">II", 3, 0) + b"abc",
        frame(b"[]"),
        frame(b"{}"),
        frame(b"null"),
        frame(b"not json"),
        frame(b'[["a",0]'),
        frame(b'[["\xff",0]]'),
        frame([[]]),
        frame([["a"]]),
        frame([[0, 0]]),
        frame([[["a"], 0]]),
        frame([{"a": 0}]),
        frame(["ab"]),
        frame([None]),
        frame([["a", -1]]),
        frame([["a", True]], b"x"),
        frame([["a", 1.0]], b"x"),
        frame([["a", "1"]], b"x"),
        frame([["a", None]]),
        frame([["a", 0], ["b", 1]]),
        frame([["a", 2]], b"x"),
        frame([["a", 0]], b"x"),
        frame([["a", 5], ["b", -4]], b"x"),
        frame([["a", 10**30]], b"x"),
        frame(b"[" * 5000),
        frame([["a", 0]] * (RECORDS_PER_FRAME_MAX + 1)),
    ],
)
def test_an_invalid_frame_is_a_remote_protocol_error(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        read_all(FrameReader(), data)
    assert str(caught.value).isprintable()


@given(st.binary(max_size=200))
def test_random_bytes_raise_only_remote_protocol_errors(data: bytes) -> None:
    for stream in (data, frame(data), frame([["a", len(data)]], data)):
        try:
            read_all(FrameReader(4096), stream)
        except RemoteProtocolError:
            pass


@pytest.mark.parametrize("cut", range(1, 30))
def test_a_truncated_stream_gives_no_records_and_is_detected(cut: int) -> None:
    data = encode_frames([(["task"], b"payload")])
    reader = FrameReader()
    assert read_all(reader, data[: min(cut, len(data) - 1)]) == []
    assert not reader.is_between_frames


def test_first_byte_tells_frames_from_http() -> None:
    largest = struct.pack(">II", FRAME_MAX_BYTES - 8, 2)
    assert looks_like_frame(largest[0])
    assert looks_like_frame(encode_frames([(["a"], b"")])[0])
    assert not any(looks_like_frame(letter) for letter in b"GPHDOCTgphdoct\x16")
