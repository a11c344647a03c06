"""A base in an etcd of version 3, by its gateway for HTTP and JSON.

A batch reads its keys, and then writes in a transaction that compares their revisions. etcd keeps
earlier revisions, so a snapshot is a number. It accepts at most 128 comparisons in a transaction.
"""

from __future__ import annotations

import http.client
import math
import socket
import threading
from base64 import b64decode, b64encode
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple
from urllib.parse import SplitResult

import orjson

from ciel.access.keys import Key
from ciel.state.bases.of_server import TIMEOUT_S, ServerBase
from ciel.state.batches import (
    Overlay,
    Request,
    Result,
    Row,
    SameRange,
    Step,
    carry_out_once,
    check,
    end_of_prefix,
    keys_of,
)
from ciel.state.errors import BaseUrlError, KvError, LimitError
from ciel.state.interface import Base, Capabilities, Snapshot, Watch, end_of_scan

STEPS_MAX: Final = 120
BATCH_BYTES: Final = 1_400_000
"""etcd accepts requests of 1.5 MiB."""
_PAGE_ROWS: Final = 1000


class _Stored(NamedTuple):
    """A row, and the revision in which it was written last; 0 if it is missing."""

    value: bytes | None
    revision: int


class EtcdBase(ServerBase):
    """A client of etcd. Lifetimes are whole seconds, and etcd makes short ones longer."""

    capabilities = Capabilities(steps_max=STEPS_MAX, batch_max_bytes=BATCH_BYTES)
    lost = (OSError, http.client.HTTPException)

    def __init__(self, host: str, port: int, timeout_s: float = TIMEOUT_S) -> None:
        super().__init__(f"the etcd at {host}:{port}", timeout_s)
        self.address = host, port
        self._idle: list[http.client.HTTPConnection] = []

    def close(self) -> None:
        super().close()
        while self._idle:
            self._idle.pop().close()

    def read(self, keys: Sequence[bytes]) -> list[bytes | None]:
        found: list[bytes | None] = []
        if len(keys) <= STEPS_MAX:
            return [stored.value for stored in self._read(keys)[0]]
        revision = self._revision()
        for key in keys:
            found.append(self.get_at(key, revision))
        return found

    def apply(self, steps: Sequence[Step], request: Request | None = None) -> list[Result]:
        check(steps, BATCH_BYTES)
        if len(steps) > STEPS_MAX:
            raise LimitError(f"{self.name} carries out at most {STEPS_MAX} steps together")
        own = request or self._numbers.next()
        while (results := self._try(steps, own)) is None:
            pass
        return results

    def _try(self, steps: Sequence[Step], request: Request) -> list[Result] | None:
        """Carry out a batch; return None if a key has changed meanwhile."""
        keys = keys_of(steps, request)
        found, revision = self._read(keys)
        rows = dict(zip(keys, found, strict=True))
        view = Overlay(
            lambda key: rows[key].value, lambda first, last: self.rows_at(first, last, revision)
        )
        results = carry_out_once(steps, view, request)
        compared = [_compare(key, stored.revision) for key, stored in rows.items()]
        for step in steps:
            if isinstance(step, SameRange):
                compared += self._compare_range(step, revision)
        written = [self._operation(key, new) for key, new in view.writes.items()]
        answer = self.call("kv/txn", {"compare": compared, "success": written})
        return results if answer.get("succeeded") else None

    def _compare_range(self, step: SameRange, revision: int) -> list[Any]:
        """Return comparisons by which a range has the same rows as in a revision."""
        range_ = _range(step.first, step.last)
        compared = [{**range_, "target": "MOD", "result": "LESS", "mod_revision": revision + 1}]
        for key, stored in self._pages(step.first, step.last, revision):
            compared.append(_compare(key, stored.revision))
            if len(compared) > STEPS_MAX // 2:
                raise LimitError(f"{self.name} compares at most {STEPS_MAX // 2} rows of ranges")
        return compared

    def _operation(self, key: bytes, new: tuple[bytes, float | None] | None) -> Any:
        if new is None:
            return {"request_delete_range": {"key": _text(key)}}
        value, ttl_s = new
        put: dict[str, Any] = {"key": _text(key), "value": _text(value)}
        if ttl_s == Overlay.KEPT:
            put["ignore_lease"] = True
        elif ttl_s is not None:
            put["lease"] = self.call("lease/grant", {"TTL": max(1, math.ceil(ttl_s))})["ID"]
        return {"request_put": put}

    def scan(self, first: bytes = b"", last: bytes | None = None) -> Iterator[Row]:
        return self.rows_at(first, last, 0)

    def snapshot(self) -> Snapshot:
        return _Revision(self, self._revision())

    def watch(self, prefix: bytes) -> Watch:
        return _Stream(self, prefix, self._revision() + 1)

    def rows_at(self, first: bytes, last: bytes | None, revision: int) -> Iterator[Row]:
        """Yield rows as of a revision; 0: each page as of now."""
        for key, stored in self._pages(first, last, revision):
            yield key, stored.value or b""

    def get_at(self, key: bytes, revision: int) -> bytes | None:
        """Return a value as of a revision."""
        found = self.call("kv/range", {"key": _text(key), "revision": revision}).get("kvs", ())
        return b64decode(found[0].get("value", "")) if found else None

    def _pages(
        self, first: bytes, last: bytes | None, revision: int
    ) -> Iterator[tuple[bytes, _Stored]]:
        while True:
            asked = {**_range(first, last), "limit": _PAGE_ROWS, "revision": revision}
            answer = self.call("kv/range", asked)
            rows = answer.get("kvs", ())
            for row in rows:
                stored = _Stored(b64decode(row.get("value", "")), int(row["mod_revision"]))
                yield b64decode(row["key"]), stored
            if not answer.get("more"):
                return
            first = b64decode(rows[-1]["key"]) + b"\0"

    def _read(self, keys: Sequence[bytes]) -> tuple[list[_Stored], int]:
        """Return rows at one moment, and the revision of that moment."""
        asked = [{"request_range": {"key": _text(key)}} for key in keys]
        answer = self.call("kv/txn", {"success": asked})
        found: list[_Stored] = []
        for response in answer.get("responses", ()):
            rows = response["response_range"].get("kvs", ())
            value = b64decode(rows[0].get("value", "")) if rows else None
            found.append(_Stored(value, int(rows[0]["mod_revision"]) if rows else 0))
        return found, int(answer["header"]["revision"])

    def _revision(self) -> int:
        answer = self.call("kv/range", {"key": _text(b"\0"), "count_only": True})
        return int(answer["header"]["revision"])

    # --- HTTP -------------------------------------------------------------------------------------

    def call(self, path: str, body: Any) -> Any:
        """Return the answer to a request; raises KvError."""
        return self.persist(lambda: self._post(path, body))

    def _post(self, path: str, body: Any) -> Any:
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = http.client.HTTPConnection(*self.address, timeout=self._timeout_s)
        try:
            connection.request("POST", f"/v3/{path}", orjson.dumps(body))
            response = connection.getresponse()
            content = response.read()
        except self.lost:
            connection.close()
            raise
        if self._is_closed:
            connection.close()
        else:
            self._idle.append(connection)
        if response.status != http.client.OK:
            raise KvError(f"{self.name}: {_error_of(content)}")
        return orjson.loads(content)


class _Revision(Snapshot):
    def __init__(self, base: EtcdBase, revision: int) -> None:
        self._base = base
        self._revision = revision

    def get(self, key: bytes) -> bytes | None:
        return self._base.get_at(key, self._revision)

    def rows(self, first: bytes = b"", last: bytes | None = None) -> Iterator[Row]:
        return self._base.rows_at(first, last, self._revision)


class _Stream(Watch):
    """A thread reads the reports of etcd on a separate connection."""

    def __init__(self, base: EtcdBase, prefix: bytes, revision: int) -> None:
        self._base = base
        self._asked = {"create_request": {**_range(prefix, end_of_prefix(prefix)),
                                          "start_revision": revision}}  # fmt: skip
        self._changed = threading.Event()
        self._is_closed = False
        self._connection = http.client.HTTPConnection(*base.address)
        self._thread = threading.Thread(target=self._run, name="ciel-etcd-watch", daemon=True)
        self._thread.start()

    def wait(self, timeout_s: float | None = None) -> bool:
        self._base.check_open()
        found = self._changed.wait(timeout_s)
        self._changed.clear()
        return found

    def close(self) -> None:
        self._is_closed = True
        own = self._connection.sock
        if own is not None:
            with suppress(OSError):
                own.shutdown(socket.SHUT_RDWR)  # wakes the thread
        self._thread.join()

    def _run(self) -> None:
        while not self._is_closed:
            try:
                self._connection.request("POST", "/v3/watch", orjson.dumps(self._asked))
                response = self._connection.getresponse()
                while line := response.readline():
                    if orjson.loads(line).get("result", {}).get("events"):
                        self._changed.set()
            except (*EtcdBase.lost, ValueError, AttributeError):
                pass  # it was closed, or etcd was restarted
            self._connection.close()
            if not self._is_closed:
                self._changed.set()  # changes meanwhile were not reported
                threading.Event().wait(0.1)


def _text(content: bytes) -> str:
    return b64encode(content).decode()


def _range(first: bytes, last: bytes | None) -> dict[str, str]:
    return {"key": _text(first or b"\0"), "range_end": _text(end_of_scan(last))}


def _compare(key: bytes, revision: int) -> dict[str, Any]:
    return {"key": _text(key), "target": "MOD", "result": "EQUAL", "mod_revision": revision}


def _error_of(content: bytes) -> str:
    try:
        return str(orjson.loads(content).get("error", ""))
    except (orjson.JSONDecodeError, AttributeError):
        return content[:200].decode(errors="replace")


def open_etcd(url: SplitResult, key: Key | None) -> Base:
    """Open `etcd://HOST:PORT`; raises KvError."""
    if not url.hostname or not url.port:
        raise BaseUrlError(f"{url.geturl()} names no base: etcd://HOST:PORT")
    return EtcdBase(url.hostname, url.port)
