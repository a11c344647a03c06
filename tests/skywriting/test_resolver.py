"""The variables that a function reads and assigns, and the errors in a tree."""

from __future__ import annotations

import pytest

from ciel.skywriting.errors import Problem, Source
from ciel.skywriting.syntax.grammar import parse
from ciel.skywriting.syntax.resolver import resolve
from ciel.skywriting.syntax.tree import Function, Script


def resolved(text: str) -> Script:
    script = parse(Source("<test>", text))
    assert resolve(script) == []
    return script


def function(text: str) -> Function:
    return resolved(text).functions[0]


def warnings(text: str, known: tuple[str, ...] = ("print", "len")) -> list[Problem]:
    problems = resolve(parse(Source("<test>", text)), known)
    assert all(problem.is_warning for problem in problems)
    return problems


def test_functions_are_numbered_as_they_begin() -> None:
    script = resolved("""
        function a() { b = function() { c = lambda: 1; return c; }; return b; }
        if (x) { d = [lambda y: lambda: y, function() { return 2; }]; }
        function e() { return 3; }
    """)
    assert [each.number for each in script.functions] == [1, 2, 3, 4, 5, 6, 7]
    assert [each.start for each in script.functions] == sorted(e.start for e in script.functions)
    assert (script.functions[0].name, script.functions[-1].name) == ("a", "e")


@pytest.mark.parametrize(
    "text, free",
    [
        ("f = lambda: x;", ("x",)),
        ("f = lambda x: x + y;", ("y",)),
        ("f = lambda: g(*x)[y].field - -z;", ("g", "x", "y", "z")),
        ("f = lambda: {k: [v]};", ("k", "v")),
        ("function f() { x = 1; return x; }", ()),
        ("function f() { for (k, v in d) { g(k, v); } return 1; }", ("d", "g")),
        ("function f() { a[i].k = v; return 1; }", ("i", "v")),
        ("function f(n) { return f(n - 1); }", ("f",)),
        ("function f() { do { return w; } while (c); }", ("c", "w")),
        ("function f() { include a; if (b) { return c; } else if (d) { return e; } }",
         ("a", "b", "c", "d", "e")),
        ("function f() { return lambda x: x + y; }", ("y",)),
        ("function f(y) { return lambda x: x + y; }", ()),
        ("function f() { y = 1; return lambda x: x + y + z; }", ("z",)),
        ("function f() { function g() { return h(g); } return g; }", ("g", "h")),
    ],
)  # fmt: skip
def test_what_a_function_reads_but_does_not_own_is_free(text: str, free: tuple[str, ...]) -> None:
    assert function(text).free == free


def test_what_a_function_assigns_is_told_with_the_first_place() -> None:
    text = "function f() { x = 1; x = 2; y[0].k = 3; z += 4; for (i in w) { v = lambda: 1; } }"
    assert [(name, text[at : at + 3]) for name, at in function(text).assigned] == [
        ("x", "x ="), ("y", "y[0"), ("z", "z +"), ("i", "for"), ("v", "v ="),
    ]  # fmt: skip


def test_what_an_inner_function_assigns_is_its_own() -> None:
    outer, inner = resolved("function f() { g = function() { x = 1; }; return g; }").functions
    assert [name for name, _ in outer.assigned] == ["g"]
    assert [name for name, _ in inner.assigned] == ["x"]


def test_a_loop_within_a_function_within_a_loop_may_be_left() -> None:
    resolved("while (x) { f = function() { while (y) { if (z) { break; } } }; continue; }")


def test_a_function_that_assigns_its_own_parameter_is_warned_of() -> None:
    (problem,) = warnings("function f(x) { x = 1; return x; }")
    assert problem.message == 'this function is invalid: it assigns to its parameter "x"'


@pytest.mark.parametrize(
    "text, message",
    [
        ("lenght = 1; print(length);", 'unknown name "length", did you mean "lenght"?'),
        ("print(lenn(x)); x = 1;", 'unknown name "lenn", did you mean "len"?'),
        ("x = lenght(y); y = 1;", 'unknown name "lenght", did you mean "len"?'),
        ("x = True;", 'unknown name "True", did you mean "true"?'),
        ("x = undefined; find = 1;", 'unknown name "undefined", did you mean "null"?'),
        ("x = zzz;", 'unknown name "zzz": nothing in this script binds it'),
    ],
)
def test_a_name_that_nothing_binds_is_warned_of(text: str, message: str) -> None:
    assert [problem.message for problem in warnings(text)] == [message]


@pytest.mark.parametrize(
    "text",
    [
        "function f(a) { return a + b; } b = 1; print(f(2));",
        "for (k, v in print) { print(k, v); }",
        'include "mapreduce"; print(shuffle);',
        "lenn = 3; print(lenn);",
    ],
)
def test_a_name_that_something_may_bind_is_not_warned_of(text: str) -> None:
    assert warnings(text) == []


def test_names_are_not_looked_at_unless_it_is_known_what_there_is() -> None:
    assert resolve(parse(Source("<test>", "x = zzz;"))) == []
