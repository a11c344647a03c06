"""Each construct of the language, in small programs with their expected values.

Each runs in three ways: without a stop, stopping where an object is not there, and stopping at
every dereference; the outcome has to be the same.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ciel.core.refs import Reference
from ciel.skywriting.errors import ScriptError
from ciel_tests.skywriting.chunks import Chunk, chunks
from ciel_tests.skywriting.script_host import ScriptHost, Stops, encoded

HERE = Path(__file__).parent
CORPUS = [chunk for path in sorted(HERE.glob("conformance/*.sw")) for chunk in chunks(path)]
FAILURES = [chunk for path in sorted(HERE.glob("errors/run*.sw")) for chunk in chunks(path)]
LIBRARY = 'function twice(x) { return x + x; } lib_name = "lib"; return "ignored";'


class World(ScriptHost):
    """The world of the programs: executors with predictable results, a package, and the web."""

    def __init__(self, stops: Stops) -> None:
        super().__init__(stops)
        self.executors = {"const": constants, "sync": synced, "grab": self.grabbed, "fail": failing}
        self.executors.update(dict.fromkeys(("echo", "stdinout", "env", "java"), echoed))
        self.package = {
            "lib": self.put(LIBRARY),
            "data": self.put("[1, 2]"),
            "text": self.put("one two\r\nthree\n\nfour"),
            "binary": self.put(b"\xff\xfe"),
            "broken": self.put("return 1 +;"),
            "failed": self.withhold(),
        }
        self.fail(self.package["failed"], "RUNTIME_EXCEPTION", "exit status 3")
        self.web = {
            "http://example.org/lib.sw": 'from_web = "web";',
            "http://example.org/uses.sw": "function shown() { return x; }",
        }

    def grabbed(self, keywords: dict[str, Any]) -> Iterator[str]:
        for url in keywords["args"]["urls"]:
            yield encoded(self.put(json.dumps(f"fetched {url}")))


def constants(keywords: dict[str, Any]) -> list[str]:
    contents: list[str] = keywords["args"]["contents"]
    return contents


def synced(keywords: dict[str, Any]) -> list[str]:
    inputs: list[Reference] = keywords["args"]["inputs"]
    return [encoded(inputs)]


def echoed(keywords: dict[str, Any]) -> list[str]:
    return [encoded(keywords)] * keywords.get("n_outputs", 1)


def failing(keywords: dict[str, Any]) -> list[None]:
    return [None] * int(keywords["n_outputs"])


def run(world: ScriptHost, chunk: Chunk) -> Any:
    return world.run(
        chunk.text, name=chunk.where, env={"K": "8", "NAME": "x"}, argv=["one", "2"]
    )  # fmt: skip


@pytest.mark.requirement("CIB-2")
@pytest.mark.parametrize("chunk", CORPUS, ids=lambda chunk: chunk.where)
def test_a_program_does_what_the_language_says(chunk: Chunk) -> None:
    worlds = [World(stops) for stops in Stops]
    for world in worlds:
        if chunk.errors:
            check_error(world, chunk)
        else:
            value = json.loads(encoded(run(world, chunk)))
            assert exact(value) == exact(chunk.only("value")), world.stops
        if chunk.expects("printed"):
            order = sorted if world.calls else list  # in which tasks run is nobody's business
            assert order(world.printed) == order(chunk.only("printed")), world.stops
        world.exhaust()
    assert worlds[0].calls == worlds[1].calls == worlds[2].calls
    assert worlds[0].executed() == worlds[1].executed() == worlds[2].executed()


@pytest.mark.parametrize("chunk", FAILURES, ids=lambda chunk: chunk.where)
def test_an_error_is_told_where_it_is(chunk: Chunk) -> None:
    check_error(World(Stops.NEEDED), chunk)


def exact(value: Any) -> str:
    """Tell 1 from 1.0 and from true."""
    return json.dumps(value, sort_keys=True)


def check_error(world: ScriptHost, chunk: Chunk) -> None:
    """The one error expected, on its line, in its file, with the line itself and a caret."""
    with pytest.raises(ScriptError) as caught:
        run(world, chunk)
    error = caught.value
    [(line, pattern)] = chunk.errors
    report = error.report()
    assert re.search(pattern, report), report
    assert error.place is not None, report
    ways = [
        error.place,
        *((source, offset) for _, source, offset in error.calls),
    ]  # innermost first
    source, offset = next(way for way in ways if way[0].name == chunk.where)
    assert source.place(offset)[0] == line, report
    assert re.search(r"line \d+, column \d+\n    .+\n +\^", report), report
    assert report.startswith("Error executing statement on lines "), report
