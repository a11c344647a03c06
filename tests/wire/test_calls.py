from __future__ import annotations

import json
import struct
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ciel.core.ids import ObjectId
from ciel.core.refs import Concrete, Future, Value
from ciel.wire.calls import Call, CallReader, encode_call
from ciel.wire.errors import DecodeError, EncodeError
from ciel.wire.limits import CALL_MAX_BYTES, JSON_DEPTH_MAX

REF = Concrete(ObjectId("T:out:1"), 67108864, frozenset(["host:8001"]))

texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
references = st.sampled_from([REF, Future(ObjectId("X")), Value(ObjectId("v"), "aGk=")])
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | texts | references,
    lambda inner: st.lists(inner) | st.dictionaries(texts.filter("__ref__".__ne__), inner),
    max_leaves=10,
)  # fmt: skip
calls = st.builds(Call, texts.filter(bool), values)
cuts = st.lists(st.integers(0, 10_000))


def framed(payload: bytes) -> bytes:
    return struct.pack(">I", len(payload)) + payload


def pieces(stream: bytes, cuts: list[int]) -> list[bytes]:
    at = [0, *sorted({cut % (len(stream) + 1) for cut in cuts}), len(stream)]
    return [stream[start:end] for start, end in pairwise(at)]


def read(stream: bytes, cuts: list[int]) -> tuple[list[Call], str]:
    """Return the calls of a stream that arrives in pieces, and the error after them."""
    reader = CallReader()
    found: list[Call] = []
    try:
        for piece in [*pieces(stream, cuts), b""]:
            found += reader.feed(piece)
    except DecodeError as error:
        return found, str(error)
    return found, ""


def refusal(stream: bytes) -> str:
    found, error = read(stream, [])
    assert found == []
    return error


# --- bytes ----------------------------------------------------------------------------------------


def test_a_call_is_its_length_and_a_list() -> None:
    payload = '["log",{"message":"é"}]'.encode()
    assert encode_call("log", {"message": "é"}) == bytes([0, 0, 0, len(payload)]) + payload


def test_a_reference_is_encoded_as_an_object() -> None:
    array = ["c2", "T:out:1", 67108864, ["host:8001"]]
    call = encode_call("close_output", {"ref": REF})
    assert json.loads(call[4:]) == ["close_output", {"ref": {"__ref__": array}}]


@given(st.lists(calls, max_size=5), cuts)
def test_calls_survive_any_split(sent: list[Call], cuts: list[int]) -> None:
    stream = b"".join([encode_call(*call) for call in sent])
    assert read(stream, cuts) == (sent, "")


@given(st.lists(calls, max_size=3), st.binary(), cuts)
def test_an_error_is_found_after_the_same_calls_however_the_stream_is_split(
    sent: list[Call], garbage: bytes, cuts: list[int]
) -> None:
    stream = b"".join([encode_call(*call) for call in sent]) + garbage
    assert read(stream, cuts) == read(stream, [])


@given(st.binary())
def test_any_bytes_are_calls_or_one_error(garbage: bytes) -> None:
    read(garbage, [])
    read(framed(garbage), [])


@given(calls, st.integers(1, 10_000))
def test_a_call_that_is_cut_short_is_partial(call: Call, cut: int) -> None:
    stream = encode_call(*call)
    reader = CallReader()
    assert reader.feed(stream[: cut % len(stream)]) == []
    assert reader.has_partial == bool(cut % len(stream)) == bool(reader.partial)
    assert reader.feed(stream[cut % len(stream) :]) == [call]
    assert not reader.has_partial
    assert not reader.partial


@pytest.mark.parametrize(
    "args",
    ['{"index":0,"str":"eA=="}', '{"index":999999999,"str":""}', '{"index":12,"str":"+/"}',
     '{"index":-1,"str":"eA=="}', '{"index":1.0,"str":"eA=="}', '{"index":99999999999,"str":"e"}',
     '{"str":"eA==","index":0}', '{"index":0,"str":"e\\u0041"}', '{"index":0,"str":"é"}',
     '{"index": 0,"str":"eA=="}', '{"index":0,"str":"eA==","store":"memory"}'],
)  # fmt: skip
def test_the_fast_path_for_small_outputs_reads_them_as_every_call(args: str) -> None:
    found, error = read(framed(f'["publish_string",{args}]'.encode()), [])
    assert (found, error) == ([Call("publish_string", json.loads(args))], "")
    assert [type(call.args["index"]) for call in found] == [type(json.loads(args)["index"])]


@pytest.mark.parametrize(
    "args", ['{"index":00,"str":""}', '{"index":0,"index":0,"str":""}', '{"index":0,"str":"\n"}']
)
def test_a_small_output_that_is_not_json_is_refused(args: str) -> None:
    assert "not JSON" in refusal(framed(f'["publish_string",{args}]'.encode()))


def test_a_partial_call_is_described_in_words() -> None:
    reader = CallReader()
    reader.feed(b"hi\n")
    assert reader.partial == r"3 of the 4 bytes of a call's length ('hi\n')"
    reader = CallReader()
    reader.feed(encode_call("log", "x" * 100)[:7])
    assert reader.partial == """3 of the 110 bytes of a call ('["l')"""


# --- calls of programs ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "payload",
    [
        b'["a", {"b": {"__ref__": ["val", "v", "aGk="]}}]',
        rb'["a",{"b":{"\u005f_ref_\u005f":["val","v","aGk\u003d"]}}]',
        b' [ "a" , { "b" : {"other":1,"__ref__":["val","v","aGk="]} } ] ',
    ],
    ids=["plain", "escaped", "spaced"],
)
def test_a_reference_is_recognised_in_every_spelling(payload: bytes) -> None:
    value = Value(ObjectId("v"), "aGk=")
    assert CallReader().feed(framed(payload)) == [Call("a", {"b": value})]


def test_an_escaped_tag_is_read() -> None:
    payload = rb'["a",{"__ref__":["\u003c3","v","h:1",null,[]]}]'
    (call,) = CallReader().feed(framed(payload))
    assert call.args.preferred == "h:1"


@pytest.mark.parametrize("args", [None, 3, "text", [], {}])
def test_arguments_may_be_anything(args: Any) -> None:
    assert CallReader().feed(encode_call("m", args)) == [Call("m", args)]


def test_a_call_of_the_largest_size_is_accepted_and_one_byte_more_is_not() -> None:
    largest = encode_call("m", "x" * (CALL_MAX_BYTES - len('["m",""]')))
    assert len(largest) == 4 + CALL_MAX_BYTES
    assert len(CallReader().feed(largest)) == 1
    with pytest.raises(EncodeError, match="m takes 16777217 bytes"):
        encode_call("m", "x" * (CALL_MAX_BYTES - len('["m",""]') + 1))


def test_a_call_that_is_too_large_is_refused_by_its_length_alone() -> None:
    too_large = struct.pack(">I", CALL_MAX_BYTES + 1)
    assert "16777217 bytes (the bytes 01 00 00 01), but the limit is 16777216" in refusal(too_large)


def test_text_where_a_length_should_be_is_named() -> None:
    error = refusal(b"hello, world\n")
    assert "the start of a call is the text 'hell'" in error
    assert "print to the FIFO?" in error


@pytest.mark.parametrize(
    "payload, why",
    [
        (b"", "a call of no bytes: not JSON"),
        (b"hello", "a call of 5 bytes ('hello'): not JSON"),
        (b'["exit",{}', "not JSON"),
        (b'["exit",{}]x', "not JSON"),
        (b"\xff\xfe", "not UTF-8 at byte 0"),
        (b'["a",NaN]', "not JSON"),
        (b'["a",-Infinity]', "not JSON"),
        (b'["a",1e999]', "out of range"),
        (b'["a",{"b":1,"b":2}]', "twice"),
        (b'["a",%s]' % (b"9" * 5000), "too many digits"),
        (b'["a",' + b"[" * 100_000 + b"]" * 100_000 + b"]", "too deeply"),
        (b'["a",' + b"[" * JSON_DEPTH_MAX + b"]" * JSON_DEPTH_MAX + b"]", "levels deep"),
        (b'{"method":"exit"}', "not a list of a method"),
        (b'"exit"', "not a list of a method"),
        (b'["exit"]', "not a list of a method"),
        (b'["exit",{},1]', "not a list of a method"),
        (b'["",{}]', "not a list of a method"),
        (b"[1,{}]", "not a list of a method"),
        (b"[null,{}]", "not a list of a method"),
        (b'["a",{"__ref__":["nn","x"]}]', "unknown tag 'nn'"),
        (b'["a",{"__ref__":["f2","../x"]}]', "'../x' is not an id"),
        (b'["a",[{"__ref__":7}]]', "must be an array"),
    ],
)
def test_an_invalid_call_is_refused_with_its_bytes(payload: bytes, why: str) -> None:
    error = refusal(framed(payload))
    assert f"a call of {len(payload) or 'no'} bytes" in error
    assert why in error


def test_a_reader_repeats_its_error() -> None:
    reader = CallReader()
    for data in (b"hello", encode_call("exit", {}), b""):
        with pytest.raises(DecodeError, match="'hell'"):
            reader.feed(data)
    assert not reader.has_partial


# --- calls to programs ----------------------------------------------------------------------------


@pytest.mark.parametrize("args", ["\0", {"a": ["b\0"]}, {"\0": 1}, "\\\0", '"\0'])
def test_a_text_with_a_nul_cannot_be_encoded(args: Any) -> None:
    with pytest.raises(EncodeError, match="NUL"):
        encode_call("m", args)


@pytest.mark.parametrize("args", ["\\u0000", "\\\\u0000", '"\\u0000', "\1"])
def test_a_text_that_only_looks_like_a_nul_can_be_encoded(args: str) -> None:
    assert CallReader().feed(encode_call("m", args)) == [Call("m", args)]


@pytest.mark.parametrize("args", [object(), float("nan"), b"bytes", "\ud800"])
def test_a_value_without_json_form_cannot_be_encoded(args: Any) -> None:
    with pytest.raises(EncodeError):
        encode_call("m", args)


def test_a_value_that_contains_itself_cannot_be_encoded() -> None:
    circle: list[Any] = []
    circle.append(circle)
    with pytest.raises(EncodeError, match="contains itself"):
        encode_call("m", circle)
