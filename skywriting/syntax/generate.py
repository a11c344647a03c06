"""Generates `tables.py` from the grammar, with ply: `python -m ciel.skywriting.syntax.generate >
FILE`.

Only a developer who changes the grammar runs it. The parser uses the tables alone (see `grammar`),
so that no other process has to generate them or to import ply.
"""

from __future__ import annotations

from ply import yacc

from ciel.skywriting.syntax.lexer import TERMINALS
from ciel.skywriting.syntax.rules import PRECEDENCE, RULES

HEAD = '''"""Generated from the grammar by `python -m ciel.skywriting.syntax.generate`; do not edit.

ACTIONS: for each state, the action at each token (n > 0: read it and go to state n; n < 0: apply
rule -n; 0: the end; the key "" stands for all tokens). GOTOS: for each state, the next state after
a rule was applied, by the symbol of that rule.
"""

# ruff: noqa: E501
# fmt: off
from __future__ import annotations

'''


class GrammarError(Exception):
    """The grammar has conflicts, or rules that are not used."""


def generate() -> str:
    """Return the text of `tables.py`."""
    # The names of tokens must be identifiers for ply.
    codes = {kind: f"t{number}" for number, kind in enumerate(TERMINALS)}
    kinds = {code: kind for kind, code in codes.items()} | {"$end": "end"}
    grammar = yacc.Grammar([code for kind, code in codes.items() if kind != "end"])
    for level, (side, *tokens) in enumerate(PRECEDENCE, 1):
        for token in tokens:
            grammar.set_precedence(codes.get(token, token), side, level)
    for text, _ in RULES:
        name, symbols = text.split(" :", 1)
        grammar.add_production(name, [codes.get(symbol, symbol) for symbol in symbols.split()])
    grammar.set_start()
    wrong = grammar.undefined_symbols() or grammar.unused_rules() or grammar.unused_precedence()
    if wrong:
        raise GrammarError(f"undefined or unused: {wrong}")
    table = yacc.LRGeneratedTable(grammar)
    if table.sr_conflicts or table.rr_conflicts:
        raise GrammarError(f"conflicts: {table.sr_conflicts} {table.rr_conflicts}")
    actions, gotos = [], []
    for state, steps in table.lr_action.items():
        row = {kinds[code]: step for code, step in steps.items() if step is not None}
        settled = set(row.values())
        if len(settled) == 1 and min(settled) < 0:
            row = {"": min(settled)}
        actions.append(row)
        gotos.append(table.lr_goto.get(state, {}))
    return HEAD + _show("ACTIONS", actions) + _show("GOTOS", gotos)


def _show(name: str, rows: list[dict[str, int]]) -> str:
    body = "\n".join(f"    {dict(sorted(row.items()))!r},".replace("'", '"') for row in rows)
    return f"{name}: tuple[dict[str, int], ...] = (\n{body}\n)\n"


if __name__ == "__main__":
    print(generate(), end="")
