"""Collects all commands with their parsers, for shell completion and manual pages.

Every command creates its parser before anything else. This module calls each command and stops it
before it reads its command line, so that no list of options exists twice (ADR 42).
"""

from __future__ import annotations

import argparse
import io
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr
from functools import partial
from importlib import import_module
from typing import Any, Final, NamedTuple

from ciel.cli.main import COMMANDS
from ciel.cli.parsing.parser import Parser, ParserBuilt

PROGRAM: Final = "ciel"


class Option(NamedTuple):
    """An option, as a help text lists it.

    `names`: the longest last. `value`: the placeholder for its value, as in `--limit N`; "" if the
    option takes no value.
    """

    names: tuple[str, ...]
    value: str
    choices: tuple[str, ...]
    summary: str


class Argument(NamedTuple):
    """A positional argument. `many`: it may occur several times."""

    name: str
    choices: tuple[str, ...]
    summary: str
    many: bool


class Command(NamedTuple):
    """A command: `words` are the program and the words that select the command.

    A command without a parser has only `verbs`.
    """

    words: tuple[str, ...]
    summary: str
    parser: Parser | None
    verbs: tuple[Command, ...]

    @property
    def options(self) -> list[Option]:
        found = [] if self.parser is None else self.parser._actions
        return [
            Option(
                tuple(sorted(action.option_strings, key=len)), _value_of(action),
                _choices_of(action), _summary_of(action),
            )
            for action in found
            if action.option_strings and action.help != argparse.SUPPRESS
        ]  # fmt: skip

    @property
    def arguments(self) -> list[Argument]:
        found = [] if self.parser is None else self.parser._actions
        return [
            Argument(
                _value_of(action), _choices_of(action), _summary_of(action),
                action.nargs in ("+", "*", argparse.PARSER, argparse.REMAINDER),
            )
            for action in found
            if not action.option_strings and action.help != argparse.SUPPRESS
        ]  # fmt: skip

    def with_verbs(self) -> Iterator[Command]:
        """Yield the command, and the commands of its verbs."""
        yield self
        for verb in self.verbs:
            yield from verb.with_verbs()


def programs() -> list[Command]:
    """Return all programs: `ciel` with its commands, the daemons, and `sw-job`."""
    from ciel.cli.daemons import master, worker  # here, since loading Twisted takes a while
    from ciel.cli.skywriting import script

    commands = [_command(name, module) for name, (module, _) in COMMANDS.items()]
    everything = Command(
        (PROGRAM,), "runs graphs of ordinary programs", None, tuple(commands)
    )  # fmt: skip
    return [
        everything,
        _alone("ciel-master", master.parser),
        _alone("ciel-worker", worker.parser),
        _alone("sw-job", lambda: _stopped(lambda: script.parse("sw-job", []))),
    ]


def _command(name: str, module_name: str) -> Command:
    module = import_module(f"ciel.cli.commands.{module_name}")
    verbs = []
    for verb in getattr(module, "VERBS", ()):
        words = (PROGRAM, name, verb)
        own = _require(_stopped(partial(module.main, name, [verb])), words)
        verbs.append(Command(words, own.description or "", own, ()))
    parser = _stopped(partial(module.main, name, []))
    summary = COMMANDS[name][1]
    if not verbs:
        _require(parser, (PROGRAM, name))
    return Command((PROGRAM, name), summary, parser, tuple(verbs))


def _alone(name: str, make: Callable[[], Any]) -> Command:
    parser = _require(make(), (name,))
    return Command((name,), parser.description or "", parser, ())


def _stopped(run: Callable[[], object]) -> Parser | None:
    """Return the parser that a command creates; None if it creates none for its words."""
    Parser.stops = True
    try:
        with redirect_stderr(io.StringIO()):  # a command without a verb prints its verbs
            run()
    except ParserBuilt as built:
        return built.parser
    finally:
        Parser.stops = False
    return None


def _require(parser: Parser | None, words: tuple[str, ...]) -> Parser:
    if parser is None:
        raise LookupError(f"{' '.join(words)} does not create its parser before anything else")
    return parser


def _value_of(action: argparse.Action) -> str:
    """Return the metavariable of an option or argument, as in its help; "" if it takes no value."""
    if action.nargs == 0:
        return ""
    if isinstance(action.metavar, tuple):
        return " ".join(action.metavar)
    if action.metavar:
        return action.metavar
    return action.dest.upper().replace("_", "-") if action.choices is None else ""


def _choices_of(action: argparse.Action) -> tuple[str, ...]:
    return tuple(str(choice) for choice in action.choices or ())


def _summary_of(action: argparse.Action) -> str:
    if isinstance(action, argparse._HelpAction):
        return "show this help"
    return (action.help or "") % {"default": action.default, "prog": "", "dest": action.dest}
