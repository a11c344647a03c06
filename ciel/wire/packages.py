"""The format of package objects: JSON with one entry on each line.

An entry is found by its line, without decoding all others. This works because strings in JSON
contain no line ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from ciel.core.refs import REFERENCE_TYPES, Reference
from ciel.wire import codec
from ciel.wire.errors import DecodeError, WireError
from ciel.wire.references import from_json, to_json


def encode_package(package: Mapping[str, Reference]) -> bytes:
    """Encode a package; raises EncodeError for a key that is not valid Unicode."""
    entries = [
        codec.encode(key) + b":" + codec.encode(to_json(ref)) for key, ref in package.items()
    ]
    return b"{\n" + b",\n".join(entries) + b"\n}"


def find_entry(content: bytes, key: str) -> Reference | None:
    """Return the reference of a key, None if there is none.

    Raises DecodeError and InvalidIdError if the content is not a package.
    """
    mark = b"\n" + codec.encode(key) + b":"
    found = content.find(mark)
    if found >= 0:
        start = found + len(mark)
        line = content[start : content.find(b"\n", start)]
        with suppress(WireError):  # other software has written the package in another layout
            return _reference(codec.decode(line.removesuffix(b",")))
    entries = codec.decode(content)
    if not isinstance(entries, dict):
        raise DecodeError("a package is a JSON object")
    return None if key not in entries else _reference(entries[key])


def _reference(value: Any) -> Reference:
    ref = from_json(value)
    if not isinstance(ref, REFERENCE_TYPES):
        raise DecodeError("an entry of a package is a reference")
    return ref
