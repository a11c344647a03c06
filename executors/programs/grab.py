"""The program of the executor `grab`: fetches URLs into objects, and publishes references to them.

It keeps one piece of a body in memory at a time, and serves one task after the other.
"""

from __future__ import annotations

import ftplib
import json
from collections.abc import Iterator
from http.client import HTTPException
from typing import IO, Any
from urllib.error import HTTPError, URLError
from urllib.parse import unquote, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from ciel.executors.sdk import ciel_task
from ciel.executors.sdk.ciel_task import Ref, Task

PIECE_BYTES = 1 << 20
SILENCE_MAX_S = 60.0
"""How long a server may send nothing until its request fails."""

# OSError is among the first.
_FETCH_ERRORS: tuple[type[Exception], ...] = (*ftplib.all_errors, HTTPException, ValueError)


class _Redirects(HTTPRedirectHandler):
    """Follows redirects, to http and https only."""

    def redirect_request(
        self, request: Request, file: IO[bytes], code: int, text: str, headers: Any, url: str
    ) -> Request | None:
        if urlsplit(url).scheme not in ("http", "https"):
            raise URLError(f"it redirects to {url}, which is neither http nor https")
        return super().redirect_request(request, file, code, text, headers, url)


_opener = build_opener(_Redirects)
_opener.addheaders = [("User-Agent", "ciel-grab")]


class _FetchFailed(Exception):
    """A URL could not be fetched as a whole; the text says why."""


def _pieces(url: str) -> Iterator[bytes]:
    """Fetch a URL, piece by piece; raises _FetchFailed, also for a body that breaks off."""
    try:
        yield from _ftp_pieces(url) if urlsplit(url).scheme == "ftp" else _opener_pieces(url)
    except HTTPError as error:
        error.close()
        raise _FetchFailed(f"the server answered {error.code} {error.reason}") from None
    except URLError as error:
        raise _FetchFailed(_why(error.reason)) from None
    except _FETCH_ERRORS as error:
        raise _FetchFailed(_why(error)) from None


def _opener_pieces(url: str) -> Iterator[bytes]:
    with _opener.open(url, timeout=SILENCE_MAX_S) as response:
        while piece := response.read(PIECE_BYTES):
            yield piece
        if left_bytes := getattr(response, "length", 0):
            raise URLError(f"it broke off, with {left_bytes} bytes still to come")


def _ftp_pieces(url: str) -> Iterator[bytes]:
    """Fetch a file by FTP. urllib does not check whether it got the whole file."""
    parts = urlsplit(url)
    *directories, name = [unquote(step) for step in parts.path.removeprefix("/").split("/")]
    with ftplib.FTP(timeout=SILENCE_MAX_S) as server:
        server.connect(parts.hostname or "", parts.port or ftplib.FTP_PORT)
        server.login(unquote(parts.username or ""), unquote(parts.password or ""))
        for directory in directories:
            server.cwd(directory)
        server.voidcmd("TYPE I")
        with server.transfercmd(f"RETR {name}") as connection:
            while piece := connection.recv(PIECE_BYTES):
                yield piece
        server.voidresp()


def _why(reason: object) -> str:
    text = getattr(reason, "strerror", None) or str(reason)
    return text or type(reason).__name__


def grab(task: Task) -> None:
    """Fetch each URL of a task, and publish the JSON text of a reference to its content.

    If the task has a reference in place of a URL, publish that reference.
    """
    for index, source in enumerate(task.kwargs["urls"]):
        ref = _fetch(task, source) if isinstance(source, str) else source
        task.publish(index, json.dumps({"__ref__": ref.array}).encode())


def _fetch(task: Task, url: str) -> Ref:
    output = task.open_output(task.allocate("grab"))
    try:
        with output:
            for piece in _pieces(url):
                output.write(piece)
    except _FetchFailed as error:
        task.fail(f"{url} could not be fetched: {error}")
    assert output.ref is not None
    return output.ref


if __name__ == "__main__":
    ciel_task.serve(grab)
