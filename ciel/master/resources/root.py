"""The master's HTTP side: health, and what there is to look at as JSON. It carries no object's
bytes.
"""

from __future__ import annotations

from typing import Any, Protocol

from ciel.access.keys import Key, Role
from ciel.core.errors import CielError
from ciel.net.errors import HttpError
from ciel.net.gate import Gate
from ciel.net.http import Request, Route, Routes, SecureSite


class Answering(Protocol):
    """Who knows the answers."""

    def answer(self, topic: str, argument: Any) -> Any: ...


class Health(Route):
    """Says that the daemon serves."""

    needs_role = Role.READ

    def render_GET(self, request: Request) -> bytes:
        return request.reply({"status": "ok"})


class Greeting(Route):
    """Tells a person, or a worker of old, that this is a master."""

    needs_role = Role.READ

    def render_GET(self, request: Request) -> bytes:
        request.setHeader("Content-Type", "text/plain; charset=utf-8")
        return b"This is a ciel master.\n"


class Listing(Route):
    """One topic of `ciel.master.state.answers`."""

    needs_role = Role.READ

    def __init__(self, answering: Answering, topic: str) -> None:
        self._answering = answering
        self._topic = topic

    def render_GET(self, request: Request) -> bytes:
        try:
            return request.reply(self._answering.answer(self._topic, dict(request.params)))
        except CielError as error:
            raise HttpError(404, str(error)) from None


def master_routes(answering: Answering) -> Routes:
    """List everything that a master serves."""
    routes = Routes()
    routes.add("/healthz", Health())
    routes.add("/control", Greeting())
    routes.add("/api/v1/status", Listing(answering, "status"))
    routes.add("/api/v1/workers", Listing(answering, "workers"))
    routes.add("/api/v1/stores", Listing(answering, "stores"))
    routes.add("/api/v1/jobs", Listing(answering, "jobs"))
    routes.add("/api/v1/jobs/{job}", Listing(answering, "job"))
    return routes


def master_site(reactor: Any, key: Key, answering: Answering) -> tuple[Any, Gate]:
    """Make the site; the gate is to be told the master's own address once it is known."""
    gate = Gate(key.derive)
    return SecureSite(reactor, master_routes(answering), gate), gate
