"""Chooses which objects to evict from a full level of a store, in which order and how (CIB-52).

Objects whose eviction costs little are first: the level below holds them as well, or the engine can
fetch them again. Then the least recently used objects move down. Objects in use stay, because
evicting them frees no memory before their last reader closes. This module is pure; `docs/adr/0027`
has the reasons.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from enum import Enum
from typing import NamedTuple


class Way(Enum):
    """How an object is evicted, and why it may be."""

    FORGET = "the level below has it, too"
    DROP = "it can be fetched again"
    MOVE = "it is the least recently used"

    __hash__ = object.__hash__


class Step(NamedTuple):
    """The eviction of one object."""

    object_id: str
    size_bytes: int
    way: Way


class Scene(NamedTuple):
    """The objects to choose from.

    `sizes`: the size of each object, least recently used first. `in_use`: objects with a reader, a
    writer or a lease. `below`: objects that the next level holds, too. `room_below_bytes`: the free
    space of the next level, None if it has no known limit.
    """

    sizes: Mapping[str, int]
    in_use: Collection[str]
    below: Collection[str]
    room_below_bytes: int | None
    can_be_had_again: Callable[[str], bool]


def steps_to_free(wanted_bytes: int, scene: Scene) -> Iterator[Step]:
    """Yield evictions until so many bytes are free, or no further object may be evicted."""
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
        elif size_bytes <= room_bytes:  # a smaller object after a large one may still fit
            room_bytes -= size_bytes
            yield Step(object_id, size_bytes, Way.MOVE)
