"""Cluster keys: make, derive per role, prove, and the bearer form for HTTP.

A cluster has one random 256-bit key, kept in its access file. Role keys are derived from it, so
that its holder can check every role, while a process that was given only a role key can prove that
role and no other. Nothing here prints, pickles or compares a key in the open.
"""

import hashlib
import hmac
import secrets
from collections.abc import Callable
from enum import StrEnum
from typing import NoReturn, Self

from ciel.access.errors import MalformedKeyError

KEY_BYTES = 32
NONCE_BYTES = 32


class Role(StrEnum):
    """What a peer may do; `ADMIN` is whoever holds the cluster key itself."""

    ADMIN = "admin"
    SUBMIT = "submit"
    WORKER = "worker"
    READ = "read"

    def permits(self, needed: "Role") -> bool:
        return self is Role.ADMIN or self is needed or needed is Role.READ


class Side(StrEnum):
    """Who opened the connection. It is part of every proof, so that none can be sent back."""

    INITIATOR = "initiator"
    ACCEPTOR = "acceptor"

    @property
    def other(self) -> "Side":
        return Side.ACCEPTOR if self is Side.INITIATOR else Side.INITIATOR


class Key:
    """A secret and the role it opens. Only `text()` shows it, for the access file."""

    __slots__ = ("_secret", "role")

    def __init__(self, secret: bytes, role: Role = Role.ADMIN) -> None:
        if len(secret) != KEY_BYTES:
            raise MalformedKeyError
        self._secret = secret
        self.role = role

    @classmethod
    def new(cls) -> Self:
        """Make a cluster key from the system's randomness."""
        return cls(secrets.token_bytes(KEY_BYTES))

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Read what `text()` wrote. Raise `MalformedKeyError` for anything else."""
        role_text, _, digits = text.rpartition("-")
        try:
            role = Role(role_text) if role_text else Role.ADMIN
            secret = bytes.fromhex(digits)
        except ValueError:
            raise MalformedKeyError from None
        if len(digits) != 2 * KEY_BYTES:  # fromhex() takes blanks between digits
            raise MalformedKeyError
        return cls(secret, role)

    def text(self) -> str:
        """Return the secret as text: 64 hexadecimal digits, after `ROLE-` unless a cluster key."""
        digits = self._secret.hex()
        return digits if self.role is Role.ADMIN else f"{self.role}-{digits}"

    def derive(self, role: Role) -> "Key | None":
        """Return the key of `role`; None when this is the key of another role."""
        if role is self.role:
            return self
        if self.role is not Role.ADMIN:
            return None
        # HKDF's expand step. Its extract step is for secrets that are not uniformly random.
        return Key(self.mac("role", role.encode()), role)

    def mac(self, purpose: str, *fields: bytes) -> bytes:
        """Return HMAC-SHA256 of `fields`, each with its length so that no two lists look alike.

        `purpose` keeps what is computed for one use from being accepted in another.
        """
        message = hmac.new(self._secret, digestmod=hashlib.sha256)
        for field in (b"ciel-1", purpose.encode(), *fields):
            message.update(len(field).to_bytes(8, "big"))
            message.update(field)
        return message.digest()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Key):
            return NotImplemented
        return hmac.compare_digest(self._secret, other._secret) and self.role is other.role

    def __hash__(self) -> int:
        return hash((self._secret, self.role))

    def __repr__(self) -> str:
        return f"<Key {self.role} redacted>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a key is neither pickled nor copied")


KeyForRole = Callable[[Role], Key | None]
"""Which key a peer of that role must hold; None where the role is not welcome."""


def proof(key: Key, role: Role, side: Side, nonce_initiator: bytes, nonce_acceptor: bytes) -> bytes:
    """Return what `side` must send to show that it holds the key of `role` now.

    Both nonces make it fresh for both peers; role and side keep one peer's proof from being used
    as another's.
    """
    return key.mac("proof", role.encode(), side.encode(), nonce_initiator, nonce_acceptor)


def matches(expected: bytes, offered: bytes) -> bool:
    """Compare two proofs in constant time."""
    return hmac.compare_digest(expected, offered)


def bearer_header(key: Key) -> str:
    """Return the value of HTTP's `Authorization`; for loopback and TLS only."""
    return f"Bearer {key.text()}"


def bearer_role(header: str, key_for_role: KeyForRole) -> Role | None:
    """Return the role that an `Authorization: Bearer` value proves; None when it proves none."""
    scheme, _, token = header.partition(" ")
    if scheme.lower() != "bearer":
        return None
    try:
        offered = Key.from_text(token.strip())
    except MalformedKeyError:
        return None
    expected = key_for_role(offered.role)
    return offered.role if expected == offered else None
