"""The policy for URLs outside the cluster: which of them daemons fetch for users.

The policy checks the IP address of a host name when libcurl connects, also after each redirect. An
earlier check would not suffice, because a name may resolve to another address meanwhile. So users
that may have URLs fetched cannot reach services that only this host can reach.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable
from enum import StrEnum
from typing import Any, Final
from urllib.parse import urlsplit

import pycurl

from ciel.net.errors import NetError

REDIRECTS_MAX: Final = 5
URL_MAX_LENGTH: Final = 2000
_PUBLIC_V6: Final = ipaddress.IPv6Network("2000::/3")
_EMBEDDING_V4: Final = (  # addresses that contain an IPv4 address
    ipaddress.IPv6Network("2001::/32"),
    ipaddress.IPv6Network("2002::/16"),
)


class UrlRefusedError(NetError):
    """The policy does not allow a URL; the text says why."""

    def __init__(self, url: str, reason: str) -> None:
        self.url = url
        super().__init__(f"{url[:200]!a} is not fetched: {reason}")


class UrlPolicy(StrEnum):
    """Which URLs are fetched.

    `HTTPS`: HTTPS URLs of public addresses; `ANY`: also plain HTTP, and all hosts that this host
    can reach.
    """

    OFF = "off"
    HTTPS = "https"
    ANY = "any"

    @property
    def schemes(self) -> tuple[str, ...]:
        return {"off": (), "https": ("https",), "any": ("http", "https")}[self.value]

    def check(self, url: str) -> None:
        """Raise `UrlRefusedError` for a URL that is refused independently of its IP address."""
        if len(url) > URL_MAX_LENGTH:
            raise UrlRefusedError(url, f"it has more than {URL_MAX_LENGTH} characters")
        if not url.isascii() or not url.isprintable() or " " in url:
            raise UrlRefusedError(url, "it contains characters that no URL has")
        try:
            parts = urlsplit(url)
            host, _ = parts.hostname, parts.port
        except ValueError as error:
            raise UrlRefusedError(url, str(error)) from None
        if parts.scheme not in self.schemes:
            allowed = ", ".join(self.schemes)
            why = f"its scheme is none of {allowed}" if allowed else "the policy allows no URL"
            raise UrlRefusedError(url, why)
        if not host:
            raise UrlRefusedError(url, "it names no host")
        if parts.username is not None or parts.password is not None:
            raise UrlRefusedError(url, "it contains a user name, which would appear in logs")

    def reaches(self, address: str) -> bool:
        """Whether the policy allows connections to an IP address."""
        return self is UrlPolicy.ANY or (self is UrlPolicy.HTTPS and _is_public(address))

    def prepare(self, curl: pycurl.Curl, refused: Callable[[str], object]) -> None:
        """Enforce the policy on a handle; `refused` is called with the reason of a refusal."""
        protocols = {"http": pycurl.PROTO_HTTP, "https": pycurl.PROTO_HTTPS}
        allowed = sum(protocols[scheme] for scheme in self.schemes)

        def open_socket(purpose: int, to: Any) -> Any:
            family, kind, protocol, where = to
            if not self.reaches(where[0]):
                refused(f"it leads to {where[0]}, which is not a public address")
                return pycurl.SOCKET_BAD
            return _SelfClosingSocket(socket.socket(family, kind, protocol))

        for option, value in (
            (pycurl.PROTOCOLS, allowed),  # this applies to redirects, too
            (pycurl.FOLLOWLOCATION, 1),
            (pycurl.MAXREDIRS, REDIRECTS_MAX),
            (pycurl.OPENSOCKETFUNCTION, open_socket),
        ):
            curl.setopt(option, value)


class _SelfClosingSocket:
    """A socket that closes itself after libcurl has duplicated it."""

    def __init__(self, socket_: socket.socket) -> None:
        self._socket = socket_

    def fileno(self) -> int:
        return self._socket.fileno()

    def __del__(self) -> None:
        self._socket.close()


def _is_public(address: str) -> bool:
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return False
    if isinstance(found, ipaddress.IPv6Address):
        if found not in _PUBLIC_V6 or any(found in net for net in _EMBEDDING_V4):
            return False
    return found.is_global and not found.is_multicast
