"""Cluster keys: generation, derivation for roles, proofs, and bearer headers for HTTP.

A cluster has one random 256-bit key, stored in its access file. The keys of roles are derived from
it. So a process with the cluster key can verify every role, and a process with only a role's key
can prove only that role. Keys cannot be printed or pickled, and are compared in constant time.
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
    """The rights of a peer; a process with the cluster key itself has the role `ADMIN`."""

    ADMIN = "admin"
    SUBMIT = "submit"
    WORKER = "worker"
    STANDBY = "standby"
    MEMORY = "memory"
    KV = "kv"
    SERVICE = "service"
    READ = "read"

    def permits(self, needed: "Role") -> bool:
        """Return whether a peer of this role may do what needs another role.

        Tasks have the keys of `KV` and `SERVICE`, which are for key-value bases and for services.
        So these roles permit nothing else.
        """
        if needed is Role.READ:
            return self not in (Role.KV, Role.SERVICE)
        return self is Role.ADMIN or self is needed


class Side(StrEnum):
    """The side of a connection. Every proof contains it, so a peer cannot send a proof back."""

    INITIATOR = "initiator"
    ACCEPTOR = "acceptor"

    @property
    def other(self) -> "Side":
        return Side.ACCEPTOR if self is Side.INITIATOR else Side.INITIATOR


class Key:
    """A secret and its role. Only `text()` reveals the secret, for the access file."""

    __slots__ = ("_secret", "role")

    def __init__(self, secret: bytes, role: Role = Role.ADMIN) -> None:
        if len(secret) != KEY_BYTES:
            raise MalformedKeyError
        self._secret = secret
        self.role = role

    @classmethod
    def new(cls) -> Self:
        """Generate a random cluster key."""
        return cls(secrets.token_bytes(KEY_BYTES))

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Parse the result of `text()`. Raise `MalformedKeyError` for anything else."""
        role_text, _, digits = text.rpartition("-")
        try:
            role = Role(role_text) if role_text else Role.ADMIN
            secret = bytes.fromhex(digits)
        except ValueError:
            raise MalformedKeyError from None
        if len(digits) != 2 * KEY_BYTES:  # fromhex() accepts blanks between digits
            raise MalformedKeyError
        return cls(secret, role)

    def text(self) -> str:
        """Format the secret: 64 hexadecimal digits, after `ROLE-` unless it is a cluster key."""
        digits = self._secret.hex()
        return digits if self.role is Role.ADMIN else f"{self.role}-{digits}"

    def derive(self, role: Role) -> "Key | None":
        """Return the key of `role`; None if this is the key of another role.

        A holder of the key of `SUBMIT` may call services: the key of `SERVICE` derives from it.
        """
        if role is self.role:
            return self
        if role is Role.SERVICE and self.role is Role.ADMIN:
            return Key(self.mac("role", Role.SUBMIT.encode()), Role.SUBMIT).derive(role)
        if role is Role.SERVICE and self.role is Role.SUBMIT:
            return Key(self.mac("role", role.encode()), role)
        if self.role is not Role.ADMIN:
            return None
        # HKDF's expand step. Its extract step is for secrets that are not uniformly random.
        return Key(self.mac("role", role.encode()), role)

    def mac(self, purpose: str, *fields: bytes) -> bytes:
        """Return HMAC-SHA256 of `fields`, each with its length, so that different lists differ.

        `purpose` prevents a result for one purpose from being accepted for another.
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
        raise TypeError("a key cannot be pickled or copied: its secret must stay in this process")


KeyForRole = Callable[[Role], Key | None]
"""Returns the key that a peer of the role must have; None if the role is not accepted."""


def proof(key: Key, role: Role, side: Side, nonce_initiator: bytes, nonce_acceptor: bytes) -> bytes:
    """Return the proof by which `side` shows that it has the key of `role`.

    The nonces of both sides prevent a replay. Role and side prevent a peer from presenting another
    peer's proof as its own.
    """
    return key.mac("proof", role.encode(), side.encode(), nonce_initiator, nonce_acceptor)


def matches(expected: bytes, offered: bytes) -> bool:
    """Compare two proofs in constant time."""
    return hmac.compare_digest(expected, offered)


def bearer_header(key: Key) -> str:
    """Return the value of an `Authorization` header; only for loopback and TLS."""
    return f"Bearer {key.text()}"


def bearer_role(header: str, key_for_role: KeyForRole) -> Role | None:
    """Return the role that an `Authorization: Bearer` value proves; None if it proves none."""
    scheme, _, token = header.partition(" ")
    if scheme.lower() != "bearer":
        return None
    try:
        offered = Key.from_text(token.strip())
    except MalformedKeyError:
        return None
    expected = key_for_role(offered.role)
    return offered.role if expected == offered else None
