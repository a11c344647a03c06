"""The HTTP server of daemons. It answers every request without a valid key with 401.

The site checks a request once, when its header is complete and before its body is read: its key,
`Host`, route, role, method and size. A resource sees only requests that passed all checks, so it
cannot forget one, and an unauthenticated client costs one header. All errors are answered with
JSON, `{"error": "one line"}`, never with a traceback.

    routes = Routes()
    routes.add("/data/{id}", Data(store))
    authorisation = Authorisation(key.derive)
    listener = listen(reactor, "127.0.0.1:0", SecureSite(reactor, routes, authorisation))
    authorisation.serve_as(str(listener.address))
"""

# Most of twisted.web has no annotations.
# mypy: allow-untyped-calls

from __future__ import annotations

import resource
from http import HTTPStatus
from io import BytesIO
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol

from twisted.internet.address import UNIXAddress
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.protocol import connectionDone
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.web.http import HTTPChannel, datetimeToString, parse_qs
from twisted.web.server import NOT_DONE_YET, Site
from twisted.web.server import Request as TwistedRequest

from ciel.access.addresses import is_loopback
from ciel.access.errors import AccessDeniedError
from ciel.access.keys import Role
from ciel.net.authorisation import Authorisation
from ciel.net.control import describe
from ciel.net.errors import HttpError
from ciel.net.paths import PathTable
from ciel.net.ticks import DelayedCall
from ciel.net.unauthenticated import UnauthenticatedConnections
from ciel.wire import codec
from ciel.wire.errors import DecodeError

BODY_MAX_BYTES: Final = 1024 * 1024
"""The default limit of bodies, which are kept in memory. Routes stream large bodies to a sink."""

LITTLE_MAX_BYTES: Final = 16 * 1024
"""The limit of bodies of requests that only read, of which there may be thousands at a time."""

HEADER_MAX_BYTES: Final = 16 * 1024
HEADERS_MAX: Final = 100
LENGTH_MAX_DIGITS: Final = 1000
"""Python converts no number of more than 4,300 digits."""

HEADER_TIMEOUT_S: Final = 5.0
"""The time from the start of a connection, or the first byte of a further request, to the end of
the header. Slow senders cannot extend it."""

IDLE_TIMEOUT_S: Final = 60.0
"""How long a client may send nothing, between two requests or within a body."""

CONNECTIONS_MAX: Final = 4096
CONNECTIONS_SHARE: Final = 8
"""The limit of authenticated connections is `CONNECTIONS_MAX`, or one for every `CONNECTIONS_SHARE`
file descriptors of the process if that is less. A connection may need one or two more descriptors
for the objects that it reads or uploads. Thousands of clients may wait or be slow at a time.
Unauthenticated connections have their own limit."""

LINGER_S: Final = 2.0
LINGER_MAX_BYTES: Final = 16 * 1024 * 1024
"""How long, and how much of, a body is read and discarded after an early answer. Closing at once
would reset the connection, and the client might lose the answer."""

HEALTH_PATH: Final = b"/healthz"

_PREFIX = "render_"
_log = Logger()


# --- routes ---------------------------------------------------------------------------------------


class BodySink(Protocol):
    """Receives a body as it arrives, for example a store's writer."""

    def write(self, chunk: bytes, /) -> object: ...
    def abort(self) -> object: ...


Answer = bytes | int | Deferred[bytes]
"""A body; a body that follows later; or `NOT_DONE_YET` if the resource itself writes the answer."""


class Route:
    """The resource of one path. It allows the methods for which it has a `render_METHOD`.

    `render_GET(request)` and the like return an `Answer`, or raise `HttpError`. `HEAD` is answered
    by `render_GET` unless there is a `render_HEAD`.
    """

    needs_role: ClassVar[Role] = Role.SUBMIT
    body_limit_bytes: ClassVar[int | None] = BODY_MAX_BYTES
    """None: unlimited, for a route with a sink."""

    def methods(self) -> tuple[str, ...]:
        found = {name.removeprefix(_PREFIX) for name in dir(self) if name.startswith(_PREFIX)}
        return tuple(sorted(found | {"HEAD"} if "GET" in found else found))

    def role_for(self, method: str) -> Role:
        """Return the role that a method needs; for routes where reading needs a lesser role."""
        return self.needs_role

    def limit_for(self, method: str) -> int | None:
        """Return the body limit of a method; for routes where one method accepts large bodies."""
        return LITTLE_MAX_BYTES if method in ("GET", "HEAD") else self.body_limit_bytes

    def body_sink(self, request: Request) -> BodySink | None:
        """Return the sink of this request's body; None to keep the body in `request.content`.

        The request calls this after all checks and before its body is read. Until `render` is
        called, the request aborts the sink after any error: the client disconnects, the body is too
        large, or the sink raises. From then on the resource must commit or abort it.
        """
        return None

    def render(self, request: Request) -> Answer:
        method = request.method.decode()
        if method == "HEAD" and not hasattr(self, f"{_PREFIX}HEAD"):
            method = "GET"
        answer: Answer = getattr(self, _PREFIX + method)(request)
        return answer


class Refusal(Route):
    """A path of the original CIEL that is no longer supported; the answer says what to use."""

    needs_role = Role.READ

    def __init__(self, status: int, reason: str, *methods: str) -> None:
        self._status = status
        self._reason = reason
        self._methods = methods

    def methods(self) -> tuple[str, ...]:
        return self._methods

    def render(self, request: Request) -> Answer:
        raise HttpError(self._status, self._reason)


Routes = PathTable[Route]
"""All routes of a site; iterating yields each path with its route."""


# --- requests -------------------------------------------------------------------------------------


class Request(TwistedRequest):
    """A request with the results of its checks: `role`, the path's `params`, and the `sink`."""

    channel: Any
    content: Any
    site: Any

    if TYPE_CHECKING:  # for authors of resources; Twisted's own methods have no annotations

        def write(self, data: bytes) -> None: ...
        def finish(self) -> None: ...
        def setHeader(self, name: str, value: str) -> None: ...
        def registerProducer(self, producer: Any, streaming: bool) -> None: ...
        def unregisterProducer(self) -> None: ...

    def __init__(self, channel: Any, *args: Any, **options: Any) -> None:
        super().__init__(channel, *args, **options)
        self.defaultContentType = None
        self.role = Role.READ
        self.params: dict[str, str] = {}
        self.sink: BodySink | None = None
        self.refusal: HttpError | None = None
        self._route: Route | None = None
        self._taken_bytes = 0
        self._is_rendering = False
        self._is_disconnected = False
        self._pending: Deferred[bytes] | None = None

    def json(self) -> Any:
        """Decode the body as JSON; a body that is not JSON is answered with 400."""
        try:
            return codec.decode(self.content.read())
        except DecodeError as error:
            raise HttpError(400, f"the body: {error}") from None

    def reply(self, value: object, status: int = 200) -> bytes:
        """Make a JSON answer, which the resource returns."""
        self.setResponseCode(status, HTTPStatus(status).phrase.encode())
        self.setHeader("Content-Type", "application/json")
        return codec.encode(value) + b"\n"

    # The following methods are called by the channel.

    def check_header(
        self, method: bytes, target: bytes, version: bytes, length: int | None
    ) -> None:
        """Check the header; set `refusal` unless the request passes all checks."""
        self.method, self.uri, self.clientproto = method, target, version
        self.path, _, query = target.partition(b"?")
        self.args = parse_qs(query, 1)
        self.content = BytesIO()
        try:
            self._check_request(method.decode("latin-1"), target.decode("latin-1"), length)
        except HttpError as error:
            self.refusal = error
        except Exception:
            self.refusal = self._failed()

    def handleContentChunk(self, data: bytes) -> None:
        if self.refusal is not None or self._route is None:
            return
        self._taken_bytes += len(data)
        try:
            self._check_size(self._route, self._taken_bytes)
            (self.content if self.sink is None else self.sink).write(data)
        except Exception as error:
            self.refusal = error if isinstance(error, HttpError) else self._failed()
            self._abort_sink()
            self.channel.end_body_early()

    def requestReceived(self, command: bytes, path: bytes, version: bytes) -> None:
        for name, value in ("Server", "ciel"), ("X-Content-Type-Options", "nosniff"):
            self.setHeader(name, value)
        self.setHeader("Date", datetimeToString())
        if self.refusal is not None or self._route is None:
            self._answer_error(self.refusal or self._failed())
            return
        self.content.seek(0)
        self._is_rendering = True
        try:
            self._answer(self._route.render(self))
        except Exception:
            self.processingFailed(Failure())

    def processingFailed(self, reason: Failure) -> None:
        """Answer after a resource raised: with its `HttpError`, or 500 for any other exception."""
        error = reason.value
        if self._is_disconnected and isinstance(error, CancelledError):
            return
        if not isinstance(error, HttpError):
            error = self._failed(reason)
        if self._is_disconnected:
            return
        if self.startedWriting:
            self.channel.forceAbortClient()  # a truncated body tells the client of the error
        else:
            self._answer_error(error)

    def connectionLost(self, reason: Failure) -> None:
        self._is_disconnected = True
        if not self._is_rendering:
            self._abort_sink()
        super().connectionLost(reason)
        if self._pending is not None:
            self._pending.cancel()

    def _check_request(self, method: str, target: str, length: int | None) -> None:
        authorisation: Authorisation = self.site.authorisation
        if self.site.open_healthz and self.path == HEALTH_PATH:
            self.role = Role.READ
        else:
            try:
                self.role = self._prove_role(authorisation, method, target)
            except AccessDeniedError as error:
                raise HttpError(401, str(error), WWW_Authenticate="Bearer") from None
            self.channel.is_unproven = False
        hosts = self.requestHeaders.getRawHeaders(b"Host", [])
        if len(hosts) != 1 or not authorisation.is_named_by(hosts[0].decode("latin-1")):
            raise HttpError(421, "the Host header of the request does not name this daemon")
        for name, values in self.requestHeaders.getAllRawHeaders():
            if not all(_is_utf8(value) for value in values):
                raise HttpError(400, f"the header {name.decode('latin-1')!a:.60} is not UTF-8")
        found = self.site.routes.find(self.path)
        if found is None:
            raise HttpError(404, "no resource has this path")
        route, self.params = found
        if not self.role.permits(needed := route.role_for(method)):
            wanted = "the cluster's own" if needed is Role.ADMIN else f"a {needed} key"
            raise HttpError(403, f"a {self.role} key may not use this; it requires {wanted}")
        if method not in (allowed := route.methods()):
            names = ", ".join(allowed)
            raise HttpError(405, f"only {names} are allowed here", Allow=names)
        self._check_size(route, length or 0)
        self.sink = route.body_sink(self)
        self._route = route

    def _prove_role(self, authorisation: Authorisation, method: str, target: str) -> Role:
        """Return the role that the header proves, or raise `AccessDeniedError`."""
        is_local = _is_local(self.client)
        authorization = self.requestHeaders.getRawHeaders(b"Authorization", [b""])
        proof = authorization[0].decode("latin-1") if len(authorization) == 1 else ""
        if not proof and authorisation.browsers is not None:
            cookie = b"; ".join(self.requestHeaders.getRawHeaders(b"Cookie", [])).decode("latin-1")
            ticket = self.args.get(b"ticket", [b""])[0].decode("latin-1")
            if authorisation.admit_browser(method, target, cookie, ticket, is_local=is_local):
                return Role.READ
        return authorisation.admit(proof, method, target, is_local=is_local)

    def _check_size(self, route: Route, size_bytes: int) -> None:
        limit_bytes = route.limit_for(self.method.decode("latin-1"))
        if limit_bytes is not None and size_bytes > limit_bytes:
            raise HttpError(413, f"the body may have at most {limit_bytes} bytes")

    def _answer(self, answer: Answer) -> None:
        if isinstance(answer, Deferred):
            self._pending = answer
            answer.addCallback(self._answer)
            answer.addErrback(self.processingFailed)
        elif answer is not NOT_DONE_YET and not self._is_disconnected:
            if not isinstance(answer, bytes):
                raise TypeError(f"{type(self._route).__name__} answered a {type(answer).__name__}")
            self.setHeader("Content-Length", str(len(answer)))
            self.write(answer)
            self.finish()

    def _answer_error(self, error: HttpError) -> None:
        for name, value in error.headers.items():
            self.setHeader(name, value)
        self._answer(self.reply({"error": error.reason}, error.status))

    def _failed(self, reason: Failure | None = None) -> HttpError:
        _log.failure(
            "{method!r} {path!r} failed", reason or Failure(), method=self.method, path=self.path
        )
        return HttpError(500, "internal error; see the log of this daemon")

    def _abort_sink(self) -> None:
        sink, self.sink = self.sink, None
        if sink is not None:
            try:
                sink.abort()
            except Exception:
                _log.failure("a sink could not be aborted")


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def _is_local(address: Any) -> bool:
    host = getattr(address, "host", "")
    return isinstance(address, UNIXAddress) or is_loopback(host.removeprefix("::ffff:"))


# --- connections ----------------------------------------------------------------------------------


class _Channel(HTTPChannel):
    """A connection that checks each request before it reads the body."""

    transport: Any
    site: Any

    def __init__(self) -> None:
        super().__init__()
        self.maxHeaders = HEADERS_MAX
        self.totalHeadersSize = self.MAX_LENGTH = HEADER_MAX_BYTES
        self._deadline: DelayedCall | None = None
        self._in_header = True
        self._discards = False
        self._discarded_bytes = 0
        self._answered: Any = None  # a request that was answered while the next one waits
        self.is_unproven = True
        """Whether no request on this connection has shown a key yet."""

    @property
    def is_idle(self) -> bool:
        """Whether it is between two requests, so that closing it harms no request."""
        return self._in_header and self._deadline is None

    def turn_away(self) -> None:
        """Abort this unauthenticated or idle connection to make place for a new one."""
        self.transport.abortConnection()

    def connectionMade(self) -> None:
        super().connectionMade()
        self._await_header()

    def dataReceived(self, data: bytes) -> None:
        if self._discards:
            self._discarded_bytes += len(data)
            if self._discarded_bytes > LINGER_MAX_BYTES:
                self.transport.abortConnection()
            return
        if self._in_header and self._deadline is None:
            self._await_header()
        super().dataReceived(data)

    def rawDataReceived(self, data: bytes) -> None:
        if not self._discards:
            super().rawDataReceived(data)

    def allHeadersReceived(self) -> None:
        self._in_header = False
        self._stop_deadline()
        request: Request = self.requests[-1]
        request.site = self.site
        self.persistent = self.checkPersistence(request, self._version)
        # Twisted would set these attributes of the request only after the body.
        target: Any = self._path
        request.check_header(self._command, target, self._version, self.length)
        if request.refusal is not None:
            if request.refusal.status == 401 or self.length != 0:
                self._discard_body(request)
            self.length = 0  # treat the body as complete, so that Twisted answers now
        elif request.getHeader("Expect") == "100-continue":
            self._send100Continue()

    def _maybeChooseTransferDecoder(self, header: bytes, data: bytes) -> bool:
        """Refuse a length of more digits than Twisted, and Python, can read."""
        if header.lower() == b"content-length" and len(data) > LENGTH_MAX_DIGITS:
            self._respondToBadRequestAndDisconnect()
            return False
        return bool(super()._maybeChooseTransferDecoder(header, data))

    def _respondToBadRequestAndDisconnect(self) -> None:
        """Answer malformed HTTP, such as an invalid chunk. Twisted's own answer has no body."""
        body = codec.encode({"error": "this is not a well-formed HTTP request"}) + b"\n"
        self.transport.write(
            b"HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\nConnection: close\r\n\r\n%s" % (len(body), body)
        )
        self.loseConnection()

    def end_body_early(self) -> None:
        """Answer a request in the middle of its body."""
        self._discard_body(self.requests[-1])
        self.allContentReceived()

    def allContentReceived(self) -> None:
        if not self._handlingRequest:  # otherwise `end_body_early` has done this already
            super().allContentReceived()

    def requestDone(self, request: Any) -> None:
        """Process the next request in a later iteration, after the client has read the answer.

        The next request may have been received already: a thousand requests in one packet must not
        delay other clients.
        """
        self._in_header = True
        if self.persistent and self._dataBuffer:
            self._answered = request
            self.callLater(0, self._take_next)
        else:
            super().requestDone(request)

    def resumeProducing(self) -> None:
        super().resumeProducing()
        if self._answered is not None:
            self.callLater(0, self._take_next)

    def _take_next(self) -> None:
        request = self._answered
        if request is not None and not self._waitingForTransport:
            self._answered = None
            super().requestDone(request)

    def loseConnection(self) -> None:
        if not self._discards:
            super().loseConnection()
        elif self._deadline is None:
            self._networkProducer.unregisterProducer()
            self.transport.loseWriteConnection()
            self.transport.resumeProducing()
            self._deadline = self.callLater(LINGER_S, self.transport.abortConnection)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self.is_unproven = False
        self._answered = None
        self._stop_deadline()
        self.site.channels.discard(self)
        super().connectionLost(reason)

    def _discard_body(self, request: Request) -> None:
        self.persistent = False
        self._discards = True
        request.setHeader("Connection", "close")

    def _await_header(self) -> None:
        self._deadline = self.callLater(HEADER_TIMEOUT_S, self.transport.abortConnection)

    def _stop_deadline(self) -> None:
        if self._deadline is not None and self._deadline.active():
            self._deadline.cancel()
        self._deadline = None


def _default_connections_max() -> int:
    open_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return min(CONNECTIONS_MAX, max(1, open_files // CONNECTIONS_SHARE))


class SecureSite(Site):
    """Serves `routes` to authorised clients. `open_healthz` lets anyone read `/healthz`."""

    protocol: Any = _Channel
    noisy = False

    def __init__(
        self,
        reactor: Any,
        routes: Routes,
        authorisation: Authorisation,
        *,
        open_healthz: bool = False,
        connections_max: int | None = None,
    ) -> None:
        super().__init__(None, Request, timeout=IDLE_TIMEOUT_S, reactor=reactor)
        self.routes = routes
        self.authorisation = authorisation
        self.open_healthz = open_healthz
        self.channels: set[_Channel] = set()
        self._connections_max = connections_max or _default_connections_max()
        self._unauthenticated = UnauthenticatedConnections()

    def startFactory(self) -> None:
        """Do not start Twisted's access log and its clock."""

    def stopFactory(self) -> None:
        """Do nothing, since `startFactory` starts nothing."""

    def buildProtocol(self, addr: Any) -> Any:
        if len(self.channels) >= self._connections_max:
            known = [channel for channel in self.channels if not channel.is_unproven]
            if len(known) >= self._connections_max:
                idle = next((channel for channel in known if channel.is_idle), None)
                if idle is None:
                    return None
                idle.turn_away()
        channel: _Channel = super().buildProtocol(addr)
        self._unauthenticated.let_in(channel)
        self.channels.add(channel)
        return channel

    def log(self, request: Any) -> None:
        _log.debug(
            "{peer} {method!r} {path!r} {status}", peer=describe(request.client),
            method=request.method, path=request.path, status=request.code,
        )  # fmt: skip
