"""Implements `--dry-run`: prints the command lines of all elements, quoted for a shell."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable
from pathlib import Path

from ciel.cli.outcome import UsageError
from ciel.cli.output.printing import write_output
from ciel.cli.submission.elements import Element, Source, Template, batches


def print_commands(
    elements: Source, template: Template, variables: Iterable[str], cwd: Path | None
) -> None:
    """Print the command line of each element; one with a newline in it takes several lines.

    `variables`: the names of `--env`; `cwd`: the directory of `--cwd`. Raises UsageError, OSError.
    """
    before = "" if cwd is None else f"cd {shlex.quote(str(cwd))} && "
    for batch in batches(elements):
        lines = [before + command_line(template, elements, each, variables) for each in batch]
        write_output(b"".join([os.fsencode(line) + b"\n" for line in lines]))


def command_line(
    template: Template, elements: Source, element: Element, variables: Iterable[str] = ()
) -> str:
    """Return what a shell would have to run for an element; raises UsageError."""
    try:
        words, env = template.fill(element)
    except ValueError as error:
        raise UsageError(f"{elements.place(element)} {error}") from None
    given = [f"{name}={shlex.quote(env[name])}" for name in variables]
    return " ".join([*given, shlex.join(words)])
