"""Sessions: two processes send a hello, prove that they hold the same key, then exchange records.

A session converts received bytes to records, and records to bytes to send. It uses no socket, clock
or thread. The owner of the connection passes received bytes to `receive`, and sends `data_to_send`
after every call, even if the call raised. It closes the connection if the peer has not proved its
key within `HELLO_TIMEOUT_S`:

    session = Session.initiator(key, Role.WORKER, software="0.1.0", about={"slots": 2})
    write(session.data_to_send())
    while not session.is_open:
        records = session.receive(read())      # raises RefusedError if refused
        write(session.data_to_send())
    write(session.send([(["ready"], b"")]))

    initiator                                      acceptor
    hello(version, role, cluster, nonce)  ──▶
                      ◀──  hello(version, role, cluster, nonce), proof
    proof, then any records               ──▶      then any records

The acceptor sends its proof first, which saves a round trip. Its proof cannot be used elsewhere,
because it depends on both nonces, the role and the side. Before the peer has proved its key, at
most `HELLO_MAX_BYTES` are read from it. Each record of the handshake is alone in its frame. Either
side may send `refused` at any time, which ends the session with the same text on both sides.
"""

import secrets
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, Final, NamedTuple, Self, TypeVar

from ciel.access.keys import NONCE_BYTES, Key, KeyForRole, Role, Side, matches, proof
from ciel.wire.errors import (
    ConnectionCutError,
    KeyMismatchError,
    LocalProtocolError,
    RecordTooLargeError,
    RefusedError,
    RemoteProtocolError,
    VersionMismatchError,
)
from ciel.wire.frames import FrameReader, Record, SendableRecord, encode_frames
from ciel.wire.limits import FRAME_MAX_BYTES, HELLO_MAX_BYTES, ID_MAX_LENGTH

PROTOCOL_VERSION: Final = 1

HELLO: Final = "hello"
PROOF: Final = "proof"
REFUSED: Final = "refused"
"""The kinds of record that sessions process themselves."""

_PROOF_FRAME_BYTES: Final = len(encode_frames([([PROOF, "0" * 64], b"")]))

T = TypeVar("T")


class State(Enum):
    """The states of a session; the values say what it waits for."""

    HELLO = "the peer's hello"
    PROOF = "the peer's proof"
    OPEN = "records"
    FAILED = "nothing more"


TRANSITIONS: Final[Mapping[State, Mapping[str, State]]] = {
    State.HELLO: {HELLO: State.PROOF, REFUSED: State.FAILED},
    State.PROOF: {PROOF: State.OPEN, REFUSED: State.FAILED},
    State.OPEN: {REFUSED: State.FAILED},
    State.FAILED: {},
}
"""The records of the handshake that are valid in each state, on both sides. Any other record fails
the session."""


class Hello(NamedTuple):
    """One side's description of itself. `about` is for the owners; the session does not read it.

    Kind and `protocol` are the first fields in every version, so that different versions can refuse
    each other with a message.
    """

    protocol: int
    software: str
    role: Role
    cluster_id: str
    nonce: bytes
    about: Mapping[str, Any]

    def fields(self) -> list[Any]:
        nonce = self.nonce.hex()
        return [HELLO, self.protocol, self.software, self.role, self.cluster_id, nonce, self.about]

    @classmethod
    def from_fields(cls, fields: Sequence[Any]) -> Self:
        """Decode a hello of this protocol version."""
        match fields:
            case [_, int(protocol), str(software), str(role), str(cluster), nonce, dict(about)]:
                pass
            case _:
                raise RemoteProtocolError(f"malformed {HELLO}")
        if max(len(software), len(cluster)) > ID_MAX_LENGTH:
            raise RemoteProtocolError(f"malformed {HELLO}")
        if role not in tuple(Role):
            raise RefusedError(f"there is no role {role[:ID_MAX_LENGTH]!a}")
        return cls(protocol, software, Role(role), cluster, _unhex([nonce], HELLO), about)


class Session:
    """One end of a connection. `receive` raises `RemoteProtocolError` or a subclass.

    `peer` is the peer's hello once the session is open. Before, it is None, because nothing in it
    is proved.
    """

    def __init__(self, side: Side, hello: Hello, key_for_role: KeyForRole) -> None:
        size_bytes = len(encode_frames([(hello.fields(), b"")]))
        if size_bytes + _PROOF_FRAME_BYTES > HELLO_MAX_BYTES:
            raise RecordTooLargeError(HELLO, size_bytes, HELLO_MAX_BYTES - _PROOF_FRAME_BYTES)
        self.side = side
        self._ours = hello
        self._theirs: Hello | None = None
        self._key: Key | None = None
        self._key_for_role = key_for_role
        self._state = State.HELLO
        self._reader = FrameReader(HELLO_MAX_BYTES)
        self._outgoing = bytearray()

    @classmethod
    def initiator(
        cls,
        key: Key,
        role: Role,
        *,
        software: str,
        cluster_id: str = "",
        about: Mapping[str, Any] | None = None,
        nonce: bytes | None = None,
    ) -> Self:
        """Start a session as `role`. With a `cluster_id`, other clusters are refused.

        Raise `LocalProtocolError` if `key` is for another role, or `about` too large for a hello.
        """
        if key.derive(role) is None:
            raise LocalProtocolError(f"a key for {key.role} cannot prove the role {role}")
        nonce = nonce or secrets.token_bytes(NONCE_BYTES)
        hello = Hello(PROTOCOL_VERSION, software, role, cluster_id, nonce, about or {})
        session = cls(Side.INITIATOR, hello, key.derive)
        session._queue(hello.fields())
        return session

    @classmethod
    def acceptor(
        cls,
        key_for_role: KeyForRole,
        *,
        software: str,
        cluster_id: str,
        about: Mapping[str, Any] | None = None,
        nonce: bytes | None = None,
    ) -> Self:
        """Wait for a peer, in any role for which `key_for_role` has a key (use `key.derive`)."""
        nonce = nonce or secrets.token_bytes(NONCE_BYTES)
        # The role is a placeholder until the peer requests one.
        hello = Hello(PROTOCOL_VERSION, software, Role.SUBMIT, cluster_id, nonce, about or {})
        return cls(Side.ACCEPTOR, hello, key_for_role)

    @property
    def is_open(self) -> bool:
        return self._state is State.OPEN

    @property
    def peer(self) -> Hello | None:
        return self._theirs if self._state is State.OPEN else None

    def data_to_send(self) -> bytes:
        """Return the bytes of the handshake to send, once."""
        data = bytes(self._outgoing)
        self._outgoing.clear()
        return data

    def send(self, records: Sequence[SendableRecord]) -> bytes:
        """Return the bytes to send for these records, after pending bytes of the handshake.

        Raise `LocalProtocolError` if the session is not open, or a record is too large.
        """
        if self._state is not State.OPEN:
            raise LocalProtocolError(f"cannot send while waiting for {self._state.value}")
        frames = encode_frames(records)
        return self.data_to_send() + frames if self._outgoing else frames

    def receive(self, data: bytes) -> list[Record]:
        """Process bytes of the peer; return the completed records, none before the session is open.

        After an error nothing more can be received. Records before the error in the same data are
        dropped, as if the connection had been lost a little earlier.
        """
        if self._state is State.FAILED:
            raise LocalProtocolError("the session has failed, nothing can be received")
        try:
            self._reader.feed(data)
            return self._process_frames()
        except RemoteProtocolError as error:
            self._fail(error)
            raise

    def receive_eof(self) -> None:
        """Process the end of the peer's data; raise `ConnectionCutError` if it is too early."""
        if self._state is State.FAILED or (self.is_open and self._reader.is_between_frames):
            return
        expected = self._state.value if self._reader.is_between_frames else "the rest of a frame"
        self._state = State.FAILED
        raise ConnectionCutError(f"the peer closed the connection while we awaited {expected}")

    def refuse(self, reason: str) -> RefusedError:
        """Refuse the session for this reason; return an error that the caller may raise."""
        error = RefusedError(reason)
        self._fail(error)
        return error

    def _fail(self, error: RemoteProtocolError) -> None:
        if self._state is not State.FAILED and not (
            isinstance(error, RefusedError) and error.by_peer
        ):
            self._queue([REFUSED, error.reason.removeprefix("refused: ")])
        self._state = State.FAILED

    def _process_frames(self) -> list[Record]:
        records: list[Record] = []
        while (frame := self._reader.next_frame()) is not None:
            if self._state is not State.OPEN or (len(frame) == 1 and frame[0][0][0] == REFUSED):
                self._process_handshake(frame)
            elif records:
                records += frame
            else:
                records = frame
        return records

    def _process_handshake(self, frame: list[Record]) -> None:
        fields, payload = frame[0]
        kind = fields[0]
        next_state = TRANSITIONS[self._state].get(kind)
        if next_state is None or len(frame) > 1 or payload:
            raise RemoteProtocolError(f"expected {self._state.value}, got something else")
        if kind == HELLO:
            self._process_hello(fields)
        elif kind == PROOF:
            self._process_proof(fields)
        else:
            reason = fields[1] if len(fields) == 2 else "no reason given"
            raise RefusedError(str(reason), by_peer=True)
        self._state = next_state
        self._reader.max_bytes = (
            FRAME_MAX_BYTES if self.is_open else HELLO_MAX_BYTES - self._reader.taken_bytes
        )

    def _process_hello(self, fields: list[Any]) -> None:
        self._check_version(fields)
        theirs = Hello.from_fields(fields)
        if self._ours.cluster_id and theirs.cluster_id not in ("", self._ours.cluster_id):
            accepting, connecting = self._by_side(self._ours.cluster_id, theirs.cluster_id)
            raise RefusedError(
                f"the accepting side is cluster {accepting}, the connecting side looks for "
                f"{connecting}"
            )
        if self.side is Side.INITIATOR and theirs.role is not self._ours.role:
            raise RemoteProtocolError("the peer answers in another role")
        self._key = self._key_for_role(theirs.role)
        if self._key is None:
            raise RefusedError(f"the role {theirs.role} is not accepted here")
        self._theirs = theirs
        if self.side is Side.ACCEPTOR:
            self._queue(self._ours._replace(role=theirs.role).fields())
            self._queue([PROOF, self._proof(Side.ACCEPTOR).hex()])

    def _process_proof(self, fields: list[Any]) -> None:
        offered = _unhex(fields[1:], PROOF)
        assert self._theirs is not None  # TRANSITIONS requires a hello before
        if not matches(self._proof(self.side.other), offered):
            cluster_id, _ = self._by_side(self._ours.cluster_id, self._theirs.cluster_id)
            raise KeyMismatchError(cluster_id, self._theirs.role)
        if self.side is Side.INITIATOR:
            self._queue([PROOF, self._proof(Side.INITIATOR).hex()])

    def _check_version(self, fields: list[Any]) -> None:
        match fields:
            case [_, int(protocol), str(software), *_]:
                pass
            case _:
                raise RemoteProtocolError(f"malformed {HELLO}")
        if protocol != PROTOCOL_VERSION:
            ours = (PROTOCOL_VERSION, self._ours.software)
            theirs = (protocol, software[:ID_MAX_LENGTH])
            raise VersionMismatchError(*self._by_side(ours, theirs))

    def _proof(self, side: Side) -> bytes:
        assert self._theirs is not None  # TRANSITIONS requires a hello before
        assert self._key is not None
        nonce_acceptor, nonce_initiator = self._by_side(self._ours.nonce, self._theirs.nonce)
        return proof(self._key, self._theirs.role, side, nonce_initiator, nonce_acceptor)

    def _by_side(self, ours: T, theirs: T) -> tuple[T, T]:
        """Return the two values in the order acceptor, initiator."""
        return (ours, theirs) if self.side is Side.ACCEPTOR else (theirs, ours)

    def _queue(self, fields: list[Any]) -> None:
        self._outgoing += encode_frames([(fields, b"")])


def _unhex(fields: Sequence[Any], what: str) -> bytes:
    """Decode the only field, which has the length of a nonce or a proof."""
    match fields:
        case [str(text)] if len(text) == 2 * NONCE_BYTES:
            try:
                return bytes.fromhex(text)
            except ValueError:
                pass
    raise RemoteProtocolError(f"malformed {what}")
