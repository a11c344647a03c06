from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any

import numpy
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ciel.access.keys import Key
from ciel.state.errors import ContentError
from ciel.state.values import Values

values = Values(Key(b"k" * 32))
plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner),
)


@given(plain)
def test_value_comes_back_with_its_types(value: Any) -> None:
    found = values.decode(values.encode(value))
    assert found == value
    assert repr(found) == repr(value)


@pytest.mark.parametrize("value", [None, True, 5, -1.5, "text", "ä", [1, [2]], {"a": {"b": 1}}])
def test_plain_values_are_json(value: Any) -> None:
    assert orjson.loads(values.encode(value)) == value


@pytest.mark.parametrize(
    "value",
    [
        (1, 2),
        {1: 2},
        {1, 2},
        Decimal("1.5"),
        datetime.date(2026, 1, 1),
        1 << 70,
        float("inf"),
        "\ud800",
        [b"x" * 100_000, 1],
        {"a": (1,)},
    ],
)
def test_other_values_are_pickled(value: Any) -> None:
    content = values.encode(value)
    assert content[:1] == b"\xc1"
    found = values.decode(content)
    assert (found, type(found)) == (value, type(value))


def test_array_comes_back() -> None:
    array = numpy.arange(100_000).reshape(100, 1000)
    assert (values.decode(values.encode(array)) == array).all()


@pytest.mark.parametrize("content", [b"", b"5", b'"a"', b"\xc0", b"\xc1x", b"hello", b"\xff\x00"])
def test_bytes_come_back_as_bytes(content: bytes) -> None:
    assert values.decode(values.encode(content)) == content
    assert type(values.decode(values.encode(content))) is bytes


def test_bytes_of_other_programs_are_bytes() -> None:
    assert values.decode(b"hello") == b"hello"
    assert values.decode(b"41") == 41


def test_pickle_of_another_key_is_not_unpickled() -> None:
    content = Values(Key(b"x" * 32)).encode((1, 2))
    with pytest.raises(ContentError, match="does not have the cluster's key"):
        values.decode(content)
    own = bytearray(values.encode((1, 2)))
    own[-1] ^= 1
    with pytest.raises(ContentError):
        values.decode(bytes(own))


def test_without_a_key_there_are_no_pickles() -> None:
    with pytest.raises(ContentError, match="without the key"):
        Values(None).encode((1, 2))
    with pytest.raises(ContentError, match="without a cluster's key"):
        Values(None).decode(values.encode((1, 2)))
    assert Values(None).decode(Values(None).encode([1, "a"])) == [1, "a"]


def test_what_cannot_be_stored_is_named() -> None:
    with pytest.raises(ContentError, match="bytearray may change"):
        values.encode(bytearray(b"x"))
    with pytest.raises(ContentError, match="lock"):
        values.encode({"a": __import__("threading").Lock()})
