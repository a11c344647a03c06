"""Tests merging: one test for each row of the original's table, then rules that hold for all
rows.
"""

import pytest
from hypothesis import given

from ciel.core.ids import ObjectId
from ciel.core.refs import (
    CONSUMABLE,
    INLINE_MAX_BYTES,
    MERGE_TABLE,
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
    locations_of,
    merge,
)
from ciel.testing.strategies import places, references

X = ObjectId("x")
W1, W2, W3 = "w1:8001", "w2:8001", "w3:8001"


def at(*places: str) -> frozenset[str]:
    return frozenset(places)


FUTURE = Future(X)
CONCRETE = Concrete(X, 5000, at(W1))
SWEETHEART = Sweetheart(X, W2, 5000, at(W2))
STREAM = Stream(X, at(W1))
SOCKET = SocketStream(X, W1, 9000)
VALUE = Value.of(X, b"content")
FIXED = Fixed(X, W1)
FAILURE = Failure(X, "RUNTIME_ERROR", "exit status 1")
TOMBSTONE = Tombstone(X, at(W1))
PIPED = Piped(X)
FETCH = Fetch(X, "https://example.com")
ALL: tuple[Reference, ...] = (
    FUTURE, CONCRETE, SWEETHEART, STREAM, SOCKET, VALUE, FIXED, FAILURE, TOMBSTONE, PIPED, FETCH,
)  # fmt: skip


@pytest.mark.parametrize("update", ALL)
def test_row_1_a_value_stays(update: Reference) -> None:
    assert merge(VALUE, update) == VALUE


def test_row_1_the_first_value_stays() -> None:
    assert merge(VALUE, Value.of(X, b"other")) == VALUE


@pytest.mark.parametrize("old", [ref for ref in ALL if ref != VALUE])
def test_row_2_a_value_replaces_all_else(old: Reference) -> None:
    assert merge(old, VALUE) == VALUE


@pytest.mark.parametrize("old", [ref for ref in ALL if ref not in (VALUE, CONCRETE, SWEETHEART)])
def test_row_3_a_sweetheart_replaces_the_reference(old: Reference) -> None:
    assert merge(old, SWEETHEART) == SWEETHEART


def test_row_3_a_sweetheart_inherits_the_locations_of_copies() -> None:
    assert merge(CONCRETE, SWEETHEART) == Sweetheart(X, W2, 5000, at(W1, W2))
    assert merge(Sweetheart(X, W3, 1, at(W3)), SWEETHEART) == Sweetheart(X, W2, 5000, at(W2, W3))


@pytest.mark.parametrize("old", [FUTURE, STREAM, SOCKET])
def test_row_4_a_future_or_stream_becomes_concrete(old: Reference) -> None:
    assert merge(old, CONCRETE) == CONCRETE


@pytest.mark.parametrize("update", [STREAM, SOCKET])
def test_row_5_a_future_becomes_a_stream(update: Reference) -> None:
    assert merge(FUTURE, update) == update


def test_row_6_a_future_becomes_an_error() -> None:
    assert merge(FUTURE, FAILURE) == FAILURE


def test_row_7_merging_streams_unites_their_locations() -> None:
    assert merge(STREAM, Stream(X, at(W2))) == Stream(X, at(W1, W2))
    assert merge(STREAM, SocketStream(X, W3, 9000)) == Stream(X, at(W1, W3))


@pytest.mark.parametrize("update", [STREAM, SocketStream(X, W2, 9001)])
def test_row_7_a_socket_stream_keeps_its_only_location(update: Reference) -> None:
    assert merge(SOCKET, update) == SOCKET


def test_row_8_merging_copies_unites_their_locations() -> None:
    assert merge(CONCRETE, Concrete(X, 5000, at(W2))) == Concrete(X, 5000, at(W1, W2))
    assert merge(SWEETHEART, CONCRETE) == Sweetheart(X, W2, 5000, at(W1, W2))


def test_row_8_a_size_is_filled_in_but_not_replaced() -> None:
    unknown = Concrete(X, None, at(W1))
    assert merge(unknown, Concrete(X, 7, at(W1))) == Concrete(X, 7, at(W1))
    assert merge(CONCRETE, Concrete(X, 7, at(W1))) == CONCRETE


def test_row_9_a_tombstone_removes_its_locations() -> None:
    assert merge(Concrete(X, 5, at(W1, W2)), TOMBSTONE) == Concrete(X, 5, at(W2))
    assert merge(Sweetheart(X, W2, 5, at(W1, W2)), TOMBSTONE) == Sweetheart(X, W2, 5, at(W2))
    assert merge(Stream(X, at(W1, W2)), TOMBSTONE) == Stream(X, at(W2))


@pytest.mark.parametrize("old", [CONCRETE, Sweetheart(X, W1, 5, at(W1)), STREAM, SOCKET])
def test_row_9_a_reference_without_locations_becomes_a_future(old: Reference) -> None:
    assert merge(old, TOMBSTONE) == FUTURE


@pytest.mark.parametrize("old", [CONCRETE, SWEETHEART, STREAM, SOCKET, FIXED])
def test_rows_9_and_10_a_tombstone_for_another_location_changes_nothing(old: Reference) -> None:
    assert merge(old, Tombstone(X, at(W3))) == old


def test_row_10_a_lost_fixed_object_is_an_error_with_its_location() -> None:
    assert merge(FIXED, TOMBSTONE) == Failure(X, "LOST_FIXED_OBJECT", W1)


@pytest.mark.parametrize("old", [STREAM, SOCKET])
def test_row_11_unlike_the_original_an_error_ends_a_stream(old: Reference) -> None:
    assert merge(old, FAILURE) == FAILURE


def test_row_11_unlike_the_original_a_future_may_become_fixed() -> None:
    assert merge(FUTURE, FIXED) == FIXED


IGNORED = [
    (old, update) for old in ALL for update in ALL if (type(old), type(update)) not in MERGE_TABLE
]


@pytest.mark.parametrize("old, update", IGNORED)
def test_row_11_anything_else_changes_nothing(old: Reference, update: Reference) -> None:
    assert merge(old, update) == old


def test_row_11_covers_what_the_original_left_undecided() -> None:
    for pair in [(FUTURE, PIPED), (FAILURE, CONCRETE), (CONCRETE, FAILURE), (CONCRETE, STREAM),
                 (FUTURE, TOMBSTONE), (FIXED, CONCRETE), (FAILURE, TOMBSTONE)]:  # fmt: skip
        assert pair in IGNORED


@given(references(), references())
def test_merging_keeps_the_id_and_refuses_two_ids(one: Reference, other: Reference) -> None:
    assert merge(one, other._replace(id=one.id)).id == one.id
    if other.id != one.id:
        with pytest.raises(ValueError, match="two objects"):
            merge(one, other)


@given(references(), references())
def test_merging_the_same_update_twice_changes_nothing(old: Reference, update: Reference) -> None:
    update = update._replace(id=old.id)
    once = merge(old, update)
    assert merge(once, update) == once


@given(references(), references())
def test_only_a_tombstone_makes_a_reference_unconsumable(old: Reference, update: Reference) -> None:
    new = merge(old, update._replace(id=old.id))
    if type(old) in CONSUMABLE and not isinstance(update, Tombstone):
        assert type(new) in CONSUMABLE


@given(references(), places())
def test_a_location_in_a_tombstone_is_removed(old: Reference, place: str) -> None:
    new = merge(old, Tombstone(old.id, at(place)))
    if type(old) in CONSUMABLE:
        assert place not in locations_of(new)


def test_consumable_kinds_let_a_task_run() -> None:
    assert [type(ref) in CONSUMABLE for ref in ALL] == [
        False, True, True, True, True, True, True, True, False, False, False,
    ]  # fmt: skip
    assert tuple(type(ref) for ref in ALL) == REFERENCE_TYPES


def test_locations_are_listed_for_kinds_that_have_them() -> None:
    assert [sorted(locations_of(ref)) for ref in ALL] == [
        [], [W1], [W2], [W1], [W1], [], [W1], [], [], [], [],
    ]  # fmt: skip


def test_a_value_holds_its_content() -> None:
    assert Value.of(X, b"\0\xff").encoded == "AP8="
    assert Value.of(X, b"\0\xff").content == b"\0\xff"
    assert INLINE_MAX_BYTES == 1023


def test_a_value_that_is_not_base64_is_refused() -> None:
    with pytest.raises(ValueError, match="base64"):
        _ = Value(X, "not base64!").content


def test_a_failure_is_passed_on_with_its_details_for_programs() -> None:
    failure = Failure(ObjectId("x"), "RAISED", {"text": "no luck", "error": "packed"})
    reason, details = failure.propagated()
    assert (reason, details["error"]) == ("DEPENDENCY_FAILED", "packed")
    assert details["text"] == "input x failed (RAISED): no luck"
    assert failure.text == "no luck"
    assert Failure(ObjectId("x"), reason, details).propagated() == (reason, details)


def test_a_failure_without_details_has_no_text() -> None:
    assert Failure(ObjectId("x"), "NO_OUTPUT", None).text == ""
