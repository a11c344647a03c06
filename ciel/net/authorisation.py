"""Authorisation of HTTP requests: determines the role of a request, and checks its `Host`."""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Callable

from ciel.access.browser_sessions import BrowserSessions
from ciel.access.errors import AccessDeniedError
from ciel.access.keys import KeyForRole, Role, bearer_role
from ciel.access.tickets import TICKET_SCHEME, TicketCheck


class Authorisation:
    """Admits requests that prove a key. `now_s` is wall-clock time, which tickets contain.

    A key itself (`Bearer`) is accepted only from this host, since it could be intercepted on a
    network.
    """

    def __init__(self, key_for_role: KeyForRole, *, now_s: Callable[[], float] = time.time) -> None:
        self._key_for_role = key_for_role
        self._now_s = now_s
        self._tickets: TicketCheck | None = None
        self._names = {"localhost"}
        self.browsers: BrowserSessions | None = None
        """Set by a daemon that has pages for browsers."""

    def serve_as(self, netloc: str) -> None:
        """Accept tickets for `netloc` from now on, the address that other hosts connect to."""
        self._tickets = TicketCheck(self._key_for_role, netloc)
        self._names.add(_host_of(netloc))

    def admit(self, authorization: str, method: str, target: str, *, is_local: bool) -> Role:
        """Return the role that an `Authorization` header proves, or raise `AccessDeniedError`."""
        if not authorization:
            raise AccessDeniedError("no key was given")
        if authorization.startswith(f"{TICKET_SCHEME} "):
            if self._tickets is None:
                raise AccessDeniedError("this daemon accepts no tickets")
            return self._tickets.admit(authorization, method, target, self._now_s())
        if not is_local:
            raise AccessDeniedError("a bearer key is accepted from this host only; use a ticket")
        role = bearer_role(authorization, self._key_for_role)
        if role is None:
            raise AccessDeniedError("the key does not belong to this cluster")
        return role

    def admit_browser(
        self, method: str, target: str, cookie: str, ticket: str, *, is_local: bool
    ) -> bool:
        """Return whether a request without an `Authorization` header may read.

        The first request of a browser has a ticket in its query, and later requests have the cookie
        from the response to the first one. Raises `AccessDeniedError` for a ticket that is
        not accepted.
        """
        if self.browsers is None:
            return False
        path = target.partition("?")[0]
        if not is_local:
            return False
        if path != self.browsers.login_path:
            return self.browsers.admits(method, path, cookie, self._now_s())
        if self._tickets is None or method != "GET":
            return False
        self._tickets.admit(f"{TICKET_SCHEME} {ticket}", method, path, self._now_s())
        return True

    def is_named_by(self, host: str) -> bool:
        """Whether a `Host` header names this daemon: an IP address, `localhost`, or its own name.

        This prevents DNS rebinding. A web page can make its own name resolve to our address, and
        the browser then lets it read our answers. But the browser sends that name in `Host`.
        """
        name = _host_of(host)
        try:
            return name in self._names or bool(ipaddress.ip_address(name))
        except ValueError:
            return False


def _host_of(netloc: str) -> str:
    host = netloc[1:].partition("]")[0] if netloc.startswith("[") else netloc.partition(":")[0]
    return host.lower().rstrip(".")
