"""Lets a browser read pages: a link that works once becomes a cookie.

A browser cannot send the header that proves a key. It enters by a link with a ticket, and the
daemon answers with a cookie. The cookie permits only to read pages below one path.
`ciel.net.authorisation` accepts tickets and cookies only from this host, since others could
intercept them on a network.
"""

from __future__ import annotations

import secrets
from hashlib import sha256
from typing import Final

SESSION_S: Final = 12 * 3600.0
"""How long a browser may read before it needs another link."""
SESSIONS_MAX: Final = 100
COOKIE: Final = "ciel-browse"


class BrowserSessions:
    """The digests of the cookies that a daemon has issued. Beyond `SESSIONS_MAX` cookies, each new
    one ends the oldest session.
    """

    def __init__(self, prefix: str) -> None:
        """`prefix`: the path of the pages, such as `/control/browse`."""
        self.prefix = prefix
        self.login_path = f"{prefix}/enter"
        self._expires_s: dict[bytes, float] = {}

    def open(self, now_s: float) -> str:
        """Start a session; return the value of the header `Set-Cookie`."""
        token = secrets.token_urlsafe(32)
        while len(self._expires_s) >= SESSIONS_MAX:
            del self._expires_s[next(iter(self._expires_s))]
        self._expires_s[_digest(token)] = now_s + SESSION_S
        age_s = int(SESSION_S)
        return f"{COOKIE}={token}; Path={self.prefix}; Max-Age={age_s}; HttpOnly; SameSite=Strict"

    def admits(self, method: str, path: str, cookie: str, now_s: float) -> bool:
        """Return whether the header `Cookie` of a request permits it."""
        if method not in ("GET", "HEAD") or not path.startswith(f"{self.prefix}/"):
            return False
        for part in cookie.split(";"):
            name, _, token = part.strip().partition("=")
            if name == COOKIE and self._expires_s.get(_digest(token), 0.0) > now_s:
                return True
        return False


def _digest(token: str) -> bytes:
    """Return the digest of a token: the time to find it reveals nothing about the token."""
    return sha256(token.encode("utf-8", "surrogateescape")).digest()
