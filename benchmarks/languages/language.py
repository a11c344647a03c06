"""Measures Skywriting alone: a loop of additions against Python's, and the speed of parsing.

Expected cost: an iteration of the loop is two calls of closures, about 0.2 us; a line of a script
has 8 tokens, for each of which the lexer takes 1 us and the parser 2 us.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

from ciel.skywriting import script
from ciel.skywriting.errors import Source
from ciel.skywriting.syntax.grammar import parse
from ciel.skywriting.syntax.resolver import resolve

ITERATIONS = 1_000_000
ROUNDS = 7
LOOP = f"i = 0; while (i < {ITERATIONS}) {{ i = i + 1; }} return i;"
LINES = 100_000
STANZA = (
    "// one of many functions",
    "function f{n}(a, b) {{",
    "    total = a + b[{n}] - 1;",
    '    if (total >= 10 && a != b) {{ print("many: " + str(total)); }}',
    "    for (x in range(total)) {{",
    "        total = total + g(x, [a, b]);",
    "    }}",
    "    ref = spawn(f{n}, [total, {{}}]);",
    "    return *ref + total;",
    "}}",
)


def python_loop() -> int:
    """Do the same as the script, in Python."""
    i = 0
    while i < ITERATIONS:
        i = i + 1
    return i


def timed(function: Any, *arguments: Any) -> float:
    """Return the duration of a call, in seconds."""
    started_s = time.perf_counter()
    function(*arguments)
    return time.perf_counter() - started_s


def text_of(lines: int) -> str:
    """Create a script of so many lines."""
    stanzas = ("\n".join(STANZA).format(n=n) for n in range(lines // len(STANZA)))
    return "\n".join(stanzas) + "\n"


def measure() -> dict[str, float]:
    """Measure both, each together with its reference; return medians."""
    unit = script.load(LOOP, "loop.sw", {"text": LOOP})
    host: Any = None  # the script never uses it
    ratios, loops_s = [], []
    for _ in range(ROUNDS):
        python_s = timed(python_loop)
        loops_s.append(timed(script.start, unit, {}, [], host))
        ratios.append(loops_s[-1] / python_s)
    text = text_of(LINES)
    parse_s = [timed(lambda: resolve(parse(Source("long.sw", text)))) for _ in range(3)]
    return {
        "loop_ratio": statistics.median(ratios),
        "iteration_us": statistics.median(loops_s) / ITERATIONS * 1e6,
        "parse_s": statistics.median(parse_s),
    }


if __name__ == "__main__":
    for name, value in measure().items():
        print(f"{name:12} {value:8.3f}")
