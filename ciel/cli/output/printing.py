"""Writes results to standard output: bytes, text, and JSON."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from ciel.cli.outcome import OutputClosedError

JSON_OUTPUT_MAX_BYTES: Final = 64 << 10
"""The largest result that is printed within a line of JSON."""


def write_output(chunk: bytes) -> None:
    """Write bytes to standard output; raises OutputClosedError if its reader has closed it."""
    with _naming_stdout():
        sys.stdout.flush()
        sys.stdout.buffer.write(chunk)
        sys.stdout.buffer.flush()


def write_unlocked(chunk: bytes) -> None:
    """Write as `write_output` does, but without the lock of `sys.stdout`.

    For threads that may still write when the process exits: Python aborts if another thread has
    that lock then.
    """
    left = memoryview(chunk)
    with _naming_stdout():
        while left:
            left = left[os.write(sys.stdout.fileno(), left) :]


@contextmanager
def _naming_stdout() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise OutputClosedError from None
    except OSError as error:
        error.filename = "standard output"
        raise


def print_json(value: Any) -> None:
    """Print a value as one line of JSON."""
    write_output(json.dumps(value, ensure_ascii=False).encode() + b"\n")


def json_content(key: str, content: bytes) -> dict[str, str]:
    """Return content as fields of a JSON object.

    The content is text; or, if it is not valid UTF-8, base64, with a second field for the encoding.
    """
    try:
        return {key: content.decode()}
    except UnicodeDecodeError:
        import base64

        encoding = "encoding" if key == "output" else f"{key}_encoding"
        return {key: base64.b64encode(content).decode(), encoding: "base64"}


def print_text(text: str) -> None:
    """Print text and a line end, in any locale."""
    write_output(text.encode(errors="backslashreplace") + b"\n")
