"""The gate of a daemon's HTTP: which role a request is made in, and whether it is meant for us."""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Callable

from ciel.access.errors import AccessDeniedError
from ciel.access.keys import KeyForRole, Role, bearer_role
from ciel.access.tickets import TICKET_SCHEME, TicketGate


class Gate:
    """Admits whoever proves a key. `now_s` is wall-clock time, which tickets are about.

    A key itself (`Bearer`) is taken from this host only, since it could be overheard elsewhere.
    """

    def __init__(self, key_for_role: KeyForRole, *, now_s: Callable[[], float] = time.time) -> None:
        self._key_for_role = key_for_role
        self._now_s = now_s
        self._tickets: TicketGate | None = None
        self._names = {"localhost"}

    def serve_as(self, netloc: str) -> None:
        """From now on take tickets made for `netloc`, the address that others know us by."""
        self._tickets = TicketGate(self._key_for_role, netloc)
        self._names.add(_host_of(netloc))

    def admit(self, authorization: str, method: str, target: str, *, is_local: bool) -> Role:
        """Return the role that an `Authorization` proves. Raise `AccessDeniedError`."""
        if not authorization:
            raise AccessDeniedError("no key was given")
        if authorization.startswith(f"{TICKET_SCHEME} "):
            if self._tickets is None:
                raise AccessDeniedError("no tickets are taken here")
            return self._tickets.admit(authorization, method, target, self._now_s())
        if not is_local:
            raise AccessDeniedError("a bearer key is taken from this host only; make a ticket")
        role = bearer_role(authorization, self._key_for_role)
        if role is None:
            raise AccessDeniedError("that key does not open this cluster")
        return role

    def answers_to(self, host: str) -> bool:
        """Say whether a `Host` is us: an address, `localhost`, or our own name.

        A web page can have its own name resolve to our address, and its browser then lets it read
        our answers; but that name is what the browser says in `Host`.
        """
        name = _host_of(host)
        try:
            return name in self._names or bool(ipaddress.ip_address(name))
        except ValueError:
            return False


def _host_of(netloc: str) -> str:
    host = netloc[1:].partition("]")[0] if netloc.startswith("[") else netloc.partition(":")[0]
    return host.lower().rstrip(".")
