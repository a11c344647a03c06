"""Parses store specifications such as `shm:capacity=8GiB`, `disk` and `disk:sync=yes`.

The name before the colon selects the factory (entry points `ciel.stores`); the factory reads the
options.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from ciel.storage.errors import StoreSpecError

_NAME = re.compile(r"[a-z][a-z0-9_-]*")
_SIZE = re.compile(r"([0-9]{1,15})(?:B|([KMGT])(?:iB)?)?")
_UNIT_BYTES = {None: 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def parse_spec(text: str) -> tuple[str, dict[str, str]]:
    """Split `name:option=value,option=value` into the name and its options."""
    name, _, rest = text.partition(":")
    if not _NAME.fullmatch(name):
        raise StoreSpecError(text, "write NAME or NAME:OPTION=VALUE,OPTION=VALUE")
    options: dict[str, str] = {}
    for item in rest.split(",") if rest else []:
        option, equals, value = item.partition("=")
        if not (_NAME.fullmatch(option) and equals and value):
            raise StoreSpecError(text, f"{item!r} is not option=value")
        if option in options:
            raise StoreSpecError(text, f"option {option!r} is given twice")
        options[option] = value
    return name, options


def check_options(store: str, options: Mapping[str, str], known: tuple[str, ...]) -> None:
    """Raise `StoreSpecError` for an unknown option, and list the known ones in the message."""
    for option in options:
        if option not in known:
            reason = f"unknown option {option!r}; the options are: {', '.join(known)}"
            raise StoreSpecError(store, reason)


def parse_size(text: str) -> int:
    """Parse a size like `8GiB`, `8G`, `512MiB` or `1000000`.

    Units are powers of 1024; zero is refused.
    """
    match = _SIZE.fullmatch(text)
    size_bytes = int(match[1]) * _UNIT_BYTES[match[2]] if match else 0
    if not size_bytes:
        raise StoreSpecError(text, "not a size; write a size such as 8GiB, 512MiB or 1000000")
    return size_bytes


def parse_flag(text: str) -> bool:
    """Parse `yes` or `no`."""
    if text not in ("yes", "no"):
        raise StoreSpecError(text, "write yes or no")
    return text == "yes"
