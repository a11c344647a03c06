"""Decodes JSON that people write, and finds the line of a fault.

The codec decodes the text. If the codec refuses it, this module parses the text to find the fault.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from ciel.wire import codec
from ciel.wire.errors import WireError
from ciel.wire.limits import JSON_DEPTH_MAX

Steps = tuple[str | int, ...]
"""The path from the outermost value to an inner one: keys, and indices from 0."""

_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*").fullmatch
_TOKEN: Final = re.compile(r'[{}\[\],:]|"[^"\\]*(?:\\.[^"\\]*)*"?|[^\s{}\[\],:"]+', re.DOTALL)
_KEY_SHOWN: Final = 40  # characters, enough to recognise the key
_WHERE_SHOWN: Final = 160


class JsonFault(Exception):
    """A text is not JSON that the codec accepts; `where` is empty before the first value."""

    def __init__(self, line: int, where: str, reason: str) -> None:
        super().__init__(f"line {line}: {where}: {reason}" if where else f"line {line}: {reason}")
        self.line = line
        self.where = where
        self.reason = reason


def read_json(text: str) -> Any:
    """Return the value of a JSON text; raises JsonFault."""
    try:
        return codec.decode(text.encode())
    except WireError as error:
        raise _fault(text, error) from None


def line_of(text: str, steps: Sequence[str | int]) -> int:
    """Return the line, from 1, where a value (or its key in an object) begins.

    If there is no value at the path, return the line of the innermost value on the path. The text
    must be JSON.
    """
    found = offset = 0
    for member in _members(text):
        if member.depth <= found:
            if found or member.depth:
                break  # after the end of the value that contains the rest of the path
            offset = member.offset
        elif member.depth == found + 1 and found < len(steps) and member.step == steps[found]:
            found, offset = found + 1, member.offset
            if found == len(steps):
                break
    return _line_at(text, offset)


def where_of(steps: Sequence[str | int]) -> str:
    """Write a path as `start.args.inputs[0]`, with unusual keys in brackets and quotes."""
    parts = []
    for step in steps:
        if isinstance(step, int):
            parts.append(f"[{step}]")
        elif _PLAIN_KEY(step):
            parts.append(f".{step}" if parts else step)
        else:
            shown = step if len(step) <= _KEY_SHOWN else f"{step[:_KEY_SHOWN]}…"
            parts.append(f"[{json.dumps(shown)}]")
    where = "".join(parts)
    return where if len(where) <= _WHERE_SHOWN else f"{where[:_WHERE_SHOWN]}…"


class _Member(NamedTuple):
    """A value within a JSON text. The outermost value has depth 0 and no step."""

    depth: int
    step: str | int
    offset: int  # the offset of its key, if it has one
    token: str  # the first token of the value


def _members(text: str) -> Iterator[_Member]:
    """Yield the values of a JSON text in order; of a faulty text, as many as it can find."""
    containers: list[int] = []  # the next index of each open list; -1 for an object
    key: tuple[str, int] | None = None
    is_key_next = False
    for match in _TOKEN.finditer(text):
        token, offset = match[0], match.start()
        if token == ",":
            is_key_next = bool(containers) and containers[-1] < 0
        elif token in ("}", "]"):
            is_key_next = False
            if containers:
                containers.pop()
        elif is_key_next:
            key, is_key_next = (_text_of(token), offset), False
        elif token != ":":
            if key is not None:
                yield _Member(len(containers), key[0], key[1], token)
            elif containers:
                yield _Member(len(containers), max(containers[-1], 0), offset, token)
                containers[-1] += 1
            else:
                yield _Member(0, "", offset, token)
            key = None
            if token in ("{", "["):
                containers.append(-1 if token == "{" else 0)
                is_key_next = token == "{"


def _text_of(token: str) -> str:
    try:
        return str(json.loads(token))
    except ValueError:  # it is not a complete text
        return token


def _line_at(text: str, offset: int) -> int:
    return text.count("\n", 0, offset) + 1


def _fault(text: str, error: WireError) -> JsonFault:
    """Find the fault of a text that the codec has refused."""
    try:
        json.loads(text)
    except json.JSONDecodeError as fault:
        return JsonFault(*_broken_off(text, fault))
    except (RecursionError, ValueError):
        pass  # nested too deeply, or a long number: the loop finds both
    steps: list[str | int] = []
    keys: list[set[str | int]] = []  # the keys of each open container
    for depth, step, offset, token in _members(text):
        if depth:
            steps[depth - 1 :] = [step]
        reason = _refusal(depth, step, token)
        if token in ("{", "["):
            keys[depth:] = [set()]
        if depth:
            if step in keys[depth - 1]:
                reason = "the key occurs twice"
            keys[depth - 1].add(step)
        if reason:
            return JsonFault(_line_at(text, offset), where_of(steps), reason)
    return JsonFault(1, "", str(error))  # a fault that this module does not know


def _refusal(depth: int, step: str | int, token: str) -> str:
    """Return why the codec refuses a value at this place; empty if it accepts the value."""
    if token in ("{", "["):
        return f"nested more than {JSON_DEPTH_MAX} levels deep" if depth >= JSON_DEPTH_MAX else ""
    if _has_half_a_pair(step) or (token[0] == '"' and _has_half_a_pair(_text_of(token))):
        return "contains half of a surrogate pair"
    if token[0] in '"tfn':
        return ""
    try:
        number = json.loads(token)
        return "" if number - number == 0 else f"{token:.40} is not a number that JSON has"
    except ValueError:
        return "a number has too many digits"


def _has_half_a_pair(text: str | int) -> bool:
    return isinstance(text, str) and any("\ud800" <= letter <= "\udfff" for letter in text)


def _broken_off(text: str, fault: json.JSONDecodeError) -> tuple[int, str, str]:
    """Return line, path and reason of the fault of a text that is not JSON."""
    before = text[: fault.pos].rstrip()
    after = text[fault.pos :].lstrip()
    if not after and (opened := _unclosed(text)):
        bracket, line = opened
        reason = f"not JSON: the text ends, but the {bracket} of line {line} is not closed"
        return _line_at(text, len(before)), "", reason
    if before.endswith(",") and after[:1] in ("}", "]"):
        return _line_at(text, len(before) - 1), "", f"not JSON: a comma before {after[0]}"
    return fault.lineno, "", f"not JSON: {fault.msg} (column {fault.colno})"


def _unclosed(text: str) -> tuple[str, int] | None:
    """Return the innermost bracket that is not closed, and its line."""
    opened: list[int] = []
    for match in _TOKEN.finditer(text):
        if match[0] in ("{", "["):
            opened.append(match.start())
        elif match[0] in ("}", "]") and opened:
            opened.pop()
    return (text[opened[-1]], _line_at(text, opened[-1])) if opened else None
