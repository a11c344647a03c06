"""Reads and writes content at URLs that fsspec supports, as inputs and outputs of tasks.

Workers read and write the content, with their credentials; it does not pass through the client.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ciel.client.shared import session_here
from ciel.python.tasks import Options, read_options

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
    """Read the content at a URL in a task; return the future of the bytes.

    The future can be an argument of functions, or a file for programs:
    `client.run(["sort"], stdin=ciel.urls.read("s3://bucket/key"))`. `storage_options` are fsspec's
    for that kind of URL, `options` are those of `ciel.task`.
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
    """Write a value to a URL in a task; return the future of the number of bytes. The value is an
    object with the buffer protocol, a text (written in UTF-8), or a future of these.
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
