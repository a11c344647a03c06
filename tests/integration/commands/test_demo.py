"""Tests the demo, whose second stage depends on the results of the first."""

from __future__ import annotations

import json
from pathlib import Path

from ciel.testing.homes import HandCluster, Home

SEARCH = str(Path(__file__).parents[3] / "examples" / "search.py")
FILES = 8


def write_sources(directory: Path) -> None:
    """Write files 0 to 7; file N has N lines with the word."""
    directory.mkdir()
    for number in range(FILES):
        lines = ["def speak():", *["    yield 1"] * number, ""]
        (directory / f"m{number}.py").write_text("\n".join(lines))


def search(home: Home, directory: Path) -> tuple[str, set[str]]:
    """Run the demo; return its output and the names of its tasks."""
    done = home.run("python", SEARCH, "yield", str(directory))
    assert done.returncode == 0, done.stderr
    listed = home.run("ciel", "task", "list", "last", "--json")
    return done.stdout, {task["name"] for task in json.loads(listed.stdout)}


def looked_into(names: set[str]) -> set[str]:
    return {name.rpartition(" ")[2] for name in names if name.startswith("look into ")}


def test_the_second_stage_depends_on_the_results_of_the_first(
    lasting_cluster: HandCluster, tmp_path: Path
) -> None:
    home, directory = lasting_cluster.home, tmp_path / "sources"
    write_sources(directory)
    said, names = search(home, directory)
    assert f"{sum(range(FILES))} found by plain grep" in said
    assert "7  speak in m7.py" in said
    assert looked_into(names) == {f"m{number}.py" for number in range(3, FILES)}

    (directory / "m0.py").write_text("def shout():\n" + "    yield 1\n" * 9)
    said, names = search(home, directory)
    assert "9  shout in m0.py" in said
    assert looked_into(names) == {"m0.py", "m4.py", "m5.py", "m6.py", "m7.py"}
