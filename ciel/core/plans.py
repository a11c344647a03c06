"""Lists the ways to get an input that the worker's own store lacks, in the order in which they are
tried (CIB-3).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ciel.core.refs import Reference, SocketStream, Stream, locations_of


class LinkPlan(NamedTuple):
    """Another worker on this host holds it: ask where, and link it into our store."""

    netloc: str


class HttpPlan(NamedTuple):
    """Copy it from a worker that holds it."""

    netloc: str


class StreamPlan(NamedTuple):
    """Copy it while it grows at a worker; it may be read before it is whole."""

    netloc: str


Plan = LinkPlan | HttpPlan | StreamPlan


def plans_for(
    ref: Reference, own_netloc: str, own_host: str, hosts: Mapping[str, str]
) -> tuple[Plan, ...]:
    """List the plans for an input that is not in the own store.

    `hosts` maps the address of every registered worker to its host; an address that is not in it is
    not asked, so that a forged reference leads nowhere.
    """
    known = sorted(place for place in locations_of(ref) if place in hosts and place != own_netloc)
    if isinstance(ref, Stream | SocketStream):
        return tuple([StreamPlan(place) for place in known])
    near = [place for place in known if hosts[place] == own_host]
    far = [place for place in known if hosts[place] != own_host]
    links = tuple([LinkPlan(place) for place in near])
    return links + tuple([HttpPlan(place) for place in near + far])
