"""Amounts and offers of named resources, as texts and as numbers."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ciel.core.offers.resources import (
    AMOUNT_MAX,
    ONE,
    Offer,
    amount_text,
    amounts_json,
    amounts_text,
    read_amount,
    read_amounts,
    read_offer,
    read_request,
    wrong_amounts,
)


@pytest.mark.parametrize(
    "value, amount",
    [(1, ONE), (0.1, 1000), ("0.1", 1000), ("2", 2 * ONE), ("0.0001", 1), (1.5, 15_000), (0, 0)],
)
def test_amounts_are_exact(value: Any, amount: int) -> None:
    assert read_amount(value) == amount


@pytest.mark.parametrize(
    "value, why",
    [
        (-1, "is not a number from 0"), ("x", "is not a number"), (float("nan"), "is not a number"),
        (True, "is not a number"), ("1e3", "is not a number"), (None, "is not a number"),
        (float("inf"), "is not a number"), (0.00001, "more than 4 decimal places"),
        ("1.23456", "more than 4 decimal places"), (10**10, "is not a number from 0"),
    ],
)  # fmt: skip
def test_a_wrong_amount_is_refused_with_the_reason(value: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        read_amount(value)


@given(st.integers(0, AMOUNT_MAX))
def test_the_text_and_the_number_of_an_amount_can_be_read_again(amount: int) -> None:
    assert read_amount(amount_text(amount)) == amount
    if amount:
        assert read_amounts(amounts_json((("x", amount),))) == (("x", amount),)


def test_needs_are_sorted_and_without_zeros() -> None:
    read = read_amounts({"gpu": 0.5, "cores/fast": 2, "x": 0})
    assert read == (("cores/fast", 2 * ONE), ("gpu", 5000))
    assert amounts_text(read) == "cores/fast=2,gpu=0.5"
    assert not wrong_amounts(read)


@pytest.mark.parametrize(
    "amounts",
    [
        (("b", 1), ("a", 1)), (("a", 1), ("a", 1)), (("a", 0),), (("A", 1),), (("", 1),),
        tuple([(f"r{number:03}", 1) for number in range(65)]),
    ],
)  # fmt: skip
def test_needs_that_are_not_in_their_form_are_refused(amounts: Any) -> None:
    assert wrong_amounts(amounts)


@pytest.mark.parametrize(
    "text, offer, shown",
    [
        ("licence/matlab=2", Offer("licence/matlab", 2 * ONE), "licence/matlab=2"),
        ("gpu=[0-3,7]", Offer("gpu", 5 * ONE, ("0", "1", "2", "3", "7")), "gpu=[0-3,7]"),
        ("gpu=[GPU-1a]", Offer("gpu", ONE, ("GPU-1a",)), "gpu=[GPU-1a]"),
        ("gpu=0", Offer("gpu", 0), "gpu=0"),
        ("gpu=[]", Offer("gpu", 0), "gpu=0"),
    ],
)
def test_an_offer_is_an_amount_or_a_list_of_indices(text: str, offer: Offer, shown: str) -> None:
    assert read_offer(text) == offer
    assert str(offer) == shown


@pytest.mark.parametrize(
    "text, why",
    [
        ("gpu", "has no amount: write NAME=AMOUNT"), ("GPU=1", "is not the name of a resource"),
        ("gpu=[0,0]", "names the index 0 twice"), ("gpu=[3-1]", "is not a range"),
        ("gpu=[0-9999999]", "is not a range"), ("gpu=[a b]", "is not an index"),
        ("gpu=[0,]", "is not an index"), ("gpu=-1", "is not a number"),
    ],
)  # fmt: skip
def test_a_wrong_offer_is_refused_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        read_offer(text)


def test_a_request_of_a_task_is_an_amount() -> None:
    assert read_request("gpu=0.25") == ("gpu", 2500)
    with pytest.raises(ValueError, match="is not a number"):
        read_request("gpu=[0]")
