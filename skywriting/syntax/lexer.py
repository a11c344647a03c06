"""The first pass, the lexer: from text to tokens.

One regular expression splits the whole text into pieces. The kind of a piece, except of `div`,
depends only on its text. So a table keeps the kinds of all pieces seen so far, and a million pieces
take little time. A kind is a keyword, operator or bracket of the language (`"while"`, `"+="`,
`"["`), or one of the following.
"""

from __future__ import annotations

import re
import unicodedata
from itertools import accumulate, compress
from typing import NamedTuple

from ciel.skywriting.errors import Problem, Source

NAME, NUMBER, STRING, BAD, END = "name", "number", "string", "bad", "end"
NOT_2 = "not"  # `!` of version 2, with the precedence of unary minus

KEYWORDS = (
    "function", "if", "else", "for", "in", "while", "do", "return", "break", "continue", "true",
    "false", "lambda", "include",
)  # fmt: skip
OPERATORS = (
    "+", "-", "*", "/", "%", "!", "||", "&&", "<", "<=", ">", ">=", "==", "!=", "=", "+=", ".", "(",
    ")", "[", "]", "{", "}", ",", ":", ";",
)  # fmt: skip
DIV = "div"  # an operator after an operand, a name elsewhere
TERMINALS = (*KEYWORDS, *OPERATORS, DIV, NOT_2, NAME, NUMBER, STRING, BAD, END)
_OPERAND_ENDS = frozenset((NAME, NUMBER, STRING, ")", "]", "true", "false"))

_SPACE, _COMMENT = "", "comment"  # kinds of pieces that the parser does not see

_PIECES = re.compile(
    r"""[ \t\r\n\f\v]+
    | [^\W\d]\w*
    | [-*%.()\[\]{},:;] | [<>=!]=? | \+=? | \|\|? | &&? | /(?![/*])
    | [0-9]+ (?:\.[0-9]+)? (?:[eE][+-]?[0-9]+)? \w*
    | "[^"\\\n]*+ (?: \\. [^"\\\n]*+ )*+ "
    | '[^'\\\n]*+ (?: \\. [^'\\\n]*+ )*+ '
    | //[^\n]*
    | /\*(?s:.*?)\*/
    | ["'][^\n]* | /\*(?s:.*) | \#[^\n]* | (?s:.)  # errors
    """,
    re.VERBOSE,
)
_NUMBER = re.compile(r"(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_ESCAPE = re.compile(r"\\u([dD][89abAB][0-9a-fA-F]{2})\\u([dD][c-fC-F][0-9a-fA-F]{2})"
                     r"|\\u([0-9a-fA-F]{4})|\\(.)")  # fmt: skip
_ESCAPED = {'"': '"', "'": "'", "\\": "\\", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_FIRST_LINE = re.compile(r"\ufeff?(#![^\r\n]*)?")
_VERSION = re.compile(r"#![ \t]*skywriting(?:[ \t]+(.*?))?[ \t]*")
_VERSIONS = {None: 1, "1": 1, "2": 2}

DIGITS_MAX = 100_000  # of a number in a script
PIECES_MAX = 6_000_000  # of a script: 16 MiB of usual text have fewer
PROBLEMS_MAX = 100  # a person does not read more at once
_DIGITS_AT_ONCE = 4_000  # Python refuses to convert more than 4,300


class Tokens(NamedTuple):
    """The tokens of a script, in parallel lists that end with `END`, and its comments."""

    kinds: list[str]
    texts: list[str]
    offsets: list[int]
    comments: list[tuple[int, str]]  # offset, and text without the line end
    version: int
    problems: list[Problem]


class _Kinds(dict[str, str]):
    """The kind of each piece seen so far. `faults`: the errors in pieces."""

    def __init__(self) -> None:
        super().__init__({word: word for word in (*KEYWORDS, *OPERATORS)})
        self.faults: dict[str, str] = {}

    def __missing__(self, piece: str) -> str:
        kind, fault = _classify(piece)
        if fault:
            self.faults[piece] = fault
        self[piece] = kind
        return kind


_AT = "\0"
"""Stands for line and column in the text of an error, since a piece may occur at several places."""


def tokenize(source: Source) -> Tokens:
    """Split a script into tokens; continue after errors, and add them to `problems`."""
    first = _FIRST_LINE.match(source.text)
    assert first is not None
    begin = first.end()
    problems: list[Problem] = []
    version = 1
    if said := _VERSION.fullmatch(first[1] or ""):
        version = _VERSIONS.get(said[1], 0)
        if not version:
            fault = f'unknown version "{said[1]}" of Skywriting (there are 1 and 2)'
            problems.append(Problem(source, first.start(1), fault))
    table = _Kinds()
    if version == 2:
        table["!"] = NOT_2
    pieces = _PIECES.findall(source.text, begin)
    if len(pieces) > PIECES_MAX:
        most = f"{PIECES_MAX} tokens, spaces and comments"
        fault = f"this script is too long: it has more than {most}"
        problems.append(Problem(source, begin, fault))
        pieces = []
    kinds = list(map(table.__getitem__, pieces))
    offsets = list(accumulate(map(len, pieces), initial=begin))
    if table.faults:
        before = ""
        for piece, offset in zip(pieces, offsets, strict=False):
            if piece in table.faults and piece != before:
                line, column = source.place(offset)
                at = f" on line {line} at column {column}"
                problems.append(Problem(source, offset, table.faults[piece].replace(_AT, at)))
                if len(problems) >= PROBLEMS_MAX:
                    break
            before = piece
    comments = [(first.start(1), first[1])] if first[1] else []
    if _COMMENT in table.values():
        for number, kind in enumerate(kinds):
            if kind == _COMMENT:
                comments.append((offsets[number], pieces[number].rstrip()))
                kinds[number] = _SPACE
    texts = list(compress(pieces, kinds))
    offsets = list(compress(offsets, kinds))
    kinds = list(compress(kinds, kinds))
    if DIV in table:
        _find_div(kinds, texts)
    kinds.append(END)
    texts.append("")
    offsets.append(len(source.text))
    return Tokens(kinds, texts, offsets, comments, version or 1, problems)


def _find_div(kinds: list[str], texts: list[str]) -> None:
    """Mark each `div` that is an operator; others are names, which old scripts may use."""
    before = ";"
    for number, text in enumerate(texts):
        if text == DIV and before in _OPERAND_ENDS:
            kinds[number] = DIV
        before = kinds[number]


# --- kinds of pieces ------------------------------------------------------------------------------


def _classify(piece: str) -> tuple[str, str]:
    """Return the kind of a piece that `_Kinds` does not know, and the error in it, if any."""
    first = piece[0]
    if piece.isidentifier():
        return NAME, ""
    if first in " \t\r\n\f\v":
        return _SPACE, ""
    if first in "0123456789":
        return NUMBER, _number_fault(piece)
    if first in "\"'":
        return STRING, _string_fault(piece)
    if piece.startswith(("//", "/*")):
        if piece.startswith("/*") and (len(piece) < 4 or not piece.endswith("*/")):
            return _SPACE, "this comment is never closed: */ is missing"
        return _COMMENT, ""
    if first == "#":
        return _SPACE, f'Illegal character "#"{_AT}: a comment begins with //'
    if piece in ("|", "&"):
        return piece * 2, f'Illegal character "{piece}"{_AT}: "and" is &&, "or" is ||'
    return BAD, f"Illegal character {_show_character(piece)}"


def _show_character(piece: str) -> str:
    """Describe a character, which may be invisible, with a hint if there is one."""
    hints = {
        "?": ' (there is no "a ? b : c": use if and else)',
        "^": " (there is no such operator)",
        "~": " (there is no such operator)",
        "`": " (strings are written in \" or ')",
        "\u201c": ' (strings are written in plain quotes: ")',
        "\u201d": ' (strings are written in plain quotes: ")',
        "\u2018": " (strings are written in plain quotes: ')",
        "\u2019": " (strings are written in plain quotes: ')",
        "\xa0": " (write a plain space)",
    }
    shown = f'"{piece}"' if piece.isprintable() else f"U+{ord(piece[0]):04X}"
    shown += _AT
    if not piece.isascii():
        shown += f" ({unicodedata.name(piece[0], 'no character').lower()})"
    return shown + hints.get(piece, "")


def _number_fault(piece: str) -> str:
    found = _NUMBER.match(piece)
    assert found is not None
    shown = piece if len(piece) < 40 else piece[:30] + "…"
    if len(found[0]) > DIGITS_MAX:
        return f"this number has more than {DIGITS_MAX} digits"
    if found[0] == piece:
        if found.lastindex and float(piece) == float("inf"):
            return f"the number {shown} is too large for a float"
        return ""
    if piece[:2] in ("0x", "0X", "0b", "0B", "0o", "0O"):
        return f"{shown} is not a number: only decimal numbers can be written"
    if piece[0] == "0" and piece[1] in "0123456789":
        return f"{shown} is not a number: a number has no leading zeros"
    if "_" in piece:
        return f"{shown} is not a number: its digits cannot be separated by _"
    return f"{shown} is neither a number nor a name: a name does not begin with a digit"


def _string_fault(piece: str) -> str:
    quote = piece[0]
    if not _is_closed(piece):
        return f"this string is never closed: {quote} is missing at the end of the line"
    if "\\" not in piece:
        return ""
    for found in _ESCAPE.finditer(piece):
        if found[4] == "u":
            return "\\u takes four hexadecimal digits"
        if found[4] and found[4] not in _ESCAPED:
            return f"unknown escape \\{found[4]} in a string (there are \\\" \\' \\\\ \\b \\f \\n \\r \\t \\uXXXX)"  # noqa: E501
        if found[3] and 0xD800 <= int(found[3], 16) < 0xE000:
            return f"\\u{found[3]} is half of a character: the other half is missing"
    return ""


def _is_closed(piece: str) -> bool:
    """Return whether a string ends with its quote, and not with an escaped one."""
    if len(piece) < 2 or piece[-1] != piece[0]:
        return False
    inner = piece[1:-1]
    return (len(inner) - len(inner.rstrip("\\"))) % 2 == 0


# --- values of pieces -----------------------------------------------------------------------------


def number_of(piece: str) -> int | float:
    """Return the value of a number, also of one with an error."""
    if len(piece) < _DIGITS_AT_ONCE and piece.isdecimal():
        return int(piece)
    found = _NUMBER.match(piece)
    assert found is not None
    if found.lastindex:
        return float(found[0])
    value = 0
    digits = found[0][:DIGITS_MAX]
    for start in range(0, len(digits), _DIGITS_AT_ONCE):
        part = digits[start : start + _DIGITS_AT_ONCE]
        value = value * 10 ** len(part) + int(part)
    return value


def string_of(piece: str) -> str:
    """Return the value of a string in quotes, also of one with an error."""
    inner = piece[1:-1]
    return _ESCAPE.sub(_unescape, inner) if "\\" in inner else inner


def _unescape(found: re.Match[str]) -> str:
    high, low, alone, sign = found.groups()
    if high:
        return chr(0x10000 + ((int(high, 16) - 0xD800) << 10) + (int(low, 16) - 0xDC00))
    return chr(int(alone, 16)) if alone else _ESCAPED.get(sign, sign)
