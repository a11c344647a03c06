import decimal
import re
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ciel.wire.codec import decode, decode_header, encode
from ciel.wire.errors import DecodeError, EncodeError
from ciel.wire.limits import JSON_DEPTH_MAX, TEXT_MAX_LENGTH

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
    | st.text('[]{}"\\,:', max_size=8)
)
LONG_NUMBER = re.compile(rb"[0-9]{19}")  # perhaps beyond 64 bits: see `decode_header`
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=30,
)


@given(values)
def test_every_value_survives_a_round_trip(value: object) -> None:
    assert decode(encode(value)) == value


@given(values)
def test_every_value_survives_among_many_brackets(value: object) -> None:
    many = [[[], {}]] * JSON_DEPTH_MAX + [value]
    assert decode(encode(many)) == many


def outcome(read: Any, data: bytes) -> Any:
    """Return the value that was read, or the text of the error."""
    try:
        return read(data)
    except DecodeError as error:
        return str(error)


@given(values)
def test_a_header_is_decoded_like_any_value(value: object) -> None:
    if LONG_NUMBER.search(encode(value)) is None:
        assert decode_header(encode(value)) == value


@given(st.binary(max_size=18) | st.binary().filter(lambda data: not LONG_NUMBER.search(data)))
def test_any_bytes_decode_or_raise_one_error(data: bytes) -> None:
    assert outcome(decode_header, data) == outcome(decode, data)


@given(st.text('[]{}"\\,:0truenfalsd1e9.-u \n', max_size=40))
def test_any_near_json_decodes_or_raises_one_error(text: str) -> None:
    value = outcome(decode, text.encode())
    if LONG_NUMBER.search(text.encode()) is None:
        assert outcome(decode_header, text.encode()) == value
    assert decode(encode(value)) == value


def test_encoding_is_compact_utf8() -> None:
    assert encode(["é", {"a": 1}, "\N{GRINNING FACE}"]) == '["é",{"a":1},"😀"]'.encode()


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_buffer_may_be_decoded(kind: Any) -> None:
    assert decode(kind(b'["a"]')) == ["a"]


def nested(depth: int, opening: str = "[", closing: str = "]") -> bytes:
    return (opening * depth + closing * depth).encode()


def hidden(depth: int, closing: bytes, opening: bytes) -> bytes:
    """Nest lists whose brackets seem to close at once if a parser counts brackets in strings."""
    return (b"[" + closing + b",") * depth + b"0" + (b"," + opening + b"]") * depth


HOSTILE = {
    "nothing": b"",
    "blank": b" ",
    "not JSON": b"hello",
    "two values": b"[1][2]",
    "cut short": b'["a',
    "trailing comma": b"[1,]",
    "comment": b"[1]//",
    "single quotes": b"['a']",
    "NaN": b"[NaN]",
    "Infinity": b"[Infinity]",
    "minus Infinity": b"-Infinity",
    "float overflow": b"[1e999]",
    "negative float overflow": b"-1e999",
    "duplicate key": b'{"a":1,"b":2,"a":3}',
    "duplicate key spelt with an escape": b'{"a":1,"\\u0061":3}',
    "deep duplicate key": b'[[{"x":{"a":1,"a":1}}]]',
    "lone high surrogate": b'["\\ud800"]',
    "lone low surrogate": b'["\\uDC00"]',
    "surrogates in the wrong order": b'["\\ude00\\ud83d"]',
    "lone surrogate in a key": b'{"\\ud800":1}',
    "surrogate in UTF-8": b'["\xed\xa0\x80"]',
    "overlong UTF-8": b'["\xc0\xaf"]',
    "cut UTF-8": b'["\xc3"]',
    "UTF-16": '["a"]'.encode("utf-16"),
    "control character": b'["\x00"]',
    "newline in a string": b'["a\nb"]',
    "bad escape": b'["\\x41"]',
    "bad unicode escape": b'["\\u12"]',
    "integer of 4301 digits": b"[" + b"9" * 4301 + b"]",
    "leading zero": b"[01]",
    "hexadecimal": b"[0x1]",
    "key that is not a string": b"{1:2}",
    "one level too deep": nested(JSON_DEPTH_MAX + 1),
    "one level too deep around a string": b"[" * (JSON_DEPTH_MAX + 1) + b'"]"' + b"]" * 201,
    "too deep, objects": nested(JSON_DEPTH_MAX + 1, '{"a":[', "]}"),
    "too deep, hidden by brackets in strings": hidden(JSON_DEPTH_MAX + 1, b'"]"', b'"["'),
    "too deep, hidden by brackets between escaped quotes": hidden(
        JSON_DEPTH_MAX + 1, b'"\\"]\\""', b'"\\"[\\""'
    ),
    "very deep": nested(100_000),
    "deep and unclosed": b"[" * 1_000_000,
    "deep objects": b'{"a":' * 100_000,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_input_is_one_error_of_one_short_line(name: str) -> None:
    with pytest.raises(DecodeError) as caught:
        decode(HOSTILE[name])
    assert outcome(decode_header, HOSTILE[name]) == str(caught.value)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) <= TEXT_MAX_LENGTH


@pytest.mark.parametrize(
    "data",
    [
        nested(JSON_DEPTH_MAX),
        b"[" * JSON_DEPTH_MAX + b'"[","]"' + b"]" * JSON_DEPTH_MAX,
        hidden(JSON_DEPTH_MAX, b'"]"', b'"["'),
        b'["' + b"[" * 1000 + b'"]',
        b'["' + b'\\"[' * 1000 + b'"]',
        b"[" + b"[]," * 1000 + b"[]]",
        b'["\\ud83d\\ude00"]',
        b"[" + b"9" * 4300 + b"]",
        b'["\\n"]',
        b'"\\\\ud800"',
        b"1e308",
    ],
)
def test_values_at_the_limits_are_accepted(data: bytes) -> None:
    assert decode(encode(decode(data))) == decode(data)
    assert decode_header(encode(decode(data))) == decode(data)


class Point(NamedTuple):
    x: int
    y: int


@pytest.mark.parametrize("text", ["[1]", " [1]", "[1] ", "\n[1]\r\n\t", "[1]\n"])
def test_white_space_around_a_value_is_ignored(text: str) -> None:
    assert decode(text.encode()) == [1]


@pytest.mark.parametrize(
    "text, character", [("[1]]", 3), ("[1] 2", 4), (" [1] x", 5), ("[1", 2), ("{", 1)]
)
def test_a_syntax_error_names_its_position(text: str, character: int) -> None:
    with pytest.raises(DecodeError, match=rf"at character {character}$"):
        decode(text.encode())


def test_tuples_named_or_not_become_lists() -> None:
    assert encode((1, Point(2, 3))) == b"[1,[2,3]]"


@pytest.mark.parametrize("number", [2**64, -(2**63) - 1, 10**30])
def test_an_integer_beyond_64_bits_is_exact_except_in_a_header(number: int) -> None:
    assert decode_header(encode([number])) == [float(number)]
    assert decode_header(encode([{"number": number}])) == [{"number": number}]
    assert decode(encode([number])) == [number]


def looped() -> list[Any]:
    loop: list[Any] = []
    loop.append(loop)
    return loop


@pytest.mark.parametrize(
    "value",
    [
        b"bytes",
        {1, 2},
        object(),
        decimal.Decimal(1),
        float("nan"),
        float("inf"),
        "\ud800",
        {"\udc00": 1},
        pytest.param(10**5000, id="5001 digits"),
        pytest.param(looped(), id="a loop"),
    ],
)
def test_value_without_json_form_is_one_error(value: object) -> None:
    with pytest.raises(EncodeError) as caught:
        encode([value])
    assert str(caught.value).isprintable()
