"""Tests `WantedObjects` against a dictionary."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ciel.core.ids import ObjectId
from ciel.core.wanted import WantedObjects

A, B, C = (ObjectId(name) for name in "abc")


def of(*objects: ObjectId) -> WantedObjects:
    wanted = WantedObjects()
    for object_id in objects:
        wanted.add(object_id)
    return wanted


def test_objects_keep_their_order() -> None:
    wanted = of(C, A, B)
    assert (list(wanted), len(wanted), bool(wanted)) == ([C, A, B], 3, True)


def test_removed_objects_are_not_listed() -> None:
    wanted = of(A, B, C)
    wanted.remove(B)
    assert (list(wanted), len(wanted)) == ([A, C], 2)
    assert wanted.pop() == C
    wanted.remove(A)
    assert (list(wanted), len(wanted), bool(wanted)) == ([], 0, False)


def test_an_object_can_be_added_again() -> None:
    wanted = of(A, B, C)
    wanted.remove(B)
    wanted.add(B)
    assert sorted(wanted) == [A, B, C]


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9))))
def test_it_has_the_same_objects_as_a_dictionary(changes: list[tuple[bool, int]]) -> None:
    wanted, model = WantedObjects(), dict[ObjectId, None]()
    for is_popped, number in changes:
        object_id = ObjectId(str(number))
        if is_popped and model:
            del model[wanted.pop()]
        elif object_id in model:
            wanted.remove(object_id)
            del model[object_id]
        else:
            wanted.add(object_id)
            model[object_id] = None
        found = list(wanted)
        assert (len(found), set(found)) == (len(wanted), set(model))
        assert bool(wanted) is bool(model)
