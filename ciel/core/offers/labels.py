"""Labels of workers, and expressions over them that choose the workers of a task.

    zone=b and not (disk=hdd or gen in 3,4)

A comparison is true only if the worker has the label. So `not zone=b` and `zone!=b`, which mean the
same, are true for a worker without the label `zone`; `has zone and zone!=b` is not.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from math import isfinite
from typing import Final, NamedTuple

from ciel.core.errors import WhereError

WHERE_MAX_LENGTH: Final = 1000
LABELS_MAX: Final = 64
VALUE_MAX_LENGTH: Final = 200
_DEPTH_MAX: Final = 50
_WORD: Final = r"[A-Za-z0-9_.:/@+-]+"
_TOKEN: Final = re.compile(
    rf"""\s*(?:(?P<word>{_WORD})|(?P<quoted>'[^']*'|"[^"]*")|(?P<mark><=|>=|!=|[=<>(),])|$)"""
)
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]{0,63}")
_KEYWORDS: Final = frozenset(("and", "or", "not", "in", "has"))

Labels = Mapping[str, str]
Test = Callable[[Labels], bool]
"""Whether a worker with these labels is meant."""

_ORDERS: Final[dict[str, Callable[[float, float], bool]]] = {
    "<": lambda own, limit: own < limit,
    "<=": lambda own, limit: own <= limit,
    ">": lambda own, limit: own > limit,
    ">=": lambda own, limit: own >= limit,
}


class _Token(NamedTuple):
    kind: str  # word, quoted, mark or end
    text: str
    place: int


def read_label(text: str) -> tuple[str, str]:
    """Read NAME=VALUE; raises ValueError."""
    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"{text!r:.70} has no value: write NAME=VALUE, as in zone=b")
    if wrong := wrong_label(name, value):
        raise ValueError(wrong)
    return name, value


def wrong_label(name: str, value: str) -> str:
    """Explain why a label is invalid; return "" if it is valid."""
    if not _NAME.fullmatch(name) or name in _KEYWORDS:
        return (
            f"{name!r:.70} is not the name of a label: use letters, digits, '_', '.', '-' and '/', "
            f"and none of the words {', '.join(sorted(_KEYWORDS))}"
        )
    if len(value) > VALUE_MAX_LENGTH or not value.isprintable():
        return f"the value of {name} must be at most {VALUE_MAX_LENGTH} printable characters"
    return ""


def wrong_where(text: str) -> str:
    """Explain why an expression is invalid; return "" if it is valid.

    An empty one is valid.
    """
    try:
        read_where(text)
    except WhereError as error:
        return str(error)
    return ""


@lru_cache(maxsize=1000)
def read_where(text: str) -> Test:
    """Return the test that an expression describes; raises WhereError. Empty: every worker."""
    if len(text) > WHERE_MAX_LENGTH:
        raise WhereError(text, WHERE_MAX_LENGTH, f"it is longer than {WHERE_MAX_LENGTH} characters")
    if not text.strip():
        return lambda labels: True
    return _Parser(text).parse()


class _Parser:
    """Reads one expression, by recursive descent."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = _tokens(text)
        self._depth = 0

    def parse(self) -> Test:
        test = self._either()
        if self._next.kind != "end":
            raise self._error("'and', 'or' or the end is expected")
        return test

    @property
    def _next(self) -> _Token:
        return self._tokens[0]

    def _error(self, reason: str) -> WhereError:
        return WhereError(self._text, self._next.place, reason)

    def _take(self, *texts: str) -> str:
        """Take the next token if it is one of these words or marks; return it, or ""."""
        token = self._next
        if token.kind in ("word", "mark") and token.text in texts:
            self._tokens.pop(0)
            return token.text
        return ""

    def _either(self) -> Test:
        tests = [self._both()]
        while self._take("or"):
            tests.append(self._both())
        return tests[0] if len(tests) == 1 else lambda labels: any(test(labels) for test in tests)

    def _both(self) -> Test:
        tests = [self._negated()]
        while self._take("and"):
            tests.append(self._negated())
        return tests[0] if len(tests) == 1 else lambda labels: all(test(labels) for test in tests)

    def _negated(self) -> Test:
        self._depth += 1
        if self._depth > _DEPTH_MAX:
            raise self._error(f"it is nested more than {_DEPTH_MAX} deep")
        if self._take("not"):
            test = self._negated()
            self._depth -= 1
            return lambda labels: not test(labels)
        test = self._simple()
        self._depth -= 1
        return test

    def _simple(self) -> Test:
        if self._take("("):
            test = self._either()
            if not self._take(")"):
                raise self._error("')' is expected")
            return test
        if self._take("has"):
            name = self._name()
            return lambda labels: name in labels
        name = self._name()
        if self._take("in"):
            values = {self._value()}
            while self._take(","):
                values.add(self._value())
            return lambda labels: labels.get(name) in values
        sign = self._take("=", "!=", *_ORDERS)
        if not sign:
            raise self._error(f"'=', '!=', '<', '<=', '>', '>=' or 'in' is expected after {name!r}")
        if sign in _ORDERS:
            return _ordered(name, _ORDERS[sign], self._number())
        value = self._value()
        if sign == "=":
            return lambda labels: labels.get(name) == value
        return lambda labels: labels.get(name) != value

    def _name(self) -> str:
        token = self._next
        if token.kind != "word" or token.text in _KEYWORDS or not _NAME.fullmatch(token.text):
            raise self._error("the name of a label is expected")
        return self._tokens.pop(0).text

    def _value(self) -> str:
        token = self._next
        if token.kind == "quoted":
            return self._tokens.pop(0).text[1:-1]
        if token.kind != "word" or token.text in _KEYWORDS:
            raise self._error("a value is expected (quote it if it is no word)")
        return self._tokens.pop(0).text

    def _number(self) -> float:
        number = _number_of(self._next.text) if self._next.kind == "word" else None
        if number is None:
            raise self._error("a number is expected")
        self._tokens.pop(0)
        return number


def _ordered(name: str, compare: Callable[[float, float], bool], limit: float) -> Test:
    def test(labels: Labels) -> bool:
        own = _number_of(labels.get(name, ""))
        return own is not None and compare(own, limit)

    return test


def _number_of(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if isfinite(number) else None


def _tokens(text: str) -> list[_Token]:
    """Split an expression; the last token is an end. Raises WhereError."""
    found, place = [], 0
    while True:
        match = _TOKEN.match(text, place)
        if match is None:
            start = place + len(text[place:]) - len(text[place:].lstrip())
            is_quote = text[start] in "'\""
            reason = "this quote is not closed" if is_quote else "this has no meaning here"
            raise WhereError(text, start, reason)
        kind = match.lastgroup
        if kind is None:
            found.append(_Token("end", "", len(text)))
            return found
        found.append(_Token(kind, match[kind], match.start(kind)))
        place = match.end()
