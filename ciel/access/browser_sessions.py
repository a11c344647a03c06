"""Lets a browser read pages: the daemon exchanges a single-use link for a cookie.

A browser cannot send the header that proves a key. Its user opens a link that contains a ticket,
and the daemon answers with a cookie. The cookie only allows reading pages below one path.
`ciel.net.authorisation` accepts tickets and cookies only from this host, since an attacker could
intercept them on a network.
"""

from __future__ import annotations

import secrets
from hashlib import sha256
from typing import Final

SESSION_S: Final = 12 * 3600.0
"""How long a cookie is valid; then the browser needs another link."""
SESSIONS_MAX: Final = 100
COOKIE: Final = "ciel-browse"


class BrowserSessions:
    """The digests of the cookies that a daemon has issued.

    At most `SESSIONS_MAX` cookies are valid: a new one then replaces the oldest.
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
        """Return whether a request's `Cookie` header permits the request."""
        if method not in ("GET", "HEAD") or not path.startswith(f"{self.prefix}/"):
            return False
        for part in cookie.split(";"):
            name, _, token = part.strip().partition("=")
            if name == COOKIE and self._expires_s.get(_digest(token), 0.0) > now_s:
                return True
        return False


def _digest(token: str) -> bytes:
    """Return the digest of a token: the time of a lookup by digest reveals nothing about it."""
    return sha256(token.encode("utf-8", "surrogateescape")).digest()
