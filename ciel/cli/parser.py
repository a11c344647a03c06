"""How command lines are read, by commands and daemons alike."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from typing import Any

_is_number = re.compile(r"\d{1,18}", re.ASCII).fullmatch
_SHOWN_MAX_LENGTH = 80


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, without the usage in front."""

    def error(self, message: str) -> Any:
        self.exit(2, f"{self.prog}: {message} ({self.prog} --help tells more)\n")


def whole_number(first: int, last: int) -> Callable[[str], int]:
    """Return an argparse type: a number from `first` to `last`."""

    def read(text: str) -> int:
        if not (_is_number(text) and first <= int(text) <= last):
            shown = repr(text[:_SHOWN_MAX_LENGTH])
            raise argparse.ArgumentTypeError(f"{shown} is not a number from {first} to {last}")
        return int(text)

    return read
