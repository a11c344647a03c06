"""The only module that converts between values and JSON for the wire.

Decoding is strict: it requires UTF-8, and rejects NaN, infinities, duplicate keys, lone surrogates,
integers of more than 4,300 digits, and nesting beyond `JSON_DEPTH_MAX`. The checks take about a
sixth of the decoding time. Every violation raises `DecodeError`.

simplejson decodes, because it can be configured to reject all this. orjson takes a quarter of the
time, but keeps the last of duplicate keys and rounds long numbers. So it decodes only the headers
of frames, which are lists of texts and of our own numbers. orjson also encodes; the standard
library encodes values that orjson refuses, or would write as null.
"""

import re
from signal import SIG_BLOCK, SIG_SETMASK, SIGINT, pthread_sigmask
from typing import Any

from simplejson import JSONDecodeError, JSONDecoder

from ciel.core.json_text import make_encoder
from ciel.wire.errors import DecodeError, EncodeError
from ciel.wire.limits import JSON_DEPTH_MAX

_mask = pthread_sigmask(SIG_BLOCK, (SIGINT,))
try:
    import orjson  # KeyboardInterrupt during this import would crash the process
finally:
    pthread_sigmask(SIG_SETMASK, _mask)

_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")
_DUMPS_OPTIONS = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME
_NOT_STRUCTURE = bytes(byte for byte in range(256) if byte not in b'[]{}"')


def encode(value: object) -> bytes:
    """Return `value` as compact JSON in UTF-8; tuples become lists. Raise `EncodeError`."""
    try:
        text = orjson.dumps(value, option=_DUMPS_OPTIONS)
        if b"null" not in text:  # orjson also writes null for NaN
            return text
    except orjson.JSONEncodeError:
        pass  # the standard library supports more types, and has a better error
    try:
        return _text_of(value).encode()
    except RecursionError:
        raise EncodeError("the value is nested too deeply, or contains itself") from None
    except (TypeError, ValueError) as error:
        raise EncodeError(f"the value has no JSON form: {error}") from None


def decode(data: bytes | bytearray | memoryview) -> Any:
    """Decode JSON in UTF-8. Raise `DecodeError` for anything else."""
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
        # Python's message about a long number advises on an interpreter setting.
        why = "a number has too many digits" if "digits" in str(error) else error
        raise DecodeError(f"not JSON in the accepted form: {why}") from None
    _require_shallow(value, data)
    if "\\" in text and _SURROGATE_ESCAPE.search(text) and _has_lone_surrogate(value):
        raise DecodeError("JSON text contains half of a surrogate pair")
    return value


def decode_header(data: bytes, *, is_own: bool = False) -> Any:
    """Decode JSON that rarely contains objects, faster than `decode`.

    If it contains none, integers of more than 64 bits become floats; no field of a record has such
    values. `is_own`: this program has encoded it, so its depth is not checked.
    """
    if b"{" in data:  # objects might have duplicate keys
        return decode(data)
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError:
        return decode(data)  # raises our own error message
    if not is_own:
        _require_shallow(value, data)
    return value


def _require_shallow(value: Any, data: bytes | bytearray | memoryview) -> None:
    # Deep JSON is long, since every level has two brackets.
    if len(data) > 2 * JSON_DEPTH_MAX and not _is_plainly_shallow(bytes(data)) and _is_deep(value):
        raise DecodeError(f"JSON is nested more than {JSON_DEPTH_MAX} levels deep")


def _value_of(text: str) -> Any:
    """Decode a text. This is faster for a text without surrounding blanks, as most texts are."""
    if text.startswith(("{", "[")):
        value, end = _scan(text, 0)
        if end == len(text):
            return value
    return _DECODER.decode(text)


def _reject_type(value: Any) -> Any:
    raise TypeError(f"{type(value).__name__} is not JSON serializable")


def _unique_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("an object contains a key twice")
    return found


def _finite(digits: str) -> float:
    number = float(digits)
    if number - number != 0.0:
        raise ValueError("a number is out of range")
    return number


def _is_plainly_shallow(data: bytes) -> bool:
    """Return True only if valid JSON cannot be too deep, four times as fast as `_is_deep`.

    Few brackets cannot nest deeply. Otherwise remove everything except brackets and quotes. Then a
    string without brackets is a pair of quotes, which is removed. A string with a bracket leaves
    its first quote, since pairs are removed from the left. If removing pairs of brackets eight
    times leaves nothing, the value is at most eight levels deep.
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


_DECODER = JSONDecoder(object_pairs_hook=_unique_object, parse_float=_finite)
_scan: Any = _DECODER.scan_once
_text_of = make_encoder(_reject_type, ascii_only=False, sort_keys=False)
