"""Tests `examples/proc`, the same task in three languages, against a stand-in for the worker."""

from __future__ import annotations

import base64
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ciel.testing.stand_in import StandIn
from ciel_tests.installed.languages import require_perl

EXAMPLES = Path(__file__).parents[2] / "examples" / "proc"
REF = {"__ref__": ["f2", "a"]}

Start = Callable[..., StandIn]


@pytest.fixture(params=["c", "py", "pl"])
def example(request: pytest.FixtureRequest) -> list[str]:
    """Return the command of an example."""
    path = EXAMPLES / f"wordcount.{request.param}"
    if request.param == "c":
        compiled: Callable[[str], str] = request.getfixturevalue("compiled")
        return [compiled(path.read_text())]
    if request.param == "pl":
        require_perl()
        return ["perl", str(path)]
    return [sys.executable, str(path)]


def test_words_are_counted(programs: Start, example: list[str], tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"one two\n\n  three\tfour five" + b" six" * 50_000)
    program = programs(*example, as_the_original=True)
    program.start_task(REF)
    assert program.answer("open_ref", {"filename": str(tmp_path / "text")})["ref"] == REF
    reply = {"ref": {"__ref__": ["val", "t:out:0", ""]}}
    args = program.answer("publish_string", reply)
    assert (args["index"], base64.b64decode(args["str"])) == (0, b"50005\n")
    assert program.hear()[0] == "exit"
    program.hang_up()
    assert (program.status(), program.errors()) == (0, "")


def test_an_example_waits_for_a_missing_text(
    programs: Start, example: list[str], tmp_path: Path
) -> None:
    (tmp_path / "text").write_bytes(b"one two")
    program = programs(*example)
    program.start_task(REF)
    program.answer("open_ref", {"error": "EWOULDBLOCK"})
    args = {"executor_name": "proc", "extra_dependencies": [REF], "is_fixed": True}
    assert program.hear() == ("tail_spawn", args)
    assert program.hear()[1]["keep_process"] == "must_keep"
    program.say("start_task", {"id": "7", "proc_pargs": [], "proc_kwargs": {}})
    program.answer("open_ref", {"filename": str(tmp_path / "text")})
    assert base64.b64decode(program.hear()[1]["str"]) == b"2\n"
