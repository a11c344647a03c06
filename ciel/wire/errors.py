"""The errors of the wire formats, which also say which side is at fault.

The text of every error is one printable line of limited length without key material, so that it can
be logged and sent to the peer.
"""

from ciel.wire.limits import TEXT_MAX_LENGTH


def one_line(text: str) -> str:
    """Make `text` printable, on one line, and no longer than the limit."""
    shown = "".join(c if c.isprintable() else "?" for c in text[:TEXT_MAX_LENGTH])
    return shown if len(text) <= TEXT_MAX_LENGTH else shown[:-3] + "..."


class WireError(Exception):
    """Root of the errors of `ciel.wire`."""

    def __init__(self, reason: str) -> None:
        self.reason = one_line(reason)
        super().__init__(self.reason)


class EncodeError(WireError):
    """A value cannot be encoded."""


class DecodeError(WireError):
    """Received bytes are malformed."""


class ProtocolError(WireError):
    """A rule of frames or sessions was broken; subclasses say by which side."""


class LocalProtocolError(ProtocolError):
    """This side tried an operation that the protocol does not allow; nothing was sent."""


class RecordTooLargeError(LocalProtocolError):
    """A single record of kind `kind` exceeds the size limit."""

    def __init__(self, kind: str, size_bytes: int, limit_bytes: int) -> None:
        what = f"a record {kind!a} of {size_bytes} bytes"
        super().__init__(f"{what} exceeds the limit of {limit_bytes}")
        self.kind = kind
        self.size_bytes = size_bytes
        self.limit_bytes = limit_bytes


class RemoteProtocolError(ProtocolError):
    """The peer broke a rule; the connection cannot be used any more."""


class ConnectionCutError(RemoteProtocolError):
    """The peer's data ended too early: the connection was lost, without a fault of the peer."""


class FrameTooLargeError(RemoteProtocolError):
    """The peer announced `size_bytes`, more than `limit_bytes`; its data was not buffered."""

    def __init__(self, what: str, size_bytes: int, limit_bytes: int) -> None:
        super().__init__(f"a {what} of {size_bytes} bytes exceeds the limit of {limit_bytes}")
        self.size_bytes = size_bytes
        self.limit_bytes = limit_bytes


class RefusedError(RemoteProtocolError):
    """One side refused the session; both sides get this error with the same text."""

    def __init__(self, reason: str, *, by_peer: bool = False) -> None:
        super().__init__(f"refused: {reason}")
        self.by_peer = by_peer


class VersionMismatchError(RefusedError):
    """The two sides speak different versions of the protocol."""

    def __init__(self, accepting: tuple[int, str], connecting: tuple[int, str]) -> None:
        super().__init__(
            "the accepting side speaks protocol {} (ciel {}), the connecting side protocol {} "
            "(ciel {}); install the same version on both".format(*accepting, *connecting)
        )
        self.accepting = accepting
        self.connecting = connecting


class KeyMismatchError(RefusedError):
    """The two sides hold different keys for `role`."""

    def __init__(self, cluster_id: str, role: str) -> None:
        super().__init__(
            f"the {role} key does not match cluster {cluster_id}; "
            "if its key was rotated, copy its access file again"
        )
        self.cluster_id = cluster_id
        self.role = role
