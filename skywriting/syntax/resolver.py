"""The third pass, the resolver: finds captured variables, and errors that the grammar permits.

It walks each function separately, with a list of nodes instead of recursion. Afterwards it combines
the names that functions read, from the inner functions to the outer ones. From these it derives
which variables each function captures.
"""

from __future__ import annotations

from collections.abc import Collection

from ciel.skywriting.errors import Problem, Source
from ciel.skywriting.syntax.hints import hint_on_name
from ciel.skywriting.syntax.lexer import PROBLEMS_MAX
from ciel.skywriting.syntax.tree import (
    Assign,
    Binary,
    Block,
    Break,
    Call,
    Constant,
    Continue,
    Define,
    DictOf,
    DoWhile,
    Evaluate,
    Expression,
    Field,
    For,
    Function,
    If,
    Index,
    ListOf,
    Name,
    Return,
    Script,
    Statement,
    Unary,
    While,
)
from ciel.skywriting.syntax.walking import uncollected

_NOTHING = ": nothing in this script binds it"
WARNINGS_MAX = 20  # on unbound names: the hint on each takes a comparison with all known names


def resolve(
    script: Script, known: Collection[str] | None = None, *, may_break: bool = False
) -> list[Problem]:
    """Complete a tree, and return the errors in it, in order. `known`: the names that need no
    binding; if given, the result contains warnings on names that are never bound. `may_break`: the
    parser may have skipped a loop, so a `break` outside of one is no error.
    """
    with uncollected():
        return _resolve(script, known, may_break)


def _resolve(script: Script, known: Collection[str] | None, may_break: bool) -> list[Problem]:
    top = _Scope(script.source, (), may_break)
    scopes: list[tuple[Function, _Scope]] = []
    waiting = top.walk(script.statements)
    while waiting:
        function = waiting.pop()
        scope = _Scope(script.source, function.parameters, may_break)
        waiting += scope.walk(function.body.statements)
        scopes.append((function, scope))
    scopes.sort(key=lambda pair: pair[0].start)
    for number, (function, scope) in enumerate(scopes, 1):
        function.number = number
        function.assigned = tuple(scope.assigned.items())
    script.functions = [function for function, _ in scopes]
    for function, scope in reversed(scopes):  # inner functions begin later
        free = set(scope.reads)
        for inner in scope.functions:
            free.update(inner.free)
        free.difference_update(function.parameters, scope.assigned)
        function.free = tuple(sorted(free))
    all_scopes = [top, *(scope for _, scope in scopes)]
    problems = [problem for scope in all_scopes for problem in scope.problems]
    if known is not None and not any(scope.includes for scope in all_scopes):
        problems += _never_bound(script, all_scopes, known)
    problems.sort(key=lambda problem: (problem.is_warning, problem.offset))
    return sorted(problems[:PROBLEMS_MAX], key=lambda problem: problem.offset)


def _never_bound(script: Script, scopes: list[_Scope], known: Collection[str]) -> list[Problem]:
    """Return warnings on names that are never bound in a script that includes no other script."""
    bound = set(known)
    for scope in scopes:
        bound.update(scope.parameters, scope.assigned, scope.defined)
    first: dict[str, int] = {}
    for scope in scopes:
        for name, offset in scope.reads.items():
            if name not in bound:
                first[name] = min(offset, first.get(name, offset))
    problems = []
    for name, offset in sorted(first.items(), key=lambda item: item[1])[:WARNINGS_MAX]:
        hint = hint_on_name(name, bound, script.source.text, offset)
        message = f'unknown name "{name}"{f", {hint}" if hint else _NOTHING}'
        problems.append(Problem(script.source, offset, message, is_warning=True))
    return problems


class _Scope:
    """The body of one function, or of a script."""

    def __init__(self, source: Source, parameters: tuple[str, ...], may_break: bool) -> None:
        self.may_break = may_break
        self.source = source
        self.parameters = parameters
        self.reads: dict[str, int] = {}  # with the first offset, as below
        self.assigned: dict[str, int] = {}
        self.defined: set[str] = set()
        self.functions: list[Function] = []
        self.includes = False
        self.problems: list[Problem] = []

    def walk(self, statements: list[Statement]) -> list[Function]:
        """Walk a body in order; return the functions that it defines."""
        ahead: list[tuple[Statement, bool]] = [
            (statement, self.may_break) for statement in reversed(statements)
        ]
        while ahead:
            node, in_loop = ahead.pop()
            if isinstance(node, Assign):
                self._assign(node)
            elif isinstance(node, Evaluate):
                self._read([node.value])
            elif isinstance(node, If):
                self._read([node.condition])
                if node.otherwise is not None:
                    ahead.append((node.otherwise, in_loop))
                ahead.append((node.then, in_loop))
            elif isinstance(node, Block):
                ahead.extend([(statement, in_loop) for statement in reversed(node.statements)])
            elif isinstance(node, Return):
                if node.value is not None:
                    self._read([node.value])
            elif isinstance(node, Define):
                self.defined.add(node.function.name)
                self.functions.append(node.function)
            elif isinstance(node, While | DoWhile):
                self._read([node.condition])
                ahead.append((node.body, True))
            elif isinstance(node, For):
                self._read([node.iterable])
                for name in node.names:
                    self._bind(name, node.start)
                ahead.append((node.body, True))
            elif isinstance(node, Break | Continue):
                if not in_loop:
                    word = "break" if isinstance(node, Break) else "continue"
                    self._refuse(node.start, f'"{word}" is not in a loop')
            else:
                self.includes = True
                self._read([node.what])
        return self.functions

    def _read(self, ahead: list[Expression]) -> None:
        """Walk expressions, the last one first."""
        reads = self.reads
        while ahead:
            node = ahead.pop()
            if isinstance(node, Name):
                if node.name not in reads:
                    reads[node.name] = node.start
            elif isinstance(node, Constant):
                pass
            elif isinstance(node, Binary):
                ahead.append(node.right)
                ahead.append(node.left)
            elif isinstance(node, Call):
                ahead.extend(node.arguments[::-1])
                ahead.append(node.function)
            elif isinstance(node, Index):
                ahead.append(node.index)
                ahead.append(node.target)
            elif isinstance(node, Field):
                ahead.append(node.target)
            elif isinstance(node, Unary):
                ahead.append(node.operand)
            elif isinstance(node, ListOf):
                ahead.extend(node.items[::-1])
            elif isinstance(node, DictOf):
                ahead.extend([part for pair in reversed(node.pairs) for part in reversed(pair)])
            else:
                self.functions.append(node)

    def _assign(self, node: Assign) -> None:
        self._read([node.value])
        target = node.target
        if node.operator == "+=" and not isinstance(target, Name):
            self._refuse(target.start, "+= needs a variable on its left: write a = a + b instead")
        while isinstance(target, Index | Field):
            if isinstance(target, Index):
                self._read([target.index])
            target = target.target
        if isinstance(target, Name):
            self._bind(target.name, node.start)
        else:
            self._read([target])
            what = _DESCRIPTIONS[type(target)]
            self._refuse(
                target.start,
                f"cannot assign to {what}: only to a variable, or to an item or field of one",
            )

    def _bind(self, name: str, offset: int) -> None:
        if name not in self.assigned:
            self.assigned[name] = offset
            if name in self.parameters:
                message = f'this function is invalid: it assigns to its parameter "{name}"'
                self._refuse(offset, message, is_warning=True)

    def _refuse(self, offset: int, message: str, is_warning: bool = False) -> None:
        self.problems.append(Problem(self.source, offset, message, is_warning))


_DESCRIPTIONS: dict[type, str] = {
    Constant: "a constant",
    ListOf: "a list literal",
    DictOf: "a dictionary literal",
    Unary: "the result of an operator",
    Binary: "the result of an operator",
    Call: "the result of a call",
    Function: "a function",
}
