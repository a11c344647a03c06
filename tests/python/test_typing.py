"""The errors that mypy reports in programs that use the API."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOUND = re.compile(r"^program\.py:(\d+): (?:error|note): (.*)$", re.MULTILINE)
EXPECTED = re.compile(r"# expect: (.*)$")
PROGRAM = """\
import ciel


@ciel.task(returns=2)
def ends(words: list[str]) -> tuple[str, int]:
    return words[0], len(words)


@ciel.task(returns=3, retries=2)
async def three(number: int) -> tuple[int, str, float]:
    return number, str(number), float(number)


@ciel.task
def length(text: str) -> int:
    return len(text)


@ciel.task(retries=1)
async def later(number: int) -> float:
    return float(number)


def main(client: ciel.Client) -> None:
    first, count = ends.spawn(["a", "b"])
    reveal_type(first)  # expect: Future[str]
    reveal_type(count)  # expect: Future[int]
    one, text, other = three.spawn(count)
    reveal_type(text)  # expect: Future[str]
    reveal_type(client.submit(ends, ["a"])[1])  # expect: Future[int]
    reveal_type(ciel.spawn(ends, ["a"])[0])  # expect: Future[str]
    reveal_type(ends.options(name="ends").spawn([])[0])  # expect: Future[str]
    reveal_type(length.spawn(first).result())  # expect: "int"
    reveal_type(later.spawn(1).result())  # expect: "float"
    reveal_type(ciel.spawn(later, 1).result())  # expect: "float"
    reveal_type(length.options(retries=3).spawn("a").result())  # expect: "int"
    ends(["a"])[1].upper()  # expect: "int" has no attribute "upper"
    length(1)  # expect: Argument 1 to "__call__" of "Task" has incompatible type "int"
    length.spawn("a").upper()  # expect: "Future[int]" has no attribute "upper"
    one, two, three_ = ends.spawn([])  # expect: Need more than 2 values to unpack
    print(one, other)
"""


def test_a_checker_of_types_finds_what_a_program_expects_and_nothing_else(
    tmp_path: Path,
) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--follow-imports=silent",
         "--explicit-package-bases", "--ignore-missing-imports", "--no-site-packages",
         "program.py"],
        cwd=tmp_path, env={**os.environ, "MYPYPATH": str(ROOT)}, capture_output=True, text=True,
        timeout=100, check=False,
    )  # fmt: skip
    found = dict(FOUND.findall(done.stdout))
    expected = {
        str(number): words[1]
        for number, line in enumerate(PROGRAM.splitlines(), 1)
        if (words := EXPECTED.search(line))
    }
    assert found.keys() == expected.keys(), done.stdout + done.stderr
    for number, expectation in expected.items():
        assert expectation in found[number], f"line {number}"
