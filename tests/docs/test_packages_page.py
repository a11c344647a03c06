"""`docs/packages.md`: its files are those of `examples/packages`, its commands run and print what
is shown, and every form of an entry, every template and every substitution is among them.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ciel.testing.two_slots import TwoSlots

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "packages.md").read_text()
EXAMPLES = ROOT / "examples" / "packages"
FILES = dict(re.findall(r"^```\w+ (\S+)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE))
CONSOLES = re.findall(r"^```console\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
COMMAND = re.compile(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)
BROKEN = "broken.pack"


def test_the_files_are_examples() -> None:
    lying = {path.name: path.read_text() for path in EXAMPLES.iterdir()}
    shown = {name: text for name, text in FILES.items() if name != BROKEN}
    data = lying.keys() - shown.keys()
    assert {name: lying.get(name) for name in shown} == shown
    assert data == {"poem.txt", "song.txt"}


def objects(value: Any) -> Iterator[dict[str, Any]]:
    """Every object inside a value."""
    if isinstance(value, dict):
        yield value
    for item in value.values() if isinstance(value, dict) else value:
        if isinstance(item, dict | list):
            yield from objects(item)


def test_every_form_has_an_example() -> None:
    packages = [json.loads(text) for name, text in FILES.items() if name.endswith(".pack")]
    entries = [spec for package in packages for spec in package.get("package", {}).values()]
    marks = ("index", "filenamelist", "urlindex", "urls", "repeat", "replication", "cwd", "__ref__")
    assert [mark for mark in marks if not any(mark in entry for entry in entries)] == []
    keys = {key for package in packages for found in objects(package) for key in found}
    assert keys >= {"__args__", "__env__", "__package__", "default", "scheduler", "sched_opts"}
    assert keys >= {"__decode_ref__", "__concat__", "value", "encoding"}
    decoded = {found.get("__decode_ref__") for package in packages for found in objects(package)}
    assert decoded >= {"json", "noop", "handle"}
    run = {word for console in CONSOLES for word in console.split() if word.endswith(".pack")}
    assert run >= {name for name in FILES if name.endswith(".pack")}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoSlots]:
    with TwoSlots(tmp_path_factory.mktemp("packages")) as cluster:
        shutil.copytree(EXAMPLES, cluster.home.path / "packages")
        (cluster.home.path / "packages" / BROKEN).write_text(FILES[BROKEN])
        yield cluster


def test_every_command_prints_what_is_shown(cluster: TwoSlots) -> None:
    commands = [found for console in CONSOLES for found in COMMAND.findall(console)]
    assert "".join(f"$ {line}\n{shown}" for line, shown in commands) == "".join(CONSOLES)
    for line, shown in commands:
        done = subprocess.run(
            ["sh", "-c", line], env=cluster.home.environ, cwd=cluster.home.path / "packages",
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert (done.stdout, done.stderr) == (shown, ""), line
