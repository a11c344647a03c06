"""Reports syntax errors, and repairs the tokens, so that the parser continues and finds all errors.

It tries, in this order: to correct an obvious error (`=` in a condition, a missing `;` or bracket);
to skip one token; to skip the statement. The next statement then starts after the `;` of the
skipped one, before the `}` of the block around it, or at a `{`. It does not report errors that are
consequences of another error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ciel.skywriting.errors import Problem, Source
from ciel.skywriting.syntax.hints import FIRST_WORDS, describe, expectation, hint
from ciel.skywriting.syntax.lexer import (
    BAD,
    END,
    KEYWORDS,
    NAME,
    NUMBER,
    PROBLEMS_MAX,
    STRING,
    Tokens,
)

Row = dict[str, int]

_CLOSERS = {"(": ")", "[": "]", "{": "}"}
_OPENERS = {closer: opener for opener, closer in _CLOSERS.items()}
_HEADS = frozenset(("if", "while", "for", "do", "function"))
_BEGINNERS = frozenset(("if", "while", "for", "do", "function", "return", "break", "continue",
                        "include"))  # fmt: skip
_LOOPS = frozenset(("while", "for", "do"))
_AFTER_VALUES = frozenset((")", "]", "}", ";", ",", ":"))
_INSERTIONS_MAX = 20


class Repair:
    """Repairs one text. `rows` and `values` are the stacks of the parser. `accepts` returns whether
    the parser could read tokens of some kinds next. After `enter`, it continues as if it had read
    an empty list of statements.
    """

    def __init__(
        self,
        source: Source,
        tokens: Tokens,
        rows: list[Row],
        values: list[Any],
        accepts: Callable[[tuple[str, ...]], bool],
        enter: Callable[[], None],
    ) -> None:
        self.source = source
        self.tokens = tokens
        self.kinds, self.texts, self.offsets = tokens.kinds, tokens.texts, tokens.offsets
        self.problems = tokens.problems
        self.faulty = {problem.offset for problem in tokens.problems}
        self.rows, self.values = rows, values
        self.accepts, self.enter = accepts, enter
        self.lost_heads: set[int] = set()  # depths at which the head of a block was skipped
        self.lost_loop = False
        self.last_at = -1

    def recover(self, at: int) -> int | None:
        """Report an error at a token; return the token to continue at, or None."""
        kind = self.kinds[at]
        if len(self.problems) >= PROBLEMS_MAX:
            return None
        if at == self.last_at:  # the previous repair did not help
            return None if kind == END else self._give_up(at + 1)
        self.last_at = at
        quiet = self._is_reported(at)
        if kind == END and not self.values:
            if not quiet:
                self._report_at(0, "the script is empty: it must contain at least one statement")
            return None
        for mend in (self._assignment, self._sign, self._word, self._remainder,
                     self._empty_block, self._missing):  # fmt: skip
            after = mend(at, quiet)
            if after is not None:
                return after
        if not quiet:
            self._report_unexpected(at)
        if kind == END:
            return None
        if kind in _AFTER_VALUES and self.accepts((NAME, kind)):
            return self._insert(at, [NAME])
        if kind in (NUMBER, STRING) and self.accepts((NAME, self.kinds[at + 1])):
            self.kinds[at] = NAME
            return at
        first = self._first_token(at)
        foreign = self.kinds[first] == NAME and self.texts[first] in FIRST_WORDS
        if not foreign and kind not in ("{", *_HEADS):
            if self.accepts(tuple(self.kinds[at + 1 : at + 3])):
                return at + 1
        return self._give_up(at)

    # --- reporting --------------------------------------------------------------------------------

    def _report(self, at: int, message: str) -> None:
        self._report_at(self.offsets[at], message)

    def _report_at(self, offset: int, message: str) -> None:
        self.problems.append(Problem(self.source, offset, message))

    def _is_reported(self, at: int) -> bool:
        """Return whether this error is a consequence of an error that the lexer has reported."""
        before = self.offsets[at - 1] if at else 0
        if self.kinds[at] == END and any(offset >= before for offset in self.faulty):
            return True
        return bool(self.kinds[at] == BAD or {before, self.offsets[at]} & self.faulty)

    def _report_unexpected(self, at: int) -> None:
        kind, opening = self.kinds[at], self._open_bracket()
        found = describe(kind, self.texts[at])
        if kind == END and opening is not None:
            sign = self.kinds[opening]
            self._report(opening, f'this "{sign}" is never closed: the script ends without '
                                f'its "{_CLOSERS[sign]}"')  # fmt: skip
            return
        if kind in _OPENERS and opening is None:
            self._report(at, f"found {found}, which closes nothing")
            return
        message = f"found {found}, expected {expectation(lambda kind: self.accepts((kind,)))}"
        if opening is not None and self.kinds[opening] != "{" and kind not in ("=", BAD):
            closer = _CLOSERS[self.kinds[opening]]
            if self.accepts((closer,)):
                message += f" ({self._where(opening)})"
        said = hint(self.kinds, self.texts, self.offsets, at, self._first_token(at))
        self._report(at, f"{message}: {said}" if said else message)

    def _where(self, opening: int) -> str:
        line, column = self.source.place(self.offsets[opening])
        return f'the "{self.kinds[opening]}" was opened on line {line}, column {column}'

    # --- the stack of the parser ------------------------------------------------------------------

    def _open_bracket(self) -> int | None:
        """Return the token of the innermost open bracket."""
        for value in reversed(self.values):
            if type(value) is int and self.kinds[value] in _CLOSERS:
                return value
        return None

    def _first_token(self, at: int) -> int:
        """Return the first token of the statement that token `at` is in."""
        while at and self.kinds[at - 1] not in (";", "{", "}"):
            at -= 1
        return at

    def _is_on_next_line(self, at: int) -> bool:
        return at > 0 and "\n" in self.source.text[self._end(at - 1) : self.offsets[at]]

    def _end(self, at: int) -> int:
        return self.offsets[at] + len(self.texts[at])

    # --- corrections ------------------------------------------------------------------------------

    def _insert(self, at: int, kinds: list[str]) -> int:
        """Insert tokens before one; return the token to continue at."""
        offset = self._end(at - 1) if at else 0
        self.kinds[at:at] = kinds
        self.texts[at:at] = [""] * len(kinds)
        self.offsets[at:at] = [offset] * len(kinds)
        return at

    def _assignment(self, at: int, quiet: bool) -> int | None:
        """Correct `=` where only `==` is allowed."""
        if self.kinds[at] != "=" or not self.accepts(("==", self.kinds[at + 1])):
            return None
        if self._end(at - 1) == self.offsets[at] and self.kinds[at - 1] in ("==", "!="):
            return None
        if self.accepts(("]", "=")):
            return None
        if not quiet:
            self._report(
                at, 'found "=", which assigns, and is valid in statements only: "==" compares'
            )
        self.kinds[at] = "=="
        return at

    def _sign(self, at: int, quiet: bool) -> int | None:
        """Correct operators of other languages that begin with an operator of Skywriting."""
        pair = self.texts[at - 1] + self.texts[at] if at else ""
        if pair in ("===", "!==", "<>") and self._end(at - 1) == self.offsets[at]:
            meant = "!=" if pair != "===" else "=="
            self._report(at - 1, f'there is no "{pair}": write "{meant}"')
            return at + 1
        return None

    def _word(self, at: int, quiet: bool) -> int | None:
        """Correct a keyword where only a name is allowed."""
        kind = self.kinds[at]
        if kind not in KEYWORDS or not self.accepts((NAME, self.kinds[at + 1])):
            return None
        if self.kinds[at + 1] == "(" and self.kinds[at - 1] not in (".", "function"):
            return None
        if not quiet:
            message = f'found "{kind}", which is a keyword and cannot be a name'
            if self.kinds[at - 1] == ".":
                message += f': write ["{kind}"]'
            self._report(at, message)
        self.kinds[at] = NAME
        return at

    def _remainder(self, at: int, quiet: bool) -> int | None:
        """Skip an `else` without its `if`, which may have been skipped; or a `;` after a skipped
        block.
        """
        kind, row = self.kinds[at], self.rows[-1]
        is_lost = len(self.rows) in self.lost_heads
        if kind == "else" and "statement" in row:
            if not quiet and not is_lost:
                self._report(at, 'found "else" without an "if" before it')
            return at + 1
        if kind == ";" and "statement" in row and is_lost and self.kinds[at - 1] == "}":
            return at + 1
        return None

    def _empty_block(self, at: int, quiet: bool) -> int | None:
        row = self.rows[-1]
        if self.kinds[at] != "}" or "statements" not in row or self.kinds[at - 1] != "{":
            return None
        self._report(at - 1, "this block is empty: a block must contain at least one statement")
        self.enter()
        return at

    def _missing(self, at: int, quiet: bool) -> int | None:
        """Insert a missing `;` or closing brackets, if the error is obvious."""
        kind = self.kinds[at]
        ends = kind in (END, "}", ";", "{", "=") or kind in _BEGINNERS or self._is_on_next_line(at)
        if not ends and kind not in (")", "]"):
            return None
        missing: list[str] = []
        openings = [v for v in self.values if type(v) is int and self.kinds[v] in _CLOSERS]
        while len(missing) < _INSERTIONS_MAX:
            if missing and self.accepts((*missing, kind)):
                break
            if ends and kind not in (";", "{") and self.accepts((*missing, ";", kind)):
                missing.append(";")
                break
            closer = _CLOSERS[self.kinds[openings.pop()]] if openings else ""
            is_sure = closer != "}" or kind == END
            if not (closer and is_sure and self.accepts((*missing, closer))):
                return self._wrong_bracket(at, quiet)
            missing.append(closer)
        else:
            return None
        if not quiet:
            self._report_missing(at, missing)
        return self._insert(at, missing)

    def _report_missing(self, at: int, missing: list[str]) -> None:
        found = describe(self.kinds[at], self.texts[at])
        if missing == [";"]:
            message = f'missing ";" (found {found} instead)'
            if self.kinds[at - 1] == "}":
                message += ": a statement that ends in a function or a dictionary needs one, too"
            self._report_at(self._end(at - 1), message)
            return
        opening = self._open_bracket()
        assert opening is not None
        sign = self.kinds[opening]
        if self.kinds[at] == END:
            message = (
                f'this "{sign}" is never closed: the script ends without its "{_CLOSERS[sign]}"'
            )
            self._report(opening, message)
        else:
            here = self.offsets[at] if not self._is_on_next_line(at) else self._end(at - 1)
            message = f'found {found}, expected "{_CLOSERS[sign]}" ({self._where(opening)})'
            self._report_at(here, message)

    def _wrong_bracket(self, at: int, quiet: bool) -> int | None:
        """Correct `(a]`: a wrong closing bracket."""
        kind, opening = self.kinds[at], self._open_bracket()
        if kind not in (")", "]", "}") or opening is None:
            return None
        closer = _CLOSERS[self.kinds[opening]]
        if kind == closer or not self.accepts((closer, self.kinds[at + 1])):
            return None
        if not quiet:
            self._report(at, f'found "{kind}", expected "{closer}" ({self._where(opening)})')
        self.kinds[at] = closer
        return at

    # --- skipping a statement ---------------------------------------------------------------------

    def _give_up(self, at: int) -> int | None:
        """Skip the statement that token `at` is in; return where the next one may begin."""
        popped = []
        while "statement" not in self.rows[-1]:
            self.rows.pop()
            value = self.values.pop()
            if type(value) is int:
                popped.append(self.kinds[value])
        depth = sum(popped.count(opener) - popped.count(_CLOSERS[opener]) for opener in "([")
        dictionaries = popped.count("{") - popped.count("}")
        if "statements" in self.rows[-1]:
            self.enter()  # so that this is a block, not a dictionary
        self.lost_loop = self.lost_loop or bool(_LOOPS.intersection(popped))
        if _HEADS.intersection(popped):
            self.lost_heads.add(len(self.rows))
        in_block = self.kinds[at - 1] == "{"  # of a lambda, which has no block
        is_within = depth > 0 and ("for" in popped or (in_block and dictionaries > 0))
        return self._skip(at, depth, dictionaries, is_within)

    def _skip(self, at: int, depth: int, dictionaries: int, is_within: bool) -> int:
        """Return where the next statement may begin. `depth`, `dictionaries`: how many brackets and
        dictionaries are open. `is_within`: a `;` ends the statement only after they are closed.
        """
        braces = 0  # that the skipped tokens have opened
        while (kind := self.kinds[at]) != END:
            if kind == "{":
                if depth <= 0 and not braces:
                    self.lost_heads.add(len(self.rows))
                    return at
                braces += 1
            elif kind == "}":
                if braces:
                    braces -= 1
                elif dictionaries:
                    dictionaries -= 1
                else:
                    return at
            elif kind in ("(", "["):
                depth += 1
            elif kind in (")", "]"):
                depth -= 1
                is_within = is_within and depth > 0
            elif kind == ";" and not braces and not is_within:
                return at + 1
            elif kind in _BEGINNERS and not braces and self._is_on_next_line(at):
                return at
            at += 1
        return at
