"""Options that several commands share."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence

from ciel.cli.outcome import UsageError, say
from ciel.cli.parsing.parser import Parser, whole_number
from ciel.cli.parsing.parser import seconds as seconds  # imported from here by modules with options

_HELP_WIDTH = 78  # without a terminal

WORKERS_MAX = 256
"""The highest number of workers on one computer; a worker takes about 50 MB, a slot no memory."""

count = whole_number(1, 1_000_000)
"""An argparse type."""


def make_parser(prog: str, description: str, epilog: str = "") -> Parser:
    """Return an empty parser with the settings of all commands."""
    return Parser(
        prog=prog,
        description=description,
        epilog=epilog,
        formatter_class=_formatter,
        allow_abbrev=False,
    )


def _formatter(prog: str) -> argparse.HelpFormatter:
    """Create a help formatter with a fixed width.

    argparse creates a formatter for each option. Without a width, it would import shutil to ask for
    the width of the terminal.
    """
    try:
        width = os.get_terminal_size(1).columns - 2
    except OSError:
        width = _HELP_WIDTH
    return argparse.RawDescriptionHelpFormatter(prog, width=width)


def add_cluster_options(parser: argparse.ArgumentParser, *, prints_json: bool = True) -> None:
    """Add the options that name a cluster, and `--json` if the command can print that."""
    parser.add_argument("-m", "--master", metavar="URL", help="URL of the master, http://HOST:PORT")
    parser.add_argument("--access", metavar="FILE", help="access file of the cluster")
    if prints_json:
        parser.add_argument("--json", action="store_true", help="print JSON, for programs")


def warn_of_late_options(
    parser: Parser, words: Sequence[str], program: str, arguments: Sequence[str]
) -> None:
    """Print a note if arguments of a program look like options of this command.

    The note is omitted if `--` is among the words of the command line.
    """
    if "--" not in words and (found := parser.options_among(arguments)):
        say(
            f"{found[0]} follows {program}, so it is an argument of that program, not an option of "
            f"{parser.prog}: put options before it (write -- before {program} to hide this note)"
        )


def add_own_cluster_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for a cluster that a command starts itself."""
    parser.add_argument(
        "--workers", type=whole_number(1, WORKERS_MAX), metavar="N",
        help="if no cluster is running, start one with N workers for this command (default 1)",
    )  # fmt: skip


def assignments(option: str, given: Sequence[str], current: Mapping[str, str]) -> dict[str, str]:
    """Read the variables of an option that takes `NAME=VALUE`; raises UsageError.

    `NAME` alone copies the value of the `current` environment.
    """
    found = {}
    for assignment in given:
        name, equals, value = assignment.partition("=")
        if not name:
            raise UsageError(f"{option} {assignment}: expected NAME=VALUE")
        if not equals and name not in current:
            raise UsageError(f"{option} {name}: this variable is not set; write {name}=VALUE")
        found[name] = value if equals else current[name]
        require_text(f"{option}: a name", name)
    return found


def require_text(what: str, text: str) -> None:
    """Reject a name that is not valid UTF-8, because it could not be printed; raises UsageError."""
    if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
        raise UsageError(f"{what} is not UTF-8")
