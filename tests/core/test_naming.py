import math
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ciel.core.ids import ObjectId, check_id
from ciel.core.naming import all_references, arguments_digest, canonical, memo_output_ids
from ciel.core.refs import Concrete, Future, Reference, Value
from ciel.testing.strategies import json_values, references

A, B = ObjectId("a"), ObjectId("b")


def kinds(value: Any) -> Any:
    """Distinguish values that Python holds to be equal (1, 1.0, True) but that JSON writes
    differently.
    """
    if isinstance(value, Reference):
        return ("ref", value.id)
    if isinstance(value, dict):
        return ("dict", {key: kinds(item) for key, item in value.items()})
    if isinstance(value, list):
        return ("list", [kinds(item) for item in value])
    return (type(value).__name__, repr(value))


arguments = st.recursive(
    json_values() | references(st.sampled_from([A, B])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
).filter(lambda value: "__ref__" not in str(value))


@given(arguments, arguments)
def test_the_canonical_form_is_injective(one: Any, other: Any) -> None:
    assert (canonical(one) == canonical(other)) == (kinds(one) == kinds(other))


ALIKE = {
    "number and text": (1, "1"),
    "truth and text": (True, "true"),
    "truth and number": (True, 1),
    "nothing and text": (None, "null"),
    "nothing and false": (None, False),
    "whole and broken number": (1, 1.0),
    "two zeros": (0.0, -0.0),
    "one text and two": (["a,b"], ["a", "b"]),
    "text and list": ("[1]", [1]),
    "empty list and object": ([], {}),
    "nesting": ([[1], 2], [1, [2]]),
    "key and value": ({"a": "b:c"}, {"a:b": "c"}),
    "reference and its id": (Future(A), "a"),
    "reference and its array": (Future(A), ["a"]),
    "composed letter": ("\u00e9", "e\u0301"),
    "escape and what it stands for": ("\\u0041", "A"),
}


@pytest.mark.parametrize("pair", ALIKE.values(), ids=ALIKE)
def test_values_that_look_alike_have_different_forms(pair: tuple[Any, Any]) -> None:
    assert canonical(pair[0]) != canonical(pair[1])


@given(references(st.just(A)), references(st.just(A)))
def test_a_reference_is_identified_by_its_id_alone(one: Reference, other: Reference) -> None:
    assert canonical({"in": [one]}) == canonical({"in": [other]}) == b'{"in":[{"__ref__":"a"}]}'


def test_keys_are_sorted_and_tuples_are_lists() -> None:
    assert canonical({"b": 1, "a": (1, 2)}) == canonical({"a": [1, 2], "b": 1})
    assert canonical({"b": 1, "a": (1, 2)}) == b'{"a":[1,2],"b":1}'


CIRCLE: list[Any] = []
CIRCLE.append(CIRCLE)
UNNAMEABLE = {
    "not a number": math.nan,
    "infinity": [math.inf],
    "bytes": b"a",
    "set": {"a": {1}},
    "object": object(),
    "number as key": {1: "a"},
    "nothing as key": {None: "a"},
    "a key that marks references": {"__ref__": "a"},
    "the same, deep inside": [{"x": {"__ref__": ["f2", "a"]}}],
    "a mapping that is not a dict": MappingProxyType({"in": Future(A)}),
    "a value that contains itself": CIRCLE,
}


@pytest.mark.parametrize("value", UNNAMEABLE.values(), ids=UNNAMEABLE)
def test_a_value_without_canonical_form_is_refused(value: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        canonical(value)


def test_the_digest_depends_on_executor_arguments_and_inputs() -> None:
    base = arguments_digest("stdinout", {"args": 1}, ("a",))
    assert len(base) == 32
    assert base == arguments_digest("stdinout", {"args": 1}, ("a",))
    assert base != arguments_digest("init", {"args": 1}, ("a",))
    assert base != arguments_digest("stdinout", {"args": 2}, ("a",))
    assert base != arguments_digest("stdinout", {"args": 1}, ("b",))


def test_memoised_outputs_are_shared_within_their_scope_only() -> None:
    names = memo_output_ids("stdinout", "d" * 32, "job1", 2)
    assert names == memo_output_ids("stdinout", "d" * 32, "job1", 2)
    assert set(names).isdisjoint(memo_output_ids("stdinout", "d" * 32, "job2", 2))
    assert set(names).isdisjoint(memo_output_ids("stdinout", "e" * 32, "job1", 2))
    assert [check_id(name).rpartition(":")[2] for name in names] == ["0", "1"]


def test_references_are_listed_in_order_and_once() -> None:
    first = Concrete(A, 5, frozenset(("w1:8001",)))
    value = {"command_line": ["cat", first, [Value.of(B, b"x")]], "again": (Future(A),)}
    assert all_references(value) == [first, Value.of(B, b"x")]


def test_references_are_found_at_any_depth() -> None:
    value: Any = Future(A)
    for _ in range(50_000):
        value = [value]
    assert all_references(value) == [Future(A)]
