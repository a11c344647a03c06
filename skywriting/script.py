"""Checks, loads and runs scripts: the interface of the package."""

from __future__ import annotations

import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ciel.skywriting.builtins.prelude import LANGUAGE
from ciel.skywriting.errors import Problem, Source, SourceError
from ciel.skywriting.evaluation.code import Frame, Unit
from ciel.skywriting.evaluation.running import Finished, Outcome, Stopped, begin
from ciel.skywriting.evaluation.running import call as call_within
from ciel.skywriting.evaluation.values import SpawnedCall
from ciel.skywriting.host import Host, Run
from ciel.skywriting.syntax import tree
from ciel.skywriting.syntax.grammar import parse
from ciel.skywriting.syntax.resolver import resolve

__all__ = ["Finished", "Outcome", "Stopped", "call", "check", "load", "roomy", "start"]

_FRAMES_MAX = 100_000
_STACK_BYTES = 120 << 20


def check(text: str, name: str) -> list[Problem]:
    """Return the warnings on a script; raises SourceError if it cannot run."""
    return _read(text, name)[1]


def _read(text: str, name: str) -> tuple[tree.Script, list[Problem]]:
    """Return the tree of a script, and the warnings on it; raises SourceError."""
    script = parse(Source(name, text))
    problems = resolve(script)
    if errors := [problem for problem in problems if not problem.is_warning]:
        raise SourceError(errors)
    return script, problems


def load(text: str, name: str, origin: Any, *, shows_last: bool = False) -> Unit:
    """Return a script that is ready to run; raises SourceError. `origin`: see `Unit`. `shows_last`:
    if the last statement is an expression, the script returns its value, as at a prompt.
    """
    script, _ = _read(text, name)
    last = script.statements[-1] if script.statements else None
    if shows_last and isinstance(last, tree.Evaluate):
        script.statements[-1] = tree.Return(last.start, last.end, last.value)
    return Unit(script, origin, LANGUAGE)


def start(unit: Unit, env: dict[str, Any], argv: list[Any], host: Host) -> Outcome:
    """Run a script from its beginning. Raises ScriptError."""
    return start_with(unit, {"env": env, "argv": argv}, host)


def start_with(unit: Unit, frame: Frame, host: Host) -> Outcome:
    """Run a script with variables, which it may change. Raises ScriptError."""
    return begin(Run(host), unit.codes[0], frame)


def call(spawned: SpawnedCall, host: Host) -> Outcome:
    """Call a function as a task. Raises ScriptError."""
    return call_within(Run(host), spawned)


@contextmanager
def roomy() -> Iterator[None]:
    """Raise Python's recursion limit, and the limit of the C stack, on which nested values are
    compared.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_STACK)
    wanted = _STACK_BYTES if hard == resource.RLIM_INFINITY else min(_STACK_BYTES, hard)
    before = sys.getrecursionlimit()
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        wanted = soft
    resource.setrlimit(resource.RLIMIT_STACK, (wanted, hard))
    try:
        room = _STACK_BYTES if wanted == resource.RLIM_INFINITY else wanted
        sys.setrecursionlimit(max(before, min(_FRAMES_MAX, room * _FRAMES_MAX // _STACK_BYTES)))
        yield
    finally:
        sys.setrecursionlimit(before)
        resource.setrlimit(resource.RLIMIT_STACK, (soft, hard))
