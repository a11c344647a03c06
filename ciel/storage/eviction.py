"""Which objects leave a level of a store that is full, in which order, and how (CIB-52).

First goes what costs nothing: what lies below as well, and what the engine says can be had again.
Then what was used longest ago moves down. What is in use stays: to take it away would free nothing
before its last reader ends. Pure; `docs/adr/0027` says why it is so.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from enum import Enum
from typing import NamedTuple


class Way(Enum):
    """How an object leaves, and why it may."""

    FORGET = "it lies below, too"
    DROP = "it can be had again"
    MOVE = "it was used longest ago"

    __hash__ = object.__hash__


class Step(NamedTuple):
    """One object that is to leave."""

    object_id: str
    size_bytes: int
    way: Way


class Scene(NamedTuple):
    """What there is to choose from: `sizes` by object, what was used longest ago first; `in_use`,
    what is read, written or leased; `below`, what lies in the next level, too; and how much room
    there is in that, None if nobody knows a limit.
    """

    sizes: Mapping[str, int]
    in_use: Collection[str]
    below: Collection[str]
    room_below_bytes: int | None
    can_be_had_again: Callable[[str], bool]


def steps_to_free(wanted_bytes: int, scene: Scene) -> Iterator[Step]:
    """Yield what is to leave until that much is free; less, if there is no more that may."""
    missing_bytes = wanted_bytes
    for step in _all_steps(scene):
        if missing_bytes <= 0:
            return
        missing_bytes -= step.size_bytes
        yield step


def _all_steps(scene: Scene) -> Iterator[Step]:
    kept: list[tuple[str, int]] = []
    for object_id, size_bytes in scene.sizes.items():
        if object_id in scene.in_use:
            continue
        if object_id in scene.below:
            yield Step(object_id, size_bytes, Way.FORGET)
        elif scene.can_be_had_again(object_id):
            yield Step(object_id, size_bytes, Way.DROP)
        else:
            kept.append((object_id, size_bytes))
    room_bytes = scene.room_below_bytes
    for object_id, size_bytes in kept:
        if room_bytes is None:
            yield Step(object_id, size_bytes, Way.MOVE)
        elif size_bytes <= room_bytes:  # a smaller one behind it may still find room
            room_bytes -= size_bytes
            yield Step(object_id, size_bytes, Way.MOVE)
