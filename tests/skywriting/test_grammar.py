"""Tokens to a tree: what binds how, where it stands, and that tables and text say the same."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ciel.skywriting.errors import Source, SourceError
from ciel.skywriting.syntax import tables
from ciel.skywriting.syntax.generate import generate
from ciel.skywriting.syntax.grammar import parse
from ciel.skywriting.syntax.lexer import KEYWORDS, NOT_2, OPERATORS, tokenize
from ciel.skywriting.syntax.resolver import resolve
from ciel.skywriting.syntax.tree import (
    Assign,
    Binary,
    Constant,
    Evaluate,
    Function,
    If,
    Return,
    Script,
    Statement,
)

HERE = Path(__file__).parent


def parsed(text: str) -> Script:
    return parse(Source("<test>", text))


def statement(text: str) -> Statement:
    (only,) = parsed(text).statements
    return only


def test_the_tables_are_those_of_the_grammar() -> None:
    assert tables.__file__ is not None
    assert Path(tables.__file__).read_text() == generate(), "make them again: see generate.py"


def test_nobody_makes_tables_to_parse_a_script() -> None:
    code = "import sys, ciel.skywriting.script; print([m for m in sys.modules if m[:3] == 'ply'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


# --- what binds how -------------------------------------------------------------------------------


def bracketed(node: Any) -> str:
    """Show an expression with all its brackets."""
    match type(node).__name__:
        case "Name":
            return str(node.name)
        case "Constant":
            return str(node.value)
        case "Unary":
            return f"({node.operator}{bracketed(node.operand)})"
        case "Binary":
            return f"({bracketed(node.left)}{node.operator}{bracketed(node.right)})"
        case "Index":
            return f"({bracketed(node.target)}[{bracketed(node.index)}])"
        case "Field":
            return f"({bracketed(node.target)}.{node.name})"
        case "Call":
            arguments = ",".join(map(bracketed, node.arguments))
            return f"({bracketed(node.function)}({arguments}))"
        case _:
            (body,) = node.body.statements
            return f"(lambda {','.join(node.parameters)}:{bracketed(body.value)})"


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    "text, meaning",
    [
        ("a || b && c == d < e + f * g", "(a||(b&&(c==(d<(e+(f*g))))))"),
        ("a * b + c < d == e && f || g", "((((((a*b)+c)<d)==e)&&f)||g)"),
        ("a - b - c", "((a-b)-c)"),
        ("a / b * c % d div e", "((((a/b)*c)%d)dive)"),
        ("a == b != c", "((a==b)!=c)"),
        ("a < b <= c > d >= e", "((((a<b)<=c)>d)>=e)"),
        ("-a + b", "((-a)+b)"),
        ("-a * b", "((-a)*b)"),
        ("a - -b", "(a-(-b))"),
        ("*a[0]", "(*(a[0]))"),
        ("*a.b(c)", "(*((a.b)(c)))"),
        ("(*a)[0]", "((*a)[0])"),
        ("**a * *b", "((*(*a))*(*b))"),
        ("-*a", "(-(*a))"),
        ("f(a)(b)[c].d", "((((f(a))(b))[c]).d)"),
        ("lambda: a + b", "(lambda :(a+b))"),
        ("lambda a, b: lambda: a(b)", "(lambda a,b:(lambda :(a(b))))"),
        ("a + lambda b: b || c", "(a+(lambda b:(b||c)))"),
        ("(a + b) * c", "((a+b)*c)"),
    ],
)
def test_operators_bind_as_they_should(text: str, meaning: str, version: int) -> None:
    only = statement(f"#!skywriting {version}\n{text};")
    assert isinstance(only, Evaluate)
    assert bracketed(only.value) == meaning


@pytest.mark.parametrize(
    "text, first, second",
    [
        ("!a || b", "(!(a||b))", "((!a)||b)"),
        ("a && !b && c", "(a&&(!(b&&c)))", "((a&&(!b))&&c)"),
        ("-!a + b", "(-(!(a+b)))", "((-(!a))+b)"),
        ("a + !b * c || d", "(a+(!((b*c)||d)))", "((a+((!b)*c))||d)"),
        ("!!a == b", "(!(!(a==b)))", "((!(!a))==b)"),
        ("(!a) && b", "((!a)&&b)", "((!a)&&b)"),
        ("f(!a || b)", "(f((!(a||b))))", "(f(((!a)||b)))"),
        ("!a[0]", "(!(a[0]))", "(!(a[0]))"),
    ],
)
def test_not_takes_all_that_follows_unless_the_version_is_2(
    text: str, first: str, second: str
) -> None:
    for version, meaning in ((1, first), (2, second)):
        only = statement(f"#!skywriting {version}\n{text};")
        assert isinstance(only, Evaluate)
        assert bracketed(only.value) == meaning


# --- where things stand ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "x = 1;", "(a)(b)[c] + d;", "((a) + b).c;", "a.b[c] = lambda: 3;", "if (a) { b; }",
        "if (a) { b; } else { c; }", "if (a) { b; } else if (c) { d; }", "while (a) { b; }",
        "do { a; } while (b);", "for (a, b in c) { d; }", "return;", "return a;", 'include "a";',
        "function f() { return; }", "{ a; b; }", '{"a": 1}["a"];', "-a + b;", "x += (1);",
        "function(a) { return a; }(3);", "[1][0];",
    ],
)  # fmt: skip
def test_a_statement_begins_and_ends_with_its_characters(text: str) -> None:
    for around in ("{} ", "y = (1); {} z;", "if (q) {{ {} }}", "f = function() {{ {} }};"):
        whole = around.format(text)
        start, end = whole.index(text), whole.index(text) + len(text) - 1
        assert (start, end) in {(s.start, s.end) for s in all_statements(parsed(whole))}


def all_statements(node: Any) -> Iterator[Any]:
    if hasattr(node, "end"):
        yield node
    for name in getattr(node, "__slots__", ()):
        value = getattr(node, name)
        for each in value if isinstance(value, list) else [value]:
            yield from all_statements(each)


def test_nodes_are_shown_at_their_signs() -> None:
    text = "a = b + f(c)[d].e - (g)(h);"
    only = statement(text)
    assert isinstance(only, Assign)
    assert isinstance(only.value, Binary)
    minus, call = only.value, only.value.right
    assert isinstance(minus.left, Binary)
    field = minus.left.right
    assert (text[minus.start], text[minus.left.start], text[field.start]) == ("-", "+", "e")
    assert text[call.start :] == "g)(h);"


def test_the_body_of_a_lambda_is_a_block_that_returns() -> None:
    text = "f = lambda x: x + 10;"
    only = statement(text)
    assert isinstance(only, Assign)
    assert isinstance(only.value, Function)
    (inner,) = only.value.body.statements
    assert isinstance(inner, Return)
    assert text[inner.start : inner.end + 1] == "x + 10"


def test_commas_may_stand_before_closing_brackets() -> None:
    plain = "f(1, 2); x = [1]; d = {1: 2}; function g(a, b) { return; }"
    commas = "f(1, 2,); x = [1,]; d = {1: 2,}; function g(a, b,) { return; }"
    assert [type(each) for each in parsed(plain).statements] == [
        type(each) for each in parsed(commas).statements
    ]


def test_else_if_is_a_choice_in_place_of_a_block() -> None:
    only = statement("if (a) { b; } else if (c) { d; } else { e; }")
    assert isinstance(only, If)
    assert isinstance(only.otherwise, If)
    assert only.otherwise.otherwise is not None


def test_values_stand_in_the_tree() -> None:
    values = [
        each.value
        for each in parsed("1; 2.5; 'a\\n'; true; false;").statements
        if isinstance(each, Evaluate)
    ]
    assert values == [
        Constant(0, 1), Constant(3, 2.5), Constant(8, "a\n"), Constant(15, True),
        Constant(21, False),
    ]  # fmt: skip


# --- the grammar for people -----------------------------------------------------------------------

# A part of a grammar: ("word", kind), ("name", rule), ("all" | "any" | "maybe" | "often", parts).
Part = tuple[str, Any]
_TOKENS = ("name", "number", "string")


def read_grammar() -> dict[str, Part]:
    """Read grammar.txt, without its definitions of single words."""
    text = (HERE.parent.parent / "skywriting" / "grammar.txt").read_text()
    text = text[text.index("(* statements *)") :]
    text = re.sub(r"\(\*.*?\*\)", "", text, flags=re.DOTALL)
    words = re.findall(r'"[^"]*"|\w+|[][{}()|,;=]', text)
    rules = {}
    while words:
        name, _ = words.pop(0), words.pop(0)
        rules[name] = read_choice(words)
        assert words.pop(0) == ";"
    return rules


def read_choice(words: list[str]) -> Part:
    choices = []
    while True:
        parts = [read_part(words)]
        while words[0] == ",":
            words.pop(0)
            parts.append(read_part(words))
        choices.append(("all", parts))
        if words[0] != "|":
            return ("any", choices)
        words.pop(0)


def read_part(words: list[str]) -> Part:
    word = words.pop(0)
    if word in "[{(":
        inner = read_choice(words)
        assert words.pop(0) == {"[": "]", "{": "}", "(": ")"}[word]
        return ({"[": "maybe", "{": "often", "(": "any"}[word], [inner])
    if word.startswith('"'):
        return ("word", word[1:-1])
    return ("word" if word in _TOKENS else "name", word)


class Recogniser:
    """Finds out whether a grammar has a sentence, by trying everything once in every place."""

    def __init__(self, rules: dict[str, Part], kinds: list[str]) -> None:
        self.rules = rules
        self.kinds = kinds
        self.known: dict[tuple[str, int], set[int]] = {}

    def ends(self, part: Part, at: int) -> set[int]:
        """Return the places at which a part that starts at a place may end."""
        kind, inner = part
        if kind == "word":
            return {at + 1} if self.kinds[at : at + 1] == [inner] else set()
        if kind == "name":
            if (inner, at) not in self.known:
                self.known[inner, at] = set()  # no rule begins with itself
                self.known[inner, at] = self.ends(self.rules[inner], at)
            return self.known[inner, at]
        if kind == "all":
            found = {at}
            for each in inner:
                found = {end for start in found for end in self.ends(each, start)}
            return found
        found = {end for each in inner for end in self.ends(each, at)}
        if kind == "maybe":
            found.add(at)
        elif kind == "often":
            ahead, found = set(found), found | {at}
            while ahead:
                new = self.ends(inner[0], ahead.pop()) - found
                found |= new
                ahead |= new
        return found


RULES: dict[str, Part] = {**read_grammar(), "first_line": ("all", [])}
WORDS = [word for word in (*KEYWORDS, *OPERATORS) if word not in ("true", "false", "%", "<", "!=")]
NOT_OF_THE_GRAMMAR = ("is not in a loop", "occurs twice")


def has_sentence(text: str) -> bool:
    kinds = [kind.replace(NOT_2, "!") for kind in tokenize(Source("<test>", text)).kinds[:-1]]
    return len(kinds) in Recogniser(RULES, kinds).ends(("name", "script"), 0)


def is_parsed(text: str) -> bool:
    try:
        problems = resolve(parsed(text))
    except SourceError as error:
        problems = list(error.problems)
    told = [problem.message for problem in problems if not problem.is_warning]
    return all(any(words in message for words in NOT_OF_THE_GRAMMAR) for message in told)


def expressions() -> st.SearchStrategy[str]:
    """Sentences that are right, most of them."""
    return st.recursive(
        st.sampled_from(["x", "y", "1", "'a'", "[]", "{}"]),
        lambda inner: st.one_of(
            st.builds(
                "{} {} {}".format, inner, st.sampled_from(["+", "*", "div", "==", "&&"]), inner
            ),
            st.builds("{}{}".format, st.sampled_from(["!", "-", "*", "lambda x:"]), inner),
            st.builds("{}({}, {})".format, inner, inner, inner),
            st.builds("{}[{}].z".format, inner, inner),
            st.builds("({})".format, inner),
            st.builds("{{{}: {},}}".format, inner, inner),
            st.builds("[{}, {}]".format, inner, inner),
            st.builds("function(x, y,) {{ return {}; }}".format, inner),
        ),
        max_leaves=8,
    )


def statements() -> st.SearchStrategy[str]:
    value = expressions()
    return st.recursive(
        st.builds("{};".format, value) | st.builds("{} = {};".format, value, value)
        | st.builds("x += {};".format, value) | st.builds("return {};".format, value),
        lambda inner: st.one_of(
            st.builds("if ({}) {{ {} }}".format, value, inner),
            st.builds("if ({}) {{ {} }} else {{ {} }}".format, value, inner, inner),
            st.builds("if (x) {{ {} }} else if ({}) {{ {} }}".format, inner, value, inner),
            st.builds("do {{ {} break; }} while ({});".format, inner, value),
            st.builds("for (x, y in {}) {{ {} }}".format, value, inner),
            st.builds("function f(x) {{ {} {} }}".format, inner, inner),
        ),
        max_leaves=4,
    )  # fmt: skip


CHANGES = st.lists(st.tuples(st.integers(0, 99), st.sampled_from(["", *WORDS])), max_size=2)


@given(statements(), CHANGES)
def test_the_grammar_for_people_has_what_is_parsed_and_no_more(
    text: str, changes: list[tuple[int, str]]
) -> None:
    words = text.split()
    for at, word in changes:
        words[at % len(words)] = word
    text = " ".join(words)
    assert has_sentence(text) == is_parsed(text), text


@given(st.lists(st.sampled_from([*WORDS, "x", "y", "1"]), max_size=8))
@settings(max_examples=settings().max_examples * 3)
@example(["{", "x", ":", "y", "}", ";"])
@example(["(", "x", ")", "=", "y", ";"])
@example(["lambda", "x", ",", ":", "y", ";"])
def test_the_grammar_for_people_has_no_other_words_in_a_row(words: list[str]) -> None:
    text = " ".join(words)
    assert has_sentence(text) == is_parsed(text), text
