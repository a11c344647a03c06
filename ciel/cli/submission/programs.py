"""Finds the program of a job, and the files that it is given."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from ciel.cli.outcome import UsageError


def program_of(words: Sequence[str], files: Mapping[str, Path] | None = None) -> list[str]:
    """Check and return the command line.

    A program name with a slash is a path relative to the current directory, unless `--in` sends
    that file: then the task's directory contains it.
    """
    program, *arguments = words
    if not program:
        raise UsageError("the program's name is empty")
    if "/" not in program:
        return [program, *arguments]
    path = os.path.abspath(program)
    for name, sent in (files or {}).items():
        if path in (os.path.abspath(name), os.path.abspath(sent)):
            return [f"./{name}", *arguments]
    return [path, *arguments]


def files_of(paths: Sequence[Path]) -> dict[str, Path]:
    """Check the files of `--in`; return them by the names that they will have."""
    files: dict[str, Path] = {}
    for path in paths:
        if not path.is_file():
            reason = "it is not a regular file" if path.exists() else "the file does not exist"
            raise UsageError(f"--in {path}: {reason}")
        if path.name in files:
            raise UsageError(f"--in {path}: {files[path.name]} has the same name")
        files[path.name] = path
    return files
