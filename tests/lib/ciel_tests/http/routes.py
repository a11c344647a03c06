"""Rows of tables that describe the routes of a daemon: for each path and method the role, the
status, and the body.

    Row("POST", "/api/v1/jobs/{job}/cancel", Role.SUBMIT, names={"job": "running"})

Tests send the request of each row without a key, with wrong keys, with the keys of lesser roles and
of its role, with invalid names, and with malformed bodies. `missing` finds routes without a row.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple
from urllib.parse import quote

from ciel.access.keys import Key, Role
from ciel.net.http import Routes
from ciel.wire.limits import JSON_DEPTH_MAX

METHODS: Final = ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "BREW")

BAD_NAMES: Final = (
    "%2e%2e",
    "..%2fx",
    "%00",
    "%E2%98%83",
    "a%0d%0aX-Y:z",
    "x" * 300,
    "%ff",
    ".%3Ax",
)
"""Invalid names of jobs, tasks, objects and workers, as they stand in a path."""

BAD_JSON: Final[Mapping[str, bytes]] = {
    "nothing": b"",
    "no JSON": b"\x80\x02}q\x00.",  # a pickle, for that matter
    "cut short": b'{"a": [1, ',
    "two values": b"{} {}",
    "not UTF-8": b'{"a": "\xff\xfe"}',
    "overlong UTF-8": b'{"a": "\xc0\xae"}',
    "deep": b"[" * (JSON_DEPTH_MAX + 1) + b"]" * (JSON_DEPTH_MAX + 1),
    "very deep": b"[" * 10_000,
    "a huge number": b"1" * 5000,
    "NaN": b'{"a": NaN}',
    "infinity": b'{"a": 1e999}',
    "a key twice": b'{"a": 1, "a": 2}',
    "half a surrogate": b'{"a": "\\ud800"}',
    "another kind": b"true",
    "an unknown key": b'{"no such key": 1}',
}
TOO_LONG: Final = 1 << 40
"""A Content-Length that no daemon may reserve memory for."""


@dataclass(frozen=True, slots=True)
class Row:
    """One method at one path.

    `path`: the route, with its names. `role`: the least role that may use it. `names`: for a name
    in the path, the key among the live names, or a value; by default the name itself. `takes`: the
    kind of body. `ends`: the request ends the daemon, so it is sent last.
    """

    method: str
    path: str
    role: Role = Role.READ
    status: int = 200
    body: bytes = b""
    takes: Literal["nothing", "json", "bytes"] = "nothing"
    names: Mapping[str, str] = field(default_factory=dict)
    query: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    ends: bool = False

    def __str__(self) -> str:
        return f"{self.method} {self.path}{self.query}"

    def target(self, live: Mapping[str, str]) -> str:
        """Return the path and query of a request to a daemon with these live names."""
        return self._filled({name: quote(self._value(name, live)) for name in self.parts()})

    def bad_targets(self, live: Mapping[str, str]) -> Iterator[str]:
        """Yield targets with one invalid name, for each name in the path."""
        good = {name: quote(self._value(name, live)) for name in self.parts()}
        for name in good:
            for bad in BAD_NAMES:
                yield self._filled({**good, name: bad})

    def parts(self) -> list[str]:
        """List the names in the path."""
        return [part[1:-1] for part in self.path.split("/") if part.startswith("{")]

    def _value(self, name: str, live: Mapping[str, str]) -> str:
        meant = self.names.get(name, name)
        return live.get(meant, meant)

    def _filled(self, values: Mapping[str, str]) -> str:
        path = self.path
        for name, value in values.items():
            path = path.replace(f"{{{name}}}", value)
        return path + self.query


class Told(NamedTuple):
    """The answer to a request."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def error(self) -> str:
        """The message of a refusal."""
        return str(json.loads(self.body)["error"])

    def json(self) -> Any:
        return json.loads(self.body)


class Door:
    """A client for the HTTP API of one daemon, with the key of its cluster."""

    def __init__(self, netloc: str, key: str) -> None:
        self.netloc = netloc
        self._key = Key.from_text(key)

    def key_of(self, role: Role) -> str:
        key = self._key.derive(role)
        assert key is not None
        return key.text()

    def ask(
        self,
        method: str,
        target: str,
        key: str | None,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        timeout_s: float = 60.0,
    ) -> Told:
        """Send one request, on a new connection."""
        connection = http.client.HTTPConnection(self.netloc, timeout=timeout_s)
        sent = dict(headers or {})
        if key is not None:
            sent["Authorization"] = f"Bearer {key}"
        try:
            connection.request(method, target, body or None, sent)
            answer = connection.getresponse()
            return Told(
                answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()
            )
        finally:
            connection.close()

    def ask_as(self, role: Role, method: str, target: str, body: Any = None) -> Told:
        """Send a request with the key of a role, and a JSON body if there is one."""
        encoded = None if body is None else json.dumps(body).encode()
        return self.ask(method, target, self.key_of(role), encoded)


def lesser(role: Role) -> list[Role]:
    """Return the roles that may not use a route of this role."""
    return [other for other in Role if not other.permits(role)]


def missing(routes: Routes, rows: Iterable[Row]) -> list[str]:
    """Return the routes of a daemon without a row, and the rows without a route."""
    served = {(method, path) for path, route in routes for method in route.methods()}
    bare = {(m, p) for m, p in served if not (m == "HEAD" and ("GET", p) in served)}
    listed = {(row.method, row.path) for row in rows}
    lacking = [f"{method} {path} has no row" for method, path in sorted(bare - listed)]
    return lacking + [f"{method} {path} is not served" for method, path in sorted(listed - served)]


def unserved(routes: Routes) -> list[tuple[str, str]]:
    """Return every path with the methods that it does not have."""
    return [(m, path) for path, route in routes for m in METHODS if m not in route.methods()]
