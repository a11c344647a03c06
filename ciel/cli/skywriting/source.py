"""Reads the sources of scripts, and checks them for errors."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from typing import Final

from ciel.cli.outcome import UsageError, say
from ciel.execution.report import visible
from ciel.skywriting.errors import Problem, Source, SourceError
from ciel.skywriting.syntax import grammar, resolver

STANDARD_INPUT: Final = "-"
SOURCE_MAX_BYTES: Final = 16 << 20


def read_source(name: str) -> Source:
    """Read a script; `-` is standard input. Raises UsageError."""
    shown = "standard input" if name == STANDARD_INPUT else visible(name)
    try:
        is_input = name == STANDARD_INPUT
        with open(0 if is_input else name, "rb", closefd=not is_input) as file:
            content = file.read(SOURCE_MAX_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{shown}: {error.strerror}") from None
    if len(content) > SOURCE_MAX_BYTES:
        raise UsageError(
            f"{shown}: longer than {SOURCE_MAX_BYTES >> 20} MiB, the limit for scripts"
        )
    try:
        return Source(shown, content.decode())
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UsageError(f"{shown}: line {line} is not UTF-8") from None


def problems_of(source: Source) -> tuple[Problem, ...]:
    """Return all errors and warnings of a script, in order."""
    from ciel.skywriting.builtins import prelude  # this imports all functions of the language

    def known(version: int) -> set[str]:
        return {"argv", "env", *prelude.names(version)}

    return _problems_of(source, known)


def errors_of(source: Source) -> list[Problem]:
    """Return the errors that keep a script from running."""
    return [problem for problem in _problems_of(source) if not problem.is_warning]


def _problems_of(
    source: Source, known: Callable[[int], Collection[str]] | None = None
) -> tuple[Problem, ...]:
    try:
        script = grammar.parse(source)
        return tuple(resolver.resolve(script, known(script.version) if known else None))
    except SourceError as error:
        return error.problems


def require_valid(source: Source) -> None:
    """Print the errors of a script, and raise UsageError if there are any."""
    errors = errors_of(source)
    if errors and _is_package(source.text):
        reason = "is not a Skywriting script; it looks like a package"
        raise UsageError(f"{source.name} {reason}: run it with `ciel run {source.name}`")
    for problem in errors:
        print_problem(problem)
    if errors:
        raise UsageError(f"{source.name}: {amount(len(errors), 'error')}, so nothing was run")


def is_script(name: str, text: str) -> bool:
    """Return whether a file that is not a valid package is a script, by its name or content."""
    if text.lstrip().startswith("{"):
        return False
    is_valid = len(text) <= SOURCE_MAX_BYTES and not errors_of(Source(name, text))
    return name.endswith(".sw") or is_valid


def _is_package(text: str) -> bool:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(found, dict) and not found.keys().isdisjoint(("package", "start"))


def print_problem(problem: Problem) -> None:
    """Print a problem on standard error."""
    say(f"{'warning' if problem.is_warning else 'error'}: {problem}")


def amount(number: int, what: str) -> str:
    """Return a number with its noun: `1 error`, `2 errors`."""
    return f"{number} {what}{'' if number == 1 else 's'}"
