"""Measures values, and checks that a value can be the result of a task, which is JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from ciel.skywriting.errors import ScriptError
from ciel.skywriting.evaluation.values import Builtin, Closure, kind

VALUES_MAX = 20_000_000  # twice the length of the longest list
DEPTH_MAX = 180
"""Readers refuse JSON of more than 200 nested levels, and a result is part of other JSON."""
INTEGER_MAX_BITS = 14_000
"""Readers also refuse integers of more than 4,300 digits."""


class Extent(NamedTuple):
    """The size of a value: how many values its text would contain, and how many levels deep. With
    shared parts it can be huge although the value needs little memory.
    """

    values: int
    depth: int
    contains_itself: bool


def extent(value: list[Any] | dict[Any, Any]) -> Extent:
    """Measure a value, in time proportional to its memory."""
    known: dict[int, tuple[int, int]] = {id(value): (1, 0)}  # count and depth, so far
    path: list[tuple[int, Iterator[Any]]] = [(id(value), _items(value))]
    contains_itself = False
    in_progress = {id(value)}
    while path:
        place, items = path[-1]
        count, depth = known[place]
        for item in items:
            if type(item) is not list and type(item) is not dict:
                count += 1
                continue
            inner = id(item)
            if inner in in_progress:
                contains_itself = True
                count += 1
            elif inner in known:
                count += known[inner][0]
                depth = max(depth, known[inner][1])
            else:
                known[inner] = (1, 0)
                in_progress.add(inner)
                path.append((inner, _items(item)))
                break
        else:
            path.pop()
            in_progress.remove(place)
            known[place] = (count, depth + 1)
            if path:
                outer, items = path[-1]
                before, deepest = known[outer]
                known[outer] = (before + count, max(deepest, depth + 1))
            continue
        known[place] = (count, depth)
    return Extent(*known[id(value)], contains_itself)


def _items(container: list[Any] | dict[Any, Any]) -> Iterator[Any]:
    return iter(container if isinstance(container, list) else container.values())


def require_result(value: Any) -> Any:
    """Return a value that can be the result of a task; raises ScriptError if it cannot be."""
    if type(value) is not list and type(value) is not dict:
        _require_leaf(value)
        return value
    size = extent(value)
    if size.contains_itself:
        raise ScriptError(f"a {kind(value)} that contains itself cannot be returned from a task")
    if size.depth > DEPTH_MAX:
        raise ScriptError(f"the returned value is nested more than {DEPTH_MAX} levels deep")
    if size.values > VALUES_MAX:
        raise ScriptError(f"the returned value has more than {VALUES_MAX:,} values in it")
    seen: set[int] = set()
    left = [value]
    while left:
        for item in _items(left.pop()):
            if type(item) is not list and type(item) is not dict:
                _require_leaf(item)
            elif id(item) not in seen:
                seen.add(id(item))
                left.append(item)
    return value


def _require_leaf(value: Any) -> None:
    if isinstance(value, Closure | Builtin):
        raise ScriptError(
            "a function cannot be returned from a task: values are data (spawn runs a function)"
        )
    if isinstance(value, int) and value.bit_length() > INTEGER_MAX_BITS:
        raise ScriptError(
            "an integer of more than 4,300 digits cannot be returned from a task; its str() can"
        )
