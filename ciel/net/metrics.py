"""Serves metrics over HTTP.

`exposition` has no part of this: a compiled module uses its types, and HTTP needs Twisted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from ciel.access.keys import Role
from ciel.net.exposition import Family, process_families, render
from ciel.net.http import Request, Route

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class Metrics(Route):
    """Serves the metrics of a daemon and of its process, to the role `READ` or to another."""

    def __init__(
        self, families: Callable[[], Iterable[Family]], needed_role: Role = Role.READ
    ) -> None:
        self._families = families
        self._needed_role = needed_role

    def role_for(self, method: str) -> Role:
        return self._needed_role

    def render_GET(self, request: Request) -> bytes:
        request.setHeader("Content-Type", CONTENT_TYPE)
        return render([*self._families(), *process_families()])
