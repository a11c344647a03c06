"""A base in a Redis, or in whatever speaks its protocol.

A batch watches its keys, reads them, and writes in a transaction, which Redis refuses if a key has
changed; then the batch is carried out again. Redis cannot show its rows as of one moment, and does
not order its keys.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final
from urllib.parse import SplitResult

import orjson
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from ciel.access.keys import Key
from ciel.state.bases.of_server import TIMEOUT_S, ServerBase
from ciel.state.batches import (
    RESERVED,
    Overlay,
    Request,
    Result,
    Row,
    SameRange,
    Step,
    carry_out_once,
    check,
    keys_of,
)
from ciel.state.errors import BaseFullError, DeniedError, KvError, LackingError
from ciel.state.interface import Base, Capabilities, Watch, end_of_scan

CHANNEL: Final = b"ciel.changed"
"""The channel on which clients tell each other which keys have changed."""
_SCAN_KEYS: Final = 1000
_PAUSE_S: Final = 0.002


class RedisBase(ServerBase):
    """A client of Redis. Its rows are strings of Redis, under the same keys."""

    lost = (redis.ConnectionError, redis.TimeoutError)

    def __init__(self, url: str, timeout_s: float = TIMEOUT_S) -> None:
        """Connect; raises KvError."""
        self._client: Any = redis.Redis.from_url(
            url, retry=Retry(NoBackoff(), 0), socket_timeout=timeout_s, protocol=2
        )
        address = self._client.connection_pool.connection_kwargs
        place = f":{address['port']}" if "port" in address else ""
        super().__init__(
            f"the Redis at {address.get('host', address.get('path'))}{place}", timeout_s
        )
        info: Any = self._call(lambda: self._client.info("persistence"))
        self.capabilities = Capabilities(
            is_ordered=False, has_atomic_scan=False, is_durable=bool(info.get("aof_enabled"))
        )

    def close(self) -> None:
        super().close()
        self._client.close()

    def read(self, keys: Sequence[bytes]) -> list[bytes | None]:
        found: list[bytes | None] = self._call(lambda: self._client.mget(keys)) if keys else []
        return found

    def apply(self, steps: Sequence[Step], request: Request | None = None) -> list[Result]:
        check(steps)
        if any(isinstance(step, SameRange) for step in steps):
            raise LackingError(self.name, "make a batch depend on a range of keys")
        own = request or self._numbers.next()
        while True:
            try:
                results: list[Result] = self._call(lambda: self._try(steps, own))
                return results
            except redis.WatchError:
                threading.Event().wait(random.random() * _PAUSE_S)

    def _try(self, steps: Sequence[Step], request: Request) -> list[Result]:
        keys = keys_of(steps, request)
        with self._client.pipeline() as pipe:
            pipe.watch(*keys)
            found = dict(zip(keys, pipe.mget(keys), strict=True))
            view = Overlay(found.get, lambda first, last: ())
            results = carry_out_once(steps, view, request)
            if not view.writes:
                return results
            pipe.multi()
            for key, new in view.writes.items():
                _write(pipe, key, new)
            changed = [key for key in view.writes if not key.startswith(RESERVED)]
            pipe.publish(CHANNEL, orjson.dumps([key.decode("latin-1") for key in changed]))
            pipe.execute()
        return results

    def scan(self, first: bytes = b"", last: bytes | None = None) -> Iterator[Row]:
        end = end_of_scan(last)
        pattern = _escaped(_common(first, end)) + b"*"
        seen: set[bytes] = set()
        cursor = 0
        while True:
            cursor, part = self._call(
                lambda cursor=cursor: self._client.scan(cursor, pattern, _SCAN_KEYS, "string")
            )
            keys = [key for key in part if first <= key < end and key not in seen]
            seen.update(keys)
            for key, value in zip(keys, self.read(keys), strict=True):
                if value is not None:
                    yield key, value
            if not cursor:
                return

    def watch(self, prefix: bytes) -> Watch:
        return _Subscription(self, prefix)

    def subscribe(self) -> Any:
        """Return a connection that gets what clients publish."""
        subscription = self._client.pubsub(ignore_subscribe_messages=True)
        subscription.subscribe(CHANNEL)
        subscription.get_message(ignore_subscribe_messages=False, timeout=self._timeout_s)
        return subscription

    def _call(self, call: Any) -> Any:
        try:
            return self.persist(call)
        except redis.AuthenticationError as error:
            raise DeniedError(f"{self.name}: {error}") from None
        except redis.exceptions.OutOfMemoryError as error:
            raise BaseFullError(self.name, str(error)) from None
        except redis.WatchError:
            raise
        except redis.RedisError as error:
            raise KvError(f"{self.name}: {error}") from None


class _Subscription(Watch):
    def __init__(self, base: RedisBase, prefix: bytes) -> None:
        self._base = base
        self._prefix = prefix
        self._open()

    def _open(self) -> None:
        self._subscription = self._base.persist(self._base.subscribe)

    def wait(self, timeout_s: float | None = None) -> bool:
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left_s = None if deadline_s is None else max(0.0, deadline_s - time.monotonic())
            try:
                message = self._subscription.get_message(timeout=left_s)
            except self._base.lost:
                self._open()
                return True  # changes meanwhile were not reported
            if message is not None and self._concerns(message["data"]):
                return True
            if deadline_s is not None and time.monotonic() >= deadline_s:
                return False

    def _concerns(self, published: bytes) -> bool:
        keys: Iterable[str] = orjson.loads(published)
        return any(key.encode("latin-1").startswith(self._prefix) for key in keys)

    def close(self) -> None:
        self._subscription.close()


def _write(pipe: Any, key: bytes, new: tuple[bytes, float | None] | None) -> None:
    if new is None:
        pipe.delete(key)
        return
    value, ttl_s = new
    if ttl_s is None:
        pipe.set(key, value)
    elif ttl_s == Overlay.KEPT:
        pipe.set(key, value, keepttl=True)
    else:
        pipe.set(key, value, px=max(1, int(ttl_s * 1000)))


def _common(one: bytes, two: bytes) -> bytes:
    """Return what both begin with, and so all keys between them."""
    length = next((n for n, pair in enumerate(zip(one, two, strict=False)) if pair[0] != pair[1]),
                  min(len(one), len(two)))  # fmt: skip
    return one[:length]


def _escaped(prefix: bytes) -> bytes:
    """Return a pattern of Redis that matches only these bytes."""
    return b"".join(
        b"\\" + bytes((byte,)) if byte in b"*?[]\\^-" else bytes((byte,)) for byte in prefix
    )


def open_redis(url: SplitResult, key: Key | None) -> Base:
    """Open `redis://[USER:PASSWORD@]HOST:PORT[/NUMBER]`; raises KvError."""
    try:
        return RedisBase(url.geturl())
    except ValueError as error:
        raise KvError(f"{url.scheme}://{url.hostname}: {error}") from None
