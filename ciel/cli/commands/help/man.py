"""`ciel man`: writes manual pages of all programs and commands, from their parsers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import ciel
from ciel.cli.outcome import Status
from ciel.cli.output.files import make_directory
from ciel.cli.output.printing import print_json, print_text
from ciel.cli.parsing.grammar import PROGRAM, Command, Option, programs
from ciel.cli.parsing.options import make_parser

_SECTION: Final = 1
_EPILOG = """\
DIR is a directory of section 1, such as ~/.local/share/man/man1: then `man ciel-submit` shows one.
"""
_STATUSES: Final = {
    0: "done", 1: "the job, or a part of the request, failed", 2: "usage",
    3: "no master, or access denied", 4: "cancelled", 5: "timed out", 130: "interrupted",
}  # fmt: skip
_ENVIRONMENT: Final = {
    "CIEL_MASTER": "the master, unless --master names it",
    "CIEL_ACCESS": "its access file, unless --access names it",
    "CIEL_CONFIG": "the configuration file, otherwise $XDG_CONFIG_HOME/ciel/config.toml",
    "CIEL_STORE": "the store of workers without --store",
    "CIEL_LOG_LEVEL": "the lowest level that daemons log: debug, info, warn or error",
    "CIEL_DEBUG": "if set, a command that fails shows a traceback",
}
_FILES: Final = {
    "$XDG_STATE_HOME/ciel/HOST_PORT/access.json": "the access file of a master of this user",
    "$XDG_STATE_HOME/ciel/current@HOST": "a link to the access file of `ciel up` on a host",
    "$XDG_STATE_HOME/ciel/runs/": "logs of the clusters that commands started for themselves",
    "$XDG_CONFIG_HOME/ciel/config.toml": "settings",
}


def main(prog: str, words: Sequence[str]) -> int:
    """Write the pages."""
    parser = make_parser("ciel man", "Write the manual pages.", _EPILOG)
    parser.add_argument(
        "--out", metavar="DIR", type=Path, required=True, help="the directory to write to"
    )
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")
    args = parser.parse_args(words)
    pages = dict(all_pages(programs()))
    make_directory(args.out)
    for name, text in pages.items():
        (args.out / name).write_text(text, encoding="utf-8")
    if args.json:
        print_json({"out": str(args.out), "pages": list(pages)})
    else:
        print_text(f"{len(pages)} pages in {args.out}")
    return Status.DONE


def all_pages(found: Sequence[Command]) -> Iterator[tuple[str, str]]:
    """Yield every page with the name of its file."""
    subjects = [*found, *next(one for one in found if one.words == (PROGRAM,)).verbs]
    names = ["-".join(subject.words) for subject in subjects]
    for name, subject in zip(names, subjects, strict=True):
        others = [other for other in sorted(names) if other != name]
        yield f"{name}.{_SECTION}", "\n".join(_page(name, subject, others)) + "\n"


def _page(name: str, subject: Command, others: Sequence[str]) -> Iterator[str]:
    yield f'.TH {_text(name.upper())} {_SECTION} "" "ciel {ciel.__version__}" "ciel"'
    yield ".SH NAME"
    yield f"{_text(name)} \\- {_text(_lower(subject.summary.rstrip('.')))}"
    yield ".SH SYNOPSIS"
    typed = [subject] if subject.parser is not None else []
    typed += [verb for verb in subject.verbs if verb.parser is not None]
    for place, command in enumerate(typed):
        yield from [".br"] * bool(place)
        yield from _synopsis(command)
    if not typed:
        yield f".B {_text(name)} COMMAND"
        yield "[OPTION...] [ARG...]"
    if subject.words == (PROGRAM,):
        yield ".SH COMMANDS"
        for command in subject.verbs:
            yield from _term(f"ciel-{command.words[-1]}({_SECTION})", command.summary)
    else:
        yield ".SH DESCRIPTION"
        yield from _body(subject)
    yield from _rest(subject, others)


def _rest(subject: Command, others: Sequence[str]) -> Iterator[str]:
    if subject.words[0] == PROGRAM:
        yield ".SH EXIT STATUS"
        for status, meaning in _STATUSES.items():
            yield from _term(str(status), meaning)
    for title, table in (("ENVIRONMENT", _ENVIRONMENT), ("FILES", _FILES)):
        yield f".SH {title}"
        for name, meaning in table.items():
            yield from _term(name, meaning)
    yield ".SH SEE ALSO"
    yield ", ".join(f"\\fB{_text(other)}\\fR({_SECTION})" for other in others)


def _body(subject: Command) -> Iterator[str]:
    """Describe a command and its options, then each of its verbs."""
    if subject.parser is not None:
        yield from _about(subject)
    for verb in subject.verbs:
        yield f".SS {_text(' '.join(verb.words))}"
        yield from _about(verb)


def _about(command: Command) -> Iterator[str]:
    assert command.parser is not None  # callers pass only such commands
    yield _text(command.parser.description or "")
    for argument in command.arguments:
        name = argument.name or " | ".join(argument.choices)
        yield from _term(name, argument.summary or "; ".join(argument.choices))
    for option in command.options:
        yield from _term(_spelt(option), _with_choices(option))
    if command.parser.epilog:
        yield from [".PP", ".nf", *_lines(command.parser.epilog.rstrip("\n")), ".fi"]


def _spelt(option: Option) -> str:
    value = option.value or ("|".join(option.choices))
    return ", ".join(f"{name} {value}".rstrip() for name in option.names)


def _with_choices(option: Option) -> str:
    if not option.choices or not option.value:
        return option.summary
    return f"{option.summary} ({', '.join(option.choices)})"


def _synopsis(command: Command) -> Iterator[str]:
    assert command.parser is not None  # callers pass only such commands
    usage = re.sub(r"\s+", " ", command.parser.format_usage()).removeprefix("usage: ").strip()
    program = " ".join(command.words)
    yield f".B {_text(program)}"
    yield _text(usage.removeprefix(program).strip())


def _term(term: str, meaning: str) -> Iterator[str]:
    yield from (".TP", f"\\fB{_text(term)}\\fR", _text(meaning) or "\\&")


def _lines(text: str) -> Iterator[str]:
    for line in text.split("\n"):
        yield _text(line) or "\\&"


def _lower(text: str) -> str:
    """Convert the first letter to lower case, as in the NAME section of manual pages."""
    return text[:1].lower() + text[1:]


def _text(text: str) -> str:
    """Escape text, so that roff reads no part of it as a request."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("…", "...")
    text = text.replace("→", "\\->")
    return f"\\&{text}" if text[:1] in (".", "'") else text
