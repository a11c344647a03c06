"""Parses the command lines of commands and daemons."""

from __future__ import annotations

import argparse
import errno
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

from ciel.cli.output.streams import discard

_is_number = re.compile(r"\d{1,18}", re.ASCII).fullmatch
_SHOWN_MAX_LENGTH = 80
_OUTPUT_CLOSED = 141  # the exit status of shells for SIGPIPE
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)?")
_UNIT_S = {None: 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_CLOCK = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d\d(?:\.\d+)?)")


class ParserBuilt(BaseException):  # so that commands do not catch it
    """Contains the parser of a command that was called only to get its parser."""

    def __init__(self, parser: Parser) -> None:
        super().__init__()
        self.parser = parser


class Parser(argparse.ArgumentParser):
    """Reports errors in one line, without the usage.

    While `stops` is set, it parses nothing and raises ParserBuilt.
    """

    stops = False

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} ({self.prog} --help tells more)\n")

    def _print_message(self, message: str, file: Any = None) -> None:
        """Print a help text or an error; if that fails, exit with a status that says so."""
        try:
            if file is None:  # the stream was closed when the process started
                raise OSError(errno.EBADF, os.strerror(errno.EBADF))
            file.write(message)
            file.flush()
        except BrokenPipeError:
            discard(file)
            sys.exit(_OUTPUT_CLOSED)
        except OSError as error:
            discard(file)
            if file is sys.stderr:  # the error cannot be shown; the status stays
                return
            if sys.stderr is not None:
                print(f"{self.prog}: standard output: {error.strerror}", file=sys.stderr)
            sys.exit(1)

    def options_among(self, words: Iterable[str]) -> list[str]:
        """Return the words that look like options of this parser."""
        known = self._option_string_actions
        return [
            word
            for word in words
            if (word.partition("=")[0] if word.startswith("--") else word[:2]) in known
        ]

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        found, unknown = self.parse_known_args(args, namespace)
        if unknown:
            self.reject(unknown)
        return found

    def reject(self, unknown: Sequence[str]) -> NoReturn:
        """Report unknown arguments, and the option that the first one may have meant."""
        options = [name for name in self._option_string_actions if name.startswith("--")]
        hint = suggestion(unknown[0].partition("=")[0], options, "--")
        self.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        if Parser.stops:
            raise ParserBuilt(self)
        return super().parse_known_args(args, namespace)


def suggestion(word: str, known: Iterable[str], prefix: str = "") -> str:
    """Return a hint at the known word that is most similar to a mistyped one.

    Return "" if none is similar. `prefix`: a prefix of all known words, which the comparison
    ignores.
    """
    from difflib import get_close_matches  # only mistakes need it

    candidates = [each.removeprefix(prefix) for each in known]
    close = get_close_matches(word.removeprefix(prefix), candidates, 1)
    return f" (did you mean {prefix}{close[0]}?)" if close else ""


def whole_number(first: int, last: int) -> Callable[[str], int]:
    """Return an argparse type: a number from `first` to `last`."""

    def read(text: str) -> int:
        if not (_is_number(text) and first <= int(text) <= last):
            shown = repr(text[:_SHOWN_MAX_LENGTH])
            raise argparse.ArgumentTypeError(f"{shown} is not a number from {first} to {last}")
        return int(text)

    return read


def seconds(text: str) -> float:
    """Read a time span (an argparse type): `90`, `1.5s`, `10m`, `2h`, or a clock time.

    Clock times: `05:00` is five minutes, `01:00:00` an hour, `1-00:00:00` a day.
    """
    if clock := _CLOCK.fullmatch(text.strip()):
        days, hours, minutes, left = clock.groups()
        return 86400 * int(days or 0) + 3600 * int(hours or 0) + 60 * int(minutes) + float(left)
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a time span; write 90, 1.5s, 10m, 2h or 01:00:00"
        )
    return float(match[1]) * _UNIT_S[match[2]]


def memory_size(text: str) -> int:
    """Read an amount of memory such as `512MiB`, `8GiB` or `8G` (an argparse type)."""
    from ciel.core.tasks import MEMORY_MAX_BYTES  # few commands need it
    from ciel.storage.errors import StorageError
    from ciel.storage.specs import parse_size

    try:
        size_bytes = parse_size(text)
    except StorageError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a size; write a size such as 8GiB, 512MiB or 1000000"
        ) from None
    if size_bytes > MEMORY_MAX_BYTES:
        raise argparse.ArgumentTypeError(f"{text!r} is more than {MEMORY_MAX_BYTES} bytes")
    return size_bytes
