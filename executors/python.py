"""The executor `python`: runs calls of functions (see `ciel.python.calls`).

The calls run in programs that stay running, and serve all tasks with the same interpreter, slots
and caller's environment. Arguments: `calls`, a bundle as base64 text; without it, the last input is
the bundle. `inputs`, a list of references. `python`, the interpreter; the default is the worker's
own. Instead of all these: `forward`, a reference whose content becomes the only output; see
`_forward`.

`python_calls` answers the calls of its programs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any, ClassVar

from ciel import __version__
from ciel.core.refs import REFERENCE_TYPES, Failure, Fixed, Reference, Value
from ciel.core.tasks import Mentions
from ciel.execution.attempt import Attempt
from ciel.execution.environment import Caller
from ciel.execution.executor import (
    Action,
    BadArgumentsError,
    ChildForm,
    Executor,
    Fail,
    Finish,
    Program,
    Talk,
    Task,
    output_count,
)
from ciel.executors import programs
from ciel.executors.python_calls import PythonConversation, taken_batches
from ciel.python.contents import MOVED, Outcome, encode
from ciel.python.packing import pack
from ciel.wire.references import to_array

START = os.path.join(next(iter(programs.__path__)), "python", "start.py")
_READ_AT_START = ("LD_", "PYTHON")
_ENVIRONMENT = {"PYTHONHASHSEED": "0"}  # so that a re-executed call pickles the same bytes


class PythonExecutor(Executor):
    """Runs calls of functions in a program."""

    name = "python"
    mentions: ClassVar[Mentions] = Mentions.OWN
    talks: ClassVar[bool] = True
    _latest: Program | None = None
    _latest_for: tuple[str, Caller | None] = ("", None)

    def begin(self, task: Task) -> Action:
        arguments = task.arguments
        inputs = _references(arguments)
        if "forward" in arguments:
            return _forward(task)
        python = arguments.get("python") or sys.executable
        if not isinstance(python, str):
            raise BadArgumentsError("'python' must name an interpreter")
        if not os.path.isabs(python) and "/" in python:
            raise BadArgumentsError(f"'python' must be a name or an absolute path, not {python!r}")
        slots = task.spec.needs.slots
        caller = task.caller
        kind = f"python\0{python}\0{slots}"  # libraries use as many threads as the task has slots
        if caller is not None:  # libraries read the environment when they are imported
            kind += f"\0{caller.digest}"
        if self._latest is None or self._latest_for != (python, caller):  # most tasks have the same
            self._latest, self._latest_for = _program(python, caller), (python, caller)
        program = self._latest
        fixed = arguments.get("fixed")
        if isinstance(fixed, Fixed):
            waited = [
                *arguments.get("extra_dependencies", ()),
                *arguments.get("any_dependencies", ()),
            ]
            return Talk(program, {"inputs": _current_refs(waited, task)}, kind, fixed.id)
        if "calls" not in arguments and not inputs:
            raise BadArgumentsError(
                "'calls' is missing: the functions to call, as ciel.call and @ciel.task write them"
            )
        if not inputs and task.attempt <= 1:
            return Talk(program, arguments, kind, encoded=task.spec.payload)
        message: dict[str, Any] = {"inputs": _current_refs(inputs, task), "attempt": task.attempt}
        if task.taken:
            message["taken"] = taken_batches(task)
        if "calls" in arguments:
            message["calls"] = arguments["calls"]
        return Talk(program, message, kind)

    def converse(self, attempt: Attempt, say: Callable[[str, Any], None]) -> PythonConversation:
        """Start the conversation with a program that is about to be sent `start_task`."""
        return PythonConversation(attempt, say)

    def child_form(self, keywords: dict[str, Any]) -> ChildForm:
        names = ("inputs", "calls", "python", "forward", "place")
        arguments = {name: keywords[name] for name in names if keywords.get(name) is not None}
        references = _references(arguments)
        apart = tuple([references[number] for number in _apart(keywords, len(references))])
        n_outputs = output_count(keywords.get("n_outputs", 1))
        sees_errors = keywords.get("sees_errors") is True
        return ChildForm(arguments, n_outputs, False, True, sees_errors=sees_errors, apart=apart)


def _apart(keywords: dict[str, Any], count: int) -> list[int]:
    """Return the numbers of the inputs that the task reads in parts."""
    numbers = keywords.get("apart", [])
    if not isinstance(numbers, list) or not all(
        type(number) is int and 0 <= number < count for number in numbers
    ):
        raise BadArgumentsError("'apart' must be a list of numbers of inputs")
    return numbers


def _program(python: str, caller: Caller | None) -> Program:
    """Return the program that runs calls for a caller.

    A preloaded parent forks it, unless the caller sets variables that the interpreter or the
    dynamic loader reads only at its start.
    """
    argv = (python, START, __version__)
    parent = None
    if python == sys.executable:
        parent = Program((*argv, "--preloaded"), env=_ENVIRONMENT)
    if caller is None:
        return Program(argv, env=_ENVIRONMENT, parent=parent)
    if any(name.startswith(_READ_AT_START) for name in caller.env):
        parent = None
    return Program(argv, env={**caller.env, **_ENVIRONMENT}, parent=parent, cwd=caller.cwd)


def _references(arguments: dict[str, Any]) -> list[Reference]:
    inputs = arguments.get("inputs", [])
    if not isinstance(inputs, list) or not all(isinstance(ref, REFERENCE_TYPES) for ref in inputs):
        raise BadArgumentsError("'inputs' must be a list of references")
    if not isinstance(arguments.get("calls", ""), str):
        raise BadArgumentsError("'calls' must be a string")
    return inputs


def _current_refs(refs: list[Reference], task: Task) -> list[Reference]:
    return [task.inputs.get(ref.id, ref) for ref in refs]


def _forward(task: Task) -> Action:
    """Produce the output from an input, or from the outcome at a place in it.

    If the input is small and `place` is null, copy its content. Otherwise the output contains a
    reference to the input, and the place in it.
    """
    ref = task.arguments["forward"]
    ref = task.inputs.get(ref.id, ref)
    place = task.arguments.get("place")
    if isinstance(ref, Failure):
        return Fail(*ref.propagated())
    if isinstance(ref, Value) and place is None:
        return Finish({0: ref.content})
    moved = Outcome(MOVED, pack((to_array(ref), place or 0, False)))
    return Finish({0: b"".join(map(bytes, encode([moved])))})
