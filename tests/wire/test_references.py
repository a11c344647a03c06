import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ciel.core.errors import InvalidContentError, InvalidIdError
from ciel.core.ids import ObjectId
from ciel.core.refs import (
    REFERENCE_TYPES,
    Concrete,
    Failure,
    Fetch,
    Fixed,
    Future,
    Piped,
    Reference,
    SocketStream,
    Stream,
    Sweetheart,
    Tombstone,
    Value,
)
from ciel.testing.strategies import json_values, references
from ciel.wire import codec
from ciel.wire.errors import DecodeError
from ciel.wire.references import LOCATIONS_MAX, from_array, from_json, to_array, to_json

X = ObjectId("x")
W1, W2 = "w1:8001", "w2:8001"

WRITTEN_DOWN: list[tuple[Reference, list[Any]]] = [
    (Future(X), ["f2", "x"]),
    (Concrete(X, 7, frozenset((W2, W1))), ["c2", "x", 7, [W1, W2]]),
    (Concrete(X, None, frozenset()), ["c2", "x", None, []]),
    (Sweetheart(X, W2, 7, frozenset((W1,))), ["<3", "x", W2, 7, [W1]]),
    (Stream(X, frozenset((W1,))), ["s2", "x", [W1]]),
    (SocketStream(X, W1, 9000), ["ss2", "x", W1, 9000]),
    (Value.of(X, b"\0\xff"), ["val", "x", "AP8="]),
    (Fixed(X, W1), ["fx", "x", W1]),
    (Failure(X, "RUNTIME_ERROR", {"exit": 3}), ["err", "x", "RUNTIME_ERROR", {"exit": 3}]),
    (Tombstone(X, frozenset((W1,))), ["t2", "x", [W1]]),
    (Piped(X), ["completed2", "x"]),
    (Fetch(X, "https://example.com"), ["fetch2", "x", "https://example.com"]),
]


@pytest.mark.parametrize("ref, array", WRITTEN_DOWN)
def test_the_format_is_the_originals(ref: Reference, array: list[Any]) -> None:
    assert to_array(ref) == array
    assert from_array(array) == ref


def test_the_table_contains_every_kind() -> None:
    assert {type(ref) for ref, _ in WRITTEN_DOWN} == set(REFERENCE_TYPES)


@given(references())
def test_every_reference_kind_survives_a_round_trip(ref: Reference) -> None:
    again = from_array(codec.decode(codec.encode(to_array(ref))))
    assert again == ref
    assert type(again) is type(ref)


def test_a_location_named_twice_counts_once() -> None:
    assert from_array(["s2", "x", [W1, W1]]) == Stream(X, frozenset((W1,)))


def test_a_whole_size_may_be_written_as_a_float() -> None:
    ref = from_array(["c2", "x", 67108864.0, []])
    assert ref == Concrete(X, 67108864, frozenset())
    assert isinstance(ref, Concrete)
    assert type(ref.size_bytes) is int


@pytest.mark.parametrize(
    "place", [W1, "127.0.0.1:80", "[::1]:8001", "[fe80::1%eth0]:1", "a_b-c.d:1"]
)
def test_valid_locations_are_accepted(place: str) -> None:
    assert from_array(["fx", "x", place]) == Fixed(X, place)


HOSTILE: dict[str, Any] = {
    "nothing": None,
    "text": "f2",
    "object": {"0": "f2", "1": "x"},
    "empty": [],
    "tag alone": ["f2"],
    "unknown tag": ["f3", "x"],
    "tag in capitals": ["F2", "x"],
    "number as tag": [2, "x"],
    "list as tag": [["f2"], "x"],
    "nothing as tag": [None, "x"],
    "a tag of a million letters": ["f" * 1_000_000, "x"],
    "future with more": ["f2", "x", 1],
    "value without content": ["val", "x"],
    "value of a number": ["val", "x", 7],
    "value of a list": ["val", "x", ["YQ=="]],
    "concrete without locations": ["c2", "x", 7],
    "concrete with too much": ["c2", "x", 7, [], []],
    "size is text": ["c2", "x", "7", []],
    "size is true": ["c2", "x", True, []],
    "size is negative": ["c2", "x", -1, []],
    "size is a negative float": ["c2", "x", -1.0, []],
    "size is broken": ["c2", "x", 7.5, []],
    "size is infinite": ["c2", "x", float("inf"), []],
    "size is not a number": ["c2", "x", float("nan"), []],
    "size is more than a file can have": ["c2", "x", 2**63, []],
    "size is a huge float": ["c2", "x", 1e300, []],
    "size has a thousand digits": ["c2", "x", 10**1000, []],
    "size is a list": ["<3", "x", W1, [7], []],
    "locations are text": ["c2", "x", 7, W1],
    "locations are an object": ["c2", "x", 7, {W1: 1}],
    "locations are nothing": ["s2", "x", None],
    "a location is a number": ["s2", "x", [8001]],
    "a location is nothing": ["t2", "x", [None]],
    "a location is a list": ["t2", "x", [[W1]]],
    "a location is empty": ["fx", "x", ""],
    "a location without a port": ["fx", "x", "w1"],
    "a location without a host": ["fx", "x", ":8001"],
    "a location with a path": ["fx", "x", "w1:8001/data"],
    "a location with a user": ["fx", "x", "me@w1:8001"],
    "a location with a query": ["fx", "x", "w1:8001?a=b"],
    "a location with a fragment": ["fx", "x", "evil#:8001"],
    "a location with a line of a header": ["fx", "x", "w1:8001\r\nX: y"],
    "a location with a line at its end": ["fx", "x", "w1:8001\n"],
    "a location with NUL": ["fx", "x", "w1\0:8001"],
    "a location with a space": ["fx", "x", "w 1:8001"],
    "a location with digits beyond ASCII": ["fx", "x", "w1:\u0668"],
    "a location of 300 letters": ["fx", "x", "w" * 300 + ":1"],
    "too many locations": ["s2", "x", [W1] * (LOCATIONS_MAX + 1)],
    "preferred is nothing": ["<3", "x", None, 7, []],
    "port 0": ["ss2", "x", W1, 0],
    "port 65536": ["ss2", "x", W1, 65536],
    "port is true": ["ss2", "x", W1, True],
    "port is a float": ["ss2", "x", W1, 80.0],
    "port is text": ["ss2", "x", W1, "80"],
    "reason is nothing": ["err", "x", None, ""],
    "error without details": ["err", "x", "RUNTIME_ERROR"],
    "URL is a number": ["fetch2", "x", 7],
}


@pytest.mark.parametrize("array", HOSTILE.values(), ids=HOSTILE)
def test_a_malformed_reference_is_one_short_error(array: Any) -> None:
    with pytest.raises(DecodeError) as caught:
        from_array(array)
    assert len(str(caught.value)) <= 300


@pytest.mark.parametrize(
    "name", ["", "../x", "/x", ".", "..", "a\0b", "a\n", "a" * 129, "-x", None, 7, True, ["x"]]
)
@pytest.mark.parametrize("ref, array", WRITTEN_DOWN)
def test_a_reference_to_an_invalid_id_is_refused(
    ref: Reference, array: list[Any], name: Any
) -> None:
    with pytest.raises(InvalidIdError):
        from_array([array[0], name, *array[2:]])


@given(st.sampled_from(WRITTEN_DOWN), st.integers(0, 5), json_values())
def test_an_array_with_any_value_in_it_is_a_reference_or_one_error(
    written: tuple[Reference, list[Any]], place: int, value: Any
) -> None:
    array = [*written[1]]
    array[place : place + 1] = [value]
    try:
        ref = from_array(array)
    except (DecodeError, InvalidIdError):
        return
    assert from_array(to_array(ref)) == ref


# --- references inside values ---------------------------------------------------------------------

with_references = st.recursive(
    json_values() | references(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
).filter(lambda value: "__ref__" not in repr(value))


@given(with_references)
def test_references_inside_a_value_survive_a_round_trip(value: Any) -> None:
    before = copy.deepcopy(value)
    assert from_json(to_json(value)) == value
    assert value == before


def test_a_marked_object_is_a_reference_at_any_depth() -> None:
    value = {"args": [{"__ref__": ["f2", "x"]}], "deep": {"er": [{"__ref__": ["f2", "y"], "k": 1}]}}
    assert from_json(value) == {"args": [Future(X)], "deep": {"er": [Future(ObjectId("y"))]}}


@pytest.mark.parametrize(
    "marked",
    [None, [], "x", {"__ref__": ["f2", "x"]}, ["f2", "../x"], ["val", "x", "a"], ["val", "x", "!"]],
)
def test_a_marked_object_must_hold_a_reference(marked: Any) -> None:
    with pytest.raises((DecodeError, InvalidIdError, InvalidContentError)):
        from_json([{"__ref__": marked}])


def test_the_deepest_value_that_can_be_decoded_can_be_converted() -> None:
    text = b"[" * 190 + b'{"__ref__":["f2","x"]}' + b"]" * 190
    value = from_json(codec.decode(text))
    assert codec.encode(to_json(value)) == text


def test_a_value_that_contains_itself_raises_an_error() -> None:
    looped: list[Any] = []
    looped.append({"in": looped})
    with pytest.raises(RecursionError):
        to_json(looped)
    with pytest.raises((DecodeError, RecursionError)):
        from_json(looped)
