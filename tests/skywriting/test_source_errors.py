"""All errors in a script are reported at once, each with its place; no other error occurs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ciel.skywriting.errors import Problem, Source, SourceError
from ciel.skywriting.syntax.grammar import CHAIN_MAX, DEPTH_MAX, LENGTH_MAX, parse
from ciel.skywriting.syntax.lexer import KEYWORDS, OPERATORS, PROBLEMS_MAX
from ciel.skywriting.syntax.printer import show
from ciel.skywriting.syntax.resolver import resolve
from ciel.skywriting.syntax.tree import Script
from ciel_tests.skywriting.chunks import Chunk, chunks

HERE = Path(__file__).parent
CORPUS = [chunk for path in sorted(HERE.glob("errors/source*.sw")) for chunk in chunks(path)]
VALID = "\n".join(path.read_text() for path in sorted(HERE.glob("conformance/*.sw")))


def problems_of(text: str) -> list[Problem]:
    """Return the errors of a text; it is a script if there are none."""
    try:
        script = parse(Source("<test>", text))
    except SourceError as error:
        return list(error.problems)
    return [problem for problem in resolve(script) if not problem.is_warning]


@pytest.mark.parametrize("chunk", CORPUS, ids=lambda chunk: chunk.where)
def test_every_error_is_told_on_its_line_and_no_other(chunk: Chunk) -> None:
    told = [(p.source.place(p.offset)[0], p.message) for p in problems_of(chunk.text)]
    assert [line for line, _ in told] == [line for line, _ in chunk.errors], told
    for (_, pattern), (_, message) in zip(chunk.errors, told, strict=True):
        assert re.search(pattern, message)


def test_the_corpus_has_many_different_errors() -> None:
    assert len({pattern for chunk in CORPUS for _, pattern in chunk.errors}) > 120


def test_a_problem_shows_its_place_and_the_line_with_a_caret() -> None:
    (problem,) = problems_of("x = 1;\ny = (2;\n")
    assert str(problem) == (
        'found ";", expected ")" (the "(" was opened on line 2, column 5)\n'
        "  <test>, line 2, column 7\n"
        "    y = (2;\n"
        "          ^"
    )


# --- limits ---------------------------------------------------------------------------------------


def chained(left: str, middle: str, right: str, number: int) -> str:
    return left * number + middle + right * number


DEEP = {
    "brackets in brackets": ("f(", "1", ")"),
    "lists": ("[", "1", "]"),
    "dictionaries": ("{1: ", "1", "}"),
    "signs": ("-", "1", ""),
    "nots": ("!", "1", ""),
    "stars": ("*", "x", ""),
    "operators on the right": ("1 + (", "1", ")"),
    "lambdas": ("lambda: ", "1", ""),
    "functions": ("function() { return ", "1", "; }"),
    "fields": ("", "x", ".k"),
    "indexes": ("", "x", "[0]"),
    "calls": ("", "x", "()"),
}


@pytest.mark.parametrize("kind", DEEP)
@pytest.mark.parametrize("number", [1_001, 30_000], ids=["deep", "very deep"])
def test_what_is_nested_too_deep_is_refused(kind: str, number: int) -> None:
    (problem,) = problems_of(f"x = {chained(*DEEP[kind], number)};")
    assert problem.message == f"nested more than {DEPTH_MAX} deep"


@pytest.mark.parametrize("text", [
    f"x = {chained('(', '1', ')', 20_000)};",
    chained("if (x) { ", "y = 1;", " }", 2_000),
    chained("{ ", "y = 1;", " }", 20_000),
    chained("function f() { ", "y = 1;", " }", 20_000),
    "if (x) { y = 1; }" + " else if (x) { y = 1; }" * 20_000,
], ids=["bracket", "if", "block", "function", "else if"])  # fmt: skip
def test_brackets_and_statements_nested_too_deep_are_refused(text: str) -> None:
    (problem,) = problems_of(text)
    assert problem.message == f"nested more than {DEPTH_MAX} deep"


@pytest.mark.parametrize("kind", DEEP)
def test_what_is_nested_deep_passes_every_pass(kind: str) -> None:
    script = parsed(f"x = {chained(*DEEP[kind], 300)};")
    assert resolve(script) == []
    shown = show(script)
    assert show(parsed(shown)) == shown


@pytest.mark.slow
def test_a_long_chain_of_operators_passes_every_pass() -> None:
    assert resolve(parsed("x = a" + " + a" * CHAIN_MAX + ";")) == []
    shown = show(parsed("x = a" + " || a * 2 + 1" * 5_000 + ";"))
    assert show(parsed(shown)) == shown


def test_a_longer_chain_is_refused() -> None:
    (problem,) = problems_of("x = a" + " + a" * (CHAIN_MAX + 1) + ";")
    assert problem.message == f"more than {CHAIN_MAX} operators in one expression"


@pytest.mark.slow
def test_long_texts_pass() -> None:
    plain, escaped = "a" * (5 << 20), "\\n\\\\" * (1 << 18)
    script = parsed(f'x = "{plain}"; y = "{escaped}"; /*{"*" * (1 << 20)}*/')
    assert resolve(script) == []
    assert len(show(script)) > 6 << 20


def test_a_text_that_is_too_long_is_refused() -> None:
    (problem,) = problems_of("x" * (LENGTH_MAX + 1))
    assert problem.message == f"this script is too long: it has more than {LENGTH_MAX} characters"


def test_a_text_of_too_many_words_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ciel.skywriting.syntax.lexer.PIECES_MAX", 10)
    assert "it has more than 10 tokens" in problems_of("x = [1, 2, 3, 4];")[0].message


@pytest.mark.parametrize("line", ["x = ;", "x = @3;", "f() = 3;", '"', "}", "else"])
def test_of_very_many_errors_the_first_are_told(line: str) -> None:
    assert len(problems_of(f"{line}\n" * 5_000)) == PROBLEMS_MAX


# --- any text -------------------------------------------------------------------------------------


def parsed(text: str) -> Script:
    return parse(Source("<test>", text))


def check_any(text: str) -> None:
    """Any text is refused with valid errors, or can be printed and parsed again."""
    problems = problems_of(text)
    assert len(problems) <= PROBLEMS_MAX
    assert len({(problem.offset, problem.message) for problem in problems}) == len(problems)
    for problem in problems:
        assert 0 <= problem.offset <= len(text)
        assert problem.message in str(problem)
    if not problems:
        shown = show(parsed(text))
        assert show(parsed(shown)) == shown


@given(st.text(max_size=60))
def test_any_text_is_a_script_or_refused(text: str) -> None:
    check_any(text)


WORDS = [*KEYWORDS, *OPERATORS, "x", "div", "1", "2.5", '"a"', "'", "\n", "//", "/*", "@", "\\"]


@given(st.lists(st.sampled_from(WORDS), max_size=30))
@settings(max_examples=settings().max_examples * 5)
@example(["{", "{", ";", "}"])
def test_any_words_are_a_script_or_refused(words: list[str]) -> None:
    check_any(" ".join(words))


@given(st.data())
@settings(max_examples=settings().max_examples * 2)
def test_any_change_of_a_script_gives_a_script_or_is_refused(data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(VALID) - 400))
    text = VALID[start : start + 400]
    for _ in range(data.draw(st.integers(0, 4))):
        at = data.draw(st.integers(0, len(text)))
        end = data.draw(st.integers(at, min(len(text), at + 10)))
        new = data.draw(st.sampled_from(["", *WORDS]) | st.text(max_size=3))
        text = text[:at] + new + text[end:]
    check_any(text)
