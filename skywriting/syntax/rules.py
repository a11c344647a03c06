"""The grammar: its rules, and the methods that build the tree.

`generate` writes `tables.py` from `PRECEDENCE` and the texts of `RULES`. The method of a rule gets
one value for each symbol: for a token its number, otherwise the value that the symbol's rule has
returned. To keep its rules simple, the grammar accepts more than the language; the resolver reports
these errors, with better messages.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Any

from ciel.skywriting.errors import Problem, Source
from ciel.skywriting.syntax.lexer import Tokens, number_of, string_of
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
    Include,
    Index,
    ListOf,
    Name,
    Return,
    Unary,
    While,
)

# From the lowest to the highest; `_BINDS` in `printer` must agree. The operand of "last" extends as
# far as possible: it is the body of a lambda, or the operand of `!` in version 1.
PRECEDENCE = (
    ("right", "last"),
    ("left", "||"),
    ("left", "&&"),
    ("left", "==", "!="),
    ("left", "<", "<=", ">", ">="),
    ("left", "+", "-"),
    ("left", "*", "/", "%", "div"),
    ("right", "unary"),
    ("left", "(", "[", "."),
)

BINARY = ("||", "&&", "==", "!=", "<", "<=", ">", ">=", "+", "-", "*", "/", "%", "div")

RULES = (
    ("script : statements", "same"),
    ("statements : statement", "first"),
    ("statements : statements statement", "more"),
    ("block : { statements }", "block"),
    ("statement : expr ;", "evaluate"),
    ("statement : expr = expr ;", "assign"),
    ("statement : expr += expr ;", "assign"),
    ("statement : choice", "same"),
    ("choice : if ( expr ) block", "choice"),
    ("choice : if ( expr ) block else block", "choice"),
    ("choice : if ( expr ) block else choice", "choice"),
    ("statement : while ( expr ) block", "while_"),
    ("statement : do block while ( expr ) ;", "do_while"),
    ("statement : for ( names in expr ) block", "for_"),
    ("statement : break ;", "break_"),
    ("statement : continue ;", "continue_"),
    ("statement : return ;", "return_"),
    ("statement : return expr ;", "return_"),
    ("statement : include expr ;", "include"),
    ("statement : function name ( parameters ) block", "define"),
    ("statement : block", "same"),
    ("parameters :", "no_names"),
    ("parameters : names", "same"),
    ("parameters : names ,", "same"),
    ("names : name", "first"),
    ("names : names , name", "more_after_comma"),
    ("expr : name", "name"),
    ("expr : number", "number"),
    ("expr : string", "string"),
    ("expr : true", "true"),
    ("expr : false", "false"),
    ("expr : ( expr )", "brackets"),
    ("expr : [ ]", "list_of"),
    ("expr : [ items ]", "list_of"),
    ("expr : [ items , ]", "list_of"),
    ("expr : { }", "dict_of"),
    ("expr : { pairs }", "dict_of"),
    ("expr : { pairs , }", "dict_of"),
    ("expr : expr [ expr ]", "index"),
    ("expr : expr . name", "field"),
    ("expr : expr ( )", "call"),
    ("expr : expr ( items )", "call"),
    ("expr : expr ( items , )", "call"),
    ("expr : - expr %prec unary", "unary"),
    ("expr : * expr %prec unary", "unary"),
    ("expr : not expr %prec unary", "unary"),
    ("expr : ! expr %prec last", "unary"),
    *((f"expr : expr {operator} expr", "binary") for operator in BINARY),
    ("expr : function ( parameters ) block", "function"),
    ("expr : lambda names : expr %prec last", "lambda_"),
    ("expr : lambda : expr %prec last", "lambda_"),
    ("items : expr", "first"),
    ("items : items , expr", "more_after_comma"),
    ("pairs : expr : expr", "first_pair"),
    ("pairs : pairs , expr : expr", "more_pairs"),
)  # fmt: skip


class Builder:
    """Builds the tree of one text. `at`: the number of the next token."""

    __slots__ = ("at", "kinds", "offsets", "problems", "source", "texts")

    def __init__(self, source: Source, tokens: Tokens) -> None:
        self.source = source
        self.problems = tokens.problems
        self.kinds = tokens.kinds
        self.texts = tokens.texts
        self.offsets = tokens.offsets
        self.at = 0

    def _last(self) -> int:
        """Return the offset of the last character of the last token that was read."""
        last = self.at - 1
        return self.offsets[last] + len(self.texts[last]) - 1

    # --- lists and brackets -----------------------------------------------------------------------

    def same(self, parts: list[Any]) -> Any:
        return parts[0]

    def brackets(self, parts: list[Any]) -> Any:
        return parts[1]

    def first(self, parts: list[Any]) -> list[Any]:
        return parts

    def more(self, parts: list[Any]) -> list[Any]:
        items: list[Any] = parts[0]
        items.append(parts[1])
        return items

    def more_after_comma(self, parts: list[Any]) -> list[Any]:
        items: list[Any] = parts[0]
        items.append(parts[2])
        return items

    def first_pair(self, parts: list[Any]) -> list[Any]:
        return [(parts[0], parts[2])]

    def more_pairs(self, parts: list[Any]) -> list[Any]:
        items: list[Any] = parts[0]
        items.append((parts[2], parts[4]))
        return items

    def no_names(self, parts: list[Any]) -> list[int]:
        return []

    # --- expressions ------------------------------------------------------------------------------

    def name(self, parts: list[int]) -> Name:
        at = parts[0]
        return Name(self.offsets[at], self.texts[at])

    def number(self, parts: list[int]) -> Constant:
        at = parts[0]
        return Constant(self.offsets[at], number_of(self.texts[at]))

    def string(self, parts: list[int]) -> Constant:
        at = parts[0]
        return Constant(self.offsets[at], string_of(self.texts[at]))

    def true(self, parts: list[int]) -> Constant:
        return Constant(self.offsets[parts[0]], True)

    def false(self, parts: list[int]) -> Constant:
        return Constant(self.offsets[parts[0]], False)

    def list_of(self, parts: list[Any]) -> ListOf:
        return ListOf(self.offsets[parts[0]], parts[1] if len(parts) > 2 else [])

    def dict_of(self, parts: list[Any]) -> DictOf:
        return DictOf(self.offsets[parts[0]], parts[1] if len(parts) > 2 else [])

    def index(self, parts: list[Any]) -> Index:
        target, at, index, _ = parts
        return Index(self.offsets[at], target, index)

    def field(self, parts: list[Any]) -> Field:
        target, _, at = parts
        return Field(self.offsets[at], target, self.texts[at])

    def call(self, parts: list[Any]) -> Call:
        function = parts[0]
        named = type(function) is Name or type(function) is Field
        start = function.start if named else self.offsets[parts[1]]
        return Call(start, function, parts[2] if len(parts) > 3 else [])

    def unary(self, parts: list[Any]) -> Unary:
        at, operand = parts
        return Unary(self.offsets[at], self.texts[at], operand)

    def binary(self, parts: list[Any]) -> Binary:
        left, at, right = parts
        return Binary(self.offsets[at], self.texts[at], left, right)

    def function(self, parts: list[Any]) -> Function:
        at, _, parameters, _, body = parts
        return Function(self.offsets[at], "", self._names(parameters), body)

    def lambda_(self, parts: list[Any]) -> Function:
        at, colon, value = parts[0], parts[-2], parts[-1]
        start, end = self.offsets[colon + 1], self._last()
        body = Block(start, end, [Return(start, end, value)])
        return Function(
            self.offsets[at], "", self._names(parts[1]) if colon != parts[1] else (), body, True
        )

    def _names(self, numbers: list[int]) -> tuple[str, ...]:
        """Return the names in a list; report a name that occurs twice."""
        names: dict[str, None] = {}
        for at in numbers:
            name = self.texts[at]
            if name in names:
                fault = f'the name "{name}" occurs twice in this list'
                self.problems.append(Problem(self.source, self.offsets[at], fault))
            names[name] = None
        return tuple(names)

    # --- statements -------------------------------------------------------------------------------

    def block(self, parts: list[Any]) -> Block:
        opening, statements, closing = parts
        return Block(self.offsets[opening], self.offsets[closing], statements)

    def evaluate(self, parts: list[Any]) -> Evaluate:
        value, end = parts
        return Evaluate(self._first(value), self.offsets[end], value)

    def assign(self, parts: list[Any]) -> Assign:
        target, at, value, end = parts
        start, root = self._first(target), target
        while isinstance(root, Index | Field):
            root = root.target
        if isinstance(root, Name) and root.start != start:
            fault = (
                "cannot assign to an expression in brackets: "
                "only to a variable, or to an item or field of one"
            )
            self.problems.append(Problem(self.source, start, fault))
        return Assign(start, self.offsets[end], self.texts[at], target, value)

    def choice(self, parts: list[Any]) -> If:
        otherwise = parts[6] if len(parts) > 5 else None
        last: Block | If = parts[-1]
        return If(self.offsets[parts[0]], last.end, parts[2], parts[4], otherwise)

    def while_(self, parts: list[Any]) -> While:
        return While(self.offsets[parts[0]], parts[4].end, parts[2], parts[4])

    def do_while(self, parts: list[Any]) -> DoWhile:
        return DoWhile(self.offsets[parts[0]], self.offsets[parts[6]], parts[1], parts[4])

    def for_(self, parts: list[Any]) -> For:
        at, _, numbers, _, iterable, _, body = parts
        if len(numbers) > 2:
            fault = "for needs one name, or two for a dictionary or pairs: for (key, value in …)"
            self.problems.append(Problem(self.source, self.offsets[numbers[2]], fault))
        return For(self.offsets[at], body.end, self._names(numbers), iterable, body)

    def break_(self, parts: list[int]) -> Break:
        return Break(self.offsets[parts[0]], self.offsets[parts[1]])

    def continue_(self, parts: list[int]) -> Continue:
        return Continue(self.offsets[parts[0]], self.offsets[parts[1]])

    def return_(self, parts: list[Any]) -> Return:
        value = parts[1] if len(parts) > 2 else None
        return Return(self.offsets[parts[0]], self.offsets[parts[-1]], value)

    def include(self, parts: list[Any]) -> Include:
        return Include(self.offsets[parts[0]], self.offsets[parts[2]], parts[1])

    def define(self, parts: list[Any]) -> Define:
        at, name, _, parameters, _, body = parts
        start = self.offsets[at]
        function = Function(start, self.texts[name], self._names(parameters), body)
        return Define(start, body.end, function)

    def _first(self, expression: Expression) -> int:
        """Return the offset of an expression that begins a statement."""
        while True:
            if isinstance(expression, Binary):
                expression = expression.left
            elif isinstance(expression, Index | Field):
                expression = expression.target
            elif isinstance(expression, Call):
                expression = expression.function
            else:
                break
        at = bisect_left(self.offsets, expression.start)
        while self.kinds[at - 1] == "(" and at:
            at -= 1
        return self.offsets[at]
