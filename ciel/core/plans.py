"""Lists the ways to fetch an input that the worker's store lacks (CIB-3).

The worker tries them in this order, which follows the table of `transports`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ciel.core.refs import Reference, SocketStream, Stream, locations_of
from ciel.core.transports import HTTP, ObjectSituation, Store, object_choice


class LinkPlan(NamedTuple):
    """Link the object's file from another worker on this host into this worker's store, or copy it
    if links are impossible.

    The worker requests the path of the file from the other worker.
    """

    netloc: str


class HttpPlan(NamedTuple):
    """Copy the object from a worker that has it."""

    netloc: str


class StreamPlan(NamedTuple):
    """Copy the object while it grows on a worker; tasks may read the incomplete copy."""

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
    own = Store(own_host)
    ways = {place: object_choice(ObjectSituation(Store(hosts[place]), own)).way for place in known}
    near = [place for place in known if ways[place] != HTTP]
    far = [place for place in known if ways[place] == HTTP]
    links = tuple([LinkPlan(place) for place in near])
    return links + tuple([HttpPlan(place) for place in near + far])
