"""What can be wrong with bytes, and whose fault it is.

The text of every error here is one printable line without key material, cut to a sane length, so
that it may be logged and sent to the peer as it is.
"""

from ciel.wire.limits import TEXT_MAX_LENGTH


def one_line(text: str) -> str:
    """Return `text` fit to be shown: printable, on one line, not longer than the limit."""
    shown = "".join(c if c.isprintable() else "?" for c in text[:TEXT_MAX_LENGTH])
    return shown if len(text) <= TEXT_MAX_LENGTH else shown[:-3] + "..."


class WireError(Exception):
    """Root of this room's errors."""

    def __init__(self, reason: str) -> None:
        self.reason = one_line(reason)
        super().__init__(self.reason)


class EncodeError(WireError):
    """A value of ours has no form on the wire."""


class DecodeError(WireError):
    """Bytes are not what they should be."""


class ProtocolError(WireError):
    """The rules of frames and sessions were broken; use one of the kinds that name the culprit."""


class LocalProtocolError(ProtocolError):
    """We tried what the protocol does not allow, and nothing was sent."""


class RecordTooLargeError(LocalProtocolError):
    """A single record of kind `kind` is larger than any may be."""

    def __init__(self, kind: str, size_bytes: int, limit_bytes: int) -> None:
        super().__init__(f"a record {kind!a} of {size_bytes} bytes exceeds {limit_bytes} bytes")
        self.kind = kind
        self.size_bytes = size_bytes
        self.limit_bytes = limit_bytes


class RemoteProtocolError(ProtocolError):
    """The peer broke the rules; the connection is of no further use."""


class ConnectionCutError(RemoteProtocolError):
    """The peer's bytes ended too early: the connection was lost; the peer said nothing wrong."""


class FrameTooLargeError(RemoteProtocolError):
    """The peer announced `size_bytes` where `limit_bytes` are accepted; none of it was kept."""

    def __init__(self, what: str, size_bytes: int, limit_bytes: int) -> None:
        super().__init__(f"a {what} of {size_bytes} bytes exceeds {limit_bytes} bytes")
        self.size_bytes = size_bytes
        self.limit_bytes = limit_bytes


class RefusedError(RemoteProtocolError):
    """One side will not talk to the other; both hold this error with the same text."""

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
            "if its key was rotated, take its access file again"
        )
        self.cluster_id = cluster_id
        self.role = role
