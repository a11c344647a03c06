"""The formatter: from a tree back to text.

The output depends on the tree, on the comments, and on the blank lines between the statements of
the text. Formatting a formatted text changes nothing. A comment stays before or behind its
statement; a comment within an expression moves in front of the statement.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from ciel.skywriting.syntax.lexer import DIV, tokenize
from ciel.skywriting.syntax.tree import (
    Assign,
    Binary,
    Block,
    Break,
    Call,
    Constant,
    Define,
    DictOf,
    DoWhile,
    Evaluate,
    Expression,
    Field,
    For,
    Function,
    If,
    Include,
    Index,
    ListOf,
    Name,
    Return,
    Script,
    Statement,
    Unary,
    While,
)
from ciel.skywriting.syntax.walking import below

WIDTH = 100
_INDENT = "    "
_FRAMES_MAX = 100_000  # the deepest tree needs some 30,000

# The precedence of operators; it must agree with that in `rules`.
_LAST = 0  # lambda, and `!` of version 1, whose operand is all that follows
_BINDS = {
    "||": 1, "&&": 2, "==": 3, "!=": 3, "<": 4, "<=": 4, ">": 4, ">=": 4, "+": 5, "-": 5,
    "*": 6, "/": 6, "%": 6, "div": 6,
}  # fmt: skip
_UNARY = 7
_POSTFIX = 8

_ESCAPES = {
    '"': '\\"',
    "\\": "\\\\",
    "\b": "\\b",
    "\f": "\\f",
    "\n": "\\n",
    "\r": "\\r",
    "\t": "\\t",
}
_DIGITS_AT_ONCE = 4_000  # Python refuses to convert more than 4,300

Comment = tuple[int, str]


def show(script: Script) -> str:
    """Return the formatted text of a script, with the comments of its source."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, _FRAMES_MAX))  # only frames of Python, and none of C
    try:
        return _Printer(script).script()
    finally:
        sys.setrecursionlimit(before)


def show_constant(value: int | float | str | bool) -> str:
    """Format a constant as in a script."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        parts = []
        while value >= 10**_DIGITS_AT_ONCE:
            value, part = divmod(value, 10**_DIGITS_AT_ONCE)
            parts.append(str(part).zfill(_DIGITS_AT_ONCE))
        return str(value) + "".join(reversed(parts))
    if isinstance(value, float):
        return repr(value)
    if value.isprintable() and '"' not in value and "\\" not in value:
        return f'"{value}"'
    return f'"{"".join([_ESCAPES.get(sign) or _show_sign(sign) for sign in value])}"'


def _show_sign(sign: str) -> str:
    if sign.isprintable():
        return sign
    units = sign.encode("utf-16-be", "surrogatepass")
    return "".join([f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2)])


class _Printer:
    """Formats one script. In an expression of several lines, all but the first are indented."""

    def __init__(self, script: Script) -> None:
        self.statements = script.statements
        self.version = script.version
        self.text = script.source.text
        self.comments: dict[int, list[Comment]] = {}  # by the id of their block
        comments = tokenize(script.source).comments if self.text else []
        self.first_line = ""
        if comments and comments[0][1].startswith("#!"):
            self.first_line = comments.pop(0)[1]
        elif self.version > 1:
            self.first_line = f"#!skywriting {self.version}"
        if comments:
            self._give_to_blocks(comments)

    def _give_to_blocks(self, comments: list[Comment]) -> None:
        blocks: list[Block] = []
        ahead: list[Statement | Expression] = list(self.statements)
        while ahead:
            node = ahead.pop()
            if isinstance(node, Function) and node.is_lambda:
                ahead.extend(node.body.statements)
                continue
            if isinstance(node, Block):
                blocks.append(node)
            ahead.extend(below(node))
        blocks.sort(key=lambda block: -block.start)
        around: list[Block] = []
        for comment in comments:
            while blocks and blocks[-1].start < comment[0]:
                around.append(blocks.pop())
            while around and around[-1].end < comment[0]:
                around.pop()
            owner = id(around[-1]) if around else 0
            self.comments.setdefault(owner, []).append(comment)

    def script(self) -> str:
        begin = len(self.first_line)
        body = self._body(self.statements, self.comments.get(0, []), begin, "")
        if self.first_line:
            first = self.statements[0].start if self.statements else begin
            first = min([first, *[offset for offset, _ in self.comments.get(0, [])[:1]]])
            body[:0] = [self.first_line, ""] if self._has_blank(begin, first) else [self.first_line]
        return "\n".join(body) + "\n"

    # --- statements and comments ------------------------------------------------------------------

    def _has_blank(self, start: int, end: int) -> bool:
        """Return whether there is an empty line in a part of the text."""
        return self.text.count("\n", start, end) > 1

    def _is_beside(self, comment: Comment, at: int, following: Sequence[Statement]) -> bool:
        """Return whether a comment is on the line of `at`, and before the next statement."""
        offset = comment[0]
        if following and following[0].start < offset:
            return False
        return "\n" not in self.text[at:offset]

    def _body(
        self, statements: Sequence[Statement], comments: Sequence[Comment], at: int, pad: str
    ) -> list[str]:
        """Return the lines of statements with their comments, which begin at `at` in the text."""
        lines: list[str] = []
        rest = list(reversed(comments))

        def add(text: str, start: int) -> None:
            if lines and self._has_blank(at, start):
                lines.append("")
            lines.append(pad + text)

        for number, statement in enumerate(statements):
            while rest and rest[-1][0] <= statement.end:
                offset, text = rest.pop()
                add(text, min(offset, statement.start))
                at = min(offset + len(text), statement.start)
            add(self._statement(statement, pad), statement.start)
            at = statement.end + 1
            while rest and self._is_beside(rest[-1], at, statements[number + 1 : number + 2]):
                offset, text = rest.pop()
                lines[-1] += f"  {text}"
                at = offset + len(text)
        for offset, text in reversed(rest):
            add(text, offset)
            at = offset + len(text)
        return lines

    def _block(self, block: Block, pad: str) -> str:
        comments = self.comments.get(id(block), [])
        head, at = "{", block.start + 1
        while comments and self._is_beside(comments[0], at, block.statements[:1]):
            (offset, text), *comments = comments
            head += f"  {text}"
            at = offset + len(text)
        return "\n".join(
            [head, *self._body(block.statements, comments, at, pad + _INDENT), pad + "}"]
        )

    def _statement(self, node: Statement, pad: str) -> str:
        if isinstance(node, Assign):
            head = f"{self._inline(node.target, pad)} {node.operator} "
            return f"{head}{self._laid(node.value, pad, len(head) + 1)};"
        if isinstance(node, Evaluate):
            return f"{self._laid(node.value, pad, 1)};"
        if isinstance(node, If):
            return self._if(node, pad)
        if isinstance(node, While):
            return f"while ({self._laid(node.condition, pad, 10)}) {self._block(node.body, pad)}"
        if isinstance(node, DoWhile):
            body = self._block(node.body, pad)
            return f"do {body} while ({self._laid(node.condition, pad, 12)});"
        if isinstance(node, For):
            head = f"for ({', '.join(node.names)} in "
            iterable = self._laid(node.iterable, pad, len(head) + 3)
            return f"{head}{iterable}) {self._block(node.body, pad)}"
        if isinstance(node, Return):
            return f"return {self._laid(node.value, pad, 8)};" if node.value else "return;"
        if isinstance(node, Include):
            return f"include {self._laid(node.what, pad, 9)};"
        if isinstance(node, Define):
            function = node.function
            head = f"function {function.name}({', '.join(function.parameters)})"
            return f"{head} {self._block(function.body, pad)}"
        if isinstance(node, Block):
            return self._block(node, pad)
        return "break;" if isinstance(node, Break) else "continue;"

    def _if(self, node: If, pad: str) -> str:
        parts = []
        choice: If | Block | None = node
        while isinstance(choice, If):
            condition = self._laid(choice.condition, pad, 14)
            parts.append(f"if ({condition}) {self._block(choice.then, pad)}")
            choice = choice.otherwise
        if choice is not None:
            parts.append(self._block(choice, pad))
        return " else ".join(parts)

    # --- expressions ------------------------------------------------------------------------------

    def _binds(self, node: Expression) -> int:
        if isinstance(node, Binary):
            return _BINDS[node.operator]
        if isinstance(node, Unary):
            return _LAST if node.operator == "!" and self.version == 1 else _UNARY
        if isinstance(node, Function):
            return _LAST if node.is_lambda else _POSTFIX
        return _POSTFIX + 1

    def _laid(self, node: Expression, pad: str, taken: int) -> str:
        """Format an expression: on one line, if it fits beside the `taken` columns."""
        if self._room(node, WIDTH - len(pad) - taken) >= 0:
            return self._inline(node, pad)
        deeper = pad + _INDENT
        if isinstance(node, ListOf) and node.items:
            return self._lines("[", [self._laid(each, deeper, 1) for each in node.items], "]", pad)
        if isinstance(node, DictOf) and node.pairs:
            pairs = []
            for key, value in node.pairs:
                head = f"{self._inline(key, deeper)}: "
                pairs.append(head + self._laid(value, deeper, len(head) + 1))
            return self._lines("{", pairs, "}", pad)
        if isinstance(node, Call) and node.arguments:
            target = self._operand(node.function, pad, _POSTFIX + 1)
            if len(node.arguments) == 1 and isinstance(node.arguments[0], ListOf | DictOf | Call):
                return f"{target}({self._laid(node.arguments[0], pad, taken + len(target) + 2)})"
            items = [self._laid(each, deeper, 1) for each in node.arguments]
            return self._lines(f"{target}(", items, ")", pad)
        if isinstance(node, Index) and self._binds(node.target) > _POSTFIX:
            return f"{self._laid(node.target, pad, taken + 2)}[{self._inline(node.index, pad)}]"
        if isinstance(node, Field) and self._binds(node.target) > _POSTFIX:
            return f"{self._laid(node.target, pad, taken + 1 + len(node.name))}.{node.name}"
        if isinstance(node, Unary) and self._binds(node.operand) > _POSTFIX:
            return node.operator + self._laid(node.operand, pad, taken + 1)
        if isinstance(node, Binary):
            return f"\n{deeper}".join(self._chain(node, deeper, True))
        if isinstance(node, Function) and node.is_lambda:
            head = self._lambda_head(node)
            return head + self._laid(_value(node), pad, taken + len(head))
        return self._inline(node, pad)

    def _lines(self, opening: str, items: list[str], closing: str, pad: str) -> str:
        inner = f",\n{pad}{_INDENT}".join(items)
        return f"{opening}\n{pad}{_INDENT}{inner}\n{pad}{closing}"

    def _room(self, node: Expression, room: int) -> int:
        """Return how many of the `room` columns an expression leaves free; less than 0 if it is too
        long. A function counts up to the end of its line. This stops as soon as the result is
        negative.
        """
        below_it: Sequence[Expression] = ()
        if isinstance(node, Name):
            room -= len(node.name)
        elif isinstance(node, Constant):
            text = isinstance(node.value, str) and len(node.value) > room
            room -= room + 1 if text else len(show_constant(node.value))
        elif isinstance(node, Binary):
            room -= len(node.operator) + 2
            below_it = (node.left, node.right)
        elif isinstance(node, Unary):
            room -= 1
            below_it = (node.operand,)
        elif isinstance(node, Call):
            room -= 2 * max(1, len(node.arguments))
            below_it = (node.function, *node.arguments[:room])
        elif isinstance(node, Index):
            room -= 2
            below_it = (node.target, node.index)
        elif isinstance(node, Field):
            room -= 1 + len(node.name)
            below_it = (node.target,)
        elif isinstance(node, ListOf):
            room -= 2 * max(1, len(node.items))
            below_it = node.items
        elif isinstance(node, DictOf):
            room -= max(2, 4 * len(node.pairs))
            below_it = [each for pair in node.pairs[: max(0, room)] for each in pair]
        else:
            room -= 10 + sum(map(len, node.parameters)) + 2 * len(node.parameters)
            below_it = (_value(node),) if node.is_lambda else ()
        for each in below_it:
            if room < 0:
                break
            room = self._room(each, room)
        return room

    def _inline(self, node: Expression, pad: str, last: bool = True) -> str:
        """Format an expression on one line, except for functions in it. `last`: the parser cannot
        take the text that follows for a part of the expression.
        """
        if isinstance(node, Name):
            return node.name
        if isinstance(node, Constant):
            return show_constant(node.value)
        if isinstance(node, Binary):
            return " ".join(self._chain(node, pad, last))
        if isinstance(node, Call):
            target = self._operand(node.function, pad, _POSTFIX + 1)
            return f"{target}({', '.join([self._inline(each, pad) for each in node.arguments])})"
        if isinstance(node, Index):
            target = self._operand(node.target, pad, _POSTFIX + 1)
            return f"{target}[{self._inline(node.index, pad)}]"
        if isinstance(node, Field):
            return f"{self._operand(node.target, pad, _POSTFIX + 1)}.{node.name}"
        if isinstance(node, Unary):
            return node.operator + self._operand(node.operand, pad, _UNARY, last)
        if isinstance(node, ListOf):
            return f"[{', '.join([self._inline(each, pad) for each in node.items])}]"
        if isinstance(node, DictOf):
            pairs = [
                (self._inline(key, pad), self._inline(value, pad)) for key, value in node.pairs
            ]
            return f"{{{', '.join([f'{key}: {value}' for key, value in pairs])}}}"
        if node.is_lambda:
            return self._lambda_head(node) + self._inline(_value(node), pad, last)
        return f"function({', '.join(node.parameters)}) {self._block(node.body, pad)}"

    def _operand(self, node: Expression, pad: str, binds: int, last: bool = False) -> str:
        """Format an operand, in brackets if its precedence requires them."""
        bound = self._binds(node)
        if bound >= binds or (bound == _LAST and last):
            return self._inline(node, pad, last)
        return f"({self._inline(node, pad)})"

    def _chain(self, node: Binary, pad: str, last: bool) -> list[str]:
        """Format a chain of binary operators: the first operand, then each operator with its right
        operand.
        """
        parts = []
        left: Expression = node
        while isinstance(left, Binary):
            binds = _BINDS[left.operator]
            right = self._operand(left.right, pad, binds + 1, last and left is node)
            parts.append(f"{left.operator} {right}")
            left = left.left
            if self._binds(left) < binds:
                break
        parts.append(self._operand(left, pad, binds))
        parts.reverse()
        for at in range(len(parts) - 1):
            if parts[at].endswith("}") and parts[at + 1].startswith(
                f"{DIV} "
            ):  # where `div` would be a name
                operator, _, operand = parts[at].partition(" ") if at else ("", "", parts[at])
                parts[at] = f"{operator} ({operand})".lstrip()
        return parts

    def _lambda_head(self, node: Function) -> str:
        return f"lambda {', '.join(node.parameters)}: " if node.parameters else "lambda: "


def _value(node: Function) -> Expression:
    """Return the value of a lambda."""
    (statement,) = node.body.statements
    assert isinstance(statement, Return)
    assert statement.value is not None
    return statement.value
