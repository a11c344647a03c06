"""Reads the entries of a package: files, lists of files, URLs, references. Pure.

The keys of an entry determine its form; any key that does not belong to the form is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from ciel.client.data.uploads import REPLICAS
from ciel.client.packages.json_lines import Steps
from ciel.client.packages.templates import kind_of
from ciel.core.refs import REFERENCE_TYPES, Reference
from ciel.storage.errors import StorageError
from ciel.storage.specs import parse_size
from ciel.wire.sources import read_source

BLOCK_BYTES: Final = 64 << 20
"""The default size of a block: a 1 Gbit/s link sends it in half a second, and it is enough work for
a task.
"""
COPIES_MAX: Final = 100
PARTS_MAX: Final = 1_000_000
"""The largest number of pieces of an entry; the master keeps a record of each."""


class WholeFile(NamedTuple):
    """A file, as one object."""

    path: Path
    copies: int = REPLICAS


class FileBlocks(NamedTuple):
    """A file in blocks of `block_bytes`, or in `block_count` blocks.

    With a `delimiter`, each block ends after the next delimiter.
    """

    path: Path
    block_bytes: int = BLOCK_BYTES
    block_count: int = 0
    delimiter: bytes = b""
    copies: int = REPLICAS


class ListedFiles(NamedTuple):
    """Files that are the pieces of an index.

    The lines of the file at `path` name them, relative to `directory`.
    """

    path: Path
    directory: Path
    copies: int = REPLICAS


class ListedUrls(NamedTuple):
    """A file whose lines are URLs."""

    path: Path
    repeat: int = 1


class Urls(NamedTuple):
    """URLs, and references, whose contents are the pieces of an index."""

    sources: tuple[str | Reference, ...]
    repeat: int = 1


Entry = WholeFile | FileBlocks | ListedFiles | ListedUrls | Urls | Reference

_KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "file": ("filename", "cwd", "index", "urlindex", "replication"),
    "index": (
        "filename", "cwd", "index", "urlindex", "replication", "block_size", "blocks", "delimiter",
    ),
    "filenamelist": ("filenamelist", "cwd", "index", "replication"),
    "urlindex": ("filename", "cwd", "index", "urlindex", "replication", "repeat"),
    "urls": ("urls", "urlindex", "replication", "repeat"),
}  # fmt: skip
_KNOWN: Final = frozenset(key for keys in _KEYS.values() for key in keys)


class SpecFault(Exception):
    """An entry is wrong; `steps` is the path from the entry to the fault."""

    def __init__(self, steps: Steps, reason: str) -> None:
        super().__init__(reason)
        self.steps = steps
        self.reason = reason


def read_entry(spec: Any, beside: Path) -> Entry:
    """Read an entry after substitution; raises SpecFault.

    `beside` is the directory of its package.
    """
    if isinstance(spec, REFERENCE_TYPES):
        return spec
    if not isinstance(spec, dict):
        raise SpecFault((), f"must be an object, not {kind_of(spec)}")
    form = _form(spec)
    directory = Path() if _truth(spec, "cwd") else beside
    copies = _number(spec, "replication", REPLICAS, COPIES_MAX)
    if form == "urls":
        return Urls(_urls(spec["urls"]), _number(spec, "repeat", 1, PARTS_MAX))
    path = directory / _name(spec, "filenamelist" if form == "filenamelist" else "filename")
    if form == "filenamelist":
        return ListedFiles(path, directory, copies)
    if form == "urlindex":
        return ListedUrls(path, _number(spec, "repeat", 1, PARTS_MAX))
    if form == "file":
        return WholeFile(path, copies)
    count = _number(spec, "blocks", 1, PARTS_MAX) if "blocks" in spec else 0
    if count and "block_size" in spec:
        raise SpecFault(("blocks",), 'either "blocks" or "block_size", not both')
    return FileBlocks(path, _block_bytes(spec), count, _delimiter(spec), copies)


def _form(spec: Mapping[str, Any]) -> str:
    """Return the form of an entry; refuse keys that the form does not have."""
    for key in spec:
        if key not in _KNOWN:
            raise SpecFault((key,), f"unknown; an entry has {', '.join(sorted(_KNOWN))}")
    index, urlindex = _truth(spec, "index"), _truth(spec, "urlindex")
    named = [key for key in ("filename", "filenamelist", "urls") if key in spec]
    if not named:
        raise SpecFault((), 'names nothing: write "filename", "filenamelist", "urls" or "__ref__"')
    if len(named) > 1:
        raise SpecFault((named[1],), f'either "{named[0]}" or "{named[1]}", not both')
    form = named[0]
    if form == "filename":
        form = "urlindex" if urlindex else "index" if index else "file"
    for key in spec:
        if key not in _KEYS[form]:
            what = {"file": "a whole file", "index": "a file in blocks"}.get(form, f'"{form}"')
            allowed = ", ".join(_KEYS[form])
            raise SpecFault((key,), f"is not allowed for {what}; allowed are {allowed}")
    always = {"filenamelist": "index", "urls": "urlindex"}.get(form, "")
    if always in spec and not spec[always]:
        raise SpecFault((always,), f'must be true: an entry with "{form}" is always an index')
    return form


def _truth(spec: Mapping[str, Any], key: str) -> bool:
    value = spec.get(key, False)
    if not isinstance(value, bool):
        raise SpecFault((key,), f"must be true or false, not {kind_of(value)}")
    return value


def _name(spec: Mapping[str, Any], key: str) -> str:
    value = spec[key]
    if not isinstance(value, str) or not value:
        raise SpecFault((key,), f"must be a path, not {kind_of(value) if value != '' else 'empty'}")
    return value


def _number(spec: Mapping[str, Any], key: str, usual: int, most: int) -> int:
    """Read a number from 1 to `most`. A number from the command line is a text."""
    value = spec.get(key, usual)
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20:
        value = int(value)
    if type(value) is not int or not 1 <= value <= most:
        raise SpecFault((key,), f"must be a number, 1 to {most}")
    return value


def _block_bytes(spec: Mapping[str, Any]) -> int:
    value = spec.get("block_size", BLOCK_BYTES)
    if isinstance(value, str):
        try:
            value = parse_size(value)
        except StorageError:
            value = 0
    if type(value) is not int or not 1 <= value < 2**63:
        raise SpecFault(("block_size",), 'must be a size in bytes, or a text such as "64MiB"')
    return value


def _delimiter(spec: Mapping[str, Any]) -> bytes:
    value = spec.get("delimiter", "")
    if not isinstance(value, str) or ("delimiter" in spec and not value):
        raise SpecFault(("delimiter",), r'must be a text, such as "\n"')
    return value.encode()


def _urls(urls: Any) -> tuple[str | Reference, ...]:
    if not isinstance(urls, list) or len(urls) > PARTS_MAX:
        raise SpecFault(("urls",), f"must be a list of URLs, not {kind_of(urls)}")
    sources = []
    for i, url in enumerate(urls):
        if not isinstance(url, str):
            raise SpecFault(("urls", i), f"must be a URL, not {kind_of(url)}")
        try:
            sources.append(read_source(url))
        except ValueError as error:
            raise SpecFault(("urls", i), f"{url!r:.200} {error}") from None
    return tuple(sources)
