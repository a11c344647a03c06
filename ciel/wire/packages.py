"""What is in the package of a job, as an object: JSON, one entry on each line, so that one of very
many is found without decoding the others. No text in JSON contains a line end.
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
    """Return the object's content; raises EncodeError for a key that has no form in UTF-8."""
    entries = [
        codec.encode(key) + b":" + codec.encode(to_json(ref)) for key, ref in package.items()
    ]
    return b"{\n" + b",\n".join(entries) + b"\n}"


def find_entry(content: bytes, key: str) -> Reference | None:
    """Return what a key stands for, None if it is not there. Raises DecodeError and InvalidIdError
    for what is no package.
    """
    mark = b"\n" + codec.encode(key) + b":"
    found = content.find(mark)
    if found >= 0:
        start = found + len(mark)
        line = content[start : content.find(b"\n", start)]
        with suppress(WireError):  # somebody else has written it, in another layout
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
