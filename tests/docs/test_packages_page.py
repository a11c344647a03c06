"""Checks that `docs/packages.md` has an example of each form of an entry, template and
substitution.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "packages.md").read_text()
EXAMPLES = ROOT / "examples" / "packages"
FILES = dict(re.findall(r"^```\w+ (\S+)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE))
CONSOLES = re.findall(r"^```console\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


def test_every_example_is_on_the_page() -> None:
    lying = {path.name for path in EXAMPLES.iterdir()}
    assert lying - FILES.keys() == {"poem.txt", "song.txt"}


def objects(value: Any) -> Iterator[dict[str, Any]]:
    """Yield every object inside a value."""
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
