"""Compiles statements to closures.

A closure returns None, or a signal: BREAK, CONTINUE, or a tuple of the value of a `return`.
`expressions` explains how closures stop and resume.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ciel.skywriting.errors import ReferenceFailedError, ScriptError
from ciel.skywriting.evaluation import operators
from ciel.skywriting.evaluation.code import BREAK, CONTINUE, PENDING, RETRY, Code, Evaluation, Frame
from ciel.skywriting.evaluation.expressions import compile_binary, compile_expression, strict
from ciel.skywriting.evaluation.results import require_result
from ciel.skywriting.evaluation.running import define, enter
from ciel.skywriting.evaluation.values import RUN, Blocked, Lazy, advice, brief, force, is_reference
from ciel.skywriting.host import Run
from ciel.skywriting.syntax import tree


def compile_block(code: Code) -> Evaluation:
    """Return a closure that runs the body of a code."""
    return _block(code, code.function.body.statements)


def _statement(code: Code, node: tree.Statement) -> Evaluation:
    match node:
        case tree.Assign():
            return _assign(code, node)
        case tree.Evaluate(_, _, value):
            return _then(code, value, lambda frame, value: None)
        case tree.Return(_, _, value):
            return _return(code, value) if value is not None else lambda frame: (None,)
        case tree.If():
            return _if(code, node)
        case tree.While(start, _, condition, body):
            return _while(code, start, condition, body, tests_first=True)
        case tree.DoWhile(start, _, body, condition):
            return _while(code, start, condition, body, tests_first=False)
        case tree.For():
            return _for(code, node)
        case tree.Break():
            return lambda frame: BREAK
        case tree.Continue():
            return lambda frame: CONTINUE
        case tree.Include():
            return _include(code, node)
        case tree.Define(_, _, function):
            return _define(code, function)
        case tree.Block(_, _, statements):
            return _block(code, statements)
    raise AssertionError(node)


def _then(code: Code, value: tree.Expression, apply: Callable[[Frame, Any], Any]) -> Evaluation:
    """Evaluate an expression, and apply an action that cannot block."""
    evaluate = compile_expression(code, value)
    point = code.point(lambda values: not values)

    def run(frame: Frame) -> Any:
        try:
            found = evaluate(frame)
        except Blocked as blocked:
            blocked.hold(point, ())
            raise
        return apply(frame, found)

    code.points[point] = lambda frame, values, found: apply(frame, found)
    return run


def _return(code: Code, value: tree.Expression) -> Evaluation:
    """Compile `return`. If the value is the result of the task, read it here, since only here its
    place in the text is known for errors.
    """
    evaluate, source = compile_expression(code, value), code.unit.source
    point = code.point(lambda values: len(values) <= 1)

    def finish(frame: Frame, found: Any) -> Any:
        run: Run = frame[RUN]
        if run.depth > 1:
            return (found,)
        try:
            return (require_result(force(found, run.host)),)
        except Blocked as blocked:
            blocked.hold(point, (found,))
            raise
        except ScriptError as error:
            error.place = (source, value.start)
            raise

    def run(frame: Frame) -> Any:
        try:
            found = evaluate(frame)
        except Blocked as blocked:
            blocked.hold(point, ())
            raise
        return finish(frame, found)

    def resume(frame: Frame, values: tuple[Any, ...], found: Any) -> Any:
        if found is RETRY:
            return finish(frame, values[0]) if values else run(frame)
        return finish(frame, found)

    code.points[point] = resume
    return run


def _block(code: Code, nodes: list[tree.Statement]) -> Evaluation:
    statements = [_statement(code, node) for node in nodes]
    if len(statements) == 1:
        return statements[0]
    count = len(statements)
    point = code.point(_is_index(count))

    def go_on(frame: Frame, at: int) -> Any:
        try:
            for statement in statements[at:] if at else statements:
                signal = statement(frame)
                if signal is not None:
                    return signal
                at += 1
        except Blocked as blocked:
            blocked.hold(point, (at,))
            raise
        return None

    def resume(frame: Frame, values: tuple[Any, ...], signal: Any) -> Any:
        if signal is RETRY:
            return go_on(frame, values[0])
        return signal if signal is not None else go_on(frame, values[0] + 1)

    code.points[point] = resume
    return lambda frame: go_on(frame, 0)


def _is_index(count: int) -> Callable[[tuple[Any, ...]], bool]:
    return lambda values: len(values) == 1 and type(values[0]) is int and 0 <= values[0] < count


# --- binding --------------------------------------------------------------------------------------


def _assign(code: Code, node: tree.Assign) -> Evaluation:
    if node.operator == "+=":
        return _append(code, node)
    target = node.target
    if not isinstance(target, tree.Name):
        return _assign_item(code, node)
    name = target.name
    evaluate, fast = (
        compile_binary(code, node.value)
        if isinstance(node.value, tree.Binary)
        else (compile_expression(code, node.value), None)
    )
    point = code.point(lambda values: not values)

    def run(frame: Frame) -> None:
        try:
            frame[name] = evaluate(frame)
        except Blocked as blocked:
            blocked.hold(point, ())
            raise

    def resume(frame: Frame, values: tuple[Any, ...], value: Any) -> Any:
        frame[name] = value

    code.points[point] = resume
    return run if fast is None else fast(name, run)


def _assign_item(code: Code, node: tree.Assign) -> Evaluation:
    """Compile `name[index].field = value`: evaluate the value, then the indexes, then assign."""
    steps: list[tree.Expression] = []
    target = node.target
    while isinstance(target, tree.Index | tree.Field):
        is_index = isinstance(target, tree.Index)
        steps.append(target.index if is_index else tree.Constant(target.start, target.name))  # type: ignore[union-attr]  # an index has one
        target = target.target
    steps.reverse()
    assert isinstance(target, tree.Name)
    read_root = compile_expression(code, target)

    def apply(frame: Frame, value: Any, *indexes: Any) -> None:
        host = frame[RUN].host
        value = force(value, host)
        indexes = tuple([force(index, host) for index in indexes])
        container = force(read_root(frame), host)
        for index in indexes[:-1]:
            container = operators.item(container, index)
        operators.set_item(container, indexes[-1], value)

    return strict(code, node.target.start, [node.value, *steps], apply)


def _append(code: Code, node: tree.Assign) -> Evaluation:
    """Compile `name += value`, which appends an item to a list, or adds to a number or string."""
    assert isinstance(node.target, tree.Name)
    name, read = node.target.name, compile_expression(code, node.target)

    def apply(frame: Frame, value: Any) -> None:
        host = frame[RUN].host
        value = force(value, host)
        before = force(read(frame), host)
        if type(before) is list:
            operators.require_length(len(before) + 1)
            before.append(value)
            value = before
        else:
            value = operators.add(before, value)
        frame[name] = value

    return strict(code, node.start, [node.value], apply)


def _define(code: Code, function: tree.Function) -> Evaluation:
    function_code, name = code.unit.codes[function.number], function.name

    def run(frame: Frame) -> None:
        frame[name] = define(function_code, frame)

    return run


# --- conditions and loops -------------------------------------------------------------------------


def _truth(frame: Frame, value: Any) -> bool:
    return bool(force(value, frame[RUN].host) if type(value) is Lazy else value)


def _if(code: Code, node: tree.If) -> Evaluation:
    condition = compile_expression(code, node.condition)
    then = _block(code, node.then.statements)
    other = node.otherwise
    otherwise = None if other is None else _statement(code, other)
    point = code.point(lambda values: len(values) <= 1)

    def run(frame: Frame, value: Any = PENDING) -> Any:
        try:
            if value is PENDING:
                value = condition(frame)
            holds = value if value is True or value is False else _truth(frame, value)
        except Blocked as blocked:
            blocked.hold(point, () if value is PENDING else (value,))
            raise
        except ScriptError as error:
            error.place = error.place or (code.unit.source, node.start)
            raise
        if holds:
            return then(frame)
        return None if otherwise is None else otherwise(frame)

    def resume(frame: Frame, values: tuple[Any, ...], value: Any) -> Any:
        return run(frame, *values) if value is RETRY else run(frame, value)

    code.points[point] = resume
    return run


_TEST, _BODY = 0, 1


def _while(
    code: Code, start: int, condition: tree.Expression, body: tree.Block, *, tests_first: bool
) -> Evaluation:
    test, source = compile_expression(code, condition), code.unit.source
    run_body = _block(code, body.statements)
    # Values: _BODY or _TEST, in which the loop has stopped, and maybe the value of the test.
    point = code.point(
        lambda values: (
            1 <= len(values) <= 2
            and type(values[0]) is int
            and (values[0] == _TEST or values == (_BODY,))
        )
    )

    def loop(frame: Frame) -> Any:
        value: Any = PENDING
        is_within = False
        try:
            while True:
                value = test(frame)
                if value is not True and (value is False or not _truth(frame, value)):
                    return None
                is_within = True
                signal = run_body(frame)
                if signal is not None and signal is not CONTINUE:
                    return None if signal is BREAK else signal
                is_within = False
        except Blocked as blocked:
            is_ours = not blocked.entries and not blocked.activations
            blocked.hold(point, (_BODY,) if is_within else (_TEST, value) if is_ours else (_TEST,))
            raise
        except ScriptError as error:
            error.place = error.place or (source, start)
            raise

    def tested(frame: Frame, value: Any) -> Any:
        try:
            holds = _truth(frame, value)
        except Blocked as blocked:
            blocked.hold(point, (_TEST, value))
            raise
        except ScriptError as error:
            error.place = error.place or (source, start)
            raise
        return run_once(frame) if holds else None

    def run_once(frame: Frame) -> Any:
        try:
            signal = run_body(frame)
        except Blocked as blocked:
            blocked.hold(point, (_BODY,))
            raise
        return after(frame, signal)

    def after(frame: Frame, signal: Any) -> Any:
        if signal is not None and signal is not CONTINUE:
            return None if signal is BREAK else signal
        return loop(frame)

    def resume(frame: Frame, values: tuple[Any, ...], value: Any) -> Any:
        if values[0] == _BODY:
            return after(frame, value)
        return tested(frame, values[1] if value is RETRY else value)

    code.points[point] = resume
    return loop if tests_first else run_once


def _for(code: Code, node: tree.For) -> Evaluation:
    evaluate = compile_expression(code, node.iterable)
    run_body = _block(code, node.body.statements)
    source, names = code.unit.source, node.names
    # Values: none, the list, or the list and the number of the current item.
    point = code.point(
        lambda values: (
            len(values) <= 1
            or (len(values) == 2 and type(values[0]) is list and _is_position(values[1]))
        )
    )

    def begin(frame: Frame, found: Any = PENDING) -> Any:
        try:
            if found is PENDING:
                found = evaluate(frame)
            items = _items(force(found, frame[RUN].host), len(names))
        except Blocked as blocked:
            blocked.hold(point, () if found is PENDING else (found,))
            raise
        except ScriptError as error:
            error.place = error.place or (source, node.start)
            raise
        return loop(frame, items, 0)

    name, other = names if len(names) == 2 else (names[0], None)

    def loop(frame: Frame, items: list[Any], at: int) -> Any:
        try:
            for item in _from(items, at):
                if other is None:
                    frame[name] = item
                else:
                    frame[name], frame[other] = _pair(item)
                signal = run_body(frame)
                if signal is not None and signal is not CONTINUE:
                    return None if signal is BREAK else signal
                at += 1
        except Blocked as blocked:
            blocked.hold(point, (items, at))
            raise
        except ScriptError as error:
            error.place = error.place or (source, node.start)
            raise
        return None

    def resume(frame: Frame, values: tuple[Any, ...], value: Any) -> Any:
        if len(values) < 2:
            return begin(frame, *values) if value is RETRY else begin(frame, value)
        if value is not None and value is not CONTINUE:
            return None if value is BREAK else value
        return loop(frame, values[0], values[1] + 1)

    code.points[point] = resume
    return begin


def _is_position(value: Any) -> bool:
    return type(value) is int and value >= 0


def _from(items: list[Any], at: int) -> Iterator[Any]:
    """Return an iterator that starts at some place of a list, and yields items added later, too."""
    iterator = iter(items)
    if at:
        iterator.__setstate__(at)  # type: ignore[attr-defined]  # the iterators of lists have it, for pickling
    return iterator


def _pair(item: Any) -> list[Any]:
    if type(item) is not list or len(item) != 2:
        raise ScriptError(
            "for with two names iterates over a dictionary, or a list of pairs; "
            f"{brief(item)} is not a pair"
        )
    return item


def _items(value: Any, count: int) -> list[Any]:
    """Return the items of a loop."""
    if count == 2 and type(value) is dict:
        return [[key, item] for key, item in value.items()]
    if type(value) is list:
        return value
    if type(value) in (dict, str):
        return list(value)
    raise ScriptError(
        f"for iterates over a list, a dictionary or a string, not {brief(value)}{advice(value)}"
    )


# --- scripts within scripts -----------------------------------------------------------------------


def _include(code: Code, node: tree.Include) -> Evaluation:
    evaluate, unit, start = compile_expression(code, node.what), code.unit, node.start
    # Values: none; the script to include; or a list, if the included script has stopped. That
    # script shares the variables of this one, and its value is not used.
    point = code.point(lambda values: len(values) <= 1)

    def run(frame: Frame, what: Any = PENDING) -> None:
        is_within = False
        try:
            if what is PENDING:
                what = evaluate(frame)
            found = _included(frame, what)
            is_within = True
            enter(frame[RUN], found.codes[0], frame, start, unit)
        except Blocked as blocked:
            blocked.hold(point, ([],) if is_within else () if what is PENDING else (what,))
            raise
        except ScriptError as error:
            error.place = error.place or (unit.source, start)
            raise

    def resume(frame: Frame, values: tuple[Any, ...], value: Any) -> None:
        if not values or type(values[0]) is not list:
            run(frame, *values) if value is RETRY else run(frame, value)

    code.points[point] = resume
    return run


def _included(frame: Frame, what: Any) -> Any:
    run: Run = frame[RUN]
    what = force(what, run.host)
    if not isinstance(what, str) and not is_reference(what):
        raise ScriptError(
            f"include needs a name, a URL or a reference to a script, not {brief(what)}"
        )
    try:
        found = run.host.include(what)
    except ReferenceFailedError as error:
        raise ScriptError(f"the script to include could not be computed: {error}") from None
    if found is None:
        raise Blocked([what])
    return found
