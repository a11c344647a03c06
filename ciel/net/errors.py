"""What can go wrong between two processes. Every message is one line and names who is to blame."""

from ciel.wire.errors import one_line


class NetError(Exception):
    """Root of this room's errors."""


class AddressError(NetError):
    """A text is no address of ours."""

    def __init__(self, text: str) -> None:
        self.text = text
        super().__init__(f"{text[:80]!a} is no address: expected HOST:PORT or unix:@NAME")


class ListenError(NetError):
    """Nobody can reach us at `address`."""

    def __init__(self, address: str, reason: str) -> None:
        self.address = address
        self.reason = reason
        super().__init__(f"cannot listen on {address}: {reason}")


class ForeignAddressError(ListenError):
    """`address` is nowhere on this machine."""


class ConnectError(NetError):
    """Nobody was reached at `address`; trying again later may help. `is_refused`: its host answered
    that no process listens there.
    """

    def __init__(self, address: str, reason: str, *, is_refused: bool = False) -> None:
        self.address = address
        self.reason = reason
        self.is_refused = is_refused
        super().__init__(f"cannot reach {address}: {reason}")


class TransferError(NetError):
    """Bytes did not arrive whole. `status` is the server's answer, 0 if there was none.
    `is_unanswered`: its host did not answer at all, so it may be cut off for a while.
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
    """Raised by a resource to answer a request with `status` and one line of text."""

    def __init__(self, status: int, reason: str, **headers: str) -> None:
        self.status = status
        self.reason = one_line(reason)
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}
        super().__init__(f"HTTP {status}: {self.reason}")
