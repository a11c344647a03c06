"""Names of key-value bases within a store, and keys as texts.

The rows named `scores` have keys that start with `scores:`, as users of Redis do it, and its locks
and queues keys that start with `scores!`. The state of a job is named
`@CLUSTER/JOB/scores:`, and is removed with the job.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from ciel.state.batches import Row, end_of_prefix
from ciel.state.errors import BaseNameError

_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")

JOBS: Final = b"@"
"""The prefix of the keys of jobs."""

Where = Callable[[str, Any], bool]
"""Returns whether a scan should yield the row of a key and a value."""


class Names:
    """The keys of one name. Callers pass texts or bytes, and get texts. Bytes that are not UTF-8
    become characters as in `os.fsdecode`.
    """

    def __init__(self, name: str, cluster_id: str = "", job_id: str = "") -> None:
        """Raise BaseNameError for a name that is not allowed. The empty name has all keys."""
        if name and not _NAME.fullmatch(name):
            raise BaseNameError(name)
        job = prefix_of_job(cluster_id, job_id) if job_id else b""
        self._head = job + f"{name}:".encode() if name else job
        self._inner = job + f"{name}!".encode()

    def key(self, key: str | bytes) -> bytes:
        """Return the key as the base has it."""
        return self._head + (key if isinstance(key, bytes) else _encoded(key))

    def inner(self, kind: str, name: str) -> bytes:
        """Return the key of a lock, a queue and so on, which scans of the name do not reach."""
        return self._inner + _encoded(f"{kind}/{name}")

    def range(self, first: str | None, last: str | None, prefix: str) -> tuple[bytes, bytes | None]:
        """Return the first key of a range and the key at which it ends. Raises ValueError."""
        head = self.key(prefix)
        if prefix and (first is not None or last is not None):
            raise ValueError("a scan has either a prefix, or a first and a last key")
        start = head if first is None else self.key(first)
        return start, end_of_prefix(head) if last is None else self.key(last)

    def decoded(
        self, rows: Iterable[Row], decode: Callable[[bytes], Any], where: Where | None
    ) -> Iterator[tuple[str, Any]]:
        """Yield rows of the base as keys and values of this name."""
        start = len(self._head)
        for key, content in rows:
            text, value = key[start:].decode(errors="surrogateescape"), decode(content)
            if where is None or where(text, value):
                yield text, value


def prefix_of_jobs(cluster_id: str) -> bytes:
    """Return the prefix of the keys of all jobs of a cluster."""
    return JOBS + cluster_id.encode() + b"/"


def prefix_of_job(cluster_id: str, job_id: str) -> bytes:
    """Return the prefix of all keys of a job."""
    return prefix_of_jobs(cluster_id) + job_id.encode() + b"/"


def job_of(key: bytes) -> str:
    """Return the id of the job that a key belongs to."""
    return key.split(b"/", 2)[1].decode(errors="replace")


def _encoded(key: str) -> bytes:
    return key.encode(errors="surrogateescape")
