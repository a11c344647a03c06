"""Compiles expressions to closures.

A script stops by the exception `Blocked`. A construct that is half evaluated catches it, adds the
values that it has computed so far and the number of a point of its code, and re-raises it. The
resumption of that point continues with these values. A construct first computes all its values,
then has its effect: so the effect happens exactly once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ciel.skywriting.errors import ScriptError
from ciel.skywriting.evaluation import operators
from ciel.skywriting.evaluation.code import PENDING, RETRY, Code, Evaluation, Frame
from ciel.skywriting.evaluation.names import lookup
from ciel.skywriting.evaluation.running import define, invoke
from ciel.skywriting.evaluation.values import RUN, Blocked, Lazy, force
from ciel.skywriting.syntax import tree

Apply = Callable[..., Any]
"""The action of a construct. Its arguments are the frame and the operands, which may be lazy."""


def compile_expression(code: Code, node: tree.Expression) -> Evaluation:
    """Return a closure that evaluates an expression."""
    match node:
        case tree.Name(start, name):
            return _name(code, start, name)
        case tree.Constant(_, value):
            return lambda frame: value
        case tree.Function():
            function_code = code.unit.codes[node.number]
            return _located(code, node.start, lambda frame: define(function_code, frame))
        case tree.Binary():
            return compile_binary(code, node)[0]
        case tree.Unary(start, "!", operand):
            return _unary(code, start, operand, lambda value: not value)
        case tree.Unary(start, "-", operand):
            return _unary(code, start, operand, operators.negate)
        case tree.Unary(start, _, operand):
            return _unary(code, start, operand, operators.star)
        case tree.ListOf(start, items):
            return strict(code, start, items, lambda frame, *values: list(_forced(frame, values)))
        case tree.DictOf(start, pairs):
            sides = [side for pair in pairs for side in pair]
            return strict(
                code, start, sides,
                lambda frame, *values: operators.dictionary(tuple(_forced(frame, values))),
            )  # fmt: skip
        case tree.Index(start, target, index):
            return _index(code, start, target, index)
        case tree.Field(start, target, name):
            return _unary(code, start, target, lambda value: operators.field(value, name))
        case tree.Call():
            return _call(code, node)
    raise AssertionError(node)


def _forced(frame: Frame, values: tuple[Any, ...]) -> tuple[Any, ...]:
    for value in values:
        if type(value) is Lazy:
            host = frame[RUN].host
            return tuple([force(value, host) for value in values])
    return values


def _name(code: Code, start: int, name: str) -> Evaluation:
    def run(frame: Frame) -> Any:
        try:
            return frame[name]
        except KeyError:
            pass
        return lookup(name, frame, code, start)

    return run


def _located(code: Code, start: int, evaluate: Evaluation) -> Evaluation:
    """Add the place of an expression to its errors."""
    source = code.unit.source

    def run(frame: Frame) -> Any:
        try:
            return evaluate(frame)
        except ScriptError as error:
            error.place = error.place or (source, start)
            raise

    return run


# --- constructs that evaluate all their operands, then act ----------------------------------------


def strict(code: Code, start: int, operands: list[tree.Expression], apply: Apply) -> Evaluation:
    """Evaluate operands in order, then apply an action to them. If the action calls a function of a
    script, and the function stops, this construct saves no values: its value is then the value
    that the function returns.
    """
    evaluations = [compile_expression(code, operand) for operand in operands]
    if len(evaluations) == 1:
        return _strict_1(code, start, evaluations[0], apply)
    source, count = code.unit.source, len(evaluations)
    point = code.point(lambda values: len(values) <= count)

    def go_on(frame: Frame, values: list[Any]) -> Any:
        try:
            for evaluate in evaluations[len(values) :] if values else evaluations:
                values.append(evaluate(frame))
            return apply(frame, *values)
        except Blocked as blocked:
            if len(values) < count or not blocked.activations:
                blocked.hold(point, tuple(values))
            raise
        except ScriptError as error:
            error.place = error.place or (source, start)
            raise

    def resume(frame: Frame, values: tuple[Any, ...], value: Any) -> Any:
        return go_on(frame, [*values] if value is RETRY else [*values, value])

    code.points[point] = resume
    return lambda frame: go_on(frame, [])


def _strict_1(code: Code, start: int, operand: Evaluation, apply: Apply) -> Evaluation:
    source = code.unit.source
    point = code.point(lambda values: len(values) <= 1)

    def run(frame: Frame) -> Any:
        value: Any = PENDING
        try:
            value = operand(frame)
            return apply(frame, value)
        except Blocked as blocked:
            if value is PENDING or not blocked.activations:
                blocked.hold(point, () if value is PENDING else (value,))
            raise
        except ScriptError as error:
            error.place = error.place or (source, start)
            raise

    def resume(frame: Frame, values: tuple[Any, ...], value: Any) -> Any:
        if not values and value is RETRY:
            return run(frame)
        try:
            value = values[0] if values else value
            return apply(frame, value)
        except Blocked as blocked:
            if not blocked.activations:
                blocked.hold(point, (value,))
            raise
        except ScriptError as error:
            error.place = error.place or (source, start)
            raise

    code.points[point] = resume
    return run


def _unary(
    code: Code, start: int, operand: tree.Expression, function: Callable[[Any], Any]
) -> Evaluation:
    def apply(frame: Frame, value: Any) -> Any:
        return function(force(value, frame[RUN].host) if type(value) is Lazy else value)

    return _strict_1(code, start, compile_expression(code, operand), apply)


def _index(code: Code, start: int, target: tree.Expression, index: tree.Expression) -> Evaluation:
    def apply(frame: Frame, found: Any, at: Any) -> Any:
        if type(found) is list and type(at) is int:
            try:
                return found[at]
            except IndexError:
                pass  # see the error below
        return operators.item(*_forced(frame, (found, at)))

    return strict(code, start, [target, index], apply)


# --- operators ------------------------------------------------------------------------------------

# Fast versions for the most frequent case: operands that are integers, with a variable on the left
# and a variable or a constant on the right, maybe as the value of an assignment. Without them,
# loops spend most of their time on calls of closures.
_FAST = """
def {word}_{side}(left, right, general):
    def run(frame):
        try:
            a = frame[left]
            b = {right}
        except KeyError:
            return general(frame)
        if type(a) is int and type(b) is int:
            return a {symbol} b
        return general(frame)
    return run

def {word}_{side}_assigned(left, right, target, general):
    def run(frame):
        try:
            a = frame[left]
            b = {right}
        except KeyError:
            return general(frame)
        if type(a) is int and type(b) is int:
            frame[target] = a {symbol} b
            return None
        return general(frame)
    return run
"""
_FAST_WORDS = {"+": "add", "-": "sub", "<": "lt", "<=": "le", ">": "gt", ">=": "ge",
               "==": "eq", "!=": "ne"}  # fmt: skip
_FAST_SIDES = {"name": "frame[right]", "constant": "right"}


def _make_fast() -> dict[str, Callable[..., Evaluation]]:
    made: dict[str, Callable[..., Evaluation]] = {}
    text = "".join(
        _FAST.format(word=word, side=side, right=right, symbol=symbol)
        for symbol, word in _FAST_WORDS.items()
        for side, right in _FAST_SIDES.items()
    )
    exec(compile(text, "<operators of integers>", "exec"), made)
    return made


_fast = _make_fast()

Assigning = Callable[[str, Evaluation], Evaluation]
"""Returns a fast statement that assigns to a variable; its last argument is the general one."""


def compile_binary(code: Code, node: tree.Binary) -> tuple[Evaluation, Assigning | None]:
    """Return a closure that evaluates an operation, and a fast way to assign its value, or None."""
    if node.operator in ("&&", "||") and code.unit.version > 1:
        return _short_circuit(code, node), None
    general = _chain(code, node)
    left, right = node.left, node.right
    word = _FAST_WORDS.get(node.operator)
    if word is None or not isinstance(left, tree.Name):
        return general, None
    name = left.name
    other: Any
    if isinstance(right, tree.Name):
        maker, other = f"{word}_name", right.name
    elif isinstance(right, tree.Constant) and type(right.value) is int:
        maker, other = f"{word}_constant", right.value
    else:
        return general, None
    return (
        _fast[maker](name, other, general),
        lambda target, run: _fast[f"{maker}_assigned"](name, other, target, run),
    )


def _chain(code: Code, node: tree.Binary) -> Evaluation:
    """Compile `a + b - c …` of any length, without a nested call for each operator."""
    links: list[tree.Binary] = []
    first: tree.Expression = node
    while isinstance(first, tree.Binary) and (first is node or not _is_lazy(code, first)):
        links.append(first)
        first = first.left
    links.reverse()
    if len(links) == 1:
        return _pair(code, node)
    head = compile_expression(code, first)
    steps = [
        (operators.BINARY[link.operator], compile_expression(code, link.right), link.start)
        for link in links
    ]
    source, count = code.unit.source, len(steps)
    # Values: the number of evaluated links, their value, and the right side of the next, if known.
    point = code.point(
        lambda values: (
            len(values) == 0
            or (len(values) in (2, 3) and type(values[0]) is int and 0 <= values[0] < count)
        )
    )

    def go_on(frame: Frame, done: int, left: Any, right: Any) -> Any:
        try:
            if left is PENDING:
                left = head(frame)
            for operate, evaluate, _ in steps[done:] if done else steps:
                if right is PENDING:
                    right = evaluate(frame)
                if type(left) is Lazy or type(right) is Lazy:
                    host = frame[RUN].host
                    left = operate(force(left, host), force(right, host))
                else:
                    left = operate(left, right)
                right = PENDING
                done += 1
            return left
        except Blocked as blocked:
            held = (
                () if left is PENDING else (done, left) if right is PENDING else (done, left, right)
            )
            blocked.hold(point, held)
            raise
        except ScriptError as error:
            error.place = error.place or (source, steps[done][2])
            raise

    def resume(frame: Frame, values: tuple[Any, ...], value: Any) -> Any:
        if not values:
            return go_on(frame, 0, PENDING if value is RETRY else value, PENDING)
        if value is not RETRY:
            return go_on(frame, values[0], values[1], value)
        return go_on(frame, values[0], values[1], values[2] if len(values) > 2 else PENDING)

    code.points[point] = resume
    return lambda frame: go_on(frame, 0, PENDING, PENDING)


def _is_lazy(code: Code, node: tree.Binary) -> bool:
    return node.operator in ("&&", "||") and code.unit.version > 1


def _pair(code: Code, node: tree.Binary) -> Evaluation:
    left, right = compile_expression(code, node.left), compile_expression(code, node.right)
    operate, source, start = operators.BINARY[node.operator], code.unit.source, node.start
    point = code.point(lambda values: len(values) <= 2)

    def run(frame: Frame, a: Any = PENDING, b: Any = PENDING) -> Any:
        try:
            if a is PENDING:
                a = left(frame)
            if b is PENDING:
                b = right(frame)
            if type(a) is Lazy or type(b) is Lazy:
                host = frame[RUN].host
                return operate(force(a, host), force(b, host))
            return operate(a, b)
        except Blocked as blocked:
            blocked.hold(point, () if a is PENDING else (a,) if b is PENDING else (a, b))
            raise
        except ScriptError as error:
            error.place = error.place or (source, start)
            raise

    def resume(frame: Frame, values: tuple[Any, ...], value: Any) -> Any:
        found = [*values] if value is RETRY else [*values, value]
        return run(frame, *found)

    code.points[point] = resume
    return run


def _short_circuit(code: Code, node: tree.Binary) -> Evaluation:
    """Compile `&&` and `||` of version 2, which evaluate their right side only if needed."""
    left, right = compile_expression(code, node.left), compile_expression(code, node.right)
    stops_at = node.operator == "||"
    point = code.point(lambda values: len(values) <= 1)

    def run(frame: Frame, a: Any = PENDING) -> Any:
        try:
            if a is PENDING:
                a = left(frame)
            a = force(a, frame[RUN].host)
        except Blocked as blocked:
            blocked.hold(point, () if a is PENDING else (a,))
            raise
        return a if bool(a) is stops_at else right(frame)

    def resume(frame: Frame, values: tuple[Any, ...], value: Any) -> Any:
        return run(frame, *values) if value is RETRY else run(frame, value)

    code.points[point] = resume
    return run


# --- calls ----------------------------------------------------------------------------------------


def _call(code: Code, node: tree.Call) -> Evaluation:
    start, unit = node.start, code.unit

    def apply(frame: Frame, function: Any, *arguments: Any) -> Any:
        return invoke(frame, function, arguments, start, unit)

    return strict(code, start, [node.function, *node.arguments], apply)
