"""The tree of a script: what the grammar builds, the resolver completes and the printer shows.

Every node knows the offset into its source at which it is shown to people; a statement also knows
where it begins and ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields
from typing import Any

from ciel.skywriting.errors import Source

# --- expressions ----------------------------------------------------------------------------------


@dataclass(slots=True)
class Name:
    """A variable, a function or a built-in, by its name."""

    start: int
    name: str


@dataclass(slots=True)
class Constant:
    """A number, a text or a truth value that stands in the script."""

    start: int
    value: int | float | str | bool


@dataclass(slots=True)
class ListOf:
    """`[a, b]`."""

    start: int
    items: list[Expression]


@dataclass(slots=True)
class DictOf:
    """`{key: value}`; keys are expressions."""

    start: int
    pairs: list[tuple[Expression, Expression]]


@dataclass(slots=True)
class Unary:
    """`-a`, `!a`, or `*a`, which reads what a reference refers to."""

    start: int
    operator: str
    operand: Expression


@dataclass(slots=True)
class Binary:
    """Two operands; `start` is that of the operator. `operator`: `|| && == != < <= > >= + - * / %
    div`.
    """

    start: int
    operator: str
    left: Expression
    right: Expression


@dataclass(slots=True)
class Index:
    """`target[index]`; `start` is that of the bracket."""

    start: int
    target: Expression
    index: Expression


@dataclass(slots=True)
class Field:
    """`target.name`; `start` is that of the name."""

    start: int
    target: Expression
    name: str


@dataclass(slots=True)
class Call:
    """`function(arguments)`; `start` is that of the function's name if it has one, else of the
    bracket.
    """

    start: int
    function: Expression
    arguments: list[Expression]


@dataclass(slots=True)
class Function:
    """`function [name](parameters) {...}` or, if `is_lambda`, `lambda parameters: value`, whose
    body is a block that returns the value. The resolver numbers the functions of a script from 1,
    in the order in which they begin, and fills in what follows from the body: the names that it
    reads but does not own (those of functions within it among them), and those that it assigns.
    """

    start: int
    name: str  # "" if it has none
    parameters: tuple[str, ...]
    body: Block
    is_lambda: bool = False
    number: int = 0
    free: tuple[str, ...] = ()
    assigned: tuple[tuple[str, int], ...] = ()  # with the offset of the first time


Expression = Name | Constant | ListOf | DictOf | Unary | Binary | Index | Field | Call | Function

# --- statements: `start` is the first character, `end` is the last --------------------------------


@dataclass(slots=True)
class Assign:
    """`target = value;` or `target += value;` (`operator` is `=` or `+=`). The resolver refuses
    targets that are no name, index or field, and `+=` on others than names.
    """

    start: int
    end: int
    operator: str
    target: Expression
    value: Expression


@dataclass(slots=True)
class Evaluate:
    """An expression as a statement."""

    start: int
    end: int
    value: Expression


@dataclass(slots=True)
class If:
    """`if (condition) {...} [else {...}]`; `else if` is an `If` in place of the block."""

    start: int
    end: int
    condition: Expression
    then: Block
    otherwise: Block | If | None


@dataclass(slots=True)
class While:
    """`while (condition) {...}`."""

    start: int
    end: int
    condition: Expression
    body: Block


@dataclass(slots=True)
class DoWhile:
    """`do {...} while (condition);`."""

    start: int
    end: int
    body: Block
    condition: Expression


@dataclass(slots=True)
class For:
    """`for (name in iterable) {...}`, or with two names over a dictionary."""

    start: int
    end: int
    names: tuple[str, ...]
    iterable: Expression
    body: Block


@dataclass(slots=True)
class Break:
    """`break;`."""

    start: int
    end: int


@dataclass(slots=True)
class Continue:
    """`continue;`."""

    start: int
    end: int


@dataclass(slots=True)
class Return:
    """`return [value];`."""

    start: int
    end: int
    value: Expression | None


@dataclass(slots=True)
class Include:
    """`include what;`."""

    start: int
    end: int
    what: Expression


@dataclass(slots=True)
class Define:
    """`function name(parameters) {...}` as a statement."""

    start: int
    end: int
    function: Function


@dataclass(slots=True)
class Block:
    """`{...}`; also the body of a lambda, which is one `Return`."""

    start: int
    end: int
    statements: list[Statement]


Statement = (
    Assign | Evaluate | If | While | DoWhile | For | Break | Continue | Return | Include | Define
    | Block
)  # fmt: skip


@dataclass(slots=True)
class Script:
    """A whole text. `version` is 2 if its first line says `#!skywriting 2`, else 1."""

    source: Source
    statements: list[Statement]
    version: int = 1
    functions: list[Function] = field(default_factory=list)  # by number - 1; the resolver's


def children(node: Any) -> Iterator[Any]:
    """Yield the nodes directly below one, in their order."""
    pending = [getattr(node, each.name) for each in fields(node)]
    while pending:
        item = pending.pop(0)
        if hasattr(item, "start"):
            yield item
        elif isinstance(item, list | tuple):
            pending[:0] = item


def statement_at(statements: Iterable[Statement], offset: int) -> Statement | None:
    """Return the innermost statement around an offset; no block, if something else will do."""
    found: Statement | None = None
    pending: list[Any] = list(statements)
    while pending:
        node = pending.pop()
        if hasattr(node, "end"):
            if not node.start <= offset <= node.end:
                continue
            if not isinstance(node, Block):
                found = node
        pending += children(node)
    return found
