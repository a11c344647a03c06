"""The route by which masters name successions, and candidates ask for votes."""

from __future__ import annotations

from typing import Any

from ciel.access.keys import Role
from ciel.net.errors import HttpError
from ciel.net.http import Answer, Request, Route, Routes
from ciel.wire.errors import DecodeError
from ciel.wire.masters import ballot_from_json, ballot_to_json, succession_from_json
from ciel.worker.masters import Masters


class SuccessionRoute(Route):
    """Stores a succession, or votes; only for processes with the key of the cluster."""

    needs_role = Role.ADMIN

    def __init__(self, masters: Masters) -> None:
        self._masters = masters

    def render_POST(self, request: Request) -> Answer:
        try:
            reason = self._carry_out(request.json())
        except DecodeError as error:
            raise HttpError(400, f"the body: {error}") from None
        except OSError as error:
            raise HttpError(507, f"the vote cannot be stored: {error.strerror}") from None
        masters = self._masters
        return request.reply({
            "voter": masters.voter, "reason": reason, "hears": masters.hears,
            "promised": ballot_to_json(masters.promised),
        })  # fmt: skip

    def _carry_out(self, body: Any) -> str:
        match body:
            case {"do": "name", "succession": succession}:
                return self._masters.name(succession_from_json(succession))
            case {"do": "ask" | "vote" as kind, "succession": latest, "ballot": ballot}:
                return self._masters.vote(
                    ballot_from_json(ballot), succession_from_json(latest), only_asks=kind == "ask"
                )
        raise DecodeError("expected do (name, ask or vote), a succession, and for a vote a ballot")


def add_succession(routes: Routes, masters: Masters) -> None:
    """Add the route."""
    routes.add("/control/succession", SuccessionRoute(masters))
