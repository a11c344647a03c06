"""Where a task should run: what each choice would cost, in seconds, and why the best one is best.

Cost = bytes that are not there ÷ bandwidth of the way by which they would come + the time until the
disk has done what it has to do before, if they come from another host (CIB-42) + the time until a
slot is free (CIB-53). Pure arithmetic over what is known; nothing here is a promise.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ciel.core.refs import (
    Concrete,
    Reference,
    SocketStream,
    Stream,
    Sweetheart,
    locations_of,
)

SAME_HOST_BYTES_PER_S = 5e9  # a link or a copy in memory
OTHER_HOST_BYTES_PER_S = 1e8  # a gigabit link, until something is measured
SWEETHEART_FACTOR = 1000  # as in the original: a strong preference
STREAM_BYTES = 10_000_000  # as in the original: what a stream of unknown length counts for


class Candidate(NamedTuple):
    """A worker as placement sees it."""

    location: str
    host: str
    wait_s: float  # until a slot is free there, by what is queued
    disk_s: float = 0.0  # until its disk is free, by what that has to read and write


class Choice(NamedTuple):
    """A ranked worker, with the reason for people."""

    location: str
    cost_s: float
    reason: str


class Load(NamedTuple):
    """What one input weighs, and where it lies."""

    size_bytes: int
    locations: frozenset[str]


def loads_of(inputs: Iterable[Reference]) -> list[Load]:
    """List the inputs that lie somewhere; what rides in its reference weighs nothing."""
    loads = []
    for ref in inputs:
        if isinstance(ref, Concrete):
            loads.append(Load(_weight(ref.size_bytes), ref.locations))
        elif isinstance(ref, Sweetheart):
            weight = _weight(ref.size_bytes) * SWEETHEART_FACTOR
            loads.append(Load(weight, frozenset((ref.preferred,))))
        elif isinstance(ref, Stream | SocketStream):
            loads.append(Load(STREAM_BYTES, locations_of(ref)))
    return loads


def _weight(size_bytes: int | None) -> int:
    return STREAM_BYTES if size_bytes is None else size_bytes


def rank(
    loads: Sequence[Load], candidates: Sequence[Candidate], hosts: dict[str, str]
) -> list[Choice]:
    """Rank candidates by cost, cheapest first; ties keep the candidates' order.

    `hosts` says on which host a location is; an unknown location counts as another host.
    """
    choices = []
    for candidate in candidates:
        move_s, missing_bytes, disk_s = 0.0, 0, 0.0
        for load in loads:
            if candidate.location in load.locations:
                continue
            missing_bytes += load.size_bytes
            near = any(hosts.get(place) == candidate.host for place in load.locations)
            if not near:
                disk_s = candidate.disk_s
            move_s += load.size_bytes / (SAME_HOST_BYTES_PER_S if near else OTHER_HOST_BYTES_PER_S)
        disk = f"a disk that is busy for about {disk_s:.3g} s, " if disk_s else ""
        reason = (
            f"{missing_bytes} bytes to fetch (about {move_s:.3g} s), {disk}"
            f"a slot in about {candidate.wait_s:.3g} s"
        )
        choices.append(Choice(candidate.location, move_s + disk_s + candidate.wait_s, reason))
    choices.sort(key=lambda choice: choice.cost_s)
    return choices
