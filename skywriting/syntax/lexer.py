"""The first pass: text to tokens.

One compiled expression takes the whole text to pieces, so that the pieces joined are the text;
what a piece is follows from the piece alone and is looked up, so that a million pieces cost little.
A kind is a word of the language as it is written (`"while"`, `"+="`), or one of those below.
"""

from __future__ import annotations

import re
import unicodedata
from itertools import accumulate, compress
from typing import NamedTuple

from ciel.skywriting.errors import Problem, Source

NAME, NUMBER, TEXT, BAD, END = "name", "number", "text", "bad", "end"
NOT_2 = "not"  # `!` of version 2, which binds as unary minus does

KEYWORDS = (
    "function", "if", "else", "for", "in", "while", "do", "return", "break", "continue", "true",
    "false", "lambda", "include",
)  # fmt: skip
OPERATORS = (
    "+", "-", "*", "/", "%", "!", "||", "&&", "<", "<=", ">", ">=", "==", "!=", "=", "+=", ".", "(",
    ")", "[", "]", "{", "}", ",", ":", ";",
)  # fmt: skip
DIV = "div"  # an operator after an operand, a name anywhere else
TERMINALS = (*KEYWORDS, *OPERATORS, DIV, NOT_2, NAME, NUMBER, TEXT, BAD, END)
_OPERAND_ENDS = frozenset((NAME, NUMBER, TEXT, ")", "]", "true", "false"))

_SPACE, _COMMENT = "", "comment"  # kinds of pieces that the grammar never sees

_PIECES = re.compile(
    r"""[ \t\r\n\f\v]+
    | [^\W\d]\w*
    | [-*%.()\[\]{},:;] | [<>=!]=? | \+=? | \|\|? | &&? | /(?![/*])
    | [0-9]+ (?:\.[0-9]+)? (?:[eE][+-]?[0-9]+)? \w*
    | "[^"\\\n]*+ (?: \\. [^"\\\n]*+ )*+ "
    | '[^'\\\n]*+ (?: \\. [^'\\\n]*+ )*+ '
    | //[^\n]*
    | /\*(?s:.*?)\*/
    | ["'][^\n]* | /\*(?s:.*) | \#[^\n]* | (?s:.)  # what is wrong
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

DIGITS_MAX = 100_000  # of a number that stands in a script
PIECES_MAX = 6_000_000  # of a script: 16 MiB of ordinary text have fewer
PROBLEMS_MAX = 100  # nobody reads more at once
_DIGITS_AT_ONCE = 4_000  # Python refuses to convert more than 4,300


class Tokens(NamedTuple):
    """What a text consists of, in parallel lists that end with `END`; comments are kept aside."""

    kinds: list[str]
    texts: list[str]
    offsets: list[int]
    comments: list[tuple[int, str]]  # offset, and the text without what ends it
    version: int
    problems: list[Problem]


class _Kinds(dict[str, str]):
    """The kind of every piece seen so far; what is wrong with a piece goes to `faults`."""

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
"""Stands for the place, in what is said of a piece, which may stand in several."""


def tokenize(source: Source) -> Tokens:
    """Take a text to pieces. What is wrong is told in `problems`, and does not end it."""
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
        fault = f"this script is too long: it has more than {PIECES_MAX} words and signs"
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
    """Tell the operator from the name, which old scripts are free to use."""
    before = ";"
    for number, text in enumerate(texts):
        if text == DIV and before in _OPERAND_ENDS:
            kinds[number] = DIV
        before = kinds[number]


# --- what a piece is ------------------------------------------------------------------------------


def _classify(piece: str) -> tuple[str, str]:
    """Return the kind of a piece that is no word of the language, and what is wrong with it."""
    first = piece[0]
    if piece.isidentifier():
        return NAME, ""
    if first in " \t\r\n\f\v":
        return _SPACE, ""
    if first in "0123456789":
        return NUMBER, _number_fault(piece)
    if first in "\"'":
        return TEXT, _text_fault(piece)
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
    """Show what may be invisible, and say what to write in its place where that is known."""
    hints = {
        "?": ' (there is no "a ? b : c": use if and else)',
        "^": " (there is no such operator)",
        "~": " (there is no such operator)",
        "`": " (texts stand in \" or ')",
        "\u201c": ' (texts stand in plain quotes: ")',
        "\u201d": ' (texts stand in plain quotes: ")',
        "\u2018": " (texts stand in plain quotes: ')",
        "\u2019": " (texts stand in plain quotes: ')",
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
        return f"{shown} is no number: only decimal numbers can be written"
    if piece[0] == "0" and piece[1] in "0123456789":
        return f"{shown} is no number: a number does not begin with 0"
    if "_" in piece:
        return f"{shown} is no number: its digits cannot be parted by _"
    return f"{shown} is neither a number nor a name: a name does not begin with a digit"


def _text_fault(piece: str) -> str:
    quote = piece[0]
    if not _is_closed(piece):
        return f"this text is never closed: {quote} is missing at the end of the line"
    if "\\" not in piece:
        return ""
    for found in _ESCAPE.finditer(piece):
        if found[4] == "u":
            return "\\u takes four hexadecimal digits"
        if found[4] and found[4] not in _ESCAPED:
            return f"unknown escape \\{found[4]} in a text (there are \\\" \\' \\\\ \\b \\f \\n \\r \\t \\uXXXX)"  # noqa: E501
        if found[3] and 0xD800 <= int(found[3], 16) < 0xE000:
            return f"\\u{found[3]} is half of a character: the other half is missing"
    return ""


def _is_closed(piece: str) -> bool:
    """Whether a text ends with its quote, and with one that no backslash stands before."""
    if len(piece) < 2 or piece[-1] != piece[0]:
        return False
    inner = piece[1:-1]
    return (len(inner) - len(inner.rstrip("\\"))) % 2 == 0


# --- what a piece means ---------------------------------------------------------------------------


def number_of(piece: str) -> int | float:
    """Return the value of a number. Takes those that are told as wrong, too."""
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


def text_of(piece: str) -> str:
    """Return the value of a text that stands in quotes. Takes those that are told as wrong, too."""
    inner = piece[1:-1]
    return _ESCAPE.sub(_unescape, inner) if "\\" in inner else inner


def _unescape(found: re.Match[str]) -> str:
    high, low, alone, sign = found.groups()
    if high:
        return chr(0x10000 + ((int(high, 16) - 0xD800) << 10) + (int(low, 16) - 0xDC00))
    return chr(int(alone, 16)) if alone else _ESCAPED.get(sign, sign)
