"""Runs scripts: calls functions, stops when an object does not exist yet, and resumes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from ciel.skywriting.errors import ContinuationError, ScriptError
from ciel.skywriting.evaluation.code import RETRY, Code, Frame, Unit
from ciel.skywriting.evaluation.names import is_bound
from ciel.skywriting.evaluation.results import require_result
from ciel.skywriting.evaluation.values import (
    RUN,
    Activation,
    Blocked,
    Builtin,
    Closure,
    Lazy,
    SpawnedCall,
    brief,
    force,
)
from ciel.skywriting.host import Host, Run
from ciel.skywriting.syntax.walking import statement_at

CALLS_MAX_DEPTH = 10_000


class Finished(NamedTuple):
    """A script has ended. `value` is plain: numbers, strings, lists, dictionaries and references.
    `has_returned`: the script has executed a `return`; otherwise the value is none.
    """

    value: Any
    has_returned: bool = True


class Stopped:
    """A script that waits for references: all of `refs`, or one of them if `is_any`.

    Its state is its activations, the outermost first. If there are none, its state is `value`: a
    starred reference that the script has returned and not read yet, or the call of a built-in.
    """

    __slots__ = ("activations", "is_any", "is_foreign", "refs", "value")

    def __init__(self, activations: list[Activation], blocked: Blocked, value: Any = RETRY) -> None:
        self.is_foreign = False  # whether it was read from JSON, and so may not fit the script
        self.activations = activations
        self.refs = blocked.refs
        self.is_any = blocked.is_any
        self.value = value

    def resume(self, host: Host) -> Outcome:
        """Resume the script. This object cannot be used again."""
        run = Run(host)
        run.is_foreign = self.is_foreign
        for activation in self.activations:
            activation.frame[RUN] = run
        if isinstance(self.value, SpawnedCall):
            return call(run, self.value)
        return go_on(run, self.activations, self.value)


Outcome = Finished | Stopped


def define(code: Code, frame: Frame) -> Closure:
    """Return a function that captures the variables that are bound now. Raises ScriptError if the
    function assigns to a name that is bound outside of it, as the original Skywriting did.
    """
    for name, offset in code.assigned:
        if name in code.parameters or (name != code.name and is_bound(name, frame)):
            whose = (
                "one of its own parameters" if name in code.parameters else "bound outside of it"
            )
            error = ScriptError(
                f'{code.label} assigns "{name}", which is {whose}; '
                "a function sees variables as they were when it was defined: choose another name"
            )
            error.place = (code.unit.source, offset)
            raise error
    return Closure(code, {name: frame[name] for name in code.free if name in frame})


def invoke(
    frame: Frame, function: Any, arguments: Sequence[Any], called_at: int, unit: Unit
) -> Any:
    """Call a value, which may be a function."""
    run: Run = frame[RUN]
    kind = type(function)
    if kind is Closure:
        code = function.code
        if code.unit.version > 1:
            _require_count(function, len(arguments))
        return enter(run, code, call_frame(run, function, arguments), called_at, unit)
    if kind is Builtin:
        if not function.is_lazy:
            host = run.host
            arguments = [force(v, host) if type(v) is Lazy else v for v in arguments]
        return function.function(run.host, list(arguments))
    if kind is Lazy:
        return invoke(frame, force(function, run.host), arguments, called_at, unit)
    raise ScriptError(f"{brief(function)} cannot be called")


def _require_count(function: Closure, count: int) -> None:
    """Raise an error for a wrong number of arguments of a function in a script of version 2.
    Optional parameters have captured values.
    """
    code = function.code
    if code.unit.version < 2 or count == len(code.parameters):
        return
    if count < len(code.parameters) and code.parameters[count] in function.captured:
        return
    takes = len(code.parameters)
    noun = "argument" if takes == 1 else "arguments"
    raise ScriptError(f"{code.label} takes {takes} {noun}, not {count}")


def call_frame(run: Run, function: Closure, arguments: Sequence[Any]) -> Frame:
    """Return the variables with which a function starts."""
    code = function.code
    frame = function.captured.copy()
    if code.name:
        frame[code.name] = function
    for name, value in zip(code.parameters, arguments, strict=False):
        frame[name] = value
    frame[RUN] = run
    return frame


def enter(run: Run, code: Code, frame: Frame, called_at: int, unit: Unit) -> Any:
    """Run a code from its beginning; `unit` is the unit of the caller."""
    if run.depth >= CALLS_MAX_DEPTH:
        raise ScriptError(f"function calls are nested more than {CALLS_MAX_DEPTH} deep")
    run.depth += 1
    try:
        signal = code.run(frame)
    except Blocked as blocked:
        blocked.close(code, frame, called_at)
        raise
    except ScriptError as error:
        error.calls.append((code.label, unit.source, called_at))
        raise
    run.depth -= 1
    return None if signal is None else signal[0]


def begin(run: Run, code: Code, frame: Frame) -> Outcome:
    """Run the outermost code of a task."""
    frame[RUN] = run
    return go_on(run, [Activation(code, frame, 0, [])], RETRY)


def call(run: Run, spawned: SpawnedCall) -> Outcome:
    """Call a function as a task."""
    function = spawned.function
    if isinstance(function, Closure):
        _require_count(function, len(spawned.arguments))
        return begin(run, function.code, call_frame(run, function, spawned.arguments))
    try:
        return go_on(run, [], require_result(function.function(run.host, spawned.arguments)))
    except Blocked as blocked:
        return Stopped([], blocked, spawned)


def go_on(run: Run, activations: list[Activation], value: Any) -> Outcome:
    """Resume the innermost activation with a value, then the next one with the result, and so on.
    An activation without entries has not started.
    """
    has_returned = True
    try:
        while activations:
            activation = activations[-1]
            code, frame, entries = activation.code, activation.frame, activation.entries
            run.depth = len(activations)
            if not entries:
                value = code.run(frame)
            code.compile()
            while entries:
                point, values = entries.pop(0)
                value = code.points[point](frame, values, value)
            activations.pop()
            has_returned = value is not None
            value = None if value is None else value[0]
        return Finished(force(value, run.host), has_returned)
    except Blocked as blocked:
        if not activations:
            return Stopped([], blocked, value)
        activations[-1].entries[:0] = blocked.entries
        return Stopped([*activations, *reversed(blocked.activations)], blocked)
    except ScriptError as error:
        _add_calls(error, activations)
        raise
    except (RecursionError, MemoryError) as error:
        raise _exhausted(error) from None
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        if not run.is_foreign:
            raise
        raise ContinuationError(
            f"the continuation does not fit its script ({error!r:.200})"
        ) from error


def _add_calls(error: ScriptError, activations: list[Activation]) -> None:
    """Add the calls, and the lines of the statement, to an error."""
    for caller, called in reversed(list(pairwise(activations))):
        error.calls.append((called.code.label, caller.code.unit.source, called.called_at))
    if error.place is not None and error.lines is None:
        source, offset = error.place
        statement = statement_at(source.statements, offset)
        if statement is not None:
            error.lines = (source.place(statement.start)[0], source.place(statement.end)[0])


def _exhausted(error: RecursionError | MemoryError) -> ScriptError:
    if isinstance(error, MemoryError):
        return ScriptError("there is not enough memory for this script's values")
    return ScriptError("calls, or values within values, are nested too deeply")
