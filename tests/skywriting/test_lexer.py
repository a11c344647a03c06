"""Text to tokens: the kind, the place and the value of each."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ciel.skywriting.errors import Source
from ciel.skywriting.syntax.lexer import (
    BAD,
    DIV,
    END,
    NAME,
    NOT_2,
    NUMBER,
    STRING,
    number_of,
    string_of,
    tokenize,
)


def kinds(text: str) -> list[str]:
    tokens = tokenize(Source("<test>", text))
    assert tokens.kinds[-1] == END
    return tokens.kinds[:-1]


def problems(text: str) -> list[str]:
    return [problem.message for problem in tokenize(Source("<test>", text)).problems]


@given(st.text())
def test_tokens_stand_where_they_say(text: str) -> None:
    tokens = tokenize(Source("<test>", text))
    assert len(tokens.kinds) == len(tokens.texts) == len(tokens.offsets)
    for piece, offset in zip(tokens.texts, tokens.offsets, strict=True):
        assert text.startswith(piece, offset)
    for offset, comment in tokens.comments:
        assert text.startswith(comment, offset)
    assert tokens.offsets == sorted(tokens.offsets)


def test_words_signs_names_numbers_and_texts_are_told_apart() -> None:
    assert kinds('while whiles x1 _ 3 2.5 "a" += + = == [') == [
        "while", NAME, NAME, NAME, NUMBER, NUMBER, STRING, "+=", "+", "=", "==", "[",
    ]  # fmt: skip


def test_signs_are_as_long_as_they_can_be() -> None:
    assert kinds("a<=b>=c==d!=e&&f||!g") == [
        NAME, "<=", NAME, ">=", NAME, "==", NAME, "!=", NAME, "&&", NAME, "||", "!", NAME,
    ]  # fmt: skip


def test_names_may_have_letters_of_any_script() -> None:
    assert kinds("größe λ") == [NAME, NAME]


def test_a_number_before_a_field_is_no_float() -> None:
    assert kinds("1.x 2.5.x 1.5") == [NUMBER, ".", NAME, NUMBER, ".", NAME, NUMBER]


@pytest.mark.parametrize("text", ["x div 2", "3 div 2", ") div 2", "] div 2", "true div 2"])
def test_div_is_an_operator_after_an_operand(text: str) -> None:
    assert kinds(text) == [kinds(text)[0], DIV, NUMBER]


@pytest.mark.parametrize("text", ["div", "; div = 3", "(div)", "a.div", "div(2)", "= div;"])
def test_div_is_a_name_elsewhere(text: str) -> None:
    assert DIV not in kinds(text)
    assert NAME in kinds(text)


def test_div_can_be_divided_by_itself() -> None:
    assert kinds("div div div") == [NAME, DIV, NAME]


def test_comments_are_kept_aside() -> None:
    text = "// one\nx /* two\n three */ = 3; // four"
    tokens = tokenize(Source("<test>", text))
    assert tokens.kinds == [NAME, "=", NUMBER, ";", END]
    assert [comment for _, comment in tokens.comments] == ["// one", "/* two\n three */", "// four"]


@pytest.mark.parametrize(
    "first, version",
    [
        ("", 1), ("#!/usr/bin/env sw-job", 1), ("#!skywriting", 1), ("#!skywriting 1", 1),
        ("#!skywriting 2", 2), ("#! skywriting  2 ", 2), ("\ufeff#!skywriting 2\r", 2),
    ],
)  # fmt: skip
def test_the_first_line_says_the_version(first: str, version: int) -> None:
    tokens = tokenize(Source("<test>", f"{first}\nx"))
    assert (tokens.version, tokens.kinds, tokens.problems) == (version, [NAME, END], [])


def test_not_is_another_sign_in_version_2() -> None:
    assert kinds("#!skywriting 2\n!x") == [NOT_2, NAME]


def test_what_is_wrong_is_told_and_the_rest_goes_on() -> None:
    assert kinds("x @ y") == [NAME, BAD, NAME]
    assert problems("x @ y; 007") == [
        'Illegal character "@" on line 1 at column 3',
        "007 is not a number: a number has no leading zeros",
    ]


@pytest.mark.parametrize(
    "piece, value",
    [("0", 0), ("12", 12), ("2.50", 2.5), ("1e3", 1000.0), ("1.5E-3", 0.0015), ("7e+0", 7.0)],
)
def test_numbers_mean_what_they_do_elsewhere(piece: str, value: float) -> None:
    assert problems(piece) == []
    assert number_of(piece) == value
    assert type(number_of(piece)) is type(value)


def test_a_number_may_have_very_many_digits() -> None:
    assert number_of("1" + "0" * 99_999) == 10**99_999
    assert problems("1" * 100_001) == ["this number has more than 100000 digits"]


@pytest.mark.parametrize(
    "piece, value",
    [
        (r'"a\"b\\"', 'a"b\\'), (r"'a\'b\"'", "a'b\""), ('"it\'s"', "it's"), ("'\"'", '"'),
        (r'"\b\f\n\r\t"', "\b\f\n\r\t"), (r'"\u00fcx"', "üx"), (r'"\ud83d\ude00"', "😀"),
        ('"ü😀"', "ü😀"),
        (r'"\\n"', "\\n"), ('""', ""), ('"tab\there"', "tab\there"),
    ],
)  # fmt: skip
def test_texts_mean_what_they_say(piece: str, value: str) -> None:
    assert problems(piece) == []
    assert kinds(piece) == [STRING]
    assert string_of(piece) == value
