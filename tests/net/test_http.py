# Twisted's names:
# ruff: noqa: N802

import json
import socket
import threading
import time
from collections.abc import Iterator
from http.client import HTTPConnection
from typing import Any

import pytest
from twisted.internet.address import IPv4Address, IPv6Address, UNIXAddress
from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater
from twisted.web.server import NOT_DONE_YET

from ciel.access.errors import AccessDeniedError
from ciel.access.keys import Key, Role, bearer_header
from ciel.access.tickets import make_ticket
from ciel.net import http
from ciel.net.authorisation import Authorisation
from ciel.net.errors import HttpError
from ciel.net.http import Request, Route, Routes, SecureSite, _is_local
from ciel.net.transports import Address, FrontDoorFactory, listen
from ciel.net.unauthenticated import UnauthenticatedConnections

KEY = Key(bytes(range(32)))
SUBMIT, WORKER, READ = (KEY.derive(role) for role in (Role.SUBMIT, Role.WORKER, Role.READ))
METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "BREW")


class Sink:
    def __init__(self) -> None:
        self.taken: list[bytes] = []
        self.ended = threading.Event()
        self.is_aborted = False

    def write(self, chunk: bytes) -> None:
        if b"full" in chunk:
            raise HttpError(507, "no space")
        self.taken.append(chunk)

    def abort(self) -> None:
        self.is_aborted = True
        self.ended.set()


class Item(Route):
    needs_role = Role.READ

    def render_GET(self, request: Request) -> bytes:
        return request.reply(
            {"id": request.params["id"], "role": request.role, "args": len(request.args)}
        )


class Upload(Route):
    """Accepts bodies piece by piece, through a sink."""

    needs_role = Role.WORKER
    body_limit_bytes = 10_000_000

    def __init__(self) -> None:
        self.sinks: list[Sink] = []

    def body_sink(self, request: Request) -> Sink:
        if request.params["id"] == "there":
            raise HttpError(409, "it is there already")
        self.sinks.append(Sink())
        return self.sinks[-1]

    def render_POST(self, request: Request) -> bytes:
        sink: Any = request.sink
        sink.ended.set()
        return request.reply(sum(map(len, sink.taken)), 201)


class Echo(Route):
    body_limit_bytes = 1000

    def role_for(self, method: str) -> Role:
        return Role.READ if method in ("GET", "HEAD") else Role.SUBMIT

    def render_GET(self, request: Request) -> bytes:
        return b"hello"

    def render_POST(self, request: Request) -> bytes:
        return request.reply(request.json())


class Odd(Route):
    """A resource that fails, or answers later, in different ways."""

    needs_role = Role.READ

    def __init__(self, reactor: Any) -> None:
        self.reactor = reactor
        self.cancelled = threading.Event()

    def render_GET(self, request: Request) -> Any:
        kind = request.params["kind"]
        if kind == "raise":
            raise RuntimeError("secret of the inside")
        if kind == "nothing":
            return None
        if kind == "never":
            return Deferred(lambda _: self.cancelled.set())
        if kind == "later":
            return deferLater(self.reactor, 0.01, lambda: b"later")
        if kind == "later-refused":
            return deferLater(self.reactor, 0.01, self.refuse)
        request.write(b"a beginning")
        if kind == "cut":
            raise RuntimeError("in the middle")
        request.write(b" and an end")
        request.finish()
        return NOT_DONE_YET

    def refuse(self) -> bytes:
        raise HttpError(404, "no such thing")


class Served:
    """A site on a real port."""

    def __init__(self, in_reactor: Any, **options: Any) -> None:
        self.run = in_reactor
        reactor = in_reactor.reactor
        self.upload, self.odd = Upload(), Odd(reactor)
        self.routes = Routes()
        for path, route in (
            ("/data/{id}", Item()),
            ("/control/data/{id}", self.upload),
            ("/echo", Echo()),
            ("/odd/{kind}", self.odd),
            ("/healthz", Echo()),
        ):
            self.routes.add(path, route)
        authorisation = Authorisation(KEY.derive)
        self.site = SecureSite(reactor, self.routes, authorisation, **options)
        house = FrontDoorFactory(reactor, lambda: None, self.site)  # type: ignore[arg-type, return-value]  # never called
        self.listener = in_reactor(listen, reactor, "127.0.0.1:0", house)
        self.address: Address = self.listener.address
        self.netloc = str(self.address)
        authorisation.serve_as(self.netloc)

    def connect(self) -> socket.socket:
        return socket.create_connection((self.address.host, self.address.port), 10)

    def say(self, text: bytes) -> bytes:
        """Send bytes, and return all that comes back until the connection is closed."""
        with self.connect() as sock:
            sock.sendall(text)
            return read_all(sock)

    def ask(
        self, method: str, path: str, key: Key | None = KEY, body: bytes = b"", **headers: str
    ) -> tuple[int, dict[str, str], bytes]:
        headers = {"Host": self.netloc, "Connection": "close", **headers}
        if key is not None:
            headers.setdefault("Authorization", bearer_header(key))
        if body:
            headers.setdefault("Content-Length", str(len(body)))
        lines = [f"{method} {path} HTTP/1.1", *(f"{n}: {v}" for n, v in headers.items()), "", ""]
        return parse(self.say("\r\n".join(lines).encode() + body))

    def leave(self) -> None:
        self.run(self.listener.close)
        for channel in list(self.site.channels):
            transport: Any = channel.transport
            self.run(transport.abortConnection)
        deadline = time.monotonic() + 10
        while self.site.channels and time.monotonic() < deadline:
            time.sleep(0.001)
        assert not self.site.channels


def read_all(sock: socket.socket) -> bytes:
    answer = b""
    while piece := sock.recv(65536):
        answer += piece
    return answer


def parse(answer: bytes) -> tuple[int, dict[str, str], bytes]:
    head, _, body = answer.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines[1:])
    return int(lines[0].split()[1]), headers, body


@pytest.fixture
def served(in_reactor: Any) -> Iterator[Served]:
    served = Served(in_reactor)
    yield served
    served.leave()


def error_of(body: bytes) -> str:
    answer = json.loads(body)
    assert list(answer) == ["error"]
    return str(answer["error"])


# --- authorisation --------------------------------------------------------------------------------


def test_every_path_and_method_answers_401_without_a_key(served: Served) -> None:
    paths = [path.replace("{", "").replace("}", "") for path, _ in served.routes]
    assert len(paths) == 5
    for path in (*paths, "/", "/nothing", "/data/../x", "*", "http://evil/data/x", "/%ff"):
        for method in METHODS:
            status, headers, body = served.ask(method, path, key=None)
            assert (status, headers["Server"]) == (401, "ciel"), (method, path)
            assert method == "HEAD" or error_of(body) == "no key was given"


@pytest.mark.parametrize(
    "authorization",
    [
        "Bearer " + "0" * 64,
        "Bearer submit-" + "0" * 64,
        "Bearer",
        "Basic dXNlcjpwYXNz",
        "Ciel-Ticket admin:0:0:0",
        "Ciel-Ticket " + "x" * 1000,
        KEY.text(),
    ],
)
def test_an_authorization_without_a_valid_key_is_refused(
    served: Served, authorization: str
) -> None:
    status, headers, body = served.ask("GET", "/data/x", None, Authorization=authorization)
    assert status == 401
    assert headers["WWW-Authenticate"] == "Bearer"
    assert KEY.text() not in body.decode()


def test_a_request_with_two_authorizations_is_refused(served: Served) -> None:
    line = f"Authorization: {bearer_header(KEY)}\r\n"
    answer = served.say(f"GET /data/x HTTP/1.1\r\nHost: localhost\r\n{line}{line}\r\n".encode())
    assert parse(answer)[0] == 401


def test_a_bearer_key_is_accepted_from_this_host_only() -> None:
    authorisation = Authorisation(KEY.derive)
    assert authorisation.admit(bearer_header(KEY), "GET", "/", is_local=True) is Role.ADMIN
    with pytest.raises(AccessDeniedError, match="from this host only"):
        authorisation.admit(bearer_header(KEY), "GET", "/", is_local=False)


@pytest.mark.parametrize(
    "address, is_local",
    [
        (IPv4Address("TCP", "127.0.0.1", 1), True),
        (IPv4Address("TCP", "127.8.8.8", 1), True),
        (IPv6Address("TCP", "::1", 1), True),
        (IPv6Address("TCP", "::ffff:127.0.0.1", 1), True),
        (UNIXAddress(b""), True),
        (IPv4Address("TCP", "10.0.0.1", 1), False),
        (IPv6Address("TCP", "::ffff:10.0.0.1", 1), False),
    ],
)
def test_peers_on_this_host_are_recognised_by_their_address(address: Any, is_local: bool) -> None:
    assert _is_local(address) is is_local


def test_a_ticket_is_valid_for_one_request_and_once(served: Served) -> None:
    ticket = make_ticket(KEY, "GET", served.netloc, "/data/x?a=1", time.time())
    statuses = [
        served.ask("GET", path, None, Authorization=ticket)[0]
        for path in ("/data/x", "/data/x?a=1", "/data/x?a=1")
    ]
    assert statuses == [401, 200, 401]


def test_tickets_are_refused_before_the_gate_knows_its_own_address() -> None:
    ticket = make_ticket(KEY, "GET", "h:1", "/", 0.0)
    with pytest.raises(AccessDeniedError, match="this daemon accepts no tickets"):
        Authorisation(KEY.derive, now_s=lambda: 0.0).admit(ticket, "GET", "/", is_local=False)


def test_healthz_can_be_served_without_a_key(in_reactor: Any) -> None:
    served = Served(in_reactor, open_healthz=True)
    try:
        statuses = [
            served.ask(method, path, None)[0]
            for method, path in (
                ("GET", "/healthz"), ("HEAD", "/healthz"), ("POST", "/healthz"), ("GET", "/echo")
            )
        ]  # fmt: skip
        assert statuses == [200, 200, 403, 401]
    finally:
        served.leave()


@pytest.mark.parametrize(
    "key, method, path, status",
    [
        (READ, "GET", "/data/x", 200),
        (READ, "POST", "/control/data/x", 403),
        (SUBMIT, "POST", "/control/data/x", 403),
        (WORKER, "POST", "/control/data/x", 201),
        (KEY, "POST", "/control/data/x", 201),
        (READ, "GET", "/echo", 200),
        (READ, "POST", "/echo", 403),
        (WORKER, "POST", "/echo", 403),
    ],
)
def test_a_role_may_use_only_its_own_routes(
    served: Served, key: Key, method: str, path: str, status: int
) -> None:
    assert served.ask(method, path, key, Content_Length="0")[0] == status


@pytest.mark.parametrize(
    "host, status",
    [
        ("localhost", 200),
        ("LOCALHOST.:80", 200),
        ("127.0.0.1:1", 200),
        ("[::1]:80", 200),
        ("evil.example", 421),
        ("127.0.0.1.evil.example", 421),
        ("", 421),
    ],
)
def test_a_request_for_another_host_is_refused(served: Served, host: str, status: int) -> None:
    assert served.ask("GET", "/data/x", Host=host)[0] == status


# --- answers --------------------------------------------------------------------------------------


def test_a_request_has_its_role_and_path_parameters(served: Served) -> None:
    _, headers, body = served.ask("GET", "/data/a%3Aout%3A0?x=1&y=2", READ)
    assert json.loads(body) == {"id": "a:out:0", "role": "read", "args": 2}
    assert headers["Content-Type"] == "application/json"


def test_head_is_get_without_the_body(served: Served) -> None:
    status, headers, body = served.ask("HEAD", "/echo")
    assert (status, headers["Content-Length"], body) == (200, "5", b"")


@pytest.mark.parametrize("method", [m for m in METHODS if m not in ("GET", "HEAD", "POST")])
def test_other_methods_are_not_allowed(served: Served, method: str) -> None:
    status, headers, body = served.ask(method, "/echo")
    assert (status, headers["Allow"]) == (405, "GET, HEAD, POST")
    assert error_of(body) == "only GET, HEAD, POST are allowed here"


@pytest.mark.parametrize("path", ["/", "/nothing", "/data", "/data/x/y", "*", "//echo"])
def test_unknown_paths_are_not_found(served: Served, path: str) -> None:
    assert served.ask("GET", path)[0] == 404


def test_a_body_that_is_not_json_is_400(served: Served) -> None:
    status, _, body = served.ask("POST", "/echo", body=b'{"a": NaN}')
    assert status == 400
    assert error_of(body).startswith("the body: not JSON")


@pytest.mark.parametrize(
    "kind, status, text",
    [
        ("later", 200, b"later"),
        ("streamed", 200, b"b\r\na beginning\r\nb\r\n and an end\r\n0\r\n\r\n"),
        ("later-refused", 404, b'{"error":"no such thing"}\n'),
    ],
)
def test_a_resource_may_answer_later(served: Served, kind: str, status: int, text: bytes) -> None:
    answered, _, body = served.ask("GET", f"/odd/{kind}")
    assert (answered, body) == (status, text)


def test_a_deferred_answer_is_cancelled_when_the_client_disconnects(served: Served) -> None:
    with served.connect() as sock:
        sock.sendall(
            f"GET /odd/never HTTP/1.1\r\nHost: localhost\r\nAuthorization: "
            f"{bearer_header(KEY)}\r\n\r\n".encode()
        )
        wait_for_request(served)
    assert served.odd.cancelled.wait(10)


def wait_for_request(served: Served) -> None:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        if any(channel.requests for channel in list(served.site.channels)):
            return
        time.sleep(0.001)
    raise AssertionError("no request came")


class TestFaults:
    """Resources that fail; the reactor logs their failures."""

    @pytest.fixture
    def served(self, running_reactor: Any) -> Iterator[Served]:
        served = Served(running_reactor)
        yield served
        served.leave()

    @pytest.mark.parametrize("kind", ["raise", "nothing"])
    def test_a_failure_is_500_without_a_traceback(self, served: Served, kind: str) -> None:
        status, _, body = served.ask("GET", f"/odd/{kind}")
        assert status == 500
        assert error_of(body) == "internal error; see the log of this daemon"

    def test_a_failure_while_sending_cuts_the_body(self, served: Served) -> None:
        with pytest.raises(ConnectionResetError):
            served.ask("GET", "/odd/cut")

    def test_a_failure_to_create_a_sink_is_500(self, served: Served) -> None:
        served.upload.sinks = None  # type: ignore[assignment]  # on purpose
        assert served.ask("POST", "/control/data/x", body=b"x")[0] == 500


# --- bodies ---------------------------------------------------------------------------------------


def head(served: Served, path: str, *lines: str, key: Key = KEY, method: str = "POST") -> bytes:
    lines = (f"{method} {path} HTTP/1.1", "Host: localhost", *lines)
    return "\r\n".join([*lines, f"Authorization: {bearer_header(key)}", "", ""]).encode()


def test_a_body_beyond_the_limit_is_refused_before_it_is_read(served: Served) -> None:
    with served.connect() as sock:
        sock.sendall(head(served, "/echo", "Content-Length: 1001"))
        status, headers, body = parse(read_all(sock))
    assert (status, headers["Connection"]) == (413, "close")
    assert error_of(body) == "the body may have at most 1000 bytes"


def test_a_body_at_the_limit_is_accepted(served: Served) -> None:
    assert served.ask("POST", "/echo", body=b'"' + b"x" * 998 + b'"')[0] == 200


def test_a_refusal_arrives_although_the_client_goes_on_sending(served: Served) -> None:
    sent = b"x" * 4_000_000
    with served.connect() as sock:
        sock.sendall(head(served, "/echo", f"Content-Length: {len(sent)}"))
        sock.sendall(sent)
        assert parse(read_all(sock))[0] == 413


def test_an_endless_refused_body_is_cut_off(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "LINGER_MAX_BYTES", 100_000)
    with served.connect() as sock:
        sock.sendall(head(served, "/echo", "Content-Length: 999999999999"))
        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            sock.sendall(bytes(50_000_000))


def test_a_refused_client_that_stays_connected_is_disconnected(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "LINGER_S", 0.05)
    with served.connect() as sock:
        sock.sendall(head(served, "/echo", "Content-Length: 5000"))
        assert parse(read_all(sock))[0] == 413
        deadline = time.monotonic() + 10
        while served.site.channels and time.monotonic() < deadline:
            time.sleep(0.005)
        assert not served.site.channels


def test_the_limit_of_a_chunked_body_is_checked_while_it_arrives(served: Served) -> None:
    chunk = b"190\r\n" + b"x" * 400 + b"\r\n"
    with served.connect() as sock:
        sock.sendall(head(served, "/echo", "Transfer-Encoding: chunked") + 3 * chunk)
        assert parse(read_all(sock))[0] == 413


def test_a_chunked_body_is_accepted(served: Served) -> None:
    said = head(served, "/echo", "Transfer-Encoding: chunked", "Connection: close")
    status, _, body = parse(served.say(said + b"3\r\n[1,\r\n2\r\n2]\r\n0\r\n\r\n"))
    assert (status, json.loads(body)) == (200, [1, 2])


def test_100_continue_is_sent_to_authorised_clients_only(served: Served) -> None:
    lines = ("Content-Length: 4", "Expect: 100-continue", "Connection: close")
    with served.connect() as sock:
        sock.sendall(head(served, "/echo", *lines))
        assert sock.recv(1000) == b"HTTP/1.1 100 Continue\r\n\r\n"
        sock.sendall(b"true")
        assert parse(read_all(sock))[0] == 200
    with served.connect() as sock:
        sock.sendall(head(served, "/echo", *lines, key=Key(bytes(32))))
        assert parse(read_all(sock))[0] == 401


def test_a_body_is_written_to_its_sink_while_it_arrives(served: Served) -> None:
    size_bytes = 5_000_000
    status, _, body = served.ask("POST", "/control/data/x", WORKER, b"x" * size_bytes)
    assert (status, json.loads(body)) == (201, size_bytes)
    (sink,) = served.upload.sinks
    assert max(map(len, sink.taken)) <= 65536
    assert not sink.is_aborted


@pytest.mark.parametrize("chunked", [False, True])
def test_a_sink_is_aborted_when_the_client_disconnects(served: Served, chunked: bool) -> None:
    how = "Transfer-Encoding: chunked" if chunked else "Content-Length: 1000"
    with served.connect() as sock:
        sock.sendall(head(served, "/control/data/x", how) + b"5\r\nhello\r\n")
        wait_for_request(served)
    assert served.upload.sinks[0].ended.wait(10)
    assert served.upload.sinks[0].is_aborted


@pytest.mark.parametrize(
    "how, body",
    [
        ("Transfer-Encoding: chunked", b"4\r\nfull\r\n4\r\nmore\r\n0\r\n\r\n"),
        ("Content-Length: 4", b"full"),
        ("Content-Length: 1000", b"full"),
    ],
)
def test_a_sink_that_raises_is_aborted_and_its_error_is_the_answer(
    served: Served, how: str, body: bytes
) -> None:
    status, _, text = parse(served.say(head(served, "/control/data/x", how) + body))
    assert (status, error_of(text)) == (507, "no space")
    assert served.upload.sinks[0].is_aborted


def test_a_resource_may_refuse_a_body_before_it_arrives(served: Served) -> None:
    with served.connect() as sock:
        sock.sendall(head(served, "/control/data/there", "Content-Length: 1000"))
        assert parse(read_all(sock))[0] == 409


# --- connections ----------------------------------------------------------------------------------


def test_a_connection_serves_several_requests_in_sequence(served: Served) -> None:
    one = head(served, "/echo", method="GET")
    last = head(served, "/echo", "Connection: close", method="GET")
    answer = served.say(one + one + last)
    assert answer.count(b"HTTP/1.1 200 OK") == answer.count(b"hello") == 3


def test_a_refused_request_without_a_body_keeps_its_connection(served: Served) -> None:
    answer = served.say(
        head(served, "/nothing", method="GET")
        + head(served, "/echo", "Connection: close", method="GET")
    )
    assert b"404" in answer.splitlines()[0]
    assert answer.endswith(b"hello")


def test_pipelined_requests_without_a_key_get_one_answer(served: Served) -> None:
    stranger = b"GET /echo HTTP/1.1\r\nHost: localhost\r\n\r\n"
    answer = served.say(100 * stranger + head(served, "/echo", method="GET"))
    assert answer.count(b"HTTP/1.1") == answer.count(b"401 Unauthorized") == 1


@pytest.mark.parametrize("drip", [b"G", b"GET /echo HTTP/1.1\r\nX-A: "])
def test_a_header_must_arrive_in_time(
    served: Served, monkeypatch: pytest.MonkeyPatch, drip: bytes
) -> None:
    monkeypatch.setattr(http, "HEADER_TIMEOUT_S", 0.2)
    with served.connect() as sock:
        sock.sendall(drip)
        sock.settimeout(0.02)
        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            drip_for(sock, 10.0)


def drip_for(sock: socket.socket, seconds: float) -> None:
    """Send a byte now and then, so that no time-out between two bytes fires."""
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        try:
            assert sock.recv(100) == b""
        except TimeoutError:
            sock.sendall(b"x")


@pytest.mark.parametrize(
    "said",
    [
        b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"X-A: b\r\n" * 101 + b"\r\n",
        b"GET / HTTP/1.1\r\n" + b"".join(b"X-%d: %s\r\n" % (i, b"x" * 1000) for i in range(20)),
        b"GET / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"GET / HTTP/1.1\r\nno colon\r\n\r\n",
        b"nonsense\r\n\r\n",
    ],
)
def test_a_malformed_or_too_large_header_is_refused(served: Served, said: bytes) -> None:
    try:
        answer = served.say(said)
    except ConnectionResetError:
        answer = b""
    if answer:
        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400 Bad Request\r\n")
        assert json.loads(body) == {"error": "this is not a well-formed HTTP request"}


def test_a_site_can_have_its_own_port(served: Served) -> None:
    listener = served.run(listen, served.run.reactor, "127.0.0.1:0", served.site)
    try:
        served.address = listener.address
        assert served.ask("GET", "/echo")[2] == b"hello"
        assert served.ask("GET", "/echo", None)[0] == 401
    finally:
        served.run(listener.close)


def test_connections_are_limited(in_reactor: Any) -> None:
    served = Served(in_reactor, connections_max=1)
    try:
        with served.connect() as first:
            first.sendall(head(served, "/odd/never", method="GET"))
            wait_for_request(served)
            with pytest.raises(ConnectionResetError):
                served.ask("GET", "/echo")
    finally:
        served.leave()


def test_an_idle_connection_is_closed_for_a_new_one_at_the_limit(in_reactor: Any) -> None:
    served = Served(in_reactor, connections_max=1)
    kept = HTTPConnection(served.netloc, timeout=10)
    try:
        assert ask_on(kept) == 200
        assert served.ask("GET", "/echo")[0] == 200
        with pytest.raises(ConnectionResetError):
            kept.sock.recv(1)
    finally:
        kept.close()
        served.leave()


def test_a_flood_of_unauthenticated_connections_does_not_block_clients(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served.site, "_unauthenticated", UnauthenticatedConnections(2))
    kept = HTTPConnection(served.netloc, timeout=10)
    silent = []
    try:
        assert ask_on(kept) == 200
        for _ in range(20):
            silent.append(served.connect())
            silent[-1].sendall(b"GET /echo HTTP/1.1\r\n")
        assert served.ask("GET", "/echo")[0] == 200
        assert ask_on(kept) == 200  # a client that has shown its key once stays authenticated
        assert len(served.site.channels) <= 4
    finally:
        kept.close()
        for sock in silent:
            sock.close()


def ask_on(connection: HTTPConnection) -> int:
    connection.request("GET", "/echo", headers={"Authorization": bearer_header(KEY)})
    answer = connection.getresponse()
    answer.read()
    return answer.status


def test_an_unauthenticated_connection_is_closed_in_time(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "HEADER_TIMEOUT_S", 0.1)
    listener = served.run(listen, served.run.reactor, "127.0.0.1:0", served.site)
    try:
        served.address = listener.address
        with served.connect() as sock, pytest.raises(ConnectionResetError):
            sock.recv(1)
    finally:
        served.run(listener.close)
