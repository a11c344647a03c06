"""Trees back to text: a printed script has the same meaning, and is printed the same again."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ciel.skywriting import standard
from ciel.skywriting.errors import Source
from ciel.skywriting.syntax import tree
from ciel.skywriting.syntax.grammar import parse
from ciel.skywriting.syntax.lexer import tokenize
from ciel.skywriting.syntax.printer import WIDTH, show, show_constant
from ciel_tests.skywriting.chunks import chunks

HERE = Path(__file__).parent
CONFORMANCE = [chunk for path in sorted(HERE.glob("conformance/*.sw")) for chunk in chunks(path)]
LIBRARY = [standard.text_of(path.stem) for path in
           sorted((HERE.parent.parent / "skywriting" / "library").glob("*.sw"))]  # fmt: skip


def parsed(text: str) -> tree.Script:
    return parse(Source("<test>", text))


def formatted(text: str) -> str:
    return show(parsed(text))


def without_places(node: Any) -> Any:
    """Make a copy of a tree in which everything stands at the beginning."""
    node = copy.deepcopy(node)
    ahead = [node]
    while ahead:
        each = ahead.pop()
        if isinstance(each, list | tuple):
            ahead += each
        for name in getattr(each, "__slots__", ()):
            if name in ("start", "end"):
                setattr(each, name, 0)
            else:
                ahead.append(getattr(each, name))
    return node


# --- any tree -------------------------------------------------------------------------------------

NAMES = st.sampled_from(["a", "b", "longer_name", "div", "größe", "x1"])
CONSTANTS = st.one_of(
    st.integers(0), st.floats(0.0, allow_infinity=False), st.booleans(),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=8), st.just("long " * 30),
)  # fmt: skip
UNARY = st.sampled_from("-*!")
BINARY = st.sampled_from(
    ["||", "&&", "==", "!=", "<", "<=", ">", ">=", "+", "-", "*", "/", "%", "div"]
)
PARAMETERS = st.lists(NAMES, max_size=3, unique=True).map(tuple)


def calls(function: Any, arguments: list[Any]) -> tree.Call:
    return tree.Call(0, function, arguments)


def lambdas(parameters: Any, value: Any) -> tree.Function:
    return tree.Function(0, "", parameters, tree.Block(0, 0, [tree.Return(0, 0, value)]), True)


def functions(parameters: Any, statements: Any) -> tree.Function:
    return tree.Function(0, "", parameters, tree.Block(0, 0, statements))


zero = st.just(0)


def beyond(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.builds(tree.ListOf, zero, st.lists(inner, max_size=3)),
        st.builds(tree.DictOf, zero, st.lists(st.tuples(inner, inner), max_size=2)),
        st.builds(tree.Unary, zero, UNARY, inner),
        st.builds(tree.Binary, zero, BINARY, inner, inner),
        st.builds(tree.Binary, zero, BINARY, inner, inner),
        st.builds(tree.Index, zero, inner, inner),
        st.builds(tree.Field, zero, inner, NAMES),
        st.builds(calls, inner, st.lists(inner, max_size=3)),
        st.builds(lambdas, PARAMETERS, inner),
    )


LEAVES = st.builds(tree.Name, zero, NAMES) | st.builds(tree.Constant, zero, CONSTANTS)
EXPRESSIONS = st.recursive(LEAVES, beyond, max_leaves=10)
TARGETS = st.recursive(
    st.builds(tree.Name, zero, NAMES),
    lambda inner: (
        st.builds(tree.Field, zero, inner, NAMES) | st.builds(tree.Index, zero, inner, LEAVES)
    ),
    max_leaves=3,
)
SIMPLE = st.one_of(
    st.builds(tree.Assign, zero, zero, st.just("="), TARGETS, EXPRESSIONS),
    st.builds(tree.Evaluate, zero, zero, EXPRESSIONS),
    st.builds(tree.Return, zero, zero, st.none() | EXPRESSIONS),
    st.builds(tree.Include, zero, zero, EXPRESSIONS),
    st.builds(tree.Break, zero, zero),
    st.builds(tree.Continue, zero, zero),
)


def around(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    body = st.lists(inner, min_size=1, max_size=3)
    block = st.builds(tree.Block, zero, zero, body)
    choice = st.builds(tree.If, zero, zero, EXPRESSIONS, block, st.none() | block)
    function = st.builds(functions, PARAMETERS, body)
    names = st.sampled_from([("a",), ("a", "b")])
    return st.one_of(
        block,
        st.builds(tree.If, zero, zero, EXPRESSIONS, block, block | choice),
        st.builds(tree.While, zero, zero, EXPRESSIONS, block),
        st.builds(tree.DoWhile, zero, zero, block, EXPRESSIONS),
        st.builds(tree.For, zero, zero, names, EXPRESSIONS, block),
        st.builds(tree.Define, zero, zero, st.builds(named, NAMES, PARAMETERS, block)),
        st.builds(tree.Evaluate, zero, zero, beyond(function | LEAVES)),
        st.builds(tree.Return, zero, zero, beyond(beyond(function))),
    )


def named(name: str, parameters: Any, body: tree.Block) -> tree.Function:
    return tree.Function(0, name, parameters, body)


STATEMENTS = st.lists(st.recursive(SIMPLE, around, max_leaves=6), min_size=1, max_size=3)


@pytest.mark.slow
@given(STATEMENTS, st.sampled_from([1, 2]))
def test_any_tree_that_is_shown_is_read_as_it_was(statements: Any, version: int) -> None:
    shown = show(tree.Script(Source("<test>", ""), statements, version))
    again = parsed(shown)
    assert without_places(again.statements) == statements
    assert again.version == version
    assert show(again) == shown


@given(CONSTANTS)
def test_any_constant_that_is_shown_is_read_as_it_was(value: Any) -> None:
    (only,) = parsed(f"{show_constant(value)};").statements
    assert isinstance(only, tree.Evaluate)
    assert isinstance(only.value, tree.Constant)
    assert only.value.value == value
    assert type(only.value.value) is type(value)


# --- texts that people wrote ----------------------------------------------------------------------


@pytest.mark.parametrize("text", LIBRARY + [chunk.text for chunk in CONFORMANCE])
def test_formatting_changes_no_meaning_loses_no_comment_and_is_done_once(text: str) -> None:
    before = parsed(text)
    shown = show(before)
    after = parsed(shown)
    assert without_places(after.statements) == without_places(before.statements)
    assert sorted(comments(shown)) == sorted(comments(text))
    assert show(after) == shown


def comments(text: str) -> list[str]:
    return [comment for _, comment in tokenize(Source("<test>", text)).comments]


def test_statements_are_laid_out() -> None:
    assert formatted(
        "if(a){b=1;}else if(c){d+=2;}else{return;} while(x){break;}do{continue;}while(y);"
        "for(k,v in z){include 'q';}function f(a,b){return lambda:1;} {g();}"
    ) == (
        "if (a) {\n    b = 1;\n} else if (c) {\n    d += 2;\n} else {\n    return;\n}\n"
        "while (x) {\n    break;\n}\n"
        "do {\n    continue;\n} while (y);\n"
        'for (k, v in z) {\n    include "q";\n}\n'
        "function f(a, b) {\n    return lambda: 1;\n}\n"
        "{\n    g();\n}\n"
    )


def test_a_function_within_an_expression_is_indented_with_its_statement() -> None:
    assert formatted("{ x = map(function(a) { return [function() { return 1; }]; }, y); }") == (
        "{\n"
        "    x = map(function(a) {\n"
        "        return [function() {\n"
        "            return 1;\n"
        "        }];\n"
        "    }, y);\n"
        "}\n"
    )


def test_long_lists_dictionaries_calls_and_chains_are_broken() -> None:
    long = f'"{"x" * 50}"'
    assert formatted(
        f"x = [{long}, {long}]; f({long}, a, {{1: {long}, 2: {long}}})[0].k;"
        f"y = {long} + a * b + {long}; g([{long}, {long}]);"
    ) == (
        f"x = [\n    {long},\n    {long}\n];\n"
        f"f(\n    {long},\n    a,\n    {{\n        1: {long},\n        2: {long}\n    }}\n)[0].k;\n"
        f"y = {long}\n    + a * b\n    + {long};\n"
        f"g([\n    {long},\n    {long}\n]);\n"
    )
    assert max(map(len, formatted(f"x = [{', '.join(['number'] * 50)}];").splitlines())) < WIDTH


def test_brackets_that_change_nothing_go() -> None:
    assert formatted(
        "x = ((a) + (b * c)) - (d); y = (a + b) * (c - (d - e)); z = ((lambda: 1))();"
    ) == ("x = a + b * c - d;\ny = (a + b) * (c - (d - e));\nz = (lambda: 1)();\n")


def test_what_takes_all_that_follows_is_shown_in_brackets_where_it_would_take_too_much() -> None:
    assert formatted("a = (!b) || c; a = !b || c; a = b && !c; a = (lambda: b) + c;") == (
        "a = (!b) || c;\na = !(b || c);\na = b && !c;\na = (lambda: b) + c;\n"
    )
    assert formatted("#!skywriting 2\na = (!b) || c;") == "#!skywriting 2\na = !b || c;\n"


def test_comments_stay_with_their_statements() -> None:
    assert formatted(
        "#!/usr/bin/env sw-job\n"
        "// first\n\n\n\n"
        "x = 1; // beside\n"
        "   /* of\n     two lines */\n"
        "if (x) { // of the block\n"
        "  // before\n"
        "  y = f(1, // within\n"
        "        2);\n"
        "  // last\n"
        "} // after\n"
        "/* a */ /* b */ z = 1; /* c */ w = 2;\n\n"
        "// end"
    ) == (
        "#!/usr/bin/env sw-job\n"
        "// first\n\n"
        "x = 1;  // beside\n"
        "/* of\n     two lines */\n"
        "if (x) {  // of the block\n"
        "    // before\n"
        "    // within\n"
        "    y = f(1, 2);\n"
        "    // last\n"
        "}  // after\n"
        "/* a */\n"
        "/* b */\n"
        "z = 1;  /* c */\n"
        "w = 2;\n\n"
        "// end\n"
    )


def test_of_many_blank_lines_one_is_kept() -> None:
    assert formatted("\n\nx = 1;\ny = 2;\n\n\n\nz = 3;\n\n{\n\nw = 4;\n\n}\n") == (
        "x = 1;\ny = 2;\n\nz = 3;\n\n{\n    w = 4;\n}\n"
    )


def test_div_stays_an_operator() -> None:
    text = (
        "x = ({}) div a;\ny = a + b * ({}) div c;\nz = (-{}) div (function() {\n    a;\n}) div b;\n"
    )
    assert formatted(text) == text
