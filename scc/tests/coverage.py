"""Reports the lines and branches of the C core that tests have reached, over several builds.

    python scc/tests/coverage.py BUILD...    directories with object files and gcov's data

A branch counts as reached if it was reached in any build, because some branches do nothing in one
build (such as errors of flushing on coherent memory). Prints a table, and each line and branch that
no build has reached; fails if there is one.
"""

import json
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

NOT_THE_CORE = frozenset(("strict.c",))  # simulates the cache of the tests

Place = tuple[str, str, int, int]
"""File, function, line, and the number of a branch in that line; -1 for the line itself."""


def reached(build: Path) -> dict[Place, bool]:
    """Return all lines and branches of one build, and whether its tests reached them."""
    found: dict[Place, bool] = {}
    for kept in build.glob("*.o"):
        reported = subprocess.run(
            ["gcov", "--json-format", "--branch-probabilities", "--stdout", kept.name],
            cwd=build, capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
        for text in reported.splitlines():
            for file in json.loads(text)["files"]:
                name = Path(file["file"]).name
                is_ours = "scc/src/" in file["file"] and name.endswith(".c")
                if not is_ours or name in NOT_THE_CORE:
                    continue
                for line in file["lines"]:
                    where = (name, line.get("function_name", ""), line["line_number"])
                    found[*where, -1] = line["count"] > 0
                    for number, branch in enumerate(line["branches"]):
                        found[*where, number] = branch["count"] > 0
    return found


def main(builds: list[str]) -> int:
    """Print the coverage; return the exit status."""
    found: dict[Place, bool] = defaultdict(bool)
    for build in builds:
        for place, was_there in reached(Path(build)).items():
            found[place] |= was_there
    files = sorted({place[0] for place in found})
    for file in [*files, "all"]:
        shares = []
        for is_branch in (False, True):
            of_it = [
                there
                for place, there in found.items()
                if file in (place[0], "all") and (place[3] >= 0) == is_branch
            ]
            shares.append(f"{sum(of_it)} of {len(of_it)}")
        print(f"{file:14} lines {shares[0]:>14}  branches {shares[1]:>14}")
    missed = sorted(place for place, there in found.items() if not there)
    for file, function, line, number in missed:
        print(f"not reached: {file}:{line} {function}" + f" branch {number}" * (number >= 0))
    return 1 if missed or not found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
