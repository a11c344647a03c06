"""Named resources, such as GPUs and licences: what workers offer, and what tasks need.

Amounts are whole numbers of 1/10,000, so that fractions add up exactly. A *countable* resource is
an amount. An *indexed* resource is a list of indices, each of which counts as one: a task gets
whole indices, and a fraction of one further index.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from decimal import Decimal
from math import isfinite
from typing import Any, Final, NamedTuple

ONE: Final = 10_000
AMOUNT_MAX: Final = 10**9 * ONE
RESOURCES_MAX: Final = 64
"""The number of different resources of a task or a worker."""
INDICES_MAX: Final = 4096
_NAME: Final = re.compile(r"[a-z][a-z0-9_.-]*(/[a-z0-9_.-]+)*")
_NAME_MAX_LENGTH: Final = 64
_INDEX: Final = re.compile(r"[A-Za-z0-9_.:/-]{1,64}")
_RANGE: Final = re.compile(r"(0|[1-9][0-9]{0,8})-(0|[1-9][0-9]{0,8})")
_AMOUNT: Final = re.compile(r"[0-9]{1,10}(\.[0-9]{1,10})?")

Amounts = tuple[tuple[str, int], ...]
"""The resources of a task: pairs of a name and an amount, sorted by name."""

Given = tuple[tuple[str, tuple[tuple[str, int], ...]], ...]
"""The indices that an attempt has, by resource, each with an amount of at most `ONE`."""


class Offer(NamedTuple):
    """One resource of a worker. `indices`: of an indexed resource; empty for a countable one."""

    name: str
    amount: int
    indices: tuple[str, ...] = ()

    def __str__(self) -> str:
        if not self.indices:
            return f"{self.name}={amount_text(self.amount)}"
        return f"{self.name}=[{','.join(_spans(self.indices))}]"


def wrong_name(name: str) -> str:
    """Explain why the name of a resource is invalid; return "" if it is valid."""
    if len(name) <= _NAME_MAX_LENGTH and _NAME.fullmatch(name):
        return ""
    return (
        f"{name!r:.70} is not the name of a resource: use small letters, digits, '_', '.', '-', "
        f"and '/' between parts, at most {_NAME_MAX_LENGTH}, as in gpu or licence/matlab"
    )


def read_amount(value: Any) -> int:
    """Read an amount: a number, or its text; raises ValueError."""
    exact = Decimal(-1)
    if type(value) is int or (type(value) is float and isfinite(value)):
        exact = Decimal(repr(value)) * ONE
    elif isinstance(value, str) and _AMOUNT.fullmatch(value):
        exact = Decimal(value) * ONE
    if not 0 <= exact <= AMOUNT_MAX:
        raise ValueError(f"{value!r:.40} is not a number from 0 to {AMOUNT_MAX // ONE:,}")
    if exact != int(exact):
        raise ValueError(f"{value!r:.40} has more than 4 decimal places")
    return int(exact)


def amount_text(amount: int) -> str:
    """Return an amount as a decimal number without trailing zeros."""
    whole, part = divmod(amount, ONE)
    return f"{whole}.{part:04}".rstrip("0") if part else f"{whole}"


def read_amounts(values: Mapping[Any, Any]) -> Amounts:
    """Read what a task needs, by name; raises ValueError. An amount of 0 counts as none."""
    found = []
    for name, value in values.items():
        if wrong := wrong_name(name) if isinstance(name, str) else f"{name!r:.40} is not a text":
            raise ValueError(wrong)
        try:
            found.append((name, read_amount(value)))
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    return tuple(sorted([(name, amount) for name, amount in found if amount]))


def read_request(text: str) -> tuple[str, int]:
    """Read NAME=AMOUNT, what a task needs; raises ValueError."""
    name, equals, amount = text.partition("=")
    if not equals:
        raise ValueError(f"{text!r:.70} has no amount: write NAME=AMOUNT, as in gpu=1")
    if wrong := wrong_name(name):
        raise ValueError(wrong)
    return name, read_amount(amount)


def wrong_amounts(amounts: Amounts) -> str:
    """Explain why the needs of a task are invalid; return "" if they are valid."""
    if len(amounts) > RESOURCES_MAX:
        return f"a task needs at most {RESOURCES_MAX} resources, not {len(amounts)}"
    before = ""
    for name, amount in amounts:
        if wrong := wrong_name(name):
            return wrong
        if name <= before:
            return f"the names must be sorted, and each one occurs once: {name!r} does not"
        if not 0 < amount <= AMOUNT_MAX:
            return f"the amount of {name!r} must be more than 0, at most {AMOUNT_MAX // ONE:,}"
        before = name
    return ""


def amounts_json(amounts: Amounts) -> dict[str, Any]:
    """Return needs as clients write them, by name; `read_amounts` reads them."""
    return {name: amount_json(amount) for name, amount in amounts}


def amount_json(amount: int) -> Any:  # Any, since a compiled module would turn an int into a float
    """Return an amount as a number: an integer if it is whole."""
    return amount / ONE if amount % ONE else amount // ONE


def amounts_text(amounts: Iterable[tuple[str, int]]) -> str:
    """Return needs for people, and for the variable `CIEL_RESOURCES`."""
    return ",".join([f"{name}={amount_text(amount)}" for name, amount in amounts])


def read_offer(text: str) -> Offer:
    """Read NAME=AMOUNT, or NAME=[INDICES] with indices and ranges such as 0-3,7; raises ValueError.

    An amount of 0, or an empty list, offers nothing, so that the worker does not detect any.
    """
    name, _, value = text.partition("=")
    if not (value.startswith("[") and value.endswith("]")):
        return Offer(*read_request(text))
    if wrong := wrong_name(name):
        raise ValueError(wrong)
    indices: list[str] = []
    for item in value[1:-1].split(",") if value != "[]" else ():
        indices += _indices(item)
        if len(indices) > INDICES_MAX:
            raise ValueError(f"{name} has more than {INDICES_MAX} indices")
    return offer_of(name, indices)


def offer_of(name: str, indices: Collection[str]) -> Offer:
    """Return an indexed resource; raises ValueError if an index occurs twice."""
    if len(set(indices)) != len(indices):
        twice = next(index for index in indices if list(indices).count(index) > 1)
        raise ValueError(f"{name} names the index {twice} twice")
    return Offer(name, len(indices) * ONE, tuple(indices))


def _indices(item: str) -> list[str]:
    if span := _RANGE.fullmatch(item):
        first, last = int(span[1]), int(span[2])
        if last < first or last - first >= INDICES_MAX:
            raise ValueError(f"{item!r} is not a range of at most {INDICES_MAX} indices")
        return [str(index) for index in range(first, last + 1)]
    if not _INDEX.fullmatch(item):
        raise ValueError(f"{item!r:.70} is not an index, nor a range such as 0-3")
    return [item]


def _spans(indices: Iterable[str]) -> list[str]:
    """Join successive numbers, as 0-3."""
    spans: list[tuple[str, str]] = []
    for index in indices:
        last = spans[-1][1] if spans else ""
        if index.isdecimal() and last.isdecimal() and int(index) == int(last) + 1:
            spans[-1] = (spans[-1][0], index)
        else:
            spans.append((index, index))
    return [first if first == last else f"{first}-{last}" for first, last in spans]


def totals_of(offers: Iterable[Offer]) -> dict[str, int]:
    """Return how much a worker has of each resource."""
    return {offer.name: offer.amount for offer in offers if offer.amount}
