"""Serves the named tables of a cluster to clients of Arrow Flight.

A named table is a stored object that is a table in the format of `arrow_tables`. The server reads
tables where they are; it unpickles nothing. Each call needs a key of the cluster as a bearer token,
or as the password of a login.
"""

from __future__ import annotations

import base64
import binascii
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import pyarrow
from pyarrow import flight

from ciel.access.keys import Key, Role, bearer_role
from ciel.client.client import Client
from ciel.client.data.uploads import REPLICAS
from ciel.client.errors import ConnectionLostError, NoMasterError, QueryError
from ciel.core.errors import CielError
from ciel.core.refs import Concrete, Reference, Sweetheart, Value
from ciel.python import arrow_tables
from ciel.wire.references import from_json, to_json

_GATE: Final = "gate"
_FIRST_BYTES: Final = 64
_DESCRIPTOR_MAX_BYTES: Final = 64 << 20
_KNOWN_MAX: Final = 10_000
"""The server remembers the schemas of this many tables."""
NAME_MAX_LENGTH: Final = 200


class _Facts(NamedTuple):
    """The schema of a table, its rows, and the bytes of its columns."""

    schema: pyarrow.Schema
    rows: int
    size_bytes: int


class TableServer(flight.FlightServerBase):  # type: ignore[misc]  # pyarrow is not typed
    """A server of Arrow Flight. It serves from its creation until `shutdown`.

    `location`: such as `grpc://127.0.0.1:8815`. `certificates`: pairs of a certificate and its key,
    for TLS. Tables that clients put are stored on `copies` workers.
    """

    def __init__(
        self,
        client: Client,
        location: str,
        *,
        certificates: list[tuple[bytes, bytes]] | None = None,
        copies: int = REPLICAS,
    ) -> None:
        gate = _Gate(client.location.key.derive)
        super().__init__(
            location, auth_handler=_Handshake(), tls_certificates=certificates,
            middleware={_GATE: gate},
        )  # fmt: skip
        self._client = client
        self._copies = copies
        self._lock = threading.Lock()
        self._known: dict[str, _Facts | None] = {}

    # --- reading ----------------------------------------------------------------------------------

    def list_flights(self, context: Any, criteria: bytes) -> Iterator[flight.FlightInfo]:
        """Yield the named tables; `criteria` is the start of their names."""
        start = criteria.decode(errors="replace")
        with _translated():
            for row in self._kept():
                if not (row["name"] or "").startswith(start) or row["state"] != "there":
                    continue
                ref = self._find(row["object"])
                if (facts := self._facts_of(ref)) is not None:
                    yield _info(row["name"], ref, facts)

    def get_flight_info(
        self, context: Any, descriptor: flight.FlightDescriptor
    ) -> flight.FlightInfo:
        """Return the schema of a table, and the ticket for it.

        The path of the descriptor is the name of the table, or whatever `ciel object info` accepts.
        """
        name = _name_in(descriptor)
        with _translated():
            ref = self._find(name)
            return _info(name, ref, self._require_facts(name, ref))

    def get_schema(self, context: Any, descriptor: flight.FlightDescriptor) -> flight.SchemaResult:
        """Return the schema of a table."""
        name = _name_in(descriptor)
        with _translated():
            return flight.SchemaResult(self._require_facts(name, self._find(name)).schema)

    def do_get(self, context: Any, ticket: flight.Ticket) -> flight.RecordBatchStream:
        """Send the record batches of a table."""
        name = ticket.ticket.decode(errors="replace")
        with _translated():
            ref = self._find(name)
            self._require_facts(name, ref)
            found = arrow_tables.read(memoryview(self._content(ref)))
        if isinstance(found, pyarrow.RecordBatch):
            found = pyarrow.Table.from_batches([found])
        return flight.RecordBatchStream(found)

    def _kept(self) -> Iterator[dict[str, Any]]:
        """Yield the descriptions of stored objects."""
        first: int | None = 0
        while first is not None:
            page = self._client.ask("objects", {"first": first, "kept": True})
            yield from page["objects"]
            first = page["next"]

    def _find(self, name: str) -> Reference:
        """Return the reference to an object that exists; raises QueryError."""
        facts = from_json(self._client.ask("object", {"object": name}))
        ref: Reference = facts["reference"]
        if not isinstance(ref, Value | Concrete | Sweetheart):
            raise pyarrow.ArrowKeyError(f"{name} does not exist now: it is {facts['state']}")
        return ref

    def _require_facts(self, name: str, ref: Reference) -> _Facts:
        facts = self._facts_of(ref)
        if facts is None:
            raise pyarrow.ArrowInvalid(f"{name} is not a table of Arrow")
        return facts

    def _facts_of(self, ref: Reference) -> _Facts | None:
        """Return what the descriptor in an object says; None if the object is not a table."""
        with self._lock:
            if ref.id in self._known:
                return self._known[ref.id]
        facts = self._read_facts(ref)
        with self._lock:
            if len(self._known) >= _KNOWN_MAX:
                self._known.clear()
            self._known[ref.id] = facts
        return facts

    def _read_facts(self, ref: Reference) -> _Facts | None:
        whole_bytes = _size_of(ref)
        start = self._read(ref, 0, min(_FIRST_BYTES, whole_bytes))
        if not start.startswith(arrow_tables.MAGIC):
            return None
        offset, size_bytes = arrow_tables.place_of_descriptor(start, whole_bytes)
        if size_bytes > _DESCRIPTOR_MAX_BYTES:
            return None
        descriptor = self._read(ref, offset, offset + size_bytes)
        layout = arrow_tables.layout_of(descriptor, whole_bytes)
        empty = arrow_tables.choose(layout, layout.names, 0, 0).descriptor
        head = arrow_tables.header(len(arrow_tables.header(0, 0)), len(empty))
        schema = arrow_tables.read(memoryview(head + empty)).schema
        return _Facts(schema, layout.rows, sum(sum(c.sizes_bytes) for c in layout.chunks))

    def _read(self, ref: Reference, start: int, end: int) -> bytes:
        return b"".join(self._client.read_chunks(ref, start, end)) if end > start else b""

    def _content(self, ref: Reference) -> Any:
        """Map an object of this host, or read it."""
        mapped = None if isinstance(ref, Value) else self._client.map_object(ref)
        return self._client.read(ref) if mapped is None else mapped

    # --- changes ----------------------------------------------------------------------------------

    def do_put(
        self,
        context: Any,
        descriptor: flight.FlightDescriptor,
        reader: flight.MetadataRecordBatchReader,
        writer: flight.FlightMetadataWriter,
    ) -> None:
        """Store a table under a name. It replaces stored tables that had the name before."""
        _require(context, Role.SUBMIT)
        name = _name_in(descriptor)
        if len(name) > NAME_MAX_LENGTH:
            raise pyarrow.ArrowInvalid(f"a name has at most {NAME_MAX_LENGTH} characters")
        table = reader.read_all()
        if not arrow_tables.is_table(table):
            raise pyarrow.ArrowInvalid("a type of the table is defined in Python")
        with _translated():
            before = [row["object"] for row in self._named(name)]
            pieces = arrow_tables.encode(table, 0.0)
            ref = self._client.upload_pieces(pieces, name, self._copies)
            what = {"name": name, "reference": to_json(ref), "copies": self._copies}
            self._client.change("keep", what)
            for object_id in before:
                self._client.change("discard", {"object": object_id})

    def list_actions(self, context: Any) -> list[tuple[str, str]]:
        """List the actions."""
        return [("drop", "remove the table that the body names")]

    def do_action(self, context: Any, action: flight.Action) -> Iterator[flight.Result]:
        """Carry out an action."""
        _require(context, Role.SUBMIT)
        if action.type != "drop":
            raise pyarrow.ArrowKeyError(f"there is no action {action.type!r}")
        name = action.body.to_pybytes().decode(errors="replace")
        with _translated():
            found = [row["object"] for row in self._named(name)]
            if not found:
                raise pyarrow.ArrowKeyError(f"there is no table {name!r}")
            for object_id in found:
                self._client.change("discard", {"object": object_id})
        return iter(())

    def _named(self, name: str) -> list[dict[str, Any]]:
        """Return the stored tables with a name. Other objects may have the same name."""
        rows = [row for row in self._kept() if row["name"] == name and row["state"] == "there"]
        return [row for row in rows if self._facts_of(self._find(row["object"])) is not None]


def _info(name: str, ref: Reference, facts: _Facts) -> flight.FlightInfo:
    return flight.FlightInfo(
        facts.schema,
        flight.FlightDescriptor.for_path(name),
        [flight.FlightEndpoint(ref.id, [])],
        facts.rows,
        facts.size_bytes,
    )


def _size_of(ref: Reference) -> int:
    return len(ref.content) if isinstance(ref, Value) else getattr(ref, "size_bytes", None) or 0


def _name_in(descriptor: flight.FlightDescriptor) -> str:
    """Return the name in a descriptor; raises ArrowInvalid."""
    if descriptor.descriptor_type == flight.DescriptorType.PATH and descriptor.path:
        name = b"/".join(descriptor.path).decode(errors="replace")
    else:
        name = (descriptor.command or b"").decode(errors="replace")
    if not name:
        raise pyarrow.ArrowInvalid("the descriptor names no table: set its path")
    return name


@contextmanager
def _translated() -> Iterator[None]:
    """Raise errors of ciel as the errors of Flight that clients distinguish."""
    try:
        yield
    except QueryError as error:
        raise pyarrow.ArrowKeyError(str(error)) from None
    except (ConnectionLostError, NoMasterError) as error:
        raise flight.FlightUnavailableError(str(error)) from None
    except CielError as error:
        raise flight.FlightServerError(str(error)) from None


# --- access ---------------------------------------------------------------------------------------


class _Gate(flight.ServerMiddlewareFactory):  # type: ignore[misc]  # as above
    """Admits calls with a key of the cluster."""

    def __init__(self, key_for_role: Callable[[Role], Key | None]) -> None:
        super().__init__()
        self._key_for_role = key_for_role

    def start_call(self, info: Any, headers: dict[str, list[str]]) -> _Admitted:
        for header in headers.get("authorization", ()):
            bearer = _bearer_of(header)
            if (role := bearer_role(bearer, self._key_for_role)) is not None:
                return _Admitted(role, bearer)
        raise flight.FlightUnauthenticatedError(
            "a call needs a key of the cluster as its bearer token; `ciel key submit` prints one"
        )


class _Admitted(flight.ServerMiddleware):  # type: ignore[misc]  # as above
    """The role of the caller."""

    def __init__(self, role: Role, bearer: str) -> None:
        super().__init__()
        self.role = role
        self._bearer = bearer

    def sending_headers(self) -> dict[str, str]:
        return {"authorization": self._bearer}  # a login gets its token by this header


class _Handshake(flight.ServerAuthHandler):  # type: ignore[misc]  # as above
    """Lets the gate decide about logins, too."""

    def authenticate(self, outgoing: Any, incoming: Any) -> None:
        """Do nothing."""

    def is_valid(self, token: bytes) -> str:
        """Do nothing."""
        return ""


def _bearer_of(header: str) -> str:
    """Return the bearer token for a login, whose password is the key; other headers as they are."""
    scheme, _, encoded = header.partition(" ")
    if scheme.lower() != "basic":
        return header
    try:
        _, _, password = base64.b64decode(encoded, validate=True).decode().partition(":")
    except (binascii.Error, ValueError):
        return ""
    return f"Bearer {password}"


def _require(context: Any, role: Role) -> None:
    """Refuse a caller without a role."""
    if not context.get_middleware(_GATE).role.permits(role):
        raise flight.FlightUnauthorizedError(f"this needs a key of the role {role}")
