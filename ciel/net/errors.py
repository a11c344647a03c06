"""The errors of networking. Every message is one line and names the address or URL at fault."""

from ciel.wire.errors import one_line


class NetError(Exception):
    """Root of the errors of `ciel.net`."""


class AddressError(NetError):
    """A text is not a valid address."""

    def __init__(self, text: str) -> None:
        self.text = text
        super().__init__(f"{text[:80]!a} is not an address: expected HOST:PORT or unix:@NAME")


class ListenError(NetError):
    """This process cannot listen on `address`."""

    def __init__(self, address: str, reason: str) -> None:
        self.address = address
        self.reason = reason
        super().__init__(f"cannot listen on {address}: {reason}")


class ForeignAddressError(ListenError):
    """`address` does not belong to this machine."""


class ConnectError(NetError):
    """A connection to `address` failed; a later attempt may succeed.

    `is_refused`: the host answered that no process listens there.
    """

    def __init__(self, address: str, reason: str, *, is_refused: bool = False) -> None:
        self.address = address
        self.reason = reason
        self.is_refused = is_refused
        super().__init__(f"cannot reach {address}: {reason}")


class TransferError(NetError):
    """A download failed or was incomplete.

    `status` is the HTTP status, 0 without a response. `is_unanswered`: the host did not respond at
    all, so the network may be interrupted.
    """

    def __init__(
        self, url: str, reason: str, status: int = 0, *, is_unanswered: bool = False
    ) -> None:
        self.url = url
        self.reason = one_line(reason)
        self.status = status
        self.is_unanswered = is_unanswered
        answered = f" (HTTP {status})" if status else ""
        super().__init__(f"{url}: {self.reason}{answered}")


class HttpError(NetError):
    """Raised by a resource to answer a request with `status` and a line of text."""

    def __init__(self, status: int, reason: str, **headers: str) -> None:
        self.status = status
        self.reason = one_line(reason)
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}
        super().__init__(f"HTTP {status}: {self.reason}")
