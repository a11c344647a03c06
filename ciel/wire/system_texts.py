"""Encodes arguments, environment variables and file names in JSON.

UTF-8 becomes text, and other bytes become `{"base64": "…"}`. Within a process both are strings with
surrogate escapes, as from `os.fsdecode`.
"""

from __future__ import annotations

import base64
import binascii
import os
from typing import Any

from ciel.core.errors import CielError

_KEY = "base64"


class SystemTextError(CielError):
    """A value is neither a text nor bytes in base64."""


def to_value(text: str) -> str | dict[str, str]:
    """Return the JSON value for a text."""
    if text.isascii():
        return text
    try:
        text.encode()
        return text
    except UnicodeEncodeError:
        return {_KEY: base64.b64encode(os.fsencode(text)).decode()}


def is_bytes(value: Any) -> bool:
    """Whether a JSON value encodes bytes that are not text."""
    return isinstance(value, dict) and value.keys() == {_KEY}


def from_value(value: dict[str, Any]) -> str:
    """Decode a value for which `is_bytes` is true; raises SystemTextError."""
    try:
        return os.fsdecode(base64.b64decode(value[_KEY], validate=True))
    except (binascii.Error, TypeError, ValueError):
        raise SystemTextError(f"{value[_KEY]!r:.60} is not base64") from None
