"""Finds a key-value base by its URL.

The scheme names a plugin of the group `ciel.kv`: a function that takes the parts of the URL and the
key of the cluster, if there is one, and returns the base or raises KvError.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from ciel import plugins
from ciel.access.keys import Key
from ciel.state.errors import BaseUrlError
from ciel.state.interface import Base


def open_base(url: str, key: Key | None = None) -> Base:
    """Open the base at a URL, such as `lmdb:/var/lib/scores`; raises KvError."""
    parts = urlsplit(url)
    if not parts.scheme:
        raise BaseUrlError(f"{url!r} is no URL of a base, such as lmdb:DIRECTORY")
    try:
        open_it = plugins.load("ciel.kv", parts.scheme)
    except plugins.PluginError as error:
        raise BaseUrlError(f"{parts.scheme}: {error}; `pip install 'ciel[kv]'`?") from None
    base: Base = open_it(parts, key)
    return base
