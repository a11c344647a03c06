"""Replacement strings, which stand for an element in arguments, with the meaning of GNU parallel.

    {}    the element                    {.}   without its extension
    {/}   its last part, after a slash   {//}  its directory
    {/.}  its last part without extension
    {#}   the number of the element      {2}, {2.}, {-1/.}, …: its second, its last value

Each string is replaced once, and never seen by a shell: a replaced text is not searched again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final

_PLACE = re.compile(r"\{(?:#|(-?[1-9]\d{0,5})?(\.|//|/\.|/)?)\}")
_EXTENSION = re.compile(r"\.[^/.]*\Z")
_NUMBER = "{#}"


def without_extension(text: str) -> str:
    """Remove the extension of a path, if it has one; `.profile` consists of an extension."""
    return _EXTENSION.sub("", text)


def base_name(text: str) -> str:
    """Return what follows the last slash of a path; all of it if it has none."""
    return text.rpartition("/")[2]


def directory(text: str) -> str:
    """Return the directory of a path, as the command `dirname` prints it."""
    parent, slash, name = text.rstrip("/").rpartition("/")
    if not slash:
        return "." if name or not text else "/"
    return parent.rstrip("/") or "/"


def _itself(text: str) -> str:
    return text


_EDITS: Final[Mapping[str, Callable[[str], str]]] = {
    "": _itself,
    ".": without_extension,
    "/": base_name,
    "//": directory,
    "/.": lambda text: without_extension(base_name(text)),
}


def places_in(word: str) -> int:
    """Return how many replacement strings a word contains."""
    return sum(1 for _ in _PLACE.finditer(word))


def replace(word: str, number: int, text: str, values: Sequence[str]) -> str:
    """Insert an element into a word: its text, or one of its values by number.

    A numbered string stays as it is if the element has no `values`. A missing value is empty.
    """
    if word == "{}":
        return text

    def replacement(match: re.Match[str]) -> str:
        if match[0] == _NUMBER:
            return str(number)
        edit = _EDITS[match[2] or ""]
        if match[1] is None:
            return edit(text)
        if not values:
            return match[0]
        place = int(match[1])
        place = place - 1 if place > 0 else len(values) + place
        return edit(values[place]) if 0 <= place < len(values) else ""

    return _PLACE.sub(replacement, word)


def expand(word: str, number: int, text: str, values: Sequence[str]) -> list[str]:
    """Insert an element into an argument. A string without a number stands for all values, each of
    which begins a new argument: `-{}.x` becomes `-a` and `b.x`.
    """
    if not values:
        return [replace(word, number, text, values)]
    found, end = [""], 0
    for match in _PLACE.finditer(word):
        found[-1] += word[end : match.start()]
        end = match.end()
        if match[1] is None and match[0] != _NUMBER:
            first, *others = [_EDITS[match[2] or ""](value) for value in values]
        else:
            first, others = replace(match[0], number, text, values), []
        found[-1] += first
        found += others
    found[-1] += word[end:]
    return found
