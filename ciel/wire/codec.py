"""The one JSON seam. Nothing else in the engine turns values into JSON for the wire, or back.

What comes from outside is checked strictly at the price of about a sixth of the decoding: UTF-8,
no NaN or infinities, no duplicate keys, no lone surrogates, no integer of more than 4,300 digits,
nesting up to `JSON_DEPTH_MAX`. Whatever is wrong is one `DecodeError`.

simplejson reads, for what it can be told to refuse. orjson does it in a quarter of the time, but
takes the last of two equal keys and rounds long numbers: it reads what surrounds all of it on the
way, the headers of frames, which are lists of texts and of numbers of ours. It also writes, and the
standard library what orjson refuses or would write as null.
"""

import re
from typing import Any

import orjson
from simplejson import JSONDecodeError, JSONDecoder

from ciel.core.json_text import make_encoder
from ciel.wire.errors import DecodeError, EncodeError
from ciel.wire.limits import JSON_DEPTH_MAX

_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")
_OURS_ALONE = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME
_NOT_STRUCTURE = bytes(byte for byte in range(256) if byte not in b'[]{}"')


def encode(value: object) -> bytes:
    """Return `value` as compact JSON in UTF-8; tuples become lists. Raise `EncodeError`."""
    try:
        text = orjson.dumps(value, option=_OURS_ALONE)
        if b"null" not in text:  # which it also writes for a NaN
            return text
    except orjson.JSONEncodeError:
        pass  # the other one knows more, or says why not
    try:
        return _text_of(value).encode()
    except RecursionError:
        raise EncodeError("the value is nested too deeply, or contains itself") from None
    except (TypeError, ValueError) as error:
        raise EncodeError(f"the value has no JSON form: {error}") from None


def decode(data: bytes | bytearray | memoryview) -> Any:
    """Return the value that JSON in UTF-8 stands for. Raise `DecodeError` for anything else."""
    try:
        text = str(data, "utf-8")
        value = _value_of(text)
    except RecursionError:
        raise DecodeError("JSON is nested too deeply") from None
    except JSONDecodeError as error:
        raise DecodeError(f"not JSON: {error.msg} at character {error.pos}") from None
    except UnicodeDecodeError as error:
        raise DecodeError(f"not UTF-8 at byte {error.start}") from None
    except ValueError as error:
        # What Python says of a long number is about Python.
        why = "a number has too many digits" if "digits" in str(error) else error
        raise DecodeError(f"not JSON we accept: {why}") from None
    _require_shallow(value, data)
    if "\\" in text and _SURROGATE_ESCAPE.search(text) and _has_lone_surrogate(value):
        raise DecodeError("JSON text contains half of a surrogate pair")
    return value


def decode_header(data: bytes) -> Any:
    """Do what `decode` does, for what is nearly always lists of texts and numbers. Where there are
    no objects, a whole number of more than 64 bits becomes a float: no field of ours is one.
    """
    if b"{" in data:  # they might name a key twice
        return decode(data)
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError:
        return decode(data)  # which says what is wrong in our words
    _require_shallow(value, data)
    return value


def _require_shallow(value: Any, data: bytes | bytearray | memoryview) -> None:
    # What is deep is long: every level opens and closes.
    if len(data) > 2 * JSON_DEPTH_MAX and not _is_plainly_shallow(bytes(data)) and _is_deep(value):
        raise DecodeError(f"JSON is nested more than {JSON_DEPTH_MAX} levels deep")


def _value_of(text: str) -> Any:
    """Return what a text stands for; most have no blanks around it, and cost less for that."""
    if text.startswith(("{", "[")):
        value, end = _scan(text, 0)
        if end == len(text):
            return value
    return _DECODER.decode(text)


def _refuse(value: Any) -> Any:
    raise TypeError(f"{type(value).__name__} is nothing that JSON knows")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("an object names a key twice")
    return found


def _finite(digits: str) -> float:
    number = float(digits)
    if number - number != 0.0:
        raise ValueError("a number is out of range")
    return number


def _is_plainly_shallow(data: bytes) -> bool:
    """Say True only if valid JSON cannot be too deep; costs a quarter of walking the value.

    Few brackets cannot nest deeply. Else, with all but brackets and quotes left out, a string
    without brackets is a bare pair of quotes, while one with a bracket leaves its first quote
    behind, as pairs are taken from the left; what then vanishes in eight rounds is eight deep.
    """
    if data.count(b"[") + data.count(b"{") <= JSON_DEPTH_MAX:
        return True
    if b"\\" in data:  # an escaped quote would break the pairing
        return False
    structure = data.translate(None, _NOT_STRUCTURE).replace(b'""', b"")
    for _ in range(8):
        if not structure:
            return True
        structure = structure.replace(b"[]", b"").replace(b"{}", b"")
    return not structure


def _is_deep(value: object) -> bool:
    level: list[Any] = [[value]]
    for _ in range(JSON_DEPTH_MAX + 1):
        level = [
            item
            for container in level
            for item in (container.values() if type(container) is dict else container)
            if type(item) is list or type(item) is dict
        ]
        if not level:
            return False
    return True


def _has_lone_surrogate(value: object) -> bool:
    try:
        encode(value)
    except EncodeError:
        return True
    return False


_DECODER = JSONDecoder(object_pairs_hook=_unique, parse_float=_finite)
_scan: Any = _DECODER.scan_once
_text_of = make_encoder(_refuse, ascii_only=False, sort_keys=False)
