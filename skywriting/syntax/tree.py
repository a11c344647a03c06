"""The tree of a script: the parser builds it, the resolver completes it, the printer formats it.

Each node has the offset in the source that error messages show; a statement also has its first and
its last offset.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, dataclass_transform

from ciel.skywriting.errors import Source


@dataclass_transform()
class _NodeType(type):
    """A metaclass: the annotations of a class become its slots and its constructor's parameters.

    `dataclass` takes ten times as long, and each command that reads a script would pay for that
    when it starts.
    """

    def __new__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> _NodeType:
        fields = tuple(namespace.get("__annotations__", ()))
        defaults = {field: namespace.pop(field) for field in fields if field in namespace}
        if fields:
            parameters = ", ".join(f"{f}=_{f}" if f in defaults else f for f in fields)
            body = "".join(f"\n    self.{f} = {f}" for f in fields)
            scope = {f"_{field}": value for field, value in defaults.items()}
            exec(f"def __init__(self, {parameters}):{body}", scope, namespace)
        namespace["__slots__"] = namespace["__match_args__"] = fields
        return super().__new__(cls, name, bases, namespace)


class Node(metaclass=_NodeType):
    """A node of a tree. Two nodes are equal if their fields are."""

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and _values(self) == _values(other)

    __hash__ = None  # type: ignore[assignment]  # they can change

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, _values(self)))})"


def _values(node: Node) -> list[Any]:
    return [getattr(node, name) for name in vars(type(node))["__slots__"]]


# --- expressions ----------------------------------------------------------------------------------


class Name(Node):
    """A variable, a function or a built-in, by its name."""

    start: int
    name: str


class Constant(Node):
    """A number, a string or a boolean in the script."""

    start: int
    value: int | float | str | bool


class ListOf(Node):
    """`[a, b]`."""

    start: int
    items: list[Expression]


class DictOf(Node):
    """`{key: value}`; keys are expressions."""

    start: int
    pairs: list[tuple[Expression, Expression]]


class Unary(Node):
    """`-a`, `!a`, or `*a`, which reads the object of a reference."""

    start: int
    operator: str
    operand: Expression


class Binary(Node):
    """An operator and two operands; `start`: the operator. `operator`: `|| && == != < <= > >= + - *
    / % div`.
    """

    start: int
    operator: str
    left: Expression
    right: Expression


class Index(Node):
    """`target[index]`; `start`: the bracket."""

    start: int
    target: Expression
    index: Expression


class Field(Node):
    """`target.name`; `start`: the name."""

    start: int
    target: Expression
    name: str


class Call(Node):
    """`function(arguments)`; `start`: the name of the function, or the bracket if it has none."""

    start: int
    function: Expression
    arguments: list[Expression]


class Function(Node):
    """`function [name](parameters) {...}` or, if `is_lambda`, `lambda parameters: value`, whose
    body is a block that returns the value. The resolver numbers the functions of a script from 1,
    in the order in which they begin. It also sets `free`, the names of outer variables that the
    function or an inner one reads, and `assigned`, the names to which the function assigns.
    """

    start: int
    name: str  # "" if it has none
    parameters: tuple[str, ...]
    body: Block
    is_lambda: bool = False
    number: int = 0
    free: tuple[str, ...] = ()
    assigned: tuple[tuple[str, int], ...] = ()  # with the first offset


Expression = Name | Constant | ListOf | DictOf | Unary | Binary | Index | Field | Call | Function

# --- statements: `start` is the first character, `end` is the last --------------------------------


class Assign(Node):
    """`target = value;` or `target += value;` (`operator` is `=` or `+=`). The resolver accepts
    only a name, an index or a field as a target, and only a name for `+=`.
    """

    start: int
    end: int
    operator: str
    target: Expression
    value: Expression


class Evaluate(Node):
    """An expression as a statement."""

    start: int
    end: int
    value: Expression


class If(Node):
    """`if (condition) {...} [else {...}]`; `else if` is an `If` in place of the block."""

    start: int
    end: int
    condition: Expression
    then: Block
    otherwise: Block | If | None


class While(Node):
    """`while (condition) {...}`."""

    start: int
    end: int
    condition: Expression
    body: Block


class DoWhile(Node):
    """`do {...} while (condition);`."""

    start: int
    end: int
    body: Block
    condition: Expression


class For(Node):
    """`for (name in iterable) {...}`; with two names, over a dictionary or a list of pairs."""

    start: int
    end: int
    names: tuple[str, ...]
    iterable: Expression
    body: Block


class Break(Node):
    """`break;`."""

    start: int
    end: int


class Continue(Node):
    """`continue;`."""

    start: int
    end: int


class Return(Node):
    """`return [value];`."""

    start: int
    end: int
    value: Expression | None


class Include(Node):
    """`include what;`."""

    start: int
    end: int
    what: Expression


class Define(Node):
    """`function name(parameters) {...}` as a statement."""

    start: int
    end: int
    function: Function


class Block(Node):
    """`{...}`; also the body of a lambda, which is one `Return`."""

    start: int
    end: int
    statements: list[Statement]


Statement = (
    Assign | Evaluate | If | While | DoWhile | For | Break | Continue | Return | Include | Define
    | Block
)  # fmt: skip


class Script(Node):
    """A whole text. `version` is 2 if its first line is `#!skywriting 2`, else 1."""

    source: Source
    statements: list[Statement]
    version: int = 1
    functions: Sequence[Function] = ()  # by number - 1; set by the resolver
