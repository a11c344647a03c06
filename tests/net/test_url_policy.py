"""Tests which URLs are fetched, and that no other address is connected to, however a URL is
spelled.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from ciel.net.errors import TransferError
from ciel.net.transfers import Transfers
from ciel.net.url_policy import UrlPolicy, UrlRefusedError

REFUSED_BY_ALL = [
    "",
    "x",
    "//example.org/x",
    "file:///etc/passwd",
    "ftp://example.org/x",
    "gopher://example.org/x",
    "dict://example.org:11211/stats",
    "ldap://example.org/",
    "scp://example.org/x",
    "data:,x",
    "javascript:1",
    "https:///x",
    "https://",
    "https://user:word@example.org/",
    "https://user@example.org/",
    "https://example.org:99999/",
    "https://example.org:port/",
    "https://[::1/",
    "https://example.org/a b",
    "https://example.org/\r\nX-Y: z",
    "https://example.org/\0",
    "https://ex\u00e4mple.org/",
    "https://example.org/" + "x" * 2000,
]


@pytest.mark.parametrize("url", REFUSED_BY_ALL, ids=range(len(REFUSED_BY_ALL)))
@pytest.mark.parametrize("policy", UrlPolicy)
def test_an_unsupported_url_is_refused(policy: UrlPolicy, url: str) -> None:
    with pytest.raises(UrlRefusedError):
        policy.check(url)


@pytest.mark.parametrize(
    "policy, url, is_fetched",
    [
        (UrlPolicy.OFF, "https://example.org/", False),
        (UrlPolicy.HTTPS, "https://example.org/", True),
        (UrlPolicy.HTTPS, "HTTPS://example.org:8443/a?b=c", True),
        (UrlPolicy.HTTPS, "http://example.org/", False),
        (UrlPolicy.ANY, "http://example.org/", True),
        (UrlPolicy.ANY, "https://example.org/", True),
    ],
)
def test_the_policy_decides_which_schemes_are_fetched(
    policy: UrlPolicy, url: str, is_fetched: bool
) -> None:
    if is_fetched:
        policy.check(url)
    else:
        with pytest.raises(UrlRefusedError):
            policy.check(url)


ONLY_OURS = [
    "0.0.0.0",
    "10.1.2.3",
    "100.64.0.1",
    "127.0.0.1",
    "127.255.255.254",
    "169.254.169.254",
    "172.16.0.1",
    "192.0.0.1",
    "192.168.1.1",
    "198.18.0.1",
    "203.0.113.1",
    "224.0.0.1",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::ffff:127.0.0.1",
    "::ffff:10.0.0.1",
    "::ffff:93.184.216.34",
    "64:ff9b::7f00:1",
    "2001:0:7f00:1::",
    "2001:db8::1",
    "2002:7f00:1::",
    "fc00::1",
    "fe80::1",
    "fe80::1%eth0",
    "ff02::1",
    "no address",
]


@pytest.mark.parametrize("address", ONLY_OURS)
def test_an_address_that_is_not_public_is_reached_only_with_any(
    address: str,
) -> None:
    assert not UrlPolicy.OFF.reaches(address)
    assert not UrlPolicy.HTTPS.reaches(address)
    assert UrlPolicy.ANY.reaches(address)


@pytest.mark.parametrize("address", ["93.184.216.34", "8.8.8.8", "2606:4700::1111"])
def test_a_public_address_is_reached(address: str) -> None:
    assert UrlPolicy.HTTPS.reaches(address)
    assert not UrlPolicy.OFF.reaches(address)


# --- real connections -----------------------------------------------------------------------------


class Counted:
    """A listener that counts its connections, and sends nothing."""

    def __init__(self, host: str) -> None:
        self.socket = socket.create_server((host, 0))
        self.socket.setblocking(False)
        self.port = self.socket.getsockname()[1]

    def count(self) -> int:
        count = 0
        while True:
            try:
                self.socket.accept()[0].close()
            except BlockingIOError:
                return count
            count += 1


@pytest.fixture
def counted() -> Iterator[Counted]:
    counted = Counted("127.0.0.1")
    yield counted
    counted.socket.close()


class Redirecting:
    """A site that redirects `/away` to `to`, and answers all other paths."""

    def __init__(self) -> None:
        site = self
        self.to = ""
        self.requests = 0

        class Answer(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                site.requests += 1
                self.send_response(302 if self.path == "/away" else 200)
                self.send_header("Location", site.to)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"ok")

            def log_message(self, *args: Any) -> None:
                """Log nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def redirecting() -> Iterator[Redirecting]:
    redirecting = Redirecting()
    yield redirecting
    redirecting.close()


def fetch(in_reactor: Any, policy: UrlPolicy, url: str) -> bytes:
    came: list[bytes] = []

    class Sink:
        write = staticmethod(came.append)

    transfers = in_reactor(Transfers, in_reactor.reactor, url_policy=policy)
    try:
        in_reactor(transfers.fetch, url, Sink())
    finally:
        in_reactor(transfers.close)
    return b"".join(came)


SPELLINGS = [
    "127.0.0.1",
    "localhost",
    "127.1",
    "2130706433",
    "0x7f000001",
    "0177.0.0.1",
    "[::ffff:127.0.0.1]",
    "[::1]",
    "0",
]


@pytest.mark.parametrize("host", SPELLINGS)
def test_no_spelling_of_this_host_is_connected_to(
    in_reactor: Any, counted: Counted, host: str
) -> None:
    url = f"https://{host}:{counted.port}/"
    UrlPolicy.HTTPS.check(url)
    with pytest.raises(TransferError):
        fetch(in_reactor, UrlPolicy.HTTPS, url)
    assert counted.count() == 0


def test_a_redirect_is_followed(in_reactor: Any, redirecting: Redirecting) -> None:
    redirecting.to = "/"
    assert fetch(in_reactor, UrlPolicy.ANY, f"{redirecting.url}/away") == b"ok"


@pytest.mark.parametrize("scheme", ["file", "ftp", "gopher"])
def test_a_redirect_leads_to_no_other_scheme(
    in_reactor: Any, redirecting: Redirecting, counted: Counted, scheme: str
) -> None:
    redirecting.to = f"{scheme}://127.0.0.1:{counted.port}/etc/hostname"
    with pytest.raises(TransferError):
        fetch(in_reactor, UrlPolicy.ANY, f"{redirecting.url}/away")
    assert (redirecting.requests, counted.count()) == (1, 0)


def test_a_redirect_in_a_circle_ends(in_reactor: Any, redirecting: Redirecting) -> None:
    redirecting.to = "/away"
    with pytest.raises(TransferError):
        fetch(in_reactor, UrlPolicy.ANY, f"{redirecting.url}/away")
    assert redirecting.requests == 6


def test_the_target_of_a_redirect_is_checked_too(
    in_reactor: Any, redirecting: Redirecting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(UrlPolicy, "reaches", lambda self, address: address == "127.0.0.1")
    counted = Counted("127.0.0.2")
    redirecting.to = f"http://127.0.0.2:{counted.port}/"
    with pytest.raises(TransferError, match=r"127\.0\.0\.2, which is not a public address"):
        fetch(in_reactor, UrlPolicy.ANY, f"{redirecting.url}/away")
    assert counted.count() == 0
    counted.socket.close()
