"""Parses URLs that name content for tasks, in arguments of `grab` and in packages."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import urlsplit

from ciel.core.errors import CielError
from ciel.core.refs import Reference
from ciel.wire.errors import WireError
from ciel.wire.references import from_array

_FETCHED: Final = ("http", "https", "ftp", "file")
_OBJECT: Final = "swbs"
_has_gap = re.compile(r"[\x00-\x20\x7f]").search


def read_source(url: str) -> str | Reference:
    """Check and return a URL that can be fetched, or the reference for `swbs://HOST:PORT/ID`.

    Raises ValueError, whose text continues a sentence after the URL: `is none of …`.
    """
    try:
        parts = urlsplit(url)
        if parts.scheme == _OBJECT:
            if parts.query or parts.fragment:
                raise ValueError("swbs://HOST:PORT/ID has no '?' and no '#'")
            return from_array(["c2", parts.path.removeprefix("/"), None, [parts.netloc]])
    except (ValueError, CielError, WireError) as error:
        raise ValueError(f"is wrong: {error}") from None
    if parts.scheme not in _FETCHED:
        raise ValueError(f"is none of {', '.join((*_FETCHED, _OBJECT))}")
    if not parts.netloc and parts.scheme != "file":
        raise ValueError("names no host")
    if "@" in parts.netloc and parts.scheme != "ftp":
        raise ValueError("contains '@': a user and a password in a URL work for ftp only")
    if _has_gap(url):
        raise ValueError("contains a space or a control character: write %20 for a space")
    return url
