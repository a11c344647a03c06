"""Uploads content to workers."""

from __future__ import annotations

import os
import secrets
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, Final, Protocol, Self

from ciel.access.keys import Key
from ciel.access.settings import MasterLocation
from ciel.client.data.pieces import Limited, ShrunkError
from ciel.client.data.worker_http import (
    ANSWER_MAX_BYTES,
    BadAnswerError,
    Connections,
    authorization,
    is_remote,
    refusal,
    text_of,
)
from ciel.client.errors import UploadError
from ciel.core.events import COPIES_MAX
from ciel.core.ids import UPLOAD_PREFIX, ObjectId
from ciel.core.refs import (
    INLINE_MAX_BYTES,
    Concrete,
    Reference,
    Sweetheart,
    Value,
    locations_of,
    merge,
)
from ciel.wire import codec
from ciel.wire.references import from_json

REPLICAS: Final = 2
"""How many workers get an upload by default, since no task can recompute it."""
_KNOWN_FOR_S: Final = 5.0  # after this time the list of workers is queried again


def upload_id() -> ObjectId:
    """Return the id of a new object that no task produces."""
    return ObjectId(f"{UPLOAD_PREFIX}{secrets.token_hex(16)}")


def checked_copies(copies: Any) -> int:
    """Return a number of copies; raises TypeError, ValueError."""
    if not isinstance(copies, int) or isinstance(copies, bool):
        raise TypeError(f"copies must be a number, not {copies!r:.80}")
    if not 1 <= copies <= COPIES_MAX:
        raise ValueError(f"copies must be 1 to {COPIES_MAX}, not {copies}")
    return copies


def upload_file(
    file: IO[bytes],
    name: str,
    netlocs: Sequence[str],
    key: Key,
    connections: Connections,
    copies: int = REPLICAS,
) -> Reference:
    """Upload the rest of `file` to the first workers that accept it; return its reference.

    As many workers receive it as there are `copies`, or all workers if there are fewer. Content
    below 1,024 bytes is not uploaded: the reference contains it. Raises UploadError.
    """
    object_id = upload_id()
    start = file.read(INLINE_MAX_BYTES + 1)
    if len(start) <= INLINE_MAX_BYTES:
        return Value.of(object_id, start)
    if not file.seekable():
        raise UploadError(
            name, "it is larger than 1,023 bytes and not a regular file; copy it to a file first"
        )
    origin = file.tell() - len(start)
    size_bytes = file.seek(0, os.SEEK_END) - origin
    found: Reference | None = None
    reasons = []
    for netloc in netlocs:
        try:
            ref = _upload(netloc, object_id, (file, origin, size_bytes), key, connections)
        except ShrunkError as error:
            raise UploadError(name, str(error)) from None
        except Exception as error:
            if not is_remote(error):
                raise
            reasons.append(f"{netloc}: {text_of(error)}")
            continue
        found = ref if found is None else merge(found, ref)
        if len(locations_of(found)) >= min(copies, len(netlocs)):
            break
    if found is None:
        raise UploadError(name, "; ".join(reasons) or "the cluster has no worker")
    return found


def _upload(
    netloc: str,
    object_id: str,
    content: tuple[IO[bytes], int, int],
    key: Key,
    connections: Connections,
) -> Reference:
    target = f"/control/data/{object_id}"

    def headers() -> dict[str, str]:
        return authorization(key, "POST", netloc, target) | {
            "Content-Length": str(content[2]),
            "Content-Type": "application/octet-stream",
        }

    connection, answer = connections.request(
        netloc, "POST", target, headers, lambda: Limited(*content)
    )
    try:
        if answer.status != 201:
            raise refusal(answer)
        body = answer.read(ANSWER_MAX_BYTES)
    finally:
        connections.release(netloc, connection, answer)
    ref = from_json(codec.decode(body))
    if not isinstance(ref, Concrete | Sweetheart | Value) or ref.id != object_id:
        raise BadAnswerError("the worker answered with the reference of another object")
    return ref


def upload_order(workers: Sequence[dict[str, Any]]) -> list[str]:
    """Return the addresses of workers, in the order in which a client tries to upload to them.

    Workers that are about to leave come last. One worker of each host comes first, so that the
    copies of an object are on different hosts.
    """
    ordered = sorted(workers, key=lambda w: (bool(w.get("draining")), w["queued"]))
    on_host: Counter[str] = Counter()
    ranks = []
    for worker in ordered:
        host = worker.get("host", "")
        ranks.append((bool(worker.get("draining")), on_host[host]))
        on_host[host] += 1
    places = sorted(range(len(ordered)), key=ranks.__getitem__)
    return [ordered[place]["netloc"] for place in places]


class Uploader(Protocol):
    """The part of a client that `Uploads` uses."""

    location: MasterLocation

    def ask(self, topic: str) -> Any: ...


class Uploads:
    """Uploads many files, and distributes them over the workers in turn."""

    def __init__(self, client: Uploader) -> None:
        self._client = client
        self._netlocs: list[str] = []
        self._queried_s = -_KNOWN_FOR_S
        self._connections = Connections()
        self._next = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._connections.close()

    def add(self, file: IO[bytes], name: str, copies: int = REPLICAS) -> Reference:
        """Upload the rest of `file`; raises UploadError."""
        netlocs = self._in_turn()
        key = self._client.location.key
        ref = upload_file(file, name, netlocs, key, self._connections, copies)
        self._next += copies
        return ref

    def add_path(self, path: Path, copies: int) -> Reference:
        """Upload a file; raises OSError, UploadError."""
        with path.open("rb") as file:
            return self.add(file, str(path), copies)

    def _in_turn(self) -> list[str]:
        now_s = time.monotonic()
        if not self._netlocs or now_s - self._queried_s >= _KNOWN_FOR_S:
            self._netlocs, self._queried_s = upload_order(self._client.ask("workers")), now_s
        first = self._next % len(self._netlocs) if self._netlocs else 0
        return self._netlocs[first:] + self._netlocs[:first]
