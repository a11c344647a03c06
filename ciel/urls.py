"""Reads and writes URLs in tasks, with the protocols of fsspec.

The workers read and write, with their own credentials; the content does not pass through the
client.

Without `client`, `read` and `write` use the client that was opened last, or within a task the
task's own. If there is none, they open one client for the whole program.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ciel.client.pools.shared import session_here
from ciel.python.options import Options, read_options

if TYPE_CHECKING:
    from ciel.client import Client
    from ciel.python.futures import Future

CHUNK_BYTES: Final = 1 << 20


def read(
    url: str,
    *,
    client: Client | None = None,
    options: dict[str, Any] | None = None,
    **storage_options: Any,
) -> Future[bytes]:
    """Submit a task that reads a URL; return the future of its bytes.

    Functions take the future as an argument, and programs as a file:
    `client.run(["sort"], stdin=ciel.urls.read("s3://bucket/key"))`. fsspec gets the
    `storage_options`; `options` are as for `ciel.task`.
    """
    found: Future[bytes] = _call(_read, (url, storage_options), client, options, f"read {url}")
    return found


def write(
    value: Any,
    url: str,
    *,
    client: Client | None = None,
    options: dict[str, Any] | None = None,
    **storage_options: Any,
) -> Future[int]:
    """Submit a task that writes a value to a URL; return the future of the number of bytes. The
    value is bytes, an object with a buffer, a text (written as UTF-8), or a future of such a value.
    """
    found: Future[int] = _call(
        _write, (value, url, storage_options), client, options, f"write {url}"
    )
    return found


def _call(
    function: Any,
    args: tuple[Any, ...],
    client: Client | None,
    options: dict[str, Any] | None,
    name: str,
) -> Any:
    session = client or session_here()
    return session.call(
        function, args, {}, read_options(Options(), {"name": name, **(options or {})})
    )


def _read(url: str, storage_options: dict[str, Any]) -> Any:
    import fsspec

    with fsspec.open(url, "rb", **storage_options) as file:
        return file.read()


def _write(value: Any, url: str, storage_options: dict[str, Any]) -> int:
    import fsspec

    content = value.encode() if isinstance(value, str) else memoryview(value).cast("B")
    with fsspec.open(url, "wb", **storage_options) as file:
        for start in range(0, len(content), CHUNK_BYTES):
            file.write(content[start : start + CHUNK_BYTES])
    return len(content)
