"""The HTTP routes with which a user examines a daemon that hangs (docs/hanging.md)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from ciel.access.keys import Role
from ciel.net.errors import HttpError
from ciel.net.http import Request, Route, Routes


class Debugging(NamedTuple):
    """The operations of a daemon.

    `dump` writes a dump and returns its path, None if that failed; `set_log_level` raises
    ValueError for an unknown level.
    """

    dump: Callable[[str], Path | None]
    set_log_level: Callable[[Any], object]


class Dump(Route):
    """Writes a dump of this daemon, and answers with it."""

    needs_role = Role.ADMIN

    def __init__(self, debugging: Debugging) -> None:
        self._debugging = debugging

    def render_POST(self, request: Request) -> bytes:
        path = self._debugging.dump("a user requested a dump")
        if path is None:
            raise HttpError(500, "the dump could not be written; see the log of this daemon")
        request.setHeader("Content-Type", "text/plain; charset=utf-8")
        return path.read_bytes()


class LogLevel(Route):
    """Changes how much this daemon logs, until it ends."""

    needs_role = Role.ADMIN

    def __init__(self, debugging: Debugging) -> None:
        self._debugging = debugging

    def render_POST(self, request: Request) -> bytes:
        level = request.json()
        try:
            self._debugging.set_log_level(level)
        except ValueError as error:
            raise HttpError(400, str(error)) from None
        return request.reply({"level": level})


def add_debugging(routes: Routes, debugging: Debugging) -> None:
    """Add the routes of this module."""
    routes.add("/api/v1/debug/dump", Dump(debugging))
    routes.add("/api/v1/debug/log-level", LogLevel(debugging))
