"""Reads the numbers of an array: `1-100`, `1,3,5-9`, `001-010`, `0-90:10`, `1-100%4`."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

ELEMENTS_MAX: Final = 10_000_000
_RANGE = re.compile(r"(\d{1,18})(?:-(\d{1,18}))?(?::(\d{1,18}))?", re.ASCII)
_LIMIT = re.compile(r"(.*)%(\d{1,18})", re.ASCII)


class _Span(NamedTuple):
    """Numbers at equal distances, each written with at least `width` digits."""

    numbers: range
    width: int


class Numbers:
    """The numbers of an array in the order of the command line, each with its spelling.

    `at_once`: how many of them may run at a time; 0: as many as the cluster has slots. The spelling
    of a number includes its leading zeros.
    """

    def __init__(self, spans: Sequence[_Span], at_once: int = 0) -> None:
        self._spans = spans
        self.at_once = at_once

    def __len__(self) -> int:
        return sum(len(span.numbers) for span in self._spans)

    def __iter__(self) -> Iterator[tuple[int, str]]:
        for numbers, width in self._spans:
            for number in numbers:
                yield number, f"{number:0{width}}"


def number_ranges(text: str) -> Numbers:
    """Read the value of `--array` (an argparse type)."""
    limit = _LIMIT.fullmatch(text)
    at_once = int(limit[2]) if limit else 0
    if limit and not at_once:
        raise argparse.ArgumentTypeError(f"{text!r}: write at least 1 after %")
    spans = [_span(part, text) for part in (limit[1] if limit else text).split(",")]
    total = sum(len(span.numbers) for span in spans)
    if total > ELEMENTS_MAX:
        raise argparse.ArgumentTypeError(
            f"{text!r} has {total:,} elements; at most {ELEMENTS_MAX:,} are allowed"
        )
    _require_once(spans)
    return Numbers(spans, at_once)


def _span(part: str, text: str) -> _Span:
    match = _RANGE.fullmatch(part)
    first = int(match[1]) if match else 0
    last = int(match[2] or match[1]) if match else -1
    step = int(match[3] or 1) if match else 1
    if match is None or last < first or step < 1:
        raise argparse.ArgumentTypeError(
            f"{text!r:.80} is neither a range A-B of whole numbers, with A at most B, nor a list "
            "such as 1,3,5-9"
        )
    ends = [end for end in (match[1], match[2]) if end]
    is_padded = any(len(end) > 1 and end.startswith("0") for end in ends)
    return _Span(range(first, last + 1, step), max(map(len, ends)) if is_padded else 0)


def _require_once(spans: Sequence[_Span]) -> None:
    ordered = sorted(spans, key=lambda span: span.numbers[0])
    if all(one.numbers[-1] < other.numbers[0] for one, other in pairwise(ordered)):
        return
    seen: set[int] = set()
    for span in spans:
        for number in span.numbers:
            if number in seen:
                raise argparse.ArgumentTypeError(f"the number {number} occurs twice")
            seen.add(number)
