"""Expressions over the labels of workers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ciel.core.errors import WhereError
from ciel.core.offers.labels import read_label, read_where, wrong_where

LABELS = {"zone": "b", "disk": "ssd", "gen": "3", "mem": "64", "host": "n1.lab", "x": "a b"}


@pytest.mark.parametrize(
    "text, is_true",
    [
        ("", True), ("zone=b", True), ("zone=a", False), ("zone = 'b'", True), ("zone!=a", True),
        ("zone=b and not (disk=hdd or gen in 3,4)", False), ("gen in 4, 3", True),
        ("zone=b and not (disk=hdd or gen in 4,5)", True), ("has zone", True), ("has rack", False),
        ("mem>=64", True), ("mem > 64", False), ("mem<1e3", True), ("mem<=63.9", False),
        ("host=n1.lab", True), ('x="a b"', True), ("x='a b' and zone=b", True),
        ("zone=a or zone=b and gen=9", False), ("(zone=a or zone=b) and gen=3", True),
        ("not not zone=b", True), ("zone<5", False),
        # A label that the worker does not have.
        ("rack=1", False), ("rack!=1", True), ("not rack=1", True), ("rack in 1,2", False),
        ("rack<1", False), ("has rack and rack!=1", False),
    ],
)  # fmt: skip
def test_an_expression_is_true_or_false_for_labels(text: str, is_true: bool) -> None:
    assert read_where(text)(LABELS) is is_true


@pytest.mark.parametrize(
    "text, place, why",
    [
        ("zone", 4, "is expected after 'zone'"), ("zone=", 5, "a value is expected"),
        ("zone=b and", 10, "the name of a label is expected"), ("(zone=b", 7, "')' is expected"),
        ("zone=b zone=c", 7, "'and', 'or' or the end is expected"), ("zone=b & x", 7, "no meaning"),
        ("mem>big", 4, "a number is expected"), ("mem>'6'", 4, "a number is expected"),
        ("zone='b", 5, "this quote is not closed"), ("not", 3, "the name of a label"),
        ("and=1", 0, "the name of a label"), ("gen in", 6, "a value is expected"),
        ("has", 3, "the name of a label"), ("(" * 60 + "a=b" + ")" * 60, 50, "nested more than 50"),
        ("mem<nan", 4, "a number is expected"), ("a=" + "b" * 1000, 1000, "is longer than 1000"),
    ],
)  # fmt: skip
def test_an_error_points_at_its_place(text: str, place: int, why: str) -> None:
    with pytest.raises(WhereError, match=why.replace("(", r"\(").replace(")", r"\)")) as raised:
        read_where(text)
    assert raised.value.place == place
    assert f"at character {place + 1}" in wrong_where(text)


@given(st.text(max_size=40))
def test_any_text_is_an_expression_or_an_error(text: str) -> None:
    if not wrong_where(text):
        assert read_where(text)(LABELS) in (True, False)


@given(st.text("ab=!<>in'()ndotrhs ,3", max_size=30))
def test_any_text_of_the_alphabet_is_an_expression_or_an_error(text: str) -> None:
    if not wrong_where(text):
        negated = f"not ({text})" if text.strip() else "not has zone"
        assert read_where(negated)(LABELS) is not read_where(text)(LABELS)


def test_a_label_has_a_name_and_a_value() -> None:
    assert read_label("zone=b") == ("zone", "b")
    assert read_label("note=a=b c") == ("note", "a=b c")
    for text in ("zone", "=b", "in=b", "1a=b", "zone=\x07", "zone=" + "x" * 201):
        with pytest.raises(ValueError, match=r"label|value"):
            read_label(text)
