"""Content by URL, of whatever fsspec knows, as inputs and outputs of tasks.

It is workers that read and write: with their credentials, and nothing goes by way of the client.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ciel.client.shared import session_here
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
    """Have a task read what is at a URL; return the future of its bytes.

    It is an argument of functions as any, and a file for programs:
    `client.run(["sort"], stdin=ciel.urls.read("s3://bucket/key"))`. `storage_options` are fsspec's
    for that kind of URL, `options` those of `ciel.task`.
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
    """Have a task write a value to a URL: bytes, what has a buffer, or a text (in UTF-8), or a
    future of such; return the future of the number of bytes.
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
