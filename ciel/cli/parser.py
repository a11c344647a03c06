"""How command lines are read, by commands and daemons alike."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from typing import Any

_is_number = re.compile(r"\d{1,18}", re.ASCII).fullmatch
_SHOWN_MAX_LENGTH = 80


class ParserBuilt(BaseException):  # which no command takes for its own failure
    """A command was called for its parser, which is here."""

    def __init__(self, parser: Parser) -> None:
        super().__init__()
        self.parser = parser


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, without the usage in front. While `stops` is set it reads
    nothing, and raises ParserBuilt.
    """

    stops = False

    def error(self, message: str) -> Any:
        self.exit(2, f"{self.prog}: {message} ({self.prog} --help tells more)\n")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        if Parser.stops:
            raise ParserBuilt(self)
        return super().parse_known_args(args, namespace)


def whole_number(first: int, last: int) -> Callable[[str], int]:
    """Return an argparse type: a number from `first` to `last`."""

    def read(text: str) -> int:
        if not (_is_number(text) and first <= int(text) <= last):
            shown = repr(text[:_SHOWN_MAX_LENGTH])
            raise argparse.ArgumentTypeError(f"{shown} is not a number from {first} to {last}")
        return int(text)

    return read


def memory_size(text: str) -> int:
    """Read an amount of memory such as `512MiB` or `8GiB` (an argparse type)."""
    from ciel.core.tasks import MEMORY_MAX_BYTES  # which few commands need
    from ciel.storage.errors import StorageError
    from ciel.storage.specs import parse_size

    try:
        size_bytes = parse_size(text)
    except StorageError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a size; write 8GiB, 512MiB or 1000000"
        ) from None
    if size_bytes > MEMORY_MAX_BYTES:
        raise argparse.ArgumentTypeError(f"{text!r} is more than can be counted")
    return size_bytes
