"""The second pass, the parser: from tokens to a tree, or to all syntax errors.

ply generates the tables (`generate`, `tables`). The parser that uses them does not come from ply:
it is several times as fast, half as long, and continues after an error (`repair`). It does not
recurse, so that it can report a script that is nested too deeply.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ciel.skywriting.errors import Problem, Source, SourceError
from ciel.skywriting.syntax.lexer import PROBLEMS_MAX, TERMINALS, tokenize
from ciel.skywriting.syntax.repair import Repair
from ciel.skywriting.syntax.resolver import resolve
from ciel.skywriting.syntax.rules import RULES, Builder
from ciel.skywriting.syntax.tables import ACTIONS, GOTOS
from ciel.skywriting.syntax.tree import Binary, Expression, Script, Statement
from ciel.skywriting.syntax.walking import below, uncollected

LENGTH_MAX = 16 << 20  # characters of a script
DEPTH_MAX = 1_000  # of the tree, where a chain of binary operators counts as one
CHAIN_MAX = 100_000  # operators in such a chain
_ROWS_MAX = 10 * DEPTH_MAX  # each level of the tree needs fewer than 10

_READ_ALONE = 10_000  # an action from this number on reads a token and applies a rule to it


# The number of symbols of each rule.
_LENGTHS = [len(text.partition(" :")[2].partition("%prec")[0].split()) for text, _ in RULES]


def _prepare() -> list[dict[str, int]]:
    """Return one row for each state, with its actions and gotos.

    If a state has the same action for all tokens, the row contains it for each token. A token that
    is an expression by itself is read in one action instead of two.
    """
    rows = []
    for actions, gotos in zip(ACTIONS, GOTOS, strict=True):
        row = dict.fromkeys(TERMINALS, actions[""]) if "" in actions else dict(actions)
        for kind, step in actions.items():
            rule = ACTIONS[step].get("", 0) if step > 0 else 0
            if rule and _LENGTHS[-rule - 1] == 1:
                row[kind] = _READ_ALONE - rule - 1
        rows.append(row | gotos)
    return rows


_ROWS = _prepare()


class Parser:
    """Parses one text."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.tokens = tokenize(source)
        self.problems = self.tokens.problems
        self.builder = Builder(source, self.tokens)
        self.rows = [_ROWS[0]]  # the stack of states, with one more entry than `values`
        self.values: list[Any] = []
        self.rules: list[tuple[str, int, Callable[[list[Any]], Any] | None]] = []
        for (text, action), length in zip(RULES, _LENGTHS, strict=True):
            build = None if (action, length) == ("same", 1) else getattr(self.builder, action)
            self.rules.append((text.partition(" ")[0], length, build))

        self.repair = Repair(source, self.tokens, self.rows, self.values, self.accepts, self.enter)

    def run(self) -> Script | None:
        """Return the tree, or None. If there are problems, parts of the tree may be missing."""
        builder, kinds, rows, values = self.builder, self.tokens.kinds, self.rows, self.values
        rules = self.rules[::-1]  # action -1 is the first rule
        alone = [(name, build) for name, _, build in self.rules]
        row, at, kind = rows[-1], 0, kinds[0]
        while True:
            try:
                action = row[kind]
            except KeyError:
                after = self.repair.recover(at)
                if after is None:
                    return None
                row, at = rows[-1], after
                kind = kinds[at]
                continue
            if action >= _READ_ALONE:
                name, build = alone[action - _READ_ALONE]
                values.append(build([at]) if build else at)
                row = _ROWS[row[name]]
                rows.append(row)
                at += 1
                kind = kinds[at]
            elif action > 0:
                row = _ROWS[action]
                rows.append(row)
                values.append(at)
                at += 1
                kind = kinds[at]
                if len(rows) > _ROWS_MAX:
                    self.problems.append(_nested_too_deep(self.source, self.tokens.offsets[at - 1]))
                    return None
            elif action < 0:
                builder.at = at
                name, length, build = rules[action]
                if length == 1:
                    if build:
                        values[-1] = build([values[-1]])
                    rows.pop()
                else:
                    parts = values[-length:] if length else []
                    if length:
                        del values[-length:], rows[-length:]
                    assert build is not None
                    values.append(build(parts))
                row = _ROWS[rows[-1][name]]
                rows.append(row)
            else:
                return Script(self.source, values[0], self.tokens.version)

    def accepts(self, kinds: tuple[str, ...]) -> bool:
        """Return whether the parser could read tokens of these kinds next."""
        rows = list(self.rows)
        for kind in kinds:
            while True:
                action = rows[-1].get(kind)
                if action is None:
                    return False
                if action == 0:
                    return True
                if action >= _READ_ALONE:
                    rows.append(_ROWS[rows[-1][self.rules[action - _READ_ALONE][0]]])
                    break
                if action > 0:
                    rows.append(_ROWS[action])
                    break
                name, length, _ = self.rules[-action - 1]
                if length:
                    del rows[-length:]
                rows.append(_ROWS[rows[-1][name]])
        return True

    def enter(self) -> None:
        """Continue as if the parser had read an empty list of statements."""
        self.rows.append(_ROWS[self.rows[-1]["statements"]])
        self.values.append([])


def _nested_too_deep(source: Source, offset: int) -> Problem:
    return Problem(source, offset, f"nested more than {DEPTH_MAX} deep")


def _too_deep(script: Script) -> list[Problem]:
    """Return errors for statements that are too deep for the passes that recurse."""
    problems = []
    for statement in script.statements:
        if statement.end - statement.start < DEPTH_MAX:  # each level has a character
            continue
        ahead: list[tuple[Statement | Expression, int, int]] = [(statement, 1, 0)]
        while ahead:
            node, depth, chain = ahead.pop()
            if depth > DEPTH_MAX:
                problems.append(_nested_too_deep(script.source, node.start))
                break
            if isinstance(node, Binary):
                ahead.append((node.left, depth + (type(node.left) is not Binary), chain + 1))
                ahead.append((node.right, depth + 1, 0))
                if chain >= CHAIN_MAX:
                    message = f"more than {CHAIN_MAX} operators in one expression"
                    problems.append(Problem(script.source, node.start, message))
                    break
            else:
                ahead.extend([(below, depth + 1, 0) for below in below(node)])
    return problems


def parse(source: Source) -> Script:
    """Parse a script. Raises SourceError with all errors in it."""
    if len(source.text) > LENGTH_MAX:
        message = f"this script is too long: it has more than {LENGTH_MAX} characters"
        raise SourceError([Problem(source, 0, message)])
    with uncollected():
        parser = Parser(source)
        problems = parser.problems
        script = parser.run() if len(problems) < PROBLEMS_MAX else None
        if script is not None:
            problems += _too_deep(script)
            if problems:  # add the errors of the next pass
                found = resolve(script, may_break=parser.repair.lost_loop)
                problems += [problem for problem in found if not problem.is_warning]
    if script is None or problems:
        raise SourceError(sorted(problems, key=lambda problem: problem.offset)[:PROBLEMS_MAX])
    return script
