"""Decodes the result of a package by its template (docs/packages.md).

A template has the shape of the result. `null` leaves a value as it is. A list applies to a list of
the same length; an object applies to the keys that it names. `{"__decode_ref__": ENCODING}`
replaces a reference by the content of its object, and `{"__concat__": [T]}` replaces a list of
references by one text.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from ciel.client.errors import TemplateError
from ciel.client.packages.json_lines import Steps
from ciel.core.errors import CielError
from ciel.core.refs import REFERENCE_TYPES, Reference
from ciel.wire import codec
from ciel.wire.errors import WireError
from ciel.wire.references import from_json

Fetch = Callable[[Reference], bytes]
Save = Callable[[Reference], str]
"""Saves an object as a file, and returns the path."""

_ENCODINGS: Final = ("json", "noop", "handle")
_NO_PICKLE: Final = (
    "reading a pickle runs code in it, so pickles are not read; let the task write JSON, or "
    'use "noop" or "handle" to get the bytes'
)
_KEYS: Final = {
    "__decode_ref__": frozenset(("__decode_ref__", "value")),
    "__concat__": frozenset(("__concat__", "encoding")),
}


def faults(template: Any, steps: Steps, *, can_save: bool) -> Iterator[tuple[Steps, str]]:
    """Yield the faults of a template: the path to each, and a reason."""
    if template is None:
        return
    if isinstance(template, list):
        for i, item in enumerate(template):
            yield from faults(item, (*steps, i), can_save=can_save)
        return
    if not isinstance(template, dict):
        yield steps, f"a template must be null, a list or an object, not {kind_of(template)}"
        return
    mark = next((mark for mark in _KEYS if mark in template), None)
    if mark is None:
        for key, item in template.items():
            yield from faults(item, (*steps, key), can_save=can_save)
        return
    for key in sorted(template.keys() - _KEYS[mark]):
        known = " and ".join(f'"{k}"' for k in sorted(_KEYS[mark]))
        yield (*steps, key), f"unknown; this template has only {known}"
    if mark == "__decode_ref__":
        encoding = template[mark]
        yield from _encoding_faults(encoding, (*steps, mark), can_save=can_save)
        if encoding != "json" and template.get("value") is not None:
            yield (*steps, "value"), 'only a value that is decoded as "json" has inner values'
        yield from faults(template.get("value"), (*steps, "value"), can_save=can_save)
        return
    inner = template[mark]
    if not isinstance(inner, list) or len(inner) != 1:
        yield (*steps, mark), "must be a list of one template"
        return
    encoding = template.get("encoding", "json")
    if encoding == "handle":
        yield (*steps, "encoding"), '"handle" saves files, which cannot be joined; write "noop"'
    else:
        yield from _encoding_faults(encoding, (*steps, "encoding"), can_save=can_save)
    yield from faults(inner[0], (*steps, mark, 0), can_save=can_save)


def _encoding_faults(encoding: Any, steps: Steps, *, can_save: bool) -> Iterator[tuple[Steps, str]]:
    if encoding == "pickle":
        yield steps, _NO_PICKLE
    elif encoding not in _ENCODINGS:
        known = ", ".join(f'"{known}"' for known in _ENCODINGS)
        shown = json.dumps(encoding, ensure_ascii=False)
        yield steps, f"unknown encoding {shown:.60}; there are {known}"
    elif encoding == "handle" and not can_save:
        yield steps, '"handle" saves the object as a file: choose its directory with --out DIR'


def decode_result(
    template: Any, value: Any, fetch: Fetch, save: Save | None = None, where: str = "result"
) -> Any:
    """Apply a template without faults to a value; leave values that it does not mention unchanged.

    Raises TemplateError if the value has another shape, and as `fetch` and `save`.
    """
    if template is None:
        return value
    if isinstance(template, list):
        if not isinstance(value, list) or len(value) != len(template):
            raise TemplateError(
                where, f"a list of {len(template)} was expected, not {kind_of(value)}"
            )
        pairs = zip(template, value, strict=True)
        return [decode_result(t, v, fetch, save, f"{where}[{i}]") for i, (t, v) in enumerate(pairs)]
    if "__decode_ref__" in template:
        decoded = _decode(template["__decode_ref__"], value, fetch, save, where)
        return decode_result(template.get("value"), decoded, fetch, save, where)
    if "__concat__" in template:
        return _concatenate(template, value, fetch, save, where)
    if not isinstance(value, dict):
        raise TemplateError(where, f"an object was expected, not {kind_of(value)}")
    missing = [key for key in template if key not in value]
    if missing:
        raise TemplateError(where, f"the key {missing[0]!r} is missing")
    return value | {
        key: decode_result(t, value[key], fetch, save, f"{where}.{key}")
        for key, t in template.items()
    }


def _decode(encoding: str, value: Any, fetch: Fetch, save: Save | None, where: str) -> Any:
    if not isinstance(value, REFERENCE_TYPES):
        raise TemplateError(where, f"a reference was expected, not {kind_of(value)}")
    if encoding == "handle":
        assert save is not None  # otherwise the template has a fault
        return save(value)
    content = fetch(value)
    if encoding == "noop":
        return content.decode(errors="backslashreplace")
    try:
        return from_json(codec.decode(content))
    except (WireError, CielError) as error:
        raise TemplateError(where, f"object {value.id} is {error}") from None


def _concatenate(
    template: Mapping[str, Any], value: Any, fetch: Fetch, save: Save | None, where: str
) -> str:
    if not isinstance(value, list):
        raise TemplateError(where, f"a list of references was expected, not {kind_of(value)}")
    inner = template["__concat__"][0]
    encoding = template.get("encoding", "json")
    parts = []
    for i, item in enumerate(value):
        here = f"{where}[{i}]"
        part = decode_result(inner, _decode(encoding, item, fetch, save, here), fetch, save, here)
        parts.append(part if isinstance(part, str) else json.dumps(part, ensure_ascii=False))
    return "".join(parts)


def kind_of(value: Any) -> str:
    """Describe a value in a message: `a list of 3`."""
    if value is None:
        return "null"
    if isinstance(value, REFERENCE_TYPES):
        return "a reference"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    names = {dict: "an object", str: "a text", bool: "a boolean"}
    return names.get(type(value), "a number")
