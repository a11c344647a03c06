"""Lists the ways to get an input that the worker's own store lacks, in the order in which they are
tried (CIB-3).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ciel.core.refs import Reference, SocketStream, Stream, locations_of


class LinkPlan(NamedTuple):
    """Another worker on this host holds it: ask for its path, and link the file into our store."""

    netloc: str


class HttpPlan(NamedTuple):
    """Copy it from a worker that holds it."""

    netloc: str


class StreamPlan(NamedTuple):
    """Copy it while it grows at a worker; a task may read the copy before it is complete."""

    netloc: str


Plan = LinkPlan | HttpPlan | StreamPlan


def plans_for(
    ref: Reference, own_netloc: str, own_host: str, hosts: Mapping[str, str]
) -> tuple[Plan, ...]:
    """List the plans for an input that is not in the worker's own store.

    `hosts` maps the address of every registered worker to its host. Other addresses are ignored, so
    that a forged reference cannot direct a worker elsewhere.
    """
    known = sorted(place for place in locations_of(ref) if place in hosts and place != own_netloc)
    if isinstance(ref, Stream | SocketStream):
        return tuple([StreamPlan(place) for place in known])
    near = [place for place in known if hosts[place] == own_host]
    far = [place for place in known if hosts[place] != own_host]
    links = tuple([LinkPlan(place) for place in near])
    return links + tuple([HttpPlan(place) for place in near + far])
