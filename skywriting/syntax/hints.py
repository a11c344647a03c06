"""Words syntax errors: the token that was found, the tokens that are expected, and hints."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from difflib import get_close_matches

from ciel.skywriting.standard import NAMES
from ciel.skywriting.syntax.lexer import END, KEYWORDS, NAME, NUMBER, STRING

_SHOWN_MAX = 30
_LIKENESS = 0.6
"""The least similarity of a name that a hint suggests: `lenght` must find `len`."""
_LIKENESS_ELSEWHERE = 0.8
"""The same for a name from other languages: `undefined` must find `null`, not `find`."""

_WITH_BLOCKS = ("if", "while", "for", "do", "else", "function")
_STATEMENT_WORDS = ("if", "while", "for", "do", "return", "break", "continue", "include")

# Words that start a statement in other languages.
FIRST_WORDS = {
    **dict.fromkeys(
        ("import", "from", "use", "using", "require"), 'other scripts are read with include "name";'
    ),
    **dict.fromkeys(
        ("var", "let", "const", "local", "global", "auto", "my", "int", "float", "string", "bool"),
        "variables need no declaration: write name = value;",
    ),
    **dict.fromkeys(
        ("def", "fn", "func", "fun", "sub", "proc", "void"),
        "functions are written function name(a, b) { … }",
    ),
    **dict.fromkeys(("elif", "elsif", "elseif"), 'write "else if (…) { … }"'),
    "foreach": "write for (name in list) { … }",
    **dict.fromkeys(
        ("switch", "case", "match"), "this statement does not exist: use if and else if"
    ),
    **dict.fromkeys(("unless", "until"), "this statement does not exist: use if or while, and !"),
    **dict.fromkeys(
        ("try", "catch", "except", "throw", "raise"), "there are no exceptions: see is_error"
    ),
    **dict.fromkeys(("class", "struct", "enum", "new"), "there are no classes: use dictionaries"),
    **dict.fromkeys(("print", "echo", "puts"), "print is a function: write print(value);"),
    "not": '"not" is written !',
}
_WORDS_BETWEEN = {
    "and": '"and" is written &&',
    "or": '"or" is written ||',
    "not": '"not" is written !',
    "is": '"is" is written ==',
    "then": "the body must be in braces: { … }",
    "mod": "the remainder is written %",
}
_PAIRS = {
    "++": 'there is no "++": write a += 1',
    "--": 'there is no "--": write a = a - 1',
    "-=": 'there is no "-=": write a = a - b',
    "*=": 'there is no "*=": write a = a * b',
    "/=": 'there is no "/=": write a = a / b',
    "%=": 'there is no "%=": write a = a % b',
    "=>": "functions are written lambda a, b: value",
    "->": "functions are written lambda a, b: value",
    ":=": 'assignments are written with "="',
    "::": 'there is no "::"',
    "..": "use range(a, b) for a list of numbers",
    "<<": "there is no such operator",
    ">>": "there is no such operator",
}

_ELSEWHERE = {
    "True": "true", "False": "false", "None": "null", "nil": "null", "NULL": "null",
    "undefined": "null", "not": "!", "and": "&&", "or": "||", "length": "len", "string": "str",
    "print_r": "print", "echo": "print", "println": "print", "puts": "print", "parseInt": "int",
}  # fmt: skip
_INCLUDED = {
    **{name: name for name in NAMES},
    "stdinout_stream": "stdinout", "ref": "grab", "shuffle": "mapreduce",
}  # fmt: skip
_is_key = re.compile(r"[{,]\s*\w+\s*:").match


def describe(kind: str, text: str) -> str:
    """Describe a token."""
    if kind == END:
        return "the end of the script"
    shown = text if len(text) <= _SHOWN_MAX else text[: _SHOWN_MAX - 1] + "…"
    if kind == NAME:
        return f'the name "{shown}"'
    if kind == NUMBER:
        return f"the number {shown}"
    if kind == STRING:
        return f"the string {shown}"
    return f'"{shown}"'


def expectation(accepts: Callable[[str], bool]) -> str:
    """Describe the tokens that the parser accepts."""
    signs: tuple[str, ...]
    if accepts(NUMBER):
        choices = ["a statement"] if accepts("break") else ["a value"]
        signs = ("}", "]", ")")  # other signs can start a value or a statement
    elif accepts("+"):
        choices = []
        signs = (";", ")", "]", "}", ",", ":")
    else:
        choices = ["a name"] if accepts(NAME) else []
        signs = (";", ")", "]", "}", ",", ":", "in", "(", "{", "while")
    choices += [f'"{sign}"' for sign in signs if accepts(sign)]
    if accepts("+"):
        choices.append("an operator")
    return " or ".join(filter(None, (", ".join(choices[:-1]), *choices[-1:])))


def hint(
    kinds: list[str], texts: Sequence[str], offsets: Sequence[int], at: int, first: int
) -> str:
    """Return a hint on the error at a token; `first`: the first token of the statement."""
    kind, text, word = kinds[at], texts[at], texts[first]
    before = kinds[at - 1] if at else ""
    for pair in (at - 1, at, at - 2):
        if 0 <= pair < len(texts) - 1 and offsets[pair] + len(texts[pair]) == offsets[pair + 1]:
            signs = texts[pair] + texts[pair + 1]
            if signs in _PAIRS:
                return _PAIRS[signs]
    if kinds[first] == NAME and word in FIRST_WORDS and first < at:
        return FIRST_WORDS[word]
    if at and texts[at - 1] in _WORDS_BETWEEN and before == NAME:
        return _WORDS_BETWEEN[texts[at - 1]]
    if kind == NAME and text in _WORDS_BETWEEN:
        return _WORDS_BETWEEN[text]
    if kinds[first] == "for" and first + 1 < len(kinds) and at > first:
        if kind in ("=", ";") or kinds[at - 1] == ";":
            return "a loop over numbers is written for (name in range(a, b)) { … }"
    if kind == ";" and before == "}":
        return 'no ";" is needed after "}"'
    if before in KEYWORDS and kind in ("=", ",", ")", ";", ".", "+="):
        return f'"{before}" is a keyword and cannot be a name'
    return _hint_on_structure(kinds, at, first)


def hint_on_name(name: str, known: Collection[str], text: str, offset: int) -> str:
    """Return a hint on a name that is not bound; empty if there is none."""
    if _is_key(text, len(text[:offset].rstrip()) - 1):
        return f'keys that are strings have quotes: "{name}"'
    if name in _INCLUDED:
        return f'include "{_INCLUDED[name]}"; defines it'
    likeness = _LIKENESS_ELSEWHERE if name in _ELSEWHERE else _LIKENESS
    close = next(iter(get_close_matches(name, known, 1, likeness)), _ELSEWHERE.get(name))
    return f'did you mean "{close}"?' if close else ""


def _hint_on_structure(kinds: list[str], at: int, first: int) -> str:
    kind = kinds[at]
    before = kinds[at - 1] if at else ""
    if kind in _STATEMENT_WORDS and kinds[max(0, at - 2) : at] == [":", "{"]:
        return "a lambda has one expression; a function with statements is function(…) { … }"
    if kind in _STATEMENT_WORDS and at > first:
        if before in (")", "else", "do"):
            return "the body must be in braces: { … }"
        return f'"{kind}" begins a statement, and is not a value'
    if before in (")", "else", "do") and kinds[first] in _WITH_BLOCKS:
        return "the body must be in braces: { … }"
    if before in ("if", "while", "for"):
        return f'write what follows "{before}" in brackets: {before} (…) {{ … }}'
    if before == "function" and kind == NAME and at - 1 > first:
        return "a function in an expression has no name"
    return ""
