"""Walks trees without recursion, and turns off the garbage collector for passes over a script."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from ciel.skywriting.syntax.tree import (
    Assign,
    Binary,
    Block,
    Call,
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
    Return,
    Statement,
    Unary,
    While,
)


def below(node: Statement | Expression) -> Iterator[Statement | Expression]:
    """Yield the children of a node, in the order of the text, except for `do`."""
    if isinstance(node, Binary):
        yield from (node.left, node.right)
    elif isinstance(node, Call):
        yield node.function
        yield from node.arguments
    elif isinstance(node, Index):
        yield from (node.target, node.index)
    elif isinstance(node, Field):
        yield node.target
    elif isinstance(node, Unary):
        yield node.operand
    elif isinstance(node, ListOf):
        yield from node.items
    elif isinstance(node, DictOf):
        for pair in node.pairs:
            yield from pair
    elif isinstance(node, Function):
        yield node.body
    elif isinstance(node, Assign):
        yield from (node.target, node.value)
    elif isinstance(node, Block):
        yield from node.statements
    elif isinstance(node, If):
        yield from (node.condition, node.then)
        if node.otherwise is not None:
            yield node.otherwise
    elif isinstance(node, While | DoWhile):
        yield from (node.condition, node.body)
    elif isinstance(node, For):
        yield from (node.iterable, node.body)
    elif isinstance(node, Define):
        yield node.function
    elif isinstance(node, Include):
        yield node.what
    elif isinstance(node, Evaluate | Return):
        if node.value is not None:
            yield node.value


@contextmanager
def uncollected() -> Iterator[None]:
    """Turn the garbage collector off: a pass leaves no garbage, and collections would take longer
    than the pass.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def statement_at(statements: Iterable[Statement], offset: int) -> Statement | None:
    """Return the innermost statement around an offset, preferably not a block."""
    found: Statement | None = None
    pending: list[Statement | Expression] = list(statements)
    while pending:
        node = pending.pop()
        if isinstance(node, Statement):
            if not node.start <= offset <= node.end:
                continue
            if not isinstance(node, Block):
                found = node
        pending += below(node)
    return found
