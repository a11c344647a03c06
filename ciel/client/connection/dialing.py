"""Connects to a master, and resumes the session of a lost connection (see `net.sessions`).

It opens a socket, exchanges hellos, and proves the key.
"""

from __future__ import annotations

import contextlib
import errno
import secrets
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from ciel.access.keys import Key, Role
from ciel.client.errors import AccessRefusedError, NoMasterError, NotAMasterError
from ciel.core.masters import NO_BALLOT, Ballot, was_replaced
from ciel.version import __version__
from ciel.wire.errors import RefusedError, RemoteProtocolError
from ciel.wire.frames import Record
from ciel.wire.session import Session

READ_BYTES: Final = 64 << 10


class Line(NamedTuple):
    """An open session on a non-blocking socket.

    `early`: records that arrived with the last bytes of the handshake.
    """

    channel: socket.socket
    session: Session
    early: list[Record]


class Dialer:
    """Opens connections to one master, one at a time, for one session."""

    def __init__(
        self, address: str, key: Key, role: Role, cluster_id: str, about: Mapping[str, Any] | None
    ) -> None:
        self.address = address
        self._others: list[str] = []  # where the master may be when it is not at `address`
        self.can_resume = role is not Role.READ
        """Whether the session continues over another connection. A read-only session does not."""
        self._key = key
        self._role = role
        self._cluster_id = cluster_id
        self._about = dict(about or {})
        self._met = NO_BALLOT  # the master of the latest epoch
        if self.can_resume:
            self._about["session"] = secrets.token_hex(16)

    @property
    def has_others(self) -> bool:
        """Whether the cluster has another master that may take over."""
        return bool(self._others)

    def name(self, addresses: Sequence[str]) -> None:
        """Set the addresses at which a master may be found; the current one stays."""
        self._others = [address for address in addresses if address != self.address]

    def leave_address(self) -> None:
        """Try the current address last, since the master there has become silent."""
        if self._others:
            self._others.append(self.address)
            self.address = self._others.pop(0)

    def dial_any(self, timeout_s: float, received: int | None = None) -> Line:
        """Connect like `dial`, to the first master that answers, and stay with that address."""
        for _ in self._others:
            try:
                return self.dial(timeout_s, received)
            except NoMasterError:
                self.leave_address()
        return self.dial(timeout_s, received)

    def dial(self, timeout_s: float, received: int | None = None) -> Line:
        """Connect and prove the key.

        `received`: resume the session, in which this side has received this many messages; then the
        first of `early` says how many messages the master has received. Returns or raises within
        about `timeout_s`: NoMasterError, NotAMasterError, AccessRefusedError.
        """
        if self._key.derive(self._role) is None:
            why = f"a key for the role {self._key.role} does not prove the role {self._role}"
            advice = "use the cluster's access file, or one with a key for that role"
            raise AccessRefusedError(self.address, f"{why}; {advice}")
        deadline_s = time.monotonic() + timeout_s
        channel = _dial(self.address, timeout_s)
        with contextlib.ExitStack() as undo:
            undo.callback(channel.close)
            about = self._about if received is None else {**self._about, "received": received}
            session = Session.initiator(
                self._key, self._role, software=__version__, cluster_id=self._cluster_id,
                about=about,
            )  # fmt: skip
            early = _greet(self.address, channel, session, deadline_s, received is not None)
            self._meet(session)
            channel.setblocking(False)
            undo.pop_all()
        return Line(channel, session, early)

    def _meet(self, session: Session) -> None:
        """Raise NoMasterError if this client has met a later master than this one.

        It may not know yet that it was replaced. The session has gone on with the later one, so its
        counts of messages mean nothing here.
        """
        about = {} if session.peer is None else session.peer.about
        epoch, url = about.get("epoch"), about.get("url")
        if type(epoch) is not int or not isinstance(url, str):
            return  # a program that is not a master refuses the connection later
        master = Ballot(epoch, url)
        if was_replaced(master, self._met):
            reason = f"{self._met.url} has replaced the master there"
            raise NoMasterError(self.address, reason)
        self._met = max(self._met, master)


def _dial(address: str, timeout_s: float) -> socket.socket:
    try:
        if address.startswith("unix:"):
            name = address.removeprefix("unix:")
            channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            # Not `settimeout`: it makes the socket non-blocking, and then `connect` fails at once
            # while the backlog is full.
            seconds, rest = divmod(timeout_s, 1)
            limit = struct.pack("ll", int(seconds), int(rest * 1e6))
            channel.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
            try:
                channel.connect("\0" + name[1:] if name.startswith("@") else name)
            except OSError:
                channel.close()
                raise
            return channel
        host, _, port = address.rpartition(":")
        channel = socket.create_connection((host.strip("[]"), int(port)), timeout_s)
        channel.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return channel
    except ConnectionRefusedError:
        raise NoMasterError(address, "nothing listens there") from None
    except (TimeoutError, BlockingIOError):
        reason = f"no answer within {timeout_s:g} s"
        raise NoMasterError(address, reason, is_silent=True) from None
    except OSError as error:
        is_silent = error.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ENETDOWN)
        raise NoMasterError(address, error.strerror or str(error), is_silent=is_silent) from None
    except (ValueError, OverflowError):
        raise NoMasterError(address, "that is not an address; expected HOST:PORT") from None


def _greet(
    address: str, channel: socket.socket, session: Session, deadline_s: float, resumes: bool
) -> list[Record]:
    """Perform the handshake; return the records that arrived with its end.

    If the session `resumes`, there is at least one.
    """
    early: list[Record] = []
    seen = b""
    try:
        _write_by(channel, session.data_to_send(), deadline_s)
        while not session.is_open or (resumes and not early):
            channel.settimeout(max(0.001, deadline_s - time.monotonic()))
            data = channel.recv(READ_BYTES)
            if not data:
                raise ConnectionResetError
            seen = seen or data
            early = session.receive(data)
            _write_by(channel, session.data_to_send(), deadline_s)
        return early
    except RefusedError as error:
        with contextlib.suppress(OSError):  # the master logs the refusal
            _write_by(channel, session.data_to_send(), deadline_s)
        raise AccessRefusedError(address, error.reason) from None
    except RemoteProtocolError as error:
        what = "an HTTP server" if seen.startswith(b"HTTP/") else error.reason
        raise NotAMasterError(address, f"another program listens there ({what})") from None
    except TimeoutError:
        reason = "it does not answer: it hangs, or it is not a master"
        raise NotAMasterError(address, reason, is_silent=True) from None
    except (ConnectionResetError, BrokenPipeError):
        raise NotAMasterError(
            address, "it closed the connection: it is about to end, or it is not a master"
        ) from None
    except OSError as error:
        raise NotAMasterError(address, error.strerror or str(error)) from None


def _write_by(channel: socket.socket, data: bytes, deadline_s: float) -> None:
    channel.settimeout(max(0.001, deadline_s - time.monotonic()))
    channel.sendall(data)
