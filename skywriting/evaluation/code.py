"""Compiled scripts: units and code objects.

Each script text is a unit. A unit has a code object for its top level and one for each function. A
code object is compiled when it first runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ciel.skywriting.errors import Source
from ciel.skywriting.syntax.tree import Block, Function, Script

Frame = dict[str, Any]
"""The variables of a call, and its `Run` (see `values.RUN`)."""

Evaluation = Callable[[Frame], Any]
"""A compiled expression, which returns its value; or a compiled statement, which returns None or a
signal.
"""

Resumption = Callable[[Frame, tuple[Any, ...], Any], Any]
"""Resumes a construct. Its arguments are the frame, the values that the construct had computed, and
the value of the part that it waited for. RETRY instead of a value means: the construct itself was
blocked, so it runs again.
"""


class Signal:
    """The reason why a block ends early. A `return` is no Signal: it is a tuple that contains the
    value.
    """

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name


BREAK = Signal("break")
CONTINUE = Signal("continue")
RETRY = Signal("retry")
PENDING = Signal("pending")


class Language(NamedTuple):
    """The functions of the language that this module calls but cannot import, since they import it.

    `compile_body` compiles the body of a code object. `names` returns the values that scripts of a
    version can use without binding them.
    """

    compile_body: Callable[[Code], Evaluation]
    names: Callable[[int], dict[str, Any]]


class Unit:
    """A script text and its code objects.

    `origin`: a JSON value, possibly with references, that says where the text can be loaded from.
    Units with equal origins have equal texts.
    """

    __slots__ = ("_names", "codes", "language", "origin", "source", "version")

    def __init__(self, script: Script, origin: Any, language: Language) -> None:
        self.source: Source = script.source
        self.origin = origin
        self.version = script.version
        self.language = language
        self._names: dict[str, Any] | None = None
        end = len(script.source.text)
        script.source.statements = script.statements
        top = Function(0, "", (), Block(0, end, script.statements))
        self.codes = [Code(self, function) for function in (top, *script.functions)]

    @property
    def names(self) -> dict[str, Any]:
        """The values that the script can use without binding them, by name."""
        if self._names is None:
            self._names = self.language.names(self.version)
        return self._names


class Code:
    """A function, or the top level of a script.

    It can stop at numbered points. `points[n]` resumes it at point n; `checks[n]` checks the values
    that were saved there.
    """

    __slots__ = ("assigned", "checks", "free", "function", "name", "number", "parameters", "points",
                 "run", "unit")  # fmt: skip

    def __init__(self, unit: Unit, function: Function) -> None:
        self.unit = unit
        self.function = function
        self.number = function.number
        self.name = function.name
        self.parameters = function.parameters
        self.free = tuple([name for name in function.free if name != function.name])
        self.assigned = function.assigned
        self.points: list[Resumption] = []
        self.checks: list[Callable[[tuple[Any, ...]], bool]] = []
        self.run: Evaluation = self._first_run

    def _first_run(self, frame: Frame) -> Any:
        self.compile()
        return self.run(frame)

    def compile(self) -> None:
        """Compile this code object, so that it can run and be resumed."""
        if self.run == self._first_run:
            self.run = self.unit.language.compile_body(self)

    def point(self, check: Callable[[tuple[Any, ...]], bool]) -> int:
        """Add a point where this code can stop, and return its number. `check` returns whether
        saved values fit the point.
        """
        self.checks.append(check)
        self.points.append(_unset)
        return len(self.points) - 1

    @property
    def label(self) -> str:
        """Its name in error messages."""
        if self.name:
            return f"function {self.name}"
        if self.number == 0:
            return "an included script"
        return "a lambda" if self.function.is_lambda else "a function"


def _unset(frame: Frame, values: tuple[Any, ...], value: Any) -> Any:
    raise AssertionError("a point without a resumption")
